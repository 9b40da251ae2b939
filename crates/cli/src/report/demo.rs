//! The one table of the demo: series down, sizes across, each figure with its ratio to the limit.
//!
//! Invariant: the limit of 8 B latency is the cache line, all others have the copy of the same size.

use super::table::{align, promises, tail};
use super::{Figures, Report, Row, units};
use std::fmt::Write;

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
        ("limit (cache line, memcpy)", "limit", ""),
        ("VMMC, one node", "same-node", "vmmc"),
        ("VMMC, between nodes", "two-nodes", "vmmc"),
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
    out.push_str("\nEach figure is the median of the runs; in brackets its ratio to the limit of the same size.\n");
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

fn cell(report: &Report, column: &(bool, u64), path: &str, series: &str) -> String {
    let Some(row) = find(report, column, path, series) else { return "failed".into() };
    let limit = find(report, column, "limit", "");
    let (shown, ratio) = if column.0 {
        let rate = row.figures.bytes_per_s().unwrap_or(0.0);
        (units::rate(rate), limit.and_then(|l| l.figures.bytes_per_s()).map(|l| rate / l))
    } else {
        let time = row.figures.p50_ns().unwrap_or(0.0);
        (units::time(time), limit.and_then(|l| l.figures.p50_ns()).map(|l| time / l))
    };
    let ratio = ratio.filter(|_| path != "limit").map(|r| format!(" ({})", units::ratio(r))).unwrap_or_default();
    format!("{shown}{ratio}")
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
                parts.push(format!("{} than {peer}", units::ratio(theirs / ours)));
            }
        }
        let _ = writeln!(out, "8 B through VMMC, {name}: faster by {}", parts.join(", "));
    }
    out
}
