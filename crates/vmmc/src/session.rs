//! A process's attachment to its node.
use crate::*;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An attachment to a node. Clones are the same attachment; it ends with the last clone and the last export, import and buffer made with it.
#[derive(Clone)]
pub struct Session {}

/// Choices made before attaching.
#[derive(Clone, Debug)]
pub struct SessionBuilder {}

/// Who the node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Name.
    pub name: String,
    /// UDP addresses it listens on.
    pub listen: Vec<String>,
}

/// Bounds of this session, for programs that plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a send that travel inside the descriptor.
    pub inline_bytes: usize,
    /// Transfers through the engine that can be outstanding at once.
    pub transfers: usize,
    /// Exports of one process.
    pub exports: usize,
    /// Redirections of one process at once.
    pub redirections: usize,
    /// Threads that run mapped transfers without sharing a lane.
    pub lanes: usize,
    /// Notifications that queue for one export before further ones are counted as lost.
    pub notifications_queued: usize,
    /// Largest export, bytes.
    pub export_bytes: u64,
}

#[allow(unused_variables)]
impl Session {
    /// Attaches to the user's default node (`$VMMC_NODE`, else `default`), starting it when none runs.
    pub fn attach() -> Result<Session, AttachError> {
        unimplemented!("skeleton")
    }
    /// Attaches with choices.
    pub fn builder() -> SessionBuilder {
        unimplemented!("skeleton")
    }
    /// Attaches over a way to an embedded or simulated node.
    pub fn over(attachment: Attachment) -> Result<Session, AttachError> {
        unimplemented!("skeleton")
    }
    /// The node.
    pub fn node(&self) -> &NodeIdentity {
        unimplemented!("skeleton")
    }
    /// Id of this process on its node.
    pub fn process_id(&self) -> u32 {
        unimplemented!("skeleton")
    }
    /// Bounds.
    pub fn limits(&self) -> Limits {
        unimplemented!("skeleton")
    }
    /// Default of all waits.
    pub fn timeout(&self) -> Duration {
        unimplemented!("skeleton")
    }
    /// A deadline on this session's clock.
    pub fn deadline(&self, after: Duration) -> Deadline {
        unimplemented!("skeleton")
    }
    /// Whether the node is still there.
    pub fn is_alive(&self) -> bool {
        unimplemented!("skeleton")
    }
    /// Runs an embedded node once; nothing with a daemon.
    pub fn step(&self) {
        unimplemented!("skeleton")
    }
    /// Description of the node; `details` lists exports, imports and processes too.
    pub fn node_info(&self, details: bool) -> Result<NodeInfo, CallError> {
        unimplemented!("skeleton")
    }
    /// Round trip from engine to engine. `node` is a name or `address:port`.
    pub fn ping(&self, node: &str, timeout: Duration) -> Result<Duration, CallError> {
        unimplemented!("skeleton")
    }
    /// Makes the node know a peer by its addresses (several: several paths).
    pub fn add_peer<S: AsRef<str>>(&self, addresses: &[S]) -> Result<(), CallError> {
        unimplemented!("skeleton")
    }
    /// Ends the node, for all its processes.
    pub fn stop_node(&self) -> Result<(), CallError> {
        unimplemented!("skeleton")
    }
    /// Counters of this session.
    pub fn stats(&self) -> SessionStats {
        unimplemented!("skeleton")
    }
    /// Export of new memory.
    pub fn export(&self, len: u64) -> ExportBuilder {
        unimplemented!("skeleton")
    }
    /// Export of memory that the caller has.
    pub fn export_memory(&self, memory: impl Into<CallerMemory>) -> ExportBuilder {
        unimplemented!("skeleton")
    }
    /// Export of a region.
    pub fn export_region(&self, region: Region) -> ExportBuilder {
        unimplemented!("skeleton")
    }
    /// Import by name.
    pub fn import(&self, name: &str) -> ImportBuilder {
        unimplemented!("skeleton")
    }
    /// Import by id.
    pub fn import_id(&self, id: ExportId) -> ImportBuilder {
        unimplemented!("skeleton")
    }
    /// Memory for sends and fetches without copies.
    pub fn buffer(&self, len: u64) -> Result<Buffer, BufferError> {
        unimplemented!("skeleton")
    }
    /// The caller's memory for sends and fetches without copies.
    pub fn adopt(&self, memory: impl Into<CallerMemory>) -> Result<Buffer, BufferError> {
        unimplemented!("skeleton")
    }
    /// The next notification of any export; waits the session's timeout.
    pub fn wait_notification(&self) -> Result<Notification, WaitError> {
        unimplemented!("skeleton")
    }
    /// The next notification of any export.
    pub fn wait_notification_by(&self, deadline: Deadline) -> Result<Notification, WaitError> {
        unimplemented!("skeleton")
    }
    /// A notification if one is there.
    pub fn take_notification(&self) -> Option<Notification> {
        unimplemented!("skeleton")
    }
    /// Runs a handler on a thread of its own for every notification.
    pub fn on_notification(
        &self,
        handler: impl FnMut(Notification) + Send + 'static,
    ) -> Result<HandlerGuard, WaitError> {
        unimplemented!("skeleton")
    }
    /// For event loops: readable when [`take_notification`](Self::take_notification) has something. Call that until it gives none.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, WaitError> {
        unimplemented!("skeleton")
    }
    /// Notifications of all exports queue up and are not delivered.
    pub fn block_notifications(&self) {
        unimplemented!("skeleton")
    }
    /// Ends [`block_notifications`](Self::block_notifications).
    pub fn unblock_notifications(&self) {
        unimplemented!("skeleton")
    }
}

#[allow(unused_variables)]
impl SessionBuilder {
    /// Name of the node of this user.
    #[must_use]
    pub fn node(self, name: &str) -> SessionBuilder {
        unimplemented!("skeleton")
    }
    /// Whether to start a node when none runs; default true.
    #[must_use]
    pub fn start_node(self, start: bool) -> SessionBuilder {
        unimplemented!("skeleton")
    }
    /// Default of all waits of the session; 5 s if not set.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> SessionBuilder {
        unimplemented!("skeleton")
    }
    /// Attaches.
    pub fn attach(self) -> Result<Session, AttachError> {
        unimplemented!("skeleton")
    }
    /// Attaches over a way to an embedded or simulated node.
    pub fn over(self, attachment: Attachment) -> Result<Session, AttachError> {
        unimplemented!("skeleton")
    }
}
