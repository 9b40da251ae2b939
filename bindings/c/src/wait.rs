//! Deadlines: each wait has one, from the call, the thread or the session.
//!
//! Invariant: a negative timeout is the default, which is bounded too.

use crate::failure::{Failure, call};
use crate::status::vmmc_status;
use std::time::Duration;
use vmmc::{Patience, patience, set_patience, with_patience};

/// As a timeout: that of the thread, else that of the session.
pub const VMMC_DEFAULT_TIMEOUT: i64 = -1;

/// Runs something within a timeout of the caller.
pub(crate) fn within<R>(timeout_us: i64, run: impl FnOnce() -> R) -> R {
    match duration(timeout_us) {
        None => run(),
        timeout => with_patience(Patience { timeout, ..patience() }, run),
    }
}

/// None for the default.
pub(crate) fn duration(timeout_us: i64) -> Option<Duration> {
    u64::try_from(timeout_us).ok().map(Duration::from_micros)
}

/// A timeout of options, where 0 is the default.
pub(crate) fn optional(timeout_us: i64) -> Result<Option<Duration>, Failure> {
    if timeout_us < 0 {
        return Err(Failure::invalid(format!("`timeout_us` is {timeout_us}; give microseconds, or 0 for the default")));
    }
    Ok(duration(timeout_us).filter(|time| !time.is_zero()))
}

/// Sets the timeout of all later calls of this thread that take none of their own: sends, fetches,
/// atomics, set-up. VMMC_DEFAULT_TIMEOUT gives them the session's again.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_thread_timeout(timeout_us: i64) -> vmmc_status {
    call(|| {
        set_patience(Patience { timeout: duration(timeout_us), ..patience() });
        Ok(())
    })
}
