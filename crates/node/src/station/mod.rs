//! One node without transport: the engine, the processes attached to it, and everything between
//! them.
//!
//! Order of calls, by its driver (daemon, embedded node, simulator): [`accept`](Station::accept)
//! connections; then, again and again, [`handle_datagram`](Station::handle_datagram) for what came,
//! [`step`](Station::step), [`poll_transmit`](Station::poll_transmit) until none is left, and
//! [`poll_control`](Station::poll_control) when the [descriptor](std::os::fd::AsFd) is readable or
//! now and then. Before sleeping: [`prepare_sleep`](Station::prepare_sleep); after it,
//! [`wake_up`](Station::wake_up). Time is an argument.
//!
//! Invariant: what a process writes or says is a claim. It can fail that process's own calls, fill
//! its own queues, end its own connection, and nothing else. Source: the driver of [NT §3.1].

mod attach;
mod calls;
mod closers;
mod connection;
mod control;
mod events;
mod export;
mod gates;
mod import;
mod info;
mod link;
mod logging;
mod memory;
mod notes;
mod outlived;
mod pins;
mod reaping;
mod redirection;
mod refusal;
mod rings;
mod services;
mod settings;
mod shares;
mod sleep;
mod swap;
mod translation;
mod unread;
mod waits;

use crate::limits::{ATTACH_TIME, CLOSE_TIME, CONNECTIONS_MAX, REFUSED_CONNECTIONS_MAX, UNCLOSED_MAX};
use crate::log::LogLevel;
pub(crate) use pins::default_pages as pinned_pages_default;
pub use settings::StationConfig;
use shares::{Shares, Table};

use calls::Calls;
use connection::{Connection, DescriptorAccount, Outbox, Stopped};
use export::{ExportRecord, Revocations};
use memory::Memory;
use rustix::event::{Timespec, epoll};
use shares::Holdings;
use sleep::{Readable, readable};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use vmmc_host::channel::{ChannelError, Listener};
use vmmc_host::control::{LAUNCH_PREFIX, Moved, NodeEvent, Refusal, RefusalCode};
use vmmc_host::{Channel, Nanos, Region};
use vmmc_nic::{Codepoint, Config, Engine, Lent, NodeName, PeerTableFull, Placement, RegionRef, Time, Transmit};

/// Why a station or a connection to it cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StationError {
    /// Too many connections.
    #[error("{max} processes are connected to this node already; detach some")]
    TableFull {
        /// The bound.
        max: usize,
    },
    /// The client that made the connection is not served, nor can it be told why.
    #[error("{0}")]
    NotServed(String),
    /// The kernel refused.
    #[error("{call} failed: {why}")]
    System {
        /// The system call.
        call: &'static str,
        /// Its error.
        why: String,
    },
    /// The connection does not say who made it.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// Counters of the driver, beside those of the engine.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    commands: u64,
    control_calls: u64,
    refusals: u64,
    connections: u64,
    processes_died: u64,
    revocations: u64,
    revocations_moved: u64,
    sleeps: u64,
    peers_up: u64,
    peers_down: u64,
    /// What processes that have ended moved by copies within the node, as they said.
    mapped_ended: Moved,
}

/// One node without transport.
pub struct Station {
    config: StationConfig,
    engine: Engine,
    memory: Memory,
    connections: Vec<Option<Box<Connection>>>,
    /// Indices of the connections with a process.
    attached: Vec<usize>,
    /// Index of the connection, by slot of the process id.
    by_slot: Vec<Option<usize>>,
    /// By slot of the export id.
    exports: Vec<Option<ExportRecord>>,
    calls: Calls,
    closers: closers::Closers,
    /// Who has how much of the tables.
    shares: Shares,
    /// What each user's control messages have cost since the last turn began.
    turn: HashMap<u32, usize>,
    /// Nodes that are asked by address: who asks, and how many calls.
    called: HashMap<(u32, SocketAddr), usize>,
    pins: pins::Pins,
    revocations: Revocations,
    redirecting: redirection::Redirecting,
    /// Connections to close at the next opportunity.
    reap_queue: reaping::ReapQueue,
    /// All control sockets, doorbells and watches.
    epoll: OwnedFd,
    uid: u32,
    started: Time,
    steps: u32,
    /// Grows when the engine may have room again.
    progress: u64,
    numbers: u64,
    /// Whether something waits for room in a socket or completion ring.
    congested: bool,
    unattached: usize,
    bells_raised: bool,
    asleep: bool,
    stop: bool,
    /// A descriptor of the driver was readable.
    outside: bool,
    services: services::Services,
    unread: unread::Unread,
    outlived: outlived::Outlived,
    waits: waits::Waits,
    mark: waits::Mark,
    counters: Counters,
    notes: VecDeque<notes::Note>,
    log: logging::Logging,
    /// Counters of the transport, for [`Info`](vmmc_host::control::Call::Info).
    transport_counters: Vec<(&'static str, u64)>,
}

/// A connection, never again another one.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionId {
    pub(crate) index: usize,
    pub(crate) number: u64,
}

