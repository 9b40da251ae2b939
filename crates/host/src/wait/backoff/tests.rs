//! Every transition of a wait, on a scripted clock.

use super::*;
use crate::limits::{
    KERNEL_SKIPPED_WAITS_MAX, KERNEL_WAITS, LIBRARY_WAITS, LONG_YIELD_SCORE, NO_YIELD_WAITS, NO_YIELD_WAITS_MAX,
    NODE_POLL_NS, NODE_WAITS, POLL_LONG_NS, POLL_MAX_NS, POLL_MIN_NS, RING_POLL_NS, RING_POLLS_A_CLOCK, RING_WAITS,
    SIMULATED_WAITS, SKIPPED_WAITS, STEPPED_WAITS, TIMED_SLEEPS, TIMED_SLEEPS_BEFORE_POLL, VAIN_WAITS, WAKE_NS,
    YIELD_LONG_NS,
};
use crate::wait::{SkipLimits, YieldLimits};
use std::cell::Cell;
use vmmc_utlb::Rng;

const NEVER: Deadline = Deadline(Nanos::MAX);
const LONG_NS: u64 = 3_000_000;

/// A machine with a clock that only work moves.
struct Machine {
    now_ns: Cell<u64>,
    /// What a poll takes.
    poll_ns: u64,
    /// What a yield takes.
    yield_ns: u64,
    /// Times that the clock was read.
    read: Cell<u32>,
}

/// How a wait went until it slept or was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Went {
    end: End,
    polls: u32,
    yields: u32,
    took_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Found,
    Sleeps(Deadline),
    TimedOut,
}

impl Machine {
    fn new() -> Machine {
        Machine { now_ns: Cell::new(1_000_000_000), poll_ns: 20, yield_ns: 500, read: Cell::new(0) }
    }

    /// Somebody busy has the core, and keeps it for a time slice.
    fn crowded() -> Machine {
        Machine { yield_ns: LONG_NS, ..Machine::new() }
    }

    fn clock(&self) -> Nanos {
        self.read.set(self.read.get() + 1);
        Nanos(self.now_ns.get())
    }

    fn passes(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }

    fn after(&self, ns: u64) -> Deadline {
        Deadline(Nanos(self.now_ns.get() + ns))
    }

    /// Polls until something comes after so long, or the wait ends, or wants to sleep.
    fn poll(&self, wait: &mut Wait<'_>, comes_ns: Option<u64>) -> Went {
        let begun = self.now_ns.get();
        let (mut polls, mut yields) = (0, 0);
        wait.start(|| self.clock());
        let end = loop {
            match wait.next(|| self.clock()) {
                Step::Poll => {}
                Step::Yield => {
                    yields += 1;
                    self.passes(self.yield_ns);
                }
                Step::Sleep(until) => break End::Sleeps(until),
                Step::TimedOut => break End::TimedOut,
            }
            polls += 1;
            self.passes(self.poll_ns);
            if comes_ns.is_some_and(|ns| self.now_ns.get() - begun >= ns) {
                wait.found(|| self.clock());
                break End::Found;
            }
        };
        Went { end, polls, yields, took_ns: self.now_ns.get() - begun }
    }

    fn wait(&self, backoff: &Backoff, manner: Manner, comes_ns: Option<u64>) -> Went {
        self.poll(&mut backoff.begin(manner, NEVER), comes_ns)
    }

    /// Sleeps until it comes, so long after the wait began.
    fn wait_asleep(&self, backoff: &Backoff, comes_ns: u64) {
        let begun = self.now_ns.get();
        let mut wait = backoff.begin(Manner::Yield, NEVER);
        assert!(matches!(self.poll(&mut wait, None).end, End::Sleeps(_)));
        self.now_ns.set(self.now_ns.get().max(begun + comes_ns));
        wait.found(|| self.clock());
    }
}

fn polling_ns(backoff: &Backoff) -> u64 {
    backoff.poll_ns.load(Relaxed)
}

