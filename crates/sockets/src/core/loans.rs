//! Memory of a ring in the hands of the program: it fills in what it sends and reads what it
//! received where it lies, without a copy by us.
//!
//! A loan holds the lock of its end from the call that gives the memory to the call that takes it
//! back, so nobody else sends or receives there meanwhile. The thread that has a loan and sends or
//! receives otherwise is told so (`EDEADLK`) and not kept waiting for itself.
//!
//! Invariant: what is lent is free room, or published bytes, of one ring, without a seam; and no
//! more is given back than was lent. Source: [NT §4].

use super::{Kernel, Receiving, Sending, Upgraded, Wakeup};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vmmc_stream::{Denied, RingSlice, SharedLock};

/// Who has memory of a ring, and how much. Private to this process.
#[derive(Debug, Default)]
pub(crate) struct Loan {
    /// Id of the thread; 0: nobody.
    thread: AtomicU32,
    bytes: AtomicU64,
}

impl Loan {
    /// Whether this thread has it.
    pub(crate) fn held_by(&self, me: u32) -> bool {
        self.thread.load(Ordering::Relaxed) == me
    }

    fn begin(&self, me: u32, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.thread.store(me, Ordering::Relaxed);
    }

    /// Takes back `bytes` of what this thread has.
    fn end(&self, me: u32, bytes: u64) -> Result<(), Errno> {
        if !self.held_by(me) || bytes > self.bytes.load(Ordering::Relaxed) {
            return Err(Errno::INVAL);
        }
        self.thread.store(0, Ordering::Relaxed);
        Ok(())
    }
}

impl Upgraded {
    /// A receive of a thread that the lock is kept from: it has a loan, was interrupted within a
    /// receive, or another thread has it.
    pub(super) fn while_lent(&self, me: u32, denied: Denied) -> Receiving {
        if self.view.held_by(me) { Receiving::Failed(Errno::DEADLK) } else { Receiving::Locked(denied) }
    }

    /// Lends free room of the ring, at most `most` bytes; an error is what else is to be done, as
    /// for a send.
    pub(crate) fn lend_room(&self, me: u32, kernel: &impl Kernel, most: u64) -> Result<RingSlice, Sending> {
        if most == 0 {
            return Err(Sending::Failed(Errno::INVAL));
        }
        let locked = match self.lock_out_soon(me) {
            Ok(locked) => locked,
            Err(_) if self.room.held_by(me) => return Err(Sending::Failed(Errno::DEADLK)),
            Err(denied) => return Err(Sending::Locked(denied)),
        };
        let out = self.outgoing();
        if out.announced().pending {
            self.finish_change_of_the_dead(kernel);
        }
        if !out.announced().in_ring() || self.must_leave_ring() {
            return Err(Sending::Kernel);
        }
        if self.hinted() {
            self.follow_hints(kernel);
        }
        if let Some(errno) = self.send_error() {
            return Err(Sending::Failed(errno));
        }
        let mut large = out.layout().large;
        let mut free = out.free(self.slot.ring_bytes(large), most.min(self.slot.ring_bytes(large)));
        if free < most && out.may_grow() && out.change_ring() {
            large = true;
            free = out.free(self.slot.ring_bytes(large), most.min(self.slot.ring_bytes(large)));
        }
        if free < most {
            self.ask_for_more(large);
        }
        if free == 0 {
            out.want_room();
            free = out.free(self.slot.ring_bytes(large), 1);
        }
        let at = out.tail.load(Ordering::Relaxed);
        let room = self.slot.ring_slice(self.end, large, at, free.min(most));
        if room.len_bytes() == 0 {
            let stuck = self.is_stuck();
            let left = stuck && self.leave_ring(kernel, false);
            if stuck && !left {
                // If there is room then, a sender that waits for it sees it at once.
                self.spill(kernel);
            }
            return Err(if left { Sending::Kernel } else { Sending::Full });
        }
        self.room.begin(me, room.len_bytes() as u64);
        std::mem::forget(locked);
        Ok(room)
    }

    /// Ends the loan: its first `bytes` are sent. Errors: `EINVAL` if this thread has none, or not
    /// so many.
    pub(crate) fn send_lent(&self, me: u32, bytes: u64) -> Result<Wakeup, Errno> {
        self.room.end(me, bytes)?;
        let _locked = SharedLock::new(&self.outgoing().sender_lock).held_by(me);
        if bytes == 0 {
            return Ok(Wakeup::default());
        }
        self.outgoing().publish(bytes);
        Ok(Wakeup { receiver: true, sender: false })
    }

    /// Lends received bytes; an error is what else is to be done, as for a receive (`Done(0)`: the
    /// end of the stream).
    pub(crate) fn lend_bytes(&self, me: u32, kernel: &impl Kernel) -> Result<RingSlice, Receiving> {
        let locked = self.lock_in_soon(me).map_err(|denied| self.while_lent(me, denied))?;
        let available = self.bytes_in_ring(kernel)?;
        let into = self.incoming();
        let head = into.head.load(Ordering::Relaxed);
        let (large, piece) = self.lie_in(into.layout(), head, available);
        let view = self.slot.ring_slice(1 - self.end, large, head, piece);
        self.view.begin(me, view.len_bytes() as u64);
        std::mem::forget(locked);
        Ok(view)
    }

    /// Ends the loan: its first `bytes` are received. Errors: as for
    /// [`send_lent`](Self::send_lent).
    pub(crate) fn take_lent(&self, me: u32, bytes: u64) -> Result<Wakeup, Errno> {
        self.view.end(me, bytes)?;
        let _locked = SharedLock::new(&self.incoming().receiver_lock).held_by(me);
        let ring_bytes = self.slot.ring_bytes(self.incoming().layout().large);
        let room = bytes > 0 && self.incoming().consume(bytes, ring_bytes);
        Ok(Wakeup { receiver: false, sender: room })
    }
}
