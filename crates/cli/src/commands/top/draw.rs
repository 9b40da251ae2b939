//! How `vmmc top` looks.
//!
//! Invariant: drawing reads a view and changes nothing.

use super::sample::{NodeView, View};
use crate::report::units;
use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};

/// Draws a view; the details are those of one node, which the keys choose if there are keys.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, chosen: usize, keys: bool) {
    let nodes = u16::try_from(view.nodes.len()).unwrap_or(u16::MAX).clamp(1, 8);
    let rest = Constraint::Min(2);
    let areas = Layout::vertical([Constraint::Length(1), Constraint::Length(nodes + 2), rest, rest, rest, rest]);
    let [title, overview, peers, processes, exports, imports] = areas.areas(frame.area());
    let node = view.nodes.get(chosen).map_or("none runs", |node| &node.info.name);
    let keys = if keys { " · arrows choose one, q ends" } else { "" };
    let text = format!("vmmc top · {} nodes of this user, below: {node}{keys}", view.nodes.len());
    frame.render_widget(Line::styled(text, Style::new().add_modifier(Modifier::BOLD)), title);
    nodes_table(frame, overview, view, chosen);
    if let Some(node) = view.nodes.get(chosen) {
        peers_table(frame, peers, node);
        processes_table(frame, processes, node);
        exports_table(frame, exports, node);
        imports_table(frame, imports, node);
    }
}

/// The same as text, with the details of the first node.
pub(super) fn text(view: &View, (width, height): (u16, u16)) -> Result<String, std::io::Error> {
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    terminal.draw(|frame| draw(frame, view, 0, false))?;
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(usize::from(width)).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_string()
    });
    let mut lines: Vec<String> = lines.collect();
    lines.dedup_by(|a, b| a.is_empty() && b.is_empty());
    Ok(lines.join("\n").trim_end().to_string() + "\n")
}

fn table(
    frame: &mut Frame<'_>,
    area: Rect,
    header: &[&str],
    widths: &[u16],
    rows: Vec<Vec<String>>,
    chosen: Option<usize>,
) {
    let style = |index: usize| match chosen {
        Some(row) if row == index => Style::new().add_modifier(Modifier::REVERSED),
        _ => Style::new(),
    };
    let rows = rows.into_iter().enumerate().map(|(index, cells)| Row::new(cells).style(style(index)));
    let head = Row::new(header.iter().map(|text| (*text).to_string()).collect::<Vec<_>>());
    let head = head.style(Style::new().add_modifier(Modifier::UNDERLINED));
    let widths = widths.iter().map(|width| Constraint::Length(*width));
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn per_second(rate: f64) -> String {
    format!("{}/s", units::size(rate as u64))
}

fn count(rate: f64) -> String {
    format!("{rate:.0}/s")
}

fn nodes_table(frame: &mut Frame<'_>, area: Rect, view: &View, chosen: usize) {
    let row = |node: &NodeView| {
        let info = &node.info;
        vec![
            info.name.clone(),
            info.pid.to_string(),
            format!("{:.1} %", node.rate("process_cpu_us") / 1e4),
            info.processes.len().to_string(),
            info.exports.len().to_string(),
            info.imports.len().to_string(),
            count(node.rate("commands")),
            per_second(node.rate("udp_bytes_out")),
            per_second(node.rate("udp_bytes_in")),
            count(node.rate("engine_retransmits")),
        ]
    };
    let header = ["node", "pid", "engine", "procs", "exports", "imports", "commands", "out", "in", "resent"];
    let widths = [28, 8, 8, 6, 8, 8, 11, 14, 14, 8];
    table(frame, area, &header, &widths, view.nodes.iter().map(row).collect(), Some(chosen));
}

fn peers_table(frame: &mut Frame<'_>, area: Rect, node: &NodeView) {
    let row = |peer: &vmmc_host::control::PeerInfo| {
        let rtt = if peer.rtt_ns == 0 { String::new() } else { units::time(peer.rtt_ns as f64) };
        vec![
            if peer.name.is_empty() { "?".into() } else { peer.name.clone() },
            peer.address.clone(),
            peer.state.clone(),
            rtt,
            units::size(peer.window_bytes),
            units::size(peer.in_flight_bytes),
            per_second(node.peer_rate(peer, "bytes_out")),
            per_second(node.peer_rate(peer, "bytes_in")),
            count(node.peer_rate(peer, "retransmits")),
        ]
    };
    let header = ["peer", "address", "state", "rtt", "window", "in flight", "out", "in", "resent"];
    let widths = [24, 22, 11, 9, 10, 10, 12, 12, 8];
    table(frame, area, &header, &widths, node.info.peers.iter().map(row).collect(), None);
}

fn processes_table(frame: &mut Frame<'_>, area: Rect, node: &NodeView) {
    let row = |process: &vmmc_host::control::ProcessInfo| {
        let command = std::fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
        vec![
            process.pid.to_string(),
            process.uid.to_string(),
            process.exports.to_string(),
            process.imports.to_string(),
            process.commands.to_string(),
            units::size(process.region_bytes),
            command.trim().to_string(),
        ]
    };
    let header = ["process", "user", "exports", "imports", "commands", "memory", "program"];
    table(frame, area, &header, &[9, 7, 8, 8, 12, 10, 30], node.info.processes.iter().map(row).collect(), None);
}

fn exports_table(frame: &mut Frame<'_>, area: Rect, node: &NodeView) {
    let row = |export: &vmmc_host::control::ExportInfo| {
        let name = export.name.clone().unwrap_or_else(|| format!("#{:x}", export.export));
        vec![name, units::size(export.len), node.pid_of(export.process), export.importers.to_string()]
    };
    let header = ["export", "bytes", "process", "importers"];
    table(frame, area, &header, &[60, 12, 9, 10], node.info.exports.iter().map(row).collect(), None);
}

fn imports_table(frame: &mut Frame<'_>, area: Rect, node: &NodeView) {
    let row = |import: &vmmc_host::control::ImportInfo| {
        let of =
            node.info.exports.iter().find(|export| export.export == import.export && import.node == node.info.name);
        let name = of.and_then(|export| export.name.clone()).unwrap_or_else(|| format!("#{:x}", import.export));
        vec![name, import.node.clone(), import.path.clone(), units::size(import.len), node.pid_of(import.process)]
    };
    let header = ["import of", "node", "path", "bytes", "process"];
    table(frame, area, &header, &[48, 24, 9, 12, 9], node.info.imports.iter().map(row).collect(), None);
}
