//! The regions that processes have registered, and the copies that the engine asks for.
//!
//! Invariant: a region id that is not (or no longer) in the table is the garbage page: deposits
//! vanish, gathers give zeros, so a transfer that was under way when its memory went harms nobody.
//! Source: [UTLB §4.1] unset entries lead to the garbage page.

use super::closers::Leftover;
use super::shares::Holdings;
use super::translation::{ADDRESS_SPACE, Place, Table, Translations, are_one_kind};
use super::waits::{Before, Mark};
use crate::config::UtlbConfig;
use crate::limits::{
    AWAITED_BYTES_MAX, CLOSED_AT_ONCE_BYTES, PINS_PER_CALL_MAX, REGION_SLOTS_KEPT, TABLES_BEYOND_PAGES_MAX, TOUCHED_MAX,
};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use vmmc_host::control::{PageRun, PinRun};
use vmmc_host::limits::REGIONS_PER_PROCESS_MAX;
use vmmc_host::region::{PAGE_BYTES, RegionError};
use vmmc_host::{Protection, Region};
use vmmc_nic::{AtomicOp, Dma, OpError, ProcessId, RegionId, RegionRef};
use vmmc_utlb::{Page, Pages};

/// Bits of a region id that are the slot; the rest but the highest bit counts uses of the slot.
const SLOT_BITS: u32 = REGIONS_PER_PROCESS_MAX.trailing_zeros();
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
const GENERATION_MASK: u32 = u32::MAX >> 1 >> SLOT_BITS;
const _: () = assert!(REGIONS_PER_PROCESS_MAX.is_power_of_two());

/// All regions of all processes.
pub(super) struct Memory {
    /// By slot of the process id.
    processes: Vec<ProcessMemory>,
    /// Of the processes' own addresses.
    translations: Translations,
    /// Owners of memory that short data was put into, until somebody [takes](Memory::take_touched)
    /// them.
    touched: Vec<ProcessId>,
    /// Whether anybody takes them.
    asleep: bool,
    /// Says whose memory is touched.
    mark: Mark,
}

#[derive(Default)]
struct ProcessMemory {
    /// Whose regions these are; none: the slot is free.
    owner: Option<ProcessId>,
    uid: u32,
    /// Its user held the node up: nothing of it is touched any more.
    is_barred: bool,
    slots: Vec<Slot>,
    /// Free slots; also some that are gone, and no slot is made before those are taken out.
    free: Vec<u32>,
    /// Regions.
    count: usize,
    /// Generation of the next slot that is made, behind all that slots which are gone have had.
    fresh: u32,
    bytes: u64,
    /// Its own addresses.
    table: Table,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    region: Option<Region>,
    /// Exports that use the region; it cannot be released before they end.
    exports: u32,
    /// A process of another user was handed it for writing, and can punch holes into it, too.
    is_foreign: bool,
    /// It held the node up, and is not touched any more.
    is_barred: bool,
    /// Made when the first importer needs it.
    read_only: Option<OwnedFd>,
}

/// What a process leaves behind: its regions one by one, then its tables.
pub(super) struct Left {
    slots: Vec<Slot>,
    table: Option<Table>,
}

impl Leftover for Left {
    fn give_up(&mut self) -> Option<Holdings> {
        while let Some(slot) = self.slots.pop() {
            if slot.region.is_some() {
                return Some(Holdings::of_region());
            }
        }
        self.table.take().map(|_| Holdings::default())
    }
}

/// A region that was released.
pub(super) struct Released(Slot);

impl Released {
    /// Whether giving it up takes time.
    pub(super) fn is_much(&self) -> bool {
        self.0.region.as_ref().is_some_and(|region| {
            region.len_bytes() > CLOSED_AT_ONCE_BYTES || region.occupied_bytes() > CLOSED_AT_ONCE_BYTES
        })
    }
}

