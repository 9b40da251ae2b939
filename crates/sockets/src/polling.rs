//! How long to poll a stream before sleeping: [`Backoff`] with what a stream knows.
//!
//! Of a ring the peer says where it runs: on another core this end spins, on the same core it
//! yields. Polling in vain makes the next waits sleep at once, so that a peer that computes between
//! requests does not cost us the time it computes.
//!
//! A receive in the kernel can be polled for in the same way, before its call sleeps: between nodes
//! a wake-up costs both processors more than most messages take.
//!
//! Invariant: a wait without sleep ends after [`RING_POLL_NS`], or in the kernel three times
//! [`KERNEL_POLL_NS`], give or take one yield, and not after its deadline. Source:
//! docs/measured.md.

use crate::limits::{EARLY_POLLS, KERNEL_POLL_NS};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vmmc_host::limits::{KERNEL_WAITS, RING_POLL_NS, RING_WAITS, SKIPPED_WAITS};
use vmmc_host::wait::{Backoff, Manner, Polled, poll};
use vmmc_host::{Deadline, Nanos};
use vmmc_stream::core;

/// The end of a wait without one.
pub(crate) const NEVER: Deadline = Deadline(Nanos::MAX);

/// What the last waits for the rings of a connection, or of an event loop, gained.
#[derive(Debug)]
pub(crate) struct SpinBudget(Backoff);

impl Default for SpinBudget {
    fn default() -> SpinBudget {
        SpinBudget(Backoff::new(&RING_WAITS))
    }
}

impl SpinBudget {
    /// Polls until `ready`, for as long as that tends to pay, and not beyond the deadline.
    /// `peer_core` is where the other side runs, plus one; 0: unknown.
    pub(crate) fn poll(&self, peer_core: u32, deadline: Deadline, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        let manner = if peer_core == core() + 1 { Manner::Yield } else { Manner::Spin };
        let mut wait = self.0.begin(manner, deadline);
        poll(&mut wait, Nanos::monotonic, || ready().then_some(())) == Polled::Found(())
    }
}

/// What polling before receives in the kernel gained, on one connection.
///
/// A sleep costs about as much processor time as [`RING_POLL_NS`]. Polling for longer pays in time
/// only, so it is for an end that spends less than [`KERNEL_POLL_NS`] between two waits: a
/// slow one would burn more than its whole work takes.
#[derive(Debug)]
pub(crate) struct KernelPolls {
    backoff: Backoff,
    /// Waits in a row that had nothing to wait for.
    early: AtomicU32,
    /// When the last receive ended; 0: nobody polled.
    received_ns: AtomicU64,
}

impl Default for KernelPolls {
    fn default() -> KernelPolls {
        KernelPolls { backoff: Backoff::new(&KERNEL_WAITS), early: AtomicU32::new(0), received_ns: AtomicU64::new(0) }
    }
}

impl KernelPolls {
    /// Polls until `ready`, for as long as that tends to pay.
    pub(crate) fn poll(&self, now: impl Fn() -> Nanos, mut ready: impl FnMut() -> bool) {
        let mut wait = self.backoff.begin(Manner::Yield, NEVER);
        // A poll is a system call: not one for a wait that is skipped.
        if !wait.polls() {
            return;
        }
        if ready() {
            // Who always finds bytes need not poll for them.
            if self.early.fetch_add(1, Ordering::Relaxed) + 1 >= EARLY_POLLS {
                self.early.store(0, Ordering::Relaxed);
                self.backoff.skip(SKIPPED_WAITS);
            }
            return;
        }
        self.early.store(0, Ordering::Relaxed);
        let start = now();
        let busy_ns = start.0.saturating_sub(self.received_ns.load(Ordering::Relaxed));
        // An end that was busy with long messages waits for long ones, of a peer that is as busy
        // and may have slept.
        let poll_ns = if busy_ns < KERNEL_POLL_NS { KERNEL_POLL_NS + 2 * busy_ns } else { RING_POLL_NS };
        wait.poll_from(start, poll_ns);
        poll(&mut wait, now, || ready().then_some(()));
    }

