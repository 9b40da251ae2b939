//! What can go wrong, one enum per call.
//!
//! Those that cross the wire or a ring carry numbers only and have a stable code with three
//! arguments; the caller that shows one to a user adds the name of the thing it tried, and where
//! the remedy is an option of the driver, says that too.
//! Invariant: `from_code(e.code(), e.args()) == Some(e)`, and no input makes `from_code` panic.

use thiserror::Error;

use crate::activation::ActivationRefusal;
use crate::rights::Rights;

/// Code and arguments of an error, as they travel.
pub type ErrorArgs = [u64; 3];

/// Why an operation on an import did not happen, or the import itself ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum OpError {
    /// The exporter took the export back.
    #[error("the exporter revoked this export; import it again if it was exported anew")]
    Revoked,
    /// The exporting process left or died.
    #[error("the exporting process is gone; import again once it has restarted")]
    OwnerDied,
    /// The node does not answer.
    #[error("the node has not answered for {after_ms} ms; check that it runs and can be reached")]
    NodeUnreachable {
        /// How long nothing came.
        after_ms: u64,
    },
    /// The node runs again, without the exports of its former life.
    #[error("the node restarted and its former exports are gone; import again")]
    NodeRestarted,
    /// Outside the export.
    #[error("{len} bytes at offset {offset} reach past the end of the {size}-byte export; use a smaller range")]
    OutOfBounds {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// The import does not carry that right.
    #[error("this import lacks the right {needed}; import it with the rights that it has and this one")]
    NoRight {
        /// What it takes.
        needed: Rights,
    },
    /// A word that must be aligned is not.
    #[error("offset {offset} in the exported memory is not a multiple of {align}; align it")]
    Misaligned {
        /// Offset in the region.
        offset: u64,
        /// What it must be a multiple of.
        align: u64,
    },
    /// No such import (any more).
    #[error("this import does not exist any more; import again")]
    StaleImport,
    /// Withdrawn before it happened.
    #[error("the operation was withdrawn")]
    Cancelled,
    /// More inline data than a descriptor holds.
    #[error("{len} bytes of inline data exceed the {max} a descriptor holds; send from a region")]
    InlineTooLong {
        /// Bytes offered.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// A redirectable export would have to remember too many separate ranges.
    #[error("the receive buffer already holds {max} separate ranges; the receiver must consume some")]
    TooFragmented {
        /// The bound.
        max: u64,
    },
    /// The peer broke the protocol.
    #[error("the node broke the protocol; check that both run the same version")]
    Protocol,
    /// The node said goodbye.
    #[error("the node shut down; import again once it is back")]
    NodeClosed,
    /// A bound of this or the other node was met.
    #[error("a table of {max} entries is full; release some and try again")]
    TableFull {
        /// The bound.
        max: u64,
    },
    /// A gather-send has no range, or too many.
    #[error("a gather-send has 1 to {max} ranges and not {ranges}; send the others by another one")]
    BadRanges {
        /// Ranges offered.
        ranges: u64,
        /// Ranges allowed.
        max: u64,
    },
    /// The ring has no room for a record, or not for one of this sender.
    #[error(
        "the ring has no room for {needed} bytes more: {free} of {size} are free, and a sender has no more in it unread than are free; append again when the receiver has taken some"
    )]
    RingFull {
        /// Bytes that the record takes.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// Bytes of the ring.
        size: u64,
    },
    /// A record that no ring takes.
    #[error("a record has at most {max} bytes and not {len}; send the data, and append where it is")]
    RecordTooLong {
        /// Bytes offered.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// The export is a ring, to which records are appended and nothing else.
    #[error("the export is an append ring; append to it")]
    AppendOnly,
    /// The export is no ring.
    #[error("the export is no append ring; send to it")]
    NotAppendable,
    /// The token does not let it in: it was never there, was used, or was cancelled, or its buffer
    /// is too short.
    #[error(
        "token {index} of the table does not let it in: it is used, cancelled or not known there, or its buffer is shorter; ask its owner for another"
    )]
    TokenRefused {
        /// Its entry.
        index: u64,
    },
    /// The export is a token table, which takes payloads by token and nothing else.
    #[error("the export is a token table; send by a token of it")]
    TokenOnly,
    /// The export is no token table.
    #[error("the export is no token table; send to it without a token")]
    NotByToken,
    /// A command named an address of its process that has no translation.
    #[error("page {page:#x} of this process is not pinned at its node; pin it again")]
    NotPinned {
        /// Number of the page.
        page: u64,
    },
}

