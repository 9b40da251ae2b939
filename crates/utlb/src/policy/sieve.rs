//! SIEVE: a FIFO whose hand stays where it is and leaves survivors in place (Zhang et al., NSDI
//! 2024).
//!
//! Invariant: `hand` is a slot of the list or `None`, which means the oldest. A search ends after
//! two rounds: the first takes every mark away.

use super::list::List;
use super::{Held, Policy};
use crate::ids::{Page, Slot};

/// Gives up the first unmarked page from the hand towards newer pages.
#[derive(Clone, Debug)]
pub struct Sieve {
    order: List,
    visited: Vec<bool>,
    hand: Option<Slot>,
}

impl Default for Sieve {
    fn default() -> Sieve {
        Sieve::new()
    }
}

impl Sieve {
    /// Without slots.
    pub fn new() -> Sieve {
        Sieve { order: List::new(), visited: Vec::new(), hand: None }
    }
}

impl Policy for Sieve {
    fn inserted(&mut self, slot: Slot, _page: Page) {
        if self.visited.len() <= slot.at() {
            self.visited.resize(slot.at() + 1, false);
        }
        self.visited[slot.at()] = false;
        self.order.push_front(slot);
    }

    fn touched(&mut self, slot: Slot) {
        self.visited[slot.at()] = true;
    }

    fn removed(&mut self, slot: Slot, _page: Page, _evicted: bool) {
        if self.hand == Some(slot) {
            self.hand = self.order.newer(slot);
        }
        self.order.remove(slot);
    }

    fn victim(&mut self, held: &Held) -> Option<Slot> {
        for _ in 0..2 * self.order.len() {
            let at = self.hand.or_else(|| self.order.back())?;
            if !held.contains(at) && !self.visited[at.at()] {
                self.hand = Some(at);
                return Some(at);
            }
            self.visited[at.at()] = false;
            self.hand = self.order.newer(at);
        }
        None
    }
}
