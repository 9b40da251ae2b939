//! Unread bytes of a ring go back into the kernel: for a holder who reads the kernel only, a program that is not ours.
//!
//! The receiving end asks, for good ([`Flags::GIVE_BACK`]), and reads the kernel from there on. The sending end, at its next call or woken, puts what is unread in the ring into
//! its kernel socket, behind everything that it sent there before, and the direction is the kernel's. How far it has come the kernel itself knows: bytes given to it since the
//! ring took over, which it was given none of before. So whoever goes on after a partial send, or after a death, sends no byte twice.
//!
//! Between nodes the request, with the last head, goes to the other replica, which has every byte behind that head; what is under way to this one nobody reads any more.
//! Here nobody sees what the sending end does meanwhile, and it may just have left the ring by itself and sent more by the kernel: so it has to be known what the other node
//! saw when it had the request ([`EndWords::HEARD`]). Until then nobody reads the kernel either.
//!
//! Invariant: once asked, nobody takes bytes from the ring, so its head stands still; a sender that did not see the request when it published sees it afterwards, or the
//! asking end sees the bytes.

use super::{EndWords, Kernel, Tell, Upgraded};
use crate::limits::PUBLISH_BYTES;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{Ordering, fence};
use vmmc_host::stream::{End, Flags};

/// Between nodes: what became of the bytes that were asked back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WayBack {
    /// They come by the kernel, or there were none.
    Found,
    /// The other end will put them into the kernel, at its next call at the latest.
    Promised,
    /// The other node has not said yet.
    Open,
    /// The other end had left the ring before, and sent more behind them: what comes next cannot be had.
    Lost,
}

impl Upgraded {
    /// Receiving end: asks, and wakes whoever can answer. None: this very thread is in a receive, below a signal handler.
    pub(crate) fn ask_back(&self, me: u32) -> Option<Tell> {
        // Other holders of our end must not move into the ring again, for bytes that are sent from here on go by the kernel.
        self.own().pinned.store(1, Ordering::SeqCst);
        let _locked = self.lock_in(me)?;
        let wish = Flags::GIVE_BACK | Flags::WANTS_KERNEL;
        self.incoming().receiver_flags.fetch_or(wish, Ordering::SeqCst);
        self.other().hint.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Some(Tell { receiver: true, sender: true })
    }

    /// Receiving end: whether what is unread in the ring can still come by the kernel: not when the sending end has left the ring by itself, and sent more behind.
    pub(crate) fn can_go_back(&self) -> bool {
        let into = self.incoming();
        let announced = into.announced();
        announced.in_ring() || into.reached() == announced.number || into.available(self.slot.most_bytes()) == 0
    }

    /// Receiving end: whether bytes that nobody has read are still in the ring.
    pub(crate) fn is_owed(&self) -> bool {
        self.incoming().announced().in_ring() && self.incoming().available(self.slot.most_bytes()) > 0
    }

    /// Sending end: whether it was asked and has not done so.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.outgoing().goes_back() && self.outgoing().announced().in_ring()
    }

    /// Sending end: does what was asked, as far as the kernel takes bytes now. True: the direction is the kernel's.
    pub(crate) fn give_back(&self, me: u32, kernel: &impl Kernel) -> bool {
        let Some(_locked) = self.lock_out(me) else { return false };
        self.give_back_locked(kernel)
    }

    /// The same for whoever has the lock.
    pub(super) fn give_back_locked(&self, kernel: &impl Kernel) -> bool {
        let out = self.outgoing();
        if out.announced().pending {
            self.finish_change_of_the_dead(kernel);
        }
        if !self.owes() {
            return !out.announced().in_ring();
        }
        let (head, tail) = (out.head.load(Ordering::Acquire), out.tail.load(Ordering::Relaxed));
        let unread = tail.wrapping_sub(head).min(self.slot.most_bytes());
        let mut buffer = [0u8; PUBLISH_BYTES as usize];
        loop {
            let Some(sent) = kernel.sent() else { return false };
            let moved = sent.wrapping_sub(out.ring_began_at());
            if moved >= unread {
                break;
            }
            let at = head.wrapping_add(moved);
            let (large, piece) = self.lie_in(out.layout(), at, (unread - moved).min(PUBLISH_BYTES));
            let copied = self.slot.copy_out(self.end, large, at, &mut [IoSliceMut::new(&mut buffer)], 0, piece);
            match kernel.send_now(&[IoSlice::new(&buffer[..copied as usize])]) {
                Ok(1..) => {}
                Ok(0) | Err(Errno::AGAIN) => return false,
                // Nobody will read them.
                Err(_) => break,
            }
        }
        if self.is_between() {
            // The head is the other node's word; what it waits to hear is this.
            self.own().back.fetch_or(EndWords::GIVEN_BACK, Ordering::SeqCst);
            self.take_wish_back();
            self.followed();
        } else {
            out.head.store(tail, Ordering::Release);
        }
        out.change(tail);
        true
    }

    /// Between nodes: the connection is about to be reset instead. Others who hold this end and wait for an answer hear so.
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
        if back & EndWords::GIVEN_BACK != 0 || kept_out && !announced.in_ring() && !announced.pending {
            return WayBack::Found;
        }
        let empty = into.available(self.slot.most_bytes()) == 0;
        match (back & EndWords::HEARD != 0, announced.in_ring()) {
            (false, _) => WayBack::Open,
            (true, _) if empty && (announced.in_ring() || !announced.pending) => WayBack::Found,
            // It ended before it could see the request, or is about to do what it asks for.
            (true, true) if into.sender_flags.load(Ordering::Acquire) != 0 => WayBack::Open,
            (true, true) => WayBack::Promised,
            // It may see the request in time, and stay.
            (true, false) if announced.pending => WayBack::Open,
            (true, false) => WayBack::Lost,
        }
    }

    /// Between nodes: does once more what has to be done before somebody has the connection who only knows the kernel. Our direction must have left the ring, too.
    pub(crate) fn hand_over(&self, me: u32, kernel: &impl Kernel) -> (WayBack, Tell) {
        let (returned, tell) = self.return_to_kernel(me);
        // The other end may be doing the same. What has ended in the ring is read there, or by nobody.
        let over = self.outgoing().sender_flags.load(Ordering::Relaxed) & Flags::END != 0
            || self.outgoing().receiver_flags.load(Ordering::Relaxed) & Flags::CLOSED != 0;
        let returned = returned || if self.owes() { self.give_back(me, kernel) } else { over };
        self.forget_wish();
        let way = match self.way_back() {
            // It was killed.
            WayBack::Promised if matches!(kernel.look(), End::Ended | End::Reset(_)) => WayBack::Lost,
            WayBack::Found | WayBack::Promised if !returned => WayBack::Open,
            way => way,
        };
        (way, tell)
    }

    /// Whether nobody may read the kernel yet, or ever.
    pub(super) fn awaits_way_back(&self) -> bool {
        let asked = self.is_between() && self.incoming().goes_back();
        asked && matches!(self.way_back(), WayBack::Open | WayBack::Lost)
    }
}
