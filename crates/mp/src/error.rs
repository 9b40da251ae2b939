//! What can go wrong with messages.
//!
//! Invariant: as in the rest of the library, a text names the thing, the numbers and the next step.

use crate::collective::Op;
use crate::limits::{MEMBERS_MAX, REQUESTS_MAX};
use std::time::Duration;
use thiserror::Error;
use vmmc::{AccessError, ErrorKind, ExportError, Kind, TokenError, WaitError};
use vmmc_job::JobError;

/// How a member has gone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Gone {
    /// It has said goodbye.
    #[error("it has left")]
    Left,
    /// Its process has ended with status 0.
    #[error("its process has ended")]
    Ended,
    /// Its process has ended in another way, or its node is lost.
    #[error("its process has failed, or its node is lost")]
    Failed,
    /// It is of another release.
    #[error("it speaks version {theirs} of messages, and this library version {ours}; use one release everywhere")]
    Version {
        /// Its version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// It has sent what makes no sense.
    #[error("it has sent what makes no sense ({what}), and was cut off; look at that program")]
    Misbehaved {
        /// What.
        what: &'static str,
    },
    /// It cannot be reached.
    #[error("{why}")]
    Unreachable {
        /// Why.
        why: String,
    },
}

/// Why a message was not sent or received.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MpError {
    /// There is no such member.
    #[error("rank {rank} does not exist; the group has {size} members")]
    NoRank {
        /// Which.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// A set of members of this size, or without this process in it, makes no sense.
    #[error("rank {rank} of {size} members; a set has up to {MEMBERS_MAX} members, and this process is one of them")]
    NoSet {
        /// Our rank.
        rank: u32,
        /// Members.
        size: u32,
    },
    /// The message is longer than the memory that was given for it. It was taken, and is lost.
    #[error(
        "a message of {len} bytes from rank {source_rank} (tag {tag}) for {room} bytes of memory; give more, or ask with `probe` first"
    )]
    Truncated {
        /// Its sender.
        source_rank: u32,
        /// Its tag.
        tag: u64,
        /// Its bytes.
        len: u64,
        /// Bytes that there were for it.
        room: u64,
    },
    /// A member has gone that this call needs.
    #[error("rank {rank} is no longer there: {how}")]
    Gone {
        /// Who, among all members.
        rank: u32,
        /// How.
        how: Gone,
    },
    /// All others have gone, and the receive was for any.
    #[error("a receive from any member, and all others have gone")]
    AllGone,
    /// The sender has given up a message that was on its way.
    #[error("rank {rank} has given up a message that was on its way; receive again")]
    GivenUp {
        /// Its sender, among all members.
        rank: u32,
    },
    /// Nothing came in time, or nobody took it.
    #[error("{what}: nothing came within {after_ms} ms; is the other member in a matching call?")]
    TimedOut {
        /// The call.
        what: &'static str,
        /// How long, milliseconds.
        after_ms: u64,
    },
    /// The request was cancelled before anything happened.
    #[error("the request was cancelled")]
    Cancelled,
    /// A member has ended all.
    #[error("rank {rank} has ended all with code {code}: {text}")]
    Aborted {
        /// Who, among all members.
        rank: u32,
        /// Its code.
        code: i32,
        /// Its message.
        text: String,
    },
    /// Too much was begun.
    #[error("{REQUESTS_MAX} requests are under way; wait for some, or drop them")]
    TooManyRequests,
    /// As many groups were made as there are numbers.
    #[error("all numbers of groups are used up; make groups once, and use them again")]
    TooManyGroups,
    /// Memory for a collective call is of the wrong length.
    #[error("{what}: {len} bytes or elements, and {wanted} are wanted")]
    Length {
        /// The call, and which memory.
        what: &'static str,
        /// How many there are.
        len: u64,
        /// How many are wanted.
        wanted: u64,
    },
    /// Bits of floats are not computed with.
    #[error("{op:?} of floats makes no sense; use integers, or `reduce_by`")]
    NoOperation {
        /// The operation.
        op: Op,
    },
    /// There is no range of this memory there.
    #[error("bytes {start} to {end} of memory of {size}; choose a range inside of it")]
    NoRange {
        /// First byte.
        start: u64,
        /// Behind the last.
        end: u64,
        /// Bytes of the memory.
        size: u64,
    },
    /// The memory is of other messages.
    #[error("the memory was made by other `Messages`; make it with `memory` of those that receive into it")]
    Foreign,
    /// A persistent request is under way, or is not.
    #[error("a persistent request that {state}; `start` and `wait` take turns")]
    Persistent {
        /// What it is.
        state: &'static str,
    },
    /// The job says so.
    #[error(transparent)]
    Job(#[from] JobError),
    /// No place for messages could be made.
    #[error(transparent)]
    Endpoint(#[from] Box<ExportError>),
    /// No buffers for long messages.
    #[error(transparent)]
    Token(#[from] Box<TokenError>),
    /// The wait has ended otherwise.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The memory of this process cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The system gave no thread.
    #[error("a thread to connect to rank {rank}: {why}")]
    Thread {
        /// To whom.
        rank: u32,
        /// Why.
        why: String,
    },
}

impl MpError {
    pub(crate) fn timed_out(what: &'static str, after: Duration) -> MpError {
        MpError::TimedOut { what, after_ms: after.as_millis() as u64 }
    }
}

impl Kind for MpError {
    fn kind(&self) -> ErrorKind {
        match self {
            MpError::NoRank { .. } | MpError::NoRange { .. } | MpError::Truncated { .. } => ErrorKind::OutOfBounds,
            MpError::NoSet { .. }
            | MpError::Persistent { .. }
            | MpError::Length { .. }
            | MpError::NoOperation { .. } => ErrorKind::Invalid,
            MpError::Gone { how: Gone::Version { .. } | Gone::Misbehaved { .. }, .. } => ErrorKind::Version,
            MpError::Gone { .. } | MpError::AllGone => ErrorKind::MembersChanged,
            MpError::GivenUp { .. } | MpError::Cancelled => ErrorKind::Cancelled,
            MpError::TimedOut { .. } => ErrorKind::TimedOut,
            MpError::Aborted { .. } => ErrorKind::Failed,
            MpError::TooManyRequests | MpError::TooManyGroups => ErrorKind::Full,
            MpError::Foreign => ErrorKind::Foreign,
            MpError::Job(error) => error.kind(),
            MpError::Endpoint(error) => error.kind(),
            MpError::Token(error) => error.kind(),
            MpError::Wait(error) => error.kind(),
            MpError::Access(error) => error.kind(),
            MpError::Thread { .. } => ErrorKind::System,
        }
    }
}
