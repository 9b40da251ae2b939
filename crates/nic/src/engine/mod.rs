//! The engine: one node's network interface and the tables of its driver, stepped from outside.
//!
//! Invariant: nothing here blocks, sleeps, reads a clock or touches memory it was not handed.

mod activation;
mod connect;
mod data;
mod driver;
mod handshake;
mod message;
mod observe;
mod placing;
mod post;
mod redirections;
mod sizes;
mod timers;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::net::SocketAddr;

use crate::command::Dma;
use crate::config::Config;
use crate::ecn::Codepoint;
use crate::event::Event;
use crate::ids::{NodeName, ProcessId, RegionRef};
use crate::limits::{
    HELLO_BURST, HELLOS_PER_SECOND, HINTS_PER_SECOND, PACKET_BYTES_MAX, PACKET_BYTES_MIN, REJECTS_PER_SECOND,
};
use crate::peer::Peer;
use crate::proof::{Cookies, Proof};
use crate::rng::Rng;
use crate::session::Session;
use crate::slab::Key;
use crate::stats::Stats;
use crate::tables::{SessionId, Tables, Wait};
use crate::time::Time;

pub use placing::Placement;

use handshake::{Limiter, Slot};
pub use message::PeerRef;

/// One node's network interface.
///
/// Order of calls: hand in what happened (`post`, `handle_datagram`, `handle_timeout`, the set-up
/// calls), then take what follows from it: [`poll_event`](Engine::poll_event) until `None`,
/// [`poll_transmit`](Engine::poll_transmit) until `None`, [`poll_work`](Engine::poll_work) while it
/// says true, and at last [`poll_timeout`](Engine::poll_timeout): step the engine again then, or
/// when something happens. Times handed in never go back.
pub struct Engine {
    config: Config,
    rng: Rng,
    /// Distinguishes this life of the node from others.
    incarnation: u64,
    tables: Tables,
    peers: Vec<Option<Peer>>,
    /// Sessions, attempts and pending sessions, by the slot in the packet header.
    slots: Vec<Slot>,
    free_slots: VecDeque<u16>,
    /// Slots of sessions not used yet, oldest first, with their ids.
    pending: VecDeque<(u16, u64)>,
    /// Datagrams outside sessions.
    loose: VecDeque<(SocketAddr, Box<[u8]>)>,
    /// Peers that may have something to send.
    ready: VecDeque<u16>,
    timers: BinaryHeap<Reverse<(Time, u16)>>,
    deadlines: BinaryHeap<Reverse<(Time, Key<Wait>)>>,
    /// Imports and pings that wait for a node of a certain name.
    name_waits: BTreeSet<Key<Wait>>,
    hello_limit: Limiter,
    /// To addresses of known peers.
    hint_limit: Limiter,
    /// To all others.
    stranger_limit: Limiter,
    reject_limit: Limiter,
    proof: Proof,
    cookies: Cookies,
    /// As set by `set_path_mtu`, oldest first.
    path_mtus: VecDeque<(SocketAddr, usize)>,
    /// Sessions begun.
    serial: u64,
    process_generations: Vec<u32>,
    free_processes: VecDeque<u32>,
    /// Processes with local operations to be continued.
    work: VecDeque<ProcessId>,
    /// Peers that have closed a gap in front of more chunks than are processed at once, each once.
    releases: VecDeque<u16>,
    now: Time,
}

/// A datagram to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where to.
    pub to: SocketAddr,
    /// Bytes, from the start of the buffer.
    pub len: usize,
    /// What it is to go out with.
    pub codepoint: Codepoint,
    /// Whether it answers somebody who has proven nothing, who can have very many such answers sent
    /// to addresses of his choice: what else is to be sent goes first.
    pub to_stranger: bool,
    /// What its path is known to take.
    pub fit: Fit,
}

/// Whether a datagram fits its path, and what to do if it does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// It does, as far as is known. It is never cut up: one that is too large is lost, and an
    /// error of the socket better told at once by [`set_path_mtu`](Engine::set_path_mtu).
    Path,
    /// It asks whether it does. It goes out by itself, and if it is too large for the interface
    /// that is an answer like silence. This is a good time to ask the kernel what it knows of the
    /// path.
    Probe,
    /// Not even the smallest size does. It may be cut up by IP, here or on the way.
    CutUp,
}

/// Memory whose bytes belong into a datagram, so that they need not be copied into it first: the
/// datagram is the first `at` bytes of the buffer, these bytes, and the rest of the buffer. What is
/// sent is what the memory holds when it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent {
    /// Bytes of the buffer that stand before it.
    pub at: usize,
    /// The memory.
    pub memory: RegionRef,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Set: references to the pages may go out instead of a copy, and better do. The memory is to
    /// stay as it is until the operation is done, as the source of a send is and what a fetch reads
    /// is not, and the receiver does not lag behind.
    pub by_reference: Option<Transfer>,
}

/// An operation of which a piece is [lent](Lent).
///
/// ```
/// use vmmc_nic::Transfer;
///
/// let first = Transfer { session: 1, operation: 7, rest: 61_440 };
/// // The driver may take references to the pages of both pieces at once.
/// let second = Transfer { rest: 0, ..first };
/// assert_eq!((first.session, first.operation), (second.session, second.operation));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The session that it goes through; no other one of this engine has the number.
    pub session: u64,
    /// The operation; no other one of the session has the number.
    pub operation: u64,
    /// Bytes of it that follow the piece in the memory.
    pub rest: u64,
}

