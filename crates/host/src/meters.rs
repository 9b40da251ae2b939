//! Meters: what the threads of a process moved by copying into and out of mapped memory, by import,
//! where its node can read it.
//!
//! ```text
//!  0                unused
//!  1..=LANES        of a lane: all that is counted in no other meter
//!  ..METERS         of one import in one lane, or free
//! ```
//!
//! A meter is a cache line that one thread writes, with loads and stores that need no lock: a
//! transfer that counts itself touches no line of another thread's.
//!
//! Invariant: the sum over all meters never loses a transfer. While an import is given back its
//! meters are added to one of a lane, and a reader that meets that reads again. All of it is what
//! the process says of itself: a reader may show it and decide nothing by it.

use crate::area::AttachArea;
use crate::control::Moved;
use crate::limits::{LANES, METER_READS_MAX, METERS};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// One meter. Words: import, sends, their bytes, fetches, their bytes, atomic operations.
#[derive(Clone, Copy)]
pub struct Meter<'a>(&'a [AtomicU64]);

/// Index of the meter of a lane.
pub fn of_lane(lane: u32) -> u16 {
    lane as u16 + 1
}

/// First index of those of imports.
pub const FIRST_OF_IMPORTS: u16 = LANES as u16 + 1;

impl<'a> Meter<'a> {
    pub(crate) fn new(words: &'a [AtomicU64]) -> Meter<'a> {
        Meter(words)
    }

    /// With one writer at a time.
    #[inline]
    fn add(self, word: usize, n: u64) {
        self.0[word].store(self.0[word].load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// A send of so many bytes. Only the thread that the meter belongs to may call this, as all of
    /// the writing calls.
    #[inline]
    pub fn sent(self, bytes: u64) {
        self.add(1, 1);
        self.add(2, bytes);
    }

    /// A fetch.
    #[inline]
    pub fn fetched(self, bytes: u64) {
        self.add(3, 1);
        self.add(4, bytes);
    }

    /// An atomic operation.
    #[inline]
    pub fn atomic(self) {
        self.add(5, 1);
    }

    /// It counts for this import from here on.
    pub fn assign(self, import: u64) {
        self.0[0].store(import, Ordering::Release);
    }

    /// What it counted.
    pub fn moved(self) -> Moved {
        let word = |n: usize| self.0[n].load(Ordering::Relaxed);
        Moved { sends: word(1), send_bytes: word(2), fetches: word(3), fetch_bytes: word(4), atomics: word(5) }
    }

    /// Adds what was counted elsewhere.
    fn add_all(self, moved: Moved) {
        let words = [moved.sends, moved.send_bytes, moved.fetches, moved.fetch_bytes, moved.atomics];
        words.into_iter().zip(1..).for_each(|(n, word)| self.add(word, n));
    }
}

impl AttachArea {
    /// Says how many meters of imports were ever used: readers read no others.
    pub fn use_meters(&self, count: u16) {
        self.meters_used().fetch_max(u64::from(count), Ordering::Release);
    }

    /// Moves the counts of some meters to that of a lane, and empties them. The caller is the only
    /// one that does this, and no thread writes to any of them.
    pub fn fold_meters(&self, meters: impl Iterator<Item = u16>, lane: u32) {
        let epoch = self.meters_epoch();
        epoch.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let into = self.meter(of_lane(lane));
        for meter in meters.map(|index| self.meter(index)) {
            into.add_all(meter.moved());
            meter.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// What the process moved, in all and by import.
    pub fn moved(&self, mut by_import: impl FnMut(u64, Moved)) -> Moved {
        let mut all = Moved::default();
        let mut parts = Vec::new();
        for _ in 0..METER_READS_MAX {
            let before = self.meters_epoch().load(Ordering::Acquire);
            let used = self.meters_used().load(Ordering::Acquire).min((METERS - LANES) as u64) as u16;
            all = Moved::default();
            parts.clear();
            for index in 1..FIRST_OF_IMPORTS + used {
                let meter = self.meter(index);
                let moved = meter.moved();
                all.add(moved);
                let import = meter.0[0].load(Ordering::Relaxed);
                if import != 0 && moved != Moved::default() {
                    parts.push((import, moved));
                }
            }
            fence(Ordering::SeqCst);
            if before % 2 == 0 && self.meters_epoch().load(Ordering::Acquire) == before {
                break;
            }
        }
        parts.into_iter().for_each(|(import, moved)| by_import(import, moved));
        all
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn what_threads_count_is_summed_by_import_and_stays_when_the_import_goes() {
        let process = AttachArea::create().unwrap();
        let node = AttachArea::open(process.share().unwrap()).unwrap();
        let (own, other) = (FIRST_OF_IMPORTS, FIRST_OF_IMPORTS + 1);
        process.use_meters(2);
        [own, other].iter().for_each(|index| process.meter(*index).assign(77));
        process.meter(own).sent(8);
        process.meter(other).fetched(100);
        process.meter(of_lane(3)).atomic();
        let read = || {
            let mut parts = HashMap::<u64, Moved>::new();
            let all = node.moved(|import, moved| parts.entry(import).or_default().add(moved));
            (all, parts)
        };
        let (all, parts) = read();
        assert_eq!((all.operations(), all.bytes()), (3, 108));
        assert_eq!(parts[&77], Moved { sends: 1, send_bytes: 8, fetches: 1, fetch_bytes: 100, atomics: 0 });
        process.fold_meters([own, other].into_iter(), 5);
        let (after, parts) = read();
        assert_eq!(after, all);
        assert!(parts.is_empty());
    }

    #[test]
    fn what_a_process_claims_is_read_within_bounds() {
        let process = AttachArea::create().unwrap();
        process.meters_used().store(u64::MAX, Ordering::Relaxed);
        process.meters_epoch().store(1, Ordering::Relaxed);
        for index in 1..=METERS as u16 {
            process.meter(index).0.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        }
        let mut parts = 0;
        let all = process.moved(|_, _| parts += 1);
        assert_eq!((all.bytes(), all.operations(), parts), (u64::MAX, u64::MAX, METERS));
    }
}
