//! Memory of the program, by address and length.
//!
//! Invariant: a length is checked before an address is used, and an address of null is only ever
//! taken with no bytes.

use crate::process::tell;
use std::ffi::{c_long, c_void};
use vmmc_nx::{Buffer, Info, NxError};

/// A length in bytes or elements.
pub(crate) fn length(len: c_long) -> Result<usize, NxError> {
    usize::try_from(len).map_err(|_| NxError::Length { len })
}

fn check<T>(address: *const T, len: c_long, what: &'static str) -> Result<usize, NxError> {
    let len = length(len)?;
    // No object is longer.
    if len.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(NxError::Length { len: len as i64 });
    }
    if address.is_null() && len > 0 { Err(NxError::Null { what }) } else { Ok(len) }
}

/// What a program gives to be read.
///
/// # Safety
/// `address` is null, or so many values that stay as they are as long as the result is used.
pub(crate) unsafe fn read<'a, T>(address: *const T, len: c_long, what: &'static str) -> Result<&'a [T], NxError> {
    let len = check(address, len, what)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: it is not null, the length fits, and the caller says the rest.
    Ok(unsafe { std::slice::from_raw_parts(address, len) })
}

/// What a program gives to be written.
///
/// # Safety
/// `address` is null, or so many values that nobody else uses as long as the result is used.
pub(crate) unsafe fn write<'a, T>(address: *mut T, len: c_long, what: &'static str) -> Result<&'a mut [T], NxError> {
    let len = check(address, len, what)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: it is not null, the length fits, and the caller says the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(address, len) })
}

/// Memory of the program that a message under way has.
pub(crate) struct Lent {
    address: *mut u8,
    len: usize,
    /// Where the program wants to know of the message; null: nowhere.
    info: *mut c_long,
}

// SAFETY: the program leaves the memory alone until the message is over, which the header demands;
// so whichever thread has this value is the only one that uses it.
unsafe impl Send for Lent {}
// SAFETY: a shared one only reads, and nobody writes meanwhile.
unsafe impl Sync for Lent {}

impl Lent {
    /// # Safety
    /// `address` is null, or so many bytes that nobody else writes until the message is over, and
    /// nobody else reads if it is a receive. `info` is null, or eight longs of the same kind.
    pub(crate) unsafe fn new(address: *const c_void, len: c_long, info: *mut c_long) -> Result<Lent, NxError> {
        let len = check(address.cast::<u8>(), len, "the buffer")?;
        Ok(Lent { address: address.cast_mut().cast(), len, info })
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as for `new`; a length that is not 0 has an address.
        if self.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.address, self.len) } }
    }
}

/// The same, to be received into.
pub(crate) struct LentRoom(pub(crate) Lent);

impl Buffer for LentRoom {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.0.len == 0 {
            return &mut [];
        }
        // SAFETY: as for `Lent::new`; this borrow is the only one of the value.
        unsafe { std::slice::from_raw_parts_mut(self.0.address, self.0.len) }
    }

    fn received(&mut self, info: &Info) {
        // SAFETY: as for `Lent::new`.
        unsafe { tell(*info, self.0.info) }
    }
}
