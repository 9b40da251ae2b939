//! How `vmmc top` looks.
//!
//! Invariant: drawing reads a view and changes nothing.

use super::sample::{NodeView, View};
use super::screen::{Keys, Screen, Sort};
use crate::commands::name_or_id;
use crate::report::{published, units};
use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table};
use vmmc_host::control::{ImportInfo, ProcessInfo};
use vmmc_host::published::{Figure, FigureKind};

/// Lines that the details get before more than a few nodes are shown.
const DETAILS: u16 = 50;

/// Draws a view, as the screen's choices want it.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, screen: &Screen) {
    // A small screen keeps room for the details.
    let most = frame.area().height.saturating_sub(DETAILS).max(8);
    let nodes = u16::try_from(view.nodes.len()).unwrap_or(u16::MAX).clamp(1, most);
    let rest = Constraint::Min(2);
    let some = view.nodes.get(screen.chosen).is_some_and(|node| !node.info.published.is_empty());
    let last = if some { rest } else { Constraint::Length(0) };
    let areas = Layout::vertical([Constraint::Length(1), Constraint::Length(nodes + 2), rest, rest, rest, rest, last]);
    let [title, overview, peers, processes, imports, exports, published] = areas.areas(frame.area());
    let node = view.nodes.get(screen.chosen).map_or("none runs", |node| &node.info.name);
    let inverted = if screen.inverted { ", inverted" } else { "" };
    let keys = if screen.keys { " · ? help, q ends" } else { "" };
    let count = view.nodes.len();
    let (plural, sort) = (if count == 1 { "" } else { "s" }, screen.sort.words());
    let text = format!("vmmc top · {count} node{plural} · below: {node}, by {sort}{inverted}{keys}");
    frame.render_widget(Line::styled(text, Style::new().add_modifier(Modifier::BOLD)), title);
    nodes_table(frame, overview, view, screen.chosen);
    if let Some(node) = view.nodes.get(screen.chosen) {
        peers_table(frame, peers, node);
        processes_table(frame, processes, node, screen);
        imports_table(frame, imports, node, screen);
        exports_table(frame, exports, node);
        published_table(frame, published, node);
    }
    if screen.help {
        help(frame);
    }
}

/// The keys, and what the columns mean, over everything else.
fn help(frame: &mut Frame<'_>) {
    let mut lines = vec![
        "up, down, tab   choose the node whose details are shown".to_string(),
        "i               invert the order".to_string(),
        "? or h          show or hide this help".to_string(),
        "q or escape     end".to_string(),
        String::new(),
    ];
    lines.extend(Sort::ALL.iter().map(|(key, _, words)| format!("{key}               sort by {words}")));
    lines.extend(
        [
            "",
            "mapped    bytes that processes copied into and out of memory of this node's",
            "          other processes, as they say; no node has a part in that",
            "commands  what the engine took from processes: transfers by other paths",
            "out, in   UDP datagrams to and from other nodes",
            "",
            "counters.md, in share/doc/vmmc, explains every number.",
        ]
        .map(String::from),
    );
    let all = frame.area();
    let size = (78.min(all.width), (lines.len() as u16 + 2).min(all.height));
    let area = Rect::new((all.width - size.0) / 2, (all.height - size.1) / 2, size.0, size.1);
    let lines: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" vmmc top ")), area);
}

/// The same as text, with all nodes, and the details of the first one.
pub(super) fn text(view: &View, screen: &Screen, size: (u16, u16)) -> Result<String, std::io::Error> {
    let nodes = u16::try_from(view.nodes.len()).unwrap_or(u16::MAX);
    let mut lines = lines(view, screen, (size.0, size.1.saturating_add(nodes)))?;
    lines.dedup_by(|a, b| a.is_empty() && b.is_empty());
    Ok(lines.join("\n").trim_end().to_string() + "\n")
}

fn lines(view: &View, screen: &Screen, (width, height): (u16, u16)) -> Result<Vec<String>, std::io::Error> {
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    terminal.draw(|frame| draw(frame, view, screen))?;
    let lines = terminal.backend().buffer().content().chunks(usize::from(width)).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_string()
    });
    Ok(lines.collect())
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
    units::rate(rate)
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
            per_second(node.rate("mapped_send_bytes") + node.rate("mapped_fetch_bytes")),
            count(node.rate("commands")),
            per_second(node.rate("udp_bytes_out")),
            per_second(node.rate("udp_bytes_in")),
            count(node.rate("engine_retransmits")),
        ]
    };
    let header = ["node", "pid", "engine", "procs", "exports", "imports", "mapped", "commands", "out", "in", "resent"];
    let widths = [24, 8, 8, 6, 8, 8, 14, 11, 14, 14, 8];
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

