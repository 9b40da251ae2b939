//! Options: structs of the caller that say their own size, so that younger libraries understand
//! older programs.
//!
//! Invariant: a field that the caller's struct does not have reads as 0, which always means the
//! default.

use crate::failure::Failure;
use std::mem::MaybeUninit;

/// A struct of options. Its first field is `size: usize`.
///
/// # Safety
/// The type is plain data for which all bits zero are valid, and starts with a `usize`.
pub(crate) unsafe trait Options: Copy {
    /// For messages.
    const NAME: &'static str;
}

/// Reads options; NULL are the defaults.
///
/// # Safety
/// `options` is NULL or points to a struct of the type, of some release, that says its true size.
pub(crate) unsafe fn read<T: Options>(options: *const T) -> Result<T, Failure> {
    let mut value = MaybeUninit::<T>::zeroed();
    if !options.is_null() {
        if !options.is_aligned() {
            return Err(Failure::invalid(format!("the {} are misaligned", T::NAME)));
        }
        // SAFETY: not NULL, aligned, and the struct starts with its size.
        let size = unsafe { options.cast::<usize>().read() };
        if size < size_of::<usize>() || size > 16 * size_of::<T>() {
            let wanted = size_of::<T>();
            return Err(Failure::invalid(format!("`size` of the {} is {size}; set it to sizeof ({wanted})", T::NAME)));
        }
        let known = size.min(size_of::<T>());
        // SAFETY: both sides have `known` bytes.
        unsafe { std::ptr::copy_nonoverlapping(options.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known) };
    }
    // SAFETY: zeroed, then overwritten with plain data.
    Ok(unsafe { value.assume_init() })
}

/// Refuses flags that mean nothing.
pub(crate) fn known_flags(flags: u32, known: u32, name: &str) -> Result<(), Failure> {
    if flags & !known == 0 {
        return Ok(());
    }
    Err(Failure::invalid(format!("{name}: the flags {:#x} mean nothing", flags & !known)))
}
