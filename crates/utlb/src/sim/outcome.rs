//! What a run found.
//!
//! Invariant: `total` is the sum of the processes. Rates are per page looked up, as in the paper's
//! tables. [UTLB Table 4]

use super::config::{Config, Mechanism};
use crate::cost::Rates;
use crate::counters::{CacheCounters, PinCounters};
use crate::ids::Process;

/// One process, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessOutcome {
    /// The user's side; for the interrupt-based approach the kernel's.
    pub user: PinCounters,
    /// The network interface's side.
    pub cache: CacheCounters,
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What was simulated.
    pub config: Config,
    /// All processes.
    pub total: ProcessOutcome,
    /// Each process, by number.
    pub processes: Vec<(Process, ProcessOutcome)>,
}

impl Outcome {
    /// Events per page looked up.
    pub fn rates(&self) -> Rates {
        let ProcessOutcome { user, cache } = &self.total;
        let per_lookup = |count: u64| if cache.lookups == 0 { 0.0 } else { count as f64 / cache.lookups as f64 };
        let checked = self.config.mechanism != Mechanism::Interrupt;
        Rates {
            check_miss: if checked { per_lookup(user.check_misses) } else { 0.0 },
            ni_miss: per_lookup(cache.misses),
            unpin: per_lookup(user.unpins),
        }
    }

    /// Compulsory, capacity and conflict misses per page looked up.
    pub fn miss_kinds(&self) -> [f64; 3] {
        let cache = &self.total.cache;
        [cache.compulsory, cache.capacity, cache.conflict].map(|count| count as f64 / cache.lookups.max(1) as f64)
    }
}
