//! Lent memory: the caller's own, which stays in place by proof of a borrow.
//!
//! Invariant: memory that is lent is mapped as long as the value lives, so a translation of it that
//! was found once stays right. [UTLB §3]

use std::ops::Range;

/// Memory that its owner leaves in place for as long as this value lives, which the borrow proves:
/// nobody can unmap or move it meanwhile, so a send from it needs no check of what other threads do
/// to mappings. Made by [`Session::lend`](crate::Session::lend).
///
/// As a [`Source`](crate::Source) it is all of the memory; [`range`](Self::range) is a part.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a>(pub(crate) &'a [u8]);

/// A part of lent memory to send from; made by [`Lent::range`].
#[derive(Clone, Debug)]
pub struct LentRange<'a> {
    pub(crate) lent: Lent<'a>,
    pub(crate) range: Range<usize>,
}

impl<'a> Lent<'a> {
    /// The memory.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// A part of it, as a [`Source`](crate::Source): bytes from the first to before the last. A
    /// send from a range that reaches past the memory is refused with
    /// [`BufferOutOfBounds`](crate::TransferError::BufferOutOfBounds).
    pub fn range(self, range: Range<usize>) -> LentRange<'a> {
        LentRange { lent: self, range }
    }
}

impl<'a> LentRange<'a> {
    /// None if it reaches past the memory.
    pub(crate) fn get(&self) -> Option<&'a [u8]> {
        self.lent.0.get(self.range.clone())
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.get().expect("sources are checked before they are used")
    }
}
