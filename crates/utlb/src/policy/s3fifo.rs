//! S3-FIFO: a small queue that filters pages used once, a main queue, and a memory of pages that
//! left the small one (Yang et al., SOSP 2023).
//!
//! Invariant: each slot is in exactly one of the queues. The small queue aims at a tenth of the
//! pages, the ghosts at as many pages as the main queue may hold. Departure: the paper knows the
//! cache size; here it is the limit, or, with none, the largest number of pages that was ever
//! pinned.

use super::list::List;
use super::{Held, Policy};
use crate::ids::{Page, Slot};
use std::collections::{HashMap, VecDeque};

/// Uses that are counted; more tell nothing new.
const USES_MAX: u8 = 3;
/// Share of the small queue: a tenth, as published.
const SMALL_DIVISOR: usize = 10;

/// Gives up pages that were used once soon, others late.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    small: List,
    main: List,
    // By slot: (in main, uses since it came into its queue, page).
    rows: Vec<(bool, u8, Page)>,
    // Pages that left the small queue, with the number of their ticket; a page may have old tickets
    // in the queue.
    ghosts: HashMap<Page, u64>,
    tickets: VecDeque<(Page, u64)>,
    next_ticket: u64,
    capacity: Option<usize>,
    most: usize,
}

impl Default for S3Fifo {
    fn default() -> S3Fifo {
        S3Fifo::new()
    }
}

impl S3Fifo {
    /// Without slots.
    pub fn new() -> S3Fifo {
        S3Fifo {
            small: List::new(),
            main: List::new(),
            rows: Vec::new(),
            ghosts: HashMap::new(),
            tickets: VecDeque::new(),
            next_ticket: 0,
            capacity: None,
            most: 0,
        }
    }

    fn capacity(&self) -> usize {
        self.capacity.unwrap_or(self.most).max(1)
    }

    fn remember(&mut self, page: Page) {
        self.next_ticket += 1;
        self.ghosts.insert(page, self.next_ticket);
        self.tickets.push_back((page, self.next_ticket));
        let most = self.capacity() - self.capacity() / SMALL_DIVISOR;
        while self.tickets.len() > most {
            let Some((page, ticket)) = self.tickets.pop_front() else { break };
            if self.ghosts.get(&page) == Some(&ticket) {
                self.ghosts.remove(&page);
            }
        }
    }

    /// One step over the oldest of the small queue: a victim, or it goes to main.
    fn step_small(&mut self, held: &Held) -> Option<Slot> {
        let slot = self.small.back()?;
        if self.rows[slot.at()].1 > 1 || held.contains(slot) {
            self.small.remove(slot);
            self.main.push_front(slot);
            self.rows[slot.at()].0 = true;
            self.rows[slot.at()].1 = 0;
            return None;
        }
        Some(slot)
    }

    /// One step over the oldest of the main queue: a victim, or it goes round again.
    fn step_main(&mut self, held: &Held) -> Option<Slot> {
        let slot = self.main.back()?;
        let uses = &mut self.rows[slot.at()].1;
        if *uses > 0 || held.contains(slot) {
            *uses = uses.saturating_sub(1);
            self.main.move_to_front(slot);
            return None;
        }
        Some(slot)
    }
}

impl Policy for S3Fifo {
    fn inserted(&mut self, slot: Slot, page: Page) {
        if self.rows.len() <= slot.at() {
            self.rows.resize(slot.at() + 1, (false, 0, page));
        }
        let known = self.ghosts.remove(&page).is_some();
        self.rows[slot.at()] = (known, 0, page);
        if known {
            self.main.push_front(slot);
        } else {
            self.small.push_front(slot);
        }
        self.most = self.most.max(self.small.len() + self.main.len());
    }

    fn touched(&mut self, slot: Slot) {
        let uses = &mut self.rows[slot.at()].1;
        *uses = (*uses + 1).min(USES_MAX);
    }

    fn removed(&mut self, slot: Slot, page: Page, evicted: bool) {
        if self.rows[slot.at()].0 {
            self.main.remove(slot);
        } else {
            self.small.remove(slot);
            if evicted {
                self.remember(page);
            }
        }
    }

    fn victim(&mut self, held: &Held) -> Option<Slot> {
        // Every slot leaves the small queue once and goes round main at most USES_MAX + 1 times.
        let steps = (self.small.len() + self.main.len()) * (usize::from(USES_MAX) + 3) + 1;
        for _ in 0..steps {
            let from_small = self.small.len() * SMALL_DIVISOR >= self.capacity() || self.main.len() == 0;
            let victim = if from_small { self.step_small(held) } else { self.step_main(held) };
            if victim.is_some() {
                return victim;
            }
        }
        // All of main is held; one that is not may still wait in the small queue.
        let mut at = self.small.back();
        while let Some(slot) = at.filter(|slot| held.contains(*slot)) {
            at = self.small.newer(slot);
        }
        at
    }

    fn limited(&mut self, pages: Option<usize>) {
        self.capacity = pages;
    }
}
