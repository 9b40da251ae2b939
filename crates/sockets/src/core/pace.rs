//! Which medium suits a direction between nodes, by what turns take in each. A turn is a short send
//! that answers bytes from the peer.
//!
//! One end judges, and which one is the same for all connections of two nodes. Where the ring is
//! worth it is found out by all connections of its process to that node together
//! ([`choice.rs`](super::choice)). What is here is what one connection adds: its turns; and why it
//! stays in the kernel for a while although the ring is taken. That is a long send, pauses, a full
//! ring, or an other end that does not come. The other end follows each connection, so that two
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
use super::choice::{Again, Choice, Part};
use crate::limits::{
    BETWEEN_GLANCE, BETWEEN_GLANCE_BAD, BETWEEN_GOOD_WINDOWS, BETWEEN_LONG_RESTS, BETWEEN_LONG_SENDS,
    BETWEEN_REQUEST_AGAIN, BETWEEN_REQUEST_TURNS, BETWEEN_REST_NS, BETWEEN_RESTS, BETWEEN_SEND_BYTES_MAX,
    BETWEEN_SETTLING, BETWEEN_TURNS_MAX, BETWEEN_TURNS_MIN, BETWEEN_UNMEASURED, BETWEEN_UNMEASURED_SLOW,
    BETWEEN_WAY_NS_MAX, BETWEEN_WINDOW,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What this process remembers of the turns of a connection.
#[derive(Debug)]
pub(super) struct Pace {
    /// What is found out with others.
    choice: Arc<Choice>,
    /// The verdict that this connection knows of.
    known: AtomicU32,
    /// What this connection has in the window of the choice.
    part: Part,
    /// The direction to the peer belongs into the kernel.
    prefers_kernel: AtomicU32,
    /// Turns to come in which it does whatever the verdict is.
    away: AtomicU32,
    /// How many those will be the next time.
    away_next: AtomicU32,
    /// Turns in the ring since the last time.
    turns_in_ring: AtomicU32,
    /// Turns in which the ring was requested in vain.
    unanswered: AtomicU32,
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
    /// What a turn took in the last window in the kernel; 0: not known.
    usual_ns: AtomicU64,
    /// What it took of the processors there; 0: not known.
    kernel_cpu_ns: AtomicU64,
    again: Again,
    /// This end pauses for longer than that.
    slow_responder: AtomicU32,
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
    /// Turns with a pause in which the kernel would have had done with the whole turn.
    pauses: AtomicU32,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::new(Arc::default())
    }
}

impl Pace {
    /// Of a connection that follows this choice.
    pub(super) fn new(choice: Arc<Choice>) -> Pace {
        let (zero, none) = (AtomicU32::default, AtomicU64::default);
        Pace {
            choice,
            known: zero(),
            part: Part::default(),
            prefers_kernel: AtomicU32::new(1),
            away: zero(),
            away_next: AtomicU32::new(BETWEEN_TURNS_MIN),
            turns_in_ring: zero(),
            unanswered: zero(),
            rests: zero(),
            sent_ns: none(),
            received_ns: none(),
            window: Window::default(),
            unmeasured: zero(),
            usual_ns: none(),
            kernel_cpu_ns: none(),
            again: Again::default(),
            slow_responder: zero(),
            long_sends: zero(),
            always: zero(),
        }
    }

    /// Whether the direction to the peer belongs into the kernel.
    #[inline]
    pub(super) fn prefers_kernel(&self) -> bool {
        self.prefers_kernel.load(Relaxed) != 0
    }

    /// What measurements would lead to, for the simulation.
    pub(super) fn decide(&self, kernel: bool) {
        self.choice.decide(!kernel);
        // Nothing is late, and nothing is unknown.
        self.usual_ns.store(BETWEEN_WAY_NS_MAX, Relaxed);
        self.away.store(0, Relaxed);
        self.prefer_kernel(kernel);
    }

    fn prefer_kernel(&self, kernel: bool) {
        self.prefers_kernel.store(u32::from(kernel), Relaxed);
    }

    /// Short sends go by the ring from here on.
    pub(super) fn always_by_ring(&self) {
        self.always.store(1, Relaxed);
    }

    /// Whether this end pauses for so long that the ring does not pay; it does where losses cost
    /// more than a turn takes.
    pub(super) fn is_slow_responder(&self) -> bool {
        self.slow_responder.load(Relaxed) != 0 && self.choice.losses.turn_ns() <= self.usual_ns.load(Relaxed)
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
        self.stay_away();
    }

