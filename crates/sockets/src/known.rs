//! A lock of one process whose holder is known.
//!
//! A signal handler may send, receive and close. If it finds a lock taken by the very thread that it interrupted, waiting would be for ever; so it is told, and does without, or leaves
//! it to a later call.
//!
//! Invariant: the word names the thread from before the value is reached until after it was let go.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Mutex, MutexGuard};
use vmmc_host::stream::thread_id;

/// Tries before the processor is given away.
const SPINS: u32 = 64;

/// A value behind a lock.
#[derive(Debug, Default)]
pub(crate) struct Known<T> {
    /// The thread that has it, or 0.
    holder: AtomicU32,
    /// Free whenever the word is.
    value: Mutex<T>,
}

/// The value, for as long as the lock is held.
#[derive(Debug)]
pub(crate) struct Held<'a, T> {
    /// Goes first.
    value: Option<MutexGuard<'a, T>>,
    holder: &'a AtomicU32,
}

impl<T> Known<T> {
    pub(crate) fn new(value: T) -> Known<T> {
        Known { holder: AtomicU32::new(0), value: Mutex::new(value) }
    }

    /// Takes it if it is free.
    pub(crate) fn try_lock(&self) -> Option<Held<'_, T>> {
        self.holder.compare_exchange(0, thread_id(), Acquire, Relaxed).ok()?;
        // Whoever panicked over it has let go of the word; the values here hold no half-made state.
        let value = self.value.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Some(Held { value: Some(value), holder: &self.holder })
    }

    /// Takes it; none: this very thread has it, below a signal handler. Others have it for moments.
    pub(crate) fn lock(&self) -> Option<Held<'_, T>> {
        for tries in 1u32.. {
            if let Some(held) = self.try_lock() {
                return Some(held);
            }
            if self.is_mine() {
                break;
            }
            if tries % SPINS == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Whether this very thread has it.
    pub(crate) fn is_mine(&self) -> bool {
        self.holder.load(Relaxed) == thread_id()
    }

    /// In the child of a fork: if it is held here it is by what the fork interrupted, which goes on under another number.
    pub(crate) fn keep_in_child(&self) {
        let _ = self.holder.fetch_update(Relaxed, Relaxed, |holder| (holder != 0).then(thread_id));
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value.as_ref().expect("there until it is dropped")
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("there until it is dropped")
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        self.holder.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_it_is_told_so_and_others_wait() {
        let lock = Known::new(0);
        let held = lock.lock().expect("free");
        assert!(lock.lock().is_none() && lock.try_lock().is_none() && lock.is_mine());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock().expect("another thread has it") += 1);
            std::thread::yield_now();
            drop(held);
            other.join().expect("it got the lock");
        });
        assert_eq!(*lock.lock().expect("free again"), 1);
    }
}