/// Why a region cannot be registered or released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MemoryError {
    #[error("{REGIONS_PER_PROCESS_MAX} regions are registered by this process already; release some")]
    TableFull,
    #[error("region {region} of this process does not exist; it was released already")]
    NoSuchRegion { region: u32 },
    #[error("region {region} carries {exports} exports; unexport them first")]
    InUse { region: u32, exports: u32 },
    #[error("pages {at} to {end} do not lie in region {region} of {pages} pages; pin pages of a registered region")]
    NoSuchPages { region: u32, at: u32, end: u64, pages: u64 },
    #[error(
        "{count} pages from page {page:#x} on leave the address space or the table of indices, or exceed {PINS_PER_CALL_MAX} in one call; split the call"
    )]
    BadRun { page: u64, count: u64 },
    #[error(
        "the pinned addresses lie in {tables} areas of 2 MiB, and the memory that this process has registered allows {max}; pin memory that lies together"
    )]
    Spread { tables: u64, max: u64 },
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// A copy of a descriptor, to be passed to another process.
pub(super) fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, RegionError> {
    fd.try_clone().map_err(|e| RegionError::System {
        call: "dup",
        errno: rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::MFILE),
    })
}

impl Memory {
    /// `asleep`: owners may sleep until something is put into their memory.
    pub(super) fn new(utlb: UtlbConfig, asleep: bool, mark: Mark) -> Memory {
        Memory { translations: Translations::new(utlb), processes: Vec::new(), touched: Vec::new(), asleep, mark }
    }

    pub(super) fn add_process(&mut self, process: ProcessId, uid: u32) {
        if self.processes.len() <= process.slot() {
            self.processes.resize_with(process.slot() + 1, ProcessMemory::default);
        }
        self.processes[process.slot()] = ProcessMemory { owner: Some(process), uid, ..ProcessMemory::default() };
    }

    /// Nothing of the process is touched any more: its regions are the garbage page.
    pub(super) fn bar(&mut self, process: ProcessId) {
        if let Some(memory) = self.of_mut(process) {
            memory.is_barred = true;
        }
    }

    /// Nor is this region, which the process shares with writers of other users.
    pub(super) fn bar_region(&mut self, at: RegionRef) {
        if let Some(slot) = self.of_mut(at.process).and_then(|memory| memory.slot_mut(at.region)) {
            slot.is_barred = true;
        }
    }

    /// Does something with a region, which says whose it is meanwhile; none: it is the garbage
    /// page.
    #[inline]
    fn reach<T>(&self, at: RegionRef, act: impl FnOnce(&Region) -> T) -> Option<T> {
        let (memory, slot) = self.reachable(at)?;
        let before = self.mark_of(at, memory, slot);
        let done = slot.region.as_ref().map(act);
        self.mark.back(before);
        done
    }

    /// Marks whose region is touched from here on; returns the mark before.
    pub(super) fn mark(&self, at: RegionRef) -> Option<Before> {
        self.reachable(at).map(|(memory, slot)| self.mark_of(at, memory, slot))
    }

    #[inline]
    fn mark_of(&self, at: RegionRef, memory: &ProcessMemory, slot: &Slot) -> Before {
        if slot.is_foreign { self.mark.set_shared(at) } else { self.mark.set(memory.uid, at) }
    }

    #[inline]
    fn reachable(&self, at: RegionRef) -> Option<(&ProcessMemory, &Slot)> {
        let memory = self.of(at.process).filter(|memory| !memory.is_barred)?;
        memory.slot(at.region).filter(|slot| !slot.is_barred).map(|slot| (memory, slot))
    }

    /// The process is gone: from here on nobody reaches its memory through the node, which is for
    /// the caller to give up.
    pub(super) fn drop_process(&mut self, process: ProcessId) -> Option<Left> {
        self.of(process)?;
        let ProcessMemory { slots, table, .. } = std::mem::take(&mut self.processes[process.slot()]);
        self.translations.forget(process, &table);
        for (slot, index) in slots.iter().zip(0u32..).filter(|(slot, _)| slot.region.is_some()) {
            let region = RegionId(index | slot.generation << SLOT_BITS);
            self.mark.forget(RegionRef { process, region });
        }
        Some(Left { slots, table: Some(table) })
    }

