//! What round trips say about queues on the path, round by round.
//!
//! Invariant: one short round trip in a round is enough for it not to count as long. So a peer that
//! was late once, or acknowledgements that came together, look like no queue.

use std::time::Duration;

use crate::limits::{BBR_QUEUE_MIN, BBR_QUEUE_SAMPLES, BBR_STANDING_DIVISOR};
use crate::time::Time;

/// See the module page.
#[derive(Clone, Debug, Default)]
pub(super) struct Queueing {
    /// Shortest round trip of this round, samples of it, and when it began.
    shortest: Option<Duration>,
    samples: u32,
    begun: Time,
    /// The same of the last whole round; none: it had too few samples.
    last: Option<Duration>,
    /// Rounds in a row that were longer than the sender's own window explains.
    unexplained: u32,
}

impl Queueing {
    /// A packet took so long; `begins`: it is the first of a new round.
    pub(super) fn sample(&mut self, now: Time, took: Duration, begins: bool) {
        if begins {
            self.last = self.shortest.filter(|_| self.samples >= BBR_QUEUE_SAMPLES);
            (self.shortest, self.samples, self.begun) = (None, 0, now);
        }
        self.shortest = Some(self.shortest.map_or(took, |shortest| shortest.min(took)));
        self.samples += 1;
    }

    /// Every packet of the last round took longer than so long and a part of it.
    fn longer_than(&self, expected: Duration) -> bool {
        self.last.is_some_and(|last| is_long(last, expected))
    }

    /// So did the first ones of this round, which came over some time: acknowledgements of a peer
    /// that was late come together.
    pub(super) fn begins_longer_than(&self, now: Time, expected: Duration) -> bool {
        let enough = self.samples >= 2 * BBR_QUEUE_SAMPLES && now.since(self.begun) >= expected / 8;
        enough && self.shortest.is_some_and(|shortest| is_long(shortest, expected))
    }

    /// Every packet of the last round has met a queue, with this shortest round trip.
    pub(super) fn stands(&self, shortest: Duration) -> bool {
        let queue = (shortest / BBR_STANDING_DIVISOR).max(BBR_QUEUE_MIN);
        self.last.is_some_and(|last| last > shortest + queue)
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

fn is_long(took: Duration, expected: Duration) -> bool {
    took > expected + (expected / 4).max(BBR_QUEUE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn round(queueing: &mut Queueing, times: impl IntoIterator<Item = u32>) {
        let sample = |(index, ms)| queueing.sample(Time::ZERO, ms * MS, index == 0);
        times.into_iter().enumerate().for_each(sample);
    }

    #[test]
    fn a_round_begins_long_when_its_first_samples_are_and_did_not_come_together() {
        let mut queueing = Queueing::default();
        round(&mut queueing, [20; 7]);
        assert!(!queueing.begins_longer_than(Time::ZERO + 5 * MS, 10 * MS), "too few");
        queueing.sample(Time::ZERO, 20 * MS, false);
        assert!(queueing.begins_longer_than(Time::ZERO + 2 * MS, 10 * MS));
        assert!(!queueing.begins_longer_than(Time::ZERO + MS, 10 * MS), "in no time");
        queueing.sample(Time::ZERO, 12 * MS, false);
        assert!(!queueing.begins_longer_than(Time::ZERO + 5 * MS, 10 * MS), "one was short");
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
        round(&mut queueing, [20; 8]);
        assert!(!queueing.stands(10 * MS), "one of them was without");
        round(&mut queueing, [20]);
        assert!(queueing.stands(17 * MS) && !queueing.stands(18 * MS), "an eighth");
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
