//! Registered memory: the node knows it, so sends and fetches through the engine need no copy on
//! the way.
//!
//! Invariant: the memory stays registered as long as any clone, any transfer under way or any
//! redirection uses it.

use crate::core::Core;
use crate::error::AccessError;
use crate::memory::Piece;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use vmmc_host::stores::Stores;
use vmmc_host::{Region, Span};

/// Memory registered with the node, for sends and fetches without copies. Clones are the same
/// memory.
#[derive(Clone)]
pub struct Buffer {
    core: Arc<Core>,
    piece: Piece,
}

/// A range of registered memory, to send from ([`Source`](crate::Source)) or to fetch into
/// ([`Target`](crate::Target), [`PostTarget`](crate::PostTarget)); made by [`Buffer::range`].
#[derive(Clone, Debug)]
pub struct BufferRange<'b> {
    pub(crate) buffer: &'b Buffer,
    pub(crate) range: Range<u64>,
}

impl BufferRange<'_> {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[allow(clippy::len_without_is_empty)] // never empty
impl Buffer {
    pub(crate) fn new(core: Arc<Core>, piece: Piece) -> Buffer {
        Buffer { core, piece }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.piece.len
    }

    /// A part of it, from the first byte to before the last, to send from or to fetch into. The
    /// buffer itself is all of it. A transfer that names bytes past its end is refused with
    /// [`BufferOutOfBounds`](crate::TransferError::BufferOutOfBounds).
    ///
    /// Without a copy on the way: after [`TimedOut`](crate::TransferError::TimedOut), and until a
    /// posted transfer is done, the range may still be read or written.
    pub fn range(&self, range: Range<u64>) -> BufferRange<'_> {
        BufferRange { buffer: self, range }
    }

    /// All of it.
    pub(crate) fn all(&self) -> BufferRange<'_> {
        self.range(0..self.len())
    }

    /// First byte in this process, for callers that take the responsibility of shared memory
    /// themselves: valid as long as the buffer lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.piece.as_ptr()
    }

    /// The region that the memory lies in.
    pub fn memory(&self) -> Region {
        self.region().clone()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]; [`AccessError::Forked`].
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.core.must_be_here()?;
        self.piece.read(offset, into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]; [`AccessError::Forked`].
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        self.core.must_be_here()?;
        self.piece.write(offset, data)
    }

    pub(crate) fn write_unordered(&self, stores: &Stores, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        self.core.must_be_here()?;
        self.piece.write_unordered(stores, offset, data)
    }

    /// An aligned word, which fetches and redirected data may change at any time.
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline]
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        self.core.must_be_here()?;
        self.piece.word(offset)
    }

    /// Aligned words that follow each other.
    #[inline]
    pub(crate) fn words(&self, offset: u64, count: usize) -> Result<&[AtomicU64], AccessError> {
        self.core.must_be_here()?;
        self.piece.words(offset, count)
    }

    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<(), AccessError> {
        self.piece.check(offset, len)
    }

    pub(crate) fn is_of(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }

    pub(crate) fn region(&self) -> &Region {
        self.piece.region()
    }

    pub(crate) fn region_id(&self) -> u32 {
        self.piece.registered.id
    }

    /// Where a byte of the buffer lies in its region.
    pub(crate) fn region_offset(&self, offset: u64) -> u64 {
        self.piece.offset + offset
    }

    /// A part of it that is a buffer by itself.
    pub(crate) fn part(&self, range: Range<u64>) -> Buffer {
        let (offset, len) = (self.piece.offset + range.start, range.end - range.start);
        Buffer::new(self.core.clone(), Piece { registered: self.registered(), offset, len })
    }

    pub(crate) fn span(&self) -> Span {
        let Piece { offset, len, .. } = self.piece;
        Span { region: self.memory(), offset, len }
    }

    /// How many others use the memory that it is of: buffers, exports, transfers under way.
    pub(crate) fn other_users(&self) -> usize {
        Arc::strong_count(&self.piece.registered) - 1
    }

    pub(crate) fn registered(&self) -> Arc<crate::regions::Registered> {
        self.piece.registered.clone()
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}
