//! What wakes the tasks of one runtime: a task of that runtime, which has a bell.
//!
//! ```text
//!   SERVE: take the marks, wake tasks ─▶ arm, with nothing marked ─▶ SLEEP
//!      ▲   ▲                                                           │
//!      │   └───────────────── bell, timer, signal ─────────────────────┘
//!      │
//!   POLL ◀── a task begins to wait for bytes, and the runtime has nothing else to do
//! ```
//!
//! How it polls is in [`super::polling`].
//!
//! Invariant: a driver that sleeps is armed, and a mark that comes after it looked rings its bell.
//! It ends with its runtime or with its context, whichever goes first, and then gives the bell
//! back when the last of its streams has gone. Source: the ready list of epoll(7).

use super::polling::Polling;
use super::shared::Shared;
use super::signal::{Signal, lock};
use crate::connection::Connection;
use crate::context::Context;
use crate::limits::{BETWEEN_SLICE_MAX, FULL_TIME_NS, TASK_DEAF_SLICE, TASK_RECHECK_DOUBLINGS};
use crate::ready::ReadySet;
use crate::types::Interest;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::io::Interest as Readiness;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};
use tokio::task::yield_now;
use vmmc_host::Nanos;

/// The drivers of a context, one for each runtime.
#[derive(Debug, Default)]
pub(crate) struct Drivers(Mutex<Vec<Arc<Driver>>>);

/// What wakes the tasks of one runtime.
#[derive(Debug)]
pub(super) struct Driver {
    runtime: Id,
    ready: ReadySet,
    polling: Polling,
    tokens: Mutex<Tokens>,
    /// When to wake which streams without a mark, the first one on top; a few times the same
    /// stream, at most.
    rechecks: Mutex<BinaryHeap<Reverse<(Nanos, u32)>>>,
    signal: Arc<Signal>,
}

/// The streams, by token.
#[derive(Debug, Default)]
struct Tokens {
    streams: Vec<Weak<Shared>>,
    free: Vec<u32>,
}

impl Driver {
    /// The one of the runtime that this thread is in. None: no bell is left for it.
    ///
    /// # Panics
    /// Outside of a runtime, and in one without a reactor.
    pub(super) fn of_this_runtime(context: &Arc<Context>) -> Option<Arc<Driver>> {
        let handle = Handle::current();
        let runtime = handle.id();
        let mut drivers = lock(&context.drivers.0);
        if let Some(driver) = drivers.iter().find(|driver| driver.runtime == runtime) {
            // In the child of a fork it is the parent's.
            return driver.ready.is_of(context).then(|| driver.clone());
        }
        let ready = context.ready_set().ok()?;
        let driver = Arc::new_cyclic(|own| Driver {
            runtime,
            ready,
            polling: Polling::new(&handle, context, own),
            tokens: Mutex::default(),
            rechecks: Mutex::default(),
            signal: Arc::default(),
        });
        let task = Task::new(context, &driver).ok()?;
        drivers.push(driver.clone());
        drop(drivers);
        tokio::spawn(task.run());
        Some(driver)
    }

    /// Follows a stream; gives its token. None: there are as many as it can follow.
    pub(super) fn insert(&self, stream: Weak<Shared>, connection: &Connection) -> Option<u32> {
        let mut tokens = lock(&self.tokens);
        let token = tokens.free.pop().unwrap_or(tokens.streams.len() as u32);
        self.ready.add(connection, token, Interest::BOTH).ok()?;
        match tokens.streams.get_mut(token as usize) {
            Some(place) => *place = stream,
            None => tokens.streams.push(stream),
        }
        Some(token)
    }

    /// Whether it is this process's own: in the child of a fork it is the parent's, who would be
    /// rung.
    pub(super) fn is_of(&self, context: &Context) -> bool {
        self.ready.is_of(context)
    }

    /// Follows it no longer.
    pub(super) fn remove(&self, token: u32, connection: &Connection) {
        self.ready.remove(connection);
        let mut tokens = lock(&self.tokens);
        tokens.streams[token as usize] = Weak::new();
        tokens.free.push(token);
    }

    /// A task begins to wait for bytes: they may come soon.
    pub(super) fn expect(&self) {
        if self.polling.expect() {
            self.signal.raise();
        }
    }

    /// Wakes a stream's tasks after a while, which is longer the more often it was in vain. `next`
    /// is when that will be, ns, 0 for never.
    pub(super) fn recheck(&self, token: u32, in_vain: u32, next: &AtomicU64) {
        let due_ns = Nanos::monotonic().0 + (FULL_TIME_NS << in_vain.min(TASK_RECHECK_DOUBLINGS));
        let known_ns = next.load(Ordering::Relaxed);
        if known_ns == 0 || due_ns < known_ns {
            next.store(due_ns, Ordering::Relaxed);
            lock(&self.rechecks).push(Reverse((Nanos(due_ns), token)));
            self.signal.raise();
        }
    }

    fn stream(&self, token: u32) -> Option<Arc<Shared>> {
        lock(&self.tokens).streams.get(token as usize)?.upgrade()
    }

