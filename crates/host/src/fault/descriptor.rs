//! The one place that speaks to the kernel's userfaultfd: opening it, asking what it offers, and
//! the calls on ranges.
//!
//! Invariants: a descriptor is for user mode only unless it says otherwise, which needs no
//! privilege. No call here locks or allocates, so a thread that other threads' munmap waits for can
//! make them. A descriptor belongs to the process that opened it: in a forked child it would change
//! the parent's memory, so nobody uses it there. Pins have a descriptor of their own
//! (`pin/watch.rs`): a process that asks for events of munmap stops every munmap of what is
//! registered with it, and gets "again" while any of them is under way, by which pins learn of it.
//!
//! Source: userfaultfd(2), ioctl_userfaultfd(2).

use crate::region::PAGE_BYTES;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_WAKE: u64 = 0x8010_aa02;
const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
const UFFDIO_CONTINUE: u64 = 0xc020_aa07;
const UFFD_API: u64 = 0xaa;
const USER_MODE_ONLY: i32 = 1;
/// Of `UFFDIO_CONTINUE`: the pages are protected against writing from the first moment.
const CONTINUE_PROTECTED: u64 = 1 << 1;
/// Of `UFFDIO_WRITEPROTECT`: protects; without it the call opens, and wakes the waiting threads.
const PROTECT: u64 = 1 << 0;
/// Bytes of a message, `struct uffd_msg`.
pub(crate) const MESSAGE_BYTES: usize = 32;
/// First byte of a message about a page fault.
const PAGE_FAULT: u8 = 0x12;
/// Of a page fault's flags: it was a store.
const IS_STORE: u64 = 1 << 0;

/// Features of `UFFDIO_API`.
pub(crate) mod feature {
    pub(crate) const WRITE_PROTECT: u64 = 1 << 0;
    pub(crate) const EVENT_REMAP: u64 = 1 << 2;
    pub(crate) const MISSING_SHMEM: u64 = 1 << 5;
    pub(crate) const EVENT_UNMAP: u64 = 1 << 6;
    pub(crate) const THREAD_ID: u64 = 1 << 8;
    pub(crate) const MINOR_SHMEM: u64 = 1 << 10;
    pub(crate) const EXACT_ADDRESS: u64 = 1 << 11;
    pub(crate) const WRITE_PROTECT_SHMEM: u64 = 1 << 12;
    pub(crate) const WRITE_PROTECT_ASYNC: u64 = 1 << 15;
    /// What windows need.
    pub(crate) const WINDOWS: u64 =
        MISSING_SHMEM | MINOR_SHMEM | WRITE_PROTECT | WRITE_PROTECT_SHMEM | THREAD_ID | EXACT_ADDRESS;
}

/// What a range is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Mode {
    /// Pages that nothing is mapped at.
    Missing = 1 << 0,
    /// Pages that are marked as protected against writing.
    WriteProtect = 1 << 1,
    /// Pages that are in the file and not in the mapping.
    Minor = 1 << 2,
}

/// What userfaultfd offers a process on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// Faults of pages that shared memory does not have yet.
    pub missing_shared: bool,
    /// Faults of pages that shared memory has and the mapping does not (Linux 5.14).
    pub minor_shared: bool,
    /// Protection against writing for private memory (Linux 5.7).
    pub write_protect_private: bool,
    /// Protection against writing for shared memory (Linux 5.19).
    pub write_protect_shared: bool,
    /// Pages that are shown for reading alone from the first moment (Linux 6.4).
    pub minor_read_only: bool,
    /// The byte that was touched, not its page alone (Linux 5.18).
    pub exact_address: bool,
    /// Pages that note a first write without a fault that is reported (Linux 6.7).
    pub write_protect_async: bool,
    /// Faults of system calls too, not of the program's own instructions alone: for privileged
    /// processes, or where `vm.unprivileged_userfaultfd` is 1.
    pub kernel_faults: bool,
}

impl Offers {
    /// The first thing that a window needs and this kernel lacks; none: windows can be opened.
    pub fn lacks(&self) -> Option<&'static str> {
        let needs = [
            (self.missing_shared, "faults of pages that shared memory lacks"),
            (self.minor_shared, "faults of pages that shared memory has (Linux 5.14)"),
            (self.exact_address, "exact addresses (Linux 5.18)"),
            (self.write_protect_shared, "write protection of shared memory (Linux 5.19)"),
            (self.minor_read_only, "pages that are shown for reading alone (Linux 6.4)"),
        ];
        needs.into_iter().find(|(is_there, _)| !is_there).map(|(_, what)| what)
    }
}

/// A page fault that the kernel reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) address: usize,
    pub(super) is_store: bool,
    pub(super) thread: i32,
}

impl Reported {
    /// What a message says; none: it is about something else.
    pub(super) fn from_message(message: &[u8; MESSAGE_BYTES]) -> Option<Reported> {
        let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().expect("eight bytes"));
        let (flags, address) = (word(8), word(16) as usize);
        // The id is the first half of its word, whatever the order of bytes.
        let thread = i32::from_ne_bytes(message[24..28].try_into().expect("four bytes"));
        (message[0] == PAGE_FAULT).then_some(Reported { address, is_store: flags & IS_STORE != 0, thread })
    }
}

/// A userfaultfd after its handshake.
#[derive(Debug)]
pub(crate) struct Descriptor(OwnedFd);

