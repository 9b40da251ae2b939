//! Regions: memory shared with other processes, always an unnamed sealed memfd.
//!
//! Invariant: a region cannot shrink (sealed), and its pages are reserved when it is made (or, of a
//! part, before anybody is told of it), so a mapping of it never raises SIGBUS; its bytes are only
//! reached through [`Region`], never as a slice. Source: [NT §3.1] exported buffers stay
//! pinned.
//!
//! Invariant: a descriptor gives what it was opened for and no more. A memfd is a file that every
//! holder of a descriptor can open once more through `/proc/self/fd`, so its mode counts: ours have
//! [`MODE`], and memory that its group or others may write is not mapped.

mod prefetch;

use crate::copy;
use crate::limits::{MEMORY_RESERVE_BYTES, REGION_BYTES_MAX, UNMAP_BYTES_MAX};
use crate::memory;
use crate::overlay::Words;
use crate::stores::Store;
pub use prefetch::Prefetch;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Mode of every memfd. A new one has 0777, with which a holder of a descriptor for reading opens
/// `/proc/self/fd/N` for writing.
///
/// No process opens a memfd for writing: one that may write is handed a descriptor that is open for
/// it. Every holder of one may open it for reading, which gives it nothing new, and which a node of
/// another user than root needs to do for a region of its client.
pub const MODE: Mode = Mode::from_raw_mode(0o444);

/// Write bits of the group and of others: memory that has one is not mapped.
const FOREIGN_WRITE: Mode = Mode::from_raw_mode(0o022);

/// File system type of memfds of ordinary pages, as `fstatfs` reports it (`TMPFS_MAGIC`).
const TMPFS: i64 = 0x0102_1994;
/// The same of memfds of huge pages of the pool (`HUGETLBFS_MAGIC`).
const HUGETLBFS: i64 = 0x958458f6;

/// What this process may do to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Load and store.
    ReadWrite,
    /// Load.
    ReadOnly,
}

