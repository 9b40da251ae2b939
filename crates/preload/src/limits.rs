//! The bounds of every table in this crate, each with its reason.
//!
//! Invariant: what does not fit is left to the kernel, never dropped.

/// Descriptors in one chunk of the descriptor table: 16 KiB, so that a program with few descriptors touches four pages.
pub(crate) const TABLE_CHUNK: usize = 4096;
/// Chunks of the descriptor table. 4096 x 256 is the kernel's own default limit (fs.nr_open); descriptors above it are left to the kernel.
pub(crate) const TABLE_CHUNKS_MAX: usize = 256;
/// Objects made at a time. Large enough that making more is rare, small enough that a program with one connection pays little.
pub(crate) const ARENA_CHUNK: usize = 64;
/// Chunks of objects: as many objects as there can be descriptors in the table.
pub(crate) const ARENA_CHUNKS_MAX: usize = TABLE_CHUNK * TABLE_CHUNKS_MAX / ARENA_CHUNK;
