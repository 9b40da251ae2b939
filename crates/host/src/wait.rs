//! Waiting: spin, then yield, then block; or step the node that lives in this process.
//!
//! The blocking calls of the library that wait for the node or a peer sleep here, in
//! [`Waiter::wait`]; an embedded node and the simulator install a [`Stepper`].
//!
//! Invariant: every wait ends at its deadline; a wait that blocks has first announced itself in the
//! sleep flag, so no wake-up is lost: the waker publishes, fences, checks the flag; the sleeper
//! sets the flag, fences, polls again, sleeps.

mod backoff;
mod bounds;
mod polling;
mod stepping;
mod thread;
mod wake;

pub use backoff::{Backoff, Manner, Step, Wait};
pub use bounds::{BackoffLimits, LongPoll, RestLimits, SkipLimits, TimedSleeps, YieldLimits};
pub use polling::{Polled, poll};
pub use stepping::{Direct, Stepper};
pub use thread::{Patience, is_interrupted, patience, set_patience, with_patience};
pub use wake::{WakeReceiver, WakeSender, wake_pair};

use crate::clock::Nanos;
use crate::limits::{COARSE_FROM, COARSE_TICK_MAX, INTERRUPT_SLICE, LIBRARY_WAITS, QUICK_WAIT_MIN};
use std::sync::Arc;
use std::time::Duration;
use stepping::{PollingThread, wait_stepping};

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
///
/// ```
/// use std::time::Duration;
/// use vmmc_host::wait::Waiter;
/// let waiter = Waiter::new();
/// let mut polls = 0;
/// let ready = || {
///     polls += 1;
///     (polls > 5).then_some("it came")
/// };
/// let sleep = |_until| std::thread::sleep(Duration::from_millis(1));
/// assert_eq!(waiter.wait(waiter.deadline(Duration::from_secs(1)), ready, sleep), Ok("it came"));
/// ```
#[derive(Clone)]
pub struct Waiter {
    stepper: Option<Arc<dyn Stepper>>,
    backoff: Arc<Backoff>,
}

impl Waiter {
    /// Waiting on a node in another process.
    pub fn new() -> Waiter {
        Waiter { stepper: None, backoff: Arc::new(Backoff::new(&LIBRARY_WAITS)) }
    }

    /// Waiting on a node that is stepped by the waiting threads.
    pub fn stepping(stepper: Arc<dyn Stepper>) -> Waiter {
        Waiter { backoff: Arc::new(Backoff::new(stepper.wait_limits())), stepper: Some(stepper) }
    }

    /// The clock that deadlines of this waiter count on.
    pub fn now(&self) -> Nanos {
        self.stepper.as_ref().map_or_else(Nanos::monotonic, |s| s.now())
    }

    /// A deadline this long from now on this waiter's clock.
    pub fn deadline(&self, after: Duration) -> Deadline {
        Deadline(self.now() + after)
    }

