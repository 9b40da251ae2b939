//! Time as the waiting code sees it: nanoseconds of the monotonic clock, or of a simulator's
//! virtual clock.
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

    /// The same as of the last tick of the kernel's timer, 1 to 10 ms ago: some nanoseconds to ask.
    pub fn coarse() -> Nanos {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }

    /// Time that the processors have worked for this process.
    pub fn of_processors() -> Nanos {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A clock that is cheap to read, in units of its own: the processor's counter where it runs
/// evenly, else the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    counter: bool,
}

impl Ticks {
    /// The best one of this machine.
    pub fn of_machine() -> Ticks {
        Ticks { counter: counts_evenly() }
    }

    /// Now.
    #[inline]
    pub fn now(self) -> u64 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if self.counter {
            // SAFETY: reads a counter that every x86-64 processor has and that Linux leaves to user
            // mode.
            return unsafe { std::arch::x86_64::_rdtsc() };
        }
        let _ = self.counter;
        Nanos::monotonic().0
    }
}

/// Whether the processor says of its counter that neither its speed nor its sleep changes the pace.
#[allow(unused_unsafe, reason = "newer compilers know that asking the processor is safe")]
fn counts_evenly() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction; a leaf is asked for only if the processor
    // says that it has it.
    unsafe {
        use std::arch::x86_64::__cpuid;
        const POWER: u32 = 0x8000_0007;
        return __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & 1 << 8 != 0;
    }
    #[allow(unreachable_code)]
    false
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
