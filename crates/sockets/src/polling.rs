//! How long to look before sleeping.
//!
//! Peer on another core: pause and look. Peer on this core: give it away, unless that handed it to
//! somebody busy the last time. Looking in vain makes the next waits sleep at once, so that a peer
//! that thinks between requests does not cost us the time it thinks.
//!
//! A receive in the kernel can be looked for in the same way, before its call sleeps: between nodes
//! a wake-up costs both processors more than most messages take.
//!
//! Invariant: a wait without sleep ends after [`LOOK_TIME`], or in the kernel three times
//! [`KERNEL_LOOK_TIME`], give or take one yield. Source: docs/measured.md.

use crate::limits::{
    EARLY_LOOKS, KERNEL_LOOK_TIME, KERNEL_SKIPPED_WAITS_MAX, LOOK_TIME, NO_YIELD_WAITS, NO_YIELD_WAITS_MAX,
    SKIPPED_WAITS, VAIN_WAITS, YIELD_LONG,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use vmmc_host::Nanos;
use vmmc_stream::core;

/// What the last waits of a connection or an event loop gained.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    vain: AtomicU32,
    skip: AtomicU32,
    no_yield: AtomicU32,
    no_yield_next: AtomicU32,
}

/// Looks between two looks at the clock.
const LOOKS: u32 = 32;

impl Patience {
    /// Looks until `ready`, for as long as that tends to pay and at most `max`. `peer_core` is
    /// where the other side runs, plus one; 0: unknown.
    pub(crate) fn look(&self, peer_core: u32, max: Duration, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        if counts_down(&self.skip) || max.is_zero() {
            return false;
        }
        let same = peer_core == core() + 1;
        let done = if same { self.give_way(max, ready) } else { spin(max.min(LOOK_TIME), ready) };
        self.adapt(done);
        done
    }

    fn adapt(&self, done: bool) {
        if done {
            self.vain.store(0, Ordering::Relaxed);
        } else if self.vain.fetch_add(1, Ordering::Relaxed) + 1 >= VAIN_WAITS {
            // The next failure after the rest sends us to rest again at once.
            self.vain.store(VAIN_WAITS - 1, Ordering::Relaxed);
            self.skip.store(SKIPPED_WAITS, Ordering::Relaxed);
        }
    }

    fn give_way(&self, max: Duration, mut ready: impl FnMut() -> bool) -> bool {
        if counts_down(&self.no_yield) {
            return false;
        }
        let start = Nanos::monotonic();
        let mut before = start;
        loop {
            std::thread::yield_now();
            let (done, now) = (ready(), Nanos::monotonic());
            if now.since(before) >= YIELD_LONG {
                // Also if it helped in the end: a sleep would have been shorter.
                let rest = self.no_yield_next.load(Ordering::Relaxed).clamp(NO_YIELD_WAITS, NO_YIELD_WAITS_MAX);
                self.no_yield.store(rest, Ordering::Relaxed);
                self.no_yield_next.store(rest.saturating_mul(4), Ordering::Relaxed);
                return done;
            }
            if done {
                // One good yield in hundreds does not prove that the busy one has gone.
                self.no_yield_next
                    .fetch_sub(u32::from(self.no_yield_next.load(Ordering::Relaxed) > 0), Ordering::Relaxed);
                return true;
            }
            if now.since(start) >= LOOK_TIME.min(max) {
                return false;
            }
            before = now;
        }
    }
}

/// What looking before receives in the kernel gained, on one connection.
///
/// A sleep costs about as much processor time as [`LOOK_TIME`]. Looking for longer pays in time
/// only, so it is for an end that spends less than [`KERNEL_LOOK_TIME`] between two waits: one that
/// thinks would burn more than its whole work takes.
#[derive(Debug, Default)]
pub(crate) struct KernelLooks {
    vain: AtomicU32,
    skip: AtomicU32,
    /// Waits to skip after the next look in vain.
    skip_next: AtomicU32,
    /// Waits in a row that had nothing to wait for.
    early: AtomicU32,
    /// When the last receive ended; 0: nobody looked.
    received_ns: AtomicU64,
}

impl KernelLooks {
    /// Looks until `ready`, for as long as that tends to pay.
    pub(crate) fn look(&self, now: impl Fn() -> Nanos, mut ready: impl FnMut() -> bool) {
        if counts_down(&self.skip) {
            return;
        }
        if ready() {
            // Who always finds bytes need not look for them.
            if self.early.fetch_add(1, Ordering::Relaxed) + 1 >= EARLY_LOOKS {
                self.early.store(0, Ordering::Relaxed);
                self.skip.store(SKIPPED_WAITS, Ordering::Relaxed);
            }
            return;
        }
        self.early.store(0, Ordering::Relaxed);
        let start = now();
        let busy = start.since(Nanos(self.received_ns.load(Ordering::Relaxed)));
        // Who was busy with long messages waits for long ones, of a peer that is as busy and may
        // have slept.
        let max = if busy < KERNEL_LOOK_TIME { KERNEL_LOOK_TIME + 2 * busy } else { LOOK_TIME };
        let mut before = start;
        loop {
            std::thread::yield_now();
            let (done, now) = (ready(), now());
            let (long, over) = (now.since(before) >= YIELD_LONG, now.since(start) >= max);
            if long || over || done {
                return self.adapt(done && !long, long);
            }
            before = now;
        }
    }