impl OpError {
    /// Stable number of the kind.
    pub fn code(&self) -> u16 {
        match self {
            OpError::Revoked => 1,
            OpError::OwnerDied => 2,
            OpError::NodeUnreachable { .. } => 3,
            OpError::NodeRestarted => 4,
            OpError::OutOfBounds { .. } => 5,
            OpError::NoRight { .. } => 6,
            OpError::Misaligned { .. } => 7,
            OpError::StaleImport => 8,
            OpError::Cancelled => 9,
            OpError::InlineTooLong { .. } => 10,
            OpError::TooFragmented { .. } => 11,
            OpError::Protocol => 12,
            OpError::NodeClosed => 13,
            OpError::TableFull { .. } => 14,
            OpError::NotPinned { .. } => 15,
            OpError::BadRanges { .. } => 16,
            OpError::RingFull { .. } => 17,
            OpError::RecordTooLong { .. } => 18,
            OpError::AppendOnly => 19,
            OpError::NotAppendable => 20,
            OpError::TokenRefused { .. } => 21,
            OpError::TokenOnly => 22,
            OpError::NotByToken => 23,
        }
    }

    /// Numbers that go with the code.
    pub fn args(&self) -> ErrorArgs {
        match *self {
            OpError::NodeUnreachable { after_ms } => [after_ms, 0, 0],
            OpError::OutOfBounds { offset, len, size } => [offset, len, size],
            OpError::NoRight { needed } => [needed.bits().into(), 0, 0],
            OpError::Misaligned { offset, align } => [offset, align, 0],
            OpError::InlineTooLong { len, max } => [len, max, 0],
            OpError::TooFragmented { max } | OpError::TableFull { max } => [max, 0, 0],
            OpError::NotPinned { page } => [page, 0, 0],
            OpError::BadRanges { ranges, max } => [ranges, max, 0],
            OpError::RingFull { needed, free, size } => [needed, free, size],
            OpError::RecordTooLong { len, max } => [len, max, 0],
            OpError::TokenRefused { index } => [index, 0, 0],
            _ => [0; 3],
        }
    }

    /// The inverse; `None` for a code of a later version.
    pub fn from_code(code: u16, args: ErrorArgs) -> Option<OpError> {
        let [a, b, c] = args;
        Some(match code {
            1 => OpError::Revoked,
            2 => OpError::OwnerDied,
            3 => OpError::NodeUnreachable { after_ms: a },
            4 => OpError::NodeRestarted,
            5 => OpError::OutOfBounds { offset: a, len: b, size: c },
            6 => OpError::NoRight { needed: rights_from(a)? },
            7 => OpError::Misaligned { offset: a, align: b },
            8 => OpError::StaleImport,
            9 => OpError::Cancelled,
            10 => OpError::InlineTooLong { len: a, max: b },
            11 => OpError::TooFragmented { max: a },
            12 => OpError::Protocol,
            13 => OpError::NodeClosed,
            14 => OpError::TableFull { max: a },
            15 => OpError::NotPinned { page: a },
            16 => OpError::BadRanges { ranges: a, max: b },
            17 => OpError::RingFull { needed: a, free: b, size: c },
            18 => OpError::RecordTooLong { len: a, max: b },
            19 => OpError::AppendOnly,
            20 => OpError::NotAppendable,
            21 => OpError::TokenRefused { index: a },
            22 => OpError::TokenOnly,
            23 => OpError::NotByToken,
            _ => return None,
        })
    }
}

