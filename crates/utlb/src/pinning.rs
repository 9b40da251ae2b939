//! The user's side: which pages are pinned, what to pin and to give up at a miss, what may not be
//! given up. [UTLB §3, §3.4, §6.5]
//!
//! ```text
//!  lookup ──pinned──▶ transfer            no system call
//!     └────missing──▶ miss ──▶ PinRequest ──▶ the driver unpins, pins, installs ──▶ pinned
//! ```
//!
//! Invariants: a page has a slot exactly while it is pinned; `pages[slot]` is its page; no more
//! than `limit` pages are pinned after a `miss` and its `pinned` calls; a held page is never in
//! `PinRequest::unpin`. The slot is also the index that the process chooses for a page in its
//! table. [UTLB §3.1]

use crate::counters::PinCounters;
use crate::ids::{Page, Pages, Slot};
use crate::limits::PREPIN_MAX;
use crate::page_table::PageTable;
use crate::policy::{AnyPolicy, Held, Policy};

/// How many pages from the missing one are pinned at one check miss. [UTLB §6.5]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prepin {
    /// Always so many, 1 to 64; 1 pins what is needed only.
    Fixed(u32),
    /// From 1 up to so many: doubled at a miss right behind a pinned page, halved at any other.
    Adaptive(u32),
}

/// A page that is given up, and the slot (index) that its translation had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpin {
    /// The page.
    pub page: Page,
    /// Where its translation is in a user-indexed table.
    pub slot: Slot,
}

/// What the driver shall do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinRequest {
    /// Pages to give up first. They are no longer in the user's table.
    pub unpin: Vec<Unpin>,
    /// Pages to pin: those that the transfer needs, then those ahead of it.
    pub pin: Vec<Page>,
    /// How many of `pin` the transfer needs; the others may fail (an address that is not mapped).
    pub needed: usize,
}

/// Why a transfer cannot be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissError {
    /// It has more pages than may be pinned.
    #[error(
        "a transfer of {pages} pages needs more than the {limit} pages that may be pinned; split it or raise the limit"
    )]
    TooLong {
        /// Of the transfer.
        pages: u64,
        /// Of the process.
        limit: usize,
    },
    /// Every pinned page is in use.
    #[error(
        "{held} of {limit} pinned pages are in outstanding transfers and {pages} more are needed; wait for a completion"
    )]
    AllHeld {
        /// Pages in outstanding transfers.
        held: usize,
        /// Pages that may be pinned.
        limit: usize,
        /// Pages that are missing.
        pages: u64,
    },
}

/// Pinned pages of one process.
///
/// ```
/// use vmmc_utlb::{Pages, PinRequest, Pinning, PolicyKind, Prepin};
/// let mut pinning = Pinning::new(PolicyKind::Lru.build(), Prepin::Fixed(1), Some(2));
/// let mut request = PinRequest::default();
/// let buffer = |page: u64| Pages::of_bytes(page * 4096, 4096).unwrap();
/// for page in [7, 8, 7, 9] {
///     if !pinning.lookup(buffer(page)) {
///         pinning.miss(buffer(page), &mut request).unwrap();
///         // Here the driver does what is asked.
///         request.pin.iter().for_each(|page| _ = pinning.pinned(*page));
///     }
/// }
/// // 9 needed room: 8 was used least recently.
/// assert_eq!(request.unpin[0].page, buffer(8).first());
/// ```
#[derive(Debug)]
pub struct Pinning {
    table: PageTable,
    // By slot.
    pages: Vec<Page>,
    free: Vec<Slot>,
    policy: AnyPolicy,
    held: Held,
    limit: Option<usize>,
    prepin: Prepin,
    // Pages that the next miss of an adaptive process pins.
    window: u32,
    // The pages used last, by one `acquire`, and nothing was pinned or unpinned since.
    last: Option<Pages>,
    counters: PinCounters,
}

impl Pinning {
    /// Nothing pinned; at most `limit` pages at a time.
    pub fn new(mut policy: AnyPolicy, prepin: Prepin, limit: Option<usize>) -> Pinning {
        policy.limited(limit);
        Pinning {
            table: PageTable::new(),
            pages: Vec::new(),
            free: Vec::new(),
            policy,
            held: Held::default(),
            limit,
            prepin,
            window: 1,
            last: None,
            counters: PinCounters::default(),
        }
    }

