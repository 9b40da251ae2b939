//! Time limits of waiting calls.
//!
//! Invariant: a limit is fixed when the call begins; stale wake-ups wait for what is left.

use crate::limits::DEAF_SLICE_NS;
use crate::{own, probe};
use libc::{c_int, timespec};
use vmmc_host::{Deadline, Nanos};
use vmmc_sockets::ReadySet;

/// Nanoseconds of the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// When a call must return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Never.
    None,
    /// At once.
    Now,
    /// At this time.
    At(u64),
}

impl Limit {
    /// From milliseconds, negative for none.
    pub(crate) fn millis(timeout: c_int) -> Limit {
        match timeout {
            0 => Limit::Now,
            1.. => Limit::At(now_ns() + timeout as u64 * 1_000_000),
            _ => Limit::None,
        }
    }

    /// From a time of the program's, null for none; the error number where it is not there, or is
    /// not a time.
    ///
    /// # Safety
    /// Null, a time, or memory that cannot be read.
    pub(crate) unsafe fn timespec(timeout: *const timespec) -> Result<Limit, c_int> {
        if timeout.is_null() {
            return Ok(Limit::None);
        }
        if !probe::readable(timeout) {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller's promise, and it can be read.
        let time = unsafe { timeout.read_unaligned() };
        if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) {
            return Err(libc::EINVAL);
        }
        let ns = (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64);
        Ok(if ns == 0 { Limit::Now } else { Limit::At(now_ns().saturating_add(ns)) })
    }

    /// What is left, as the kernel takes it; `None` for no limit.
    pub(crate) fn left(self) -> Option<timespec> {
        let ns = match self {
            Limit::None => return None,
            Limit::Now => 0,
            Limit::At(end) => end.saturating_sub(now_ns()),
        };
        Some(timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 })
    }

    /// What is left; `None` for no limit.
    pub(crate) fn duration(self) -> Option<std::time::Duration> {
        self.left().map(|left| std::time::Duration::new(left.tv_sec as u64, left.tv_nsec as u32))
    }

    /// The time itself, for waits that read the clock as they go; `None` for no limit.
    pub(crate) fn deadline(self) -> Option<Deadline> {
        match self {
            Limit::None => None,
            Limit::Now => Some(Deadline(Nanos(0))),
            Limit::At(end) => Some(Deadline(Nanos(end))),
        }
    }

    /// What is left in milliseconds, rounded up, as the kernel takes it; -1 for no limit.
    pub(crate) fn left_ms(self) -> c_int {
        match self {
            Limit::None => -1,
            Limit::Now => 0,
            Limit::At(end) => end.saturating_sub(now_ns()).div_ceil(1_000_000).min(c_int::MAX as u64) as c_int,
        }
    }

    /// The same for a sleep, but not later than a time that it should not exceed while connections
    /// to other nodes are upgraded: then somebody must check whether the node lives.
    pub(crate) fn for_sleep(self) -> Limit {
        if !own::context().has_between() {
            return self;
        }
        self.at_most(vmmc_sockets::limits::BETWEEN_SLICE_MAX.as_nanos() as u64)
    }

    /// The same for a wait with a bell that peers may not ring yet.
    pub(crate) fn for_sleep_with(self, bell: &ReadySet) -> Limit {
        if !bell.is_deaf() {
            return self.for_sleep();
        }
        own::context().poll();
        if bell.is_deaf() { self.at_most(DEAF_SLICE_NS) } else { self.for_sleep() }
    }

    /// The same, but not later than so long from now.
    pub(crate) fn at_most(self, ns: u64) -> Limit {
        let latest = now_ns() + ns;
        match self {
            Limit::None => Limit::At(latest),
            Limit::Now => Limit::Now,
            Limit::At(end) => Limit::At(end.min(latest)),
        }
    }

    /// Whether it is over.
    pub(crate) fn is_over(self) -> bool {
        match self {
            Limit::None => false,
            Limit::Now => true,
            Limit::At(end) => now_ns() >= end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_say_what_is_left() {
        assert_eq!(Limit::millis(-1).left_ms(), -1);
        assert_eq!(Limit::millis(0).left_ms(), 0);
        assert!((1..=60_000).contains(&Limit::millis(60_000).left_ms()));
        let bad = timespec { tv_sec: 0, tv_nsec: -1 };
        // SAFETY: a valid pointer.
        assert_eq!(unsafe { Limit::timespec(&raw const bad) }, Err(libc::EINVAL));
        // SAFETY: memory that cannot be read.
        assert_eq!(unsafe { Limit::timespec(usize::MAX as *const timespec) }, Err(libc::EFAULT));
        assert!(Limit::At(1).is_over() && !Limit::None.is_over());
    }
}