/// Why a region could not be made or mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// Zero or above [`REGION_BYTES_MAX`].
    #[error("a region must have between 1 and {REGION_BYTES_MAX} bytes, not {len}")]
    Size {
        /// Bytes asked for.
        len: u64,
    },
    /// Not enough memory now.
    #[error("{len} bytes asked for, {available} available on this machine (of which {reserve} stay in reserve); free memory or ask for less", reserve = MEMORY_RESERVE_BYTES)]
    MemoryShort {
        /// Bytes asked for.
        len: u64,
        /// Bytes that the kernel calls available.
        available: u64,
    },
    /// The descriptor is not one of ours: it could shrink under us, or is shorter than stated.
    #[error("the descriptor is not a sealed memfd of {len} bytes ({why})")]
    Unsealed {
        /// Bytes expected.
        len: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The kernel refused.
    #[error("{call} failed: {errno}")]
    System {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// A range that does not lie in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..{end} do not lie in a region of {size} bytes", end = offset.saturating_add(*len))]
pub struct OutOfBounds {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes of the region.
    pub size: u64,
}

/// Memory shared with other processes. Clones refer to the same mapping; the last one unmaps it.
#[derive(Clone)]
pub struct Region(Arc<Mapping>);

/// A part of a region.
#[derive(Clone)]
pub struct Span {
    /// The region.
    pub region: Region,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Memory that this process makes for others and does not map.
#[derive(Debug)]
pub struct Unmapped {
    fd: OwnedFd,
    bytes: u64,
}

impl Unmapped {
    /// Makes so many bytes of zeros, all their memory reserved.
    pub fn create(bytes: u64) -> Result<Unmapped, RegionError> {
        Ok(Unmapped { fd: reserved_memfd(bytes, bytes)?, bytes: round_up(bytes) as u64 })
    }

    /// A descriptor of the memory, to be passed to another process.
    pub fn share(&self) -> Result<OwnedFd, RegionError> {
        duplicate(&self.fd)
    }

    /// Gives all of it back, whichever other processes have it: see [`Region::empty`].
    pub fn empty(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A kernel that cannot keeps the memory, and nothing else changes.
        let _ = rustix::fs::fallocate(&self.fd, flags, 0, self.bytes);
    }
}

fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, RegionError> {
    fd.try_clone()
        .map_err(|e| RegionError::System { call: "dup", errno: Errno::from_io_error(&e).unwrap_or(Errno::MFILE) })
}

struct Mapping {
    base: *mut u8,
    /// Bytes that may be used, `0 < len <= mapped`.
    len: usize,
    /// Bytes mapped, a multiple of the page size.
    mapped: usize,
    protection: Protection,
    /// The memfd behind the pages. Changes when the pages are moved; none once it was let go.
    fd: Mutex<Option<OwnedFd>>,
    /// What becomes of the address range at the end.
    end: End,
}

/// What [`Mapping`] does when dropped.
enum End {
    Unmap,
    /// The range belongs to the caller's allocator: give it private pages with the same content
    /// again.
    MakePrivate,
}

// SAFETY: the pointer is to a shared mapping that lives as long as the value, every access goes
// through raw pointers or atomics, and concurrent access from other threads is no different from
// that of other processes, which the type is made for.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Region {
    /// Makes a region of `len` bytes of zeros, all its memory reserved.
    pub fn create(len: u64) -> Result<Region, RegionError> {
        let fd = reserved_memfd(len, len)?;
        Region::map_checked(fd, len, Protection::ReadWrite)
    }

    /// Makes a region of which only the first `reserved` bytes have memory. The others get it by
    /// [`reserve`](Self::reserve), and nobody may touch them before.
    pub fn create_in_part(len: u64, reserved: u64) -> Result<Region, RegionError> {
        let fd = reserved_memfd(len, reserved.min(len))?;
        Region::map_checked(fd, len, Protection::ReadWrite)
    }

    /// Makes a region of zeros in a new file of this user's, for what must outlive this process. No
    /// part of it is reserved. A process that may write the file can also shorten it under us: it
    /// belongs into a folder of the user's own.
    pub fn create_in_file(path: &std::path::Path, len: u64) -> Result<Region, RegionError> {
        check_size(len)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .map_err(|errno| RegionError::System { call: "open", errno })?;
        rustix::fs::ftruncate(&fd, len).map_err(|errno| RegionError::System { call: "ftruncate", errno })?;
        Region::map_checked(fd, len, Protection::ReadWrite)
    }

    /// Reserves memory for a part of a region that was made without.
    pub fn reserve(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        self.check(offset, len).map_err(|_| RegionError::Size { len })?;
        let available = memory::available_bytes();
        if available < len.saturating_add(MEMORY_RESERVE_BYTES) {
            return Err(RegionError::MemoryShort { len, available });
        }
        reserve_pages(fd_of(&self.0.fd())?, offset, len)
    }

    /// Has memory for a part, which it may have already, as a page fault would take it: without a
    /// question of what remains available.
    pub(crate) fn allocate(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        reserve_pages(fd_of(&self.0.fd())?, offset, len)
    }

    /// Gives the memory of a part back, which reads as zeros from here on and must be reserved
    /// before it is used again.
    pub fn release(&self, offset: u64, len: u64) {
        if self.check(offset, len).is_ok() {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A kernel that cannot keeps the memory, and nothing else changes.
            if let Some(fd) = &*self.0.fd() {
                let _ = rustix::fs::fallocate(fd, flags, offset, len);
            }
        }
    }

    /// Gives all memory of a region back, whichever other processes have it: its bytes are zeros
    /// from here on. For what others may keep after it has served. A process that touches it once
    /// more has new pages on its own account; this one must not, for there may be none.
    pub fn empty(&self) {
        if let Some(fd) = &*self.0.fd() {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // As below.
            let _ = rustix::fs::fallocate(fd, flags, 0, self.0.mapped as u64);
            return;
        }
        // SAFETY: the range is that of this mapping, which lives as long as `self`. Its bytes
        // change to zeros under others, which shared memory may do at any time; nothing of this
        // process but `Region` reaches them, and never as a slice.
        let _ = unsafe { rustix::mm::madvise(self.0.base.cast(), self.0.mapped, rustix::mm::Advice::LinuxRemove) };
        // What is mapped for reading, or sealed against writing, keeps its memory, and nothing else
        // changes.
    }

    /// Puts private pages of zeros in the place of all its memory, for this process alone: a thread
    /// that waits for a page of it here goes on. What is stored from here on reaches nobody.
    pub fn cut_off(&self) -> Result<(), RegionError> {
        let prot = match self.0.protection {
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Protection::ReadOnly => ProtFlags::READ,
        };
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is that of this mapping, which lives as long as `self`, and stays
        // mapped with the same protection: it is replaced in one step. Its bytes change to zeros
        // under others, which shared memory may do at any time; nothing of this process but
        // `Region` reaches them, and never as a slice.
        unsafe { rustix::mm::mmap_anonymous(self.0.base.cast(), self.0.mapped, prot, flags) }
            .map(drop)
            .map_err(|errno| RegionError::System { call: "mmap", errno })
    }

    /// Makes a region that only this mapping can write, whichever process gets a descriptor and
    /// whatever it does with it, be it of our own user or of root. Kernels before 5.1 know no such
    /// seal; there the mode alone keeps other users out.
    pub fn create_for_readers(len: u64) -> Result<Region, RegionError> {
        let fd = open_memfd(len, len)?;
        let region = Region::map_checked(fd, len, Protection::ReadWrite)?;
        {
            let fd = region.0.fd();
            let fd = fd_of(&fd)?;
            match rustix::fs::fcntl_add_seals(fd, SIZE_SEALS | SealFlags::FUTURE_WRITE) {
                Ok(()) => {}
                Err(Errno::INVAL) => seal(fd)?,
                Err(errno) => return Err(RegionError::System { call: "fcntl(F_ADD_SEALS)", errno }),
            }
        }
        Ok(region)
    }

    /// Maps a memfd that came from elsewhere. Refused unless it has `len` bytes of ordinary pages,
    /// all of them there, is sealed against change of size, and is not writable by other users than
    /// its owner.
    pub fn map(fd: OwnedFd, len: u64, protection: Protection) -> Result<Region, RegionError> {
        Region::map_in_part(fd, len, len, protection)
    }

    /// The same for a memfd that has memory for `reserved` bytes at least.
    pub fn map_in_part(fd: OwnedFd, len: u64, reserved: u64, protection: Protection) -> Result<Region, RegionError> {
        check_size(len)?;
        let seals =
            rustix::fs::fcntl_get_seals(&fd).map_err(|_| RegionError::Unsealed { len, why: "it takes no seals" })?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RegionError::Unsealed { len, why: "it is not sealed against shrinking" });
        }
        if !seals.contains(SealFlags::GROW) {
            return Err(RegionError::Unsealed { len, why: "it is not sealed against growing" });
        }
        let system = |call| move |errno| RegionError::System { call, errno };
        let kind = rustix::fs::fstatfs(&fd).map_err(system("fstatfs"))?.f_type as i64;
        let stat = rustix::fs::fstat(&fd).map_err(system("fstat"))?;
        let size = round_up(len) as u64;
        // Pages that a file has elsewhere, beyond its end too, would hide holes from the count of
        // its blocks. To ask for the first hole is no way: memory that was reserved and never
        // touched counts as one.
        let reserved = if reserved >= len { size } else { reserved };
        let blocks = stat.st_blocks as u64 * 512;
        let inside =
            if blocks < reserved { blocks } else { blocks - memory_beyond(&fd, size).unwrap_or(0).min(blocks) };
        let why = match stat.st_size as u64 {
            _ if kind == HUGETLBFS => {
                "it has huge pages of the pool, which can run out; use ordinary memory, to which transparent huge pages belong"
            }
            _ if kind != TMPFS => "it is no memfd",
            _ if Mode::from_raw_mode(stat.st_mode).intersects(FOREIGN_WRITE) => {
                "its mode lets other users open it for writing; fchmod it to 0444 when it is made"
            }
            there if there < size => "it is shorter",
            there if there > size => "it is longer",
            _ if inside < reserved => "its memory is not reserved",
            _ => return Region::map_checked(fd, len, protection),
        };
        Err(RegionError::Unsealed { len, why })
    }

    fn map_checked(fd: OwnedFd, len: u64, protection: Protection) -> Result<Region, RegionError> {
        let mapped = round_up(len);
        let prot = match protection {
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Protection::ReadOnly => ProtFlags::READ,
        };
        // SAFETY: a fresh mapping at an address that the kernel chooses; it aliases nothing of this
        // process.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), mapped, prot, MapFlags::SHARED, &fd, 0) }
            .map_err(|errno| RegionError::System { call: "mmap", errno })?;
        Ok(Region(Arc::new(Mapping {
            base: base.cast(),
            len: len as usize,
            mapped,
            protection,
            fd: Mutex::new(Some(fd)),
            end: End::Unmap,
        })))
    }

    /// Replaces the private pages of `base..base + mapped` by those of a new memfd with the same
    /// content.
    ///
    /// # Safety
    /// The range is page-aligned, private, readable and writable memory that stays allocated as
    /// long as the region lives, and no thread writes to it during this call and during the drop of
    /// the last clone.
    pub(crate) unsafe fn take_over(base: *mut u8, mapped: usize) -> Result<Region, RegionError> {
        let fd = reserved_memfd(mapped as u64, mapped as u64)?;
        // SAFETY: the caller vouches for the range and for the absence of writers.
        unsafe { swap_pages(base, mapped, Some(&fd))? };
        let mapping = Mapping {
            base,
            len: mapped,
            mapped,
            protection: Protection::ReadWrite,
            fd: Mutex::new(Some(fd)),
            end: End::MakePrivate,
        };
        Ok(Region(Arc::new(mapping)))
    }

    /// Moves the content onto new pages, so that a process that maps the old ones no longer reaches
    /// it (revocation by moving). Returns the new memfd.
    ///
    /// Stores that other threads of this process make during the call may be lost; the caller stops
    /// them.
    pub fn move_pages(&self) -> Result<OwnedFd, RegionError> {
        let mut fd = self.0.fd();
        let new = reserved_memfd(self.0.len as u64, self.0.len as u64)?;
        // SAFETY: the mapping is ours and lives as long as `self`; it is swapped by an atomic
        // mremap, so every access sees old or new pages with the same content. Concurrent stores
        // may be lost, which the documentation says, but touch no foreign memory.
        unsafe { swap_pages(self.0.base, self.0.mapped, Some(&new))? };
        let clone = duplicate(&new)?;
        *fd = Some(new);
        Ok(clone)
    }

    /// Bytes.
    pub fn len_bytes(&self) -> u64 {
        self.0.len as u64
    }

    /// Bytes of memory that the file behind it has now, which may be more or less than its own; 0
    /// if that is not known.
    pub fn occupied_bytes(&self) -> u64 {
        let fd = self.0.fd();
        let stat = fd.as_ref().and_then(|fd| rustix::fs::fstat(fd).ok());
        stat.map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    /// What this process may do to the bytes.
    pub fn protection(&self) -> Protection {
        self.0.protection
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> usize {
        self.0.base as usize
    }

    /// Raw pointer to the first byte, for callers that take the responsibility of shared memory
    /// themselves.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.base
    }

    /// How many clones there are, this one included: at 1 the lender of the memory of a region
    /// knows that nobody else uses it any more.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Closes the descriptor of the memory: it stays mapped, and can be neither shared on nor
    /// changed from here. For memory that came from elsewhere, in a process whose descriptors are
    /// others'.
    pub fn let_descriptor_go(&self) {
        *self.0.fd() = None;
    }

    /// A descriptor of the memory, to be passed to another process.
    pub fn share(&self) -> Result<OwnedFd, RegionError> {
        let fd = self.0.fd();
        duplicate(fd_of(&fd)?)
    }

    /// Maps whole pages of the region once more, present and locked in memory. The caller owns the
    /// mapping.
    pub(crate) fn map_locked(&self, offset: u64, len: usize) -> Result<*mut core::ffi::c_void, Errno> {
        let fd = self.0.fd();
        let fd = fd.as_ref().ok_or(Errno::BADF)?;
        let flags = MapFlags::SHARED | MapFlags::LOCKED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, fd, offset) }
    }

    /// Whether pages of the region can be mapped for writing in this process: it is itself, and no
    /// seal forbids more such mappings.
    pub(crate) fn takes_writers(&self) -> Result<bool, RegionError> {
        let fd = self.0.fd();
        // A file in a folder takes no seals.
        let seals = rustix::fs::fcntl_get_seals(fd_of(&fd)?).unwrap_or(SealFlags::empty());
        let sealed = seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
        Ok(self.0.protection == Protection::ReadWrite && !sealed)
    }

    /// Whether it is shared memory, and no file of a file system with a disk.
    pub(crate) fn is_memfd(&self) -> Result<bool, RegionError> {
        // Only shared memory takes seals.
        Ok(rustix::fs::fcntl_get_seals(fd_of(&self.0.fd())?).is_ok())
    }

    /// Whether it is a clone of the other.
    pub(crate) fn is_same(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Maps whole pages of the region once more, in the place of whatever is mapped there.
    ///
    /// # Safety
    /// The `len` bytes from `at` on are the caller's own mapping, and nothing refers to what they
    /// hold.
    pub(crate) unsafe fn map_over(&self, at: *mut u8, offset: u64, len: usize, prot: ProtFlags) -> Result<(), Errno> {
        let fd = self.0.fd();
        let fd = fd.as_ref().ok_or(Errno::BADF)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the caller vouches for the addresses.
        unsafe { rustix::mm::mmap(at.cast(), len, prot, flags, fd, offset) }.map(drop)
    }

    /// A descriptor through which the memory can be mapped for reading only.
    pub fn share_read_only(&self) -> Result<OwnedFd, RegionError> {
        let fd = self.0.fd();
        let path = format!("/proc/self/fd/{}", fd_of(&fd)?.as_fd().as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty())
            .map_err(|errno| RegionError::System { call: "open /proc/self/fd", errno })
    }

    /// Checks that a range lies in the region.
    #[inline]
    pub fn check(&self, offset: u64, len: u64) -> Result<(), OutOfBounds> {
        let size = self.0.len as u64;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(OutOfBounds { offset, len, size }),
        }
    }

    /// Stores bytes; the last one becomes visible last.
    ///
    /// # Panics
    /// If the region is mapped for reading only: callers hold a write right or own the region.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        self.write_by(Store::Cached, offset, data)
    }

    /// The same, by stores that the caller has found to pay.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_by(&self, how: Store, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        assert_eq!(self.0.protection, Protection::ReadWrite, "write to a region mapped for reading");
        self.check(offset, data.len() as u64)?;
        // SAFETY: the range was checked, the mapping lives as long as `self`, and `data` is private
        // memory, so it does not overlap a shared mapping.
        unsafe { copy::deposit(how, data.as_ptr(), self.0.base.add(offset as usize), data.len()) };
        Ok(())
    }

    /// As [`write_by`](Self::write_by), but the bytes become visible in any order: for memory whose
    /// length is reported elsewhere, afterwards.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_unordered(&self, how: Store, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        assert_eq!(self.0.protection, Protection::ReadWrite, "write to a region mapped for reading");
        self.check(offset, data.len() as u64)?;
        // SAFETY: as for `write_by`.
        unsafe { copy::bulk_by(how, data.as_ptr(), self.0.base.add(offset as usize), data.len()) };
        Ok(())
    }

    /// Loads bytes. If others store meanwhile, old and new bytes may be mixed.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, into.len() as u64)?;
        // SAFETY: the range was checked, the mapping lives as long as `self`, and `into` is private
        // memory.
        unsafe { copy::bulk(self.0.base.add(offset as usize), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Whether the bytes from `offset` on are those of `data`; false outside of the region.
    #[inline]
    pub fn equals(&self, offset: u64, data: &[u8]) -> bool {
        if self.check(offset, data.len() as u64).is_err() {
            return false;
        }
        // SAFETY: the range was checked and the mapping lives as long as `self`; if others store
        // meanwhile, the answer is that of some mixture of bytes.
        unsafe { libc::memcmp(self.0.base.add(offset as usize).cast(), data.as_ptr().cast(), data.len()) == 0 }
    }

    /// Copies to another region (or another part of this one); the last byte becomes visible last.
    ///
    /// # Panics
    /// If `to` is mapped for reading only.
    pub fn copy_to(&self, offset: u64, to: &Region, to_offset: u64, len: u64) -> Result<(), OutOfBounds> {
        self.copy_to_by(Store::Cached, offset, to, to_offset, len)
    }

    /// The same, by stores that the caller has found to pay.
    ///
    /// # Panics
    /// As [`copy_to`](Self::copy_to).
    pub fn copy_to_by(
        &self,
        how: Store,
        offset: u64,
        to: &Region,
        to_offset: u64,
        len: u64,
    ) -> Result<(), OutOfBounds> {
        assert_eq!(to.0.protection, Protection::ReadWrite, "copy to a region mapped for reading");
        self.check(offset, len)?;
        to.check(to_offset, len)?;
        let (from, dest) = (self.0.base.wrapping_add(offset as usize), to.0.base.wrapping_add(to_offset as usize));
        let len = len as usize;
        if (from as usize) < dest as usize + len && (dest as usize) < from as usize + len {
            // SAFETY: both ranges were checked; `copy` allows overlap.
            unsafe { std::ptr::copy(from, dest, len) };
        } else {
            // SAFETY: both ranges were checked and do not overlap in this address space.
            unsafe { copy::deposit(how, from, dest, len) };
        }
        Ok(())
    }

    /// An aligned word of the region as an atomic.
    ///
    /// # Panics
    /// If the offset is not a multiple of 8: callers check the alignment of what users say.
    #[inline]
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, OutOfBounds> {
        self.check(offset, 8)?;
        assert_eq!(offset % 8, 0, "misaligned word");
        // SAFETY: in bounds and aligned (regions start on a page), the mapping lives as long as
        // `self`, and all processes use such words atomically; should one not, the value is
        // garbage, which the caller treats as a claim.
        Ok(unsafe { AtomicU64::from_ptr(self.0.base.add(offset as usize).cast()) })
    }

    /// An aligned half word of the region as an atomic: what a futex sleeps on.
    ///
    /// # Panics
    /// If the offset is not a multiple of 4: callers check the alignment of what users say.
    #[inline]
    pub fn word32(&self, offset: u64) -> Result<&AtomicU32, OutOfBounds> {
        self.check(offset, 4)?;
        assert_eq!(offset % 4, 0, "misaligned half word");
        // SAFETY: as for `word`, with four bytes.
        Ok(unsafe { AtomicU32::from_ptr(self.0.base.add(offset as usize).cast()) })
    }

    /// A structure of atomic words that lies at that offset; [`words!`](crate::words) declares one.
    ///
    /// # Panics
    /// If the offset is not a multiple of the alignment of the structure, or the region is mapped
    /// for reading only: the caller has laid it out.
    #[inline]
    pub fn overlay<W: Words>(&self, offset: u64) -> Result<&W, OutOfBounds> {
        self.check(offset, size_of::<W>() as u64)?;
        let is_fine = offset % align_of::<W>() as u64 == 0 && align_of::<W>() <= PAGE_BYTES;
        assert!(is_fine && self.0.protection == Protection::ReadWrite, "a misplaced structure");
        // SAFETY: in bounds and aligned (regions start on a page), and the mapping lives as long as
        // `self`. The type consists of atomic words, for which every bit pattern is valid and
        // concurrent change is allowed; what others store there is a claim to the caller.
        Ok(unsafe { &*self.0.base.add(offset as usize).cast::<W>() })
    }

    /// `count` consecutive words of the region as atomics.
    ///
    /// # Panics
    /// As for [`word`](Self::word).
    #[inline]
    pub fn words(&self, offset: u64, count: usize) -> Result<&[AtomicU64], OutOfBounds> {
        self.check(offset, count as u64 * 8)?;
        assert_eq!(offset % 8, 0, "misaligned words");
        // SAFETY: as for `word`; AtomicU64 has the layout of u64, so a slice of them covers exactly
        // the checked range.
        Ok(unsafe { std::slice::from_raw_parts(self.0.base.add(offset as usize).cast::<AtomicU64>(), count) })
    }
}

impl Mapping {
    fn fd(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.fd.lock().expect("no panic while the lock is held")
    }
}

/// The descriptor, unless it was let go.
fn fd_of(fd: &Option<OwnedFd>) -> Result<&OwnedFd, RegionError> {
    fd.as_ref().ok_or(RegionError::System { call: "a call on a descriptor that was let go", errno: Errno::BADF })
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} bytes at {:p}, {:?})", self.0.len, self.0.base, self.0.protection)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self.end {
            End::Unmap => {
                // A piece at a time, the last one first: while one is unmapped no other thread of
                // the process can map or unmap anything, and a GiB takes some milliseconds.
                let mut left = self.mapped;
                while left > 0 {
                    let piece = (left - 1) % UNMAP_BYTES_MAX + 1;
                    left -= piece;
                    // SAFETY: the range is the end of what is left of the mapping that this value
                    // owns, and no clone is left.
                    let _ = unsafe { rustix::mm::munmap(self.base.add(left).cast(), piece) };
                }
            }
            // A failure leaves the pages shared, which is what they were; nothing is lost. SAFETY:
            // `take_over`'s caller vouched that the range stays allocated and has no writers during
            // this drop.
            End::MakePrivate => unsafe {
                let _ = swap_pages(self.base, self.mapped, None);
            },
        }
    }
}

