//! What a node asks of a service that it runs, and what a service may ask of its node.
//!
//! ```text
//!   process ── Call::Service ──▶ station ── call ────▶ ┌─────────┐
//!           ◀─ Answer::Service ─         ◀── send ──── │ service │
//!   other nodes ── message ────▶         ── message ─▶ │         │
//!                                        ◀── Node ──── └─────────┘
//! ```
//!
//! A model (RPC, messages, shared memory) is a library in the processes that use it, and needs no
//! code in the node. A service is for the rest: what several processes must trust, or what must
//! outlive them. A node knows its services by [`Service`] alone; a service knows its node by
//! [`Node`].
//!
//! Invariant: a service runs in the thread that serves everybody, so none of its methods waits, and
//! each bounds what it does. What it is given by a client or by another node is a claim.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use vmmc_host::control::Refusal;
use vmmc_nic::{NodeName, PeerRef, Time};

/// What a service is called, for processes, other nodes and people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Number of it in control messages and in messages between nodes; no two have the same.
    pub id: u16,
    /// Version of its messages, both kinds: a process or node with another one is refused.
    pub version: u16,
    /// Its name in logs, refusals and metrics: a word of lower-case letters.
    pub name: &'static str,
    /// Descriptors that the node may hold for each of its clients, which count in the share of the
    /// client's user.
    pub descriptors_per_client: u32,
}

/// A process that talks to a service, by the connection that it talks over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Number of the connection. It is used again once the connection has [ended](Service::gone).
    pub index: usize,
    /// The process, as the kernel reported when it connected.
    pub pid: u32,
    /// Its user, likewise.
    pub uid: u32,
}

/// The sender of a message breaks the rules of the service: its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misbehaved;

/// One figure of a service, for `vmmc stats` and the metrics of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// `SERVICE_what`, with the unit at its end if it has one; a counter that only grows ends with
    /// `_total`.
    pub name: &'static str,
    /// What it counts, in a sentence.
    pub help: &'static str,
    /// Its value.
    pub value: u64,
}

/// A service of a node. The node calls one method at a time, always from the same thread.
pub trait Service: Send {
    /// What it is called; always the same.
    fn about(&self) -> About;

