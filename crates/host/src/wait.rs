//! Waiting: spin, then yield, then block; or step the node that lives in this process.
//!
//! The blocking calls of the library that wait for the node or a peer sleep here, in
//! [`Waiter::wait`]; an embedded node and the simulator install a [`Stepper`].
//!
//! Invariant: every wait ends at its deadline; a wait that blocks has first announced itself in the
//! sleep flag, so no wake-up is lost: the waker publishes, fences, looks at the flag; the sleeper
//! sets the flag, fences, looks again, sleeps.

use crate::abi::RawCommand;
use crate::channel::{ChannelError, wait_fd};
use crate::clock::Nanos;
use crate::handshake::{announce_sleep, must_wake, retract_sleep};
use crate::limits::INTERRUPT_SLICE;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

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
    /// read the clock again, and may look `times` times for what comes.
    fn step_again(&self, _times: u32) -> bool {
        self.step()
    }
    /// Does this for this attachment now, past the command ring, if nothing stands before it.
    /// False: nothing happened; post it.
    fn send_now(&self, _what: &Direct<'_>) -> bool {
        false
    }
    /// Sleeps until there may be something to do, at most until `until`. A simulator moves its
    /// clock instead.
    fn park(&self, until: Nanos);
    /// How long steps may find nothing before the thread parks, ns. A simulator parks at once: its
    /// clock only moves there.
    fn patience_ns(&self) -> u64 {
        POLL_MAX_NS
    }
}

/// The deadline passed before what was waited for came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deadline passed")]
pub struct TimedOut;

/// What bounds the waits of a thread beside their own deadlines; see [`with_patience`].
#[derive(Clone, Copy, Default)]
pub struct Patience {
    /// Replaces the default time of waits that have no deadline of their own.
    pub timeout: Option<Duration>,
    /// Asked every [`INTERRUPT_SLICE`] while a wait sleeps; when it says yes the wait ends as if
    /// its deadline had passed.
    pub interrupted: Option<fn() -> bool>,
}

thread_local! {
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience { timeout: None, interrupted: None }) };
}

/// Runs a function whose waits on this thread are bounded by `patience`: how languages with
/// interrupts of their own, and calls with a timeout each, sit on top.
pub fn with_patience<R>(patience: Patience, run: impl FnOnce() -> R) -> R {
    struct Restore(Patience);
    impl Drop for Restore {
        fn drop(&mut self) {
            PATIENCE.set(self.0);
        }
    }
    let _restore = Restore(PATIENCE.replace(patience));
    run()
}

/// Sets the patience of this thread until the next change; [`with_patience`] restores what it
/// found.
pub fn set_patience(patience: Patience) {
    PATIENCE.set(patience);
}

/// The patience of this thread.
pub fn patience() -> Patience {
    PATIENCE.get()
}

/// Whether this thread's waits are to end now: for loops that are made of several waits.
pub fn is_interrupted() -> bool {
    patience().interrupted.is_some_and(|interrupted| interrupted())
}

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

fn wait_stepping<T>(
    stepper: &dyn Stepper,
    deadline: Deadline,
    mut ready: impl FnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    let mut idle_since = None;
    let patience = stepper.patience_ns();
    // Reading a clock takes a good part of a step in vain.
    let steps_a_look = if patience == 0 { 1 } else { STEPS_A_LOOK };
    loop {
        match step_and_look(stepper, steps_a_look, &mut ready) {
            Ok(value) => return Ok(value),
            Err(Worked(true)) => {
                idle_since = None;
                continue;
            }
            Err(Worked(false)) => {}
        }
        let now = stepper.now();
        if now >= deadline.0 {
            return Err(TimedOut);
        }
        let since = *idle_since.get_or_insert(now);
        if now.since(since).as_nanos() as u64 >= patience {
            stepper.park(deadline.0);
            idle_since = None;
        }
    }
}

/// Nothing is ready; whether the node had work.
struct Worked(bool);

