//! What can go wrong, one enum per operation.
//!
//! Invariant: every message names the thing, the numbers and the next step; every enum can be
//! compared in tests. What a peer or a user does wrong arrives here; what this library does wrong
//! is an assertion.

mod messages;
mod transfers;

use crate::Rights;
use crate::limits::{ENDPOINT_FRAMES_MAX, FRAME_BYTES_MAX, TOKEN_BYTES_MAX, TOKENS_MAX};
use std::time::Duration;
use thiserror::Error;
use vmmc_host::adopt::AdoptError;
use vmmc_host::control::{NotMapped, Refusal, RefusalCode};
use vmmc_host::region::RegionError;

pub use messages::{ConnectError, MessageError, TokenError};
pub use transfers::{AccessError, TransferError};

/// Why a call to the node got no answer that helps.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The node refused; its text names the thing and the next step.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The node died or ended.
    #[error("node {node:?} is gone; start it again (`vmmc node start --name {node}`) and attach anew")]
    NodeGone {
        /// Name of the node.
        node: String,
    },
    /// The node did not answer in time.
    #[error(
        "node {node:?} did not answer within {after_ms} ms; look at it with `vmmc node status`, or give the call more time"
    )]
    TimedOut {
        /// Name of the node.
        node: String,
        /// How long we waited.
        after_ms: u64,
    },
    /// The session belongs to the parent process.
    #[error("this session was attached by process {parent} before a fork; attach in the child to get one of its own")]
    Forked {
        /// The process that attached.
        parent: u32,
    },
    /// The node's answer makes no sense.
    #[error("node {node:?} sent a wrong answer ({what}); run the same release of node and library")]
    Protocol {
        /// Name of the node.
        node: String,
        /// What is wrong.
        what: String,
    },
}

impl CallError {
    /// Kind of refusal, when it is one.
    pub fn refusal(&self) -> Option<RefusalCode> {
        if let CallError::Refused(refusal) = self { Some(refusal.code) } else { None }
    }
}

/// Why a process could not attach.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AttachError {
    /// Nobody listens, and we were told not to start a node.
    #[error("no node {node:?} runs for user {uid}; start it with `vmmc node start --name {node}`")]
    NoNode {
        /// Name of the node.
        node: String,
        /// Whose node.
        uid: u32,
    },
    /// No program to start a node with was found.
    #[error(
        "no node {node:?} runs and the program `vmmc` that could start it was not found (looked at {looked}); build it with `cargo build --release`, put it on PATH, name it in VMMC_BIN, or embed a node"
    )]
    NoProgram {
        /// Name of the node.
        node: String,
        /// Places.
        looked: String,
    },
    /// The program ran and the node does not answer.
    #[error("`{program} node start --name {node}` did not bring up the node: {why}")]
    StartFailed {
        /// Name of the node.
        node: String,
        /// The program.
        program: String,
        /// Its exit status and what it said.
        why: String,
    },
    /// Somebody else listens under the name.
    #[error(
        "the node {node:?} of user {uid} is run by user {owner}; refused, because it could read all you send. Use another name"
    )]
    ForeignNode {
        /// Name of the node.
        node: String,
        /// Our user id.
        uid: u32,
        /// Theirs.
        owner: u32,
    },
    /// Library and node are of different releases.
    #[error("node {node:?} (process {pid}) is of another release: {why}; `vmmc node stop --name {node}` ends it")]
    Version {
        /// Name of the node.
        node: String,
        /// Its process id; 0 if it cannot be seen from here.
        pid: u32,
        /// The versions of both.
        why: String,
    },
    /// The node refused or did not answer.
    #[error("attach to node {node:?}: {error}")]
    Call {
        /// Name of the node.
        node: String,
        /// Why.
        error: CallError,
    },
    /// Shared areas could not be mapped, or the kernel refused something else.
    #[error("attach to node {node:?}: {why}")]
    System {
        /// Name of the node.
        node: String,
        /// What failed.
        why: String,
    },
}

/// Why memory could not be allocated, taken over or registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BufferError {
    /// The memory could not be made or mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The caller's memory cannot be taken over.
    #[error(transparent)]
    Adopt(#[from] AdoptError),
    /// The node did not take it.
    #[error("register {len} bytes: {error}")]
    Call {
        /// Bytes.
        len: u64,
        /// Why.
        error: CallError,
    },
}

