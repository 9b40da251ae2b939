//! Which medium suits a direction between nodes, by what turns take in each. A turn is a short send
//! that answers bytes from the peer.
//!
//! One end judges. It measures a window of turns in the kernel, then tries the ring, and keeps it
//! if a turn takes less than nine tenths there; from the ring it tries the kernel now and then,
//! for a machine that was busy may not be so any more. A trial that goes badly ends after a few
//! turns, and the next one comes after eight times as many. The other end follows, so that two
//! measurements do not disturb each other.
//!
//! A segment that the kernel has to send again, with nothing behind it that would tell of the loss,
//! costs a turn the retransmission time-out: 200 ms, where the engine takes a round trip or two.
//! That is too rare for a window of turns, so the kernel's own count of what it sent again is asked
//! for, and what a turn pays for losses on the average is added to its time in the kernel. The end
//! that judges knows of its own sends only, and counts them twice: losses of the other direction
//! are as many, as a rule.
//!
//! The ring's time is not all that it costs: while a turn is under way the nodes poll for what
//! comes next. An end that pauses, between what it received and what it sends, for longer than a
//! turn in the kernel takes of processors, is a slow responder: it keeps to the kernel, and does
//! not answer the other end's request for the ring. Losses that cost more than a turn outweigh
//! that.
//!
//! Invariant: nothing here decides where a byte goes; it is advice, and nothing of it is exact when
//! several threads send. Source: docs/sockets.md, between two nodes.

