//! A report as one page: inline drawings, no scripts, nothing loaded from elsewhere, light and
//! dark.
//!
//! Invariant: every word that came from outside is escaped; the figures are those of the table.

use super::{Figures, Report, Row, units};
use std::fmt::Write;

const STYLE: &str = "
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--dim:#5a6572;--line:#d8dee4;--ours:#0b6bcb;--peer:#9aa6b2;--limit:#2e8b57;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--back:#14181d;--text:#e6e9ec;--dim:#9aa6b2;--line:#2d343c;--ours:#5aa9ff;--peer:#66727f;--limit:#58c48a;--bad:#ff8a80}}
body{background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}p,small{color:var(--dim)}
table{border-collapse:collapse;width:100%;font-size:.9rem}th,td{border-bottom:1px solid var(--line);padding:.3rem .5rem;text-align:right}
th:first-child,td:first-child,.l{text-align:left}svg{width:100%;height:auto}svg text{fill:var(--text);font:13px system-ui,sans-serif}svg .dim{fill:var(--dim)}
.ours{fill:var(--ours)}.peer{fill:var(--peer)}.limit{fill:var(--limit)}.met{color:var(--limit)}.not{color:var(--bad)}.scroll{overflow-x:auto}";

/// Pixels of a bar chart, in its own coordinates.
const WIDTH: f64 = 900.0;
const LABELS: f64 = 210.0;
const VALUES: f64 = 110.0;
const ROW: f64 = 24.0;

/// The page.
pub(crate) fn page(report: &Report) -> String {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let title = if report.bench == "demo" { "VMMC demo".into() } else { format!("vmmc bench {}", report.bench) };
    let _ = write!(out, "<meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>", escape(&title));
    let _ = write!(out, "<style>{STYLE}</style></head><body><h1>{}</h1>", escape(&title));
    let _ = write!(out, "<p>{}</p>", escape(&report.machine.to_string()));
    for sentence in &report.about {
        let _ = write!(out, "<p>{}</p>", escape(sentence));
    }
    let words = if report.bench == "demo" { super::demo::words(report) } else { vec![] };
    for sentence in words {
        let _ = write!(out, "<p>{}</p>", escape(&sentence));
    }
    charts(&mut out, report);
    promises(&mut out, report);
    figures(&mut out, report);
    for missing in &report.missing {
        let _ = write!(out, "<p>missing: {} ({})</p>", escape(&missing.series), escape(&missing.how));
    }
    for warning in &report.warnings {
        let _ = write!(out, "<p class=\"not\">warning: {}</p>", escape(warning));
    }
    out + "</body></html>\n"
}

/// One chart for each size and kind of figure; of a bench of links, for each link and what was done
/// over it.
fn charts(out: &mut String, report: &Report) {
    let by_link = report.bench == "network";
    let title = |row: &Row, kind: bool| {
        if let (true, Some(op)) = (by_link, &row.key.op) {
            return format!("{}: {op}", row.key.path);
        }
        let name = if kind { "Bandwidth" } else { "Time" };
        let asleep = row.key.asleep_us.map(|us| format!(", receiver asleep for {us} us")).unwrap_or_default();
        format!("{name}, {}{asleep}", units::size(row.key.size_bytes))
    };
    let times = if by_link { "median, less is better; logarithmic" } else { "one way, less is better; logarithmic" };
    for (kind, what) in [(false, times), (true, "more is better")] {
        let mut titles: Vec<String> = Vec::new();
        for row in report.rows.iter().filter(|r| value(r, kind).is_some()) {
            let title = title(row, kind);
            if !titles.contains(&title) {
                titles.push(title);
            }
        }
        for wanted in titles {
            let group = |r: &&Row| value(r, kind).is_some() && title(r, kind) == wanted;
            let rows: Vec<&Row> = report.rows.iter().filter(group).collect();
            let _ = write!(out, "<h2>{}</h2><small>{what}</small>", escape(&wanted));
            chart(out, &rows, kind, by_link);
        }
    }
}

fn value(row: &Row, bandwidth: bool) -> Option<f64> {
    if bandwidth { row.figures.bytes_per_s() } else { row.figures.p50_ns() }
}

/// Horizontal bars; times on a logarithmic scale, because they span several powers of ten.
fn chart(out: &mut String, rows: &[&Row], bandwidth: bool, by_link: bool) {
    let values: Vec<f64> = rows.iter().filter_map(|r| value(r, bandwidth)).collect();
    let max = values.iter().copied().fold(1.0, f64::max);
    let min = values.iter().copied().fold(f64::MAX, f64::min) / 2.0;
    let height = ROW * rows.len() as f64 + 4.0;
    let _ = write!(out, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"bar chart\">");
    for (i, (row, v)) in rows.iter().zip(&values).enumerate() {
        let share = if bandwidth { v / max } else { (v / min).ln() / (max / min).ln() };
        let (y, w) = (i as f64 * ROW, (WIDTH - LABELS - VALUES) * share.clamp(0.004, 1.0));
        let shown = if bandwidth { units::rate(*v) } else { units::time(*v) };
        let _ = write!(
            out,
            "<text x=\"0\" y=\"{:.1}\">{}</text><rect class=\"{}\" x=\"{LABELS}\" y=\"{:.1}\" width=\"{w:.1}\" height=\"16\" rx=\"2\"/><text class=\"dim\" x=\"{:.1}\" y=\"{:.1}\">{shown}</text>",
            y + 16.0,
            escape(&if by_link { row.key.series.clone() } else { label(row) }),
            class(row),
            y + 3.0,
            LABELS + w + 6.0,
            y + 16.0
        );
    }
    out.push_str("</svg>");
}

