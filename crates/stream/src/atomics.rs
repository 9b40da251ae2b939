//! The one place where atomics come from, so that loom can take their place in tests.
//!
//! Invariant: the words of a connection use only what is exported here.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
