//! Peers: found, connected to, given up.

use std::net::SocketAddr;

use super::Engine;
use super::handshake::Use;
use crate::error::{ImportError, OpError, PeerDownReason, PeerTableFull, RejectReason};
use crate::event::{Event, PingBy};
use crate::ids::NodeName;
use crate::limits::{HELLO_RETRY_MAX, PACKET_BYTES_MAX, PACKET_BYTES_MIN, PATH_MTUS_MAX, PEERS_MAX};
use crate::mtu::Search;
use crate::peer::{Attempt, Peer};
use crate::slab::Key;
use crate::tables::{Grant, Route, SessionId, Wait, WaitAt, WaitFor};
use crate::time::Time;

impl Engine {
    /// Makes a node known by its addresses (several: several paths, best first) and says hello.
    /// What one address already knows gets the others as further paths.
    ///
    /// # Errors
    /// [`PeerTableFull`].
    pub fn add_peer(&mut self, now: Time, addrs: &[SocketAddr]) -> Result<(), PeerTableFull> {
        self.now = now;
        let known = addrs.iter().find_map(|addr| self.peer_at(*addr));
        let index = match known {
            Some(index) => index,
            None => self.add_peer_entry(None, true).ok_or(PeerTableFull { max: PEERS_MAX as u64 })?,
        };
        for addr in addrs {
            let mtu = self.mtu_of(*addr);
            if let Some(peer) = self.peer_mut(index) {
                peer.add_path(*addr, mtu);
                peer.configured = true;
            }
        }
        self.connect(now, index);
        Ok(())
    }

    /// UDP payload bytes that packets to `addr` may have, 1,200 to 65,507, as far as the driver
    /// knows: what the interface takes, or what somebody on the way is said to have said. The
    /// engine believes it until packets of that size do not get through; see [`MtuState`]. A path's
    /// packets may become smaller while it is in use; what is under way then goes on in pieces.
    ///
    /// [`MtuState`]: crate::MtuState
    pub fn set_path_mtu(&mut self, addr: SocketAddr, bytes: usize) {
        let bytes = bytes.clamp(PACKET_BYTES_MIN, PACKET_BYTES_MAX);
        match self.path_mtus.iter().position(|(at, _)| *at == addr) {
            Some(index) => self.path_mtus[index].1 = bytes,
            None => self.remember_mtu(addr, bytes),
        }
        for peer in self.peers.iter_mut().flatten() {
            if let Some(path) = peer.path_of(addr) {
                peer.paths[path].search.told(bytes);
                peer.fit_packets();
            }
        }
    }

    /// The driver learns of an address from any datagram, also a stranger's. When there is no room,
    /// the oldest one that is no peer's goes; half of them are none.
    fn remember_mtu(&mut self, addr: SocketAddr, bytes: usize) {
        while self.path_mtus.len() >= PATH_MTUS_MAX {
            let Some(oldest) = self.path_mtus.pop_front() else { break };
            if self.peer_at(oldest.0).is_some() {
                self.path_mtus.push_back(oldest);
            }
        }
        self.path_mtus.push_back((addr, bytes));
    }

    /// Says goodbye to every peer and fails what is under way; send what
    /// [`poll_transmit`](Engine::poll_transmit) gives afterwards, then drop the engine.
    pub fn shutdown(&mut self, now: Time) {
        self.now = now;
        let mut buf = [0; 256];
        for index in 0..self.peers.len() as u16 {
            let Some(peer) = self.peer_mut(index) else { continue };
            let Some(addr) = peer.addr() else { continue };
            let Some(session) = peer.session.as_deref_mut() else { continue };
            let len = session.build_close(&mut buf);
            self.send_loose(addr, buf[..len].into());
            self.lose_peer(now, index, PeerDownReason::Closed);
        }
    }

    /// What is known of the packets to an address that becomes a path.
    pub(super) fn mtu_of(&self, addr: SocketAddr) -> Search {
        match self.path_mtus.iter().find(|(at, _)| *at == addr) {
            Some((_, bytes)) => Search::new(*bytes, true),
            None => Search::new(self.config.path_mtu_bytes, false),
        }
    }

    pub(super) fn peer_at(&self, addr: SocketAddr) -> Option<u16> {
        let at = |peer: &Option<Peer>| peer.as_ref().is_some_and(|peer| peer.path_of(addr).is_some());
        self.peers.iter().position(at).map(|index| index as u16)
    }

