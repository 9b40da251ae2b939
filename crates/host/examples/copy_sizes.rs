//! Bandwidth of the copy that mapped sends use, beside an ordinary copy, over sizes: where non-temporal stores pay.
//!
//! `cargo run --release -p vmmc-host --example copy_sizes`

use std::time::Instant;
use vmmc_host::Region;

fn main() {
    println!("{:>10} {:>14} {:>14} {:>7}", "bytes", "ordinary GB/s", "region GB/s", "ratio");
    for shift in 12..27 {
        let len = 1usize << shift;
        let source = vec![1u8; len];
        let mut plain = vec![2u8; len];
        let region = Region::create(len as u64).expect("memory for one region");
        let (mut best_plain, mut best_region) = (f64::MAX, f64::MAX);
        for _ in 0..5 {
            best_plain = best_plain
                .min(seconds(len, || std::hint::black_box(&mut plain).copy_from_slice(std::hint::black_box(&source))));
            best_region =
                best_region.min(seconds(len, || region.write(0, std::hint::black_box(&source)).expect("in bounds")));
        }
        let rate = |s: f64| len as f64 / s / 1e9;
        println!("{len:>10} {:>14.1} {:>14.1} {:>7.2}", rate(best_plain), rate(best_region), best_plain / best_region);
    }
}

/// Mean time of one copy over about 64 MiB of copies.
fn seconds(len: usize, mut copy: impl FnMut()) -> f64 {
    let rounds = ((64 << 20) / len).clamp(2, 20_000);
    copy();
    let start = Instant::now();
    (0..rounds).for_each(|_| copy());
    start.elapsed().as_secs_f64() / rounds as f64
}
