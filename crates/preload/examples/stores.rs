//! A message of each size from one core to another and back, through a ring of shared memory that
//! is filled with ordinary stores or with ones past the cache: which are better depends on how far
//! apart the two cores are. Beside them the kernel's single copy into the memory in which the other
//! side wants it (`process_vm_writev`), what a redirected receive would be for private memory. One
//! line for each size; in a virtual machine run it several times, for its cores move.
//!
//! `cargo run --release -p vmmc-preload --example stores [CORE CORE]`

use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use vmmc_host::stores::Store;
use vmmc_stream::{Shape, Slab, Slot};

const RING_BYTES: u64 = 512 << 10;
/// Bytes each way in one round.
const ROUND_BYTES: u64 = 32 << 20;
/// Bytes after which a writer says what it has written.
const PIECE_BYTES: u64 = 16 << 10;

fn main() {
    let cores: Vec<usize> = std::env::args().skip(1).filter_map(|core| core.parse().ok()).collect();
    let (one, two) = if let [one, two] = cores[..] { (one, two) } else { (0, 1) };
    println!("one way between cores {one} and {two}, microseconds");
    println!("{:>10} {:>10} {:>12} {:>7} {:>12}", "bytes", "ordinary", "past cache", "ratio", "one copy");
    for shift in 10..=20 {
        let bytes = 1u64 << shift;
        let ways = [Way::Ring(Store::Cached), Way::Ring(Store::PastCache), Way::OneCopy];
        let [cached, past, one_copy] = ways.map(|way| measure(bytes, way, [one, two]));
        println!("{bytes:>10} {cached:>10.2} {past:>12.2} {:>7.2} {one_copy:>12.2}", past / cached);
    }
}

/// How a message goes.
#[derive(Clone, Copy)]
enum Way {
    Ring(Store),
    /// By the kernel, into the other side's buffer.
    OneCopy,
}

/// Where the buffers of both sides are; 0: not yet.
static BUFFERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The least mean of four rounds.
fn measure(bytes: u64, way: Way, cores: [usize; 2]) -> f64 {
    let shape = Shape { slots: 1, small_bytes: RING_BYTES, large_bytes: RING_BYTES };
    let slab = Slab::create(shape).expect("memory for two rings");
    let slot = slab.slot(0).expect("there is one");
    let turns = ROUND_BYTES / bytes;
    let rounds = (0..5).map(|round| 1e6 * time(&slot, round * turns * bytes, turns, bytes, way, cores));
    // The first one meets memory that nobody has used yet.
    rounds.skip(1).fold(f64::MAX, f64::min)
}

/// Seconds for one message one way.
fn time(slot: &Slot, from: u64, turns: u64, bytes: u64, way: Way, cores: [usize; 2]) -> f64 {
    BUFFERS.iter().for_each(|buffer| buffer.store(0, Ordering::SeqCst));
    let seconds = std::thread::scope(|scope| {
        scope.spawn(move || turn_about(slot, 1, (from, turns, bytes), way, cores[1]));
        let start = Instant::now();
        turn_about(slot, 0, (from, turns, bytes), way, cores[0]);
        start.elapsed().as_secs_f64()
    });
    seconds / turns as f64 / 2.0
}

fn turn_about(slot: &Slot, end: usize, (from, turns, bytes): (u64, u64, u64), way: Way, core: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(core);
    sched_setaffinity(None, &cpus).expect("this core is there");
    let mut buffer = vec![end as u8; bytes as usize];
    BUFFERS[end].store(buffer.as_mut_ptr() as usize, Ordering::SeqCst);
    while BUFFERS[1 - end].load(Ordering::SeqCst) == 0 {
        std::hint::spin_loop();
    }
    for turn in 0..turns {
        for sender in [0, 1] {
            let at = from + turn * bytes;
            match way {
                Way::Ring(how) if sender == end => send(slot, end, at, &buffer, how),
                Way::Ring(_) => receive(slot, sender, at, &mut buffer),
                Way::OneCopy if sender == end => send_one_copy(slot, end, at, bytes as usize),
                Way::OneCopy => wait_for(slot, sender, at + bytes),
            }
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

/// Copies one buffer into the other.
fn send_one_copy(slot: &Slot, end: usize, at: u64, bytes: usize) {
    let piece = |end: usize| {
        let memory = BUFFERS[end].load(Ordering::Relaxed) as *mut libc::c_void;
        libc::iovec { iov_base: memory, iov_len: bytes }
    };
    let (from, to) = (piece(end), piece(1 - end));
    // SAFETY: both buffers have so many bytes and live until both threads are done, and neither is
    // looked at meanwhile.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const to, 1, 0) };
    assert_eq!(copied, bytes as isize, "the kernel copies within a process");
    slot.words().directions[end].tail.store(at + bytes as u64, Ordering::Release);
}

fn wait_for(slot: &Slot, end: usize, tail: u64) {
    while slot.words().directions[end].tail.load(Ordering::Acquire) < tail {
        std::hint::spin_loop();
    }
}