    /// Regions of a process.
    pub(super) fn regions(&self, process: ProcessId) -> u32 {
        self.of(process).map_or(0, |memory| memory.count as u32)
    }

    /// Maps a memfd that came from a process.
    pub(super) fn register(&mut self, process: ProcessId, fd: OwnedFd, len: u64) -> Result<RegionId, MemoryError> {
        let memory = self.of_mut(process).expect("registered by an attached process");
        if memory.count >= REGIONS_PER_PROCESS_MAX {
            return Err(MemoryError::TableFull);
        }
        let region = Region::map(fd, len, Protection::ReadWrite)?;
        memory.bytes += len;
        let id = memory.put(region.clone());
        self.mark.know(RegionRef { process, region: id }, &region);
        Ok(id)
    }

    /// Gives what is not reached any more, to be given up.
    pub(super) fn release(&mut self, process: ProcessId, id: RegionId) -> Result<Released, MemoryError> {
        let gone = MemoryError::NoSuchRegion { region: id.0 };
        let memory = self.of_mut(process).ok_or(gone.clone())?;
        let slot = memory.slot_mut(id).ok_or(gone)?;
        if slot.exports > 0 {
            return Err(MemoryError::InUse { region: id.0, exports: slot.exports });
        }
        let len = slot.region.as_ref().map_or(0, Region::len_bytes);
        let next = Slot { generation: slot.generation.wrapping_add(1) & GENERATION_MASK, ..Slot::default() };
        let released = Released(std::mem::replace(slot, next));
        memory.bytes -= len;
        memory.free.push(id.0 & SLOT_MASK);
        memory.count -= 1;
        memory.shrink();
        self.mark.forget(RegionRef { process, region: id });
        Ok(released)
    }

    /// Counts an export on its region.
    pub(super) fn hold(&mut self, process: ProcessId, id: RegionId) {
        if let Some(slot) = self.of_mut(process).and_then(|m| m.slot_mut(id)) {
            slot.exports += 1;
        }
    }

    /// Undoes one [`hold`](Self::hold).
    pub(super) fn unhold(&mut self, process: ProcessId, id: RegionId) {
        if let Some(slot) = self.of_mut(process).and_then(|m| m.slot_mut(id)) {
            slot.exports -= 1;
        }
    }

    #[inline]
    pub(super) fn region(&self, at: RegionRef) -> Option<&Region> {
        self.reachable(at)?.1.region.as_ref()
    }

    /// Copies bytes of a region out. False: it has none there.
    pub(super) fn read(&self, at: RegionRef, offset: u64, into: &mut [u8]) -> bool {
        self.reach(at, |region| region.read(offset, into).is_ok()).unwrap_or(false)
    }

