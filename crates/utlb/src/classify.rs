//! Why a cache missed: compulsory, capacity or conflict. [UTLB §3.2, §6.4; Hill's three C]
//!
//! Invariant: the three add up to the misses. Compulsory: the tag was never looked up before.
//! Capacity: a fully associative LRU cache of as many entries, given the same lookups, fills and
//! invalidations, misses too. Conflict: the rest. A page that was unpinned and comes back is a
//! capacity miss: it is the host's memory that was too small.

use crate::ids::{Slot, Tag};
use crate::page_table::{PageSet, PageTable};
use crate::policy::{Held, Lru, Policy};

/// Why a lookup missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissKind {
    /// First use.
    Compulsory,
    /// Too few entries.
    Capacity,
    /// Too many pages in one set.
    Conflict,
}

/// The reference cache, and what was seen.
#[derive(Debug)]
pub struct Classifier {
    seen: PageSet,
    slots: PageTable,
    tags: Vec<Tag>,
    free: Vec<Slot>,
    lru: Lru,
    entries: usize,
}

impl Classifier {
    /// For a cache of `entries` entries.
    pub fn new(entries: usize) -> Classifier {
        let (seen, slots) = (PageSet::new(), PageTable::new());
        Classifier { seen, slots, tags: Vec::new(), free: Vec::new(), lru: Lru::new(), entries }
    }

    /// A lookup; `missed` says how it went in the cache under study.
    pub fn looked_up(&mut self, tag: Tag, missed: bool) -> Option<MissKind> {
        let first = self.seen.insert_number(tag.number());
        let here = self.enter(tag);
        match (missed, first, here) {
            (false, ..) => None,
            (true, true, _) => Some(MissKind::Compulsory),
            (true, false, true) => Some(MissKind::Conflict),
            (true, false, false) => Some(MissKind::Capacity),
        }
    }

    /// An entry was fetched ahead of need.
    pub fn fetched(&mut self, tag: Tag) {
        self.enter(tag);
    }

    /// An entry became invalid.
    pub fn invalidated(&mut self, tag: Tag) {
        if let Some(slot) = self.slots.remove_number(tag.number()).map(Slot) {
            self.lru.removed(slot, tag.page(), false);
            self.free.push(slot);
        }
    }

    /// Uses the tag in the reference cache; whether it was there.
    fn enter(&mut self, tag: Tag) -> bool {
        if let Some(slot) = self.slots.find_number(tag.number()) {
            self.lru.touched(Slot(slot));
            return true;
        }
        if self.slots.len() == self.entries {
            let victim = self.lru.victim(&Held::default()).expect("the reference cache is full");
            self.invalidated(self.tags[victim.at()]);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.tags.push(tag);
            Slot(u32::try_from(self.tags.len() - 1).expect("no more than ENTRIES_MAX"))
        });
        self.tags[slot.at()] = tag;
        self.slots.insert_number(tag.number(), slot.0);
        self.lru.inserted(slot, tag.page());
        false
    }
}
