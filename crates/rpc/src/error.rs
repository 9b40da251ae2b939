//! Why a call, a client or a server did not do what it was asked.
//!
//! Invariant: of a call that may have been carried out without its caller knowing,
//! [`RpcError::may_have_happened`] says so, and of no other.

use crate::limits::{CALLS_MAX, PASSED_MAX, SERVICE_NAME_BYTES_MAX, THREADS_MAX};
use thiserror::Error;
use vmmc::{
    AccessError, ConnectError, ErrorKind, ExportError, Kind, MessageError, TokenError, TokenRefused, WaitError,
};

/// Results with it go through every call.
const _: () = assert!(size_of::<RpcError>() <= 96);

/// Why there is no result of a call, or no client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RpcError {
    /// The service cannot be reached.
    #[error("service {service:?}: {error}")]
    Connect {
        /// Name of the service.
        service: String,
        /// Why.
        error: Box<ConnectError>,
    },
    /// The client has no endpoint for its answers.
    #[error("client of service {service:?}: {error}")]
    Endpoint {
        /// Name of the service.
        service: String,
        /// Why.
        error: Box<ExportError>,
    },
    /// The name cannot be that of a service.
    #[error("{service:?} cannot be the name of a service: it has 1 to {SERVICE_NAME_BYTES_MAX} bytes")]
    BadName {
        /// The name.
        service: String,
    },
    /// The server did not answer when the client introduced itself.
    #[error("service {service:?} did not answer within {after_ms} ms; check that its process polls it")]
    Unanswered {
        /// Name of the service.
        service: String,
        /// How long, milliseconds.
        after_ms: u64,
    },
    /// The server speaks another version.
    #[error(
        "service {service:?} speaks version {theirs} of calls and this program version {ours}; use the same release"
    )]
    Version {
        /// Name of the service.
        service: String,
        /// Version of the server.
        theirs: u16,
        /// Version of this program.
        ours: u16,
    },
    /// The server has no such method.
    #[error("service {service:?} has no method {method}; check that client and server are of one version")]
    NoMethod {
        /// Name of the service.
        service: String,
        /// Number of the method.
        method: u16,
    },
    /// The server has too much to do.
    #[error("service {service:?} is busy: its queue is full; call again later")]
    Busy {
        /// Name of the service.
        service: String,
    },
    /// The deadline passed. If the call had gone out it may have been carried out.
    #[error("call of service {service:?}: no answer within {after_ms} ms; give it longer, or look at the server")]
    TimedOut {
        /// Name of the service.
        service: String,
        /// How long, milliseconds.
        after_ms: u64,
        /// Whether the server may have carried it out.
        may_have_happened: bool,
    },
    /// The caller withdrew it. If a handler had begun it may have been carried out.
    #[error("call of service {service:?}: withdrawn by its caller")]
    Cancelled {
        /// Name of the service.
        service: String,
    },
    /// Arguments and bulk do not fit.
    #[error(
        "call of service {service:?}: arguments and bulk of {len} bytes, and a call has up to {max}; share longer memory by an export, and call with its name"
    )]
    ArgumentsTooLong {
        /// Name of the service.
        service: String,
        /// Bytes.
        len: u64,
        /// Bytes that fit.
        max: u64,
    },
    /// The server could not read the arguments.
    #[error(
        "service {service:?} could not read the arguments of method {method}; check that client and server are of one version"
    )]
    BadArguments {
        /// Name of the service.
        service: String,
        /// Number of the method.
        method: u16,
    },
    /// The result of the server makes no sense here.
    #[error(
        "service {service:?}: the result of method {method} could not be read; check that client and server are of one version"
    )]
    BadResult {
        /// Name of the service.
        service: String,
        /// Number of the method.
        method: u16,
    },
    /// The handler says that it failed.
    #[error("service {service:?}: {message}")]
    Failed {
        /// Name of the service.
        service: String,
        /// What it says.
        message: String,
    },
    /// The handler panicked; the server goes on.
    #[error("service {service:?}: the handler of method {method} panicked; its server says why on stderr")]
    Panicked {
        /// Name of the service.
        service: String,
        /// Number of the method.
        method: u16,
    },
    /// The handler let go of the call without an answer.
    #[error("service {service:?}: the handler of method {method} gave no answer")]
    NoAnswer {
        /// Name of the service.
        service: String,
        /// Number of the method.
        method: u16,
    },
    /// The result is longer than what a client takes.
    #[error(
        "service {service:?}: the result of method {method} does not fit; return it as bulk, or make the client with frames if it has none"
    )]
    ResultTooLong {
        /// Name of the service.
        service: String,
        /// Number of the method.
        method: u16,
    },
    /// The bulk result did not get into its buffer.
    #[error("service {service:?}: the bulk result was dropped: {why}")]
    BulkDropped {
        /// Name of the service.
        service: String,
        /// Why.
        why: TokenRefused,
    },
    /// The server is gone, or the one that it passed the call on to. The call may have been carried
    /// out.
    #[error("service {service:?} was lost before it answered, so the call may have been carried out: {why}")]
    Lost {
        /// Name of the service.
        service: String,
        /// Why.
        why: String,
    },
    /// The call could not be sent.
    #[error("call of service {service:?}: {error}")]
    Message {
        /// Name of the service.
        service: String,
        /// Why.
        error: Box<MessageError>,
    },
    /// There is no buffer for a bulk result.
    #[error("call of service {service:?}: {error}")]
    Token {
        /// Name of the service.
        service: String,
        /// Why.
        error: Box<TokenError>,
    },
    /// The client has too many calls that were not answered.
    #[error("{CALLS_MAX} calls of service {service:?} wait for their answers already; wait for some")]
    TooManyCalls {
        /// Name of the service.
        service: String,
    },
    /// The server has too many calls of one caller that it passed on and that have no answer yet:
    /// a caller has no more than are then free.
    #[error(
        "too many calls of one caller were passed on and have no answer yet, of {PASSED_MAX} of all callers; answer this one"
    )]
    TooManyPassedOn,
    /// Nothing can be waited for.
    #[error("client of service {service:?}: {error}")]
    Wait {
        /// Name of the service.
        service: String,
        /// Why.
        error: WaitError,
    },
    /// The client's memory is not this process's.
    #[error("client of service {service:?}: {error}")]
    Access {
        /// Name of the service.
        service: String,
        /// Why.
        error: AccessError,
    },
    /// The kernel gives no random bytes, or no user.
    #[error("client of service {service:?}: {why}")]
    System {
        /// Name of the service.
        service: String,
        /// Why.
        why: String,
    },
}

