//! Structures of atomic words that lie in memory which other processes write.
//!
//! Invariant: a structure is laid over memory only if it consists of atomic words alone, for which
//! every bit pattern is valid and concurrent change is allowed; [`words!`](crate::words) sees to
//! that when the program is compiled.

use crate::atomics::{AtomicU32, AtomicU64};

/// What can be laid over shared memory: [`Region::overlay`](crate::Region::overlay).
///
/// # Safety
/// The type has a layout that all processes agree on (`repr(C)` or `repr(transparent)`), and
/// consists of atomic words: no other fields, no padding that is read.
pub unsafe trait Words: Sized {}

// SAFETY: it is an atomic word.
unsafe impl Words for AtomicU32 {}
// SAFETY: it is an atomic word.
unsafe impl Words for AtomicU64 {}
// SAFETY: an array has no padding, and its elements are such words.
unsafe impl<W: Words, const N: usize> Words for [W; N] {}

/// Declares structures that are [`Words`]: each field must be, which is checked. Each begins on a
/// cache line, but for one that is `transparent`: a name for its only field.
///
/// ```
/// use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
/// use vmmc_host::Region;
///
/// vmmc_host::words! {
///     /// A counter that processes share.
///     pub struct Counter {
///         /// Times.
///         pub times: AtomicU64,
///         _pad: [AtomicU32; 14],
///     }
/// }
///
/// let region = Region::create(4096)?;
/// region.overlay::<Counter>(64)?.times.fetch_add(1, Ordering::Relaxed);
/// assert_eq!(region.word(64)?.load(Ordering::Relaxed), 1);
/// assert!(region.overlay::<Counter>(4096 - 32).is_err(), "it does not fit");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail
/// vmmc_host::words! {
///     /// A number that is no atomic one: another process could change it under a reference.
///     pub struct Number {
///         /// So it is refused.
///         pub number: u64,
///     }
/// }
/// ```
#[macro_export]
macro_rules! words {
    ($($(#[$about:meta])* $vis:vis struct $name:ident {
        $($(#[$of_field:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)?
    })+) => {$(
        $(#[$about])*
        #[derive(Debug, Default)]
        #[repr(C, align(64))]
        $vis struct $name {
            $($(#[$of_field])* $field_vis $field: $type,)*
        }

        const _: () = {
            const fn is_words<W: $crate::overlay::Words>() {}
            $(is_words::<$type>();)*
            // SAFETY: `repr(C)`, and each field is such words, as has just been seen. What the
            // alignment adds at the end is not a field.
            unsafe impl $crate::overlay::Words for $name {}
        };
    )+};
    ($(#[$about:meta])* $vis:vis transparent struct $name:ident($field_vis:vis $type:ty);) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        #[repr(transparent)]
        $vis struct $name($field_vis $type);

        const _: () = {
            const fn is_words<W: $crate::overlay::Words>() {}
            is_words::<$type>();
            // SAFETY: it has the layout of its field, which is such words, as has just been seen.
            unsafe impl $crate::overlay::Words for $name {}
        };
    };
}