    /// A receive in the kernel has ended.
    #[inline]
    pub(crate) fn received(&self, now: impl FnOnce() -> Nanos) {
        if self.skip.load(Ordering::Relaxed) == 0 {
            self.received_ns.store(now().0, Ordering::Relaxed);
        }
    }

    fn adapt(&self, good: bool, crowded: bool) {
        let next = self.skip_next.load(Ordering::Relaxed);
        if good {
            self.vain.store(0, Ordering::Relaxed);
            // One good look in hundreds does not prove that they pay.
            self.skip_next.store(next - next.div_ceil(64), Ordering::Relaxed);
        } else if self.vain.fetch_add(1, Ordering::Relaxed) + 1 >= VAIN_WAITS || crowded {
            self.vain.store(VAIN_WAITS - 1, Ordering::Relaxed);
            let skipped = next.clamp(SKIPPED_WAITS, KERNEL_SKIPPED_WAITS_MAX);
            self.skip.store(skipped, Ordering::Relaxed);
            self.skip_next.store(skipped * 4, Ordering::Relaxed);
        }
    }
}

fn spin(max: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let start = Nanos::monotonic();
    loop {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if Nanos::monotonic().since(start) >= max {
            return false;
        }
    }
}

/// Counts one down if there is something to count.
fn counts_down(left: &AtomicU32) -> bool {
    let now = left.load(Ordering::Relaxed);
    if now > 0 {
        left.store(now - 1, Ordering::Relaxed);
    }
    now > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn waits_in_vain_make_the_next_ones_short() {
        let patience = Patience::default();
        let mut looks = 0u64;
        for _ in 0..VAIN_WAITS {
            assert!(!patience.look(0, Duration::from_micros(5), || {
                looks += 1;
                false
            }));
        }
        let before = looks;
        for _ in 0..SKIPPED_WAITS {
            assert!(!patience.look(0, Duration::from_micros(5), || {
                looks += 1;
                false
            }));
        }
        assert_eq!(looks - before, u64::from(SKIPPED_WAITS), "one look each");
        assert!(patience.look(0, LOOK_TIME, || true));
    }

    /// Waits of which each has bytes after so many microseconds, and each receive is followed by
    /// such a pause; gives how long was looked in all, and how many looks ended well.
    fn waits(looks: &KernelLooks, clock: &Cell<u64>, count: u32, wait_us: u64, pause_us: u64) -> (u64, u32) {
        let (mut looked_us, mut good) = (0, 0);
        for _ in 0..count {
            let start = clock.get();
            let mut found = false;
            // Each look at the clock takes a microsecond.
            let now = || {
                clock.set(clock.get() + 1_000);
                Nanos(clock.get())
            };
            looks.look(now, || {
                found = clock.get() - start >= wait_us * 1_000;
                found
            });
            looked_us += (clock.get() - start) / 1_000;
            good += u32::from(found);
            clock.set(clock.get().max(start + wait_us * 1_000));
            looks.received(|| Nanos(clock.get()));
            clock.set(clock.get() + pause_us * 1_000);
        }
        (looked_us, good)
    }

    #[test]
    fn looks_in_the_kernel_last_as_long_as_they_pay() {
        let clock = Cell::new(1_000_000_000);
        let turns = KernelLooks::default();
        // Answers after 30 us: found by whoever does nothing else, once that is known.
        waits(&turns, &clock, 1, 30, 3);
        assert_eq!(waits(&turns, &clock, 1_000, 30, 3).1, 1_000);
        // Not looked for by whoever thinks for longer than a sleep costs, but seldom and shortly.
        let thinker = KernelLooks::default();
        let (looked_us, good) = waits(&thinker, &clock, 10_000, 30, 50);
        assert!(good == 0 && looked_us < 300, "{good} {looked_us}");
        // Nor by its peer.
        let peer = KernelLooks::default();
        let (looked_us, good) = waits(&peer, &clock, 10_000, 110, 3);
        assert!(good == 0 && looked_us < 500, "{good} {looked_us}");
        // Somebody who stopped thinking is found out within a bounded number of waits, and then
        // always.
        waits(&peer, &clock, KERNEL_SKIPPED_WAITS_MAX, 10, 3);
        assert_eq!(waits(&peer, &clock, 1_000, 10, 3).1, 1_000);
        // Where bytes are always there nobody looks at the clock.
        let stream = KernelLooks::default();
        assert_eq!(waits(&stream, &clock, 1_000, 0, 3).0, 0);
    }

    #[test]
    fn a_yield_that_took_long_ends_looks() {
        let clock = Cell::new(1_000_000_000);
        let looks = KernelLooks::default();
        let now = || {
            clock.set(clock.get() + YIELD_LONG.as_nanos() as u64);
            Nanos(clock.get())
        };
        looks.look(now, || false);
        let before = clock.get();
        (0..SKIPPED_WAITS).for_each(|_| looks.look(now, || false));
        assert_eq!(clock.get(), before, "nobody looks");
        looks.look(now, || false);
        assert!(clock.get() > before);
    }
}
