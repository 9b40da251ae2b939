//! The kinds of the errors of jobs, in the library's one classification.
//!
//! Invariant: an error that holds one of the library's has that one's kind.

use crate::{JobError, LaunchError, LinkError};
use vmmc::{ErrorKind, Kind};

impl Kind for JobError {
    fn kind(&self) -> ErrorKind {
        match self {
            JobError::NoJob { .. } => ErrorKind::NoJob,
            JobError::Environment { .. } | JobError::ValueTooLong { .. } => ErrorKind::Invalid,
            JobError::Pmix(_) => ErrorKind::System,
            JobError::Attach(error) => error.kind(),
            JobError::Export(error) => error.kind(),
            JobError::Import(error) => error.kind(),
            JobError::Transfer(error) => error.kind(),
            JobError::Call(error) => error.kind(),
            JobError::Wait { error, .. } | JobError::ChangeNotifier(error) => error.kind(),
            JobError::NoRank { .. } => ErrorKind::OutOfBounds,
            JobError::MemberGone { .. } | JobError::HasLeft { .. } | JobError::Overtaken { .. } => {
                ErrorKind::MembersChanged
            }
        }
    }
}

impl Kind for LinkError {
    fn kind(&self) -> ErrorKind {
        match self {
            LinkError::Export(error) => error.kind(),
            LinkError::Import(error) => error.kind(),
            LinkError::Transfer(error) => error.kind(),
            LinkError::Call(error) => error.kind(),
            LinkError::Gone => ErrorKind::OwnerDied,
            LinkError::Protocol { .. } => ErrorKind::Version,
        }
    }
}

impl Kind for LaunchError {
    fn kind(&self) -> ErrorKind {
        match self {
            LaunchError::Attach(error) => error.kind(),
            LaunchError::Invalid { .. } => ErrorKind::Invalid,
            LaunchError::Node { error, .. } => error.kind(),
            LaunchError::System { .. } => ErrorKind::System,
            LaunchError::Wait(error) => error.kind(),
        }
    }
}
