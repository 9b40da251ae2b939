//! The startup: the rate doubles each round trip until the path is full.
//!
//! Invariant: it ends once, and nothing begins it anew. Source: draft-ietf-ccwg-bbr, section 5.3.1;
//! that a queue is asked about with less under way is the idea of HyStart++ (RFC 9406, section
//! 4.2).

use super::{Bbr, State};
use crate::congestion::Loss;
use crate::congestion::delivery::{Sample, time_for};
use crate::limits::{BBR_FULL_ROUNDS, BBR_LOSS_EVENTS, BBR_QUEUE_SAMPLES, WINDOW_MAX_BYTES};
use crate::time::Time;
use std::time::Duration;

/// Growth of the rate in a round below which the pipe is full, in percent.
const STILL_GROWS: u64 = 125;

impl Bbr {
    /// Whether its packets have all met a queue over a whole round trip, `shortest` without one.
    pub(super) fn ask_in_startup(&mut self, now: Time, sample: &Sample, shortest: Duration) {
        let met = self.queueing.is_met();
        let apart = time_for((BBR_QUEUE_SAMPLES as usize * self.packet) as u64, self.max_bw());
        self.full_reached |= self.queueing.lasts(now, sample.round_trip, shortest, apart);
        // The round before had the rate of a path that was not full.
        if self.full_reached || self.queueing.is_met() && !met {
            self.take_rate(sample);
        }
    }

    /// It has met a queue that may last: until that is known, it does not add to it.
    pub(super) fn asks_in_startup(&self) -> bool {
        self.state == State::Startup && self.queueing.is_met()
    }

    pub(super) fn check_full_bw(&mut self, sample: &Sample) {
        let Some(rate) = sample.rate.filter(|_| !self.full_now && !sample.app_limited) else { return };
        if rate >= self.full_bw.saturating_mul(STILL_GROWS) / 100 {
            return self.reset_full_bw(rate);
        }
        if self.round_start {
            self.full_rounds += 1;
            self.full_now = self.full_rounds >= BBR_FULL_ROUNDS;
            self.full_reached |= self.full_now;
        }
    }

    pub(super) fn check_startup(&mut self) {
        if self.state == State::Startup && self.full_reached {
            self.state = State::Drain;
        }
    }

    /// Losses end the startup at once: a round more of twice the rate loses as much as the path
    /// holds.
    pub(super) fn lose_in_startup(&mut self, loss: &Loss) {
        let ends = self.state == State::Startup && self.max_bw() > 0 && self.loss_events >= BBR_LOSS_EVENTS;
        if ends && self.loses_too_much(self.lost_in_round, loss.in_flight) {
            self.full_reached = true;
            let held = self.pipe(100).max(self.inflight_latest.min(WINDOW_MAX_BYTES as u64) as usize);
            self.bounds.inflight_hi = Some(held);
            self.own_until = loss.next;
            self.check_startup();
        }
    }
}
