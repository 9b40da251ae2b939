//! How the threads of a session share one wake-up: one sleeps on it, the others wait for that one.
//!
//! Invariant: a thread that blocks has looked after it announced itself, so nothing that came
//! before is missed: the sleeper by the flags of the rings (see `vmmc_host::handshake`), the
//! followers by `epoch`, which grows after every delivery and is compared under the lock that the
//! deliverer takes to notify.

use crate::limits::STEPPED_SLICE;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use vmmc_host::handshake::{announce_sleep, retract_sleep};
use vmmc_host::limits::TIMED_SLEEP_MAX;
use vmmc_host::wait::{TimedOut, TimedSleeps, Waiter, is_interrupted};
use vmmc_host::{Deadline, WakeReceiver};

/// Waits as [`Waiter::wait_with`] does. With a node in this process it wakes now and then, because
/// what it waits for may come in ways that the node does not see: as often as the longest of its
/// timed sleeps, or after [`STEPPED_SLICE`].
pub(crate) fn wait_sliced<T>(
    waiter: &Waiter,
    deadline: Deadline,
    sleeps: Option<TimedSleeps>,
    mut ready: impl FnMut() -> Option<T>,
    mut block: impl FnMut(Deadline),
) -> Result<T, TimedOut> {
    if !waiter.steps() {
        return waiter.wait_with(deadline, sleeps, ready, block);
    }
    let slice = sleeps.map_or(STEPPED_SLICE, |_| TIMED_SLEEP_MAX);
    loop {
        let until = deadline.min(waiter.deadline(slice));
        match waiter.wait(until, &mut ready, &mut block) {
            Err(TimedOut) if waiter.now() < deadline.0 && !is_interrupted() => {}
            ended => return ended,
        }
    }
}

/// The waiting threads of a session.
pub(crate) struct Waiting {
    pub(crate) waiter: Waiter,
    pub(crate) wake: WakeReceiver,
    /// Wakes the sleeper for what does not come through rings: a stop, the death of the node.
    kick: OwnedFd,
    /// Deliveries so far.
    epoch: AtomicU64,
    /// Threads that wait on `changed`, or are about to.
    followers: AtomicUsize,
    /// Threads that wait for staging memory or a completion place, which other threads of this
    /// process give back.
    starved: AtomicUsize,
    /// Whether some thread has the role of the sleeper.
    sleeper: Mutex<bool>,
    changed: Condvar,
    /// Times that a thread blocked.
    pub(crate) sleeps: AtomicU64,
}

impl Waiting {
    pub(crate) fn new(waiter: Waiter, wake: WakeReceiver) -> Result<Waiting, rustix::io::Errno> {
        Ok(Waiting {
            waiter,
            wake,
            kick: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            epoch: AtomicU64::new(0),
            followers: AtomicUsize::new(0),
            starved: AtomicUsize::new(0),
            sleeper: Mutex::new(false),
            changed: Condvar::new(),
            sleeps: AtomicU64::new(0),
        })
    }

    /// Something was delivered to some thread: the followers look again.
    pub(crate) fn delivered(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.followers.load(Ordering::SeqCst) > 0 {
            drop(self.lock());
            self.changed.notify_all();
        }
    }

    /// Makes every waiting thread look again.
    pub(crate) fn kick(&self) {
        // A full counter has kicked already.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
        self.delivered();
    }

    /// Whether threads wait for a resource that a thread may give back.
    pub(crate) fn is_starving(&self) -> bool {
        self.starved.load(Ordering::SeqCst) > 0
    }

    /// Counts the calling thread as waiting for a resource while `wait` runs.
    pub(crate) fn starving<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.starved.fetch_add(1, Ordering::SeqCst);
        let result = wait();
        self.starved.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Blocks until there may be news or the deadline passes. `look` collects what has come and
    /// says whether the caller has what it wants; `flags` tell wakers that this process sleeps.
    pub(crate) fn block(&self, flags: &[&AtomicU64], deadline: Deadline, look: &mut dyn FnMut() -> bool) {
        let epoch = self.epoch.load(Ordering::SeqCst);
        self.followers.fetch_add(1, Ordering::SeqCst);
        if !look() {
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            self.block_unless_changed(flags, deadline, look, epoch);
        }
        self.followers.fetch_sub(1, Ordering::SeqCst);
    }

    fn block_unless_changed(
        &self,
        flags: &[&AtomicU64],
        deadline: Deadline,
        look: &mut dyn FnMut() -> bool,
        epoch: u64,
    ) {
        let mut sleeper = self.lock();
        if self.epoch.load(Ordering::SeqCst) != epoch {
            return;
        }
        if *sleeper {
            if let Some(left) = deadline.left(self.waiter.now()) {
                // Whatever ends the wait, the caller looks again.
                let _ = self.changed.wait_timeout(sleeper, left);
            }
            return;
        }
        *sleeper = true;
        drop(sleeper);
        self.sleep(flags, deadline, look);
        *self.lock() = false;
        self.changed.notify_all();
    }

    fn sleep(&self, flags: &[&AtomicU64], deadline: Deadline, look: &mut dyn FnMut() -> bool) {
        self.wake.drain();
        flags.iter().for_each(|flag| announce_sleep(flag));
        if !look() {
            self.poll_until(deadline);
        }
        flags.iter().for_each(|flag| retract_sleep(flag));
    }

    fn poll_until(&self, deadline: Deadline) {
        let Some(left) = deadline.left(self.waiter.now()) else { return };
        let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = [
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.kick.as_fd(), PollFlags::IN),
        ];
        // An interrupted or failed poll is an early return; the caller looks again.
        if poll(&mut fds, Some(&timeout)).is_ok() && !fds[1].revents().is_empty() {
            let _ = rustix::io::read(&self.kick, &mut [0u8; 8]);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, bool> {
        self.sleeper.lock().expect("no panic while the lock is held")
    }
}
