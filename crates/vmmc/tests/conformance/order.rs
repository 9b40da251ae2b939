//! The promises of docs/memory-model.md.

use crate::nodes::{Joined, LONG, Nodes, Place, join, join_with, pattern};
use std::sync::atomic::{AtomicBool, Ordering};
use vmmc::{Import, Rights, SendOptions};

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

/// One more import of what was joined, with an order of its own or that of the process.
fn again(nodes: &dyn Nodes, place: Place, j: &Joined, own_order: bool) -> Import {
    let import = j.user.import_id(j.export.id()).rights(Rights::ALL);
    let import = if place == Place::Network { import.node(&nodes.name(0)) } else { import };
    if own_order { import.own_order().open().unwrap() } else { import.open().unwrap() }
}

pub(crate) fn an_import_with_an_order_of_its_own_does_not_wait_for_bulk_of_another(nodes: &dyn Nodes) {
    const BULK: usize = 16 << 20;
    for place in Place::ALL {
        let j = join(nodes, place, BULK as u64 + 8);
        let (own, plain) = (again(nodes, place, &j, true), again(nodes, place, &j, false));
        let memory = j.user.buffer(BULK as u64).unwrap();
        let mut passed = 0;
        for round in 1..=50u64 {
            memory.write(BULK as u64 - 8, &round.to_le_bytes()).unwrap();
            let mut bulk = j.import.post_send(0, memory.range(0..BULK as u64), SendOptions::default()).unwrap();
            let ended = bulk.poll();
            assert_eq!(own.fetch_add(BULK as u64, 1), Ok(round - 1), "{place:?}");
            let mut last = [[0; 8]; 2];
            own.fetch(BULK as u64 - 8, &mut last[0]).unwrap();
            plain.fetch(BULK as u64 - 8, &mut last[1]).unwrap();
            assert_eq!(u64::from_le_bytes(last[1]), round, "{place:?}: a fetch overtook a send");
            // How far the bulk comes in the meantime is not to be known. What has ended at once
            // holds nothing up.
            passed += u64::from(ended.is_some() || u64::from_le_bytes(last[0]) < round);
            ended.unwrap_or_else(|| bulk.wait()).unwrap();
            if passed > 2 {
                break;
            }
        }
        assert!(passed > 2, "{place:?}: {passed} fetches came before the end of the bulk");
    }
}

pub(crate) fn an_import_with_an_order_of_its_own_keeps_it(nodes: &dyn Nodes) {
    const BULK: usize = 1 << 20;
    for place in Place::ALL {
        let j = join(nodes, place, 2 * BULK as u64);
        let own = again(nodes, place, &j, true);
        let memory = j.user.buffer(BULK as u64).unwrap();
        for round in 1..=20u8 {
            let mut bulk = j.import.post_send(0, memory.range(0..BULK as u64), SendOptions::default()).unwrap();
            // Long and short by turns, each over a part of the one before.
            let mut expected = vec![0; 60_000];
            for (step, len) in [60_000, 4_000, 300, 20_000, 216, 8].into_iter().enumerate() {
                let data = pattern(len, round + step as u8);
                expected[4 * step..][..len].copy_from_slice(&data);
                own.send((BULK + 4 * step) as u64, &data).unwrap();
            }
            let mut back = vec![0; 60_000];
            own.fetch(BULK as u64, &mut back).unwrap();
            assert!(back == expected, "{place:?}: sends or a fetch through one import overtook each other");
            bulk.wait().unwrap();
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