impl RpcError {
    /// Whether the call may have been carried out, though there is no result of it: it was sent,
    /// and nobody says that no handler has begun.
    pub fn may_have_happened(&self) -> bool {
        match self {
            RpcError::TimedOut { may_have_happened, .. } => *may_have_happened,
            RpcError::Lost { .. }
            | RpcError::Failed { .. }
            | RpcError::Panicked { .. }
            | RpcError::NoAnswer { .. }
            | RpcError::BadResult { .. }
            | RpcError::ResultTooLong { .. }
            | RpcError::BulkDropped { .. }
            | RpcError::Cancelled { .. }
            | RpcError::Wait { .. }
            | RpcError::Access { .. } => true,
            _ => false,
        }
    }
}

impl Kind for RpcError {
    fn kind(&self) -> ErrorKind {
        match self {
            RpcError::Connect { error, .. } => error.kind(),
            RpcError::Endpoint { error, .. } => error.kind(),
            RpcError::Unanswered { .. } | RpcError::TimedOut { .. } => ErrorKind::TimedOut,
            RpcError::TooManyCalls { .. } | RpcError::TooManyPassedOn => ErrorKind::Full,
            RpcError::Busy { .. } => ErrorKind::ServerBusy,
            RpcError::Lost { .. } => ErrorKind::Lost,
            RpcError::Version { .. } => ErrorKind::Version,
            RpcError::NoMethod { .. } => ErrorKind::NoMethod,
            RpcError::BadArguments { .. } => ErrorKind::BadArguments,
            RpcError::Cancelled { .. } => ErrorKind::Cancelled,
            RpcError::Failed { .. } => ErrorKind::Failed,
            RpcError::Panicked { .. } => ErrorKind::Panicked,
            RpcError::NoAnswer { .. } => ErrorKind::NoAnswer,
            RpcError::BadResult { .. } => ErrorKind::BadResult,
            RpcError::ResultTooLong { .. } => ErrorKind::ResultTooLong,
            RpcError::ArgumentsTooLong { .. } => ErrorKind::ArgumentsTooLong,
            RpcError::BulkDropped { .. } => ErrorKind::BulkDropped,
            RpcError::Message { error, .. } => error.kind(),
            RpcError::Token { error, .. } => error.kind(),
            RpcError::Wait { error, .. } => error.kind(),
            RpcError::Access { error, .. } => error.kind(),
            RpcError::System { .. } => ErrorKind::System,
            RpcError::BadName { .. } => ErrorKind::Invalid,
        }
    }
}

/// Why a server cannot be made, or has ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ServeError {
    /// The name cannot be that of a service.
    #[error("{service:?} cannot be the name of a service: it has 1 to {SERVICE_NAME_BYTES_MAX} bytes")]
    BadName {
        /// The name.
        service: String,
    },
    /// So many threads, or none that wait.
    #[error(
        "service {service:?} with {threads} threads and a queue of {queue} calls; ask for up to {THREADS_MAX} threads, and room for a call"
    )]
    BadShape {
        /// Name of the service.
        service: String,
        /// Threads.
        threads: usize,
        /// Calls that wait.
        queue: usize,
    },
    /// It has no endpoint.
    #[error("service {service:?}: {error}")]
    Endpoint {
        /// Name of the service.
        service: String,
        /// Why.
        error: Box<ExportError>,
    },
    /// A thread could not be had.
    #[error("service {service:?}: no thread can be had: {why}")]
    Thread {
        /// Name of the service.
        service: String,
        /// Why.
        why: String,
    },
    /// Its node is gone, or the process was forked.
    #[error("service {service:?} has ended: {error}")]
    Wait {
        /// Name of the service.
        service: String,
        /// Why.
        error: WaitError,
    },
}

impl Kind for ServeError {
    fn kind(&self) -> ErrorKind {
        match self {
            ServeError::BadName { .. } | ServeError::BadShape { .. } => ErrorKind::Invalid,
            ServeError::Endpoint { error, .. } => error.kind(),
            ServeError::Thread { .. } => ErrorKind::System,
            ServeError::Wait { error, .. } => error.kind(),
        }
    }
}
