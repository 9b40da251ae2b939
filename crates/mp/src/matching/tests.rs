//! The matcher against lists that are searched from their beginnings.

use super::{Envelope, Matcher, Pattern};
use crate::fuzzing::{Operation, run};
use proptest::prelude::*;

fn envelope() -> impl Strategy<Value = Envelope> {
    (0..2u32, 0..3u32, 0..3u64).prop_map(|(context, source, tag)| Envelope { context, source, tag })
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let mask = prop_oneof![3 => Just(u64::MAX), 1 => Just(0), 1 => Just(1), 1 => Just(2)];
    (envelope(), any::<bool>(), mask).prop_map(|(Envelope { context, source, tag }, any, mask)| Pattern {
        context,
        source: (!any).then_some(source),
        tag,
        mask,
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => envelope().prop_map(Operation::Arrive),
        4 => pattern().prop_map(Operation::Post),
        1 => pattern().prop_map(Operation::Probe),
        1 => pattern().prop_map(Operation::Take),
        1 => (1..5u64).prop_map(Operation::Remove),
        1 => (0..64usize).prop_map(Operation::Cancel),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 2000 }))]

    #[test]
    fn it_matches_as_two_lists_do(operations in proptest::collection::vec(operation(), 0..200)) {
        run(&operations);
    }
}

#[test]
fn the_oldest_receive_wins_whether_it_names_its_sender_or_not() {
    let envelope = Envelope { context: 0, source: 1, tag: 5 };
    let exact = Pattern { context: 0, source: Some(1), tag: 5, mask: u64::MAX };
    let any = Pattern { source: None, mask: 0, ..exact };
    let mut matcher: Matcher<()> = Matcher::default();
    for (id, pattern) in [any, exact, any, exact].iter().enumerate() {
        assert_eq!(matcher.post(pattern, id as u64), None);
    }
    let order: Vec<_> = (0..5).map(|_| matcher.arrive(&envelope)).collect();
    assert_eq!(order, [Some(0), Some(1), Some(2), Some(3), None]);
}

#[test]
fn messages_that_were_taken_leave_no_memory_behind() {
    let envelope = Envelope { context: 0, source: 1, tag: 5 };
    let any = Pattern { context: 0, source: None, tag: 0, mask: 0 };
    let mut matcher = Matcher::default();
    for round in 0..1000 {
        (0..3).for_each(|tag| matcher.keep(Envelope { tag, ..envelope }, round));
        (0..3).for_each(|tag| assert_eq!(matcher.take(&any), Some((Envelope { tag, ..envelope }, round))));
    }
    assert_eq!((matcher.waiting.len(), matcher.by_envelope.len()), (3, 0));
}
