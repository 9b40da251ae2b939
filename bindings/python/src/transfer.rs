//! Transfers under way.
//!
//! Invariant: the memory of a transfer stays registered, and an object that lent it stays alive,
//! until it is done. Continuations have the transfer until they call its function.

use crate::errors::{Detached, exception, raise, wait};
use crate::source::Held;
use pyo3::prelude::*;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use vmmc::{ErrorKind, TransferError};

/// A transfer under way.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Transfer {
    /// None while continuations have it.
    inner: Detached<Mutex<Option<UnderWay>>>,
}

/// A transfer in use by a call.
pub(crate) struct InUse<'a>(MutexGuard<'a, Option<UnderWay>>);

pub(crate) struct UnderWay {
    // Goes before what it moves.
    pub(crate) moving: Moving,
    pub(crate) held: Held,
}

/// What moves.
pub(crate) enum Moving {
    Send(vmmc::Transfer<'static>),
    Fetch(vmmc::Transfer<'static, Vec<&'static mut [u8]>>),
    /// It has followed continuations.
    Over(Result<u64, TransferError>),
}

impl Transfer {
    pub(crate) fn new(moving: Moving, held: Held) -> Transfer {
        Transfer { inner: Detached::new(Mutex::new(Some(UnderWay { moving, held }))) }
    }

    pub(crate) fn lock(&self) -> PyResult<InUse<'_>> {
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(exception(ErrorKind::Busy, "another thread waits for this transfer".into()));
            }
        };
        let given = || "the transfer was given to continuations; ask for its end in the function that follows it";
        if guard.is_some() { Ok(InUse(guard)) } else { Err(exception(ErrorKind::Busy, given().into())) }
    }

    /// Continuations are done with it.
    pub(crate) fn is_over(&self, result: Result<u64, TransferError>) {
        let over = UnderWay { moving: Moving::Over(result), held: Held::default() };
        *self.inner.lock().unwrap_or_else(PoisonError::into_inner) = Some(over);
    }
}

impl InUse<'_> {
    /// Takes the transfer for continuations.
    pub(crate) fn take(mut self) -> UnderWay {
        self.0.take().expect("checked when it was locked")
    }
}

impl Deref for InUse<'_> {
    type Target = UnderWay;
    fn deref(&self) -> &UnderWay {
        self.0.as_ref().expect("checked when it was locked")
    }
}

impl DerefMut for InUse<'_> {
    fn deref_mut(&mut self) -> &mut UnderWay {
        self.0.as_mut().expect("checked when it was locked")
    }
}

#[pymethods]
impl Transfer {
    /// The bytes moved if it is done, None while it is under way.
    fn poll(&self) -> PyResult<Option<u64>> {
        let mut guard = self.lock()?;
        let polled = match &mut guard.moving {
            Moving::Send(send) => send.poll(),
            Moving::Fetch(fetch) => fetch.poll(),
            Moving::Over(result) => Some(result.clone()),
        };
        if polled.is_some() {
            guard.held.let_tables_go();
        }
        polled.transpose().map_err(raise)
    }

    /// Waits for it; gives the bytes moved.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let mut guard = self.lock()?;
        let UnderWay { moving, held } = &mut *guard;
        wait(py, timeout, || {
            let result = match moving {
                Moving::Send(send) => send.wait(),
                Moving::Fetch(fetch) => fetch.wait(),
                Moving::Over(result) => result.clone(),
            };
            if !matches!(result, Err(TransferError::TimedOut { .. })) {
                held.let_tables_go();
            }
            result
        })
    }
}
