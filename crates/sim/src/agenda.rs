//! What is to happen in a simulation, by time.
//!
//! Invariant: what is due at the same time happens in the order in which it was asked for, so a
//! seed gives the same run everywhere.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Things that will happen.
pub(crate) struct Agenda<T> {
    due: BinaryHeap<Reverse<Entry<T>>>,
    asked: u64,
}

struct Entry<T> {
    at_ns: u64,
    /// Breaks ties.
    order: u64,
    what: T,
}

impl<T> Entry<T> {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.order)
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Entry<T>) -> bool {
        self.key() == other.key()
    }
}
impl<T> Eq for Entry<T> {}
impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Entry<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Entry<T>) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<T> Agenda<T> {
    pub(crate) fn new() -> Agenda<T> {
        Agenda { due: BinaryHeap::new(), asked: 0 }
    }

    pub(crate) fn push(&mut self, at_ns: u64, what: T) {
        self.asked += 1;
        self.due.push(Reverse(Entry { at_ns, order: self.asked, what }));
    }

    /// Takes the next thing out, unless it lies beyond `until_ns`, with its time.
    pub(crate) fn pop_until(&mut self, until_ns: u64) -> Option<(u64, T)> {
        if self.due.peek().is_none_or(|Reverse(next)| next.at_ns > until_ns) {
            return None;
        }
        self.due.pop().map(|Reverse(next)| (next.at_ns, next.what))
    }

    /// Things ever asked for.
    pub(crate) fn asked(&self) -> u64 {
        self.asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_by_time_and_then_in_the_order_of_asking() {
        let mut agenda = Agenda::new();
        [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')].into_iter().for_each(|(at_ns, what)| agenda.push(at_ns, what));
        assert_eq!(agenda.pop_until(0), None);
        let mut order = Vec::new();
        while let Some(next) = agenda.pop_until(5) {
            order.push(next);
        }
        assert_eq!(order, [(1, 'a'), (2, 'b'), (5, 'c'), (5, 'd')]);
        assert_eq!(agenda.asked(), 4);
    }
}
