//! Policies that count uses: LFU and MFU. [UTLB §3.4]
//!
//! Invariant: `order` has one row (uses, time of last use, slot) for each slot. Counts start anew
//! when a page is pinned again. O(log n) a call.

use super::{Held, Policy};
use crate::ids::{Page, Slot};
use std::collections::BTreeSet;

#[derive(Clone, Debug, Default)]
struct Counts {
    // Uses, last use, slot: the smallest is the least used, of several the one used longest ago.
    order: BTreeSet<(u64, u64, Slot)>,
    // By slot: uses and last use.
    rows: Vec<(u64, u64)>,
    clock: u64,
}

impl Counts {
    fn inserted(&mut self, slot: Slot) {
        if self.rows.len() <= slot.at() {
            self.rows.resize(slot.at() + 1, (0, 0));
        }
        self.rows[slot.at()] = (0, 0);
        self.count(slot);
    }

    fn touched(&mut self, slot: Slot) {
        self.removed(slot);
        self.count(slot);
    }

    fn count(&mut self, slot: Slot) {
        self.clock += 1;
        let row = &mut self.rows[slot.at()];
        *row = (row.0 + 1, self.clock);
        self.order.insert((row.0, row.1, slot));
    }

    fn removed(&mut self, slot: Slot) {
        let (uses, last) = self.rows[slot.at()];
        self.order.remove(&(uses, last, slot));
    }
}

/// Gives up the page that was used least often since it was pinned.
#[derive(Clone, Debug, Default)]
pub struct Lfu(Counts);

/// Gives up the page that was used most often since it was pinned.
#[derive(Clone, Debug, Default)]
pub struct Mfu(Counts);

impl Lfu {
    /// Without slots.
    pub fn new() -> Lfu {
        Lfu::default()
    }
}

impl Mfu {
    /// Without slots.
    pub fn new() -> Mfu {
        Mfu::default()
    }
}

macro_rules! counted {
    ($name:ident, $victim:expr) => {
        impl Policy for $name {
            fn inserted(&mut self, slot: Slot, _page: Page) {
                self.0.inserted(slot);
            }

            fn touched(&mut self, slot: Slot) {
                self.0.touched(slot);
            }

            fn removed(&mut self, slot: Slot, _page: Page, _evicted: bool) {
                self.0.removed(slot);
            }

            fn victim(&mut self, held: &Held) -> Option<Slot> {
                let victim: fn(&Counts, &Held) -> Option<Slot> = $victim;
                victim(&self.0, held)
            }
        }
    };
}

counted!(Lfu, |counts, held| counts.order.iter().map(|row| row.2).find(|slot| !held.contains(*slot)));
counted!(Mfu, |counts, held| {
    // Classes of equal use from the top; inside a class the one used longest ago.
    let mut above = u64::MAX;
    loop {
        let (top, ..) = *counts.order.range(..(above, 0, Slot(0))).next_back()?;
        let class = counts.order.range((top, 0, Slot(0))..(above, 0, Slot(0)));
        if let Some((.., slot)) = class.into_iter().find(|row| !held.contains(row.2)) {
            return Some(*slot);
        }
        above = top;
    }
});
