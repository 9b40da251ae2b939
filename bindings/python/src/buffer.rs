//! Registered memory.
//!
//! Invariant: as for exports, views never dangle.

use crate::arguments::{natural, natural_or_none};
use crate::bytes::{Source, Target};
use crate::errors::{exception, invalid, raise, wait, wait_holding};
use crate::export::{Export, array};
use crate::memory::{Lent, Loan, give_view};
use crate::source::BufferRange;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use std::ffi::c_int;
use vmmc::{ErrorKind, Session};

/// Memory registered with the node, for sends and fetches without copies.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Buffer {
    pub(crate) inner: vmmc::Buffer,
    lent: Option<Lent>,
}

impl Buffer {
    pub(crate) fn make(session: &Session, what: &Bound<'_, PyAny>, share_edges: bool) -> PyResult<Buffer> {
        let py = what.py();
        if what.is_instance_of::<PyInt>() {
            let len = natural(what)?;
            return wait(py, None, || session.buffer(len)).map(Buffer::of_library);
        }
        if let Ok(export) = what.cast::<Export>() {
            let region = export.get().with(|export| Ok(export.region()))?;
            return wait(py, None, || session.buffer_region(region)).map(Buffer::of_library);
        }
        let loan = Loan::of(what, share_edges)?;
        let inner = wait_holding(|| session.adopt(loan.memory()))?;
        let lent = loan.lent(inner.memory());
        Ok(Buffer { inner, lent: Some(lent) })
    }

    /// Memory of the library, so many bytes of registered memory.
    pub(crate) fn of_library(inner: vmmc::Buffer) -> Buffer {
        Buffer { inner, lent: None }
    }

    /// What can be exported: memory of the library.
    pub(crate) fn exportable(&self) -> PyResult<&vmmc::Buffer> {
        let why = "the buffer's memory belongs to a Python object; export that object";
        if self.lent.is_some() { Err(exception(ErrorKind::Unsuitable, why.into())) } else { Ok(&self.inner) }
    }
}

#[pymethods]
impl Buffer {
    /// `len` bytes from `start` on, as a source or target; without len, to the end.
    #[pyo3(signature = (start=0, len=None))]
    fn range(
        &self,
        #[pyo3(from_py_with = natural)] start: u64,
        #[pyo3(from_py_with = natural_or_none)] len: Option<u64>,
    ) -> PyResult<BufferRange> {
        let end = match len {
            None => self.inner.len().max(start),
            Some(len) => start.checked_add(len).ok_or_else(|| invalid("start and length exceed 64 bits"))?,
        };
        Ok(BufferRange { buffer: self.inner.clone(), range: start..end })
    }

    /// Whether it is the memory of the object that was given.
    #[getter]
    fn in_place(&self) -> bool {
        self.lent.is_some()
    }

    fn __len__(&self) -> usize {
        self.inner.len() as usize
    }

    fn __bool__(&self) -> bool {
        true
    }

    /// Copies bytes in.
    fn write(&self, #[pyo3(from_py_with = natural)] offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.inner.write(offset, Source::of(data)?.bytes()).map_err(raise)
    }

    /// Copies bytes out into a writable object.
    fn read_into(&self, #[pyo3(from_py_with = natural)] offset: u64, into: &Bound<'_, PyAny>) -> PyResult<()> {
        self.inner.read(offset, Target::of(into)?.bytes()).map_err(raise)
    }

    /// The memory as a NumPy array, without a copy.
    #[pyo3(signature = (dtype=None, shape=None, offset=0))]
    fn array<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        shape: Option<Bound<'py, PyAny>>,
        #[pyo3(from_py_with = natural)] offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        array(slf.as_any(), dtype, shape, offset)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = (slf.get().inner.as_ptr(), slf.get().inner.len() as usize);
        // SAFETY: the view is the interpreter's; the object holds the buffer.
        unsafe { give_view(slf.into_any(), view, flags, memory, false) }
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.Buffer, {} bytes>", self.inner.len())
    }
}
