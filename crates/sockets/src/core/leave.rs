//! A direction leaves the ring by itself, whatever is unread there: it never waits for the
//! receiving end, which may not read for long.
//!
//! The next holder of the connection may know only the kernel, and then the unread bytes must be
//! there, in front of all that follows. Nobody can put them there later. So the sending end puts
//! **copies** of them into the kernel when it leaves, from the head on that it sees. A receiving
//! end of ours reads the ring to its end and then reads the copies away; one that hands the
//! connection over stops in the ring where it is, and reads away the copies of what it had. Mostly
//! the ring is empty, and there are none.
//!
//! The copies are made between the two halves of the announcement. If their maker dies over it a
//! sibling goes on where the kernel says that it stopped; without a sibling the stream has ended,
//! and the ring has all of it. What the kernel does not take at once stays out: then there is a gap
//! behind the copies, for which the ring must be read.
//!
//! A ring that the receiving end has not followed into is not left: its bytes go into the kernel in
//! front of it ([spill](vmmc_stream::DirectionWords::begin_spill)), some of them to make room, or
//! all of them, and then it is withdrawn.
//!
//! Invariant: from the byte of the kernel's stream at which the ring took over,
//! [`copies_before`](vmmc_stream::Left::copies_before) the tail bytes of it are copies.

use super::{Kernel, RESET, Upgraded};
use crate::limits::{COPIES_POLLS, FULL_TIME_NS, PUBLISH_BYTES};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vmmc_stream::{DirectionWords, Flags, Left, Phase};

/// What of the copies stands in front of the kernel's next byte for the receiving end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copies {
    /// Nothing.
    Gone,
    /// They are not all here, or it is not announced yet how many there are.
    Coming,
    /// The next byte cannot be determined.
    Amiss,
}

/// When a full ring was noticed.
#[derive(Debug, Default)]
pub(super) struct Full {
    /// The head then.
    head: AtomicU64,
    /// The time, nanoseconds; 0: never.
    since_ns: AtomicU64,
    /// The head stood still for [`FULL_TIME_NS`].
    stuck: AtomicU32,
}

impl Upgraded {
    /// Sending end that has no room: a receiving end that takes nothing for so long may wait for us
    /// to go on, as a program does that writes before it reads. The kernel's buffers take more than
    /// a ring, and there the direction goes with the next send; or some of its bytes, if the
    /// receiving end has not followed into the ring yet.
    pub(crate) fn notice_full(&self, now_ns: u64, kernel: &impl Kernel) {
        let head = self.outgoing().head.load(Ordering::Acquire);
        let full = &self.full;
        if full.head.swap(head, Ordering::Relaxed) != head || full.since_ns.load(Ordering::Relaxed) == 0 {
            full.since_ns.store(now_ns.max(1), Ordering::Relaxed);
            full.stuck.store(0, Ordering::Relaxed);
        } else if now_ns.saturating_sub(full.since_ns.load(Ordering::Relaxed)) >= FULL_TIME_NS {
            full.stuck.store(u32::from(kernel.takes_more()), Ordering::Relaxed);
        }
    }

