//! Waiting: spin, then yield, then block; or step the node that lives in this process.
//!
//! The blocking calls of the library that wait for the node or a peer sleep here, in
//! [`Waiter::wait`]; an embedded node and the simulator install a [`Stepper`].
//!
//! Invariant: every wait ends at its deadline; a wait that blocks has first announced itself in the
//! sleep flag, so no wake-up is lost: the waker publishes, fences, looks at the flag; the sleeper
//! sets the flag, fences, looks again, sleeps.

mod stepping;
mod thread;
mod wake;

pub use stepping::{Direct, Stepper};
pub use thread::{Patience, is_interrupted, patience, set_patience, with_patience};
pub use wake::{WakeReceiver, WakeSender, wake_pair};

use crate::clock::Nanos;
use crate::limits::INTERRUPT_SLICE;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use stepping::{step_and_look, wait_stepping};

/// The latest time at which a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub Nanos);

impl Deadline {
    /// This long from now, by the monotonic clock.
    pub fn after(duration: Duration) -> Deadline {
        Deadline(Nanos::monotonic() + duration)
    }

    /// Time left; none when it has passed.
    pub fn left(self, now: Nanos) -> Option<Duration> {
        if now >= self.0 { None } else { Some(self.0.since(now)) }
    }
}

/// The deadline passed before what was waited for came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deadline passed")]
pub struct TimedOut;

/// How the threads of one attachment wait.
#[derive(Clone)]
pub struct Waiter {
    stepper: Option<Arc<dyn Stepper>>,
    /// Nanoseconds to poll before blocking; adapts between [`POLL_MIN_NS`] and [`POLL_MAX_NS`] to
    /// whether polling succeeds.
    poll_ns: Arc<AtomicU64>,
    /// Waits that napped since the last one that looked for [`POLL_LONG_NS`].
    naps: Arc<AtomicU32>,
    yields: Arc<Yields>,
}

/// Whether giving the core away between looks pays. A busy third party keeps it for a whole time
/// slice each time; then it is better to sleep, for who is woken gets the core before who was busy.
/// A hypervisor that takes the core does so now and then, and whoever sleeps then waits for it
/// longer still.
#[derive(Debug, Default)]
pub struct Yields {
    /// Sleeps until the next try.
    suspended: AtomicU32,
    /// Grows with long yields, shrinks with short ones.
    score: AtomicU32,
}

impl Yields {
    /// Whether to yield at all now.
    #[inline]
    pub fn pay(&self) -> bool {
        self.suspended.load(Ordering::Relaxed) == 0
    }

    /// A yield took so long. Threads that count at the same time may lose a count.
    #[inline]
    pub fn took(&self, ns: u64) {
        let score = self.score.load(Ordering::Relaxed);
        if ns < YIELD_LONG_NS {
            if score > 0 {
                self.score.store(score - 1, Ordering::Relaxed);
            }
        } else if score < YIELD_SCORE_MAX {
            self.score.store(score + LONG_YIELD_SCORE, Ordering::Relaxed);
        } else {
            self.suspended.store(NO_YIELD_SLEEPS, Ordering::Relaxed);
        }
    }

    /// A sleep in place of yields has ended.
    #[inline]
    pub fn slept(&self) {
        let left = self.suspended.load(Ordering::Relaxed);
        if left > 0 {
            self.suspended.store(left - 1, Ordering::Relaxed);
        }
    }
}

/// Longest polling before a wait blocks: what a blocking wake-up costs on a virtual machine, so
/// polling at most doubles a wait.
pub const POLL_MAX_NS: u64 = 50_000;
/// Polling of one wait in [`NAPS_BEFORE_POLL`] that nap: as long as a nap of the other side takes,
/// and an answer.
const POLL_LONG_NS: u64 = 150_000;
/// Naps say nothing about when the word came that they found: two that nap for each other would do
/// so for ever. So now and then one looks for longer.
const NAPS_BEFORE_POLL: u32 = 16;
/// What a blocking wake-up costs there.
const WAKE_NS: u64 = 50_000;
/// Shortest polling after many waits in vain.
pub const POLL_MIN_NS: u64 = 1_000;
/// A yield that took longer than this gave the core to a busy third party.
const YIELD_LONG_NS: u64 = 100_000;
/// What a long yield counts; a short one counts 1 against it.
const LONG_YIELD_SCORE: u32 = 16;
/// A long yield at this score is one too many.
const YIELD_SCORE_MAX: u32 = 32;
/// Sleeps without yields after that.
const NO_YIELD_SLEEPS: u32 = 64;
/// Polls between two looks at the clock.
const POLLS_A_LOOK: u32 = 64;
/// Steps without work between two looks at the clock.
const STEPS_A_LOOK: u32 = 8;
/// So many times as many steps before a wait is set up that can also sleep: some 15 us.
const QUICK_STEPS: u32 = 8;
/// A wait that may take no longer than this has a deadline to look at.
const QUICK_LOOKS_MAX: Duration = Duration::from_micros(100);

impl Waiter {
    /// Waiting on a node in another process.
    pub fn new() -> Waiter {
        Waiter {
            stepper: None,
            poll_ns: Arc::new(AtomicU64::new(POLL_MAX_NS)),
            naps: Arc::default(),
            yields: Arc::default(),
        }
    }

    /// Waiting on a node that is stepped by the waiting threads.
    pub fn stepping(stepper: Arc<dyn Stepper>) -> Waiter {
        Waiter { stepper: Some(stepper), ..Waiter::new() }
    }