    /// Checks a range that a process claims.
    #[inline]
    pub(super) fn check(&self, at: RegionRef, offset: u64, len: u64) -> Result<(), OpError> {
        let size = self.region(at).map_or(0, Region::len_bytes);
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(OpError::OutOfBounds { offset, len, size }),
        }
    }

    /// Checks the addresses that a process claims to have pinned.
    #[inline]
    pub(super) fn check_pinned(&mut self, process: ProcessId, address: u64, len: u64) -> Result<Pages, OpError> {
        let nothing = OpError::NotPinned { page: address / PAGE_BYTES as u64 };
        let memory = self.processes.get_mut(process.slot()).filter(|m| m.owner == Some(process)).ok_or(nothing)?;
        self.translations.check(&mut memory.table, address, len)
    }

    /// Checks what a process asks to pin: whether each run lies in one of its regions. Gives the
    /// pages that are new.
    pub(super) fn check_pins(
        &mut self,
        process: ProcessId,
        pin: &[PinRun],
        unpin: &[PageRun],
    ) -> Result<u64, MemoryError> {
        let count: u64 =
            pin.iter().map(|run| run.pages).chain(unpin.iter().copied()).map(|run| u64::from(run.count)).sum();
        if count > PINS_PER_CALL_MAX {
            return Err(MemoryError::BadRun { page: pin.first().map_or(0, |run| run.pages.page), count });
        }
        let mut new = 0;
        for run in pin {
            let region = RegionRef { process, region: RegionId(run.region) };
            let size = self.region(region).map_or(0, |region| region.len_bytes() / PAGE_BYTES as u64);
            let end = u64::from(run.at) + u64::from(run.pages.count);
            if end > size {
                return Err(MemoryError::NoSuchPages { region: run.region, at: run.at, end, pages: size });
            }
            let pages = pages(run.pages)?;
            let memory = self.processes.get_mut(process.slot()).filter(|m| m.owner == Some(process));
            let Some(ProcessMemory { table, .. }) = memory else { continue };
            new += pages.iter().filter(|page| !self.translations.has(table, *page)).count() as u64;
        }
        unpin.iter().try_for_each(|run| pages(*run).map(drop))?;
        self.check_spread(process, pin)?;
        Ok(new)
    }

    /// Checks that the tables for what is to be pinned are no more than the memory of the process
    /// allows: one page at many addresses would take a table for each.
    fn check_spread(&self, process: ProcessId, pin: &[PinRun]) -> Result<(), MemoryError> {
        let Some(memory) = self.of(process) else { return Ok(()) };
        let new: BTreeSet<u64> = pin
            .iter()
            .filter_map(|run| pages(run.pages).ok())
            .flat_map(|pages| memory.table.tables_wanted(pages))
            .collect();
        let tables = memory.table.tables() + new.len() as u64;
        let max = memory.bytes / PAGE_BYTES as u64 + TABLES_BEYOND_PAGES_MAX;
        if new.is_empty() || tables <= max { Ok(()) } else { Err(MemoryError::Spread { tables, max }) }
    }

    /// Installs translations that [`check_pins`](Self::check_pins) has found good; how many are
    /// new.
    pub(super) fn pin(&mut self, process: ProcessId, pin: &[PinRun]) -> u64 {
        let Some(memory) = self.processes.get_mut(process.slot()).filter(|m| m.owner == Some(process)) else {
            return 0;
        };
        let mut fresh = 0;
        for run in pin {
            let Ok(pages) = pages(run.pages) else { continue };
            for (page, at) in pages.iter().zip(u64::from(run.at)..) {
                let place = Place { region: RegionId(run.region), offset: at * PAGE_BYTES as u64 };
                fresh += u64::from(self.translations.install(process, &mut memory.table, page, place));
            }
        }
        fresh
    }

    /// Removes translations; how many there were.
    pub(super) fn unpin(&mut self, process: ProcessId, unpin: &[PageRun]) -> u64 {
        let Some(memory) = self.processes.get_mut(process.slot()).filter(|m| m.owner == Some(process)) else {
            return 0;
        };
        let runs = unpin.iter().filter_map(|run| pages(*run).ok());
        let gone = runs.flat_map(Pages::iter).filter(|p| self.translations.remove(process, &mut memory.table, *p));
        gone.count() as u64
    }

    /// Removes up to `count` translations, whichever, but for those of pages in use; how many.
    pub(super) fn revoke(&mut self, process: ProcessId, count: u64, in_use: impl Fn(Page) -> bool) -> u64 {
        let Some(memory) = self.processes.get_mut(process.slot()).filter(|m| m.owner == Some(process)) else {
            return 0;
        };
        let victims = self.translations.some_pages(&mut memory.table, count as usize, |page| !in_use(page));
        victims.iter().for_each(|page| _ = self.translations.remove(process, &mut memory.table, *page));
        victims.len() as u64
    }

    /// Translations of a process, for statistics.
    pub(super) fn table(&self, process: ProcessId) -> Option<&Table> {
        self.of(process).map(|memory| &memory.table)
    }

    /// Second-level tables that went to disk, and that came back.
    pub(super) fn tables_swapped(&self) -> (u64, u64) {
        (self.translations.swap.outs, self.translations.swap.ins)
    }

    /// Pages that transfers found without translation.
    pub(super) fn garbage(&self) -> u64 {
        self.translations.garbage
    }

    /// Where an address of a process is, and how many of `len` bytes follow each other there; no
    /// place: the garbage page.
    fn translate(&mut self, process: ProcessId, address: u64, len: u64) -> (Option<Place>, u64) {
        let page = PAGE_BYTES as u64;
        let whole = len.min(page - address % page);
        let Some(memory) = self.processes.get_mut(process.slot()).filter(|m| m.owner == Some(process)) else {
            return (None, whole);
        };
        let place = self.translations.translate(process, &mut memory.table, address);
        let Some(start) = place else { return (None, whole) };
        let full = (len - whole) / page;
        let mut whole = whole + self.translations.row_behind(process, &mut memory.table, address, start, full) * page;
        while whole < len {
            // Neighbours that lie behind each other are one copy.
            let next = self.translations.translate(process, &mut memory.table, address + whole);
            if next != Some(Place { offset: start.offset + whole, ..start }) {
                self.translations.keep(process, address + whole, next);
                break;
            }
            whole += page.min(len - whole);
        }
        (place, whole)
    }

    /// Where a range of either kind is, as far as it is in one piece; no place: garbage.
    #[inline]
    fn piece(&mut self, at: RegionRef, offset: u64, len: u64) -> (Option<Place>, u64) {
        match at.region {
            ADDRESS_SPACE => self.translate(at.process, offset, len),
            region => (Some(Place { region, offset }), len),
        }
    }

    /// A descriptor of a region for an importer of this user.
    pub(super) fn share(&mut self, at: RegionRef, writable: bool, uid: u32) -> Option<Result<OwnedFd, RegionError>> {
        let memory = self.of_mut(at.process)?;
        let owner = memory.uid;
        let slot = memory.slot_mut(at.region)?;
        let region = slot.region.as_ref()?;
        if writable {
            slot.is_foreign |= uid != owner;
            return Some(region.share());
        }
        let fd = match &mut slot.read_only {
            Some(fd) => fd,
            none => match region.share_read_only() {
                Ok(fd) => none.insert(fd),
                Err(e) => return Some(Err(e)),
            },
        };
        Some(duplicate(fd))
    }

    /// Slots that the table of a process has memory for, in either of its lists.
    #[cfg(test)]
    pub(super) fn slots(&self, process: ProcessId) -> usize {
        self.of(process).map_or(0, |m| m.slots.capacity().max(m.free.capacity()))
    }

    /// Bytes of a process's regions.
    pub(super) fn bytes(&self, process: ProcessId) -> u64 {
        self.of(process).map_or(0, |m| m.bytes)
    }

    #[inline]
    fn of(&self, process: ProcessId) -> Option<&ProcessMemory> {
        self.processes.get(process.slot()).filter(|m| m.owner == Some(process))
    }

    fn of_mut(&mut self, process: ProcessId) -> Option<&mut ProcessMemory> {
        self.processes.get_mut(process.slot()).filter(|m| m.owner == Some(process))
    }
}