#[test]
fn a_wait_polls_for_as_long_as_it_learned_then_sleeps_until_its_deadline() {
    let (machine, backoff) = (Machine::new(), Backoff::new(&LIBRARY_WAITS));
    let deadline = machine.after(1_000_000);
    let went = machine.poll(&mut backoff.begin(Manner::Yield, deadline), None);
    assert_eq!(went.end, End::Sleeps(deadline));
    let turn_ns = u64::from(LIBRARY_WAITS.polls_a_yield) * machine.poll_ns + machine.yield_ns;
    assert!((POLL_MAX_NS..POLL_MAX_NS + turn_ns).contains(&went.took_ns), "{went:?}");
    let turns = went.polls / LIBRARY_WAITS.polls_a_yield;
    assert_eq!(went.yields, turns, "a yield for every {} polls: {went:?}", LIBRARY_WAITS.polls_a_yield);
    assert_eq!(machine.read.get(), turns + 1, "and the clock is read as often");
}

#[test]
fn polling_in_vain_makes_the_next_waits_short() {
    let (machine, backoff) = (Machine::new(), Backoff::new(&LIBRARY_WAITS));
    machine.wait(&backoff, Manner::Yield, None);
    assert_eq!(polling_ns(&backoff), POLL_MAX_NS - POLL_MAX_NS / 4);
    (0..100).for_each(|_| assert!(matches!(machine.wait(&backoff, Manner::Yield, None).end, End::Sleeps(_))));
    assert_eq!(polling_ns(&backoff), POLL_MIN_NS);
    let went = machine.wait(&backoff, Manner::Yield, None);
    let turn = LIBRARY_WAITS.polls_a_yield;
    let turns = POLL_MIN_NS.div_ceil(u64::from(turn) * machine.poll_ns + machine.yield_ns) as u32;
    assert_eq!(turns, 2, "a turn or two");
    assert_eq!((went.yields, went.polls), (turns, turns * turn + 1));
}

#[test]
fn polling_that_pays_makes_the_next_waits_long() {
    let (machine, backoff) = (Machine::new(), Backoff::new(&LIBRARY_WAITS));
    backoff.poll_ns.store(POLL_MIN_NS, Relaxed);
    let went = machine.wait(&backoff, Manner::Yield, Some(100));
    assert_eq!((went.end, went.yields), (End::Found, 0));
    assert_eq!(machine.read.get(), 1, "what is found before the first yield costs no clock");
    assert_eq!(polling_ns(&backoff), 2 * POLL_MIN_NS);
    (0..10).for_each(|_| assert_eq!(machine.wait(&backoff, Manner::Yield, Some(100)).end, End::Found));
    assert_eq!(polling_ns(&backoff), POLL_MAX_NS);
}

#[test]
fn sleeps_that_end_soon_bring_polling_back() {
    let (machine, backoff) = (Machine::new(), Backoff::new(&LIBRARY_WAITS));
    backoff.poll_ns.store(POLL_MIN_NS, Relaxed);
    (0..50).for_each(|_| machine.wait_asleep(&backoff, POLL_MAX_NS + WAKE_NS + 1));
    assert_eq!(polling_ns(&backoff), POLL_MIN_NS, "polling would not have been in time");
    (0..50).for_each(|_| machine.wait_asleep(&backoff, POLL_MAX_NS + WAKE_NS));
    assert!(polling_ns(&backoff) > POLL_MAX_NS / 2, "polling would have been in time");
}

