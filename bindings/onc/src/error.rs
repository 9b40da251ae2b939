//! Why there is no client, no reply or no server.
//!
//! Invariant: each error says what to do, and maps to one status of libtirpc (`status.rs`).

use thiserror::Error;
use vmmc::{AttachError, ErrorKind, ImportError, Kind};
use vmmc_rpc::{RpcError, ServeError};

/// Why.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OncError {
    /// There is no node.
    #[error("{0}")]
    Attach(Box<AttachError>),
    /// There is no such program at VMMC.
    #[error("program {prog:#x} version {vers} is not served over VMMC on {node}: {hint}")]
    NotServed {
        /// Program.
        prog: u32,
        /// Version.
        vers: u32,
        /// Where.
        node: String,
        /// Where it is otherwise, and what to do.
        hint: String,
    },
    /// The program cannot be asked for.
    #[error("program {prog:#x} version {vers} on {node}: {error}")]
    Import {
        /// Program.
        prog: u32,
        /// Version.
        vers: u32,
        /// Where.
        node: String,
        /// Why.
        error: Box<ImportError>,
    },
    /// The server is of another release.
    #[error(
        "{service} speaks version {theirs} of records and this program version {ours}; use one release at both ends"
    )]
    Version {
        /// Name of the service.
        service: String,
        /// Its version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The record is longer than what is taken.
    #[error("a call of {len} bytes, and {service} takes {max}; send it in several calls")]
    TooLong {
        /// Name of the service.
        service: String,
        /// Bytes.
        len: usize,
        /// Bytes that are taken.
        max: usize,
    },
    /// What the server says makes no sense.
    #[error("{service}: its reply makes no sense ({what}); look at that program")]
    Protocol {
        /// Name of the service.
        service: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The call.
    #[error("{0}")]
    Call(#[from] RpcError),
    /// The server.
    #[error("{0}")]
    Serve(#[from] ServeError),
    /// An argument makes no sense.
    #[error("{0}")]
    Argument(String),
}

impl OncError {
    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            OncError::Attach(error) => error.kind(),
            OncError::NotServed { .. } => ErrorKind::UnknownName,
            OncError::Import { error, .. } => error.kind(),
            OncError::Version { .. } => ErrorKind::Version,
            OncError::TooLong { .. } | OncError::Protocol { .. } | OncError::Argument(_) => ErrorKind::Invalid,
            OncError::Call(error) => error.kind(),
            OncError::Serve(error) => error.kind(),
        }
    }
}
