//! Slots in a row: a doubly linked list in arrays.
//!
//! Invariant: a slot is in the list at most once; `links[s]` means something only while `s` is in
//! it. The owner knows which slots are in.

use crate::ids::Slot;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

/// A row of slots, newest at the front.
#[derive(Clone, Debug)]
pub(crate) struct List {
    links: Vec<Link>,
    front: u32,
    back: u32,
    len: usize,
}

impl List {
    pub(crate) fn new() -> List {
        List { links: Vec::new(), front: NONE, back: NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn front(&self) -> Option<Slot> {
        (self.front != NONE).then_some(Slot(self.front))
    }

    pub(crate) fn back(&self) -> Option<Slot> {
        (self.back != NONE).then_some(Slot(self.back))
    }

    /// The next one towards the front.
    pub(crate) fn newer(&self, slot: Slot) -> Option<Slot> {
        let before = self.links[slot.at()].before;
        (before != NONE).then_some(Slot(before))
    }

    /// The next one towards the back.
    pub(crate) fn older(&self, slot: Slot) -> Option<Slot> {
        let after = self.links[slot.at()].after;
        (after != NONE).then_some(Slot(after))
    }

    #[inline]
    pub(crate) fn push_front(&mut self, slot: Slot) {
        if self.links.len() <= slot.at() {
            self.links.resize(slot.at() + 1, Link { before: NONE, after: NONE });
        }
        self.links[slot.at()] = Link { before: NONE, after: self.front };
        match self.front {
            NONE => self.back = slot.0,
            front => self.links[front as usize].before = slot.0,
        }
        self.front = slot.0;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: Slot) {
        let Link { before, after } = self.links[slot.at()];
        match before {
            NONE => self.front = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.back = before,
            after => self.links[after as usize].before = before,
        }
        self.len -= 1;
    }

    #[inline]
    pub(crate) fn move_to_front(&mut self, slot: Slot) {
        if self.front != slot.0 {
            self.remove(slot);
            self.push_front(slot);
        }
    }
}