#[test]
fn long_yields_suspend_yields_unless_they_are_rare() {
    let (machine, crowded) = (Machine::new(), Machine::crowded());
    let backoff = Backoff::new(&LIBRARY_WAITS);
    for _ in 0..100 {
        crowded.wait(&backoff, Manner::Yield, None);
        (0..LONG_YIELD_SCORE).for_each(|_| assert!(!backoff.yielded(1_000)));
        assert!(backoff.no_yield.is_over(), "one in many");
    }
    (0..3).for_each(|_| assert_eq!(crowded.wait(&backoff, Manner::Yield, None).yields, 1));
    assert_eq!(backoff.no_yield.left.load(Relaxed), NO_YIELD_WAITS);

    // Now a wait polls as briefly as it may, without a yield, and learns nothing about polling.
    backoff.poll_ns.store(20_000, Relaxed);
    let went = machine.wait(&backoff, Manner::Yield, None);
    assert!(matches!(went.end, End::Sleeps(_)));
    let turn_ns = u64::from(LIBRARY_WAITS.polls_a_clock) * machine.poll_ns;
    assert_eq!(went.yields, 0);
    assert!((POLL_MIN_NS..POLL_MIN_NS + turn_ns).contains(&went.took_ns), "{went:?}");
    assert_eq!(polling_ns(&backoff), 20_000);
    assert_eq!(backoff.no_yield.left.load(Relaxed), NO_YIELD_WAITS - 1, "counted down");
    // Which may find something, and does not count then.
    assert_eq!(machine.wait(&backoff, Manner::Yield, Some(100)).end, End::Found);
    assert_eq!(backoff.no_yield.left.load(Relaxed), NO_YIELD_WAITS - 1);
    // Its sleeps say nothing about polling either.
    let before = polling_ns(&backoff);
    machine.wait_asleep(&backoff, 10);
    assert_eq!(polling_ns(&backoff), before);

    (2..NO_YIELD_WAITS).for_each(|_| assert_eq!(machine.wait(&backoff, Manner::Yield, None).yields, 0));
    assert_eq!(crowded.wait(&backoff, Manner::Yield, None).yields, 1, "it is tried again");
    assert_eq!(backoff.no_yield.left.load(Relaxed), NO_YIELD_WAITS, "and one more long one is enough");
}

#[test]
fn waits_with_timed_sleeps_poll_for_longer_now_and_then() {
    let (machine, backoff) = (Machine::new(), Backoff::new(&LIBRARY_WAITS));
    let timed = || backoff.begin(Manner::Yield, NEVER).with_sleeps(Some(TIMED_SLEEPS));
    (0..TIMED_SLEEPS_BEFORE_POLL).for_each(|_| assert!(machine.poll(&mut timed(), None).took_ns < POLL_LONG_NS));
    let shrunk = polling_ns(&backoff);
    let went = machine.poll(&mut timed(), None);
    assert!(went.took_ns >= POLL_LONG_NS, "{went:?}");
    assert_eq!(polling_ns(&backoff), shrunk, "in vain it says nothing about shorter ones");
    (1..TIMED_SLEEPS_BEFORE_POLL).for_each(|_| assert!(machine.poll(&mut timed(), None).took_ns < POLL_LONG_NS));
    let went = machine.poll(&mut timed(), Some(2 * POLL_MAX_NS));
    assert_eq!(went.end, End::Found);
    assert_eq!(polling_ns(&backoff), POLL_MAX_NS, "what it found is remembered");
    // Others do not count, and get no long poll by those that do.
    (0..100).for_each(|_| assert!(machine.wait(&backoff, Manner::Yield, None).took_ns < POLL_LONG_NS));
}

#[test]
fn timed_sleeps_double_and_end_at_the_deadline() {
    let (machine, backoff) = (Machine::new(), Backoff::new(&LIBRARY_WAITS));
    let deadline = machine.after(3_000_000);
    let mut wait = backoff.begin(Manner::Yield, deadline).with_sleeps(Some(TIMED_SLEEPS));
    let mut slept_us = Vec::new();
    let end = loop {
        match machine.poll(&mut wait, None).end {
            End::Sleeps(until) => {
                assert!(until <= deadline);
                slept_us.push((until.0.0 - machine.now_ns.get()) / 1_000);
                machine.now_ns.set(until.0.0);
            }
            end => break end,
        }
    };
    assert_eq!(end, End::TimedOut);
    assert_eq!(slept_us[..6], [50, 100, 200, 400, 800, 1_000]);
    assert_eq!(slept_us.len(), 7, "the last one is what was left: {slept_us:?}");
    assert_eq!(wait.sleeps().map(|sleeps| sleeps.next_ns()), Some(1_000_000));
    assert_eq!(backoff.timed_sleeps.load(Relaxed), 1, "one wait");
}