/// Why an import was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ImportError {
    /// Nothing of that name is exported there.
    #[error("no such export on that node; check the name, or import with wait")]
    NoSuchExport,
    /// Another user exports that, and the importer did not say that it wants that user's.
    #[error(
        "user {owner} exports it, and neither your user nor root does; if that user's is meant, import it with owner {owner}"
    )]
    OtherOwner {
        /// Who exports it.
        owner: u32,
    },
    /// The id names an export that is gone.
    #[error("export {slot}.{generation} no longer exists; import it by name")]
    StaleExport {
        /// Slot of the id.
        slot: u32,
        /// Generation of the id.
        generation: u32,
    },
    /// The access list does not admit this user.
    #[error("user {uid} is not on the export's access list; ask its owner")]
    NotPermitted {
        /// Who asked.
        uid: u32,
    },
    /// The exporter's node does not know who asks: it is in plain mode.
    #[error("its node is in plain mode, where nobody vouches for who asks")]
    NobodyVouches,
    /// The export does not offer those rights.
    #[error("the rights {} were asked for, and the export offers {}; import it with the latter, or export it with more", wanted.words(), allowed.words())]
    NoRight {
        /// Asked for.
        wanted: Rights,
        /// Offered.
        allowed: Rights,
    },
    /// The deadline passed.
    #[error(
        "waited {waited_ms} ms and the export did not appear; check that the exporter runs, as your user or root if no other owner was named"
    )]
    TimedOut {
        /// How long.
        waited_ms: u64,
    },
    /// No such node is known.
    #[error("no known node has that name; add its address as a peer")]
    UnknownNode,
    /// The node does not answer.
    #[error("the node has not answered for {after_ms} ms; check that it runs and can be reached")]
    NodeUnreachable {
        /// How long.
        after_ms: u64,
    },
    /// No session came about, and somebody at the node's address has said why. Nobody vouches for
    /// that: it is the most likely reason, and no more.
    #[error("no session within {after_ms} ms")]
    NoSession {
        /// How long this node tried.
        after_ms: u64,
        /// The most likely reason.
        hint: RejectReason,
    },
    /// The node refused to talk to this one.
    #[error("the node refused the connection")]
    Rejected(RejectReason),
    /// A table here or there is full.
    #[error("a table of {max} entries is full; release some imports and try again")]
    TableFull {
        /// The bound.
        max: u64,
    },
    /// The importing process is not attached.
    #[error("the process is not attached to this node; attach first")]
    NotAttached,
    /// Withdrawn.
    #[error("the import was withdrawn")]
    Cancelled,
    /// A malformed request: no rights wanted, or a bad name.
    #[error("the request makes no sense: ask for at least one right and a name of 1 to 255 bytes")]
    BadRequest,
    /// The name is that of an on-demand export, which the node does not bring up.
    #[error("the node started no process")]
    NotStarted(ActivationRefusal),
}

impl ImportError {
    /// Stable number of the kind.
    pub fn code(&self) -> u16 {
        match self {
            ImportError::NoSuchExport => 1,
            ImportError::StaleExport { .. } => 2,
            ImportError::NotPermitted { .. } => 3,
            ImportError::NoRight { .. } => 4,
            ImportError::TimedOut { .. } => 5,
            ImportError::UnknownNode => 6,
            ImportError::NodeUnreachable { .. } => 7,
            ImportError::Rejected(_) => 8,
            ImportError::TableFull { .. } => 9,
            ImportError::NotAttached => 10,
            ImportError::Cancelled => 11,
            ImportError::BadRequest => 12,
            ImportError::NotStarted(_) => 13,
            ImportError::NoSession { .. } => 14,
            ImportError::OtherOwner { .. } => 15,
            ImportError::NobodyVouches => 16,
        }
    }

    /// Numbers that go with the code.
    pub fn args(&self) -> ErrorArgs {
        match *self {
            ImportError::StaleExport { slot, generation } => [slot.into(), generation.into(), 0],
            ImportError::NotPermitted { uid } => [uid.into(), 0, 0],
            ImportError::OtherOwner { owner } => [owner.into(), 0, 0],
            ImportError::NoRight { wanted, allowed } => [wanted.bits().into(), allowed.bits().into(), 0],
            ImportError::TimedOut { waited_ms } => [waited_ms, 0, 0],
            ImportError::NodeUnreachable { after_ms } => [after_ms, 0, 0],
            ImportError::Rejected(reason) => [reason.code().into(), 0, 0],
            ImportError::TableFull { max } => [max, 0, 0],
            ImportError::NoSession { after_ms, hint } => [after_ms, hint.code().into(), 0],
            ImportError::NotStarted(why) => [why.code().into(), 0, 0],
            _ => [0; 3],
        }
    }

