//! Which medium the connections of this process to one other node take, by what all of their turns
//! take in each.
//!
//! A turn in the ring costs one connection most of what it costs fifty: the nodes have one thread
//! each, and put what comes at the same time into one packet. What one connection finds out while
//! the others are in the kernel says little about all of them. So their turns are measured together
//! and there is one verdict, which each of them follows at its next send.
//!
//! ```text
//! KERNEL      32 turns each, later up to 16,384; or a window of losses  ──▶ TRY RING
//! TRY RING    a window pays                                             ──▶ RING
//! TRY RING    it does not, or nobody comes into it                      ──▶ KERNEL
//! RING        a window does not pay                                     ──▶ KERNEL
//! RING        256 turns each, later up to 16,384                        ──▶ TRY KERNEL
//! TRY KERNEL  a window is as good                                       ──▶ KERNEL
//! TRY KERNEL  it is not                                                 ──▶ RING
//! ```
//!
//! Invariant: nothing here decides where a byte goes; it is advice. A verdict is exchanged by one
//! compare-and-swap, so of several threads that would change it one does; counts of turns may be
//! lost. Source: docs/sockets.md, between two nodes.

use super::Kernel;
use crate::limits::{
    BETWEEN_CHOICES_MAX, BETWEEN_GLANCE, BETWEEN_GLANCE_BAD, BETWEEN_GOOD_WINDOWS, BETWEEN_LOSS_FADES,
    BETWEEN_LOSS_TURNS, BETWEEN_REQUEST_AGAIN, BETWEEN_REQUEST_TURNS, BETWEEN_TRIAL_FACTOR, BETWEEN_TURNS_MAX,
    BETWEEN_TURNS_MIN, BETWEEN_WINDOW,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use vmmc_stream::SectionLock;

/// What is remembered of the connections together.
#[derive(Debug)]
pub(crate) struct Choice {
    /// A [`Verdict`].
    verdict: AtomicU32,
    /// Turns in its medium since it was made.
    turns: AtomicU32,
    /// Turns of a trial of the ring that were in the kernel still.
    strays: AtomicU32,
    /// How many turns of each connection, in the kernel and in the ring, bring a trial of the other
    /// one.
    trial_after: [AtomicU32; 2],
    window: Window,
    /// Connections that took part in the last window.
    members: AtomicU32,
    /// What a turn took in the last window, in the kernel and in the ring; 0: not known.
    turn_ns: [AtomicU64; 2],
    /// Windows since it came into the ring that were worth it.
    good_windows: AtomicU32,
    /// What the kernel had to send again.
    pub(super) losses: Losses,
}

/// Where the connections belong, and whether that is only tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict(u32);

/// The turns that are being measured.
#[derive(Debug, Default)]
struct Window {
    /// Which one it is, from 1 on: by this a connection knows whether it is counted in it.
    number: AtomicU32,
    members: AtomicU32,
    turns: AtomicU32,
    ns: AtomicU64,
    /// Turns that the other medium would have done better.
    bad: AtomicU32,
}

/// What a connection has in the window.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// In which it is counted.
    window: AtomicU32,
    /// Its turns there.
    turns: AtomicU32,
}

/// What the kernel had to send again, of all connections.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Turns in the kernel, and segments sent again in them.
    turns: AtomicU32,
    again: AtomicU32,
    timeout_ns: AtomicU64,
}

/// The media, as indices.
const KERNEL: usize = 0;
const RING: usize = 1;

impl Verdict {
    const RING: u32 = 1;
    const TRYING: u32 = 2;
    /// What counts verdicts up.
    const NEXT: u32 = 4;

    /// What tells it from others.
    pub(super) fn number(self) -> u32 {
        self.0
    }

    /// The ring is taken, or tried.
    pub(super) fn ring(self) -> bool {
        self.0 & Self::RING != 0
    }

    pub(super) fn is_trial(self) -> bool {
        self.0 & Self::TRYING != 0
    }

    fn next(self, ring: bool, trying: bool) -> Verdict {
        let number = self.0 & !(Self::RING | Self::TRYING);
        let bits = if ring { Self::RING } else { 0 } | if trying { Self::TRYING } else { 0 };
        Verdict(number.wrapping_add(Self::NEXT) | bits)
    }
}

impl Losses {
    /// The kernel has sent so many segments again since it was asked last, and does so after this
    /// time where nothing else tells of a loss.
    pub(super) fn add(&self, again: u32, timeout_ns: u64) {
        self.again.fetch_add(again, Relaxed);
        self.timeout_ns.store(timeout_ns, Relaxed);
        if self.turns.load(Relaxed) > BETWEEN_LOSS_TURNS {
            [&self.turns, &self.again].into_iter().for_each(|count| count.store(count.load(Relaxed) / 2, Relaxed));
        }
    }

    pub(super) fn passed(&self, turns: u32) {
        self.turns.fetch_add(turns, Relaxed);
    }

