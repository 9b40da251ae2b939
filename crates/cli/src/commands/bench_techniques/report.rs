//! The figures for people: tables, plots and a page.
//!
//! Invariant: every figure of the page is one of the table.

use super::{Figure, Found, KernelRow, Row, conclusions};
use crate::report::table::align;
use crate::report::units;
use serde::Serialize;
use std::fmt::Write;
use vmmc_techniques::Technique;
use vmmc_utlb::report::{Chart, Series};

/// What the paper gives of its Figures 2 and 3: the highest rate of each technique, MB/s.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Paper {
    technique: &'static str,
    sender_mb_s: f64,
    receiver_mb_s: Option<f64>,
}

/// [SEMANTICS §4]; PIO is not used for receiving there.
pub(super) const PAPER: [Paper; 5] = [
    Paper { technique: "pio", sender_mb_s: 50.0, receiver_mb_s: None },
    Paper { technique: "copydma", sender_mb_s: 91.0, receiver_mb_s: Some(99.0) },
    Paper { technique: "directdma", sender_mb_s: 92.0, receiver_mb_s: Some(99.0) },
    Paper { technique: "v2pdma", sender_mb_s: 87.0, receiver_mb_s: Some(91.0) },
    Paper { technique: "pexdma", sender_mb_s: 87.0, receiver_mb_s: Some(99.0) },
];

const TITLES: [(Figure, &str, &str); 3] = [
    (Figure::Sender, "sender", "Figure 2: the sender alone"),
    (Figure::Receiver, "receiver", "Figure 3: the receiver alone"),
    (Figure::Both, "both", "Both sides, and the receiver reads what came"),
];

fn of(rows: &[Row], figure: Figure, path: &str) -> Vec<Row> {
    rows.iter().filter(|row| row.figure == figure && row.path == path).cloned().collect()
}

fn paths(rows: &[Row]) -> Vec<&'static str> {
    let mut paths: Vec<&'static str> = rows.iter().map(|row| row.path).collect();
    paths.dedup();
    paths
}

