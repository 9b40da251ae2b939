//! Free pages of arenas, kept as runs, so that a run of pages is put in place by one set of system
//! calls.
//!
//! Invariant: no frame is in two runs, and no two runs touch each other.

use super::Frame;
use std::collections::BTreeMap;

/// Frames that nobody uses.
#[derive(Default)]
pub(super) struct FreeFrames {
    /// Length by first frame.
    runs: BTreeMap<Frame, u32>,
    count: usize,
}

impl FreeFrames {
    /// Frames in it.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Adds frames that were not in it.
    pub(super) fn add(&mut self, first: Frame, count: u32) {
        if count == 0 {
            return;
        }
        self.count += count as usize;
        let (mut first, mut count) = (first, count);
        let before = self.runs.range(..first).next_back().map(|(start, len)| (*start, *len));
        if let Some((start, len)) = before.filter(|(start, len)| start.after(*len) == first) {
            (first, count) = (start, count + len);
        }
        if let Some(len) = self.runs.remove(&first.after(count)) {
            count += len;
        }
        self.runs.insert(first, count);
    }

    /// Takes a run of so many frames, if there is one.
    pub(super) fn take_run(&mut self, count: u32) -> Option<Frame> {
        let first = *self.runs.iter().find(|(_, len)| **len >= count)?.0;
        Some(self.cut(first, count))
    }

    /// Takes the longest run, at most so many frames of it.
    pub(super) fn take_longest(&mut self, count: u32) -> Option<(Frame, u32)> {
        let (first, len) = self.runs.iter().max_by_key(|(_, len)| **len).map(|(first, len)| (*first, *len))?;
        let count = count.min(len);
        Some((self.cut(first, count), count))
    }

    fn cut(&mut self, first: Frame, count: u32) -> Frame {
        let len = self.runs.remove(&first).expect("chosen among them");
        if len > count {
            self.runs.insert(first.after(count), len - count);
        }
        self.count -= count as usize;
        first
    }
}

impl Frame {
    /// The frame so many pages further.
    pub(super) fn after(self, pages: u32) -> Frame {
        Frame { page: self.page + pages, ..self }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn frames_come_back_in_runs_and_none_twice() {
        let (mut free, mut model, mut out) = (FreeFrames::default(), BTreeSet::new(), Vec::new());
        free.add(Frame { arena: 0, page: 0 }, 64);
        free.add(Frame { arena: 1, page: 0 }, 64);
        model.extend((0..128).map(|i| Frame { arena: i / 64, page: i % 64 }));
        let mut state = 5u64;
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (what, count) = (state >> 60, (state >> 40) as u32 % 9 + 1);
            let taken = match what {
                0..4 => free.take_run(count).map(|first| (first, count)),
                4..8 => free.take_longest(count),
                _ => None,
            };
            if let Some((first, count)) = taken {
                (0..count).for_each(|i| assert!(model.remove(&first.after(i)), "given out twice"));
                out.extend((0..count).map(|i| first.after(i)));
            } else if !out.is_empty() {
                let frame = out.swap_remove(state as usize % out.len());
                free.add(frame, 1);
                model.insert(frame);
            }
            assert_eq!(free.len(), model.len());
        }
        out.into_iter().for_each(|frame| free.add(frame, 1));
        assert_eq!(free.runs.into_values().collect::<Vec<_>>(), [64, 64], "all runs have grown together again");
    }
}
