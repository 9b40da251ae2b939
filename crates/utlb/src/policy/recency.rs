//! Policies that keep one order: LRU, MRU, FIFO. [UTLB §3.4]
//!
//! Invariant: the list holds every slot, newest use (FIFO: newest pin) in front. O(1) a call, but
//! for skipping held slots.

use super::list::List;
use super::{Held, Policy};
use crate::ids::{Page, Slot};

macro_rules! recency {
    ($(#[$doc:meta])* $name:ident, touch: $touch:expr, from: $from:ident, next: $next:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            order: List,
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new()
            }
        }

        impl $name {
            /// Without slots.
            pub fn new() -> $name {
                $name { order: List::new() }
            }
        }

        impl Policy for $name {
            fn inserted(&mut self, slot: Slot, _page: Page) {
                self.order.push_front(slot);
            }

            #[inline]
            fn touched(&mut self, slot: Slot) {
                let touch: fn(&mut List, Slot) = $touch;
                touch(&mut self.order, slot);
            }

            fn removed(&mut self, slot: Slot, _page: Page, _evicted: bool) {
                self.order.remove(slot);
            }

            fn victim(&mut self, held: &Held) -> Option<Slot> {
                let mut at = self.order.$from();
                while let Some(slot) = at.filter(|slot| held.contains(*slot)) {
                    at = self.order.$next(slot);
                }
                at
            }
        }
    };
}

recency!(
    /// Gives up the page that was not used for the longest time.
    Lru, touch: List::move_to_front, from: back, next: newer
);
recency!(
    /// Gives up the page that was used last: right for cyclic use of more pages than may be pinned.
    Mru, touch: List::move_to_front, from: front, next: older
);
recency!(
    /// Gives up the page that was pinned first.
    Fifo, touch: |_, _| (), from: back, next: newer
);
