//! How a connection ends: what this end announces, what the other one announced, and what the
//! kernel reports of an end that announced nothing.
//!
//! Invariant: an end is announced in the words before the kernel's socket ends; a reset is reported
//! by one call, and stays one after a peek was told of it.

use super::{BYTES_CAME, ENDED, Kernel, RESET, Upgraded, Wakeup};
use crate::limits::{ASK_PAUSE_NS, ASK_PAUSE_NS_MAX};
use crate::types::Close;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use vmmc_stream::{End, Flags, Phase};

impl Upgraded {
    /// Has the kernel asked now and then without a hint, for a node that is stopped or gone gives
    /// none. Returns whether it is time. Bytes that came since the last time show as much, if that
    /// was just now: their sender was alive, so a connection that is busy both ways costs no system
    /// call.
    pub(crate) fn is_time_to_ask(&self, kernel: &impl Kernel) -> bool {
        let (now, at) = (kernel.coarse_ns(), self.ask_at.load(Ordering::Relaxed));
        if now < at {
            return false;
        }
        let pause = self.ask_pause.load(Ordering::Relaxed);
        let silent = pause != BYTES_CAME || now - at >= ASK_PAUSE_NS;
        let pause = pause.clamp(ASK_PAUSE_NS, ASK_PAUSE_NS_MAX);
        self.ask_at.store(now + pause, Ordering::Relaxed);
        self.ask_pause.store(if silent { pause * 2 } else { pause }, Ordering::Relaxed);
        if silent {
            self.ask_kernel.store(1, Ordering::Relaxed);
        }
        silent
    }

    /// Asks the kernel about the other end after a hint.
    pub(crate) fn follow_hints(&self, kernel: &impl Kernel) {
        let hint = self.own().hint.load(Ordering::Acquire);
        let hinted = self.hints_seen.swap(hint, Ordering::Relaxed) != hint;
        let asked = self.ask_kernel.load(Ordering::Relaxed) != 0 && self.ask_kernel.swap(0, Ordering::Relaxed) != 0;
        if !hinted && !asked {
            return;
        }
        let (in_ring, reached) = (self.incoming().reads_ring(), self.incoming().reached());
        let shut = self.incoming().receiver_flags.load(Ordering::Relaxed) & Flags::SHUT != 0;
        let peeked = match kernel.peek() {
            // It may be the own end that the kernel speaks of.
            End::Ended if shut && !kernel.peer_ended() => End::Open,
            peeked => peeked,
        };
        let over = match peeked {
            End::Open => false,
            End::Ended | End::Reset(_) => true,
            End::Bytes => kernel.peer_ended(),
        };
        if over && !matches!(peeked, End::Reset(_)) && !self.is_all_here(kernel) {
            // Asked again when the other node has answered.
            return;
        }
        let dead = self.other().dead.load(Ordering::Acquire) != 0;
        // Another thread may have followed a change since: then the peek is not of this phase.
        let phase = Some(self.incoming().phase()).filter(|_| in_ring && self.incoming().reached() == reached);
        self.holder_unknown.store(u32::from(dead && !over), Ordering::Relaxed);
        match peeked {
            End::Reset(_) => self.note_kernel_end(RESET),
            End::Ended if in_ring => self.note_kernel_end(ENDED),
            // Copies of a sending end that died over leaving the ring, which has them all.
            End::Bytes if over && phase == Some(Phase::Pending) => self.note_kernel_end(ENDED),
            // Bytes behind the announced end of the kernel's part were sent by a program that does
            // not know of the ring: the stream is unknown from here on.
            End::Bytes if self.between.is_none() && phase == Some(Phase::Steady) => self.note_kernel_end(RESET),
            _ => {}
        }
        if over && (dead || self.is_unannounced(phase)) {
            let out = self.outgoing();
            // What was asked back is in the kernel once the direction has left the ring.
            let there = out.announced().in_ring() || !self.is_between() && !out.goes_back();
            let unread = there && out.available(self.slot.most_bytes()) > 0;
            if unread && self.kernel_end.load(Ordering::Relaxed) != RESET {
                // Its kernel knew of nothing unread, and ended in order.
                self.unread_at_death.store(1, Ordering::Relaxed);
            }
            self.gone.store(1, Ordering::Release);
        }
        if over && self.kernel_end.load(Ordering::Relaxed) == 0 {
            // Not to be reported yet: bytes come first, or a change of medium.
            self.ask_kernel.store(1, Ordering::Relaxed);
        }
    }