/// One step, and if there was nothing to do some more that need no clock, each kind with a look at
/// what is waited for.
#[inline]
fn step_and_look<T>(stepper: &dyn Stepper, steps: u32, ready: &mut impl FnMut() -> Option<T>) -> Result<T, Worked> {
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

/// The sleeping side of a wake-up: a pipe that only its owner reads. It is also the descriptor for
/// event loops.
#[derive(Debug)]
pub struct WakeReceiver(OwnedFd);

/// The waking side: it can be given to other processes, which can wake with it and nothing else.
#[derive(Debug)]
pub struct WakeSender(OwnedFd);

/// Makes a wake-up pair.
pub fn wake_pair() -> Result<(WakeReceiver, WakeSender), ChannelError> {
    let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
    let (read, write) =
        rustix::pipe::pipe_with(flags).map_err(|errno| ChannelError::System { call: "pipe2", errno })?;
    Ok((WakeReceiver(read), WakeSender(write)))
}

impl WakeReceiver {
    /// Wraps a descriptor that came over a channel.
    pub fn from_fd(fd: OwnedFd) -> WakeReceiver {
        WakeReceiver(fd)
    }

    /// Takes all wake-ups that have come.
    pub fn drain(&self) {
        let mut bytes = [0u8; 64];
        while matches!(rustix::io::read(&self.0, &mut bytes), Ok(n) if n == bytes.len()) {}
    }

    /// Sleeps until somebody wakes us or the deadline passes. `flag` tells wakers that we sleep;
    /// `look` is the last look after the flag is set: true means stay awake.
    pub fn sleep(&self, flags: &[&AtomicU64], deadline: Deadline, look: impl FnOnce() -> bool) {
        self.drain();
        for flag in flags {
            announce_sleep(flag);
        }
        if !look() {
            // A failure other than the deadline (which the caller sees on its clock) shows as an
            // early return; the caller's loop looks again.
            let _ = wait_fd(self.0.as_fd(), PollFlags::IN, deadline);
        }
        for flag in flags {
            retract_sleep(flag);
        }
    }
}

impl AsFd for WakeReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl WakeSender {
    /// Wraps a descriptor that came over a channel.
    pub fn from_fd(fd: OwnedFd) -> WakeSender {
        WakeSender(fd)
    }

    /// Another handle to the same receiver.
    pub fn share(&self) -> std::io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Wakes the receiver. A full pipe has woken it already; a receiver that is gone needs no
    /// waking.
    pub fn wake(&self) {
        loop {
            match rustix::io::write(&self.0, &[1]) {
                Err(Errno::INTR) => continue,
                _ => return,
            }
        }
    }

    /// Wakes the receiver if its flag says that it sleeps. Call after what it is to see has been
    /// published.
    #[inline]
    pub fn wake_if(&self, flag: &AtomicU64) {
        if must_wake(flag) {
            self.wake();
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn long() -> Deadline {
        Deadline::after(Duration::from_secs(30))
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let waiter = Waiter::new();
        let (receiver, _sender) = wake_pair().unwrap();
        let flag = AtomicU64::new(0);
        let deadline = Deadline::after(Duration::from_millis(20));
        let got: Result<(), _> = waiter.wait(deadline, || None, |d| receiver.sleep(&[&flag], d, || false));
        assert_eq!(got, Err(TimedOut));
        assert_eq!(flag.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn an_interrupted_wait_ends_before_its_deadline() {
        let (receiver, _sender) = wake_pair().unwrap();
        let flag = AtomicU64::new(0);
        let wait = || Waiter::new().wait(long(), || None::<()>, |d| receiver.sleep(&[&flag], d, || false));
        let patience = Patience { interrupted: Some(|| true), ..Patience::default() };
        let start = Nanos::monotonic();
        assert_eq!(with_patience(patience, wait), Err(TimedOut));
        assert!(Nanos::monotonic().since(start) < Duration::from_secs(20), "long before its deadline");
        assert!(super::patience().interrupted.is_none(), "what was before holds again");
    }

    #[test]
    fn no_wake_up_is_lost() {
        let waiter = Waiter::new();
        let (receiver, sender) = wake_pair().unwrap();
        let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || {
            for i in 1..=2000u64 {
                while theirs.1.load(Ordering::SeqCst) >> 32 != i - 1 {
                    std::thread::yield_now();
                }
                theirs.0.store(i, Ordering::SeqCst);
                sender.wake_if(&theirs.1);
            }
        });
        let flag = &shared.1;
        for i in 1..=2000u64 {
            let ready = || (shared.0.load(Ordering::SeqCst) >= i).then_some(());
            let blocked = |d| receiver.sleep(&[flag], d, || ready().is_some());
            waiter.poll_ns.store(if i % 2 == 0 { 0 } else { POLL_MAX_NS }, Ordering::Relaxed);
            waiter.wait(long(), ready, blocked).expect("the other thread wakes us");
            flag.fetch_add(1 << 32, Ordering::SeqCst);
        }
        thread.join().unwrap();
    }

    #[test]
    fn sleeps_that_end_soon_bring_polling_back() {
        let waiter = Waiter::new();
        let polled = || waiter.poll_ns.load(Ordering::Relaxed);
        waiter.poll_ns.store(POLL_MIN_NS, Ordering::Relaxed);
        let wait = |asleep: Duration| {
            let woken = AtomicBool::new(false);
            let ready = || woken.load(Ordering::Relaxed).then_some(());
            let block = |_| {
                std::thread::sleep(asleep);
                woken.store(true, Ordering::Relaxed);
            };
            waiter.wait(long(), ready, block).expect("the sleep ends");
        };
        // On a busy machine some sleeps take longer than asked for, and some waits do not count;
        // others do.
        let until = |asleep, done: &dyn Fn() -> bool| {
            let limit = long();
            while !done() {
                assert!(
                    limit.left(Nanos::monotonic()).is_some(),
                    "{} ns of polling after sleeps of {asleep:?}",
                    polled()
                );
                wait(asleep);
            }
        };
        until(Duration::ZERO, &|| polled() == POLL_MAX_NS);
        until(Duration::from_millis(1), &|| polled() <= 2 * POLL_MIN_NS);
    }

    #[test]
    fn long_yields_stop_yielding_unless_they_are_rare() {
        let yields = Yields::default();
        for _ in 0..100 {
            yields.took(3_000_000);
            (0..LONG_YIELD_SCORE).for_each(|_| yields.took(1_000));
        }
        assert!(yields.pay(), "one in many");
        (0..3).for_each(|_| yields.took(3_000_000));
        assert!(!yields.pay());
        (0..NO_YIELD_SLEEPS).for_each(|_| yields.slept());
        assert!(yields.pay(), "it is tried again");
        yields.took(3_000_000);
        assert!(!yields.pay(), "and one more is enough");
    }

    #[test]
    fn who_lost_the_core_for_long_sleeps_at_once() {
        let waiter = Waiter::new();
        waiter.yields.suspended.store(NO_YIELD_SLEEPS, Ordering::Relaxed);
        let looks = Cell::new(0u32);
        let ready = || {
            looks.set(looks.get() + 1);
            None::<()>
        };
        let slept = Cell::new(0u32);
        let block = |_| {
            slept.set(slept.get() + 1);
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(waiter.wait(Deadline::after(Duration::from_millis(5)), ready, block), Err(TimedOut));
        assert!(slept.get() > 0);
        assert_eq!(waiter.yields.suspended.load(Ordering::Relaxed), NO_YIELD_SLEEPS - 1, "counted down");
        assert_eq!(waiter.poll_ns.load(Ordering::Relaxed), POLL_MAX_NS, "it says nothing about polling");
    }

    #[test]
    fn who_naps_looks_for_longer_now_and_then() {
        let waiter = Waiter::new();
        waiter.poll_ns.store(POLL_MIN_NS, Ordering::Relaxed);
        let (mut naps, mut longest_ns) = (0, 0);
        for _ in 0..200 {
            // Whatever else runs here: this is not about yields.
            waiter.yields.score.store(0, Ordering::Relaxed);
            waiter.yields.suspended.store(0, Ordering::Relaxed);
            // It comes after twice the time for which waits poll, and a nap hides when.
            let begun = std::time::Instant::now();
            let ready = || (begun.elapsed().as_nanos() as u64 > 2 * POLL_MAX_NS).then_some(());
            let block = |_| {
                naps += 1;
                waiter.napped();
                std::thread::sleep(Duration::from_micros(150));
            };
            waiter.wait(long(), ready, block).expect("it comes");
            longest_ns = longest_ns.max(waiter.poll_ns.load(Ordering::Relaxed));
        }
        assert!((1..200).contains(&naps), "some waits looked for as long as it took: {naps}");
        assert_eq!(longest_ns, POLL_MAX_NS, "and that was remembered");
    }

    struct Countdown(AtomicU64, AtomicBool);

    impl Stepper for Countdown {
        fn now(&self) -> Nanos {
            Nanos(1_000_000 * (100 - self.0.load(Ordering::Relaxed)))
        }
        fn step(&self) -> bool {
            false
        }
        fn park(&self, _until: Nanos) {
            self.1.store(true, Ordering::Relaxed);
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_stepped_wait_parks_on_the_steppers_clock() {
        let stepper = Arc::new(Countdown(AtomicU64::new(100), AtomicBool::new(false)));
        let waiter = Waiter::stepping(stepper.clone());
        let deadline = waiter.deadline(Duration::from_millis(5));
        // The clock of this stepper only moves when parked, so the wait has to look idle for long
        // enough first: make it so at once.
        stepper.0.fetch_sub(1, Ordering::Relaxed);
        let mut looks = 0;
        let got = waiter.wait(
            deadline,
            || {
                looks += 1;
                if looks % 3 == 0 {
                    stepper.0.fetch_sub(1, Ordering::Relaxed);
                }
                None::<()>
            },
            |_| {},
        );
        assert_eq!(got, Err(TimedOut));
        assert!(looks > 3);
    }
}
