//! Notifications: the receiver sleeps until a sender says that something has come. By waiting, and
//! by a handler on a thread of its own.
//!
//! `cargo run --release --example 04_notifications`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;
use tutorial::{Failure, check};
use vmmc::{SendOptions, Session};

const LETTERS: [&str; 3] = ["first letter", "second letter", "third letter"];
const SLOT_BYTES: u64 = 64;

fn main() -> ExitCode {
    tutorial::run(&[("receiver", receiver), ("sender", sender)])
}

fn receiver(session: &Session) -> Result<(), Failure> {
    // Both sides must want a notification: the export allows them, the send asks for one.
    let mailbox = session.export(4096).name("mailbox").notify(true).create()?;
    println!("receiver: waiting for a notification, without using the processor");
    let first = mailbox.wait_notification()?;
    let mut letter = vec![0; first.len as usize];
    mailbox.read(first.offset, &mut letter)?;
    println!("receiver: {} bytes came to offset {}: {:?}", first.len, first.offset, String::from_utf8_lossy(&letter));
    check(letter == LETTERS[0].as_bytes(), "the wrong letter")?;

    // While they are blocked, notifications queue.
    mailbox.block_notifications();
    let (tell, told) = mpsc::channel();
    let handler = mailbox.on_notification(move |n| {
        // Nobody listens any more once this function has returned.
        let _ = tell.send(n.offset);
    })?;
    let reader = session.import("go-on").wait(Duration::from_secs(10)).open()?;
    reader.send(0, &1u64.to_le_bytes())?;
    check(told.recv_timeout(Duration::from_millis(100)).is_err(), "a blocked notification was delivered")?;
    println!("receiver: blocked for a while; now they may come");
    mailbox.unblock_notifications();
    for expected in [SLOT_BYTES, 2 * SLOT_BYTES] {
        let offset = told.recv_timeout(Duration::from_secs(10))?;
        println!("receiver: the handler's thread was told of offset {offset}");
        check(offset == expected, "notifications of one sender must come in order")?;
    }
    drop(handler);
    let stats = session.stats();
    println!("receiver: {} notifications taken, {} lost", stats.notifications_taken, stats.notifications_lost_in_rings);
    reader.send(0, &2u64.to_le_bytes())?;
    Ok(())
}

fn sender(session: &Session) -> Result<(), Failure> {
    let go_on = session.export(64).name("go-on").create()?;
    let mailbox = session.import("mailbox").wait(Duration::from_secs(10)).open()?;
    // Long enough for the receiver to be asleep.
    std::thread::sleep(Duration::from_millis(50));
    mailbox.send_with(0, LETTERS[0].as_bytes(), SendOptions::notify())?;
    go_on.wait_word(0, |word| word >= 1)?;
    for (number, letter) in LETTERS.iter().enumerate().skip(1) {
        mailbox.send_with(number as u64 * SLOT_BYTES, letter.as_bytes(), SendOptions::notify())?;
        println!("sender:   sent letter {number}");
    }
    go_on.wait_word(0, |word| word >= 2)?;
    Ok(())
}