impl Station {
    /// A node with nobody attached. `seed` is 32 random bytes; the same seed gives the same node.
    pub fn new(config: StationConfig, seed: [u8; 32], now: Time) -> Result<Station, StationError> {
        let mut engine = Config::new(config.name.clone());
        engine.key = config.key.clone();
        engine.listen = config.listen.clone();
        engine.trust_users = config.trust_users;
        engine.ciphers = config.ciphers;
        engine.congestion = config.congestion;
        engine.ecn = config.ecn;
        engine.recv_buffer_bytes = config.recv_buffer_bytes;
        engine.peer_timeout = config.peer_timeout;
        engine.messages = config.talks();
        engine.on_demand = Some(LAUNCH_PREFIX.to_string());
        let waits = waits::Waits::default();
        Ok(Station {
            engine: Engine::new(engine, seed, now),
            // A process that steps the node itself does not sleep there.
            memory: Memory::new(config.utlb, !config.embedded, waits.mark()),
            connections: Vec::new(),
            attached: Vec::new(),
            by_slot: Vec::new(),
            exports: Vec::new(),
            calls: Calls::default(),
            closers: closers::Closers::new(config.embedded),
            shares: Shares::new(rustix::process::geteuid().as_raw()),
            turn: HashMap::new(),
            called: HashMap::new(),
            pins: pins::Pins::new(config.pinned_pages_max),
            revocations: Revocations::default(),
            redirecting: redirection::Redirecting::default(),
            reap_queue: reaping::ReapQueue::default(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?,
            uid: rustix::process::geteuid().as_raw(),
            started: now,
            steps: 0,
            progress: 0,
            numbers: 0,
            congested: false,
            unattached: 0,
            bells_raised: false,
            asleep: false,
            stop: false,
            outside: false,
            services: services::Services::default(),
            unread: unread::Unread::default(),
            outlived: outlived::Outlived::default(),
            mark: waits.mark(),
            waits,
            counters: Counters::default(),
            notes: VecDeque::new(),
            log: logging::Logging::default(),
            transport_counters: Vec::new(),
            config,
        })
    }

    /// Takes a connection; the kernel says who is on the other side. Returns its number.
    pub fn accept(&mut self, now: Time, channel: Channel) -> Result<ConnectionId, StationError> {
        self.count_closed();
        let who = channel.peer();
        let channel = self.closers.socket(who.as_ref().map_or(u32::MAX, |who| who.uid), channel);
        let who = who?;
        let index = match self.connections.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.connections.len() < CONNECTIONS_MAX + REFUSED_CONNECTIONS_MAX => {
                self.connections.push(None);
                self.connections.len() - 1
            }
            None => {
                self.hang_up(channel);
                return Err(StationError::TableFull { max: CONNECTIONS_MAX });
            }
        };
        let mut held = Holdings::default();
        let refused = match self.admit(who.uid, &mut held) {
            Ok(refused) => refused,
            Err(full) => {
                self.hang_up(channel);
                return Err(full);
            }
        };
        if let Err(errno) = self.watch(&*channel, index, Readable::Control) {
            self.shares.give_all(who.uid, &mut held);
            self.hang_up(channel);
            return Err(system("epoll_ctl")(errno));
        }
        self.numbers += 1;
        self.unattached += 1;
        self.counters.connections += 1;
        let mut connection = Connection::new(self.numbers, Outbox::new(channel), who, now);
        (connection.refused, connection.held) = (refused, held);
        self.connections[index] = Some(Box::new(connection));
        Ok(ConnectionId { index, number: self.numbers })
    }

    /// Lets a connection go that cannot be served.
    pub(crate) fn turn_away(&mut self, channel: Channel) {
        let uid = channel.peer().map_or(u32::MAX, |who| who.uid);
        let channel = self.closers.socket(uid, channel);
        self.hang_up(channel);
    }

    /// Whether so much waits to be closed that no connection may be taken.
    pub(crate) fn is_full_of_unclosed(&self) -> bool {
        self.closers.are_full()
    }

