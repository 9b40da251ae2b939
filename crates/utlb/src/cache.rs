//! The cache of translations in the network interface, shared by all processes. [UTLB §3.2]
//!
//! Invariant: a tag is in at most one place, in the set `(page + offset(process)) mod sets`; inside
//! a set the entries are in the order of their last use. Direct-mapped is one way. The offset is
//! the paper's "process-dependent constant", which it leaves open: here the golden section of the
//! sets times the process, which spreads any number of processes evenly.

use crate::ids::{Frame, Page, Process, Tag};
use crate::limits::{ENTRIES_MAX, WAYS_MAX};

/// Size and form of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheShape {
    entries: usize,
    ways: usize,
    offset: bool,
}

/// Why there is no such cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Not a power of two, or out of bounds.
    #[error("{0} entries: give a power of two up to {max}", max = ENTRIES_MAX)]
    Entries(usize),
    /// Not a power of two, out of bounds, or more than entries.
    #[error("{ways} ways with {entries} entries: give a power of two up to {max} and not above the entries", max = WAYS_MAX)]
    Ways {
        /// As asked.
        ways: usize,
        /// As asked.
        entries: usize,
    },
}

impl CacheShape {
    /// As shipped in the paper: 8 Ki entries, direct-mapped, with offset.
    pub const PAPER: CacheShape = CacheShape { entries: 8192, ways: 1, offset: true };

    /// A cache of `entries` entries in sets of `ways`, with or without index offsetting.
    ///
    /// # Errors
    ///
    /// [`ShapeError`].
    pub fn new(entries: usize, ways: usize, offset: bool) -> Result<CacheShape, ShapeError> {
        if !entries.is_power_of_two() || entries > ENTRIES_MAX {
            return Err(ShapeError::Entries(entries));
        }
        if !ways.is_power_of_two() || ways > WAYS_MAX || ways > entries {
            return Err(ShapeError::Ways { ways, entries });
        }
        Ok(CacheShape { entries, ways, offset })
    }

    /// Entries.
    pub fn entries(self) -> usize {
        self.entries
    }

    /// Entries of a set.
    pub fn ways(self) -> usize {
        self.ways
    }

    /// Whether indices are offset by process.
    pub fn offset(self) -> bool {
        self.offset
    }
}

const EMPTY: u64 = u64::MAX;

/// The shared cache.
///
/// ```
/// use vmmc_utlb::{CacheShape, Frame, Page, Process, SharedCache};
/// let mut cache = SharedCache::new(CacheShape::new(1024, 1, false).unwrap());
/// let page = |number| Page::new(number).unwrap();
/// assert_eq!(cache.find(Process(1), page(5)), None);
/// cache.fill(Process(1), page(5), Frame(77));
/// assert_eq!(cache.find(Process(1), page(5)), Some(Frame(77)));
/// // Without offset, the same page of another process wants the same place.
/// let evicted = cache.fill(Process(2), page(5), Frame(78));
/// assert_eq!(evicted.map(|tag| tag.process()), Some(Process(1)));
/// ```
#[derive(Clone, Debug)]
pub struct SharedCache {
    shape: CacheShape,
    tags: Vec<u64>,
    frames: Vec<Frame>,
    // Sets - 1; sets is a power of two.
    mask: u64,
}

impl SharedCache {
    /// An empty cache.
    pub fn new(shape: CacheShape) -> SharedCache {
        let sets = shape.entries / shape.ways;
        SharedCache {
            shape,
            tags: vec![EMPTY; shape.entries],
            frames: vec![Frame(0); shape.entries],
            mask: sets as u64 - 1,
        }
    }

    /// Its shape.
    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Entries in use.
    pub fn len(&self) -> usize {
        self.tags().count()
    }

    /// Whether none is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// First place of the set of a page.
    #[inline]
    fn set(&self, process: Process, page: Page) -> usize {
        let offset = if self.shape.offset {
            u64::from(process.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS / 2)
        } else {
            0
        };
        // The offset is a fraction of 2^32; scaled to the sets it differs for every process even in
        // small caches.
        let offset = (offset * (self.mask + 1)) >> (u64::BITS / 2);
        ((page.number() + offset) & self.mask) as usize * self.shape.ways
    }

