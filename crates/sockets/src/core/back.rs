//! Unread bytes of a ring go back into the kernel: for a holder who reads the kernel only, a program that is not ours.
//!
//! The receiving end asks, for good ([`Flags::GIVE_BACK`]), and reads the kernel from there on. The sending end, at its next call or woken, puts what is unread in the ring into
//! its kernel socket, behind everything that it sent there before, and the direction is the kernel's. How far it has come the kernel itself knows: bytes given to it since the
//! ring took over, which it was given none of before. So whoever goes on after a partial send, or after a death, sends no byte twice.
//!
//! Invariant: once asked, nobody takes bytes from the ring, so its head stands still; a sender that did not see the request when it published sees it afterwards, or the
//! asking end sees the bytes.

use super::{Kernel, Tell, Upgraded};
use crate::limits::PUBLISH_BYTES;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{Ordering, fence};
use vmmc_host::stream::Flags;

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
        out.head.store(tail, Ordering::Release);
        out.change(tail);
        true
    }
}
