//! How long short operations of a process take beside bulk of the same process to the same node,
//! through an import with the order of the process and one with its own:
//! `cargo run --release -p vmmc --example beside_bulk`.
//!
//! Not part of the tutorial: it is the check that an order of its own is worth asking for. Both
//! nodes are in this process, on loopback.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use vmmc::{Import, Rights, SendOptions, Session, Transfer, TransferError};
use vmmc_node::{Embedded, KeySource, NodeConfig};

/// Of one send of the bulk.
const BULK: u64 = 1 << 20;
const UNDER_WAY: usize = 8;
const SAMPLES: usize = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let loopback = "127.0.0.1:0".parse()?;
    let config = |name: &str| NodeConfig::new(name).listen(loopback).key(KeySource::Plain).plain_trust_users();
    let there = Embedded::start(config("beside-bulk-there"))?;
    let here = Embedded::start(config("beside-bulk-here").peer(&there.addresses()))?;
    let (owner, user) = (Session::over(there.attach()?)?, Session::over(here.attach()?)?);
    let (bulk, short) = (owner.export(BULK).create()?, owner.export(4096).create()?);
    let node = there.addresses()[0].to_string();
    let import = |id| user.import_id(id).node(&node).rights(Rights::ALL);
    let bulk = import(bulk.id()).open()?;
    println!("{:>10} {:>10} {:>14} {:>14} {:>12}", "bulk", "order", "fetch p50, us", "fetch p99, us", "bulk, MB/s");
    for (beside, own_order) in [(false, false), (true, false), (true, true)] {
        let ping = import(short.id());
        let ping = if own_order { ping.own_order() } else { ping }.open()?;
        let (stop, moved) = (AtomicBool::new(!beside), AtomicU64::new(0));
        let (begun, mut times) = (Instant::now(), Vec::new());
        std::thread::scope(|scope| -> Result<(), TransferError> {
            let streams = scope.spawn(|| stream(&user, &bulk, &stop, &moved));
            while beside && moved.load(Ordering::Relaxed) == 0 && !streams.is_finished() {
                std::thread::yield_now();
            }
            for _ in 0..SAMPLES {
                let start = Instant::now();
                ping.fetch(0, &mut [0; 8])?;
                times.push(start.elapsed().as_nanos() as f64 / 1e3);
            }
            stop.store(true, Ordering::Relaxed);
            streams.join().expect("the stream does not panic")
        })?;
        let rate = moved.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64() / 1e6;
        times.sort_by(f64::total_cmp);
        let (beside, order) = (if beside { "beside" } else { "none" }, if own_order { "its own" } else { "process" });
        println!(
            "{beside:>10} {order:>10} {:>14.1} {:>14.1} {rate:>12.0}",
            times[SAMPLES / 2],
            times[SAMPLES * 99 / 100]
        );
    }
    Ok(())
}

/// Sends until told to stop, and counts the bytes.
fn stream(user: &Session, import: &Import, stop: &AtomicBool, moved: &AtomicU64) -> Result<(), TransferError> {
    let memory = user.buffer(BULK).expect("memory for a megabyte");
    let mut under_way: VecDeque<Transfer<'_>> = VecDeque::new();
    while !stop.load(Ordering::Relaxed) || !under_way.is_empty() {
        if !stop.load(Ordering::Relaxed) && under_way.len() < UNDER_WAY {
            under_way.push_back(import.post_send(0, memory.range(0..BULK), SendOptions::default())?);
        } else if let Some(mut oldest) = under_way.pop_front() {
            moved.fetch_add(oldest.wait()?, Ordering::Relaxed);
        }
    }
    Ok(())
}
