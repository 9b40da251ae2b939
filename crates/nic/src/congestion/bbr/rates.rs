//! The best rates that were seen, cycle by cycle of probes.
//!
//! Invariant: a rate is forgotten when a whole cycle has passed without one as high. Of the many
//! samples of a round the highest is one of acknowledgements that came late and then together, so
//! there are two maxima: of all samples, and of one sample a round. Source: the max filter of
//! draft-ietf-ccwg-bbr, section 5.5, which has the first one.

/// See the module page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Rates {
    before: Cycle,
    now: Cycle,
}

/// Bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Cycle {
    /// The best of all samples.
    any: u64,
    /// The best of samples that stand for a whole round: of the packet that began it.
    whole: u64,
    /// A round has met no queue.
    clear: bool,
}

impl Rates {
    /// The rate that the path takes; 0: not known. Where a round has met no queue the sender has
    /// the path to itself, and the rates of whole rounds are right. In a queue of others it would
    /// get less than they with these, so there all samples count.
    #[inline(never)]
    pub(super) fn best(&self) -> u64 {
        let whole = self.before.whole.max(self.now.whole);
        let clear = self.before.clear || self.now.clear;
        if whole > 0 && clear { whole } else { self.before.any.max(self.now.any) }
    }

    /// A sample; `whole`: what of it counts as the rate of a round, if it stands for one.
    pub(super) fn sample(&mut self, rate: u64, whole: Option<u64>) {
        self.now.any = self.now.any.max(rate);
        self.now.whole = self.now.whole.max(whole.unwrap_or(0));
    }

    /// A round is over; `clear`: some packet of it has met no queue.
    pub(super) fn round(&mut self, clear: bool) {
        self.now.clear |= clear;
    }

    /// What a probe for more has found is known. A cycle without a sample is none.
    pub(super) fn end_cycle(&mut self) {
        if self.now.any > 0 {
            (self.before, self.now) = (self.now, Cycle::default());
        }
    }

    /// No probe for more has ended since the startup.
    pub(super) fn is_first_cycle(&self) -> bool {
        self.before.any == 0
    }

    /// In a test: these rates of both cycles, of a path without a queue.
    #[cfg(test)]
    pub(super) fn of(before: u64, now: u64) -> Rates {
        let cycle = |rate| Cycle { any: rate, whole: rate, clear: rate > 0 };
        Rates { before: cycle(before), now: cycle(now) }
    }

    /// In a test: a round of these cycles has met no queue.
    #[cfg(test)]
    pub(super) fn is_clear(&self) -> bool {
        self.before.clear || self.now.clear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_round_has_met_no_queue_the_rate_is_that_of_whole_rounds() {
        let mut rates = Rates::default();
        rates.sample(1_000_000, None);
        rates.sample(900_000, Some(900_000));
        rates.round(false);
        assert_eq!(rates.best(), 1_000_000);
        rates.round(true);
        rates.round(false);
        assert_eq!(rates.best(), 900_000);
        // So it is in the next cycle, and no longer.
        rates.end_cycle();
        rates.sample(850_000, None);
        assert_eq!(rates.best(), 900_000);
        rates.end_cycle();
        rates.sample(800_000, Some(800_000));
        assert_eq!(rates.best(), 850_000);
    }

    #[test]
    fn without_a_sample_of_a_whole_round_all_count() {
        let mut rates = Rates::default();
        rates.round(true);
        rates.sample(700_000, None);
        assert_eq!(rates.best(), 700_000);
    }

    #[test]
    fn a_cycle_without_a_sample_forgets_nothing() {
        let mut rates = Rates::of(0, 1_000_000);
        assert!(rates.is_first_cycle());
        rates.end_cycle();
        assert!(!rates.is_first_cycle());
        rates.end_cycle();
        assert_eq!(rates, Rates::of(1_000_000, 0));
    }
}
