//! A lock for short sections within one process, whose holder is known.
//!
//! A signal handler may send, receive and close. If it finds a lock taken by the very thread that
//! it interrupted, waiting would be for ever; so it is told at once, and does without, or leaves
//! what it has to do to the section that it interrupted.
//!
//! Invariant: the word names the thread from before the value is reached until after it was let go.
//! Nobody sleeps or calls the program while holding it. A fork may take such locks first, so that
//! the child finds them free and what they guard whole.

use super::thread_id;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Tries before the processor is given away.
const SPINS: u32 = 64;

/// A value behind a lock.
#[derive(Debug, Default)]
pub struct SectionLock<T> {
    /// The thread that has it, or 0.
    holder: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, of which there is one at a time.
unsafe impl<T: Send> Sync for SectionLock<T> {}

impl<T> SectionLock<T> {
    /// A free lock.
    pub const fn new(value: T) -> SectionLock<T> {
        SectionLock { holder: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<Section<'_, T>> {
        self.holder.compare_exchange(0, thread_id(), Acquire, Relaxed).ok()?;
        Some(Section { lock: self })
    }

    /// Takes it; none: this very thread has it, below a signal handler. Others have it for moments.
    pub fn lock(&self) -> Option<Section<'_, T>> {
        self.take().then(|| Section { lock: self })
    }

    /// Takes it for the length of a fork; says whether this thread did not have it yet.
    pub fn take(&self) -> bool {
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
    pub fn is_mine(&self) -> bool {
        self.holder.load(Relaxed) == thread_id()
    }

    /// Whether somebody has it.
    pub fn is_taken(&self) -> bool {
        self.holder.load(Acquire) != 0
    }

    /// In the child of a fork: if it is held here it is by what the fork interrupted, which goes on
    /// under another number.
    pub fn keep_in_child(&self) {
        let _ = self.holder.fetch_update(Relaxed, Relaxed, |holder| (holder != 0).then(thread_id));
    }

    /// Gives back what [`take`](Self::take) took, in the parent and in the child.
    pub fn give_back(&self) {
        self.holder.store(0, Release);
    }
}

/// The value, for as long as the lock is held.
#[derive(Debug)]
pub struct Section<'a, T> {
    lock: &'a SectionLock<T>,
}

impl<T> Deref for Section<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is ours while the guard lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Section<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Section<'_, T> {
    fn drop(&mut self) {
        self.lock.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_it_is_told_so_and_others_wait() {
        let lock = SectionLock::new(0);
        let held = lock.lock().expect("free");
        assert!(lock.lock().is_none() && lock.try_lock().is_none() && lock.is_mine() && !lock.take());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock().expect("another thread has it") += 1);
            std::thread::yield_now();
            drop(held);
            other.join().expect("it got the lock");
        });
        assert_eq!(*lock.lock().expect("free again"), 1);
    }
}
