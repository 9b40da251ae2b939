//! How the threads of a session share one wake-up: one sleeps on it, the others wait for that one.
//!
//! Invariant: a thread that blocks has polled after it announced itself, so nothing that came
//! before is missed: the sleeper by the flags of the rings (see `vmmc_host::handshake`), the
//! followers by `epoch`, which grows after every delivery and is compared under the lock that the
//! deliverer takes to notify. Descriptors of the caller's are in the poll of the thread that waits
//! for them, the sleeper's or a follower's own.

use crate::limits::{DESCRIPTOR_POLLS, STEPPED_SLICE};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;
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

/// Descriptors that one wait is for, besides what comes through the session. To ask the kernel is a
/// system call, so that not every poll does.
pub(crate) struct Descriptors<'a> {
    fds: RefCell<Vec<PollFd<'a>>>,
    /// Polls before the next one that asks.
    polls_left: Cell<u32>,
    /// What it begins at.
    every: u32,
}

impl<'a> Descriptors<'a> {
    /// For waits of this waiter, whose steps ask the kernel anyway.
    pub(crate) fn new(fds: Vec<PollFd<'a>>, waiter: &Waiter) -> Descriptors<'a> {
        let every = if waiter.steps() { 0 } else { DESCRIPTOR_POLLS };
        Descriptors { fds: RefCell::new(fds), polls_left: Cell::new(0), every }
    }

    /// The place of the first one that is ready, in error or hung up. It may be found some polls
    /// late.
    pub(crate) fn first_ready(&self) -> Option<usize> {
        let left = self.polls_left.get();
        if left > 0 {
            self.polls_left.set(left - 1);
            return None;
        }
        self.polls_left.set(self.every);
        let mut fds = self.fds.borrow_mut();
        let found = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
        let place = found.then(|| fds.iter().position(|fd| !fd.revents().is_empty())).flatten();
        place.inspect(|_| self.polls_left.set(0))
    }

    /// Blocks until `wake`, or one of them, may be ready. Says whether the others are.
    fn block(&self, wake: &[BorrowedFd<'_>], left: Duration) -> Vec<bool> {
        let own = wake.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let mut all: Vec<PollFd<'_>> = own.chain(self.fds.borrow().iter().cloned()).collect();
        // An interrupted or failed poll is an early return; the caller polls again.
        let ready = poll(&mut all, Some(&timespec(left))).is_ok();
        self.polls_left.set(0);
        all[..wake.len()].iter().map(|fd| ready && !fd.revents().is_empty()).collect()
    }
}

fn timespec(left: Duration) -> Timespec {
    let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: i64::from(left.subsec_nanos()) }
}

/// Who sleeps, and who follows.
#[derive(Default)]
struct Turn {
    /// Some thread has the role of the sleeper.
    taken: bool,
    /// Eventfds of followers that wait for descriptors too, and cannot sleep on `changed`.
    bells: Vec<Arc<OwnedFd>>,
}

/// The waiting threads of a session.
pub(crate) struct Waiting {
    pub(crate) waiter: Waiter,
    pub(crate) wake: WakeReceiver,
    /// Wakes the sleeper for what does not come through rings: a stop, the death of the node.
    kick: OwnedFd,
    /// Deliveries so far.
    epoch: AtomicU64,
    /// Threads that sleep, wait on `changed`, or are about to.
    followers: AtomicUsize,
    /// Threads that wait for staging memory or a completion place, which other threads of this
    /// process give back.
    starved: AtomicUsize,
    turn: Mutex<Turn>,
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
            turn: Mutex::default(),
            changed: Condvar::new(),
            sleeps: AtomicU64::new(0),
        })
    }

    /// Something was delivered to some thread: the followers poll again.
    pub(crate) fn delivered(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.some_follow() {
            self.call_followers(&self.lock());
        }
    }

    /// Whether there are more threads in [`block`](Self::block) than the sleeper, whom nobody calls
    /// here. One that comes later finds the epoch grown, or no sleeper.
    fn some_follow(&self) -> bool {
        self.followers.load(Ordering::SeqCst) > 1
    }

    /// Deliveries so far.
    pub(crate) fn deliveries(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    fn call_followers(&self, turn: &Turn) {
        self.changed.notify_all();
        turn.bells.iter().for_each(|bell| ring(bell));
    }

    /// Makes every waiting thread poll again.
    pub(crate) fn kick(&self) {
        ring(&self.kick);
        self.delivered();
    }

    /// Takes the wake-ups that have come, for an event loop, which looks at what they are for. One
    /// may have been for the sleeper, which looks too.
    pub(crate) fn drain_for_loop(&self) {
        if self.wake.drain() && self.lock().taken {
            ring(&self.kick);
        }
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

    /// Blocks until something may have come or the deadline passes. `look` collects what has come
    /// and returns whether the caller has what it wants; it is told whether the sleep is announced,
    /// so that what comes after the look ends it. `flags` show wakers that this process sleeps.
    /// While another thread sleeps, which may show fewer of them, this one blocks for
    /// `follow_max` at most.
    pub(crate) fn block(
        &self,
        flags: &[&AtomicU64],
        (deadline, follow_max): (Deadline, Duration),
        look: &mut dyn FnMut(bool) -> bool,
        fds: Option<&Descriptors<'_>>,
    ) {
        let epoch = self.epoch.load(Ordering::SeqCst);
        self.followers.fetch_add(1, Ordering::SeqCst);
        if !look(false) {
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            self.block_unless_changed(flags, (deadline, follow_max), look, (fds, epoch));
        }
        self.followers.fetch_sub(1, Ordering::SeqCst);
    }

    fn block_unless_changed(
        &self,
        flags: &[&AtomicU64],
        (deadline, follow_max): (Deadline, Duration),
        look: &mut dyn FnMut(bool) -> bool,
        (fds, epoch): (Option<&Descriptors<'_>>, u64),
    ) {
        let mut turn = self.lock();
        if self.epoch.load(Ordering::SeqCst) != epoch {
            return;
        }
        if turn.taken {
            if let Some(left) = deadline.left(self.waiter.now()) {
                self.follow(turn, left.min(follow_max), fds);
            }
            return;
        }
        turn.taken = true;
        drop(turn);
        self.sleep(flags, deadline, look, fds);
        let mut turn = self.lock();
        turn.taken = false;
        // A call is a system call, also if nobody hears it.
        if self.some_follow() {
            self.call_followers(&turn);
        }
    }

    /// Whatever ends this, the caller polls again.
    fn follow(&self, mut turn: MutexGuard<'_, Turn>, left: Duration, fds: Option<&Descriptors<'_>>) {
        let Some(fds) = fds else {
            let _ = self.changed.wait_timeout(turn, left);
            return;
        };
        let Ok(bell) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
            // The process has no descriptor left for it.
            let _ = self.changed.wait_timeout(turn, left.min(TIMED_SLEEP_MAX));
            return;
        };
        let bell = Arc::new(bell);
        turn.bells.push(bell.clone());
        drop(turn);
        fds.block(&[bell.as_fd()], left);
        self.lock().bells.retain(|other| !Arc::ptr_eq(other, &bell));
    }

    fn sleep(
        &self,
        flags: &[&AtomicU64],
        deadline: Deadline,
        look: &mut dyn FnMut(bool) -> bool,
        fds: Option<&Descriptors<'_>>,
    ) {
        self.wake.drain();
        flags.iter().for_each(|flag| announce_sleep(flag));
        if !look(true) {
            self.poll_until(deadline, fds);
        }
        flags.iter().for_each(|flag| retract_sleep(flag));
    }

    fn poll_until(&self, deadline: Deadline, fds: Option<&Descriptors<'_>>) {
        let Some(left) = deadline.left(self.waiter.now()) else { return };
        let wake = [self.wake.as_fd(), self.kick.as_fd()];
        let kicked = match fds {
            Some(fds) => fds.block(&wake, left)[1],
            None => {
                let mut fds = wake.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                // As in `Descriptors::block`.
                poll(&mut fds, Some(&timespec(left))).is_ok() && !fds[1].revents().is_empty()
            }
        };
        if kicked {
            let _ = rustix::io::read(&self.kick, &mut [0u8; 8]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().expect("no panic while the lock is held")
    }
}

fn ring(bell: &OwnedFd) {
    // A full counter has rung already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmmc_host::Nanos;
    use vmmc_host::wait::wake_pair;

    #[test]
    fn a_look_is_told_whether_the_sleep_is_announced() {
        let (wake, _) = wake_pair().expect("a pair");
        let waiting = Waiting::new(Waiter::new(), wake).expect("a waiter");
        let asleep = AtomicU64::new(0);
        let mut looks = Vec::new();
        let mut look = |announced: bool| {
            looks.push((announced, asleep.load(Ordering::Relaxed) > 0));
            // What came before the announcement woke nobody, and is found by the second look.
            announced
        };
        waiting.block(&[&asleep], (Deadline(Nanos::MAX), Duration::MAX), &mut look, None);
        assert_eq!(looks, [(false, false), (true, true)]);
        assert_eq!((asleep.load(Ordering::Relaxed), waiting.sleeps.load(Ordering::Relaxed)), (0, 1));
    }
}
