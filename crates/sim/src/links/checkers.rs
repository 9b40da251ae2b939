//! What must hold at every moment of a run over links: memory and windows within their bounds,
//! pacing and streams that go on. Order and exactly-once are judged where messages are announced
//! ([`super::world`]), what can only be said of a whole run is in [`super::goals`].
//!
//! Invariant: a checker reads levels and changes nothing.

use vmmc_nic::limits as nic;
use vmmc_nic::{EcnOff, EcnState, PeerInfo, PeerState};

use super::link::Marking;
use super::scenario::Shape;
use super::sizes;
use super::stream::SLOTS;
use super::world::World;
use crate::gauges::held_of_all_max;
use crate::limits::{LINK_BUDGET_BYTES, LINK_PACE_SLACK_NS, LINK_STILL_NS_MAX};

/// Packets by whose time the next one may be late at the pace: a quantum, and the one before.
const PACKETS_LATE: u64 = 4;

/// Packets by which a sender knows that nothing of what it asks with arrives: those that are to
/// arrive, and what may be under way or lost meanwhile.
const MARKS_UNSEEN_MAX: u64 = nic::ECN_UNSEEN_MAX + 10_000;

impl World<'_> {
    /// Looks at every node, stream and link.
    pub(crate) fn look(&mut self) {
        for node in 0..self.nodes.len() {
            let peers: Vec<PeerInfo> = self.nodes[node].engine.peers().collect();
            let held: usize = peers.iter().map(|peer| peer.held_bytes).sum();
            let most = held_of_all_max(nic::HELD_BYTES_MAX, peers.len() as u64);
            self.level(node, "bytes held out of order of all peers", held as u64, most);
            for peer in peers {
                self.look_at_peer(node, &peer);
            }
        }
        for link in 0..self.links.len() {
            let (queued, room) = (self.links[link].queued_max, self.links[link].spec.queue_bytes);
            self.level(link, "bytes in the queue of a link", queued, room);
        }
        for stream in 0..self.streams.len() {
            self.look_at_stream(stream);
        }
    }

    fn look_at_peer(&mut self, node: usize, peer: &PeerInfo) {
        let budget = (LINK_BUDGET_BYTES + nic::CONTROL_SLACK_BYTES) as u64;
        self.level(node, "bytes of window", peer.window_bytes as u64, nic::WINDOW_MAX_BYTES as u64);
        self.level(node, "bytes in flight to one peer", peer.in_flight_bytes as u64, budget);
        self.level(node, "bytes held out of order for one peer", peer.held_bytes as u64, budget);
        self.level(node, "chunks held out of order for one peer", peer.held_chunks as u64, nic::CHUNK_WINDOW);
        self.level(node, "operations queued for one peer", peer.queued_ops as u64, SLOTS);
        self.look_at_marks(node, peer);
        self.look_at_pace(node, peer);
        if self.scenario.shape == Shape::Sizes && node < self.streams.len() && peer.state == PeerState::Up {
            self.look_at_size(node, peer);
        }
    }

    /// What a path does to codepoints is found out, and nothing else is held against it; a peer
    /// tells of marks that there were.
    fn look_at_marks(&mut self, node: usize, peer: &PeerInfo) {
        let strips = self.scenario.sends_there(node) && self.scenario.routes[0].there.marking == Marking::Strips;
        let wrong = match peer.ecn {
            Some(EcnState::InUse) => strips,
            Some(EcnState::Trying) => strips && peer.stats.packets_out > MARKS_UNSEEN_MAX,
            Some(EcnState::Off(EcnOff::Stripped)) => !strips,
            Some(EcnState::Off(EcnOff::Altered)) => true,
            Some(EcnState::Off(EcnOff::Chosen | EcnOff::Unanswered)) | None => false,
        };
        if wrong {
            self.fail("marks", format!("node {node} has marks {:?} with {:?}", peer.ecn, peer.stats));
        }
        let marked: u64 = self.links.iter().map(|link| link.counts.marked).sum();
        self.level(node, "marks that peers tell of", peer.stats.marked_out, marked);
    }

    /// Who has something to send, and room in the window, sends.
    fn look_at_pace(&mut self, node: usize, peer: &PeerInfo) {
        let packet = peer.paths.iter().find(|path| path.active).map_or(0, |path| path.mtu_bytes as u64);
        let piece = self.nodes[node].expected.cut_for(self.now_ns, packet, sizes::stands_within_ns(&self.scenario));
        let room = peer.window_bytes.min(LINK_BUDGET_BYTES) as u64;
        let may_send = peer.state == PeerState::Up && peer.in_flight_bytes as u64 + 2 * packet <= room;
        let Some(congestion) = peer.congestion.filter(|_| may_send && peer.queued_ops > 0) else { return };
        let pace_ns = congestion.pace.map_or(0, |pace| PACKETS_LATE * piece * 1_000_000_000 / pace.max(1));
        let (waits_ns, bound_ns) = (self.now_ns - self.nodes[node].sent_ns, pace_ns + LINK_PACE_SLACK_NS);
        if waits_ns > bound_ns {
            self.fail(
                "pacing",
                format!("node {node} has room and {} operations to send, and has sent nothing for {waits_ns} ns; at its pace it may be {bound_ns}; {congestion:?}", peer.queued_ops),
            );
        }
    }

    fn look_at_stream(&mut self, index: usize) {
        let stream = &self.streams[index];
        let since_ns = match (stream.began_ns, stream.is_over()) {
            (_, true) => return,
            (Some(began_ns), _) => began_ns.max(stream.moved_ns),
            (None, _) => self.scenario.starts_ns[index],
        };
        let route = self.scenario.routes[self.route];
        if route.ends_sessions() {
            return self.look_at_end(index);
        }
        if self.is_paused() || route.is_down() {
            return;
        }
        let still_ns = self.now_ns.saturating_sub(since_ns.max(self.again_ns()));
        let most_ns = match self.scenario.shape {
            Shape::Sizes => sizes::stands_within_ns(&self.scenario),
            _ => LINK_STILL_NS_MAX,
        };
        if still_ns > most_ns {
            self.fail("starvation", format!("stream {index} has not moved for {} ms", still_ns / 1_000_000));
        }
    }

    /// A session whose path takes nothing that it could send ends, with the error that says so.
    fn look_at_end(&mut self, index: usize) {
        let (waits_ns, within_ns) =
            (self.now_ns - self.route_ns.max(self.through_ns), sizes::lost_within_ns(&self.scenario));
        if self.streams[index].lost_ns.is_none() && waits_ns > within_ns {
            let message =
                format!("stream {index} has a session for {} ms that ought to have ended", waits_ns / 1_000_000);
            self.fail("size", message);
        }
    }

    fn level(&mut self, node: usize, what: &'static str, value: u64, bound: u64) {
        let value = self.tamper.level(what, value);
        if value > bound {
            self.fail("bounded-memory", format!("{node} has {value} {what}, the limit is {bound}"));
        }
    }
}
