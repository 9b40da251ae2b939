//! How long an answer takes, and how long to wait for one [RFC 6298].
//!
//! Invariant: a timeout is at least [`RTO_MIN`]; the shortest round trip is no longer than any
//! sample of the last [`ROUND_TRIP_MEMORY`].

use std::time::Duration;

use crate::limits::{ACK_DELAY, LATE_MIN, ROUND_TRIP_MEMORY, RTO_INITIAL, RTO_MAX, RTO_MIN};
use crate::time::Time;

/// Round trip time: smoothed, and the shortest of late.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed: Option<Duration>,
    variation: Duration,
    /// Shortest since a moment, and shortest in the span of time before that.
    shortest: Option<(Time, Duration)>,
    before: Option<Duration>,
}

impl RoundTrip {
    pub(crate) fn sample(&mut self, now: Time, sample: Duration) {
        match self.shortest {
            Some((since, shortest)) if now < since + ROUND_TRIP_MEMORY => {
                self.shortest = Some((since, shortest.min(sample)));
            }
            past => {
                self.before = past.map(|(_, shortest)| shortest);
                self.shortest = Some((now, sample));
            }
        }
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(sample);
            self.variation = sample / 2;
            return;
        };
        self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
        self.smoothed = Some((smoothed * 7 + sample) / 8);
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// Timeout after `backoff` timeouts in a row.
    pub(crate) fn timeout(&self, backoff: u32) -> Duration {
        let base = match self.smoothed {
            Some(smoothed) => smoothed + (self.variation * 4).max(Duration::from_millis(1)) + ACK_DELAY,
            None => RTO_INITIAL,
        };
        base.max(RTO_MIN).saturating_mul(1 << backoff.min(12)).min(RTO_MAX.max(base))
    }

    /// The shortest of the last [`ROUND_TRIP_MEMORY`], up to twice as long; none before the first.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        let (_, shortest) = self.shortest?;
        Some(self.before.map_or(shortest, |before| before.min(shortest)))
    }

    /// How long to wait for news of the last packet before a probe asks for them, after `probes`
    /// that nothing came of. `prompt`: the peer's answer waits for nothing. None before the first
    /// measurement.
    pub(crate) fn probe_timeout(&self, prompt: bool, probes: u32) -> Option<Duration> {
        let smoothed = self.smoothed?;
        let answer = (smoothed * 2).max(smoothed + self.variation * 4);
        // It waits for company, and for its processor.
        let delay = if prompt { Duration::ZERO } else { 2 * ACK_DELAY };
        Some((answer + delay).max(LATE_MIN).saturating_mul(1 << probes.min(12)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_backs_off_and_is_bounded() {
        let mut rtt = RoundTrip::default();
        assert_eq!(rtt.timeout(0), RTO_INITIAL);
        rtt.sample(Time::ZERO, Duration::from_micros(50));
        assert!(rtt.timeout(0) >= RTO_MIN && rtt.timeout(0) < 2 * RTO_MIN);
        assert_eq!(rtt.timeout(30), RTO_MAX);
    }
}