#[test]
fn deadlines_end_waits_in_every_state() {
    let machine = Machine::new();
    let backoff = Backoff::new(&LIBRARY_WAITS);
    // While it polls: between two yields, and without them.
    let went = machine.poll(&mut backoff.begin(Manner::Yield, machine.after(10_000)), None);
    assert_eq!(went.end, End::TimedOut);
    assert!((10_000..12_000).contains(&went.took_ns), "{went:?}");
    assert_eq!(polling_ns(&backoff), POLL_MAX_NS, "a wait that its deadline made short says nothing");
    let ring = Backoff::new(&RING_WAITS);
    let went = machine.poll(&mut ring.begin(Manner::Spin, machine.after(5_000)), None);
    assert_eq!((went.end, ring.vain.load(Relaxed)), (End::TimedOut, 0));
    // While a yield keeps it.
    let crowded = Machine::crowded();
    assert_eq!(crowded.poll(&mut backoff.begin(Manner::Yield, crowded.after(10_000)), None).end, End::TimedOut);
    // Before it has begun.
    assert_eq!(machine.poll(&mut backoff.begin(Manner::Yield, machine.after(0)), None).end, End::TimedOut);
    // While it sleeps: what wakes it may come too early, and too late.
    let deadline = machine.after(1_000_000);
    let mut wait = backoff.begin(Manner::Yield, deadline);
    assert_eq!(machine.poll(&mut wait, None).end, End::Sleeps(deadline));
    assert_eq!(machine.poll(&mut wait, None).end, End::Sleeps(deadline), "woken for nothing");
    machine.now_ns.set(deadline.0.0);
    assert_eq!(machine.poll(&mut wait, None).end, End::TimedOut);
    // Where it does not poll.
    ring.skip(1);
    ring.no_yield.left.store(1, Relaxed);
    for what in ["skipped", "suspended"] {
        let deadline = machine.after(1_000);
        let mut wait = ring.begin(Manner::Yield, deadline);
        assert!(!wait.polls(), "{what}");
        let read = machine.read.get();
        assert_eq!(machine.poll(&mut wait, None).end, End::Sleeps(deadline), "{what}");
        assert_eq!(machine.read.get(), read, "{what}: the sleep itself looks at the clock");
        machine.now_ns.set(deadline.0.0);
        assert_eq!(machine.poll(&mut wait, None).end, End::TimedOut, "{what}");
    }
}

#[test]
fn a_ring_spins_without_yields_between_cores() {
    let (machine, ring) = (Machine::new(), Backoff::new(&RING_WAITS));
    let went = machine.wait(&ring, Manner::Spin, None);
    assert_eq!((went.end, went.yields), (End::Sleeps(NEVER), 0));
    let turn_ns = u64::from(RING_POLLS_A_CLOCK) * machine.poll_ns;
    assert!((RING_POLL_NS..RING_POLL_NS + turn_ns).contains(&went.took_ns), "{went:?}");
    assert_eq!(machine.read.get(), went.polls / RING_POLLS_A_CLOCK + 1);
}

#[test]
fn waits_in_vain_make_the_next_ones_sleep_at_once() {
    let (machine, ring) = (Machine::new(), Backoff::new(&RING_WAITS));
    let vain = |count| (0..count).for_each(|_| assert!(machine.wait(&ring, Manner::Spin, None).polls > 0));
    let skipped = |count| (0..count).for_each(|_| assert_eq!(machine.wait(&ring, Manner::Spin, Some(0)).polls, 0));
    vain(VAIN_WAITS - 1);
    assert_eq!(machine.wait(&ring, Manner::Spin, Some(100)).end, End::Found);
    vain(VAIN_WAITS);
    assert!(ring.is_skipping());
    skipped(SKIPPED_WAITS);
    // It is tried again; one more in vain is enough, and one that pays makes it four again.
    vain(1);
    skipped(SKIPPED_WAITS);
    assert_eq!(machine.wait(&ring, Manner::Spin, Some(100)).end, End::Found);
    vain(VAIN_WAITS);
    skipped(SKIPPED_WAITS);
}

#[test]
fn on_a_single_core_a_ring_yields_to_its_peer() {
    let (machine, ring) = (Machine::new(), Backoff::new(&RING_WAITS));
    // The peer answers within its turn.
    let peer = Machine { yield_ns: 4_000, ..Machine::new() };
    for _ in 0..1_000 {
        let went = peer.wait(&ring, Manner::Yield, Some(4_000));
        assert_eq!((went.end, went.yields, went.polls), (End::Found, 1, 1));
    }
    assert_eq!(peer.read.get(), 2 * 1_000, "before and after each yield");
    // It computes: a few turns, then sleep.
    let went = machine.wait(&ring, Manner::Yield, None);
    assert_eq!(went.end, End::Sleeps(NEVER));
    assert!((RING_POLL_NS..RING_POLL_NS + machine.yield_ns + machine.poll_ns).contains(&went.took_ns));
    assert_eq!(went.yields, went.polls, "a yield before each poll");
}