fn check_size(len: u64) -> Result<(), RegionError> {
    if len == 0 || len > REGION_BYTES_MAX { Err(RegionError::Size { len }) } else { Ok(()) }
}

fn round_up(len: u64) -> usize {
    (len as usize).next_multiple_of(PAGE_BYTES)
}

/// `cachestat`, the same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// Bytes of memory that a memfd has beyond an offset, which can be more than its size; none: this
/// kernel does not say (Linux before 6.5), or not to us. What is there is counted, some
/// nanoseconds for each page, and where nothing is nothing is looked at.
fn memory_beyond(fd: &OwnedFd, offset: u64) -> Option<u64> {
    // First byte, and bytes; 0: all that follow.
    let range = [offset, 0u64];
    // Pages that are there, dirty, being written, swapped out, swapped out of late.
    let mut counts = [0u64; 5];
    // SAFETY: the kernel reads two and writes five words, to memory of just that size; the
    // descriptor is open.
    let done =
        unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0 as libc::c_uint) };
    (done == 0).then(|| (counts[0] + counts[3]) * PAGE_BYTES as u64)
}

/// What keeps a memfd's size.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// An unnamed memfd of `len` bytes, the pages of the first `reserved` reserved, sealed against
/// every change of size.
fn reserved_memfd(len: u64, reserved: u64) -> Result<OwnedFd, RegionError> {
    let fd = open_memfd(len, reserved)?;
    seal(&fd)?;
    Ok(fd)
}

