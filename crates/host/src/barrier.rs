//! A fence that one side pays for both: `membarrier(2)`.
//!
//! Dekker's pattern needs a full fence on both sides. A mapped transfer is short and frequent, a revocation long and rare, so the revocation alone
//! pays: it makes the kernel run a full fence on every processor that runs a thread of a process that has registered. A thread that does not run has passed one when
//! it was switched away.
//!
//! Invariant: [`Fences::Light`] is only used by a process that registered, towards a node that said it can fence for both.

use std::sync::OnceLock;

/// `MEMBARRIER_CMD_QUERY`.
const QUERY: i32 = 0;
/// `MEMBARRIER_CMD_GLOBAL_EXPEDITED`.
const GLOBAL_EXPEDITED: i32 = 1 << 1;
/// `MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`.
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

/// Who fences between a transfer and a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fences {
    /// Both sides, each for itself.
    Both,
    /// The revocation for both.
    Light,
}

impl Fences {
    /// What a process that attaches to a node uses. `node_can`: the node said that it fences for both.
    pub fn agree(node_can: bool) -> Fences {
        if node_can && membarrier(REGISTER_GLOBAL_EXPEDITED) == 0 { Fences::Light } else { Fences::Both }
    }
}

/// Whether this process can fence for others.
pub fn can_fence_for_others() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| membarrier(QUERY) & GLOBAL_EXPEDITED != 0 && membarrier(GLOBAL_EXPEDITED) == 0)
}

/// A full fence here and in every process that [agreed](Fences::agree) to leave theirs to this one.
pub fn fence_for_others() {
    crate::handshake::fence();
    if can_fence_for_others() {
        let done = membarrier(GLOBAL_EXPEDITED);
        assert_eq!(done, 0, "the kernel has done it before and has no reason to refuse now");
    }
}

#[cfg(not(miri))]
fn membarrier(command: i32) -> i32 {
    // SAFETY: the call takes plain numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) as i32 }
}

/// Miri has no such call: both sides fence.
#[cfg(miri)]
fn membarrier(command: i32) -> i32 {
    if command == QUERY { 0 } else { -1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::{close_gate, enter_lane, leave_lane};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// A word on a cache line of its own.
    #[derive(Default)]
    #[repr(align(64))]
    struct Line(AtomicU64);

    /// Revokes again and again under a thread that transfers, as the node does; says how often a transfer slipped through. Both sides write the `busy` lines, so that the
    /// transfer's stores wait in its processor while its load of the gate goes ahead.
    fn slips(fences: Fences, rounds: u32, fence: fn()) -> u32 {
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
                    if enter_lane(&lane.0, 7, &gate.0, fences) == 1 {
                        memory.0.store(n, Ordering::Relaxed);
                    }
                    leave_lane(&lane.0);
                }
            });
            for round in 0..rounds {
                busy.iter().for_each(|line| line.0.store(0, Ordering::Relaxed));
                close_gate(&gate.0, 2);
                fence();
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

    #[test]
    fn no_transfer_slips_through_a_revocation_that_fences_for_both() {
        if Fences::agree(can_fence_for_others()) == Fences::Both {
            eprintln!("skipped: this kernel has no membarrier");
            return;
        }
        // What happens without it depends on processor and luck: printed to see that this test can fail.
        let without = slips(Fences::Light, 50_000, || ());
        eprintln!("without a fence for both, {without} of 50,000 revocations let a transfer slip through");
        assert_eq!(slips(Fences::Light, 50_000, fence_for_others), 0);
        assert_eq!(slips(Fences::Both, 50_000, || ()), 0);
    }
}
