//! What bounds a [`Backoff`](super::Backoff): each kind of wait has its own numbers.
//!
//! Invariant: `poll_min_ns <= poll_max_ns`, and a rest's `first <= max`. Source: the numbers, with
//! their reasons, are in [`limits`](crate::limits).

/// The bounds of one kind of wait.
///
/// ```
/// use vmmc_host::limits::LIBRARY_WAITS;
/// use vmmc_host::wait::BackoffLimits;
/// const PATIENT: BackoffLimits = BackoffLimits { poll_max_ns: 200_000, ..LIBRARY_WAITS };
/// assert!(PATIENT.poll_min_ns <= PATIENT.poll_max_ns);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffLimits {
    /// Polls between two yields. 0: one, for a poll that takes as long as a yield.
    pub polls_a_yield: u32,
    /// Polls between two readings of the clock while nothing is yielded. 0: one.
    pub polls_a_clock: u32,
    /// Shortest polling of a wait, ns, after many in vain. As much as `poll_max_ns`: it never
    /// shrinks.
    pub poll_min_ns: u64,
    /// Longest polling of a wait, ns; the first waits poll for as long.
    pub poll_max_ns: u64,
    /// Polling of a wait while yields are suspended, ns. 0: it sleeps at once.
    pub poll_suspended_ns: u64,
    /// What a wake-up costs, ns: a sleep that ends no later than this after `poll_max_ns` counts as
    /// if polling had paid.
    pub wake_ns: u64,
    /// Waits that sleep blindly, and so cannot tell when polling would pay, poll for longer now and
    /// then.
    pub long_poll: Option<LongPoll>,
    /// When yields are given up, and for how long.
    pub yields: YieldLimits,
    /// When polling is given up, and for how long. None: never; then `poll_min_ns` bounds what
    /// polling in vain costs.
    pub skips: Option<SkipLimits>,
}

/// See [`BackoffLimits::long_poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongPoll {
    /// How long such a wait polls, ns.
    pub poll_ns: u64,
    /// Waits with [timed sleeps](TimedSleeps) after which there is one.
    pub timed_sleeps: u32,
}

/// Whether to yield between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YieldLimits {
    /// A yield that took so long gave the core to a busy third party, ns.
    pub long_ns: u64,
    /// What a long yield adds to the score; a short one takes 1 away.
    pub long_score: u32,
    /// A long yield at this score, or above, is one too many. 0: the first one is.
    pub score_max: u32,
    /// Waits that then do not yield. None: such waits do nothing but yield, so that one yield too
    /// many ends polling, and counts as all the waits in vain that it takes to
    /// [skip](BackoffLimits::skips) some.
    pub rest: Option<RestLimits>,
}

/// When waits that polled in vain make the next ones sleep at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkipLimits {
    /// Waits in a row that polled in vain. After the rest one more is enough.
    pub vain_waits: u32,
    /// Waits that then sleep at once.
    pub rest: RestLimits,
}

/// A number of waits that grows when it was too small, four times as large each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestLimits {
    /// The first one.
    pub first: u32,
    /// The largest one. As much as `first`: it does not grow.
    pub max: u32,
    /// What one good wait takes away of the next one: one part in so many, at least 1.
    pub forgiven_part: u32,
}

impl RestLimits {
    /// Always the same number.
    ///
    /// ```
    /// assert_eq!(vmmc_host::wait::RestLimits::fixed(64).max, 64);
    /// ```
    pub const fn fixed(waits: u32) -> RestLimits {
        RestLimits { first: waits, max: waits, forgiven_part: 1 }
    }
}

/// How long a wait sleeps at a time that nobody wakes: twice as long each time.
///
/// ```
/// let sleeps = vmmc_host::wait::TimedSleeps::new(50_000, 1_000_000);
/// assert_eq!(sleeps.next_ns(), 50_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedSleeps {
    next_ns: u64,
    max_ns: u64,
    pub(super) begun: bool,
}

impl TimedSleeps {
    /// Sleeps that begin with so many nanoseconds, and do not grow beyond so many.
    pub const fn new(first_ns: u64, max_ns: u64) -> TimedSleeps {
        TimedSleeps { next_ns: first_ns, max_ns, begun: false }
    }

    /// Length of the next one, ns.
    pub const fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// The next sleep begins; its length, ns.
    pub(super) fn take(&mut self) -> u64 {
        let now = self.next_ns;
        self.next_ns = now.saturating_mul(2).min(self.max_ns);
        self.begun = true;
        now
    }
}
