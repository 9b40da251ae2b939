//! A lock for short sections within one process, whose holder is known.
//!
//! Invariant: nobody sleeps or calls the program while holding it. A signal handler that finds its own thread to be the holder is told so at once: it leaves what it has to do to the
//! section that it interrupted. Fork takes all of them first, so that the child finds them free and what they guard whole.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::*};
use vmmc_host::stream::thread_id;

/// Tries before the processor is given away.
const SPINS: u32 = 64;

/// A value behind a lock.
pub(crate) struct Lock<T> {
    /// The thread that has it, or 0.
    holder: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock.
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { holder: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes it; none: this very thread has it, below a signal handler.
    pub(crate) fn lock(&self) -> Option<Guard<'_, T>> {
        self.take().then(|| Guard { lock: self })
    }

    /// Takes it for the length of a fork; says whether this thread did not have it yet.
    pub(crate) fn take(&self) -> bool {
        let (me, mut spins) = (thread_id(), 0);
        while let Err(holder) = self.holder.compare_exchange_weak(0, me, Acquire, Relaxed) {
            if holder == me {
                return false;
            }
            spins += 1;
            if spins % SPINS == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        true
    }

    /// Whether this very thread has it.
    pub(crate) fn is_mine(&self) -> bool {
        self.holder.load(Relaxed) == thread_id()
    }

    /// Whether somebody has it.
    pub(crate) fn is_taken(&self) -> bool {
        self.holder.load(Acquire) != 0
    }

    /// In the child of a fork that was made below a section of this thread, which goes on here under another number.
    pub(crate) fn keep_in_child(&self) {
        self.holder.store(thread_id(), Relaxed);
    }

    /// Gives it back after a fork, in the parent and in the child.
    pub(crate) fn give_back(&self) {
        self.holder.store(0, Release);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_it_is_told_so_and_others_wait() {
        let lock = Lock::new(0);
        let held = lock.lock().expect("free");
        assert!(lock.lock().is_none() && !lock.take());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock().expect("another thread has it") += 1);
            std::thread::yield_now();
            drop(held);
            other.join().expect("it got the lock");
        });
        assert_eq!(*lock.lock().expect("free again"), 1);
    }
}