    pub(super) fn peer_named(&self, name: &NodeName) -> Option<u16> {
        let named = |peer: &Option<Peer>| peer.as_ref().is_some_and(|peer| peer.name.as_ref() == Some(name));
        self.peers.iter().position(named).map(|index| index as u16)
    }

    /// The entry of a node that introduces itself; one without a name is known by its address.
    pub(super) fn find_peer(&self, name: &NodeName, from: SocketAddr, listen: &[SocketAddr]) -> Option<u16> {
        self.peer_named(name).or_else(|| {
            let nameless = |index: &u16| self.peer(*index).is_some_and(|peer| peer.name.is_none());
            std::iter::once(&from).chain(listen).find_map(|addr| self.peer_at(*addr).filter(nameless))
        })
    }

    pub(super) fn peers_full(&self) -> bool {
        self.peers.len() >= PEERS_MAX && self.peers.iter().all(Option::is_some)
    }

    pub(super) fn add_peer_entry(&mut self, name: Option<NodeName>, configured: bool) -> Option<u16> {
        let peer = Peer::new(name, configured);
        if let Some(free) = self.peers.iter().position(Option::is_none) {
            self.peers[free] = Some(peer);
            return Some(free as u16);
        }
        if self.peers.len() >= PEERS_MAX {
            return None;
        }
        self.peers.push(Some(peer));
        Some((self.peers.len() - 1) as u16)
    }

    /// `index` has turned out to be `name`: joins it with the entry of that name, if there is one.
    pub(super) fn merge_peer(&mut self, now: Time, index: u16, name: &NodeName) -> u16 {
        let Some(known) = self.peer_named(name).filter(|known| *known != index) else {
            let renamed = self
                .peer(index)
                .is_some_and(|peer| peer.session.is_some() && peer.name.as_ref().is_some_and(|old| old != name));
            if renamed {
                // Another node has taken the address.
                self.end_session(now, index, PeerDownReason::Restarted);
            }
            if let Some(peer) = self.peer_mut(index) {
                peer.name = Some(name.clone());
            }
            return index;
        };
        let same_node = self.peer(index).is_some_and(|peer| peer.session.is_none());
        if !same_node {
            self.end_session(now, index, PeerDownReason::Restarted);
        }
        self.drop_attempt(index);
        let Some(Some(gone)) = self.peers.get_mut(usize::from(index)).map(Option::take) else { return known };
        for key in &gone.waiting {
            if let Some(wait) = self.tables.waits.get_mut(*key) {
                wait.at = WaitAt::Peer(known);
            }
        }
        if let Some(peer) = self.peer_mut(known) {
            peer.waiting.extend(gone.waiting);
            peer.configured |= gone.configured;
            for path in gone.paths {
                peer.add_path(path.addr, path.search);
            }
        }
        known
    }

    /// Says hello, unless that is under way or there is a session.
    pub(super) fn connect(&mut self, now: Time, index: u16) {
        if self.peer(index).is_some_and(|peer| peer.session.is_none()) {
            self.start_attempt(now, index);
        }
    }

    pub(super) fn start_attempt(&mut self, now: Time, index: u16) {
        let Some(peer) = self.peer(index) else { return };
        if peer.attempt.is_some() || peer.paths.is_empty() {
            return;
        }
        let path = peer.current;
        let Some(local) = self.new_slot(Use::Attempt(index)) else { return };
        let (handshake, hello) = self.make_hello(local);
        let attempt = Attempt::new(local, handshake, hello, path, now);
        if let Some(peer) = self.peer_mut(index) {
            peer.attempt = Some(attempt);
        }
        self.send_hello(now, index);
        self.arm(index);
    }

    /// Sends the hello of an attempt (again), each time on the next path.
    pub(super) fn send_hello(&mut self, now: Time, index: u16) {
        let Some(peer) = self.peer_mut(index) else { return };
        let paths = peer.paths.len();
        let Some(attempt) = peer.attempt.as_mut() else { return };
        let addr = peer.paths[attempt.path % paths].addr;
        attempt.sent += 1;
        attempt.path = (attempt.path + 1) % paths;
        attempt.next = now + attempt.retry;
        attempt.retry = (attempt.retry * 2).min(HELLO_RETRY_MAX);
        let hello = attempt.hello.clone();
        self.tables.stats.hellos_out += 1;
        self.send_loose(addr, hello);
    }

