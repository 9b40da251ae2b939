//! Translations of processes' own addresses: one hierarchical table a process, one cache of the
//! engine for all. [UTLB §3.2, §3.3, §4.2]
//!
//! Invariant: the engine reaches what the driver installed for that very process, and nothing else:
//! an address without translation is the garbage page, and a frame is looked up in the process's
//! own regions each time, so one that was released is garbage too. Here a frame is a page of a
//! region of the process.
//!
//! Beside it each process has a table of its own with indices that it chooses, which the engine has
//! in full and which never misses [UTLB §3.1]. In commands and calls an index is a page number that
//! no memory has.

use super::swap::Swap;
use crate::config::UtlbConfig;
use std::collections::VecDeque;
use vmmc_host::abi::INDEX_PAGES;
use vmmc_host::limits::INDICES_MAX;
use vmmc_nic::{OpError, ProcessId, RegionId};
use vmmc_utlb::{
    CacheCounters, DiskBlock, Frame, HierarchicalTable, Index, IndexTable, Page, PageSet, Pages, Process as Tagged,
    SharedCache, Translation,
};

/// Region id of a process's address space: no region has its highest bit set.
pub(super) const ADDRESS_SPACE: RegionId = RegionId(u32::MAX);
/// Where addresses without translation lead.
const GARBAGE: Frame = Frame(u64::MAX);
const PAGE_SHIFT: u32 = 12;

/// A place in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) region: RegionId,
    pub(super) offset: u64,
}

impl Place {
    fn frame(self) -> Frame {
        Frame(u64::from(self.region.0) << 32 | self.offset >> PAGE_SHIFT)
    }

    fn of(frame: Frame) -> Place {
        Place { region: RegionId((frame.0 >> 32) as u32), offset: (frame.0 & u64::from(u32::MAX)) << PAGE_SHIFT }
    }
}

/// Pinned pages of one process.
pub(super) struct Table {
    table: HierarchicalTable,
    /// By index.
    own: IndexTable,
    /// Second-level tables in memory, the one that came first in front; kept only where tables
    /// leave.
    resident: VecDeque<u64>,
    /// Second-level tables on disk.
    out: usize,
    /// Pages that were looked up since they were pinned.
    seen: PageSet,
    pages: u64,
    pub(super) counters: CacheCounters,
    pub(super) pins: u64,
    pub(super) unpins: u64,
}

impl Default for Table {
    fn default() -> Table {
        Table {
            table: HierarchicalTable::new(GARBAGE),
            own: IndexTable::new(INDICES_MAX as usize, GARBAGE),
            resident: VecDeque::new(),
            out: 0,
            seen: PageSet::new(),
            pages: 0,
            counters: CacheCounters::default(),
            pins: 0,
            unpins: 0,
        }
    }
}

/// The engine's side.
pub(super) struct Translations {
    cache: SharedCache,
    pub(super) swap: Swap,
    /// Entries that a miss reads.
    prefetch: u32,
    /// A page that was looked up although its turn had not come; it is not looked up again.
    ahead: Option<(Tagged, Page, Option<Place>)>,
    /// Pages pinned by all processes together.
    pinned: u64,
    /// Accesses to the garbage page, pages.
    pub(super) garbage: u64,
}

fn tagged(process: ProcessId) -> Tagged {
    Tagged(u16::try_from(process.slot()).expect("the engine has fewer processes than 2^16"))
}

impl Table {
    /// Pages pinned.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Second-level tables.
    pub(super) fn tables(&self) -> u64 {
        self.table.second_levels() as u64
    }

    /// Second-level tables that these pages need and that are not there; none for indices.
    pub(super) fn tables_wanted(&self, pages: Pages) -> impl Iterator<Item = u64> {
        let first = pages.first().number();
        let end = if first >= INDEX_PAGES { first } else { first + pages.count() };
        let numbers = (first..end).map(|page| Page::new(page).map_or(u64::MAX, HierarchicalTable::second_level));
        let mut last = None;
        let numbers = numbers.filter(move |number| last.replace(*number) != Some(*number));
        numbers.filter(|number| self.table.table_of(HierarchicalTable::first_page(*number)).is_none())
    }

    fn has(&self, page: Page) -> bool {
        match index(page) {
            Some(index) => self.own.has(index),
            None => matches!(self.table.translate(page), Translation::Frame(_)),
        }
    }
}

/// The index that a page number is, if it is one. One that no table has is as good as any other:
/// garbage.
#[inline]
fn index(page: Page) -> Option<Index> {
    page.number().checked_sub(INDEX_PAGES).map(|index| Index(u32::try_from(index).unwrap_or(u32::MAX)))
}

/// Whether pages may be asked for: either addresses, or indices that the table has.
pub(super) fn are_one_kind(pages: Pages) -> bool {
    let (first, end) = (pages.first().number(), pages.first().number() + pages.count());
    end <= INDEX_PAGES || first >= INDEX_PAGES && end <= INDEX_PAGES + u64::from(INDICES_MAX)
}

