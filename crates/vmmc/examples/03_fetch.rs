//! Remote fetch: a process publishes a table, and another one reads rows of it without the first
//! doing anything.
//!
//! `cargo run --release --example 03_fetch`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::time::Duration;
use tutorial::{Failure, check};
use vmmc::{Rights, Session};

const ROW_BYTES: u64 = 256;
const ROWS: u64 = 1000;
/// A separate word in which the reader says that it is done.
const DONE: &str = "table-read";

fn main() -> ExitCode {
    tutorial::run(&[("owner", owner), ("reader", reader)])
}

fn row(number: u64) -> Vec<u8> {
    (0..ROW_BYTES).map(|i| (number * 7 + i) as u8).collect()
}

fn owner(session: &Session) -> Result<(), Failure> {
    // The table can be read and nothing else.
    let table = session.export(ROWS * ROW_BYTES).name("table").rights(Rights::READ).create()?;
    for number in 0..ROWS {
        table.write(number * ROW_BYTES, &row(number))?;
    }
    let done = session.export(64).name(DONE).notify(true).create()?;
    println!("owner:  {ROWS} rows of {ROW_BYTES} bytes are published; I go to sleep");
    let notification = done.wait_notification()?;
    println!("owner:  woken: {} rows were read and I noticed none of it", notification.last_word);
    check(session.stats().fetches_mapped == 0, "the owner fetched something itself")
}

fn reader(session: &Session) -> Result<(), Failure> {
    let done = session.import(DONE).wait(Duration::from_secs(10)).open()?;
    let table = session.import("table").rights(Rights::READ).open()?;
    let mut read = 0;
    for number in [0, 1, 17, 500, ROWS - 1] {
        let mut bytes = vec![0; ROW_BYTES as usize];
        table.fetch(number * ROW_BYTES, &mut bytes)?;
        check(bytes == row(number), "a row is not what the owner wrote")?;
        read += 1;
    }
    println!("reader: fetched {read} single rows");

    // A list of ranges in one call.
    let ranges: Vec<_> = (0..ROWS).step_by(100).map(|n| n * ROW_BYTES..n * ROW_BYTES + 8).collect();
    let mut heads = vec![0; ranges.len() * 8];
    table.fetch_gather(&ranges, &mut heads)?;
    check(heads.chunks(8).zip((0..ROWS).step_by(100)).all(|(head, n)| head == &row(n)[..8]), "a head is wrong")?;
    read += ranges.len() as u64;
    println!("reader: gathered the first 8 bytes of {} rows", ranges.len());

    let refused = table.send(0, b"graffiti").expect_err("the table is read-only");
    println!("reader: writing is refused: {refused}");
    done.send_with(0, &u64::to_le_bytes(read), vmmc::SendOptions::notify())?;
    Ok(())
}
