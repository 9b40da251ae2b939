//! What `vmmc sockets` shows.
//!
//! Invariant: figures come from the shared words, so they are claims of the two processes, shown
//! and nothing else.

use super::Sockets;
use super::slabs::Link;
use super::users::Users;
use crate::limits::SOCKET_LIST_MAX;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use vmmc_service::Node;
use vmmc_stream::messages::{Place, SocketInfo, SocketList, VERSION};
use vmmc_stream::{EndWords, Endpoints, Slot};

impl Sockets {
    /// Processes of another version, then connections, upgraded ones first, as many as fit a
    /// message; and how many there are.
    pub(crate) fn list(&self, node: &dyn Node) -> SocketList {
        let upgraded = self.slabs.links().flat_map(|(place, link, slot)| {
            let ends = [0, 1].map(|end| self.describe(link, &slot, end));
            let own = self.own_end(link, &slot);
            let there = own.and_then(|_| Some(node.peer_name(self.between.peer_of(place)?)?.to_string()));
            let here = move |end: &usize| own.is_none_or(|own| own == *end);
            ends.into_iter().enumerate().filter(move |(end, _)| here(end)).map(move |(_, mut info)| {
                if own.is_some() {
                    info.peer_node.clone_from(&there);
                    info.path = format!("between nodes, {}", info.path);
                }
                info
            })
        });
        let (mut users, peers): (Option<Users>, _) = (None, node.peers());
        let offered = self.offers.iter().filter_map(|(own, offer)| {
            let client = self.clients.get(&offer.client)?;
            let is_there = |at: &SocketAddr| at.ip().to_canonical() == own.remote.ip();
            let other = peers.iter().find(|(_, at)| is_there(at)).and_then(|(peer, _)| node.peer_name(*peer));
            let peer = users.get_or_insert_with(Users::read).of(&own.mirrored());
            let mut info = plain(client.pid, own, why_plain(own, peer, client.uid, other.is_some()));
            info.peer_node = other.map(|name| name.to_string());
            Some(info)
        });
        let refused = self
            .clients
            .values()
            .flat_map(|client| client.refused.values().map(|(own, why)| plain(client.pid, own, why.to_string())));
        let strangers =
            self.strangers.iter().filter(|stranger| !stranger.watch.has_ended()).map(|stranger| SocketInfo {
                pid: stranger.pid,
                local: "all".into(),
                path: "kernel".into(),
                reason: format!(
                    "its library speaks version {}, this node {VERSION}: start both from one release",
                    stranger.version
                ),
                ..SocketInfo::default()
            });
        // Made one by one, and no more of them than are shown.
        let all: Vec<SocketInfo> =
            strangers.chain(upgraded).chain(offered).chain(refused).take(SOCKET_LIST_MAX).collect();
        SocketList { sockets: all, total: self.listed() }
    }

    /// How many entries a list of all would have.
    fn listed(&self) -> u64 {
        let strangers = self.strangers.iter().filter(|stranger| !stranger.watch.has_ended()).count();
        let ends = |(_, link, slot): (Place, &Link, Slot)| if self.own_end(link, &slot).is_some() { 1 } else { 2 };
        let upgraded: usize = self.slabs.links().map(ends).sum();
        let refused: usize = self.clients.values().map(|client| client.refused.len()).sum();
        (strangers + upgraded + self.offers.len() + refused) as u64
    }

    /// The end that is on this node, if the other one is not.
    fn own_end(&self, link: &Link, slot: &Slot) -> Option<usize> {
        let between = slot.words().between.load(Ordering::Relaxed) != 0;
        between.then(|| usize::from(link.cookies[1] != 0))
    }

    fn describe(&self, link: &Link, slot: &Slot, end: usize) -> SocketInfo {
        let pid = |end: usize| {
            let holder = link.holders[end].processes().next()?;
            self.by_process.get(&holder).and_then(|i| self.clients.get(i)).map(|c| c.pid)
        };
        let words = slot.words();
        let (out, into) = (&words.directions[end], &words.directions[1 - end]);
        let attached = words.ends.iter().all(|e| e.attached.load(Ordering::Relaxed) == EndWords::YES);
        let path = match (out.announced().in_ring(), into.announced().in_ring()) {
            (true, true) => "ring",
            (true, false) => "sends by ring, receives by kernel",
            (false, true) => "sends by kernel, receives by ring",
            (false, false) => "kernel",
        };
        let reason = if attached { "" } else { "waits for an end to come by" };
        SocketInfo {
            pid: pid(end).unwrap_or(0),
            local: link.endpoints[end].local.to_string(),
            remote: link.endpoints[end].remote.to_string(),
            peer_pid: pid(1 - end),
            peer_node: None,
            path: path.into(),
            reason: reason.into(),
            ring_bytes: [out, into].map(|d| slot.ring_bytes(d.layout().large)),
            ring_sent_bytes: out.tail.load(Ordering::Relaxed),
            ring_received_bytes: into.head.load(Ordering::Relaxed),
        }
    }
}

fn plain(pid: u32, own: &Endpoints, reason: String) -> SocketInfo {
    SocketInfo {
        pid,
        local: own.local.to_string(),
        remote: own.remote.to_string(),
        path: "kernel".into(),
        reason,
        ..SocketInfo::default()
    }
}

/// Why an offer has found no counterpart. A connection within a machine has the same address twice,
/// or loopback ones.
fn why_plain(own: &Endpoints, peer: Option<u32>, uid: u32, node: bool) -> String {
    match peer {
        _ if node => "the peer does not use VMMC, or not enough yet".into(),
        Some(peer) if peer != uid => format!("the peer belongs to another user ({peer})"),
        _ if own.local.ip() == own.remote.ip() || own.remote.ip().is_loopback() => "the peer does not use VMMC".into(),
        _ => "no node of the cluster is at the peer's address".into(),
    }
}
