//! What threads of this process stand behind, and what the child of a fork so leaves alone.
//!
//! Invariant: the child of a fork neither uses nor drops it. Another thread may have held its locks
//! when the parent forked, and what it shares with others is the parent's.

use crate::failure::Failure;
use std::mem::ManuallyDrop;
use vmmc::AccessError;

/// A value that belongs to the process that made it.
pub(crate) struct Owned<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned { value: ManuallyDrop::new(value), process: std::process::id() }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        if self.is_here() { Ok(&self.value) } else { Err(AccessError::Forked { parent: self.process }.into()) }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: it is dropped here alone, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
