//! Other ways of reaching a process's memory, for `vmmc bench utlb` to measure beside the one that
//! is used. Why they are not used is in docs/utlb.md.
//!
//! Invariant: nothing here changes what memory holds.

use rustix::io::Errno;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Locks the pages of a slice in memory.
///
/// # Errors
/// Those of mlock.
pub fn lock(memory: &[u8]) -> Result<()> {
    // SAFETY: locking changes no content and the range is mapped, since it is borrowed.
    unsafe { rustix::mm::mlock(memory.as_ptr() as *mut _, memory.len()) }.map_err(Errno::into)
}

/// Ends [`lock`].
///
/// # Errors
/// Those of munlock.
pub fn unlock(memory: &[u8]) -> Result<()> {
    // SAFETY: as for `lock`.
    unsafe { rustix::mm::munlock(memory.as_ptr() as *mut _, memory.len()) }.map_err(Errno::into)
}

/// Copies by `process_vm_readv`, as a node could that may trace the process.
///
/// # Errors
/// Those of the call.
pub fn read_by_address(from: &[u8], to: &mut [u8]) -> Result<()> {
    let len = from.len().min(to.len());
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: from.as_ptr() as *mut _, iov_len: len };
    // SAFETY: both ranges are borrowed by this call, the one that is written mutably; the process
    // is this one.
    match unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) } {
        n if n == len as isize => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// An io_uring that buffers can be registered with.
pub struct FixedBuffers(OwnedFd);

impl FixedBuffers {
    /// Makes the ring.
    ///
    /// # Errors
    /// Those of io_uring_setup; many containers forbid it.
    pub fn new() -> Result<FixedBuffers> {
        // struct io_uring_params has 120 bytes; all zero asks for a plain ring.
        let mut params = [0u64; 15];
        // SAFETY: the kernel reads and writes the 120 bytes of `params` and gives a descriptor or
        // an error.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else knows.
        Ok(FixedBuffers(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Pins the pages of a slice, until [`unregister`](Self::unregister).
    ///
    /// # Errors
    /// Those of io_uring_register.
    pub fn register(&self, memory: &[u8]) -> Result<()> {
        let vector = libc::iovec { iov_base: memory.as_ptr() as *mut _, iov_len: memory.len() };
        self.call(0, (&raw const vector).cast(), 1)
    }

    /// Ends the pinning.
    ///
    /// # Errors
    /// Those of io_uring_register.
    pub fn unregister(&self) -> Result<()> {
        self.call(1, std::ptr::null(), 0)
    }

    fn call(&self, operation: u32, argument: *const libc::c_void, count: u32) -> Result<()> {
        // SAFETY: `argument` is null, or an iovec that lives until the call returns; no request is
        // ever submitted, so nothing is read or written through it.
        match unsafe { libc::syscall(libc::SYS_io_uring_register, self.0.as_raw_fd(), operation, argument, count) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }
}
