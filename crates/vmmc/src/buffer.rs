//! Registered memory.
use crate::*;
use std::sync::atomic::AtomicU64;

/// Memory registered with the node, for sends and fetches without copies. Clones are the same memory.
#[derive(Clone)]
pub struct Buffer {}

#[allow(unused_variables, clippy::len_without_is_empty)]
impl Buffer {
    /// Bytes.
    pub fn len(&self) -> u64 {
        unimplemented!("skeleton")
    }
    /// Copies bytes out.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        unimplemented!("skeleton")
    }
    /// Copies bytes in.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        unimplemented!("skeleton")
    }
    /// An aligned word.
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        unimplemented!("skeleton")
    }
}
