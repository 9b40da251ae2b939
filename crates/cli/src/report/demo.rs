//! The one table of the demo: series down, sizes across, each figure with its ratio to the limit.
//!
//! Invariant: no message is faster than one cache line goes from core to core, nor than a copy of
//! its size; the slower of the two is the limit.

use super::table::{align, promises, tail};
use super::{Figures, Report, Row, units};
use std::fmt::Write;

/// What the figures of the table are.
const FIGURES: &str = "\
Each figure is the median of the runs, in brackets its ratio to the limit: for the time of a message the transfer of a cache line from core to core or a copy
of that size, whichever is slower; for the rate a copy of that size within one process.";

/// What a page says in words: what the figures are, and what they come to.
pub(crate) fn words(report: &Report) -> Vec<String> {
    let summary = summary(report);
    [FIGURES].into_iter().chain(summary.lines()).map(String::from).collect()
}

/// The table, and what to make of it.
pub(crate) fn table(report: &Report) -> String {
    let columns = columns(report);
    let mut header: Vec<String> = vec![String::new()];
    header.extend(
        columns
            .iter()
            .map(|(bandwidth, size)| format!("{} {}", if *bandwidth { "rate" } else { "one way" }, units::size(*size))),
    );
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let series = [
        ("limit", "limit", ""),
        ("VMMC, one node", "same-node", "vmmc"),
        ("VMMC, between nodes", "two-nodes", "vmmc"),
        ("same, not encrypted", "two-nodes", "vmmc-plain"),
        ("Unix socket", "kernel", "unix"),
        ("pipe", "kernel", "pipe"),
        ("TCP loopback", "kernel", "tcp"),
    ];
    let lines: Vec<Vec<String>> = series
        .iter()
        .map(|(name, path, series)| {
            let cells = columns.iter().map(|column| cell(report, column, path, series));
            [vec![name.to_string()], cells.collect()].concat()
        })
        .collect();
    let mut out = align(&header, &lines, 1);
    let _ = writeln!(out, "\n{FIGURES}");
    for row in &report.rows {
        if let Figures::Failed { error } = &row.figures {
            let size = units::size(row.key.size_bytes);
            let _ = writeln!(out, "failed: {} {} {size}: {error}", row.key.series, row.key.path);
        }
    }
    out + &summary(report) + &promises(report) + &tail(report)
}

/// (is a bandwidth, size), in the order of the rows.
fn columns(report: &Report) -> Vec<(bool, u64)> {
    let mut columns = Vec::new();
    for row in report.rows.iter().filter(|r| r.key.path == "limit") {
        let column = (row.figures.bytes_per_s().is_some(), row.key.size_bytes);
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    columns
}

fn find<'a>(report: &'a Report, (bandwidth, size): &(bool, u64), path: &str, series: &str) -> Option<&'a Row> {
    report.rows.iter().find(|r| {
        let kind = if *bandwidth { r.figures.bytes_per_s() } else { r.figures.p50_ns() };
        kind.is_some()
            && r.key.size_bytes == *size
            && r.key.path == path
            && (series.is_empty() || r.key.series == series)
    })
}

/// The limit of a column.
fn limit(report: &Report, column: &(bool, u64)) -> Option<f64> {
    let of_size = find(report, column, "limit", "")?;
    if column.0 {
        return of_size.figures.bytes_per_s();
    }
    let line = report.rows.iter().find(|r| r.key.series == "cache-line").and_then(|r| r.figures.p50_ns());
    Some(of_size.figures.p50_ns()?.max(line.unwrap_or(0.0)))
}

fn cell(report: &Report, column: &(bool, u64), path: &str, series: &str) -> String {
    let show = if column.0 { units::rate } else { units::time };
    let limit = limit(report, column);
    if path == "limit" {
        return limit.map_or("failed".into(), show);
    }
    let Some(row) = find(report, column, path, series) else { return "failed".into() };
    let value = if column.0 { row.figures.bytes_per_s() } else { row.figures.p50_ns() }.unwrap_or(0.0);
    let ratio = limit.map(|l| format!(" ({})", units::ratio(value / l))).unwrap_or_default();
    format!("{}{ratio}", show(value))
}

/// How many times VMMC beats the kernel's transports.
fn summary(report: &Report) -> String {
    let mut out = String::new();
    for (name, path) in [("one node", "same-node"), ("between nodes", "two-nodes")] {
        let Some(ours) = find(report, &(false, 8), path, "vmmc").and_then(|r| r.figures.p50_ns()) else { continue };
        let mut parts = Vec::new();
        for (peer, series) in [("a Unix socket", "unix"), ("a pipe", "pipe"), ("TCP", "tcp")] {
            if path == "two-nodes" && series != "tcp" {
                continue;
            }
            if let Some(theirs) = find(report, &(false, 8), "kernel", series).and_then(|r| r.figures.p50_ns()) {
                let times = |x: f64, word: &str| format!("{} times {word} than {peer}", units::digits(x));
                parts.push(if theirs >= ours {
                    times(theirs / ours, "faster")
                } else {
                    times(ours / theirs, "slower")
                });
            }
        }
        let _ = writeln!(out, "8 B through VMMC, {name}: {}", parts.join(", "));
    }
    out
}
