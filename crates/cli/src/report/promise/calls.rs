//! What is promised of remote calls, held against the rows of `vmmc bench rpc`.
//!
//! Invariant: both figures of a verdict are of one series and one path.

use super::super::{Report, Row, units};
use super::{Verdict, ratio};
use crate::limits::RPC_STREAM_BYTES;
use crate::measure::stats::Spread;

/// A null call that is waited for.
const DIRECT: &str = "2-way wait";
/// The same, left to another server.
const DELEGATED: &str = "3-way wait";
/// It, beside silent clients.
pub(crate) const BESIDE_SILENT: &str = "2-way wait, beside 1,000 silent clients";
/// Processor time of a server in a second, with no other client.
pub(crate) const IDLE_ALONE: &str = "processor time in a second, one silent client";
/// The same with many.
pub(crate) const IDLE_WITH_SILENT: &str = "processor time in a second, 1,001 silent clients";
/// A null call for which the server and then the caller are woken.
pub(crate) const ASLEEP: &str = "2-way wait, both asleep";
/// Null calls, many under way: time for each.
pub(crate) const PIPELINED: &str = "2-way continued, each of 32";
/// A short send between the same processes.
pub(crate) const SEND: &str = "8 B send, one way";
/// Answers by token, several under way.
pub(crate) const STREAMED: &str = "2-way continued, by token, rate";
/// Sends of their size.
pub(crate) const SENDS: &str = "plain sends, rate";

/// A result by token, in a frame that is copied out of.
const BY_TOKEN: &str = "2-way wait, by token";
const COPIED: &str = "2-way wait, copied";
/// One way of a cache line from a core to another, and a copy of the size of a row.
const LINE: &str = "cache-line";
const MEMCPY: &str = "memcpy";
/// A wake-up by the kernel's shortest way.
const FUTEX: &str = "futex";

/// A null call takes at most 2.5 times the exchange of two cache lines each way, which is twice one
/// way of a line: two lines come together.
const LINES_MAX: f64 = 5.0;
/// One that wakes the server and then the caller takes at most 1.3 times two wake-ups.
const WAKES_MAX: f64 = 2.6;
/// Bytes of the result that is held against what its parts take.
const RESULT_BYTES: u64 = 4096;
/// Copies of it that it may cost beside a null call, and two cache lines.
const COPIES_MAX: f64 = 1.5;
/// Many silent clients slow a busy one by no more.
const SILENT_RATIO_MAX: f64 = 1.1;
/// What many silent clients may cost a server in a second, ns: what tells nothing from a figure of
/// the kernel's.
const SILENT_NS_MAX: f64 = 1e6;
/// A null call between nodes takes at most so many sends.
const SENDS_MAX: f64 = 2.3;
/// 5 million null calls a second.
const PIPELINED_NS_MAX: f64 = 200.0;
/// Part of the rate of plain sends that answers have at least.
const STREAMED_MIN: f64 = 0.85;

/// All that the figures of this report speak about.
pub(super) fn verdicts(report: &Report) -> Vec<Verdict> {
    if report.bench != "rpc" {
        return Vec::new();
    }
    let mut places: Vec<(&str, &str)> = Vec::new();
    for row in report.rows.iter().filter(|row| row.key.op.is_some()) {
        let place = (row.key.series.as_str(), row.key.path.as_str());
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places.into_iter().flat_map(|place| of(&Place { report, place })).collect()
}

fn of(here: &Place<'_>) -> Vec<Verdict> {
    let silent = here.times(BESIDE_SILENT, DIRECT, SILENT_RATIO_MAX);
    let hops = here.times(DIRECT, SEND, SENDS_MAX);
    let of_place = [silent, here.idle(), hops, here.delegated(), here.pipelined(), here.streamed()];
    of_place.into_iter().flatten().chain(here.beside_others()).collect()
}

/// Rows of one series and path.
struct Place<'a> {
    report: &'a Report,
    place: (&'a str, &'a str),
}

