//! The hierarchical table of a process: directory in the engine, second-level tables in host
//! memory, indexed by virtual page. [UTLB §3.3, §4.2]
//!
//! Invariant: every entry that the driver did not install is the garbage page, so the engine never
//! checks what a process says: at worst a lying process moves garbage. A second-level table that is
//! swapped out is known to the directory by its disk block; the engine then asks the host to bring
//! it in.

use crate::directory::Directory;
use crate::ids::{Frame, Page, Pages};
use crate::limits::{LEAF_PAGES, LEAF_SHIFT};
use crate::page_table::parts;

/// Where a swapped-out second-level table lies. Opaque here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskBlock(pub u64);

/// What a page translates to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// It was installed.
    Frame(Frame),
    /// It was not: the garbage page.
    Garbage(Frame),
    /// The host must bring the second-level table in first.
    SwappedOut(DiskBlock),
}

/// A second-level table on its way to disk or back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondLevel {
    frames: Box<[Frame]>,
}

/// No translation. No frame has all bits set, which [`HierarchicalTable::install`] sees to, so an
/// entry is one word.
const NOTHING: Frame = Frame(u64::MAX);

fn there(frame: Frame) -> Option<Frame> {
    (frame != NOTHING).then_some(frame)
}

impl SecondLevel {
    /// Bytes on disk: a word for each page.
    pub const BYTES: usize = 8 * LEAF_PAGES;
    /// As it is written.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.frames.iter().flat_map(|frame| frame.0.to_le_bytes()).collect()
    }

    /// From what was written.
    pub fn from_bytes(bytes: &[u8; SecondLevel::BYTES]) -> SecondLevel {
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        SecondLevel { frames: words.map(Frame).collect() }
    }
}

/// Why a table was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The second-level table is on disk.
    #[error("the second-level table of page {page:#x} is swapped out to block {block:?}; bring it in first")]
    SwappedOut {
        /// The page.
        page: u64,
        /// Where the table is.
        block: DiskBlock,
    },
    /// The second-level table is not on disk.
    #[error("the second-level table of page {page:#x} is not swapped out")]
    NotSwappedOut {
        /// The page.
        page: u64,
    },
    /// There is no second-level table.
    #[error("page {page:#x} has no second-level table: nothing near it is pinned")]
    Absent {
        /// The page.
        page: u64,
    },
}

#[derive(Clone, Debug)]
enum Entry {
    InMemory { frames: Box<[Frame]>, used: usize },
    OnDisk { block: DiskBlock, used: usize },
}

impl Default for Entry {
    fn default() -> Entry {
        Entry::InMemory { frames: vec![NOTHING; LEAF_PAGES].into_boxed_slice(), used: 0 }
    }
}

/// The table of one process.
#[derive(Clone, Debug)]
pub struct HierarchicalTable {
    directory: Directory<Entry>,
    garbage: Frame,
}

#[inline]
fn split(page: Page) -> (u64, usize) {
    (page.number() >> LEAF_SHIFT, page.number() as usize & (LEAF_PAGES - 1))
}

impl HierarchicalTable {
    /// Every page is garbage.
    pub fn new(garbage: Frame) -> HierarchicalTable {
        HierarchicalTable { directory: Directory::new(), garbage }
    }

    /// Second-level tables, in memory and on disk.
    pub fn second_levels(&self) -> usize {
        self.directory.len()
    }

    /// The driver pinned a page.
    ///
    /// # Errors
    ///
    /// [`TableError::SwappedOut`].
    ///
    /// # Panics
    ///
    /// If the frame has all bits set: that means that there is none.
    pub fn install(&mut self, page: Page, frame: Frame) -> Result<(), TableError> {
        assert_ne!(frame, NOTHING, "all bits set is no frame");
        let (number, at) = split(page);
        match self.directory.leaf_or_new(number) {
            Entry::InMemory { frames, used } => {
                *used += usize::from(std::mem::replace(&mut frames[at], frame) == NOTHING);
                Ok(())
            }
            Entry::OnDisk { block, .. } => Err(TableError::SwappedOut { page: page.number(), block: *block }),
        }
    }

    /// The driver unpinned a page; what it translated to.
    ///
    /// # Errors
    ///
    /// [`TableError::SwappedOut`].
    pub fn remove(&mut self, page: Page) -> Result<Option<Frame>, TableError> {
        let (number, at) = split(page);
        match self.directory.leaf_mut(number) {
            None => Ok(None),
            Some(Entry::OnDisk { block, .. }) => Err(TableError::SwappedOut { page: page.number(), block: *block }),
            Some(Entry::InMemory { frames, used }) => {
                let frame = there(std::mem::replace(&mut frames[at], NOTHING));
                *used -= usize::from(frame.is_some());
                if *used == 0 {
                    self.directory.remove(number);
                }
                Ok(frame)
            }
        }
    }

