//! Transfer redirection: the receiver decides late where incoming data goes, even in the middle of
//! a transfer, and learns exactly which part went where.
//!
//! `cargo run --release --example 05_redirection`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::time::Duration;
use tutorial::{Failure, check};
use vmmc::{SendOptions, Session};

const MESSAGE_BYTES: u64 = 100_000;
const FIRST_BYTES: u64 = 40_000;

fn main() -> ExitCode {
    tutorial::run(&[("receiver", receiver), ("sender", sender)])
}

fn message() -> Vec<u8> {
    (0..MESSAGE_BYTES).map(|i| (i % 251) as u8).collect()
}

fn receiver(session: &Session) -> Result<(), Failure> {
    let inbox = session.export(MESSAGE_BYTES).name("inbox").redirectable(true).notify(true).create()?;
    let go_on = session.import("second-half").wait(Duration::from_secs(10)).open()?;
    let first = inbox.wait_notification()?;
    println!("receiver: {} bytes are in the inbox; now I know where I want the message", first.len);

    let place = session.buffer(MESSAGE_BYTES)?;
    let redirection = inbox.redirect(0..MESSAGE_BYTES, &place, 0)?;
    println!("receiver: so far {:?}", redirection.report()?);
    go_on.send(0, &1u64.to_le_bytes())?;

    let report = redirection.wait()?;
    println!("receiver: complete: {report:?}");
    check(report.copied == [(0, FIRST_BYTES)], "the first half should have been copied")?;
    check(
        report.redirected == [(FIRST_BYTES, MESSAGE_BYTES - FIRST_BYTES)],
        "the second half should have gone straight",
    )?;
    let mut bytes = vec![0; MESSAGE_BYTES as usize];
    place.read(0, &mut bytes)?;
    check(bytes == message(), "the message is damaged")?;
    println!("receiver: the whole message is in its place; the second half was never in the inbox");
    go_on.send(0, &2u64.to_le_bytes())?;
    Ok(())
}

fn sender(session: &Session) -> Result<(), Failure> {
    let second_half = session.export(64).name("second-half").create()?;
    let inbox = session.import("inbox").wait(Duration::from_secs(10)).open()?;
    let message = message();
    let (first, second) = message.split_at(FIRST_BYTES as usize);
    inbox.send_with(0, first, SendOptions::notify())?;
    second_half.wait_word(0, |word| word >= 1)?;
    // The sender sends as before: it does not know of the redirection.
    inbox.send(FIRST_BYTES, second)?;
    second_half.wait_word(0, |word| word >= 2)?;
    println!("sender:   sent {} + {} bytes to the same import", first.len(), second.len());
    Ok(())
}
