//! Rings against a model (plain queue), against a hostile other side, and under loom.

use super::*;

#[cfg(loom)]
use loom::sync::Arc;
#[cfg(not(loom))]
use std::sync::Arc;

#[cfg(not(loom))]
const SHAPE: Shape = Shape { slots: 4, slot_words: 8 };

#[derive(Clone)]
struct HeapWords(Arc<Vec<AtomicU64>>);

impl HeapWords {
    fn new(shape: Shape) -> Self {
        HeapWords(Arc::new((0..shape.words()).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl Words for HeapWords {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

fn put<W: Words>(producer: &mut Producer<W>, value: u64) -> bool {
    let Some(mut slot) = producer.claim() else { return false };
    slot.set(1, value);
    slot.set(7, !value);
    slot.publish();
    true
}

fn take<W: Words>(consumer: &mut Consumer<W>) -> Option<u64> {
    let full = consumer.peek()?;
    let value = full.word(1);
    assert_eq!(full.word(7), !value, "torn message");
    full.done();
    Some(value)
}

#[cfg(not(loom))]
mod plain {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn behaves_like_a_bounded_queue() {
        let words = HeapWords::new(SHAPE);
        let (mut producer, mut consumer) = (Producer::new(words.clone(), SHAPE), Consumer::new(words, SHAPE));
        let (mut model, mut next, mut rng) = (VecDeque::new(), 0u64, vmmc_utlb::Rng::new(12345));
        let rounds = if cfg!(miri) { 4_000 } else { 20_000 };
        for _ in 0..rounds {
            if rng.below(2) == 0 {
                let accepted = put(&mut producer, next);
                assert!(!accepted || model.len() < SHAPE.slots);
                assert!(accepted || !model.is_empty(), "an empty ring refuses");
                if accepted {
                    model.push_back(next);
                    next += 1;
                }
            } else {
                assert_eq!(take(&mut consumer), model.pop_front());
            }
        }
        assert!(next > 1000);
    }

    #[test]
    fn bytes_of_any_length_pass() {
        let shape = Shape { slots: 2, slot_words: 32 };
        let words = HeapWords::new(shape);
        let (mut producer, mut consumer) = (Producer::new(words.clone(), shape), Consumer::new(words, shape));
        for len in 0..=216 {
            let data: Vec<u8> = (0..len as u8).collect();
            let mut slot = producer.claim().expect("emptied each time");
            slot.set_bytes(5, &data);
            slot.publish();
            let full = consumer.peek().expect("just published");
            let mut got = vec![0; len];
            full.bytes(5, &mut got);
            full.done();
            assert_eq!(got, data);
        }
    }

    #[test]
    fn a_lying_consumer_only_makes_the_ring_look_full() {
        let words = HeapWords::new(SHAPE);
        let mut producer = Producer::new(words.clone(), SHAPE);
        (0..4).for_each(|i| assert!(put(&mut producer, i)));
        for lie in [5, u64::MAX, 1 << 40] {
            words.0[SHAPE.given_back()].store(lie, Ordering::Release);
            assert!(!put(&mut producer, 9), "believed {lie}");
        }
        words.0[SHAPE.given_back()].store(4, Ordering::Release);
        assert!(put(&mut producer, 4));
    }

    #[test]
    fn a_lying_producer_only_makes_the_consumer_wait() {
        let words = HeapWords::new(SHAPE);
        let mut consumer = Consumer::new(words.clone(), SHAPE);
        for lie in [2, u64::MAX, 5] {
            words.0[0].store(lie, Ordering::Release);
            assert_eq!(take(&mut consumer), None);
        }
    }

    #[test]
    fn threads_pass_every_message_once_and_in_order() {
        let count = if cfg!(miri) { 200 } else { 200_000 };
        let words = HeapWords::new(SHAPE);
        let (mut producer, mut consumer) = (Producer::new(words.clone(), SHAPE), Consumer::new(words, SHAPE));
        let thread = std::thread::spawn(move || {
            for i in 0..count {
                while !put(&mut producer, i) {
                    std::thread::yield_now();
                }
            }
        });
        for i in 0..count {
            loop {
                if let Some(value) = take(&mut consumer) {
                    assert_eq!(value, i);
                    break;
                }
                std::thread::yield_now();
            }
        }
        thread.join().expect("producer");
    }
}

#[cfg(loom)]
#[test]
fn loom_passes_every_message_once_and_in_order() {
    const TINY: Shape = Shape { slots: 2, slot_words: 8 };
    loom::model(|| {
        let words = HeapWords::new(TINY);
        let (mut producer, mut consumer) = (Producer::new(words.clone(), TINY), Consumer::new(words, TINY));
        let thread = loom::thread::spawn(move || {
            let mut sent = 0;
            while sent < 3 {
                if put(&mut producer, sent) {
                    sent += 1;
                } else {
                    loom::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < 3 {
            match take(&mut consumer) {
                Some(value) => {
                    assert_eq!(value, expected);
                    expected += 1;
                }
                None => loom::thread::yield_now(),
            }
        }
        thread.join().unwrap();
    });
}