    /// The translation of a page, if it is here. Counts as a use.
    #[inline]
    pub fn find(&mut self, process: Process, page: Page) -> Option<Frame> {
        let tag = Tag::new(process, page).number();
        let set = self.set(process, page);
        if self.tags[set] == tag {
            return Some(self.frames[set]);
        }
        let way = (1..self.shape.ways).find(|way| self.tags[set + way] == tag)?;
        self.tags[set..=set + way].rotate_right(1);
        self.frames[set..=set + way].rotate_right(1);
        Some(self.frames[set])
    }

    /// How many of the `most` pages right behind `page` are here with the frames right behind
    /// `frame`. Each of them counts as used. Only a direct-mapped cache is looked at in this way;
    /// others say 0.
    #[inline]
    pub fn row_behind(&self, process: Process, page: Page, frame: Frame, most: u64) -> u64 {
        if self.shape.ways != 1 || most > Page::MAX.number() - page.number() {
            return 0;
        }
        let (tag, set) = (Tag::new(process, page).number(), self.set(process, page));
        // A row ends with the last set: the next read begins at the first.
        let most = most.min(self.mask - set as u64) as usize;
        let (tags, frames) = (&self.tags[set + 1..][..most], &self.frames[set + 1..][..most]);
        let same = |(at, (t, f)): &(u64, (&u64, &Frame))| **t == tag + at && f.0 == frame.0.wrapping_add(*at);
        (1..).zip(tags.iter().zip(frames)).take_while(same).count() as u64
    }

    /// What is here.
    pub fn tags(&self) -> impl Iterator<Item = Tag> {
        self.tags.iter().filter(|tag| **tag != EMPTY).map(|tag| Tag::from_table(*tag))
    }

    /// Whether the page is here; does not count as a use.
    pub fn contains(&self, process: Process, page: Page) -> bool {
        let set = self.set(process, page);
        self.tags[set..set + self.shape.ways].contains(&Tag::new(process, page).number())
    }

    /// Enters a translation, as the last used of its set; what it pushed out.
    pub fn fill(&mut self, process: Process, page: Page, frame: Frame) -> Option<Tag> {
        let tag = Tag::new(process, page).number();
        let set = self.set(process, page);
        if self.shape.ways == 1 {
            let out = std::mem::replace(&mut self.tags[set], tag);
            self.frames[set] = frame;
            return (out != EMPTY && out != tag).then(|| Tag::from_table(out));
        }
        let end = set + self.shape.ways;
        let there = self.tags[set..end].iter().position(|t| *t == tag || *t == EMPTY);
        // Entries in use are in front of empty ones, so the first empty one is also behind a copy
        // of the tag, if there is one.
        let place = there.map_or(end - 1, |way| set + way);
        let out = self.tags[place];
        self.tags[set..=place].rotate_right(1);
        self.frames[set..=place].rotate_right(1);
        self.tags[set] = tag;
        self.frames[set] = frame;
        (out != EMPTY && out != tag).then(|| Tag::from_table(out))
    }

    /// The page is not pinned any more, or its translation has changed. Whether it was here.
    pub fn invalidate(&mut self, process: Process, page: Page) -> bool {
        let tag = Tag::new(process, page).number();
        let set = self.set(process, page);
        if self.shape.ways == 1 {
            let was = self.tags[set] == tag;
            if was {
                self.tags[set] = EMPTY;
            }
            return was;
        }
        let end = set + self.shape.ways;
        let Some(way) = self.tags[set..end].iter().position(|t| *t == tag) else { return false };
        self.tags[set + way] = EMPTY;
        // Empty ones go behind those in use.
        self.tags[set + way..end].rotate_left(1);
        self.frames[set + way..end].rotate_left(1);
        true
    }

