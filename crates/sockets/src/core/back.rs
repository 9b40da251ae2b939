//! Unread bytes of a ring go back into the kernel: for a holder that reads the kernel only, a
//! program that is not ours.
//!
//! The receiving end asks, for good ([`Flags::FLUSH_TO_KERNEL`]), and reads the kernel from there
//! on. The sending end, at its next call or woken, puts what is unread in the ring into its kernel
//! socket, behind everything that it sent there before, and the direction is the kernel's. How far
//! it has come the kernel itself knows: bytes given to it since the ring took over, which it was
//! given none of before. So the holder that goes on after a partial send, or after a death, sends
//! no byte twice.
//!
//! A sending end that has just left the ring by itself did it then (`leave.rs`).
//!
//! Between nodes the request, with the last head, goes to the other replica, which has every byte
//! behind that head; what is under way to this one nobody reads any more. Here nobody sees what the
//! sending end does meanwhile, and it may just have left the ring by itself and sent more by the
//! kernel: so it has to be known what the other node saw when it had the request
//! ([`EndWords::ACKED`]). Until then nobody reads the kernel either.
//!
//! Invariant: once asked, nobody takes bytes from the ring, so its head stands still; a sender that
//! did not see the request when it published sees it afterwards, or the asking end sees the bytes.

use super::leave::Copies;
use super::{EndWords, Kernel, Upgraded, Wakeup};
use rustix::io::Errno;
use std::sync::atomic::{Ordering, fence};
use vmmc_stream::{End, Flags, Left};

/// What became of the bytes that were asked back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WayBack {
    /// They come by the kernel, or there were none.
    Found,
    /// The other end will put them into the kernel, at its next call at the latest.
    Promised,
    /// It is not known yet.
    Open,
    /// The other end had left the ring before, and not all of them were in the kernel when it sent
    /// more there; or it has ended: what comes next cannot be had.
    Lost,
}

impl Upgraded {
    /// Receiving end: asks, and wakes the threads that can answer. None: this very thread is in a
    /// receive, below a signal handler.
    pub(crate) fn ask_back(&self, me: u32) -> Option<Wakeup> {
        // Other holders of our end must not move into the ring again, for bytes that are sent from
        // here on go by the kernel.
        self.own().pinned.store(1, Ordering::SeqCst);
        let _locked = self.lock_in(me)?;
        let request = Flags::FLUSH_TO_KERNEL | Flags::WANTS_KERNEL;
        self.incoming().receiver_flags.fetch_or(request, Ordering::SeqCst);
        self.other().hint.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Some(Wakeup { receiver: true, sender: true })
    }

    /// Within a node: does once more what has to be done before somebody has the connection who
    /// only knows the kernel. Our direction must have left the ring, too; where the other end has
    /// not followed the ring is withdrawn, for that may not run for long.
    pub(crate) fn hand_back(&self, me: u32, kernel: &impl Kernel) -> (WayBack, Wakeup) {
        let (returned, wakeup) = self.return_to_kernel(me, kernel);
        // The other end may be doing the same.
        let returned = returned || self.flush_to_kernel(me, kernel) || self.withdraw_ring(me, kernel);
        let into = self.incoming();
        let expected = into.announced().in_ring() && into.available(self.slot.most_bytes()) > 0;
        let ended =
            || into.sender_flags.load(Ordering::Acquire) != 0 || matches!(kernel.peek(), End::Ended | End::Reset(_));
        let way = match self.copies_are_gone(me, kernel) {
            Copies::Amiss => WayBack::Lost,
            Copies::Gone if expected && ended() => WayBack::Lost,
            Copies::Gone if returned => {
                if expected {
                    WayBack::Promised
                } else {
                    WayBack::Found
                }
            }
            _ => WayBack::Open,
        };
        (way, wakeup)
    }

    /// Receiving end: reads away copies of what it had from the ring.
    fn copies_are_gone(&self, me: u32, kernel: &impl Kernel) -> Copies {
        self.lock_in(me).map_or(Copies::Coming, |_locked| self.read_copies(kernel))
    }

    /// Sending end: whether it was asked to put unread bytes into the kernel, and has not yet.
    #[inline]
    pub(crate) fn must_flush_to_kernel(&self) -> bool {
        self.outgoing().goes_back() && self.outgoing().announced().in_ring()
    }