    /// The inverse; `None` for a code of a later version.
    pub fn from_code(code: u16, args: ErrorArgs) -> Option<ImportError> {
        let [a, b, _] = args;
        Some(match code {
            1 => ImportError::NoSuchExport,
            2 => ImportError::StaleExport { slot: u32::try_from(a).ok()?, generation: u32::try_from(b).ok()? },
            3 => ImportError::NotPermitted { uid: u32::try_from(a).ok()? },
            4 => ImportError::NoRight { wanted: rights_from(a)?, allowed: rights_from(b)? },
            5 => ImportError::TimedOut { waited_ms: a },
            6 => ImportError::UnknownNode,
            7 => ImportError::NodeUnreachable { after_ms: a },
            8 => ImportError::Rejected(RejectReason::from_code(u16::try_from(a).ok()?)?),
            9 => ImportError::TableFull { max: a },
            10 => ImportError::NotAttached,
            11 => ImportError::Cancelled,
            12 => ImportError::BadRequest,
            13 => ImportError::NotStarted(ActivationRefusal::from_code(u16::try_from(a).ok()?)?),
            16 => ImportError::NobodyVouches,
            14 => ImportError::NoSession { after_ms: a, hint: RejectReason::from_code(u16::try_from(b).ok()?)? },
            15 => ImportError::OtherOwner { owner: u32::try_from(a).ok()? },
            _ => return None,
        })
    }
}

fn rights_from(arg: u64) -> Option<Rights> {
    Rights::from_bits(u8::try_from(arg).ok()?)
}

/// Why a node refused a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RejectReason {
    /// Another protocol version.
    Version,
    /// It insists on encryption.
    NeedsKey,
    /// It is in plain mode.
    PlainOnly,
    /// A live node has that name already, or both have the same.
    DuplicateName,
    /// It has no room for another peer.
    PeerTableFull,
    /// It has another cluster key.
    OtherKey,
    /// It takes no cipher that this node takes.
    NoCommonCipher,
}

impl RejectReason {
    /// Stable number.
    pub fn code(self) -> u16 {
        match self {
            RejectReason::Version => 1,
            RejectReason::NeedsKey => 2,
            RejectReason::PlainOnly => 3,
            RejectReason::DuplicateName => 4,
            RejectReason::PeerTableFull => 5,
            RejectReason::OtherKey => 6,
            RejectReason::NoCommonCipher => 7,
        }
    }

    /// The inverse.
    pub fn from_code(code: u16) -> Option<RejectReason> {
        Some(match code {
            1 => RejectReason::Version,
            2 => RejectReason::NeedsKey,
            3 => RejectReason::PlainOnly,
            4 => RejectReason::DuplicateName,
            5 => RejectReason::PeerTableFull,
            6 => RejectReason::OtherKey,
            7 => RejectReason::NoCommonCipher,
            _ => return None,
        })
    }
}

/// Why a process could not attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AttachError {
    /// The table is full.
    #[error("{max} processes are attached to this node already")]
    TableFull {
        /// The bound.
        max: u64,
    },
}

