//! Lent objects, and tables of translations by index.
//!
//! Invariant: the view of a lent object is held as long as it is lent or stands in a table, so its
//! owner can neither free nor resize it.

use crate::arguments::natural;
use crate::bytes::Source;
use crate::errors::{Detached, raise, wait};
use pyo3::prelude::*;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};

/// An object's memory that stays where it is.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Lent {
    inner: vmmc::Lent<'static>,
    _source: Source,
}

impl Lent {
    pub(crate) fn new(session: &vmmc::Session, source: Source) -> Lent {
        // SAFETY: the view is held beside what names its bytes, and longer; its owner cannot move
        // them meanwhile. What Python code stores there is sent as a mix of old and new.
        let bytes: &'static [u8] = unsafe { source.bytes_kept() };
        Lent { inner: session.lend(bytes), _source: source }
    }

    pub(crate) fn inner(&self) -> vmmc::Lent<'static> {
        self.inner
    }

    /// `len` bytes from `start` on; none: to the end.
    pub(crate) fn range(&self, start: usize, len: Option<usize>) -> Range<usize> {
        let end = len.map_or(self.inner.bytes().len().max(start), |len| start.saturating_add(len));
        start..end
    }
}

#[pymethods]
impl Lent {
    fn __len__(&self) -> usize {
        self.inner.bytes().len()
    }

    fn __bool__(&self) -> bool {
        true
    }
}

/// Translations that the program places itself.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct PinnedTable {
    // Goes before what stands in it.
    inner: Detached<RwLock<vmmc::PinnedTable<'static>>>,
    placed: RwLock<Vec<Py<Lent>>>,
}

impl PinnedTable {
    pub(crate) fn new(table: vmmc::PinnedTable<'static>) -> PinnedTable {
        PinnedTable { inner: Detached::new(RwLock::new(table)), placed: RwLock::default() }
    }

    pub(crate) fn with<T>(&self, run: impl FnOnce(&vmmc::PinnedTable<'static>) -> T) -> T {
        run(&self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl PinnedTable {
    fn __len__(&self) -> usize {
        self.with(vmmc::PinnedTable::len)
    }

    fn __bool__(&self) -> bool {
        true
    }

    /// Pins lent memory, whole pages, and writes its translations into the entries from `index` on.
    #[pyo3(signature = (index, lent, *, timeout=None))]
    fn place(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] index: u32,
        lent: &Bound<'_, Lent>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        // Kept first: it stays as long as the table, whatever happens.
        self.placed.write().unwrap_or_else(PoisonError::into_inner).push(lent.clone().unbind());
        let memory = lent.get().inner;
        wait(py, timeout, || self.inner.write().unwrap_or_else(PoisonError::into_inner).place(index, memory))
    }

    /// Empties entries.
    #[pyo3(signature = (index, count=1))]
    fn remove(
        &self,
        #[pyo3(from_py_with = natural)] index: u32,
        #[pyo3(from_py_with = natural)] count: usize,
    ) -> PyResult<()> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).remove(index, count).map_err(raise)
    }
}
