//! The numbers of this crate, as types that cannot be mixed up.
//!
//! Invariant: a [`Page`] is below 2^48 - 1, so that a page and its process fit into one [`Tag`] and
//! no tag has all bits set.

use crate::limits::{PAGE_BITS, PAGE_SHIFT};

/// A virtual page number: the address shifted right by 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(u64);

impl Page {
    /// The largest page. One below the largest number of 48 bits, so that all bits set can mean "no
    /// entry" in a cache.
    pub const MAX: Page = Page((1 << PAGE_BITS) - 2);

    /// The page of that number; `None` above [`Page::MAX`].
    #[inline]
    pub fn new(number: u64) -> Option<Page> {
        (number <= Page::MAX.0).then_some(Page(number))
    }

    /// The page that holds the byte at `address`; `None` for addresses of 2^60 and above.
    #[inline]
    pub fn of_address(address: u64) -> Option<Page> {
        Page::new(address >> PAGE_SHIFT)
    }

    /// Its number.
    #[inline]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The page `count` further, if there is one.
    #[inline]
    pub fn checked_add(self, count: u64) -> Option<Page> {
        self.0.checked_add(count).and_then(Page::new)
    }

    /// For numbers that came out of a table that only holds pages.
    #[inline]
    pub(crate) fn from_table(number: u64) -> Page {
        debug_assert!(number <= Page::MAX.0);
        Page(number)
    }
}

/// Consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pages {
    first: Page,
    // first + count <= MAX + 1.
    count: u64,
}

impl Pages {
    /// `count` pages from `first`; `None` if they leave the address space.
    #[inline]
    pub fn new(first: Page, count: u64) -> Option<Pages> {
        (count <= Page::MAX.0 + 1 - first.0).then_some(Pages { first, count })
    }

    /// The pages that the bytes `[address, address + len_bytes)` touch; a transfer of no bytes
    /// touches one. `None` if they leave the address space.
    #[inline]
    pub fn of_bytes(address: u64, len_bytes: u64) -> Option<Pages> {
        let last = Page::of_address(address.checked_add(len_bytes.max(1) - 1)?)?;
        let first = Page::of_address(address)?;
        Some(Pages { first, count: last.0 - first.0 + 1 })
    }

    /// One page.
    #[inline]
    pub fn one(page: Page) -> Pages {
        Pages { first: page, count: 1 }
    }

    /// The first.
    #[inline]
    pub fn first(self) -> Page {
        self.first
    }

    /// How many.
    #[inline]
    pub fn count(self) -> u64 {
        self.count
    }

    /// Whether `page` is one of them.
    #[inline]
    pub fn contains(self, page: Page) -> bool {
        page.0.wrapping_sub(self.first.0) < self.count
    }

    /// All of them, ascending.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Page> {
        (self.first.0..self.first.0 + self.count).map(Page)
    }
}

/// A process of the node. Its number is part of every tag in the shared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process(pub u16);

/// What a page translates to: a physical frame in the paper, an offset in a mapped region in the
/// running system. Opaque here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u64);

/// Where a process asked its translation to be stored in its table. A claim: any number is safe.
/// [UTLB §3]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Index(pub u32);

/// A place for one pinned page in a process's own bookkeeping; small and dense, so that policies
/// are arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

impl Slot {
    #[inline]
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}

/// Process and page (or index) of a cache entry in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u64);

impl Tag {
    /// Of a page of a process.
    #[inline]
    pub fn new(process: Process, page: Page) -> Tag {
        Tag(u64::from(process.0) << PAGE_BITS | page.0)
    }

    /// Whose.
    #[inline]
    pub fn process(self) -> Process {
        Process((self.0 >> PAGE_BITS) as u16)
    }

    /// Which page.
    #[inline]
    pub fn page(self) -> Page {
        Page(self.0 & ((1 << PAGE_BITS) - 1))
    }

    /// Both as one number.
    #[inline]
    pub fn number(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn from_table(number: u64) -> Tag {
        Tag(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_split_at_page_boundaries() {
        let count = |address, len| Pages::of_bytes(address, len).map(Pages::count);
        assert_eq!(count(0, 0), Some(1));
        assert_eq!(count(0, 4096), Some(1));
        assert_eq!(count(1, 4096), Some(2));
        assert_eq!(count(4095, 2), Some(2));
        assert_eq!(count(u64::MAX, 1), None);
        assert_eq!(count(1 << 60, 1), None);
        let end = (Page::MAX.number() + 1) << 12;
        assert_eq!(count(end - 1, 1), Some(1));
        assert_eq!(count(end - 1, 2), None);
    }

    #[test]
    fn a_tag_keeps_process_and_page_apart() {
        let tag = Tag::new(Process(0xabcd), Page::MAX);
        assert_eq!((tag.process(), tag.page()), (Process(0xabcd), Page::MAX));
    }
}
