//! What a process asks of the interface, and how the interface asks for memory copies.
//!
//! Invariant: the engine never sees user memory; it names regions and offsets it has checked
//! against its own tables, and the driver moves the bytes, as the papers' firmware programs DMA [NT
//! §3.1].

use crate::event::ByteRange;
use crate::ids::{Cookie, ImportId, RegionId, RegionRef};
use crate::tokens::TokenPart;

/// The copy engine of a node. Offsets and lengths are in bytes.
///
/// A region that no longer exists is the garbage page: deposits vanish, gathers give zeros.
pub trait Dma {
    /// Copies `data` into memory; the last byte becomes visible last.
    fn deposit(&mut self, to: RegionRef, offset: u64, data: &[u8]);
    /// Copies memory to `out`.
    fn gather(&mut self, from: RegionRef, offset: u64, out: &mut [u8]);
    /// Copies memory to memory of the same node; the last byte becomes visible last.
    fn copy(&mut self, from: RegionRef, from_offset: u64, to: RegionRef, to_offset: u64, len: u64);
    /// Changes the 8-byte aligned word at `offset` and returns its old value.
    fn atomic(&mut self, at: RegionRef, offset: u64, op: AtomicOp) -> u64;
}

/// A read-modify-write on a 64-bit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Adds, wrapping.
    FetchAdd(u64),
    /// Stores `desired` when the word equals `expected`.
    CompareSwap {
        /// The value that must be there.
        expected: u64,
        /// The value to store.
        desired: u64,
    },
    /// Stores.
    Swap(u64),
}

impl AtomicOp {
    /// The value to store over `old`.
    pub fn apply(self, old: u64) -> u64 {
        match self {
            AtomicOp::FetchAdd(n) => old.wrapping_add(n),
            AtomicOp::CompareSwap { expected, desired } if old == expected => desired,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::Swap(new) => new,
        }
    }
}

/// Where the data of a send is.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// In the descriptor, at most [`INLINE_BYTES_MAX`](crate::limits::INLINE_BYTES_MAX) bytes; the
    /// engine copies it.
    Inline(&'a [u8]),
    /// In memory of the sender, which must stay unchanged until the completion.
    Region {
        /// Region of the sending process.
        region: RegionId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

impl Source<'_> {
    /// Number of bytes to send.
    #[allow(clippy::len_without_is_empty)] // an empty send is legal and means "only notify"
    pub fn len(&self) -> u64 {
        match self {
            Source::Inline(data) => data.len() as u64,
            Source::Region { len, .. } => *len,
        }
    }
}

/// One descriptor of the command ring. Offsets are bytes from the start of the export.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// Deliberate update: copy to the imported buffer.
    Send {
        /// Through this import.
        import: ImportId,
        /// Where in the export.
        offset: u64,
        /// The data.
        source: Source<'a>,
        /// Ask for a notification at the receiver, which carries this word; it comes if the export
        /// allows it.
        notify: Option<u64>,
        /// Offset of a 64-bit word in the same export that grows by one after the data is there.
        counter: Option<u64>,
        /// `None`: posted; only errors are reported, as `SendFailed` or `ImportBroken`.
        completion: Option<Cookie>,
    },
    /// Deliberate update of many ranges of the export, in turn, from one piece of data. The
    /// notification and the counter follow the last of them, and come only if all have come.
    GatherSend {
        /// Through this import.
        import: ImportId,
        /// Where in the export: 1 to [`GATHER_RANGES_MAX`](crate::limits::GATHER_RANGES_MAX)
        /// ranges, none empty, together as long as the data. Where two overlap, the later one wins.
        ranges: &'a [ByteRange],
        /// The data.
        source: Source<'a>,
        /// As of a send; the offset and length that are reported span all ranges.
        notify: Option<u64>,
        /// As of a send.
        counter: Option<u64>,
        /// As of a send.
        completion: Option<Cookie>,
    },
    /// Puts a record behind the others in the export, which is an append ring: its node finds the
    /// place.
    Append {
        /// Through this import.
        import: ImportId,
        /// The data, at most [`APPEND_BYTES_MAX`](crate::limits::APPEND_BYTES_MAX) bytes.
        source: Source<'a>,
        /// A word that stands in the record.
        word: u64,
        /// Ask for a notification at the receiver, which carries the word too.
        notify: bool,
        /// How many refusals for want of room the process has seen on this import. Appends are
        /// refused until that is as many as there were, so none overtakes one that was refused.
        refusals: u32,
        /// As of a send.
        completion: Option<Cookie>,
    },
    /// Copies a payload, or a part of one, to the buffer of a token of the export, which is a token
    /// table. If the token lets nothing in, the data is dropped: a posted send does not learn of
    /// it.
    TokenSend {
        /// Through this import.
        import: ImportId,
        /// Which token, and what is said of the payload.
        token: TokenPart,
        /// Where in the payload. The part at 0 comes first, the one that ends it last.
        offset: u64,
        /// The data.
        source: Source<'a>,
        /// As of a send.
        completion: Option<Cookie>,
    },
    /// Remote fetch: copy from the imported buffer.
    Fetch {
        /// Through this import.
        import: ImportId,
        /// Where in the export.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Region of the fetching process that gets the data.
        region: RegionId,
        /// Where in that region.
        region_offset: u64,
        /// Comes back with the completion.
        cookie: Cookie,
    },
    /// Read-modify-write of a word of the imported buffer.
    Atomic {
        /// Through this import.
        import: ImportId,
        /// Offset of the word, a multiple of 8.
        offset: u64,
        /// What to do.
        op: AtomicOp,
        /// Comes back with the completion, which carries the old value.
        cookie: Cookie,
    },
    /// Completes when all this process sent before to that import's node is in memory there.
    Flush {
        /// Any import of that node.
        import: ImportId,
        /// Comes back with the completion.
        cookie: Cookie,
    },
}

impl Command<'_> {
    /// The import the command goes through.
    pub fn import(&self) -> ImportId {
        match *self {
            Command::Send { import, .. }
            | Command::GatherSend { import, .. }
            | Command::Append { import, .. }
            | Command::TokenSend { import, .. }
            | Command::Fetch { import, .. }
            | Command::Atomic { import, .. }
            | Command::Flush { import, .. } => import,
        }
    }

    /// The cookie a completion will carry; `None` for a posted send.
    pub fn cookie(&self) -> Option<Cookie> {
        match *self {
            Command::Send { completion, .. }
            | Command::GatherSend { completion, .. }
            | Command::Append { completion, .. }
            | Command::TokenSend { completion, .. } => completion,
            Command::Fetch { cookie, .. } | Command::Atomic { cookie, .. } | Command::Flush { cookie, .. } => {
                Some(cookie)
            }
        }
    }
}
