//! When a connection is worth an offer: later in processes whose offered connections end early.
//!
//! An offer and a meeting cost both ends and the node as much as some hundred KiB through the
//! kernel. That pays for connections that go on. A server whose connections carry one page and
//! close would pay it for each of them, just before its end. So a process counts offers that
//! carried less after the offer than before it, and offers later as they become more frequent.
//!
//! Invariant: the factor is 1 until offers were in vain, grows to [`OFFER_FACTOR_MAX`] at most, and
//! falls again with connections that went on. Counts of several threads may be lost; they only say
//! when an offer is due.

use crate::limits::{OFFER_FACTOR_MAX, OFFERS_IN_VAIN, OFFERS_PAID};
use std::sync::atomic::{AtomicU32, Ordering};

/// The outcome of a process's offers.
#[derive(Debug, Default)]
pub(crate) struct OfferPolicy {
    /// Offers in vain less those that paid, `0 <= score <= SCORE_MAX`.
    score: AtomicU32,
}

/// Where the factor is largest.
const SCORE_MAX: u32 = OFFERS_IN_VAIN * OFFER_FACTOR_MAX.ilog2() + OFFERS_IN_VAIN - 1;

impl OfferPolicy {
    /// Times the usual exchanges and bytes after which a connection is offered.
    #[inline]
    pub(crate) fn factor(&self) -> u32 {
        1 << (self.score.load(Ordering::Relaxed) / OFFERS_IN_VAIN)
    }

    /// A connection that was offered after `before` bytes has ended, `after` bytes later.
    pub(crate) fn ended(&self, before: u64, after: u64) {
        let score = self.score.load(Ordering::Relaxed);
        let score = if after < before { (score + 1).min(SCORE_MAX) } else { score.saturating_sub(OFFERS_PAID) };
        self.score.store(score, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_in_vain_come_later_and_later_up_to_a_bound() {
        let policy = OfferPolicy::default();
        let mut factors = vec![policy.factor()];
        for _ in 0..1_000 {
            policy.ended(80_000, 0);
            if factors.last() != Some(&policy.factor()) {
                factors.push(policy.factor());
            }
        }
        assert_eq!(factors, [1, 2, 4, 8, 16, 32]);
        assert_eq!(factors.last(), Some(&OFFER_FACTOR_MAX));
    }

    #[test]
    fn connections_that_go_on_bring_the_usual_offer_back() {
        let policy = OfferPolicy::default();
        (0..1_000).for_each(|_| policy.ended(80_000, 0));
        (0..SCORE_MAX / OFFERS_PAID + 1).for_each(|_| policy.ended(80_000, 1 << 30));
        assert_eq!(policy.factor(), 1);
    }

    #[test]
    fn one_long_connection_among_three_short_ones_keeps_the_usual_offer() {
        let policy = OfferPolicy::default();
        for _ in 0..1_000 {
            (0..3).for_each(|_| policy.ended(2_000, 0));
            policy.ended(2_000, 1 << 20);
            assert_eq!(policy.factor(), 1);
        }
    }
}
