//! Bandwidth of the copy that mapped sends use, beside an ordinary copy, over sizes and two
//! distances between the starts within their pages (0 and 16 bytes): where non-temporal stores pay,
//! and where string instructions are to be avoided.
//!
//! `cargo run --release -p vmmc-host --example copy_sizes`

use std::time::Instant;
use vmmc_host::Region;

fn main() {
    println!("{:>10} {:>9} {:>14} {:>14} {:>7}", "bytes", "distance", "ordinary GB/s", "region GB/s", "ratio");
    for shift in 12..27 {
        for distance in [0, 16] {
            measure(1usize << shift, distance);
        }
    }
}

fn measure(len: usize, distance: usize) {
    let room = len + 8192;
    let source = vec![1u8; room];
    let start = source.as_ptr() as usize % 4096;
    let mut plain = vec![2u8; room];
    let at = (start + distance).wrapping_sub(plain.as_ptr() as usize) % 4096;
    let region = Region::create(room as u64).expect("memory for one region");
    let offset = ((start + distance) % 4096) as u64;
    let (mut ordinary, mut ours) = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        let copy =
            || std::hint::black_box(&mut plain[at..at + len]).copy_from_slice(std::hint::black_box(&source[..len]));
        ordinary = ordinary.min(seconds(len, copy));
        ours =
            ours.min(seconds(len, || region.write(offset, std::hint::black_box(&source[..len])).expect("in bounds")));
    }
    let rate = |s: f64| len as f64 / s / 1e9;
    println!("{len:>10} {distance:>9} {:>14.1} {:>14.1} {:>7.2}", rate(ordinary), rate(ours), ordinary / ours);
}

/// Mean time of one copy over about 64 MiB of copies.
fn seconds(len: usize, mut copy: impl FnMut()) -> f64 {
    let rounds = ((64 << 20) / len).clamp(2, 20_000);
    copy();
    let start = Instant::now();
    (0..rounds).for_each(|_| copy());
    start.elapsed().as_secs_f64() / rounds as f64
}