    /// The process is gone: none of its translations stays. How many there were.
    pub fn invalidate_process(&mut self, process: Process) -> usize {
        let theirs: Vec<Tag> = self.tags().filter(|tag| tag.process() == process).collect();
        theirs.iter().for_each(|tag| _ = self.invalidate(process, tag.page()));
        theirs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The textbook's cache: a list of sets, each a list of tags with the time of their last use.
    struct Textbook {
        sets: Vec<Vec<(u64, Process, Page)>>,
        ways: usize,
        offset: bool,
        now: u64,
    }

    impl Textbook {
        fn set(&self, process: Process, page: Page) -> usize {
            let sets = self.sets.len() as u128;
            let golden = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(u64::from(process.0)) >> 32;
            let offset = if self.offset { u128::from(golden) * sets / (1 << 32) } else { 0 };
            ((u128::from(page.number()) + offset) % sets) as usize
        }

        fn find(&mut self, process: Process, page: Page) -> bool {
            self.now += 1;
            let (now, set) = (self.now, self.set(process, page));
            let entry = self.sets[set].iter_mut().find(|e| (e.1, e.2) == (process, page));
            entry.map(|e| e.0 = now).is_some()
        }

        fn fill(&mut self, process: Process, page: Page) -> Option<(Process, Page)> {
            if self.find(process, page) {
                return None;
            }
            let set = self.set(process, page);
            let mut out = None;
            if self.sets[set].len() == self.ways {
                let oldest = self.sets[set].iter().min_by_key(|e| e.0).copied().expect("a full set");
                self.sets[set].retain(|e| *e != oldest);
                out = Some((oldest.1, oldest.2));
            }
            self.sets[set].push((self.now, process, page));
            out
        }

        fn invalidate(&mut self, process: Process, page: Page) -> bool {
            let set = self.set(process, page);
            let before = self.sets[set].len();
            self.sets[set].retain(|e| (e.1, e.2) != (process, page));
            self.sets[set].len() < before
        }
    }

    proptest! {
        #[test]
        fn the_cache_is_the_textbooks_for_every_associativity(
            ways_log in 0..5u32, sets_log in 0..5u32, offset in any::<bool>(),
            ops in proptest::collection::vec((0..8u8, 0..5u16, 0..80u64), 0..600),
        ) {
            let (ways, sets) = (1 << ways_log, 1usize << sets_log);
            let mut cache = SharedCache::new(CacheShape::new(ways * sets, ways, offset).expect("powers of two"));
            let mut model = Textbook { sets: vec![Vec::new(); sets], ways, offset, now: 0 };
            for (op, process, number) in ops {
                let (process, page) = (Process(process), Page::new(number).expect("small"));
                match op {
                    0 => prop_assert_eq!(cache.invalidate(process, page), model.invalidate(process, page)),
                    1 => {
                        let out = cache.fill(process, page, Frame(number)).map(|tag| (tag.process(), tag.page()));
                        prop_assert_eq!(out, model.fill(process, page));
                    }
                    _ => {
                        let found = cache.find(process, page);
                        prop_assert_eq!(found.is_some(), model.find(process, page));
                        prop_assert!(found.is_none_or(|frame| frame == Frame(number)));
                        let row = cache.row_behind(process, page, Frame(number), 20);
                        let there = |n: u64| cache.contains(process, Page::new(n).expect("small"));
                        prop_assert!((1..=row).all(|behind| there(number + behind)));
                        let end = (cache.set(process, page) as u64 + row + 1) == sets as u64;
                        prop_assert!(ways > 1 || row == 20 || end || !there(number + row + 1));
                        if found.is_none() {
                            let out = cache.fill(process, page, Frame(number)).map(|tag| (tag.process(), tag.page()));
                            prop_assert_eq!(out, model.fill(process, page));
                        }
                    }
                }
                prop_assert_eq!(cache.len(), model.sets.iter().map(Vec::len).sum::<usize>());
            }
            let theirs = model.sets.iter().flatten().filter(|e| e.1 == Process(2)).count();
            prop_assert_eq!(cache.invalidate_process(Process(2)), theirs);
        }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert_eq!(CacheShape::new(1000, 1, true), Err(ShapeError::Entries(1000)));
        assert_eq!(CacheShape::new(0, 1, true), Err(ShapeError::Entries(0)));
        assert_eq!(CacheShape::new(2, 4, true), Err(ShapeError::Ways { ways: 4, entries: 2 }));
        assert_eq!(CacheShape::new(1024, 3, true), Err(ShapeError::Ways { ways: 3, entries: 1024 }));
    }

    #[test]
    fn offsets_keep_equal_pages_of_five_processes_apart() {
        let cache = SharedCache::new(CacheShape::new(1024, 1, true).expect("powers of two"));
        let mut sets: Vec<usize> = (0..5).map(|p| cache.set(Process(p), Page::new(9).expect("small"))).collect();
        sets.sort_unstable();
        assert!(sets.windows(2).all(|pair| pair[1] - pair[0] > 100), "{sets:?}");
    }
}