#[test]
fn on_a_single_core_with_somebody_busy_a_ring_stops_yielding_for_longer_each_time() {
    let crowded = Machine::crowded();
    let ring = Backoff::new(&RING_WAITS);
    let mut rest = NO_YIELD_WAITS;
    for _ in 0..8 {
        ring.skip(0);
        // Though it finds something: a sleep would have been shorter.
        assert_eq!(crowded.wait(&ring, Manner::Yield, Some(1)).end, End::Found);
        assert_eq!(ring.no_yield.left.load(Relaxed), rest);
        for _ in 0..rest {
            ring.skip(0);
            assert_eq!(crowded.wait(&ring, Manner::Yield, Some(1)).polls, 0);
        }
        rest = (4 * rest).min(NO_YIELD_WAITS_MAX);
    }
    assert_eq!(rest, NO_YIELD_WAITS_MAX);
    // Waits on another core are another matter, and count nothing down.
    ring.skip(0);
    crowded.wait(&ring, Manner::Yield, Some(1));
    ring.skip(0);
    let left = ring.no_yield.left.load(Relaxed);
    assert_eq!(crowded.wait(&ring, Manner::Spin, Some(100)).end, End::Found);
    assert_eq!(ring.no_yield.left.load(Relaxed), left);
    // One good yield in hundreds proves nothing.
    ring.no_yield.left.store(0, Relaxed);
    let next = ring.no_yield.next.load(Relaxed);
    assert_eq!(Machine::new().wait(&ring, Manner::Yield, Some(1)).end, End::Found);
    assert_eq!(ring.no_yield.next.load(Relaxed), next - 1);
}

#[test]
fn a_suspended_wait_counts_as_one_in_vain_where_it_cannot_poll() {
    let ring = Backoff::new(&RING_WAITS);
    ring.no_yield.left.store(100, Relaxed);
    (0..VAIN_WAITS).for_each(|_| assert_eq!(Machine::new().wait(&ring, Manner::Yield, None).polls, 0));
    assert!(ring.is_skipping());
    assert_eq!(ring.no_yield.left.load(Relaxed), 100 - VAIN_WAITS);
}

#[test]
fn a_long_yield_ends_polling_in_the_kernel_for_longer_each_time() {
    let crowded = Machine { yield_ns: YIELD_LONG_NS, ..Machine::new() };
    let kernel = Backoff::new(&KERNEL_WAITS);
    let mut skipped = SKIPPED_WAITS;
    for found in [None, Some(1), None, None, None, None] {
        let mut wait = kernel.begin(Manner::Yield, NEVER);
        wait.poll_from(crowded.clock(), 10 * YIELD_LONG_NS);
        let went = crowded.poll(&mut wait, found);
        assert_eq!((went.yields, went.polls), (1, 1), "though its time was not over");
        assert_eq!(kernel.skip.left.load(Relaxed), skipped);
        (0..skipped).for_each(|_| assert_eq!(crowded.wait(&kernel, Manner::Yield, Some(0)).polls, 0));
        skipped = (4 * skipped).min(KERNEL_SKIPPED_WAITS_MAX);
    }
    assert_eq!(skipped, KERNEL_SKIPPED_WAITS_MAX);
    // What was learned so is forgotten within some hundred good waits.
    let machine = Machine::new();
    (0..600).for_each(|_| assert_eq!(machine.wait(&kernel, Manner::Yield, Some(1_000)).end, End::Found));
    assert!(kernel.skip.next.load(Relaxed) <= SKIPPED_WAITS);
}