fn seal(fd: &OwnedFd) -> Result<(), RegionError> {
    rustix::fs::fcntl_add_seals(fd, SIZE_SEALS)
        .map_err(|errno| RegionError::System { call: "fcntl(F_ADD_SEALS)", errno })
}

/// What the kernel calls the memory of regions, for those who look at a process's memory map.
const MEMFD_NAME: &str = "vmmc";

/// Whether the file of a mapping, as the memory map names it, is a region's.
pub(crate) fn is_region(file: &str) -> bool {
    file.strip_prefix("/memfd:") == Some(MEMFD_NAME)
}

/// The same, not sealed yet.
fn open_memfd(len: u64, reserved: u64) -> Result<OwnedFd, RegionError> {
    check_size(len)?;
    let size = round_up(len) as u64;
    let available = memory::available_bytes();
    if available < reserved.saturating_add(MEMORY_RESERVE_BYTES) {
        return Err(RegionError::MemoryShort { len: reserved, available });
    }
    let system = |call| move |errno| RegionError::System { call, errno };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know NOEXEC_SEAL; later ones may be told to refuse memory that
    // could be executed.
    let fd = match rustix::fs::memfd_create(MEMFD_NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(MEMFD_NAME, flags),
        made => made,
    }
    .map_err(system("memfd_create"))?;
    rustix::fs::fchmod(&fd, MODE).map_err(system("fchmod"))?;
    rustix::fs::ftruncate(&fd, size).map_err(system("ftruncate"))?;
    reserve_pages(&fd, 0, round_up(reserved) as u64)?;
    Ok(fd)
}

