//! A lock for short sections within one process.
//!
//! Invariant: nobody sleeps or calls the program while holding it. Fork takes all of them first, so that the child finds them free and what they guard whole.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Tries before the processor is given away.
const SPINS: u32 = 64;

/// A value behind a lock.
pub(crate) struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock.
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes it.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.take();
        Guard { lock: self }
    }

    /// Takes it for the length of a fork.
    pub(crate) fn take(&self) {
        let mut spins = 0;
        while self.held.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            spins += 1;
            if spins % SPINS == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// Whether somebody has it.
    pub(crate) fn is_taken(&self) -> bool {
        self.held.load(Acquire)
    }

    /// Gives it back after a fork, in the parent and in the child.
    pub(crate) fn give_back(&self) {
        self.held.store(false, Release);
    }
}

/// The value, for as long as the lock is held.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is ours while the guard lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.give_back();
    }
}
