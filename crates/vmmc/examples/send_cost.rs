//! What a mapped send costs beside a bare copy of the same bytes, in one thread, ns per call:
//! `cargo run --release -p vmmc --example send_cost`.
//!
//! Not part of the tutorial: it is the check that the fast path of `Import::send` stays short.
//! Medians of many batches; the machine should be quiet.

use std::hint::black_box;
use std::time::Instant;
use vmmc::{Rights, Session};
use vmmc_node::{Embedded, KeySource, NodeConfig};

const BATCHES: usize = 401;
const CALLS: u32 = 2000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = NodeConfig::new("send-cost").key(KeySource::Plain);
    config.poller = false;
    let node = Embedded::start(config)?;
    let (owner, user) = (Session::over(node.attach()?)?, Session::over(node.attach()?)?);
    let export = owner.export(1 << 16).create()?;
    let import = user.import_id(export.id()).rights(Rights::ALL).open()?;
    let region = export.region();
    println!("{:>10} {:>12} {:>12} {:>12} {:>12}", "bytes", "copy ns", "send ns", "fetch ns", "send - copy");
    for len in [8usize, 64, 256, 1024, 4096] {
        let data = vec![7u8; len];
        let mut into = vec![0u8; len];
        let copy = median(|| region.write(0, black_box(&data)).is_ok());
        let send = median(|| import.send(0, black_box(&data)).is_ok());
        let fetch = median(|| import.fetch(0, black_box(&mut into)).is_ok());
        println!("{len:>10} {copy:>12.1} {send:>12.1} {fetch:>12.1} {:>12.1}", send - copy);
    }
    let add = median(|| import.fetch_add(0, black_box(1)).is_ok());
    let bare =
        median(|| region.word(0).is_ok_and(|w| w.fetch_add(black_box(1), std::sync::atomic::Ordering::AcqRel) > 0));
    println!("fetch-and-add: bare {bare:.1} ns, through the import {add:.1} ns");
    let served = user.import_id(export.id()).rights(Rights::WRITE | Rights::ATOMIC).open()?;
    for len in [8usize, 200, 1024, 16 << 10] {
        let data = vec![7u8; len];
        let send = median(|| served.send(0, black_box(&data)).is_ok());
        println!("through the engine of this process: send of {len} bytes {send:.0} ns");
    }
    let add = median(|| served.fetch_add(0, black_box(1)).is_ok());
    println!("through the engine of this process: fetch-and-add {add:.0} ns");
    Ok(())
}

/// Median of the mean time of a call in a batch, ns.
fn median(mut call: impl FnMut() -> bool) -> f64 {
    let mut means: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                assert!(call());
            }
            start.elapsed().as_nanos() as f64 / f64::from(CALLS)
        })
        .collect();
    means.sort_by(f64::total_cmp);
    means[BATCHES / 2]
}
