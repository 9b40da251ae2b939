//! A message of each size from one core to another and back, through a ring of shared memory that is filled with ordinary stores or with ones past the cache: which are better
//! depends on how far apart the two cores are. One line for each; in a virtual machine run it several times, for its cores move.
//!
//! `cargo run --release -p vmmc-host --example stores [CORE CORE]`

use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering;
use std::time::Instant;
use vmmc_host::stores::Store;
use vmmc_host::stream::{Shape, Slab, Slot};

const RING_BYTES: u64 = 512 << 10;
/// Bytes each way in one round.
const ROUND_BYTES: u64 = 32 << 20;
/// Bytes after which a writer says what it has written.
const PIECE_BYTES: u64 = 16 << 10;

fn main() {
    let cores: Vec<usize> = std::env::args().skip(1).filter_map(|core| core.parse().ok()).collect();
    let (one, two) = if let [one, two] = cores[..] { (one, two) } else { (0, 1) };
    println!("one way between cores {one} and {two}, microseconds");
    println!("{:>10} {:>10} {:>12} {:>7}", "bytes", "ordinary", "past cache", "ratio");
    for shift in 10..=20 {
        let bytes = 1u64 << shift;
        let [cached, past] = [Store::Cached, Store::PastCache].map(|how| measure(bytes, how, [one, two]));
        println!("{bytes:>10} {cached:>10.2} {past:>12.2} {:>7.2}", past / cached);
    }
}

/// The least mean of four rounds.
fn measure(bytes: u64, how: Store, cores: [usize; 2]) -> f64 {
    let shape = Shape { slots: 1, small_bytes: RING_BYTES, large_bytes: RING_BYTES };
    let slab = Slab::create(shape).expect("memory for two rings");
    let slot = slab.slot(0).expect("there is one");
    let turns = ROUND_BYTES / bytes;
    let rounds = (0..5).map(|round| 1e6 * time(&slot, round * turns * bytes, turns, bytes, how, cores));
    // The first one meets memory that nobody has used yet.
    rounds.skip(1).fold(f64::MAX, f64::min)
}

/// Seconds for one message one way.
fn time(slot: &Slot, from: u64, turns: u64, bytes: u64, how: Store, cores: [usize; 2]) -> f64 {
    let seconds = std::thread::scope(|scope| {
        scope.spawn(move || turn_about(slot, 1, (from, turns, bytes), how, cores[1]));
        let start = Instant::now();
        turn_about(slot, 0, (from, turns, bytes), how, cores[0]);
        start.elapsed().as_secs_f64()
    });
    seconds / turns as f64 / 2.0
}

fn turn_about(slot: &Slot, end: usize, (from, turns, bytes): (u64, u64, u64), how: Store, core: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(core);
    sched_setaffinity(None, &cpus).expect("this core is there");
    let mut buffer = vec![end as u8; bytes as usize];
    for turn in 0..turns {
        for sender in [0, 1] {
            let at = from + turn * bytes;
            if sender == end { send(slot, end, at, &buffer, how) } else { receive(slot, sender, at, &mut buffer) }
        }
    }
}

fn send(slot: &Slot, end: usize, at: u64, buffer: &[u8], how: Store) {
    let words = &slot.words().directions[end];
    let bytes = buffer.len() as u64;
    let mut done = 0;
    while done < bytes {
        while at + done - words.head.load(Ordering::Acquire) > RING_BYTES - PIECE_BYTES {
            std::hint::spin_loop();
        }
        done +=
            slot.copy_in((end, false), at + done, &[IoSlice::new(buffer)], done, (bytes - done).min(PIECE_BYTES), how);
        words.tail.store(at + done, Ordering::Release);
    }
}

fn receive(slot: &Slot, end: usize, at: u64, buffer: &mut [u8]) {
    let words = &slot.words().directions[end];
    let bytes = buffer.len() as u64;
    let mut done = 0;
    while done < bytes {
        let there = words.tail.load(Ordering::Acquire).saturating_sub(at + done).min(PIECE_BYTES);
        if there == 0 {
            std::hint::spin_loop();
            continue;
        }
        done += slot.copy_out(end, false, at + done, &mut [IoSliceMut::new(buffer)], done, there);
        words.head.store(at + done, Ordering::Release);
    }
}
