//! Transfers under way.
//!
//! Invariant: the memory of a transfer stays registered, and an object that lent it stays alive,
//! until it is done.

use crate::buffer::Buffer;
use crate::bytes::Source;
use crate::errors::{Detached, exception, raise, wait};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, TryLockError};
use vmmc::ErrorKind;

/// A transfer under way.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Transfer {
    // Goes before what it moves.
    inner: Detached<Mutex<Moving>>,
    _buffer: Option<Py<Buffer>>,
    _source: Option<Source>,
}

/// What moves.
enum Moving {
    Registered(vmmc::Transfer),
    /// An object's own memory, whose view the transfer holds.
    Pinned(vmmc::PinnedSend<'static>),
}

impl Transfer {
    pub(crate) fn new(inner: vmmc::Transfer, buffer: Option<Py<Buffer>>) -> Transfer {
        let inner = Detached::new(Mutex::new(Moving::Registered(inner)));
        Transfer { inner, _buffer: buffer, _source: None }
    }

    pub(crate) fn pinned(inner: vmmc::PinnedSend<'static>, source: Source) -> Transfer {
        let inner = Detached::new(Mutex::new(Moving::Pinned(inner)));
        Transfer { inner, _buffer: None, _source: Some(source) }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Moving>> {
        match self.inner.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(exception(ErrorKind::Busy, "another thread waits for this transfer".into()))
            }
        }
    }
}

#[pymethods]
impl Transfer {
    /// The bytes moved if it is done, None while it is under way.
    fn poll(&self) -> PyResult<Option<u64>> {
        let polled = match &mut *self.lock()? {
            Moving::Registered(transfer) => transfer.poll(),
            Moving::Pinned(send) => send.poll(),
        };
        polled.transpose().map_err(raise)
    }

    /// Waits for it; gives the bytes moved.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let mut guard = self.lock()?;
        let moving = &mut *guard;
        wait(py, timeout, || match moving {
            Moving::Registered(transfer) => transfer.wait_on(),
            Moving::Pinned(send) => send.wait_on(),
        })
    }
}
