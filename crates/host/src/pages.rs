//! Pages of a region on their way into a datagram by reference: what the kernel takes from a pipe
//! it need not copy.
//!
//! ```text
//! region ──vmsplice──► pipe ──splice──► datagram in the receiver's queue ──receive──► buffer
//!            pages, not bytes                                       the only copy
//! ```
//!
//! Invariant: between two sends the pipe is empty and the socket holds no part of a datagram. The
//! receiver gets what the memory holds when it takes the datagram, so only memory that stays as it
//! is until it has arrived goes this way. Source: [NT §3] (data moves without a copy on the sending
//! side), `vmsplice(2)`, `splice(2)`.

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

    /// Whether `len` bytes from `offset` on can go this way: a datagram holds references to so many
    /// pages only, and a kernel that refused again and again is not asked any more.
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
        if self.ends.is_none() {
            self.ends = Some(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?);
        }
        let (_, write) = self.ends.as_ref().expect("opened just now");
        let memory = region.as_ptr().wrapping_add(offset as usize);
        let piece = libc::iovec { iov_base: memory.cast(), iov_len: len };
        // SAFETY: the piece is a range of a region, checked above, and stays mapped for the call;
        // the kernel takes references to its pages and reads no byte.
        let took = unsafe { libc::vmsplice(write.as_raw_fd(), &raw const piece, 1, libc::SPLICE_F_NONBLOCK) };
        match usize::try_from(took) {
            Ok(took) if took == len => Ok(()),
            Ok(took) => Err(io::Error::other(format!("the pipe took {took} of {len} bytes"))),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Moves all that is in the pipe, `len` bytes, behind what the socket holds back of a datagram.
    pub(crate) fn empty_into(&self, socket: &impl AsFd, len: usize) -> io::Result<()> {
        let (read, _) = self.ends.as_ref().ok_or(Errno::BADF)?;
        match splice(read, None, socket, None, len, SpliceFlags::MORE | SpliceFlags::NONBLOCK)? {
            moved if moved == len => Ok(()),
            moved => Err(io::Error::other(format!("the socket took {moved} of {len} bytes"))),
        }
    }

    /// Notes how the send ended for which it was filled. After an error it is closed, with what is
    /// left in it.
    pub(crate) fn record_outcome(&mut self, sent: &io::Result<()>) {
        match sent {
            Ok(()) => self.failures = 0,
            Err(e) => {
                self.ends = None;
                // A full buffer, and a peer that is gone, say nothing about this way.
                let of_others = matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused);
                self.failures += u32::from(!of_others);
            }
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_this_way_end_it() {
        let mut pipe = PagePipe::new();
        let fail = |pipe: &mut PagePipe, kind: io::ErrorKind, times| {
            (0..times).for_each(|_| pipe.record_outcome(&Err(kind.into())));
            pipe.takes(0, 1)
        };
        for kind in [io::ErrorKind::WouldBlock, io::ErrorKind::ConnectionRefused] {
            assert!(fail(&mut pipe, kind, 100), "{kind}");
        }
        for _ in 0..2 {
            assert!(fail(&mut pipe, io::ErrorKind::InvalidInput, SPLICE_FAILURES_MAX - 1));
            pipe.record_outcome(&Ok(()));
        }
        assert!(!fail(&mut pipe, io::ErrorKind::InvalidInput, SPLICE_FAILURES_MAX));
    }
}
