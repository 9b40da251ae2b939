//! A lock for short sections within one process, whose holder is known.
//!
//! A signal handler may send, receive and close. If it finds a lock taken by the very thread that
//! it interrupted, waiting would be for ever; so it is refused at once, and does without, or leaves
//! what it has to do to the section that it interrupted.
//!
//! Two threads may each be below a handler that interrupted a section, and want the lock of the
//! other's. So a thread that holds one already waits for another a second at most, and is then
//! refused too.
//!
//! Invariant: the word names the thread from before the value is reached until after it was let go.
//! Nobody sleeps or calls the program while holding it. A fork may take such locks first, so that
//! the child finds them free and what they guard whole.

use crate::os::threads::thread_id;
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

/// Tries before the processor is given away.
const SPINS: u32 = 64;
/// How long a thread that holds a section waits for another one.
const WAIT_HOLDING: Duration = Duration::from_secs(1);

thread_local! {
    /// Sections of this thread. Those out of which a signal handler jumped stay counted, and so
    /// bound its waits from then on.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

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
        HELD.set(HELD.get() + 1);
        Some(Section { lock: self })
    }

    /// Takes it; none: this very thread has it, below a signal handler, or holds another one and
    /// has waited for a second. Others have it for moments.
    pub fn lock(&self) -> Option<Section<'_, T>> {
        self.take().then(|| Section { lock: self })
    }

    /// Takes it for the length of a fork; says whether this thread did not have it yet.
    pub fn take(&self) -> bool {
        let (me, mut spins, mut deadline) = (thread_id(), 0, None);
        while let Err(holder) = self.holder.compare_exchange_weak(0, me, Acquire, Relaxed) {
            if holder == me {
                return false;
            }
            spins += 1;
            if spins % SPINS == 0 {
                std::thread::yield_now();
                let now = Instant::now();
                if HELD.get() > 0 && now >= *deadline.get_or_insert(now + WAIT_HOLDING) {
                    return false;
                }
            }
            std::hint::spin_loop();
        }
        HELD.set(HELD.get() + 1);
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
    pub fn release(&self) {
        HELD.set(HELD.get().saturating_sub(1));
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
        self.lock.release();
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

    #[test]
    fn two_threads_that_each_want_what_the_other_holds_do_not_wait_without_end() {
        let locks = [SectionLock::new(()), SectionLock::new(())];
        let both = std::sync::Barrier::new(2);
        let crossed = |own: usize| {
            let _held = locks[own].lock().expect("free");
            both.wait();
            locks[1 - own].lock().is_none()
        };
        let gave_up = std::thread::scope(|scope| {
            let threads = [0, 1].map(|own| scope.spawn(move || crossed(own)));
            threads.map(|thread| thread.join().expect("it came back"))
        });
        assert!(gave_up.contains(&true));
        assert!(locks.iter().all(|lock| lock.lock().is_some()));
    }
}
