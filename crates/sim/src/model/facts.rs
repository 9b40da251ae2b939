//! The things the model keeps account of.

use std::collections::{BTreeMap, VecDeque};

use vmmc_nic::{
    AtomicOp, ByteRange, ExportId, ImportError, ImportId, OpError, ProcessId, RedirectAt, RegionRef, Rights,
};

use super::table::{ExportKey, ImportKey, OpKey, ProcKey, RedirectKey, RegionKey};
use crate::spans::Spans;

/// A node over all its lives.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) up: bool,
    /// Processes of the present life.
    pub(crate) procs: Vec<ProcKey>,
    /// Incarnation numbers of its lives; the last is the present one.
    pub(crate) incarnations: Vec<u64>,
    /// Partitions, dead interfaces and crashes that touch it now.
    pub(crate) disturbed: u32,
    /// When the last such fault ended; 0 when there was none.
    pub(crate) disturbed_until_ns: u64,
}

/// A process.
#[derive(Debug)]
pub(crate) struct Proc {
    pub(crate) node: usize,
    pub(crate) pid: ProcessId,
    pub(crate) uid: u32,
    pub(crate) alive: bool,
    pub(crate) regions: Vec<RegionKey>,
    pub(crate) exports: Vec<ExportKey>,
    pub(crate) imports: Vec<ImportKey>,
    /// Operations that have not ended.
    pub(crate) outstanding: usize,
}

/// What a memory region is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RegionUse {
    /// Exports may lie here.
    Shared,
    /// One append ring.
    Ring,
    /// One token table.
    Tokens,
    /// The bytes of one send.
    Source(OpKey),
    /// Where a fetch puts its bytes, from `offset` on; guard bytes around.
    Fetched { op: OpKey, offset: u64 },
    /// Where redirections put bytes.
    Target,
}

/// A memory region of a process.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) owner: ProcKey,
    pub(crate) at: RegionRef,
    pub(crate) len: u64,
    pub(crate) usage: RegionUse,
    /// Pieces of sends that land or landed here, by their first byte. Disjoint.
    pub(crate) landing: BTreeMap<u64, Landing>,
    /// Fetches that read or have read here: (start, end, fetch). An answer may be read again after
    /// the fetch has ended, when its acknowledgement was lost.
    pub(crate) readers: Vec<(u64, u64, OpKey)>,
    /// Redirections into this region, for [`RegionUse::Target`].
    pub(crate) redirects: Vec<RedirectKey>,
    /// Exports on this region, dead ones too.
    pub(crate) exports: Vec<ExportKey>,
    pub(crate) alive: bool,
}

impl Region {
    pub(crate) fn new(owner: ProcKey, at: RegionRef, len: u64, usage: RegionUse) -> Region {
        let (landing, readers, redirects, exports) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        Region { owner, at, len, usage, landing, readers, redirects, exports, alive: true }
    }

    /// Pieces of sends that land or landed on any byte of `start..end`.
    pub(crate) fn landing_on(&self, start: u64, end: u64) -> impl Iterator<Item = Landing> + '_ {
        self.landing.range(..end).rev().map(|(_, piece)| *piece).take_while(move |piece| piece.end > start)
    }
}

/// A piece of a send in the memory where it lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    /// First byte, in the region.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) op: OpKey,
    /// Which byte of the send is the first.
    pub(crate) at: u64,
}

/// What an append ring holds. Counts are of bytes, since it was exported.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    pub(crate) written: u64,
    /// As its owner says.
    pub(crate) read: u64,
    /// `written` when the owner had last read everything: what the node holds unread lies behind.
    pub(crate) drained: u64,
    /// Records that are not read, with their bytes in the ring.
    pub(crate) unread: VecDeque<(OpKey, u64)>,
}

/// An entry of a token table.
#[derive(Debug, Default)]
pub(crate) struct Token {
    /// That it was armed with last.
    pub(crate) key: u64,
    /// Its owner has armed it, and neither cancelled it nor has a payload taken it.
    pub(crate) armed: bool,
    /// Its owner has cancelled it.
    pub(crate) cancelled: bool,
    /// A payload has taken it.
    pub(crate) taken: bool,
    /// Which one.
    pub(crate) filler: Option<OpKey>,
    /// Bytes of that in the buffer.
    pub(crate) landed: u64,
}

/// How an export ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportEnd {
    /// `unexport` returned.
    Withdrawn,
    /// Its process left or died.
    OwnerDied,
    /// Its node crashed.
    NodeCrashed,
}

