//! How long a waiting thread polls before it sleeps: the one policy of library, node and sockets.
//!
//! ```text
//!   begin ──▶ polling ──▶ yielded ──▶ polling …      until the wait is found, or its time is over
//!     │          └───────────┴──▶ sleeping ──▶ sleeping …   until it is found, or its deadline
//!     ├─ skipped: the last waits polled in vain            ──▶ sleeping
//!     └─ suspended: the last yields gave the core to others ──▶ sleeping, or a short polling
//! ```
//!
//! A [`Backoff`] is what the waits of one place have learned; a [`Wait`] is one of them. The driver
//! polls, and asks [`Wait::next`] after each poll that found nothing. Neither sleeps, yields or
//! reads a clock: the driver does, and the clock is an argument.
//!
//! Invariant: no step leads past the deadline; polling ends when its time is over, give or take one
//! turn of polls and one yield; every counter has a bound in [`BackoffLimits`]. Source: the numbers
//! and their reasons are in [`limits`](crate::limits).

use super::Deadline;
use super::bounds::{BackoffLimits, LongPoll, RestLimits, TimedSleeps};
use crate::clock::Nanos;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Waits that are to be done without something, and how many the next time.
#[derive(Debug, Default)]
struct Rest {
    left: AtomicU32,
    next: AtomicU32,
}

impl Rest {
    #[inline]
    fn is_over(&self) -> bool {
        self.left.load(Relaxed) == 0
    }

    /// Counts one down if there is something to count.
    #[inline]
    fn count_down(&self) -> bool {
        let left = self.left.load(Relaxed);
        if left > 0 {
            self.left.store(left - 1, Relaxed);
        }
        left > 0
    }

    fn begin(&self, limits: &RestLimits) {
        let rest = self.next.load(Relaxed).clamp(limits.first, limits.max);
        self.left.store(rest, Relaxed);
        self.next.store(rest.saturating_mul(4), Relaxed);
    }

    /// A wait was good: one in hundreds does not prove that it was right to try.
    #[inline]
    fn forgive(&self, limits: &RestLimits) {
        let next = self.next.load(Relaxed);
        if next > 0 {
            self.next.store(next - next.div_ceil(limits.forgiven_part.max(1)), Relaxed);
        }
    }
}

/// What the waits of one place have learned: whether polling pays, and whether yielding does.
///
/// Threads may share it. Those that count at the same time may lose a count.
///
/// ```
/// use vmmc_host::limits::LIBRARY_WAITS;
/// use vmmc_host::wait::{Backoff, Deadline, Manner, Step};
/// use vmmc_host::Nanos;
/// let backoff = Backoff::new(&LIBRARY_WAITS);
/// let mut clock_ns = 0;
/// let mut wait = backoff.begin(Manner::Yield, Deadline(Nanos(1_000_000)));
/// let until = loop {
///     // Here the driver would poll.
///     match wait.next(|| Nanos(clock_ns)) {
///         Step::Poll => {}
///         Step::Yield => clock_ns += 5_000,
///         Step::Sleep(until) => break until,
///         Step::TimedOut => unreachable!("the deadline is far away"),
///     }
/// };
/// assert_eq!(until, Deadline(Nanos(1_000_000)));
/// ```
#[derive(Debug)]
pub struct Backoff {
    limits: &'static BackoffLimits,
    /// `poll_min_ns <= poll_ns <= poll_max_ns`.
    pub(super) poll_ns: AtomicU64,
    /// Waits with timed sleeps since the last long poll, as far as they matter.
    timed_sleeps: AtomicU32,
    /// Waits in a row that polled in vain; less than what it takes to skip some.
    vain: AtomicU32,
    /// Waits that sleep at once.
    skip: Rest,
    /// Grows with long yields, shrinks with short ones.
    yield_score: AtomicU32,
    /// Waits that do not yield.
    no_yield: Rest,
}

/// What a wait does between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Pauses: the awaited thread runs on another core.
    Spin,
    /// Gives the core away, unless that does not pay: the awaited thread may need it. A busy third
    /// party keeps it for a whole time slice each time; then it is better to sleep, for a woken
    /// thread gets the core before a busy one. A hypervisor that takes the core does so now and
    /// then, and a thread that sleeps then waits for it longer still.
    Yield,
}