/// Why memory does not stand in a [`PinnedTable`](crate::PinnedTable).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlaceError {
    /// The session's tables would have too many entries.
    #[error(
        "a table of {entries} entries: {most} are left in a row for this session; drop another table, or ask for fewer"
    )]
    TooLarge {
        /// As asked.
        entries: u32,
        /// Most that would be given.
        most: u32,
    },
    /// The table is too small.
    #[error("entries {index} to {end} of a table of {entries}; choose a smaller index, or make a larger table")]
    NoSuchEntry {
        /// First.
        index: u32,
        /// Behind the last.
        end: usize,
        /// Of the table.
        entries: usize,
    },
    /// An entry is a page.
    #[error(
        "{len} bytes at {address:#x} are not whole pages; lend memory that starts on a page of 4096 bytes and is a multiple of it long"
    )]
    NotWholePages {
        /// Where.
        address: usize,
        /// Bytes.
        len: usize,
    },
    /// This memory, or any memory of this process.
    #[error("the memory cannot be pinned: {why}; send it as any other memory")]
    Unpinnable {
        /// Why.
        why: String,
    },
    /// The node did not take it.
    #[error("place translations: {error}")]
    Call {
        /// Why.
        error: CallError,
    },
}

/// Why an export was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExportError {
    /// The memory could not be had.
    #[error("export {name}: {error}")]
    Memory {
        /// Name of the export, quoted, or "without a name".
        name: String,
        /// Why.
        error: BufferError,
    },
    /// The node refused or did not answer.
    #[error("export {name}: {error}")]
    Call {
        /// Name of the export, quoted, or "without a name".
        name: String,
        /// Why.
        error: CallError,
    },
    /// There are no such frames.
    #[error(
        "endpoint {name:?}: {count} frames of {bytes} bytes for each sender; ask for up to {ENDPOINT_FRAMES_MAX}, of 8 to {FRAME_BYTES_MAX} bytes, a multiple of 8"
    )]
    Frames {
        /// Name of the endpoint.
        name: String,
        /// How many were asked for.
        count: u64,
        /// Bytes of each.
        bytes: u64,
    },
    /// There are no such token tables.
    #[error(
        "token table: {count} buffers of {bytes} bytes; ask for up to {TOKENS_MAX}, of 1 to {TOKEN_BYTES_MAX} bytes"
    )]
    Tokens {
        /// How many were asked for.
        count: u64,
        /// Bytes of each.
        bytes: u64,
    },
    /// The kernel gave no descriptor for event loops.
    #[error("endpoint {name:?}: {why}; raise the limit of descriptors (ulimit -n)")]
    Descriptor {
        /// Name of the endpoint.
        name: String,
        /// What failed.
        why: String,
    },
}

/// Why an export could not be ended in the regular way. The export is gone from the caller's view
/// in any case.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnexportError {
    /// The node refused or did not answer.
    #[error("unexport {export}: {error}")]
    Call {
        /// The export.
        export: String,
        /// Why.
        error: CallError,
    },
    /// Its memory had to be moved away from importers and could not.
    #[error(
        "unexport {export}: the pages could not be moved away from importers that still map them ({error}); free memory, or end the process"
    )]
    Move {
        /// The export.
        export: String,
        /// Why.
        error: RegionError,
    },
    /// Its memory had to be moved, but other exports or buffers use the same pages.
    #[error(
        "unexport {export}: an importer may still reach its pages, and they cannot be moved because {users} other export(s) or buffer(s) use them; end those first, then unexport by moving"
    )]
    Shared {
        /// The export.
        export: String,
        /// How many others.
        users: usize,
    },
}

/// Why an import was not granted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImportError {
    /// The node refused or did not answer.
    #[error("import {what}: {error}")]
    Call {
        /// What was to be imported.
        what: String,
        /// Why.
        error: CallError,
    },
    /// The memory could not be mapped.
    #[error("import {what}: {error}")]
    Map {
        /// What was to be imported.
        what: String,
        /// Why.
        error: RegionError,
    },
}

impl ImportError {
    /// Kind of refusal, when it is one.
    pub fn refusal(&self) -> Option<RefusalCode> {
        if let ImportError::Call { error, .. } = self { error.refusal() } else { None }
    }
}

impl ExportError {
    /// Kind of refusal, when it is one.
    pub fn refusal(&self) -> Option<RefusalCode> {
        if let ExportError::Call { error, .. } = self { error.refusal() } else { None }
    }
}

