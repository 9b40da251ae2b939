//! Messages from driver to driver: opaque to the engine, in order, exactly once, for as long as a
//! session lasts.
//!
//! Invariant: nothing is sent to a peer that did not say that its driver takes messages; what waits
//! for one peer is bounded by what it can take.

use super::Engine;
use crate::ids::NodeName;
use crate::limits::MESSAGES_QUEUED_BYTES_MAX;
use crate::peer::Peer;
use crate::tables::SessionId;
use crate::time::Time;
use std::net::SocketAddr;

/// A session with a peer whose driver takes messages. A later session with the same peer is another
/// one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PeerRef {
    peer: u16,
    serial: u64,
}

impl PeerRef {
    fn via(self) -> SessionId {
        SessionId { peer: self.peer, serial: self.serial }
    }

    fn of(via: SessionId) -> PeerRef {
        PeerRef { peer: via.peer, serial: via.serial }
    }
}

impl Engine {
    /// Peers whose drivers take messages, with the address that packets to them go to now.
    pub fn message_peers(&self) -> impl Iterator<Item = (PeerRef, SocketAddr)> + '_ {
        self.peers.iter().flatten().filter_map(|peer| {
            let session = peer.session.as_deref().filter(|session| session.messages && self.config.messages)?;
            Some((PeerRef::of(session.via), peer.addr()?))
        })
    }

    /// Whether the session still is there.
    pub fn has_peer(&self, peer: PeerRef) -> bool {
        self.peer(peer.peer).and_then(|p| p.session.as_deref()).is_some_and(|session| session.via == peer.via())
    }

    /// Name of the node on the other side.
    pub fn peer_name(&self, peer: PeerRef) -> Option<&NodeName> {
        self.peer(peer.peer).filter(|_| self.has_peer(peer))?.name.as_ref()
    }

    /// Name of the node at the other end of a session that a [`Sender`](crate::Sender) names;
    /// `None`: the session has ended, or it is this node.
    pub fn session_name(&self, session: u32) -> Option<&NodeName> {
        let is_it = |peer: &&Peer| peer.session.as_deref().is_some_and(|open| open.via.number() == session);
        self.peers.iter().flatten().find(is_it)?.name.as_ref()
    }

    /// Where packets to it go now.
    pub fn peer_address(&self, peer: PeerRef) -> Option<SocketAddr> {
        self.peer(peer.peer).filter(|_| self.has_peer(peer))?.addr()
    }

    /// Bytes of the longest message that can be sent now; 0: none can, or the session is gone.
    /// Control messages of a few hundred bytes may be sent all the same, unless
    /// [`holds_messages_back`](Self::holds_messages_back).
    pub fn message_room(&self, peer: PeerRef) -> usize {
        let session = self.peer(peer.peer).and_then(|p| p.session.as_deref());
        let Some(session) = session.filter(|session| session.via == peer.via()) else { return 0 };
        let most = session.budget.min(MESSAGES_QUEUED_BYTES_MAX);
        most.saturating_sub(session.tx.span_bytes).min(session.message_bytes())
    }

    /// Whether so many bytes of messages to a peer wait or are under way that what its driver has
    /// not asked for is to be said later, however short it is.
    pub fn holds_messages_back(&self, peer: PeerRef) -> bool {
        let session = self.peer(peer.peer).and_then(|p| p.session.as_deref());
        let session = session.filter(|session| session.via == peer.via());
        session.is_some_and(|session| session.tx.message_bytes >= MESSAGES_QUEUED_BYTES_MAX)
    }

    /// Sends a message made of parts. False: the session is gone, its peer takes none, or they are
    /// longer than a packet.
    pub fn send_message(&mut self, now: Time, to: PeerRef, parts: &[&[u8]]) -> bool {
        self.now = now;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let Some(session) = self.session_mut(to.via()).filter(|s| s.messages && len <= s.message_bytes()) else {
            return false;
        };
        session.queue_message(parts);
        self.wake(to.peer);
        true
    }

    /// The next message that came. Take all after each datagram.
    #[inline]
    pub fn poll_message(&mut self) -> Option<(PeerRef, Box<[u8]>)> {
        self.tables.messages.pop_front().map(|(via, message)| (PeerRef::of(via), message))
    }

    /// Something at the driver depends on the peer being alive: it is asked now and then, until as
    /// many [`let_peer_go`](Self::let_peer_go).
    pub fn hold_peer(&mut self, peer: PeerRef) {
        if let Some(session) = self.session_mut(peer.via()) {
            session.held_by_driver += 1;
            self.arm(peer.peer);
        }
    }

    /// Ends what [`hold_peer`](Self::hold_peer) began.
    pub fn let_peer_go(&mut self, peer: PeerRef) {
        if let Some(session) = self.session_mut(peer.via()) {
            session.held_by_driver = session.held_by_driver.saturating_sub(1);
        }
    }
}
