//! What round trips say about queues on the path, round by round.
//!
//! Invariant: one short round trip in a round is enough for it not to count as long. So a peer that
//! was late once, or acknowledgements that came together, look like no queue. Nor does a host that
//! stood still: what comes right behind a pause was late for that.

use std::time::Duration;

use crate::limits::{BBR_QUEUE_MIN, BBR_QUEUE_SAMPLES, BBR_STANDING_DIVISOR};
use crate::time::Time;

/// See the module page.
#[derive(Clone, Debug, Default)]
pub(super) struct Queueing {
    /// Shortest round trip of this round, and samples of it.
    shortest: Option<Duration>,
    samples: u32,
    /// The same of the last whole round; none: it had too few samples.
    last: Option<Duration>,
    /// Rounds in a row that were longer than the sender's own window explains.
    unexplained: u32,
    /// When the last packet was acknowledged, and until when one says nothing about queues.
    came: Option<Time>,
    together_until: Time,
    /// Packets in a row that have met a queue.
    met: u32,
    /// Since when every packet has taken long, and how many have.
    long: Option<(Time, u32)>,
}

impl Queueing {
    /// A packet took so long; `begins`: it is the first of a new round.
    pub(super) fn sample(&mut self, took: Duration, begins: bool) {
        if begins {
            self.last = self.shortest.filter(|_| self.samples >= BBR_QUEUE_SAMPLES);
            (self.shortest, self.samples) = (None, 0);
        }
        self.shortest = Some(self.shortest.map_or(took, |shortest| shortest.min(took)));
        self.samples += 1;
    }

    /// Every packet of the last round took longer than so long and a part of it.
    fn longer_than(&self, expected: Duration) -> bool {
        self.last.is_some_and(|last| is_long(last, expected))
    }

    /// Now a packet took so long: whether every one did, over a whole round trip, that took longer
    /// than the shortest and a part of it. `apart`: so long a few packets take at the rate.
    pub(super) fn lasts(&mut self, now: Time, took: Duration, shortest: Duration, apart: Duration) -> bool {
        let pause = margin(shortest).max(apart);
        if self.came.replace(now).is_some_and(|came| now.since(came) > pause) {
            self.together_until = now + pause / 2;
        }
        if now < self.together_until {
            self.interrupt();
            return false;
        }
        self.met = if is_without_queue(took, shortest) { 0 } else { self.met.saturating_add(1) };
        if !is_long(took, shortest) {
            self.long = None;
            return false;
        }
        let (since, before) = self.long.unwrap_or((now, 0));
        self.long = Some((since, before + 1));
        before + 1 >= BBR_QUEUE_SAMPLES && now.since(since) >= shortest
    }

    /// The last packets have all met a queue.
    pub(super) fn is_met(&self) -> bool {
        self.met >= BBR_QUEUE_SAMPLES
    }

    /// There is not enough to send: no queue lasts any longer.
    pub(super) fn interrupt(&mut self) {
        (self.met, self.long) = (0, None);
    }

    /// Every packet of the last round has met a queue, with this shortest round trip, and the
    /// sender's own window explains it.
    pub(super) fn stands(&self, shortest: Duration) -> bool {
        self.unexplained == 0 && self.last.is_some_and(|last| !is_without_queue(last, shortest))
    }

    /// Some packet of the last round has met none.
    pub(super) fn is_clear(&self, shortest: Duration) -> bool {
        self.last.is_some_and(|last| is_without_queue(last, shortest))
    }

    /// A round is over whose packets, with what the sender had under way, should have taken so
    /// long: how many in a row have taken longer.
    pub(super) fn round(&mut self, expected: Duration) -> u32 {
        self.unexplained = if self.longer_than(expected) { self.unexplained.saturating_add(1) } else { 0 };
        self.unexplained
    }

    /// What was seen says nothing about what comes now.
    pub(super) fn forget(&mut self) {
        *self = Queueing::default();
    }
}

fn is_without_queue(took: Duration, shortest: Duration) -> bool {
    took <= shortest + (shortest / BBR_STANDING_DIVISOR).max(BBR_QUEUE_MIN)
}

fn is_long(took: Duration, expected: Duration) -> bool {
    took > expected + margin(expected)
}

