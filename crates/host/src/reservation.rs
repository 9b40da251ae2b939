//! Address space that is reserved first and gets memory later, page by page: what shared virtual
//! memory and network memory hand to a program.
//!
//! ```text
//!              reserve                  fill                          protect
//!  (addresses) ───────▶ no memory, no access ───▶ pages of a Region ─────────▶ the same, other access
//!                             ▲                        │
//!                             └─────── release ────────┘
//!
//!  program ──▶ reservation, protected ──┐
//!                                       ├──▶ the same pages of one memfd
//!  model ────▶ its Region, writable ────┘
//! ```
//!
//! The region that fills a range is the second view of it: a model copies through the region while
//! the program may not access it yet, and opens the range when the bytes are there.
//!
//! A range can be a window on one region, whose pages are shown by a userfaultfd and not by
//! mappings of their own (`reservation/window.rs`, opened by
//! [`Faults::register_window`](crate::fault::Faults::register_window)). The calls are the same.
//!
//! Invariants: every address of a reservation belongs to it from its making to its drop, so nothing
//! of the process is ever replaced by a fill. A filled range keeps its region alive. The bytes are
//! never a slice. A failed call leaves access and memory as they were. Neighbouring pages of the
//! same memory and access are one range, here as in the kernel, which allows a process 65,530
//! mappings (`vm.max_map_count`). Source: mmap(2), `MAP_FIXED_NOREPLACE` and `MAP_NORESERVE`;
//! mprotect(2); [UTLB §3.1] for pages that a library gives and takes.
//!
//! ```
//! use vmmc_host::Region;
//! use vmmc_host::reservation::{Access, Reservation};
//! let place = Reservation::new(1 << 20)?;
//! let memory = Region::create(8192)?;
//! place.fill(4096, &memory, 0, 8192, Access::Read)?;
//! memory.write(4096, b"seen")?;
//! let mut seen = [0; 4];
//! place.read(8192, &mut seen)?;
//! assert_eq!(&seen, b"seen");
//! place.release(4096, 8192)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod table;
mod window;

use crate::copy;
use crate::fault::descriptor::Descriptor;
use crate::limits::{INHERITED_LOCK_WAIT, RESERVATION_BYTES_MAX, RESERVATION_RANGES_MAX, UNMAP_BYTES_MAX};
use crate::region::{PAGE_BYTES, Protection, Region, RegionError, Span};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use table::{Piece, Table};
use window::Window;

const PAGE: u64 = PAGE_BYTES as u64;
/// First address that no program has: x86-64 without five-level tables has 47 bits for a program,
/// other processors of 64 bits have 48 at least.
const ADDRESSES_END: u64 = if cfg!(target_arch = "x86_64") { 1 << 47 } else { 1 << 48 };

/// What the program may do with a page that has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: every access is a page fault.
    None,
    /// Load; a store is a page fault.
    Read,
    /// Load and store.
    ReadWrite,
}

