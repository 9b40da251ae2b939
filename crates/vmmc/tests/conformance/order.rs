//! The promises of docs/memory-model.md.

use crate::nodes::{LONG, Nodes, Place, join, join_with, pattern};
use std::sync::atomic::{AtomicBool, Ordering};
use vmmc::SendOptions;

const ROUNDS: u64 = 3000;

pub(crate) fn sends_appear_in_order(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 4096);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Also when a send fails, so that the other side does not wait for ever.
                let _ended = Sets(&done);
                for i in 1..=ROUNDS {
                    j.import.send(0, &i.to_le_bytes()).unwrap();
                    j.import.send(2048, &i.to_le_bytes()).unwrap();
                }
                j.import.flush().unwrap();
            });
            let word = |offset| j.export.word(offset).unwrap().load(Ordering::Acquire);
            while !done.load(Ordering::Acquire) {
                let second = word(2048);
                let first = word(0);
                assert!(first >= second, "{place:?}: {second} was sent after {first}");
                std::thread::yield_now();
            }
            assert_eq!((word(0), word(2048)), (ROUNDS, ROUNDS));
        });
    }
}

/// Sets a flag when it goes.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

pub(crate) fn short_sends_come_after_the_long_ones_before_them(nodes: &dyn Nodes) {
    const LEN: usize = 3000;
    for place in Place::ALL {
        let (j, back) = (join(nodes, place, 4096), join(nodes, place, 4096));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..=200u64 {
                    // The word says that the data before it is there; the answer, that it was
                    // looked at.
                    j.import.send(0, &[i as u8; LEN]).unwrap();
                    j.import.send(LEN as u64, &i.to_le_bytes()).unwrap();
                    back.export.wait_word_by(0, |word| word == i, back.owner.deadline(LONG)).unwrap();
                }
            });
            for i in 1..=200u64 {
                j.export.wait_word_by(LEN as u64, |word| word == i, j.owner.deadline(LONG)).unwrap();
                let mut got = [0; LEN];
                j.export.read(0, &mut got).unwrap();
                assert!(got.iter().all(|b| *b == i as u8), "{place:?}: word {i} came before the data sent before it");
                back.import.send(0, &i.to_le_bytes()).unwrap();
            }
        });
    }
}

pub(crate) fn the_last_byte_of_a_send_appears_last(nodes: &dyn Nodes) {
    const LEN: usize = 4096;
    for place in Place::ALL {
        let j = join(nodes, place, LEN as u64);
        for i in 1..200u64 {
            let mut data = vec![i as u8; LEN];
            data[LEN - 8..].copy_from_slice(&i.to_le_bytes());
            std::thread::scope(|scope| {
                scope.spawn(|| j.import.send(0, &data).unwrap());
                j.export.wait_word_by(LEN as u64 - 8, |word| word == i, j.owner.deadline(LONG)).unwrap();
                let mut got = vec![0; LEN - 8];
                j.export.read(0, &mut got).unwrap();
                assert!(got.iter().all(|b| *b == i as u8), "{place:?}: the last word came before the rest");
            });
        }
    }
}

pub(crate) fn fetches_and_atomics_see_earlier_sends(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 1 << 20);
        for len in [8usize, 216, 217, 5000, 400_000] {
            for round in 0..5u8 {
                let data = pattern(len, round);
                j.import.send(8, &data).unwrap();
                let mut back = vec![0; len];
                j.import.fetch(8, &mut back).unwrap();
                assert!(back == data, "{place:?}: a fetch overtook a send of {len} bytes");
                j.import.send(0, &u64::from(round).to_le_bytes()).unwrap();
                assert_eq!(j.import.fetch_add(0, 1), Ok(u64::from(round)), "{place:?}: an atomic overtook a send");
            }
        }
    }
}

pub(crate) fn notifications_come_after_their_data(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 4096, |e| e.notify(true));
        for i in 1..300u64 {
            let data = vec![i as u8; 1000];
            // From another thread, so that this one can be too early.
            let n = std::thread::scope(|scope| {
                scope.spawn(|| j.import.send_with(0, &data, SendOptions::notify()).unwrap());
                let n = j.export.wait_notification().unwrap();
                let mut got = vec![0; 1000];
                j.export.read(0, &mut got).unwrap();
                assert!(got == data, "{place:?}: the notification came before its data");
                n
            });
            assert_eq!((n.export, n.offset, n.len), (j.export.id(), 0, 1000));
            assert_eq!(n.last_word, u64::from_le_bytes([i as u8; 8]));
        }
    }
}

pub(crate) fn sends_of_a_dropped_import_arrive(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 1 << 20);
        let data = pattern(700_000, 6);
        j.import.send(0, &data).unwrap();
        j.import.send(1_000_000, b"last").unwrap();
        drop(j.import);
        let mut got = vec![0; 700_000];
        j.export.read(0, &mut got).unwrap();
        assert!(got == data, "{place:?}");
        let mut last = [0; 4];
        j.export.read(1_000_000, &mut last).unwrap();
        assert_eq!(&last, b"last");
    }
}
