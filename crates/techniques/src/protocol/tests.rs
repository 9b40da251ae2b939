//! The two ends against a naive model, and against words at random.

use super::*;
use crate::fuzzing;
use proptest::prelude::*;
use std::collections::VecDeque;

fn layout(technique: Technique) -> Layout {
    let exchange_from = technique.exchange_from(2 * PAGE);
    Layout { technique, window: 2 * PAGE, agreed: 3 * PAGE, pool: 5, own: 1, exchange_from }
}

fn fragment(kind: FragmentKind, total: u64, at: u64, len: u64, place: u64) -> Fragment {
    Fragment { kind, total, at, len, place }
}

#[test]
fn a_layout_comes_back_from_its_header_and_from_no_other() {
    let layout = layout(Technique::CopyDma);
    let bytes = layout.checked_bytes().unwrap();
    assert_eq!(Layout::decode(layout.encode(), bytes), Ok(layout));
    assert!(Layout::decode(layout.encode(), bytes + PAGE).is_err());
    for index in 0..HEADER_WORDS {
        for wrong in [0, u64::MAX, 1 << 63] {
            let mut words = layout.encode();
            if std::mem::replace(&mut words[index], wrong) != wrong {
                assert!(Layout::decode(words, bytes).is_err(), "word {index} is {wrong}");
            }
        }
    }
}

#[test]
fn both_ends_know_from_which_length_on_pages_are_exchanged() {
    let of = |technique: Technique, chosen| {
        let said = Layout { exchange_from: technique.exchange_from(chosen), ..layout(technique) };
        let layout = Layout::decode(said.encode(), said.checked_bytes().unwrap()).unwrap();
        (layout.may_exchange(), [0, 99, 100, MESSAGE_BYTES_MAX].map(|len| layout.exchanges(len)))
    };
    assert_eq!(of(Technique::Auto, 100), (true, [false, false, true, true]));
    assert_eq!(of(Technique::Auto, NEVER), (false, [false; 4]));
    assert_eq!(of(Technique::PexDma, NEVER), (true, [true; 4]));
    for other in [Technique::Pio, Technique::CopyDma, Technique::DirectDma, Technique::V2pDma] {
        assert_eq!(of(other, 100), (false, [false; 4]), "{other}");
    }
}

#[test]
fn fragments_that_cannot_be_are_refused() {
    let check = |technique, fragments: &[Fragment]| {
        let mut incoming = Incoming::new(layout(technique));
        let (last, before) = fragments.split_last().unwrap();
        before.iter().for_each(|fragment| {
            incoming.check(fragment).unwrap();
            incoming.take(fragment);
        });
        incoming.check(last).unwrap_err()
    };
    use FragmentKind::{Agreed, Frames, Window};
    let copy = |fragments: &[Fragment]| check(Technique::CopyDma, fragments);
    assert_eq!(copy(&[fragment(Window, 1, 0, 1, 0)]), Garbled::Kind(1));
    assert_eq!(copy(&[fragment(Frames, 9, 1, 1, 0)]), Garbled::Order { at: 1, expected: 0 });
    assert_eq!(copy(&[fragment(Frames, 9, 0, 10, 0)]), Garbled::Fragment { len: 10, room: 9 });
    assert_eq!(copy(&[fragment(Frames, 9, 0, 0, 0)]), Garbled::Fragment { len: 0, room: 9 });
    assert_eq!(copy(&[fragment(Frames, 9, 0, 1, 1)]), Garbled::Place { place: 1, expected: 0 });
    let long = 6 * PAGE;
    assert_eq!(copy(&[fragment(Frames, long, 0, long, 0)]), Garbled::Fragment { len: long, room: 5 * PAGE });
    assert_eq!(copy(&[fragment(Frames, u64::MAX, 0, 1, 0)]), Garbled::Length(u64::MAX));
    let first = fragment(Frames, 9, 0, 4, 0);
    assert_eq!(copy(&[first, fragment(Frames, 8, 4, 4, 1)]), Garbled::Length(8));
    assert_eq!(copy(&[first, fragment(Frames, 9, 4, 4, 0)]), Garbled::Place { place: 0, expected: 1 });
    let direct = |fragments: &[Fragment]| check(Technique::DirectDma, fragments);
    assert_eq!(direct(&[fragment(Agreed, 9, 0, 8, 0)]), Garbled::Fragment { len: 8, room: 9 });
    assert_eq!(direct(&[fragment(Agreed, 9, 0, 9, 3 * PAGE - 8)]), Garbled::Fragment { len: 9, room: 8 });
    assert_eq!(direct(&[fragment(Agreed, 9, 0, 9, u64::MAX)]), Garbled::Fragment { len: 9, room: 0 });
    assert_eq!(direct(&[fragment(Agreed, 0, 0, 0, 3 * PAGE + 1)]), Garbled::Fragment { len: 0, room: 0 });
}

