//! Transfer redirection.
//!
//! Invariant: the destination stays alive and registered as long as the redirection is posted.

use crate::buffer::Buffer;
use crate::errors::{drop_detached, exception, wait};
use pyo3::prelude::*;
use std::sync::{RwLock, RwLockReadGuard, TryLockError};
use vmmc::ErrorKind;

/// What happened to the bytes of a redirected range; ranges are (offset in the export, bytes).
#[pyclass(module = "vmmc", frozen, get_all, eq)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// Had come before, and were copied.
    copied: Vec<(u64, u64)>,
    /// Went straight to the new place.
    redirected: Vec<(u64, u64)>,
    /// Have not come.
    pending: Vec<(u64, u64)>,
}

impl From<vmmc::RedirectionReport> for Report {
    fn from(report: vmmc::RedirectionReport) -> Report {
        Report { copied: report.copied, redirected: report.redirected, pending: report.pending }
    }
}

#[pymethods]
impl Report {
    fn __repr__(&self) -> String {
        format!("Report(copied={:?}, redirected={:?}, pending={:?})", self.copied, self.redirected, self.pending)
    }
}

/// A posted redirection.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Redirection {
    /// None once it was cancelled.
    inner: RwLock<Option<vmmc::Redirection>>,
    _to: Py<Buffer>,
}

impl Redirection {
    pub(crate) fn new(inner: vmmc::Redirection, to: Py<Buffer>) -> Redirection {
        Redirection { inner: RwLock::new(Some(inner)), _to: to }
    }

    pub(crate) fn lock(&self) -> RwLockReadGuard<'_, Option<vmmc::Redirection>> {
        self.inner.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn with<R>(&self, run: impl FnOnce(&vmmc::Redirection) -> PyResult<R>) -> PyResult<R> {
        run(self.lock().as_ref().ok_or_else(cancelled)?)
    }
}

pub(crate) fn cancelled() -> PyErr {
    exception(ErrorKind::Stale, "the redirection was cancelled".into())
}

impl Drop for Redirection {
    fn drop(&mut self) {
        if let Some(redirection) = self.inner.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take() {
            drop_detached(redirection);
        }
    }
}

#[pymethods]
impl Redirection {
    /// What has happened so far.
    fn report(&self, py: Python<'_>) -> PyResult<Report> {
        self.with(|redirection| Ok(wait(py, None, || redirection.report())?.into()))
    }

    /// Waits until all bytes have come.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Report> {
        self.with(|redirection| Ok(wait(py, timeout, || redirection.wait())?.into()))
    }

    /// Ends it: data that has not come goes to the export again.
    fn cancel(&self, py: Python<'_>) -> PyResult<Report> {
        let taken = match self.inner.try_write() {
            Ok(mut guard) => guard.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(TryLockError::WouldBlock) => {
                return Err(exception(ErrorKind::Busy, "another thread waits for this redirection".into()));
            }
        };
        let Some(redirection) = taken else {
            return Err(exception(ErrorKind::Stale, "the redirection was cancelled already".into()));
        };
        Ok(wait(py, None, || redirection.cancel())?.into())
    }
}