fn sizes(rows: &[Row]) -> Vec<u64> {
    let mut sizes: Vec<u64> = rows.iter().map(|row| row.size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn rate(rows: &[Row], technique: &str, size: u64) -> Option<f64> {
    rows.iter().find(|row| row.technique == technique && row.size_bytes == size).map(|row| row.rate)
}

fn best(rows: &[Row], technique: &str) -> f64 {
    rows.iter().filter(|row| row.technique == technique).map(|row| row.rate).fold(0.0, f64::max)
}

/// Whether this side moves the bytes of messages, and not words of the protocol alone: a receiver
/// finds what DirectDMA and V2PDMA bring where it belongs.
fn moves_bytes(figure: Figure, technique: &str) -> bool {
    figure != Figure::Receiver || !["directdma", "v2pdma"].contains(&technique)
}

/// The technique whose best rate others are a part of: the best of the paper's whose bytes this
/// side moves.
fn reference(figure: Figure) -> Paper {
    if figure == Figure::Receiver { PAPER[1] } else { PAPER[2] }
}

/// The paper's highest rate of a side.
fn paper_mb_s(figure: Figure, one: &Paper) -> Option<f64> {
    match figure {
        Figure::Sender => Some(one.sender_mb_s),
        Figure::Receiver => one.receiver_mb_s,
        Figure::Both => None,
    }
}

/// The report.
pub(super) fn text(machine: &str, found: &Found) -> String {
    let mut text = format!("vmmc bench techniques on {machine}\nrates, medians of {} runs in turns\n", found.runs);
    for path in paths(&found.rows) {
        for (figure, _, title) in TITLES {
            let rows = of(&found.rows, figure, path);
            let mut header = vec!["size"];
            header.extend(Technique::ALL.iter().map(|one| one.name()));
            let line = |size: u64| {
                let cell = |one: &Technique| rate(&rows, one.name(), size).map_or(String::new(), units::rate);
                [vec![units::size(size)], Technique::ALL.iter().map(cell).collect()].concat()
            };
            let lines: Vec<Vec<String>> = sizes(&rows).into_iter().map(line).collect();
            let _ = write!(text, "\n{title}, {path}\n\n{}\n", align(&header, &lines, 0));
        }
    }
    text += &paper(found);
    text += &verdicts(found);
    text += &kernel(&found.kernel);
    found.warnings.iter().for_each(|warning| text += &format!("warning: {warning}\n"));
    text
}

/// The paper's highest rates beside ours, each also as a part of the reference's.
fn paper(found: &Found) -> String {
    let sides = [Figure::Sender, Figure::Receiver].map(|figure| (figure, of(&found.rows, figure, "same-node")));
    if sides[0].1.is_empty() {
        return String::new();
    }
    let cells = |(figure, rows): &(Figure, Vec<Row>), one: &Paper| {
        let (best_of_all, ours) = (reference(*figure), best(rows, one.technique));
        let most = paper_mb_s(*figure, &best_of_all).unwrap_or(1.0);
        let theirs = paper_mb_s(*figure, one).map_or("-".into(), |mb| format!("{mb:.0} MB/s ({:.2})", mb / most));
        let here = if moves_bytes(*figure, one.technique) {
            format!("{} ({:.2})", units::rate(ours), ours / best(rows, best_of_all.technique))
        } else {
            "protocol only".to_string()
        };
        vec![theirs, here]
    };
    let line = |one: &Paper| [vec![one.technique.to_string()], cells(&sides[0], one), cells(&sides[1], one)].concat();
    let lines: Vec<Vec<String>> = PAPER.iter().map(line).collect();
    let header = ["highest rate", "sender, paper", "here", "receiver, paper", "here"];
    let [sender, receiver] = sides.each_ref().map(|(figure, _)| reference(*figure).technique);
    format!(
        "\nBeside the paper; in brackets the part of {sender}'s, of receivers {receiver}'s\n\n{}\n",
        align(&header, &lines, 1)
    )
}

fn verdicts(found: &Found) -> String {
    let mut text = String::from("\nWhat the paper concluded\n\n");
    for (number, one) in found.conclusions.iter().enumerate() {
        let verdict = if one.holds { "confirmed" } else { "refuted here" };
        let _ = writeln!(text, "{}. {}: {verdict}\n   {}; found: {}", number + 1, one.says, one.rule, one.found);
    }
    let auto = conclusions::auto(&found.rows, super::AUTO_LEAST);
    let line = |one: &conclusions::Verdict| {
        let met = if one.met { "met" } else { "NOT met" };
        vec![one.path.to_string(), units::size(one.size_bytes), format!("{:.2}", one.ratio), met.to_string()]
    };
    let lines: Vec<Vec<String>> = auto.iter().map(line).collect();
    let least = super::AUTO_LEAST;
    let table = align(&["path", "size", "auto of the better", "at least"], &lines, 1);
    let _ =
        write!(text, "\nPromise: auto, both sides, at least {least} x the better of copydma and pexdma\n\n{table}\n");
    text
}

/// What the kernel's ways need and give.
fn kernel(rows: &Result<Vec<KernelRow>, String>) -> String {
    let rows = match rows {
        Ok(rows) => rows,
        Err(why) => return format!("\nThe kernel's own zero copy: not measured, {why}\n"),
    };
    let share = |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.0} %", share * 100.0));
    let line = |row: &KernelRow| {
        let way = |is: bool, yes: &str| if is { yes.to_string() } else { "copied".to_string() };
        let ways = [way(row.by_reference, "MSG_ZEROCOPY"), way(row.mapped, "TCP_ZEROCOPY_RECEIVE")];
        let figures = vec![units::rate(row.rate), share(row.copied_share), share(row.mapped_share)];
        [vec![row.mtu.to_string()], ways.to_vec(), figures].concat()
    };
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    let header = ["MTU", "sends", "receives", "rate", "sends copied after all", "bytes mapped"];
    format!(
        "\nThe kernel's own zero copy: TCP between two namespaces over virtual Ethernet, sends of 1 MiB\n\n{}\n\
         needs: SO_ZEROCOPY and a look at the error queue for each send; a mapping of the socket, whole pages of payload in a segment, and a copy of what is none\n",
        align(&header, &lines, 3)
    )
}

/// One chart for each figure and path, of the techniques whose bytes the side moves. The paper's
/// highest rates are dashed, at the scale at which its best meets ours.
pub(super) fn charts(found: &Found) -> Vec<(String, Chart)> {
    let mut charts = Vec::new();
    for path in paths(&found.rows) {
        for (figure, name, title) in TITLES {
            let rows = of(&found.rows, figure, path);
            let points = |technique: &str| {
                sizes(&rows)
                    .into_iter()
                    .filter_map(|size| Some((size as f64 / 1024.0, rate(&rows, technique, size)? / 1e9)))
                    .collect()
            };
            let shown = Technique::ALL.iter().filter(|one| moves_bytes(figure, one.name()));
            let ours = shown.map(|one| Series { name: one.name().into(), points: points(one.name()), dashed: false });
            let mut series: Vec<Series> = ours.collect();
            series.extend(scaled_paper(figure, &rows));
            let chart = Chart {
                title: format!("{title}, {path}"),
                x: "KiB of a message".into(),
                y: "GB/s".into(),
                log_x: true,
                series,
            };
            charts.push((format!("{name}-{path}"), chart));
        }
    }
    charts
}

fn scaled_paper(figure: Figure, rows: &[Row]) -> Vec<Series> {
    let reference = reference(figure);
    let Some(most) = paper_mb_s(figure, &reference) else { return Vec::new() };
    let scale = best(rows, reference.technique) / 1e9 / most;
    let sizes = sizes(rows);
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else { return Vec::new() };
    let series = |one: &Paper| {
        let y = paper_mb_s(figure, one)? * scale;
        let points = [first, last].map(|size| (*size as f64 / 1024.0, y)).to_vec();
        Some(Series { name: format!("{}, paper's best, scaled", one.technique), points, dashed: true })
    };
    PAPER.iter().filter(|one| moves_bytes(figure, one.technique)).filter_map(series).collect()
}

/// The page.
pub(super) fn html(machine: &str, found: &Found) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>vmmc bench techniques</title><style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
         svg{width:100%;height:auto}pre{overflow-x:auto;font-size:.85rem}</style></head><body><h1>vmmc bench techniques</h1>",
    );
    for (_, chart) in charts(found) {
        let _ = write!(page, "{}", chart.svg());
    }
    let escaped = text(machine, found).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(page, "<pre>{escaped}</pre></body></html>");
    page
}