/// Why an export was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ExportError {
    /// The name is taken.
    #[error("{name:?} is exported already on this node by this user; choose another name or unexport it")]
    NameTaken {
        /// Which.
        name: String,
    },
    /// The name is none.
    #[error("an export name has 1 to {max} bytes, this one {len}")]
    BadName {
        /// Bytes offered.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// The name would move a terminal that shows it.
    #[error("the export name {name:?} has a control character; use letters, digits and signs")]
    ControlCharacter {
        /// Which.
        name: String,
    },
    /// Empty or larger than anything.
    #[error("an export has 1 to {max} bytes, this one {len} at offset {offset}")]
    BadLength {
        /// Where it would start.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// No append ring.
    #[error(
        "an append ring has {min} to {max} bytes, a multiple of 8 at a multiple of 8, only the right to write, and no redirections; this one has {len} bytes at offset {offset}"
    )]
    BadRing {
        /// Where it would start.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes of the smallest, with its head.
        min: u64,
        /// Bytes of the largest, with its head.
        max: u64,
    },
    /// No token table.
    #[error(
        "a token table has 1 to {max} entries of 64 bytes at its start, begins and ends at a multiple of 8, and has only the right to write, and neither redirections nor notifications; this one has {len} bytes at offset {offset} and {entries} entries"
    )]
    BadTokenTable {
        /// Where it would start.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Entries asked for.
        entries: u64,
        /// Entries allowed.
        max: u64,
    },
    /// Nobody could do anything with it.
    #[error("an export needs at least one right")]
    NoRights,
    /// The access list is too long.
    #[error("{len} users on the access list, {max} allowed; export to anyone or make several exports")]
    TooManyUsers {
        /// Users listed.
        len: u64,
        /// Users allowed.
        max: u64,
    },
    /// The table is full.
    #[error("{max} exports exist on this node already; unexport some")]
    TableFull {
        /// The bound.
        max: u64,
    },
    /// The process is not attached.
    #[error("{process} is not attached to this node; attach first")]
    NotAttached {
        /// Who asked.
        process: crate::ids::ProcessId,
    },
}

/// Why an unexport was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum UnexportError {
    /// It is not there or belongs to another process.
    #[error("export {export} does not exist or belongs to another process")]
    NoSuchExport {
        /// Which.
        export: crate::ids::ExportId,
    },
}

/// Why an unimport was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum UnimportError {
    /// It is not there.
    #[error("import {import} of this process does not exist; it was released already")]
    StaleImport {
        /// Which.
        import: crate::ids::ImportId,
    },
}

/// Why a redirection was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RedirectError {
    /// The export is not there or belongs to another process.
    #[error("export {export} does not exist or belongs to another process")]
    NoSuchExport {
        /// Which.
        export: crate::ids::ExportId,
    },
    /// It was not exported as redirectable.
    #[error("export {export} was not made redirectable; export it so")]
    NotRedirectable {
        /// Which.
        export: crate::ids::ExportId,
    },
    /// Outside the export.
    #[error("{len} bytes at offset {offset} are not inside the {size}-byte export")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// Part of the range is redirected already.
    #[error("the range overlaps the redirection of bytes {start}..{end}; cancel that first")]
    Overlap {
        /// First byte of the other one.
        start: u64,
        /// First byte after it.
        end: u64,
    },
    /// Too many of one export.
    #[error("{max} redirections are posted on this export already; wait for one or cancel one")]
    TableFull {
        /// The bound.
        max: u64,
    },
    /// Too many of one process.
    #[error("{max} redirections of this process are posted already; wait for one or cancel one")]
    ProcessFull {
        /// The bound.
        max: u64,
    },
    /// What has arrived there is in too many pieces.
    #[error("what has arrived is in {max} pieces already; consume or redirect more of it at once")]
    TooFragmented {
        /// The bound.
        max: u64,
    },
    /// The destination does not lie in its region, or that does not exist. Reported by drivers.
    #[error("{len} bytes at offset {offset} are not inside the {size}-byte region that they are redirected to")]
    NoSuchPlace {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the region; 0 if there is none.
        size: u64,
    },
    /// The user has its share. Reported by drivers.
    #[error(
        "this user holds {own} of the {max} redirections of its node, its share while {free} are free for others; cancel some"
    )]
    Share {
        /// What the user has.
        own: u64,
        /// The bound.
        max: u64,
        /// What nobody has.
        free: u64,
    },
    /// No such redirection.
    #[error("no redirection that begins at byte {offset} of the export is posted; it is complete or was cancelled")]
    NoSuchRedirect {
        /// First byte.
        offset: u64,
    },
}

impl RedirectError {
    /// Stable number, none of [`OpError::code`].
    pub fn code(&self) -> u16 {
        match self {
            RedirectError::NoSuchExport { .. } => 101,
            RedirectError::NotRedirectable { .. } => 102,
            RedirectError::OutOfBounds { .. } => 103,
            RedirectError::Overlap { .. } => 104,
            RedirectError::TableFull { .. } => 105,
            RedirectError::ProcessFull { .. } => 106,
            RedirectError::TooFragmented { .. } => 107,
            RedirectError::NoSuchPlace { .. } => 108,
            RedirectError::Share { .. } => 109,
            RedirectError::NoSuchRedirect { .. } => 110,
        }
    }

