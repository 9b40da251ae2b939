//! How long a packet that later ones have overtaken is waited for before it counts as lost.
//!
//! Invariant: the wait is at most a smoothed round trip. Source: RFC 8985, sections 6.2 and 7.2,
//! whose duplicate acknowledgements are here acknowledgements of chunks from before they were sent
//! again.

use std::time::Duration;

use crate::congestion::RoundTrip;
use crate::limits::{REORDER_STEPS_KEPT, REORDER_STEPS_MAX, RTO_INITIAL};

/// What is known about the order in which packets arrive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reordering {
    /// One has arrived that was sent before another one that had arrived.
    pub(crate) seen: bool,
    /// Steps of the wait beyond the first.
    more: u32,
    /// The next step is taken when a packet from here on was late.
    next: u64,
    /// Losses, each in a reduction of its own, until the wait is one step again.
    kept: u32,
}

impl Reordering {
    /// How much longer than the newest that has arrived a packet may take.
    pub(crate) fn window(&self, rtt: &RoundTrip) -> Duration {
        let step = rtt.shortest().unwrap_or(RTO_INITIAL) / 4;
        (step * (self.more + 1)).min(rtt.smoothed().unwrap_or(RTO_INITIAL))
    }

    /// A packet that was sent before one that had arrived has arrived.
    pub(crate) fn noticed(&mut self) {
        self.seen = true;
    }

    /// Packet `number` was taken for lost, and had arrived, or did later; `next` is the next one to
    /// be sent. One step a round trip.
    pub(crate) fn hasty(&mut self, number: u64, next: u64) {
        self.seen = true;
        self.kept = REORDER_STEPS_KEPT;
        if number >= self.next {
            self.next = next;
            self.more = (self.more + 1).min(REORDER_STEPS_MAX - 1);
        }
    }

    /// The window was reduced for losses.
    pub(crate) fn reduced(&mut self) {
        self.kept = self.kept.saturating_sub(1);
        if self.kept == 0 {
            self.more = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    fn measured() -> RoundTrip {
        let mut rtt = RoundTrip::default();
        rtt.sample(Time::ZERO, Duration::from_millis(8));
        rtt
    }

    #[test]
    fn the_wait_grows_by_a_quarter_of_a_round_trip_once_in_each_and_is_bounded_by_one() {
        let (mut order, rtt) = (Reordering::default(), measured());
        assert_eq!(order.window(&rtt), Duration::from_millis(2));
        order.hasty(5, 10);
        order.hasty(6, 12);
        assert_eq!(order.window(&rtt), Duration::from_millis(4));
        order.hasty(10, 20);
        assert_eq!(order.window(&rtt), Duration::from_millis(6));
        (2..50).for_each(|i| order.hasty(i * 10, i * 10 + 10));
        assert_eq!(order.window(&rtt), Duration::from_millis(8));
    }

    #[test]
    fn losses_that_are_losses_bring_the_short_wait_back() {
        let (mut order, rtt) = (Reordering::default(), measured());
        order.hasty(5, 10);
        (1..REORDER_STEPS_KEPT).for_each(|_| order.reduced());
        assert_eq!(order.window(&rtt), Duration::from_millis(4));
        order.reduced();
        assert_eq!(order.window(&rtt), Duration::from_millis(2));
        assert!(order.seen, "by number alone nothing is lost any more");
    }
}