    /// Sending end: whether that is to be done, or bytes that a holder was spilling when it died
    /// are to be counted: a reader waits for both, and [`flush_to_kernel`](Self::flush_to_kernel)
    /// does them.
    #[inline]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.must_flush_to_kernel() || self.outgoing().is_spilling()
    }

    /// Sending end: does what was asked, as far as the kernel takes bytes now. True: the direction
    /// is the kernel's.
    pub(crate) fn flush_to_kernel(&self, me: u32, kernel: &impl Kernel) -> bool {
        let Some(_locked) = self.lock_out(me) else { return false };
        self.flush_to_kernel_locked(kernel)
    }

    /// The same; the caller has the lock.
    pub(super) fn flush_to_kernel_locked(&self, kernel: &impl Kernel) -> bool {
        let out = self.outgoing();
        if out.announced().pending {
            self.finish_change_of_the_dead(kernel);
        } else if out.is_spilling() {
            // It died over the very last word of it.
            out.end_front();
        }
        if !self.must_flush_to_kernel() {
            return !out.announced().in_ring();
        }
        let (head, tail) = (out.head.load(Ordering::Acquire), out.tail.load(Ordering::Relaxed));
        let unread = tail.wrapping_sub(head).min(self.slot.most_bytes());
        let Some(sent) = kernel.sent() else { return false };
        let moved = sent.wrapping_sub(out.ring_began.load(Ordering::Relaxed));
        // Another error: nobody will read them.
        if let (_, Some(Errno::AGAIN)) = self.copy_to_kernel(kernel, head, unread, moved, false) {
            return false;
        }
        if self.is_between() {
            self.own().back.fetch_or(EndWords::FLUSHED, Ordering::SeqCst);
            self.withdraw_ring_request();
            self.followed();
        }
        out.leave_ring(Left { from: head, whole: true });
        true
    }

    /// Between nodes: the connection is about to be reset instead. Others who hold this end and
    /// wait for an answer learn so.
    pub(crate) fn give_up(&self) {
        self.own().back.fetch_or(EndWords::GAVE_UP, Ordering::SeqCst);
    }

    /// Receiving end between nodes, after [`ask_back`](Self::ask_back).
    pub(crate) fn way_back(&self) -> WayBack {
        if self.own().back.load(Ordering::Relaxed) & EndWords::GAVE_UP != 0 {
            return WayBack::Lost;
        }
        let into = self.incoming();
        // First: what is said about the epoch is no older.
        let back = self.other().back.load(Ordering::Acquire);
        let announced = into.announced();
        let kept_out = into.reached() == announced.number && self.own().ready.load(Ordering::SeqCst) == 0;
        if back & EndWords::FLUSHED != 0 || kept_out && !announced.in_ring() && !announced.pending {
            return WayBack::Found;
        }
        let empty = into.available(self.slot.most_bytes()) == 0;
        match (back & EndWords::ACKED != 0, announced.in_ring()) {
            (false, _) => WayBack::Open,
            (true, _) if empty && (announced.in_ring() || !announced.pending) => WayBack::Found,
            // It ended before it could see the request, or is about to do what it asks for.
            (true, true) if into.sender_flags.load(Ordering::Acquire) != 0 => WayBack::Open,
            (true, true) => WayBack::Promised,
            // It may see the request in time, and stay; or has left, and put them into the kernel
            // then.
            (true, false) if announced.pending || self.has_copies_of_the_rest() => WayBack::Open,
            (true, false) => WayBack::Lost,
        }
    }

    /// Between nodes: does once more what has to be done before somebody has the connection who
    /// only knows the kernel. Our direction must have left the ring, too.
    pub(crate) fn hand_over(&self, me: u32, kernel: &impl Kernel) -> (WayBack, Wakeup) {
        let (returned, wakeup) = self.return_to_kernel(me, kernel);
        // The other end may be doing the same. What has ended in the ring is read there, or by
        // nobody.
        let over = self.outgoing().sender_flags.load(Ordering::Relaxed) & Flags::END != 0
            || self.outgoing().receiver_flags.load(Ordering::Relaxed) & Flags::CLOSED != 0;
        let returned = returned || if self.must_flush_to_kernel() { self.flush_to_kernel(me, kernel) } else { over };
        let copies = self.copies_are_gone(me, kernel);
        self.clear_ring_answer();
        let way = match self.way_back() {
            // It was killed.
            WayBack::Promised if matches!(kernel.peek(), End::Ended | End::Reset(_)) => WayBack::Lost,
            WayBack::Found | WayBack::Promised if !returned || copies != Copies::Gone => WayBack::Open,
            way => way,
        };
        (way, wakeup)
    }

    /// Whether nobody may read the kernel yet, or ever.
    pub(super) fn awaits_way_back(&self) -> bool {
        let asked = self.is_between() && self.incoming().goes_back();
        asked && matches!(self.way_back(), WayBack::Open | WayBack::Lost)
    }
}
