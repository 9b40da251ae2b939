//! What a process has once: its way to the node, and the areas that it has mapped.
//!
//! Invariant: making one costs nothing and talks to nobody; the node is asked for when the first
//! connection is worth an offer. A forked child begins with a client of its own, so nothing that
//! another thread held locked at the fork matters to it. Source: [NT §4].

use crate::connection::{Connection, Forking};
use crate::core::Choices;
use crate::ledger::Ledger;
use crate::limits::{
    ADOPT_TIME, FORK_PAUSE, FORK_TIMEOUT, GENERATION_CHUNKS, GENERATIONS_CHUNK, LOCK_TRIES, OFFER_AFTER_BYTES,
    OFFER_AFTER_EXCHANGES,
};
use crate::node::{Adoption, Node};
use crate::offer_policy::OfferPolicy;
use crate::offers::{Offers, RandomOffers};
use crate::ready::ReadySet;
use crate::types::Bypass;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::cell::Cell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use vmmc_host::{Deadline, Nanos};
use vmmc_stream::{forget_thread_id, is_marked_upgraded};

/// Settings of a [`Context`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// User whose node to use.
    pub node_uid: u32,
    /// Name of the node.
    pub node_name: String,
    /// Called with each descriptor that the context keeps: may move it out of the application's
    /// way; gives back the one to use.
    pub keep_fd: fn(OwnedFd) -> OwnedFd,
    /// Asked by a thread that is about to sleep in a ring: whether its call must end as one that a
    /// signal interrupted does. [`Connection::wake_own`] makes those ask that sleep already.
    pub is_interrupted: fn() -> bool,
    /// Whether this thread is in another call of the library, below a signal handler. Where that is
    /// not known, it is to be feared.
    pub is_nested: fn() -> bool,
    /// Waits until a socket is ready, at most until the deadline; says whether it was. A way to
    /// wait in which the process's threads can be cancelled, where that is asked for.
    pub wait_socket: fn(BorrowedFd<'_>, PollFlags, Deadline) -> Result<bool, Errno>,
    /// When a connection is offered.
    pub offers: Offers,
    /// Receives with data after which a connection is offered.
    pub offer_after_exchanges: u32,
    /// Bytes after which a connection is offered.
    pub offer_after_bytes: u64,
    /// Whether short sends to another node go by the ring without a check of what that gains: for
    /// tests.
    pub between_always: bool,
}

impl Settings {
    /// The node named by `VMMC_SOCKETS_NODE` (`uid/name`), or the user's own of the default name.
    /// `VMMC_SOCKETS_BETWEEN=always` sets [`between_always`](Self::between_always); `VMMC_OFFER`
    /// sets [`offers`](Self::offers), and a text that makes no sense is as if it were not there.
    pub fn from_env() -> Settings {
        let own = rustix::process::geteuid().as_raw();
        let text = std::env::var("VMMC_SOCKETS_NODE").unwrap_or_default();
        let (uid, name) = text.split_once('/').unwrap_or(("", "default"));
        Settings {
            node_uid: uid.parse().unwrap_or(own),
            node_name: name.to_string(),
            keep_fd: vmmc_stream::move_high,
            is_interrupted: || false,
            is_nested: || true,
            wait_socket: vmmc_stream::wait_socket,
            offers: std::env::var("VMMC_OFFER").ok().and_then(|text| Offers::parse(&text)).unwrap_or(Offers::Usual),
            offer_after_exchanges: OFFER_AFTER_EXCHANGES,
            offer_after_bytes: OFFER_AFTER_BYTES,
            between_always: std::env::var_os("VMMC_SOCKETS_BETWEEN").is_some_and(|how| how == "always"),
        }
    }
}

/// The sockets side of a process.
#[derive(Debug)]
pub struct Context {
    settings: Settings,
    /// Which of `nodes` is this process's own.
    generation: AtomicUsize,
    nodes: Box<[OnceLock<Nodes>]>,
    ledger: Ledger,
    gate: ForkGate,
    /// How offers of this process turned out.
    pub(crate) offers: OfferPolicy,
    /// Decides when connections are offered, where that is left to chance.
    pub(crate) random_offers: RandomOffers,
    /// Core of the peer from which the last bytes came, plus one: where an event loop expects the
    /// next event from.
    pub(crate) peer_core: AtomicU32,
    /// Which medium suits the connections to each other node.
    pub(crate) choices: Choices,
    /// What wakes the tasks of each runtime that has streams.
    #[cfg(feature = "tokio")]
    pub(crate) drivers: crate::tasks::Drivers,
}

