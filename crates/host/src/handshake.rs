//! The three agreements between two sides that do not lock: sleeper and waker, transfer and
//! revocation.
//!
//! All are Dekker's pattern: each side stores its own word, passes a full fence, then loads the
//! other's, so at least one of them sees the other. They live in one file of plain atomics so that
//! loom explores them (run the tests with `--cfg loom`).
//!
//! Invariant: a sleeper that found nothing is seen by the next waker; a transfer that found its
//! gate open is seen by the next revocation.

use crate::atomics::{AtomicU64, Ordering, fence as full_fence};

/// Announces a mapped transfer in a lane, so that a revocation waits for it, then reads the gate
/// and returns its word.
#[inline]
pub fn enter_lane(lane: &AtomicU64, import: u64, gate: &AtomicU64) -> u64 {
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

/// Shows a word at a gate. If it closes it, a lane that is seen empty afterwards has no transfer
/// that could still pass.
pub fn set_gate(gate: &AtomicU64, word: u64) {
    gate.store(word, Ordering::SeqCst);
    fence();
}

/// A full fence: orders the store of a flag or of data before the load of the other side's word.
#[inline]
pub fn fence() {
    full_fence(Ordering::SeqCst);
}

/// The sleeper announces itself; after this it polls once more before it sleeps.
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
                if enter_lane(lane, 7, gate) == 1 {
                    memory.store(99, Ordering::Relaxed);
                }
                leave_lane(lane);
            });
            set_gate(&shared.1, 2);
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

#[cfg(all(test, not(loom), not(miri)))]
mod tests_on_hardware {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// A word on a cache line of its own.
    #[derive(Default)]
    #[repr(align(64))]
    struct Line(AtomicU64);

    /// Revokes again and again under a thread that transfers, as the node does; says how often a
    /// transfer slipped through. Both sides write the `busy` lines, so that the transfer's stores
    /// wait in its processor while its load of the gate goes ahead.
    fn slips(enter: fn(&AtomicU64, u64, &AtomicU64) -> u64, rounds: u32) -> u32 {
        let (lane, gate, memory, busy) =
            (Line::default(), Line::default(), Line::default(), [const { Line(AtomicU64::new(0)) }; 8]);
        let (stop, mut slipped) = (AtomicBool::new(false), 0);
        gate.0.store(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    busy.iter().for_each(|line| line.0.store(n, Ordering::Relaxed));
                    if enter(&lane.0, 7, &gate.0) == 1 {
                        memory.0.store(n, Ordering::Relaxed);
                    }
                    leave_lane(&lane.0);
                }
            });
            for round in 0..rounds {
                busy.iter().for_each(|line| line.0.store(0, Ordering::Relaxed));
                set_gate(&gate.0, 2);
                while lane.0.load(Ordering::SeqCst) != 0 {
                    std::hint::spin_loop();
                }
                let before = memory.0.load(Ordering::Relaxed);
                (0..100).for_each(|_| std::hint::spin_loop());
                slipped += u32::from(memory.0.load(Ordering::Relaxed) != before);
                gate.0.store(1, Ordering::SeqCst);
                (0..round % 128).for_each(|_| std::hint::spin_loop());
            }
            stop.store(true, Ordering::Relaxed);
        });
        slipped
    }

    /// As [`enter_lane`], but without a fence.
    fn enter_unfenced(lane: &AtomicU64, import: u64, gate: &AtomicU64) -> u64 {
        lane.store(import, Ordering::Relaxed);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        gate.load(Ordering::Acquire)
    }

    #[test]
    fn no_transfer_slips_through_a_revocation() {
        // What happens without the fence depends on processor and luck: printed to see that this
        // test can fail.
        let without = slips(enter_unfenced, 50_000);
        eprintln!("without a fence of the transfer, {without} of 50,000 revocations let one slip through");
        assert_eq!(slips(enter_lane, 50_000), 0);
    }
}