impl Translations {
    /// Nothing pinned.
    pub(super) fn new(utlb: UtlbConfig) -> Translations {
        Translations {
            cache: SharedCache::new(utlb.cache),
            swap: Swap::new(utlb.tables_max),
            prefetch: utlb.prefetch,
            ahead: None,
            pinned: 0,
            garbage: 0,
        }
    }

    /// Checks the addresses that a process claims to have pinned.
    #[inline]
    pub(super) fn check(&mut self, table: &mut Table, address: u64, len: u64) -> Result<Pages, OpError> {
        let nowhere = OpError::NotPinned { page: address >> PAGE_SHIFT };
        let pages = Pages::of_bytes(address, len).filter(|pages| pages.count() <= table.pages).ok_or(nowhere)?;
        let absent = if !are_one_kind(pages) || pages.first().number() >= INDEX_PAGES {
            pages.iter().find(|page| !table.has(*page))
        } else if table.out == 0 {
            table.table.first_absent(pages)
        } else {
            pages.iter().find(|page| !self.has(table, *page))
        };
        absent.map_or(Ok(pages), |page| Err(OpError::NotPinned { page: page.number() }))
    }

    /// Whether a page is pinned.
    pub(super) fn has(&mut self, table: &mut Table, page: Page) -> bool {
        self.bring_in(table, page);
        table.has(page)
    }

    /// Up to `count` pinned pages of a process that suit, in no order.
    pub(super) fn some_pages(&mut self, table: &mut Table, count: usize, suits: impl Fn(Page) -> bool) -> Vec<Page> {
        let of_index = |index: Index| Page::new(INDEX_PAGES + u64::from(index.0));
        if table.out == 0 {
            let own = table.own.indices().filter_map(of_index);
            return table.table.pages().chain(own).filter(|page| suits(*page)).take(count).collect();
        }
        let own = table.own.indices().filter_map(of_index).filter(|page| suits(*page));
        let mut found: Vec<Page> = own.take(count).collect();
        let tables: Vec<u64> = table.table.tables().map(|(number, _)| number).collect();
        for number in tables {
            self.bring_in(table, HierarchicalTable::first_page(number));
            let here = table.table.pages().filter(|page| HierarchicalTable::second_level(*page) == number);
            found.extend(here.filter(|page| suits(*page)).take(count - found.len()));
        }
        found
    }

    /// Brings the second-level table of a page in, if it is on disk. One that cannot be read is
    /// lost: its pages are garbage, and the process pins them again.
    #[inline]
    fn bring_in(&mut self, table: &mut Table, page: Page) {
        if table.out > 0 {
            if let Some(Some(block)) = table.table.table_of(page) {
                self.read_in(table, page, block);
            }
        }
    }

    #[cold]
    fn read_in(&mut self, table: &mut Table, page: Page, block: DiskBlock) {
        table.out -= 1;
        match self.swap.read(block) {
            Ok(second) => {
                table.table.swap_in(page, second).expect("it was on disk");
                self.came(table, page);
            }
            Err(_) => {
                let lost = table.table.lose(page) as u64;
                table.pages -= lost;
                self.pinned -= lost;
            }
        }
        self.swap.forget(block);
    }

    /// A second-level table has come into memory; others leave for it.
    fn came(&mut self, table: &mut Table, page: Page) {
        table.resident.push_back(HierarchicalTable::second_level(page));
        while self.swap.is_full(table.resident.len()) && table.resident.len() > 1 {
            let oldest = HierarchicalTable::first_page(table.resident.pop_front().expect("more than one"));
            let block = self.swap.block();
            let second = table.table.swap_out(oldest, block).expect("it is in memory");
            if self.swap.write(block, &second).is_ok() {
                table.out += 1;
                continue;
            }
            // A full disk: it stays.
            table.table.swap_in(oldest, second).expect("it was just taken out");
            table.resident.push_back(HierarchicalTable::second_level(oldest));
            return self.swap.forget(block);
        }
    }

    /// The driver pinned a page; whether it was not pinned before.
    pub(super) fn install(&mut self, process: ProcessId, table: &mut Table, page: Page, place: Place) -> bool {
        self.ahead = None;
        let fresh = match index(page) {
            Some(index) => self.install_own(table, index, place),
            None => self.install_paged(process, table, page, place),
        };
        table.pages += u64::from(fresh);
        self.pinned += u64::from(fresh);
        table.pins += 1;
        fresh
    }

    fn install_own(&mut self, table: &mut Table, index: Index, place: Place) -> bool {
        let fresh = !table.own.has(index);
        table.own.install(index, place.frame()).expect("indices that the table has not are refused");
        fresh
    }

    fn install_paged(&mut self, process: ProcessId, table: &mut Table, page: Page, place: Place) -> bool {
        self.bring_in(table, page);
        if self.swap.is_on() && table.table.table_of(page).is_none() {
            self.came(table, page);
        }
        let fresh = !table.has(page);
        table.table.install(page, place.frame()).expect("brought in above");
        if !fresh {
            self.drop_entry(process, page);
        }
        fresh
    }