    /// Arguments of the message.
    pub fn args(&self) -> ErrorArgs {
        match *self {
            RedirectError::NoSuchExport { export } | RedirectError::NotRedirectable { export } => {
                [export.to_u64(), 0, 0]
            }
            RedirectError::OutOfBounds { offset, len, size } | RedirectError::NoSuchPlace { offset, len, size } => {
                [offset, len, size]
            }
            RedirectError::Overlap { start, end } => [start, end, 0],
            RedirectError::TableFull { max }
            | RedirectError::ProcessFull { max }
            | RedirectError::TooFragmented { max } => [max, 0, 0],
            RedirectError::Share { own, max, free } => [own, max, free],
            RedirectError::NoSuchRedirect { offset } => [offset, 0, 0],
        }
    }

    /// The inverse; `None` for what this release does not know.
    pub fn from_code(code: u16, [a, b, c]: ErrorArgs) -> Option<RedirectError> {
        let export = crate::ids::ExportId::from_u64(a);
        Some(match code {
            101 => RedirectError::NoSuchExport { export },
            102 => RedirectError::NotRedirectable { export },
            103 => RedirectError::OutOfBounds { offset: a, len: b, size: c },
            104 => RedirectError::Overlap { start: a, end: b },
            105 => RedirectError::TableFull { max: a },
            106 => RedirectError::ProcessFull { max: a },
            107 => RedirectError::TooFragmented { max: a },
            108 => RedirectError::NoSuchPlace { offset: a, len: b, size: c },
            109 => RedirectError::Share { own: a, max: b, free: c },
            110 => RedirectError::NoSuchRedirect { offset: a },
            _ => return None,
        })
    }
}

/// The command was not taken; offer it again after some completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{queued} operations are queued, the bound; take completions and try again")]
pub struct Busy {
    /// Operations queued.
    pub queued: u64,
}

/// No room for another peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{max} peers are known already; use fewer nodes per cluster")]
pub struct PeerTableFull {
    /// The bound.
    pub max: u64,
}

/// Why a peer went down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PeerDownReason {
    /// It did not answer.
    #[error("no answer for {after_ms} ms")]
    Unreachable {
        /// How long.
        after_ms: u64,
    },
    /// It came back with a new incarnation.
    #[error("it restarted")]
    Restarted,
    /// It opened a new session: it had given this node up.
    #[error("it had given up the session")]
    Reset,
    /// It said goodbye.
    #[error("it shut down")]
    Closed,
    /// It broke the protocol.
    #[error("it broke the protocol")]
    Protocol,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_redirections_survive_the_ring_and_are_told_from_others() {
        let all: Vec<RedirectError> =
            (0..=u16::MAX).filter_map(|code| RedirectError::from_code(code, [3, 2, 9])).collect();
        assert_eq!(all.len(), 10);
        for error in all {
            assert_eq!(RedirectError::from_code(error.code(), error.args()), Some(error));
            assert_eq!(OpError::from_code(error.code(), [3, 2, 9]), None, "{error}");
        }
    }

    #[test]
    fn operation_errors_survive_the_wire() {
        for code in 0..40 {
            if let Some(error) = OpError::from_code(code, [3, 2, 9]) {
                assert_eq!(OpError::from_code(error.code(), error.args()), Some(error));
                assert_eq!(error.code(), code);
                assert!(!error.to_string().is_empty());
            }
        }
        assert_eq!(OpError::from_code(6, [8, 0, 0]), None);
    }

    #[test]
    fn import_errors_survive_the_wire() {
        for code in 0..40 {
            if let Some(error) = ImportError::from_code(code, [3, 2, 0]) {
                assert_eq!(ImportError::from_code(error.code(), error.args()), Some(error));
                assert_eq!(error.code(), code);
            }
        }
        assert_eq!(ImportError::from_code(8, [99, 0, 0]), None);
        assert_eq!(ImportError::from_code(2, [u64::MAX, 0, 0]), None);
    }
}