    /// Whether there is a verdict that this connection has not heard of. Two loads.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.known.load(Relaxed) != self.choice.verdict().number()
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
        let settled = self.prefers_kernel() && self.window.in_ring.load(Relaxed) == 0;
        if !settled || self.always.load(Relaxed) != 0 {
            return 0;
        }
        if self.long_sends.load(Relaxed) >= BETWEEN_LONG_SENDS {
            return BETWEEN_LONG_RESTS;
        }
        let unmeasured = self.unmeasured.load(Relaxed);
        let away = self.away.load(Relaxed);
        let counts = judges && !self.is_slow_responder();
        let most = match self.choice.verdict().ring() {
            true if counts => unmeasured.min(away),
            false if counts => unmeasured.min(self.choice.turns_to_trial()),
            _ => unmeasured,
        };
        let rest = most.saturating_sub(1);
        self.unmeasured.store(unmeasured - rest, Relaxed);
        self.away.store(away.saturating_sub(rest), Relaxed);
        self.choice.losses.passed(rest);
        if counts {
            self.choice.passed(rest);
        }
        rest
    }

    fn lead(&self, clock: &impl Kernel, bytes: u64, turn: &Turn, in_ring: bool) {
        self.known.store(self.choice.verdict().number(), Relaxed);
        if bytes > BETWEEN_SEND_BYTES_MAX {
            return self.stay_away();
        }
        // The way to an answer may be long; what it takes beyond that is a rest, of whomever.
        let usual_ns = self.usual_ns.load(Relaxed);
        let rest_ns = match (turn.answers, usual_ns) {
            (true, 0) => turn.pause_ns,
            (true, usual_ns) => turn.ns.saturating_sub(usual_ns),
            (false, _) => turn.ns,
        };
        let rests = if rest_ns > BETWEEN_REST_NS { self.rests.load(Relaxed) + 1 } else { 0 };
        self.rests.store(rests, Relaxed);
        if rests >= BETWEEN_RESTS {
            self.rests.store(0, Relaxed);
            return self.stay_away();
        }
        if turn.answers {
            self.note_turn(in_ring);
            if turn.measured {
                let way_ns = self.measure(clock, turn, in_ring);
                if !self.is_slow_responder() {
                    self.choice.measure(&self.part, turn.ns, way_ns, in_ring);
                }
            }
            if !self.is_slow_responder() {
                self.choice.count_turn(in_ring);
            }
            self.wait_for_answer(in_ring);
        }
        let verdict = self.choice.verdict();
        self.known.store(verdict.number(), Relaxed);
        // One that has just come is measured in the kernel first.
        let known = self.usual_ns.load(Relaxed) != 0;
        let stays = !known || self.away.load(Relaxed) != 0 || self.is_slow_responder();
        self.prefer_kernel(stays || !verdict.ring());
    }

    fn follow(&self, clock: &impl Kernel, bytes: u64, turn: &Turn, in_ring: bool, other_in_ring: bool) {
        if turn.answers {
            self.note_turn(in_ring);
            if turn.measured {
                self.measure(clock, turn, in_ring);
            }
        }
        let stays = self.away.load(Relaxed) != 0 || self.is_slow_responder();
        self.prefer_kernel(bytes > BETWEEN_SEND_BYTES_MAX || !other_in_ring || stays);
    }

    /// Counts a turn.
    fn note_turn(&self, in_ring: bool) {
        if in_ring {
            let turns = self.turns_in_ring.fetch_add(1, Relaxed) + 1;
            if turns == BETWEEN_GOOD_WINDOWS * BETWEEN_WINDOW {
                self.away_next.store(BETWEEN_TURNS_MIN, Relaxed);
            }
        } else {
            self.choice.losses.passed(1);
            let away = self.away.load(Relaxed);
            self.away.store(away.saturating_sub(1), Relaxed);
        }
    }

    /// The ring is requested for so long, and not for ever.
    fn wait_for_answer(&self, in_ring: bool) {
        if in_ring || self.prefers_kernel() {
            return self.unanswered.store(0, Relaxed);
        }
        if self.unanswered.fetch_add(1, Relaxed) + 1 >= BETWEEN_REQUEST_TURNS {
            self.unanswered.store(0, Relaxed);
            self.away.store(BETWEEN_REQUEST_AGAIN, Relaxed);
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
        [&window.turns, &window.pauses].into_iter().for_each(|count| count.store(0, Relaxed));
        window.ns.store(0, Relaxed);
    }

    /// Adds a turn to the window of this connection; gives what of it counts.
    fn measure(&self, clock: &impl Kernel, turn: &Turn, in_ring: bool) -> u64 {
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
        let usual_ns = self.usual_ns.load(Relaxed);
        let way_ns = turn.ns.saturating_sub(turn.pause_ns) + turn.pause_ns.min(BETWEEN_REST_NS);
        let way_ns = way_ns.min(if usual_ns == 0 { BETWEEN_WAY_NS_MAX } else { usual_ns.saturating_mul(4) });
        let ns = window.ns.fetch_add(way_ns, Relaxed) + way_ns;
        if turns < BETWEEN_WINDOW {
            return way_ns;
        }
        self.slow_responder.store(u32::from(pauses > BETWEEN_WINDOW / 2), Relaxed);
        if !in_ring {
            self.usual_ns.store((ns / u64::from(BETWEEN_WINDOW)).max(1), Relaxed);
            let cpu_ns = cpu_ns.saturating_sub(window.cpu_ns.load(Relaxed)) / u64::from(BETWEEN_WINDOW - 1);
            // The least of the last ones: what the process did besides does not belong to the turn.
            let last_ns = if kernel_cpu_ns == 0 { u64::MAX } else { kernel_cpu_ns + kernel_cpu_ns / 8 };
            self.kernel_cpu_ns.store(cpu_ns.min(last_ns), Relaxed);
            self.again.look(clock, &self.choice.losses);
            if kernel_cpu_ns != 0 {
                let turns = if self.is_slow_responder() { BETWEEN_UNMEASURED_SLOW } else { BETWEEN_UNMEASURED };
                self.unmeasured.store(turns, Relaxed);
            }
        }
        self.begin_window(in_ring);
        way_ns
    }

    /// The direction is the kernel's for some turns. One that leaves the ring often stays away for
    /// longer each time; if the ring is tried only, the choice sees to that.
    fn stay_away(&self) {
        let turns = self.away_next.load(Relaxed);
        self.away.store(turns, Relaxed);
        self.turns_in_ring.store(0, Relaxed);
        if self.prefers_kernel.swap(1, Relaxed) == 0 && !self.choice.leave() {
            self.away_next.store(turns.saturating_mul(2).min(BETWEEN_TURNS_MAX), Relaxed);
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

#[cfg(test)]
pub(super) mod tests;
