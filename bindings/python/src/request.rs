//! Sends and receives under way.
//!
//! Invariant: the object's view is held until the request is over. One thread uses a request at a
//! time; a wait whose time is over leaves it as it was.

use crate::errors::{exception, raise, wait, waited};
use crate::group::{Incoming, MessageStatus, Outgoing};
use crate::messages::Shared;
use crate::owned::Owned;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use vmmc::ErrorKind;
use vmmc_mp::{MpError, Status, UnderWay, wait_any};

/// A send or a receive under way.
#[pyclass(module = "vmmc.mp", frozen)]
pub(crate) struct Request {
    state: Owned<Mutex<State>>,
    shared: Owned<Arc<Shared>>,
}

/// Where it stands.
pub(crate) enum State {
    Send(vmmc_mp::Request<Outgoing>),
    Receive(vmmc_mp::Request<Incoming>),
    Over(Result<Status, MpError>),
}

impl State {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, State::Over(_))
    }

    pub(crate) fn under_way(&self) -> Option<&dyn UnderWay> {
        match self {
            State::Send(request) => Some(request),
            State::Receive(request) => Some(request),
            State::Over(_) => None,
        }
    }

    /// Whether it is over by now: then its object is let go.
    fn look(&mut self) -> Option<Result<Status, MpError>> {
        let result = match self {
            State::Send(request) => request.test().map(|done| done.map(|(status, _)| status)),
            State::Receive(request) => request.test().map(|done| done.map(|(status, _)| status)),
            State::Over(result) => return Some(result.clone()),
        };
        let result = result.transpose()?;
        *self = State::Over(result.clone());
        Some(result)
    }
}

impl Request {
    pub(crate) fn send(shared: Arc<Shared>, request: vmmc_mp::Request<Outgoing>) -> Request {
        Request { state: Owned::new(Mutex::new(State::Send(request))), shared: Owned::new(shared) }
    }

    pub(crate) fn receive(shared: Arc<Shared>, request: vmmc_mp::Request<Incoming>) -> Request {
        Request { state: Owned::new(Mutex::new(State::Receive(request))), shared: Owned::new(shared) }
    }

    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, State>> {
        match self.state.get()?.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => Err(exception(
                ErrorKind::Busy,
                "another thread waits for this request, or it is twice in a list".into(),
            )),
        }
    }
}

#[pymethods]
impl Request {
    /// Waits until it is over.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<MessageStatus> {
        let mut guard = self.lock()?;
        let state = &mut *guard;
        // What is under way needs the messages; what is over does not.
        let _messages = if state.is_over() { None } else { Some(self.shared.get()?.messages()?) };
        let status = wait(py, timeout, || {
            if let Some(request) = state.under_way() {
                wait_any(&[request])?;
            }
            state.look().expect("it was waited for")
        })?;
        Ok(status.into())
    }

    /// The message, if it is over; None while it is under way.
    fn test(&self, py: Python<'_>) -> PyResult<Option<MessageStatus>> {
        let mut guard = self.lock()?;
        let state = &mut *guard;
        let looked = waited(py, || state.look())?;
        Ok(looked.transpose().map_err(raise)?.map(MessageStatus::from))
    }

    /// Takes it back if nothing has happened yet.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.lock()?;
        let state = &mut *guard;
        wait(py, None, || match state {
            State::Send(request) => request.cancel(),
            State::Receive(request) => request.cancel(),
            State::Over(_) => Ok(()),
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        let what = match &*self.lock()? {
            State::Send(_) => "a send",
            State::Receive(_) => "a receive",
            State::Over(_) => "over",
        };
        Ok(format!("<vmmc.mp.Request, {what}>"))
    }
}
