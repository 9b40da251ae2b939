//! Bounds of tables, caches and parameters, each with its reason.
//!
//! Invariant: nothing in this crate grows past one of these because a process, a trace or a command
//! line said so.

/// log2 of the page size: translation works on 4 KiB pages. [UTLB §5]
pub const PAGE_SHIFT: u32 = 12;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;

/// Bits of a page number. A process and a page fit into one 64-bit tag together; user addresses of
/// today's machines have 47 to 56 bits.
pub const PAGE_BITS: u32 = 48;

/// log2 of the pages that one second-level table maps: 2 MiB of addresses, so that a table of
/// 8-byte entries is one page, as in the paper.
pub const LEAF_SHIFT: u32 = 9;

/// Pages that one second-level table maps.
pub const LEAF_PAGES: usize = 1 << LEAF_SHIFT;

/// Ways of the shared cache. The paper compares 1, 2 and 4; a search through more than 16 costs
/// more than the miss that it saves.
pub const WAYS_MAX: usize = 16;

/// Entries of the shared cache: 16 Mi entries map 64 GiB, more than any node pins.
pub const ENTRIES_MAX: usize = 1 << 24;

/// Entries fetched at one miss. The paper goes to 32; one second-level table has 512.
pub const PREFETCH_MAX: u32 = 512;

/// Pages pinned ahead at one check miss. Paper: 16; issue: 64; adaptive pinning stops here too.
pub const PREPIN_MAX: u32 = 64;

/// Pages of one pin call that the counters keep apart; larger calls share the last class.
pub const PIN_CLASSES: usize = 65;

/// Pages of one transfer: 16 GiB, far above any real transfer, so that a damaged length cannot
/// stall a run.
pub const TRANSFER_PAGES_MAX: u64 = 1 << 22;

/// Threads of a sweep: past this, memory bandwidth is the limit.
pub const SWEEP_THREADS_MAX: usize = 256;

/// Traces merged in one run: every one keeps a file and a decoder open.
pub const TRACES_MAX: usize = 1024;

/// Bytes of a line in a text trace; a longer one is not a trace.
pub const LINE_BYTES_MAX: usize = 4096;
