//! Numbers and rights as callers give them.
//!
//! Invariant: what a caller gets wrong about them is an exception of ours that says what to write,
//! not the interpreter's complaint about a conversion.

use crate::errors::{exception, invalid};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use vmmc::ErrorKind;

/// An offset, length, index or rank: from 0 on.
pub(crate) fn natural<'py, T: FromPyObjectOwned<'py>>(value: &Bound<'py, PyAny>) -> PyResult<T> {
    value.extract::<T>().map_err(|error| {
        let Ok(number) = value.cast::<PyInt>() else { return error.into() };
        let text = format!(
            "{number} is out of bounds: offsets, lengths, indices and ranks count from 0, and none from the end"
        );
        exception(ErrorKind::OutOfBounds, text)
    })
}

/// The same where None stands for a default.
pub(crate) fn natural_or_none<'py, T: FromPyObjectOwned<'py>>(value: &Bound<'py, PyAny>) -> PyResult<Option<T>> {
    if value.is_none() { Ok(None) } else { natural(value).map(Some) }
}

/// Pairs of offset and length.
pub(crate) fn pairs(value: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, u64)>> {
    let pair = |item: PyResult<Bound<'_, PyAny>>| {
        let (start, len): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item?.extract()?;
        Ok((natural(&start)?, natural(&len)?))
    };
    value.try_iter()?.map(pair).collect()
}

/// A word of 64 bits.
pub(crate) fn word(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value.extract().map_err(|error: PyErr| match value.cast::<PyInt>() {
        Ok(number) => {
            invalid(format!("{number} is no word: words are 0 to 2**64 - 1; write x % 2**64 for a negative x"))
        }
        Err(_) => error,
    })
}

/// The same where None stands for no condition.
pub(crate) fn word_or_none(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if value.is_none() { Ok(None) } else { word(value).map(Some) }
}

/// Bits of vmmc.Rights.
pub(crate) fn rights_or_none(value: &Bound<'_, PyAny>) -> PyResult<Option<u8>> {
    if value.is_none() {
        return Ok(None);
    }
    value.extract().map(Some).map_err(|error: PyErr| {
        let shown = value.repr().map_or_else(|_| "this".to_string(), |text| text.to_string());
        let text = format!(
            "{shown} names no rights; add up vmmc.READ, vmmc.WRITE and vmmc.ATOMIC, as in vmmc.READ | vmmc.WRITE"
        );
        let number = value.cast::<PyInt>().is_ok() || error.is_instance_of::<PyTypeError>(value.py());
        if number { invalid(text) } else { error }
    })
}
