//! Pages of a region on their way into a datagram by reference: what the kernel takes from a pipe it need not copy.
//!
//! ```text
//! region ──vmsplice──► pipe ──splice──► datagram in the receiver's queue ──receive──► buffer
//!            pages, not bytes                                       the only copy
//! ```
//!
//! Invariant: between two sends the pipe is empty and the socket holds no part of a datagram. The receiver gets what the memory holds when it takes the datagram,
//! so only memory that stays as it is until it has arrived goes this way. Source: [NT §3] (data moves without a copy on the sending side), `vmsplice(2)`, `splice(2)`.

use crate::Region;
use crate::limits::{SPLICE_FAILURES_MAX, SPLICED_PAGES_MAX};
use crate::region::PAGE_BYTES;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A pipe for pages, opened when first used.
#[derive(Debug, Default)]
pub struct PagePipe {
    ends: Option<(OwnedFd, OwnedFd)>,
    /// Failures in a row; from [`SPLICE_FAILURES_MAX`] on it is not tried again.
    failures: u32,
}

impl PagePipe {
    /// A pipe that is not open yet.
    pub fn new() -> PagePipe {
        PagePipe::default()
    }

    /// Whether `len` bytes from `offset` on can go this way: a datagram holds references to so many pages only, and a kernel that refused again and again is not
    /// asked any more.
    #[inline]
    pub fn takes(&self, offset: u64, len: usize) -> bool {
        let first = offset as usize % PAGE_BYTES;
        self.failures < SPLICE_FAILURES_MAX && (first + len).div_ceil(PAGE_BYTES) <= SPLICED_PAGES_MAX
    }

    /// Puts references to the pages of a range into the pipe.
    ///
    /// # Panics
    /// If the range is not in the region.
    pub(crate) fn fill(&mut self, region: &Region, offset: u64, len: usize) -> io::Result<()> {
        region.check(offset, len as u64).expect("the caller looked the range up");
        let filled = self.try_fill(region, offset, len);
        self.note(filled)
    }

    fn try_fill(&mut self, region: &Region, offset: u64, len: usize) -> io::Result<()> {
        if self.ends.is_none() {
            self.ends = Some(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?);
        }
        let (_, write) = self.ends.as_ref().expect("opened just now");
        let memory = region.as_ptr().wrapping_add(offset as usize);
        let piece = libc::iovec { iov_base: memory.cast(), iov_len: len };
        // SAFETY: the piece is a range of a region, checked by the caller, and stays mapped for the call; the kernel takes references to its pages and reads no byte.
        let took = unsafe { libc::vmsplice(write.as_raw_fd(), &raw const piece, 1, libc::SPLICE_F_NONBLOCK) };
        match took {
            _ if took == len as isize => Ok(()),
            0.. => Err(io::Error::other(format!("the pipe took {took} of {len} bytes"))),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Moves all that is in the pipe, `len` bytes, behind what the socket holds back of a datagram.
    pub(crate) fn empty_into(&mut self, socket: &impl AsFd, len: usize) -> io::Result<()> {
        let moved = match &self.ends {
            Some((read, _)) => splice(read, None, socket, None, len, SpliceFlags::MORE | SpliceFlags::NONBLOCK),
            None => Err(Errno::BADF),
        };
        let moved = match moved {
            Ok(moved) if moved == len => Ok(()),
            Ok(moved) => Err(io::Error::other(format!("the socket took {moved} of {len} bytes"))),
            Err(errno) => Err(errno.into()),
        };
        self.note(moved)
    }

    /// Forgets what is in the pipe.
    pub(crate) fn discard(&mut self) {
        self.ends = None;
    }

    fn note(&mut self, outcome: io::Result<()>) -> io::Result<()> {
        self.failures = if outcome.is_ok() { self.failures } else { self.failures + 1 };
        if outcome.is_err() {
            self.discard();
        }
        outcome
    }

    /// A datagram went out.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }
}