/// Why a wait for a word or a notification ended without it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WaitError {
    /// The deadline passed.
    #[error("{what}: nothing came within {after_ms} ms")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long, milliseconds.
        after_ms: u64,
    },
    /// The node died or ended.
    #[error("{what}: node {node:?} is gone; start it again (`vmmc node start --name {node}`) and attach anew")]
    NodeGone {
        /// What was waited for.
        what: String,
        /// Name of the node.
        node: String,
    },
    /// The export does not allow notifications.
    #[error("{what}: the export does not allow notifications, so none can come; export it with notifications")]
    NotAllowed {
        /// What was waited for.
        what: String,
    },
    /// The word is out of reach.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// One of several things belongs to another session, of which this one learns nothing.
    #[error("the thing at place {place} is of another session; wait for it there, or attach once for all")]
    OtherSession {
        /// Its place among those to wait for, from 0.
        place: usize,
    },
    /// The session belongs to the parent process.
    #[error("this session was attached by process {parent} before a fork; attach in the child to get one of its own")]
    Forked {
        /// The process that attached.
        parent: u32,
    },
    /// The kernel refused a descriptor or a thread.
    #[error("{what}: {why}")]
    System {
        /// What was asked for.
        what: String,
        /// What failed.
        why: String,
    },
}

/// Why a redirection was not posted, or cannot be reported.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RedirectError {
    /// The node refused or did not answer.
    #[error("redirect bytes {offset}..{end} of export {export}: {error}", end = offset.saturating_add(*len))]
    Call {
        /// The export.
        export: String,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Why.
        error: CallError,
    },
    /// The node did not take it.
    #[error("redirect bytes {offset}..{end} of export {export}: {error}", end = offset.saturating_add(*len))]
    Refused {
        /// The export.
        export: String,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Why.
        error: vmmc_nic::RedirectError,
    },
    /// The export ended first.
    #[error("export {export} has ended, and with it what was redirected; export it anew")]
    ExportEnded {
        /// The export.
        export: String,
    },
    /// The range lies outside of the export or the destination outside of its buffer.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The destination is registered with another node.
    #[error("the destination buffer belongs to another session; make it with the session of the export")]
    ForeignBuffer,
    /// Too many at once.
    #[error("{max} redirections are posted by this process already; wait for one or cancel one")]
    TooMany {
        /// The bound.
        max: usize,
    },
    /// Not all bytes came in time.
    #[error(
        "redirection of export {export}: {pending} bytes have not come within {after_ms} ms; wait on, or cancel it"
    )]
    TimedOut {
        /// The export.
        export: String,
        /// Bytes that have not come.
        pending: u64,
        /// How long we waited, milliseconds.
        after_ms: u64,
    },
}

/// Why an import cannot be bound for automatic update.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BindError {
    /// Plain stores reach other memory only through a mapping.
    #[error(
        "import {import} cannot be bound for automatic update: {why}; send to it, or use a mappable export on this node imported with read and write"
    )]
    NotMapped {
        /// The import.
        import: String,
        /// Why there is no mapping.
        why: NotMapped,
    },
    /// A binding stores, so it needs the write right.
    #[error(
        "import {import} has the rights {granted}, and a binding needs read and write; import it with the rights {all}",
        granted = granted.words(), all = granted.union(Rights::READ | Rights::WRITE).words()
    )]
    NoRight {
        /// The import.
        import: String,
        /// What it has.
        granted: Rights,
    },
    /// The node refused or did not answer.
    #[error("bind import {import}: {error}")]
    Call {
        /// The import.
        import: String,
        /// Why.
        error: CallError,
    },
    /// The import has ended.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// Milliseconds for messages.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    /// C and Python give the same texts, so they name no call of one language.
    #[test]
    fn no_message_speaks_rust() {
        let source =
            concat!(include_str!("error.rs"), include_str!("error/messages.rs"), include_str!("error/transfers.rs"));
        let messages: Vec<&str> = source.split("#[error(").skip(1).filter_map(|rest| rest.split(")]").next()).collect();
        assert!(messages.len() > 50);
        for message in messages {
            let text: String = message.split('"').skip(1).step_by(2).collect();
            for word in ["`.", "::", "(&", "Option", "Rights", "`Buffer", "&mut", "unwrap"] {
                assert!(!text.contains(word), "{word} in {text}");
            }
        }
    }
}
