//! One connection of this process: where its bytes go, and whether there are any.
//!
//! Invariant: a direction is in one medium at a time, and leaves it at a byte that both sides agree on. Source: [NT §4]; DESIGN of the upgrade in docs/sockets.md.

use crate::context::Context;
use crate::types::{
    After, Bypass, Close, Description, Direction, Medium, Received, Sent, Shutdown, State, Take, Waited,
};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use vmmc_host::Deadline;

/// A connected TCP socket of this process: one for each open file description, however many descriptors lead to it.
#[derive(Debug)]
pub struct Connection {
    _private: (),
}

/// A system call on the kernel's socket that is about to be made. While it lives the direction stays in the kernel.
#[derive(Debug)]
#[must_use = "make the system call, then finish"]
pub struct KernelCall<'a> {
    _connection: &'a Connection,
}

impl KernelCall<'_> {
    /// Ends it with the result of the system call.
    pub fn finish(self, _result: Result<usize, Errno>) -> After {
        After::Return
    }
}

impl Connection {
    pub(crate) fn new() -> Connection {
        Connection { _private: () }
    }

    /// Whether it is not upgraded. One load.
    #[inline]
    pub fn is_plain(&self) -> bool {
        true
    }

    /// Sends bytes; never waits.
    pub fn send(&self, _context: &Context, _fd: BorrowedFd<'_>, _from: &[IoSlice<'_>]) -> Sent<'_> {
        Sent::Kernel(KernelCall { _connection: self })
    }

    /// Receives bytes; never waits.
    pub fn recv(
        &self,
        _context: &Context,
        _fd: BorrowedFd<'_>,
        _into: &mut [IoSliceMut<'_>],
        _take: Take,
    ) -> Received<'_> {
        Received::Kernel(KernelCall { _connection: self })
    }

    /// Holds a direction in the kernel for a system call of another kind (sendfile, splice); none: it is in the ring.
    pub fn kernel_call(&self, _direction: Direction) -> Option<KernelCall<'_>> {
        Some(KernelCall { _connection: self })
    }

    /// What carries a direction; [`Direction::Both`] gives the ring if either is there.
    pub fn medium(&self, _direction: Direction) -> Medium {
        Medium::Kernel
    }

    /// What could be done now. No system call unless the kernel hinted that something ended.
    pub fn state(&self, _fd: BorrowedFd<'_>) -> State {
        State {
            readable: false,
            writable: false,
            read_hangup: false,
            hangup: false,
            error: None,
            rx: Medium::Kernel,
            tx: Medium::Kernel,
        }
    }

    /// Bytes in the ring that wait to be received.
    pub fn available_bytes(&self) -> usize {
        0
    }

    /// Bytes in the ring that the peer has not received.
    pub fn unsent_bytes(&self) -> usize {
        0
    }

    /// Waits until a receive is worth trying.
    pub fn wait_readable(&self, _context: &Context, _fd: BorrowedFd<'_>, _deadline: Option<Deadline>) -> Waited {
        Waited::Ready
    }

    /// Waits until a send is worth trying.
    pub fn wait_writable(&self, _context: &Context, _fd: BorrowedFd<'_>, _deadline: Option<Deadline>) -> Waited {
        Waited::Ready
    }

    /// Ends directions; to be followed by the kernel's `shutdown`.
    pub fn shutdown(&self, _context: &Context, _fd: BorrowedFd<'_>, _how: Shutdown) {}

    /// The last descriptor of this process goes; to be followed by the kernel's `close`.
    pub fn close(&self, _context: &Context, _fd: BorrowedFd<'_>, _how: Close) {}

    /// The kernel said that its socket is readable, hung up or in error: the next look at the state asks it.
    pub fn kernel_event(&self, _fd: BorrowedFd<'_>) {}

    /// Keeps the connection in the kernel, or brings it back there: our direction at once, the peer's when it comes by.
    pub fn pin_to_kernel(&self, _context: &Context, _fd: BorrowedFd<'_>, _why: Bypass) {}

    /// For people.
    pub fn describe(&self) -> Description {
        Description {
            upgraded: false,
            tx: Medium::Kernel,
            rx: Medium::Kernel,
            reason: Some(Bypass::Young),
            ring_sent_bytes: 0,
            ring_received_bytes: 0,
        }
    }
}