    pub(super) fn drop_attempt(&mut self, index: u16) {
        if let Some(attempt) = self.peer_mut(index).and_then(|peer| peer.attempt.take()) {
            self.free_slot(attempt.local);
        }
    }

    pub(super) fn attempt_rejected(&mut self, index: u16, reason: RejectReason) {
        self.tables.stats.rejects += 1;
        self.attempt_failed(index, ImportError::Rejected(reason));
    }

    /// Nobody answered, or not as hoped: the waiters are notified.
    pub(super) fn attempt_failed(&mut self, index: u16, why: ImportError) {
        let why = self.with_hint(index, why);
        self.drop_attempt(index);
        if self.peer(index).is_some_and(|peer| peer.session.is_none()) {
            self.fail_waits_at(index, why);
            self.retire_peer(index);
        }
        self.fail_hopeless_name_waits(why);
    }

    /// Says with the error what somebody at the peer's address has said about it.
    pub(super) fn with_hint(&self, index: u16, why: ImportError) -> ImportError {
        let after_ms = match why {
            ImportError::NodeUnreachable { after_ms } | ImportError::TimedOut { waited_ms: after_ms } => after_ms,
            _ => return why,
        };
        let hint = self.peer(index).filter(|peer| peer.session.is_none()).and_then(|peer| peer.hint);
        hint.map_or(why, |hint| ImportError::NoSession { after_ms, hint })
    }

    fn fail_waits_at(&mut self, index: u16, why: ImportError) {
        let waiting = self.peer_mut(index).map(|peer| std::mem::take(&mut peer.waiting)).unwrap_or_default();
        for key in waiting {
            if self.tables.waits.get(key).is_some_and(|wait| wait.at == WaitAt::Peer(index)) {
                self.fail_wait(key, why);
            }
        }
    }

    /// Answers whatever waits under `key` with an error.
    pub(super) fn fail_wait(&mut self, key: Key<Wait>, why: ImportError) {
        match self.tables.waits.get(key).map(|wait| &wait.what) {
            Some(WaitFor::Import { .. }) => self.tables.end_import_wait(key, why),
            Some(WaitFor::Ping { by, .. }) => {
                let by = *by;
                let cookie = self.tables.waits.remove(key).expect("it was just found").cookie;
                self.tables.events.push_back(Event::Pong { by, cookie, result: Err(why) });
            }
            None => {}
        }
    }

    /// Forgets a peer that nobody configured and nothing uses.
    pub(super) fn retire_peer(&mut self, index: u16) {
        let idle = |peer: &Peer| {
            !peer.configured && peer.session.is_none() && peer.attempt.is_none() && peer.waiting.is_empty()
        };
        if self.peer(index).is_some_and(idle) {
            self.peers[usize::from(index)] = None;
        }
    }

    /// Asks the node for what waits for it.
    pub(super) fn start_waits(&mut self, now: Time, index: u16) {
        let Some(peer) = self.peers[usize::from(index)].as_mut() else { return };
        let (Some(name), Some(session)) = (peer.name.clone(), peer.session.as_deref()) else { return };
        let via = session.via;
        let mut waiting = std::mem::take(&mut peer.waiting);
        let tables = &self.tables;
        self.name_waits.retain(|key| {
            let Some(wait) = tables.waits.get(*key) else { return false };
            let node = match &wait.what {
                WaitFor::Import { spec, .. } => spec.node.as_ref(),
                WaitFor::Ping { node, .. } => Some(node),
            };
            let here = node == Some(&crate::rights::NodeSpec::Name(name.clone()));
            if here {
                waiting.insert(*key);
            }
            !here
        });
        for key in waiting {
            self.ask(now, key, via);
        }
        self.wake(index);
        self.arm(index);
    }

    /// Asks for what a wait waits for through a session, when its turn comes.
    pub(super) fn ask(&mut self, now: Time, key: Key<Wait>, via: SessionId) {
        let Some(wait) = self.tables.waits.get_mut(key) else { return };
        let by = match &mut wait.what {
            WaitFor::Ping { by: PingBy::Driver(uid), sent, .. } => {
                *sent = now;
                Err(*uid)
            }
            WaitFor::Ping { by: PingBy::Process(process), sent, .. } => {
                *sent = now;
                Ok(*process)
            }
            WaitFor::Import { process, .. } => Ok(*process),
        };
        let uid = by.map_or_else(Some, |process| self.tables.process(process).map(|process| process.uid));
        let Some(uid) = uid else { return };
        if let Some(wait) = self.tables.waits.get_mut(key) {
            wait.at = WaitAt::Turn { via, uid };
        }
        if let Some(session) = self.session_mut(via) {
            session.ask(uid, key);
        }
        self.wake(via.peer);
        self.arm(via.peer);
    }