    /// Makes the threads that close what clients gave; see [`closers`].
    pub(crate) fn stand_by_to_close(&self) {
        self.closers.stand_by();
    }

    /// Nothing that clients gave is closed while this lives: for the time in which a process is
    /// made.
    pub(crate) fn close_nothing(&self) -> closers::Paused {
        self.closers.pause()
    }

    /// Closes the door, behind which connections may wait with whatever clients have sent; not for
    /// long.
    pub(crate) fn close_door(&self, listener: Listener) {
        drop(self.closers.socket(self.uid, listener));
        self.closers.finish(CLOSE_TIME);
    }

    /// Finds a place for a connection of a user, among those that are served or those that are told
    /// why they are not.
    fn admit(&mut self, uid: u32, held: &mut Holdings) -> Result<Option<Refusal>, StationError> {
        let full = || StationError::TableFull { max: CONNECTIONS_MAX };
        if self.closers.is_stuck(uid) {
            let why =
                format!("{UNCLOSED_MAX} descriptors that user {uid} gave wait to be closed; end what holds them up");
            return Err(StationError::NotServed(why));
        }
        let barred = self.waits.why_not(uid);
        let why = if let Some(why) = barred {
            why
        } else if !self.config.serve.allows(self.uid, uid) {
            refusal::not_served(self.config.name.as_str(), self.uid, uid)
        } else if self.shares.total(Table::Connections) >= CONNECTIONS_MAX as u64 {
            refusal::refusal(RefusalCode::TableFull, full().to_string())
        } else {
            let taken = self.shares.take(uid, held, Table::Connections, 1);
            match taken.and_then(|()| self.shares.take(uid, held, Table::Descriptors, 1)) {
                Ok(()) => return Ok(None),
                Err(taken) => {
                    self.shares.give_all(uid, held);
                    taken.refusal()
                }
            }
        };
        match self.shares.take(uid, held, Table::Refused, 1) {
            Ok(()) => Ok(Some(why)),
            Err(_) => Err(StationError::NotServed(why.message)),
        }
    }

    /// Serves rings, timers that are due, and what the engine has to say; says whether there was
    /// anything.
    pub fn step(&mut self, now: Time) -> bool {
        self.bar_found(now);
        let mut worked = self.serve_rings(now);
        if self.engine.is_due(now) {
            self.engine.handle_timeout(now);
            self.progress += 1;
        }
        if self.engine.poll_work(now, &mut self.memory) {
            self.progress += 1;
            worked = true;
        }
        worked |= self.serve_events(now);
        if !self.revocations.is_empty() {
            worked |= self.serve_revocations(now);
        }
        worked |= self.serve_redirections(now);
        if !self.pins.is_idle() {
            worked |= self.serve_pins(now);
        }
        worked |= self.reap(now);
        self.serve_unread(now);
        worked | self.step_services(now)
    }

    /// Serves the control sockets that have something, and notices clients that have ended; returns
    /// whether there was anything. One system call when there is nothing.
    pub fn poll_control(&mut self, now: Time) -> bool {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
        let ready = match epoll::wait(&self.epoll, &mut events, Some(&zero)) {
            Ok((ready, _)) => ready,
            Err(_) => return false,
        };
        let mut worked = !ready.is_empty();
        self.count_closed();
        self.turn.clear();
        for event in ready {
            let (data, flags) = (event.data.u64(), event.flags);
            let index = data as u32 as usize;
            match readable(data) {
                // Replies wait, and nobody will take them.
                Readable::Control if flags.contains(epoll::EventFlags::HUP) && self.is_held_back(index) => {
                    self.close_later(index);
                }
                Readable::Control => self.serve_connection(index, now),
                Readable::Ended => self.end(index),
                Readable::Doorbell => self.poll_ring_again(index),
                Readable::Bell => {}
                Readable::Outside => self.outside = true,
                Readable::Outlived => self.serve_outlived(),
            }
        }
        if self.congested {
            self.relieve();
        }
        if self.unattached > 0 {
            self.drop_silent(now);
        }
        worked |= self.reap(now);
        worked |= self.serve_events(now);
        worked
    }

    /// A datagram came. It is decrypted in place.
    #[inline]
    pub fn handle_datagram(&mut self, now: Time, from: SocketAddr, codepoint: Codepoint, datagram: &mut [u8]) {
        self.progress += 1;
        self.engine.handle_datagram_with(now, from, codepoint, datagram, &mut self.memory);
        self.handle_messages(now);
    }

