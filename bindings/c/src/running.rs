//! Functions of the caller that run now, so that nobody takes what they use away under them.
//!
//! Invariant: after [`Gate::close`] no function runs behind the gate, and none begins. A thread
//! knows what it is inside of, so a call that would wait for its own thread is refused.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

thread_local! {
    /// What functions that run in this thread belong to, the innermost last.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A number for what functions belong to. Handles, which are other such numbers, are larger.
pub(crate) fn new_key() -> usize {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) as usize
}

/// This thread runs a function of something.
pub(crate) struct Inside;

impl Inside {
    /// `key` names what the function belongs to: from [`new_key`], or a handle.
    pub(crate) fn enter(key: usize) -> Inside {
        INSIDE.with_borrow_mut(|keys| keys.push(key));
        Inside
    }

    pub(crate) fn is_in(key: usize) -> bool {
        INSIDE.with_borrow(|keys| keys.contains(&key))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with_borrow_mut(|keys| keys.pop());
    }
}

/// Lets functions run until it is closed; clones are the same gate.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Behind>);

struct Behind {
    key: usize,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Default)]
struct State {
    running: usize,
    closed: bool,
}

/// A function runs behind a gate.
pub(crate) struct Running<'a> {
    gate: &'a Gate,
    _inside: Inside,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate(Arc::new(Behind { key: new_key(), state: Mutex::default(), left: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For as long as a function runs. None: it may not any more.
    pub(crate) fn enter(&self) -> Option<Running<'_>> {
        let mut state = self.state();
        state.running += usize::from(!state.closed);
        (!state.closed).then(|| Running { gate: self, _inside: Inside::enter(self.0.key) })
    }

    /// Whether a function behind it runs in this thread.
    pub(crate) fn is_inside(&self) -> bool {
        Inside::is_in(self.0.key)
    }

    /// Lets no function begin any more, and waits for those that run. Not from inside of one.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        while state.running > 0 {
            state = self.0.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.gate.state().running -= 1;
        self.gate.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    #[test]
    fn a_gate_closes_when_what_runs_behind_it_is_over() {
        let (gate, over) = (Gate::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let running = gate.enter().expect("it is open");
            assert!(gate.is_inside());
            scope.spawn(|| {
                assert!(!gate.is_inside(), "that is another thread");
                gate.close();
                assert!(over.load(Ordering::Acquire), "it closed while a function ran");
            });
            let end = Instant::now() + Duration::from_secs(20);
            while !gate.state().closed && Instant::now() < end {
                std::thread::yield_now();
            }
            assert!(gate.enter().is_none());
            over.store(true, Ordering::Release);
            drop(running);
        });
        assert!(!gate.is_inside() && gate.enter().is_none());
    }
}
