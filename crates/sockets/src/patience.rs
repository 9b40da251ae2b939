//! How long to look before sleeping.
//!
//! Peer on another core: pause and look. Peer on this core: give it away, unless that handed it to somebody busy the last time. Looking in vain makes the next waits
//! sleep at once, so that a peer that thinks between requests does not cost us the time it thinks.
//!
//! Invariant: a wait without sleep ends after [`LOOK_TIME`], give or take one yield. Source: measurements of docs/sockets.md.

use crate::limits::{LOOK_TIME, NO_YIELD_WAITS, NO_YIELD_WAITS_MAX, SKIPPED_WAITS, VAIN_WAITS, YIELD_LONG};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use vmmc_host::Nanos;
use vmmc_host::stream::core;

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
    /// Looks until `ready`, for as long as that tends to pay and at most `max`. `peer_core` is where the other side runs, plus one; 0: unknown.
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
}
