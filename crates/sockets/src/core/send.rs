//! What the sending end does: bytes into the ring, or into the kernel, with the last of which the
//! ring takes over.
//!
//! Invariant: a change of medium happens under the lock of the sending end, with no kernel call of
//! it under way.

use super::{Kernel, Sending, Upgraded, Wakeup};
use crate::limits::{GROW_AGAIN_BYTES, PUBLISH_BYTES, SEND_BYTES_MAX};
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::atomic::Ordering;
use vmmc_stream::{EndWords, Flags};

impl Upgraded {
    /// Sends bytes. `me` is the thread's id.
    pub(crate) fn send(&self, me: u32, kernel: &impl Kernel, from: &[IoSlice<'_>]) -> (Sending, Wakeup) {
        let _locked = match self.lock_out_soon(me) {
            Ok(locked) => locked,
            Err(_) if self.room.held_by(me) => return (Sending::Failed(Errno::DEADLK), Wakeup::default()),
            Err(denied) => return (Sending::Locked(denied), Wakeup::default()),
        };
        let out = self.outgoing();
        if out.announced().pending {
            self.finish_change_of_the_dead(kernel);
        }
        if self.between.is_some() {
            if let Some(failed) = self.pace(kernel, from) {
                return (failed, Wakeup::default());
            }
        }
        if !out.announced().in_ring() {
            return self.send_by_kernel(kernel, from);
        }
        if self.must_leave_ring() {
            let left =
                self.leave_ring(kernel, !is_empty(from)) || out.goes_back() && self.flush_to_kernel_locked(kernel);
            if left {
                out.kernel_sends.fetch_add(1, Ordering::SeqCst);
                return (Sending::Kernel, Wakeup { receiver: true, sender: false });
            }
            if out.goes_back() {
                return (Sending::Full, Wakeup::default());
            }
        }
        let sending = match self.send_by_ring(kernel, from) {
            (Sending::Full, _) if self.hinted() => {
                self.follow_hints(kernel);
                self.send_by_ring(kernel, from)
            }
            (Sending::Full, wakeup) => {
                self.notice_full(kernel.coarse_ns(), kernel);
                if (self.is_crowded() || self.is_stuck()) && self.leave_ring(kernel, true) {
                    out.kernel_sends.fetch_add(1, Ordering::SeqCst);
                    (Sending::Kernel, Wakeup { receiver: true, sender: false })
                } else if self.is_stuck() && self.spill(kernel) {
                    self.send_by_ring(kernel, from)
                } else {
                    (Sending::Full, wakeup)
                }
            }
            other => other,
        };
        if out.goes_back() {
            // Asked for while these were published.
            self.flush_to_kernel_locked(kernel);
        }
        sending
    }

    #[inline]
    fn send_by_ring(&self, kernel: &impl Kernel, from: &[IoSlice<'_>]) -> (Sending, Wakeup) {
        let out = self.outgoing();
        if self.hinted() || self.is_time_to_ask(kernel) {
            self.follow_hints(kernel);
        }
        if let Some(errno) = self.send_error() {
            return (Sending::Failed(errno), Wakeup::default());
        }
        let wanted: u64 = from.iter().map(|s| s.len() as u64).sum();
        if wanted == 0 {
            return (Sending::Done(0), Wakeup::default());
        }
        let wanted = wanted.min(SEND_BYTES_MAX);
        let mut large = out.layout().large;
        let mut done = 0;
        while done < wanted {
            let ring_bytes = self.slot.ring_bytes(large);
            let piece = (wanted - done).min(PUBLISH_BYTES);
            let mut free = out.free(ring_bytes, piece.min(ring_bytes));
            if free == 0 {
                if out.may_grow() && out.change_ring() {
                    large = true;
                    continue;
                }
                self.ask_for_more(large);
                // A caller whose bytes were not all taken may wait for room next, in whatever way.
                out.want_room();
                free = out.free(ring_bytes, 1);
                if free == 0 {
                    break;
                }
            }
            let at = out.tail.load(Ordering::Relaxed);
            let room = free.min(piece);
            let copied = self.stores.copy(
                room,
                || kernel.now_ns(),
                |how| self.slot.copy_in((self.end, large), at, from, done, room, how),
            );
            out.publish(copied);
            done += copied;
        }
        match done {
            0 => (Sending::Full, Wakeup::default()),
            done => (Sending::Done(done as usize), Wakeup { receiver: true, sender: false }),
        }
    }

    /// The ring is full: a larger one would help.
    pub(super) fn ask_for_more(&self, large: bool) {
        let tail = self.outgoing().tail.load(Ordering::Relaxed);
        if !large && tail >= self.grow_at.load(Ordering::Relaxed) {
            self.grow_at.store(tail + GROW_AGAIN_BYTES, Ordering::Relaxed);
            self.wants_to_grow.store(1, Ordering::Relaxed);
        }
    }

    /// Whether the node should be asked for a larger ring; true once.
    #[inline]
    pub(crate) fn takes_grow_request(&self) -> bool {
        self.wants_to_grow.load(Ordering::Relaxed) != 0 && self.wants_to_grow.swap(0, Ordering::Relaxed) != 0
    }

    /// Why no more bytes can be sent through the ring.
    #[inline]
    pub(super) fn send_error(&self) -> Option<Errno> {
        let ended = self.has_ended();
        let open = !ended
            && self.outgoing().receiver_flags.load(Ordering::Relaxed) & (Flags::CLOSED | Flags::SHUT) == 0
            && !self.kernel_reset()
            && !self.is_gone();
        if open {
            return None;
        }
        let over = || ended || self.takes_no_more() || self.reset().is_some();
        self.takes_reset().or_else(|| over().then_some(Errno::PIPE))
    }

    /// A kernel send; and, if both sides are ready for it, the last one.
    fn send_by_kernel(&self, kernel: &impl Kernel, from: &[IoSlice<'_>]) -> (Sending, Wakeup) {
        let out = self.outgoing();
        let left = !self.is_between() && out.available(self.slot.most_bytes()) > 0;
        if left && (self.hinted() || self.is_time_to_ask(kernel)) {
            // Left behind in the ring, and perhaps for ever.
            self.follow_hints(kernel);
        }
        if self.reset().is_some() {
            // The kernel has reported it to a peek, or knows nothing of it.
            return (Sending::Failed(self.takes_reset().unwrap_or(Errno::PIPE)), Wakeup::default());
        }
        let bytes: usize = from.iter().map(|s| s.len()).sum();
        if bytes == 0 || !self.may_enter_ring() {
            out.kernel_sends.fetch_add(1, Ordering::SeqCst);
            return (Sending::Kernel, Wakeup::default());
        }
        out.begin_change();
        if self.is_deaf() {
            out.cancel_change();
            out.kernel_sends.fetch_add(1, Ordering::SeqCst);
            return (Sending::Kernel, Wakeup::default());
        }
        let wakeup = Wakeup { receiver: true, sender: false };
        match kernel.send_now(from) {
            Ok(done) if done > 0 => {
                match kernel.sent() {
                    Some(boundary) => {
                        out.enter_ring(boundary);
                        kernel.no_delay();
                    }
                    None => out.cancel_change(),
                }
                (Sending::Done(done), wakeup)
            }
            Ok(_) | Err(Errno::AGAIN) => {
                out.cancel_change();
                (Sending::Full, wakeup)
            }
            Err(errno) => {
                out.cancel_change();
                (Sending::Failed(errno), wakeup)
            }
        }
    }

    pub(super) fn may_enter_ring(&self) -> bool {
        let out = self.outgoing();
        let attached = |e: &EndWords| e.attached.load(Ordering::Acquire) == EndWords::YES;
        attached(self.other())
            && attached(self.own())
            && self.is_awaited()
            && !self.is_deaf()
            && !self.must_leave_ring()
            && out.reached() == out.announced().number
            && out.kernel_sends.load(Ordering::SeqCst) == 0
            && self.early.sends.load(Ordering::SeqCst) == 0
            && out.sender_flags.load(Ordering::Relaxed) & Flags::END == 0
            && !self.takes_no_more()
    }

    /// Whether this direction belongs into the kernel.
    #[inline]
    pub(super) fn must_leave_ring(&self) -> bool {
        self.pinned.load(Ordering::Relaxed) != 0
            || self.own().pinned.load(Ordering::Relaxed) != 0
            || self.prefers_kernel()
            || self.outgoing().receiver_flags.load(Ordering::Relaxed) & Flags::WANTS_KERNEL != 0
    }

    /// A holder of this end died between the two halves of an announcement: the kernel knows how
    /// far it came.
    pub(super) fn finish_change_of_the_dead(&self, kernel: &impl Kernel) {
        let out = self.outgoing();
        match kernel.sent() {
            sent if out.is_spilling() => {
                let behind = out.spills_behind.load(Ordering::Relaxed);
                out.end_spill(sent.map_or(0, |sent| sent.wrapping_sub(behind)));
            }
            Some(boundary) if out.announced().in_ring() => out.enter_ring(boundary),
            Some(sent) => match sent.wrapping_sub(out.ring_began.load(Ordering::Relaxed)) {
                // Nobody sends behind copies now.
                0 => out.cancel_change(),
                moved => self.finish_leaving(kernel, moved, false),
            },
            None => out.cancel_change(),
        }
    }

    /// Brings the direction to the peer back to the kernel, if it is in the ring and the peer has
    /// followed so far; returns whether it is in the kernel now, and whom to wake.
    pub(crate) fn return_to_kernel(&self, me: u32, kernel: &impl Kernel) -> (bool, Wakeup) {
        let Some(_locked) = self.lock_out(me) else { return (false, Wakeup::default()) };
        let wakeup = Wakeup { receiver: true, sender: false };
        if self.outgoing().announced().pending {
            self.finish_change_of_the_dead(kernel);
        } else if !self.outgoing().announced().in_ring() {
            return (true, Wakeup::default());
        }
        (!self.outgoing().announced().in_ring() || self.leave_ring(kernel, false), wakeup)
    }

    /// Holds the sending direction in the kernel for a call of another kind. False: it is in the
    /// ring.
    pub(crate) fn begin_kernel_send(&self, me: u32) -> bool {
        let Some(_locked) = self.lock_out(me) else { return false };
        let now = self.outgoing().announced();
        if now.in_ring() || now.pending || self.reset().is_some() {
            return false;
        }
        self.outgoing().kernel_sends.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Ends a counted kernel send.
    pub(crate) fn end_kernel_send(&self) {
        self.outgoing().kernel_sends.fetch_sub(1, Ordering::SeqCst);
    }
}

fn is_empty(slices: &[IoSlice<'_>]) -> bool {
    slices.iter().all(|s| s.is_empty())
}
