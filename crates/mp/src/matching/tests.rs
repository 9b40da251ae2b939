//! The matcher against lists that are searched from their beginnings.

use super::{Envelope, Matcher, Pattern};
use proptest::prelude::*;

/// What is done to both.
#[derive(Clone, Debug)]
enum Operation {
    Arrive(Envelope),
    Post(Pattern),
    Probe(Pattern),
    Take(Pattern),
    /// Of messages that came in such a step.
    Remove(u64),
    /// Of the receive that was posted as the n-th.
    Cancel(usize),
}

/// Two lists.
#[derive(Default)]
struct Naive {
    posted: Vec<(Pattern, u64)>,
    waiting: Vec<(Envelope, u64)>,
}

impl Naive {
    fn arrive(&mut self, envelope: &Envelope, message: u64) -> Option<u64> {
        match self.posted.iter().position(|(pattern, _)| pattern.is_for(envelope)) {
            Some(at) => Some(self.posted.remove(at).1),
            None => {
                self.waiting.push((*envelope, message));
                None
            }
        }
    }

    fn probe(&self, pattern: &Pattern) -> Option<(Envelope, u64)> {
        self.waiting.iter().find(|(envelope, _)| pattern.is_for(envelope)).copied()
    }

    fn take(&mut self, pattern: &Pattern) -> Option<(Envelope, u64)> {
        let at = self.waiting.iter().position(|(envelope, _)| pattern.is_for(envelope))?;
        Some(self.waiting.remove(at))
    }

    fn cancel(&mut self, id: u64) -> bool {
        let before = self.posted.len();
        self.posted.retain(|(_, posted)| *posted != id);
        self.posted.len() < before
    }
}

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

fn run(operations: &[Operation]) -> Result<(), TestCaseError> {
    let (mut matcher, mut naive) = (Matcher::default(), Naive::default());
    let mut posted: Vec<Pattern> = Vec::new();
    for (step, operation) in operations.iter().enumerate() {
        let step = step as u64;
        match operation {
            Operation::Arrive(envelope) => {
                let taken = matcher.arrive(envelope);
                if taken.is_none() {
                    matcher.keep(*envelope, step);
                }
                prop_assert_eq!(taken, naive.arrive(envelope, step));
            }
            Operation::Post(pattern) => {
                let id = posted.len() as u64;
                posted.push(*pattern);
                let taken = naive.take(pattern);
                if taken.is_none() {
                    naive.posted.push((*pattern, id));
                }
                prop_assert_eq!(matcher.post(pattern, id), taken);
            }
            Operation::Probe(pattern) => {
                let found = matcher.probe(pattern).map(|(envelope, message)| (*envelope, *message));
                prop_assert_eq!(found, naive.probe(pattern));
            }
            Operation::Take(pattern) => prop_assert_eq!(matcher.take(pattern), naive.take(pattern)),
            Operation::Remove(divisor) => {
                let of = |message: &u64| message % divisor == 0;
                let at = naive.waiting.iter().position(|(_, message)| of(message));
                let removed = at.map(|at| naive.waiting.remove(at));
                prop_assert_eq!(matcher.remove_where(|_, message| of(message)), removed);
            }
            Operation::Cancel(nth) => {
                if let Some(pattern) = posted.get(*nth) {
                    prop_assert_eq!(matcher.cancel(pattern, *nth as u64), naive.cancel(*nth as u64));
                }
            }
        }
        prop_assert_eq!(matcher.waiting(), naive.waiting.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 2000 }))]

    #[test]
    fn it_matches_as_two_lists_do(operations in proptest::collection::vec(operation(), 0..200)) {
        run(&operations)?;
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
