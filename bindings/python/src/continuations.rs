//! Continuations: functions that follow the ends of transfers.
//!
//! Invariant: a function is called once, with the interpreter's lock and none of ours, in `run` or
//! `wait`; what such a call found and did not get to, because a function raised, the next one does.
//! Source: `Continuations` of `crates/vmmc`.

use crate::errors::{Detached, exception, invalid, raise, wait};
use crate::source::Held;
use crate::transfer::{Moving, Transfer, UnderWay};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use vmmc::{ErrorKind, TransferError, WaitError, WaitFor};

/// Transfers under way, each with a function for its end.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Continuations {
    waiting: Detached<Mutex<Waiting>>,
    /// What is over, in the order in which it was found.
    over: Ends,
    follow: Mutex<Follow>,
}

type Ends = Arc<Mutex<VecDeque<End>>>;

/// A transfer that is over, by its number.
struct End {
    number: u64,
    result: Result<u64, TransferError>,
}

/// What is called, by the number of the transfer. It stands here, and not with the transfer, so
/// that the interpreter sees what holds what.
#[derive(Default)]
struct Follow {
    functions: HashMap<u64, (Py<Transfer>, Py<PyAny>)>,
    /// Transfers added so far.
    added: u64,
}

/// Transfers that are not over.
pub(crate) struct Waiting(vmmc::Continuations<'static>);
// SAFETY: beside transfers and functions the list holds the inside of a session, which threads
// share. The transfers come from objects that threads share, under a lock, and the functions from
// `then`, whose result may go to another thread.
unsafe impl Send for Waiting {}

/// What follows the end of a transfer, with what keeps its memory: the list drops a transfer before
/// its function.
fn then<M>(
    held: Held,
    over: Ends,
    number: u64,
) -> impl FnOnce(&mut vmmc::Continuations<'static>, Result<u64, TransferError>, M) + Send {
    move |_, result, memory| {
        drop((memory, held));
        lock(&over).push_back(End { number, result });
    }
}

/// Locks that are held while nothing else happens.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiting {
    fn run(&mut self) {
        self.0.run();
    }

    fn wait(&mut self) -> Result<usize, WaitError> {
        self.0.wait()
    }

    /// For a wait for several things.
    pub(crate) fn wait_for(&mut self) -> WaitFor<'_> {
        WaitFor::Transfer(&mut self.0)
    }
}

impl Continuations {
    pub(crate) fn new(session: &vmmc::Session) -> Continuations {
        let waiting = Detached::new(Mutex::new(Waiting(vmmc::Continuations::new(session))));
        Continuations { waiting, over: Ends::default(), follow: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, Waiting>> {
        match self.waiting.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let why = "another thread runs these continuations or waits for them; let it come back first";
                Err(exception(ErrorKind::Busy, why.into()))
            }
        }
    }

    /// Whether something is over whose function was not called.
    pub(crate) fn has_over(&self) -> bool {
        !lock(&self.over).is_empty()
    }

    /// Calls the functions of all that was found to be over; says how many.
    fn call(&self, py: Python<'_>) -> PyResult<usize> {
        let count = lock(&self.over).len();
        let mut called = 0;
        while called < count {
            let Some(End { number, result }) = lock(&self.over).pop_front() else { break };
            let Some((transfer, function)) = lock(&self.follow).functions.remove(&number) else { continue };
            called += 1;
            transfer.get().is_over(result);
            function.call1(py, (transfer,))?;
        }
        Ok(called)
    }
}

#[pymethods]
impl Continuations {
    /// Calls function(transfer) when the transfer is over.
    fn add(&self, transfer: &Bound<'_, Transfer>, function: Bound<'_, PyAny>) -> PyResult<()> {
        if !function.is_callable() {
            return Err(invalid("the continuation cannot be called; pass a function that takes a transfer"));
        }
        let mut waiting = self.lock()?;
        let place = transfer.get().lock()?;
        let is_taken = match &place.moving {
            Moving::Send(send) => waiting.0.takes(send),
            Moving::Fetch(fetch) => waiting.0.takes(fetch),
            Moving::Over(_) => true,
        };
        if !is_taken {
            let why = "the transfer belongs to another session than the continuations; add it to some of its own";
            return Err(exception(ErrorKind::Foreign, why.into()));
        }
        let number = {
            let mut follow = lock(&self.follow);
            follow.added += 1;
            let number = follow.added;
            follow.functions.insert(number, (transfer.clone().unbind(), function.unbind()));
            number
        };
        let UnderWay { moving, held } = place.take();
        let over = self.over.clone();
        match moving {
            Moving::Send(send) => waiting.0.add(send, then(held, over, number)).map_err(raise),
            Moving::Fetch(fetch) => waiting.0.add(fetch, then(held, over, number)).map_err(raise),
            // One that has followed another list.
            Moving::Over(result) => {
                lock(&over).push_back(End { number, result });
                Ok(())
            }
        }
    }

    /// Calls the functions of all transfers that are over; says how many.
    fn run(&self, py: Python<'_>) -> PyResult<usize> {
        let mut guard = self.lock()?;
        let waiting = &mut *guard;
        py.detach(|| waiting.run());
        drop(guard);
        self.call(py)
    }

    /// Waits until a transfer is over, and calls functions as run does.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<usize> {
        if self.has_over() {
            return self.run(py);
        }
        let mut guard = self.lock()?;
        let waiting = &mut *guard;
        wait(py, timeout, || waiting.wait())?;
        drop(guard);
        self.call(py)
    }

    fn __len__(&self) -> usize {
        lock(&self.follow).functions.len()
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.Continuations of {} transfers>", self.__len__())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Whoever holds the lock runs, so what it holds is reachable.
        let Ok(follow) = self.follow.try_lock() else { return Ok(()) };
        follow.functions.values().try_for_each(|(transfer, function)| {
            visit.call(transfer)?;
            visit.call(function)
        })
    }

    fn __clear__(&self) {
        let functions = std::mem::take(&mut lock(&self.follow).functions);
        drop(functions);
    }
}
