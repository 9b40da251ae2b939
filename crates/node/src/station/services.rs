//! The services of a node, as its station drives them.
//!
//! The station knows of a service what [`Service`] declares. A message of a process is passed on
//! with what came along, one of another node without its first four bytes: number and version of
//! the service.
//!
//! Invariant: a connection is a client of one service or a process of the engine, never both; a
//! client that breaks the rules loses its connection, and nobody else notices. While a service is
//! being called it is not called again: what the station has to tell it then waits for the end.

use super::outlived::Kept;
use super::refusal::{invalid, refusal};
use super::shares::Table;
use super::{Readable, Station};
use crate::limits::{SERVICE_DRAIN_MESSAGES_MAX, SERVICE_MESSAGE_PARTS_MAX};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use vmmc_host::Channel;
use vmmc_host::channel::{Fate, Received};
use vmmc_host::control::{Answer, Call, FigureInfo, Refusal, RefusalCode, Request, decode};
use vmmc_nic::{NodeName, PeerRef, Time};
use vmmc_service::{About, Client, Figure, Misbehaved, Node, Service};

/// All of them.
#[derive(Default)]
pub(super) struct Services(Vec<Registered>);

struct Registered {
    about: About,
    /// Absent while it is being called.
    service: Option<Box<dyn Service>>,
    clients: usize,
    /// Objects of memory that it has.
    memory: u64,
}

/// A control message for a service.
pub(super) struct ServiceMessage {
    pub(super) service: u16,
    pub(super) version: u16,
    pub(super) message: Vec<u8>,
}

/// What a service sees of its node for the length of a call.
struct Facade<'a> {
    station: &'a mut Station,
    at: usize,
    now: Time,
    /// Clients that a message went out to, and memory that is gone already: the service is told of
    /// both at the end of the call.
    sent: Vec<usize>,
    gone: Vec<u64>,
}

impl Services {
    /// Whether two have the same number, or the same name.
    fn has(&self, about: About) -> bool {
        self.0.iter().any(|known| known.about.id == about.id || known.about.name == about.name)
    }

    fn find(&self, id: u16) -> Option<usize> {
        self.0.iter().position(|known| known.about.id == id)
    }

    fn each(&self) -> impl Iterator<Item = &dyn Service> {
        self.0.iter().filter_map(|known| known.service.as_deref())
    }

    /// Clients of all of them.
    pub(super) fn clients(&self) -> usize {
        self.0.iter().map(|known| known.clients).sum()
    }

    /// When the first of them is to be stepped although nothing happens.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.each().filter_map(Service::next_timeout).min()
    }

    /// The node is about to sleep; whether one of them has something to do.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        let services = self.0.iter_mut().filter_map(|known| known.service.as_deref_mut());
        services.fold(false, |any, service| any | service.prepare_sleep())
    }

    /// It is awake.
    pub(super) fn wake_up(&mut self) {
        self.0.iter_mut().filter_map(|known| known.service.as_deref_mut()).for_each(Service::wake_up);
    }

    /// Figures of all of them.
    pub(super) fn figures(&self) -> Vec<FigureInfo> {
        let shown = |figure: Figure| {
            let Figure { name, help, value } = figure;
            FigureInfo { name: name.into(), help: help.into(), value }
        };
        self.each().flat_map(Service::figures).map(shown).collect()
    }

    /// A message went out to a client that had to wait for room.
    pub(super) fn sent(&mut self, at: Option<usize>, client: usize) {
        let known = at.and_then(|at| self.0.get_mut(at));
        if let Some(service) = known.and_then(|known| known.service.as_deref_mut()) {
            service.sent(client);
        }
    }
}

impl Station {
    /// Adds a service.
    ///
    /// # Panics
    /// If one with that number or name is there: the caller ensures that there is none.
    pub fn add_service(&mut self, service: Box<dyn Service>) {
        let about = service.about();
        assert!(!self.services.has(about), "two services have the number {} or the name {:?}", about.id, about.name);
        self.services.0.push(Registered { about, service: Some(service), clients: 0, memory: 0 });
    }

