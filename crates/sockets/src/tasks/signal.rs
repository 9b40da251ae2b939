//! How a task is woken: slots for wakers, and the driver's own signal.
//!
//! Invariant: who registers and then looks, and who changes something and then wakes, do not miss
//! each other: the slot's lock orders the one before the other. Source: the contract of
//! [`Waker`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Locks what no panic can leave half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The waker of the task that waits for one direction, or for one thing. The last one counts.
#[derive(Debug, Default)]
pub(super) struct Slot(Mutex<Option<Waker>>);

impl Slot {
    /// To be followed by a look at what is waited for.
    pub(super) fn register(&self, waker: &Waker) {
        let mut slot = lock(&self.0);
        match &mut *slot {
            Some(old) => old.clone_from(waker),
            None => *slot = Some(waker.clone()),
        }
    }

    /// Wakes the task, if one waits.
    pub(super) fn wake(&self) {
        // Not under the lock: what a waker does is not ours.
        let waker = lock(&self.0).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What ends the sleep of a driver, beside its bell.
#[derive(Debug, Default)]
pub(super) struct Signal {
    raised: AtomicBool,
    waker: Slot,
}

impl Signal {
    /// Wakes the driver, now or as soon as it sleeps.
    pub(super) fn raise(&self) {
        if !self.raised.swap(true, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Whether it was raised since the last call; if not, that waker will be woken.
    pub(super) fn poll(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        self.raised.swap(false, Ordering::SeqCst)
    }
}