    /// The clock that deadlines of this waiter count on.
    pub fn now(&self) -> Nanos {
        self.stepper.as_ref().map_or_else(Nanos::monotonic, |s| s.now())
    }

    /// A deadline this long from now on this waiter's clock.
    pub fn deadline(&self, after: Duration) -> Deadline {
        Deadline(self.now() + after)
    }

    /// Whether the node is stepped by us.
    pub fn steps(&self) -> bool {
        self.stepper.is_some()
    }

    /// Runs the node once, if it is ours to run; says whether that did anything.
    pub fn step(&self) -> bool {
        self.stepper.as_ref().is_some_and(|stepper| stepper.step())
    }

    /// The beginning of a wait that may be long, for a thread that steps the node that is ours to
    /// run: looks for what may be under way already for some 15 us, with nothing between a step and
    /// `ready`. None: it has not come, or this is not for such a thread or wait.
    #[inline]
    pub fn look_quickly<T>(&self, deadline: Deadline, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        let stepper = self.stepper.as_deref()?;
        if let Some(value) = ready() {
            return Some(value);
        }
        let long = deadline.left(stepper.now()).is_some_and(|left| left > QUICK_LOOKS_MAX);
        if !long || stepper.patience_ns() == 0 {
            return None;
        }
        (0..QUICK_STEPS).find_map(|_| step_and_look(stepper, STEPS_A_LOOK, &mut ready).ok())
    }

    /// Does this past the command ring, if the node is ours to run and nothing stands before it;
    /// see [`Stepper::send_now`].
    #[inline]
    pub fn send_now(&self, what: &Direct<'_>) -> bool {
        self.stepper.as_ref().is_some_and(|stepper| stepper.send_now(what))
    }

    /// A wait has begun to nap: nobody wakes it for what it waits for.
    pub fn napped(&self) {
        self.naps.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until `ready` gives something. `block` sleeps until there may be news, at most until
    /// the given time; it must announce itself and look once more before it sleeps (see
    /// [`WakeReceiver::sleep`]).
    pub fn wait<T>(
        &self,
        deadline: Deadline,
        mut ready: impl FnMut() -> Option<T>,
        mut block: impl FnMut(Deadline),
    ) -> Result<T, TimedOut> {
        if let Some(value) = ready() {
            return Ok(value);
        }
        let Some(interrupted) = patience().interrupted else { return self.wait_once(deadline, ready, block) };
        loop {
            let until = deadline.min(self.deadline(INTERRUPT_SLICE));
            match self.wait_once(until, &mut ready, &mut block) {
                Err(TimedOut) if self.now() < deadline.0 && !interrupted() => {}
                ended => return ended,
            }
        }
    }

    fn wait_once<T>(
        &self,
        deadline: Deadline,
        ready: impl FnMut() -> Option<T>,
        block: impl FnMut(Deadline),
    ) -> Result<T, TimedOut> {
        match &self.stepper {
            Some(stepper) => wait_stepping(&**stepper, deadline, ready),
            None => self.wait_polling(deadline, ready, block),
        }
    }

    fn wait_polling<T>(
        &self,
        deadline: Deadline,
        mut ready: impl FnMut() -> Option<T>,
        mut block: impl FnMut(Deadline),
    ) -> Result<T, TimedOut> {
        let start = Nanos::monotonic();
        let yields = self.yields.pay();
        let long = yields && self.naps.load(Ordering::Relaxed) >= NAPS_BEFORE_POLL;
        let budget = match (long, yields) {
            (true, _) => POLL_LONG_NS,
            (false, true) => self.poll_ns.load(Ordering::Relaxed),
            (false, false) => POLL_MIN_NS,
        };
        if long {
            self.naps.store(0, Ordering::Relaxed);
        }
        let mut before = start;
        loop {
            for _ in 0..POLLS_A_LOOK {
                if let Some(value) = ready() {
                    if long {
                        self.poll_ns.store(POLL_MAX_NS, Ordering::Relaxed);
                    }
                    self.adapt(true);
                    return Ok(value);
                }
                std::hint::spin_loop();
            }
            if yields {
                std::thread::yield_now();
            }
            let now = Nanos::monotonic();
            if now >= deadline.0 {
                return ready().ok_or(TimedOut);
            }
            if yields {
                self.yields.took(now.since(before).as_nanos() as u64);
                before = now;
            }
            if now.since(start).as_nanos() as u64 >= budget {
                break;
            }
        }
        if long {
            // It says nothing about shorter ones.
        } else if yields {
            self.adapt(false);
        } else {
            self.yields.slept();
        }
        loop {
            block(deadline);
            let found = ready();
            let now = Nanos::monotonic();
            if let Some(value) = found {
                // Without the wake-up it would have been there in time. Otherwise two that wait for
                // each other would never leave their sleeps: each one's wake-up makes the other
                // one's wait too long to be polled.
                if yields && now.since(start).as_nanos() as u64 <= POLL_MAX_NS + WAKE_NS {
                    self.adapt(true);
                }
                return Ok(value);
            }
            if now >= deadline.0 {
                return Err(TimedOut);
            }
        }
    }

    fn adapt(&self, polling_paid: bool) {
        let now = self.poll_ns.load(Ordering::Relaxed);
        let next = if polling_paid { (now * 2).min(POLL_MAX_NS) } else { (now - now / 4).max(POLL_MIN_NS) };
        if next != now {
            self.poll_ns.store(next, Ordering::Relaxed);
        }
    }
}

impl Default for Waiter {
    fn default() -> Self {
        Waiter::new()
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