    /// Notes [`ENDED`], or [`RESET`], which stays, whatever a later peek is told.
    pub(super) fn note_kernel_end(&self, what: u32) {
        self.kernel_end.fetch_max(what, Ordering::Relaxed);
    }

    /// Whether an end that the kernel reports was announced by nobody: the other end did not
    /// close, it died. Whatever announces an end does so before its kernel's socket ends. `in_ring`
    /// is the phase of the ring that was read while the kernel was asked, if it was one.
    fn is_unannounced(&self, in_ring: Option<Phase>) -> bool {
        let flags = self.incoming().sender_flags.load(Ordering::Acquire);
        let reader = self.outgoing().receiver_flags.load(Ordering::Acquire);
        if self.is_between() {
            // Libraries of an earlier release may run on the other node, and say nothing of an end
            // in the kernel.
            let stays = in_ring.is_some_and(|phase| !matches!(phase, Phase::EndsAt(_)));
            return stays && flags == 0 && reader & (Flags::CLOSED | Flags::ENDED) == 0;
        }
        // A holder that has asked for the kernel may have handed the end to a program that
        // announces nothing.
        flags == 0 && reader & (Flags::CLOSED | Flags::ENDED | Flags::FLUSH_TO_KERNEL) == 0
    }

    /// Whether a hint waits to be followed.
    #[inline]
    pub(crate) fn hinted(&self) -> bool {
        self.own().hint.load(Ordering::Relaxed) != self.hints_seen.load(Ordering::Relaxed)
            || self.ask_kernel.load(Ordering::Relaxed) != 0
    }

    /// No bytes come from this end any more.
    pub(crate) fn end_sending(&self, me: u32, kernel: &impl Kernel) -> Wakeup {
        self.incoming().receiver_flags.fetch_or(Flags::ENDED, Ordering::SeqCst);
        let Some(_locked) = self.lock_out(me) else { return Wakeup::default() };
        let pending = self.outgoing().announced().pending;
        if pending {
            // The next sender would finish it, and there is none: the peer would take this for a
            // death.
            self.finish_change_of_the_dead(kernel);
        }
        let in_ring = self.outgoing().announced().in_ring();
        if in_ring {
            self.outgoing().sender_flags.fetch_or(Flags::END, Ordering::SeqCst);
        } else {
            // Nor by a holder that begins to enter the ring now and dies over it: the end is the
            // kernel's.
            self.own().pinned.store(1, Ordering::SeqCst);
        }
        Wakeup { receiver: in_ring || pending, sender: false }
    }

    /// This process had ended its direction before the words were there: the end is the kernel's.
    pub(crate) fn has_ended_before(&self) {
        self.incoming().receiver_flags.fetch_or(Flags::ENDED, Ordering::SeqCst);
        self.own().pinned.store(1, Ordering::SeqCst);
    }

    /// Whether the kernel is about to reset the connection at the close, for bytes of it are
    /// unread, and the other end reads the ring. A receive that leaves them there would show it as
    /// well, and take the error of a reset, which a socket that only dissolves its connection goes
    /// on to report. Not once the kernel's bytes were left to a program that reads nothing else.
    pub(crate) fn leaves_unread_in_kernel(&self, kernel: &impl Kernel) -> bool {
        self.outgoing().announced().in_ring()
            && !self.incoming().reads_ring()
            && !self.incoming().goes_back()
            && !self.expects_copies()
            && kernel.received().is_some_and(|(_, unread)| unread > 0)
    }

