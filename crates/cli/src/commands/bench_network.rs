//! `vmmc bench network`: streams and pings over emulated links, TCP and VMMC in turns.
//!
//! Invariant: all carriers meet the same link with the same losses; bytes count when they have
//! arrived.

use super::bench::{show, verdict};
use crate::args::{Bench, Link, MaybePeer};
use crate::failure::Failure;
use crate::limits::STREAM_BYTES;
use crate::machine::{Machine, Quiet};
use crate::measure::TaskError;
use crate::measure::network::{Carrier, Conditions, Load, World};
use crate::measure::plan::{Plan, Source};
use crate::measure::stats::Sample;
use crate::report::{Figures, Key, Missing, Report, Row, table};
use clap::ValueEnum;
use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;
use std::time::{Duration, SystemTime};
use vmmc_host::text::utc;

/// Congestion controls of the kernel that are measured where it has them.
const CONTROLS: [&str; 2] = ["cubic", "bbr"];
const BULK: &str = "stream";
const PING: &str = "ping";
const BESIDE: &str = "ping beside stream";

/// Name and conditions of a link.
fn conditions(link: Link) -> Conditions {
    let lan = Conditions { rate_mbit: 1_000, one_way_us: 100, queue_packets: 256, lost: 0, late: 0 };
    let wan = Conditions { one_way_us: 5_000, queue_packets: 1_000, ..lan };
    let far = Conditions { rate_mbit: 200, queue_packets: 200, ..lan };
    match link {
        Link::Lan => lan,
        Link::Lan01 => Conditions { lost: 100, ..lan },
        Link::Lan1 => Conditions { lost: 1_000, ..lan },
        Link::Wan => wan,
        Link::Wan001 => Conditions { lost: 10, ..wan },
        Link::Wan01 => Conditions { lost: 100, ..wan },
        Link::WanShallow => Conditions { queue_packets: 50, ..wan },
        Link::WanReorder => Conditions { late: 3_000, ..wan },
        Link::Far => Conditions { one_way_us: 20_000, lost: 10, ..far },
        Link::Shared => Conditions { one_way_us: 2_000, ..far },
    }
}

fn name(link: Link) -> String {
    link.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
}

/// Runs the bench.
pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    if bench.peers.iter().flatten().any(|MaybePeer(peer)| peer.is_some()) {
        return Err(Failure::Usage("bench network has cubic and bbr beside VMMC; --peers '' leaves them out".into()));
    }
    if bench.check {
        return Err(Failure::Usage("bench network has no promises yet; it prints figures, --json or --html".into()));
    }
    let quiet = Quiet::start();
    let links = if bench.link.is_empty() { Link::value_variants().to_vec() } else { bench.link.clone() };
    let world = World::open(conditions(links[0])).map_err(Failure::new)?;
    let (carriers, missing) = carriers(bench);
    let made =
        format!("Made by `vmmc bench network`, release {}, at {}.", env!("CARGO_PKG_VERSION"), utc(SystemTime::now()));
    let world = Rc::new(world);
    let rows = plan(&world, &links, &carriers, bench.time()).carry_out(bench.runs(), bench.time());
    let report = Report {
        about: vec![made],
        bench: "network".into(),
        machine: Machine::here(),
        rows,
        missing,
        promises: vec![],
        warnings: quiet.warnings().into_iter().chain(world.warning()).collect(),
    };
    show(&report, &bench.output, text)?;
    verdict(&report, false)
}

