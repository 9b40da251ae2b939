//! RANDOM. [UTLB §3.4]
//!
//! Invariant: `slots[places[s]] == s` for each slot that is in. The same seed and calls give the
//! same victims.

use super::{Held, Policy};
use crate::ids::{Page, Slot};
use crate::rng::Rng;

/// Gives up any page.
#[derive(Clone, Debug)]
pub struct Random {
    slots: Vec<Slot>,
    places: Vec<u32>,
    rng: Rng,
}

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random { slots: Vec::new(), places: Vec::new(), rng: Rng::new(seed) }
    }
}

impl Policy for Random {
    fn inserted(&mut self, slot: Slot, _page: Page) {
        if self.places.len() <= slot.at() {
            self.places.resize(slot.at() + 1, 0);
        }
        self.places[slot.at()] = u32::try_from(self.slots.len()).expect("slots are numbered by 32 bits");
        self.slots.push(slot);
    }

    fn touched(&mut self, _slot: Slot) {}

    fn removed(&mut self, slot: Slot, _page: Page, _evicted: bool) {
        let place = self.places[slot.at()];
        self.slots.swap_remove(place as usize);
        if let Some(moved) = self.slots.get(place as usize) {
            self.places[moved.at()] = place;
        }
    }

    fn victim(&mut self, held: &Held) -> Option<Slot> {
        if self.slots.is_empty() {
            return None;
        }
        let start = self.rng.below(self.slots.len() as u64) as usize;
        let (before, from) = self.slots.split_at(start);
        from.iter().chain(before).copied().find(|slot| !held.contains(*slot))
    }
}