    /// One holder less; the last one closes this end, and is told how.
    pub(crate) fn let_go(&self, how: Close) -> (Option<Close>, Wakeup) {
        if self.own().holders.fetch_sub(1, Ordering::SeqCst) != 1 {
            return (None, Wakeup::default());
        }
        let into = self.incoming();
        let in_ring = into.reads_ring() || into.announced().in_ring() && !into.goes_back();
        let unread = in_ring && into.available(self.slot.most_bytes()) > 0;
        let how = if unread { Close::Reset } else { how };
        let out = self.outgoing();
        if out.announced().in_ring() {
            let ended = out.sender_flags.load(Ordering::Relaxed) & Flags::END != 0;
            let flags = match how {
                Close::Orderly => Flags::END,
                Close::Reset if ended => Flags::RESET | Flags::RESET_AFTER_END,
                Close::Reset => Flags::END | Flags::RESET,
            };
            out.sender_flags.fetch_or(flags, Ordering::SeqCst);
        }
        self.incoming().receiver_flags.fetch_or(Flags::CLOSED, Ordering::SeqCst);
        (Some(how), Wakeup { receiver: true, sender: true })
    }

    /// One holder less, unless it is the last.
    pub(crate) fn leave_to_others(&self) -> bool {
        let less = |n: u32| (n > 1).then(|| n - 1);
        self.own().holders.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    /// Whether this end has ended its own direction.
    pub(crate) fn has_ended(&self) -> bool {
        self.outgoing().sender_flags.load(Ordering::Relaxed) & Flags::END != 0
    }

    /// Whether the kernel reported an end or a reset: 0, [`ENDED`] or [`RESET`].
    pub(crate) fn kernel_reset(&self) -> bool {
        self.kernel_end.load(Ordering::Relaxed) == RESET
    }

    /// Whether the other end reads no more, and a kernel would answer what comes by a reset.
    pub(crate) fn takes_no_more(&self) -> bool {
        let reader = self.outgoing().receiver_flags.load(Ordering::Acquire);
        let ended =
            || reader & Flags::ENDED != 0 || self.incoming().sender_flags.load(Ordering::Acquire) & Flags::END != 0;
        reader & Flags::CLOSED != 0 || self.is_gone() || reader & Flags::SHUT != 0 && ended()
    }

    /// Whether that is all: the other end has closed or died in order, so its kernel's socket
    /// reports what follows.
    pub(crate) fn has_closed_in_order(&self) -> bool {
        self.takes_no_more() && self.reset().is_none()
    }

    /// The reset that a kernel would have received, if any: `EPIPE` after the end, `ECONNRESET`
    /// without one. A holder that dies with bytes unread resets the connection, as one that closes
    /// so does.
    pub(crate) fn reset(&self) -> Option<Errno> {
        let flags = self.incoming().sender_flags.load(Ordering::Acquire);
        let died = self.unread_at_death.load(Ordering::Relaxed) != 0;
        let ended = || self.outgoing().receiver_flags.load(Ordering::Acquire) & Flags::ENDED != 0;
        let after_end = flags & Flags::RESET_AFTER_END != 0 || died && (flags & Flags::END != 0 || ended());
        let reset = flags & Flags::RESET != 0 || self.kernel_reset() || died;
        reset.then_some(if after_end { Errno::PIPE } else { Errno::CONNRESET })
    }

    /// A reset that was not reported yet; it is from now on.
    pub(crate) fn takes_reset(&self) -> Option<Errno> {
        self.reset().filter(|_| self.reset_reported.swap(1, Ordering::Relaxed) == 0)
    }

    /// Whether the kernel has reset the connection, and no call has reported it.
    pub(crate) fn has_unreported_reset(&self) -> bool {
        self.kernel_reset() && !self.reset_was_reported()
    }

    /// Whether the kernel reported that the other end sends no more.
    pub(crate) fn kernel_ended(&self) -> bool {
        self.kernel_end.load(Ordering::Relaxed) != 0
    }
    /// Whether the other end has died.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) != 0
    }

    /// A system call has reported the reset.
    pub(crate) fn kernel_reported_reset(&self) {
        self.reset_reported.store(1, Ordering::Relaxed);
    }

    /// Whether a call has reported the reset.
    pub(crate) fn reset_was_reported(&self) -> bool {
        self.reset_reported.load(Ordering::Relaxed) != 0
    }
}