    /// What the engine reads at a cache miss.
    pub fn translate(&self, page: Page) -> Translation {
        let (number, at) = split(page);
        match self.directory.leaf(number) {
            None => Translation::Garbage(self.garbage),
            Some(Entry::OnDisk { block, .. }) => Translation::SwappedOut(*block),
            Some(Entry::InMemory { frames, .. }) => {
                there(frames[at]).map_or(Translation::Garbage(self.garbage), Translation::Frame)
            }
        }
    }

    /// The first of `pages` that has no translation in memory.
    #[inline]
    pub fn first_absent(&self, pages: Pages) -> Option<Page> {
        let (first, end) = (pages.first().number(), pages.first().number() + pages.count());
        parts(first, end).find_map(|(number, from, to)| {
            let absent = match self.directory.leaf(number) {
                Some(Entry::InMemory { frames, .. }) => {
                    from + frames[from..to].iter().position(|frame| *frame == NOTHING)?
                }
                _ => from,
            };
            Some(Page::from_table((number << LEAF_SHIFT) + absent as u64))
        })
    }

    /// The valid ones of up to `count` entries from `page` on, in one read; a read ends at the end
    /// of the second-level table. [UTLB §3.2, Table 2]
    pub fn fetch(&self, page: Page, count: u32, mut entry: impl FnMut(Page, Frame)) {
        let (number, at) = split(page);
        let Some(Entry::InMemory { frames, .. }) = self.directory.leaf(number) else { return };
        let end = (at + count as usize).min(LEAF_PAGES);
        for (place, frame) in (at..end).zip(&frames[at..end]) {
            if *frame != NOTHING {
                entry(Page::from_table((number << LEAF_SHIFT) + place as u64), *frame);
            }
        }
    }

    /// Pages with a translation in memory, in no order.
    pub fn pages(&self) -> impl Iterator<Item = Page> {
        self.directory.leaves().flat_map(|(number, entry)| {
            let frames: &[Frame] = match entry {
                Entry::InMemory { frames, .. } => frames,
                Entry::OnDisk { .. } => &[],
            };
            let used = frames.iter().enumerate().filter(|(_, frame)| **frame != NOTHING);
            used.map(move |(at, _)| Page::from_table((number << LEAF_SHIFT) + at as u64))
        })
    }

    /// Pages that share a second-level table with `page`, which is the number of the table times
    /// their count on.
    #[inline]
    pub fn second_level(page: Page) -> u64 {
        split(page).0
    }

    /// The first page of a second-level table.
    pub fn first_page(second_level: u64) -> Page {
        Page::from_table(second_level << LEAF_SHIFT)
    }

    /// All second-level tables, and where those lie that are on disk.
    pub fn tables(&self) -> impl Iterator<Item = (u64, Option<DiskBlock>)> {
        self.directory.leaves().map(|(number, entry)| match entry {
            Entry::InMemory { .. } => (number, None),
            Entry::OnDisk { block, .. } => (number, Some(*block)),
        })
    }

    /// Whether `page` has a second-level table, and where on disk it is, if it is there.
    #[inline]
    pub fn table_of(&self, page: Page) -> Option<Option<DiskBlock>> {
        match self.directory.leaf(split(page).0)? {
            Entry::InMemory { .. } => Some(None),
            Entry::OnDisk { block, .. } => Some(Some(*block)),
        }
    }

    /// The second-level table of `page` cannot be read back: its pages are garbage from now on. How
    /// many there were.
    pub fn lose(&mut self, page: Page) -> usize {
        let number = split(page).0;
        let Some(Entry::OnDisk { used, .. }) = self.directory.leaf_mut(number) else { return 0 };
        let lost = *used;
        // A leaf is given back empty.
        *self.directory.leaf_or_new(number) = Entry::default();
        self.directory.remove(number);
        lost
    }

