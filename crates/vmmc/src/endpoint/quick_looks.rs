//! Whether the waits of an endpoint begin with looks that do nothing but look.
//!
//! Invariant: of waits whose looks are all in vain, one in [`QUICK_LOOKS_REST`] + 1 looks, once
//! [`QUICK_LOOKS_VAIN`] in a row have. Source: own; an answer from another core comes within such
//! looks, one through a node does not, and needs the core that they keep.

use crate::limits::{QUICK_LOOKS_REST, QUICK_LOOKS_VAIN};

/// What the last waits have learned.
#[derive(Debug, Default)]
pub(super) struct QuickLooks {
    /// Waits in a row that looked in vain.
    vain: u32,
    /// Waits that do not look.
    rest: u32,
}

impl QuickLooks {
    /// Whether the wait that begins now looks.
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        let looks = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        looks
    }

    /// A wait has looked.
    #[inline]
    pub(super) fn ended(&mut self, found: bool) {
        if found {
            self.vain = 0;
            return;
        }
        self.vain += 1;
        if self.vain >= QUICK_LOOKS_VAIN {
            // After the rest, one more in vain is enough for the next.
            self.vain = QUICK_LOOKS_VAIN - 1;
            self.rest = QUICK_LOOKS_REST;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(quick: &mut QuickLooks, waits: u32, found: bool) -> u32 {
        let mut looked = 0;
        for _ in 0..waits {
            if quick.begin() {
                looked += 1;
                quick.ended(found);
            }
        }
        looked
    }

    #[test]
    fn looks_in_vain_are_given_up_and_tried_again_now_and_then() {
        let mut quick = QuickLooks::default();
        assert_eq!(looks(&mut quick, QUICK_LOOKS_VAIN, false), QUICK_LOOKS_VAIN);
        assert_eq!(looks(&mut quick, QUICK_LOOKS_REST, false), 0);
        assert_eq!(looks(&mut quick, 10 * (QUICK_LOOKS_REST + 1), false), 10);
    }

    #[test]
    fn looks_that_find_go_on_and_one_in_vain_among_them_changes_nothing() {
        let mut quick = QuickLooks::default();
        for _ in 0..1000 {
            assert_eq!(looks(&mut quick, 3, true), 3);
            assert_eq!(looks(&mut quick, QUICK_LOOKS_VAIN - 1, false), QUICK_LOOKS_VAIN - 1);
        }
        // With those before it this is one too many.
        assert_eq!(looks(&mut quick, 1 + QUICK_LOOKS_REST, false), 1);
        assert_eq!(looks(&mut quick, 100, true), 100, "one that finds is enough to go on");
        assert_eq!(looks(&mut quick, QUICK_LOOKS_VAIN - 1, false), QUICK_LOOKS_VAIN - 1);
    }
}
