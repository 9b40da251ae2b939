//! Which packet numbers of a session have been seen: a sliding bitmap.
//!
//! Invariant: a number is accepted at most once, and never when it is older than the window.

use crate::limits::REPLAY_WINDOW_PACKETS;

const WORDS: usize = (REPLAY_WINDOW_PACKETS / 64) as usize;

/// The window.
pub(crate) struct ReplayWindow {
    /// One more than the largest number seen.
    next: u64,
    /// Bit `n % window` for number `n`.
    seen: [u64; WORDS],
}

/// What a packet number means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Freshness {
    New,
    Seen,
    TooOld,
}

impl ReplayWindow {
    pub(crate) fn new() -> ReplayWindow {
        ReplayWindow { next: 0, seen: [0; WORDS] }
    }

    /// Judges `number` without remembering it; only a packet that opens may change the window.
    pub(crate) fn check(&self, number: u64) -> Freshness {
        if number >= self.next {
            return Freshness::New;
        }
        if self.next - number > REPLAY_WINDOW_PACKETS {
            return Freshness::TooOld;
        }
        let (word, bit) = place(number);
        if self.seen[word] & bit == 0 { Freshness::New } else { Freshness::Seen }
    }

    /// Remembers a number that `check` called new.
    pub(crate) fn mark(&mut self, number: u64) {
        if number == self.next {
            // The usual one: its bit is set below, whatever an earlier number left there.
            self.next = number.saturating_add(1);
        } else if number > self.next {
            self.advance(number);
        }
        let (word, bit) = place(number);
        self.seen[word] |= bit;
    }

    fn advance(&mut self, number: u64) {
        if number - self.next >= REPLAY_WINDOW_PACKETS {
            self.seen = [0; WORDS];
        } else {
            for skipped in self.next..=number {
                let (word, bit) = place(skipped);
                self.seen[word] &= !bit;
            }
        }
        self.next = number.saturating_add(1);
    }
}

fn place(number: u64) -> (usize, u64) {
    let index = number % REPLAY_WINDOW_PACKETS;
    ((index / 64) as usize, 1 << (index % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_older_than_the_window_are_refused() {
        let mut window = ReplayWindow::new();
        window.mark(REPLAY_WINDOW_PACKETS + 5);
        assert_eq!(window.check(5), Freshness::TooOld);
        assert_eq!(window.check(6), Freshness::New);
        window.mark(u64::MAX - 1);
        assert_eq!(window.check(6), Freshness::TooOld);
    }

    proptest! {
        #[test]
        fn each_number_is_new_once(numbers in proptest::collection::vec(0u64..10_000, 1..600)) {
            let mut window = ReplayWindow::new();
            let mut seen = BTreeSet::new();
            let mut largest = 0;
            for number in numbers {
                let expected = if seen.contains(&number) && largest < number + REPLAY_WINDOW_PACKETS {
                    Freshness::Seen
                } else if largest >= number + REPLAY_WINDOW_PACKETS {
                    Freshness::TooOld
                } else {
                    Freshness::New
                };
                prop_assert_eq!(window.check(number), expected);
                if expected == Freshness::New {
                    window.mark(number);
                    seen.insert(number);
                    largest = largest.max(number);
                }
            }
        }
    }
}
