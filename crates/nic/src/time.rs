//! Time as the engine sees it: a number handed in by the driver that steps it.
//!
//! Invariant: the engine never asks for the time; equal inputs at equal times give equal outputs.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since an origin that the driver of the engine chooses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// Later than everything else.
    pub const MAX: Time = Time(u64::MAX);

    /// The time `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero when it is not later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in 64 bits; timers compute with these on every packet.
fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos().into())
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, after: Duration) -> Time {
        Time(self.0.saturating_add(nanos(after)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, before: Duration) -> Time {
        Time(self.0.saturating_sub(nanos(before)))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}
