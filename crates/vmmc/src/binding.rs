//! Automatic update.
use crate::*;
use std::sync::atomic::AtomicU64;

/// Choices for a binding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// Combine neighbouring stores on their way to another node; within a node there is nothing to combine.
    pub combining: bool,
}

/// The export's memory, bound: plain stores appear there.
pub struct Binding {}

#[allow(unused_variables, clippy::len_without_is_empty)]
impl Binding {
    /// Bytes.
    pub fn len(&self) -> u64 {
        unimplemented!("skeleton")
    }
    /// Stores bytes.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        unimplemented!("skeleton")
    }
    /// Loads bytes.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        unimplemented!("skeleton")
    }
    /// An aligned word of the export.
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        unimplemented!("skeleton")
    }
    /// Returns when all stores so far are in the export's memory.
    pub fn flush(&self) -> Result<(), TransferError> {
        unimplemented!("skeleton")
    }
    /// Whether the export still exists.
    pub fn is_open(&self) -> bool {
        unimplemented!("skeleton")
    }
}
