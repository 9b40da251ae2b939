//! What can go wrong in a superstep.
//!
//! Invariant: as in the rest of the library, a text names the thing, the numbers and the next step.

use crate::limits::{
    MEMBERS_MAX, OPERATIONS_MAX, OUTGOING_BYTES_MAX, QUEUE_BYTES_MAX, REGISTRATIONS_MAX, TAG_BYTES_MAX,
};
use std::time::Duration;
use thiserror::Error;
use vmmc::{AccessError, ErrorKind, ExportError, ImportError, Kind, TransferError, WaitError};
use vmmc_job::JobError;

/// How a member has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Gone {
    /// It has left the job.
    #[error("it has left the job")]
    Left,
    /// Its process has ended with status 0, before the end of all.
    #[error("its process has ended, without the call that ends the program's parallel part")]
    Ended,
    /// Its process has ended in another way, or its node is lost.
    #[error("its process has failed, or its node is lost")]
    Failed,
}

/// Why a superstep, or a call in it, failed. After an error of `sync` this member can do nothing
/// more with the others; an error of another call has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BspError {
    /// There is no such member.
    #[error("process {pid} does not exist; there are {nprocs}, counted from 0")]
    NoProcess {
        /// Which.
        pid: u32,
        /// How many there are.
        nprocs: u32,
    },
    /// A set of members of this size, or without this process in it, makes no sense.
    #[error("process {pid} of {nprocs}; a program has up to {MEMBERS_MAX} processes, and this is one of them")]
    NoSet {
        /// Our number.
        pid: u32,
        /// Members.
        nprocs: u32,
    },
    /// The area is not registered.
    #[error("this area is not registered; a registration counts from the next sync on, until the sync after its end")]
    NotRegistered,
    /// The other process has nothing there.
    #[error("process {pid} has registered nothing (NULL) where this process has this area")]
    NothingThere {
        /// Which.
        pid: u32,
    },
    /// The area is shorter.
    #[error("bytes {offset} to {end} of an area of which process {pid} has registered {size}")]
    OutsideOfArea {
        /// Whose area.
        pid: u32,
        /// First byte.
        offset: u64,
        /// Behind the last.
        end: u64,
        /// Its bytes there.
        size: u64,
    },
    /// The memory of this process is shorter.
    #[error("elements {start} to {end} of an area of {size}; choose a range inside of it")]
    NoRange {
        /// First one.
        start: u64,
        /// Behind the last.
        end: u64,
        /// How many it has.
        size: u64,
    },
    /// An area that was made elsewhere, or is none any more.
    #[error("the area is not one of this program's; make it with `area` of the same `Bsp`")]
    NoArea,
    /// A tag has the size of all tags of the superstep.
    #[error("a tag of {len} bytes where tags have {size}; `set_tagsize` counts from the next sync on")]
    TagSize {
        /// Its bytes.
        len: u64,
        /// What they have.
        size: u64,
    },
    /// Tags are short.
    #[error("tags of {size} bytes; they have up to {TAG_BYTES_MAX}: what is longer belongs into the message")]
    TagTooLong {
        /// Bytes.
        size: u64,
    },
    /// Too much goes out.
    #[error(
        "more than {OUTGOING_BYTES_MAX} bytes that process {pid} puts, sends or answers in one superstep; call sync more often"
    )]
    TooMuch {
        /// Who.
        pid: u32,
    },
    /// Too much comes in.
    #[error("more than {QUEUE_BYTES_MAX} bytes of messages for process {pid} in one superstep; call sync more often")]
    QueueFull {
        /// Who.
        pid: u32,
    },
    /// Too many registrations.
    #[error(
        "more than {REGISTRATIONS_MAX} registered areas, or {OPERATIONS_MAX} registrations in one superstep; end some that are not needed"
    )]
    TooManyRegistrations,
    /// Registrations are made by all.
    #[error(
        "process {other} made {theirs} registrations, ends of them and changes of the tag size in this superstep, process {pid} {ours}; all make the same, in the same order"
    )]
    Uneven {
        /// This one.
        pid: u32,
        /// Its number.
        ours: u64,
        /// Another one.
        other: u32,
        /// Its number.
        theirs: u64,
    },
    /// They differ in one of them.
    #[error(
        "process {other} and process {pid} differ in {what}, call {number} of that kind of this superstep; all make the same"
    )]
    Different {
        /// This one.
        pid: u32,
        /// Another one.
        other: u32,
        /// In what.
        what: &'static str,
        /// Which of the calls, from 1.
        number: u64,
    },
    /// What ends was never registered.
    #[error("the end of a registration that there is not; each is ended once, by the address that was registered")]
    NothingToPop,
    /// A member has gone.
    #[error("process {pid} is no longer there: {how}")]
    Gone {
        /// Who.
        pid: u32,
        /// How.
        how: Gone,
    },
    /// A member has ended all.
    #[error("process {pid} has ended all: {text}")]
    Aborted {
        /// Who.
        pid: u32,
        /// Its message.
        text: String,
    },
    /// What another member wrote makes no sense.
    #[error("process {pid} has written what makes no sense ({what}); look at that program")]
    Misbehaved {
        /// Who.
        pid: u32,
        /// What.
        what: &'static str,
    },
    /// A member did not come.
    #[error("sync waited {after_ms} ms for process {pid}; do all processes call sync equally often?")]
    TimedOut {
        /// Who.
        pid: u32,
        /// How long, milliseconds.
        after_ms: u64,
    },
    /// There is not enough memory.
    #[error("no memory for {bytes} bytes that came in a superstep; call sync more often")]
    NoMemory {
        /// How many.
        bytes: u64,
    },
    /// An earlier sync has failed.
    #[error("an earlier superstep has failed: {0}")]
    Over(Box<BspError>),
    /// The job says so.
    #[error(transparent)]
    Job(#[from] JobError),
    /// No shared memory could be made.
    #[error(transparent)]
    Export(#[from] Box<ExportError>),
    /// The shared memory of another member was not found.
    #[error(transparent)]
    Import(#[from] Box<ImportError>),
    /// It cannot be reached.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The wait has ended otherwise.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The memory of this process cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl BspError {
    pub(crate) fn timed_out(pid: u32, after: Duration) -> BspError {
        BspError::TimedOut { pid, after_ms: after.as_millis() as u64 }
    }
}

impl Kind for BspError {
    fn kind(&self) -> ErrorKind {
        match self {
            BspError::NoProcess { .. } | BspError::OutsideOfArea { .. } | BspError::NoRange { .. } => {
                ErrorKind::OutOfBounds
            }
            BspError::NoSet { .. }
            | BspError::NotRegistered
            | BspError::NothingThere { .. }
            | BspError::TagSize { .. }
            | BspError::TagTooLong { .. }
            | BspError::Uneven { .. }
            | BspError::Different { .. }
            | BspError::NothingToPop => ErrorKind::Invalid,
            BspError::NoArea => ErrorKind::Foreign,
            BspError::TooMuch { .. } | BspError::QueueFull { .. } | BspError::TooManyRegistrations => ErrorKind::Full,
            BspError::Gone { .. } => ErrorKind::MembersChanged,
            BspError::Aborted { .. } => ErrorKind::Failed,
            BspError::Misbehaved { .. } => ErrorKind::Version,
            BspError::TimedOut { .. } => ErrorKind::TimedOut,
            BspError::NoMemory { .. } => ErrorKind::MemoryShort,
            BspError::Over(error) => error.kind(),
            BspError::Job(error) => error.kind(),
            BspError::Export(error) => error.kind(),
            BspError::Import(error) => error.kind(),
            BspError::Transfer(error) => error.kind(),
            BspError::Wait(error) => error.kind(),
            BspError::Access(error) => error.kind(),
        }
    }
}