/// What is compared, by name, and what this kernel lacks.
fn carriers(bench: &Bench) -> (Vec<(&'static str, Carrier)>, Vec<Missing>) {
    let mut carriers = Vec::new();
    let mut missing = Vec::new();
    let none = bench.peers.as_ref().is_some_and(|peers| peers.iter().all(|MaybePeer(peer)| peer.is_none()));
    let has = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    for control in CONTROLS.into_iter().filter(|_| !none) {
        if has.split_whitespace().any(|name| name == control) {
            carriers.push((control, Carrier::Tcp(control)));
        } else {
            missing.push(Missing { series: control.into(), how: format!("modprobe tcp_{control}") });
        }
    }
    let congestion = bench.congestion;
    if !bench.plain {
        carriers.push(("vmmc", Carrier::Vmmc { sealed: true, congestion }));
    }
    if bench.plain {
        carriers.push(("vmmc-plain", Carrier::Vmmc { sealed: false, congestion }));
    }
    (carriers, missing)
}

fn plan(world: &Rc<World>, links: &[Link], carriers: &[(&'static str, Carrier)], time: Duration) -> Plan {
    let mut plan = Plan::default();
    for &link in links {
        if link == Link::Shared {
            add_shared(&mut plan, world, link, carriers, time);
            continue;
        }
        for (load, op, size) in
            [(Load::Bulk, BULK, STREAM_BYTES as u64), (Load::Ping, PING, 8), (Load::PingBesideBulk, BESIDE, 8)]
        {
            for &(series, carrier) in carriers {
                let (world, conditions) = (Rc::clone(world), conditions(link));
                let measure = move || world.measure(conditions, carrier, load, time);
                plan.add(key(series, link, op, size), source(measure));
            }
        }
    }
    plan
}

/// VMMC beside each TCP: both streams are measured at once, and give two rows.
fn add_shared(plan: &mut Plan, world: &Rc<World>, link: Link, carriers: &[(&'static str, Carrier)], time: Duration) {
    let Some((&(ours, carrier), tcp)) = carriers.split_last() else { return };
    for &(peer, other) in tcp {
        let second: Rc<RefCell<Option<Sample>>> = Rc::default();
        let (world, conditions, kept) = (Rc::clone(world), conditions(link), Rc::clone(&second));
        let both = move || {
            let [mine, theirs] = world.share(conditions, [carrier, other], time)?;
            *kept.borrow_mut() = Some(theirs);
            Ok(mine)
        };
        let theirs = move || second.take().ok_or_else(|| TaskError::Protocol("see the row above".into()));
        plan.add(key(ours, link, &format!("beside {peer}"), STREAM_BYTES as u64), source(both));
        plan.add(key(peer, link, &format!("beside {ours}"), STREAM_BYTES as u64), source(theirs));
    }
}

fn key(series: &str, link: Link, op: &str, size_bytes: u64) -> Key {
    Key { series: series.into(), path: name(link), op: Some(op.into()), size_bytes, asleep_us: None }
}

fn source(mut measure: impl FnMut() -> Result<Sample, TaskError> + 'static) -> Source {
    Source::Tool(Box::new(move |_| measure().map_err(|e| e.to_string())))
}

/// The report for people: a line for each link and carrier.
fn text(report: &Report) -> String {
    let mut out = format!("vmmc bench network on {}\n\n", report.machine);
    let header =
        ["link", "carrier", "Mb/s", "spread", "of TCP", "ping p50, ms", "p99", "beside stream p50", "p99", "of TCP"];
    let mut lines: Vec<Vec<String>> = Vec::new();
    for row in report.rows.iter().filter(|row| op(row) == BULK) {
        let of = |op| find(report, &row.key.path, &row.key.series, op);
        let mut line = vec![row.key.path.clone(), row.key.series.clone()];
        line.extend(rate_cells(row));
        line.push(ratio(report, row, BULK));
        line.extend(of(PING).map_or_else(Default::default, time_cells));
        line.extend(of(BESIDE).map_or_else(Default::default, time_cells));
        line.push(of(BESIDE).map(|row| ratio(report, row, BESIDE)).unwrap_or_default());
        lines.push(line);
    }
    if !lines.is_empty() {
        out += &table::align(&header, &lines, 2);
        out +=
            "\nmedians of the runs; spread: slowest and fastest run; of TCP: to the better of the TCPs on that link\n";
    }
    let shares: Vec<Vec<String>> = report
        .rows
        .iter()
        .filter(|row| op(row).starts_with("beside "))
        .map(|row| {
            let names = [row.key.path.clone(), format!("{} {}", row.key.series, op(row))];
            [&names[..], &rate_cells(row)].concat()
        })
        .collect();
    if !shares.is_empty() {
        let _ = write!(out, "\n{}", table::align(&["link", "at the same time", "Mb/s", "spread"], &shares, 2));
    }
    for row in &report.rows {
        if let Figures::Failed { error } = &row.figures {
            let _ = writeln!(out, "failed: {} {} {}: {error}", row.key.path, row.key.series, op(row));
        }
    }
    out + &table::tail(report)
}

fn op(row: &Row) -> &str {
    row.key.op.as_deref().unwrap_or_default()
}

fn find<'a>(report: &'a Report, link: &str, series: &str, what: &str) -> Option<&'a Row> {
    report.rows.iter().find(|row| row.key.path == link && row.key.series == series && op(row) == what)
}

fn rate_cells(row: &Row) -> [String; 2] {
    let mbit = |bytes: f64| format!("{:.0}", bytes * 8.0 / 1e6);
    match row.figures {
        Figures::Bandwidth { bytes_per_s, bytes_per_s_min, bytes_per_s_max } => {
            [mbit(bytes_per_s), format!("{} .. {}", mbit(bytes_per_s_min), mbit(bytes_per_s_max))]
        }
        _ => Default::default(),
    }
}

fn time_cells(row: &Row) -> [String; 2] {
    let ms = |ns: f64| format!("{:.2}", ns / 1e6);
    match row.figures {
        Figures::Latency { p50_ns, p99_ns, .. } => [ms(p50_ns), ms(p99_ns)],
        _ => Default::default(),
    }
}

/// Rate, or 99th percentile.
fn headline(row: &Row) -> Option<f64> {
    match row.figures {
        Figures::Bandwidth { bytes_per_s, .. } => Some(bytes_per_s),
        Figures::Latency { p99_ns, .. } => Some(p99_ns),
        Figures::Failed { .. } => None,
    }
}

/// A row's figure over that of the better TCP on the same link; empty for TCP itself.
fn ratio(report: &Report, row: &Row, what: &str) -> String {
    let tcp = |name: &&str| find(report, &row.key.path, name, what).and_then(headline);
    let (mine, all) = (headline(row), CONTROLS.iter().filter_map(tcp));
    let best = if what == BULK { all.reduce(f64::max) } else { all.reduce(f64::min) };
    match (mine, best) {
        (Some(mine), Some(best)) if !CONTROLS.contains(&row.key.series.as_str()) => format!("{:.2}", mine / best),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(series: &str, what: &str, figures: Figures) -> Row {
        Row { key: key(series, Link::Lan, what, 8), runs: 1, each_run: vec![], figures }
    }

    fn rate(mbit: f64) -> Figures {
        let bytes_per_s = mbit * 1e6 / 8.0;
        Figures::Bandwidth { bytes_per_s, bytes_per_s_min: bytes_per_s, bytes_per_s_max: bytes_per_s }
    }

    fn time(p99_ms: f64) -> Figures {
        let p99_ns = p99_ms * 1e6;
        Figures::Latency { p50_ns: p99_ns / 2.0, p99_ns, p50_min_ns: p99_ns, p50_max_ns: p99_ns }
    }

    #[test]
    fn a_ratio_is_to_the_better_of_the_tcps() {
        let rows = vec![
            row("cubic", BULK, rate(900.0)),
            row("bbr", BULK, rate(600.0)),
            row("vmmc", BULK, rate(450.0)),
            row("cubic", BESIDE, time(3.0)),
            row("bbr", BESIDE, time(2.0)),
            row("vmmc", BESIDE, time(5.0)),
        ];
        let report = Report {
            bench: "network".into(),
            machine: Machine::here(),
            about: vec![],
            rows,
            missing: vec![],
            promises: vec![],
            warnings: vec![],
        };
        let text = text(&report);
        let ours = text.lines().find(|line| line.starts_with("lan   vmmc")).unwrap();
        let cells: Vec<&str> = ours.split_whitespace().collect();
        assert_eq!(cells, ["lan", "vmmc", "450", "450", "..", "450", "0.50", "2.50", "5.00", "2.50"], "{text}");
    }

    #[test]
    fn links_have_the_names_that_are_asked_for() {
        let names: Vec<String> = Link::value_variants().iter().map(|link| name(*link)).collect();
        assert_eq!(names[..3], ["lan", "lan-0.1", "lan-1"]);
        assert!(Link::value_variants().iter().all(|link| conditions(*link).rate_mbit > 0));
    }
}
