//! Loom explores the entry of a token table: its owner, and senders that map it, on threads of
//! their own. The engine changes entries by the same methods, on one thread.
//!
//! Checked: one of an arrival, another one, and a cancel wins; who won has the buffer alone, so
//! nothing lands after a cancel has returned; what is done is whole.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread::{self, JoinHandle};
use vmmc_nic::{OpError, TokenPart, TokenState, TokenWords};

const KEY: u64 = 4;
const NEXT_KEY: u64 = 8;
/// Bytes of the buffer, and where it is.
const BYTES: u64 = 16;
const BUFFER_AT: u64 = 64;
const EXPORT_BYTES: u64 = 128;

#[derive(Default)]
struct Table {
    entry: [AtomicU64; 5],
    /// Two who have it at once are an error of the model.
    buffer: Buffer,
}

#[derive(Default)]
struct Buffer(UnsafeCell<u64>);

// SAFETY: loom finds accesses that are not ordered, which is what it is for.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn write(&self, value: u64) {
        // SAFETY: as above.
        self.0.with_mut(|at| unsafe { *at = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|at| unsafe { *at })
    }
}

/// The words as one of them reaches them.
struct Words(Arc<Table>);

impl TokenWords for Words {
    fn load(&mut self, word: usize, order: Ordering) -> u64 {
        self.0.entry[word].load(order)
    }
    fn store(&mut self, word: usize, value: u64, order: Ordering) {
        self.0.entry[word].store(value, order);
    }
    fn compare_swap(&mut self, expected: u64, desired: u64, [done, not]: [Ordering; 2]) -> Result<u64, u64> {
        self.0.entry[0].compare_exchange(expected, desired, done, not)
    }
}

/// Sends a payload by the key; whether it was let in.
fn sender(table: &Arc<Table>, key: u64, tag: u64) -> JoinHandle<bool> {
    let mut words = Words(table.clone());
    thread::spawn(move || {
        let part = TokenPart { index: 0, key, tag, total: BYTES };
        match words.take(&part, 0, BYTES, EXPORT_BYTES) {
            Ok(to) => {
                assert_eq!(to, BUFFER_AT);
                words.0.buffer.write(tag);
                words.finish(key);
                true
            }
            Err(refused) => {
                assert_eq!(refused, OpError::TokenRefused { index: 0 });
                false
            }
        }
    })
}

/// Waits for the payload that has the key, and takes it out: who sent it.
fn receive(words: &mut Words, key: u64) -> u64 {
    while words.state() != (key, TokenState::Done) {
        assert_eq!(words.state().0, key);
        thread::yield_now();
    }
    let (tag, len) = words.payload();
    assert_eq!((words.0.buffer.read(), len), (tag, BYTES));
    tag
}

#[test]
fn loom_one_of_two_arrivals_and_a_cancel_wins() {
    loom::model(|| {
        let table = Arc::new(Table::default());
        let mut owner = Words(table.clone());
        owner.arm(KEY, BUFFER_AT, BYTES);
        let senders = [1, 2].map(|tag| sender(&table, KEY, tag));
        let cancelled = owner.cancel(KEY);
        let came = if cancelled {
            // It is the owner's at once, whatever senders are about to do.
            owner.0.buffer.write(99);
            assert!(owner.cancel(KEY));
            None
        } else {
            Some(receive(&mut owner, KEY))
        };
        let [first, second] = senders.map(|sender| sender.join().unwrap());
        assert_eq!([first, second], [came == Some(1), came == Some(2)]);
        assert!(!cancelled || owner.0.buffer.read() == 99, "something landed after the cancel");
    });
}

#[test]
fn loom_a_buffer_that_is_armed_again_takes_nothing_by_its_former_key() {
    loom::model(|| {
        let table = Arc::new(Table::default());
        let mut owner = Words(table.clone());
        owner.arm(KEY, BUFFER_AT, BYTES);
        let late = sender(&table, KEY, 1);
        let came = if owner.cancel(KEY) { None } else { Some(receive(&mut owner, KEY)) };
        owner.arm(NEXT_KEY, BUFFER_AT, BYTES);
        assert!(sender(&table, NEXT_KEY, 2).join().unwrap());
        assert_eq!(receive(&mut owner, NEXT_KEY), 2);
        assert_eq!(late.join().unwrap(), came.is_some());
    });
}

#[test]
fn loom_who_finds_a_key_armed_finds_its_buffer() {
    loom::model(|| {
        let table = Arc::new(Table::default());
        let mut owner = Words(table.clone());
        // One that guesses, or was told by somebody who saw less.
        let early = sender(&table, KEY, 1);
        owner.arm(KEY, BUFFER_AT, BYTES);
        let cancelled = owner.cancel(KEY);
        assert_eq!(early.join().unwrap(), !cancelled);
    });
}
