//! What can go wrong in NX.
//!
//! Invariant: as in the rest of the library, a text names the thing, the numbers and the next step.

use crate::limits::{IDS_MAX, PTYPE_MAX, TYPE_MAX};
use thiserror::Error;
use vmmc::{ErrorKind, Kind};
use vmmc_job::LaunchError;
use vmmc_mp::MpError;

/// Why a call of NX failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NxError {
    /// There is no such node.
    #[error("node {node} does not exist; the application has {count} nodes, from 0 on, and -1 is all others")]
    Node {
        /// Which.
        node: i64,
        /// How many there are.
        count: u32,
    },
    /// There is no process on this node.
    #[error("node {node} has no process: the application was started on other nodes")]
    NoProcess {
        /// Which.
        node: i64,
    },
    /// There is no such type of messages.
    #[error("{ty} is no type of a message; types are 0 to {TYPE_MAX}")]
    Type {
        /// Which.
        ty: i64,
    },
    /// There is no such process type.
    #[error("{ptype} is no process type; process types are 0 to {PTYPE_MAX}")]
    Ptype {
        /// Which.
        ptype: i64,
    },
    /// A selector selects nothing.
    #[error("{value} selects no {what}; give one, or -1 for any")]
    Selector {
        /// What it is for.
        what: &'static str,
        /// Its value.
        value: i64,
    },
    /// A length makes no sense.
    #[error("{len} bytes or elements; a length is 0 or more")]
    Length {
        /// Which.
        len: i64,
    },
    /// There is no memory at this address.
    #[error("{what} is a null pointer")]
    Null {
        /// Which argument.
        what: &'static str,
    },
    /// There is no such message under way.
    #[error("{id} is the id of no message under way: it was waited for, ignored, cancelled or merged before")]
    Id {
        /// Which.
        id: i64,
    },
    /// Too many were begun.
    #[error("{IDS_MAX} messages are under way; wait for some, or ignore them")]
    IdsUsedUp,
    /// A message is longer than the memory for it. It was taken, and is lost.
    #[error(
        "a message of {len} bytes, type {ty}, from node {node} for {room} bytes of memory; give more, or ask with cprobe first"
    )]
    TooLong {
        /// Its type.
        ty: i64,
        /// Its sender.
        node: i64,
        /// Its bytes.
        len: u64,
        /// Bytes that there were for it.
        room: u64,
    },
    /// A handler runs for too long.
    #[error("a handler of a message runs for more than {seconds} s; it must return")]
    HandlerRuns {
        /// How long it was waited for, seconds.
        seconds: u64,
    },
    /// The process controls an application, and is none of its nodes.
    #[error(
        "this process controls an application and is none of its nodes; only what nx_nfork or nx_load started exchanges messages"
    )]
    Controls,
    /// The process is no part of an application.
    #[error(
        "this process is no part of an application; start it with `vmmc run -n N -- PROGRAM`, or call nx_initve and nx_nfork"
    )]
    NoApplication,
    /// An application was started already.
    #[error("this process has started an application already, or is a node of one; one process starts one application")]
    Started,
    /// No application was started.
    #[error("this process has started no application; nx_nfork and nx_load do")]
    NotStarted,
    /// A list of nodes makes no sense.
    #[error("a list of {len} nodes for an application of {count}; each node may be in it once")]
    List {
        /// Its length.
        len: u64,
        /// Nodes of the application.
        count: u32,
    },
    /// A process of an application could not be started.
    #[error("node {node} was not started: {why}")]
    Process {
        /// Which.
        node: u32,
        /// Why.
        why: String,
    },
    /// What the starting process has said in the environment makes no sense.
    #[error("{variable} is {value:?}; nx_nfork sets it, so unset it")]
    Environment {
        /// Which variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// The system has no thread for this.
    #[error("a thread for {what}: {why}")]
    Thread {
        /// What.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// The application could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Members of the job could not be had, or a message was not sent or received.
    #[error(transparent)]
    Messages(#[from] MpError),
}

impl Kind for NxError {
    fn kind(&self) -> ErrorKind {
        match self {
            NxError::Node { .. } | NxError::NoProcess { .. } | NxError::TooLong { .. } => ErrorKind::OutOfBounds,
            NxError::IdsUsedUp => ErrorKind::Full,
            NxError::HandlerRuns { .. } => ErrorKind::TimedOut,
            NxError::Process { .. } => ErrorKind::Failed,
            NxError::Thread { .. } => ErrorKind::System,
            NxError::Launch(error) => error.kind(),
            NxError::Messages(error) => error.kind(),
            _ => ErrorKind::Invalid,
        }
    }
}
