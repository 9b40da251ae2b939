//! `vmmc ping`: from engine to engine and back.
//!
//! Invariant: the time is the engines' own; what this process takes to ask is not in it.

use super::attach;
use crate::args::Ping;
use crate::failure::Failure;
use crate::measure::stats::Spread;
use crate::report::units;
use std::time::Duration;

/// Runs the command.
pub(crate) fn run(ping: &Ping) -> Result<(), Failure> {
    let session = attach(&ping.which.name)?;
    let timeout = Duration::from_millis(ping.timeout_ms);
    let mut times = Vec::new();
    for n in 1..=ping.count {
        let ns = session.ping(&ping.node, timeout)?.as_nanos() as f64;
        times.push(ns);
        if !ping.json {
            crate::output(&format!(
                "{} answered to {}: {n} of {}, {}\n",
                ping.node,
                ping.which.name,
                ping.count,
                units::time(ns)
            ))?;
        }
    }
    let Some(spread) = Spread::of(times.clone()) else { return Ok(()) };
    if ping.json {
        return crate::output_json(&serde_json::json!({
            "node": ping.node, "from": ping.which.name, "rtt_ns": times,
            "min_ns": spread.min, "median_ns": spread.median, "max_ns": spread.max,
        }));
    }
    let [min, median, max] = [spread.min, spread.median, spread.max].map(units::time);
    crate::output(&format!("round trip: median {median}, smallest {min}, largest {max}\n"))
}
