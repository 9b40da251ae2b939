//! Which stores fill memory that another core reads next: ordinary ones, or ones that go past the
//! cache.
//!
//! An ordinary store needs the line in its own cache, and the last reader has it: on processors
//! whose cores lie far apart a copy then runs at a tenth of its speed, and the reader fetches the
//! same lines back. A store past the cache waits for nobody, and the reader finds the bytes in
//! memory; between cores that share their caches that is the longer way. Which holds is a matter of
//! processor, of where the two threads run, and in a virtual machine of the moment: so both are
//! timed, now and then.
//!
//! Invariant: how bytes are stored changes nothing but time. Source: measurements of
//! docs/measured.md.

use crate::limits::{
    STORE_TRIAL_BYTES_MIN, STORE_TRIAL_EVERY, STORE_TRIAL_EVERY_MAX, STORES_BEFORE_TRIAL, STORES_PAST_CACHE_BYTES_MIN,
    UNCACHED_READ_NS,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// How a copy stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// As every copy.
    Cached,
    /// With non-temporal stores, where the processor has them.
    PastCache,
}

/// What the stores of one writer cost so far.
#[derive(Debug)]
pub struct Stores {
    /// Copies of at least so many bytes go past the cache.
    past_cache_from: AtomicU64,
    /// Copies until the next two are timed: one of each kind.
    until_trial: AtomicU32,
    /// Copies between the last trial and the next.
    every: AtomicU32,
    /// Nanoseconds for a MiB of stores of each kind; 0: not known.
    cost: [AtomicU64; 2],
}

impl Default for Stores {
    fn default() -> Stores {
        Stores {
            past_cache_from: AtomicU64::new(u64::MAX),
            until_trial: AtomicU32::new(STORES_BEFORE_TRIAL),
            every: AtomicU32::new(STORE_TRIAL_EVERY),
            cost: Default::default(),
        }
    }
}

impl Stores {
    /// Makes one copy of about `len` bytes in the way that pays; `copy` says how many bytes it
    /// copied.
    #[inline]
    pub fn copy(&self, len: u64, now_ns: impl Fn() -> u64, copy: impl FnOnce(Store) -> u64) -> u64 {
        if len >= STORE_TRIAL_BYTES_MIN {
            let left = self.until_trial.load(Relaxed);
            if left < 2 {
                return self.try_out(left, now_ns, copy);
            }
            self.until_trial.store(left - 1, Relaxed);
        }
        copy(if len >= self.past_cache_from.load(Relaxed) { Store::PastCache } else { Store::Cached })
    }

    #[cold]
    fn try_out(&self, left: u32, now_ns: impl Fn() -> u64, copy: impl FnOnce(Store) -> u64) -> u64 {
        let how = if left == 1 { Store::Cached } else { Store::PastCache };
        let start = now_ns();
        let copied = copy(how);
        let ns = now_ns().saturating_sub(start);
        if copied < STORE_TRIAL_BYTES_MIN {
            // The next one will do.
            return copied;
        }
        let cost = &self.cost[how as usize];
        // A copy that was interrupted counts as twice the last cost at most.
        let most = cost.load(Relaxed).checked_mul(2).filter(|most| *most > 0).unwrap_or(u64::MAX);
        cost.store((ns.saturating_mul(1 << 20) / copied).clamp(1, most), Relaxed);
        if how == Store::PastCache {
            self.decide();
        }
        self.until_trial.store(if left == 1 { 0 } else { self.every.load(Relaxed) }, Relaxed);
        copied
    }

    /// Past the cache the writer saves the difference, and the reader loses what the first bytes
    /// take to come from memory, and some: half as much as the stores themselves.
    fn decide(&self) {
        let [cached, past] = [Store::Cached, Store::PastCache].map(|how| self.cost[how as usize].load(Relaxed));
        let from = match cached.saturating_sub(past + past / 2) {
            0 => u64::MAX,
            saved => ((UNCACHED_READ_NS << 20) / saved).max(STORES_PAST_CACHE_BYTES_MIN),
        };
        self.past_cache_from.store(from, Relaxed);
        // A trial past a cache that serves well empties it, which costs more than the copy itself.
        let every = if from == u64::MAX { self.every.load(Relaxed) * 2 } else { STORE_TRIAL_EVERY };
        self.every.store(every.min(STORE_TRIAL_EVERY_MAX), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Copies on a machine where a MiB takes so many nanoseconds; gives how many of them went past
    /// the cache.
    fn copies(stores: &Stores, count: u32, len: u64, cached_ns: u64, past_ns: u64) -> u32 {
        let (clock, mut past) = (Cell::new(0), 0);
        for _ in 0..count {
            let copied = stores.copy(
                len,
                || clock.get(),
                |how| {
                    let per_mib = if how == Store::Cached { cached_ns } else { past_ns };
                    past += u32::from(how == Store::PastCache);
                    clock.set(clock.get() + ((per_mib * len) >> 20));
                    len
                },
            );
            assert_eq!(copied, len);
        }
        past
    }

    #[test]
    fn cores_that_share_caches_use_them() {
        let stores = Stores::default();
        let trials = 10;
        let past = copies(&stores, STORES_BEFORE_TRIAL + trials * (STORE_TRIAL_EVERY + 1), 16 << 10, 20_000, 14_000);
        assert!(past <= trials + 1, "{past} copies past the cache");
    }

    #[test]
    fn far_cores_go_past_the_cache_from_where_it_pays() {
        let stores = Stores::default();
        copies(&stores, 2 * STORES_BEFORE_TRIAL, 16 << 10, 100_000, 14_000);
        assert_eq!(copies(&stores, 10, 16 << 10, 100_000, 14_000), 10);
        assert_eq!(copies(&stores, 10, 3 << 10, 100_000, 14_000), 0, "the reader would wait for longer");
        // They move apart, and together.
        copies(&stores, 3 * STORE_TRIAL_EVERY, 16 << 10, 450_000, 14_000);
        assert_eq!(copies(&stores, 10, 3 << 10, 450_000, 14_000), 10);
        copies(&stores, 3 * STORE_TRIAL_EVERY, 16 << 10, 20_000, 14_000);
        assert_eq!(copies(&stores, 10, 16 << 10, 20_000, 14_000), 0);
        // Apart again, after a long time.
        copies(&stores, 20 * STORE_TRIAL_EVERY_MAX, 16 << 10, 20_000, 14_000);
        copies(&stores, 3 * STORE_TRIAL_EVERY_MAX, 16 << 10, 450_000, 14_000);
        assert_eq!(copies(&stores, 10, 16 << 10, 450_000, 14_000), 10);
    }

    #[test]
    fn an_interruption_does_not_turn_the_choice() {
        let stores = Stores::default();
        copies(&stores, 2 * STORES_BEFORE_TRIAL, 16 << 10, 100_000, 14_000);
        // The trials of one round, with a millisecond in the second.
        while stores.until_trial.load(Relaxed) > 0 {
            copies(&stores, 1, 16 << 10, 100_000, 14_000);
        }
        copies(&stores, 1, 16 << 10, 100_000, 64_000_000);
        assert_eq!(copies(&stores, 10, 16 << 10, 100_000, 14_000), 10);
    }

    #[test]
    fn short_copies_are_not_timed() {
        let stores = Stores::default();
        for _ in 0..10 * STORE_TRIAL_EVERY {
            stores.copy(
                STORE_TRIAL_BYTES_MIN - 1,
                || panic!("the clock"),
                |how| {
                    assert_eq!(how, Store::Cached);
                    0
                },
            );
        }
    }
}
