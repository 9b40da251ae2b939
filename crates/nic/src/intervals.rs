//! A set of byte offsets or sequence numbers, kept as sorted, disjoint, non-touching ranges.
//!
//! Invariant: `ranges[i].end < ranges[i + 1].start`, no range is empty.

use crate::event::ByteRange;

/// See the module page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct IntervalSet {
    ranges: Vec<ByteRange>,
}

impl IntervalSet {
    pub(crate) fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }

    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Sum of the lengths.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.ranges.iter().map(|range| range.len()).sum()
    }

    /// Whether inserting `[start, end)` keeps the number of ranges at or below `max`.
    pub(crate) fn has_room(&self, start: u64, end: u64, max: usize) -> bool {
        self.len() < max || start >= end || {
            let first = self.ranges.partition_point(|range| range.end < start);
            self.ranges.get(first).is_some_and(|range| range.start <= end)
        }
    }

    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        // The common case: growth at the end.
        if let Some(last) = self.ranges.last_mut() {
            if start >= last.start && start <= last.end {
                last.end = last.end.max(end);
                return;
            }
        }
        let first = self.ranges.partition_point(|range| range.end < start);
        let after = self.ranges.partition_point(|range| range.start <= end);
        if first == after {
            self.ranges.insert(first, ByteRange { start, end });
            return;
        }
        let merged = ByteRange { start: start.min(self.ranges[first].start), end: end.max(self.ranges[after - 1].end) };
        self.ranges[first] = merged;
        self.ranges.drain(first + 1..after);
    }

    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.ranges.partition_point(|range| range.end <= start);
        let after = self.ranges.partition_point(|range| range.start < end);
        if first >= after {
            return;
        }
        let left = ByteRange { start: self.ranges[first].start, end: start };
        let right = ByteRange { start: end, end: self.ranges[after - 1].end };
        let kept = [left, right].into_iter().filter(|range| !range.is_empty());
        self.ranges.splice(first..after, kept);
    }

    /// By how many the number of ranges changes if `[start, end)` is inserted.
    pub(crate) fn growth_with(&self, start: u64, end: u64) -> isize {
        if start >= end {
            return 0;
        }
        let first = self.ranges.partition_point(|range| range.end < start);
        let after = self.ranges.partition_point(|range| range.start <= end);
        1 - after.saturating_sub(first) as isize
    }

    /// By how many the number of ranges changes if `[start, end)` is removed.
    pub(crate) fn growth_without(&self, start: u64, end: u64) -> isize {
        let touched = self.touching(start, end);
        let (Some(first), Some(last)) = (touched.first(), touched.last()) else { return 0 };
        isize::from(first.start < start) + isize::from(last.end > end) - touched.len() as isize
    }

    /// How many ranges have bytes in `[start, end)`.
    pub(crate) fn count_within(&self, start: u64, end: u64) -> usize {
        self.touching(start, end).len()
    }

    /// How many bytes of `[start, end)` are in the set.
    pub(crate) fn bytes_within(&self, start: u64, end: u64) -> u64 {
        self.touching(start, end).iter().map(|range| range.end.min(end) - range.start.max(start)).sum()
    }

    /// The ranges that have bytes in `[start, end)`.
    fn touching(&self, start: u64, end: u64) -> &[ByteRange] {
        if start >= end {
            return &[];
        }
        let first = self.ranges.partition_point(|range| range.end <= start);
        let after = self.ranges.partition_point(|range| range.start < end);
        &self.ranges[first..after]
    }

    /// The parts of `[start, end)` that are in the set.
    pub(crate) fn within(&self, start: u64, end: u64) -> Vec<ByteRange> {
        let within = |range: &ByteRange| ByteRange { start: range.start.max(start), end: range.end.min(end) };
        self.touching(start, end).iter().map(within).collect()
    }

    /// Forgets everything below `bound`.
    pub(crate) fn trim_below(&mut self, bound: u64) {
        if self.ranges.first().is_some_and(|range| range.start < bound) {
            self.remove(0, bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model_of(set: &IntervalSet) -> Vec<bool> {
        let mut model = vec![false; 256];
        for range in set.ranges() {
            for at in range.start..range.end {
                model[at as usize] = true;
            }
        }
        model
    }

    proptest! {
        #[test]
        fn intervals_agree_with_a_bitmap(steps in proptest::collection::vec((any::<bool>(), 0u64..250, 0u64..40), 1..80)) {
            let mut set = IntervalSet::default();
            let mut model = vec![false; 256];
            for (insert, start, len) in steps {
                let end = (start + len).min(256);
                let room = set.has_room(start, end, set.len().max(1));
                let before = set.len();
                let growth = if insert { set.growth_with(start, end) } else { set.growth_without(start, end) };
                let inside = model[start as usize..end as usize].iter().filter(|&&set| set).count() as u64;
                prop_assert_eq!(set.bytes_within(start, end), inside);
                prop_assert_eq!(set.count_within(start, end), set.within(start, end).len());
                if insert { set.insert(start, end) } else { set.remove(start, end) }
                prop_assert_eq!(set.len() as isize, before as isize + growth);
                if insert && room { prop_assert!(set.len() <= before.max(1)); }
                for slot in &mut model[start as usize..end as usize] { *slot = insert; }
                prop_assert_eq!(&model_of(&set), &model);
                prop_assert!(set.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert_eq!(set.total(), model.iter().filter(|&&set| set).count() as u64);
            }
            let within: u64 = set.within(10, 90).iter().map(|range| range.len()).sum();
            prop_assert_eq!(within, model[10..90].iter().filter(|&&set| set).count() as u64);
        }
    }
}
