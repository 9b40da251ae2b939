//! Automatic update: after a binding, plain stores appear in the other process's memory. And
//! revocation: when the exporter ends the export, they no longer do.
//!
//! `cargo run --release --example 06_automatic_update`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tutorial::{Failure, check};
use vmmc::{BindOptions, Revocation, Session};

const STORES: u64 = 1000;

fn main() -> ExitCode {
    tutorial::run(&[("watcher", watcher), ("writer", writer)])
}

fn watcher(session: &Session) -> Result<(), Failure> {
    let meter = session.export(4096).name("meter").create()?;
    let back = session.import("meter-read").wait(Duration::from_secs(10)).open()?;
    let first = meter.wait_word(0, |value| value > 0)?;
    println!("watcher: the meter moves: {first}");
    let last = meter.wait_word(0, |value| value >= STORES)?;
    println!("watcher: the meter stands at {last}");

    // The writer could go on storing through its mapping; so the content moves onto pages that the
    // writer does not map.
    let region = meter.region();
    let revocation = meter.unexport()?;
    println!("watcher: unexported; the pages were {revocation:?}");
    check(revocation == Revocation::Moved, "a bound export must be moved")?;
    back.send(0, &1u64.to_le_bytes())?;
    std::thread::sleep(Duration::from_millis(50));
    let now = region.word(0)?.load(Ordering::Acquire);
    println!("watcher: the writer stores on, my meter stays at {now}");
    check(now == last, "a store arrived after the end of the export")
}

fn writer(session: &Session) -> Result<(), Failure> {
    let read = session.export(64).name("meter-read").create()?;
    let import = session.import("meter").wait(Duration::from_secs(10)).open()?;
    let binding = import.bind(BindOptions::default())?;
    let meter = binding.word(0)?;
    for value in 1..=STORES {
        // Not a call into the library: a store instruction.
        meter.store(value, Ordering::Release);
        if value % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    println!("writer:  stored {STORES} values");
    read.wait_word(0, |word| word >= 1)?;
    meter.store(99_999, Ordering::Release);
    let told = binding.flush().expect_err("the export has ended");
    println!("writer:  {told}");
    Ok(())
}