    /// What they cost a turn on the average.
    pub(super) fn turn_ns(&self) -> u64 {
        let lost_ns = u64::from(self.again.load(Relaxed)).saturating_mul(self.timeout_ns.load(Relaxed));
        2 * lost_ns / u64::from(self.turns.load(Relaxed).max(1))
    }
}

impl Default for Choice {
    fn default() -> Choice {
        Choice {
            verdict: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            strays: AtomicU32::new(0),
            trial_after: [AtomicU32::new(BETWEEN_TURNS_MIN), AtomicU32::new(BETWEEN_TURNS_MIN)],
            window: Window { number: AtomicU32::new(1), ..Window::default() },
            members: AtomicU32::new(1),
            turn_ns: [AtomicU64::new(0), AtomicU64::new(0)],
            good_windows: AtomicU32::new(0),
            losses: Losses::default(),
        }
    }
}

impl Choice {
    /// Where the connections belong now. One load.
    #[inline]
    pub(super) fn verdict(&self) -> Verdict {
        Verdict(self.verdict.load(Relaxed))
    }

    /// Turns of each connection in the kernel that are left before the ring is tried.
    pub(super) fn turns_to_trial(&self) -> u32 {
        let members = self.members.load(Relaxed).max(1);
        let all = self.trial_after[KERNEL].load(Relaxed).saturating_mul(members);
        all.saturating_sub(self.turns.load(Relaxed)) / members
    }

    /// Turns in the kernel that nobody measures: they count.
    pub(super) fn passed(&self, turns: u32) {
        self.turns.fetch_add(turns, Relaxed);
    }

    /// A turn of a connection, measured or not: after so many in one medium the other one is tried.
    pub(super) fn count_turn(&self, in_ring: bool) {
        let verdict = self.verdict();
        let members = self.members.load(Relaxed).max(1);
        if in_ring != verdict.ring() {
            // The other ends are slow responders, or cannot: the ring would be requested for ever.
            let tried = verdict.ring() && verdict.is_trial();
            if tried && self.stray(1) && self.change(verdict, false, false) {
                self.trial_after[KERNEL].fetch_max(BETWEEN_REQUEST_AGAIN, Relaxed);
            }
            return;
        }
        if verdict.is_trial() || self.turn_ns[usize::from(in_ring)].load(Relaxed) == 0 {
            return;
        }
        let turns = self.turns.fetch_add(1, Relaxed) + 1;
        if turns >= self.trial_after[usize::from(in_ring)].load(Relaxed).saturating_mul(members) {
            self.change(verdict, !in_ring, true);
        }
    }

    /// A connection has left the ring for reasons of its own; false: that is no business of the
    /// choice. A trial that all leave has gone badly.
    pub(super) fn leave(&self) -> bool {
        let verdict = self.verdict();
        let tried = verdict.ring() && verdict.is_trial();
        if tried && self.stray(BETWEEN_REQUEST_TURNS) {
            self.end_trial(verdict, false);
        }
        tried
    }

    /// Turns in the kernel while the ring is tried. True: it has been tried for long enough.
    fn stray(&self, turns: u32) -> bool {
        let strays = self.strays.fetch_add(turns, Relaxed) + turns;
        strays >= BETWEEN_REQUEST_TURNS.saturating_mul(self.members.load(Relaxed).max(1))
    }

    /// Where the connections belong from now on, whatever they take.
    pub(super) fn decide(&self, ring: bool) {
        self.change(self.verdict(), ring, false);
    }

    /// A turn of a connection that took `ns`, of which `way_ns` count for the mean.
    pub(super) fn measure(&self, part: &Part, ns: u64, way_ns: u64, in_ring: bool) {
        let verdict = self.verdict();
        if in_ring != verdict.ring() {
            // The change is under way.
            return;
        }
        let now = &self.window;
        let number = now.number.load(Relaxed);
        if part.window.swap(number, Relaxed) != number {
            part.turns.store(0, Relaxed);
            now.members.fetch_add(1, Relaxed);
        }
        let own = part.turns.fetch_add(1, Relaxed) + 1;
        let bad = u32::from(self.ring_pays(ns, in_ring) != in_ring);
        let bad = now.bad.fetch_add(bad, Relaxed) + bad;
        let sum_ns = now.ns.fetch_add(way_ns, Relaxed) + way_ns;
        let turns = now.turns.fetch_add(1, Relaxed) + 1;
        // As many as last time: those that come first would decide for the others.
        let took_part = now.members.load(Relaxed).max(1);
        let members = took_part.max(self.members.load(Relaxed));
        if verdict.is_trial()
            && turns == BETWEEN_GLANCE.saturating_mul(members)
            && bad >= BETWEEN_GLANCE_BAD.saturating_mul(members)
        {
            return self.end_trial(verdict, false);
        }
        // One that has made its own twice does not wait for those that make few, or have gone.
        if turns < BETWEEN_WINDOW.saturating_mul(members) && own < 2 * BETWEEN_WINDOW {
            return;
        }
        let mean_ns = (sum_ns / u64::from(turns)).max(1);
        self.turn_ns[usize::from(in_ring)].store(mean_ns, Relaxed);
        self.members.store(took_part, Relaxed);
        self.begin_window();
        let pays = self.ring_pays(mean_ns, in_ring);
        match (verdict.is_trial(), pays == in_ring) {
            (true, good) => self.end_trial(verdict, good),
            (false, false) if in_ring => self.give_ring_up(verdict),
            (false, true) if in_ring => self.forgive(),
            (false, false) => drop(self.trial_after[KERNEL].fetch_min(BETWEEN_TURNS_MIN, Relaxed)),
            _ => {}
        }
    }

