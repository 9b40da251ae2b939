//! Payloads that have come: each is a frame of its sender's channel, or several side by side, the
//! program's until it gives them back by dropping it.
//!
//! Invariant: a frame is held by one [`Frame`] at most; its sender may use it again when its bit
//! changes, which happens when that is dropped. The bytes are memory that the sender can write at
//! any time, so they are never a slice. Source: [GMS §2] receive buffers.

use super::channel::agreed;
use super::layout::Shape;
use crate::error::AccessError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc_host::Region;
use vmmc_host::credit::Run;

/// The frames of a channel.
#[derive(Debug)]
pub(super) struct Frames {
    region: Region,
    shape: Shape,
    /// A bit for each that the program has.
    held: AtomicU64,
}

impl Frames {
    pub(super) fn new(region: Region, shape: Shape) -> Frames {
        Frames { region, shape, held: AtomicU64::new(0) }
    }

    /// The frames of a payload. None: the program has some of them, so their sender may not use
    /// them. One thread at a time takes.
    #[inline]
    pub(super) fn take(frames: &Arc<Frames>, run: Run, bytes: u64) -> Option<Frame> {
        let mask = run.mask();
        // Others can only give some back meanwhile.
        if frames.held.load(Ordering::Relaxed) & mask != 0 {
            return None;
        }
        frames.held.fetch_or(mask, Ordering::Relaxed);
        Some(Frame { frames: frames.clone(), run, bytes })
    }
}

/// A payload that has come, in one piece: a frame, or as many side by side as it is long. Its
/// memory is the program's until this is dropped; only then the sender may use it for the next one.
/// A hostile sender can write it all the same: copy what must not change before you check it.
#[derive(Debug)]
pub struct Frame {
    frames: Arc<Frames>,
    run: Run,
    bytes: u64,
}

impl Frame {
    /// Bytes of the payload.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]: the range reaches past the payload.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let len = into.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.bytes) {
            return Err(AccessError::OutOfBounds { offset, len, size: self.bytes });
        }
        let start = self.frames.shape.frame(self.run.first);
        self.frames.region.read(start + offset, into).expect("a frame is in the channel");
        Ok(())
    }

    /// A copy of all of it.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.bytes as usize];
        self.read(0, &mut copy).expect("it is that long");
        copy
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.frames.held.fetch_and(!self.run.mask(), Ordering::Relaxed);
        // The copies out of it come before.
        agreed(&self.frames.region).give_back(self.run);
    }
}
