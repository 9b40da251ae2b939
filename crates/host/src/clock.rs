//! Time as the waiting code sees it: nanoseconds of the monotonic clock, or of a simulator's virtual clock.
//!
//! Invariant: a value is only compared with values of the same clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The latest representable time.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// The monotonic clock of this machine, the same for all its processes.
    pub fn monotonic() -> Nanos {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Nanos {
    type Output = Nanos;
    fn add(self, by: Duration) -> Nanos {
        Nanos(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Nanos> for Nanos {
    type Output = Duration;
    fn sub(self, earlier: Nanos) -> Duration {
        self.since(earlier)
    }
}