fn reserve_pages(fd: &OwnedFd, offset: u64, len: u64) -> Result<(), RegionError> {
    match rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, len) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::NOMEM) => Err(RegionError::MemoryShort { len, available: memory::available_bytes() }),
        Err(errno) => Err(RegionError::System { call: "fallocate", errno }),
    }
}

/// Puts new pages with the same content under an address range: those of `fd`, or private ones.
///
/// # Safety
/// The range is page-aligned and mapped readable; nobody else relies on which pages back it. Stores
/// made during the call may be lost.
pub(crate) unsafe fn swap_pages(base: *mut u8, mapped: usize, fd: Option<&OwnedFd>) -> Result<(), RegionError> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh mappings at addresses that the kernel chooses.
    let staged = unsafe {
        match fd {
            Some(fd) => rustix::mm::mmap(std::ptr::null_mut(), mapped, prot, MapFlags::SHARED, fd, 0),
            None => rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, prot, MapFlags::PRIVATE),
        }
    }
    .map_err(|errno| RegionError::System { call: "mmap", errno })?;
    // SAFETY: `staged` is a fresh mapping of `mapped` bytes, `base` is readable for as many. mremap
    // replaces the old pages of `base` in one step; on failure the staged mapping is removed and
    // the old one is untouched.
    unsafe {
        std::ptr::copy_nonoverlapping(base, staged.cast::<u8>(), mapped);
        rustix::mm::mremap_fixed(staged, mapped, mapped, MremapFlags::MAYMOVE, base.cast()).map_err(|errno| {
            let _ = rustix::mm::munmap(staged, mapped);
            RegionError::System { call: "mremap", errno }
        })?;
    }
    Ok(())
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
