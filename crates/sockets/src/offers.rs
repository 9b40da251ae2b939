//! When a connection is offered to the node.
//!
//! Invariant: the choice changes when a connection moves into shared memory, and nothing else.
//! `at-once` and `random` are for tests: they bring every suite that a program has into the rings.

use crate::limits::OFFER_ODDS;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// When a connection is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offers {
    /// After as many receives or bytes as the settings say.
    Usual,
    /// As soon as it is established.
    AtOnce,
    /// Each call decides by a random number; so does each call after a match, which joins or waits.
    /// The seed repeats the choices.
    Random(u64),
}

impl Offers {
    /// From a text: `usual`, `at-once`, or `random:SEED`. `random` alone has seed 0.
    pub fn parse(text: &str) -> Option<Offers> {
        match text.split_once(':') {
            None if text == "usual" => Some(Offers::Usual),
            None if text == "at-once" => Some(Offers::AtOnce),
            None if text == "random" => Some(Offers::Random(0)),
            Some(("random", seed)) => seed.parse().ok().map(Offers::Random),
            _ => None,
        }
    }
}

/// The random choices of a process.
#[derive(Debug)]
pub(crate) struct RandomOffers(AtomicU64);

impl RandomOffers {
    pub(crate) fn new(offers: Offers) -> RandomOffers {
        RandomOffers(AtomicU64::new(if let Offers::Random(seed) = offers { seed } else { 0 }))
    }

    /// One call in [`OFFER_ODDS`] is a hit.
    pub(crate) fn hits(&self) -> bool {
        // SplitMix64: each state is used once, and neighbours have nothing in common.
        let step = 0x9e37_79b9_7f4a_7c15;
        let state = self.0.fetch_add(step, Relaxed).wrapping_add(step);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % OFFER_ODDS == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_from_its_text() {
        assert_eq!(Offers::parse("usual"), Some(Offers::Usual));
        assert_eq!(Offers::parse("at-once"), Some(Offers::AtOnce));
        assert_eq!(Offers::parse("random:77"), Some(Offers::Random(77)));
        assert_eq!((Offers::parse("random:x"), Offers::parse("never")), (None, None));
    }

    #[test]
    fn a_seed_repeats_its_choices() {
        let choices = |seed| {
            let random_offers = RandomOffers::new(Offers::Random(seed));
            (0..4_000).map(|_| random_offers.hits()).collect::<Vec<_>>()
        };
        assert_eq!(choices(5), choices(5));
        assert_ne!(choices(5), choices(6));
        let hits = choices(7).iter().filter(|hit| **hit).count() as u64;
        assert!((2_000 / OFFER_ODDS..8_000 / OFFER_ODDS).contains(&hits), "{hits}");
    }
}
