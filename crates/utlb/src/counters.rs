//! What has happened, in numbers: the same for the running system and for the simulator, so that a
//! run and the replay of its trace can be compared.
//!
//! Invariant: counters only grow. `lookups` counts pages, as the firmware does; `transfers` counts
//! calls. [UTLB §6.2, §4.2]

use crate::limits::PIN_CLASSES;

/// The user's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinCounters {
    /// Transfers looked up.
    pub transfers: u64,
    /// Pages looked up.
    pub lookups: u64,
    /// Pages that were not pinned when looked up.
    pub check_misses: u64,
    /// Transfers with at least one such page: system calls.
    pub miss_transfers: u64,
    /// Pages pinned, on demand and ahead.
    pub pins: u64,
    /// Pages unpinned, for whatever reason.
    pub unpins: u64,
    /// Of these: chosen by the policy.
    pub evictions: u64,
    /// Pin calls by pages; the last class has all larger ones.
    pub pin_calls: [u64; PIN_CLASSES],
    /// Pages pinned by the calls of the last class.
    pub pins_large: u64,
    /// Unpin calls. The mechanism unpins one page at a time; a registration cache unpins regions.
    pub unpin_calls: u64,
}

impl PinCounters {
    /// A call that pins so many pages.
    pub(crate) fn pin_call(&mut self, pages: u64) {
        let class = (pages as usize).min(PIN_CLASSES - 1);
        self.pin_calls[class] += 1;
        if class == PIN_CLASSES - 1 {
            self.pins_large += pages;
        }
    }
}

impl Default for PinCounters {
    fn default() -> PinCounters {
        PinCounters {
            transfers: 0,
            lookups: 0,
            check_misses: 0,
            miss_transfers: 0,
            pins: 0,
            unpins: 0,
            evictions: 0,
            pin_calls: [0; PIN_CLASSES],
            pins_large: 0,
            unpin_calls: 0,
        }
    }
}

impl PinCounters {
    /// Adds those of another process.
    pub fn add(&mut self, other: &PinCounters) {
        self.transfers += other.transfers;
        self.lookups += other.lookups;
        self.check_misses += other.check_misses;
        self.miss_transfers += other.miss_transfers;
        self.pins += other.pins;
        self.unpins += other.unpins;
        self.evictions += other.evictions;
        self.pins_large += other.pins_large;
        self.unpin_calls += other.unpin_calls;
        self.pin_calls.iter_mut().zip(other.pin_calls).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// The engine's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Pages looked up.
    pub lookups: u64,
    /// Not found.
    pub misses: u64,
    /// Of these: never seen before.
    pub compulsory: u64,
    /// Of these: a fully associative LRU cache of the same size misses too.
    pub capacity: u64,
    /// Of these: the rest.
    pub conflict: u64,
    /// Entries read from host memory, on demand and ahead.
    pub fetched: u64,
    /// Entries that another one pushed out.
    pub displaced: u64,
    /// Second-level tables that had to be brought in.
    pub swap_ins: u64,
}

impl CacheCounters {
    /// Adds those of another process.
    pub fn add(&mut self, other: &CacheCounters) {
        self.lookups += other.lookups;
        self.misses += other.misses;
        self.compulsory += other.compulsory;
        self.capacity += other.capacity;
        self.conflict += other.conflict;
        self.fetched += other.fetched;
        self.displaced += other.displaced;
        self.swap_ins += other.swap_ins;
    }
}