/// An export during its whole life.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) owner: ProcKey,
    /// Which life of its node.
    pub(crate) life: usize,
    pub(crate) id: ExportId,
    pub(crate) name: Option<String>,
    pub(crate) region: RegionKey,
    /// First byte, in the region.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) rights: Rights,
    /// Users that may import; `None` for anyone.
    pub(crate) users: Option<Vec<u32>>,
    pub(crate) notify: bool,
    pub(crate) redirectable: bool,
    /// Of an append ring.
    pub(crate) ring: Option<Ring>,
    /// Of a token table; else none.
    pub(crate) tokens: Vec<Token>,
    pub(crate) born_ns: u64,
    pub(crate) ended: Option<(u64, ExportEnd)>,
    pub(crate) redirects: Vec<RedirectKey>,
    /// Sends of no bytes, which only notify or count.
    pub(crate) empty_sends: Vec<OpKey>,
    /// Bytes (from the export's start) that arrived and were not consumed; kept for redirectable
    /// exports.
    pub(crate) arrived: Spans,
    /// These were once as many as a node keeps, so that it may have refused a send.
    pub(crate) fragmented: bool,
}

impl Export {
    pub(crate) fn is_live(&self) -> bool {
        self.ended.is_none()
    }

    /// Whether it lived at some moment of `from_ns..=to_ns`.
    pub(crate) fn lived_within(&self, from_ns: u64, to_ns: u64) -> bool {
        self.born_ns <= to_ns && self.ended.is_none_or(|(at, _)| at >= from_ns)
    }

    /// Whether it lived at every moment of `from_ns..=to_ns`.
    pub(crate) fn lived_through(&self, from_ns: u64, to_ns: u64) -> bool {
        self.born_ns < from_ns && self.ended.is_none_or(|(at, _)| at > to_ns)
    }
}

/// Where an import is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImportState {
    /// Not answered yet.
    Asked,
    /// In use.
    Granted,
    /// Refused.
    Refused(ImportError),
    /// Told to be broken.
    Broken(OpError),
    /// Given up by its process, or its process is gone.
    Dropped,
}

/// An import, from the request on.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) importer: ProcKey,
    /// The node asked.
    pub(crate) node: usize,
    /// The export asked for.
    pub(crate) wanted: Wanted,
    pub(crate) rights: Rights,
    pub(crate) wait: bool,
    /// What goes through it follows only what went through it before.
    pub(crate) own_order: bool,
    pub(crate) asked_at_ns: u64,
    pub(crate) deadline_ns: u64,
    pub(crate) state: ImportState,
    /// The engine has answered, even if nobody waits any more.
    pub(crate) answered: bool,
    /// By which it can be withdrawn while it has no answer.
    pub(crate) asked: Option<ImportId>,
    pub(crate) id: Option<ImportId>,
    pub(crate) export: Option<ExportKey>,
    pub(crate) granted: Rights,
    /// Refusals for want of room that its process knows of.
    pub(crate) refusals: u32,
    /// Appends through it, oldest first.
    pub(crate) appends: Vec<OpKey>,
}

/// What an import asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Whatever has this name.
    Name(String),
    /// One export; its id may be stale.
    Id(ExportId),
}

/// Bytes a fetch must bring.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Expected(pub(crate) Vec<u8>);

impl std::fmt::Debug for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// A deliberate update.
    Send {
        notify: bool,
        counter: Option<u64>,
    },
    /// A record for a ring, posted when its process knew of so many refusals.
    Append {
        notify: bool,
        refusals: u32,
    },
    /// A payload for the buffer of a token.
    Payload {
        index: u32,
        key: u64,
    },
    /// A remote fetch; the bytes it must bring, when they are certain.
    Fetch {
        expected: Option<Expected>,
    },
    Atomic(AtomicOp),
    Flush,
}

impl OpKind {
    /// How many refusals its sender knew of, of an append.
    pub(crate) fn refusals(&self) -> Option<u32> {
        match self {
            OpKind::Append { refusals, .. } => Some(*refusals),
            _ => None,
        }
    }
}

/// The mistake in an operation that is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    OutOfBounds,
    NoRight,
    Misaligned,
    StaleImport,
    /// A send to a ring.
    AppendOnly,
    /// An append to what is no ring.
    NotAppendable,
    /// A send to a token table.
    TokenOnly,
    /// A payload by token to what is no table.
    NotByToken,
    RecordTooLong,
}

impl Mistake {
    /// Whether an error reports this mistake.
    pub(crate) fn explains(self, why: &OpError) -> bool {
        match self {
            Mistake::OutOfBounds => matches!(why, OpError::OutOfBounds { .. }),
            Mistake::NoRight => matches!(why, OpError::NoRight { .. }),
            Mistake::Misaligned => matches!(why, OpError::Misaligned { .. }),
            Mistake::StaleImport => matches!(why, OpError::StaleImport),
            Mistake::AppendOnly => matches!(why, OpError::AppendOnly),
            Mistake::NotAppendable => matches!(why, OpError::NotAppendable),
            Mistake::TokenOnly => matches!(why, OpError::TokenOnly),
            Mistake::NotByToken => matches!(why, OpError::NotByToken),
            Mistake::RecordTooLong => matches!(why, OpError::RecordTooLong { .. }),
        }
    }
}

/// Where an operation is, as its process was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Outstanding.
    Open,
    /// Completed; a posted send is done when it is in memory.
    Done(u64),
    /// Ended by an error.
    Failed(OpError),
    /// Its process is gone, or it was never posted: nobody is told.
    Gone,
}

