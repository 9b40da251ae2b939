//! Transfers under way.
//!
//! Invariant: the memory of a transfer stays registered, and an object that lent it stays alive, until it is done.

use crate::buffer::Buffer;
use crate::errors::{exception, raise, wait};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, TryLockError};
use vmmc::ErrorKind;

/// A transfer under way.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Transfer {
    inner: Mutex<vmmc::Transfer>,
    _buffer: Option<Py<Buffer>>,
}

impl Transfer {
    pub(crate) fn new(inner: vmmc::Transfer, buffer: Option<Py<Buffer>>) -> Transfer {
        Transfer { inner: Mutex::new(inner), _buffer: buffer }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, vmmc::Transfer>> {
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
        self.lock()?.poll().transpose().map_err(raise)
    }

    /// Waits for it; gives the bytes moved.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let mut guard = self.lock()?;
        let transfer = &mut *guard;
        wait(py, timeout, || transfer.wait_on())
    }
}
