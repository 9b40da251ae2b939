//! What the receiving end does: bytes out of the medium that is next, and the steps from one to the
//! other.
//!
//! Invariant: the kernel is read under the lock of the receiving end and never waited in, so no
//! receive takes bytes of a later epoch.

use super::leave::Copies;
use super::{BYTES_CAME, Kernel, PENDING_POLLS, Receiving, Upgraded, Wakeup};
use crate::limits::TAKE_BYTES;
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::sync::atomic::{Ordering, fence};
use vmmc_stream::{Flags, Layout, Phase};

impl Upgraded {
    /// Receives bytes.
    pub(crate) fn receive(
        &self,
        me: u32,
        kernel: &impl Kernel,
        buffers: &mut [IoSliceMut<'_>],
        take: bool,
    ) -> (Receiving, Wakeup) {
        let _locked = match self.lock_in_soon(me) {
            Ok(locked) => locked,
            Err(denied) => return (self.while_lent(me, denied), Wakeup::default()),
        };
        loop {
            let other = match self.bytes_in_ring(kernel) {
                Ok(available) => {
                    let received = self.take_from_ring(kernel, buffers, available, take);
                    if self.hinted() && self.must_flush_to_kernel() {
                        // It may be the last call for long.
                        self.flush_to_kernel(me, kernel);
                    }
                    return received;
                }
                Err(Receiving::Kernel) if self.awaits_way_back() => Some(self.no_way_back_yet(kernel)),
                Err(Receiving::Kernel) if self.begin_kernel_receive() => Some(Receiving::Kernel),
                Err(Receiving::Kernel) => self.receive_from_kernel(kernel, buffers, take),
                Err(other) => Some(other),
            };
            if let Some(other) = other {
                if self.is_waited_for() {
                    // A caller that waits for an answer may have to send the question another way.
                    self.flush_to_kernel(me, kernel);
                }
                return (other, Wakeup::default());
            }
        }
    }

    /// Bytes in the ring, if it is the ring that is to be read and there are any; what is to be
    /// done otherwise. The caller has the lock.
    #[inline]
    pub(super) fn bytes_in_ring(&self, kernel: &impl Kernel) -> Result<u64, Receiving> {
        loop {
            if !self.incoming().reads_ring() && !self.follow_into_ring(kernel) {
                return Err(Receiving::Kernel);
            }
            let available = self.incoming().available(self.slot.most_bytes());
            if available > 0 {
                return Ok(available);
            }
            match self.empty_ring(kernel) {
                Some(Receiving::Done(1)) => continue,
                Some(other) => return Err(other),
                None => return Err(Receiving::Empty),
            }
        }
    }

    #[inline]
    fn take_from_ring(
        &self,
        kernel: &impl Kernel,
        buffers: &mut [IoSliceMut<'_>],
        available: u64,
        take: bool,
    ) -> (Receiving, Wakeup) {
        let into = self.incoming();
        let layout = into.layout();
        let head = into.head.load(Ordering::Relaxed);
        self.note_receive(|| kernel.now_ns());
        if self.ask_pause.load(Ordering::Relaxed) != BYTES_CAME {
            self.ask_pause.store(BYTES_CAME, Ordering::Relaxed);
        }
        let (mut done, mut room) = (0, false);
        while done < available {
            let at = head.wrapping_add(done);
            let (large, piece) = self.lie_in(layout, at, (available - done).min(TAKE_BYTES));
            let copied = self.slot.copy_out(1 - self.end, large, at, buffers, done, piece);
            done += copied;
            room |= take && copied > 0 && into.consume(copied, self.slot.ring_bytes(layout.large));
            if copied < piece {
                break;
            }
        }
        (Receiving::Done(done as usize), Wakeup { receiver: false, sender: room })
    }

    /// In which ring the bytes from `at` on lie, and how many of `most` of them do.
    #[inline]
    pub(super) fn lie_in(&self, layout: Layout, at: u64, most: u64) -> (bool, u64) {
        let (large, bytes) = match layout.bytes_before(at) {
            0 => (layout.large, most),
            before => (!layout.large, before.min(most)),
        };
        (large, bytes.min(self.slot.ring_bytes(large)))
    }

    /// In the kernel; none: read the state again, it has changed. Never waits, and the caller has
    /// the lock: so nobody is in the kernel for bytes of this epoch when the next one begins, and a
    /// receiver that is killed leaves nothing behind.
    fn receive_from_kernel(&self, kernel: &impl Kernel, into: &mut [IoSliceMut<'_>], take: bool) -> Option<Receiving> {
        let before = self.incoming().phase();
        match self.read_copies(kernel) {
            Copies::Gone => {}
            Copies::Coming => return Some(self.nothing_came().unwrap_or(Receiving::Empty)),
            Copies::Amiss if self.reset_reported.swap(1, Ordering::Relaxed) == 0 => {
                return Some(Receiving::Failed(Errno::CONNRESET));
            }
            Copies::Amiss => return Some(Receiving::Done(0)),
        }
        Some(match kernel.receive_now(into, take) {
            Ok(bytes @ 1..) => {
                self.note_receive(|| kernel.now_ns());
                Receiving::OfKernel(bytes)
            }
            // The last bytes came between the two peeks; or these were the last, and others have
            // them.
            Err(Errno::AGAIN) if self.incoming().phase() != before => return None,
            Err(Errno::AGAIN) => self.nothing_came().unwrap_or(Receiving::Empty),
            // Nobody asked for bytes.
            Ok(_) if into.iter().all(|s| s.is_empty()) => Receiving::Done(0),
            // The kernel says so once, and has said it to a peek.
            Ok(_) if self.has_unreported_reset() && self.reset_reported.swap(1, Ordering::Relaxed) == 0 => {
                Receiving::Failed(Errno::CONNRESET)
            }
            // The ring may be next, and what says so under way.
            Ok(_) if !self.is_all_here(kernel) => self.nothing_came().unwrap_or(Receiving::Empty),
            // Or it came just now, before the word that all is here.
            Ok(_) if self.incoming().phase() != before => return None,
            Ok(_) if self.follow_the_dead(kernel) => return None,
            // Also while a change is pending: the sender that announced it has died over it.
            Ok(_) => self.end_in_kernel(kernel),
            Err(errno) => Receiving::Failed(errno),
        })
    }

    /// The kernel's stream has ended. That is a reset of which the kernel knows nothing, if the
    /// other end has died with bytes unread in the ring.
    #[cold]
    fn end_in_kernel(&self, kernel: &impl Kernel) -> Receiving {
        self.ask_kernel.store(1, Ordering::Relaxed);
        self.follow_hints(kernel);
        match self.reset() {
            Some(Errno::CONNRESET) => self.takes_reset().map_or(Receiving::Done(0), Receiving::Failed),
            _ => Receiving::Done(0),
        }
    }

    /// In the kernel: whether its bytes are drained and the ring is next.
    fn follow_into_ring(&self, kernel: &impl Kernel) -> bool {
        let into = self.incoming();
        if into.goes_back() {
            return false;
        }
        let mut polls = 0;
        loop {
            match into.phase() {
                Phase::Steady => return false,
                // Not for ever: the sender that announces it may have been stopped or killed over
                // it.
                Phase::Pending if polls >= PENDING_POLLS => return false,
                Phase::Pending => {
                    polls += 1;
                    std::hint::spin_loop();
                    if polls % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
                Phase::EndsAt(boundary) => {
                    let drained =
                        kernel.received().is_some_and(|(received, unread)| unread == 0 && received >= boundary);
                    let follows = drained && into.may_follow(boundary);
                    if follows {
                        self.go_on_in_ring(boundary);
                    }
                    return follows;
                }
            }
        }
    }

    /// Whether everything of the kernel phase was read and the ring has taken over: what
    /// [`receive`](Self::receive) would find out. None of it waits.
    pub(crate) fn follow(&self, me: u32, kernel: &impl Kernel) {
        if self.incoming().phase() != Phase::Steady || self.expects_copies() {
            if let Some(_locked) = self.lock_in(me) {
                if self.incoming().reads_ring() {
                    self.leave_drained_ring();
                } else {
                    self.follow_into_ring(kernel);
                }
                if !self.incoming().reads_ring() {
                    self.read_copies(kernel);
                }
            }
        }
    }

    /// The ring is empty: `Done(1)` to read again, anything else is the result, none: it is empty.
    fn empty_ring(&self, kernel: &impl Kernel) -> Option<Receiving> {
        let into = self.incoming();
        if self.leave_drained_ring() {
            return Some(Receiving::Done(1));
        }
        if into.phase() == Phase::Pending {
            // It is just being left, by a holder that may have died over it.
            self.ask_kernel.store(1, Ordering::Relaxed);
        }
        let flags = into.sender_flags.load(Ordering::Acquire);
        let shut = into.receiver_flags.load(Ordering::Relaxed) & Flags::SHUT != 0;
        if shut {
            // What comes after the own end is answered by a reset, which only the kernel reports.
            self.ask_kernel.store(1, Ordering::Relaxed);
        }
        if flags == 0 || shut {
            self.is_time_to_ask(kernel);
            self.follow_hints(kernel);
        }
        if flags == 0 && !shut && self.kernel_end.load(Ordering::Relaxed) == 0 {
            return self.nothing_came();
        }
        // What was published before the end was announced counts.
        fence(Ordering::SeqCst);
        if into.available(self.slot.most_bytes()) > 0 {
            return Some(Receiving::Done(1));
        }
        // A reset that came after the end is reported to the sender.
        match self.reset() {
            Some(Errno::CONNRESET) => Some(self.takes_reset().map_or(Receiving::Done(0), Receiving::Failed)),
            _ => Some(Receiving::Done(0)),
        }
    }
}