    /// A receive in the kernel has ended.
    #[inline]
    pub(crate) fn received(&self, now: impl FnOnce() -> Nanos) {
        if !self.backoff.is_skipping() {
            self.received_ns.store(now().0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use vmmc_host::limits::{KERNEL_SKIPPED_WAITS_MAX, VAIN_WAITS, YIELD_LONG_NS};

    #[test]
    fn a_wait_polls_no_longer_than_its_deadline() {
        let budget = SpinBudget::default();
        for peer_core in [0, core() + 1] {
            let deadline = Deadline(Nanos::monotonic());
            assert!(!budget.poll(peer_core, deadline, || false));
        }
        (0..2 * VAIN_WAITS).for_each(|_| assert!(!budget.poll(0, Deadline(Nanos::monotonic()), || false)));
        assert!(budget.0.begin(Manner::Spin, NEVER).polls(), "which says nothing about polling");
    }

    #[test]
    fn waits_in_vain_make_the_next_ones_short() {
        let budget = SpinBudget::default();
        let mut polls = 0u64;
        let mut vain = || {
            assert!(!budget.poll(0, NEVER, || {
                polls += 1;
                false
            }));
            std::mem::take(&mut polls)
        };
        (0..VAIN_WAITS).for_each(|_| assert!(vain() > 1));
        (0..SKIPPED_WAITS).for_each(|_| assert_eq!(vain(), 1, "one poll each"));
        assert!(budget.poll(0, NEVER, || true));
    }

    /// Waits of which each has bytes after so many microseconds, and each receive is followed by
    /// such a pause; gives how long was polled in all, and how many waits found them so.
    fn waits(polls: &KernelPolls, clock: &Cell<u64>, count: u32, wait_us: u64, pause_us: u64) -> (u64, u32) {
        let (mut polled_us, mut good) = (0, 0);
        for _ in 0..count {
            let start = clock.get();
            let mut found = false;
            // Each reading of the clock takes a microsecond.
            let now = || {
                clock.set(clock.get() + 1_000);
                Nanos(clock.get())
            };
            polls.poll(now, || {
                found = clock.get() - start >= wait_us * 1_000;
                found
            });
            polled_us += (clock.get() - start) / 1_000;
            good += u32::from(found);
            clock.set(clock.get().max(start + wait_us * 1_000));
            polls.received(|| Nanos(clock.get()));
            clock.set(clock.get() + pause_us * 1_000);
        }
        (polled_us, good)
    }

    #[test]
    fn polls_in_the_kernel_last_as_long_as_they_pay() {
        let clock = Cell::new(1_000_000_000);
        let turns = KernelPolls::default();
        // Answers after 30 us: found by an end that does nothing else, once that is known.
        waits(&turns, &clock, 1, 30, 3);
        assert_eq!(waits(&turns, &clock, 1_000, 30, 3).1, 1_000);
        // Not polled for by an end that pauses for longer than a sleep costs, but seldom and
        // shortly.
        let thinker = KernelPolls::default();
        let (polled_us, good) = waits(&thinker, &clock, 10_000, 30, 50);
        assert!(good == 0 && polled_us < 300, "{good} {polled_us}");
        // Nor by its peer.
        let peer = KernelPolls::default();
        let (polled_us, good) = waits(&peer, &clock, 10_000, 110, 3);
        assert!(good == 0 && polled_us < 500, "{good} {polled_us}");
        // Somebody who stopped thinking is found out within a bounded number of waits, and then
        // always.
        waits(&peer, &clock, KERNEL_SKIPPED_WAITS_MAX, 10, 3);
        assert_eq!(waits(&peer, &clock, 1_000, 10, 3).1, 1_000);
        // Where bytes are always there nobody reads the clock.
        let stream = KernelPolls::default();
        assert_eq!(waits(&stream, &clock, 1_000, 0, 3).0, 0);
    }

    #[test]
    fn a_yield_that_took_long_ends_polling() {
        let clock = Cell::new(1_000_000_000);
        let polls = KernelPolls::default();
        let now = || {
            clock.set(clock.get() + YIELD_LONG_NS);
            Nanos(clock.get())
        };
        polls.poll(now, || false);
        let before = clock.get();
        (0..SKIPPED_WAITS).for_each(|_| polls.poll(now, || false));
        assert_eq!(clock.get(), before, "nobody polls");
        polls.poll(now, || false);
        assert!(clock.get() > before);
    }
}
