//! CLOCK: FIFO with a second chance, LRU's cheap relative; a use costs one store and no list.
//!
//! Invariant: the list is in the order of insertion or of the last second chance. A search ends
//! after two rounds: the first takes every bit away.

use super::list::List;
use super::{Held, Policy};
use crate::ids::{Page, Slot};

/// Gives up the oldest page that was not used since the hand last passed it.
#[derive(Clone, Debug)]
pub struct Clock {
    order: List,
    used: Vec<bool>,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

impl Clock {
    /// Without slots.
    pub fn new() -> Clock {
        Clock { order: List::new(), used: Vec::new() }
    }
}

impl Policy for Clock {
    fn inserted(&mut self, slot: Slot, _page: Page) {
        if self.used.len() <= slot.at() {
            self.used.resize(slot.at() + 1, false);
        }
        self.used[slot.at()] = false;
        self.order.push_front(slot);
    }

    fn touched(&mut self, slot: Slot) {
        self.used[slot.at()] = true;
    }

    fn removed(&mut self, slot: Slot, _page: Page, _evicted: bool) {
        self.order.remove(slot);
    }

    fn victim(&mut self, held: &Held) -> Option<Slot> {
        for _ in 0..2 * self.order.len() {
            let oldest = self.order.back()?;
            if !held.contains(oldest) && !self.used[oldest.at()] {
                return Some(oldest);
            }
            self.used[oldest.at()] = false;
            self.order.move_to_front(oldest);
        }
        None
    }
}
