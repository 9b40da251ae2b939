//! Connections that are to be closed: they misbehaved, or their processes have gone.
//!
//! Closing one is work that its client chose the size of, so it is done in turns, users in turn.
//! Until then the connection is as it was, but that nothing is read from it any more: its process
//! is about as gone as one that has not been seen to end yet. An export that wants a name of it has
//! it closed first.
//!
//! Invariant: each connection is in here at most once, by its number, so that another one in its
//! place is not closed for it.

use super::Station;
use crate::limits::{CLOSES_PER_TURN, CLOSES_PER_TURN_OF_PROCESSES};
use std::collections::VecDeque;
use vmmc_nic::{ProcessId, Time};

/// By user: index and number of the connection.
#[derive(Default)]
pub(super) struct ReapQueue(VecDeque<(u32, VecDeque<(usize, u64)>)>);

impl ReapQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, uid: u32, index: usize, number: u64) {
        match self.0.iter_mut().find(|(user, _)| *user == uid) {
            Some((_, all)) => all.push_back((index, number)),
            None => self.0.push_back((uid, VecDeque::from([(index, number)]))),
        }
    }

    fn next(&mut self) -> Option<(usize, u64)> {
        let (uid, mut all) = self.0.pop_front()?;
        let next = all.pop_front();
        if !all.is_empty() {
            self.0.push_back((uid, all));
        }
        next
    }
}

impl Station {
    /// Has a connection closed by the next [`reap`](Self::reap).
    pub(super) fn close_later(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { return };
        if !std::mem::replace(&mut connection.is_closing, true) {
            self.reap_queue.add(connection.who.uid, index, connection.number);
        }
    }

    /// Closes connections that are to be closed, as many as a turn allows; returns whether there
    /// were any.
    pub(super) fn reap(&mut self, now: Time) -> bool {
        let mut left = CLOSES_PER_TURN;
        let any = !self.reap_queue.is_empty();
        while left > 0 {
            let Some((index, number)) = self.reap_queue.next() else { break };
            let Some(connection) = self.connections[index].as_ref().filter(|c| c.number == number) else { continue };
            let is_large = connection.process.is_some() || connection.service.is_some();
            left = left.saturating_sub(if is_large { CLOSES_PER_TURN / CLOSES_PER_TURN_OF_PROCESSES } else { 1 });
            self.close(index, now);
        }
        any
    }

    /// Closes the connection of a process at once, if it is to be closed; returns whether it was.
    pub(super) fn reap_first(&mut self, process: ProcessId, now: Time) -> bool {
        let Some(index) = self.by_slot.get(process.slot()).copied().flatten() else { return false };
        let is_it = self.connections[index]
            .as_ref()
            .is_some_and(|c| c.is_closing && self.process_id_at(index) == Some(process));
        if is_it {
            self.close(index, now);
        }
        is_it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_their_turns_and_each_its_own_order() {
        let mut reap_queue = ReapQueue::default();
        (0..4).for_each(|at| reap_queue.add(1, at, at as u64));
        (4..6).for_each(|at| reap_queue.add(2, at, at as u64));
        let order: Vec<usize> = std::iter::from_fn(|| reap_queue.next()).map(|(index, _)| index).collect();
        assert_eq!(order, [0, 4, 1, 5, 2, 3]);
        assert!(reap_queue.is_empty());
    }
}