    /// The driver unpinned a page; whether it was pinned.
    pub(super) fn remove(&mut self, process: ProcessId, table: &mut Table, page: Page) -> bool {
        if let Some(index) = index(page) {
            let was = table.own.has(index);
            table.own.remove(index);
            self.ahead = None;
            table.pages -= u64::from(was);
            self.pinned -= u64::from(was);
            table.unpins += u64::from(was);
            return was;
        }
        self.bring_in(table, page);
        let was = table.table.remove(page).expect("brought in above").is_some();
        if self.swap.is_on() && table.table.table_of(page).is_none() {
            table.resident.retain(|number| *number != HierarchicalTable::second_level(page));
        }
        table.pages -= u64::from(was);
        self.pinned -= u64::from(was);
        table.seen.remove(page);
        table.unpins += u64::from(was);
        if was {
            self.drop_entry(process, page);
        }
        was
    }

    fn drop_entry(&mut self, process: ProcessId, page: Page) {
        self.ahead = None;
        self.cache.invalidate(tagged(process), page);
    }

    /// The process is gone, with its table.
    pub(super) fn forget(&mut self, process: ProcessId, table: &Table) {
        self.ahead = None;
        self.pinned -= table.pages;
        table.table.tables().filter_map(|(_, block)| block).for_each(|block| self.swap.forget(block));
        self.cache.invalidate_process(tagged(process));
    }

    /// The caller was curious about the page at an address, and comes back to it.
    pub(super) fn keep(&mut self, process: ProcessId, address: u64, place: Option<Place>) {
        self.ahead = Page::of_address(address).map(|page| (tagged(process), page, place));
    }

    /// Where the byte at an address is; none: the garbage page. A lookup in the cache, at a miss
    /// one in the table.
    #[inline]
    pub(super) fn translate(&mut self, process: ProcessId, table: &mut Table, address: u64) -> Option<Place> {
        let place = Page::of_address(address).and_then(|page| self.look_up(tagged(process), table, page));
        if place.is_none() {
            self.garbage += 1;
        }
        let inside = address & ((1 << PAGE_SHIFT) - 1);
        place.map(|place| Place { offset: place.offset + inside, ..place })
    }

    /// How many of the pages behind the one at `address`, which lies at `place`, follow it in its
    /// region too, as far as the cache shows that at once; at most `most`.
    #[inline]
    pub(super) fn row_behind(
        &mut self,
        process: ProcessId,
        table: &mut Table,
        address: u64,
        place: Place,
        most: u64,
    ) -> u64 {
        let Some(page) = Page::of_address(address).filter(|_| most > 0) else { return 0 };
        let frame = place.frame();
        let row = match index(page) {
            Some(index) => {
                let follows = |n: &u64| {
                    let next = index.0.checked_add(*n as u32).map(Index);
                    next.is_some_and(|next| table.own.translate(next).0 == frame.0.wrapping_add(*n))
                };
                (1..=most).take_while(follows).count() as u64
            }
            None => self.cache.row_behind(tagged(process), page, frame, most),
        };
        table.counters.lookups += row;
        row
    }

    #[inline]
    fn look_up(&mut self, process: Tagged, table: &mut Table, page: Page) -> Option<Place> {
        if let Some((_, _, place)) = self.ahead.take().filter(|ahead| (ahead.0, ahead.1) == (process, page)) {
            return place;
        }
        table.counters.lookups += 1;
        if let Some(index) = index(page) {
            let frame = table.own.translate(index);
            return (frame != GARBAGE).then(|| Place::of(frame));
        }
        match self.cache.find(process, page) {
            Some(frame) => Some(Place::of(frame)),
            None => self.miss(process, table, page),
        }
    }

    /// Reads the table. A first use since the page was pinned is compulsory; of the other misses
    /// those are capacity misses that happen while more pages are pinned than the cache has
    /// entries, and conflicts the rest. The simulator's split needs a second cache beside this one,
    /// which would cost each lookup more than the lookup itself.
    #[cold]
    fn miss(&mut self, process: Tagged, table: &mut Table, page: Page) -> Option<Place> {
        table.counters.misses += 1;
        self.bring_in(table, page);
        let Translation::Frame(frame) = table.table.translate(page) else { return None };
        let kind = match table.seen.insert(page) {
            true => &mut table.counters.compulsory,
            false if self.pinned > self.cache.shape().entries() as u64 => &mut table.counters.capacity,
            false => &mut table.counters.conflict,
        };
        *kind += 1;
        let Table { table, counters, .. } = table;
        table.fetch(page, self.prefetch, |page, frame| {
            counters.fetched += 1;
            counters.displaced += u64::from(self.cache.fill(process, page, frame).is_some());
        });
        Some(Place::of(frame))
    }
}
