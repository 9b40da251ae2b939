//! Windows: ranges of a reservation that show pages of one region one by one, by a userfaultfd.
//!
//! ```text
//!  table of the window:  ABSENT ─ fill ─▶ NONE, READ, WRITE ─ protect ─▶ another of these ─ release ─▶ ABSENT
//!  page table:           nothing mapped │ protected against writing │ open
//! ```
//!
//! A window is one mapping from its opening to its close, whatever its pages allow: absent pages,
//! and present ones without access, are simply not in the page table, and pages for reading are
//! marked there. A page whose fault was refused is the exception: it is closed by its mapping, so
//! that its toucher gets SIGSEGV, until it is filled, protected or released anew. `UFFDIO_POISON`
//! would split no mapping, but raises SIGBUS, and closes the page for its readers too.
//!
//! Invariants: the table of the window is the truth, and the page table a cache of it that lags
//! behind in one direction: it never allows what the table does not. So taking a page out of it is
//! always right, which is how a failed call goes back, and what the kernel does when it writes
//! memory to a swap file: the next fault finds the right in the table, and
//! [`show_again`](Window::show_again) maps the page. The region keeps its bytes whatever happens
//! here. In a forked child the window does not exist, and no call is made on it there.
//!
//! Source: ioctl_userfaultfd(2), `UFFDIO_CONTINUE` and `UFFDIO_WRITEPROTECT`; madvise(2),
//! `MADV_DONTNEED` and `MADV_DONTFORK`.

use super::{Access, ReservationError, refused};
use crate::fault::descriptor::{Descriptor, Mode};
use crate::limits::WINDOW_TRIES_MAX;
use crate::region::{PAGE_BYTES, Region, RegionError, Span};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::alloc::Layout;
use std::ops::Range;
use std::sync::Arc;

/// States of a page: a byte each, of which those never touched cost nothing.
const ABSENT: u8 = 0;
const NONE: u8 = 1;
const READ: u8 = 2;
const WRITE: u8 = 3;
/// Beside a state: the mapping of the page is closed.
const CLOSED: u8 = 0x80;

/// A range that shows pages of a region.
pub(super) struct Window {
    base: *mut u8,
    region: Region,
    /// First byte in the region.
    region_offset: u64,
    descriptor: Arc<Descriptor>,
    /// The process that opened it.
    pid: u32,
    pages: Vec<u8>,
}

// SAFETY: the pointer is to addresses of the reservation that the window is part of; they are
// changed by system calls only, under the lock of the reservation.
unsafe impl Send for Window {}

impl Window {
    /// Maps a range with no page present, and registers it.
    ///
    /// # Errors
    /// The call that the kernel refused. The range has no access then, and perhaps a mapping.
    ///
    /// # Safety
    /// The `len` bytes from `base` on are the caller's own mapping as long as the window lives, and
    /// nothing refers to what they hold.
    pub(super) unsafe fn open(
        base: *mut u8,
        len: u64,
        region: &Region,
        region_offset: u64,
        descriptor: &Arc<Descriptor>,
    ) -> Result<Window, (&'static str, Errno)> {
        let bytes = len as usize;
        let window = Window {
            base,
            region: region.clone(),
            region_offset,
            descriptor: descriptor.clone(),
            pid: std::process::id(),
            pages: absent(bytes / PAGE_BYTES).ok_or(("malloc", Errno::NOMEM))?,
        };
        // No access at first: a thread that touches a page before it is registered would get it.
        // SAFETY: the caller vouches for the addresses.
        unsafe { region.map_over(base, region_offset, bytes, ProtFlags::empty()) }.map_err(|errno| ("mmap", errno))?;
        // SAFETY: as above. Pages of a program that locks all its memory could not be taken away.
        unsafe {
            let _ = rustix::mm::munlock(base.cast(), bytes);
            rustix::mm::madvise(base.cast(), bytes, Advice::LinuxDontFork).map_err(|errno| ("madvise", errno))?;
        }
        descriptor.register(base as usize, bytes, &[Mode::Missing, Mode::Minor, Mode::WriteProtect])?;
        window
            .set_rights(0..window.pages.len(), MprotectFlags::READ | MprotectFlags::WRITE)
            .map_err(|e| ("mprotect", e))?;
        Ok(window)
    }

