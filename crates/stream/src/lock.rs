//! A lock in shared memory whose holder may be killed, or interrupted by a signal handler that
//! wants the same lock.
//!
//! Invariant: the word is the thread id of the holder, or 0. A waiter that finds the holder's
//! thread gone takes the lock over: what it protects is published by a single store at the end, so
//! a holder that died has changed nothing. A thread that holds it already is told so and never
//! waits for itself.

use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Tries in a row before a waiter sleeps: the critical section is a copy of at most a ring.
const SPINS: u32 = 200;
/// Sleep of a waiter before it checks whether the holder lives.
const OWNER_CHECK_NS: i64 = 2_000_000;
/// Such sleeps after which [`SharedLock::lock_soon`] gives up: 50 ms.
const SLEEPS_MAX: u32 = 25;
/// The node as the holder. The number of its thread would be another one's, or nobody's, in the pid
/// namespace of a container.
pub(super) const NODE: u32 = 1 << 30;
/// Sleeps after which a lock that the node holds is taken over, for it has died: it holds one for
/// as long as the kernel takes to give some pages back.
const NODE_SLEEPS_MAX: u32 = 500;
/// Sleeps after which [`SharedLock::lock`] gives up: a second.
const SLEEPS_LONG: u32 = NODE_SLEEPS_MAX + 1;
/// Set in the word when somebody sleeps for it.
const WAITED_FOR: u32 = 1 << 31;

/// The lock; see the page of the module.
#[derive(Clone, Copy, Debug)]
pub struct SharedLock<'a>(&'a AtomicU32);

/// The lock is held while this lives.
#[derive(Debug)]
pub struct Locked<'a>(&'a AtomicU32);

/// Why a lock was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// This very thread has it, below a signal handler.
    Mine,
    /// Another thread has had it for long, and lives, or a process that shares it says so.
    Busy,
}

impl<'a> SharedLock<'a> {
    /// The lock in this word.
    pub fn new(word: &'a AtomicU32) -> SharedLock<'a> {
        SharedLock(word)
    }

    /// Takes the lock, waiting for a second at most while its holder lives; fails at once if this
    /// very thread (`me`) holds it, below a signal handler. A holder that lives may be stopped, or
    /// below a signal handler that waits for what this thread has; and the word is in memory that
    /// others write.
    #[inline]
    pub fn lock(self, me: u32) -> Result<Locked<'a>, Denied> {
        self.lock_within(me, SLEEPS_LONG)
    }