    /// Takes the second-level table of `page` out of memory; the caller stores it at `block` and
    /// keeps what is in it pinned or not as it likes.
    ///
    /// # Errors
    ///
    /// [`TableError::Absent`], [`TableError::SwappedOut`].
    pub fn swap_out(&mut self, page: Page, block: DiskBlock) -> Result<SecondLevel, TableError> {
        let entry = self.directory.leaf_mut(split(page).0).ok_or(TableError::Absent { page: page.number() })?;
        match entry {
            Entry::OnDisk { block, .. } => Err(TableError::SwappedOut { page: page.number(), block: *block }),
            Entry::InMemory { frames, used } => {
                let (frames, used) = (std::mem::take(frames), *used);
                *entry = Entry::OnDisk { block, used };
                Ok(SecondLevel { frames })
            }
        }
    }

    /// Puts a second-level table back.
    ///
    /// # Errors
    ///
    /// [`TableError::Absent`], [`TableError::NotSwappedOut`].
    pub fn swap_in(&mut self, page: Page, table: SecondLevel) -> Result<(), TableError> {
        let entry = self.directory.leaf_mut(split(page).0).ok_or(TableError::Absent { page: page.number() })?;
        let Entry::OnDisk { used, .. } = entry else {
            return Err(TableError::NotSwappedOut { page: page.number() });
        };
        assert_eq!(
            table.frames.iter().filter(|frame| **frame != NOTHING).count(),
            *used,
            "another table came back from disk than went there"
        );
        *entry = Entry::InMemory { frames: table.frames, used: *used };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const GARBAGE: Frame = Frame(u64::MAX);

    fn page(number: u64) -> Page {
        Page::new(number).expect("small")
    }

    proptest! {
        #[test]
        fn what_was_not_installed_is_garbage(
            ops in proptest::collection::vec((any::<bool>(), 0..2000u64), 0..200), from in 0..2000u64, count in 1..40u32,
        ) {
            let (mut table, mut model) = (HierarchicalTable::new(GARBAGE), BTreeMap::new());
            for (add, number) in ops {
                if add {
                    table.install(page(number), Frame(number * 3)).expect("in memory");
                    model.insert(number, Frame(number * 3));
                } else {
                    prop_assert_eq!(table.remove(page(number)), Ok(model.remove(&number)));
                }
            }
            for number in 0..2000 {
                let expected = model.get(&number).map_or(Translation::Garbage(GARBAGE), |f| Translation::Frame(*f));
                prop_assert_eq!(table.translate(page(number)), expected);
            }
            let mut fetched = Vec::new();
            table.fetch(page(from), count, |p, f| fetched.push((p.number(), f)));
            let end = (from + u64::from(count)).min((from / LEAF_PAGES as u64 + 1) * LEAF_PAGES as u64);
            prop_assert_eq!(fetched, model.range(from..end).map(|(p, f)| (*p, *f)).collect::<Vec<_>>());
            let wanted = Pages::new(page(from), u64::from(count)).expect("small");
            let absent = wanted.iter().find(|page| !model.contains_key(&page.number()));
            prop_assert_eq!(table.first_absent(wanted), absent);
        }
    }

    #[test]
    fn a_swapped_out_table_is_known_by_its_block_until_it_returns() {
        let mut table = HierarchicalTable::new(GARBAGE);
        assert_eq!(table.swap_out(page(3), DiskBlock(9)), Err(TableError::Absent { page: 3 }));
        table.install(page(3), Frame(1)).expect("in memory");
        let out = table.swap_out(page(4), DiskBlock(9)).expect("the same table");
        assert_eq!(table.translate(page(3)), Translation::SwappedOut(DiskBlock(9)));
        assert_eq!(table.install(page(5), Frame(2)), Err(TableError::SwappedOut { page: 5, block: DiskBlock(9) }));
        table.fetch(page(3), 8, |p, _| panic!("{p:?} read from a table that is not there"));
        let stored: [u8; SecondLevel::BYTES] = out.to_bytes().try_into().expect("its size");
        assert_eq!(SecondLevel::from_bytes(&stored), out);
        assert_eq!(table.tables().collect::<Vec<_>>(), [(0, Some(DiskBlock(9)))]);
        table.swap_in(page(3), out.clone()).expect("it was out");
        assert_eq!(table.translate(page(3)), Translation::Frame(Frame(1)));
        assert_eq!(table.swap_in(page(3), out), Err(TableError::NotSwappedOut { page: 3 }));
        table.swap_out(page(3), DiskBlock(1)).expect("it is in memory");
        assert_eq!((table.lose(page(3)), table.table_of(page(3)), table.lose(page(3))), (1, None, 0));
        table.install(page(4), Frame(8)).expect("a new table");
        assert_eq!(table.pages().collect::<Vec<_>>(), [page(4)]);
    }
}
