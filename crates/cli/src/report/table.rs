//! Tables for people.
//!
//! Invariant: every line of a table is as wide as its header; the first column is left-aligned,
//! numbers are right-aligned.

use super::{Figures, Report, Row, units};
use std::fmt::Write;
use vmmc_host::text::printable;

/// Lays cells out in aligned columns; `left` columns from the left are text, the others numbers.
///
/// A cell stays a cell, whatever is in it: a line end in somebody's name makes no line.
pub(crate) fn align(header: &[&str], lines: &[Vec<String>], left: usize) -> String {
    let fit = |line: &Vec<String>| line.iter().map(|cell| printable(cell).into_owned()).collect();
    let lines: Vec<Vec<String>> = lines.iter().map(fit).collect();
    let width = |i: usize| {
        let cells = lines.iter().filter_map(|l| l.get(i)).map(|c| c.chars().count());
        cells.chain([header[i].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut out = String::new();
    let mut put = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (i, cell) in cells.enumerate() {
            let gap = if i == 0 { "" } else { "  " };
            let w = widths[i];
            let _ = if i < left { write!(line, "{gap}{cell:<w$}") } else { write!(line, "{gap}{cell:>w$}") };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    };
    put(&mut header.iter().copied());
    let rule: Vec<String> = widths.iter().map(|w| "─".repeat(*w)).collect();
    put(&mut rule.iter().map(String::as_str));
    for line in &lines {
        put(&mut line.iter().map(String::as_str));
    }
    out
}

/// A bench as text: rows by size, promises, what is missing, warnings.
pub(crate) fn bench(report: &Report) -> String {
    let mut out = format!("vmmc bench {} on {}\n\n", report.bench, report.machine);
    let asleep = report.rows.iter().any(|r| r.key.asleep_us.is_some());
    let ops = report.rows.iter().any(|r| r.key.op.is_some());
    let mut header = vec!["size", "series", "path"];
    header.extend(ops.then_some("op"));
    header.extend(asleep.then_some("asleep"));
    let text_columns = header.len();
    header.extend(["median", "p99", "spread of runs", "ratio"]);
    let base = base_series(report);
    let mut lines = Vec::new();
    for row in &report.rows {
        let mut line = vec![units::size(row.key.size_bytes), row.key.series.clone(), row.key.path.clone()];
        line.extend(ops.then(|| row.key.op.clone().unwrap_or_default()));
        line.extend(asleep.then(|| row.key.asleep_us.map(|us| format!("{us} us")).unwrap_or_default()));
        line.extend(figure_cells(row, base_row(report, row, base)));
        lines.push(line);
    }
    out += &align(&header, &lines, text_columns);
    if let Some(base) = base {
        let _ = writeln!(
            out,
            "\nratio: to {base} of the same row group; spread: smallest and largest median of {}",
            runs(report)
        );
    }
    for row in &report.rows {
        if let Figures::Failed { error } = &row.figures {
            let _ = writeln!(
                out,
                "failed: {} {} {}: {error}",
                row.key.series,
                row.key.path,
                units::size(row.key.size_bytes)
            );
        }
    }
    out + &promises(report) + &tail(report)
}

/// How many runs the series had that did not fail.
fn runs(report: &Report) -> String {
    let counts = || report.rows.iter().filter(|r| !matches!(r.figures, Figures::Failed { .. })).map(|r| r.runs);
    match (counts().min(), counts().max()) {
        (Some(few), Some(all)) if few < all => format!("{all} runs, of slow series {few}"),
        (_, all) => format!("{} runs", all.unwrap_or(0)),
    }
}

/// The series that ratios of a bench refer to.
fn base_series(report: &Report) -> Option<&'static str> {
    let base = match report.bench.as_str() {
        "latency" => "cache-line",
        "bandwidth" | "fetch" => "memcpy",
        "atomic" => "local-atomic",
        "notify" => "futex",
        "import" => "pass-fd",
        "redirect" => "vmmc",
        _ => return None,
    };
    report.rows.iter().any(|r| r.key.series == base).then_some(base)
}

/// The row of the base series that belongs to this row: same size and sleep if there is one, else
/// the first.
fn base_row<'a>(report: &'a Report, row: &Row, base: Option<&str>) -> Option<&'a Row> {
    let base = base?;
    let rows = || report.rows.iter().filter(|r| r.key.series == base);
    let same = |r: &&Row| r.key.size_bytes == row.key.size_bytes && r.key.asleep_us == row.key.asleep_us;
    rows().find(same).or_else(|| rows().next())
}

