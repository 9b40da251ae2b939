//! A model needs no code in the node: a mailbox of many senders, made of an export, imports and
//! `fetch_add`.
//!
//! Invariant: this file uses the public library alone. A slot is written by the sender that took
//! its number, and only when the owner has taken out what was there; the number of the message is
//! stored last, and says that it is there.

use std::sync::atomic::Ordering;
use vmmc::{Export, Import, Rights, Session};
use vmmc_node::{Embedded, KeySource, NodeConfig};

/// Messages that a mailbox holds.
const SLOTS: u64 = 8;
/// Bytes of a slot: number of the message, length, what it says.
const SLOT_BYTES: u64 = 128;
/// Where senders take numbers; where the owner says how many messages it has taken out.
const TICKETS: u64 = 0;
const TAKEN: u64 = 8;
const FIRST: u64 = 64;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn slot(number: u64) -> u64 {
    FIRST + number % SLOTS * SLOT_BYTES
}

/// The owner's side.
struct Mailbox {
    memory: Export,
    taken: u64,
}

impl Mailbox {
    fn receive(&mut self) -> Result<Vec<u8>> {
        let (at, number) = (slot(self.taken), self.taken + 1);
        self.memory.wait_word(at, |there| there == number)?;
        let length = self.memory.word(at + 8)?.load(Ordering::Relaxed);
        // A process that may write here may write anything.
        let mut text = vec![0; length.min(SLOT_BYTES - 16) as usize];
        self.memory.read(at + 16, &mut text)?;
        self.taken = number;
        self.memory.word(TAKEN)?.store(number, Ordering::Release);
        Ok(text)
    }
}

/// A sender's side.
struct Post(Import);

impl Post {
    fn send(&self, text: &[u8]) -> Result<()> {
        if text.len() as u64 > SLOT_BYTES - 16 {
            return Err("longer than a slot".into());
        }
        let number = self.0.fetch_add(TICKETS, 1)?;
        let mut taken = [0; 8];
        while number - u64::from_le_bytes(taken) >= SLOTS {
            self.0.fetch(TAKEN, &mut taken)?;
        }
        let body = [&(text.len() as u64).to_le_bytes(), text].concat();
        self.0.send(slot(number) + 8, &body)?;
        Ok(self.0.send(slot(number), &(number + 1).to_le_bytes())?)
    }
}

#[test]
fn many_senders_fill_one_mailbox_and_each_one_stays_in_order() {
    const SENDERS: u64 = 3;
    const EACH: u64 = 500;
    let node = Embedded::start(NodeConfig::new("mailbox").key(KeySource::Plain)).unwrap();
    let session = || Session::over(node.attach().unwrap()).unwrap();
    let owner = session();
    let memory = owner.export(FIRST + SLOTS * SLOT_BYTES).name("box").rights(Rights::ALL).create().unwrap();
    let mut mailbox = Mailbox { memory, taken: 0 };
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let session = session();
            scope.spawn(move || {
                let post = Post(session.import("box").rights(Rights::ALL).open().unwrap());
                assert!(post.send(&[0; 200]).is_err());
                (0..EACH).for_each(|i| post.send(format!("{sender} {i}").as_bytes()).unwrap());
            });
        }
        let mut next = [0; SENDERS as usize];
        for _ in 0..SENDERS * EACH {
            let text = String::from_utf8(mailbox.receive().unwrap()).unwrap();
            let (sender, number) = text.split_once(' ').unwrap();
            let next = &mut next[sender.parse::<usize>().unwrap()];
            assert_eq!(number.parse::<u64>().unwrap(), *next);
            *next += 1;
        }
        assert_eq!(next, [EACH; SENDERS as usize]);
    });
}