/// Why a reservation could not be made or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// No bytes, no whole pages, or above [`RESERVATION_BYTES_MAX`].
    #[error(
        "a reservation has whole pages of {PAGE_BYTES} bytes, up to {RESERVATION_BYTES_MAX} bytes, and not {len} bytes; round the length up to pages"
    )]
    Size {
        /// Bytes asked for.
        len: u64,
    },
    /// The place is on no page, or not all of it is in the address space of programs.
    #[error(
        "a reservation of {len} bytes cannot start at address {address:#x}; choose a multiple of {PAGE_BYTES} above 0 such that it ends by {ADDRESSES_END:#x}, or let the kernel choose"
    )]
    Address {
        /// First address asked for.
        address: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// Something of this process is there.
    #[error(
        "of the {len} bytes from address {address:#x} on some are in use in this process (/proc/self/maps lists by what); choose another place, or let the kernel choose"
    )]
    Taken {
        /// First address asked for.
        address: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// A range of the reservation that is not made of pages, or not in it.
    #[error(
        "{len} bytes from byte {offset} on are no whole pages of a reservation of {size} bytes; give multiples of {PAGE_BYTES}, one page at least, inside of it"
    )]
    Pages {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the reservation.
        size: u64,
    },
    /// The same of the region that is to fill it.
    #[error(
        "{len} bytes from byte {offset} on are no whole pages of a region of {size} bytes, which is to fill a reservation; give multiples of {PAGE_BYTES} inside of it"
    )]
    RegionPages {
        /// First byte in the region.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the region.
        size: u64,
    },
    /// Bytes to copy that are not in the reservation.
    #[error("bytes {offset}..{end} do not lie in a reservation of {size} bytes", end = offset.saturating_add(*len))]
    Outside {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the reservation.
        size: u64,
    },
    /// A word at an odd place.
    #[error("the word at byte {offset} of a reservation is at no multiple of 8")]
    Misaligned {
        /// Its first byte.
        offset: u64,
    },
    /// Access to pages that have no memory.
    #[error("the page at byte {offset} of the reservation has no memory to protect; fill it first")]
    NoMemory {
        /// First byte of the first such page.
        offset: u64,
    },
    /// Memory that this process may not write.
    #[error(
        "the region that fills the reservation at byte {offset} is not for writing in this process; give read access, or fill with a region that is mapped for writing and has no seal against it"
    )]
    ReadOnly {
        /// First byte of the range in question.
        offset: u64,
    },
    /// A range that is partly in a window, or in two.
    #[error(
        "{len} bytes from byte {offset} of the reservation reach over an edge of a window; change what lies in a window and what lies beside it by calls of their own"
    )]
    Edge {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Other memory than a window shows.
    #[error(
        "the window at byte {offset} of the reservation shows other memory; fill it from the region that it was opened on, at the same distance from its start"
    )]
    OtherMemory {
        /// First byte of the range in question.
        offset: u64,
    },
    /// A window where there is memory.
    #[error(
        "the page at byte {offset} of the reservation has memory already; release it before a window is opened there"
    )]
    Filled {
        /// First byte of the first such page.
        offset: u64,
    },
    /// A child of a fork: the window is its parent's, or a thread of the parent was changing the
    /// reservation at that moment.
    #[error(
        "this process is a fork of the one that opened this window, which stays with the parent; start the program anew, or fork before the window is opened"
    )]
    Forked,
    /// The bound on ranges.
    #[error(
        "a reservation has at most {RESERVATION_RANGES_MAX} ranges that differ in memory or access from their neighbours; change longer runs of pages at a time, or release some"
    )]
    Ranges,
    /// The kernel's bound on mappings, or on addresses.
    #[error(
        "the kernel has no room for another mapping of this process ({call}: {errno}); it has 65,530 unless vm.max_map_count says otherwise: raise that, change longer runs of pages at a time, or lift the bound on addresses (ulimit -v)"
    )]
    Mappings {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// Another refusal of the kernel.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Addresses of this process that get memory range by range. Clones are the same reservation; the
/// last one unmaps it.
///
/// Offsets and lengths of pages are bytes and multiples of [`PAGE_BYTES`]. A forked child inherits
/// the mappings as they are, and with them the memory that fills them; windows it does not inherit.
#[derive(Clone)]
pub struct Reservation(Arc<Place>);

struct Place {
    base: *mut u8,
    len: u64,
    /// Process that made it.
    pid: u32,
    table: Mutex<Inside>,
}

/// What is in a reservation. No piece lies in a window.
#[derive(Default)]
struct Inside {
    pieces: Table,
    /// By first byte.
    windows: BTreeMap<u64, Window>,
}

/// Pages of a window.
struct Part<'a> {
    window: &'a mut Window,
    /// First byte of the window.
    at: u64,
    /// Counted from there.
    pages: Range<usize>,
}