    #[inline]
    fn handle_messages(&mut self, now: Time) {
        while let Some((peer, message)) = self.engine.poll_message() {
            self.handle_message(now, peer, &message);
        }
    }

    /// Whether datagrams may have a [placement](Self::placement).
    #[inline]
    pub(crate) fn may_place(&self) -> bool {
        self.engine.may_place()
    }

    /// The next datagram to send, written to the start of `buf`.
    #[inline]
    pub fn poll_transmit(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        self.engine.poll_transmit(now, buf, &mut self.memory)
    }

    /// As [`poll_transmit`](Self::poll_transmit), but a long piece of memory may be left where it
    /// is.
    #[inline]
    pub(crate) fn poll_transmit_lending(&mut self, now: Time, buf: &mut [u8]) -> Option<(Transmit, Option<Lent>)> {
        self.engine.poll_transmit_lending(now, buf, &mut self.memory, true)
    }

    /// Whether the engine has events, messages or packets.
    #[inline]
    pub(crate) fn has_pending_work(&self) -> bool {
        self.engine.has_pending_work()
    }

    /// Where a piece of a datagram belongs, of which the first bytes are known.
    pub(crate) fn placement(&mut self, from: SocketAddr, head: &[u8], len: usize) -> Option<Placement> {
        self.engine.placement(from, head, len, &mut self.memory)
    }

    /// The region of a placement, until [`end_of_loan`](Self::end_of_loan); none if it is gone.
    pub(crate) fn placement_region(&self, placement: &Placement) -> Option<&Region> {
        self.region_on_loan(placement.memory, placement.offset, placement.len)
    }

    /// Hands a datagram to the engine of which a piece is in its place already.
    pub(crate) fn handle_placed_datagram(
        &mut self,
        now: Time,
        from: SocketAddr,
        datagram: &mut [u8],
        placement: &Placement,
    ) {
        self.progress += 1;
        self.engine.handle_placed_datagram(now, from, Codepoint::NotEct, datagram, placement, &mut self.memory);
        self.handle_messages(now);
    }

    /// The region that a packet lends from, until [`end_of_loan`](Self::end_of_loan); none if it is
    /// gone and zeros stand for it.
    pub(crate) fn lent_region(&self, lent: &Lent) -> Option<&Region> {
        self.region_on_loan(lent.memory, lent.offset, lent.len)
    }

    fn region_on_loan(&self, at: RegionRef, offset: u64, len: usize) -> Option<&Region> {
        let region = self.memory.region(at).filter(|region| region.check(offset, len as u64).is_ok());
        region.inspect(|_| _ = self.memory.mark(at))
    }

    /// What was lent is not touched any more.
    pub(crate) fn end_of_loan(&self) {
        self.mark.clear();
    }

    /// Copies what a packet lends into it; gives the bytes of the whole datagram.
    pub(crate) fn put_in(&mut self, lent: &Lent, buf: &mut [u8], len: usize) -> usize {
        lent.put_in(buf, len, &mut self.memory)
    }

    /// Adds a peer by its addresses; several addresses are several paths.
    pub fn add_peer(&mut self, now: Time, addresses: &[SocketAddr]) -> Result<(), PeerTableFull> {
        self.engine.add_peer(now, addresses)
    }

    /// Sets how large a datagram may be on the path to an address.
    pub fn set_path_mtu(&mut self, address: SocketAddr, bytes: usize) {
        self.engine.set_path_mtu(address, bytes);
    }

    /// Mixes fresh randomness into the engine's; see [`Engine::stir`].
    pub fn stir(&mut self, fresh: [u8; 32]) {
        self.engine.stir(fresh);
    }

