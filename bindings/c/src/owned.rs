//! What threads of this process stand behind, and what the child of a fork so leaves alone.
//!
//! Invariant: the child of a fork neither uses nor drops it. Another thread may have held its locks
//! when the parent forked, and what it shares with others is the parent's.

use crate::failure::Failure;
use vmmc::AccessError;

/// A value that belongs to the process that made it.
pub(crate) struct Owned<T> {
    value: Option<T>,
    process: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned { value: Some(value), process: std::process::id() }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        let here = self.value.as_ref().filter(|_| self.is_here());
        here.ok_or_else(|| AccessError::Forked { parent: self.process }.into())
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}
