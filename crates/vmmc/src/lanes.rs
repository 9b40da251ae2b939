//! Which lane the calling thread announces its mapped transfers in.
//!
//! Invariant: a lane below [`SHARED_LANE`] belongs to at most one living thread of the process, in
//! all its sessions; the shared lane is used under a lock. Source: hazard pointers (Michael,
//! 2004).

use crate::limits::SHARED_LANE;
use std::cell::Cell;
use std::sync::Mutex;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::{Arc, Barrier};
    use vmmc_host::limits::LANES;

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
