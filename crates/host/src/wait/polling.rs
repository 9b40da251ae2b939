//! The driver of a [`Wait`] whose polls are short: reads the clock, pauses and yields.
//!
//! Invariant: it polls once after every step, and never sleeps.

use super::{Deadline, Step, Wait};
use crate::clock::Nanos;

/// How polling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled<T> {
    /// With what was waited for.
    Found(T),
    /// In vain: sleep until there may be something, at most until this time, and poll once.
    Sleep(Deadline),
    /// The deadline has passed, and the last poll before that found nothing.
    TimedOut,
}

/// Polls until `ready` gives something, or it is better to sleep. Call after a poll in vain.
///
/// ```
/// use vmmc_host::Nanos;
/// use vmmc_host::limits::LIBRARY_WAITS;
/// use vmmc_host::wait::{Backoff, Deadline, Manner, Polled, poll};
/// let backoff = Backoff::new(&LIBRARY_WAITS);
/// let mut wait = backoff.begin(Manner::Yield, Deadline::after(std::time::Duration::from_secs(1)));
/// let mut polls = 0;
/// let ready = || {
///     polls += 1;
///     (polls == 3).then_some("it came")
/// };
/// assert_eq!(poll(&mut wait, Nanos::monotonic, ready), Polled::Found("it came"));
/// ```
#[inline]
pub fn poll<T>(wait: &mut Wait<'_>, clock: impl Fn() -> Nanos, mut ready: impl FnMut() -> Option<T>) -> Polled<T> {
    wait.start(&clock);
    loop {
        match wait.next(&clock) {
            Step::Poll => std::hint::spin_loop(),
            Step::Yield => std::thread::yield_now(),
            Step::Sleep(until) => return Polled::Sleep(until),
            Step::TimedOut => return Polled::TimedOut,
        }
        if let Some(value) = ready() {
            wait.found(&clock);
            return Polled::Found(value);
        }
    }
}
