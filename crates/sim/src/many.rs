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
    let mut sweep = Sweep::default();
    let mut finished = 0;
    spread(
        seeds,
        threads,
        |seed| crate::run(options(seed)),
        |_, result| {
            match result {
                Ok(report) => sweep.report.add(&report),
                Err(failure) => sweep.failures.push(*failure),
            }
            finished += 1;
            progress(finished, sweep.failures.len() as u64)
        },
    );
    sweep.failures.sort_by_key(|failure| (failure.options.seed, failure.options.nodes));
    sweep
}

/// Runs every seed on some threads and gives each result to `take`, in the order in which they
/// come, until that says false.
pub(crate) fn spread<T: Send>(
    seeds: Range<u64>,
    threads: usize,
    run: impl Fn(u64) -> T + Sync,
    take: impl FnMut(u64, T) -> bool + Send,
) {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let take = Mutex::new(take);
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let result = run(seed);
            let mut take = take.lock().expect("no thread panics while it holds the lock");
            if !take(seed, result) {
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
}
