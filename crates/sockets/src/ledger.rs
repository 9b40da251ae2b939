//! How many processes hold a connection that is not upgraded.
//!
//! A plain socket that parent and child of a fork both hold cannot be offered: neither knows what
//! the other sends. A count in memory that both share shows when one of them has closed it, as a
//! server does that forks for each connection.
//!
//! Invariant: the count is never below the number of processes of ours that may use the socket; a
//! killed one never leaves it, and then the socket stays with the kernel.

use crate::limits::LEDGER_ENTRIES;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vmmc_host::Region;
use vmmc_stream::{Section, SectionLock};

/// Gives out entries; inherited by fork, so parent and child never give out the same one: the index
/// is shared, too.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    page: SectionLock<Option<Region>>,
}

/// The count of one connection.
#[derive(Debug)]
pub(crate) struct Entry {
    page: Region,
    index: u64,
}

impl Ledger {
    /// A new entry of count 1; none when memory is short.
    pub(crate) fn entry(&self) -> Option<Entry> {
        let mut page = self.page.lock()?;
        for _ in 0..2 {
            if let Some(region) = page.as_ref() {
                let next: &AtomicU64 = region.word(0).ok()?;
                let index = next.fetch_add(1, Ordering::SeqCst) + 1;
                if index < LEDGER_ENTRIES as u64 {
                    let entry = Entry { page: region.clone(), index };
                    entry.count()?.store(1, Ordering::SeqCst);
                    return Some(entry);
                }
            }
            let new = Region::create(LEDGER_ENTRIES as u64 * 8).ok()?;
            // Forks inherit the mapping; the program gets its number, and cannot close it.
            new.let_descriptor_go();
            *page = Some(new);
        }
        None
    }
}

impl Ledger {
    /// Keeps others out for the length of a fork, so that the child finds it free.
    pub(crate) fn hold(&self) -> Option<Section<'_, Option<Region>>> {
        self.page.lock()
    }
}

impl Entry {
    fn count(&self) -> Option<&AtomicU32> {
        self.page.word32(self.index * 8).ok()
    }

    /// One process more.
    pub(crate) fn add(&self) {
        if let Some(count) = self.count() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One process less.
    pub(crate) fn remove(&self) {
        if let Some(count) = self.count() {
            count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether only one process is left.
    pub(crate) fn alone(&self) -> bool {
        self.count().is_some_and(|c| c.load(Ordering::SeqCst) == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_counts_processes() {
        let ledger = Ledger::default();
        let entries: Vec<_> = (0..LEDGER_ENTRIES + 5).map(|_| ledger.entry().unwrap()).collect();
        entries[3].add();
        assert!(!entries[3].alone() && entries[4].alone() && entries[LEDGER_ENTRIES + 4].alone());
        entries[3].remove();
        assert!(entries[3].alone());
    }
}
