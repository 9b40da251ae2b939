//! What a measurement found: rows, machine, warnings, promises. Printed as a table, as JSON or as a
//! page.
//!
//! Invariant: the three say the same; numbers are in the units that their names end with.

pub(crate) mod demo;
pub(crate) mod html;
pub(crate) mod promise;
pub(crate) mod published;
pub(crate) mod table;
pub(crate) mod units;

use crate::machine::Machine;
use crate::measure::stats::{Sample, Spread};
use serde::Serialize;

/// Everything that one command measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// `latency`, `bandwidth`, ... or `demo`.
    pub(crate) bench: String,
    /// Where.
    pub(crate) machine: Machine,
    /// What was done, in sentences, with the time. For the page: a user who watched the command has
    /// read it.
    pub(crate) about: Vec<String>,
    /// What was measured.
    pub(crate) rows: Vec<Row>,
    /// Peers that were asked for but are not installed.
    pub(crate) missing: Vec<Missing>,
    /// Numeric promises beside what this run measured.
    pub(crate) promises: Vec<promise::Verdict>,
    /// What speaks against trusting the figures.
    pub(crate) warnings: Vec<String>,
}

/// A peer that is not installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Missing {
    /// Its name.
    pub(crate) series: String,
    /// How to get it.
    pub(crate) how: String,
}

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Key {
    /// `vmmc`, `vmmc-plain`, a peer, `cache-line`, `memcpy`, ...
    pub(crate) series: String,
    /// `same-node`, `two-nodes`, `embedded`; `limit` and `kernel` for what is not ours, `tool` for
    /// public tools.
    pub(crate) path: String,
    /// What was done, if the bench does several things.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) op: Option<String>,
    /// Bytes of a message.
    pub(crate) size_bytes: u64,
    /// How long the receiver had slept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) asleep_us: Option<u64>,
}

/// One series at one size: median over the runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// What it is about.
    #[serde(flatten)]
    pub(crate) key: Key,
    /// Runs that it is the median of.
    pub(crate) runs: usize,
    /// The headline figure of each run, in the order of the runs: run n of one row was taken next
    /// to run n of another.
    pub(crate) each_run: Vec<f64>,
    /// The figures.
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

/// Figures of a row.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Figures {
    /// Times.
    Latency {
        /// Median of the runs' medians.
        p50_ns: f64,
        /// Median of the runs' 99th percentiles.
        p99_ns: f64,
        /// Smallest median of a run.
        p50_min_ns: f64,
        /// Largest median of a run.
        p50_max_ns: f64,
    },
    /// Rates.
    Bandwidth {
        /// Median of the runs.
        bytes_per_s: f64,
        /// Slowest run.
        bytes_per_s_min: f64,
        /// Fastest run.
        bytes_per_s_max: f64,
    },
    /// It did not work.
    Failed {
        /// Why.
        error: String,
    },
}

impl Figures {
    /// Of these runs; all of one kind.
    pub(crate) fn of(samples: &[Sample], error: Option<&str>) -> Figures {
        let pick = |f: fn(&Sample) -> Option<f64>| Spread::of(samples.iter().filter_map(f).collect());
        let p50 = pick(|s| matches!(s, Sample::Latency { .. }).then(|| first(s)));
        let p99 = pick(|s| if let Sample::Latency { p99_ns, .. } = s { Some(*p99_ns) } else { None });
        let rate = pick(|s| matches!(s, Sample::Bandwidth { .. }).then(|| first(s)));
        match (error, p50, p99, rate) {
            (None, Some(p50), Some(p99), _) => {
                Figures::Latency { p50_ns: p50.median, p99_ns: p99.median, p50_min_ns: p50.min, p50_max_ns: p50.max }
            }
            (None, _, _, Some(r)) => {
                Figures::Bandwidth { bytes_per_s: r.median, bytes_per_s_min: r.min, bytes_per_s_max: r.max }
            }
            (error, ..) => Figures::Failed { error: error.unwrap_or("nothing was measured").into() },
        }
    }

    /// Median time, ns.
    pub(crate) fn p50_ns(&self) -> Option<f64> {
        if let Figures::Latency { p50_ns, .. } = self { Some(*p50_ns) } else { None }
    }

    /// Median rate, bytes a second.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        if let Figures::Bandwidth { bytes_per_s, .. } = self { Some(*bytes_per_s) } else { None }
    }
}

/// The headline figure of each sample.
pub(crate) fn each_run(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(first).collect()
}

/// The headline number of a sample.
fn first(sample: &Sample) -> f64 {
    match sample {
        Sample::Latency { p50_ns, .. } => *p50_ns,
        Sample::Bandwidth { bytes_per_s } => *bytes_per_s,
    }
}

impl Report {
    /// As JSON, with a final newline.
    pub(crate) fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("the types of this module have an encoding");
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_promised_fields() {
        let samples = [3.0, 1.0, 2.0].map(|p50_ns| Sample::Latency { p50_ns, p99_ns: p50_ns * 2.0 });
        let key = Key { series: "pipe".into(), path: "kernel".into(), op: None, size_bytes: 8, asleep_us: None };
        let row = Row { key, runs: 3, each_run: each_run(&samples), figures: Figures::of(&samples, None) };
        let json: serde_json::Value = serde_json::to_value(&row).unwrap();
        assert_eq!(json["series"], "pipe");
        assert_eq!(json["size_bytes"], 8);
        assert_eq!(json["each_run"], serde_json::json!([3.0, 1.0, 2.0]));
        assert_eq!((&json["p50_ns"], &json["p99_ns"], &json["runs"]), (&2.0.into(), &4.0.into(), &3.into()));
        let rate = Figures::of(&[Sample::Bandwidth { bytes_per_s: 5.0 }], None);
        assert_eq!(serde_json::to_value(rate).unwrap()["bytes_per_s"], 5.0);
        assert!(matches!(Figures::of(&[], None), Figures::Failed { .. }));
    }
}
