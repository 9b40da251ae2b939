//! What the engine reports to its driver.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::{ImportError, OpError, PeerDownReason};
use crate::ids::{Cookie, ExportId, ImportId, NodeName, ProcessId};
use crate::rights::ImportGrant;

/// Who sent: a process of this node or of another one, through one of its imports. No two processes
/// have the same numbers in one life of this node, and neither have two imports.
///
/// This node vouches for the session; the process and the import are the word of the node at its
/// other end, which vouches for its processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sender {
    /// The session with the sender's node, in this node's count; 0: this node.
    pub session: u32,
    /// The process, in the numbers of its node.
    pub process: ProcessId,
    /// The import, in the numbers of the process.
    pub import: ImportId,
}

impl Sender {
    /// Whether it is a process of this node.
    pub fn is_local(&self) -> bool {
        self.session == 0
    }
}

/// Something a process or the driver must learn of. Take all of them after every call into the
/// engine.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// An operation with a cookie ended.
    Completion {
        /// Who asked.
        process: ProcessId,
        /// Its cookie.
        cookie: Cookie,
        /// Old value of an atomic, bytes of a send or fetch, 0 of a flush.
        result: Result<u64, OpError>,
    },
    /// A posted send failed on an import that lives on.
    SendFailed {
        /// Who sent.
        process: ProcessId,
        /// Through which import.
        import: ImportId,
        /// Why.
        why: OpError,
    },
    /// Data arrived, its sender asked for a notification, and the export allows it.
    Notification {
        /// Owner of the export.
        process: ProcessId,
        /// Where.
        export: ExportId,
        /// First byte of the send, in the export.
        offset: u64,
        /// Bytes of the send.
        len: u64,
        /// Its last 8 bytes, little endian; fewer are zero-extended. Of a gather-send, those of its
        /// last range.
        last_word: u64,
        /// The word that its sender asked to have reported.
        word: u64,
        /// Who sent it.
        from: Sender,
    },
    /// Answer to an import.
    ImportDone {
        /// Who asked.
        process: ProcessId,
        /// Its cookie.
        cookie: Cookie,
        /// The import, or why not.
        result: Result<ImportGrant, ImportError>,
    },
    /// An import ended; reported once. Operations on it fail from now on.
    ImportBroken {
        /// Who holds it.
        process: ProcessId,
        /// Which.
        import: ImportId,
        /// Why.
        why: OpError,
    },
    /// All bytes of a redirection have arrived.
    RedirectDone {
        /// Owner.
        process: ProcessId,
        /// Whose bytes.
        export: ExportId,
        /// Its cookie.
        cookie: Cookie,
        /// Which part went how.
        report: RedirectReport,
    },
    /// Answer to a ping.
    Pong {
        /// As given.
        by: PingBy,
        /// As given.
        cookie: Cookie,
        /// Round trip time, or why there is none.
        result: Result<Duration, ImportError>,
    },
    /// A session with a node began.
    PeerUp {
        /// Which.
        name: NodeName,
        /// Where it answers.
        addr: SocketAddr,
    },
    /// A session ended.
    PeerDown {
        /// With whom.
        name: NodeName,
        /// Why.
        why: PeerDownReason,
    },
}

/// Who pings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PingBy {
    /// A process.
    Process(ProcessId),
    /// The driver itself, for this user.
    Driver(u32),
}

/// Bytes from `start` up to, not including, `end`, in offsets of the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// First byte after.
    pub end: u64,
}

impl ByteRange {
    /// Bytes in it.
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// Which part of a redirected range went how. Ranges are sorted and disjoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RedirectReport {
    /// The range posted.
    pub range: Option<ByteRange>,
    /// Had arrived in the default buffer before and was copied.
    pub copied: Vec<ByteRange>,
    /// Came after and went to the new place at once.
    pub redirected: Vec<ByteRange>,
    /// Whether that is all of the range.
    pub complete: bool,
}
