//! Python objects with the buffer protocol, as bytes to send and places to fetch into.
//!
//! Invariant: the view of the object is held as long as its bytes are used, so its owner can
//! neither free nor resize it.

use crate::errors::invalid;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

/// Bytes to read.
pub(crate) struct Source(PyUntypedBuffer);

/// Bytes to write.
pub(crate) struct Target(PyUntypedBuffer);

/// A contiguous view.
pub(crate) fn contiguous(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let view = PyUntypedBuffer::get(object)?;
    if !view.is_c_contiguous() {
        return Err(invalid("the object's bytes are not contiguous; pass a contiguous copy (numpy.ascontiguousarray)"));
    }
    Ok(view)
}

impl Source {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Source> {
        contiguous(object).map(Source)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let len = self.0.len_bytes();
        if len == 0 {
            return &[];
        }
        // SAFETY: the view is contiguous, of that length, and held as long as `self`. Another
        // thread that writes to the object while its bytes are copied is the program's race: the
        // bytes are copied and never interpreted, so what arrives is a mix of old and new.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>().cast_const(), len) }
    }
}

impl Source {
    /// [`bytes`](Self::bytes), for somebody who keeps the view itself.
    ///
    /// # Safety
    /// The bytes are not used after the view has gone.
    pub(crate) unsafe fn bytes_kept(&self) -> &'static [u8] {
        let bytes = self.bytes();
        // SAFETY: the same bytes; that they are there long enough is the caller's word.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) }
    }
}

impl Target {
    /// [`bytes`](Self::bytes), for somebody who keeps the view itself.
    ///
    /// # Safety
    /// The bytes are not used after the view has gone, and nobody else gets them meanwhile.
    pub(crate) unsafe fn bytes_kept(&mut self) -> &'static mut [u8] {
        let bytes = self.bytes();
        // SAFETY: the same bytes; that they are there long enough, and for one alone, is the
        // caller's word.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()) }
    }

    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Target> {
        let view = contiguous(object)?;
        if view.readonly() {
            return Err(invalid(
                "the object is read-only; fetch into a bytearray, a writable array, or take `fetch`'s bytes",
            ));
        }
        Ok(Target(view))
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let len = self.0.len_bytes();
        if len == 0 {
            return &mut [];
        }
        // SAFETY: as for `Source::bytes`; the view is writable, and the bytes are only stored to.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<u8>(), len) }
    }
}