    /// Whether all of `pages` are pinned; if so they count as used.
    #[inline]
    pub fn lookup(&mut self, pages: Pages) -> bool {
        self.last = None;
        self.counters.transfers += 1;
        self.counters.lookups += pages.count();
        if pages.count() == 1 {
            return self.touch(pages.first());
        }
        let mut all = true;
        for page in pages.iter() {
            all &= self.touch(page);
        }
        all
    }

    /// [`lookup`](Pinning::lookup) and [`hold`](Pinning::hold) in one, for a transfer whose pages
    /// are all pinned. If they are not, nothing is counted: `lookup` follows.
    #[inline]
    pub fn acquire(&mut self, pages: Pages) -> bool {
        let (policy, held) = (&mut self.policy, &mut self.held);
        let found = if self.last == Some(pages) && policy.repeats_change_nothing() {
            self.table.find_all(pages, |slots| held.hold_all(slots))
        } else {
            self.table.find_all(pages, |slots| {
                slots.iter().for_each(|slot| policy.touched(Slot(*slot)));
                held.hold_all(slots);
            })
        };
        if found {
            self.last = Some(pages);
            self.counters.transfers += 1;
            self.counters.lookups += pages.count();
        }
        found
    }

    #[inline]
    fn touch(&mut self, page: Page) -> bool {
        match self.table.find(page) {
            Some(slot) => {
                self.policy.touched(Slot(slot));
                true
            }
            None => false,
        }
    }

    /// The slot of a pinned page; does not count as a use.
    #[inline]
    pub fn slot(&mut self, page: Page) -> Option<Slot> {
        self.table.find(page).map(Slot)
    }

    /// Whether a page is pinned; does not count as a use.
    pub fn is_pinned(&self, page: Page) -> bool {
        self.table.peek(page).is_some()
    }

    /// Pages pinned now.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// What has happened so far.
    pub fn counters(&self) -> &PinCounters {
        &self.counters
    }

    /// After a lookup that found pages missing: what the driver shall do. Calls [`Pinning::pinned`]
    /// must follow for what it pinned.
    ///
    /// # Errors
    ///
    /// [`MissError`]; then nothing is asked of the driver and nothing has changed but the counters.
    pub fn miss(&mut self, pages: Pages, request: &mut PinRequest) -> Result<(), MissError> {
        request.unpin.clear();
        request.pin.clear();
        request.pin.extend(pages.iter().filter(|page| self.table.peek(*page).is_none()));
        request.needed = request.pin.len();
        let first = request.pin.first().copied();
        self.counters.check_misses += request.needed as u64;
        self.counters.miss_transfers += 1;
        self.room_for(pages, request.needed)?;
        if let Some(first) = first {
            self.ahead(first, pages, &mut request.pin);
        }
        self.make_room(pages, request);
        self.counters.pin_call(request.pin.len() as u64);
        Ok(())
    }

    /// Whether [`miss`](Pinning::miss) would find room now; asked before the lookup, a transfer
    /// that must wait is counted once.
    ///
    /// # Errors
    ///
    /// [`MissError`].
    pub fn room(&self, pages: Pages) -> Result<(), MissError> {
        self.room_for(pages, pages.iter().filter(|page| self.table.peek(*page).is_none()).count())
    }

    fn room_for(&self, pages: Pages, needed: usize) -> Result<(), MissError> {
        let Some(limit) = self.limit else { return Ok(()) };
        if pages.count() > limit as u64 {
            return Err(MissError::TooLong { pages: pages.count(), limit });
        }
        if self.held.is_empty() {
            return Ok(());
        }
        let of_transfer = pages.iter().filter(|p| self.table.peek(*p).is_some_and(|s| !self.held.contains(Slot(s))));
        if self.held.len() + of_transfer.count() + needed > limit {
            return Err(MissError::AllHeld { held: self.held.len(), limit, pages: needed as u64 });
        }
        Ok(())
    }