impl ProcessMemory {
    #[inline]
    fn slot(&self, id: RegionId) -> Option<&Slot> {
        self.slots.get((id.0 & SLOT_MASK) as usize).filter(|slot| slot.is(id))
    }

    fn put(&mut self, region: Region) -> RegionId {
        self.count += 1;
        let slot = loop {
            match self.free.pop() {
                Some(slot) if (slot as usize) < self.slots.len() => break slot,
                Some(_) => {}
                None => {
                    self.slots.push(Slot { generation: self.fresh, ..Slot::default() });
                    break self.slots.len() as u32 - 1;
                }
            }
        };
        let entry = &mut self.slots[slot as usize];
        entry.region = Some(region);
        RegionId(slot | entry.generation << SLOT_BITS)
    }

    /// Gives memory of the table back that has no use any more, when its last slots are free.
    fn shrink(&mut self) {
        while let Some(last) = self.slots.last().filter(|last| last.region.is_none()) {
            if is_behind(last.generation, self.fresh) {
                self.fresh = last.generation;
            }
            self.slots.pop();
        }
        let slots = self.slots.len();
        // At least half of them are gone, each of which was taken out of the table once.
        if self.free.len() > 2 * (slots - self.count) + REGION_SLOTS_KEPT {
            self.free.retain(|slot| (*slot as usize) < slots);
        }
        if self.slots.capacity() > 3 * slots + REGION_SLOTS_KEPT {
            self.slots.shrink_to(slots + slots / 2);
        }
        if self.free.capacity() > 3 * self.free.len() + REGION_SLOTS_KEPT {
            self.free.shrink_to(self.free.len() + self.free.len() / 2);
        }
    }

