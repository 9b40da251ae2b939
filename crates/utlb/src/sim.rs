//! The simulator: the tables, caches and policies of this crate, driven by a trace. [UTLB §6]
//!
//! Invariant: nothing here decides what hits or misses; that is the running system's code. A
//! transfer ends before the next one begins, pins never fail, and every address exists. Results
//! depend on nothing but configuration and trace.

mod config;
mod dynamic;
mod node;
mod outcome;
pub mod sweep;
#[cfg(test)]
mod tests;

pub use config::{Config, ConfigError, Mechanism, Memory};
pub use node::Simulator;
pub use outcome::{Outcome, ProcessOutcome};

use crate::trace::{Record, TraceError};

/// Runs a trace in memory.
///
/// # Errors
///
/// [`ConfigError`].
pub fn run(config: Config, trace: &[Record]) -> Result<Outcome, ConfigError> {
    let mut simulator = Simulator::new(config)?;
    trace.iter().for_each(|record| simulator.step(record));
    Ok(simulator.finish())
}

/// Why a run from a stream of records failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The parameters.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Runs a trace from a stream; memory does not grow with its length.
///
/// # Errors
///
/// [`RunError`].
pub fn stream(config: Config, trace: impl Iterator<Item = Result<Record, TraceError>>) -> Result<Outcome, RunError> {
    let mut simulator = Simulator::new(config)?;
    for record in trace {
        simulator.step(&record?);
    }
    Ok(simulator.finish())
}
