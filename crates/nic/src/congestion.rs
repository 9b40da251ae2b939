//! How much may be under way, and how long to wait for an answer: round trip estimation [RFC 6298],
//! slow start and additive increase, multiplicative decrease, which is undone when it turns out
//! that nothing was lost [RFC 4015].
//!
//! Invariant: `window_min <= window <= WINDOW_MAX_BYTES`; one window reduction per round trip.

use std::time::Duration;

use crate::limits::{
    ACK_DELAY, LATE_MIN, ROUND_TRIP_MEMORY, RTO_INITIAL, RTO_MAX, RTO_MIN, WINDOW_INITIAL_BYTES,
    WINDOW_INITIAL_PACKETS, WINDOW_MAX_BYTES, WINDOW_MIN_PACKETS,
};
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
    /// that nothing came of. `prompt`: the peer answers it at once. None before the first
    /// measurement.
    pub(crate) fn probe_timeout(&self, prompt: bool, probes: u32) -> Option<Duration> {
        let smoothed = self.smoothed?;
        let answer = (smoothed * 2).max(smoothed + self.variation * 4);
        // It waits for company, and for its processor.
        let delay = if prompt { Duration::ZERO } else { 2 * ACK_DELAY };
        Some((answer + delay).max(LATE_MIN).saturating_mul(1 << probes.min(12)))
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
    /// Reductions so far.
    reductions: u32,
    undo: Option<Undo>,
}

/// What was before the last reduction.
#[derive(Clone, Copy, Debug)]
struct Undo {
    window: usize,
    threshold: usize,
    /// Chunks whose loss belongs to it and that may have been lost.
    chunks: u64,
}

impl Congestion {
    pub(crate) fn new(packet_bytes: usize) -> Congestion {
        let window = (packet_bytes * WINDOW_INITIAL_PACKETS).max(WINDOW_INITIAL_BYTES);
        let (threshold, credit, recovery_until, undo) = (usize::MAX, 0, None, None);
        Congestion { window, threshold, packet: packet_bytes, credit, recovery_until, reductions: 0, undo }
    }

    pub(crate) fn window(&self) -> usize {
        self.window
    }

    /// Reductions so far.
    pub(crate) fn reductions(&self) -> u32 {
        self.reductions
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

    /// Packet `number` was lost, with so many chunks, while `next` is the next one to be sent.
    /// Which reduction that belongs to.
    pub(crate) fn lost(&mut self, number: u64, chunks: u64, next: u64) -> u32 {
        if self.recovery_until.is_none_or(|until| number > until) {
            self.recovery_until = Some(next.saturating_sub(1));
            self.reductions += 1;
            self.undo = Some(Undo { window: self.window, threshold: self.threshold, chunks: 0 });
            self.window = (self.window / 10 * 7).max(self.minimum());
            self.threshold = self.window;
        }
        if let Some(undo) = &mut self.undo {
            undo.chunks += chunks;
        }
        self.reductions
    }

    /// A chunk had arrived whose loss belonged to that reduction. When all have, it is undone.
    pub(crate) fn not_lost(&mut self, reduction: u32) {
        let Some(undo) = self.undo.as_mut().filter(|_| reduction == self.reductions) else { return };
        undo.chunks -= 1;
        if undo.chunks == 0 {
            self.window = self.window.max(undo.window);
            self.threshold = self.threshold.max(undo.threshold);
            (self.undo, self.recovery_until) = (None, None);
        }
    }

    /// Nothing came back for a long time: start over.
    pub(crate) fn collapsed(&mut self, next: u64) {
        self.threshold = (self.window / 2).max(self.minimum());
        self.window = self.minimum();
        self.recovery_until = Some(next.saturating_sub(1));
        self.undo = None;
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

    #[test]
    fn one_round_trip_of_losses_reduces_the_window_once() {
        let mut window = Congestion::new(1_000);
        let before = window.window();
        window.lost(5, 1, 10);
        let after = window.window();
        assert!(after < before);
        window.lost(9, 1, 12);
        assert_eq!(window.window(), after);
        window.lost(10, 1, 12);
        assert!(window.window() < after);
    }

    #[test]
    fn a_reduction_is_undone_when_all_its_losses_were_none() {
        let mut window = Congestion::new(1_000);
        let before = window.window();
        let first = window.lost(5, 2, 10);
        window.not_lost(first);
        assert!(window.window() < before, "one may be lost still");
        window.not_lost(first);
        assert_eq!(window.window(), before);
        // What is lost then is a loss of its own; what belonged to an older reduction is too late.
        let second = window.lost(6, 1, 12);
        window.lost(12, 1, 20);
        window.not_lost(second);
        assert_eq!(window.window(), before / 10 * 7 / 10 * 7);
    }

    #[test]
    fn the_window_stays_inside_its_bounds_whatever_happens() {
        for seed in 0..200 {
            let mut rng = vmmc_utlb::Rng::new(seed);
            let mut congestion = Congestion::new(1_472);
            // Losses that may turn out to be none, by the reduction that they belong to.
            let mut lost: Vec<u32> = Vec::new();
            for next in 1..3_000 {
                let before = congestion.window();
                match rng.next_u64() % 100 {
                    0..70 => congestion.acknowledged((rng.next_u64() % 100_000) as usize, rng.next_u64() % 4 > 0),
                    70..85 => {
                        let chunks = rng.next_u64() % 5 + 1;
                        let number = next - rng.next_u64() % next;
                        let reduction = congestion.lost(number, chunks, next);
                        lost.extend((0..chunks).map(|_| reduction));
                        assert!(congestion.window() >= before / 10 * 7, "at most one reduction");
                    }
                    85..98 if !lost.is_empty() => {
                        let at = rng.next_u64() as usize % lost.len();
                        congestion.not_lost(lost.swap_remove(at));
                        assert!(congestion.window() >= before);
                    }
                    98 => congestion.collapsed(next),
                    _ => congestion.set_packet([1_200, 1_472, 65_507][(rng.next_u64() % 3) as usize]),
                }
                let window = congestion.window();
                assert!(window >= congestion.minimum() && window <= WINDOW_MAX_BYTES, "seed {seed}: {window}");
            }
        }
    }
}