    fn slot_mut(&mut self, id: RegionId) -> Option<&mut Slot> {
        self.slots.get_mut((id.0 & SLOT_MASK) as usize).filter(|s| s.is(id) && s.region.is_some())
    }
}

/// Whether a generation comes behind another one; they begin again at 0.
fn is_behind(generation: u32, other: u32) -> bool {
    (1..=GENERATION_MASK / 2).contains(&(generation.wrapping_sub(other) & GENERATION_MASK))
}

impl Slot {
    #[inline]
    fn is(&self, id: RegionId) -> bool {
        self.generation == id.0 >> SLOT_BITS
    }
}

impl Memory {
    /// Copies from one region to another. Between those of two users, or that others may write,
    /// each is touched by itself.
    fn copy_piece(&self, (from, start): (RegionRef, u64), (to, at): (RegionRef, u64), len: u64) {
        let user = |there: RegionRef| {
            let memory = self.of(there.process)?;
            memory.slot(there.region).filter(|slot| !slot.is_foreign).map(|_| memory.uid)
        };
        if user(from).is_some() && user(from) == user(to) {
            if let Some(source) = self.region(from) {
                self.reach(to, |target| _ = source.copy_to(start, target, at, len));
            }
            return;
        }
        let mut piece = [0; PAGE_BYTES];
        let mut done = 0;
        while done < len {
            let piece = &mut piece[..(len - done).min(PAGE_BYTES as u64) as usize];
            if self.reach(from, |source| source.read(start + done, piece).is_ok()) != Some(true) {
                piece.fill(0);
            }
            self.reach(to, |target| _ = target.write(at + done, piece));
            done += piece.len() as u64;
        }
    }
}

/// Where a place is.
#[inline]
fn behind(process: ProcessId, place: Option<Place>) -> Option<(RegionRef, u64)> {
    place.map(|place| (RegionRef { process, region: place.region }, place.offset))
}

/// The pages of a run, if there are such addresses.
fn pages(run: PageRun) -> Result<Pages, MemoryError> {
    let count = u64::from(run.count);
    let pages = Page::new(run.page).and_then(|page| Pages::new(page, count)).filter(|pages| are_one_kind(*pages));
    pages.ok_or(MemoryError::BadRun { page: run.page, count })
}

impl Memory {
    /// A process that may wait for what was put into its memory.
    #[inline]
    pub(super) fn take_touched(&mut self) -> Option<ProcessId> {
        self.touched.pop()
    }