    /// The same, waiting for some 50 ms at most.
    #[inline]
    pub fn lock_soon(self, me: u32) -> Result<Locked<'a>, Denied> {
        self.lock_within(me, SLEEPS_MAX)
    }

    #[inline]
    fn lock_within(self, me: u32, sleeps: u32) -> Result<Locked<'a>, Denied> {
        if self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(Locked(self.0));
        }
        self.lock_slowly(me, sleeps)
    }

    /// The lock that this very thread took, and whose guard was forgotten so that it stays held
    /// between two calls.
    pub fn held_by(self, me: u32) -> Option<Locked<'a>> {
        (self.0.load(Ordering::Relaxed) & !WAITED_FOR == me).then(|| Locked(self.0))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(self, me: u32) -> Option<Locked<'a>> {
        self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok().then(|| Locked(self.0))
    }

    #[cold]
    fn lock_slowly(self, me: u32, sleeps: u32) -> Result<Locked<'a>, Denied> {
        let mut slept = 0;
        loop {
            for _ in 0..SPINS {
                let held = self.0.load(Ordering::Relaxed);
                if held & !WAITED_FOR == me {
                    return Err(Denied::Mine);
                }
                if held == 0 && self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Ok(Locked(self.0));
                }
                std::hint::spin_loop();
            }
            let held = self.0.load(Ordering::Relaxed);
            if held == 0 {
                continue;
            }
            let holder = held & !WAITED_FOR;
            let lives =
                if holder == NODE { slept < NODE_SLEEPS_MAX } else { vmmc_host::os::threads::thread_lives(holder) };
            if !lives {
                // Others may sleep for it still, so the mark stays.
                let taken = me | WAITED_FOR;
                if self.0.compare_exchange(held, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Ok(Locked(self.0));
                }
                continue;
            }
            if slept >= sleeps {
                return Err(Denied::Busy);
            }
            let marked = held | WAITED_FOR;
            if held == marked || self.0.compare_exchange(held, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                let slice = futex::Timespec { tv_sec: 0, tv_nsec: OWNER_CHECK_NS };
                let _ = futex::wait(self.0, futex::Flags::empty(), marked, Some(&slice));
                slept += 1;
            }
        }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.swap(0, Ordering::Release) & WAITED_FOR != 0 {
            let _ = futex::wake(self.0, futex::Flags::empty(), i32::MAX as u32);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::thread_id;
    use std::sync::Arc;

    #[test]
    fn a_thread_that_holds_it_is_told_so() {
        let word = AtomicU32::new(0);
        let held = SharedLock::new(&word).lock(thread_id()).unwrap();
        assert_eq!(SharedLock::new(&word).lock(thread_id()).unwrap_err(), Denied::Mine);
        assert!(SharedLock::new(&word).try_lock(thread_id() + 1).is_none());
        assert!(SharedLock::new(&word).try_lock(thread_id() + 1).is_none(), "the first try took nothing away");
        drop(held);
        std::mem::forget(SharedLock::new(&word).lock(thread_id()).unwrap());
        assert!(SharedLock::new(&word).held_by(thread_id() + 1).is_none());
        drop(SharedLock::new(&word).held_by(thread_id()).unwrap());
        assert!(SharedLock::new(&word).lock(thread_id()).is_ok());
    }

    #[test]
    fn a_holder_that_lives_and_keeps_it_is_not_waited_for_without_end() {
        let word = AtomicU32::new(0);
        let held = SharedLock::new(&word).lock(thread_id()).unwrap();
        std::thread::scope(|scope| {
            let soon = || SharedLock::new(&word).lock_soon(thread_id()).map(drop);
            assert_eq!(scope.spawn(soon).join().unwrap(), Err(Denied::Busy));
            let waits = scope.spawn(|| SharedLock::new(&word).lock(thread_id()).map(drop));
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert!(!waits.is_finished());
            drop(held);
            assert_eq!(waits.join().unwrap(), Ok(()));
            assert_eq!(soon(), Ok(()));
            let _held = SharedLock::new(&word).lock(thread_id()).unwrap();
            let waits = scope.spawn(|| SharedLock::new(&word).lock(thread_id()).map(drop));
            assert_eq!(waits.join().unwrap(), Err(Denied::Busy));
        });
    }

    #[test]
    fn a_lock_of_the_node_is_taken_over_only_when_it_has_died() {
        let word = AtomicU32::new(NODE);
        assert_eq!(SharedLock::new(&word).lock_soon(thread_id()).map(drop), Err(Denied::Busy));
        assert_eq!(SharedLock::new(&word).lock(thread_id()).map(drop), Ok(()));
    }

    #[test]
    fn it_excludes_and_wakes() {
        let shared = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    for _ in 0..2000 {
                        let _held = SharedLock::new(&shared.0).lock(thread_id()).unwrap();
                        let seen = shared.1.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        shared.1.store(seen + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(shared.1.load(Ordering::Relaxed), 8000);
    }

    #[test]
    fn the_lock_of_a_thread_that_has_gone_is_taken_over() {
        let word = Arc::new(AtomicU32::new(0));
        let theirs = word.clone();
        std::thread::spawn(move || std::mem::forget(SharedLock::new(&theirs).lock(thread_id()).unwrap()))
            .join()
            .unwrap();
        assert_ne!(word.load(Ordering::Relaxed), 0);
        drop(SharedLock::new(&word).lock(thread_id()).unwrap());
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }
}
