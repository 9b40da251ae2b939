//! The three agreements between two sides that do not lock: sleeper and waker, transfer and revocation.
//!
//! All are Dekker's pattern: each side stores its own word, passes a full fence, then loads the other's, so at least one of them sees the other.
//! They live in one file of plain atomics so that loom explores them (run the tests with `--cfg loom`).
//!
//! Invariant: a sleeper that found nothing is seen by the next waker; a transfer that found its gate open is seen by the next revocation.

use crate::atomics::{AtomicU64, Ordering, fence as full_fence};
#[cfg(not(loom))]
use crate::barrier::Fences;

/// Announces a mapped transfer in a lane, so that a revocation waits for it, then looks at the gate and returns its word.
#[cfg(not(loom))]
#[inline]
pub fn enter_lane(lane: &AtomicU64, import: u64, gate: &AtomicU64, fences: Fences) -> u64 {
    if fences == Fences::Both {
        return enter_lane_fenced(lane, import, gate);
    }
    lane.store(import, Ordering::Relaxed);
    // The revocation's `fence_for_others` makes the processor keep this order, and this line the compiler.
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    gate.load(Ordering::Acquire)
}

/// [`enter_lane`] with a fence of its own.
#[inline]
pub fn enter_lane_fenced(lane: &AtomicU64, import: u64, gate: &AtomicU64) -> u64 {
    // A locked exchange is the cheapest full fence on x86, and it stores the lane as well.
    lane.swap(import, Ordering::SeqCst);
    // loom knows sequential consistency of fences only.
    #[cfg(loom)]
    full_fence(Ordering::SeqCst);
    gate.load(Ordering::SeqCst)
}

/// Ends what [`enter_lane`] began.
#[inline]
pub fn leave_lane(lane: &AtomicU64) {
    lane.store(0, Ordering::Release);
}

/// Closes a gate. Afterwards (and, if there are transfers without a fence of their own, after `barrier::fence_for_others`) a lane that is seen empty has no transfer that could still pass the gate.
pub fn close_gate(gate: &AtomicU64, word: u64) {
    gate.store(word, Ordering::SeqCst);
    fence();
}

/// A full fence: orders the store of a flag or of data before the look at the other side's word.
#[inline]
pub fn fence() {
    full_fence(Ordering::SeqCst);
}

/// The sleeper announces itself; after this it looks once more before it sleeps.
#[inline]
pub fn announce_sleep(flag: &AtomicU64) {
    flag.fetch_add(1, Ordering::SeqCst);
    fence();
}

/// The sleeper is awake again.
#[inline]
pub fn retract_sleep(flag: &AtomicU64) {
    flag.fetch_sub(1, Ordering::SeqCst);
}

/// The waker asks, after it published, whether somebody sleeps.
#[inline]
pub fn must_wake(flag: &AtomicU64) -> bool {
    fence();
    flag.load(Ordering::SeqCst) != 0
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn loom_no_wake_up_is_lost() {
        loom::model(|| {
            let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
            let theirs = shared.clone();
            let waker = loom::thread::spawn(move || {
                theirs.0.store(1, Ordering::Release);
                must_wake(&theirs.1)
            });
            announce_sleep(&shared.1);
            let saw_data = shared.0.load(Ordering::Acquire) == 1;
            let woken = waker.join().unwrap();
            assert!(saw_data || woken, "slept although there was data and nobody wakes");
        });
    }

    #[test]
    fn loom_no_transfer_slips_through_a_revocation() {
        loom::model(|| {
            let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(1), AtomicU64::new(0)));
            let theirs = shared.clone();
            let importer = loom::thread::spawn(move || {
                let (lane, gate, memory) = (&theirs.0, &theirs.1, &theirs.2);
                if enter_lane_fenced(lane, 7, gate) == 1 {
                    memory.store(99, Ordering::Relaxed);
                }
                leave_lane(lane);
            });
            close_gate(&shared.1, 2);
            if shared.0.load(Ordering::Acquire) == 0 {
                // The revocation has ended: what is in memory now must stay.
                let before = shared.2.load(Ordering::Relaxed);
                importer.join().unwrap();
                assert_eq!(before, shared.2.load(Ordering::Relaxed), "a byte arrived after the revocation ended");
            } else {
                importer.join().unwrap();
            }
        });
    }
}