    /// Whether the next send finds the ring full, and uses the kernel.
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        self.full.stuck.load(Ordering::Relaxed) != 0 && self.is_stuck_now()
    }

    #[cold]
    fn is_stuck_now(&self) -> bool {
        let out = self.outgoing();
        !self.is_between()
            && out.head.load(Ordering::Acquire) == self.full.head.load(Ordering::Relaxed)
            && out.announced().in_ring()
            && !out.goes_back()
            && out.sender_flags.load(Ordering::Relaxed) & Flags::END == 0
    }

    /// Announces that the kernel carries what comes next; `more`: the caller sends there at once.
    /// Otherwise there are no copies: a reader that has read all that was sent, and closes, would
    /// leave them unread, which is a reset. False: the receiving end has not followed the last
    /// change yet, or wants what is in the ring by the kernel too. The caller has the lock.
    pub(super) fn leave_ring(&self, kernel: &impl Kernel, more: bool) -> bool {
        let out = self.outgoing();
        if out.goes_back()
            || out.reached() != out.announced().number
            || out.sender_flags.load(Ordering::Relaxed) & Flags::END != 0
        {
            return false;
        }
        out.leaves_from.store(out.head.load(Ordering::Acquire), Ordering::Relaxed);
        // Between nodes the other node answers a request with what it sees here then: so an end
        // that cannot have seen the request first announces that it leaves.
        out.begin_change();
        if out.goes_back() {
            out.cancel_change();
            return false;
        }
        if more {
            self.finish_leaving(kernel, 0, more);
        } else {
            self.end_leaving(0);
        }
        true
    }

    /// Sending end whose ring is full before the receiving end has followed into it: what is in the
    /// ring goes into the kernel, as far as that takes it now, in front of what stays. Says whether
    /// there is more room. The caller has the lock.
    #[cold]
    pub(super) fn spill(&self, kernel: &impl Kernel) -> bool {
        let out = self.outgoing();
        let Some((moved, unread, _)) = self.begin_spill(kernel) else { return false };
        out.end_spill(moved);
        if moved == unread {
            // It is stuck until the receiving end follows.
            self.full.head.store(out.tail.load(Ordering::Relaxed), Ordering::Relaxed);
        } else {
            self.full.stuck.store(0, Ordering::Relaxed);
            self.full.since_ns.store(0, Ordering::Relaxed);
        }
        moved > 0
    }

    /// Sending end whose receiving end has not followed into the ring, and may not for long: all
    /// that is in the ring goes into the kernel, and the ring is withdrawn. True: what is sent from
    /// here on goes by the kernel, where its pins keep the direction.
    pub(super) fn withdraw_ring(&self, me: u32, kernel: &impl Kernel) -> bool {
        let Some(_locked) = self.lock_out(me) else { return false };
        let out = self.outgoing();
        if self.has_ended() && out.announced().in_ring() {
            // Nothing is. Its last bytes are read in the ring, for the kernel takes none behind its
            // own end.
            return true;
        }
        let Some((moved, unread, failed)) = self.begin_spill(kernel) else { return false };
        if failed == Some(Errno::AGAIN) {
            out.end_spill(moved);
            return false;
        }
        // Another error: nobody will read them.
        out.withdraw_ring(unread);
        true
    }

    /// Makes the first half of it, as far as the kernel takes bytes now: how many are there, of how
    /// many, and why those are not all. None: the receiving end has followed. The caller has the
    /// lock.
    fn begin_spill(&self, kernel: &impl Kernel) -> Option<(u64, u64, Option<Errno>)> {
        let out = self.outgoing();
        if !self.may_spill() {
            return None;
        }
        // For one that died over its last word: under the lock nobody is at it.
        out.end_front();
        if !out.begin_spill() {
            return None;
        }
        let (head, tail) = (out.leaves_from.load(Ordering::Relaxed), out.tail.load(Ordering::Relaxed));
        let unread = tail.wrapping_sub(head).min(self.slot.most_bytes());
        let (moved, failed) = self.copy_to_kernel(kernel, head, unread, 0, false);
        Some((moved, unread, failed))
    }

    /// Whether this direction is the ring's, and the receiving end has not followed into it.
    pub(super) fn may_spill(&self) -> bool {
        let (out, announced) = (self.outgoing(), self.outgoing().announced());
        let entered = announced.in_ring() && !announced.pending && out.reached() != announced.number;
        entered && !out.goes_back() && !self.is_between()
    }

    /// Receiving end to which the kernel's stream has ended: whether it goes on in the ring, some
    /// of which was being spilled by somebody who died over it. The caller has the lock.
    pub(super) fn follow_the_dead(&self, kernel: &impl Kernel) -> bool {
        let into = self.incoming();
        let spilling = into.is_spilling() && into.announced().in_ring() && into.announced().number != into.reached();
        let Some(until) = kernel.received_in_all().filter(|_| spilling && !into.goes_back()) else { return false };
        into.follow_spilled(until);
        self.go_on_in_ring(until);
        true
    }

    /// Receiving end: the kernel was read up to this byte, and the ring is next. The caller has the
    /// lock.
    pub(super) fn go_on_in_ring(&self, until: u64) {
        let into = self.incoming();
        into.kernel_read.store(until, Ordering::Relaxed);
        into.copies.store(0, Ordering::Relaxed);
        into.reach_next();
        self.followed();
    }

    /// The same after its first half, when so many copies are in the kernel.
    pub(super) fn finish_leaving(&self, kernel: &impl Kernel, moved: u64, more: bool) {
        let out = self.outgoing();
        let (from, tail) = (out.leaves_from.load(Ordering::Relaxed), out.tail.load(Ordering::Relaxed));
        let unread = tail.wrapping_sub(from).min(self.slot.most_bytes());
        let (moved, _) = self.copy_to_kernel(kernel, from, unread, moved, more);
        self.end_leaving(moved);
    }

    /// The second half, with so many copies in the kernel.
    fn end_leaving(&self, moved: u64) {
        let out = self.outgoing();
        let (from, tail) = (out.leaves_from.load(Ordering::Relaxed), out.tail.load(Ordering::Relaxed));
        self.withdraw_ring_request();
        out.leave_ring(Left { from: tail.wrapping_sub(moved), whole: moved == tail.wrapping_sub(from) });
    }

    /// Puts what is in the ring to the peer from `from` on into the kernel's socket: `most` bytes,
    /// of which `moved` are there. Says how many are there then, and why that is not all.
    #[inline]
    pub(super) fn copy_to_kernel(
        &self,
        kernel: &impl Kernel,
        from: u64,
        most: u64,
        moved: u64,
        more: bool,
    ) -> (u64, Option<Errno>) {
        if moved >= most { (moved, None) } else { self.copy_some_to_kernel(kernel, from, most, moved, more) }
    }

    #[cold]
    fn copy_some_to_kernel(
        &self,
        kernel: &impl Kernel,
        from: u64,
        most: u64,
        mut moved: u64,
        more: bool,
    ) -> (u64, Option<Errno>) {
        let layout = self.outgoing().layout();
        let mut buffer = [0u8; PUBLISH_BYTES as usize];
        while moved < most {
            let at = from.wrapping_add(moved);
            let (large, piece) = self.lie_in(layout, at, (most - moved).min(PUBLISH_BYTES));
            let copied = self.slot.copy_out(self.end, large, at, &mut [IoSliceMut::new(&mut buffer)], 0, piece);
            let piece = [IoSlice::new(&buffer[..copied as usize])];
            match if more { kernel.send_more(&piece) } else { kernel.send_now(&piece) } {
                Ok(0) => return (moved, Some(Errno::AGAIN)),
                Ok(sent) => moved += sent as u64,
                Err(errno) => return (moved, Some(errno)),
            }
        }
        (moved, None)
    }

    /// Receiving end: goes on in the kernel if the ring has ended and is empty; says whether. The
    /// caller has the lock, and reads the ring.
    pub(super) fn leave_drained_ring(&self) -> bool {
        let into = self.incoming();
        let over = matches!(into.phase(), Phase::EndsAt(_)) && into.available(self.slot.most_bytes()) == 0;
        if over {
            self.go_on_in_kernel();
        }
        over
    }

    /// Receiving end: what was read from the ring so far is what came by it. The caller has the
    /// lock.
    fn go_on_in_kernel(&self) {
        let into = self.incoming();
        let head = into.head.load(Ordering::Relaxed);
        let copies = into.left().copies_before(head).min(self.slot.most_bytes());
        into.copies_until.store(into.kernel_read.load(Ordering::Relaxed).wrapping_add(copies), Ordering::Relaxed);
        into.copies.store(copies, Ordering::Relaxed);
        into.reach_next();
        // Only then: a holder that finds us dead in between counts from the head.
        into.head.store(into.tail.load(Ordering::Relaxed), Ordering::Release);
        self.followed();
    }

    /// Receiving end that asked for the kernel: whether the sending end left the ring by itself
    /// with bytes unread there, and nobody has gone on behind it.
    #[inline]
    fn was_left_behind(&self) -> bool {
        let into = self.incoming();
        let (announced, reached) = (into.announced(), into.reached());
        into.goes_back() && !announced.in_ring() && reached % 2 == 1 && announced.number != reached
    }

    /// Whether the kernel has all that is unread in a ring that was left.
    pub(super) fn has_copies_of_the_rest(&self) -> bool {
        let (into, most) = (self.incoming(), self.slot.most_bytes());
        let left = into.left();
        into.available(most) == 0 || left.whole && left.copies_before(into.head.load(Ordering::Relaxed)) <= most
    }

    /// Whether copies stand, or may stand, in front of the kernel's next byte.
    #[inline]
    pub(super) fn expects_copies(&self) -> bool {
        self.incoming().copies.load(Ordering::Relaxed) != 0 || self.was_left_behind()
    }

    /// Receiving end: whether what comes by the kernel is for the program, and only for it.
    pub(crate) fn is_read_from_kernel(&self) -> bool {
        let into = self.incoming();
        !into.reads_ring() && into.phase() == Phase::Steady && !self.expects_copies()
    }

    /// Receiving end, in the kernel: reads copies away. The caller has the lock.
    #[inline]
    pub(super) fn read_copies(&self, kernel: &impl Kernel) -> Copies {
        if self.expects_copies() { self.read_some_copies(kernel) } else { Copies::Gone }
    }

    #[cold]
    fn read_some_copies(&self, kernel: &impl Kernel) -> Copies {
        let into = self.incoming();
        if self.was_left_behind() {
            match into.announced().pending {
                true if self.is_left_empty() => return Copies::Gone,
                true => return Copies::Coming,
                false if self.has_copies_of_the_rest() => self.go_on_in_kernel(),
                false => return Copies::Amiss,
            }
        }
        let mut left = into.copies.load(Ordering::Relaxed);
        if left & DirectionWords::READS_COPIES != 0 {
            match self.copies_that_the_dead_left(kernel) {
                Some(copies) => left = copies.min(left & !DirectionWords::READS_COPIES),
                None => return Copies::Amiss,
            }
        }
        let mut buffer = [0u8; PUBLISH_BYTES as usize];
        while left > 0 {
            into.copies.store(left | DirectionWords::READS_COPIES, Ordering::Relaxed);
            let most = left.min(PUBLISH_BYTES) as usize;
            let got = kernel.receive_now(&mut [IoSliceMut::new(&mut buffer[..most])], true);
            left = match got {
                Ok(n @ 1..) => left - n as u64,
                Ok(_) => 0,
                Err(Errno::AGAIN) => {
                    into.copies.store(left, Ordering::Relaxed);
                    return Copies::Coming;
                }
                Err(_) => {
                    // It says so once.
                    self.note_kernel_end(RESET);
                    0
                }
            };
        }
        into.copies.store(0, Ordering::Relaxed);
        Copies::Gone
    }

    /// Receiving end, while the sending end leaves the ring: whether nothing was unread when it
    /// began to, so that no copies are made.
    pub(super) fn is_left_empty(&self) -> bool {
        let into = self.incoming();
        let head = into.head.load(Ordering::Relaxed);
        let empty = into.available(self.slot.most_bytes()) == 0;
        // The word is of the sending end's node.
        empty && !self.is_between() && into.leaves_from.load(Ordering::Relaxed) == head
    }

    /// Somebody was killed while reading copies away. None: it is unknown how many are left.
    fn copies_that_the_dead_left(&self, kernel: &impl Kernel) -> Option<u64> {
        for _ in 0..COPIES_POLLS {
            let ((before, unread), (after, _)) = (kernel.received()?, kernel.received()?);
            // A byte that comes between two questions is in one answer only, and the end of the
            // stream may be counted for one.
            if before == after && !kernel.peer_ended() {
                return Some(self.incoming().copies_until.load(Ordering::Relaxed).saturating_sub(before - unread));
            }
        }
        None
    }
}