impl Inside {
    /// The window that a byte lies in, and its first byte.
    fn window_at(&self, offset: u64) -> Option<(u64, &Window)> {
        let (at, window) = self.windows.range(..=offset).next_back()?;
        (offset - at < window.len() as u64).then_some((*at, window))
    }

    /// The pages of a window that a range is made of; none: no window is there.
    fn window(&mut self, range: &Range<u64>) -> Result<Option<Part<'_>>, ReservationError> {
        let Some((at, window)) = self.windows.range_mut(..range.end).next_back() else { return Ok(None) };
        let end = at + window.len() as u64;
        if end <= range.start {
            return Ok(None);
        }
        if range.start < *at || end < range.end {
            return Err(ReservationError::Edge { offset: range.start, len: range.end - range.start });
        }
        let page = |offset| ((offset - at) / PAGE) as usize;
        Ok(Some(Part { window, at: *at, pages: page(range.start)..page(range.end) }))
    }
}

// SAFETY: the pointer is to addresses that the value owns as long as it lives; they are reached by
// raw copies and atomics only, and their mappings change under the lock of the table.
unsafe impl Send for Place {}
// SAFETY: as for Send.
unsafe impl Sync for Place {}

impl Reservation {
    /// Reserves `len` bytes where the kernel finds room. No memory, no access.
    ///
    /// # Errors
    /// [`ReservationError::Size`], [`ReservationError::Mappings`].
    pub fn new(len: u64) -> Result<Reservation, ReservationError> {
        check_size(len)?;
        Reservation::map(None, len)
    }

    /// Reserves `len` bytes from an address on, for memory that several processes have at the same
    /// place. Nothing that is mapped there is replaced.
    ///
    /// # Errors
    /// [`ReservationError::Taken`] if any of it is in use; [`ReservationError::Address`],
    /// [`ReservationError::Size`], [`ReservationError::Mappings`].
    ///
    /// ```
    /// use vmmc_host::reservation::{Reservation, ReservationError};
    /// let first = Reservation::new(4096)?;
    /// let second = Reservation::at(first.address(), 4096);
    /// assert!(matches!(second, Err(ReservationError::Taken { .. })));
    /// # Ok::<(), ReservationError>(())
    /// ```
    pub fn at(address: usize, len: u64) -> Result<Reservation, ReservationError> {
        check_size(len)?;
        let start = address as u64;
        let fits = start.checked_add(len).is_some_and(|end| end <= ADDRESSES_END);
        if start == 0 || start % PAGE != 0 || !fits {
            return Err(ReservationError::Address { address: start, len });
        }
        Reservation::map(Some(address), len)
    }