#[test]
fn counts_that_cannot_be_are_refused_and_change_nothing() {
    let mut outgoing = Outgoing::new(&layout(Technique::CopyDma));
    outgoing.send(&fragment(FragmentKind::Frames, 2 * PAGE, 0, 2 * PAGE, 0));
    assert_eq!(outgoing.hear([2, 0, 0]), Err(Garbled::Count { count: 2, from: 0, to: 1 }));
    assert_eq!(outgoing.hear([0, 3, 0]), Err(Garbled::Count { count: 3, from: 0, to: 2 }));
    assert!(!outgoing.all_taken());
    assert_eq!((outgoing.hear([1, 2, 0]), outgoing.frames()), (Ok(true), (5, 2)));
    assert_eq!(outgoing.hear([0, 2, 0]), Err(Garbled::Count { count: 0, from: 1, to: 1 }));
    assert_eq!(outgoing.hear([1, 1, 0]), Err(Garbled::Count { count: 1, from: 2, to: 2 }));
}

#[test]
fn tables_with_pages_of_other_parts_are_refused() {
    let layout = layout(Technique::PexDma);
    assert_eq!(layout.check_pages(&layout.first_table()), Ok(()));
    assert_eq!(layout.check_pages(&layout.own_pages()), Ok(()));
    for page in [0, layout.first_page() as u32 - 1, layout.end_page() as u32, u32::MAX] {
        assert!(matches!(layout.check_pages(&[page]), Err(Garbled::Page { .. })), "page {page}");
    }
}

#[test]
fn posted_buffers_are_filled_in_turn_and_within_their_lengths() {
    let layout = layout(Technique::V2pDma);
    let (mut outgoing, mut incoming) = (Outgoing::new(&layout), Incoming::new(layout));
    let message = |len, place| fragment(FragmentKind::Posted, len, 0, len, place);
    assert_eq!((outgoing.posting(), incoming.check(&message(0, 0))), (None, Err(Garbled::Kind(4))));
    for number in 0..POSTED_MAX as u64 {
        assert_eq!(incoming.posting(), Some(number));
        incoming.post(number);
    }
    assert_eq!((incoming.posting(), incoming.posted()), (None, POSTED_MAX as u64));
    assert!(matches!(outgoing.hear([0, 0, POSTED_MAX as u64 + 1]), Err(Garbled::Count { .. })));
    assert_eq!(outgoing.hear([0, 0, incoming.posted()]), Ok(false));
    assert_eq!(incoming.check(&message(1, 0)), Err(Garbled::Fragment { len: 1, room: 0 }));
    assert_eq!(incoming.check(&message(0, 1)), Err(Garbled::Place { place: 1, expected: 0 }));
    for number in 0..POSTED_MAX as u64 {
        assert_eq!(outgoing.posting(), Some(number));
        let message = message(number, number);
        outgoing.send(&message);
        assert_eq!((incoming.check(&message), incoming.take(&message)), (Ok(()), Some(number)));
    }
    assert_eq!((outgoing.posting(), incoming.posting()), (None, Some(POSTED_MAX as u64)));
    let posting = Posting { memory: 3, offset: 4, len: 5 };
    assert_eq!(Posting::decode(&posting.encode(7), 7), Ok(posting));
    assert_eq!(Posting::decode(&posting.encode(7), 71), Err(Garbled::Place { place: 7, expected: 71 }));
}