/// What to do after a poll that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Poll again.
    Poll,
    /// Give the core away, then poll again.
    Yield,
    /// Sleep until there may be something, but not beyond this time; then poll once.
    Sleep(Deadline),
    /// The deadline has passed.
    TimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Polling,
    /// A yield was the last step.
    Yielded,
    /// Sleeps without polling, for the last waits polled in vain.
    Skipped,
    /// Sleeps without polling, for the last yields were long.
    Suspended,
    Sleeping,
}

/// One wait.
#[derive(Debug)]
pub struct Wait<'a> {
    backoff: &'a Backoff,
    manner: Manner,
    deadline: Deadline,
    phase: Phase,
    /// Whether it yields between polls.
    yields: bool,
    /// Whether the last yield was long.
    crowded: bool,
    /// Whether this is the one in many that polls for longer.
    long: bool,
    /// Polls before the next yield, or reading of the clock.
    polls_left: u32,
    poll_ns: u64,
    /// When polling began, once the clock was read.
    start: Option<Nanos>,
    /// When the clock was last read, if it was.
    read: Option<Nanos>,
    sleeps: Option<TimedSleeps>,
}

impl Backoff {
    /// Nothing is known yet: the first waits poll for as long as they may.
    pub const fn new(limits: &'static BackoffLimits) -> Backoff {
        const fn rest() -> Rest {
            Rest { left: AtomicU32::new(0), next: AtomicU32::new(0) }
        }
        Backoff {
            limits,
            poll_ns: AtomicU64::new(limits.poll_max_ns),
            timed_sleeps: AtomicU32::new(0),
            vain: AtomicU32::new(0),
            skip: rest(),
            yield_score: AtomicU32::new(0),
            no_yield: rest(),
        }
    }

    /// Its bounds.
    #[inline]
    pub fn limits(&self) -> &'static BackoffLimits {
        self.limits
    }

    /// A wait begins. The clock is read at [`Wait::start`], or where the time first matters.
    #[inline]
    pub fn begin(&self, manner: Manner, deadline: Deadline) -> Wait<'_> {
        let limits = self.limits;
        let skipped = limits.skips.is_some() && self.skip.count_down();
        let yields = manner == Manner::Yield && self.no_yield.is_over();
        let suspended = manner == Manner::Yield && !yields;
        let long = limits.long_poll.filter(|long| yields && !skipped && self.is_time_for(long));
        let poll_ns = match long {
            Some(long) => long.poll_ns,
            None if suspended => limits.poll_suspended_ns,
            None => self.poll_ns.load(Relaxed),
        };
        let phase = match (skipped, suspended && poll_ns == 0) {
            (true, _) => Phase::Skipped,
            (false, true) => Phase::Suspended,
            (false, false) => Phase::Polling,
        };
        Wait {
            backoff: self,
            manner,
            deadline,
            phase,
            yields,
            crowded: false,
            long: long.is_some(),
            polls_left: if yields { limits.polls_a_yield } else { limits.polls_a_clock },
            poll_ns,
            start: None,
            read: None,
            sleeps: None,
        }
    }

    /// The next so many waits sleep at once: their driver knows that polling would not pay.
    pub fn skip(&self, waits: u32) {
        self.skip.left.store(waits, Relaxed);
    }

    /// Whether the next wait sleeps at once, because the last ones polled in vain.
    #[inline]
    pub fn is_skipping(&self) -> bool {
        !self.skip.is_over()
    }

    /// Timed sleeps say nothing about when that came which they found: two that sleep so for each
    /// other would do so for ever. So now and then a wait polls for longer.
    fn is_time_for(&self, long: &LongPoll) -> bool {
        let due = self.timed_sleeps.load(Relaxed) >= long.timed_sleeps;
        if due {
            self.timed_sleeps.store(0, Relaxed);
        }
        due
    }

    fn count_timed_sleep(&self) {
        let count = self.timed_sleeps.load(Relaxed);
        if self.limits.long_poll.is_some_and(|long| count < long.timed_sleeps) {
            self.timed_sleeps.store(count + 1, Relaxed);
        }
    }

    /// A yield took so long; says whether it was a long one.
    #[inline]
    fn yielded(&self, took_ns: u64) -> bool {
        let limits = &self.limits.yields;
        let score = self.yield_score.load(Relaxed);
        if took_ns < limits.long_ns {
            if score > 0 {
                self.yield_score.store(score - 1, Relaxed);
            }
            return false;
        }
        if score < limits.score_max {
            self.yield_score.store(score + limits.long_score, Relaxed);
        } else if let Some(rest) = &limits.rest {
            self.no_yield.begin(rest);
        }
        true
    }

    #[inline]
    fn polling_paid(&self) {
        self.grow();
        if let Some(skips) = &self.limits.skips {
            self.vain.store(0, Relaxed);
            self.skip.forgive(&skips.rest);
        }
    }

    /// A wait polled in vain; `crowded`: it did nothing but yield, and one yield too many was long.
    fn polling_failed(&self, crowded: bool) {
        let Some(skips) = &self.limits.skips else { return };
        let vain = self.vain.load(Relaxed).saturating_add(1);
        if vain >= skips.vain_waits || crowded {
            // The next failure after the rest leads to the next rest at once.
            self.vain.store(skips.vain_waits.saturating_sub(1), Relaxed);
            self.skip.begin(&skips.rest);
        } else {
            self.vain.store(vain, Relaxed);
        }
    }

    #[inline]
    fn grow(&self) {
        let now = self.poll_ns.load(Relaxed);
        self.set_poll_ns(now, now.saturating_mul(2));
    }

    fn shrink(&self) {
        let now = self.poll_ns.load(Relaxed);
        self.set_poll_ns(now, now - now / 4);
    }

    #[inline]
    fn set_poll_ns(&self, now: u64, next: u64) {
        let next = next.clamp(self.limits.poll_min_ns, self.limits.poll_max_ns);
        // Other threads read it: a store of the same value would cost them.
        if next != now {
            self.poll_ns.store(next, Relaxed);
        }
    }
}

