//! Many runs on all cores. The only place in this crate with threads.
//!
//! Invariant: results come back in the order of the jobs, whatever the order in which threads
//! finish them.

use crate::limits::SWEEP_THREADS_MAX;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `work` for every job number below `jobs` on `threads` threads; `finished` is told how many
/// are done.
pub fn run<T: Send>(
    jobs: usize,
    threads: usize,
    work: impl Fn(usize) -> T + Sync,
    finished: impl Fn(usize) + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new((0..jobs).map(|_| None).collect::<Vec<Option<T>>>());
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, SWEEP_THREADS_MAX).min(jobs) {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    if job >= jobs {
                        return;
                    }
                    let result = work(job);
                    results.lock().expect("no thread panics while it holds the results")[job] = Some(result);
                    finished(done.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let results = results.into_inner().expect("no thread panics while it holds the results");
    results.into_iter().map(|result| result.expect("every job was done")).collect()
}

/// Threads that this machine can run at once.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