fn label(row: &Row) -> String {
    let op = row.key.op.as_ref().map(|op| format!(" {op}")).unwrap_or_default();
    let path = if class(row) == "ours" { format!(", {}", row.key.path) } else { String::new() };
    format!("{}{path}{op}", row.key.series)
}

fn class(row: &Row) -> &'static str {
    match row.key.path.as_str() {
        "limit" => "limit",
        "kernel" | "tool" => "peer",
        // Over links the carrier says whose it is.
        _ if ["cubic", "bbr"].contains(&row.key.series.as_str()) => "peer",
        _ => "ours",
    }
}

fn promises(out: &mut String, report: &Report) {
    if report.promises.is_empty() {
        return;
    }
    out.push_str("<h2>Promises</h2><div class=\"scroll\"><table><tr><th>promise<th>target<th>measured<th>against<th>ratio<th>spread<th></tr>");
    for v in &report.promises {
        let ratio = v.ratio.map(units::ratio).unwrap_or_default();
        let (class, met) = if v.met { ("met", "met") } else { ("not", "not met") };
        let spread = v.ratio_spread();
        let cells =
            [&v.promise, &v.target, &v.measured, &v.against, &ratio, &spread].map(|c| format!("<td>{}", escape(c)));
        let _ = write!(out, "<tr>{}<td class=\"{class}\">{met}</tr>", cells.concat());
    }
    let _ = write!(out, "</table></div><p>{}</p>", super::table::RATIOS);
}

fn figures(out: &mut String, report: &Report) {
    out.push_str("<h2>All figures</h2><div class=\"scroll\"><table><tr><th>series<th class=\"l\">path<th>size<th>median<th>p99<th>spread<th>runs</tr>");
    for row in &report.rows {
        let [median, p99, spread] = match &row.figures {
            Figures::Latency { p50_ns, p99_ns, p50_min_ns, p50_max_ns } => [
                units::time(*p50_ns),
                units::time(*p99_ns),
                format!("{} .. {}", units::time(*p50_min_ns), units::time(*p50_max_ns)),
            ],
            Figures::Bandwidth { bytes_per_s, bytes_per_s_min, bytes_per_s_max } => [
                units::rate(*bytes_per_s),
                String::new(),
                format!("{} .. {}", units::rate(*bytes_per_s_min), units::rate(*bytes_per_s_max)),
            ],
            Figures::Failed { error } => [format!("failed: {error}"), String::new(), String::new()],
        };
        let cells = [units::size(row.key.size_bytes), median, p99, spread, row.runs.to_string()];
        let cells = cells.map(|c| format!("<td>{}", escape(&c))).concat();
        let op = row.key.op.as_ref().map(|op| format!(" {op}")).unwrap_or_default();
        let series = escape(&format!("{}{op}", row.key.series));
        let _ = write!(out, "<tr><td>{series}<td class=\"l\">{}{cells}</tr>", escape(&row.key.path));
    }
    out.push_str("</table></div>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::{Key, Report};
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn the_page_stands_alone_and_escapes() {
        let key = |series: &str| Key {
            series: series.into(),
            path: "kernel".into(),
            op: None,
            size_bytes: 8,
            asleep_us: None,
        };
        let figures = Figures::Latency { p50_ns: 7500.0, p99_ns: 9000.0, p50_min_ns: 7000.0, p50_max_ns: 8000.0 };
        let rows = vec![
            Row { key: key("tcp"), runs: 3, each_run: Vec::new(), figures },
            Row {
                key: key("<b>&"),
                runs: 0,
                each_run: Vec::new(),
                figures: Figures::Failed { error: "\"no\"".into() },
            },
        ];
        let report = Report {
            bench: "latency".into(),
            machine: Machine::here(),
            about: vec!["Moved a<b, checksum 1234abcd on both sides.".into()],
            rows,
            missing: vec![],
            promises: vec![],
            warnings: vec!["a < b".into()],
        };
        let page = page(&report);
        assert!(page.contains("Moved a&lt;b, checksum 1234abcd on both sides."), "{page}");
        assert!(page.contains("<svg") && page.contains("7.50 us") && page.contains("&lt;b&gt;&amp;"));
        assert!(
            !page.contains("http://")
                && !page.contains("https://")
                && !page.contains("<script")
                && !page.contains("<b>&")
        );
    }
}
