//! Runs many seeds: `cargo run --release -p vmmc-sim --example sweep -- FIRST LAST [NODES
//! [STEPS]]`.
//!
//! Without NODES the number of nodes follows from the seed, two to eight. With FIRST = LAST it runs
//! that one seed and tells the last events when it fails.

use std::time::Instant;

use vmmc_sim::{Options, run_many};

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let (first, last) = (numbers.first().copied().unwrap_or(0), numbers.get(1).copied().unwrap_or(99));
    let options = |seed| {
        let mut options = match numbers.get(2) {
            Some(&nodes) if nodes > 0 => Options::new(nodes as usize, seed),
            _ => Options::for_sweep(seed),
        };
        options.steps = numbers.get(3).copied().unwrap_or(options.steps);
        options.trace_lines = if first == last { 100_000 } else { 0 };
        options
    };
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let sweep = run_many(first..last + 1, threads, options, |_, _| true);
    for failure in &sweep.failures {
        println!("{failure}\n");
    }
    println!("{:#?}", sweep.report);
    println!("{} of {} seeds failed, {:?}", sweep.failures.len(), last + 1 - first, began.elapsed());
    std::process::exit(i32::from(!sweep.failures.is_empty()));
}
