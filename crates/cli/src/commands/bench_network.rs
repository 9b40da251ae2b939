//! `vmmc bench network`: streams and pings over emulated links, TCP and VMMC in turns.
//!
//! Invariant: all carriers meet the same link with the same losses; bytes count when they have
//! arrived.

use super::bench::{show, verdict};
use crate::args::{Bench, Link, MaybePeer};
use crate::failure::Failure;
use crate::limits::{INCAST_BYTES, INCAST_SENDERS, PAIRS, PAIRS_AFTER, PAIRS_APART, STREAM_BYTES};
use crate::machine::{Machine, Quiet};
use crate::measure::TaskError;
use crate::measure::network::{Carrier, Conditions, Load, Vmmc, World};
use crate::measure::plan::{Plan, Source};
use crate::measure::stats::{Sample, Spread};
use crate::report::{Figures, Key, Missing, Report, Row, table};
use clap::ValueEnum;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::rc::Rc;
use std::time::{Duration, SystemTime};
use vmmc_host::text::utc;
use vmmc_sim::jain;

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
        Link::Shared | Link::Pairs | Link::PairsLate | Link::Incast => Conditions { one_way_us: 2_000, ..far },
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
    let name = if bench.plain { "vmmc-plain" } else { "vmmc" };
    carriers.push((name, Carrier::Vmmc((!bench.plain, congestion))));
    (carriers, missing)
}

