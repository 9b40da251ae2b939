//! The clocks of NX.
//!
//! Invariant: they never go back; they count from the first look at one of them in this process.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn since_first() -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed()
}

/// Seconds since the first look at a clock of NX in this process.
///
/// ```
/// let before = vmmc_nx::dclock();
/// assert!(vmmc_nx::dclock() >= before);
/// ```
pub fn dclock() -> f64 {
    since_first().as_secs_f64()
}

/// The same in milliseconds.
///
/// ```
/// let before = vmmc_nx::mclock();
/// assert!(vmmc_nx::mclock() >= before);
/// ```
pub fn mclock() -> u64 {
    since_first().as_millis() as u64
}
