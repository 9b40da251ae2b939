//! Ping-pong: two processes write a number into each other's memory in turn, and measure how long
//! that takes. Then the same with messages of 64 KiB, each of which the other process copies out
//! before it answers.
//!
//! `cargo run --release --example 02_ping_pong`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::time::{Duration, Instant};
use tutorial::{Failure, check};
use vmmc::{Export, Import, Session};

const ROUNDS: u64 = 20_000;
/// Bytes of a long message, of which the last eight count the rounds.
const LONG_BYTES: usize = 64 << 10;
const LONG_ROUNDS: u64 = 4_000;

fn main() -> ExitCode {
    tutorial::run(&[("pinger", pinger), ("ponger", ponger)])
}

/// Each side exports a word, and room for a long message, for the other one and imports the other
/// one's.
fn meet(session: &Session, mine: &str, theirs: &str) -> Result<(Export, Import), Failure> {
    let export = session.export(8 + LONG_BYTES as u64).name(mine).create()?;
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
    let mut message = vec![0; LONG_BYTES];
    let start = Instant::now();
    for round in 1..=LONG_ROUNDS {
        send_long(&import, &mut message, round)?;
        receive_long(&export, &mut message, round)?;
    }
    let one_way = start.elapsed() / (2 * LONG_ROUNDS as u32);
    let gigabytes = LONG_BYTES as f64 / one_way.as_nanos() as f64;
    println!("pinger: 64 KiB that are read at the other end take {one_way:?} one way, {gigabytes:.1} GB/s");
    Ok(())
}

fn send_long(import: &Import, message: &mut [u8], round: u64) -> Result<(), Failure> {
    message[LONG_BYTES - 8..].copy_from_slice(&round.to_le_bytes());
    // The last bytes become visible last.
    Ok(import.send(8, &*message)?)
}

fn receive_long(export: &Export, message: &mut [u8], round: u64) -> Result<(), Failure> {
    export.wait_word(LONG_BYTES as u64, |word| word >= round)?;
    export.read(8, message)?;
    check(message[LONG_BYTES - 8..] == round.to_le_bytes(), "the message is not of this round")
}

fn ponger(session: &Session) -> Result<(), Failure> {
    let (export, import) = meet(session, "pong", "ping")?;
    for round in 1..=ROUNDS {
        export.wait_word(0, |word| word >= round)?;
        import.send(0, &round.to_le_bytes())?;
    }
    let mut message = vec![0; LONG_BYTES];
    for round in 1..=LONG_ROUNDS {
        receive_long(&export, &mut message, round)?;
        send_long(&import, &mut message, round)?;
    }
    Ok(())
}