    /// Takes the range back: reserved addresses without access. A thread that waits for a page of
    /// it tries again, and gets SIGSEGV.
    pub(super) fn close(self) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range is of the reservation, as `open` was promised. One mapping takes the
        // place of one or more, for which the kernel has room.
        let _ = unsafe { rustix::mm::mmap_anonymous(self.base.cast(), self.len(), ProtFlags::empty(), flags) };
        self.descriptor.wake(self.base as usize, self.len());
    }

    pub(super) fn len(&self) -> usize {
        self.pages.len() * PAGE_BYTES
    }

    /// Whether a region shows at a byte of the window what a byte of its own holds.
    pub(super) fn shows(&self, into: u64, region: &Region, region_offset: u64) -> bool {
        self.region.is_same(region) && self.region_offset + into == region_offset
    }

    pub(super) fn access(&self, page: usize) -> Option<Access> {
        match self.pages[page] & !CLOSED {
            ABSENT => None,
            NONE => Some(Access::None),
            READ => Some(Access::Read),
            _ => Some(Access::ReadWrite),
        }
    }

    /// What is behind a byte, up to the end of the pages with the same access.
    pub(super) fn behind(&self, into: u64) -> Option<Span> {
        let page = into as usize / PAGE_BYTES;
        let access = self.access(page)?;
        let end = (page..self.pages.len()).find(|at| self.access(*at) != Some(access)).unwrap_or(self.pages.len());
        let len = (end * PAGE_BYTES) as u64 - into;
        Some(Span { region: self.region.clone(), offset: self.region_offset + into, len })
    }

    /// The first of these pages that has no memory.
    pub(super) fn first_absent(&self, pages: &Range<usize>) -> Option<usize> {
        pages.clone().find(|page| self.access(*page).is_none())
    }

    /// Gives pages an access, or takes them away. All of them, or none.
    pub(super) fn set(&mut self, pages: Range<usize>, access: Option<Access>) -> Result<(), ReservationError> {
        if self.pid != std::process::id() {
            return Err(ReservationError::Forked);
        }
        let new = match access {
            None => ABSENT,
            Some(Access::None) => NONE,
            Some(Access::Read) => READ,
            Some(Access::ReadWrite) => WRITE,
        };
        let mut next = pages.start;
        while next < pages.end {
            let old = self.pages[next];
            let end = (next..pages.end).find(|page| self.pages[*page] != old).unwrap_or(pages.end);
            if let Err(error) = self.change(next..end, old, new) {
                // What was changed is asked for anew, and answered from the table.
                let _ = self.hide(pages);
                return Err(error);
            }
            next = end;
        }
        self.pages[pages].fill(new);
        Ok(())
    }

    /// Changes pages that are all alike.
    fn change(&mut self, pages: Range<usize>, old: u8, new: u8) -> Result<(), ReservationError> {
        if old & CLOSED != 0 {
            self.set_rights(pages.clone(), MprotectFlags::READ | MprotectFlags::WRITE)
                .map_err(|errno| refused("mprotect", errno))?;
            self.pages[pages.clone()].fill(old & !CLOSED);
        }
        let (at, len) = self.span(&pages);
        match (old & !CLOSED, new) {
            (READ | WRITE, ABSENT | NONE) => self.hide(pages).map_err(|errno| refused("madvise", errno)),
            (ABSENT | NONE, READ | WRITE) => self.present(pages, new == READ),
            (WRITE, READ) => self.descriptor.protect(at, len).map_err(|e| refused("ioctl(UFFDIO_WRITEPROTECT)", e)),
            (READ, WRITE) => {
                self.descriptor.open_for_writing(at, len).map_err(|e| refused("ioctl(UFFDIO_WRITEPROTECT)", e))
            }
            _ => Ok(()),
        }
    }

    /// Maps a page once more that the table allows and the kernel has taken out of the page table.
    pub(super) fn show_again(&self, page: usize) -> Result<(), ReservationError> {
        match self.pages[page] & !CLOSED {
            state @ (READ | WRITE) => self.present(page..page + 1, state == READ),
            _ => Ok(()),
        }
    }

    /// Makes every thread that waits for a page get SIGSEGV, unless the table allows it by now. A
    /// page that may be read goes on being readable.
    pub(super) fn refuse(&mut self, page: usize, is_store: bool) -> Result<(), Errno> {
        let rights = match self.pages[page] & !CLOSED {
            WRITE => return Ok(()),
            READ if !is_store => return Ok(()),
            READ => MprotectFlags::READ,
            _ => MprotectFlags::empty(),
        };
        self.set_rights(page..page + 1, rights)?;
        self.pages[page] |= CLOSED;
        Ok(())
    }

    /// Maps pages that are not in the page table, from memory that the region gets if it has none.
    fn present(&self, pages: Range<usize>, is_read_only: bool) -> Result<(), ReservationError> {
        let (mut at, len) = self.span(&pages);
        let end = at + len;
        let mut tries = 0;
        let mut allocated = None;
        while at < end {
            let (done, result) = self.descriptor.present(at, end - at, is_read_only);
            at += done;
            tries = if done > 0 { 0 } else { tries + 1 };
            match result {
                Ok(()) => return Ok(()),
                // What is mapped is mapped with the rights of the table, or those before a failure.
                Err(Errno::EXIST) => {
                    let set = if is_read_only { Descriptor::protect } else { Descriptor::open_for_writing };
                    set(&self.descriptor, at, PAGE_BYTES).map_err(|e| refused("ioctl(UFFDIO_WRITEPROTECT)", e))?;
                    at += PAGE_BYTES;
                }
                // The region has no memory there.
                Err(Errno::FAULT) if allocated != Some(at) => {
                    allocated = Some(at);
                    self.allocate(at, end)?;
                }
                // It came as far as it could, or the page tables were being changed.
                Err(Errno::AGAIN | Errno::INTR) if tries < WINDOW_TRIES_MAX => std::thread::yield_now(),
                Err(errno) => return Err(RegionError::System { call: "ioctl(UFFDIO_CONTINUE)", errno }.into()),
            }
        }
        Ok(())
    }

    fn allocate(&self, at: usize, end: usize) -> Result<(), RegionError> {
        let offset = self.region_offset + (at - self.base as usize) as u64;
        // The last page of a region may be cut.
        self.region.allocate(offset, ((end - at) as u64).min(self.region.len_bytes() - offset))
    }

    /// Takes pages out of the page table.
    fn hide(&self, pages: Range<usize>) -> Result<(), Errno> {
        let (at, len) = self.span(&pages);
        // SAFETY: the pages are of the reservation, as `open` was promised, and of a shared
        // mapping, so their bytes stay in the file: who touches one next waits for its owner.
        unsafe { rustix::mm::madvise(at as *mut _, len, Advice::LinuxDontNeed) }
    }

    fn set_rights(&self, pages: Range<usize>, rights: MprotectFlags) -> Result<(), Errno> {
        let (at, len) = self.span(&pages);
        // SAFETY: the pages are of the reservation, as `open` was promised, and nothing forms
        // references to their bytes that outlive a call.
        unsafe { rustix::mm::mprotect(at as *mut _, len, rights) }
    }

    fn span(&self, pages: &Range<usize>) -> (usize, usize) {
        (self.base as usize + pages.start * PAGE_BYTES, pages.len() * PAGE_BYTES)
    }
}

/// A table of absent pages, which has memory where it is written; none: there are no addresses for
/// it.
fn absent(pages: usize) -> Option<Vec<u8>> {
    let layout = Layout::array::<u8>(pages).ok()?;
    // SAFETY: a window has a page at least, so the layout is not empty.
    let table = unsafe { std::alloc::alloc_zeroed(layout) };
    // SAFETY: the global allocator gave so many bytes of this layout, and all are zero.
    (!table.is_null()).then(|| unsafe { Vec::from_raw_parts(table, pages, pages) })
}

const _: () = assert!(ABSENT == 0, "zeroed memory is a table of absent pages");
