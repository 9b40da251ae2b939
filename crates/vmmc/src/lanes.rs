//! Which lane the calling thread announces its mapped transfers in.
//!
//! Invariant: a lane below [`SHARED_LANE`] belongs to at most one living thread of the process, in all its sessions; the shared lane is used under a lock. Source:
//! DESIGN, "revocation is real" (hazard pointers).

use crate::limits::SHARED_LANE;
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc_host::limits::LANES;

const UNASSIGNED: u32 = u32::MAX;

thread_local! {
    /// Without a destructor, so reading it is one load.
    static LANE: Cell<u32> = const { Cell::new(UNASSIGNED) };
    static RETURN: Return = const { Return };
}

/// Lanes that ended threads gave back, and the first one never used.
static POOL: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));

/// Gives the thread's lane back when the thread ends.
struct Return;

impl Drop for Return {
    fn drop(&mut self) {
        let lane = LANE.replace(SHARED_LANE);
        if lane < SHARED_LANE {
            POOL.lock().expect("no panic while the lock is held").0.push(lane);
        }
    }
}

/// The lane of the calling thread; [`SHARED_LANE`] when all others are taken.
#[inline]
pub(crate) fn current() -> u32 {
    let lane = LANE.get();
    if lane == UNASSIGNED { assign() } else { lane }
}

#[cold]
fn assign() -> u32 {
    let lane = {
        let mut pool = POOL.lock().expect("no panic while the lock is held");
        match pool.0.pop() {
            Some(lane) => lane,
            None if pool.1 < SHARED_LANE => {
                pool.1 += 1;
                pool.1 - 1
            }
            None => SHARED_LANE,
        }
    };
    LANE.set(lane);
    if RETURN.try_with(|_| ()).is_err() {
        // The thread is ending already: nobody would give the lane back.
        drop(Return);
        LANE.set(SHARED_LANE);
    }
    LANE.get()
}

/// Counters of the transfers that one lane carried. Only the lane's thread writes them (or whoever holds the lock of the shared lane), so plain loads and stores
/// count right; a line of its own keeps them out of other threads' way.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct LaneCounters {
    pub(crate) sends: Count,
    pub(crate) send_bytes: Count,
    pub(crate) fetches: Count,
    pub(crate) fetch_bytes: Count,
    pub(crate) atomics: Count,
}

/// A counter with one writer at a time.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of all lanes.
pub(crate) fn counters() -> Box<[LaneCounters; LANES]> {
    let counters: Box<[LaneCounters]> = (0..LANES).map(|_| LaneCounters::default()).collect();
    let Ok(counters) = counters.try_into() else { unreachable!("there are LANES of them") };
    counters
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::{Arc, Barrier};

    #[test]
    fn threads_alive_at_once_have_different_lanes_until_they_run_out() {
        let count = LANES + 20;
        let barrier = Arc::new(Barrier::new(count));
        let threads: Vec<_> = (0..count)
            .map(|_| {
                let barrier = barrier.clone();
                std::thread::spawn(move || {
                    let lane = current();
                    barrier.wait();
                    assert_eq!(current(), lane);
                    lane
                })
            })
            .collect();
        let lanes: Vec<u32> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let own: Vec<u32> = lanes.iter().copied().filter(|l| *l != SHARED_LANE).collect();
        assert_eq!(own.iter().collect::<HashSet<_>>().len(), own.len());
        assert!(lanes.len() > own.len());
        let again = std::thread::spawn(current).join().unwrap();
        assert_ne!(again, SHARED_LANE, "ended threads give their lanes back");
    }
}
