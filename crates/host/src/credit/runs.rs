//! Runs of frames: a payload that is longer than one frame takes several that lie side by side, so
//! that it is one piece of memory.
//!
//! Invariant: a run lies within the frames of its channel, of which there are up to 64. Source:
//! [GMS §2] receive buffers, which have one frame.

/// Frames side by side: a payload's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first.
    pub first: u64,
    /// How many, 1 or more; `first + count <= 64`.
    pub count: u64,
}

impl Run {
    /// A bit for each of its frames.
    #[inline]
    pub fn mask(self) -> u64 {
        u64::MAX >> (64 - self.count) << self.first
    }

    /// The highest run of so many bits, 1 to 64, that are set.
    pub(super) fn highest_in(free: u64, count: u64) -> Option<Run> {
        // A bit stays where as many from it on are set.
        let starts = (1..count).fold(free, |starts, _| starts & starts >> 1);
        let first = starts.checked_ilog2()?;
        Some(Run { first: u64::from(first), count })
    }

    /// Of the runs of so many of these frames, the one with most of its bits set; the highest of
    /// several. None: there are fewer frames.
    pub(super) fn fullest_in(free: u64, frames: u64, count: u64) -> Option<Run> {
        let runs = (0..=frames.checked_sub(count)?).map(|first| Run { first, count });
        runs.max_by_key(|run| (free & run.mask()).count_ones())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_where_they_are() {
        assert_eq!(Run { first: 0, count: 64 }.mask(), u64::MAX);
        assert_eq!(Run { first: 63, count: 1 }.mask(), 1 << 63);
        assert_eq!(Run::highest_in(u64::MAX, 64), Some(Run { first: 0, count: 64 }));
        assert_eq!(Run::highest_in(0b0110_1110, 3), Some(Run { first: 1, count: 3 }));
        assert_eq!(Run::highest_in(0b0110_1110, 2), Some(Run { first: 5, count: 2 }));
        assert_eq!(Run::highest_in(u64::MAX ^ 1, 64), None);
        assert_eq!(Run::fullest_in(0b0001, 4, 2), Some(Run { first: 0, count: 2 }));
        assert_eq!(Run::fullest_in(0b1001, 4, 2), Some(Run { first: 2, count: 2 }));
        assert_eq!(Run::fullest_in(u64::MAX, 4, 5), None);
        let mut rng = vmmc_utlb::Rng::new(3);
        let rounds = if cfg!(miri) { 100 } else { 10_000 };
        for _ in 0..rounds {
            let (free, count) = (rng.below(u64::MAX) | rng.below(u64::MAX), 1 + rng.below(20));
            let found = Run::highest_in(free, count);
            let slow =
                (0..=64 - count).rev().map(|first| Run { first, count }).find(|run| free & run.mask() == run.mask());
            assert_eq!(found, slow);
        }
    }
}
