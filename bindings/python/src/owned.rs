//! What threads of this process stand behind, and what the child of a fork so leaves alone.
//!
//! Invariant: it is dropped without the interpreter's lock, and not at all in the child of a fork:
//! another thread may have held its locks when the parent forked, and what it shares with others is
//! the parent's.

use crate::errors::{drop_detached, raise};
use pyo3::prelude::*;
use vmmc::AccessError;

/// A value that belongs to the process that made it.
pub(crate) struct Owned<T: Send> {
    value: Option<T>,
    process: u32,
}

impl<T: Send> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned { value: Some(value), process: std::process::id() }
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        match &self.value {
            Some(value) if self.process == std::process::id() => Ok(value),
            _ => Err(raise(AccessError::Forked { parent: self.process })),
        }
    }
}

impl<T: Send> Drop for Owned<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.process == std::process::id() { drop_detached(value) } else { std::mem::forget(value) }
    }
}
