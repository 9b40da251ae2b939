//! The bounds of every table in this crate, each with its reason.
//!
//! Invariant: what does not fit is left to the kernel, never dropped.

/// Descriptors in one chunk of the descriptor table: 16 KiB, so that a program with few descriptors
/// touches four pages.
pub(crate) const TABLE_CHUNK: usize = 4096;
/// Chunks of the descriptor table. 4096 x 256 is the kernel's own default limit (fs.nr_open);
/// descriptors above it are left to the kernel.
pub(crate) const TABLE_CHUNKS_MAX: usize = 256;
/// Objects made at a time. Large enough that making more is rare, small enough that a program with
/// one connection pays little.
pub(crate) const ARENA_CHUNK: usize = 64;
/// Chunks of objects: as many objects as there can be descriptors in the table.
pub(crate) const ARENA_CHUNKS_MAX: usize = TABLE_CHUNK * TABLE_CHUNKS_MAX / ARENA_CHUNK;
/// Descriptors below the limit of the process where ours begin: room for a control connection and a
/// bell for each of many event loops; when it is full they lie where the kernel puts them.
pub(crate) const OWN_DESCRIPTORS: i32 = 256;
/// Ours lie below this number even if the process may have more: the kernel's table of descriptors
/// grows with the highest number.
pub(crate) const OWN_TOP_MAX: u64 = 65_536;
/// Pieces of a vector call that are handed on at a time; the rest follows.
pub(crate) const PIECES: usize = 16;
/// Bytes read from a file at a time for sendfile into a ring: a piece of stack that costs no page
/// faults after the first call.
pub(crate) const COPY_BYTES: usize = 16 << 10;
/// Epoll sets that can hold one connection; one more sends it to the kernel.
pub(crate) const SETS_OF_A_CONNECTION: usize = 4;
/// Longest time that an event loop polls only rings while they are busy: other descriptors must
/// not starve.
pub(crate) const KERNEL_POLL_INTERVAL_NS: u64 = 50_000;
/// The end of a wait without one, where an end must be named.
pub(crate) const FOR_EVER: std::time::Duration = std::time::Duration::from_secs(1 << 30);
/// Threads that are cancelled at a time and sleep in rings: one more, and the first one notices
/// a sleep later (30 s at most).
pub(crate) const CANCELLED_MAX: usize = 1024;
/// Longest sleep of a poll that has no bell, which happens when an area has no room for one more
/// watcher, ms.
pub(crate) const POLL_SLICE_MS: i32 = 1;
/// Longest sleep of a loop that peers cannot ring: with a new bell, or in the child of a fork,
/// until the node has told them how. That takes a millisecond, unless the node is stopped or has
/// died; then this is what an event takes longer.
pub(crate) const DEAF_SLICE_NS: u64 = 1_000_000;
/// Bytes that may be sent into the kernel after it said that there is room before it is asked
/// again: fewer than are free then even with the smallest buffers.
pub(crate) const SEEN_ROOM_BYTES: u32 = 2048;
/// What a send counts for beside its bytes: the kernel keeps more than them.
pub(crate) const SEEN_SEND_BYTES: u32 = 256;
/// Largest block of the library's own memory that is kept for the next allocation; larger ones are
/// mappings. Nothing that a connection needs is as large.
pub(crate) const MEMORY_BLOCK_MAX: usize = 32 << 10;
/// Memory that is mapped at a time for blocks: few mappings, and pages that are not used yet cost
/// nothing.
pub(crate) const MEMORY_CHUNK: usize = 1 << 20;
/// Bells that polls left for the next poll of any thread: a process has 16, and event loops need
/// some.
pub(crate) const SPARE_BELLS: usize = 4;
/// Bytes that MSG_PEEK with MSG_WAITALL waits for in a ring: the smallest one holds no more, and a
/// ring grows only when it is read or full.
pub(crate) const PEEK_ALL_MAX: usize = 32 << 10;
/// Time that a call which only the kernel can make, and which may not wait, gives the peer to
/// follow into the ring, so that the direction can leave it: a peer that waits does so in some
/// microseconds.
pub(crate) const LEAVE_PATIENCE: std::time::Duration = std::time::Duration::from_millis(1);
/// Doublings of the time between two polls of a ring that stays full: to 80 ms.
pub(crate) const FULL_SLICES: u32 = 3;
