//! How a runtime polls before it sleeps: what a bell and a reactor cost, twice a turn, is most of
//! the time that TCP takes.
//!
//! A wait begins when a task begins to wait for bytes, and polls for at most
//! [`TASK_POLL_NS`](crate::limits::TASK_POLL_NS), and only while that tends to pay ([`Backoff`]).
//!
//! * **In turns**, where the runtime has one thread: the driver's task looks and yields. Between
//!   two looks all other tasks and the reactor have their turn.
//! * **Idle**, where it has several: a task that yields again and again makes such a runtime wake
//!   another thread each time, to look for what else there is. So the polling is done in a waker
//!   that is left as by [`yield_now`], which a thread calls when it has run out of tasks and has
//!   asked the reactor. It ends when another thread leaves a task for this one.
//!
//! Invariant: nothing is waited for here that would not be told by the bell, too. Source: the
//! scheduler of tokio; docs/measured.md.

use super::driver::Driver;
use crate::context::Context;
use crate::limits::{TASK_TURNS, TASK_WAITS};
use crate::polling::NEVER;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::task::yield_now;
use vmmc_host::Nanos;
use vmmc_host::wait::{Backoff, Manner, Step, Wait};
use vmmc_stream::core;

/// What a driver's polls before sleeps gained.
#[derive(Debug)]
pub(super) struct Polling {
    backoff: Backoff,
    /// None: in turns.
    idle: Option<Waker>,
    /// A task has begun to wait for bytes since polling began.
    expecting: AtomicBool,
    /// A thread polls.
    busy: AtomicBool,
    runtime: RuntimeMetrics,
}

impl Polling {
    pub(super) fn new(handle: &Handle, context: &Arc<Context>, driver: &Weak<Driver>) -> Polling {
        let runtime = handle.metrics();
        let idle = (runtime.num_workers() > 1)
            .then(|| Waker::from(Arc::new(Idle { context: Arc::downgrade(context), driver: driver.clone() })));
        Polling {
            backoff: Backoff::new(if idle.is_some() { &TASK_WAITS } else { &TASK_TURNS }),
            idle,
            expecting: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            runtime,
        }
    }

    /// A task begins to wait for bytes. True: the driver's task is to poll.
    pub(super) fn expect(&self) -> bool {
        if self.backoff.is_skipping() {
            // One of those that sleep at once.
            self.backoff.begin(Manner::Spin, NEVER);
            return false;
        }
        match &self.idle {
            None => !self.expecting.swap(true, Ordering::SeqCst) && !self.busy.load(Ordering::SeqCst),
            Some(idle) => {
                let _ = pin!(yield_now()).poll(&mut std::task::Context::from_waker(idle));
                false
            }
        }
    }

    /// Polls for as long as that tends to pay, if a task has begun to wait; says whether something
    /// came.
    pub(super) async fn poll_in_turns(&self, context: &Context, came: impl Fn() -> bool) -> bool {
        if !self.expecting.swap(false, Ordering::SeqCst) {
            return false;
        }
        self.busy.store(true, Ordering::SeqCst);
        let mut wait = self.begin(context);
        let found = loop {
            if came() {
                wait.found(Nanos::monotonic);
                break true;
            }
            if self.expecting.swap(false, Ordering::SeqCst) {
                wait = self.begin(context);
            }
            match wait.next(Nanos::monotonic) {
                Step::Poll => {}
                Step::Yield => std::thread::yield_now(),
                Step::Sleep(_) | Step::TimedOut => break false,
            }
            yield_now().await;
        };
        self.busy.store(false, Ordering::SeqCst);
        found
    }

    /// Polls for as long as that tends to pay, and the thread has nothing else to do; says whether
    /// something came.
    pub(super) fn poll_idle(&self, context: &Context, came: impl Fn() -> bool) -> bool {
        if self.busy.swap(true, Ordering::SeqCst) {
            return false;
        }
        let mut wait = self.begin(context);
        let found = loop {
            if came() {
                wait.found(Nanos::monotonic);
                break true;
            }
            if self.runtime.global_queue_depth() > 0 {
                break false;
            }
            match wait.next(Nanos::monotonic) {
                Step::Poll => std::hint::spin_loop(),
                Step::Yield => std::thread::yield_now(),
                Step::Sleep(_) | Step::TimedOut => break false,
            }
        };
        self.busy.store(false, Ordering::SeqCst);
        found
    }

    fn begin(&self, context: &Context) -> Wait<'_> {
        let peer_core = context.peer_core.load(Ordering::Relaxed);
        let manner = if peer_core == core() + 1 { Manner::Yield } else { Manner::Spin };
        let mut wait = self.backoff.begin(manner, NEVER);
        wait.start(Nanos::monotonic);
        wait
    }
}

/// What a thread of the runtime does before it sleeps.
struct Idle {
    context: Weak<Context>,
    driver: Weak<Driver>,
}

impl Wake for Idle {
    fn wake(self: Arc<Idle>) {
        if let (Some(context), Some(driver)) = (self.context.upgrade(), self.driver.upgrade()) {
            driver.poll_idle(&context);
        }
    }

    fn wake_by_ref(self: &Arc<Idle>) {
        // At once, for this is no thread of a runtime with other tasks: that of `block_on` has
        // only this one. What else it may be that drives a task nobody knows.
        if Handle::try_current().is_ok() {
            self.clone().wake();
        }
    }
}
