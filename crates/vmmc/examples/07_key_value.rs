//! A key-value table that its clients work on alone: the owner of the memory runs no code at all
//! while they insert, update and look up.
//!
//! Each entry has a version word. An odd version means that a client is writing: writers take it
//! with compare-and-swap. A reader fetches the entry and then the version once more; if it moved or
//! is odd, the reader tries again. So nobody waits for the owner, and nobody sees half an entry.
//!
//! `cargo run --release --example 07_key_value`

#[path = "tutorial/mod.rs"]
mod tutorial;

use std::process::ExitCode;
use std::time::{Duration, Instant};
use tutorial::{Failure, check};
use vmmc::{Import, Rights, SendOptions, Session};

/// Entries of the table; keys are spread over them and move on to the next one when it is taken.
const ENTRIES: u64 = 1024;
/// Version, key, value, in words of 8 bytes; the value fills the rest.
const ENTRY_BYTES: u64 = 64;
const VALUE_BYTES: usize = 48;
const CLIENTS: u64 = 3;
const KEYS: u64 = 100;
const UPDATES: u64 = 20;

fn main() -> ExitCode {
    tutorial::run(&[("owner", owner), ("client-1", client_1), ("client-2", client_2), ("client-3", client_3)])
}

fn owner(session: &Session) -> Result<(), Failure> {
    let _table = session.export(ENTRIES * ENTRY_BYTES).name("table-of-pairs").create()?;
    let done = session.export(64).name("clients-done").notify(true).create()?;
    println!("owner:    {ENTRIES} entries exported; I sleep until the clients are done");
    for left in (0..CLIENTS).rev() {
        let client = done.wait_notification()?.last_word;
        println!("owner:    client {client} is done, {left} left");
    }
    let stats = session.stats();
    check(stats.sends_mapped + stats.fetches_mapped + stats.atomics_mapped == 0, "the owner took part")
}

fn client_1(session: &Session) -> Result<(), Failure> {
    client(session, 1)
}

fn client_2(session: &Session) -> Result<(), Failure> {
    client(session, 2)
}

fn client_3(session: &Session) -> Result<(), Failure> {
    client(session, 3)
}

fn client(session: &Session, me: u64) -> Result<(), Failure> {
    let wait = Duration::from_secs(10);
    let done = session.import("clients-done").wait(wait).open()?;
    let table = Table(session.import("table-of-pairs").rights(Rights::ALL).wait(wait).open()?);
    let start = Instant::now();
    let mut operations = 0;
    for update in 1..=UPDATES {
        for key in 0..KEYS {
            // All clients write some keys, and each has keys of its own.
            let key = if key % 2 == 0 { 1_000_000 + key } else { me * 1_000 + key };
            table.put(key, &value(key, me, update))?;
            let got = table.look_up(key)?.ok_or("a key vanished")?;
            check(got[..40].iter().all(|b| *b == got[0]), "half an entry was seen")?;
            let own = key < 1_000_000;
            check(!own || got == value(key, me, update), "an own key has another client's value")?;
            operations += 2;
        }
    }
    let each_ns = start.elapsed().as_nanos() as u64 / operations;
    println!("client {me}: {operations} operations, {each_ns} ns each");
    check(table.look_up(77)?.is_none(), "a key was found that nobody put")?;
    done.send_with(8 * me, &me.to_le_bytes(), SendOptions::notify())?;
    Ok(())
}

/// 40 equal bytes, so that a torn value shows, then who wrote it.
fn value(key: u64, client: u64, update: u64) -> [u8; VALUE_BYTES] {
    let mut value = [(key ^ client ^ update) as u8; VALUE_BYTES];
    value[40..].copy_from_slice(&client.to_le_bytes());
    value
}

/// The table as a client sees it.
struct Table(Import);

impl Table {
    /// Entries to examine for a key, in order, by their offset.
    fn places(key: u64) -> impl Iterator<Item = u64> {
        let first = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (0..ENTRIES).map(move |i| (first + i) % ENTRIES * ENTRY_BYTES)
    }

    /// Inserts or updates.
    fn put(&self, key: u64, value: &[u8; VALUE_BYTES]) -> Result<(), Failure> {
        let tag = key + 1; // 0 means free
        for at in Self::places(key) {
            // The key of an entry is set once, by the first writer.
            let there = self.0.compare_swap(at + 8, 0, tag)?;
            if there != 0 && there != tag {
                continue;
            }
            let version = self.lock(at)?;
            self.0.send(at + 16, value)?;
            // The version comes after the value: sends of one process appear in order.
            self.0.send(at, &(version + 2).to_le_bytes())?;
            return Ok(());
        }
        Err("the table is full".into())
    }

    /// Makes an even version odd; gives the even one.
    fn lock(&self, at: u64) -> Result<u64, Failure> {
        let mut version = self.0.fetch_add(at, 0)?;
        loop {
            let even = version & !1;
            match self.0.compare_swap(at, even, even + 1)? {
                found if found == even => return Ok(even),
                found => version = found,
            }
            std::thread::yield_now();
        }
    }

    fn look_up(&self, key: u64) -> Result<Option<[u8; VALUE_BYTES]>, Failure> {
        for at in Self::places(key) {
            loop {
                let before = self.word(at)?;
                let mut entry = [0; ENTRY_BYTES as usize];
                self.0.fetch(at, &mut entry)?;
                let tag = u64::from_le_bytes(entry[8..16].try_into()?);
                if tag == 0 {
                    return Ok(None);
                }
                if tag != key + 1 {
                    break;
                }
                if before % 2 == 0 && before > 0 && self.word(at)? == before {
                    return Ok(Some(entry[16..].try_into()?));
                }
                std::thread::yield_now();
            }
        }
        Ok(None)
    }

    /// A word as it is now; an atomic operation, so it is ordered against the fetches around it.
    fn word(&self, at: u64) -> Result<u64, Failure> {
        Ok(self.0.fetch_add(at, 0)?)
    }
}
