//! How a command ends: exit codes for scripts.
//!
//! Invariant: every failure names the thing, the numbers and the next step, and has one of the
//! documented codes.

use std::process::ExitCode;

/// What `--help` says about exit codes. Kept beside [`Failure::code`].
pub(crate) const EXIT_CODES: &str = crate::exit_codes!();

/// The text, for other constants to contain.
#[macro_export]
macro_rules! exit_codes {
    () => {
        "Exit codes:
  0  done
  1  failed
  2  wrong usage
  3  no such node runs (or it is of another version)
  4  a node of that name runs already
  5  timed out, or the other node cannot be reached
  6  a check did not hold (wrong checksum, target missed with --check, failing seed)
  126  the program to run was found and cannot be executed
  127  the program to run was not found
  130  interrupted while a job ran"
    };
}

/// Exit code when a program was found and cannot be executed, as shells have it.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// Exit code when a program was not found, as shells have it.
pub(crate) const NOT_FOUND: u8 = 127;

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// Anything without a code of its own.
    #[error("{0}")]
    Failed(String),
    /// The arguments do not fit together.
    #[error("{0}")]
    Usage(String),
    /// No node.
    #[error("{0}")]
    NoNode(String),
    /// The name is taken.
    #[error("{0}")]
    NodeExists(String),
    /// No answer.
    #[error("{0}")]
    Unreachable(String),
    /// A check failed.
    #[error("{0}")]
    Check(String),
    /// A rank of a job failed, or the job was ended; or a program that was to be run or recorded
    /// failed, or was not there.
    #[error("{text}")]
    Rank {
        /// Its own exit code, or 128 and the number of a signal.
        code: u8,
        /// Which, and how.
        text: String,
    },
}

impl Failure {
    /// A failure without a code of its own.
    pub(crate) fn new(message: impl std::fmt::Display) -> Failure {
        Failure::Failed(message.to_string())
    }

    /// A program that was to be started was not: the exit code is what a shell would give.
    pub(crate) fn not_started(program: &std::path::Path, why: &std::io::Error) -> Failure {
        let code = if why.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_EXECUTE };
        Failure::Rank { code, text: format!("{} cannot be executed: {why}", program.display()) }
    }

    /// The documented exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::NoNode(_) => 3,
            Failure::NodeExists(_) => 4,
            Failure::Unreachable(_) => 5,
            Failure::Check(_) => 6,
            Failure::Rank { code, .. } => *code,
        }
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> ExitCode {
        ExitCode::from(failure.code())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented() {
        let message = String::new;
        for failure in [
            Failure::Failed(message()),
            Failure::Usage(message()),
            Failure::NoNode(message()),
            Failure::NodeExists(message()),
            Failure::Unreachable(message()),
            Failure::Check(message()),
        ] {
            assert!(EXIT_CODES.contains(&format!("\n  {}  ", failure.code())), "{failure:?}");
        }
        for code in [CANNOT_EXECUTE, NOT_FOUND, crate::commands::run::INTERRUPTED] {
            assert!(EXIT_CODES.contains(&format!("\n  {code}  ")), "{code}");
        }
    }
}
