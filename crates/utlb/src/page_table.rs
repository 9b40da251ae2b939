//! The user's lookup structures: the bit array of pinned pages, and the two-level table from pages
//! to indices. [UTLB §3, §3.1, §3.3]
//!
//! Invariant: the bit of a page is set exactly while its index is valid; a leaf without bits is
//! given back. [`PageTable`] is both structures in one, because a policy wants the index of a page
//! that the bit says is pinned; [`PageSet`] is the bits alone, which is all that the hierarchical
//! form needs.

use crate::directory::Directory;
use crate::ids::{Page, Pages};
use crate::limits::{LEAF_PAGES, LEAF_SHIFT};

const WORDS: usize = LEAF_PAGES / 64;

#[inline]
fn split(number: u64) -> (u64, usize) {
    (number >> LEAF_SHIFT, number as usize & (LEAF_PAGES - 1))
}

/// The leaves that the pages `[first, end)` lie in, with their places there.
#[inline]
pub(crate) fn parts(first: u64, end: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut at = first;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (leaf, from) = split(at);
        let to = (from as u64 + (end - at)).min(LEAF_PAGES as u64) as usize;
        at += (to - from) as u64;
        Some((leaf, from, to))
    })
}

/// The bits of one leaf: one line of a processor's cache.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Bits {
    words: [u64; WORDS],
}

impl Bits {
    #[inline]
    fn has(&self, at: usize) -> bool {
        self.words[at / 64] >> (at % 64) & 1 == 1
    }

    /// Whether it was not set before.
    fn set(&mut self, at: usize) -> bool {
        let fresh = !self.has(at);
        self.words[at / 64] |= 1 << (at % 64);
        fresh
    }

    /// Whether it was set before.
    fn clear(&mut self, at: usize) -> bool {
        let was = self.has(at);
        self.words[at / 64] &= !(1 << (at % 64));
        was
    }

    fn is_empty(&self) -> bool {
        self.words.iter().fold(0, |all, word| all | word) == 0
    }

    /// Whether all of `[from, to)` is set; checks 64 pages at a time.
    #[inline]
    fn all(&self, from: usize, to: usize) -> bool {
        (from / 64..to.div_ceil(64)).all(|word| {
            let low = from.saturating_sub(word * 64);
            let high = (to - word * 64).min(64);
            let mask = (!0u64 << low) & (!0u64 >> (64 - high));
            self.words[word] & mask == mask
        })
    }
}

/// A set of pages as a two-level bit array.
///
/// ```
/// use vmmc_utlb::{Page, PageSet, Pages};
/// let mut pinned = PageSet::new();
/// let buffer = Pages::of_bytes(0x7000_0000, 3 * 4096).unwrap();
/// buffer.iter().for_each(|page| assert!(pinned.insert(page)));
/// assert!(pinned.contains_all(buffer));
/// pinned.remove(buffer.first());
/// assert!(!pinned.contains_all(buffer));
/// ```
#[derive(Clone, Debug)]
pub struct PageSet {
    directory: Directory<Bits>,
    len: u64,
}

impl Default for PageSet {
    fn default() -> PageSet {
        PageSet::new()
    }
}

impl PageSet {
    /// An empty set.
    pub fn new() -> PageSet {
        PageSet { directory: Directory::new(), len: 0 }
    }

    /// Pages in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `page` is in it.
    #[inline]
    pub fn contains(&self, page: Page) -> bool {
        let (leaf, at) = split(page.number());
        self.directory.leaf(leaf).is_some_and(|bits| bits.has(at))
    }

    /// Whether all of `pages` are in it: one check for 64 pages.
    #[inline]
    pub fn contains_all(&self, pages: Pages) -> bool {
        let (first, end) = (pages.first().number(), pages.first().number() + pages.count());
        parts(first, end).all(|(leaf, from, to)| self.directory.leaf(leaf).is_some_and(|bits| bits.all(from, to)))
    }

    /// Adds a page; whether it was new.
    #[inline]
    pub fn insert(&mut self, page: Page) -> bool {
        self.insert_number(page.number())
    }

    /// The same for a tag: process and page in one number.
    #[inline]
    pub(crate) fn insert_number(&mut self, number: u64) -> bool {
        let (leaf, at) = split(number);
        let fresh = self.directory.leaf_or_new(leaf).set(at);
        self.len += u64::from(fresh);
        fresh
    }

    /// Takes a page out; whether it was in.
    pub fn remove(&mut self, page: Page) -> bool {
        let (leaf, at) = split(page.number());
        let Some(bits) = self.directory.leaf_mut(leaf) else { return false };
        let was = bits.clear(at);
        if bits.is_empty() {
            self.directory.remove(leaf);
        }
        self.len -= u64::from(was);
        was
    }
}

#[derive(Clone, Debug)]
struct Leaf {
    bits: Bits,
    // Valid where the bit is set; whatever was there before elsewhere.
    values: [u32; LEAF_PAGES],
}

impl Default for Leaf {
    fn default() -> Leaf {
        Leaf { bits: Bits::default(), values: [0; LEAF_PAGES] }
    }
}

/// The user's two-level table: from a page to the index that was chosen for it, or nothing.
#[derive(Clone, Debug)]
pub struct PageTable {
    directory: Directory<Leaf>,
    len: usize,
}

impl Default for PageTable {
    fn default() -> PageTable {
        PageTable::new()
    }
}

impl PageTable {
    /// An empty table.
    pub fn new() -> PageTable {
        PageTable { directory: Directory::new(), len: 0 }
    }

