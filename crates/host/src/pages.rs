//! Pages of a region on their way into a datagram by reference: what the kernel takes from a pipe
//! it need not copy.
//!
//! ```text
//! region ──vmsplice──► pipe ──splice──► datagram in the receiver's queue ──receive──► buffer
//!            pages, not bytes                                       the only copy
//! ```
//!
//! Invariant: between two sends the pipe holds nothing but the pages that follow in the memory of
//! the last one, and the socket no part of a datagram. The receiver gets what the memory holds when
//! it takes the datagram, so only memory that stays as it is until it has arrived goes this way.
//! Source: [NT §3] (data moves without a copy on the sending side), `vmsplice(2)`, `splice(2)`.

use crate::Region;
use crate::limits::{PAGE_PIPE_BYTES, SPLICE_FAILURES_MAX, SPLICED_AHEAD_MAX, SPLICED_PAGES_MAX};
use crate::region::PAGE_BYTES;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const _: () = assert!(SPLICED_AHEAD_MAX * SPLICED_PAGES_MAX * PAGE_BYTES <= PAGE_PIPE_BYTES);

/// A pipe for pages, opened when first used. Of memory that goes out in many datagrams it takes the
/// pages of several at once: with each call of twice as many, unless others come in between.
#[derive(Debug)]
pub struct PagePipe {
    ends: Option<Ends>,
    holds: Holds,
    /// Datagrams of which the next call takes the pages.
    depth: usize,
    /// Failures in a row; from [`SPLICE_FAILURES_MAX`] on it is not tried again.
    failures: u32,
}

/// Pages that may be taken with those of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// The transfer that they are of: memory that another one begins with is looked up anew, for it
    /// may be made of other pages by then.
    pub transfer: (u64, u64),
    /// Bytes of it that follow in the memory.
    pub bytes: u64,
}

/// What is in a pipe.
#[derive(Clone, Copy, Debug, Default)]
struct Holds {
    transfer: (u64, u64),
    /// Where its first byte is in this process.
    at: usize,
    /// Bytes.
    len: usize,
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
    /// Bytes of pages that it has room for.
    room: usize,
}

impl PagePipe {
    /// A pipe that is not open yet.
    pub fn new() -> PagePipe {
        PagePipe { ends: None, holds: Holds::default(), depth: 1, failures: 0 }
    }

    /// Whether `len` bytes from `offset` on can go this way: a datagram holds references to so many
    /// pages only, and a kernel that refused again and again is not asked any more.
    #[inline]
    pub fn takes(&self, offset: u64, len: usize) -> bool {
        let first = offset as usize % PAGE_BYTES;
        self.failures < SPLICE_FAILURES_MAX && (first + len).div_ceil(PAGE_BYTES) <= SPLICED_PAGES_MAX
    }

    /// Bytes of pages that were taken ahead.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.holds.len
    }

    /// Lets go of the pages that were taken ahead, if there are any.
    #[inline]
    pub fn clear(&mut self) {
        if self.holds.len > 0 {
            self.close();
        }
    }

    #[cold]
    fn close(&mut self) {
        (self.ends, self.holds, self.depth) = (None, Holds::default(), 1);
    }

    /// Sees to it that references to the pages of a range are what comes next out of the pipe, and
    /// takes some ahead.
    ///
    /// # Panics
    /// If the range, with what may be taken ahead, is not in the region.
    pub(crate) fn fill(&mut self, region: &Region, offset: u64, len: usize, ahead: Ahead) -> io::Result<()> {
        region.check(offset, len as u64 + ahead.bytes).expect("the caller looked the range up");
        let memory = region.as_ptr().wrapping_add(offset as usize);
        let Holds { transfer, at, len: held } = self.holds;
        if transfer == ahead.transfer && at == memory.addr() && held >= len {
            return Ok(());
        }
        self.clear();
        let ends = match &mut self.ends {
            Some(ends) => ends,
            none => none.insert(Ends::open()?),
        };
        // The pieces behind this one begin with a page, and all but the last are that long.
        let piece = SPLICED_PAGES_MAX * PAGE_BYTES;
        let first = (offset as usize % PAGE_BYTES + len).next_multiple_of(PAGE_BYTES);
        let follow = usize::try_from(ahead.bytes / piece as u64).unwrap_or(usize::MAX);
        let all = len + piece * follow.min(self.depth - 1).min(ends.room.saturating_sub(first) / piece);
        let piece = libc::iovec { iov_base: memory.cast(), iov_len: all };
        // SAFETY: the piece is a range of a region, checked above, and stays mapped for the call;
        // the kernel takes references to its pages and reads no byte.
        let took = unsafe { libc::vmsplice(ends.write.as_raw_fd(), &raw const piece, 1, libc::SPLICE_F_NONBLOCK) };
        match usize::try_from(took) {
            Ok(took) if took >= len => {
                self.holds = Holds { transfer: ahead.transfer, at: memory.addr(), len: took };
                self.depth = (2 * self.depth).min(SPLICED_AHEAD_MAX);
                Ok(())
            }
            Ok(took) => Err(io::Error::other(format!("the pipe took {took} of {len} bytes"))),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Moves the next `len` bytes behind what the socket holds back of a datagram, and lets it go
    /// unless `more` is to follow.
    pub(crate) fn empty_into(&mut self, socket: &impl AsFd, len: usize, more: bool) -> io::Result<()> {
        let ends = self.ends.as_ref().ok_or(Errno::BADF)?;
        let flags = SpliceFlags::NONBLOCK | if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
        match splice(&ends.read, None, socket, None, len, flags)? {
            moved if moved == len => {
                (self.holds.at, self.holds.len) = (self.holds.at + len, self.holds.len - len);
                Ok(())
            }
            moved => Err(io::Error::other(format!("the socket took {moved} of {len} bytes"))),
        }
    }

    /// Notes how the send ended for which it was filled. After an error it is closed, with what is
    /// left in it.
    pub(crate) fn record_outcome(&mut self, sent: &io::Result<()>) {
        match sent {
            Ok(()) => self.failures = 0,
            Err(e) => {
                self.close();
                // A full buffer, and a peer that is gone, say nothing about this way.
                let of_others = matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused);
                self.failures += u32::from(!of_others);
            }
        }
    }
}

impl Default for PagePipe {
    fn default() -> PagePipe {
        PagePipe::new()
    }
}

impl Ends {
    fn open() -> io::Result<Ends> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A user with very many pipes has smaller ones.
        let room = fcntl_setpipe_size(&write, PAGE_PIPE_BYTES).or_else(|_| fcntl_getpipe_size(&write))?;
        Ok(Ends { read, write, room })
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
