//! One classification of all errors, for programs that decide by kind: the C interface's status
//! codes and Python's exceptions are made of it.
//!
//! Invariant: a number is given to one kind for ever; new kinds get new numbers.

use crate::error::{
    AccessError, AttachError, BindError, BufferError, CallError, ConnectError, ExportError, ImportError, MessageError,
    PlaceError, RedirectError, TokenError, TransferError, UnexportError, WaitError,
};
use vmmc_host::RegionError;
use vmmc_host::adopt::AdoptError;
use vmmc_host::control::RefusalCode;

/// What an error is about, whichever call it came from. The numbers are the status codes of the C
/// interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument makes no sense, or the call is misplaced.
    Invalid = 1,
    /// A range outside of its memory.
    OutOfBounds = 3,
    /// A word that is not aligned.
    Misaligned = 4,
    /// The deadline passed.
    TimedOut = 5,
    /// The export or import does not carry the right.
    NoRight = 6,
    /// The user is not allowed.
    NotPermitted = 7,
    /// The exporter took the export back.
    Revoked = 8,
    /// The exporting process is gone.
    OwnerDied = 9,
    /// Our own node is gone.
    NodeGone = 10,
    /// Another node does not answer, or there is no way to it.
    NodeUnreachable = 11,
    /// Another node restarted, and what was there is gone.
    NodeRestarted = 12,
    /// No node runs and none could be started.
    NoNode = 13,
    /// No node of that name.
    UnknownNode = 14,
    /// No export of that name or id.
    UnknownName = 15,
    /// The name is taken.
    NameTaken = 16,
    /// An id of something that has ended.
    Stale = 17,
    /// A table, queue or bound is full.
    Full = 18,
    /// Not enough memory.
    MemoryShort = 19,
    /// Memory that cannot be used for this.
    Unsuitable = 20,
    /// The import is not mapped, and this needs a mapping.
    NotMapped = 21,
    /// The export does not allow it.
    NotAllowed = 22,
    /// Belongs to another session.
    Foreign = 23,
    /// Something that the call needs is in use.
    Busy = 24,
    /// The session belongs to the parent of this process.
    Forked = 25,
    /// Library and node are of different releases, or one broke the protocol.
    Version = 26,
    /// The operating system refused.
    System = 27,
    /// The process is not part of a job.
    NoJob = 30,
    /// The members of the job have changed; a collective call cannot go on with those of before.
    MembersChanged = 31,
    /// A service has no such method.
    NoMethod = 32,
    /// A service could not read the arguments of a call.
    BadArguments = 33,
    /// A service has too much to do.
    ServerBusy = 34,
    /// A call was withdrawn by its caller.
    Cancelled = 35,
    /// The handler of a call says that it failed.
    Failed = 36,
    /// The handler of a call panicked.
    Panicked = 37,
    /// The handler of a call gave no answer.
    NoAnswer = 38,
    /// The result of a call makes no sense.
    BadResult = 39,
    /// The result of a call does not fit what its caller takes.
    ResultTooLong = 40,
    /// The arguments of a call do not fit what its server takes.
    ArgumentsTooLong = 41,
    /// The bulk result of a call did not get into its buffer.
    BulkDropped = 42,
    /// The server of a call was lost before it answered.
    Lost = 43,
}

/// Errors that have a kind.
pub trait Kind {
    /// The kind.
    fn kind(&self) -> ErrorKind;
}

impl Kind for RefusalCode {
    fn kind(&self) -> ErrorKind {
        match self {
            RefusalCode::Version => ErrorKind::Version,
            RefusalCode::UnknownName => ErrorKind::UnknownName,
            RefusalCode::UnknownNode => ErrorKind::UnknownNode,
            RefusalCode::NameTaken => ErrorKind::NameTaken,
            RefusalCode::NotPermitted => ErrorKind::NotPermitted,
            RefusalCode::NoRight => ErrorKind::NoRight,
            RefusalCode::Stale => ErrorKind::Stale,
            RefusalCode::OutOfBounds => ErrorKind::OutOfBounds,
            RefusalCode::TableFull => ErrorKind::Full,
            RefusalCode::MemoryShort => ErrorKind::MemoryShort,
            RefusalCode::TimedOut => ErrorKind::TimedOut,
            RefusalCode::Unreachable => ErrorKind::NodeUnreachable,
            RefusalCode::Restarted => ErrorKind::NodeRestarted,
            RefusalCode::Busy => ErrorKind::Busy,
            RefusalCode::Invalid => ErrorKind::Invalid,
            RefusalCode::BadRegion => ErrorKind::Unsuitable,
            RefusalCode::NotStarted => ErrorKind::System,
        }
    }
}

