//! A process's attachment to its node: the door to exports, imports, buffers and notifications.
//!
//! Invariant: all state is behind one shared core; a session can be used from any number of
//! threads. A child of a fork finds its parent's session unusable.

use crate::attach;
use crate::buffer::Buffer;
use crate::core::Core;
use crate::endpoint::{ConnectionBuilder, EndpointBuilder};
use crate::error::{AccessError, AttachError, BufferError, CallError, PlaceError, WaitError};
use crate::export::ExportBuilder;
use crate::hub::Taker;
use crate::import::ImportBuilder;
use crate::lent::Lent;
use crate::limits::{ANSWER_GRACE, INLINE_BYTES_MAX, NOTIFICATIONS_PER_EXPORT_MAX, REDIRECTIONS_MAX, SHARED_LANE};
use crate::limits::{TIMEOUT_DEFAULT, TRANSFERS_MAX};
use crate::memory::Origin;
use crate::notification::{HandlerGuard, Notification};
use crate::pinned_table::PinnedTable;
use crate::pins::PinOptions;
use crate::ring::{Ring, RingBuilder};
use crate::stats::SessionStats;
use crate::token_region::TokenRegionBuilder;
use crate::tokens::TokenTableBuilder;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use vmmc_host::adopt::CallerMemory;
use vmmc_host::control::{Answer, Call, NodeInfo, What, timeout_ms};
use vmmc_host::limits::{EXPORTS_PER_PROCESS_MAX, REGION_BYTES_MAX};
use vmmc_host::pin::PinSpace;
use vmmc_host::{Attachment, Deadline, Nanos, Region};
use vmmc_nic::{ExportId, Sender};

/// Name of the environment variable that names another default node.
pub(crate) const NODE_VARIABLE: &str = "VMMC_NODE";
/// Name of the default node.
const DEFAULT_NODE: &str = "default";

/// An attachment to a node. Clones are the same attachment; it ends with the last clone and the
/// last export, import and buffer made with it.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-session").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// let export = session.export(4096).name("words").create()?;
/// session.import("words").open()?.send(0, b"one")?;
/// assert_eq!(session.stats().sends_mapped, 1);
/// let info = session.node_info(true)?; // what the node says of everybody
/// assert_eq!(info.exports[0].name.as_deref(), Some("words"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Source: [NT §3.1] export and import through a node; which waits it has is told in
/// [`SessionBuilder::timeout`].
#[derive(Clone)]
pub struct Session {
    core: Arc<Core>,
}

/// Choices made before attaching.
#[derive(Clone, Debug)]
#[must_use = "nothing is attached before `attach`"]
pub struct SessionBuilder {
    pub(crate) node: String,
    pub(crate) start: bool,
    pub(crate) timeout: Duration,
    pub(crate) trace: Option<PathBuf>,
}

/// Who the node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Name that other nodes know it by, and that [`node`](crate::ImportBuilder::node) of an import
    /// on another node takes. It is the name that this session was attached by only where the node
    /// was given no other (`vmmc node start --as`) and is not the default one, which is known by
    /// the name of its machine.
    pub name: String,
    /// UDP addresses it listens on.
    pub listen: Vec<String>,
}

/// Bounds of a session, for programs that plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a send that travel inside the descriptor.
    pub inline_bytes: usize,
    /// Transfers through the engine that can be outstanding at once; further ones wait.
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

impl Default for SessionBuilder {
    fn default() -> Self {
        let node = std::env::var(NODE_VARIABLE).ok().filter(|name| !name.is_empty());
        SessionBuilder {
            node: node.unwrap_or_else(|| DEFAULT_NODE.into()),
            start: true,
            timeout: TIMEOUT_DEFAULT,
            trace: None,
        }
    }
}

impl SessionBuilder {
    /// Name of the node of this user; default `$VMMC_NODE`, else `default`.
    pub fn node(mut self, name: &str) -> SessionBuilder {
        self.node = name.to_string();
        self
    }