    /// A time to count a deadline from that is this far away: now, or up to [`COARSE_TICK_MAX`]
    /// later if that is little beside it, for a fraction of what the clock costs. So a deadline
    /// never comes early.
    #[inline]
    pub fn about_now(&self, before: Duration) -> Nanos {
        if before < COARSE_FROM || self.steps() { self.now() } else { Nanos::coarse() + COARSE_TICK_MAX }
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
    /// run: polls what may be under way already for some 6 us, with nothing between a step and
    /// `ready`. None: it has not come, or this is not for such a thread or wait.
    #[inline]
    pub fn poll_quickly<T>(&self, deadline: Deadline, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        let stepper = self.stepper.as_deref()?;
        if let Some(value) = ready() {
            return Some(value);
        }
        let long = deadline.left(stepper.now()).is_some_and(|left| left > QUICK_WAIT_MIN);
        if !long || self.backoff.limits().poll_max_ns == 0 {
            return None;
        }
        PollingThread::begin(stepper).poll_quickly(&mut ready)
    }

    /// Does this past the command ring, if the node is ours to run and nothing stands before it;
    /// see [`Stepper::try_send_inline`].
    #[inline]
    pub fn try_send_inline(&self, what: &Direct<'_>) -> bool {
        self.stepper.as_ref().is_some_and(|stepper| stepper.try_send_inline(what))
    }

    /// Waits until `ready` gives something. `block` sleeps until something may have come, at most
    /// until the given time; it must announce itself and poll once more before it sleeps (see
    /// [`WakeReceiver::sleep`]).
    ///
    /// # Errors
    /// [`TimedOut`] at the deadline, or when the thread is [interrupted](is_interrupted).
    pub fn wait<T>(
        &self,
        deadline: Deadline,
        ready: impl FnMut() -> Option<T>,
        block: impl FnMut(Deadline),
    ) -> Result<T, TimedOut> {
        self.wait_with(deadline, None, ready, block)
    }

    /// As [`wait`](Self::wait). With `sleeps`, for what may come without a wake-up, no sleep is
    /// longer than they say.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// use std::time::Duration;
    /// use vmmc_host::limits::TIMED_SLEEPS;
    /// use vmmc_host::wait::{TimedOut, Waiter};
    /// let waiter = Waiter::new();
    /// let sleep = |_until| std::thread::sleep(Duration::from_micros(50));
    /// let deadline = waiter.deadline(Duration::from_millis(2));
    /// let ended = waiter.wait_with(deadline, Some(TIMED_SLEEPS), || None::<()>, sleep);
    /// assert_eq!(ended, Err(TimedOut));
    /// ```
    pub fn wait_with<T>(
        &self,
        deadline: Deadline,
        sleeps: Option<TimedSleeps>,
        mut ready: impl FnMut() -> Option<T>,
        mut block: impl FnMut(Deadline),
    ) -> Result<T, TimedOut> {
        if let Some(value) = ready() {
            return Ok(value);
        }
        let begin = |deadline, sleeps| self.backoff.begin(self.manner(), deadline).with_sleeps(sleeps);
        let Some(interrupted) = patience().interrupted else {
            return self.wait_once(&mut begin(deadline, sleeps), ready, block);
        };
        let mut sleeps = sleeps;
        loop {
            let mut wait = begin(deadline.min(self.deadline(INTERRUPT_SLICE)), sleeps);
            match self.wait_once(&mut wait, &mut ready, &mut block) {
                Err(TimedOut) if self.now() < deadline.0 && !interrupted() => sleeps = wait.sleeps(),
                ended => return ended,
            }
        }
    }

    /// Where only sleeps move the clock, a yield lets nobody do anything.
    fn manner(&self) -> Manner {
        if self.backoff.limits().poll_max_ns == 0 { Manner::Spin } else { Manner::Yield }
    }

    fn wait_once<T>(
        &self,
        wait: &mut Wait<'_>,
        ready: impl FnMut() -> Option<T>,
        block: impl FnMut(Deadline),
    ) -> Result<T, TimedOut> {
        match &self.stepper {
            Some(stepper) => wait_stepping(&**stepper, wait, ready),
            None => wait_polling(wait, ready, block),
        }
    }
}

impl Default for Waiter {
    fn default() -> Self {
        Waiter::new()
    }
}

/// Polls, then blocks until something has come.
fn wait_polling<T>(
    wait: &mut Wait<'_>,
    mut ready: impl FnMut() -> Option<T>,
    mut block: impl FnMut(Deadline),
) -> Result<T, TimedOut> {
    loop {
        match poll(wait, Nanos::monotonic, &mut ready) {
            Polled::Found(value) => return Ok(value),
            Polled::TimedOut => return ready().ok_or(TimedOut),
            Polled::Sleep(until) => block(until),
        }
        if let Some(value) = ready() {
            wait.found(Nanos::monotonic);
            return Ok(value);
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