/// What says something, beyond this time.
fn margin(time: Duration) -> Duration {
    (time / 4).max(BBR_QUEUE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn round(queueing: &mut Queueing, times: impl IntoIterator<Item = u32>) {
        let sample = |(index, ms)| queueing.sample(ms * MS, index == 0);
        times.into_iter().enumerate().for_each(sample);
    }

    #[test]
    fn a_queue_lasts_when_every_packet_of_a_round_trip_has_met_it() {
        let mut queueing = Queueing::default();
        let mut lasts = |ms: u32, took: u32| queueing.lasts(Time::ZERO + ms * MS, took * MS, 10 * MS, 40 * MS);
        assert!((0..10).all(|ms| !lasts(ms, 20)));
        assert!(lasts(10, 20) && lasts(11, 13));
        assert!(!lasts(12, 12), "one was short");
        assert!((13..23).all(|ms| !lasts(ms, 20)) && lasts(23, 20));
        // Acknowledgements that come together say no more than one.
        assert!(!lasts(24, 10) && (0..100).all(|_| !lasts(25, 20)));
        // Nor do a few.
        assert!(!lasts(26, 10) && !lasts(27, 20) && !lasts(60, 20) && !lasts(70, 20) && lasts(80, 20));
        assert!(queueing.is_met());
        assert!(!queueing.lasts(Time::ZERO + 80 * MS, 11 * MS, 10 * MS, MS) && !queueing.is_met());
        // One that is too short to last is met all the same.
        let mut short = |packet: u32| queueing.lasts(Time::ZERO + (80 + packet) * MS, 12 * MS, 10 * MS, MS);
        assert!((0..BBR_QUEUE_SAMPLES).all(|packet| !short(packet)) && queueing.is_met());
        queueing.interrupt();
        assert!(!queueing.lasts(Time::ZERO + 84 * MS, 20 * MS, 10 * MS, MS), "it begins anew");
        assert!(!queueing.is_met());
    }

    #[test]
    fn what_comes_right_behind_a_pause_has_met_no_queue() {
        let mut queueing = Queueing::default();
        let mut lasts = |us: u32, apart: Duration| {
            queueing.lasts(Time::ZERO + us * MS / 1_000, 20 * MS, 10 * MS, apart) || queueing.is_met()
        };
        assert!((0..3).all(|packet| !lasts(packet * 2_500, MS)) && lasts(7_500, MS));
        // Longer than a quarter of the shortest round trip: half of that is no news.
        assert!(!lasts(10_001, MS) && (0..100).all(|packet| !lasts(10_002 + packet * 12, MS)));
        assert!((0..3).all(|packet| !lasts(11_300 + packet, MS)) && lasts(11_303, MS));
        // Of a slow link four packets come no sooner.
        assert!(lasts(30_000, 20 * MS) && !lasts(51_000, 20 * MS));
    }

    #[test]
    fn a_round_is_long_when_all_of_it_is() {
        let mut queueing = Queueing::default();
        round(&mut queueing, [20; 8]);
        assert!(!queueing.longer_than(10 * MS), "it is not over");
        round(&mut queueing, [20, 20, 20, 20, 20, 20, 20, 11]);
        assert!(queueing.longer_than(10 * MS) && !queueing.longer_than(16 * MS));
        round(&mut queueing, [20]);
        assert!(!queueing.longer_than(10 * MS), "one of it was not");
        round(&mut queueing, [20]);
        assert!(!queueing.longer_than(10 * MS), "one sample says nothing");
    }

    #[test]
    fn short_paths_have_a_millisecond() {
        let mut queueing = Queueing::default();
        round(&mut queueing, [1; 8]);
        round(&mut queueing, [2; 8]);
        assert!(!queueing.longer_than(MS / 10));
        round(&mut queueing, [1; 8]);
        assert!(queueing.longer_than(MS / 10) && !queueing.longer_than(MS));
    }

    #[test]
    fn a_queue_stands_when_no_packet_of_a_round_was_without() {
        let mut queueing = Queueing::default();
        round(&mut queueing, [12; 8]);
        assert!(!queueing.stands(10 * MS), "the round is not over");
        round(&mut queueing, [12, 12, 12, 11, 12, 12]);
        assert!(queueing.stands(10 * MS) && !queueing.stands(11 * MS), "less than a millisecond is none");
        assert!(queueing.is_clear(11 * MS) && !queueing.is_clear(10 * MS));
        round(&mut queueing, [20; 8]);
        assert!(!queueing.stands(10 * MS) && queueing.is_clear(10 * MS), "one of them was without");
        round(&mut queueing, [20]);
        assert!(queueing.stands(17 * MS) && !queueing.stands(18 * MS), "an eighth");
        assert_eq!(queueing.round(10 * MS), 1, "it is one of others");
        assert!(!queueing.stands(10 * MS) && !queueing.is_clear(10 * MS));
    }

    #[test]
    fn a_round_of_few_packets_is_neither_clear_nor_long() {
        let mut queueing = Queueing::default();
        round(&mut queueing, [10; BBR_QUEUE_SAMPLES as usize - 1]);
        round(&mut queueing, [10; 8]);
        assert!(!queueing.is_clear(10 * MS) && !queueing.stands(MS));
        round(&mut queueing, [10]);
        assert!(queueing.is_clear(10 * MS));
    }

    #[test]
    fn rounds_are_counted_in_a_row() {
        let mut queueing = Queueing::default();
        for expected in [0, 1, 2, 3] {
            round(&mut queueing, [20; 8]);
            assert_eq!(queueing.round(10 * MS), expected);
        }
        round(&mut queueing, [11; 8]);
        round(&mut queueing, [20; 8]);
        assert_eq!(queueing.round(10 * MS), 0);
    }
}
