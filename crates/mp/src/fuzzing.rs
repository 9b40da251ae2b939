//! Doors for the fuzz target and for tests: what members say, and matching beside lists that are
//! searched from their beginnings.
//!
//! Invariant: what decodes encodes to the bytes it came from; a matcher and two lists agree.

use crate::matching::{Envelope, Matcher, Pattern};
use crate::wire::Said;

/// Throws bytes at the decoder, and has them say what is done to a matcher; how much that is.
pub fn everything(data: &[u8]) -> usize {
    if let Some((rank, said)) = Said::decode(data) {
        assert_eq!(said.encode(rank).bytes(), data);
    }
    let operations: Vec<Operation> =
        data.chunks_exact(3).map(|bytes| operation([bytes[0], bytes[1], bytes[2]])).collect();
    run(&operations);
    operations.len()
}

/// What some bytes say: of few contexts, senders and tags, so that they meet.
fn operation([what, first, second]: [u8; 3]) -> Operation {
    let (context, source, tag) = (u32::from(first & 1), u32::from(first >> 1 & 3), u64::from(first >> 3 & 3));
    let mask = [u64::MAX, 0, 1, 2][usize::from(second & 3)];
    let pattern = Pattern { context, source: (second & 4 == 0).then_some(source), tag, mask };
    match what % 8 {
        0..=2 => Operation::Arrive(Envelope { context, source, tag }),
        3 | 4 => Operation::Post(pattern),
        5 => Operation::Probe(pattern),
        6 if second & 8 == 0 => Operation::Take(pattern),
        6 => Operation::Remove(1 + u64::from(first % 4)),
        _ => Operation::Cancel(first.into()),
    }
}

/// What is done to both.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
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

/// Does the same to a matcher and to two lists, and has them agree.
pub(crate) fn run(operations: &[Operation]) {
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
                assert_eq!(taken, naive.arrive(envelope, step));
            }
            Operation::Post(pattern) => {
                let id = posted.len() as u64;
                posted.push(*pattern);
                let taken = naive.take(pattern);
                if taken.is_none() {
                    naive.posted.push((*pattern, id));
                }
                assert_eq!(matcher.post(pattern, id), taken);
            }
            Operation::Probe(pattern) => {
                let found = matcher.probe(pattern).map(|(envelope, message)| (*envelope, *message));
                assert_eq!(found, naive.probe(pattern));
            }
            Operation::Take(pattern) => assert_eq!(matcher.take(pattern), naive.take(pattern)),
            Operation::Remove(divisor) => {
                let of = |message: &u64| message % divisor == 0;
                let at = naive.waiting.iter().position(|(_, message)| of(message));
                let removed = at.map(|at| naive.waiting.remove(at));
                assert_eq!(matcher.remove_where(|_, message| of(message)), removed);
            }
            Operation::Cancel(nth) => {
                if let Some(pattern) = posted.get(*nth) {
                    assert_eq!(matcher.cancel(pattern, *nth as u64), naive.cancel(*nth as u64));
                }
            }
        }
        assert_eq!(matcher.waiting(), naive.waiting.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::VERSION;

    #[test]
    fn bytes_reach_every_operation() {
        let data: Vec<u8> = (0..3000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        assert_eq!(everything(&data), 1000);
        assert_eq!(everything(Said::Hello { version: VERSION }.encode(3).bytes()), 5);
    }
}
