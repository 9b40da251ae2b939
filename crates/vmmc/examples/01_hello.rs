//! Hello: one process exports memory, another one imports it and writes into it.
//!
//! `cargo run --release --example 01_hello`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::time::Duration;
use tutorial::{Failure, check};
use vmmc::Session;

/// Where the text goes, and the word that says how long it is.
const TEXT_AT: u64 = 64;
const LENGTH_AT: u64 = 0;

fn main() -> ExitCode {
    tutorial::run(&[("receiver", receiver), ("sender", sender)])
}

fn receiver(session: &Session) -> Result<(), Failure> {
    let export = session.export(4096).name("hello").create()?;
    println!("receiver: exported {} bytes as \"hello\" on node {:?}", export.len(), session.node().name);

    // The receiver takes no part in the transfer. It polls its own memory until the length arrives.
    let length = export.wait_word(LENGTH_AT, |length| length != 0)?;
    let mut text = vec![0; length as usize];
    export.read(TEXT_AT, &mut text)?;
    println!("receiver: found in my memory: {:?}", String::from_utf8_lossy(&text));
    check(text == b"hello from another process", "the text is wrong")
}

fn sender(session: &Session) -> Result<(), Failure> {
    // The export may not exist yet: wait for it.
    let import = session.import("hello").wait(Duration::from_secs(10)).open()?;
    println!("sender:   {}", import.explain());

    let text = b"hello from another process";
    import.send(TEXT_AT, text)?;
    // Sends from one process to one export appear in order, so who sees the length sees the text.
    import.send(LENGTH_AT, &(text.len() as u64).to_le_bytes())?;
    println!("sender:   wrote {} bytes into the receiver's memory", text.len());
    Ok(())
}
