//! What marks of queues do to the model: they say that there is a queue, and nothing of how much
//! the path moves, so they lower what may be under way and leave the bandwidth.
//!
//! Invariant: never lower than what has arrived in the last round or what the path holds, whichever
//! is less, nor than the least window; once a round trip. Source: the draft leaves marks open. As
//! parts of what was sent (L4S) they do what they do in BBR's third version (`bbr_ecn_factor`,
//! `bbr_full_ecn_cnt`), else what the draft does about losses.

use super::{Acks, BETA, Bbr, State};
use crate::congestion::Marked;
use crate::limits::{BBR_MARKS_FULL, BBR_MARKS_WEIGHT, WINDOW_MAX_BYTES};

impl Bbr {
    pub(super) fn take_marks(&mut self, marked: &Marked) {
        // The end of a probe begins to count anew.
        let arrived = self.inflight_latest;
        if marked.first {
            self.undo = None;
            self.end_probe_by_mark(marked);
        }
        let Some(part) = marked.round else { return };
        match self.state {
            State::Startup if marked.mean.is_none() || part >= BBR_MARKS_FULL => self.end_startup_by_marks(),
            State::Startup | State::Drain | State::Refill | State::Up => {}
            // What is marked until the round after the startup is what that had queued.
            _ if self.acks == Acks::ProbeStopping && self.rates.is_first_cycle() => {}
            State::Down | State::Cruise | State::ProbeRtt => self.make_room(marked.mean, arrived),
        }
    }

    /// The probe has found a queue, and with it how much is too much.
    fn end_probe_by_mark(&mut self, marked: &Marked) {
        if self.state != State::Up {
            return;
        }
        self.probing_samples = false;
        if !marked.app_limited {
            let least = self.pipe(100).min(self.window) / 100 * BETA as usize;
            self.bounds.inflight_hi = Some(marked.in_flight.max(least).min(WINDOW_MAX_BYTES));
        }
        self.start_down(marked.now, marked.delivered);
    }

    fn end_startup_by_marks(&mut self) {
        if self.max_bw() > 0 {
            self.full_reached = true;
            self.check_startup();
        }
    }

    /// A round trip with marks is over, in which so many bytes have arrived.
    fn make_room(&mut self, mean: Option<u64>, arrived: u64) {
        let lo = self.bounds.inflight_lo.unwrap_or(self.window).min(WINDOW_MAX_BYTES) as u64;
        let less = match mean {
            None => lo * BETA / 100,
            Some(mean) => lo - lo * mean / 1_024 * BBR_MARKS_WEIGHT / 1_024,
        };
        let floor = arrived.min(self.pipe(100) as u64).min(lo);
        self.bounds.inflight_lo = Some(less.max(floor).max(self.window_min() as u64) as usize);
    }
}

#[cfg(test)]
mod tests;