fn processes_table(frame: &mut Frame<'_>, area: Rect, node: &NodeView, screen: &Screen) {
    let row = |process: &ProcessInfo| {
        let rate = node.process_rates.get(&process.process).copied().unwrap_or_default();
        let keys = Keys {
            rate: rate.bytes,
            operations: rate.operations,
            bytes: process.mapped.bytes(),
            name: process.program.clone(),
            process: process.pid,
        };
        let cells = vec![
            process.pid.to_string(),
            process.uid.to_string(),
            process.program.clone(),
            per_second(rate.bytes),
            count(rate.operations),
            units::size(process.mapped.bytes()),
            process.commands.to_string(),
            process.exports.to_string(),
            process.imports.to_string(),
            units::size(process.region_bytes),
        ];
        (keys, cells)
    };
    let mut rows: Vec<_> = node.info.processes.iter().map(row).collect();
    screen.order(&mut rows);
    let header =
        ["process", "user", "program", "mapped", "operations", "in all", "commands", "exports", "imports", "memory"];
    let rows = rows.into_iter().map(|(_, cells)| cells).collect();
    table(frame, area, &header, &[9, 7, 17, 14, 14, 11, 11, 8, 8, 11], rows, None);
}

fn exports_table(frame: &mut Frame<'_>, area: Rect, node: &NodeView) {
    let row = |export: &vmmc_host::control::ExportInfo| {
        let name = name_or_id(export.name.as_deref(), export.export);
        vec![name, units::size(export.len), node.pid_of(export.process), export.importers.to_string()]
    };
    let header = ["export", "bytes", "process", "importers"];
    table(frame, area, &header, &[60, 12, 9, 10], node.info.exports.iter().map(row).collect(), None);
}

/// What processes have published, but for what was never counted.
fn published_table(frame: &mut Frame<'_>, area: Rect, node: &NodeView) {
    let all = node.info.published.iter().flat_map(|of| of.figures.iter().map(move |figure| (of, figure)));
    let counted = all.filter(|(_, figure)| figure.value > 0);
    let row = |(of, figure): (&vmmc_host::control::PublishedInfo, &Figure)| {
        let name = published::name(figure);
        let rate = node.published_rates.get(&(of.process, of.source.clone(), name.clone())).copied();
        let (value, mean, most) = match (figure.kind, published::times(figure)) {
            (FigureKind::Times, Some((mean, most))) => (figure.times().to_string(), mean, most),
            _ => (figure.value.to_string(), String::new(), String::new()),
        };
        vec![of.source.clone(), name, node.pid_of(of.process), value, count(rate.unwrap_or(0.0)), mean, most]
    };
    let header = ["published by", "figure", "process", "count", "a second", "mean", "99 % below"];
    table(frame, area, &header, &[24, 40, 9, 14, 12, 10, 10], counted.map(row).collect(), None);
}

