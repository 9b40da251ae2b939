//! The pointer-based interface: a program fills in and reads the memory of the rings itself.
//!
//! Invariant: as in `core/loans.rs`; never waits. Source: [NT §4].

use super::{Connection, Socket};
use crate::context::Context;
use crate::core::{Receiving, Sending};
use crate::types::Lent;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use vmmc_stream::thread_id;

impl Connection {
    /// Lends room for at most `most` bytes of the stream; less may be there. Until
    /// [`send_lent`](Self::send_lent) nobody else can send, and this thread must not.
    pub fn lend_room(&self, context: &Context, fd: BorrowedFd<'_>, most: usize) -> Lent {
        let Some(joined) = self.upgraded.get() else {
            self.step_towards_upgrade(context, fd);
            return Lent::Kernel;
        };
        joined.publish_core();
        let lent = joined.core.lend_room(thread_id(), &Socket(fd), most as u64);
        if joined.core.takes_grow_request() {
            context.node().grow(&joined.seat);
        }
        match lent {
            Ok(ring_slice) => Lent::Memory(ring_slice),
            Err(Sending::Failed(errno)) => Lent::Failed(errno),
            Err(Sending::Kernel) => Lent::Kernel,
            Err(Sending::Locked(denied)) => match joined.is_locked(context, denied) {
                Some(Errno::AGAIN) | None => Lent::Nothing,
                Some(errno) => Lent::Failed(errno),
            },
            Err(Sending::Full | Sending::Done(_)) => Lent::Nothing,
        }
    }

    /// Sends the first `bytes` of what this thread has; the rest is room again.
    ///
    /// # Errors
    /// `EINVAL` if this thread was lent nothing, or less.
    pub fn send_lent(&self, context: &Context, bytes: usize) -> Result<(), Errno> {
        let joined = self.upgraded.get().ok_or(Errno::INVAL)?;
        let wakeup = joined.core.send_lent(thread_id(), bytes as u64)?;
        self.wake_other_end(context, joined, wakeup);
        Ok(())
    }

    /// Lends the next received bytes, as many as lie side by side; none: the end of the stream.
    /// Until [`take_lent`](Self::take_lent) nobody else can receive, and this thread must not.
    pub fn lend_bytes(&self, context: &Context, fd: BorrowedFd<'_>) -> Lent {
        let Some(joined) = self.upgraded.get() else {
            self.step_towards_upgrade(context, fd);
            return Lent::Kernel;
        };
        match joined.core.lend_bytes(thread_id(), &Socket(fd)) {
            Ok(ring_slice) => Lent::Memory(ring_slice),
            Err(Receiving::Failed(errno)) => Lent::Failed(errno),
            Err(Receiving::Kernel | Receiving::OfKernel(_)) => Lent::Kernel,
            Err(Receiving::Locked(denied)) => match joined.is_locked(context, denied) {
                Some(Errno::AGAIN) | None => Lent::Nothing,
                Some(errno) => Lent::Failed(errno),
            },
            Err(Receiving::Empty) => Lent::Nothing,
            Err(Receiving::Done(_)) => Lent::End,
        }
    }

    /// Receives the first `bytes` of what this thread was lent; the rest comes again.
    ///
    /// # Errors
    /// `EINVAL` if this thread was lent nothing, or less.
    pub fn take_lent(&self, context: &Context, bytes: usize) -> Result<(), Errno> {
        let joined = self.upgraded.get().ok_or(Errno::INVAL)?;
        let wakeup = joined.core.take_lent(thread_id(), bytes as u64)?;
        self.wake_other_end(context, joined, wakeup);
        Ok(())
    }
}