    /// Pages with a value.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Second-level tables in use.
    pub fn leaves(&self) -> usize {
        self.directory.len()
    }

    /// The value of a page. Two memory references.
    #[inline]
    pub fn find(&mut self, page: Page) -> Option<u32> {
        self.find_number(page.number())
    }

    /// The same for a tag: process and page in one number.
    #[inline]
    pub(crate) fn find_number(&mut self, number: u64) -> Option<u32> {
        let (leaf, at) = split(number);
        let leaf = self.directory.leaf_mut(leaf)?;
        leaf.bits.has(at).then(|| leaf.values[at])
    }

    /// The value of a page, from a table that is only read.
    #[inline]
    pub fn peek(&self, page: Page) -> Option<u32> {
        let (leaf, at) = split(page.number());
        let leaf = self.directory.leaf(leaf)?;
        leaf.bits.has(at).then(|| leaf.values[at])
    }

    /// The values of all of `pages`, in order and in as few pieces as they have tables; false, and
    /// nothing is called, if one has none. One check for 64 pages, one search for 512.
    #[inline]
    pub fn find_all(&mut self, pages: Pages, mut each: impl FnMut(&[u32])) -> bool {
        let (first, end) = (pages.first().number(), pages.first().number() + pages.count());
        if pages.count() > 1 && first >> LEAF_SHIFT != (end - 1) >> LEAF_SHIFT && !self.has_all(pages) {
            return false;
        }
        parts(first, end).all(|(leaf, from, to)| {
            let Some(leaf) = self.directory.leaf_mut(leaf) else { return false };
            let there = leaf.bits.all(from, to);
            if there {
                each(&leaf.values[from..to]);
            }
            there
        })
    }

    /// Whether all of `pages` have a value.
    fn has_all(&self, pages: Pages) -> bool {
        let (first, end) = (pages.first().number(), pages.first().number() + pages.count());
        parts(first, end).all(|(leaf, from, to)| self.directory.leaf(leaf).is_some_and(|leaf| leaf.bits.all(from, to)))
    }

    /// Sets the value of a page.
    pub fn insert(&mut self, page: Page, value: u32) {
        self.insert_number(page.number(), value);
    }

    /// The same for a tag.
    pub(crate) fn insert_number(&mut self, number: u64, value: u32) {
        let (leaf, at) = split(number);
        let leaf = self.directory.leaf_or_new(leaf);
        leaf.values[at] = value;
        self.len += usize::from(leaf.bits.set(at));
    }

    /// Takes a page out; the value that it had.
    pub fn remove(&mut self, page: Page) -> Option<u32> {
        self.remove_number(page.number())
    }

    /// The same for a tag.
    pub(crate) fn remove_number(&mut self, number: u64) -> Option<u32> {
        let (number, at) = split(number);
        let leaf = self.directory.leaf_mut(number)?;
        let value = leaf.values[at];
        if !leaf.bits.clear(at) {
            return None;
        }
        if leaf.bits.is_empty() {
            self.directory.remove(number);
        }
        self.len -= 1;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn page(number: u64) -> Page {
        Page::new(number).expect("small")
    }

    proptest! {
        #[test]
        fn tables_behave_as_maps(ops in proptest::collection::vec((any::<bool>(), 0..1200u64, 0..9u64), 0..300)) {
            let (mut table, mut set, mut model) = (PageTable::new(), PageSet::new(), BTreeMap::new());
            for (step, (add, number, _)) in ops.iter().enumerate() {
                let step = u32::try_from(step).expect("few");
                if *add {
                    table.insert(page(*number), step);
                    prop_assert_eq!(set.insert(page(*number)), model.insert(*number, step).is_none());
                } else {
                    prop_assert_eq!(table.remove(page(*number)), model.get(number).copied());
                    prop_assert_eq!(set.remove(page(*number)), model.remove(number).is_some());
                }
            }
            let keys: BTreeSet<u64> = model.keys().copied().collect();
            prop_assert_eq!((table.len(), set.len()), (model.len(), model.len() as u64));
            for (_, number, count) in ops {
                prop_assert_eq!(table.find(page(number)), model.get(&number).copied());
                let range = Pages::new(page(number), count).expect("small");
                let all = (number..number + count).all(|n| keys.contains(&n));
                prop_assert_eq!(set.contains_all(range), all);
                let mut values = Vec::new();
                prop_assert_eq!(table.find_all(range, |some| values.extend_from_slice(some)), all);
                let expected = if all { (number..number + count).map(|n| model[&n]).collect() } else { Vec::new() };
                prop_assert_eq!(values, expected);
            }
        }
    }

    #[test]
    fn the_whole_of_a_long_buffer_is_checked_word_by_word() {
        let mut set = PageSet::new();
        let buffer = Pages::new(page(500), 2000).expect("small");
        buffer.iter().for_each(|p| assert!(set.insert(p)));
        assert!(set.contains_all(buffer));
        for hole in [500, 511, 512, 1023, 1024, 2499] {
            set.remove(page(hole));
            assert!(!set.contains_all(buffer), "{hole}");
            set.insert(page(hole));
        }
    }

    #[test]
    fn memory_follows_what_is_in_the_table() {
        let mut table = PageTable::new();
        for number in 0..100_000 {
            table.insert(page(number << LEAF_SHIFT), 1);
            table.remove(page(number << LEAF_SHIFT));
        }
        assert_eq!((table.leaves(), table.directory.leaf(0).is_none()), (0, true));
    }
}