    /// Fails the waits for a node by its name, unless a handshake that may reveal the name is under
    /// way.
    pub(super) fn fail_hopeless_name_waits(&mut self, why: ImportError) {
        let trying = self.peers.iter().flatten().any(|peer| peer.attempt.is_some() && peer.session.is_none());
        if trying || self.name_waits.is_empty() {
            return;
        }
        let nameless = self.peers.iter().flatten().any(|peer| peer.name.is_none());
        let why = if nameless { why } else { ImportError::UnknownNode };
        for key in std::mem::take(&mut self.name_waits) {
            if self.tables.waits.get(key).is_some_and(|wait| wait.at == WaitAt::NodeName) {
                self.fail_wait(key, why);
            }
        }
    }

    /// Ends the session with a peer: all that went through it fails.
    pub(super) fn end_session(&mut self, now: Time, index: u16, why: PeerDownReason) {
        let Some(peer) = self.peers[usize::from(index)].as_mut() else { return };
        let Some(mut session) = peer.session.take() else { return };
        let name = peer.name.clone();
        let (via, local) = (session.via, session.local);
        self.tables.stats.sessions_lost += 1;
        let op_error = match why {
            PeerDownReason::Unreachable { after_ms } => OpError::NodeUnreachable { after_ms },
            PeerDownReason::Restarted => OpError::NodeRestarted,
            PeerDownReason::Reset => {
                OpError::NodeUnreachable { after_ms: now.since(session.last_proof).as_millis() as u64 }
            }
            PeerDownReason::Closed => OpError::NodeClosed,
            PeerDownReason::Protocol => OpError::Protocol,
        };
        session.fail_all(op_error, &mut self.tables);
        self.tables.held_bytes -= session.held_bytes();
        debug_assert_eq!(
            self.tables.held_bytes,
            self.peers
                .iter()
                .flatten()
                .filter_map(|peer| peer.session.as_deref())
                .map(|s| s.held_bytes())
                .sum::<usize>(),
            "what is held for all is what is held for each"
        );
        drop(session);
        self.free_slot(local);
        self.drop_what_went_through(via, op_error);
        if let Some(name) = name {
            self.tables.events.push_back(Event::PeerDown { name, why });
        }
        let again = matches!(why, PeerDownReason::Reset | PeerDownReason::Restarted);
        self.move_unanswered(index, via, op_error, again);
    }

    /// Ends the session with a peer without a new one in its place.
    pub(super) fn lose_peer(&mut self, now: Time, index: u16, why: PeerDownReason) {
        self.end_session(now, index, why);
        self.retire_peer(index);
    }

    fn drop_what_went_through(&mut self, via: SessionId, why: OpError) {
        let mut broken = Vec::new();
        for process in self.tables.processes.iter().flatten() {
            let through = process
                .imports
                .iter()
                .filter(|(_, import)| matches!(import.route, Route::Remote { via: at, .. } if at == via));
            broken.extend(through.map(|(key, _)| (process.id, key)));
        }
        for (process, import) in broken {
            self.tables.break_import(process, import, why);
        }
        let lost: Vec<Key<Grant>> =
            self.tables.grants.iter().filter(|(_, grant)| grant.via == via).map(|(key, _)| key).collect();
        for key in lost {
            self.tables.remove_grant(key);
        }
        self.tables.waiters.drop_session(via);
    }

    /// Requests without an answer go to the next session, when there is one, or fail.
    fn move_unanswered(&mut self, index: u16, via: SessionId, why: OpError, again: bool) {
        let unanswered: Vec<Key<Wait>> =
            self.tables.waits.iter().filter(|(_, wait)| wait.at.is_through(via)).map(|(key, _)| key).collect();
        let after_ms = match why {
            OpError::NodeUnreachable { after_ms } => after_ms,
            _ => 0,
        };
        for key in unanswered {
            if !again {
                self.fail_wait(key, ImportError::NodeUnreachable { after_ms });
                continue;
            }
            if let Some(wait) = self.tables.waits.get_mut(key) {
                wait.at = WaitAt::Peer(index);
            }
            if let Some(peer) = self.peer_mut(index) {
                peer.waiting.insert(key);
            }
        }
    }
}
