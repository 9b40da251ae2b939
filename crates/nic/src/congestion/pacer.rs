//! When the next packet may go, so that packets go out at a rate, some of them at a time.
//!
//! Invariant: in any time no more goes out than the rate moves in it, but for one quantum, what a
//! late timer may catch up with, and one packet. A sender that has something to send waits at most
//! until it may send a quantum. Times, not counts of bytes, so that a new rate counts at once.

use super::delivery::{bytes_in, time_for};
use crate::limits::{PACING_CATCH_UP, PACING_GRAIN, PACING_HELD_QUANTA, PACING_QUANTUM, PACING_QUANTUM_BYTES_MAX};
use crate::time::Time;

/// See the module page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pacer {
    /// When all that was sent has gone at the rate.
    gone_at: Time,
    /// Nothing goes until then.
    until: Option<Time>,
    /// Something else held packets back.
    held: bool,
}

/// Bytes that go out together.
#[inline]
pub(super) fn quantum(rate: u64) -> u64 {
    bytes_in(rate, PACING_QUANTUM).clamp(1, PACING_QUANTUM_BYTES_MAX)
}

/// Rates beyond are not paced: a quantum takes less than a timer can wait.
#[inline]
pub(super) fn is_paced(rate: u64) -> bool {
    rate <= RATE_MAX
}

const RATE_MAX: u64 = PACING_QUANTUM_BYTES_MAX * (1_000_000 / PACING_GRAIN.as_micros() as u64);

impl Pacer {
    /// Whether a packet may go.
    #[inline]
    pub(crate) fn may_send(&mut self, now: Time, rate: Option<u64>) -> bool {
        let Some(rate) = rate.filter(|rate| is_paced(*rate)) else {
            *self = Pacer::default();
            return true;
        };
        self.wait_is_over(now);
        if std::mem::take(&mut self.held) {
            self.gone_at = self.gone_at.max(now - PACING_HELD_QUANTA * time_for(quantum(rate), rate));
        }
        if self.until.is_none() && self.gone_at > now {
            self.until = Some(self.gone_at + time_for(quantum(rate), rate));
        }
        self.until.is_none()
    }

    /// Whether a packet might go: what [`may_send`](Self::may_send) would say.
    #[inline]
    pub(crate) fn is_open(&self, now: Time, rate: Option<u64>) -> bool {
        rate.is_none_or(|rate| !is_paced(rate)) || self.until.is_none_or(|until| now >= until) && self.gone_at <= now
    }