    fn map(address: Option<usize>, len: u64) -> Result<Reservation, ReservationError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let (wanted, flags) = match address {
            Some(address) => (address, flags | MapFlags::FIXED_NOREPLACE),
            None => (0, flags),
        };
        let taken = || ReservationError::Taken { address: wanted as u64, len };
        // SAFETY: a fresh mapping where nothing is: the kernel chooses the place, or refuses a
        // chosen one that is in use.
        let base = unsafe { rustix::mm::mmap_anonymous(wanted as *mut _, len as usize, ProtFlags::empty(), flags) }
            .map_err(|errno| if errno == Errno::EXIST { taken() } else { refused("mmap", errno) })?;
        let place =
            Reservation(Arc::new(Place { base: base.cast(), len, pid: std::process::id(), table: Mutex::default() }));
        // Linux before 4.17 takes the address for a wish. Dropping unmaps what it gave instead.
        if address.is_some_and(|address| address != place.address()) { Err(taken()) } else { Ok(place) }
    }

    /// Bytes.
    pub fn len_bytes(&self) -> u64 {
        self.0.len
    }

    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.0.base as usize
    }

    /// Raw pointer to the first byte: what a model gives its program, whose every access the
    /// program itself vouches for.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.base
    }

    /// Puts pages of a region in the place of `len` bytes from `offset` on, whatever they had. The
    /// region is the second view of the same bytes; it is kept until the range is released or
    /// filled anew.
    ///
    /// Pages that [`Region::move_pages`] moves, or [`Region::cut_off`] replaces, stay here as they
    /// were.
    ///
    /// Pages of a window are shown: the region has to be the one that it was opened on, at the same
    /// place. The region gets memory where it has none.
    ///
    /// # Errors
    /// [`ReservationError::Pages`], [`ReservationError::RegionPages`],
    /// [`ReservationError::ReadOnly`], [`ReservationError::Ranges`],
    /// [`ReservationError::Mappings`]; of windows [`ReservationError::Edge`],
    /// [`ReservationError::OtherMemory`], [`ReservationError::Forked`].
    pub fn fill(
        &self,
        offset: u64,
        region: &Region,
        region_offset: u64,
        len: u64,
        access: Access,
    ) -> Result<(), ReservationError> {
        let range = self.pages(offset, len)?;
        let size = region.len_bytes();
        if !are_pages(region_offset, len, size.next_multiple_of(PAGE)) {
            return Err(ReservationError::RegionPages { offset: region_offset, len, size });
        }
        if access == Access::ReadWrite && !region.takes_writers()? {
            return Err(ReservationError::ReadOnly { offset });
        }
        let mut table = self.table()?;
        if let Some(Part { window, at, pages }) = table.window(&range)? {
            if !window.shows(offset - at, region, region_offset) {
                return Err(ReservationError::OtherMemory { offset });
            }
            return window.set(pages, Some(access));
        }
        let piece = Piece { len, region: region.clone(), region_offset, access };
        self.change(&mut table.pieces, range, Some(piece), |at| {
            // SAFETY: the range is of this reservation, which owns its addresses. The bytes change
            // under the program, which shared memory may do at any time.
            unsafe { region.map_over(at, region_offset, len as usize, rights(access)) }
        })
    }

    /// Sets what the program may do with pages that have memory.
    ///
    /// # Errors
    /// [`ReservationError::NoMemory`] if one of them has none; [`ReservationError::Pages`],
    /// [`ReservationError::ReadOnly`], [`ReservationError::Ranges`],
    /// [`ReservationError::Mappings`]; of windows [`ReservationError::Edge`],
    /// [`ReservationError::Forked`].
    pub fn protect(&self, offset: u64, len: u64, access: Access) -> Result<(), ReservationError> {
        let range = self.pages(offset, len)?;
        let mut table = self.table()?;
        if let Some(Part { window, at, pages }) = table.window(&range)? {
            if let Some(page) = window.first_absent(&pages) {
                return Err(ReservationError::NoMemory { offset: at + page as u64 * PAGE });
            }
            return window.set(pages, Some(access));
        }
        let table = &mut table.pieces;
        if let Some(offset) = table.first_gap(&range) {
            return Err(ReservationError::NoMemory { offset });
        }
        let old = table.take(&range);
        let closed = old.iter().find(|(_, piece)| piece.region.protection() == Protection::ReadOnly);
        let result = match closed {
            Some((at, _)) if access == Access::ReadWrite => Err(ReservationError::ReadOnly { offset: *at }),
            _ => {
                old.iter().for_each(|(at, piece)| table.put(*at, Piece { access, ..piece.clone() }));
                if table.len() > RESERVATION_RANGES_MAX {
                    Err(ReservationError::Ranges)
                } else {
                    self.mprotect(offset, len, access).map_err(|errno| match errno {
                        Errno::ACCESS => ReservationError::ReadOnly { offset },
                        errno => refused("mprotect", errno),
                    })
                }
            }
        };
        if let Err(ReservationError::Mappings { .. } | ReservationError::Region(_)) = &result {
            // The kernel may have come as far as some of the ranges: back, in steps that it has
            // taken before.
            for (at, piece) in &old {
                let _ = self.mprotect(*at, piece.len, piece.access);
            }
        }
        if result.is_err() {
            table.take(&range);
            old.into_iter().for_each(|(at, piece)| table.put(at, piece));
        }
        result
    }

    fn mprotect(&self, offset: u64, len: u64, access: Access) -> Result<(), Errno> {
        let flags = match access {
            Access::None => MprotectFlags::empty(),
            Access::Read => MprotectFlags::READ,
            Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        // SAFETY: the callers checked that the range is of this reservation, which owns its
        // addresses, and nothing forms references to their bytes that outlive a call.
        unsafe { rustix::mm::mprotect(self.0.base.add(offset as usize).cast(), len as usize, flags) }
    }

    /// Takes the memory away again: no access, and the region is let go, except by a window.
    /// What the region holds beyond this view is its users' matter: see [`Region::release`].
    ///
    /// # Errors
    /// [`ReservationError::Pages`], [`ReservationError::Ranges`], [`ReservationError::Mappings`];
    /// of windows [`ReservationError::Edge`], [`ReservationError::Forked`].
    pub fn release(&self, offset: u64, len: u64) -> Result<(), ReservationError> {
        let range = self.pages(offset, len)?;
        let mut table = self.table()?;
        if let Some(Part { window, pages, .. }) = table.window(&range)? {
            return window.set(pages, None);
        }
        self.change(&mut table.pieces, range, None, |at| {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: as in `fill`.
            unsafe { rustix::mm::mmap_anonymous(at.cast(), len as usize, ProtFlags::empty(), flags) }.map(drop)
        })
    }

    /// Replaces what is mapped at a range, and its entry in the table.
    fn change(
        &self,
        table: &mut Table,
        range: Range<u64>,
        new: Option<Piece>,
        map: impl FnOnce(*mut u8) -> Result<(), Errno>,
    ) -> Result<(), ReservationError> {
        let old = table.take(&range);
        if let Some(piece) = new {
            table.put(range.start, piece);
        }
        let result = if table.len() > RESERVATION_RANGES_MAX {
            Err(ReservationError::Ranges)
        } else {
            // Everything that the kernel refuses it refuses before it takes the old mapping away:
            // bounds are checked first, writing was checked by the caller.
            map(self.0.base.wrapping_add(range.start as usize)).map_err(|errno| refused("mmap", errno))
        };
        if result.is_err() {
            table.take(&range);
            old.into_iter().for_each(|(at, piece)| table.put(at, piece));
        }
        result
    }

    /// What the program may do with the page that a byte lies in; none: it has no memory, or is
    /// outside.
    pub fn access(&self, offset: u64) -> Option<Access> {
        let table = self.table().ok()?;
        match table.window_at(offset) {
            Some((at, window)) => window.access(((offset - at) / PAGE) as usize),
            None => table.pieces.at(offset).map(|(_, piece)| piece.access),
        }
    }

    /// The second view of the memory from a byte on, up to the end of its range; none: it has no
    /// memory, or is outside.
    pub fn behind(&self, offset: u64) -> Option<Span> {
        let table = self.table().ok()?;
        if let Some((at, window)) = table.window_at(offset) {
            return window.behind(offset - at);
        }
        let (at, piece) = table.pieces.at(offset)?;
        let into = offset - at;
        Some(Span { region: piece.region.clone(), offset: piece.region_offset + into, len: piece.len - into })
    }

    /// Ranges that differ from their neighbours in memory or access. Each is a mapping of the
    /// kernel's, as is each gap between two of them. A window is one, whatever its pages allow.
    pub fn ranges(&self) -> usize {
        self.table().map_or(0, |table| table.pieces.len() + table.windows.len())
    }

    /// Opens a window on a region: its pages are shown one by one, by [`fill`](Self::fill).
    pub(crate) fn open_window(
        &self,
        range: Range<u64>,
        region: &Region,
        region_offset: u64,
        descriptor: &Arc<Descriptor>,
    ) -> Result<(), ReservationError> {
        let len = range.end - range.start;
        let size = region.len_bytes();
        if !are_pages(region_offset, len, size.next_multiple_of(PAGE)) {
            return Err(ReservationError::RegionPages { offset: region_offset, len, size });
        }
        let mut table = self.table()?;
        if table.window(&range)?.is_some() {
            return Err(ReservationError::Filled { offset: range.start });
        }
        if let Some(offset) = table.pieces.first_filled(&range) {
            return Err(ReservationError::Filled { offset });
        }
        let base = self.0.base.wrapping_add(range.start as usize);
        // SAFETY: the range is of this reservation, which owns its addresses, and has no memory.
        // The window is closed before the reservation ends: the caller that opened it ensures that.
        match unsafe { Window::open(base, len, region, region_offset, descriptor) } {
            Ok(window) => {
                table.windows.insert(range.start, window);
                Ok(())
            }
            Err((call, errno)) => {
                // Back: what may be mapped there now has no access, as what was there before.
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
                // SAFETY: as above.
                let _ = unsafe { rustix::mm::mmap_anonymous(base.cast(), len as usize, ProtFlags::empty(), flags) };
                Err(refused(call, errno))
            }
        }
    }

    /// Closes the window that starts at a byte: the range is reserved address space again.
    pub(crate) fn close_window(&self, start: u64) {
        let Ok(mut table) = self.table() else { return };
        if let Some(window) = table.windows.remove(&start) {
            window.close();
        }
    }

    /// Maps the page of a window that a byte lies in once more, if the program may touch it.
    pub(crate) fn show_again(&self, offset: u64) -> Result<(), ReservationError> {
        let table = self.table()?;
        match table.window_at(offset) {
            Some((at, window)) => window.show_again(((offset - at) / PAGE) as usize),
            None => Ok(()),
        }
    }

    /// Makes threads that wait for the page of a window that a byte lies in get SIGSEGV.
    pub(crate) fn refuse(&self, offset: u64, is_store: bool) -> Result<(), ReservationError> {
        let page = offset / PAGE * PAGE;
        match self.table()?.window(&(page..page + PAGE))? {
            Some(Part { window, pages, .. }) => {
                window.refuse(pages.start, is_store).map_err(|errno| refused("mprotect", errno))
            }
            None => Ok(()),
        }
    }

    /// Loads bytes as the program does: what the access of a page does not allow is a page fault,
    /// which ends the process unless somebody serves it.
    ///
    /// # Errors
    /// [`ReservationError::Outside`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), ReservationError> {
        self.check(offset, into.len() as u64)?;
        // SAFETY: the range was checked and the addresses belong to the reservation, which lives as
        // long as `self`; where there is no access the processor faults, and no byte is read.
        // `into` is private memory.
        unsafe { copy::bulk(self.0.base.add(offset as usize), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Stores bytes as the program does; the last one becomes visible last. Page faults as for
    /// [`read`](Self::read).
    ///
    /// # Errors
    /// [`ReservationError::Outside`].
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), ReservationError> {
        self.check(offset, data.len() as u64)?;
        let to = self.0.base.wrapping_add(offset as usize);
        // SAFETY: as for `read`, with a store instead of a load.
        unsafe { copy::deposit(crate::stores::Store::Cached, data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Loads an aligned word, acquiring. Page faults as for [`read`](Self::read).
    ///
    /// # Errors
    /// [`ReservationError::Outside`], [`ReservationError::Misaligned`].
    pub fn load(&self, offset: u64) -> Result<u64, ReservationError> {
        let word = self.word(offset)?;
        // SAFETY: `word` checked range and alignment; as for `read` a missing right faults.
        Ok(unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire))
    }

    /// Stores an aligned word, releasing. Page faults as for [`read`](Self::read).
    ///
    /// # Errors
    /// [`ReservationError::Outside`], [`ReservationError::Misaligned`].
    pub fn store(&self, offset: u64, value: u64) -> Result<(), ReservationError> {
        let word = self.word(offset)?;
        // SAFETY: as for `load`.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
        Ok(())
    }

    fn word(&self, offset: u64) -> Result<*mut u64, ReservationError> {
        self.check(offset, 8)?;
        if offset % 8 != 0 {
            return Err(ReservationError::Misaligned { offset });
        }
        Ok(self.0.base.wrapping_add(offset as usize).cast())
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), ReservationError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.0.len => Ok(()),
            _ => Err(ReservationError::Outside { offset, len, size: self.0.len }),
        }
    }

    /// Checks that a range is made of pages of the reservation.
    pub(crate) fn pages(&self, offset: u64, len: u64) -> Result<Range<u64>, ReservationError> {
        let size = self.0.len;
        let wrong = ReservationError::Pages { offset, len, size };
        if are_pages(offset, len, size) { Ok(offset..offset + len) } else { Err(wrong) }
    }

    /// What is in it. In the child of a fork the lock may be one that a thread of the parent held
    /// at that moment, and that nobody gives back: there it is waited for with a bound.
    fn table(&self) -> Result<MutexGuard<'_, Inside>, ReservationError> {
        match self.0.table.try_lock() {
            Ok(inside) => Ok(inside),
            Err(_) if std::process::id() == self.0.pid => {
                Ok(self.0.table.lock().expect("no panic while the lock is held"))
            }
            Err(_) => self.inherited_table(),
        }
    }

    #[cold]
    fn inherited_table(&self) -> Result<MutexGuard<'_, Inside>, ReservationError> {
        let begun = Instant::now();
        while begun.elapsed() < INHERITED_LOCK_WAIT {
            if let Ok(inside) = self.0.table.try_lock() {
                return Ok(inside);
            }
            std::thread::yield_now();
        }
        Err(ReservationError::Forked)
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation").field("address", &self.0.base).field("len_bytes", &self.0.len).finish()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let inside = self.table.get_mut().unwrap_or_else(|e| e.into_inner());
        // Windows keep their reservation, and have been closed.
        debug_assert!(inside.windows.is_empty(), "a window is open yet");
        let table = &mut inside.pieces;
        // From the end, each address once: what is unmapped may be another thread's a moment later.
        // Memory goes a piece at a time, as that of a region does; gaps have none and go at once.
        let mut end = self.len;
        for (at, piece) in std::mem::take(table).into_pieces().rev() {
            self.unmap(at + piece.len..end);
            end = at + piece.len;
            while end > at {
                let step = (end - at - 1) % UNMAP_BYTES_MAX as u64 + 1;
                self.unmap(end - step..end);
                end -= step;
            }
        }
        self.unmap(0..end);
    }
}