use super::Kernel;
use crate::limits::{
    BETWEEN_GLANCE, BETWEEN_GLANCE_BAD, BETWEEN_GOOD_WINDOWS, BETWEEN_LONG_RESTS, BETWEEN_LONG_SENDS,
    BETWEEN_LOSS_FADES, BETWEEN_LOSS_TURNS, BETWEEN_REQUEST_AGAIN, BETWEEN_REQUEST_TURNS, BETWEEN_REST_NS,
    BETWEEN_RESTS, BETWEEN_SEND_BYTES_MAX, BETWEEN_SETTLING, BETWEEN_TRIAL_FACTOR, BETWEEN_TURNS_MAX,
    BETWEEN_TURNS_MIN, BETWEEN_UNMEASURED, BETWEEN_UNMEASURED_SLOW, BETWEEN_WAY_NS_MAX, BETWEEN_WINDOW,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What this process remembers of the turns of a connection.
#[derive(Debug)]
pub(super) struct Pace {
    /// The direction to the peer belongs into the kernel.
    prefers_kernel: AtomicU32,
    /// That medium is only tried.
    trying: AtomicU32,
    /// Turns since a medium was taken, or a trial of another one failed.
    turns: AtomicU32,
    /// How many of them, in the kernel and in the ring, bring a trial of the other one.
    trial_after: [AtomicU32; 2],
    /// Sends in a row that came late: rests.
    rests: AtomicU32,
    /// Time of the last send.
    sent_ns: AtomicU64,
    /// When the first bytes since then came; 0: none have.
    received_ns: AtomicU64,
    window: Window,
    /// Turns for which nobody reads a clock: the other end follows a change, or what they take
    /// is known well enough.
    unmeasured: AtomicU32,
    /// What a turn took in its last window, in the kernel and in the ring; 0: not known.
    turn_ns: [AtomicU64; 2],
    /// What it took of the processors in the kernel; 0: not known.
    kernel_cpu_ns: AtomicU64,
    losses: Losses,
    /// This end pauses for longer than that.
    slow_responder: AtomicU32,
    /// The ring was full.
    crowded: AtomicU32,
    /// Windows since it came into the ring that were worth it.
    good_windows: AtomicU32,
    /// Sends in a row that are longer than what goes by a ring.
    long_sends: AtomicU32,
    /// Short sends go by the ring whether it pays or not.
    always: AtomicU32,
}

/// The turns that are being measured.
#[derive(Debug, Default)]
struct Window {
    in_ring: AtomicU32,
    turns: AtomicU32,
    ns: AtomicU64,
    /// Processor time of this process when it began.
    cpu_ns: AtomicU64,
    /// Turns that the other medium would have done better.
    bad: AtomicU32,
    /// Turns with a pause in which the kernel would have had done with the whole turn.
    pauses: AtomicU32,
}

/// What the kernel had to send again.
#[derive(Debug, Default)]
struct Losses {
    /// Turns in the kernel, and segments sent again in them.
    turns: AtomicU32,
    again: AtomicU32,
    /// One more than the kernel's count when it was asked last; 0: it never was.
    counted: AtomicU32,
    timeout_ns: AtomicU64,
}

impl Losses {
    /// Asks the kernel.
    fn look(&self, clock: &impl Kernel) {
        let Some((count, timeout_ns)) = clock.retransmissions() else { return };
        let before = self.counted.swap(count.wrapping_add(1), Relaxed);
        let new = if before == 0 { 0 } else { count.wrapping_add(1).wrapping_sub(before) };
        self.again.fetch_add(new, Relaxed);
        self.timeout_ns.store(timeout_ns, Relaxed);
        if self.turns.load(Relaxed) > BETWEEN_LOSS_TURNS {
            [&self.turns, &self.again].into_iter().for_each(|count| count.store(count.load(Relaxed) / 2, Relaxed));
        }
    }

    fn passed(&self, turns: u32) {
        self.turns.fetch_add(turns, Relaxed);
    }

    /// What they cost a turn on the average.
    fn turn_ns(&self) -> u64 {
        let lost_ns = u64::from(self.again.load(Relaxed)).saturating_mul(self.timeout_ns.load(Relaxed));
        2 * lost_ns / u64::from(self.turns.load(Relaxed).max(1))
    }
}

impl Default for Pace {
    fn default() -> Pace {
        let (zero, none) = (AtomicU32::default, AtomicU64::default);
        Pace {
            prefers_kernel: AtomicU32::new(1),
            trying: zero(),
            turns: zero(),
            trial_after: [AtomicU32::new(BETWEEN_TURNS_MIN), AtomicU32::new(BETWEEN_TURNS_MIN)],
            rests: zero(),
            sent_ns: none(),
            received_ns: none(),
            window: Window::default(),
            unmeasured: zero(),
            turn_ns: [none(), none()],
            kernel_cpu_ns: none(),
            losses: Losses::default(),
            slow_responder: zero(),
            crowded: zero(),
            good_windows: zero(),
            long_sends: zero(),
            always: zero(),
        }
    }
}

impl Pace {
    /// Whether the direction to the peer belongs into the kernel.
    #[inline]
    pub(super) fn prefers_kernel(&self) -> bool {
        self.prefers_kernel.load(Relaxed) != 0
    }

    /// What measurements would lead to.
    pub(super) fn prefer_kernel(&self, kernel: bool) {
        self.prefers_kernel.store(u32::from(kernel), Relaxed);
    }

    /// Short sends go by the ring from here on.
    pub(super) fn always_by_ring(&self) {
        self.always.store(1, Relaxed);
    }

    /// Whether this end pauses for so long that the ring does not pay; it does where losses cost
    /// more than a turn takes.
    pub(super) fn is_slow_responder(&self) -> bool {
        self.slow_responder.load(Relaxed) != 0 && self.losses.turn_ns() <= self.turn_ns[KERNEL].load(Relaxed)
    }

    /// Notes that bytes came.
    #[inline]
    pub(super) fn note_receive(&self, now_ns: impl FnOnce() -> u64) {
        if self.received_ns.load(Relaxed) == 0 {
            let measured = self.unmeasured.load(Relaxed) == 0;
            self.received_ns.store(if measured { now_ns() } else { 1 }, Relaxed);
        }
    }

    /// The ring was full.
    pub(super) fn crowd(&self) {
        self.crowded.store(1, Relaxed);
        self.stay_with_kernel();
    }

    /// A send, with the medium that carried the last one; and, if it is the other end that judges,
    /// whether that one sends by the ring.
    pub(super) fn saw_send(&self, clock: &impl Kernel, bytes: u64, in_ring: bool, other_in_ring: Option<bool>) {
        if self.always.load(Relaxed) != 0 {
            return self.prefer_kernel(bytes > BETWEEN_SEND_BYTES_MAX);
        }
        let long = if bytes > BETWEEN_SEND_BYTES_MAX { self.long_sends.load(Relaxed).saturating_add(1) } else { 0 };
        self.long_sends.store(long, Relaxed);
        if (self.window.in_ring.load(Relaxed) != 0) != in_ring {
            self.begin_window(in_ring);
            self.unmeasured.store(BETWEEN_SETTLING, Relaxed);
        }
        let turn = self.end_turn(clock, in_ring);
        match other_in_ring {
            Some(other_in_ring) => self.follow(clock, bytes, &turn, in_ring, other_in_ring),
            None => self.lead(clock, bytes, &turn, in_ring),
        }
    }

    /// Sends by the kernel after this one of which nothing has to be known: those whose turns are
    /// counted, and not measured, and those of a direction that only carries long ones. They count
    /// as turns here and now.
    pub(super) fn rest(&self, judges: bool) -> u32 {
        let settled = self.prefers_kernel() && self.trying.load(Relaxed) == 0 && self.window.in_ring.load(Relaxed) == 0;
        if !settled || self.always.load(Relaxed) != 0 {
            return 0;
        }
        if self.long_sends.load(Relaxed) >= BETWEEN_LONG_SENDS {
            return BETWEEN_LONG_RESTS;
        }
        let unmeasured = self.unmeasured.load(Relaxed);
        let to_trial = self.trial_after[KERNEL].load(Relaxed).saturating_sub(self.turns.load(Relaxed));
        let most = if judges && !self.is_slow_responder() { unmeasured.min(to_trial) } else { unmeasured };
        let rest = most.saturating_sub(1);
        self.unmeasured.store(unmeasured - rest, Relaxed);
        self.turns.fetch_add(rest, Relaxed);
        self.losses.passed(rest);
        rest
    }

    fn lead(&self, clock: &impl Kernel, bytes: u64, turn: &Turn, in_ring: bool) {
        if bytes > BETWEEN_SEND_BYTES_MAX {
            return self.stay_with_kernel();
        }
        // The way to an answer may be long; what it takes beyond that is a rest, of whomever.
        let usual_ns = self.turn_ns[KERNEL].load(Relaxed);
        let rest_ns = match (turn.answers, usual_ns) {
            (true, 0) => turn.pause_ns,
            (true, usual_ns) => turn.ns.saturating_sub(usual_ns),
            (false, _) => turn.ns,
        };
        let rests = if rest_ns > BETWEEN_REST_NS { self.rests.load(Relaxed) + 1 } else { 0 };
        self.rests.store(rests, Relaxed);
        if rests >= BETWEEN_RESTS {
            return self.stay_with_kernel();
        }
        if turn.answers {
            if !in_ring {
                self.losses.passed(1);
            }
            if turn.measured {
                self.judge(clock, turn, in_ring);
            }
            self.count_turn(in_ring);
        }
    }

    fn follow(&self, clock: &impl Kernel, bytes: u64, turn: &Turn, in_ring: bool, other_in_ring: bool) {
        if turn.answers {
            self.turns.fetch_add(1, Relaxed);
            if !in_ring {
                self.losses.passed(1);
            }
            if turn.measured {
                self.measure(clock, turn, in_ring);
            }
        }
        if bytes > BETWEEN_SEND_BYTES_MAX || !other_in_ring || self.is_slow_responder() {
            return self.prefer_kernel(true);
        }
        // After its ring was full it answers so often by the kernel first.
        let crowded = self.crowded.load(Relaxed) != 0;
        if !crowded || self.turns.load(Relaxed) >= self.trial_after[KERNEL].load(Relaxed) {
            self.prefer_kernel(false);
        }
    }

    /// What lies between the last send and this one.
    fn end_turn(&self, clock: &impl Kernel, in_ring: bool) -> Turn {
        let received_ns = self.received_ns.load(Relaxed);
        let answers = received_ns != 0;
        let unmeasured = self.unmeasured.load(Relaxed);
        if answers {
            self.received_ns.store(0, Relaxed);
            self.unmeasured.store(unmeasured.saturating_sub(1), Relaxed);
        }
        // In the ring rests count at once.
        if unmeasured > 1 && !in_ring {
            return Turn { ns: 0, pause_ns: 0, answers, measured: false };
        }
        let now = clock.now_ns();
        let last = self.sent_ns.swap(now, Relaxed);
        // Behind turns without a clock the next one begins now.
        let ns = if unmeasured > 0 && !in_ring { 0 } else { now.saturating_sub(last) };
        // 1: bytes came when no clock was read.
        let pause_ns = if received_ns > 1 { now.saturating_sub(received_ns) } else { 0 };
        Turn { ns, pause_ns, answers, measured: unmeasured == 0 }
    }

    fn begin_window(&self, in_ring: bool) {
        let window = &self.window;
        window.in_ring.store(u32::from(in_ring), Relaxed);
        [&window.turns, &window.bad, &window.pauses].into_iter().for_each(|count| count.store(0, Relaxed));
        window.ns.store(0, Relaxed);
    }

    /// Adds a turn to the window; gives what a turn took on the average, when the window is full.
    fn measure(&self, clock: &impl Kernel, turn: &Turn, in_ring: bool) -> Option<u64> {
        let window = &self.window;
        let turns = window.turns.fetch_add(1, Relaxed) + 1;
        let cpu_ns = if turns == 1 || turns >= BETWEEN_WINDOW { clock.cpu_ns() } else { 0 };
        if turns == 1 {
            window.cpu_ns.store(cpu_ns, Relaxed);
        }
        let kernel_cpu_ns = self.kernel_cpu_ns.load(Relaxed);
        let paused = u32::from(kernel_cpu_ns != 0 && turn.pause_ns > kernel_cpu_ns);
        let pauses = window.pauses.fetch_add(paused, Relaxed) + paused;
        if turns == BETWEEN_GLANCE && pauses >= BETWEEN_GLANCE_BAD {
            self.slow_responder.store(1, Relaxed);
        }
        // Of a rest only its beginning: it would weigh more than all turns beside it.
        let usual_ns = self.turn_ns[KERNEL].load(Relaxed);
        let way_ns = turn.ns.saturating_sub(turn.pause_ns) + turn.pause_ns.min(BETWEEN_REST_NS);
        let ns = way_ns.min(if usual_ns == 0 { BETWEEN_WAY_NS_MAX } else { usual_ns.saturating_mul(4) });
        let ns = window.ns.fetch_add(ns, Relaxed) + ns;
        if turns < BETWEEN_WINDOW {
            return None;
        }
        self.slow_responder.store(u32::from(pauses > BETWEEN_WINDOW / 2), Relaxed);
        let mean_ns = (ns / u64::from(BETWEEN_WINDOW)).max(1);
        self.turn_ns[usize::from(in_ring)].store(mean_ns, Relaxed);
        if !in_ring {
            let cpu_ns = cpu_ns.saturating_sub(window.cpu_ns.load(Relaxed)) / u64::from(BETWEEN_WINDOW - 1);
            // The least of the last ones: what the process did besides does not belong to the turn.
            let last_ns = if kernel_cpu_ns == 0 { u64::MAX } else { kernel_cpu_ns + kernel_cpu_ns / 8 };
            self.kernel_cpu_ns.store(cpu_ns.min(last_ns), Relaxed);
        }
        self.begin_window(in_ring);
        if !in_ring {
            self.losses.look(clock);
        }
        if !in_ring && kernel_cpu_ns != 0 {
            let turns = if self.is_slow_responder() { BETWEEN_UNMEASURED_SLOW } else { BETWEEN_UNMEASURED };
            self.unmeasured.store(turns, Relaxed);
        }
        Some(mean_ns)
    }

    /// Decides, by a turn, which medium is taken or left.
    fn judge(&self, clock: &impl Kernel, turn: &Turn, in_ring: bool) {
        let [kernel_ns, ring_ns] = [KERNEL, RING].map(|medium| self.turn_ns[medium].load(Relaxed));
        let pays = |ns: u64| match in_ring {
            true => ring_pays(ns, kernel_ns + self.losses.turn_ns()),
            false => ring_pays(ring_ns, ns + self.losses.turn_ns()),
        };
        let bad = pays(turn.ns) != in_ring;
        let (trying, preferred) = (self.trying.load(Relaxed) != 0, in_ring != self.prefers_kernel());
        let bad = self.window.bad.fetch_add(u32::from(bad), Relaxed) + u32::from(bad);
        let measured = self.measure(clock, turn, in_ring);
        if !preferred {
            // The change is under way.
            return;
        }
        if in_ring && self.is_slow_responder() {
            return self.stay_with_kernel();
        }
        if trying && self.window.turns.load(Relaxed) == BETWEEN_GLANCE && bad >= BETWEEN_GLANCE_BAD {
            return self.end_trial(in_ring, false);
        }
        if let Some(ns) = measured {
            if !in_ring && !trying && pays(ns) {
                self.trial_after[KERNEL].fetch_min(BETWEEN_TURNS_MIN, Relaxed);
            }
            match (trying, pays(ns) == in_ring) {
                (true, good) => self.end_trial(in_ring, good),
                (false, false) if in_ring => self.stay_with_kernel(),
                (false, true) if in_ring => self.forgive(),
                _ => {}
            }
        }
    }

    /// After so many turns in one medium the other one is tried.
    fn count_turn(&self, in_ring: bool) {
        if !in_ring && self.trying.load(Relaxed) != 0 && !self.prefers_kernel() {
            // The other end is a slow responder, or cannot: the ring would be requested, and
            // measured, for ever.
            if self.turns.fetch_add(1, Relaxed) + 1 >= BETWEEN_REQUEST_TURNS {
                self.trying.store(0, Relaxed);
                self.turns.store(0, Relaxed);
                self.prefer_kernel(true);
                self.trial_after[KERNEL].fetch_max(BETWEEN_REQUEST_AGAIN, Relaxed);
            }
            return;
        }
        let settled = self.trying.load(Relaxed) == 0 && in_ring != self.prefers_kernel();
        if !settled || self.is_slow_responder() || self.turn_ns[usize::from(in_ring)].load(Relaxed) == 0 {
            return;
        }
        let turns = self.turns.fetch_add(1, Relaxed) + 1;
        if turns >= self.trial_after[usize::from(in_ring)].load(Relaxed) {
            self.turns.store(0, Relaxed);
            self.trying.store(1, Relaxed);
            self.prefer_kernel(in_ring);
        }
    }

    /// The medium that was tried is taken, or the other one again.
    fn end_trial(&self, in_ring: bool, good: bool) {
        self.trying.store(0, Relaxed);
        self.turns.store(0, Relaxed);
        self.prefer_kernel(in_ring != good);
        if in_ring && good {
            self.good_windows.store(0, Relaxed);
        }
        if !in_ring && !good {
            self.losses.passed(self.trial_after[RING].load(Relaxed) / BETWEEN_LOSS_FADES);
        }
        let after = if good { BETWEEN_TURNS_MIN } else { self.trial_after[usize::from(!in_ring)].load(Relaxed) };
        let after = after.saturating_mul(BETWEEN_TRIAL_FACTOR).min(BETWEEN_TURNS_MAX);
        self.trial_after[usize::from(in_ring == good)].store(after, Relaxed);
    }

    /// A window in the ring was worth it: after many of them it is as if none ever had not been.
    fn forgive(&self) {
        if self.good_windows.fetch_add(1, Relaxed) + 1 == BETWEEN_GOOD_WINDOWS {
            self.trial_after[KERNEL].store(BETWEEN_TURNS_MIN, Relaxed);
        }
    }

    fn stay_with_kernel(&self) {
        self.turns.store(0, Relaxed);
        self.rests.store(0, Relaxed);
        let tried = self.trying.swap(0, Relaxed) != 0;
        if self.prefers_kernel.swap(1, Relaxed) == 0 {
            // A connection that changes often should do so less and less.
            let factor = if tried { BETWEEN_TRIAL_FACTOR } else { 2 };
            let after = self.trial_after[KERNEL].load(Relaxed).saturating_mul(factor).min(BETWEEN_TURNS_MAX);
            self.trial_after[KERNEL].store(after, Relaxed);
        }
    }
}

/// What lies between two sends.
struct Turn {
    ns: u64,
    /// Of it, the time since bytes came.
    pause_ns: u64,
    /// Bytes came.
    answers: bool,
    measured: bool,
}

const KERNEL: usize = 0;
const RING: usize = 1;

/// Whether a turn that takes so long in the ring is worth the work of two nodes.
fn ring_pays(ring_ns: u64, kernel_ns: u64) -> bool {
    ring_ns != 0 && ring_ns.saturating_mul(10) <= kernel_ns.saturating_mul(9)
}

#[cfg(test)]
mod tests;