impl<'a> Place<'a> {
    fn row(&self, op: &str, size: u64) -> Option<&'a Row> {
        self.report.rows.iter().find(|row| {
            (row.key.series.as_str(), row.key.path.as_str()) == self.place
                && row.key.op.as_deref() == Some(op)
                && row.key.size_bytes == size
        })
    }

    fn time(&self, op: &str) -> Option<(&'a Row, f64)> {
        let row = self.row(op, 0)?;
        Some((row, row.figures.p50_ns()?))
    }

    fn verdict(&self, what: &str, measured: String, against: String, target: String, met: bool) -> Verdict {
        let promise = format!("{} {} {what}", self.place.0, self.place.1);
        Verdict { promise, measured, against, ratio: None, ratio_min_max: None, target, met }
    }

    /// The time of another series.
    fn other(&self, series: &str, size: u64) -> Option<(&'a Row, f64)> {
        let mut rows = self.report.rows.iter();
        let row = rows.find(|row| row.key.series == series && row.key.size_bytes == size)?;
        Some((row, row.figures.p50_ns()?))
    }

    /// Calls of one node beside the limits of the machine, and beside every peer.
    fn beside_others(&self) -> Vec<Verdict> {
        if self.place.1 != "same-node" {
            return Vec::new();
        }
        let direct =
            |series: &str, most| Some(self.held((DIRECT, self.time(DIRECT)?), (series, self.other(series, 0)?), most));
        let peers = self.report.rows.iter().filter(|row| row.key.path == "tool" && row.key.size_bytes == 0);
        let peers = peers.filter_map(|peer| direct(&peer.key.series, 1.0));
        let wakes = || Some(self.held((ASLEEP, self.time(ASLEEP)?), (FUTEX, self.other(FUTEX, 0)?), WAKES_MAX));
        direct(LINE, LINES_MAX)
            .into_iter()
            .chain(wakes())
            .chain(peers)
            .chain(self.by_token())
            .chain(self.beats_copied())
            .collect()
    }

    /// A result by token takes a null call, a copy, and two cache lines.
    fn by_token(&self) -> Option<Verdict> {
        let ns = self.row(BY_TOKEN, RESULT_BYTES)?.figures.p50_ns()?;
        let ((_, null), (_, line)) = (self.time(DIRECT)?, self.other(LINE, 0)?);
        let (_, copy) = self.other(MEMCPY, RESULT_BYTES)?;
        let most = null + COPIES_MAX * copy + 2.0 * line;
        let what = format!("{BY_TOKEN}, {}", units::size(RESULT_BYTES));
        let against = format!("a null call, {COPIES_MAX} copies, 2 lines");
        let target = format!("at most {}", units::time(most));
        Some(self.verdict(&what, units::time(ns), against, target, ns <= most))
    }

    fn beats_copied(&self) -> Option<Verdict> {
        let time = |op| self.row(op, RESULT_BYTES).and_then(|row| Some((row, row.figures.p50_ns()?)));
        Some(self.held((BY_TOKEN, time(BY_TOKEN)?), (COPIED, time(COPIED)?), 1.0))
    }

    /// A time that is at most so many times another one.
    fn times(&self, op: &str, base: &str, most: f64) -> Option<Verdict> {
        Some(self.held((op, self.time(op)?), (base, self.time(base)?), most))
    }

    fn held(
        &self,
        (op, (row, ns)): (&str, (&Row, f64)),
        (base, (base_row, base_ns)): (&str, (&Row, f64)),
        most: f64,
    ) -> Verdict {
        let Spread { median, min, max } = ratio(row, base_row, ns / base_ns);
        let against = format!("{base} {}", units::time(base_ns));
        let verdict = self.verdict(op, units::time(ns), against, format!("at most {most}x"), median <= most);
        Verdict { ratio: Some(median), ratio_min_max: Some((min, max)), ..verdict }
    }

    /// Silent clients cost a server nothing.
    fn idle(&self) -> Option<Verdict> {
        let ((_, with), (_, alone)) = (self.time(IDLE_WITH_SILENT)?, self.time(IDLE_ALONE)?);
        let (against, target) = (format!("one client {}", units::time(alone)), units::time(SILENT_NS_MAX));
        let met = with - alone <= SILENT_NS_MAX;
        Some(self.verdict(IDLE_WITH_SILENT, units::time(with), against, format!("at most {target} more"), met))
    }

    /// A call that is left to another server takes one way more. Both servers are of one node.
    fn delegated(&self) -> Option<Verdict> {
        let ((_, three), (_, two), (_, send)) = (self.time(DELEGATED)?, self.time(DIRECT)?, self.time(SEND)?);
        let (more, against) = (three - two, format!("{SEND} {}", units::time(send)));
        let what = format!("{DELEGATED}, more than 2-way");
        Some(self.verdict(&what, units::time(more.max(0.0)), against, "at most one send".into(), more <= send))
    }

    /// Null calls a second, on one node.
    fn pipelined(&self) -> Option<Verdict> {
        let (_, ns) = self.time(PIPELINED).filter(|_| self.place.1 == "same-node")?;
        let target = format!("at most {}", units::time(PIPELINED_NS_MAX));
        Some(self.verdict(PIPELINED, units::time(ns), "a fixed time".into(), target, ns <= PIPELINED_NS_MAX))
    }

    /// Answers beside plain sends.
    fn streamed(&self) -> Option<Verdict> {
        let (row, base) = (self.row(STREAMED, RPC_STREAM_BYTES)?, self.row(SENDS, RPC_STREAM_BYTES)?);
        let (rate, base_rate) = (row.figures.bytes_per_s()?, base.figures.bytes_per_s()?);
        let Spread { median, min, max } = ratio(row, base, rate / base_rate);
        let what = format!("answers of {}", units::size(RPC_STREAM_BYTES));
        let against = format!("plain sends {}", units::rate(base_rate));
        let target = format!("at least {STREAMED_MIN}x");
        let verdict = self.verdict(&what, units::rate(rate), against, target, median >= STREAMED_MIN);
        Some(Verdict { ratio: Some(median), ratio_min_max: Some((min, max)), ..verdict })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Figures, Key};
    use super::*;
    use crate::machine::Machine;

    fn row(path: &str, op: &str, size_bytes: u64, figures: Figures) -> Row {
        let key = Key { series: "vmmc".into(), path: path.into(), op: Some(op.into()), size_bytes, asleep_us: None };
        Row { key, runs: 1, each_run: Vec::new(), figures }
    }

    fn time(path: &str, op: &str, ns: f64) -> Row {
        row(path, op, 0, Figures::Latency { p50_ns: ns, p99_ns: ns, p50_min_ns: ns, p50_max_ns: ns })
    }

    fn met(rows: Vec<Row>) -> Vec<bool> {
        let (missing, promises, warnings) = (vec![], vec![], vec![]);
        let machine = Machine::here();
        let report = Report { bench: "rpc".into(), machine, about: vec![], rows, missing, promises, warnings };
        verdicts(&report).iter().map(|verdict| verdict.met).collect()
    }

    #[test]
    fn calls_are_held_against_rows_of_their_own_path() {
        let (one, two) = ("same-node", "two-nodes");
        let silent = |ns| vec![time(one, DIRECT, 1000.0), time(one, BESIDE_SILENT, ns), time(two, DIRECT, 5000.0)];
        assert_eq!((met(silent(1099.0)), met(silent(1101.0))), (vec![true], vec![false]));
        let idle = |with| vec![time(one, IDLE_ALONE, 2e6), time(one, IDLE_WITH_SILENT, with)];
        assert_eq!((met(idle(2.9e6)), met(idle(3.1e6))), (vec![true], vec![false]));
        let between = |two_way, three_way| {
            vec![time(two, SEND, 100.0), time(two, DIRECT, two_way), time(two, DELEGATED, three_way)]
        };
        assert_eq!(met(between(230.0, 330.0)), [true, true]);
        assert_eq!(met(between(231.0, 332.0)), [false, false]);
        assert_eq!(met(vec![time(one, PIPELINED, 199.0), time(two, PIPELINED, 900.0)]), [true]);
        let other = |series: &str, path: &str, size: u64, ns: f64| {
            let mut row =
                row(path, "", size, Figures::Latency { p50_ns: ns, p99_ns: ns, p50_min_ns: ns, p50_max_ns: ns });
            row.key = Key { series: series.into(), op: None, ..row.key };
            row
        };
        let beside = |line, peer, token: f64| {
            let figures = |ns| Figures::Latency { p50_ns: ns, p99_ns: ns, p50_min_ns: ns, p50_max_ns: ns };
            vec![
                time(one, DIRECT, 500.0),
                row(one, BY_TOKEN, RESULT_BYTES, figures(token)),
                row(one, COPIED, RESULT_BYTES, figures(751.0)),
                other(LINE, "limit", 0, line),
                other(MEMCPY, "limit", RESULT_BYTES, 50.0),
                other("sunrpc-tcp", "tool", 0, peer),
            ]
        };
        assert_eq!(met(beside(100.0, 501.0, 750.0)), [true, true, true, true]);
        assert_eq!(met(beside(99.0, 499.0, 774.0)), [false, false, false, false]);
        let rate = |op, bytes_per_s| {
            let figures =
                Figures::Bandwidth { bytes_per_s, bytes_per_s_min: bytes_per_s, bytes_per_s_max: bytes_per_s };
            row(one, op, RPC_STREAM_BYTES, figures)
        };
        assert_eq!(met(vec![rate(STREAMED, 86.0), rate(SENDS, 100.0)]), [true]);
        assert_eq!(met(vec![rate(STREAMED, 84.0), rate(SENDS, 100.0)]), [false]);
        let asleep = |ns| vec![time(one, ASLEEP, ns), other("futex", "limit", 0, 10_000.0)];
        assert_eq!((met(asleep(26_000.0)), met(asleep(26_001.0))), (vec![true], vec![false]));
    }
}