#[test]
fn a_node_yields_after_each_step_and_sleeps_when_it_was_idle_for_long() {
    let (machine, backoff) = (Machine::new(), Backoff::new(&NODE_WAITS));
    let mut wait = backoff.begin(Manner::Yield, NEVER);
    // Each step works for longer than a yield may take.
    for _ in 0..100 {
        let resumed = machine.clock();
        machine.passes(2 * YIELD_LONG_NS);
        assert_eq!(wait.again(|| resumed), Step::Yield);
        wait.yields_at(machine.clock());
        machine.passes(machine.yield_ns);
    }
    assert_eq!(backoff.yield_score.load(Relaxed), 0, "work is no yield");
    let idle = machine.now_ns.get();
    let until = loop {
        match wait.next(|| machine.clock()) {
            Step::Yield => {
                wait.yields_at(machine.clock());
                machine.passes(1_000);
            }
            Step::Sleep(until) => break until,
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(until, NEVER);
    assert_eq!(machine.now_ns.get() - idle, NODE_POLL_NS);
    machine.passes(1_000_000);
    assert_eq!(wait.next(|| machine.clock()), Step::Sleep(NEVER), "woken for nothing it sleeps on");
    assert_eq!(wait.again(|| machine.clock()), Step::Yield, "woken for something it polls");
    // Between two messages nothing was learned.
    assert_eq!(polling_ns(&backoff), NODE_POLL_NS);
}

#[test]
fn a_node_that_cannot_yield_works_on_and_sleeps_when_there_is_nothing() {
    let (machine, backoff) = (Machine::new(), Backoff::new(&NODE_WAITS));
    let mut wait = backoff.begin(Manner::Yield, NEVER);
    for _ in 0..3 {
        assert_eq!(wait.again(|| machine.clock()), Step::Yield);
        wait.yields_at(machine.clock());
        machine.passes(LONG_NS);
    }
    for left in (0..NO_YIELD_WAITS).rev() {
        assert_eq!(wait.again(|| machine.clock()), Step::Poll, "there may be more to do");
        assert_eq!(wait.again(|| machine.clock()), Step::Poll);
        assert_eq!(wait.next(|| machine.clock()), Step::Sleep(NEVER), "there is nothing to do");
        assert_eq!(backoff.no_yield.left.load(Relaxed), left, "each sleep counts, and no step");
    }
    assert_eq!(wait.again(|| machine.clock()), Step::Yield, "it is tried again");
}

#[test]
fn a_stepped_wait_is_idle_from_the_first_step_without_work() {
    let (machine, backoff) = (Machine::new(), Backoff::new(&STEPPED_WAITS));
    let deadline = machine.after(1_000_000);
    let mut wait = backoff.begin(Manner::Spin, deadline);
    for _ in 0..3 {
        machine.passes(100_000);
        assert_eq!(wait.next(|| machine.clock()), Step::Poll, "the first without work");
        machine.passes(POLL_MAX_NS - 1);
        assert_eq!(wait.next(|| machine.clock()), Step::Poll);
        assert_eq!(wait.again(|| unreachable!("it did not yield")), Step::Poll);
    }
    assert_eq!(wait.next(|| machine.clock()), Step::Poll);
    machine.passes(POLL_MAX_NS);
    assert_eq!(wait.next(|| machine.clock()), Step::Sleep(deadline));
    assert_eq!(polling_ns(&backoff), POLL_MAX_NS, "it polls for the same time always");
    // A simulated one sleeps at once, but not beyond its deadline.
    let simulated = Backoff::new(&SIMULATED_WAITS);
    let mut wait = simulated.begin(Manner::Spin, deadline);
    assert_eq!(wait.next(|| machine.clock()), Step::Sleep(deadline));
    wait.again(|| machine.clock());
    machine.now_ns.set(deadline.0.0);
    assert_eq!(wait.next(|| machine.clock()), Step::TimedOut);
}

/// Limits to try.
struct Random(Rng);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0.below(below.max(1))
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        self.0.pick(from)
    }

    fn rest(&mut self) -> RestLimits {
        let first = 1 + self.below(50) as u32;
        RestLimits { first, max: first * (1 + self.below(20) as u32), forgiven_part: self.pick(&[0, 1, 64, u32::MAX]) }
    }

    fn limits(&mut self) -> BackoffLimits {
        let poll_min_ns = self.below(30_000);
        let maybe = |some: bool, value: RestLimits| some.then_some(value);
        BackoffLimits {
            polls_a_yield: self.pick(&[0, 1, 2, 64]),
            polls_a_clock: self.pick(&[0, 1, 2, 32]),
            poll_min_ns,
            poll_max_ns: poll_min_ns + self.below(60_000),
            poll_suspended_ns: self.pick(&[0, 1_000]),
            wake_ns: self.pick(&[0, 50_000]),
            long_poll: (self.below(2) == 0)
                .then_some(LongPoll { poll_ns: 100_000 + self.below(50_000), timed_sleeps: 1 + self.below(8) as u32 }),
            yields: YieldLimits {
                long_ns: self.pick(&[1_000, 100_000]),
                long_score: self.below(20) as u32,
                score_max: self.below(40) as u32,
                rest: { maybe(self.below(3) > 0, self.rest()) },
            },
            skips: (self.below(2) == 0).then(|| SkipLimits { vain_waits: self.below(5) as u32, rest: self.rest() }),
        }
    }
}

