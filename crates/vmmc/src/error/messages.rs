//! What can go wrong with endpoints, and with payloads by token.
//!
//! Invariant: as for all errors: the thing, the numbers, the next step. Source: [GMS §2].

use super::{AccessError, ExportError, ImportError, TransferError};
use crate::limits::CONTROL_MESSAGE_BYTES_MAX;
use thiserror::Error;

/// Why there is no connection to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// There is no such endpoint, or it cannot be reached or imported.
    #[error("connect to endpoint {endpoint:?}: {error}")]
    Import {
        /// Name of the endpoint.
        endpoint: String,
        /// Why.
        error: ImportError,
    },
    /// What has this name is no endpoint, or it could not be asked.
    #[error("connect to endpoint {endpoint:?}: {error}")]
    Transfer {
        /// Name of the endpoint.
        endpoint: String,
        /// Why.
        error: TransferError,
    },
    /// It has not answered.
    #[error(
        "connect to endpoint {endpoint:?}: nothing came within {after_ms} ms; its owner lets senders in while it polls or waits"
    )]
    TimedOut {
        /// Name of the endpoint.
        endpoint: String,
        /// How long, milliseconds.
        after_ms: u64,
    },
    /// It has as many senders as it takes, or as it takes of one process.
    #[error("connect to endpoint {endpoint:?}: it has no room for more senders of this process; drop a connection")]
    Full {
        /// Name of the endpoint.
        endpoint: String,
    },
    /// Its owner uses another release.
    #[error(
        "connect to endpoint {endpoint:?}: it speaks version {theirs} and this library version {ours}; use one release at both ends"
    )]
    Version {
        /// Name of the endpoint.
        endpoint: String,
        /// Its version.
        theirs: u64,
        /// Ours.
        ours: u64,
    },
    /// The kernel gave no random number for the name of the connection.
    #[error("connect to endpoint {endpoint:?}: {why}")]
    System {
        /// Name of the endpoint.
        endpoint: String,
        /// What failed.
        why: String,
    },
    /// Its owner is no library of ours.
    #[error(
        "connect to endpoint {endpoint:?}: what its owner says of it makes no sense ({what}); look at that program"
    )]
    Protocol {
        /// Name of the endpoint.
        endpoint: String,
        /// What it said.
        what: String,
    },
}

/// Why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The control message is too long.
    #[error(
        "message to endpoint {endpoint:?}: a control message of {len} bytes; up to {CONTROL_MESSAGE_BYTES_MAX} fit, the rest belongs into the payload"
    )]
    ControlTooLong {
        /// Name of the endpoint.
        endpoint: String,
        /// Bytes.
        len: u64,
    },
    /// The payload is longer than all frames.
    #[error(
        "message to endpoint {endpoint:?}: a payload of {len} bytes, and its frames have {max} together; send it in parts, or make the endpoint with more or larger frames"
    )]
    PayloadTooLong {
        /// Name of the endpoint.
        endpoint: String,
        /// Bytes.
        len: u64,
        /// Bytes of all frames together, 0 if there are none.
        max: u64,
    },
    /// There was no room in time: the owner has not taken what was sent before.
    #[error(
        "message to endpoint {endpoint:?}: no room came within {after_ms} ms: its owner has not taken what was sent before; send again later"
    )]
    Full {
        /// Name of the endpoint.
        endpoint: String,
        /// How long, milliseconds.
        after_ms: u64,
    },
    /// Where the payload of a token goes could not be imported in time.
    #[error("message to endpoint {endpoint:?}: {error}")]
    Import {
        /// Name of the endpoint.
        endpoint: String,
        /// Why.
        error: ImportError,
    },
    /// The connection has ended, or the node did not do it.
    #[error("message to endpoint {endpoint:?}: {error}")]
    Transfer {
        /// Name of the endpoint.
        endpoint: String,
        /// Why.
        error: TransferError,
    },
}

/// Why there is no buffer for a payload by token.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    /// The endpoint was made without.
    #[error("endpoint {endpoint:?} has no buffers for payloads by token; make it with `tokens`")]
    None {
        /// Name of the endpoint.
        endpoint: String,
    },
    /// All of them are in use.
    #[error(
        "endpoint {endpoint:?}: all {count} buffers for payloads by token are in use; drop some, or make it with more"
    )]
    InUse {
        /// Name of the endpoint.
        endpoint: String,
        /// Buffers.
        count: u64,
    },
    /// A range reaches past its region.
    #[error("bytes {start} to {end} of a region of {size} for payloads by token; choose a range inside of it")]
    OutOfBounds {
        /// First byte.
        start: u64,
        /// Behind the last.
        end: u64,
        /// Bytes of the region.
        size: u64,
    },
    /// Some of its bytes are another token's.
    #[error("bytes {start} to {end}: another token is for some of them; drop its buffer first, or choose others")]
    Taken {
        /// First byte.
        start: u64,
        /// Behind the last.
        end: u64,
    },
    /// As many ranges of a region are armed as can be.
    #[error("{most} ranges of the region are armed, which is all that it was made for; drop some, or make it for more")]
    Ranges {
        /// So many.
        most: u64,
    },
    /// The endpoint has as many regions as can be.
    #[error("endpoint {endpoint:?} has {max} regions for payloads by token; drop one, or use ranges of one")]
    Regions {
        /// Name of the endpoint.
        endpoint: String,
        /// So many.
        max: usize,
    },
    /// The region is not one of the endpoint's, which would not tell of what comes there.
    #[error("the region is not one of endpoint {endpoint:?}; make it with that endpoint's `region`")]
    Foreign {
        /// Name of the endpoint.
        endpoint: String,
    },
    /// They are not this process's.
    #[error("{0}")]
    Access(AccessError),
    /// Tokens need keys that nobody guesses.
    #[error("the kernel gives no random bytes ({why}); make /dev/urandom readable")]
    NoKeys {
        /// Why.
        why: std::io::ErrorKind,
    },
    /// Senders died in mid-payload and left too few, and more could not be made.
    #[error("{0}")]
    Table(Box<ExportError>),
}