/// An operation.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    pub(crate) sender: ProcKey,
    /// The id it was posted with, and the import if there is such a one.
    pub(crate) import_id: ImportId,
    pub(crate) import: Option<ImportKey>,
    pub(crate) export: Option<ExportKey>,
    /// In the export; of a gather-send, of the range that comes first there.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The ranges of a gather-send, in the export.
    pub(crate) ranges: Vec<ByteRange>,
    /// Whether a completion was asked for.
    pub(crate) completion: bool,
    pub(crate) memory: Option<RegionKey>,
    pub(crate) mistake: Option<Mistake>,
    pub(crate) outcome: Outcome,
    pub(crate) posted_at_ns: u64,
    pub(crate) ended_at_ns: u64,
    /// Bytes in memory, from the operation's first.
    pub(crate) landed: Spans,
    /// The record is in its ring; the payload is whole in its buffer, and its token says so.
    pub(crate) appended: bool,
    /// The most bytes that its ring can have held unread since the append was posted.
    pub(crate) crowd: u64,
    /// How far a fetch has been read at the exporter, from its first byte.
    pub(crate) served: u64,
    /// The counter was raised.
    pub(crate) counted: bool,
    /// The old value an atomic found.
    pub(crate) found: Option<u64>,
    /// Notifications taken.
    pub(crate) notified: u32,
}

impl Op {
    pub(crate) fn is_send(&self) -> bool {
        matches!(self.kind, OpKind::Send { .. })
    }

    /// Whether the sender asked for a notification.
    pub(crate) fn asks_notification(&self) -> bool {
        matches!(self.kind, OpKind::Send { notify: true, .. } | OpKind::Append { notify: true, .. })
    }

    pub(crate) fn is_append(&self) -> bool {
        matches!(self.kind, OpKind::Append { .. })
    }

    pub(crate) fn is_payload(&self) -> bool {
        matches!(self.kind, OpKind::Payload { .. })
    }

    /// Where its data goes in the export: pieces, each with the byte of the data that is its first.
    pub(crate) fn pieces(&self) -> Vec<(u64, ByteRange)> {
        if self.ranges.is_empty() {
            return vec![(0, ByteRange { start: self.offset, end: self.offset.saturating_add(self.len) })];
        }
        let mut at = 0;
        let piece = |range: &ByteRange| {
            at += range.len();
            (at - range.len(), *range)
        };
        self.ranges.iter().map(piece).collect()
    }

    /// Where byte `at` of its data goes in the export.
    pub(crate) fn place(&self, at: u64) -> u64 {
        let pieces = self.pieces();
        let (first, range) = pieces.iter().rev().find(|(first, _)| *first <= at).expect("the first piece begins at 0");
        range.start + (at - first)
    }

    /// From the first byte of any range to the end of the last, as notifications report it.
    pub(crate) fn span(&self) -> (u64, u64) {
        let end = self.pieces().iter().map(|(_, range)| range.end).max().expect("there is a piece");
        (self.offset, end - self.offset)
    }

    /// The counter a send raises.
    pub(crate) fn counter(&self) -> Option<u64> {
        match self.kind {
            OpKind::Send { counter, .. } => counter,
            _ => None,
        }
    }

    /// Whether every byte is in memory.
    pub(crate) fn is_landed(&self) -> bool {
        if self.is_append() || self.is_payload() { self.appended } else { self.landed.covers(0, self.len) }
    }

    /// Whether a send has had its whole effect on memory.
    pub(crate) fn is_applied(&self) -> bool {
        self.is_landed() && (self.counted || self.counter().is_none())
    }
}

/// A redirection of part of an export.
#[derive(Debug)]
pub(crate) struct Redirect {
    pub(crate) export: ExportKey,
    /// What the engine calls it, once it has taken it on.
    pub(crate) at: Option<RedirectAt>,
    /// In the export.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) target: RegionKey,
    pub(crate) target_offset: u64,
    /// Nothing may go through it any more.
    pub(crate) ended: bool,
    /// Cancelled, or its export is gone: nobody is told any more.
    pub(crate) orphaned: bool,
    /// Told to be complete.
    pub(crate) done: bool,
    /// Bytes (from the redirected range's first) copied from the default buffer, and put straight
    /// in place.
    pub(crate) copied: Spans,
    pub(crate) direct: Spans,
}

impl Redirect {
    /// Whether every byte of the range is in the new place.
    pub(crate) fn is_whole(&self) -> bool {
        self.copied.len_bytes() + self.direct.len_bytes() == self.len
    }
}

/// A ping.
#[derive(Debug)]
pub(crate) struct Ping {
    pub(crate) asker: ProcKey,
    pub(crate) asker_node: usize,
    pub(crate) node: usize,
    pub(crate) asked_at_ns: u64,
    pub(crate) deadline_ns: u64,
    pub(crate) answered: bool,
}