/// The clients of some generations.
type Nodes = [Arc<Node>; GENERATIONS_CHUNK];

fn nodes() -> Nodes {
    std::array::from_fn(|_| Arc::default())
}

/// Keeps forks and joins apart.
#[derive(Debug, Default)]
struct ForkGate {
    forking: AtomicU32,
    joining: AtomicU32,
}

thread_local! {
    /// Joins that this thread is in: a fork in a signal handler does not wait for them.
    static JOINING: Cell<u32> = const { Cell::new(0) };
}

impl ForkGate {
    fn close(&self) {
        self.forking.fetch_add(1, Ordering::SeqCst);
        poll_bounded(|| (self.joining.load(Ordering::SeqCst) <= JOINING.get()).then_some(()));
    }

    fn open(&self) {
        self.forking.fetch_sub(1, Ordering::SeqCst);
    }

    fn clear(&self) {
        self.forking.store(0, Ordering::SeqCst);
        self.joining.store(0, Ordering::SeqCst);
    }
}

/// Polls until there is something, for at most [`FORK_TIMEOUT`]: for what another thread is about
/// to finish, or what this very thread holds below a signal handler and will not give.
fn poll_bounded<T>(poll: impl Fn() -> Option<T>) -> Option<T> {
    for _ in 0..LOCK_TRIES {
        if let Some(found) = poll() {
            return Some(found);
        }
        std::thread::yield_now();
    }
    let deadline = Deadline::after(FORK_TIMEOUT);
    loop {
        if let Some(found) = poll() {
            return Some(found);
        }
        deadline.left(Nanos::monotonic())?;
        std::thread::sleep(FORK_PAUSE);
    }
}

