//! Named bounds of channels.
//!
//! Invariant: every ring, pool, table and wait of this crate takes its bound from here, with the
//! reason for the number. Source: STYLE of the project, ARCHITECTURE.md, "Invariants".

use std::time::Duration;

/// Notices of fragments on their way: so many a sender is ahead of its receiver. One page of them.
pub const NOTICES: u64 = 64;
/// Receive buffers that are posted at once: each has a notice when it is filled.
pub const POSTED_MAX: usize = NOTICES as usize;
/// Longest message, bytes: a length above is a mistake, or a peer's lie.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 40;
/// Most memory of a channel, bytes, of all its parts together.
pub const CHANNEL_BYTES_MAX: u64 = 1 << 32;
/// Window for PIO unless the receiver says otherwise, bytes: a second-level cache holds it.
pub const WINDOW_BYTES: u64 = 256 << 10;
/// Frames of a channel unless the receiver says otherwise, bytes: as many fragments as notices.
pub const POOL_BYTES: u64 = NOTICES * FRAGMENT_BYTES;
/// Agreed memory of a channel with DirectDMA unless the receiver says otherwise, bytes.
pub const AGREED_BYTES: u64 = 1 << 20;
/// What is copied as one, bytes, so that the receiver takes one out while the next is copied in;
/// both fit into a second-level cache.
pub const FRAGMENT_BYTES: u64 = 64 << 10;
/// What is lent as one, bytes: long runs of pages cost one mapping in an exchange.
pub const LENT_FRAGMENT_BYTES: u64 = 512 << 10;
/// Pages that a buffer has beside those that it shows, at most: so many can be written while they
/// are lent, before a write waits for a transfer.
pub const SPARE_PAGES_MAX: u64 = 1024;
/// Memories with posted ranges that a sender has imported at once; then it begins anew.
pub const MEMORIES_MAX: usize = 64;
/// How often a wait looks whether the other side is still there.
pub const PEER_LOOK: Duration = Duration::from_millis(100);
/// Looks at the other side's words before the processor is given to others.
pub const POLLS: u32 = 200;
/// Times that the processor is given to others before the waits sleep.
pub const YIELDS: u32 = 200;
/// Shortest and longest sleep between two looks: what a message may come late.
pub const SLEEP_MIN: Duration = Duration::from_micros(50);
/// See [`SLEEP_MIN`].
pub const SLEEP_MAX: Duration = Duration::from_millis(1);
