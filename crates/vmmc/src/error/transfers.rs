//! What can go wrong when memory is moved, or read.
//!
//! Invariant: as for all errors: the thing, the numbers, the next step.

use super::BufferError;
use crate::Rights;
use thiserror::Error;

/// Why data did not move: sends, fetches, atomics, flushes. `import` is the name of the import as
/// in `"frames" (export 12.3 of process 77 on node a)`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TransferError {
    /// The exporter took the export back.
    #[error("import {import}: the exporter revoked it; import again if it was exported anew")]
    Revoked {
        /// The import.
        import: String,
    },
    /// The exporting process left or died.
    #[error("import {import}: the exporting process is gone; import again once it has restarted")]
    OwnerDied {
        /// The import.
        import: String,
    },
    /// The exporter's node does not answer.
    #[error(
        "import {import}: its node has not answered for {after_ms} ms; check that it runs and can be reached, then import again"
    )]
    NodeUnreachable {
        /// The import.
        import: String,
        /// How long nothing came, milliseconds.
        after_ms: u64,
    },
    /// The exporter's node restarted.
    #[error("import {import}: its node restarted and the export of before is gone; import again")]
    NodeRestarted {
        /// The import.
        import: String,
    },
    /// Our own node died or ended.
    #[error(
        "import {import}: this process's node {node:?} is gone; start it again (`vmmc node start --name {node}`) and attach anew"
    )]
    NodeGone {
        /// The import.
        import: String,
        /// Name of our node.
        node: String,
    },
    /// Outside of the export.
    #[error("import {import}: {len} bytes at offset {offset} reach past its {size} bytes; use a smaller range")]
    OutOfBounds {
        /// The import.
        import: String,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the import.
        size: u64,
    },
    /// Outside of the local buffer.
    #[error(
        "import {import}: {len} bytes at offset {offset} reach past the {size} bytes of the local buffer; use a smaller range"
    )]
    BufferOutOfBounds {
        /// The import.
        import: String,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the buffer.
        size: u64,
    },
    /// The local buffer is registered with another node.
    #[error("import {import}: the local buffer belongs to another session; make it with the session of the import")]
    ForeignBuffer {
        /// The import.
        import: String,
    },
    /// The import does not carry the right.
    #[error(
        "import {import} has the rights {granted}, and this needs {needed}; import it with the rights {all}",
        granted = granted.words(), needed = needed.words(), all = granted.union(*needed).words()
    )]
    NoRight {
        /// The import.
        import: String,
        /// What it takes.
        needed: Rights,
        /// What it has.
        granted: Rights,
    },
    /// A word that must be aligned is not.
    #[error(
        "import {import}: offset {offset} is not a multiple of 8, as words for atomics and counters must be; align it"
    )]
    Misaligned {
        /// The import.
        import: String,
        /// The offset.
        offset: u64,
    },
    /// The receiver of a redirectable export has let too many separate ranges pile up.
    #[error("import {import}: the receive buffer already holds {max} separate ranges; the receiver must consume some")]
    TooFragmented {
        /// The import.
        import: String,
        /// The bound.
        max: u64,
    },
    /// The ring has no room for a record, or not for one of this process.
    #[error(
        "import {import}: the ring has no room for {needed} bytes more: {free} of {size} are free, and a process has no more in it unread than are free; append again when its owner has taken some"
    )]
    Full {
        /// The import.
        import: String,
        /// Bytes that the record takes.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// Bytes of the ring.
        size: u64,
    },
    /// The deadline passed. The transfer may still happen.
    #[error(
        "import {import}: not complete after {after_ms} ms, and may still happen; give it more time or check the other side with `vmmc ping`"
    )]
    TimedOut {
        /// The import.
        import: String,
        /// How long we waited, milliseconds.
        after_ms: u64,
    },
    /// No memory for staging could be had from system or node.
    #[error("import {import}: no staging memory ({error}); free memory, or send from a registered buffer")]
    Staging {
        /// The import.
        import: String,
        /// Why.
        error: Box<BufferError>,
    },
    /// The session belongs to the parent process.
    #[error(
        "import {import}: this session was attached by process {parent} before a fork; attach in the child to get one of its own"
    )]
    Forked {
        /// The import.
        import: String,
        /// The process that attached.
        parent: u32,
    },
    /// Anything else that the engines report.
    #[error("import {import}: {error}")]
    Engine {
        /// The import.
        import: String,
        /// As reported.
        error: vmmc_nic::OpError,
    },
}

/// Why a range of the process's own export or buffer cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// Outside.
    #[error("{len} bytes at offset {offset} reach past the end of {size} bytes; use a smaller range")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// Not a multiple of 8.
    #[error("offset {offset} does not give an 8-byte aligned word; align it")]
    Misaligned {
        /// The offset.
        offset: u64,
    },
    /// A ring does not hold a record where one must be.
    #[error("there is no record at byte {at} of the ring: this process has written into it; make the ring anew")]
    NoRecord {
        /// Bytes of records before it.
        at: u64,
    },
    /// The memory belongs to the session of the parent process.
    #[error(
        "this memory is shared by the session that process {parent} attached before a fork; attach in the child to get one of its own"
    )]
    Forked {
        /// The process that attached.
        parent: u32,
    },
}
