//! A set of byte ranges: which bytes of something have happened.
//!
//! Invariant: the ranges are sorted, disjoint, not empty and not touching, so that a set that is
//! full is exactly one range. Sets here are tiny (bytes of one send arrive almost in order), hence
//! a sorted vector.

/// A set of bytes, kept as sorted `start..end` ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans {
    ranges: Vec<(u64, u64)>,
}

impl Spans {
    /// Adds `start..end`.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.ranges.partition_point(|r| r.1 < start);
        let last = self.ranges.partition_point(|r| r.0 <= end);
        let merged = match self.ranges.get(first..last) {
            Some([only]) => (start.min(only.0), end.max(only.1)),
            Some([low, .., high]) => (start.min(low.0), end.max(high.1)),
            _ => (start, end),
        };
        self.ranges.splice(first..last, [merged]);
    }

    /// Takes `start..end` out.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let mut kept = Vec::with_capacity(self.ranges.len() + 1);
        for &(low, high) in &self.ranges {
            if low < start.min(high) {
                kept.push((low, high.min(start)));
            }
            if high > end.max(low) {
                kept.push((low.max(end), high));
            }
        }
        self.ranges = kept;
    }

    /// Whether any byte of `start..end` is in the set.
    pub(crate) fn touches(&self, start: u64, end: u64) -> bool {
        let first = self.ranges.partition_point(|r| r.1 <= start);
        start < end && self.ranges.get(first).is_some_and(|r| r.0 < end)
    }

    /// Whether every byte of `start..end` is in the set.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        let first = self.ranges.partition_point(|r| r.1 <= start);
        start >= end || self.ranges.get(first).is_some_and(|r| r.0 <= start && r.1 >= end)
    }

    /// Bytes in the set.
    /// How many ranges there are, none of which touch.
    pub(crate) fn count(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.ranges.iter().map(|r| r.1 - r.0).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn touching_ranges_become_one() {
        let mut set = Spans::default();
        set.insert(10, 20);
        set.insert(30, 40);
        set.insert(20, 30);
        assert_eq!(set.ranges, [(10, 40)]);
        assert!(set.covers(10, 40) && !set.covers(9, 40) && set.touches(0, 11) && !set.touches(0, 10));
    }

    #[test]
    fn agrees_with_a_bitmap_over_random_changes() {
        let mut rng = Rng::new(3);
        for _ in 0..200 {
            let (mut set, mut bits) = (Spans::default(), [false; 64]);
            for _ in 0..20 {
                let start = rng.below(60);
                let end = start + rng.below(64 - start);
                let add = rng.chance(600);
                bits[start as usize..end as usize].fill(add);
                if add {
                    set.insert(start, end)
                } else {
                    set.remove(start, end)
                }
                assert_eq!(set.len_bytes(), bits.iter().filter(|b| **b).count() as u64);
                let (low, high) = (rng.below(32), rng.between(32, 64));
                let part = &bits[low as usize..high as usize];
                assert_eq!(set.covers(low, high), part.iter().all(|b| *b));
                assert_eq!(set.touches(low, high), part.iter().any(|b| *b));
                assert!(set.ranges.windows(2).all(|w| w[0].1 < w[1].0));
            }
        }
    }
}