impl Place {
    fn unmap(&self, range: Range<u64>) {
        if !range.is_empty() {
            let (at, len) = (self.base.wrapping_add(range.start as usize), range.end - range.start);
            // SAFETY: a part of the reservation that is mapped yet, and no clone is left. A refusal
            // leaves it mapped, and nobody uses it.
            let _ = unsafe { rustix::mm::munmap(at.cast(), len as usize) };
        }
    }
}

fn check_size(len: u64) -> Result<(), ReservationError> {
    let fits = (PAGE..=RESERVATION_BYTES_MAX).contains(&len) && len % PAGE == 0;
    if fits { Ok(()) } else { Err(ReservationError::Size { len }) }
}

/// Whether a range is at least one whole page, and lies in `size` bytes.
fn are_pages(offset: u64, len: u64, size: u64) -> bool {
    len > 0 && offset % PAGE == 0 && len % PAGE == 0 && offset.checked_add(len).is_some_and(|end| end <= size)
}

fn rights(access: Access) -> ProtFlags {
    match access {
        Access::None => ProtFlags::empty(),
        Access::Read => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    }
}

fn refused(call: &'static str, errno: Errno) -> ReservationError {
    match errno {
        Errno::NOMEM => ReservationError::Mappings { call, errno },
        errno => RegionError::System { call, errno }.into(),
    }
}

#[cfg(all(test, not(miri)))]
pub(crate) mod tests;