    /// A packet with so many bytes goes.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time, bytes: usize, rate: Option<u64>) {
        let Some(rate) = rate.filter(|rate| is_paced(*rate)) else { return };
        let late = time_for(quantum(rate), rate) + PACING_CATCH_UP;
        self.gone_at = self.gone_at.max(now - late) + time_for(bytes as u64, rate);
    }

    /// It is not the pace that holds packets back: when they may go, no timer is to be made good.
    #[inline]
    pub(crate) fn held_otherwise(&mut self) {
        self.held = true;
    }

    /// Ends a wait whose time has come.
    #[inline]
    pub(crate) fn wait_is_over(&mut self, now: Time) {
        self.until = self.until.filter(|until| now < *until);
    }

    /// When the next packet may go, if one waits for that.
    #[inline]
    pub(crate) fn opens_at(&self) -> Option<Time> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Sends packets of so many bytes for a time, by a timer that is so late; gives the bytes and
    /// the most that went out at one time.
    fn send_for(pacer: &mut Pacer, rate: u64, packet: usize, time: Duration, late: Duration) -> (u64, u64) {
        let (mut now, end) = (Time::ZERO, Time::ZERO + time);
        let (mut sent, mut most) = (0, 0);
        while now < end {
            let mut batch = 0;
            while pacer.may_send(now, Some(rate)) {
                pacer.sent(now, packet, Some(rate));
                batch += packet as u64;
                assert!(batch < 1 << 24, "it never ends");
            }
            (sent, most) = (sent + batch, most.max(batch));
            now = pacer.opens_at().expect("it waits") + late;
        }
        (sent, most)
    }

    #[test]
    fn what_goes_out_is_the_rate_in_batches_of_a_quantum() {
        for rate in [10_000, 1_000_000, 12_500_000, 125_000_000, 600_000_000] {
            let (sent, most) = send_for(&mut Pacer::default(), rate, 1_400, Duration::from_secs(2), Duration::ZERO);
            let least = 2 * rate;
            assert!(
                sent + quantum(rate) + 2_800 >= least && sent <= least + quantum(rate) * 2 + 2 * 125_000,
                "{rate}: {sent}"
            );
            // At the beginning there is what a late timer could catch up with.
            let catch_up = bytes_in(rate, PACING_CATCH_UP);
            assert!(most <= quantum(rate) + catch_up + 2_800, "{rate}: {most}");
        }
    }

    #[test]
    fn a_late_timer_is_made_good_and_a_very_late_one_is_no_burst() {
        let rate = 125_000_000;
        let second = Duration::from_secs(1);
        let (sent, _) = send_for(&mut Pacer::default(), rate, 1_400, second, Duration::from_micros(300));
        assert!(sent >= rate / 100 * 99, "{sent}");
        let (sent, most) = send_for(&mut Pacer::default(), rate, 1_400, second, Duration::from_millis(50));
        assert!(most <= quantum(rate) + bytes_in(rate, PACING_CATCH_UP) + 2_800 && sent < rate / 10, "{most} {sent}");
    }

    #[test]
    fn what_something_else_held_back_is_no_burst() {
        let (mut pacer, rate, ms) = (Pacer::default(), 125_000_000, Duration::from_millis(1));
        let burst = |pacer: &mut Pacer, now| {
            let mut burst = 0;
            while pacer.may_send(now, Some(rate)) {
                pacer.sent(now, 1_400, Some(rate));
                burst += 1_400;
            }
            burst
        };
        let begun = Time::ZERO + 10 * ms;
        burst(&mut pacer, begun);
        // A timer that is 2 ms late is made good, as far as one is.
        let late = burst(&mut pacer, begun + 2 * ms + ms / 4);
        assert!(late > bytes_in(rate, ms), "{late}");
        // The window was full meanwhile.
        let now = begun + 10 * ms;
        assert!(pacer.may_send(begun + 9 * ms, Some(rate)));
        pacer.held_otherwise();
        let burst = burst(&mut pacer, now);
        assert!(burst <= u64::from(PACING_HELD_QUANTA) * quantum(rate) + 2_800, "{burst}");
    }

    #[test]
    fn unknown_rates_and_those_beyond_the_timer_are_not_paced() {
        let mut pacer = Pacer::default();
        for rate in [None, Some(10_000_000_000), Some(u64::MAX)] {
            for _ in 0..1_000 {
                assert!(pacer.may_send(Time::ZERO, rate) && pacer.is_open(Time::ZERO, rate));
                pacer.sent(Time::ZERO, 65_000, rate);
            }
            assert_eq!(pacer.opens_at(), None);
        }
        // A rate that becomes unknown, or high, opens at once.
        while pacer.may_send(Time::ZERO, Some(1_000_000)) {
            pacer.sent(Time::ZERO, 1_400, Some(1_000_000));
        }
        assert!(!pacer.is_open(Time::ZERO, Some(1_000_000)));
        assert!(pacer.may_send(Time::ZERO, None));
    }

    #[test]
    fn a_rate_of_nothing_waits_and_does_not_overflow() {
        let mut pacer = Pacer::default();
        assert!(pacer.may_send(Time::ZERO, Some(0)));
        pacer.sent(Time::ZERO, usize::MAX, Some(0));
        assert!(!pacer.may_send(Time::ZERO, Some(0)));
        assert!(pacer.opens_at().is_some());
    }
}
