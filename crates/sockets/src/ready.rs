//! What an event loop has: a bitmap of connections worth a look, and a bell.
//!
//! Invariant: a bit that is set after [`ReadySet::arm`] said "nothing" rings the bell. Source: DESIGN, "do not scan all connections".

use crate::connection::Connection;
use crate::context::Context;
use crate::types::Interest;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// More event loops watch the connection than its area has room for, or the token is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection is watched by as many event loops as it can be; this one must use the kernel")]
pub struct TooMany;

/// Connections of one event loop.
#[derive(Debug)]
pub struct ReadySet {
    bell: OwnedFd,
}

impl ReadySet {
    pub(crate) fn new(context: &Context) -> Result<ReadySet, Errno> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(ReadySet { bell: (context.settings().keep_fd)(bell) })
    }

    /// Becomes readable when the set is armed and something happens. Register it edge-triggered and do not read it.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Follows a connection under a token of the caller's choice, below [`TOKENS_MAX`](crate::limits::TOKENS_MAX). Look at its state once afterwards.
    pub fn add(&self, _connection: &Connection, _token: u32, _interest: Interest) -> Result<(), TooMany> {
        Ok(())
    }

    /// Changes what is of interest.
    pub fn change(&self, _connection: &Connection, _interest: Interest) {}

    /// Follows it no longer.
    pub fn remove(&self, _connection: &Connection) {}

    /// Takes the tokens of all connections to which something happened.
    pub fn take(&self, _each: &mut dyn FnMut(u32)) {}

    /// Waits without sleeping until something happens, for as long as that tends to pay and at most `max`; says whether something did.
    pub fn spin(&self, _context: &Context, _max: Duration) -> bool {
        false
    }

    /// Announces a sleep. True: something is there, do not sleep.
    pub fn arm(&self) -> bool {
        false
    }

    /// Ends what [`arm`](Self::arm) began.
    pub fn disarm(&self) {}
}
