//! Ping-pong: two processes write a number into each other's memory in turn, and measure how long that takes.
//!
//! `cargo run --release --example 02_ping_pong`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::time::{Duration, Instant};
use tutorial::{Failure, check};
use vmmc::{Export, Import, Session};

const ROUNDS: u64 = 20_000;

fn main() -> ExitCode {
    tutorial::run(&[("pinger", pinger), ("ponger", ponger)])
}

/// Each side exports a word for the other one and imports the other one's.
fn meet(session: &Session, mine: &str, theirs: &str) -> Result<(Export, Import), Failure> {
    let export = session.export(64).name(mine).create()?;
    let import = session.import(theirs).wait(Duration::from_secs(10)).open()?;
    Ok((export, import))
}

fn pinger(session: &Session) -> Result<(), Failure> {
    let (export, import) = meet(session, "ping", "pong")?;
    let mut rounds_ns = Vec::with_capacity(ROUNDS as usize);
    for round in 1..=ROUNDS {
        let start = Instant::now();
        import.send(0, &round.to_le_bytes())?;
        let answer = export.wait_word(0, |word| word >= round)?;
        rounds_ns.push(start.elapsed().as_nanos() as u64);
        check(answer == round, "the answer is not to this round")?;
    }
    rounds_ns.sort_unstable();
    let (median, late) = (rounds_ns[rounds_ns.len() / 2], rounds_ns[rounds_ns.len() * 99 / 100]);
    println!("pinger: {ROUNDS} round trips of 8 bytes by the {} path", import.explain().path);
    println!(
        "pinger: round trip {median} ns (median), {late} ns (99 of 100 are faster); one way about {} ns",
        median / 2
    );
    Ok(())
}

fn ponger(session: &Session) -> Result<(), Failure> {
    let (export, import) = meet(session, "pong", "ping")?;
    for round in 1..=ROUNDS {
        export.wait_word(0, |word| word >= round)?;
        import.send(0, &round.to_le_bytes())?;
    }
    Ok(())
}