impl Context {
    /// A context; no system calls.
    pub fn new(settings: Settings) -> Context {
        Context {
            random_offers: RandomOffers::new(settings.offers),
            settings,
            generation: AtomicUsize::new(0),
            nodes: [nodes().into()].into_iter().chain((1..GENERATION_CHUNKS).map(|_| OnceLock::new())).collect(),
            ledger: Ledger::default(),
            gate: ForkGate::default(),
            offers: OfferPolicy::default(),
            peer_core: AtomicU32::new(0),
            choices: Choices::default(),
            #[cfg(feature = "tokio")]
            drivers: Default::default(),
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How many forks lie between this process and the one that made the context.
    pub(crate) fn generation(&self) -> usize {
        self.generation.load(Ordering::Relaxed)
    }

    /// This process's client.
    #[inline]
    pub(crate) fn node(&self) -> &Arc<Node> {
        let generation = self.generation.load(Ordering::Relaxed).min(GENERATION_CHUNKS * GENERATIONS_CHUNK - 1);
        &self.nodes[generation / GENERATIONS_CHUNK].get_or_init(nodes)[generation % GENERATIONS_CHUNK]
    }

    /// Runs `join` unless a fork is under way: then the connection would be counted as plain, and
    /// be upgraded in the child.
    pub(crate) fn unless_forking(&self, join: impl FnOnce()) {
        JOINING.set(JOINING.get() + 1);
        self.gate.joining.fetch_add(1, Ordering::SeqCst);
        if self.gate.forking.load(Ordering::SeqCst) == 0 {
            join();
        }
        self.gate.joining.fetch_sub(1, Ordering::SeqCst);
        JOINING.set(JOINING.get() - 1);
    }

    /// Follows a TCP socket that has just been connected or accepted. No system calls.
    pub fn track(&self, _fd: BorrowedFd<'_>) -> Arc<Connection> {
        Connection::new(self.generation())
    }

    /// Follows a connected TCP socket that came from another program or descriptor message (exec,
    /// `SCM_RIGHTS`). The socket itself says whether it is upgraded: then the node says where, and
    /// this process joins; if nobody can, the connection ends here, for its bytes could not be had
    /// in order; and it stays with the kernel if it is another user's, who brought it back there.
    /// If it is not upgraded it stays with the kernel, for others may hold it.
    pub fn adopt(&self, fd: BorrowedFd<'_>) -> Arc<Connection> {
        let connection = Connection::new(self.generation());
        if !is_marked_upgraded(fd) {
            connection.pin_to_kernel(self, fd, Bypass::Shared);
            return connection;
        }
        match self.node().adopt(&self.settings, fd, Deadline::after(ADOPT_TIME)) {
            Some(Adoption::Met(meeting)) => connection.join(self, fd, meeting),
            Some(Adoption::Kernel) => connection.pin_to_kernel(self, fd, Bypass::Shared),
            Some(Adoption::Unknown) | None => connection.give_up(fd),
        }
        connection
    }

    /// Follows an upgraded socket that this program found open when it was started. Whether it was
    /// counted for us or not, we count ourselves: a count that is too high does no harm. If nobody
    /// can say where its bytes are, until the deadline, only we cannot use it: others may hold it.
    pub fn inherit(&self, fd: BorrowedFd<'_>, deadline: Deadline) -> Arc<Connection> {
        let connection = Connection::new(self.generation());
        match self.node().adopt(&self.settings, fd, deadline) {
            Some(Adoption::Met(meeting)) => {
                let end = &meeting.slot.words().ends[meeting.seat.end.place.end as usize];
                end.holders.fetch_add(1, Ordering::SeqCst);
                connection.join(self, fd, meeting);
            }
            _ => connection.cannot_follow(),
        }
        connection
    }

    /// To be called before `fork` with all open connections. The thread that forks keeps the
    /// result, and ends it in the parent and in the child: what one fork counted is nothing to
    /// another one that a second thread makes at the same time.
    pub fn before_fork<'a>(&'a self, open: impl Iterator<Item = &'a Connection>) -> Forking<'a> {
        // What the child does not know of its peers' bells it may never learn.
        self.poll();
        self.gate.close();
        Forking::count(self.node(), &self.ledger, open)
    }

    /// To be called in the parent after `fork`, which may have failed: then the connections count
    /// as held by one process more than there is, which costs their peers a question to the kernel,
    /// and nothing else.
    pub fn after_fork_parent(&self, forking: Forking<'_>) {
        drop(forking);
        self.gate.open();
    }

    /// To be called in the child after `fork`.
    pub fn after_fork_child(&self, forking: Forking<'_>) {
        forget_thread_id();
        self.gate.clear();
        self.node().leave_to_parent();
        self.generation.fetch_add(1, Ordering::SeqCst);
        let places = forking.inherit(self);
        if !places.is_empty() {
            self.node().hold(&self.settings, &places);
        }
    }

    /// Whether the node is there and answers. Waits for that, at most
    /// [`ANSWER_TIME`](crate::limits::ANSWER_TIME).
    pub fn node_answers(&self) -> bool {
        self.node().answers(&self.settings)
    }

    /// Whether the node has sent a message. One load.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.node().has_messages()
    }

    /// Receives what the node has sent. Never waits.
    pub fn poll(&self) {
        self.node().poll_messages();
    }

    /// Whether connections to other nodes are upgraded: then a wait should end at least every
    /// [`BETWEEN_SLICE_MAX`](crate::limits::BETWEEN_SLICE_MAX), to
    /// [`check_node`](Self::check_node).
    #[inline]
    pub fn has_between(&self) -> bool {
        self.node().has_between()
    }

    /// Checks whether the node is alive, and wakes the event loops of connections that do not
    /// survive it.
    pub fn check_node(&self) {
        self.node().check_alive();
    }

    /// A set for an event loop. A process has at most [`BELLS`](vmmc_stream::BELLS) of them
    /// at a time.
    ///
    /// # Errors
    /// `EMFILE` when there are as many, and when memory or descriptors are short.
    pub fn ready_set(&self) -> Result<ReadySet, Errno> {
        ReadySet::new(self)
    }

    /// A set that follows no connection, for a loop that polls by itself: only [`ReadySet::mark`]
    /// wakes it.
    ///
    /// # Errors
    /// When descriptors are short.
    pub fn silent_set(&self) -> Result<ReadySet, Errno> {
        ReadySet::silent(self)
    }
}
