//! Lent objects, and tables of translations by index.
//!
//! Invariant: the view of a lent object is held as long as it is lent or stands in a table, so its
//! owner can neither free nor resize it.

use crate::arguments::{natural, natural_or_none};
use crate::bytes::Source;
use crate::errors::{Detached, exception, wait};
use crate::source::{LentRange, TableRange};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use vmmc::ErrorKind;

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
}

#[pymethods]
impl Lent {
    /// `len` bytes from `start` on, as a source; without len, to the end.
    #[pyo3(signature = (start=0, len=None))]
    fn range(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = natural)] start: usize,
        #[pyo3(from_py_with = natural_or_none)] len: Option<usize>,
    ) -> LentRange {
        let size = slf.get().inner().bytes().len();
        let end = len.map_or(size.max(start), |len| start.saturating_add(len));
        LentRange { lent: slf.clone().unbind(), range: start..end }
    }

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
    inner: Detached<Arc<Table>>,
    placed: RwLock<Vec<Py<Lent>>>,
}

struct Table {
    table: RwLock<vmmc::PinnedTable<'static>>,
    /// Sends that use it; grows under the lock.
    users: AtomicUsize,
}

/// A send that uses a table; nobody changes the table meanwhile.
pub(crate) struct TableUser(Arc<Table>);

impl TableUser {
    /// The table.
    ///
    /// # Safety
    /// It is not used after the user has gone.
    pub(crate) unsafe fn table(&self) -> &'static vmmc::PinnedTable<'static> {
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the user keeps the table alive, and while it has users `change` gives nobody a
        // mutable reference; that it is not used longer is the caller's word.
        unsafe { &*std::ptr::from_ref(&*table) }
    }
}

impl Drop for TableUser {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PinnedTable {
    pub(crate) fn new(table: vmmc::PinnedTable<'static>) -> PinnedTable {
        let table = Table { table: RwLock::new(table), users: AtomicUsize::new(0) };
        PinnedTable { inner: Detached::new(Arc::new(table)), placed: RwLock::default() }
    }

    /// Somebody who uses it from now on.
    pub(crate) fn user(&self) -> TableUser {
        let _unchanged = self.inner.table.read().unwrap_or_else(PoisonError::into_inner);
        self.inner.users.fetch_add(1, Ordering::AcqRel);
        TableUser(self.inner.clone())
    }

    /// Changes it, if nobody uses it.
    fn change(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        change: impl FnOnce(&mut vmmc::PinnedTable<'static>) -> Result<(), vmmc::PlaceError> + Send,
    ) -> PyResult<()> {
        let changed = wait(py, timeout, || {
            let mut table = self.inner.table.write().unwrap_or_else(PoisonError::into_inner);
            if self.inner.users.load(Ordering::Acquire) > 0 {
                return Ok(false);
            }
            change(&mut table).map(|()| true)
        })?;
        if changed {
            return Ok(());
        }
        Err(exception(ErrorKind::Busy, "a send from this table is under way; wait for it first".into()))
    }
}

#[pymethods]
impl PinnedTable {
    /// What stands in it, `len` bytes from byte `start` of the entry at `index` on, as a source.
    fn range(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = natural)] index: u32,
        #[pyo3(from_py_with = natural)] start: usize,
        #[pyo3(from_py_with = natural)] len: usize,
    ) -> TableRange {
        TableRange { table: slf.clone().unbind(), index, range: start..start.saturating_add(len) }
    }

    fn __len__(&self) -> usize {
        self.inner.table.read().unwrap_or_else(PoisonError::into_inner).len()
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
        self.change(py, timeout, |table| table.place(index, memory))
    }

    /// Empties entries.
    #[pyo3(signature = (index, count=1))]
    fn remove(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = natural)] index: u32,
        #[pyo3(from_py_with = natural)] count: usize,
    ) -> PyResult<()> {
        self.change(py, None, |table| table.remove(index, count))
    }
}