proptest! {
    /// The model is a queue of lengths: what is sent is taken whole and in order, and the two ends
    /// never disagree about how much is free.
    #[test]
    fn both_ends_agree_with_a_queue_of_messages(
        steps in proptest::collection::vec((any::<bool>(), 0..8 * PAGE, any::<bool>()), 1..200),
    ) {
        let layout = layout(Technique::CopyDma);
        let (mut outgoing, mut incoming) = (Outgoing::new(&layout), Incoming::new(layout));
        // Notices on their way; messages that were sent whole and not taken.
        let (mut notices, mut model) = (VecDeque::new(), VecDeque::new());
        // The message that is being sent: how much of it is gone, and its length.
        let mut amid: Option<(u64, u64)> = None;
        for (sends, len, gives_up) in steps {
            if sends {
                let (at, total) = amid.unwrap_or((0, len));
                let (free, place) = outgoing.frames();
                prop_assert!(free <= 5);
                let part = (total - at).min(2 * PAGE);
                let fragment = match gives_up && at > 0 {
                    true => Fragment::abandon(),
                    false => Fragment { kind: FragmentKind::Frames, total, at, len: part, place },
                };
                let Some(number) = outgoing.number().filter(|_| fragment.frames() <= free) else { continue };
                outgoing.send(&fragment);
                notices.push_back(fragment.encode(number));
                amid = Some((at + part, total)).filter(|_| fragment.kind == FragmentKind::Frames && at + part < total);
                if fragment.kind == FragmentKind::Frames && amid.is_none() {
                    model.push_back(total);
                }
            } else if let Some(notice) = notices.pop_front() {
                prop_assert_eq!(words::<8>(&notice)[7], incoming.number() + 1);
                let fragment = Fragment::decode(&notice).unwrap();
                prop_assert_eq!(incoming.check(&fragment), Ok(()));
                if let Some(total) = incoming.take(&fragment) {
                    prop_assert_eq!(Some(total), model.pop_front());
                }
                outgoing.hear([incoming.number(), incoming.given_back(), incoming.posted()]).unwrap();
                prop_assert_eq!(outgoing.all_taken(), notices.is_empty());
            }
        }
        prop_assert!(model.len() <= notices.len());
    }

    /// By the door of the fuzz target.
    #[test]
    fn bytes_at_random_are_refused_or_stay_within_the_channel(
        data in proptest::collection::vec(prop_oneof![Just(0u8), 0..6u8, any::<u8>()], 0..2000),
    ) {
        fuzzing::everything(&data);
    }

    /// Whatever is written: an error, or a fragment that lies in the channel and goes on with its
    /// message.
    #[test]
    fn notices_at_random_are_refused_or_lie_in_the_channel(
        technique in 0..Technique::ALL.len(),
        notices in proptest::collection::vec(proptest::array::uniform5(prop_oneof![0..6u64, 0..7 * PAGE, any::<u64>()]), 1..40),
    ) {
        let layout = layout(Technique::ALL[technique]);
        let mut incoming = Incoming::new(layout);
        let mut at = 0;
        for [kind, total, from, len, place] in notices {
            let mut bytes = [0; NOTICE_BYTES as usize];
            let words = [kind, total, from, len, place, 0, 0, incoming.number() + 1];
            bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
            let Ok(fragment) = Fragment::decode(&bytes) else { continue };
            if incoming.posted() < 3 {
                incoming.post(PAGE);
            }
            if incoming.check(&fragment).is_err() {
                continue;
            }
            let before = incoming.given_back();
            let over = incoming.take(&fragment);
            prop_assert!(incoming.given_back() - before <= layout.pool);
            if fragment.kind == FragmentKind::Abandon {
                at = 0;
                continue;
            }
            prop_assert_eq!(fragment.at, at);
            prop_assert!(fragment.at + fragment.len <= fragment.total && fragment.total <= MESSAGE_BYTES_MAX);
            prop_assert!(fragment.kind != FragmentKind::Agreed || place + len <= layout.agreed);
            prop_assert!(fragment.kind != FragmentKind::Posted || len <= PAGE && place < 3);
            prop_assert!(fragment.kind != FragmentKind::Window || len <= layout.window);
            at = if over.is_some() { 0 } else { at + len };
        }
    }
}

/// Words as they should be, but for the kind of the notice: the doors of the target lead somewhere.
#[test]
fn the_doors_of_the_fuzz_target_lead_to_notices_that_are_taken() {
    let kind = |i: usize, seed: u8| if i % 45 == 1 { (i / 45) as u8 ^ seed } else { 0 };
    let data = |seed| (0..45 * 20).map(|i| kind(i, seed)).collect::<Vec<u8>>();
    let taken: usize = (0..64).map(|seed| fuzzing::everything(&data(seed))).sum();
    assert!(taken > 64, "{taken} were taken");
}