fn imports_table(frame: &mut Frame<'_>, area: Rect, node: &NodeView, screen: &Screen) {
    let row = |import: &ImportInfo| {
        let rate = node.import_rates.get(&(import.process, import.import)).copied().unwrap_or_default();
        let process = node.process(import.process);
        let keys = Keys {
            rate: rate.bytes,
            operations: rate.operations,
            bytes: import.moved.bytes(),
            name: name_or_id(import.name.as_deref(), import.export),
            process: process.map_or(0, |process| process.pid),
        };
        let cells = vec![
            keys.name.clone(),
            import.node.clone(),
            import.path.clone(),
            node.pid_of(import.process),
            process.map_or_else(String::new, |process| process.program.clone()),
            per_second(rate.bytes),
            count(rate.operations),
            units::size(import.moved.bytes()),
            units::size(import.len),
        ];
        (keys, cells)
    };
    let mut rows: Vec<_> = node.info.imports.iter().map(row).collect();
    screen.order(&mut rows);
    let header = ["import of", "node", "path", "process", "program", "moved", "operations", "in all", "bytes"];
    let rows = rows.into_iter().map(|(_, cells)| cells).collect();
    table(frame, area, &header, &[26, 16, 8, 9, 16, 14, 14, 11, 11], rows, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::sample::Rate;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use std::collections::HashMap;
    use vmmc::{Moved, NodeInfo};
    use vmmc_host::control::{ExportInfo, PublishedInfo};

    /// Two nodes; on the first one a process that copies much and one that copies little.
    fn view() -> View {
        let moved = |send_bytes| Moved { sends: 3, send_bytes, ..Moved::default() };
        let process = |process, pid, program: &str, bytes| ProcessInfo {
            process,
            pid,
            program: program.into(),
            mapped: moved(bytes),
            ..ProcessInfo::default()
        };
        let import = |import, process, name: Option<&str>, bytes| ImportInfo {
            import,
            process,
            export: 3 << 32 | 12,
            node: "a".into(),
            path: "mapped".into(),
            name: name.map(String::from),
            moved: moved(bytes),
            len: 4096,
            ..ImportInfo::default()
        };
        let figure = |item: &str, value, buckets: &[u64]| Figure {
            kind: FigureKind::Times,
            family: "rpc_answer".into(),
            item: item.into(),
            value,
            buckets: buckets.to_vec(),
        };
        let (answers, never) = (figure("read", 4_000, &[0, 0, 0, 4]), figure("write", 0, &[]));
        let info = NodeInfo {
            name: "a".into(),
            processes: vec![process(1, 100, "small", 9 << 30), process(2, 200, "large", 10)],
            imports: vec![import(1, 1, Some("frames"), 9 << 30), import(1, 2, None, 10)],
            exports: vec![ExportInfo { export: 5, len: 4096, process: 1, ..ExportInfo::default() }],
            published: vec![PublishedInfo { process: 1, source: "rpc.pages".into(), figures: vec![answers, never] }],
            ..NodeInfo::default()
        };
        let slow = Rate { bytes: 1000.0, operations: 7000.0 };
        let fast = Rate { bytes: 12_500_000_000.0, operations: 5.0 };
        let first = NodeView {
            info,
            rates: HashMap::from([("mapped_send_bytes".to_string(), 12_500_000_000.0)]),
            peer_rates: HashMap::new(),
            process_rates: HashMap::from([(1, slow), (2, fast)]),
            import_rates: HashMap::from([((1, 1), slow), ((2, 1), fast)]),
            published_rates: HashMap::from([((1, "rpc.pages".into(), "rpc_answer read".into()), 333.0)]),
        };
        let second = NodeView {
            info: NodeInfo { name: "b".into(), ..NodeInfo::default() },
            rates: HashMap::new(),
            peer_rates: HashMap::new(),
            process_rates: HashMap::new(),
            import_rates: HashMap::new(),
            published_rates: HashMap::new(),
        };
        View { nodes: vec![first, second] }
    }

    fn press(screen: &mut Screen, code: KeyCode) -> bool {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE), 2)
    }

    /// The line of the screen on which the first of these words stands before the second in the
    /// column of programs.
    fn first_program(lines: &[String]) -> &str {
        let at = lines.iter().position(|line| line.starts_with("process")).expect("a head");
        lines[at + 1].split_whitespace().nth(2).expect("a program")
    }

    #[test]
    fn rates_of_mapped_transfers_are_shown_by_process_and_import() {
        let text = text(&view(), &Screen::default(), (132, 50)).unwrap();
        let line = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
        let rate = per_second(12_500_000_000.0);
        assert!(rate.contains("GB/s"), "{rate}");
        assert!(line(&["200", "large", &rate, "5/s"]), "{text}");
        assert!(line(&["12.3", "mapped", "200", "large", &rate]), "an export without a name is its id: {text}");
        assert!(
            line(&["frames", "a", "100", "small", "7000/s", "9.00 GiB"]) || line(&["frames", "100", "small", "7000/s"])
        );
        assert!(!text.contains("help"), "text has no keys: {text}");
        assert!(line(&["rpc.pages", "rpc_answer read", "100", "4", "333/s", "1.00 us", "1.02 us"]), "{text}");
        assert!(!text.contains("write"), "it was never counted: {text}");
    }

    #[test]
    fn keys_sort_invert_choose_help_and_end() {
        let (view, mut screen) = (view(), Screen::live(Sort::default(), false));
        let mut first = |keys: &str| {
            keys.chars().for_each(|key| assert!(!press(&mut screen, KeyCode::Char(key))));
            first_program(&lines(&view, &screen, (132, 50)).unwrap()).to_string()
        };
        assert_eq!(first(""), "large");
        assert_eq!(first("o"), "small");
        assert_eq!(first("r"), "large");
        assert_eq!(first("b"), "small");
        assert_eq!(first("n"), "large");
        assert_eq!(first("p"), "small");
        assert_eq!(first("i"), "large");
        assert_eq!(first("?x"), "large");
        let page = lines(&view, &screen, (132, 50)).unwrap().join("\n");
        for (key, _, words) in Sort::ALL {
            assert!(page.contains(&format!("{key}               sort by {words}")), "{page}");
        }
        assert!(!press(&mut screen, KeyCode::Esc) && !screen.help, "escape closes the help first");
        press(&mut screen, KeyCode::Down);
        let page = lines(&view, &screen, (132, 50)).unwrap();
        assert!(page[0].contains("below: b, by process id, inverted"), "{}", page[0]);
        press(&mut screen, KeyCode::Tab);
        assert_eq!(screen.chosen, 0);
        assert!(press(&mut screen, KeyCode::Char('q')));
    }

    #[test]
    fn small_terminals_are_drawn_too() {
        let mut screen = Screen::live(Sort::default(), false);
        press(&mut screen, KeyCode::Char('?'));
        for (width, height) in [(1, 1), (20, 3), (80, 24), (300, 100)] {
            for view in [view(), View::default()] {
                let page = lines(&view, &screen, (width, height)).unwrap();
                assert_eq!(page.len(), usize::from(height));
                assert!(page.iter().all(|line| line.chars().count() <= usize::from(width)), "{page:?}");
                // The smallest have room for the frame of the help alone.
                let help = page.iter().any(|line| line.contains("up, down, tab   choose"));
                assert_eq!((page[0].starts_with("vmmc top · "), help), (width >= 80, width >= 80), "{page:?}");
            }
        }
    }
}
