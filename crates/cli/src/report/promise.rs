//! Numeric promises, held against the figures of one run.
//!
//! Invariant: both sides of a ratio come from the same report; a promise whose figures are missing
//! is not in the list.

pub(crate) mod calls;

use super::{Figures, Report, Row, units};
use crate::commands::bench::MESSAGE_STREAM;
use crate::measure::stats::Spread;
use serde::Serialize;

/// A promise and what a run says about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Verdict {
    /// The promise.
    pub(crate) promise: String,
    /// The figure measured.
    pub(crate) measured: String,
    /// What it is held against.
    pub(crate) against: String,
    /// The ratio, if it is one: the median of the ratios of the runs, because a machine that
    /// changes between two runs changes both sides of a ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    /// Smallest and largest ratio of a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_min_max: Option<(f64, f64)>,
    /// The promise as a number.
    pub(crate) target: String,
    /// Whether it holds.
    pub(crate) met: bool,
}

impl Verdict {
    /// Smallest and largest ratio, as text.
    pub(crate) fn ratio_spread(&self) -> String {
        self.ratio_min_max
            .map(|(min, max)| format!("{} .. {}", units::ratio(min), units::ratio(max)))
            .unwrap_or_default()
    }
}

/// Ratio of two rows: over the runs; if one of them took part in every n-th only, each of its
/// figures stands beside the median of the other's n from there on. Of the medians, if their runs
/// do not fit together.
fn ratio(row: &Row, base: &Row, medians: f64) -> Spread {
    let (of, to) = (&row.each_run, &base.each_run);
    let every = |long: &[f64], short: &[f64]| long.len().div_ceil(short.len().max(1)).max(1);
    let (of, to) = (in_turns(of, every(of, to)), in_turns(to, every(to, of)));
    let medians = Spread { median: medians, min: medians, max: medians };
    if of.len() != to.len() {
        return medians;
    }
    Spread::of(of.iter().zip(&to).map(|(a, b)| a / b).collect()).unwrap_or(medians)
}

/// The medians of so many figures each.
fn in_turns(each_run: &[f64], count: usize) -> Vec<f64> {
    each_run.chunks(count).filter_map(|turn| Spread::of(turn.to_vec())).map(|spread| spread.median).collect()
}

/// A series at a path and size.
#[derive(Clone, Copy)]
struct At(&'static str, &'static str, u64);

enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// `subject` compared with `base`: (bench, subject, base, bound).
type Ratio = (&'static str, At, At, Bound);

const KIB64: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

/// The promised ratios.
#[rustfmt::skip]
const RATIOS: &[Ratio] = &[
    ("latency", At("vmmc", "same-node", 8), At("cache-line", "limit", 8), Bound::AtMost(1.15)),
    ("latency", At("vmmc", "same-node", 8), At("ucx-put-shm", "tool", 8), Bound::AtMost(1.1)),
    ("latency", At("vmmc", "two-nodes", 8), At("tcp", "kernel", 8), Bound::AtMost(0.6)),
    ("latency", At("vmmc-plain", "two-nodes", 8), At("tcp", "kernel", 8), Bound::AtMost(0.6)),
    ("latency", At("vmmc", "embedded", 8), At("tcp", "kernel", 8), Bound::AtMost(0.33)),
    ("latency", At("vmmc-plain", "embedded", 8), At("tcp", "kernel", 8), Bound::AtMost(0.33)),
    ("latency", At("vmmc", "embedded", 8), At("tcp-spin", "kernel", 8), Bound::AtMost(0.8)),
    ("latency", At("vmmc-plain", "embedded", 8), At("tcp-spin", "kernel", 8), Bound::AtMost(0.8)),
    ("latency", At("vmmc", "embedded", 8), At("ucx-put-tcp", "tool", 8), Bound::AtMost(0.33)),
    ("bandwidth", At("vmmc", "same-node", KIB64), At("memcpy", "limit", KIB64), Bound::AtLeast(0.9)),
    ("bandwidth", At("vmmc", "same-node", MIB), At("memcpy", "limit", MIB), Bound::AtLeast(0.9)),
    ("bandwidth", At("vmmc", "same-node", 64 * MIB), At("memcpy", "limit", 64 * MIB), Bound::AtLeast(1.2)),
    ("bandwidth", At("vmmc-plain", "two-nodes", MIB), At("tcp", "kernel", MIB), Bound::AtLeast(1.1)),
    ("bandwidth", At("vmmc", "two-nodes", MIB), At("tcp", "kernel", MIB), Bound::AtLeast(0.6)),
    ("bandwidth", At("vmmc-plain", "embedded", MIB), At("tcp", "kernel", MIB), Bound::AtLeast(1.1)),
    ("bandwidth", At("vmmc", "embedded", MIB), At("tcp", "kernel", MIB), Bound::AtLeast(0.6)),
    // The first row of a size is the message into memory that the receiver chose, and the first
    // rate.
    ("mp", At("vmmc", "same-node", 8), At("cache-line", "limit", 8), Bound::AtMost(2.5)),
    ("mp", At("vmmc", "same-node", 8), At("ucx-tag-shm", "tool", 8), Bound::AtMost(0.75)),
    ("mp", At("vmmc", "same-node", 8), At("mpi", "tool", 8), Bound::AtMost(0.75)),
    ("mp", At("vmmc", "same-node", 8), At("ucx-tag-shm", "tool", 8), Bound::AtLeast(1.3)),
    ("mp", At("vmmc", "same-node", 8), At("mpi", "tool", 8), Bound::AtLeast(1.3)),
    ("mp", At("vmmc", "same-node", KIB64), At("ucx-tag-shm", "tool", KIB64), Bound::AtMost(1.0)),
    ("mp", At("vmmc", "same-node", KIB64), At("mpi", "tool", KIB64), Bound::AtMost(1.0)),
    ("mp", At("vmmc", "same-node", MIB), At("ucx-tag-shm", "tool", MIB), Bound::AtMost(1.0)),
    ("mp", At("vmmc", "same-node", MIB), At("mpi", "tool", MIB), Bound::AtMost(1.0)),
    ("mp", At("vmmc", "two-nodes", 8), At("mpi-tcp", "tool", 8), Bound::AtMost(0.8)),
    ("mp", At("vmmc", "embedded", 8), At("mpi-tcp", "tool", 8), Bound::AtMost(0.4)),
    ("mp", At("vmmc", "two-nodes", MIB), At("mpi-tcp", "tool", MIB), Bound::AtMost(1.0)),
    ("mp", At("vmmc", "embedded", MIB), At("mpi-tcp", "tool", MIB), Bound::AtMost(1.0)),
    // Both are what 30 us were where passing a descriptor took 14 us.
    ("import", At("vmmc", "same-node", 4096), At("pass-fd", "limit", 4096), Bound::AtMost(2.1)),
    ("fetch", At("vmmc", "two-nodes", 8), At("vmmc-send", "two-nodes", 8), Bound::AtMost(2.2)),
    ("fetch", At("vmmc-plain", "two-nodes", 8), At("vmmc-plain-send", "two-nodes", 8), Bound::AtMost(2.2)),
    ("fetch", At("vmmc", "embedded", 8), At("vmmc-send", "embedded", 8), Bound::AtMost(2.2)),
    ("fetch", At("vmmc-plain", "embedded", 8), At("vmmc-plain-send", "embedded", 8), Bound::AtMost(2.2)),
];

/// A row of several of a series, by what it is of.
#[derive(Clone, Copy)]
enum Op {
    /// Ours, of one node.
    Ours(&'static str),
    Mpi(&'static str),
}

impl Op {
    fn row(self, report: &Report, size: u64) -> Option<&Row> {
        let (series, path, op) = match self {
            Op::Ours(op) => ("vmmc", "same-node", op),
            Op::Mpi(op) => ("mpi", "tool", op),
        };
        let place = (series, path, size, Some(op));
        let of = |row: &&Row| {
            (row.key.series.as_str(), row.key.path.as_str(), row.key.size_bytes, row.key.op.as_deref()) == place
        };
        report.rows.iter().find(of)
    }

    /// As what something is held against.
    fn name(self) -> &'static str {
        match self {
            Op::Ours(op) => op,
            Op::Mpi(_) => "mpi",
        }
    }
}

/// Rows of one size: (bench, row of ours, the row that it is held against, size, bound).
type OpRatio = (&'static str, &'static str, Op, u64, Bound);

/// The promised ratios of such rows.
#[rustfmt::skip]
const OP_RATIOS: &[OpRatio] = &[
    ("mp", "barrier of 2", Op::Mpi("barrier of 2"), 8, Bound::AtMost(1.0)),
    ("mp", "barrier of 4", Op::Mpi("barrier of 4"), 8, Bound::AtMost(1.0)),
    ("mp", "barrier of 8", Op::Mpi("barrier of 8"), 8, Bound::AtMost(1.0)),
    ("mp", "allreduce of 2", Op::Mpi("allreduce of 2"), 8, Bound::AtMost(1.0)),
    ("mp", "allreduce of 4", Op::Mpi("allreduce of 4"), 8, Bound::AtMost(1.0)),
    ("mp", "allreduce of 8", Op::Mpi("allreduce of 8"), 8, Bound::AtMost(1.0)),
    ("mp", "superstep of 2", Op::Ours("barrier of 2"), 8, Bound::AtMost(1.3)),
    ("mp", "superstep of 4", Op::Ours("barrier of 4"), 8, Bound::AtMost(1.3)),
    ("mp", "superstep of 8", Op::Ours("barrier of 8"), 8, Bound::AtMost(1.3)),
    // What is put is copied twice, as messages to memory of any kind are.
    ("mp", "h-relation of 2", Op::Ours(MESSAGE_STREAM), MIB, Bound::AtLeast(0.8)),
];

/// Time within which an import on one node is done, ns.
const IMPORT_NS_MAX: f64 = 30_000.0;
/// A notification takes at most this many times a bare futex wake.
const NOTIFY_RATIO_MAX: f64 = 1.3;

/// All promises that the figures of this report speak about. The demo measures latency and
/// bandwidth.
pub(crate) fn verdicts(report: &Report) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = RATIOS
        .iter()
        .filter(|(bench, ..)| report.bench == *bench || report.bench == "demo")
        .filter_map(|(_, subject, base, bound)| {
            // The demo has latency and bandwidth at one size: each promise picks the figures of its
            // kind.
            let want_time = matches!(bound, Bound::AtMost(_));
            let subject_figures = find(report, *subject, want_time)?;
            let base_figures = find(report, *base, want_time)?;
            let what = format!("{} {} {}", subject.0, subject.1, units::size(subject.2));
            compare(what, base.0, subject_figures, base_figures, bound)
        })
        .collect();
    verdicts.extend(of_ops(report));
    verdicts.extend(import(report));
    verdicts.extend(notify(report));
    verdicts.extend(calls::verdicts(report));
    verdicts
}

fn find(report: &Report, at: At, want_time: bool) -> Option<&Row> {
    report
        .rows
        .iter()
        .filter(|r| (r.key.series.as_str(), r.key.path.as_str(), r.key.size_bytes) == (at.0, at.1, at.2))
        .find(|r| if want_time { r.figures.p50_ns().is_some() } else { r.figures.bytes_per_s().is_some() })
}

fn of_ops(report: &Report) -> impl Iterator<Item = Verdict> {
    OP_RATIOS.iter().filter(|(bench, ..)| report.bench == *bench).filter_map(|(_, op, base, size, bound)| {
        let what = format!("vmmc same-node {} {op}", units::size(*size));
        compare(what, base.name(), Op::Ours(op).row(report, *size)?, base.row(report, *size)?, bound)
    })
}

fn compare(what: String, base: &str, row: &Row, base_row: &Row, bound: &Bound) -> Option<Verdict> {
    let (figures, against): (&Figures, &Figures) = (&row.figures, &base_row.figures);
    let (medians, measured, shown) = match bound {
        Bound::AtMost(_) => {
            let (a, b) = (figures.p50_ns()?, against.p50_ns()?);
            (a / b, units::time(a), units::time(b))
        }
        Bound::AtLeast(_) => {
            let (a, b) = (figures.bytes_per_s()?, against.bytes_per_s()?);
            (a / b, units::rate(a), units::rate(b))
        }
    };
    let Spread { median: ratio, min, max } = ratio(row, base_row, medians);
    let (target, met) = match bound {
        Bound::AtMost(x) => (format!("at most {x}x"), ratio <= *x),
        Bound::AtLeast(x) => (format!("at least {x}x"), ratio >= *x),
    };
    let against = format!("{base} {shown}");
    Some(Verdict { promise: what, measured, against, ratio: Some(ratio), ratio_min_max: Some((min, max)), target, met })
}

fn import(report: &Report) -> Option<Verdict> {
    if report.bench != "import" {
        return None;
    }
    let row = report.rows.iter().find(|r| r.key.series == "vmmc" && r.key.path == "same-node")?;
    let ns = row.figures.p50_ns()?;
    Some(Verdict {
        promise: "import on one node".into(),
        measured: units::time(ns),
        against: "a fixed time".into(),
        ratio: None,
        ratio_min_max: None,
        target: format!("under {}", units::time(IMPORT_NS_MAX)),
        met: ns < IMPORT_NS_MAX,
    })
}

/// A notification on one node beside a futex wake after the same sleep.
fn notify(report: &Report) -> Vec<Verdict> {
    let at = |series: &str, path: &str, asleep: Option<u64>| {
        let wanted = |r: &&Row| r.key.series == series && r.key.path == path && r.key.asleep_us == asleep;
        report.rows.iter().find(wanted)
    };
    let rows =
        report.rows.iter().filter(|r| report.bench == "notify" && r.key.series == "vmmc" && r.key.path == "same-node");
    rows.filter_map(|row| {
        let asleep = row.key.asleep_us;
        let base = at("futex", "limit", asleep)?;
        let (ours, futex) = (row.figures.p50_ns()?, base.figures.p50_ns()?);
        let Spread { median, min, max } = ratio(row, base, ours / futex);
        Some(Verdict {
            promise: format!("notification after {} us of sleep", asleep?),
            measured: units::time(ours),
            against: format!("futex {}", units::time(futex)),
            ratio: Some(median),
            ratio_min_max: Some((min, max)),
            target: format!("at most {NOTIFY_RATIO_MAX}x"),
            met: median <= NOTIFY_RATIO_MAX,
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Key, Row};
    use super::*;
    use crate::machine::Machine;

    fn row(series: &str, path: &str, size_bytes: u64, figures: Figures) -> Row {
        let key = Key { series: series.into(), path: path.into(), op: None, size_bytes, asleep_us: None };
        Row { key, runs: 1, each_run: Vec::new(), figures }
    }

    fn time(ns: f64) -> Figures {
        Figures::Latency { p50_ns: ns, p99_ns: ns, p50_min_ns: ns, p50_max_ns: ns }
    }

    fn report(bench: &str, rows: Vec<Row>) -> Report {
        let (missing, promises, warnings) = (vec![], vec![], vec![]);
        Report { bench: bench.into(), machine: Machine::here(), about: vec![], rows, missing, promises, warnings }
    }

    #[test]
    fn a_ratio_is_met_or_not() {
        let rows = |ours| vec![row("vmmc", "same-node", 8, time(ours)), row("cache-line", "limit", 8, time(100.0))];
        let met = verdicts(&report("latency", rows(114.0)));
        assert_eq!((met.len(), met[0].met, met[0].ratio), (1, true, Some(1.14)));
        assert!(!verdicts(&report("latency", rows(116.0)))[0].met);
        assert!(verdicts(&report("fetch", rows(116.0))).is_empty());
    }

    #[test]
    fn the_ratio_is_the_median_of_the_runs() {
        let with = |mut row: Row, each: &[f64]| {
            row.each_run = each.to_vec();
            row
        };
        // The machine was slow in the second run: the medians of both sides are from different
        // runs, their ratios are not.
        let ours = with(row("vmmc", "same-node", 8, time(110.0)), &[110.0, 400.0, 90.0]);
        let base = with(row("cache-line", "limit", 8, time(80.0)), &[100.0, 400.0, 80.0]);
        let verdict = verdicts(&report("latency", vec![ours.clone(), base.clone()])).remove(0);
        assert_eq!((verdict.ratio, verdict.ratio_min_max, verdict.met), (Some(1.1), Some((1.0, 1.125)), true));
        // The base took part in every second run only, or in a third of them, or the other way
        // round.
        let ratio = |ours: &Row, base: &Row| verdicts(&report("latency", vec![ours.clone(), base.clone()]))[0].clone();
        let ours = with(ours, &[100.0, 120.0, 300.0, 500.0, 80.0]);
        let slow = with(base.clone(), &[100.0, 200.0, 100.0]);
        assert_eq!((ratio(&ours, &slow).ratio, ratio(&ours, &slow).ratio_min_max), (Some(1.1), Some((0.8, 2.0))));
        let slower = with(base.clone(), &[120.0, 145.0]);
        assert_eq!(ratio(&ours, &slower).ratio_min_max, Some((1.0, 2.0)));
        let mine = with(ours.clone(), &[100.0]);
        assert_eq!(ratio(&mine, &with(base.clone(), &[100.0, 50.0, 10.0])).ratio, Some(2.0));
        // Runs that do not fit together: the medians are all there is.
        let short = with(base, &[100.0, 80.0, 80.0, 90.0]);
        assert_eq!(ratio(&ours, &short).ratio_min_max, Some((110.0 / 80.0, 110.0 / 80.0)));
    }

    #[test]
    fn a_superstep_is_held_against_a_barrier_of_as_many_and_an_h_relation_against_messages() {
        let of = |op: &str, size, figures| {
            let mut row = row("vmmc", "same-node", size, figures);
            row.key.op = Some(op.into());
            row
        };
        let rate = |bytes_per_s| Figures::Bandwidth {
            bytes_per_s,
            bytes_per_s_min: bytes_per_s,
            bytes_per_s_max: bytes_per_s,
        };
        let met = |superstep, relation| {
            let rows = vec![
                of("barrier of 2", 8, time(100.0)),
                of("superstep of 2", 8, time(superstep)),
                of("superstep of 4", 8, time(1e9)), // there is no barrier of 4
                of("stream", MIB, rate(100.0)),
                of("h-relation of 2", MIB, rate(relation)),
                of("h-relation of 2", KIB64, rate(1.0)), // only long ones are promised
            ];
            verdicts(&report("mp", rows)).iter().map(|verdict| verdict.met).collect::<Vec<_>>()
        };
        assert_eq!(met(130.0, 80.0), [true, true]);
        assert_eq!(met(131.0, 79.0), [false, false]);
    }

    #[test]
    fn collective_calls_are_held_against_those_of_mpi_of_as_many() {
        let of = |series: &str, path: &str, op: &str, ns| {
            let mut row = row(series, path, 8, time(ns));
            row.key.op = Some(op.into());
            row
        };
        let rows = vec![
            of("vmmc", "same-node", "barrier of 2", 100.0),
            of("vmmc", "same-node", "allreduce of 4", 101.0),
            of("vmmc", "same-node", "barrier of 8", 1.0), // none of MPI's
            of("mpi", "tool", "barrier of 2", 100.0),
            of("mpi", "tool", "allreduce of 4", 100.0),
            of("mpi-tcp", "tool", "barrier of 8", 100.0),
        ];
        let verdicts = verdicts(&report("mp", rows));
        let told: Vec<(&str, bool)> = verdicts.iter().map(|v| (v.promise.as_str(), v.met)).collect();
        let [barrier, allreduce] = ["vmmc same-node 8 B barrier of 2", "vmmc same-node 8 B allreduce of 4"];
        // The first rows of a size are messages, here none are.
        assert_eq!(told[told.len() - 2..], [(barrier, true), (allreduce, false)]);
        assert_eq!(verdicts[told.len() - 1].against, "mpi 100 ns");
    }

    #[test]
    fn a_promise_without_figures_is_left_out() {
        assert!(verdicts(&report("bandwidth", vec![row("vmmc", "same-node", KIB64, time(1.0))])).is_empty());
    }

    #[test]
    fn an_import_is_held_against_a_fixed_time() {
        let slow = verdicts(&report("import", vec![row("vmmc", "same-node", 4096, time(31_000.0))]));
        assert!(!slow[0].met && slow[0].target.contains("30.0 us"));
    }
}
