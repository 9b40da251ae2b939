//! Stream sockets as a service: messages in and out, and what the node asks of it.
//!
//! Invariant: messages of a call that is served go out at its end, in order; a client that
//! breaks the rules loses its connection, and nobody else notices.

use super::Sockets;
use super::limits::{DESCRIPTORS_PER_SOCKETS_CLIENT, SOCKET_OFFERS_ALL_MAX};
use std::os::fd::OwnedFd;
use vmmc_host::control::{Refusal, RefusalCode, decode, encode};
use vmmc_nic::{PeerRef, Time};
use vmmc_service::{About, Client, Figure, Misbehaved, Node, Service};
use vmmc_stream::messages::{SERVICE, SocketCall, SocketQuestion, VERSION};

impl Service for Sockets {
    fn about(&self) -> About {
        About { id: SERVICE, version: VERSION, name: "sockets", descriptors_per_client: DESCRIPTORS_PER_SOCKETS_CLIENT }
    }

    fn join(
        &mut self,
        node: &mut dyn Node,
        client: Client,
        message: &[u8],
        mut fds: Vec<OwnedFd>,
    ) -> Result<Result<(), Misbehaved>, Refusal> {
        if decode::<SocketCall>(message) != Ok(SocketCall::Attach) || fds.len() != 1 {
            return Ok(Err(Misbehaved));
        }
        if let Err(why) = self.prepare() {
            let message = why.to_string();
            node.note(Some(client.uid), message.clone());
            return Err(Refusal { code: RefusalCode::NotStarted, message });
        }
        let bells = fds.pop().expect("one, as seen above");
        let joined = self.attach(client.index, client.pid, client.uid, bells);
        self.flush(node);
        Ok(joined)
    }

    fn refused_version(&mut self, client: Client, version: u16) {
        self.remember_stranger(client.pid, version);
    }

    fn call(
        &mut self,
        node: &mut dyn Node,
        client: Client,
        message: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Misbehaved> {
        let Ok(call) = decode::<SocketCall>(message) else { return Err(Misbehaved) };
        self.set_room(node.memory_room());
        let done = match call {
            SocketCall::Offer { connection, .. } if !self.may_offer(node, client.uid) => {
                self.refuse_offer(client.index, connection);
                Ok(())
            }
            call => self.handle(node.now(), client.index, call, fds),
        };
        self.flush(node);
        done
    }

    fn ask(&self, node: &dyn Node, message: &[u8]) -> Result<Vec<u8>, Misbehaved> {
        match decode::<SocketQuestion>(message) {
            Ok(SocketQuestion::List) => Ok(encode(&self.list(node))),
            Err(_) => Err(Misbehaved),
        }
    }

    /// That it let an end go must be known before it is taken for a holder that died, and a process
    /// that it rang is to wake. What it wanted for itself it does not want any more.
    fn last_message(
        &mut self,
        node: &mut dyn Node,
        client: Client,
        message: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Misbehaved> {
        use SocketCall::{Adopt, Bell, Hold, Offer};
        match decode::<SocketCall>(message) {
            Ok(Hold { .. } | Offer { .. } | Adopt { .. } | Bell { .. }) => Ok(()),
            Ok(call) => {
                let done = self.handle(node.now(), client.index, call, fds);
                self.flush(node);
                done
            }
            Err(_) => Err(Misbehaved),
        }
    }

    fn gone(&mut self, node: &mut dyn Node, client: Client) {
        Sockets::gone(self, client.index, node.now());
        self.flush(node);
    }

    fn sent(&mut self, client: usize) {
        self.count_message(client);
    }

    fn message(&mut self, node: &mut dyn Node, from: PeerRef, message: &[u8]) -> Result<(), Misbehaved> {
        self.set_room(node.memory_room());
        let is_valid = self.handle_message(node, from, message);
        self.flush(node);
        if is_valid { Ok(()) } else { Err(Misbehaved) }
    }

    fn peer_came(&mut self, _: &mut dyn Node) {
        Sockets::peer_came(self);
    }

    fn peers_changed(&mut self, node: &mut dyn Node) {
        Sockets::peers_changed(self, node);
        self.flush(node);
    }

    fn step(&mut self, node: &mut dyn Node) -> bool {
        let mut worked = false;
        if self.next_orphan().is_some_and(|due| due <= node.now()) {
            self.serve_orphans(node.now());
            self.flush(node);
            worked = true;
        }
        worked | self.serve_between(node)
    }

    fn next_timeout(&self) -> Option<Time> {
        self.next_orphan()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.prepare_sleep_between()
    }

    fn wake_up(&mut self) {
        self.wake_up_between();
    }

    fn memory_is_gone(&mut self, token: u64) {
        if let Some(held) = self.kept.remove(&token) {
            self.slab_is_gone(held);
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |name, help, value| Figure { name, help, value };
        vec![
            figure("sockets_clients", "Processes whose TCP connections can be upgraded.", self.clients.len() as u64),
            figure("sockets_offers", "TCP connections whose other end was not offered.", self.offers.len() as u64),
            figure("sockets_matches_total", "TCP connections whose two ends were brought together.", self.matches),
            figure("sockets_slabs", "Pieces of memory that pairs of processes share for connections.", self.slabs()),
            figure("sockets_slots", "Connections that the slabs have memory for.", self.slabs.slots.total()),
        ]
    }
}

impl Sockets {
    /// Hands the node all that came of a call: messages, descriptors to close, slabs.
    fn flush(&mut self, node: &mut dyn Node) {
        for (uid, copy) in std::mem::take(&mut self.copies) {
            node.close(uid, copy);
        }
        for (slab, held) in std::mem::take(&mut self.let_go) {
            self.last_kept += 1;
            self.kept.insert(self.last_kept, held);
            node.count_until_gone(slab.share().ok(), self.last_kept);
        }
        node.has_memory(self.slabs());
        for index in self.take_new_bells() {
            if let Some(bell) = self.node_bell(index) {
                // Without it the node finds what the client sends when it polls for another reason.
                let _ = node.watch(index, bell);
            }
        }
        for (index, event, fds) in self.take_outbox() {
            node.send(index, encode(&event), fds);
        }
    }

    /// Whether the user of a client has its share of the open offers.
    fn may_offer(&self, node: &dyn Node, uid: u32) -> bool {
        let (own, all) = self.open_offers(uid);
        node.may_have(uid, own, all, SOCKET_OFFERS_ALL_MAX as u64)
    }
}