    /// Adds the pages ahead of the missing one that are not pinned.
    fn ahead(&mut self, first: Page, pages: Pages, pin: &mut Vec<Page>) {
        let window = match self.prepin {
            Prepin::Fixed(count) => count.clamp(1, PREPIN_MAX),
            Prepin::Adaptive(most) => {
                let behind = first.number().checked_sub(1).and_then(Page::new);
                let follows = behind.is_some_and(|page| self.table.peek(page).is_some());
                let most = most.clamp(1, PREPIN_MAX);
                self.window = if follows { (self.window * 2).min(most) } else { (self.window / 2).max(1) };
                self.window
            }
        };
        // Ahead of need we never pin so much that the transfer itself, or what is in use, would
        // have to go.
        let taken = self.held.len() + pages.count() as usize;
        let room = self.limit.map_or(usize::MAX, |limit| limit.saturating_sub(taken) + pin.len());
        for step in 1..u64::from(window) {
            let Some(page) = first.checked_add(step) else { break };
            if pin.len() >= room {
                break;
            }
            if !pages.contains(page) && self.table.peek(page).is_none() {
                pin.push(page);
            }
        }
    }

    fn make_room(&mut self, pages: Pages, request: &mut PinRequest) {
        let Some(limit) = self.limit else { return };
        let excess = (self.table.len() + request.pin.len()).saturating_sub(limit);
        if excess == 0 {
            return;
        }
        // Pages of this transfer stay, whatever the policy thinks.
        let stay = pages.count() > request.needed as u64;
        if stay {
            self.hold(pages);
        }
        for _ in 0..excess {
            match self.policy.victim(&self.held) {
                Some(victim) => request.unpin.push(self.take(victim, true)),
                // Only pages ahead of need can be too many here: room_for has seen to the others.
                None => _ = request.pin.pop(),
            }
        }
        if stay {
            self.release(pages);
        }
    }

    fn take(&mut self, slot: Slot, evicted: bool) -> Unpin {
        let page = self.pages[slot.at()];
        let was = self.table.remove(page);
        self.last = None;
        assert_eq!(was, Some(slot.0), "the policy chose a slot that is not pinned");
        self.policy.removed(slot, page, evicted);
        self.free.push(slot);
        self.counters.unpins += 1;
        self.counters.unpin_calls += 1;
        self.counters.evictions += u64::from(evicted);
        Unpin { page, slot }
    }

    /// The driver has pinned `page`. Its slot: the index at which its translation is to be found in
    /// a user-indexed table.
    pub fn pinned(&mut self, page: Page) -> Slot {
        if let Some(slot) = self.table.peek(page) {
            return Slot(slot);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.pages.push(page);
            Slot(u32::try_from(self.pages.len() - 1).expect("2^32 pinned pages are 16 TiB"))
        });
        self.last = None;
        self.pages[slot.at()] = page;
        self.table.insert(page, slot.0);
        self.policy.inserted(slot, page);
        self.counters.pins += 1;
        slot
    }

    /// A transfer with these pages has started: those of them that are pinned are no victims until
    /// [`Pinning::release`].
    pub fn hold(&mut self, pages: Pages) {
        let held = &mut self.held;
        if self.table.find_all(pages, |slots| held.hold_all(slots)) {
            return;
        }
        for page in pages.iter() {
            if let Some(slot) = self.table.find(page) {
                self.held.hold(Slot(slot));
            }
        }
    }

    /// The transfer has ended.
    pub fn release(&mut self, pages: Pages) {
        let held = &mut self.held;
        if self.table.find_all(pages, |slots| held.release_all(slots)) {
            return;
        }
        for page in pages.iter() {
            if let Some(slot) = self.table.find(page) {
                self.held.release(Slot(slot));
            }
        }
    }

    /// The memory was unmapped, remapped or is no longer wanted: what was pinned of it, for the
    /// driver to unpin. Held pages stay.
    pub fn forget(&mut self, pages: Pages, unpinned: &mut Vec<Unpin>) {
        for page in pages.iter() {
            if let Some(slot) = self.table.peek(page).map(Slot).filter(|slot| !self.held.contains(*slot)) {
                unpinned.push(self.take(slot, false));
            }
        }
    }

    /// The node asks for memory: up to `count` pages, chosen by this process's policy; fewer if the
    /// others are held. [UTLB §3.4]
    pub fn evict(&mut self, count: usize, unpinned: &mut Vec<Unpin>) {
        for _ in 0..count {
            let Some(victim) = self.policy.victim(&self.held) else { break };
            unpinned.push(self.take(victim, true));
        }
    }

    /// Another limit. Pages above it go at the next miss, or by [`Pinning::evict`].
    pub fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit;
        self.policy.limited(limit);
    }

    /// Pages that may be pinned.
    pub fn limit(&self) -> Option<usize> {
        self.limit
    }
}

#[cfg(test)]
mod tests;