    /// Calls a service.
    fn with_service<R>(&mut self, at: usize, now: Time, act: impl FnOnce(&mut dyn Service, &mut Facade<'_>) -> R) -> R {
        let mut service = self.services.0[at].service.take().expect("it is not being called");
        let mut node = Facade { station: self, at, now, sent: Vec::new(), gone: Vec::new() };
        let result = act(&mut *service, &mut node);
        let Facade { sent, gone, .. } = node;
        sent.into_iter().for_each(|client| service.sent(client));
        gone.into_iter().for_each(|token| service.memory_is_gone(token));
        self.services.0[at].service = Some(service);
        result
    }

    fn each_service(&mut self, now: Time, mut act: impl FnMut(&mut dyn Service, &mut Facade<'_>)) {
        for at in 0..self.services.0.len() {
            self.with_service(at, now, &mut act);
        }
    }

    /// A message of a process for a service; answers come as messages.
    pub(super) fn serve_service(
        &mut self,
        now: Time,
        index: usize,
        call: ServiceMessage,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let (client, joined) = self.client(index);
        let at = self.find_service(&call)?;
        if let Err(why) = self.check_version(at, &call) {
            if let Some(service) = self.services.0[at].service.as_deref_mut() {
                service.refused_version(client, call.version);
            }
            return Err(why);
        }
        let done = match joined {
            Some(joined) if joined == at => {
                self.with_service(at, now, |service, node| service.call(node, client, &call.message, fds))
            }
            Some(_) => Err(Misbehaved),
            None if self.is_process(index) => Err(Misbehaved),
            None => self.join(now, index, at, &call.message, fds)?,
        };
        if done == Err(Misbehaved) {
            self.close_later(index);
        }
        Ok(())
    }

    /// A question of the node's own user.
    pub(super) fn ask_service(&mut self, now: Time, index: usize, call: &ServiceMessage) -> Result<Answer, Refusal> {
        let at = self.find_service(call)?;
        let name = self.services.0[at].about.name;
        self.only_owner(index, &format!("ask about the {name} of"))?;
        self.check_version(at, call)?;
        let answer = self.with_service(at, now, |service, node| service.ask(node, &call.message));
        match answer {
            Ok(message) => Ok(Answer::Service { message }),
            Err(Misbehaved) => Err(invalid(format!("the service {name} knows no such question"))),
        }
    }

    /// Which one is meant.
    fn find_service(&self, call: &ServiceMessage) -> Result<usize, Refusal> {
        self.services.find(call.service).ok_or_else(|| {
            let message = format!("this node has no service of number {}", call.service);
            refusal(RefusalCode::NotStarted, message)
        })
    }

    /// Whether it speaks the version of this message.
    fn check_version(&self, at: usize, call: &ServiceMessage) -> Result<(), Refusal> {
        let about = self.services.0[at].about;
        if call.version == about.version {
            return Ok(());
        }
        let message = format!(
            "the library speaks version {} of {} and the node {}; use the same release of both",
            call.version, about.name, about.version
        );
        Err(refusal(RefusalCode::Version, message))
    }

    fn is_process(&self, index: usize) -> bool {
        self.connections[index].as_ref().is_some_and(|connection| connection.process.is_some())
    }

    /// A connection as services know it, and the one that it has joined.
    fn client(&self, index: usize) -> (Client, Option<usize>) {
        let connection = self.connections[index].as_ref().expect("the caller serves this connection");
        (Client { index, pid: connection.who.pid, uid: connection.who.uid }, connection.service)
    }

    fn join(
        &mut self,
        now: Time,
        index: usize,
        at: usize,
        message: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Result<(), Misbehaved>, Refusal> {
        let (client, _) = self.client(index);
        let held = self.services.0[at].about.descriptors_per_client;
        self.take_share(index, Table::Descriptors, held)?;
        let joined = self.with_service(at, now, |service, node| service.join(node, client, message, fds));
        if joined == Ok(Ok(())) {
            self.connections[index].as_mut().expect("as above").service = Some(at);
            self.services.0[at].clients += 1;
            self.unattached -= 1;
        } else {
            self.give_share(index, Table::Descriptors, held);
        }
        joined
    }

    /// Hands the service the messages that a client sent before it went, and nobody has read.
    pub(super) fn drain_last_messages(&mut self, now: Time, at: usize, client: Client, channel: &Channel) {
        for _ in 0..SERVICE_DRAIN_MESSAGES_MAX {
            if self.closers.is_stuck(client.uid) {
                return;
            }
            let Ok(Received { bytes, fds, fate }) = channel.try_receive_all() else { return };
            let given = self.sort(client.uid, fds);
            let Ok(Request { call: Call::Service { service, version, message }, .. }) = decode::<Request>(&bytes)
            else {
                return;
            };
            let about = self.services.0[at].about;
            let fits = (service, version) == (about.id, about.version);
            let taken = fits
                && self
                    .with_service(at, now, |service, node| service.last_message(node, client, &message, given.fds))
                    .is_ok();
            if !taken || fate == Fate::Left {
                return;
            }
        }
    }

    /// The connection of a client has ended.
    pub(super) fn client_is_gone(&mut self, now: Time, at: usize, client: Client) {
        self.services.0[at].clients -= 1;
        self.with_service(at, now, |service, node| service.gone(node, client));
    }

    /// A message of another node for the same service here.
    pub(super) fn handle_message(&mut self, now: Time, from: PeerRef, message: &[u8]) {
        let parts = message.split_first_chunk::<2>().and_then(|(id, rest)| Some((id, rest.split_first_chunk::<2>()?)));
        let meant = parts.and_then(|(id, (version, rest))| {
            let at = self.services.find(u16::from_le_bytes(*id))?;
            (self.services.0[at].about.version == u16::from_le_bytes(*version)).then_some((at, rest))
        });
        let handled = match meant {
            Some((at, rest)) => self.with_service(at, now, |service, node| service.message(node, from, rest)),
            None => Err(Misbehaved),
        };
        if handled == Err(Misbehaved) {
            let name = self.engine.peer_name(from).map(|name| name.to_string()).unwrap_or_default();
            self.note(
                now,
                format!("node {name} sent a message that this version does not know; use the same release on both"),
            );
        }
    }

    /// A session with another node has begun.
    pub(super) fn notify_services_of_new_peer(&mut self, now: Time) {
        self.each_service(now, |service, node| service.peer_came(node));
    }

    /// Sessions with other nodes have ended.
    pub(super) fn notify_services_of_lost_peers(&mut self, now: Time) {
        self.each_service(now, |service, node| service.peers_changed(node));
    }

    /// Lets each service do what there is to do; says whether there was anything.
    #[inline]
    pub(super) fn step_services(&mut self, now: Time) -> bool {
        let mut worked = false;
        for at in 0..self.services.0.len() {
            worked |= self.with_service(at, now, |service, node| service.step(node));
        }
        worked
    }

    /// Memory is gone for which a service has no more use.
    pub(super) fn service_memory_is_gone(&mut self, at: usize, token: u64) {
        if let Some(service) = self.services.0[at].service.as_deref_mut() {
            service.memory_is_gone(token);
        }
    }
}

impl Node for Facade<'_> {
    fn now(&self) -> Time {
        self.now
    }

    fn name(&self) -> NodeName {
        self.station.engine.name().clone()
    }

    fn send(&mut self, to: usize, message: Vec<u8>, fds: Vec<OwnedFd>) {
        if self.station.connections.get(to).is_some_and(Option::is_some) {
            self.station.reply(to, 0, Ok(Answer::Service { message }), fds);
            self.sent.push(to);
        }
    }

    fn close(&mut self, uid: u32, fd: OwnedFd) {
        drop(self.station.sort(uid, vec![fd]));
    }

    fn watch(&mut self, client: usize, fd: BorrowedFd<'_>) -> bool {
        self.station.watch(fd, client, Readable::Bell).is_ok()
    }

    fn note(&mut self, uid: Option<u32>, text: String) {
        match uid {
            Some(uid) => self.station.note_of(self.now, uid, text),
            None => self.station.note(self.now, text),
        }
    }

    fn may_have(&self, uid: u32, own: u64, all: u64, max: u64) -> bool {
        self.station.shares.may_have(uid, own, all, max)
    }

    fn memory_room(&self) -> u64 {
        let shares = &self.station.shares;
        shares.free(Table::Descriptors).min(shares.free(Table::Regions))
    }

    fn has_memory(&mut self, objects: u64) {
        let services = &mut self.station.services.0;
        services[self.at].memory = objects;
        let all = services.iter().map(|known| known.memory).sum();
        for table in [Table::Descriptors, Table::Regions] {
            self.station.shares.set_elsewhere(table, all);
        }
    }

    fn count_until_gone(&mut self, memory: Option<OwnedFd>, token: u64) {
        let kept = Kept::OfService(self.at, token);
        if !memory.is_some_and(|memory| self.station.keep_until_gone(memory, kept)) {
            self.gone.push(token);
        }
    }

    fn peers(&self) -> Vec<(PeerRef, SocketAddr)> {
        self.station.engine.message_peers().collect()
    }

    fn has_peer(&self, peer: PeerRef) -> bool {
        self.station.engine.has_peer(peer)
    }

    fn peer_name(&self, peer: PeerRef) -> Option<NodeName> {
        self.station.engine.peer_name(peer).cloned()
    }

    fn peer_address(&self, peer: PeerRef) -> Option<SocketAddr> {
        self.station.engine.peer_address(peer)
    }

    fn message_room(&self, peer: PeerRef) -> usize {
        self.station.engine.message_room(peer).saturating_sub(HEAD_BYTES)
    }

    fn holds_messages_back(&self, peer: PeerRef) -> bool {
        self.station.engine.holds_messages_back(peer)
    }

    fn send_message(&mut self, to: PeerRef, parts: &[&[u8]]) -> bool {
        assert!(parts.len() < SERVICE_MESSAGE_PARTS_MAX, "a message of {} parts", parts.len());
        let about = self.station.services.0[self.at].about;
        let mut head = [0; HEAD_BYTES];
        head[..2].copy_from_slice(&about.id.to_le_bytes());
        head[2..].copy_from_slice(&about.version.to_le_bytes());
        let mut all = [&[][..]; SERVICE_MESSAGE_PARTS_MAX];
        all[0] = &head;
        all[1..=parts.len()].copy_from_slice(parts);
        self.station.engine.send_message(self.now, to, &all[..=parts.len()])
    }

    fn retain_peer(&mut self, peer: PeerRef) {
        self.station.engine.hold_peer(peer);
    }

    fn release_peer(&mut self, peer: PeerRef) {
        self.station.engine.let_peer_go(peer);
    }
}

/// Bytes in front of a message between nodes: number and version of the service.
const HEAD_BYTES: usize = 4;
