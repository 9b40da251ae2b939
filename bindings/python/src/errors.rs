//! Waits and errors: the interpreter's lock is released, key presses end the wait, errors become
//! exceptions.
//!
//! Invariant: an exception that a signal handler raised during a wait is what the wait raises,
//! whatever else came of it.

use pyo3::prelude::*;
use std::cell::RefCell;
use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::time::Duration;
use vmmc::{ErrorKind, Kind, Patience, with_patience};
use vmmc_rpc::RpcError;

thread_local! {
    /// What a signal handler raised during the wait that this thread is in.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Asked by waits every 50 ms.
fn interrupted() -> bool {
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    // An interpreter that is being taken down runs no more handlers, and nobody waits for the
    // result.
    Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            RAISED.set(Some(error));
            true
        }
    })
    .unwrap_or(true)
}

/// A timeout in seconds, as Python has it.
pub(crate) fn duration(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let convert = |seconds: f64| {
        let bounded = seconds.min(1e9);
        let wrong = || invalid(format!("a timeout of {seconds} s makes no sense; give seconds, 0 or more"));
        Duration::try_from_secs_f64(bounded).map_err(|_| wrong())
    };
    timeout.map(convert).transpose()
}

/// Runs something that may wait, without the interpreter's lock.
pub(crate) fn wait<R: Send, E: Kind + Display + Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    run: impl FnOnce() -> Result<R, E> + Send,
) -> PyResult<R> {
    waited_within(py, duration(timeout)?, run)?.map_err(raise)
}

/// Runs something that may wait, without the interpreter's lock; its error is the caller's to tell.
pub(crate) fn waited<R: Send>(py: Python<'_>, run: impl FnOnce() -> R + Send) -> PyResult<R> {
    waited_within(py, None, run)
}

fn waited_within<R: Send>(py: Python<'_>, timeout: Option<Duration>, run: impl FnOnce() -> R + Send) -> PyResult<R> {
    let patience = Patience { timeout, interrupted: Some(interrupted) };
    settle(py.detach(|| with_patience(patience, run)))
}

/// Runs something that may wait, holding the interpreter's lock, so that no other Python thread
/// writes meanwhile.
pub(crate) fn wait_holding<R, E: Kind + Display>(run: impl FnOnce() -> Result<R, E>) -> PyResult<R> {
    let patience = Patience { timeout: None, interrupted: Some(interrupted) };
    settle(with_patience(patience, run))?.map_err(raise)
}

/// The result of a wait, unless a signal handler has raised.
fn settle<R>(result: R) -> PyResult<R> {
    RAISED.take().map_or(Ok(result), Err)
}

/// An error of the library as an exception.
#[cold]
pub(crate) fn raise(error: impl Kind + Display) -> PyErr {
    exception(error.kind(), error.to_string())
}

/// An error of a remote call as an exception.
#[cold]
pub(crate) fn call_error(error: RpcError) -> PyErr {
    make(error.kind(), error.to_string(), error.may_have_happened())
}

/// An exception of a kind.
#[cold]
pub(crate) fn exception(kind: ErrorKind, message: String) -> PyErr {
    make(kind, message, false)
}

fn make(kind: ErrorKind, message: String, may_have_happened: bool) -> PyErr {
    Python::attach(|py| {
        let arguments = (kind as u32, message, may_have_happened);
        let make = || py.import("vmmc._errors")?.getattr("make")?.call1(arguments);
        make().map_or_else(|error| error, PyErr::from_value)
    })
}

/// The caller's mistake.
pub(crate) fn invalid(message: impl Into<String>) -> PyErr {
    exception(ErrorKind::Invalid, message.into())
}

/// Something whose end may wait, or needs another thread that waits for the interpreter's lock: it
/// is dropped without that lock.
pub(crate) struct Detached<T: Send>(Option<T>);

impl<T: Send> Detached<T> {
    pub(crate) fn new(value: T) -> Detached<T> {
        Detached(Some(value))
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("only `drop` takes it")
    }
}

impl<T: Send> DerefMut for Detached<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("only `drop` takes it")
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            drop_detached(value);
        }
    }
}

/// Drops something whose end may wait, without the interpreter's lock.
pub(crate) fn drop_detached<T: Send>(value: T) {
    let mut value = Some(value);
    let done = Python::try_attach(|py| {
        let value = value.take();
        py.detach(|| drop(value));
    });
    if done.is_none() {
        // The interpreter is being taken down; the process's end cleans up.
        std::mem::forget(value);
    }
}
