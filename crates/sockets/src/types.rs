//! What calls say, and what they get as answers.
//!
//! Invariant: plain values; no call of this crate reports through anything else. Source: the calls
//! of [NT §4], in the terms of sockets(7).

use crate::connection::KernelCall;
use rustix::io::Errno;
use vmmc_stream::RingSlice;

/// Result of [`Connection::send`](crate::Connection::send).
#[derive(Debug)]
pub enum Sent<'a> {
    /// So many bytes of the buffers are on their way; less than all when there was no room for the
    /// rest.
    Done(usize),
    /// No room now.
    Full,
    /// This direction is in the kernel: make the system call, then [`KernelCall::finish`].
    Kernel(KernelCall<'a>),
    /// Another call has been at it for some 50 ms, of a thread that is stopped, or below a signal
    /// handler that waits for this thread: come back.
    Busy,
    /// The connection does not take bytes any more (`EPIPE`, `ECONNRESET`).
    Failed(Errno),
}

/// Result of [`Connection::recv`](crate::Connection::recv).
#[derive(Debug)]
pub enum Received<'a> {
    /// So many bytes were put into the buffers; 0 for the end of the stream.
    Done(usize),
    /// So many bytes came from the kernel of a connection that is upgraded: if they were the last
    /// there, others may be in the ring whose bell has rung.
    OfKernel(usize),
    /// Nothing is there now.
    Empty,
    /// This direction is in the kernel: make the system call, then [`KernelCall::finish`].
    Kernel(KernelCall<'a>),
    /// As [`Sent::Busy`].
    Busy,
    /// The connection was reset.
    Failed(Errno),
}

/// Result of [`Connection::lend_room`](crate::Connection::lend_room) and
/// [`Connection::lend_bytes`](crate::Connection::lend_bytes).
#[derive(Debug)]
pub enum Lent {
    /// At least one byte.
    Memory(RingSlice),
    /// No room, or no bytes, now.
    Nothing,
    /// No bytes come any more.
    End,
    /// This direction is in the kernel: send or receive as ever.
    Kernel,
    /// The connection has ended (`EPIPE`, `ECONNRESET`), or the thread has such memory already
    /// (`EDEADLK`).
    Failed(Errno),
}

/// What to do with the result of a system call that was made between a [`KernelCall`]'s making and
/// its finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It is the result of the application's call.
    Return,
    /// Throw it away (it was an end of stream, or "would block") and ask again: the stream goes on
    /// elsewhere.
    Retry,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It is worth trying again.
    Ready,
    /// A signal handler ran.
    Interrupted,
    /// The deadline passed.
    TimedOut,
    /// Another thread, or a signal handler, closed the connection.
    Closed,
}

/// Whether a receive takes bytes out of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Leaves them in (`MSG_PEEK`).
    Peek,
    /// Takes them out.
    Take,
}

/// One or both directions of a connection, as seen from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Bytes to the peer.
    Send,
    /// Bytes from the peer.
    Receive,
    /// Both.
    Both,
}

/// What carries a direction of a stream at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The kernel's socket.
    Kernel,
    /// Shared memory.
    Ring,
}

/// Which directions `shutdown` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// `SHUT_RD`.
    Read,
    /// `SHUT_WR`.
    Write,
    /// `SHUT_RDWR`.
    Both,
}

/// How the last descriptor is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The peer reads what is on its way, then the end of the stream; bytes that we have not read
    /// make it a reset, as in TCP.
    Orderly,
    /// `SO_LINGER` with time 0: the peer sees a reset.
    Reset,
}

/// What an event loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(pub u8);

impl Interest {
    /// Bytes, end of stream, errors.
    pub const READ: Interest = Interest(1);
    /// Room, errors.
    pub const WRITE: Interest = Interest(2);
    /// Both.
    pub const BOTH: Interest = Interest(3);

    /// Whether bytes are of interest.
    pub fn reads(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether room is of interest.
    pub fn writes(self) -> bool {
        self.0 & 2 != 0
    }
}

/// What could be done with a connection now. `readable` and `writable` only speak for directions in
/// the ring; the kernel knows about the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// A receive would give bytes, the end of the stream or an error.
    pub readable: bool,
    /// A send would take bytes or give an error. A ring that is less than half empty is not
    /// writable, so that writers are not woken for crumbs.
    pub writable: bool,
    /// The peer sends no more (`EPOLLRDHUP`); bytes may still be there to read.
    pub read_hangup: bool,
    /// Both directions have ended (`EPOLLHUP`).
    pub hangup: bool,
    /// The connection was reset (`EPOLLERR`).
    pub error: Option<Errno>,
    /// What the kernel's socket says of errors and hang-ups holds too: the other end has closed, so
    /// sends go there, or only one of two ended directions is in the ring.
    pub asks_kernel: bool,
    /// What carries bytes from the peer.
    pub rx: Medium,
    /// What carries bytes to the peer.
    pub tx: Medium,
}

/// Why a connection is on kernel TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Bypass {
    /// It has not moved enough yet.
    #[error("short so far")]
    Young,
    /// Offered; the peer has not offered its end.
    #[error("the peer does not use VMMC, or is on another node")]
    PeerPlain,
    /// No node answers.
    #[error("no node runs")]
    NoNode,
    /// The node that runs is of another release than this library.
    #[error("the node is of another release than this program's library")]
    OtherVersion,
    /// The node refused it.
    #[error("refused by the node")]
    Refused,
    /// Several processes hold the socket.
    #[error("held by several processes")]
    Shared,
    /// Descriptors went to a program that is not ours.
    #[error("passed to a program that does not use VMMC")]
    Leaked,
    /// Urgent data was sent or asked for.
    #[error("urgent data")]
    Urgent,
    /// The program uses io_uring on it.
    #[error("io_uring")]
    IoUring,
    /// A call that only the kernel can do.
    #[error("a call that only the kernel can do")]
    KernelOnly,
    /// More event loops watch it than an area has room for.
    #[error("watched by too many event loops")]
    Watchers,
    /// The user excluded it.
    #[error("excluded by configuration")]
    Excluded,
    /// Not a connected TCP socket.
    #[error("not a connected TCP socket")]
    NotTcp,
}

impl Bypass {
    const ALL: [Bypass; 13] = [
        Bypass::Young,
        Bypass::PeerPlain,
        Bypass::NoNode,
        Bypass::OtherVersion,
        Bypass::Refused,
        Bypass::Shared,
        Bypass::Leaked,
        Bypass::Urgent,
        Bypass::IoUring,
        Bypass::KernelOnly,
        Bypass::Watchers,
        Bypass::Excluded,
        Bypass::NotTcp,
    ];

    pub(crate) fn to_byte(self) -> u8 {
        Bypass::ALL.iter().position(|b| *b == self).expect("all are listed") as u8
    }

    pub(crate) fn from_byte(byte: u8) -> Bypass {
        Bypass::ALL.get(byte as usize).copied().unwrap_or(Bypass::Young)
    }
}

/// A connection as shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Whether the peer has agreed and the area is mapped.
    pub upgraded: bool,
    /// What carries bytes to the peer.
    pub tx: Medium,
    /// What carries bytes from the peer.
    pub rx: Medium,
    /// Why not, if not.
    pub reason: Option<Bypass>,
    /// Bytes of the rings to the peer and from it; 0: not upgraded.
    pub ring_bytes: [u64; 2],
    /// Bytes sent through the ring.
    pub ring_sent_bytes: u64,
    /// Bytes received through the ring.
    pub ring_received_bytes: u64,
}
