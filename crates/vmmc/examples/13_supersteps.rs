//! A bulk synchronous parallel program: numbers are sorted by samples, in three supersteps.
//!
//! `vmmc run -n 4 -- target/release/examples/13_supersteps` starts it on this node, `vmmc run -n 4
//! --nodes 2 -- ...` on two. Without `vmmc run` it starts four ranks of itself.

#[path = "tutorial/ranks.rs"]
mod ranks;

use ranks::Failure;
use std::sync::Arc;
use vmmc_bsp::Bsp;
use vmmc_job::Job;

/// Numbers of each process.
const NUMBERS: usize = 100_000;

fn main() -> std::process::ExitCode {
    ranks::run(rank)
}

fn rank(job: Arc<Job>) -> Result<(), Failure> {
    let mut bsp = Bsp::over(job).create()?;
    let (pid, count) = (bsp.pid() as usize, bsp.nprocs() as usize);
    let mut numbers = numbers(pid as u64 + 1);
    numbers.sort_unstable();

    // What others put somewhere must be registered; a registration counts from the next sync on.
    let samples = bsp.area(vec![0u64; count * count]);
    let borders = bsp.area(vec![0u64; 2 * count]);
    bsp.push_reg(samples)?;
    bsp.push_reg(borders)?;
    bsp.sync()?;

    // First superstep: all know the samples of all. What is put is there after the sync.
    let own: Vec<u64> = (0..count).map(|part| numbers[part * NUMBERS / count]).collect();
    for to in 0..bsp.nprocs() {
        bsp.put(to, &own, samples, pid * count)?;
    }
    bsp.sync()?;

    // Second: each number goes to the process of its range, in one message for each.
    let mut all = bsp.read(samples)?.to_vec();
    all.sort_unstable();
    let starts: Vec<u64> = (0..count).map(|part| if part == 0 { 0 } else { all[part * count] }).collect();
    for (to, &start) in starts.iter().enumerate() {
        let end = starts.get(to + 1).copied().unwrap_or(u64::MAX);
        let part = numbers.partition_point(|n| *n < start)..numbers.partition_point(|n| *n < end);
        let bytes: Vec<u8> = numbers[part].iter().flat_map(|n| n.to_le_bytes()).collect();
        bsp.send(to as u32, &[], &bytes)?;
    }
    bsp.sync()?;
    let mut sorted: Vec<u64> = Vec::new();
    while let Some(message) = bsp.take() {
        let words = message.bytes.chunks_exact(8);
        sorted.extend(words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))));
    }
    sorted.sort_unstable();

    // Third: all see the borders of all, so each can say whether the whole is in order.
    let border = [sorted.first().copied().unwrap_or(starts[pid]), sorted.len() as u64];
    for to in 0..bsp.nprocs() {
        bsp.put(to, &border, borders, 2 * pid)?;
    }
    bsp.sync()?;
    let borders = bsp.read(borders)?;
    let firsts: Vec<u64> = borders.iter().step_by(2).copied().collect();
    let total: u64 = borders.iter().skip(1).step_by(2).sum();
    println!("{} numbers of {total} are mine, and all is in order: {}", sorted.len(), firsts.is_sorted());
    let after = firsts.get(pid + 1).copied().unwrap_or(u64::MAX);
    let whole = total == (count * NUMBERS) as u64 && firsts.is_sorted() && sorted.last().is_none_or(|n| *n < after);
    bsp.end()?;
    if whole { Ok(()) } else { Err("the numbers are not sorted".into()) }
}

/// The same in each run (xorshift).
fn numbers(seed: u64) -> Vec<u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 1
    };
    (0..NUMBERS).map(|_| next()).collect()
}
