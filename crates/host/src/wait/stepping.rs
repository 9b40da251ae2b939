//! Waiting on a node that lives in this process: the waiting threads step it.
//!
//! Invariants: a wait ends at its deadline on the clock of the node; a thread counts as one that
//! polls the node from the beginning of its wait until that ends or the thread parks.

use super::{BackoffLimits, Step, TimedOut, Wait};
use crate::abi::RawCommand;
use crate::clock::Nanos;
use crate::limits::{
    QUICK_TURNS, STEPPED_WAITS, STEPS_A_CLOCK, STEPS_BESIDE_OTHERS, TIMED_SLEEPS, TURNS_WITH_WORK_A_CLOCK,
};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
    /// Where threads that poll the node while they wait are counted, those of all its attachments
    /// together: a hint, on which only times depend. None: they are not told of each other.
    fn polling_threads(&self) -> Option<&AtomicU32> {
        None
    }
    /// How long steps may find nothing before the thread parks. A simulator parks at once: its
    /// clock only moves there.
    fn wait_limits(&self) -> &'static BackoffLimits {
        &STEPPED_WAITS
    }
}

/// A thread that polls a node, counted among those that do.
///
/// Each step of one of them serves all, and each may keep the core from the one whose message has
/// come. So a thread that is not alone steps little before it yields, looks first whether another
/// one's step has brought what it waits for, and yields after a step that brought something else.
pub(super) struct PollingThread<'a> {
    stepper: &'a dyn Stepper,
    counted: bool,
}

impl<'a> PollingThread<'a> {
    pub(super) fn begin(stepper: &'a dyn Stepper) -> PollingThread<'a> {
        if let Some(threads) = stepper.polling_threads() {
            threads.fetch_add(1, Relaxed);
        }
        PollingThread { stepper, counted: true }
    }

    /// The thread parks: it takes the core only when it is woken.
    fn end(&mut self) {
        let counted = std::mem::take(&mut self.counted);
        if let Some(threads) = self.stepper.polling_threads().filter(|_| counted) {
            threads.fetch_sub(1, Relaxed);
        }
    }

    fn has_others(&self) -> bool {
        self.stepper.polling_threads().is_some_and(|threads| threads.load(Relaxed) > u32::from(self.counted))
    }

    /// The beginning of a wait for what may be under way already: nothing stands between a step and
    /// `ready`. A thread that is not alone leaves that to its wait.
    #[inline]
    pub(super) fn poll_quickly<T>(&self, ready: &mut impl FnMut() -> Option<T>) -> Option<T> {
        let turns = if self.has_others() { 0 } else { QUICK_TURNS };
        (0..turns).find_map(|_| self.turn(STEPS_A_CLOCK, ready).ok())
    }

    /// One step, and if there was nothing to do some more that need no clock, each kind with a poll
    /// of what is waited for.
    #[inline]
    fn turn<T>(&self, steps: u32, ready: &mut impl FnMut() -> Option<T>) -> Result<T, Worked> {
        let worked = self.stepper.step();
        if let Some(value) = ready() {
            return Ok(value);
        }
        if worked || steps == 1 {
            return Err(Worked(worked));
        }
        let worked = self.stepper.step_again(steps - 1);
        ready().ok_or(Worked(worked))
    }
}

impl Drop for PollingThread<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Nothing is ready; whether the node had work.
struct Worked(bool);

/// Steps until something has come; parks when steps find nothing for a while.
pub(super) fn wait_stepping<T>(
    stepper: &dyn Stepper,
    wait: &mut Wait<'_>,
    mut ready: impl FnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    let clock = || stepper.now();
    let (mut thread, mut rests) = (PollingThread::begin(stepper), TIMED_SLEEPS);
    let mut turns_with_work = 0u32;
    loop {
        let has_others = thread.has_others();
        if has_others {
            if let Some(value) = ready() {
                return Ok(value);
            }
        }
        let steps = match (stepper.wait_limits().poll_max_ns, has_others) {
            // Without time for polling each step may be the last before the thread parks.
            (0, _) => 1,
            (_, true) => STEPS_BESIDE_OTHERS,
            (_, false) => STEPS_A_CLOCK,
        };
        match thread.turn(steps, &mut ready) {
            Ok(value) => return Ok(value),
            Err(Worked(true)) if !has_others => {
                turns_with_work = turns_with_work.wrapping_add(1);
                if turns_with_work % TURNS_WITH_WORK_A_CLOCK == 0 && wait.is_over(clock()) {
                    return Err(TimedOut);
                }
                wait.again(clock);
                continue;
            }
            // It may have been work for one of them, which needs the core.
            Err(Worked(_)) => {}
        }
        match wait.next(clock) {
            Step::Poll => {}
            Step::Yield => std::thread::yield_now(),
            Step::Sleep(until) => {
                thread.end();
                if thread.has_others() {
                    // They step the node, and what comes for them would wake this thread each time.
                    let until = until.0.min(Nanos(clock().0.saturating_add(rests.take())));
                    std::thread::sleep(until.since(clock()));
                } else {
                    stepper.park(until.0);
                }
                // Beside others it looks once, and sleeps again.
                if !thread.has_others() {
                    wait.again(clock);
                }
            }
            Step::TimedOut => return Err(TimedOut),
        }
    }
}