    /// Counters of the transport as they are now, for the next [description](Self::describe).
    #[inline]
    pub fn set_transport_counters(&mut self, counters: &[(&'static str, u64)]) {
        self.transport_counters.clear();
        self.transport_counters.extend_from_slice(counters);
    }

    /// Whether a process has asked the node to end.
    pub fn stop_requested(&self) -> bool {
        self.stop
    }

    /// Attached processes.
    pub fn processes(&self) -> usize {
        self.attached.len()
    }

    /// Open connections, attached or not.
    pub fn connections(&self) -> usize {
        self.attached.len() + self.unattached + self.services.clients()
    }

    /// The node's name.
    pub fn name(&self) -> &NodeName {
        &self.config.name
    }

    /// The engine, for observers (simulator, statistics).
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Ends the node: gates close, processes are notified, and peers by what
    /// [`poll_transmit`](Self::poll_transmit) gives afterwards.
    pub fn shut_down(&mut self, now: Time) {
        self.stop = true;
        self.engine.shutdown(now);
        self.serve_events(now);
        self.close_gates();
        for index in self.attached.clone() {
            self.send_event(index, &NodeEvent::Stopping, Vec::new());
        }
    }

    /// Sends an event to a process, and lets the process go if it collects nothing.
    fn send_event(&mut self, index: usize, event: &NodeEvent, fds: Vec<OwnedFd>) {
        self.poll_unread_if_short(index, &fds);
        let Some(connection) = self.connections[index].as_deref_mut() else { return };
        let Some(process) = connection.process.as_mut() else { return };
        let mut account =
            DescriptorAccount { shares: &mut self.shares, uid: connection.who.uid, held: &mut connection.held };
        let sent = process.queue_event(event, fds, &mut account);
        match (sent, process.events.as_ref()) {
            (Ok(()), Some(events)) if events.is_waiting() => {
                self.congested = true;
                let stopped = events.stopped;
                self.log_stopped(index, stopped);
                if !self.user_may_wait(index) {
                    self.close_later(index);
                }
            }
            (Ok(()), _) => {}
            (Err(_), _) => self.close_later(index),
        }
    }

    /// Before descriptors are sent to a client whose user has its share of them under way: checks
    /// how many were taken meanwhile.
    fn poll_unread_if_short(&mut self, index: usize, fds: &[OwnedFd]) {
        let Some(uid) = self.connections[index].as_ref().map(|c| c.who.uid) else { return };
        if !fds.is_empty() && self.shares.check(uid, Table::UnderWay, fds.len() as u64).is_err() {
            self.poll_unread();
        }
    }

    /// Logs that the kernel lets no descriptors pass.
    fn log_stopped(&mut self, index: usize, stopped: Option<Stopped>) {
        let uid = self.connections[index].as_ref().map_or(u32::MAX, |c| c.who.uid);
        if let Some(Stopped::Kernel) = stopped {
            self.log_user(LogLevel::Error, uid, || {
                format!("a message to a process of user {uid} waits: {}", Stopped::Kernel)
            });
        }
    }

    fn is_held_back(&self, index: usize) -> bool {
        self.connections.get(index).and_then(Option::as_ref).is_some_and(|c| c.held_back)
    }

    /// Tries again to send what waits for room.
    fn relieve(&mut self) {
        self.congested = false;
        self.poll_unread();
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections[index].as_deref_mut() else { continue };
            let service = connection.service;
            let mut account =
                DescriptorAccount { shares: &mut self.shares, uid: connection.who.uid, held: &mut connection.held };
            let control = &mut connection.control;
            let mut gone = control.is_waiting() && control.retry(&mut account).is_err();
            let mut waiting = control.is_waiting();
            if let Some(process) = &mut connection.process {
                match process.events.as_mut().map_or(Ok(0), |events| events.retry(&mut account)) {
                    Ok(sent) => process.count_events(sent),
                    Err(_) => gone = true,
                }
                waiting |= process.events.as_ref().is_some_and(Outbox::is_waiting);
            }
            if gone {
                self.close_later(index);
            } else {
                self.congested |= waiting;
                self.services.sent(service, index);
                self.let_read(index);
            }
        }
    }

    /// Closes connections that have not attached in time.
    fn drop_silent(&mut self, now: Time) {
        for index in 0..self.connections.len() {
            let silent = |c: &Connection| c.is_silent() && now.since(c.last_received) >= ATTACH_TIME;
            if self.connections[index].as_deref().is_some_and(silent) {
                self.close_later(index);
            }
        }
    }

    /// The process behind a connection has ended.
    fn end(&mut self, index: usize) {
        if self.connections.get(index).is_some_and(|c| c.as_ref().is_some_and(|c| !c.is_closing)) {
            self.counters.processes_died += 1;
            self.close_later(index);
        }
    }

    /// A doorbell rang: the ring is polled each time again.
    fn poll_ring_again(&mut self, index: usize) {
        if let Some(process) = self.connections.get_mut(index).and_then(|c| c.as_mut()?.process.as_mut()) {
            process.empty_polls = 0;
        }
    }

    fn each_process(&mut self, mut each: impl FnMut(&mut connection::Process, u64)) {
        for &index in &self.attached {
            if let Some(process) = self.connections[index].as_mut().and_then(|c| c.process.as_mut()) {
                each(process, self.progress);
            }
        }
    }
}

fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> StationError {
    move |errno| StationError::System { call, why: errno.to_string() }
}

#[cfg(test)]
mod tests;
