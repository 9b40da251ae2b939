//! Every parameter of the paper's study, and those that it left out. [UTLB §6]
//!
//! Invariant: a [`Config`] that [`Config::check`] accepts runs.

use crate::cache::{CacheShape, ShapeError};
use crate::limits::{PREFETCH_MAX, PREPIN_MAX};
use crate::pinning::Prepin;
use crate::policy::PolicyKind;

/// How addresses become translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// Hierarchical-UTLB: what the paper measures. [UTLB §3.3]
    Hierarchical,
    /// Shared UTLB-Cache over tables with user-chosen indices. [UTLB §3.2]
    Shared,
    /// A fixed table per process in the network interface: the entries divided by so many
    /// processes. [UTLB §3.1]
    PerProcess(u32),
    /// The network interface interrupts the host at every miss and unpins what leaves the cache.
    /// [UTLB §6.2]
    Interrupt,
    /// A registration cache as in message-passing libraries over RDMA; its translations always fit
    /// into the interface.
    Regions,
}

impl Mechanism {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Hierarchical => "hierarchical",
            Mechanism::Shared => "shared",
            Mechanism::PerProcess(_) => "per-process",
            Mechanism::Interrupt => "interrupt",
            Mechanism::Regions => "regions",
        }
    }
}

/// How much may be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// All.
    Unlimited,
    /// So many pages for each process.
    PerProcess(usize),
    /// So many pages for all processes together, moved between them under pressure.
    Dynamic(usize),
}

/// What to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How.
    pub mechanism: Mechanism,
    /// Cache of the network interface.
    pub cache: CacheShape,
    /// Entries fetched at a miss in it.
    pub prefetch: u32,
    /// Pages pinned at a check miss.
    pub prepin: Prepin,
    /// Which pages to give up.
    pub policy: PolicyKind,
    /// How many pages.
    pub memory: Memory,
    /// Split cache misses into compulsory, capacity and conflict; costs about as much as the rest
    /// of the run.
    pub classify: bool,
}

impl Default for Config {
    /// As the paper's Table 4 with the cache that was shipped.
    fn default() -> Config {
        Config {
            mechanism: Mechanism::Hierarchical,
            cache: CacheShape::PAPER,
            prefetch: 1,
            prepin: Prepin::Fixed(1),
            policy: PolicyKind::Lru,
            memory: Memory::Unlimited,
            classify: false,
        }
    }
}

/// Why there is no such simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The cache.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Prefetch.
    #[error("prefetch of {0} entries: give 1 to {max}", max = PREFETCH_MAX)]
    Prefetch(u32),
    /// Pre-pinning.
    #[error("pre-pinning of {0} pages: give 1 to {max}", max = PREPIN_MAX)]
    Prepin(u32),
    /// No memory.
    #[error("no page may be pinned; give at least one")]
    Memory,
    /// A dynamic limit needs a user side that gives back.
    #[error("a dynamic limit works with hierarchical and shared only; give a limit per process")]
    DynamicMechanism,
    /// The tables of the processes.
    #[error("{entries} entries for {processes} processes leave none for each; give 1 to {entries} processes")]
    Processes {
        /// As asked.
        processes: u32,
        /// Of the network interface.
        entries: usize,
    },
}

impl Config {
    /// With a direct-mapped cache of so many entries, with offset; the paper's sizes are powers of
    /// two from 1 Ki to 16 Ki.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Shape`].
    pub fn with_entries(self, entries: usize) -> Result<Config, ConfigError> {
        Ok(Config { cache: CacheShape::new(entries, 1, true)?, ..self })
    }

    /// Whether it can run.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(1..=PREFETCH_MAX).contains(&self.prefetch) {
            return Err(ConfigError::Prefetch(self.prefetch));
        }
        let (Prepin::Fixed(ahead) | Prepin::Adaptive(ahead)) = self.prepin;
        if !(1..=PREPIN_MAX).contains(&ahead) {
            return Err(ConfigError::Prepin(ahead));
        }
        if matches!(self.memory, Memory::PerProcess(0) | Memory::Dynamic(0)) {
            return Err(ConfigError::Memory);
        }
        let gives_back = matches!(self.mechanism, Mechanism::Hierarchical | Mechanism::Shared);
        if matches!(self.memory, Memory::Dynamic(_)) && !gives_back {
            return Err(ConfigError::DynamicMechanism);
        }
        if let Mechanism::PerProcess(processes) = self.mechanism {
            let entries = self.cache.entries();
            if processes == 0 || processes as usize > entries {
                return Err(ConfigError::Processes { processes, entries });
            }
        }
        Ok(())
    }

    /// Pages that one process may pin; `None` without limit or with a dynamic one.
    pub(super) fn limit(&self) -> Option<usize> {
        let memory = match self.memory {
            Memory::PerProcess(pages) => Some(pages),
            Memory::Unlimited | Memory::Dynamic(_) => None,
        };
        match self.mechanism {
            Mechanism::PerProcess(processes) => {
                let table = self.cache.entries() / processes as usize;
                Some(memory.map_or(table, |pages| pages.min(table)))
            }
            _ => memory,
        }
    }
}
