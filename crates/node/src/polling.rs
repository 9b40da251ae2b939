//! How often a node polls which of its sources.
//!
//! Control sockets are polled rarely while there is work, and soon after it ends. The network's
//! sockets leave the epoll set while nobody sleeps.
//!
//! Invariant: no source is given up: whatever came before, each is polled again after a bounded
//! number of steps or polls. Source: measured with `vmmc bench`; each bound has its reason in
//! `limits.rs`.

use crate::limits::{
    CONTROL_FREQUENT_POLLS, CONTROL_FREQUENT_STEPS, CONTROL_POLL_EVERY, CONTROL_POLL_FIRST, CONTROL_POLL_STEPS,
    DISARM_STEPS,
};
use std::time::Duration;
use vmmc_nic::Time;

/// What the last steps of a node brought, and what the next ones poll for that.
pub(crate) struct Steps {
    control_polled_at: Time,
    /// Polls of control sockets that are still frequent, because one of the last brought something.
    frequent_polls: u32,
    /// Steps without work since the last that had some.
    empty: u32,
    /// Time of the first of them.
    idle_since: Time,
    /// Time of the last step.
    stepped_at: Time,
    /// Steps with work since the last sleep.
    busy: u32,
    /// Something was sent past the rings since the last step.
    sent_inline: bool,
}

impl Steps {
    pub(crate) fn new(start: Time) -> Steps {
        Steps {
            control_polled_at: start,
            frequent_polls: 0,
            empty: 0,
            idle_since: start,
            stepped_at: start,
            busy: 0,
            sent_inline: false,
        }
    }

    /// A step begins; says whether something was sent past the rings since the last one, which
    /// counts as work of this one.
    #[inline]
    pub(crate) fn begin(&mut self) -> bool {
        std::mem::take(&mut self.sent_inline)
    }

    /// Whether something may be sent past the rings: never twice without a step between, so that a
    /// caller that only sends serves its node too.
    #[inline]
    pub(crate) fn may_send_inline(&self) -> bool {
        !self.sent_inline
    }

    /// Something was sent past the rings.
    #[inline]
    pub(crate) fn sent_inline(&mut self) {
        self.sent_inline = true;
    }

    /// Whether this step polls the control sockets: by time while there is work, else by steps.
    #[inline]
    pub(crate) fn control_is_due(&self, worked: bool, now: Time) -> bool {
        if worked {
            now.since(self.control_polled_at) >= CONTROL_POLL_EVERY
        } else {
            let steps = if self.frequent_polls > 0 { CONTROL_FREQUENT_STEPS } else { CONTROL_POLL_STEPS };
            self.empty % steps == CONTROL_POLL_FIRST % steps
        }
    }

    /// The control sockets are polled now.
    #[inline]
    pub(crate) fn polls_control(&mut self, now: Time) {
        self.control_polled_at = now;
        self.frequent_polls = self.frequent_polls.saturating_sub(1);
    }

    /// There was something on them, and more may follow.
    pub(crate) fn control_brought_work(&mut self) {
        self.frequent_polls = CONTROL_FREQUENT_POLLS;
    }

    /// The next step polls the control sockets: there may be something.
    pub(crate) fn poll_control_soon(&mut self) {
        self.empty = self.empty / CONTROL_POLL_STEPS * CONTROL_POLL_STEPS + CONTROL_POLL_FIRST;
        self.control_polled_at = Time::ZERO;
    }

    /// The node takes `now` for the time of what comes, until it is told another one.
    #[inline]
    pub(crate) fn set_time(&mut self, now: Time) {
        self.stepped_at = now;
    }

    /// The time of the last step.
    #[inline]
    pub(crate) fn time(&self) -> Time {
        self.stepped_at
    }

    /// A step, or a poll of the network, brought something.
    #[inline]
    pub(crate) fn worked(&mut self) {
        self.empty = 0;
    }

    /// A step brought nothing.
    #[inline]
    pub(crate) fn was_empty(&mut self, now: Time) {
        if self.empty == 0 {
            self.idle_since = now;
        }
        // The count goes on where it has the same place among the steps that poll control sockets.
        self.empty = self.empty.checked_add(1).unwrap_or(CONTROL_POLL_STEPS);
    }

    /// How long nothing has been there to do.
    pub(crate) fn idle_for(&self, now: Time) -> Duration {
        if self.empty == 0 { Duration::ZERO } else { now.since(self.idle_since) }
    }

    /// A step with work has ended, and nobody sleeps; says whether the sockets leave the epoll set
    /// now, for being in it costs time with each datagram.
    #[inline]
    pub(crate) fn leaves_epoll(&mut self) -> bool {
        self.busy = self.busy.saturating_add(1);
        self.busy == DISARM_STEPS
    }

