//! What bounds all waits of a thread, beside their own deadlines.
//!
//! Invariant: what a function sets for its waits holds while it runs, and no longer.

use std::cell::Cell;
use std::time::Duration;

/// What bounds the waits of a thread beside their own deadlines; see [`with_patience`].
#[derive(Clone, Copy, Default)]
pub struct Patience {
    /// Replaces the default time of waits that have no deadline of their own.
    pub timeout: Option<Duration>,
    /// Asked every [`INTERRUPT_SLICE`](crate::limits::INTERRUPT_SLICE) while a wait sleeps; when it
    /// says yes the wait ends as if its deadline had passed.
    pub interrupted: Option<fn() -> bool>,
}

thread_local! {
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience { timeout: None, interrupted: None }) };
}

/// Runs a function whose waits on this thread are bounded by `patience`: how languages with
/// interrupts of their own, and calls with a timeout each, sit on top.
pub fn with_patience<R>(patience: Patience, run: impl FnOnce() -> R) -> R {
    struct Restore(Patience);
    impl Drop for Restore {
        fn drop(&mut self) {
            PATIENCE.set(self.0);
        }
    }
    let _restore = Restore(PATIENCE.replace(patience));
    run()
}

/// Sets the patience of this thread until the next change; [`with_patience`] restores what it
/// found.
pub fn set_patience(patience: Patience) {
    PATIENCE.set(patience);
}

/// The patience of this thread.
pub fn patience() -> Patience {
    PATIENCE.get()
}

/// Whether this thread's waits are to end now: for loops that are made of several waits.
pub fn is_interrupted() -> bool {
    patience().interrupted.is_some_and(|interrupted| interrupted())
}
