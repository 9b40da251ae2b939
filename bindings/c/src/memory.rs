//! Memory of the caller: strings, bytes, lists.
//!
//! Invariant: NULL is refused unless the length is 0; lengths that no object can have are refused.

use crate::failure::{Failure, call};
use crate::status::vmmc_status;
use std::ffi::{CStr, CString, c_char, c_void};

/// Bytes to read.
///
/// # Safety
/// `data` is NULL or valid for `len` bytes, which nobody writes, during `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, len: usize, name: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: bytes have no alignment; the rest is the caller's word.
    unsafe { list(data.cast::<u8>(), len, name) }
}

/// Bytes to write.
///
/// # Safety
/// `data` is NULL or valid for writes of `len` bytes, which nobody else uses, during `'a`.
pub(crate) unsafe fn bytes_mut<'a>(data: *mut c_void, len: usize, name: &str) -> Result<&'a mut [u8], Failure> {
    check(data.cast::<u8>(), len, name)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not NULL, of a possible length, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
}

/// A list to read.
///
/// # Safety
/// `first` is NULL or valid for `count` values, which nobody writes, during `'a`.
pub(crate) unsafe fn list<'a, T>(first: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    check(first, count, name)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL, aligned, of a possible length, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

fn check<T>(first: *const T, count: usize, name: &str) -> Result<(), Failure> {
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    if count > 0 && (first.is_null() || !first.is_aligned()) {
        return Err(Failure::invalid(format!("`{name}` is NULL or misaligned, and {count} are asked of it")));
    }
    match bytes {
        Some(_) => Ok(()),
        None => Err(Failure::invalid(format!("`{name}`: {count} is more than memory can hold"))),
    }
}

/// A string.
///
/// # Safety
/// `text` is NULL or a string that ends with a zero and that nobody writes, during `'a`.
pub(crate) unsafe fn string<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's word.
    unsafe { optional_string(text, name) }?.ok_or_else(|| Failure::invalid(format!("`{name}` is NULL")))
}

/// A string, or NULL.
///
/// # Safety
/// As for [`string`].
pub(crate) unsafe fn optional_string<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, and the caller vouches for the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::invalid(format!("`{name}` is not UTF-8")))
}

/// A list of strings.
///
/// # Safety
/// `first` is NULL or valid for `count` strings as for [`string`].
pub(crate) unsafe fn strings(first: *const *const c_char, count: usize, name: &str) -> Result<Vec<String>, Failure> {
    // SAFETY: the caller's word.
    let list = unsafe { list(first, count, name) }?;
    // SAFETY: the caller's word, for each of them.
    list.iter().map(|text| Ok(unsafe { string(*text, name) }?.to_string())).collect()
}

/// A string for the caller, who frees it with [`vmmc_string_free`].
pub(crate) fn give_string(text: &str) -> *mut c_char {
    CString::new(text.replace('\0', "?")).unwrap_or_default().into_raw()
}

/// Frees a string that a call of this library gave. NULL is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_string_free(text: *mut c_char) -> vmmc_status {
    call(|| {
        if !text.is_null() {
            // SAFETY: the caller got it from `give_string` and does not use it any more.
            drop(unsafe { CString::from_raw(text) });
        }
        Ok(())
    })
}
