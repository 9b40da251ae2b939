//! Transfers under way.
//!
//! Invariant: the memory of a transfer stays registered, and an object that lent it stays alive,
//! until it is done.

use crate::errors::{Detached, exception, raise, wait};
use crate::source::Held;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, TryLockError};
use vmmc::{ErrorKind, TransferError};

/// A transfer under way.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Transfer {
    inner: Detached<Mutex<UnderWay>>,
}

pub(crate) struct UnderWay {
    // Goes before what it moves.
    pub(crate) moving: Moving,
    held: Held,
}

/// What moves.
pub(crate) enum Moving {
    Send(vmmc::Transfer<'static>),
    Fetch(vmmc::Transfer<'static, Vec<&'static mut [u8]>>),
}

impl Transfer {
    pub(crate) fn new(moving: Moving, held: Held) -> Transfer {
        Transfer { inner: Detached::new(Mutex::new(UnderWay { moving, held })) }
    }

    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, UnderWay>> {
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
        let mut guard = self.lock()?;
        let polled = match &mut guard.moving {
            Moving::Send(send) => send.poll(),
            Moving::Fetch(fetch) => fetch.poll(),
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
            };
            if !matches!(result, Err(TransferError::TimedOut { .. })) {
                held.let_tables_go();
            }
            result
        })
    }
}