impl<'a> Wait<'a> {
    /// Nobody wakes this wait: it sleeps for a time at most, again and again.
    #[must_use]
    pub fn with_sleeps(self, sleeps: Option<TimedSleeps>) -> Wait<'a> {
        Wait { sleeps, ..self }
    }

    /// The timed sleeps that are left to it, for a wait that goes on in its place.
    pub fn sleeps(&self) -> Option<TimedSleeps> {
        self.sleeps
    }

    /// Whether it polls at all before it sleeps.
    #[inline]
    pub fn polls(&self) -> bool {
        matches!(self.phase, Phase::Polling | Phase::Yielded)
    }

    /// Polling begins now, unless it has begun, or nothing will be polled. Without this it begins
    /// when the clock is first read.
    #[inline]
    pub fn start(&mut self, clock: impl FnOnce() -> Nanos) {
        if self.start.is_none() && self.polls() {
            self.read = Some(clock());
            self.start = self.read;
        }
    }

    /// Polling has begun at that time and may take so long, whatever was learned, ns.
    pub fn poll_from(&mut self, start: Nanos, poll_ns: u64) {
        (self.start, self.read, self.poll_ns) = (Some(start), Some(start), poll_ns);
    }

    /// What to do after a poll that found nothing. The clock is read only where the time matters.
    #[inline]
    pub fn next(&mut self, clock: impl FnOnce() -> Nanos) -> Step {
        match self.phase {
            Phase::Polling if self.polls_left > 0 => {
                self.polls_left -= 1;
                Step::Poll
            }
            Phase::Polling if self.yields => {
                self.phase = Phase::Yielded;
                Step::Yield
            }
            Phase::Polling => self.go_on_polling(clock(), 0),
            Phase::Yielded => {
                let now = clock();
                if self.judge_yield(now) {
                    self.stop_polling(true);
                    return self.sleep(now);
                }
                // The poll after the yield was the first one of this turn.
                self.go_on_polling(now, 1)
            }
            Phase::Skipped => {
                self.phase = Phase::Sleeping;
                self.sleep_unseen(clock)
            }
            Phase::Suspended => {
                self.stop_polling(false);
                self.sleep_unseen(clock)
            }
            Phase::Sleeping => self.sleep(clock()),
        }
    }

    /// Whether its deadline has passed.
    #[inline]
    pub fn is_over(&self, now: Nanos) -> bool {
        now >= self.deadline.0
    }

    /// A yield begins now, for a driver that has worked since the clock was last read.
    #[inline]
    pub fn yields_at(&mut self, now: Nanos) {
        self.read = Some(now);
    }

    /// A poll found what was waited for.
    #[inline]
    pub fn found(&mut self, clock: impl FnOnce() -> Nanos) {
        match self.phase {
            Phase::Polling => {}
            Phase::Yielded => {
                if self.judge_yield(clock()) {
                    // Though it helped: a sleep would have been shorter.
                    return self.backoff.polling_failed(true);
                }
            }
            Phase::Skipped | Phase::Suspended => return,
            Phase::Sleeping => return self.found_asleep(clock),
        }
        if self.long {
            let limits = self.backoff.limits;
            self.backoff.poll_ns.store(limits.poll_max_ns, Relaxed);
        }
        self.backoff.polling_paid();
        if let Some(rest) = self.backoff.limits.yields.rest.as_ref().filter(|_| self.yields && !self.crowded) {
            self.backoff.no_yield.forgive(rest);
        }
    }

    /// A poll found something, and the driver waits for the next thing: says how to poll for that.
    /// Nothing is learned but how long the last yield took.
    #[inline]
    pub fn again(&mut self, clock: impl FnOnce() -> Nanos) -> Step {
        if self.phase == Phase::Yielded {
            self.judge_yield(clock());
        }
        let sleeps = self.sleeps;
        *self = self.backoff.begin(self.manner, self.deadline).with_sleeps(sleeps);
        if self.phase == Phase::Polling { self.turn(0) } else { Step::Poll }
    }

    /// The next turn of polls, of which some were done; a sleep when the time is over.
    #[inline]
    fn go_on_polling(&mut self, now: Nanos, done: u32) -> Step {
        if self.is_over(now) {
            // Its deadline made it short: it says nothing about polling.
            return Step::TimedOut;
        }
        self.read = Some(now);
        let start = *self.start.get_or_insert(now);
        if now.0.saturating_sub(start.0) >= self.poll_ns {
            self.stop_polling(false);
            return self.sleep(now);
        }
        let limits = self.backoff.limits;
        self.polls_left = if self.yields { limits.polls_a_yield } else { limits.polls_a_clock };
        self.turn(done)
    }

    #[inline]
    fn turn(&mut self, done: u32) -> Step {
        self.phase = Phase::Polling;
        self.polls_left = self.polls_left.saturating_sub(done);
        if self.polls_left > 0 {
            self.polls_left -= 1;
            Step::Poll
        } else if self.yields {
            self.phase = Phase::Yielded;
            Step::Yield
        } else {
            Step::Poll
        }
    }

    /// How long the last yield took; says whether polling ends because of it.
    #[inline]
    fn judge_yield(&mut self, now: Nanos) -> bool {
        // Without a beginning nobody knows how long it took.
        let Some(read) = self.read else { return false };
        self.crowded = self.backoff.yielded(now.0.saturating_sub(read.0));
        self.crowded && self.backoff.limits.yields.rest.is_none()
    }

    #[cold]
    fn stop_polling(&mut self, crowded: bool) {
        self.phase = Phase::Sleeping;
        if self.manner == Manner::Yield && !self.yields {
            self.backoff.no_yield.count_down();
        } else if !self.long {
            // A long poll in vain says nothing about shorter ones.
            self.backoff.shrink();
        }
        self.backoff.polling_failed(crowded);
    }

    /// A sleep that need not read the clock before it, unless it is timed.
    fn sleep_unseen(&mut self, clock: impl FnOnce() -> Nanos) -> Step {
        if self.sleeps.is_some() { self.sleep(clock()) } else { Step::Sleep(self.deadline) }
    }

    fn sleep(&mut self, now: Nanos) -> Step {
        if self.is_over(now) {
            return Step::TimedOut;
        }
        let Some(sleeps) = &mut self.sleeps else { return Step::Sleep(self.deadline) };
        if !sleeps.begun {
            self.backoff.count_timed_sleep();
        }
        let until = Deadline(Nanos(now.0.saturating_add(sleeps.take())));
        Step::Sleep(until.min(self.deadline))
    }

    /// Without the wake-up it would have been there in time for polling. Otherwise two that wait
    /// for each other would never leave their sleeps: each one's wake-up makes the other one's wait
    /// too long to be polled.
    fn found_asleep(&self, clock: impl FnOnce() -> Nanos) {
        let limits = self.backoff.limits;
        let Some(start) = self.start.filter(|_| self.yields && limits.wake_ns > 0) else { return };
        if clock().0.saturating_sub(start.0) <= limits.poll_max_ns + limits.wake_ns {
            self.backoff.grow();
        }
    }
}

// Thousands of scripted waits; Miri takes minutes, and there is no unsafe code here.
#[cfg(all(test, not(miri)))]
mod tests;