fn figure_cells(row: &Row, base: Option<&Row>) -> [String; 4] {
    match &row.figures {
        Figures::Latency { p50_ns, p99_ns, p50_min_ns, p50_max_ns } => [
            units::time(*p50_ns),
            units::time(*p99_ns),
            format!("{} .. {}", units::time(*p50_min_ns), units::time(*p50_max_ns)),
            base.and_then(|b| b.figures.p50_ns()).map(|b| units::ratio(p50_ns / b)).unwrap_or_default(),
        ],
        Figures::Bandwidth { bytes_per_s, bytes_per_s_min, bytes_per_s_max } => [
            units::rate(*bytes_per_s),
            String::new(),
            format!("{} .. {}", units::rate(*bytes_per_s_min), units::rate(*bytes_per_s_max)),
            base.and_then(|b| b.figures.bytes_per_s()).map(|b| units::ratio(bytes_per_s / b)).unwrap_or_default(),
        ],
        Figures::Failed { .. } => ["failed".into(), String::new(), String::new(), String::new()],
    }
}

/// The promises of a report as a table; empty if there are none.
pub(crate) fn promises(report: &Report) -> String {
    if report.promises.is_empty() {
        return String::new();
    }
    let line = |v: &super::promise::Verdict| {
        let ratio = v.ratio.map(units::ratio).unwrap_or_default();
        let met = if v.met { "met" } else { "not met" };
        vec![
            v.promise.clone(),
            v.target.clone(),
            met.into(),
            v.measured.clone(),
            v.against.clone(),
            ratio,
            v.ratio_spread(),
        ]
    };
    let lines: Vec<Vec<String>> = report.promises.iter().map(line).collect();
    let table = align(&["promise", "target", "", "measured", "against", "ratio", "spread"], &lines, 3);
    format!("\n{table}\n{RATIOS}\n")
}

/// Why a promise's ratio may differ from the one of its two figures.
pub(crate) const RATIOS: &str = "The ratio of a promise is the median of the ratios of the single runs, which were taken one next to the other; it can differ
a little from the ratio of the two medians beside it, because the machine's speed changes from run to run.";

/// What is missing, and warnings.
pub(crate) fn tail(report: &Report) -> String {
    let mut out = String::new();
    for missing in &report.missing {
        let _ = writeln!(out, "missing: {} ({})", missing.series, missing.how);
    }
    for warning in &report.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}

#[cfg(test)]
mod tests {
    use super::super::Key;
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn a_name_with_line_ends_and_escapes_stays_in_its_cell() {
        let lines = [vec!["a\nroot  up\x1b[2J".to_string(), "1".into()]];
        let text = align(&["name", "n"], &lines, 1);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("a\\nroot  up\\u{1b}[2J"), "{text}");
    }

    #[test]
    fn slow_series_have_a_number_of_runs_of_their_own() {
        let row = |runs, figures| {
            let key = Key { series: "vmmc".into(), path: "embedded".into(), op: None, size_bytes: 8, asleep_us: None };
            Row { key, runs, each_run: Vec::new(), figures }
        };
        let good = || Figures::Bandwidth { bytes_per_s: 1.0, bytes_per_s_min: 1.0, bytes_per_s_max: 1.0 };
        let failed = || Figures::Failed { error: "gone".into() };
        let told = |rows: Vec<Row>| {
            let (missing, promises, warnings) = (vec![], vec![], vec![]);
            runs(&Report {
                bench: "latency".into(),
                machine: Machine::here(),
                about: vec![],
                rows,
                missing,
                promises,
                warnings,
            })
        };
        assert_eq!(told(vec![row(25, good()), row(25, good()), row(3, failed())]), "25 runs");
        assert_eq!(told(vec![row(25, good()), row(5, good())]), "25 runs, of slow series 5");
        assert_eq!(told(vec![row(0, failed())]), "0 runs");
    }

    #[test]
    fn columns_are_aligned() {
        let text = align(&["name", "n"], &[vec!["a".into(), "1".into()], vec!["longer".into(), "22".into()]], 1);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, ["name     n", "──────  ──", "a        1", "longer  22"]);
    }
}
