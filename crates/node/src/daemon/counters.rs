//! Counters that show attacks and mistakes, sampled now and then for the log.
//!
//! Invariant: a flood of bad packets is one line in [`LOG_COUNTERS_EVERY`], whatever its rate, and
//! costs nothing when it comes: the counters are there anyway.

use crate::limits::LOG_COUNTERS_EVERY;
use crate::log::LogLevel;
use vmmc_nic::Time;

/// Name, level, and what one more means.
const WATCHED: [(&str, LogLevel, &str); 6] = [
    (
        "engine_bad_seals",
        LogLevel::Warn,
        "packets that the cluster key does not open: a node with another key, or a stranger",
    ),
    ("engine_malformed", LogLevel::Warn, "datagrams that make no sense"),
    (
        "engine_replays",
        LogLevel::Warn,
        "packets that had come before: a network that doubles, or a stranger who repeats",
    ),
    ("engine_hellos_limited", LogLevel::Warn, "requests for a session not answered, because too many came"),
    ("engine_refused", LogLevel::Warn, "transfers refused: no such grant, out of its bounds, or without the right"),
    ("engine_rejects", LogLevel::Info, "sessions refused, here or there (`vmmc ping` says why)"),
];

/// What they were.
#[derive(Default)]
pub(super) struct WatchedCounters {
    last: [u64; WATCHED.len()],
    sampled_at: Option<Time>,
}

impl WatchedCounters {
    #[inline]
    pub(super) fn are_due(&self, now: Time) -> bool {
        self.sampled_at.is_none_or(|at| now.since(at) >= LOG_COUNTERS_EVERY)
    }

    /// Samples the counters; returns lines about those that have grown.
    pub(super) fn sample(&mut self, now: Time, all: impl FnOnce() -> Vec<(String, u64)>) -> Vec<(LogLevel, String)> {
        self.sampled_at = Some(now);
        let (all, mut lines) = (all(), Vec::new());
        for ((name, level, what), last) in WATCHED.iter().zip(&mut self.last) {
            let value = all.iter().find(|(other, _)| other == name).map_or(0, |(_, value)| *value);
            let more = value.saturating_sub(std::mem::replace(last, value));
            if more > 0 {
                lines.push((*level, format!("{more} {what}")));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::station::{Station, StationConfig};
    use vmmc_nic::NodeName;

    #[test]
    fn every_watched_counter_exists_and_only_growth_is_told() {
        let name = NodeName::parse("counters").expect("it is one");
        let station = Station::new(StationConfig::new(name), [7; 32], Time::ZERO).expect("it can be made");
        let mut all = station.describe(Time::ZERO, true, false).counters;
        let mut watched = WatchedCounters::default();
        for (name, ..) in WATCHED {
            all.iter_mut().find(|(other, _)| other == name).unwrap_or_else(|| panic!("there is no {name}")).1 = 3;
        }
        assert_eq!(watched.sample(Time::ZERO, || all.clone()).len(), WATCHED.len());
        assert_eq!(watched.sample(Time::ZERO, || all.clone()), []);
        all.iter_mut().filter(|(name, _)| name == "engine_bad_seals").for_each(|(_, value)| *value += 40);
        let lines = watched.sample(Time::ZERO, || all.clone());
        assert!(matches!(&lines[..], [(LogLevel::Warn, text)] if text.starts_with("40 packets")), "{lines:?}");
    }
}
