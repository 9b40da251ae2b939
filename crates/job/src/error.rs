//! What can go wrong with jobs.
//!
//! Invariant: as in the rest of the library, a message names the thing, the numbers and the next
//! step.

use thiserror::Error;
use vmmc::{AttachError, CallError, ExportError, ImportError, TransferError, WaitError};

/// Why a link between a launcher and a supervisor is of no use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinkError {
    /// Our side could not be made.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The other side is not there.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// It has gone.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// It went before a word was said.
    #[error("whoever wanted the job has gone")]
    Gone,
    /// The node did not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It talks nonsense.
    #[error("the other side of a job's link said what makes no sense ({what}); run the same release on all nodes")]
    Protocol {
        /// What.
        what: String,
    },
}

/// Why a job could not be started, or was lost.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// No session.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Makes no sense.
    #[error("{what}")]
    Invalid {
        /// What, and what to do.
        what: String,
    },
    /// A node starts no processes for us.
    #[error("node {node}: {error}")]
    Node {
        /// Which.
        node: String,
        /// Why.
        error: LinkError,
    },
    /// The system refused something.
    #[error("{what}: {why}")]
    System {
        /// What.
        what: String,
        /// Its error.
        why: String,
    },
    /// No random numbers, no way to wait, and the like.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// What can go wrong for a member of a job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// The process was not started as part of a job.
    #[error("{variable} is not set, so this process is not part of a job; start it with `vmmc run -n N -- PROGRAM`")]
    NoJob {
        /// What is missing.
        variable: &'static str,
    },
    /// The environment makes no sense.
    #[error("{variable} is {value:?}: {wanted}")]
    Environment {
        /// Which variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        wanted: String,
    },
    /// The launcher's PMIx is of no use.
    #[error(transparent)]
    Pmix(#[from] vmmc_host::pmix::PmixError),
    /// No session.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// An export of the job was not made.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The job's table or a member's memory cannot be reached.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A transfer to a member failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The node did not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A wait ended without success.
    #[error("{what} of rank {rank}: {error}")]
    Wait {
        /// What we waited for.
        what: String,
        /// Whom.
        rank: u32,
        /// How it ended.
        error: WaitError,
    },
    /// There is no way to be notified of changes of the members.
    #[error(transparent)]
    ChangeNotifier(#[from] WaitError),
    /// There is no such rank.
    #[error("rank {rank} does not exist; the job has {size} ranks")]
    NoRank {
        /// Which.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// A value is too long for an allgather.
    #[error("a value of {len} bytes is too long for an allgather, which takes {max}; export it, and gather its name")]
    ValueTooLong {
        /// Bytes.
        len: usize,
        /// Most bytes.
        max: usize,
    },
    /// A member that the collective call needs has gone.
    #[error("{what}: rank {rank} is no longer there ({state}); call `changes` to go on with those that are")]
    MemberGone {
        /// The call.
        what: &'static str,
        /// Who has gone.
        rank: u32,
        /// How.
        state: String,
    },
    /// This member has left, or was never in the view.
    #[error("{what}: this process (rank {rank}) has left the job")]
    HasLeft {
        /// The call.
        what: &'static str,
        /// Who we are.
        rank: u32,
    },
    /// Others have gone on with another set of members.
    #[error("{what}: rank {rank} goes on with another set of members; call `changes` and try again")]
    Overtaken {
        /// The call.
        what: &'static str,
        /// Who.
        rank: u32,
    },
}