    /// Whether to start the node when none runs; default true. The program is `$VMMC_BIN`, else
    /// `vmmc` beside the running program or in its parent folders, else on the path; the node ends
    /// a minute after its last process.
    pub fn start_node(mut self, start: bool) -> SessionBuilder {
        self.start = start;
        self
    }

    /// Default of all waits of the session; 5 s if not set.
    pub fn timeout(mut self, timeout: Duration) -> SessionBuilder {
        self.timeout = timeout;
        self
    }

    /// Records every transfer of the session in this file, for `vmmc utlb`; what `$VMMC_TRACE` says
    /// if this is not called.
    pub fn trace(mut self, file: &Path) -> SessionBuilder {
        self.trace = Some(file.to_path_buf());
        self
    }

    /// Attaches.
    ///
    /// # Errors
    /// [`AttachError`]. The node must belong to our own user or to root; the kernel says whose it
    /// is.
    pub fn attach(self) -> Result<Session, AttachError> {
        let attachment = attach::reach(&self)?;
        self.over(attachment)
    }

    /// Attaches over a way to an embedded or simulated node.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn over(self, attachment: Attachment) -> Result<Session, AttachError> {
        Ok(Session { core: attach::attach(self, attachment)? })
    }
}

impl Session {
    /// Attaches to the user's default node, starting it when none runs.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach() -> Result<Session, AttachError> {
        Session::builder().attach()
    }

    /// Attaches with choices.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    /// Attaches over a way to an embedded or simulated node.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn over(attachment: Attachment) -> Result<Session, AttachError> {
        Session::builder().over(attachment)
    }

    /// The node.
    pub fn node(&self) -> &NodeIdentity {
        &self.core.identity
    }

    /// Id of this process on its node.
    pub fn process_id(&self) -> u32 {
        self.core.process
    }

    /// Bounds.
    pub fn limits(&self) -> Limits {
        Limits {
            inline_bytes: INLINE_BYTES_MAX,
            transfers: TRANSFERS_MAX,
            exports: EXPORTS_PER_PROCESS_MAX,
            redirections: REDIRECTIONS_MAX,
            lanes: SHARED_LANE as usize,
            notifications_queued: NOTIFICATIONS_PER_EXPORT_MAX,
            export_bytes: REGION_BYTES_MAX,
        }
    }

    /// Default of all waits.
    pub fn timeout(&self) -> Duration {
        self.core.timeout
    }

    /// A deadline on this session's clock.
    pub fn deadline(&self, after: Duration) -> Deadline {
        self.core.deadline(after)
    }

    /// What a deadline that is this far away is counted from, cheaply: now on this session's clock,
    /// or up to 10 ms later if it is a second away or more.
    #[doc(hidden)]
    #[inline]
    pub fn about_now(&self, before: Duration) -> Nanos {
        self.core.waiting.waiter.about_now(before)
    }

    /// Whether this is the process that attached. The child of a fork can do nothing with a session
    /// of its parent's; it should not take locks either, which another thread may have held then.
    ///
    /// # Errors
    /// [`AccessError::Forked`]: it is a child.
    #[inline]
    pub fn must_be_here(&self) -> Result<(), AccessError> {
        self.core.must_be_here()
    }

    /// Whether the node is still there, as far as is known without asking it.
    pub fn is_alive(&self) -> bool {
        self.core.usable().is_ok()
    }

    /// Whether threads of this process run the node: one that waits does so while it waits.
    #[doc(hidden)]
    #[inline]
    pub fn steps_node(&self) -> bool {
        self.core.waiting.waiter.steps()
    }

    /// Runs an embedded node once; does nothing with a daemon. Programs that compute for long
    /// between calls can step their node with this.
    pub fn step(&self) {
        self.core.step();
    }

    /// Description of the node; `details` lists exports, imports and processes too.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn node_info(&self, details: bool) -> Result<NodeInfo, CallError> {
        match self.core.call(Call::Info { details }, &[], self.core.default_deadline())? {
            (Answer::Info(info), _) => Ok(*info),
            _ => Err(self.core.wrong_answer("to a question for information")),
        }
    }

    /// Asks a service of the node something, as its own user or root; question and answer are as
    /// the service defines them.
    ///
    /// # Errors
    /// A refusal for other users, for a service that the node does not have, and for one of another
    /// version; or that the node is gone.
    pub fn ask_service(&self, service: u16, version: u16, question: Vec<u8>) -> Result<Vec<u8>, CallError> {
        let call = Call::Ask { service, version, message: question };
        match self.core.call(call, &[], self.core.default_deadline())? {
            (Answer::Service { message }, _) => Ok(message),
            _ => Err(self.core.wrong_answer("to a question to a service")),
        }
    }

    /// Round trip from engine to engine. `node` is a name or `address:port`.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn ping(&self, node: &str, timeout: Duration) -> Result<Duration, CallError> {
        let call = Call::Ping { node: node.to_string(), timeout_ms: timeout_ms(timeout) };
        match self.core.call(call, &[], self.core.deadline(timeout.saturating_add(ANSWER_GRACE)))? {
            (Answer::Pong { rtt_ns, .. }, _) => Ok(Duration::from_nanos(rtt_ns)),
            _ => Err(self.core.wrong_answer("to a ping")),
        }
    }

    /// Name of the node that a sender is a process of; `None`: the session with that node has
    /// ended, and so have all imports of the sender's.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn node_of(&self, sender: Sender) -> Result<Option<String>, CallError> {
        if sender.is_local() {
            return Ok(Some(self.node().name.clone()));
        }
        let call = Call::SessionNode { session: sender.session };
        match self.core.call(call, &[], self.core.default_deadline())? {
            (Answer::SessionNode { node }, _) => Ok(node),
            _ => Err(self.core.wrong_answer("to a question for a node")),
        }
    }

    /// Makes the node know a peer by its addresses (`address:port`; several are several paths to
    /// one node).
    ///
    /// # Errors
    /// [`CallError`].
    pub fn add_peer<S: AsRef<str>>(&self, addresses: &[S]) -> Result<(), CallError> {
        let addresses = addresses.iter().map(|a| a.as_ref().to_string()).collect();
        self.core.call(Call::AddPeer { addresses }, &[], self.core.default_deadline()).map(drop)
    }

    /// Ends the node, for all its processes. Only its own user and root may.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn stop_node(&self) -> Result<(), CallError> {
        match self.core.call(Call::Stop, &[], self.core.default_deadline()) {
            // It may be gone before its answer is read.
            Ok(_) | Err(CallError::NodeGone { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Leaves the node at once, as the end of the process would: exports end (their importers are
    /// told that the owner has gone), later calls fail. Without this, a session ends with the last
    /// handle made with it.
    pub fn leave(&self) {
        if !self.core.is_forked() {
            self.core.control.shut_down();
            self.core.node_gone();
        }
    }

    /// How this session pins memory for [`Pinned`](crate::Pinned) and lent sources and targets.
    /// Before the first of them, else it changes nothing; says whether it did.
    pub fn set_pinning(&self, options: PinOptions) -> bool {
        self.core.pins.set_options(options)
    }

    /// Memory that stays where it is while the value lives, as the borrow proves: sends from it
    /// need not ask whether another thread is just unmapping it, which is the one system call of a
    /// send from [`Pinned`](crate::Pinned) memory. Nothing is pinned before it is used.
    pub fn lend<'a>(&self, memory: &'a [u8]) -> Lent<'a> {
        if let Ok(space) = PinSpace::of_process() {
            space.synchronize();
        }
        Lent(memory)
    }

    /// A table of so many translations that the program places itself, under indices that it
    /// chooses. [`PinnedTable::range`] names what stands in it as a source of sends.
    ///
    /// # Errors
    /// [`PlaceError::TooLarge`].
    pub fn pinned_table<'a>(&self, entries: u32) -> Result<PinnedTable<'a>, PlaceError> {
        PinnedTable::new(self.core.clone(), entries)
    }

    /// Ends the pinning of memory: its whole pages are private memory again, and the node knows
    /// nothing of them. Needed before `mremap` over pinned and other memory, and good before memory
    /// is unmapped that was pinned: it is noticed otherwise, but this costs less.
    ///
    /// # Errors
    /// [`BufferError`]: the memory may still be pinned.
    pub fn forget(&self, memory: &mut [u8]) -> Result<(), BufferError> {
        self.core.pins.forget(&self.core, memory)
    }

    /// Counters of this session.
    pub fn stats(&self) -> SessionStats {
        self.core.stats()
    }

    /// Exports new memory of `len` bytes, zeroed and reserved. It starts on a page, so importers of
    /// this node can map it.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-session-export").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// let export = session.export(1 << 20).name("pixels").notify(true).create()?;
    /// assert_eq!((export.len(), export.name()), (1 << 20, Some("pixels")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn export(&self, len: u64) -> ExportBuilder {
        ExportBuilder::new(self.clone(), Origin::New(len))
    }

    /// Exports memory that the caller has. A `Vec<u8>` is given away: its bytes are copied once
    /// onto pages of their own, which importers of this node can map. A range claimed with
    /// `CallerMemory::from_raw_parts` is taken over in place: one copy of its pages now, one at the
    /// end; unless it covers whole pages, importers of this node go through the engine.
    pub fn export_memory(&self, memory: impl Into<CallerMemory>) -> ExportBuilder {
        ExportBuilder::new(self.clone(), Origin::Caller(memory.into()))
    }

    /// Exports a region.
    pub fn export_region(&self, region: Region) -> ExportBuilder {
        ExportBuilder::new(self.clone(), Origin::Region(region))
    }

    /// Exports registered memory: that of a [`TokenRegion`], for example. Unless it is all of its
    /// region, as that of [`buffer`](Self::buffer) is, importers of this node go through the
    /// engine.
    ///
    /// [`TokenRegion`]: crate::TokenRegion
    pub fn export_buffer(&self, buffer: &Buffer) -> ExportBuilder {
        ExportBuilder::new(self.clone(), Origin::Buffer(buffer.clone()))
    }

    /// A ring that holds `bytes` of records (a multiple of 8, from 8 KiB to 4 MiB), to which others
    /// append.
    pub fn ring(&self, bytes: u64) -> RingBuilder {
        RingBuilder::new(self.export(Ring::export_bytes(bytes)))
    }

    /// Buffers, so many of so many bytes each, that take one payload each from whoever has their
    /// token.
    pub fn token_table(&self, count: u64, bytes: u64) -> TokenTableBuilder {
        TokenTableBuilder::new(self, count, bytes)
    }

    /// A region of so many bytes, whose ranges take one payload each from whoever has their token;
    /// so many of them at a time.
    pub fn token_region(&self, ranges: u64, bytes: u64) -> TokenRegionBuilder {
        TokenRegionBuilder::new(self, ranges, bytes)
    }

    /// An endpoint of this name, to which others connect and send messages.
    pub fn endpoint(&self, name: &str) -> EndpointBuilder {
        EndpointBuilder::new(self.clone(), name)
    }

    /// Connects to the endpoint of this name.
    pub fn connect(&self, endpoint: &str) -> ConnectionBuilder {
        ConnectionBuilder::new(self.clone(), endpoint)
    }

    /// Imports by name.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-session-import").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// use std::time::Duration;
    /// use vmmc::Rights;
    /// let export = session.export(4096).name("later").create()?;
    /// // The name of an export that somebody will make; with the right for atomic operations.
    /// let later = session.import("later").rights(Rights::ALL);
    /// let import = later.wait(Duration::from_secs(5)).open()?;
    /// assert_eq!(import.export_id(), export.id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn import(&self, name: &str) -> ImportBuilder {
        ImportBuilder::new(self.clone(), What::Name(name.to_string()))
    }

    /// Imports by id.
    pub fn import_id(&self, id: ExportId) -> ImportBuilder {
        ImportBuilder::new(self.clone(), What::Id(id.to_u64()))
    }

    /// New registered memory for sends and fetches without copies.
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn buffer(&self, len: u64) -> Result<Buffer, BufferError> {
        self.register(Origin::New(len))
    }

    /// The caller's memory, registered for sends and fetches without copies; costs as
    /// [`export_memory`](Self::export_memory) says.
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn adopt(&self, memory: impl Into<CallerMemory>) -> Result<Buffer, BufferError> {
        self.register(Origin::Caller(memory.into()))
    }

    /// A region, registered for sends and fetches without copies: that of an export, for example.
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn buffer_region(&self, region: Region) -> Result<Buffer, BufferError> {
        self.register(Origin::Region(region))
    }

    /// The next notification of any export that has no handler of its own; waits the session's
    /// timeout.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_notification(&self) -> Result<Notification, WaitError> {
        self.wait_notification_by(self.core.default_deadline())
    }

    /// As [`wait_notification`](Self::wait_notification), until a deadline.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_notification_by(&self, deadline: Deadline) -> Result<Notification, WaitError> {
        self.core.wait_notification(Taker::Any, deadline)
    }

    /// A notification if one is there. With [`event_fd`](Self::event_fd): call it until it gives
    /// none, then sleep.
    pub fn take_notification(&self) -> Option<Notification> {
        self.core.take_notification(Taker::Any)
    }

    /// Runs a handler on a thread of its own for every notification of exports without their own
    /// handler, until the guard is dropped.
    ///
    /// # Errors
    /// [`WaitError::System`] when no thread can be had.
    pub fn on_notification(
        &self,
        handler: impl FnMut(Notification) + Send + 'static,
    ) -> Result<HandlerGuard, WaitError> {
        self.core.handle_notifications(Taker::Any, handler)
    }

    /// Has all threads that wait in this session look again at what they wait for: one of them may
    /// be told by other means to wait no more, as in
    /// [`Endpoint::wait_into_unless`](crate::Endpoint::wait_into_unless).
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// # let node = Embedded::start(NodeConfig::new("doc-wake-waits").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// let mut orders = session.endpoint("orders").create()?;
    /// let closed = AtomicBool::new(false);
    /// let deadline = session.deadline(std::time::Duration::from_secs(60));
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         closed.store(true, Ordering::Release);
    ///         session.wake_waits();
    ///     });
    ///     let mut message = vmmc::Message::default();
    ///     let stopped = || closed.load(Ordering::Acquire);
    ///     let came = orders.wait_into_unless(&mut message, deadline, stopped);
    ///     assert_eq!(came, Ok(false), "long before the deadline");
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wake_waits(&self) {
        self.core.kick();
    }

    /// A descriptor for event loops (poll, epoll): readable when
    /// [`take_notification`](Self::take_notification) may have something, and for ever when the
    /// node has gone. Only wait for it to be readable; do not read it. When nothing can be taken
    /// and [`is_alive`](Self::is_alive) says no, which it does a moment later, wait for it no
    /// longer.
    ///
    /// # Errors
    /// [`WaitError::System`] when no descriptor can be had.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, WaitError> {
        self.core.event_fd()
    }

    /// Notifications of all exports queue up and are not delivered, until
    /// [`unblock_notifications`](Self::unblock_notifications).
    pub fn block_notifications(&self) {
        self.core.hub.block(Taker::Any, true);
    }

    /// Ends [`block_notifications`](Self::block_notifications); what has queued is delivered.
    pub fn unblock_notifications(&self) {
        self.core.hub.block(Taker::Any, false);
        self.core.kick();
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn register(&self, source: Origin) -> Result<Buffer, BufferError> {
        let piece = source.register(&self.core, self.core.default_deadline())?;
        Ok(Buffer::new(self.core.clone(), piece))
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session(process {} on node {:?})", self.core.process, self.core.identity.name)
    }
}