    /// Long data is followed by a short word that says so, or by nothing that anybody sleeps for.
    #[inline]
    fn touch(&mut self, process: ProcessId, len: u64) {
        let known = !self.asleep || len > AWAITED_BYTES_MAX || self.touched.last() == Some(&process);
        if !known && self.touched.len() < TOUCHED_MAX && !self.touched.contains(&process) {
            self.touched.push(process);
        }
    }
}

impl Dma for Memory {
    // A range outside of its region cannot come: exports and commands were checked when they were
    // made. Should the region have been replaced by a smaller one since, the range is garbage too.
    #[inline]
    fn deposit(&mut self, to: RegionRef, offset: u64, data: &[u8]) {
        self.touch(to.process, data.len() as u64);
        if to.region != ADDRESS_SPACE {
            self.reach(to, |region| _ = region.write(offset, data));
            return;
        }
        let mut done = 0;
        while done < data.len() {
            let (place, len) = self.piece(to, offset + done as u64, (data.len() - done) as u64);
            if let Some((there, at)) = behind(to.process, place) {
                self.reach(there, |region| _ = region.write(at, &data[done..done + len as usize]));
            }
            done += len as usize;
        }
    }

    #[inline]
    fn gather(&mut self, from: RegionRef, offset: u64, out: &mut [u8]) {
        if from.region != ADDRESS_SPACE {
            if self.reach(from, |region| region.read(offset, out).is_ok()) != Some(true) {
                out.fill(0);
            }
            return;
        }
        let mut done = 0;
        while done < out.len() {
            let (place, len) = self.piece(from, offset + done as u64, (out.len() - done) as u64);
            let piece = &mut out[done..done + len as usize];
            let read =
                behind(from.process, place).and_then(|(there, at)| self.reach(there, |r| r.read(at, piece).is_ok()));
            if read != Some(true) {
                piece.fill(0);
            }
            done += len as usize;
        }
    }

    fn copy(&mut self, from: RegionRef, from_offset: u64, to: RegionRef, to_offset: u64, len: u64) {
        self.touch(to.process, len);
        if (from, from_offset) == (to, to_offset) {
            return;
        }
        let mut done = 0;
        while done < len {
            let (source, whole) = self.piece(from, from_offset + done, len - done);
            let (target, whole) = self.piece(to, to_offset + done, whole);
            let is_there = |at: u64, region: &Region| region.check(at, whole).is_ok();
            let source = behind(from.process, source)
                .filter(|(there, at)| self.region(*there).is_some_and(|region| is_there(*at, region)));
            match (source, behind(to.process, target)) {
                (_, None) => {}
                (None, Some((target, at))) => _ = self.reach(target, |target| zero(target, at, whole)),
                (Some(source), Some(target)) => self.copy_piece(source, target, whole),
            }
            done += whole;
        }
    }

    #[inline]
    fn atomic(&mut self, at: RegionRef, offset: u64, op: AtomicOp) -> u64 {
        self.touch(at.process, size_of::<u64>() as u64);
        if offset % 8 != 0 {
            return 0;
        }
        let act = |region: &Region| {
            region.word(offset).map_or(0, |word| match op {
                AtomicOp::FetchAdd(by) => word.fetch_add(by, Ordering::SeqCst),
                AtomicOp::Swap(new) => word.swap(new, Ordering::SeqCst),
                AtomicOp::CompareSwap { expected, desired } => word
                    .compare_exchange(expected, desired, Ordering::SeqCst, Ordering::SeqCst)
                    .unwrap_or_else(|old| old),
            })
        };
        self.reach(at, act).unwrap_or(0)
    }
}

fn zero(to: &Region, offset: u64, len: u64) {
    let zeros = [0u8; PAGE_BYTES];
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(zeros.len() as u64);
        if to.write(offset + done, &zeros[..piece as usize]).is_err() {
            return;
        }
        done += piece;
    }
}

#[cfg(test)]
mod tests;