    /// Somebody sleeps: the sockets are in the epoll set.
    pub(crate) fn sleeps(&mut self) {
        self.busy = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(1_000_000_000);

    /// The steps of so many without work at which control sockets are polled.
    fn polled_at(steps: &mut Steps, count: u32) -> Vec<u32> {
        let mut polled = Vec::new();
        for step in 0..count {
            if steps.control_is_due(false, START) {
                steps.polls_control(START);
                polled.push(step);
            }
            steps.was_empty(START);
        }
        polled
    }

    #[test]
    fn control_sockets_are_polled_soon_after_work_ends_and_then_every_so_many_steps() {
        let mut steps = Steps::new(START);
        let first = CONTROL_POLL_FIRST;
        let expected = [first, first + CONTROL_POLL_STEPS, first + 2 * CONTROL_POLL_STEPS];
        assert_eq!(polled_at(&mut steps, 3 * CONTROL_POLL_STEPS), expected);
        steps.worked();
        assert_eq!(polled_at(&mut steps, CONTROL_POLL_STEPS), [first], "it begins anew");
    }

    #[test]
    fn control_sockets_are_polled_for_ever() {
        let mut steps = Steps { empty: u32::MAX - 100, ..Steps::new(START) };
        let polled = polled_at(&mut steps, 100 * CONTROL_POLL_STEPS);
        assert_eq!(polled.len(), 100);
        assert!(polled.windows(2).all(|pair| pair[1] - pair[0] == CONTROL_POLL_STEPS), "{polled:?}");
        let mut steps = Steps { empty: u32::MAX, ..Steps::new(START) };
        steps.poll_control_soon();
        assert!(steps.control_is_due(false, START));
    }

    #[test]
    fn control_sockets_that_brought_something_are_polled_often_for_a_while() {
        let mut steps = Steps::new(START);
        steps.control_brought_work();
        let often = polled_at(&mut steps, CONTROL_FREQUENT_POLLS * CONTROL_FREQUENT_STEPS);
        assert_eq!(often.len() as u32, CONTROL_FREQUENT_POLLS);
        assert!(often.windows(2).all(|pair| pair[1] - pair[0] == CONTROL_FREQUENT_STEPS));
        let then = polled_at(&mut steps, 4 * CONTROL_POLL_STEPS);
        assert_eq!(then.len(), 4, "and then as rarely as before");
    }

    #[test]
    fn work_puts_control_sockets_off_by_time_and_not_for_ever() {
        let mut steps = Steps::new(START);
        steps.polls_control(START);
        let just_before = START + (CONTROL_POLL_EVERY - Duration::from_nanos(1));
        assert!(!steps.control_is_due(true, START) && !steps.control_is_due(true, just_before));
        assert!(steps.control_is_due(true, START + CONTROL_POLL_EVERY));
    }

    #[test]
    fn whoever_asks_for_control_gets_it_with_the_next_step_with_work_or_without() {
        for empty in [0, 1, CONTROL_POLL_FIRST, CONTROL_POLL_STEPS + 5, 12_345] {
            for frequent in [false, true] {
                let mut steps = Steps::new(START);
                steps.polls_control(START);
                (0..empty).for_each(|_| steps.was_empty(START));
                if frequent {
                    steps.control_brought_work();
                }
                steps.poll_control_soon();
                assert!(steps.control_is_due(false, START) && steps.control_is_due(true, START), "{empty} {frequent}");
            }
        }
    }

    #[test]
    fn nobody_sends_past_the_rings_twice_without_a_step_between() {
        let mut steps = Steps::new(START);
        assert!(steps.may_send_inline());
        steps.sent_inline();
        assert!(!steps.may_send_inline());
        assert!(steps.begin(), "it was work");
        assert!(steps.may_send_inline() && !steps.begin());
    }

    #[test]
    fn idle_time_runs_from_the_first_step_without_work() {
        let later = |micros| START + Duration::from_micros(micros);
        let mut steps = Steps::new(START);
        assert_eq!(steps.idle_for(later(100)), Duration::ZERO);
        steps.was_empty(later(10));
        steps.was_empty(later(30));
        assert_eq!(steps.idle_for(later(50)), Duration::from_micros(40));
        steps.worked();
        assert_eq!(steps.idle_for(later(60)), Duration::ZERO);
        steps.was_empty(later(70));
        assert_eq!(steps.idle_for(later(70)), Duration::ZERO);
    }

    #[test]
    fn what_comes_has_the_time_of_the_last_step() {
        let mut steps = Steps::new(START);
        assert_eq!(steps.time(), START);
        steps.set_time(START + Duration::from_micros(1));
        assert_eq!(steps.time(), START + Duration::from_micros(1));
    }

    #[test]
    fn sockets_leave_the_epoll_set_once_between_two_sleeps() {
        let mut steps = Steps::new(START);
        for _ in 0..2 {
            let left = (1..10 * DISARM_STEPS).filter(|_| steps.leaves_epoll()).count();
            assert_eq!(left, 1);
            steps.sleeps();
            assert!((1..DISARM_STEPS).all(|_| !steps.leaves_epoll()), "not for a few steps");
            assert!(steps.leaves_epoll());
            steps.sleeps();
        }
    }
}
