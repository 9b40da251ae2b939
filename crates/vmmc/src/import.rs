//! Imports.
use crate::*;
use std::ops::Range;
use std::time::Duration;

/// A proxy receive buffer: access to another process's export.
pub struct Import {}

/// Choices for an import.
pub struct ImportBuilder {}

/// Choices for one send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Notify the receiver; it is notified if the export allows it.
    pub notify: bool,
    /// Offset of a 64-bit word of the export that grows by one after the data is there.
    pub counter: Option<u64>,
    /// Instead of the session's timeout.
    pub timeout: Option<Duration>,
}

#[allow(unused_variables)]
impl ImportBuilder {
    /// Name or `address:port` of the exporting node; default this node.
    #[must_use]
    pub fn node(self, node: &str) -> Self {
        unimplemented!("skeleton")
    }
    /// Rights wanted; default read and write.
    #[must_use]
    pub fn rights(self, rights: Rights) -> Self {
        unimplemented!("skeleton")
    }
    /// Wait this long for an export that does not exist yet.
    #[must_use]
    pub fn wait(self, timeout: Duration) -> Self {
        unimplemented!("skeleton")
    }
    /// Imports.
    pub fn open(self) -> Result<Import, ImportError> {
        unimplemented!("skeleton")
    }
}

#[allow(unused_variables, clippy::len_without_is_empty)]
impl Import {
    /// Bytes.
    pub fn len(&self) -> u64 {
        unimplemented!("skeleton")
    }
    /// Rights.
    pub fn rights(&self) -> Rights {
        unimplemented!("skeleton")
    }
    /// Id of the export behind it.
    pub fn export_id(&self) -> ExportId {
        unimplemented!("skeleton")
    }
    /// Which path it uses, and why not a better one.
    pub fn explain(&self) -> Explanation {
        unimplemented!("skeleton")
    }
    /// Deliberate update: copies `data` to the export. The data may be reused on return.
    #[inline]
    pub fn send(&self, offset: u64, data: &[u8]) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// [`send`](Self::send) with choices.
    pub fn send_with(&self, offset: u64, data: &[u8], options: SendOptions) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Sends from registered memory without a copy; returns when the memory may be reused.
    pub fn send_from(&self, source: &Buffer, range: Range<u64>, offset: u64) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// [`send_from`](Self::send_from) with choices.
    pub fn send_from_with(
        &self,
        source: &Buffer,
        range: Range<u64>,
        offset: u64,
        options: SendOptions,
    ) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Sends without waiting; the data is copied before return.
    pub fn send_async(&self, offset: u64, data: &[u8], options: SendOptions) -> Result<Transfer, TransferError> {
        unimplemented!("skeleton")
    }
    /// Sends from registered memory without waiting; leave the range alone until the transfer is done.
    pub fn send_from_async(
        &self,
        source: &Buffer,
        range: Range<u64>,
        offset: u64,
        options: SendOptions,
    ) -> Result<Transfer, TransferError> {
        unimplemented!("skeleton")
    }
    /// Remote fetch into any memory.
    pub fn fetch(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Remote fetch into registered memory without a copy.
    pub fn fetch_into(&self, offset: u64, to: &Buffer, range: Range<u64>) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Remote fetch into registered memory without waiting.
    pub fn fetch_async(&self, offset: u64, to: &Buffer, range: Range<u64>) -> Result<Transfer, TransferError> {
        unimplemented!("skeleton")
    }
    /// Sends several pieces to consecutive places.
    pub fn gather(&self, pieces: &[&[u8]], offset: u64) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Sends several ranges of registered memory to consecutive places.
    pub fn gather_from(&self, source: &Buffer, ranges: &[Range<u64>], offset: u64) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Sends consecutive parts of `data` to several ranges of the export.
    pub fn scatter(&self, data: &[u8], ranges: &[Range<u64>]) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Fetches consecutive bytes into several pieces of memory.
    pub fn fetch_scatter(&self, offset: u64, pieces: &mut [&mut [u8]]) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Fetches several ranges of the export into consecutive bytes.
    pub fn fetch_gather(&self, ranges: &[Range<u64>], into: &mut [u8]) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Adds to an aligned word; gives the old value.
    pub fn fetch_add(&self, offset: u64, value: u64) -> Result<u64, TransferError> {
        unimplemented!("skeleton")
    }
    /// Stores `new` if the word is `expected`; gives the old value.
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, TransferError> {
        unimplemented!("skeleton")
    }
    /// Stores; gives the old value.
    pub fn swap(&self, offset: u64, new: u64) -> Result<u64, TransferError> {
        unimplemented!("skeleton")
    }
    /// Returns when all sent before by this process to the export's node is in memory there, or the error of a send that failed.
    pub fn flush(&self) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// As [`flush`](Self::flush), until a deadline.
    pub fn flush_by(&self, deadline: Deadline) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Automatic update: plain stores through the binding appear in the export.
    pub fn bind(&self, options: BindOptions) -> Result<Binding, BindError> {
        unimplemented!("skeleton")
    }
}
