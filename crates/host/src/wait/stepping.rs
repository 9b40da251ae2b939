//! Waiting on a node that lives in this process: the waiting threads step it.
//!
//! Invariant: a wait ends at its deadline on the clock of the node.

use super::{BackoffLimits, Step, TimedOut, Wait};
use crate::abi::RawCommand;
use crate::clock::Nanos;
use crate::limits::{STEPPED_WAITS, STEPS_A_CLOCK};

/// What may go out past the command ring.
#[derive(Clone, Copy, Debug)]
pub enum Direct<'a> {
    /// A send of short data that wants nothing else.
    Send {
        /// Import that names the other side.
        import: u64,
        /// Byte offset in the export.
        offset: u64,
        /// At most [`INLINE_BYTES_MAX`](crate::limits::INLINE_BYTES_MAX).
        data: &'a [u8],
    },
    /// A fetch or an atomic operation: one that [is a request](crate::abi::Op::is_request).
    Request(&'a RawCommand),
}

/// A node that lives in this process (embedded or simulated) and runs while callers wait.
pub trait Stepper: Send + Sync {
    /// The time of the node's clock.
    fn now(&self) -> Nanos;
    /// Does what can be done now; says whether there was anything.
    fn step(&self) -> bool;
    /// As [`step`](Self::step), by a thread whose last step found nothing a moment ago: need not
    /// read the clock again, and may poll `times` times for what comes.
    fn step_again(&self, _times: u32) -> bool {
        self.step()
    }
    /// Does this for this attachment now, past the command ring, if nothing stands before it.
    /// False: nothing happened; post it.
    fn try_send_inline(&self, _what: &Direct<'_>) -> bool {
        false
    }
    /// Sleeps until there may be something to do, at most until `until`. A simulator moves its
    /// clock instead.
    fn park(&self, until: Nanos);
    /// How long steps may find nothing before the thread parks. A simulator parks at once: its
    /// clock only moves there.
    fn wait_limits(&self) -> &'static BackoffLimits {
        &STEPPED_WAITS
    }
}

/// Steps until something has come; parks when steps find nothing for a while.
pub(super) fn wait_stepping<T>(
    stepper: &dyn Stepper,
    wait: &mut Wait<'_>,
    mut ready: impl FnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    let clock = || stepper.now();
    // Without time for polling each step may be the last before the thread parks.
    let steps = if stepper.wait_limits().poll_max_ns == 0 { 1 } else { STEPS_A_CLOCK };
    loop {
        match step_and_poll(stepper, steps, &mut ready) {
            Ok(value) => return Ok(value),
            Err(Worked(true)) => {
                wait.again(clock);
                continue;
            }
            Err(Worked(false)) => {}
        }
        match wait.next(clock) {
            Step::Poll => {}
            Step::Yield => std::thread::yield_now(),
            Step::Sleep(until) => {
                stepper.park(until.0);
                wait.again(clock);
            }
            Step::TimedOut => return Err(TimedOut),
        }
    }
}

/// Nothing is ready; whether the node had work.
pub(super) struct Worked(bool);

/// One step, and if there was nothing to do some more that need no clock, each kind with a poll of
/// what is waited for.
#[inline]
pub(super) fn step_and_poll<T>(
    stepper: &dyn Stepper,
    steps: u32,
    ready: &mut impl FnMut() -> Option<T>,
) -> Result<T, Worked> {
    let worked = stepper.step();
    if let Some(value) = ready() {
        return Ok(value);
    }
    if worked || steps == 1 {
        return Err(Worked(worked));
    }
    let worked = stepper.step_again(steps - 1);
    ready().ok_or(Worked(worked))
}