impl Kind for CallError {
    fn kind(&self) -> ErrorKind {
        match self {
            CallError::Refused(refusal) => refusal.code.kind(),
            CallError::NodeGone { .. } => ErrorKind::NodeGone,
            CallError::TimedOut { .. } => ErrorKind::TimedOut,
            CallError::Forked { .. } => ErrorKind::Forked,
            CallError::Protocol { .. } => ErrorKind::Version,
        }
    }
}

impl Kind for AttachError {
    fn kind(&self) -> ErrorKind {
        match self {
            AttachError::NoNode { .. } | AttachError::NoProgram { .. } | AttachError::StartFailed { .. } => {
                ErrorKind::NoNode
            }
            AttachError::ForeignNode { .. } => ErrorKind::NotPermitted,
            AttachError::Version { .. } => ErrorKind::Version,
            AttachError::Call { error, .. } => error.kind(),
            AttachError::System { .. } => ErrorKind::System,
        }
    }
}

impl Kind for RegionError {
    fn kind(&self) -> ErrorKind {
        match self {
            RegionError::Size { .. } => ErrorKind::Invalid,
            RegionError::MemoryShort { .. } => ErrorKind::MemoryShort,
            RegionError::Unsealed { .. } => ErrorKind::Unsuitable,
            RegionError::System { .. } => ErrorKind::System,
        }
    }
}

impl Kind for PlaceError {
    fn kind(&self) -> ErrorKind {
        match self {
            PlaceError::TooLarge { .. } | PlaceError::NoSuchEntry { .. } | PlaceError::NotWholePages { .. } => {
                ErrorKind::Invalid
            }
            PlaceError::Unpinnable { .. } => ErrorKind::Unsuitable,
            PlaceError::Call { error } => error.kind(),
        }
    }
}

impl Kind for BufferError {
    fn kind(&self) -> ErrorKind {
        match self {
            BufferError::Region(error) | BufferError::Adopt(AdoptError::Region(error)) => error.kind(),
            BufferError::Adopt(AdoptError::Empty) => ErrorKind::Invalid,
            BufferError::Adopt(AdoptError::Unsuitable { .. }) => ErrorKind::Unsuitable,
            BufferError::Call { error, .. } => error.kind(),
        }
    }
}

impl Kind for ExportError {
    fn kind(&self) -> ErrorKind {
        match self {
            ExportError::Memory { error, .. } => error.kind(),
            ExportError::Call { error, .. } => error.kind(),
            ExportError::Frames { .. } | ExportError::Tokens { .. } => ErrorKind::Invalid,
            ExportError::Descriptor { .. } => ErrorKind::System,
        }
    }
}

impl Kind for ConnectError {
    fn kind(&self) -> ErrorKind {
        match self {
            ConnectError::Import { error, .. } => error.kind(),
            ConnectError::Transfer { error, .. } => error.kind(),
            ConnectError::TimedOut { .. } => ErrorKind::TimedOut,
            ConnectError::Full { .. } => ErrorKind::Full,
            ConnectError::Version { .. } | ConnectError::Protocol { .. } => ErrorKind::Version,
            ConnectError::System { .. } => ErrorKind::System,
        }
    }
}

impl Kind for TokenError {
    fn kind(&self) -> ErrorKind {
        match self {
            TokenError::None { .. } | TokenError::Foreign { .. } => ErrorKind::Invalid,
            TokenError::InUse { .. } | TokenError::Ranges { .. } | TokenError::Regions { .. } => ErrorKind::Full,
            TokenError::OutOfBounds { .. } => ErrorKind::OutOfBounds,
            TokenError::Taken { .. } => ErrorKind::Busy,
            TokenError::Access(error) => error.kind(),
            TokenError::NoKeys { .. } => ErrorKind::System,
            TokenError::Table(error) => error.kind(),
        }
    }
}

impl Kind for MessageError {
    fn kind(&self) -> ErrorKind {
        match self {
            MessageError::ControlTooLong { .. } | MessageError::PayloadTooLong { .. } => ErrorKind::Invalid,
            MessageError::Full { .. } => ErrorKind::Full,
            MessageError::Import { error, .. } => error.kind(),
            MessageError::Transfer { error, .. } => error.kind(),
        }
    }
}

impl Kind for UnexportError {
    fn kind(&self) -> ErrorKind {
        match self {
            UnexportError::Call { error, .. } => error.kind(),
            UnexportError::Move { error, .. } => error.kind(),
            UnexportError::Shared { .. } => ErrorKind::Busy,
        }
    }
}

