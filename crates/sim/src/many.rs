//! Many seeds on several threads. Runs share nothing, so their results do not depend on the number
//! of threads.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::options::Options;
use crate::report::{Failure, Report};

/// The result of [`run_many`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// The counts of all runs that held, added up.
    pub report: Report,
    /// The runs that failed, by seed.
    pub failures: Vec<Failure>,
}

/// Runs every seed of `seeds` on `threads` threads (at least one). `options` says what to run for a
/// seed ([`Options::for_sweep`] unless there is reason for another); `progress` is told the number
/// of seeds finished and failed after each one, from any thread, and returns whether to go on.
pub fn run_many(
    seeds: Range<u64>,
    threads: usize,
    options: impl Fn(u64) -> Options + Sync,
    progress: impl Fn(u64, u64) -> bool + Sync,
) -> Sweep {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let done = Mutex::new((0, Sweep::default()));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let result = crate::run(options(seed));
            let mut done = done.lock().expect("no thread panics while it holds the lock");
            done.0 += 1;
            match result {
                Ok(report) => done.1.report.add(&report),
                Err(failure) => done.1.failures.push(*failure),
            }
            let (finished, failed) = (done.0, done.1.failures.len() as u64);
            drop(done);
            if !progress(finished, failed) {
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let (_, mut sweep) = done.into_inner().expect("all threads have ended");
    sweep.failures.sort_by_key(|failure| (failure.options.seed, failure.options.nodes));
    sweep
}
