//! The one place that speaks to the kernel's userfaultfd: opening it, asking what it offers, and
//! the calls on ranges.
//!
//! Invariants: a descriptor is for user mode only unless it says otherwise, which needs no
//! privilege. No call here locks or allocates, so a thread that other threads' munmap waits for can
//! make them. Pins have a descriptor of their own (`pin/watch.rs`): who asks for events of munmap
//! stops every munmap of what is registered with it, and is told "again" while any of them is under
//! way, which is how pins learn of it. Source: userfaultfd(2), ioctl_userfaultfd(2).

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
const UFFD_API: u64 = 0xaa;
const USER_MODE_ONLY: i32 = 1;

/// Features of `UFFDIO_API`.
pub(crate) mod feature {
    pub(crate) const WRITE_PROTECT: u64 = 1 << 0;
    pub(crate) const EVENT_REMAP: u64 = 1 << 2;
    pub(crate) const EVENT_REMOVE: u64 = 1 << 3;
    pub(crate) const MISSING_SHMEM: u64 = 1 << 5;
    pub(crate) const EVENT_UNMAP: u64 = 1 << 6;
    pub(crate) const MINOR_SHMEM: u64 = 1 << 10;
    pub(crate) const WRITE_PROTECT_SHMEM: u64 = 1 << 12;
    pub(crate) const WRITE_PROTECT_ASYNC: u64 = 1 << 15;
}

/// What a range is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Mode {
    /// Pages that nothing is mapped at.
    Missing = 1 << 0,
    /// Pages that are marked as protected against writing.
    #[cfg_attr(not(test), expect(dead_code, reason = "no range is served this way yet; a test asks for it"))]
    WriteProtect = 1 << 1,
    /// Pages that are in the file and not in the mapping.
    #[cfg_attr(not(test), expect(dead_code, reason = "as above"))]
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
    /// Pages that note a first write without a fault that anybody hears of (Linux 6.7).
    pub write_protect_async: bool,
    /// Faults of system calls too, not of the program's own instructions alone: for privileged
    /// processes, or where `vm.unprivileged_userfaultfd` is 1.
    pub kernel_faults: bool,
}

/// A userfaultfd after its handshake.
pub(crate) struct Descriptor(OwnedFd);

impl Descriptor {
    /// A descriptor for user mode only, with these features. Reads do not wait.
    pub(crate) fn open(features: u64) -> Result<Descriptor, (&'static str, Errno)> {
        let descriptor = Descriptor(userfaultfd(USER_MODE_ONLY)?);
        descriptor.shake_hands(features)?;
        Ok(descriptor)
    }

    /// What the kernel offers. Opens a descriptor and closes it again.
    pub(super) fn offers() -> Result<Offers, (&'static str, Errno)> {
        let (fd, kernel_faults) = match userfaultfd(0) {
            Ok(fd) => (fd, true),
            Err(_) => (userfaultfd(USER_MODE_ONLY)?, false),
        };
        let there = Descriptor(fd).shake_hands(0)?;
        let has = |feature| there & feature != 0;
        Ok(Offers {
            missing_shared: has(feature::MISSING_SHMEM),
            minor_shared: has(feature::MINOR_SHMEM),
            write_protect_private: has(feature::WRITE_PROTECT),
            write_protect_shared: has(feature::WRITE_PROTECT_SHMEM),
            write_protect_async: has(feature::WRITE_PROTECT_ASYNC),
            kernel_faults,
        })
    }

    /// Asks for features, and is told all that there are. Once a descriptor.
    fn shake_hands(&self, features: u64) -> Result<u64, (&'static str, Errno)> {
        let mut api = [UFFD_API, features, 0];
        // SAFETY: UFFDIO_API reads and writes three words, which `api` has.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) } != 0 {
            return Err(("ioctl(UFFDIO_API)", last_errno()));
        }
        Ok(api[1])
    }

    /// Hears of a range's faults from here on, and of its changes if the features say so.
    pub(crate) fn register(&self, start: usize, len: usize, mode: Mode) -> Result<(), (&'static str, Errno)> {
        let mut register = [start as u64, len as u64, mode as u64, 0];
        // SAFETY: UFFDIO_REGISTER reads and writes four words; it changes no memory.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(("ioctl(UFFDIO_REGISTER)", last_errno())),
        }
    }

    /// Hears no more of a range.
    pub(crate) fn unregister(&self, start: usize, len: usize) {
        let range = [start as u64, len as u64];
        // SAFETY: UFFDIO_UNREGISTER reads two words. A range that is not registered is refused,
        // which is as well.
        unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_UNREGISTER, range.as_ptr()) };
    }

    /// Fills missing pages with zeros, and wakes who waits for them. A range of no bytes is always
    /// refused: with `EAGAIN` while a change of a registered range is under way.
    pub(crate) fn zero(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut zero = [start, len, 0, 0];
        // SAFETY: UFFDIO_ZEROPAGE reads and writes four words; it fills missing pages only.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_ZEROPAGE, zero.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
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
