//! A piece of registered memory, as exports and buffers hold it.
//!
//! Invariant: every access is checked against the piece, not only against its region, which may
//! contain neighbours that belong to somebody else.

use crate::buffer::Buffer;
use crate::core::Core;
use crate::error::{AccessError, BufferError};
use crate::regions::Registered;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use vmmc_host::adopt::{CallerMemory, adopt};
use vmmc_host::stores::Stores;
use vmmc_host::{Deadline, Nanos, Region, Span};

/// A range of a registered region.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) registered: Arc<Registered>,
    /// First byte in the region.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Memory that is to become a piece.
pub(crate) enum Origin {
    New(u64),
    Caller(CallerMemory),
    Region(Region),
    Buffer(Buffer),
}

impl Origin {
    /// Makes or takes over the memory, and registers it.
    pub(crate) fn register(self, core: &Arc<Core>, deadline: Deadline) -> Result<Piece, BufferError> {
        let span = match self {
            Origin::New(len) => Span { region: Region::create(len)?, offset: 0, len },
            Origin::Caller(memory) => adopt(memory)?,
            Origin::Region(region) => Span { offset: 0, len: region.len_bytes(), region },
            Origin::Buffer(buffer) => buffer.span(),
        };
        Ok(Piece { registered: Registered::new(core, span.region, deadline)?, offset: span.offset, len: span.len })
    }
}

impl Piece {
    pub(crate) fn region(&self) -> &Region {
        &self.registered.region
    }

    #[inline]
    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<(), AccessError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(AccessError::OutOfBounds { offset, len, size: self.len }),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // Inside of the region: a piece never reaches past it.
        self.region().as_ptr().wrapping_add(self.offset as usize)
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.check(offset, into.len() as u64)?;
        Ok(self.region().read(self.offset + offset, into)?)
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        self.check(offset, data.len() as u64)?;
        Ok(self.region().write(self.offset + offset, data)?)
    }

    /// By the stores that pay, and the bytes become visible in any order.
    pub(crate) fn write_unordered(&self, stores: &Stores, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        let len = data.len() as u64;
        self.check(offset, len)?;
        let mut result = Ok(());
        stores.copy(
            len,
            || Nanos::monotonic().0,
            |how| {
                result = self.region().write_unordered(how, self.offset + offset, data);
                if result.is_ok() { len } else { 0 }
            },
        );
        Ok(result?)
    }

    #[inline]
    pub(crate) fn word(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        self.check(offset, 8)?;
        if (self.offset + offset) % 8 != 0 {
            return Err(AccessError::Misaligned { offset });
        }
        Ok(self.region().word(self.offset + offset)?)
    }

    #[inline]
    pub(crate) fn words(&self, offset: u64, count: usize) -> Result<&[AtomicU64], AccessError> {
        self.check(offset, 8 * count as u64)?;
        if (self.offset + offset) % 8 != 0 {
            return Err(AccessError::Misaligned { offset });
        }
        Ok(self.region().words(self.offset + offset, count)?)
    }
}