fn plan(world: &Rc<World>, links: &[Link], carriers: &[(&'static str, Carrier)], time: Duration) -> Plan {
    let mut plan = Plan::default();
    for &link in links {
        match link {
            Link::Shared => add_shared(&mut plan, world, link, carriers, time),
            Link::Pairs => add_pairs(&mut plan, world, link, carriers, (Duration::ZERO, PAIRS_AFTER, time)),
            Link::PairsLate => add_pairs(&mut plan, world, link, carriers, (PAIRS_APART, PAIRS_AFTER, time)),
            Link::Incast => add_incast(&mut plan, world, carriers),
            _ => add_alone(&mut plan, world, link, carriers, time),
        }
    }
    plan
}

/// Every carrier by itself.
fn add_alone(plan: &mut Plan, world: &Rc<World>, link: Link, carriers: &[(&'static str, Carrier)], time: Duration) {
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

/// VMMC beside each TCP: both streams are measured at once, and give two rows.
fn add_shared(plan: &mut Plan, world: &Rc<World>, link: Link, carriers: &[(&'static str, Carrier)], time: Duration) {
    let Some((&(ours, carrier), tcp)) = carriers.split_last() else { return };
    for &(peer, other) in tcp {
        let (world, conditions) = (Rc::clone(world), conditions(link));
        let both = move || world.share(conditions, [carrier, other], time).map(Vec::from);
        let of = |series: &str, peer: &str| key(series, link, &format!("beside {peer}"), STREAM_BYTES as u64);
        add_together(plan, vec![of(ours, peer), of(peer, ours)], both);
    }
}

/// Streams of VMMC among their like; see [`World::pairs`].
fn add_pairs(
    plan: &mut Plan,
    world: &Rc<World>,
    link: Link,
    carriers: &[(&'static str, Carrier)],
    times: (Duration, Duration, Duration),
) {
    for (count, (series, vmmc)) in PAIRS.iter().flat_map(|count| ours(carriers).map(|ours| (*count, ours))) {
        let world = Rc::clone(world);
        let all = move || world.pairs(conditions(link), vmmc, count, times);
        let of = |one: usize| key(series, link, &format!("pair {one} of {count}"), STREAM_BYTES as u64);
        add_together(plan, (1..=count).map(of).collect(), all);
    }
}

/// Nodes that send to one at once.
fn add_incast(plan: &mut Plan, world: &Rc<World>, carriers: &[(&'static str, Carrier)]) {
    for (series, vmmc) in ours(carriers) {
        let world = Rc::clone(world);
        let all = move || world.incast(conditions(Link::Incast), vmmc, INCAST_SENDERS, INCAST_BYTES);
        let of = |one: usize| key(series, Link::Incast, &format!("sender {one} of {INCAST_SENDERS}"), INCAST_BYTES);
        add_together(plan, (1..=INCAST_SENDERS).map(of).collect(), all);
    }
}

fn ours(carriers: &[(&'static str, Carrier)]) -> impl Iterator<Item = (&'static str, Vmmc)> {
    carriers.iter().filter_map(|(series, carrier)| match carrier {
        Carrier::Vmmc(vmmc) => Some((*series, *vmmc)),
        Carrier::Tcp(_) => None,
    })
}

/// Rows of what is measured at once: the first one of them measures, and keeps the others' samples.
fn add_together(plan: &mut Plan, keys: Vec<Key>, measure: impl FnMut() -> Result<Vec<Sample>, TaskError> + 'static) {
    let kept: Rc<RefCell<VecDeque<Sample>>> = Rc::default();
    let mut measure = Some(measure);
    for key in keys {
        let (kept, mut measure) = (Rc::clone(&kept), measure.take());
        let next = move || {
            if let Some(measure) = &mut measure {
                *kept.borrow_mut() = measure()?.into();
            }
            let sample = kept.borrow_mut().pop_front();
            sample.ok_or_else(|| TaskError::Protocol("see the row above".into()))
        };
        plan.add(key, source(next));
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
    let pairs = [Link::Pairs, Link::PairsLate].into_iter().flat_map(|link| PAIRS.map(|count| (link, count)));
    let pairs: Vec<Vec<String>> = pairs.flat_map(|(link, count)| pairs_lines(report, link, count)).collect();
    if !pairs.is_empty() {
        let header = ["link", "streams", "Mb/s in all", "smallest", "largest", "Jain's index", "spread"];
        let _ = write!(out, "\n{}", table::align(&header, &pairs, 2));
        let _ = writeln!(out, "from {} s after the beginning of the last stream on", PAIRS_AFTER.as_secs());
    }
    let incast = incast_lines(report);
    if !incast.is_empty() {
        let header = ["link", "nodes to one", "Mb/s in all", "spread", "slowest, of the mean", "spread"];
        let _ = write!(out, "\n{}", table::align(&header, &incast, 2));
    }
    for row in &report.rows {
        if let Figures::Failed { error } = &row.figures {
            let _ = writeln!(out, "failed: {} {} {}: {error}", row.key.path, row.key.series, op(row));
        }
    }
    out + &table::tail(report)
}

/// What every run gave for each of the rows that were measured together, by series.
fn together<'a>(report: &'a Report, link: Link, of: &str) -> BTreeMap<&'a str, Vec<Vec<f64>>> {
    let mut all: BTreeMap<&str, Vec<Vec<f64>>> = BTreeMap::new();
    for row in report.rows.iter().filter(|row| row.key.path == name(link) && op(row).ends_with(of)) {
        let runs = all.entry(&row.key.series).or_insert_with(|| vec![vec![]; row.each_run.len()]);
        runs.iter_mut().zip(&row.each_run).for_each(|(run, one)| run.push(*one));
    }
    all
}

fn spread_cells(values: impl Iterator<Item = f64>, digits: usize) -> [String; 2] {
    Spread::of(values.collect()).map_or_else(Default::default, |Spread { median, min, max }| {
        [format!("{median:.digits$}"), format!("{min:.digits$} .. {max:.digits$}")]
    })
}

/// A line for each kind of node.
fn pairs_lines(report: &Report, link: Link, count: usize) -> Vec<Vec<String>> {
    let mbit = |bytes: f64| bytes * 8.0 / 1e6;
    let all = together(report, link, &format!(" of {count}"));
    let line = |(series, runs): (&str, Vec<Vec<f64>>)| {
        let cells = |of: fn(&[f64]) -> f64| spread_cells(runs.iter().map(|run| mbit(of(run))), 1);
        let [sum, _] = cells(|run| run.iter().sum());
        let [least, _] = cells(|run| run.iter().copied().fold(f64::INFINITY, f64::min));
        let [most, _] = cells(|run| run.iter().copied().fold(0.0, f64::max));
        let [index, spread] = spread_cells(runs.iter().map(|run| jain(run)), 3);
        vec![name(link), format!("{count} of {series}"), sum, least, most, index, spread]
    };
    all.into_iter().filter(|(_, runs)| !runs.is_empty()).map(line).collect()
}

/// The same of nodes that send to one at once.
fn incast_lines(report: &Report) -> Vec<Vec<String>> {
    let slowest = |run: &Vec<f64>| run.iter().copied().fold(0.0, f64::max);
    let rate = |run: &Vec<f64>| run.len() as f64 * INCAST_BYTES as f64 * 8.0 / slowest(run) * 1e3;
    let of_mean = |run: &Vec<f64>| slowest(run) * run.len() as f64 / run.iter().sum::<f64>();
    let line = |(series, runs): (&str, Vec<Vec<f64>>)| {
        let names = [name(Link::Incast), format!("{INCAST_SENDERS} of {series}")];
        [&names[..], &spread_cells(runs.iter().map(rate), 0), &spread_cells(runs.iter().map(of_mean), 2)].concat()
    };
    let all = together(report, Link::Incast, &format!(" of {INCAST_SENDERS}"));
    all.into_iter().filter(|(_, runs)| !runs.is_empty()).map(line).collect()
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

    fn report(rows: Vec<Row>) -> Report {
        Report {
            bench: "network".into(),
            machine: Machine::here(),
            about: vec![],
            rows,
            missing: vec![],
            promises: vec![],
            warnings: vec![],
        }
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
        let text = text(&report(rows));
        let ours = text.lines().find(|line| line.starts_with("lan   vmmc")).unwrap();
        let cells: Vec<&str> = ours.split_whitespace().collect();
        assert_eq!(cells, ["lan", "vmmc", "450", "450", "..", "450", "0.50", "2.50", "5.00", "2.50"], "{text}");
    }

    fn measured(link: Link, op: String, runs: &[f64]) -> Row {
        let key = key("vmmc", link, &op, 8);
        Row { key, runs: runs.len(), each_run: runs.to_vec(), figures: rate(1.0) }
    }

    #[test]
    fn streams_that_share_with_their_like_have_a_line_for_each_number_of_them() {
        // Bytes a second, of two runs.
        let mut rows = vec![
            measured(Link::Pairs, "pair 1 of 2".into(), &[1e6, 3e6]),
            measured(Link::Pairs, "pair 2 of 2".into(), &[1e6, 1e6]),
        ];
        rows.extend((1..=4).map(|one| measured(Link::Pairs, format!("pair {one} of 4"), &[2e6, 2e6])));
        let text = text(&report(rows));
        let cells = |start: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
            line.split_whitespace().skip(4).map(String::from).collect()
        };
        assert_eq!(cells("pairs  2 of vmmc"), ["24.0", "8.0", "16.0", "0.900", "0.800", "..", "1.000"], "{text}");
        assert_eq!(cells("pairs  4 of vmmc"), ["64.0", "16.0", "16.0", "1.000", "1.000", "..", "1.000"], "{text}");
        assert!(
            !text.contains("16 of vmmc") && !text.contains("pairs-late") && !text.contains("nodes to one"),
            "{text}"
        );
    }

    #[test]
    fn nodes_that_send_to_one_have_a_line_of_what_the_slowest_makes_of_them() {
        // Nanoseconds, of one run: 16 MiB in 200 ms.
        let time = |one| if one == 3 { 200e6 } else { 120e6 };
        let rows = (1..=16).map(|one| measured(Link::Incast, format!("sender {one} of 16"), &[time(one)])).collect();
        let text = text(&report(rows));
        let line = text.lines().find(|line| line.starts_with("incast")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().skip(4).collect();
        assert_eq!(cells, ["671", "671", "..", "671", "1.60", "1.60", "..", "1.60"], "{text}");
    }

    #[test]
    fn of_what_is_measured_at_once_each_row_has_its_own_and_each_run_measures_anew() {
        let mut plan = Plan::default();
        let mut run = 0.0;
        let measure = move || {
            run += 10.0;
            Ok(vec![Sample::Bandwidth { bytes_per_s: run + 1.0 }, Sample::Bandwidth { bytes_per_s: run + 2.0 }])
        };
        let of = |one| key("vmmc", Link::Pairs, &format!("pair {one} of 3"), 8);
        add_together(&mut plan, vec![of(1), of(2), of(3)], measure);
        let rows = plan.carry_out(3, Duration::from_millis(1));
        assert_eq!([&rows[0].each_run, &rows[1].each_run], [&[11.0, 21.0, 31.0], &[12.0, 22.0, 32.0]]);
        assert!(matches!(&rows[2].figures, Figures::Failed { error } if error.contains("row above")));
    }

    #[test]
    fn links_have_the_names_that_are_asked_for() {
        let names: Vec<String> = Link::value_variants().iter().map(|link| name(*link)).collect();
        assert_eq!(names[..3], ["lan", "lan-0.1", "lan-1"]);
        assert!(Link::value_variants().iter().all(|link| conditions(*link).rate_mbit > 0));
    }
}
