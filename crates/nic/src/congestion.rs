//! How much may be under way, and how long to wait for an answer: round trip estimation [RFC 6298],
//! slow start and additive increase, multiplicative decrease.
//!
//! Invariant: `window_min <= window <= WINDOW_MAX_BYTES`; one window reduction per round trip.

use std::time::Duration;

use crate::limits::{
    ACK_DELAY, RTO_INITIAL, RTO_MAX, RTO_MIN, WINDOW_INITIAL_BYTES, WINDOW_INITIAL_PACKETS, WINDOW_MAX_BYTES,
    WINDOW_MIN_PACKETS,
};

/// Smoothed round trip time.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed: Option<Duration>,
    variation: Duration,
}

impl RoundTrip {
    pub(crate) fn sample(&mut self, sample: Duration) {
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

    /// How much later than its successors a packet may be before it counts as lost.
    pub(crate) fn reorder_window(&self) -> Duration {
        let smoothed = self.smoothed.unwrap_or(RTO_INITIAL);
        (smoothed * 9 / 8).max(Duration::from_millis(1))
    }
}

/// Congestion window.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    window: usize,
    threshold: usize,
    packet: usize,
    /// Bytes acknowledged towards the next additive step.
    credit: usize,
    /// Losses of packets up to this number belong to a reduction already made.
    recovery_until: Option<u64>,
}

impl Congestion {
    pub(crate) fn new(packet_bytes: usize) -> Congestion {
        let window = (packet_bytes * WINDOW_INITIAL_PACKETS).max(WINDOW_INITIAL_BYTES);
        Congestion { window, threshold: usize::MAX, packet: packet_bytes, credit: 0, recovery_until: None }
    }

    pub(crate) fn window(&self) -> usize {
        self.window
    }

    pub(crate) fn set_packet(&mut self, bytes: usize) {
        self.packet = bytes;
        self.window = self.window.max(self.minimum());
    }

    fn minimum(&self) -> usize {
        self.packet * WINDOW_MIN_PACKETS
    }

    /// `limited`: the window was what held the sender back.
    pub(crate) fn acknowledged(&mut self, bytes: usize, limited: bool) {
        if !limited {
            return;
        }
        if self.window < self.threshold {
            self.window = (self.window + bytes).min(WINDOW_MAX_BYTES);
            return;
        }
        self.credit += bytes;
        if self.credit >= self.window {
            self.credit -= self.window;
            self.window = (self.window + self.packet).min(WINDOW_MAX_BYTES);
        }
    }

    /// Packet `number` was lost while `next` is the next one to be sent.
    pub(crate) fn lost(&mut self, number: u64, next: u64) {
        if self.recovery_until.is_some_and(|until| number <= until) {
            return;
        }
        self.recovery_until = Some(next.saturating_sub(1));
        self.window = (self.window / 10 * 7).max(self.minimum());
        self.threshold = self.window;
    }

    /// Nothing came back for a long time: start over.
    pub(crate) fn collapsed(&mut self, next: u64) {
        self.threshold = (self.window / 2).max(self.minimum());
        self.window = self.minimum();
        self.recovery_until = Some(next.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_backs_off_and_is_bounded() {
        let mut rtt = RoundTrip::default();
        assert_eq!(rtt.timeout(0), RTO_INITIAL);
        rtt.sample(Duration::from_micros(50));
        assert!(rtt.timeout(0) >= RTO_MIN && rtt.timeout(0) < 2 * RTO_MIN);
        assert_eq!(rtt.timeout(30), RTO_MAX);
    }

    #[test]
    fn one_round_trip_of_losses_reduces_the_window_once() {
        let mut window = Congestion::new(1_000);
        let before = window.window();
        window.lost(5, 10);
        let after = window.window();
        assert!(after < before);
        window.lost(9, 12);
        assert_eq!(window.window(), after);
        window.lost(10, 12);
        assert!(window.window() < after);
    }
}