fn must_be_bounded(backoff: &Backoff) {
    let limits = backoff.limits;
    assert!((limits.poll_min_ns..=limits.poll_max_ns).contains(&polling_ns(backoff)));
    assert!(backoff.timed_sleeps.load(Relaxed) <= limits.long_poll.map_or(0, |long| long.timed_sleeps));
    assert!(backoff.vain.load(Relaxed) <= limits.skips.map_or(0, |skips| skips.vain_waits.saturating_sub(1)));
    assert!(backoff.yield_score.load(Relaxed) <= limits.yields.score_max + limits.yields.long_score);
    for (rest, limits) in
        [(&backoff.skip, limits.skips.map(|skips| skips.rest)), (&backoff.no_yield, limits.yields.rest)]
    {
        let max = limits.map_or(0, |limits| limits.max);
        assert!(rest.left.load(Relaxed) <= max && rest.next.load(Relaxed) <= 4 * max, "{rest:?}");
    }
}

#[test]
fn no_wait_sleeps_past_its_deadline_or_polls_past_its_time_and_all_state_is_bounded() {
    let cases = if cfg!(miri) { 20 } else { 2_000 };
    for seed in 1..=cases {
        let mut random = Random(Rng::new(seed));
        let limits: &'static BackoffLimits = Box::leak(Box::new(random.limits()));
        let backoff = Backoff::new(limits);
        let mut machine = Machine::new();
        for _ in 0..100 {
            machine.poll_ns = random.pick(&[1, 20, 300, 2_000]);
            machine.yield_ns = random.pick(&[100, 1_000, 20_000, 150_000]);
            let deadline = machine.after(random.pick(&[0, 1, 5_000, 40_000, 10_000_000]));
            let manner = random.pick(&[Manner::Spin, Manner::Yield]);
            let sleeps = (random.below(2) == 0).then_some(TimedSleeps::new(1 + random.below(100_000), 200_000));
            let mut wait = backoff.begin(manner, deadline).with_sleeps(sleeps);
            let comes_ns = random.pick(&[None, Some(0), Some(10_000), Some(70_000)]);
            let mut slept = 0;
            let context = |went: &Went| format!("seed {seed}: {went:?} of {limits:?}");
            loop {
                let went = machine.poll(&mut wait, comes_ns.filter(|_| slept == 0));
                let turn = limits.polls_a_yield.max(limits.polls_a_clock).max(1);
                let most = limits.poll_max_ns.max(limits.long_poll.map_or(0, |long| long.poll_ns));
                let most = most + u64::from(turn) * machine.poll_ns + machine.yield_ns;
                assert!(went.took_ns <= most, "more than {most} ns: {}", context(&went));
                assert!(slept == 0 || went.polls == 0, "{}", context(&went));
                match went.end {
                    End::Sleeps(until) => {
                        assert!(until <= deadline, "{deadline:?}: {}", context(&went));
                        slept += 1;
                        // Awake too early, in time, or too late.
                        let left_ns = until.0.0.saturating_sub(machine.now_ns.get());
                        machine.passes(random.pick(&[left_ns / 2, left_ns, left_ns + 70_000]));
                    }
                    End::TimedOut => {
                        assert!(machine.now_ns.get() >= deadline.0.0, "{}", context(&went));
                        break;
                    }
                    End::Found => break,
                }
                if slept > 0 && random.below(4) == 0 {
                    wait.found(|| machine.clock());
                    break;
                }
            }
            must_be_bounded(&backoff);
        }
    }
}
