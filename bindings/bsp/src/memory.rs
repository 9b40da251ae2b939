//! The program's own memory, as supersteps reach it: by address and length.
//!
//! Invariant: a place is an address and the length that the program gave with it, in a call whose
//! contract is that so many bytes are there.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use vmmc_bsp::{Place, Places};

/// Memory of the program: a name is an address.
pub(crate) struct ProgramMemory;

impl Places for ProgramMemory {
    fn bytes(&mut self, place: Place, offset: u64, len: u64) -> Option<&mut [u8]> {
        if offset.checked_add(len)? > place.len() {
            return None;
        }
        if len == 0 {
            return Some(&mut []);
        }
        let start = with_exposed_provenance_mut::<u8>((place.name() + offset) as usize);
        // SAFETY: bounds: inside of `len` bytes that the program has said are there, when it
        // registered them or asked for a get; the core gives back no places but those. Lifetime:
        // the header says until the end of the registration, or of the next sync, and this is used
        // in that call. Aliasing and concurrent writers: one thread makes calls, and it is in
        // bsp_sync; the slice is gone before the next one is made.
        Some(unsafe { std::slice::from_raw_parts_mut(start, len as usize) })
    }
}

/// The name of an address; none for NULL.
pub(crate) fn name(address: *const c_void) -> Option<u64> {
    (!address.is_null()).then(|| address.expose_provenance() as u64)
}

/// A length or an offset; none: it is negative.
pub(crate) fn count(number: c_int) -> Option<u64> {
    u64::try_from(number).ok()
}

/// Bytes that the program has given to a call; none: NULL, where there should be some.
///
/// # Safety
/// So many bytes are there, and stay as they are while the slice is used.
pub(crate) unsafe fn given<'a>(address: *const c_void, len: u64) -> Option<&'a [u8]> {
    match (len, address.is_null()) {
        (0, _) => Some(&[]),
        (_, true) => None,
        // SAFETY: bounds, lifetime and writers are the caller's promise; the pointer is not NULL.
        _ => Some(unsafe { std::slice::from_raw_parts(address.cast(), len as usize) }),
    }
}

/// Writes bytes where the program wants them, if it does.
///
/// # Safety
/// So many bytes are there, and nobody else uses them meanwhile.
pub(crate) unsafe fn copy_out(bytes: &[u8], to: *mut c_void) {
    if !to.is_null() && !bytes.is_empty() {
        // SAFETY: bounds and writers are the caller's promise; the source is memory of this
        // library, which the program has at most read, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) }
    }
}

/// Writes a number where the program wants it, if it does.
///
/// # Safety
/// An int is there, and nobody else uses it meanwhile.
pub(crate) unsafe fn set(to: *mut c_int, value: u64) {
    if !to.is_null() {
        // SAFETY: the caller's promise; a number that an int has no room for is the largest one.
        unsafe { to.write(c_int::try_from(value).unwrap_or(c_int::MAX)) }
    }
}

/// A text of C.
///
/// # Safety
/// It is NULL or ends with a zero, and stays as it is meanwhile.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise; the text is copied here.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A pointer into the queue, for the program to read.
pub(crate) fn lent(bytes: &[u8]) -> *mut c_void {
    with_exposed_provenance::<c_void>(bytes.as_ptr().expose_provenance()).cast_mut()
}