impl Kind for ImportError {
    fn kind(&self) -> ErrorKind {
        match self {
            ImportError::Call { error, .. } => error.kind(),
            ImportError::Map { error, .. } => error.kind(),
        }
    }
}

impl Kind for TransferError {
    fn kind(&self) -> ErrorKind {
        match self {
            TransferError::Revoked { .. } => ErrorKind::Revoked,
            TransferError::OwnerDied { .. } => ErrorKind::OwnerDied,
            TransferError::NodeUnreachable { .. } => ErrorKind::NodeUnreachable,
            TransferError::NodeRestarted { .. } => ErrorKind::NodeRestarted,
            TransferError::NodeGone { .. } => ErrorKind::NodeGone,
            TransferError::OutOfBounds { .. } | TransferError::BufferOutOfBounds { .. } => ErrorKind::OutOfBounds,
            TransferError::ForeignBuffer { .. } => ErrorKind::Foreign,
            TransferError::NoRight { .. } => ErrorKind::NoRight,
            TransferError::Misaligned { .. } => ErrorKind::Misaligned,
            TransferError::TooFragmented { .. } | TransferError::Full { .. } => ErrorKind::Full,
            TransferError::TimedOut { .. } => ErrorKind::TimedOut,
            TransferError::Staging { error, .. } => error.kind(),
            TransferError::Forked { .. } => ErrorKind::Forked,
            TransferError::Engine { error, .. } => op_kind(error),
        }
    }
}

/// Kinds of the engine's errors that have no variant of their own in [`TransferError`].
fn op_kind(error: &vmmc_nic::OpError) -> ErrorKind {
    use vmmc_nic::OpError;
    match error {
        OpError::NodeClosed => ErrorKind::NodeUnreachable,
        OpError::TableFull { .. } => ErrorKind::Full,
        OpError::AppendOnly | OpError::NotAppendable => ErrorKind::NotAllowed,
        OpError::Protocol => ErrorKind::Version,
        _ => ErrorKind::Invalid,
    }
}

impl Kind for AccessError {
    fn kind(&self) -> ErrorKind {
        match self {
            AccessError::OutOfBounds { .. } => ErrorKind::OutOfBounds,
            AccessError::Misaligned { .. } => ErrorKind::Misaligned,
            AccessError::NoRecord { .. } => ErrorKind::Invalid,
            AccessError::Forked { .. } => ErrorKind::Forked,
        }
    }
}

impl Kind for WaitError {
    fn kind(&self) -> ErrorKind {
        match self {
            WaitError::TimedOut { .. } => ErrorKind::TimedOut,
            WaitError::NodeGone { .. } => ErrorKind::NodeGone,
            WaitError::NotAllowed { .. } => ErrorKind::NotAllowed,
            WaitError::Access(error) => error.kind(),
            WaitError::OtherSession { .. } => ErrorKind::Foreign,
            WaitError::Forked { .. } => ErrorKind::Forked,
            WaitError::System { .. } => ErrorKind::System,
        }
    }
}

impl Kind for RedirectError {
    fn kind(&self) -> ErrorKind {
        match self {
            RedirectError::Call { error, .. } => error.kind(),
            RedirectError::Refused { error, .. } => refused_kind(error),
            RedirectError::ExportEnded { .. } => ErrorKind::Stale,
            RedirectError::Access(error) => error.kind(),
            RedirectError::ForeignBuffer => ErrorKind::Foreign,
            RedirectError::TooMany { .. } => ErrorKind::Full,
            RedirectError::TimedOut { .. } => ErrorKind::TimedOut,
        }
    }
}

fn refused_kind(error: &vmmc_nic::RedirectError) -> ErrorKind {
    use vmmc_nic::RedirectError;
    match error {
        RedirectError::NoSuchExport { .. } | RedirectError::NoSuchRedirect { .. } => ErrorKind::Stale,
        RedirectError::NotRedirectable { .. } => ErrorKind::Invalid,
        RedirectError::OutOfBounds { .. } | RedirectError::NoSuchPlace { .. } => ErrorKind::OutOfBounds,
        RedirectError::Overlap { .. } => ErrorKind::Busy,
        RedirectError::TableFull { .. }
        | RedirectError::ProcessFull { .. }
        | RedirectError::TooFragmented { .. }
        | RedirectError::Share { .. } => ErrorKind::Full,
    }
}

impl Kind for BindError {
    fn kind(&self) -> ErrorKind {
        match self {
            BindError::NotMapped { .. } => ErrorKind::NotMapped,
            BindError::NoRight { .. } => ErrorKind::NoRight,
            BindError::Call { error, .. } => error.kind(),
            BindError::Transfer(error) => error.kind(),
        }
    }
}
