//! Which part of packets queues mark: in a round trip, and in the mean of the last ones.
//!
//! Invariant: both are at most 1,024 of 1,024. Source: RFC 8257, section 3.3.

use crate::limits::ECN_WEIGHT;

/// Counts of the present round trip, and the mean of those before.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    /// It ends when this packet has arrived.
    end: u64,
    marked: u64,
    all: u64,
    /// Of 1,024.
    mean: u64,
}

impl Default for Rounds {
    fn default() -> Self {
        // The first mark counts as if all were marked: nothing is known about the queue.
        Rounds { end: 0, marked: 0, all: 0, mean: ALL }
    }
}

const ALL: u64 = 1_024;

impl Rounds {
    /// So many of `all` packets were marked; `largest` is the newest that has arrived, `next` the
    /// next to be sent. If a round trip with marks is over, the part of them in it, of 1,024.
    pub(super) fn count(&mut self, (marked, all): (u64, u64), (largest, next): (u64, u64)) -> Option<u64> {
        (self.marked, self.all) = (self.marked + marked.min(all), self.all + all);
        if largest < self.end || self.all == 0 {
            return None;
        }
        let part = (u128::from(self.marked) * u128::from(ALL) / u128::from(self.all)) as u64;
        self.mean = (self.mean * (ALL - ECN_WEIGHT) + part * ECN_WEIGHT).div_ceil(ALL);
        // A mean that only rounding keeps up is none.
        if part == 0 && self.mean <= ALL / ECN_WEIGHT {
            self.mean = 0;
        }
        let any = self.marked > 0;
        (self.end, self.marked, self.all) = (next, 0, 0);
        any.then_some(part)
    }

    /// Part of packets that is marked, of 1,024.
    pub(super) fn mean(&self) -> u64 {
        self.mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_mean_follows_the_part_that_is_marked() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.mean(), ALL);
        for round in 0..200 {
            let part = rounds.count((5, 20), (100 * round, 100 * (round + 1)));
            assert_eq!(part, Some(ALL / 4));
        }
        assert!((ALL / 4..ALL / 4 + 17).contains(&rounds.mean()), "{}", rounds.mean());
        for round in 200..400 {
            assert_eq!(rounds.count((0, 20), (100 * round, 100 * (round + 1))), None);
        }
        assert_eq!(rounds.mean(), 0);
    }

    #[test]
    fn a_round_trip_ends_with_a_packet_sent_in_it() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.count((1, 1), (0, 50)), Some(ALL));
        assert_eq!(rounds.count((0, 10), (10, 60)), None);
        assert_eq!(rounds.count((10, 10), (49, 99)), None);
        assert_eq!(rounds.count((0, 20), (50, 100)), Some(ALL / 4));
    }

    proptest! {
        #[test]
        fn parts_and_means_are_parts_whatever_is_said(
            told in proptest::collection::vec((any::<u32>(), any::<u32>(), 0u64..20), 1..200)
        ) {
            let (mut rounds, mut largest) = (Rounds::default(), 0);
            for (marked, all, step) in told {
                largest += step;
                let part = rounds.count((marked.into(), all.into()), (largest, largest + 10));
                prop_assert!(part.is_none_or(|part| part <= ALL) && rounds.mean() <= ALL);
            }
        }
    }
}
