//! Mapped memory as Python sees it, and Python's memory as VMMC borrows it.
//!
//! Invariant: a view never outlives its mapping: the object that gave it holds the mapping, and the
//! view holds the object. Memory that Python lent is not given back before the last use of its
//! region has ended: what is still in use then waits in a list.

use crate::bytes::contiguous;
use crate::errors::{exception, invalid};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::Mutex;
use vmmc::{CallerMemory, ErrorKind, Region};

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// Gives a view of mapped memory; `owner` holds it.
///
/// # Safety
/// `view` is the interpreter's, and the memory stays mapped as long as `owner` lives.
pub(crate) unsafe fn give_view(
    owner: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    (base, len): (*mut u8, usize),
    readonly: bool,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill"));
    }
    let len = isize::try_from(len).map_err(|_| PyBufferError::new_err("more bytes than an object can have"))?;
    // SAFETY: the view is the interpreter's; it takes a reference to the owner.
    let result =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), base.cast(), len, c_int::from(readonly), flags) };
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// Memory of a Python object that a region has taken over.
pub(crate) struct Lent {
    /// None once it is given back.
    parts: Option<(Region, PyUntypedBuffer)>,
}

/// Lent memory whose region a transfer still uses.
static WAITING: Mutex<Vec<Lent>> = Mutex::new(Vec::new());

/// Where the bytes of an object lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// They fill whole pages.
    Whole,
    /// They lie on pages that nothing else uses.
    Own,
    /// Other objects lie on their first or last page.
    Shared,
}

/// A writable object's memory, ready to be taken over.
pub(crate) struct Loan(PyUntypedBuffer);

impl Loan {
    /// Borrows the memory of an object. `share_edges`: also when its first or last page holds other
    /// objects.
    pub(crate) fn of(object: &Bound<'_, PyAny>, share_edges: bool) -> PyResult<Loan> {
        sweep();
        let view = contiguous(object)?;
        if view.readonly() {
            return Err(invalid("the object is read-only; export a copy of it (copy=True), or memory of the library"));
        }
        if view.len_bytes() == 0 {
            return Err(invalid("the object is empty; export at least one byte"));
        }
        let (base, len) = (view.buf_ptr() as usize, view.len_bytes());
        // SAFETY: the view is valid for its length.
        let pages = unsafe { pages(base, len) };
        if pages == Pages::Shared && !share_edges {
            let why = format!(
                "its {len} bytes start {} bytes into a page, and other objects may lie on its first and last page; export memory of the library instead \
                 (`session.export(n).array(...)` is page-aligned and costs no copy), or a copy (copy=True), or say share_edges=True: the pages are then taken over \
                 with what else lies on them, importers of this node go through the engine, and no thread outside of Python may write there while the export begins or ends",
                base % PAGE_BYTES
            );
            return Err(exception(ErrorKind::Unsuitable, why));
        }
        Ok(Loan(view))
    }

    /// The memory for the library.
    pub(crate) fn memory(&self) -> CallerMemory {
        // SAFETY: the view keeps the range allocated and in place until `Lent` gives it back, which
        // it does after the region's end. The interpreter's lock is held while the pages are taken
        // over and given back, so no Python code writes meanwhile; on shared pages the caller has
        // vouched for the others.
        unsafe { CallerMemory::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    /// The loan, now that a region has the memory.
    pub(crate) fn lent(self, region: Region) -> Lent {
        Lent { parts: Some((region, self.0)) }
    }
}

impl Lent {
    fn give_back(&mut self) -> bool {
        if self.parts.as_ref().is_some_and(|(region, _)| region.users() > 1) {
            return false;
        }
        if let Some((region, view)) = self.parts.take() {
            // The pages become private again first; only then may the object go.
            drop(region);
            drop(view);
        }
        true
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.give_back() {
            let parts = self.parts.take();
            WAITING.lock().expect("no panic while the lock is held").push(Lent { parts });
        }
    }
}

/// Gives back what is no longer used.
fn sweep() {
    let waiting = std::mem::take(&mut *WAITING.lock().expect("no panic while the lock is held"));
    // What is still in use goes back to the list by its drop.
    drop(waiting);
}

/// What the pages of a range hold beside it.
///
/// # Safety
/// The range may be read.
unsafe fn pages(base: usize, len: usize) -> Pages {
    if base % PAGE_BYTES == 0 && len % PAGE_BYTES == 0 {
        return Pages::Whole;
    }
    // Large blocks of glibc's malloc are mappings of their own: a header of 16 bytes at the start
    // of a page, then the memory. The header says how long the mapping is, in its upper bits, and
    // that it is one, in the second.
    if base % PAGE_BYTES != 16 {
        return Pages::Shared;
    }
    // SAFETY: the 8 bytes lie on the same page as the range.
    let word = unsafe { ((base - 8) as *const usize).read_volatile() };
    let (size, is_mapping) = (word & !7, word & 2 != 0);
    let end = (base + len).next_multiple_of(PAGE_BYTES);
    if is_mapping && size % PAGE_BYTES == 0 && base - 16 + size >= end { Pages::Own } else { Pages::Shared }
}
