//! `vmmc utlb trace`: convert, describe, show, plot, generate.
//!
//! Invariant: traces are streamed; only a plot's counts and the oracle's future are kept in memory.

use super::save;
use crate::args::utlb::Trace;
use crate::failure::Failure;
use crate::report::table::align;
use std::collections::BTreeMap;
use std::fs::File;
use vmmc_utlb::generate::{App, node};
use vmmc_utlb::report::{Chart, Series};
use vmmc_utlb::trace::{Format, Info, Record, Records, TraceError, read, write};
use vmmc_utlb::{PageSet, Pages, Process};

/// Points of a plot.
const PLOT_POINTS: u64 = 100;

/// Runs the command.
pub(crate) fn run(trace: &Trace) -> Result<(), Failure> {
    match trace {
        Trace::Convert { from, to, format } => store(to, open(from, format.as_deref())?),
        Trace::Generate { app, to, node: number, seed } => {
            store(to, Box::new(node(program(app)?, *number, *seed).into_iter().map(Ok)))
        }
        Trace::Info { trace, format, json } => info(trace, format.as_deref(), *json),
        Trace::Head { trace, format, records } => {
            let first = open(trace, format.as_deref())?.take(*records);
            let mut text = Vec::new();
            write("standard output", &mut text, Format::Csv, false, first).map_err(Failure::new)?;
            crate::output(&String::from_utf8_lossy(&text))
        }
        Trace::Plot { trace, svg, format } => plot(trace, format.as_deref(), svg),
    }
}

/// Opens a trace: a file, or `app:NAME:NODE`.
pub(in crate::commands) fn open(name: &str, format: Option<&str>) -> Result<Records<'static>, Failure> {
    if let Some(generated) = name.strip_prefix("app:") {
        let (app, number) = generated.split_once(':').unwrap_or((generated, "0"));
        let number = number.parse().ok().filter(|n| *n < vmmc_utlb::generate::NODES);
        let number = number.ok_or_else(|| Failure::Usage(format!("{name}: nodes are 0 to 3")))?;
        return Ok(Box::new(node(program(app)?, number, 1).into_iter().map(Ok)));
    }
    let format = match format {
        None => Format::of_file(name),
        Some(word) => Format::from_name(word)
            .ok_or_else(|| Failure::Usage(format!("no format {word:?}; give vmmc, csv, din or oracleGeneral")))?,
    };
    let file = File::open(name).map_err(|e| Failure::new(format!("{name}: {e}")))?;
    read(name, file, format).map_err(Failure::new)
}

fn program(name: &str) -> Result<App, Failure> {
    App::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = App::ALL.iter().map(|app| app.name()).collect();
        Failure::Usage(format!("no program {name:?}; give one of {}", names.join(", ")))
    })
}

pub(in crate::commands) fn store(to: &str, records: Records) -> Result<(), Failure> {
    let file = File::create(to).map_err(|e| Failure::new(format!("{to}: {e}")))?;
    let count = write(to, file, Format::of_file(to), to.ends_with(".zst"), records).map_err(Failure::new)?;
    crate::output(&format!("{to}: {count} records\n"))
}

fn info(trace: &str, format: Option<&str>, json: bool) -> Result<(), Failure> {
    let mut info = Info::default();
    for record in open(trace, format)? {
        info.add(&record.map_err(Failure::new)?);
    }
    let seconds = info.last_ns.saturating_sub(info.first_ns.unwrap_or(0)) as f64 / 1e9;
    if json {
        let processes: Vec<_> = info
            .processes
            .iter()
            .map(|(process, p)| {
                serde_json::json!({"process": process.0, "transfers": p.transfers, "lookups": p.lookups, "pages": p.pages,
                    "footprint": p.footprint, "sent_bytes": p.sent_bytes, "fetched_bytes": p.fetched_bytes})
            })
            .collect();
        return crate::output_json(
            &serde_json::json!({"records": info.records, "seconds": seconds, "processes": processes}),
        );
    }
    let row = |name: String, of: &dyn Fn(fn(&vmmc_utlb::trace::ProcessInfo) -> u64) -> u64| {
        let columns = [
            of(|p| p.transfers),
            of(|p| p.lookups),
            of(|p| p.pages),
            of(|p| p.footprint),
            of(|p| p.sent_bytes),
            of(|p| p.fetched_bytes),
        ];
        std::iter::once(name).chain(columns.iter().map(u64::to_string)).collect::<Vec<String>>()
    };
    let mut lines: Vec<Vec<String>> =
        info.processes.iter().map(|(process, p)| row(process.0.to_string(), &|of| of(p))).collect();
    lines.push(row("all".into(), &|of| info.sum(of)));
    let head = ["process", "transfers", "lookups", "pages", "footprint", "sent, B", "fetched, B"];
    crate::output(&format!("{}\n{} records in {seconds:.3} s\n", align(&head, &lines, 1), info.records))
}

/// The window that a process is in, the pages that it used in it, and the finished windows: (ms,
/// pages).
type Windows = (u64, PageSet, Vec<(f64, f64)>);

/// Distinct pages of each process in each hundredth of the trace.
fn plot(trace: &str, format: Option<&str>, svg: &std::path::Path) -> Result<(), Failure> {
    let records: Vec<Record> = open(trace, format)?.collect::<Result<_, TraceError>>().map_err(Failure::new)?;
    let first_ns = records.first().map_or(0, |r| r.time_ns);
    let step_ns = (records.last().map_or(0, |r| r.time_ns) - first_ns) / PLOT_POINTS + 1;
    let mut windows: BTreeMap<Process, Windows> = BTreeMap::new();
    for record in &records {
        let Some(pages) = Pages::of_bytes(record.address, u64::from(record.len_bytes)) else { continue };
        let at = (record.time_ns - first_ns) / step_ns;
        let (window, set, points) = windows.entry(record.process).or_default();
        if *window != at {
            points.push((*window as f64 * step_ns as f64 / 1e6, set.len() as f64));
            (*window, *set) = (at, PageSet::new());
        }
        pages.iter().for_each(|page| _ = set.insert(page));
    }
    let series = windows
        .into_iter()
        .map(|(process, (window, set, mut points))| {
            points.push((window as f64 * step_ns as f64 / 1e6, set.len() as f64));
            Series { name: format!("process {}", process.0), points, dashed: false }
        })
        .collect();
    let y = format!("pages used in {:.1} ms", step_ns as f64 / 1e6);
    let chart = Chart { title: trace.into(), x: "time, ms".into(), y, log_x: false, series };
    save(svg, &chart.svg())
}
