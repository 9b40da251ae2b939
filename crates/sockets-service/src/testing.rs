//! A node of nothing but an engine, for tests of the service.
//!
//! Invariant: what a test does not check is refused or forgotten.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use vmmc_nic::{Config, Engine, NodeName, PeerRef, Time};
use vmmc_service::Node;

/// The node, at one moment.
pub(crate) struct OnEngine<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) now: Time,
}

/// An engine that knows no other.
pub(crate) fn engine(name: &str, seed: u8, now: Time) -> Engine {
    let config = Config { messages: true, ..Config::new(NodeName::parse(name).unwrap()) };
    Engine::new(config, [seed; 32], now)
}

impl Node for OnEngine<'_> {
    fn now(&self) -> Time {
        self.now
    }
    fn name(&self) -> NodeName {
        self.engine.name().clone()
    }
    fn send(&mut self, _: usize, _: Vec<u8>, _: Vec<OwnedFd>) {}
    fn close(&mut self, _: u32, _: OwnedFd) {}
    fn watch(&mut self, _: usize, _: BorrowedFd<'_>) -> bool {
        false
    }
    fn note(&mut self, _: Option<u32>, _: String) {}
    fn may_have(&self, _: u32, _: u64, _: u64, _: u64) -> bool {
        true
    }
    fn memory_room(&self) -> u64 {
        u64::MAX
    }
    fn has_memory(&mut self, _: u64) {}
    fn count_until_gone(&mut self, _: Option<OwnedFd>, _: u64) {}
    fn peers(&self) -> Vec<(PeerRef, SocketAddr)> {
        self.engine.message_peers().collect()
    }
    fn has_peer(&self, peer: PeerRef) -> bool {
        self.engine.has_peer(peer)
    }
    fn peer_name(&self, peer: PeerRef) -> Option<NodeName> {
        self.engine.peer_name(peer).cloned()
    }
    fn peer_address(&self, peer: PeerRef) -> Option<SocketAddr> {
        self.engine.peer_address(peer)
    }
    fn message_room(&self, peer: PeerRef) -> usize {
        self.engine.message_room(peer)
    }
    fn holds_messages_back(&self, peer: PeerRef) -> bool {
        self.engine.holds_messages_back(peer)
    }
    fn send_message(&mut self, to: PeerRef, parts: &[&[u8]]) -> bool {
        self.engine.send_message(self.now, to, parts)
    }
    fn retain_peer(&mut self, peer: PeerRef) {
        self.engine.hold_peer(peer);
    }
    fn release_peer(&mut self, peer: PeerRef) {
        self.engine.let_peer_go(peer);
    }
}