impl Descriptor {
    /// A descriptor for user mode only, with these features. Reads do not wait.
    pub(crate) fn open(features: u64) -> Result<Descriptor, (&'static str, Errno)> {
        let descriptor = Descriptor(userfaultfd(USER_MODE_ONLY)?);
        descriptor.shake_hands(features)?;
        Ok(descriptor)
    }

    /// A descriptor with these features, for faults of system calls too where that is permitted,
    /// and whether it is.
    pub(super) fn open_widest(features: u64) -> Result<(Descriptor, bool), (&'static str, Errno)> {
        let (descriptor, kernel_faults) = Descriptor::widest()?;
        descriptor.shake_hands(features)?;
        Ok((descriptor, kernel_faults))
    }

    fn widest() -> Result<(Descriptor, bool), (&'static str, Errno)> {
        match userfaultfd(0) {
            Ok(fd) => Ok((Descriptor(fd), true)),
            Err(_) => Ok((Descriptor(userfaultfd(USER_MODE_ONLY)?), false)),
        }
    }

    /// What the kernel offers. Opens a descriptor and closes it again.
    pub(super) fn offers() -> Result<Offers, (&'static str, Errno)> {
        let (descriptor, kernel_faults) = Descriptor::widest()?;
        let there = descriptor.shake_hands(0)?;
        let has = |feature| there & feature != 0;
        // No feature names this mode. A kernel that knows it goes on to look for the range, which
        // is not registered: a page of this thread's stack.
        let on_stack = 0u8;
        let page = &raw const on_stack as usize / PAGE_BYTES * PAGE_BYTES;
        let (_, asked) = descriptor.present(page, PAGE_BYTES, true);
        Ok(Offers {
            missing_shared: has(feature::MISSING_SHMEM),
            minor_shared: has(feature::MINOR_SHMEM),
            write_protect_private: has(feature::WRITE_PROTECT),
            write_protect_shared: has(feature::WRITE_PROTECT_SHMEM),
            minor_read_only: asked == Err(Errno::NOENT),
            exact_address: has(feature::EXACT_ADDRESS),
            write_protect_async: has(feature::WRITE_PROTECT_ASYNC),
            kernel_faults,
        })
    }

    /// Asks for features, and returns all that there are. Once a descriptor.
    fn shake_hands(&self, features: u64) -> Result<u64, (&'static str, Errno)> {
        let mut api = [UFFD_API, features, 0];
        // SAFETY: UFFDIO_API reads and writes three words, which `api` has.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) } != 0 {
            return Err(("ioctl(UFFDIO_API)", last_errno()));
        }
        Ok(api[1])
    }

    /// Receives a range's faults from here on, and its changes if the features say so.
    pub(crate) fn register(&self, start: usize, len: usize, modes: &[Mode]) -> Result<(), (&'static str, Errno)> {
        let modes = modes.iter().fold(0, |all, mode| all | *mode as u64);
        let mut register = [start as u64, len as u64, modes, 0];
        // SAFETY: UFFDIO_REGISTER reads and writes four words; it changes no memory.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(("ioctl(UFFDIO_REGISTER)", last_errno())),
        }
    }

    /// Receives nothing more of a range.
    pub(crate) fn unregister(&self, start: usize, len: usize) {
        let range = [start as u64, len as u64];
        // SAFETY: UFFDIO_UNREGISTER reads two words. A range that is not registered is refused,
        // which is as well.
        unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_UNREGISTER, range.as_ptr()) };
    }

    /// Fills missing pages with zeros, and wakes the threads that wait for them. A range of no
    /// bytes is always refused: with `EAGAIN` while a change of a registered range is under way.
    pub(crate) fn zero(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut zero = [start, len, 0, 0];
        // SAFETY: UFFDIO_ZEROPAGE reads and writes four words; it fills missing pages only.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_ZEROPAGE, zero.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Maps pages that the file has, for reading alone or for writing too, and wakes the threads
    /// that wait for them. Gives the bytes that were mapped, and why not all.
    pub(crate) fn present(&self, start: usize, len: usize, is_read_only: bool) -> (usize, Result<(), Errno>) {
        let mode = if is_read_only { CONTINUE_PROTECTED } else { 0 };
        let mut pages = [start as u64, len as u64, mode, 0];
        // SAFETY: UFFDIO_CONTINUE reads and writes four words. It maps pages of a registered file
        // where nothing is mapped, and shows what the file has there.
        let result = match unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_CONTINUE, pages.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        };
        // The bytes, or an error below zero.
        ((pages[3] as i64).max(0) as usize, result)
    }

    /// Protects pages against writing, those too that are not there yet.
    pub(crate) fn protect(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, PROTECT)
    }

    /// Takes that back, and wakes the threads that wait to write.
    pub(crate) fn open_for_writing(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, 0)
    }

    fn write_protect(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let mut pages = [start as u64, len as u64, mode];
        // SAFETY: UFFDIO_WRITEPROTECT reads three words; it changes rights to registered pages and
        // no memory.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_WRITEPROTECT, pages.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Wakes the threads that wait for pages: they try again.
    pub(crate) fn wake(&self, start: usize, len: usize) {
        let range = [start as u64, len as u64];
        // SAFETY: UFFDIO_WAKE reads two words. It is refused for what is no range of addresses
        // only, for which nobody waits.
        unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_WAKE, range.as_ptr()) };
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn userfaultfd(mode: i32) -> Result<OwnedFd, (&'static str, Errno)> {
    // SAFETY: the call takes flags only and gives a new descriptor or an error.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | mode) };
    if fd < 0 {
        return Err(("userfaultfd", last_errno()));
    }
    // SAFETY: the kernel just gave us this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
