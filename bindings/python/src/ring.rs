//! Append rings.
//!
//! Invariant: one thread takes at a time, and waits without the interpreter's lock.

use crate::errors::{Detached, exception, raise, wait};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, MutexGuard, TryLockError};
use vmmc::ErrorKind;

/// An export that many processes append records to.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Ring {
    /// None once it has ended.
    inner: Detached<Mutex<Option<vmmc::Ring>>>,
    id: u64,
    name: Option<String>,
    size: u64,
}

/// What somebody appended.
#[pyclass(module = "vmmc", frozen, get_all)]
pub(crate) struct Record {
    /// Its bytes.
    data: Py<PyBytes>,
    /// The word that its sender gave it.
    word: u64,
    /// Who appended it: the session with its node (0: this node), the process there, its import.
    /// `Session.node_of` names the node.
    sender: (u32, u32, u64),
}

impl Record {
    fn new(py: Python<'_>, record: &vmmc::Record) -> Record {
        let from = record.from;
        let sender = (from.session, from.process.0, from.import.to_u64());
        Record { data: PyBytes::new(py, &record.data).unbind(), word: record.word, sender }
    }
}

impl Ring {
    pub(crate) fn new(ring: vmmc::Ring) -> Ring {
        let (id, name, size) = (ring.id().to_u64(), ring.name().map(str::to_string), ring.size());
        Ring { inner: Detached::new(Mutex::new(Some(ring))), id, name, size }
    }

    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, Option<vmmc::Ring>>> {
        match self.inner.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(exception(ErrorKind::Busy, "another thread takes records from this ring".into()))
            }
        }
    }
}

pub(crate) fn ended() -> PyErr {
    exception(ErrorKind::Stale, "the ring has ended; make a new one".into())
}

#[pymethods]
impl Ring {
    /// Its id as an export, for importers.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// Its name for importers.
    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Bytes of records that it holds at most, each with 32 bytes beside its data.
    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    /// The oldest record, which makes room for others; None if there is none.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        let mut guard = self.lock()?;
        let taken = guard.as_mut().ok_or_else(ended)?.take().map_err(raise)?;
        Ok(taken.map(|record| Record::new(py, &record)))
    }

    /// The oldest record; waits for one.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Record> {
        let mut guard = self.lock()?;
        let ring = guard.as_mut().ok_or_else(ended)?;
        let record = wait(py, timeout, || ring.wait())?;
        Ok(Record::new(py, &record))
    }

    /// The records that are there.
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        self.take(py)
    }

    /// Ends it: importers are told, and what was not taken is gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let ring = self.lock()?.take();
        wait(py, None, || ring.map_or(Ok(()), |ring| ring.unexport().map(drop)))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_reasons))]
    fn __exit__(&self, py: Python<'_>, _reasons: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.Ring {}, {} bytes>", vmmc::ExportId::from_u64(self.id), self.size)
    }
}

#[pymethods]
impl Record {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Record({}, word={:#x})", self.data.bind(py).repr()?, self.word))
    }
}