impl Lent {
    /// Copies the memory into its place among the `len` bytes of `buf`; gives the bytes of the
    /// whole datagram.
    pub fn put_in(&self, buf: &mut [u8], len: usize, dma: &mut dyn Dma) -> usize {
        buf.copy_within(self.at..len, self.at + self.len);
        dma.gather(self.memory, self.offset, &mut buf[self.at..self.at + self.len]);
        len + self.len
    }
}

impl Engine {
    /// An engine with nothing attached. All its randomness, keys and incarnation come from `seed`,
    /// which must not be used twice.
    pub fn new(mut config: Config, seed: [u8; 32], now: Time) -> Engine {
        let mut rng = Rng::new(seed);
        let incarnation = rng.u64();
        config.path_mtu_bytes = config.path_mtu_bytes.clamp(PACKET_BYTES_MIN, PACKET_BYTES_MAX);
        config.recv_packet_bytes_max = config.recv_packet_bytes_max.clamp(PACKET_BYTES_MIN, PACKET_BYTES_MAX);
        config.recv_buffer_bytes = config.recv_buffer_bytes.clamp(2 * PACKET_BYTES_MIN, 1 << 30);
        let (proof, cookies) = (Proof::new(config.key.as_ref()), Cookies::new(rng.seed()));
        let tables = Tables {
            takes_messages: config.messages,
            trusts_users: config.trust_users,
            held_bytes_max: config.held_bytes_max,
            on_demand: config.on_demand.clone(),
            ..Tables::default()
        };
        Engine {
            config,
            rng,
            incarnation,
            tables,
            peers: Vec::new(),
            slots: Vec::new(),
            free_slots: VecDeque::new(),
            pending: VecDeque::new(),
            loose: VecDeque::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            deadlines: BinaryHeap::new(),
            name_waits: BTreeSet::new(),
            hello_limit: Limiter::new(HELLOS_PER_SECOND, HELLO_BURST, now),
            hint_limit: Limiter::new(HINTS_PER_SECOND, HINTS_PER_SECOND, now),
            stranger_limit: Limiter::new(HINTS_PER_SECOND, HINTS_PER_SECOND, now),
            reject_limit: Limiter::new(REJECTS_PER_SECOND, REJECTS_PER_SECOND, now),
            proof,
            cookies,
            path_mtus: VecDeque::new(),
            serial: 0,
            process_generations: Vec::new(),
            free_processes: VecDeque::new(),
            work: VecDeque::new(),
            releases: VecDeque::new(),
            now,
        }
    }

    /// Mixes fresh randomness into the engine's own. Copies of an engine, as in a copied virtual
    /// machine, would otherwise make the same keys; call it now and then.
    pub fn stir(&mut self, fresh: [u8; 32]) {
        let mut seed = self.rng.seed();
        seed.iter_mut().zip(fresh).for_each(|(byte, fresh)| *byte ^= fresh);
        self.rng = Rng::new(seed);
    }

    /// Name of this node.
    pub fn name(&self) -> &NodeName {
        &self.config.name
    }

    /// Number that distinguishes this life of the node from others.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Takes the next event. `None` although [`has_events`](Self::has_events) says that there are
    /// some: the rest comes with the next call, in another turn.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.tables.events.is_empty() && !self.tables.breaking.is_empty() {
            self.tables.go_on_breaking();
        }
        self.tables.events.pop_front()
    }

    /// Whether [`poll_event`](Self::poll_event), [`poll_message`](Self::poll_message) or
    /// [`poll_transmit`](Self::poll_transmit) may have something.
    #[inline]
    pub fn has_pending_work(&self) -> bool {
        let for_driver = self.has_events() || !self.tables.messages.is_empty();
        for_driver || !self.ready.is_empty() || !self.loose.is_empty() || !self.work.is_empty()
    }

    /// Whether [`poll_event`](Self::poll_event) has something to give.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.tables.events.is_empty() || !self.tables.breaking.is_empty()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called at the latest. It may turn
    /// out that nothing was due; `None`: only something from outside can change anything.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.work.is_empty() { self.next_timer() } else { Some(self.now) }
    }

    /// Whether [`handle_timeout`](Self::handle_timeout) has something to do.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        !self.work.is_empty() || self.next_timer().is_some_and(|at| at <= now)
    }

    #[inline]
    fn next_timer(&self) -> Option<Time> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let deadline = self.deadlines.peek().map(|Reverse((at, _))| *at);
        match (timer, deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Counters since the start.
    pub fn stats(&self) -> &Stats {
        &self.tables.stats
    }

    fn peer(&self, index: u16) -> Option<&Peer> {
        self.peers.get(usize::from(index))?.as_ref()
    }

    fn peer_mut(&mut self, index: u16) -> Option<&mut Peer> {
        self.peers.get_mut(usize::from(index))?.as_mut()
    }

    /// The session `via` names, if it still is that one.
    #[inline]
    fn session_mut(&mut self, via: SessionId) -> Option<&mut Session> {
        let session = self.peers.get_mut(usize::from(via.peer))?.as_mut()?.session.as_deref_mut()?;
        (session.via == via).then_some(session)
    }

    /// The session and what it works on.
    #[inline]
    fn session_and_tables(&mut self, via: SessionId) -> Option<(&mut Session, &mut Tables)> {
        let session = self.peers.get_mut(usize::from(via.peer))?.as_mut()?.session.as_deref_mut()?;
        (session.via == via).then_some((session, &mut self.tables))
    }

    /// The peer may have something to send.
    #[inline]
    fn wake(&mut self, index: u16) {
        if let Some(Some(peer)) = self.peers.get_mut(usize::from(index)) {
            if !peer.in_ready {
                peer.in_ready = true;
                self.ready.push_back(index);
            }
        }
    }
}
