//! Memory whose ranges a receiver posts, and messages that go straight there.
//!
//! Invariant: memory lives as long as a range of it is posted. A receiver is told of a message when
//! all of it is in its place, so the notice is sent after the transfer: the two go through
//! different imports, whose order nothing promises. Source: [SEMANTICS §2, §3], V2PDMA.

use crate::protocol::Fragment;
use crate::{Error, Sender};
use std::ops::Range;
use std::sync::Arc;
use vmmc::{Export, Transfer};

/// Memory of a receiver whose ranges can be posted; made by
/// [`Receiver::memory`](crate::Receiver::memory) and [`Receiver::adopt`](crate::Receiver::adopt).
/// Clones are the same memory.
#[derive(Clone, Debug)]
pub struct PostedMemory {
    pub(crate) export: Arc<Export>,
    /// Of the receiver's memories, from 0.
    pub(crate) number: u64,
}

impl PostedMemory {
    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u64 {
        self.export.len()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::Access`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        Ok(self.export.read(offset, into)?)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::Access`].
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        Ok(self.export.write(offset, data)?)
    }
}

/// A message that has arrived in memory that was posted for it.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// Where.
    pub memory: PostedMemory,
    /// Its bytes there.
    pub range: Range<u64>,
    /// What [`Receiver::post`](crate::Receiver::post) gave for the range.
    pub number: u64,
}

/// A message on its way to posted memory; made by [`Sender::send_posted`]. Dropping it waits until
/// it is ready, the session's timeout.
#[must_use = "the memory is not free before it is ready"]
pub struct Posting<'s, 'a> {
    sender: &'s mut Sender,
    transfer: Transfer<'a>,
    fragment: Fragment,
    /// The receiver was told, or will never be.
    over: bool,
}

impl<'s, 'a> Posting<'s, 'a> {
    pub(crate) fn new(sender: &'s mut Sender, transfer: Transfer<'a>, fragment: Fragment) -> Posting<'s, 'a> {
        Posting { sender, transfer, fragment, over: false }
    }

    /// Whether the memory of the message can be used again; the paper's `DMA-Ready()`.
    ///
    /// # Errors
    /// [`Error::Transfer`]: the message did not arrive, and the channel is given up.
    pub fn is_ready(&mut self) -> Result<bool, Error> {
        match self.transfer.poll() {
            Some(result) => self.end(result.map(drop).map_err(Error::from)).map(|()| true),
            None => Ok(false),
        }
    }

    /// Waits the session's timeout until it can.
    ///
    /// # Errors
    /// As [`is_ready`](Self::is_ready).
    pub fn wait(mut self) -> Result<(), Error> {
        let result = self.transfer.wait().map(drop).map_err(Error::from);
        self.end(result)
    }

    fn end(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        if self.over {
            return result;
        }
        self.over = true;
        let told = result.and_then(|()| self.sender.tell_posted(&self.fragment));
        if told.is_err() {
            // Some of it may arrive yet, in a buffer that must not have another message.
            self.sender.give_up();
        }
        told
    }
}

impl Drop for Posting<'_, '_> {
    fn drop(&mut self) {
        if !self.over {
            let result = self.transfer.wait().map(drop).map_err(Error::from);
            // The next call on the sender says that it was given up.
            let _ = self.end(result);
        }
    }
}

impl std::fmt::Debug for Posting<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Posting({} bytes)", self.fragment.len)
    }
}