    /// Whether the ring is worth it, by a time in one medium and what is known of the other one.
    fn ring_pays(&self, ns: u64, in_ring: bool) -> bool {
        let [kernel_ns, ring_ns] = [KERNEL, RING].map(|medium| self.turn_ns[medium].load(Relaxed));
        match in_ring {
            true => pays(ns, kernel_ns + self.losses.turn_ns()),
            false => pays(ring_ns, ns + self.losses.turn_ns()),
        }
    }

    fn begin_window(&self) {
        let window = &self.window;
        [&window.members, &window.turns, &window.bad].into_iter().for_each(|count| count.store(0, Relaxed));
        window.ns.store(0, Relaxed);
        window.number.fetch_add(1, Relaxed);
    }

    /// Exchanges the verdict; false: somebody else has.
    fn change(&self, from: Verdict, ring: bool, trying: bool) -> bool {
        let to = from.next(ring, trying);
        let changed = self.verdict.compare_exchange(from.0, to.0, Relaxed, Relaxed).is_ok();
        if changed {
            self.turns.store(0, Relaxed);
            self.strays.store(0, Relaxed);
            self.begin_window();
        }
        changed
    }

    /// The medium that was tried is taken, or the other one again.
    fn end_trial(&self, verdict: Verdict, good: bool) {
        let in_ring = verdict.ring();
        if !self.change(verdict, in_ring == good, false) {
            return;
        }
        if in_ring && good {
            self.good_windows.store(0, Relaxed);
        }
        if !in_ring && !good {
            let turns = self.trial_after[RING].load(Relaxed).saturating_mul(self.members.load(Relaxed));
            self.losses.passed(turns / BETWEEN_LOSS_FADES);
        }
        let after = if good { BETWEEN_TURNS_MIN } else { self.trial_after[usize::from(!in_ring)].load(Relaxed) };
        let after = after.saturating_mul(BETWEEN_TRIAL_FACTOR).min(BETWEEN_TURNS_MAX);
        self.trial_after[usize::from(in_ring == good)].store(after, Relaxed);
    }

    /// The ring has been taken, and does not pay any more. What changes often should do so less and
    /// less.
    fn give_ring_up(&self, verdict: Verdict) {
        if self.change(verdict, false, false) {
            let after = self.trial_after[KERNEL].load(Relaxed).saturating_mul(2).min(BETWEEN_TURNS_MAX);
            self.trial_after[KERNEL].store(after, Relaxed);
        }
    }

    /// A window in the ring was worth it: after many of them it is as if none ever had not been.
    fn forgive(&self) {
        if self.good_windows.fetch_add(1, Relaxed) + 1 == BETWEEN_GOOD_WINDOWS {
            self.trial_after[KERNEL].store(BETWEEN_TURNS_MIN, Relaxed);
        }
    }
}

/// The choices of a process. They outlive the connections: those that come later begin with what
/// was found out.
#[derive(Debug, Default)]
pub(crate) struct Choices(SectionLock<Vec<(IpAddr, Arc<Choice>)>>);

impl Choices {
    /// The choice of the connections to this address; one for the caller alone where there are
    /// [`BETWEEN_CHOICES_MAX`] already, or another thread looks just now.
    pub(crate) fn of(&self, peer: IpAddr) -> Arc<Choice> {
        let Some(mut choices) = self.0.try_lock() else { return Arc::default() };
        if let Some((_, choice)) = choices.iter().find(|(of, _)| *of == peer) {
            return choice.clone();
        }
        let choice = Arc::<Choice>::default();
        if choices.len() < BETWEEN_CHOICES_MAX {
            choices.push((peer, choice.clone()));
        }
        choice
    }
}

/// Segments that a connection's kernel socket has sent again.
#[derive(Debug, Default)]
pub(super) struct Again {
    /// One more than the count when it was asked for last; 0: it never was.
    counted: AtomicU32,
}

impl Again {
    /// Asks the kernel, and adds what is new.
    pub(super) fn look(&self, clock: &impl Kernel, losses: &Losses) {
        let Some((count, timeout_ns)) = clock.retransmissions() else { return };
        let before = self.counted.swap(count.wrapping_add(1), Relaxed);
        let new = if before == 0 { 0 } else { count.wrapping_add(1).wrapping_sub(before) };
        losses.add(new, timeout_ns);
    }
}

/// Whether a turn that takes so long in the ring is worth the work of two nodes.
fn pays(ring_ns: u64, kernel_ns: u64) -> bool {
    ring_ns != 0 && ring_ns.saturating_mul(10) <= kernel_ns.saturating_mul(9)
}

#[cfg(test)]
mod tests;