    /// Wakes the tasks to whose streams something happened.
    fn serve(&self, context: &Context) {
        if context.has_messages() {
            context.poll();
        }
        self.ready.take(&mut |token| {
            if let Some(stream) = self.stream(token) {
                stream.look();
            }
        });
    }

    /// Polls on a thread that has nothing else to do.
    pub(super) fn poll_idle(&self, context: &Context) {
        // Peers need not ring meanwhile.
        self.ready.disarm();
        if self.polling.poll_idle(context, || self.ready.any()) {
            self.serve(context);
        }
        while self.ready.arm() {
            self.serve(context);
        }
    }

    /// How long to sleep at most.
    fn sleep_limit(&self, context: &Context) -> Option<Duration> {
        if self.ready.is_deaf() {
            context.poll();
        }
        let deaf = self.ready.is_deaf().then_some(TASK_DEAF_SLICE);
        let between = context.has_between().then_some(BETWEEN_SLICE_MAX);
        let first = lock(&self.rechecks).peek().map(|Reverse((due, _))| due.0);
        let recheck = first.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(Nanos::monotonic().0)));
        [deaf, between, recheck].into_iter().flatten().min()
    }

    /// Does what is due without a mark.
    fn recheck_due(&self, context: &Context) {
        if context.has_between() {
            context.check_node();
        }
        while let Some(token) = self.next_due() {
            if let Some(stream) = self.stream(token) {
                stream.recheck();
            }
        }
    }

    fn next_due(&self) -> Option<u32> {
        let mut rechecks = lock(&self.rechecks);
        let Reverse((due, token)) = *rechecks.peek()?;
        (due <= Nanos::monotonic()).then(|| rechecks.pop())?;
        Some(token)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Its task, if it still sleeps, has nothing to wait for.
        self.signal.raise();
    }
}

/// The task of a driver. While it sleeps it keeps neither driver nor context.
struct Task {
    runtime: Id,
    context: Weak<Context>,
    driver: Weak<Driver>,
    signal: Arc<Signal>,
    bell: AsyncFd<OwnedFd>,
    /// For runtimes that have no time of their own.
    timer: AsyncFd<OwnedFd>,
}

impl Task {
    fn new(context: &Arc<Context>, driver: &Arc<Driver>) -> Result<Task, Errno> {
        let kept = |fd: OwnedFd| (context.settings().keep_fd)(fd);
        let bell = kept(rustix::io::fcntl_dupfd_cloexec(driver.ready.bell(), 0)?);
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Task {
            runtime: driver.runtime,
            context: Arc::downgrade(context),
            driver: Arc::downgrade(driver),
            signal: driver.signal.clone(),
            bell: in_reactor(bell)?,
            timer: in_reactor(kept(timer))?,
        })
    }

    async fn run(self) {
        let mut timed = false;
        loop {
            let limit = {
                let (Some(context), Some(driver)) = (self.context.upgrade(), self.driver.upgrade()) else { return };
                driver.ready.disarm();
                driver.recheck_due(&context);
                driver.serve(&context);
                if driver.polling.poll_in_turns(&context, || driver.ready.any()).await || driver.ready.arm() {
                    // Others have their turn before the next look.
                    yield_now().await;
                    continue;
                }
                driver.sleep_limit(&context)
            };
            if (timed || limit.is_some()) && set_timer(self.timer.get_ref(), limit).is_err() {
                return;
            }
            timed = limit.is_some();
            if !self.sleep().await {
                return;
            }
        }
    }

    /// Sleeps until there may be something to do. False: the runtime shuts down.
    async fn sleep(&self) -> bool {
        poll_fn(|cx| {
            if self.signal.poll(cx.waker()) {
                return Poll::Ready(true);
            }
            let mut woken = Poll::Pending;
            if let Poll::Ready(rung) = self.bell.poll_read_ready(cx) {
                let Ok(mut rung) = rung else { return Poll::Ready(false) };
                rung.clear_ready();
                woken = Poll::Ready(true);
            }
            if let Poll::Ready(expired) = self.timer.poll_read_ready(cx) {
                let Ok(mut expired) = expired else { return Poll::Ready(false) };
                expired.clear_ready();
                woken = Poll::Ready(true);
            }
            woken
        })
        .await
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // The runtime goes: another one never has its id.
        if let Some(context) = self.context.upgrade() {
            let gone = {
                let mut drivers = lock(&context.drivers.0);
                let at = drivers.iter().position(|driver| driver.runtime == self.runtime);
                at.map(|at| drivers.swap_remove(at))
            };
            drop(gone);
        }
    }
}

/// Has the reactor follow a descriptor.
#[allow(deprecated, reason = "what replaces it is unsafe, for descriptors without an owner")]
fn in_reactor(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, Errno> {
    AsyncFd::with_interest(fd, Readiness::READABLE).map_err(|_| Errno::NOMEM)
}

/// Has a timer expire so long from now; none: never.
fn set_timer(timer: &OwnedFd, after: Option<Duration>) -> Result<(), Errno> {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Zero would be never.
    let after = after.map(|after| after.max(Duration::from_nanos(1)));
    let value =
        after.map_or(none, |after| Timespec { tv_sec: after.as_secs() as _, tv_nsec: after.subsec_nanos().into() });
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: none, it_value: value }).map(|_| ())
}