    /// A process joins, with its first message. A refusal ends the connection, and its text is
    /// shown to a user: it says what to do.
    fn join(
        &mut self,
        node: &mut dyn Node,
        client: Client,
        message: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Result<(), Misbehaved>, Refusal>;

    /// A process wanted to join that speaks another version, and was refused.
    fn refused_version(&mut self, _client: Client, _version: u16) {}

    /// A message of a process that has joined. Answers go by [`Node::send`], now or later.
    fn call(
        &mut self,
        node: &mut dyn Node,
        client: Client,
        message: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Misbehaved>;

    /// A question of the node's own user, or of root, that is answered at once and changes nothing.
    fn ask(&self, node: &dyn Node, message: &[u8]) -> Result<Vec<u8>, Misbehaved>;

    /// A message that a process had sent before it ended, and that nobody has read. What it wanted
    /// for itself it does not want any more.
    fn last_message(
        &mut self,
        node: &mut dyn Node,
        client: Client,
        message: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Misbehaved>;

    /// A process that had joined has ended, or its connection has. Its number will be another's.
    fn gone(&mut self, node: &mut dyn Node, client: Client);

    /// A message went out to a client: what had to wait for room has left, too. For services that
    /// show their clients without a system call that there is something to read.
    fn sent(&mut self, _client: usize) {}

    /// A message of the same service on another node.
    fn message(&mut self, node: &mut dyn Node, from: PeerRef, message: &[u8]) -> Result<(), Misbehaved>;

    /// A session with another node has begun, whose services take messages.
    fn peer_came(&mut self, _node: &mut dyn Node) {}

    /// Sessions have ended.
    fn peers_changed(&mut self, _node: &mut dyn Node) {}

    /// Does what there is to do without a message, a bounded part of it; says whether there was
    /// anything. Called at every step of the node: with nothing to do it costs the load of a word.
    fn step(&mut self, _node: &mut dyn Node) -> bool {
        false
    }

    /// When [`step`](Self::step) must be called although nothing happens.
    fn next_timeout(&self) -> Option<Time> {
        None
    }

    /// The node is about to sleep; says whether there is something to do after all. From here on
    /// until [`wake_up`](Self::wake_up) a process that has something for the service in shared
    /// memory must wake the node, by a descriptor that it [watches](Node::watch).
    fn prepare_sleep(&mut self) -> bool {
        false
    }

    /// The node is awake.
    fn wake_up(&mut self) {}

    /// Memory is gone that [`Node::count_until_gone`] was told of.
    fn memory_is_gone(&mut self, _token: u64) {}

    /// Figures for `vmmc stats` and the metrics.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
}

/// What a service may ask of its node.
pub trait Node {
    /// The time of this step.
    fn now(&self) -> Time;

    /// Name of this node.
    fn name(&self) -> NodeName;

    /// Sends a message to a client. What its socket does not take now waits, and goes later.
    fn send(&mut self, to: usize, message: Vec<u8>, fds: Vec<OwnedFd>);

    /// Closes a descriptor that a user gave, where nobody waits for it: a close may take for ever.
    fn close(&mut self, uid: u32, fd: OwnedFd);

    /// Wakes the node when a descriptor of a client is readable (edge-triggered), until it is
    /// closed. An error does not matter for long: a step comes now and then.
    fn watch(&mut self, client: usize, fd: BorrowedFd<'_>) -> bool;

    /// Writes a line into the log of the node; `uid` is the user that it concerns.
    fn note(&mut self, uid: Option<u32>, text: String);

    /// Whether a user that has `own` entries of a table of the service, of `all` that are taken
    /// and `max` that there are, may have one more: the rule of all tables of the node.
    fn may_have(&self, uid: u32, own: u64, all: u64, max: u64) -> bool;

    /// How many more objects of memory (a descriptor and a mapping each) there is room for.
    fn memory_room(&self) -> u64;

    /// Declares how many such objects the service has, all users together.
    fn has_memory(&mut self, objects: u64);

    /// The service has no more use for this memory, which clients may keep: the node calls
    /// [`Service::memory_is_gone`] with this number when nobody has it any more, at once where the
    /// kernel does not report that.
    fn count_until_gone(&mut self, memory: Option<OwnedFd>, token: u64);

    /// Sessions with nodes whose services take messages, and where packets to each go now.
    fn peers(&self) -> Vec<(PeerRef, SocketAddr)>;

    /// Whether the session still is there.
    fn has_peer(&self, peer: PeerRef) -> bool;

    /// Name of the node on the other side.
    fn peer_name(&self, peer: PeerRef) -> Option<NodeName>;

    /// Where packets to it go now.
    fn peer_address(&self, peer: PeerRef) -> Option<SocketAddr>;

    /// Bytes of the longest message that can be sent to it now; 0: none. Messages of a few hundred
    /// bytes can be sent all the same, unless [`holds_messages_back`](Self::holds_messages_back).
    fn message_room(&self, peer: PeerRef) -> usize;

    /// Whether so much is under way to it that what it has not asked for is to be sent later.
    fn holds_messages_back(&self, peer: PeerRef) -> bool;

    /// Sends a message, made of parts, to the same service on another node: in order, once, for as
    /// long as the session lasts. False: it is not sent.
    fn send_message(&mut self, to: PeerRef, parts: &[&[u8]]) -> bool;

    /// Something depends on the other node being alive: it is asked now and then, until as many
    /// [`release_peer`](Self::release_peer).
    fn retain_peer(&mut self, peer: PeerRef);

    /// Ends what [`retain_peer`](Self::retain_peer) began.
    fn release_peer(&mut self, peer: PeerRef);
}
