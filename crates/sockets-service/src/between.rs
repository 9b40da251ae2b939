//! Connections whose other end is on another node.
//!
//! ```text
//!   node A                                        node B
//!   an offer without a counterpart here ── ask ──▶ is the mirror image offered here?  (the node with the smaller name answers, the other asks back)
//!   the offer still stands: a slot      ◀─ accept ─ a slot, kept for it
//!   "matched" to the process            ─ confirm ▶ the offer still stands: "matched" to the process
//!   replica                             ══ update ▶ replica                            (and the other way round)
//! ```
//!
//! Invariant: two ends are taken for one connection only if their addresses mirror each other, and
//! each node exchanges sealed packets with the other one at just the address that its own end has
//! as its peer's. So that address leads to the other node, and not to somebody who has the same
//! numbers elsewhere. A connection belongs to a session of the engine, and ends with it. Source:
//! docs/sockets.md.

use super::holders::Holders;
use super::quota::Quota;
use super::{Client, Offer, Sockets, secret, slabs};
use crate::limits::{BETWEEN_ASKS_MAX, BETWEEN_LINKS_MAX, BETWEEN_TURN};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use vmmc_nic::PeerRef;
use vmmc_service::Node;
use vmmc_stream::messages::{Place, SocketEvent};
use vmmc_stream::{Bells, DirectionWords, Encoded, EndWords, Endpoints, Replica, TOKENS, Wakes, Watch};

/// The node, among the ids of processes: it rings and is rung for everybody on other nodes.
pub(crate) const NODE: u32 = u32::MAX;
/// The bell of it that is used.
const BELL: u32 = 0;

/// The part of the service that has to do with other nodes.
#[derive(Default)]
pub(crate) struct Between {
    /// Whether there is any.
    on: bool,
    /// Network namespace of this node: that of the addresses of its peers.
    network: u64,
    /// By number of ours.
    links: HashMap<u64, Remote>,
    by_place: HashMap<(u64, u32), u64>,
    /// Ends of links that the other node has not confirmed.
    unconfirmed: HashSet<Endpoints>,
    /// Whose the links are.
    shares: Quota,
    by_token: Vec<Option<u64>>,
    free_tokens: Vec<u32>,
    last: u64,
    /// Offers that other nodes should be asked about.
    to_ask: ToAsk,
    /// Links that may have something to send.
    queue: VecDeque<u64>,
    /// Clients with new bells of ours, which the station should watch.
    new_bells: Vec<usize>,
    scratch: Vec<u8>,
}

/// Offers that other nodes are to be asked about, each once, in the order in which they came; those
/// for which a node had no room come last.
///
/// Invariant: each of them stands. So no user has more of them than of offers.
#[derive(Default)]
struct ToAsk {
    order: BTreeMap<AskTurn, (Endpoints, Option<Vec<PeerRef>>)>,
    turns: HashMap<Endpoints, AskTurn>,
    last: u64,
}

/// Whether it has waited for room, and a number that grows.
type AskTurn = (bool, u64);

impl ToAsk {
    fn len(&self) -> usize {
        self.order.len()
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Asks everybody, or these only.
    fn push(&mut self, own: Endpoints, only: Option<Vec<PeerRef>>) {
        self.remove(&own);
        self.last += 1;
        let turn = (only.is_some(), self.last);
        self.turns.insert(own.clone(), turn);
        self.order.insert(turn, (own, only));
    }

    fn remove(&mut self, own: &Endpoints) {
        if let Some(turn) = self.turns.remove(own) {
            self.order.remove(&turn);
        }
    }

    fn pop(&mut self) -> Option<(Endpoints, Option<Vec<PeerRef>>)> {
        let (_, (own, only)) = self.order.pop_first()?;
        self.turns.remove(&own);
        Some((own, only))
    }
}

/// What a client has of the node: bells of its own, so that nobody rings for others.
pub(crate) struct NodeBells {
    bells: Bells,
    fd: OwnedFd,
}

/// A connection to another node.
struct Remote {
    peer: PeerRef,
    uid: u32,
    /// Number of the other node; 0: it has not confirmed.
    theirs: u64,
    own: Endpoints,
    place: Place,
    token: u32,
    replica: Replica,
    queued: bool,
    /// To be sent behind the bytes.
    pending: PendingNotices,
    /// The end here was released, and the other node has been sent that.
    released: bool,
    /// Somebody unknown may still use the slot.
    abandoned: bool,
    /// The other node has been sent that all holders of the end have ended.
    reported_dead: bool,
}

#[derive(Default)]
struct PendingNotices {
    question: bool,
    complete: bool,
    hint: Option<bool>,
    released: bool,
}

impl PendingNotices {
    fn is_any(&self) -> bool {
        self.question || self.complete || self.hint.is_some() || self.released
    }
}

/// First byte of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// Addresses: own, the peer's.
    Ask = 1,
    /// Number of the sender's link; addresses as its end has them.
    Accept = 2,
    /// Numbers: the receiver's, the sender's.
    Confirm = 3,
    /// What follows begins with the receiver's number: a message of a replica.
    Update = 4,
    /// Is all here that the end sent?
    Question = 5,
    /// Yes.
    Complete = 6,
    /// All known holders of the end have gone; a byte: and have ended.
    Hint = 7,
    /// The end is not used any more, or never was.
    Released = 8,
    /// The link ends as a reset connection.
    Broken = 9,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        use Kind::*;
        let all = [Ask, Accept, Confirm, Update, Question, Complete, Hint, Released, Broken];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl Between {
    /// For a node that upgrades connections to other nodes.
    pub(crate) fn switched_on() -> Between {
        match vmmc_stream::network_here() {
            Ok(network) => Between { on: true, network, ..Between::default() },
            Err(_) => Between::default(),
        }
    }

    /// An offer has found nobody here.
    pub(crate) fn wants(&mut self, own: &Endpoints) {
        if self.on && own.network == self.network && self.to_ask.len() < BETWEEN_ASKS_MAX {
            self.to_ask.push(own.clone(), None);
        }
    }

    /// The offer stands no more.
    pub(crate) fn wants_no_more(&mut self, own: &Endpoints) {
        self.to_ask.remove(own);
    }

    /// Whether a place belongs to a connection to another node.
    pub(crate) fn has(&self, place: Place) -> bool {
        self.by_place.contains_key(&(place.slab, place.slot))
    }

    fn link_at(&mut self, place: Place) -> Option<(u64, &mut Remote)> {
        let id = *self.by_place.get(&(place.slab, place.slot))?;
        Some((id, self.links.get_mut(&id)?))
    }

    /// It may have something to send.
    fn queue(&mut self, id: u64) {
        if let Some(link) = self.links.get_mut(&id).filter(|link| !link.queued) {
            link.queued = true;
            self.queue.push_back(id);
        }
    }

    /// Name of the other node's peer reference, for the list.
    pub(crate) fn peer_of(&self, place: Place) -> Option<PeerRef> {
        let id = self.by_place.get(&(place.slab, place.slot))?;
        self.links.get(id).map(|link| link.peer)
    }

    fn take_token(&mut self, id: u64) -> Option<u32> {
        if let Some(token) = self.free_tokens.pop() {
            self.by_token[token as usize] = Some(id);
            return Some(token);
        }
        let token = self.by_token.len() as u32;
        (token < TOKENS).then(|| {
            self.by_token.push(Some(id));
            token
        })
    }
}

impl Sockets {
    /// Serves what concerns other nodes; says whether there was anything.
    pub(crate) fn serve_between(&mut self, node: &mut dyn Node) -> bool {
        if !self.between.on {
            return false;
        }
        let mut worked = self.ask_others(node);
        for client in self.clients.values() {
            let Some(own) = client.node_bells.as_ref().filter(|own| own.bells.any(BELL)) else { continue };
            let between = &mut self.between;
            own.bells.take(BELL, &mut |token| {
                if let Some(id) = between.by_token.get(token as usize).copied().flatten() {
                    between.queue(id);
                }
            });
        }
        for _ in 0..self.between.queue.len().min(BETWEEN_TURN) {
            let Some(id) = self.between.queue.pop_front() else { break };
            worked |= self.send_pending(node, id);
        }
        worked
    }

    /// Whether [`serve_between`](Self::serve_between) has something to do although no bell has rung
    /// since.
    pub(crate) fn prepare_sleep_between(&self) -> bool {
        let own = self.clients.values().filter_map(|client| client.node_bells.as_ref());
        own.fold(false, |any, own| any | own.bells.arm(BELL))
    }

    /// The node is awake.
    pub(crate) fn wake_up_between(&self) {
        let own = self.clients.values().filter_map(|client| client.node_bells.as_ref());
        own.for_each(|own| own.bells.disarm(BELL));
    }

    /// Clients with bells that the station should wake for.
    pub(crate) fn take_new_bells(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.between.new_bells)
    }

    /// What a client rings the node by.
    pub(crate) fn node_bell(&self, index: usize) -> Option<BorrowedFd<'_>> {
        Some(self.clients.get(&index)?.node_bells.as_ref()?.fd.as_fd())
    }

    /// Asks the nodes that could have the other ends of offers.
    fn ask_others(&mut self, node: &mut dyn Node) -> bool {
        let mut any = false;
        for _ in 0..BETWEEN_TURN.min(self.between.to_ask.len()) {
            let Some((own, only)) = self.between.to_ask.pop() else { break };
            let found = || node.peers().into_iter().filter(|(_, at)| same(at.ip(), own.remote.ip())).map(|(p, _)| p);
            let peers = only.unwrap_or_else(|| found().collect());
            let (later, at_once): (Vec<PeerRef>, Vec<PeerRef>) =
                peers.into_iter().partition(|peer| node.holds_messages_back(*peer));
            any |= later.is_empty() || !at_once.is_empty();
            for peer in at_once {
                let message = addresses(Kind::Ask, 0, &own);
                node.send_message(peer, &[&message]);
            }
            if !later.is_empty() {
                // What makes room is a datagram, after which there is another turn.
                self.between.to_ask.push(own, Some(later));
            }
        }
        any
    }

    /// A message of another node. False: it breaks the rules.
    pub(crate) fn handle_message(&mut self, node: &mut dyn Node, from: PeerRef, message: &[u8]) -> bool {
        let Some((kind, rest)) = message.split_first().and_then(|(k, rest)| Some((Kind::of(*k)?, rest))) else {
            return false;
        };
        match kind {
            Kind::Ask | Kind::Accept => {
                let Some((theirs, asked)) = read_addresses(rest, self.between.network) else { return false };
                let own = asked.mirrored();
                // The peer's end, as this node sees it, must be where its node is.
                let there = node.peer_address(from).is_some_and(|at| same(at.ip(), own.remote.ip()));
                let fits = there && self.between.on && self.between.links.len() < BETWEEN_LINKS_MAX;
                match kind {
                    Kind::Ask if fits => self.asked(node, from, &own),
                    Kind::Accept if fits => self.accepted(node, from, &own, theirs),
                    Kind::Accept => send(node, from, Kind::Released, theirs, &[]),
                    _ => {}
                }
                true
            }
            _ => {
                let Some((number, rest)) = rest.split_first_chunk::<8>() else { return false };
                let id = u64::from_le_bytes(*number);
                // The other node will learn that a link has ended meanwhile.
                if self.between.links.get(&id).is_some_and(|link| link.peer == from) {
                    self.handle_link_message(node, id, kind, rest);
                }
                true
            }
        }
    }

    fn handle_link_message(&mut self, node: &mut dyn Node, id: u64, kind: Kind, rest: &[u8]) {
        match kind {
            Kind::Update => {
                let link = self.between.links.get_mut(&id).expect("the caller found it");
                let (place, applied) = (link.place, link.replica.apply_update(rest));
                match applied {
                    Ok(wakes) => {
                        self.wake_for(place, wakes);
                        if wakes.answer {
                            self.between.queue(id);
                        }
                    }
                    Err(_) => self.break_link(node, id),
                }
            }
            Kind::Confirm => {
                let theirs = rest.first_chunk::<8>().map(|n| u64::from_le_bytes(*n));
                self.confirmed(node, id, theirs.unwrap_or(0));
            }
            Kind::Question => {
                self.between.links.get_mut(&id).expect("as above").pending.complete = true;
                self.between.queue(id);
            }
            Kind::Complete => {
                let place = self.between.links[&id].place;
                if let Some(slot) = self.slabs.slot(place) {
                    slot.words().complete.store(1, Ordering::SeqCst);
                    slot.words().ends[place.end as usize].hint.fetch_add(1, Ordering::SeqCst);
                }
                self.wake(place);
            }
            Kind::Hint => {
                let place = self.between.links[&id].place;
                self.hint(Place { end: 1 - place.end, ..place }, rest.first() == Some(&1));
            }
            Kind::Released => self.other_released(node, id),
            Kind::Broken => self.break_link(node, id),
            Kind::Ask | Kind::Accept => {}
        }
    }

    /// Does another node's offer mirror one of ours?
    fn asked(&mut self, node: &mut dyn Node, from: PeerRef, own: &Endpoints) {
        let Some(offer) = self.offers.get(own) else { return };
        if node.holds_messages_back(from) {
            return;
        }
        if node.peer_name(from).is_none_or(|theirs| theirs.as_str() < node.name().as_str()) {
            let message = addresses(Kind::Ask, 0, own);
            node.send_message(from, &[&message]);
            return;
        }
        if self.between.unconfirmed.contains(own) {
            return;
        }
        let offer = Offer { ..*offer };
        if let Some(id) = self.open_link(node, from, own, &offer, 0) {
            let message = addresses(Kind::Accept, id, own);
            node.send_message(from, &[&message]);
        }
    }

    /// The other node has a slot for the mirror image of an offer of ours.
    fn accepted(&mut self, node: &mut dyn Node, from: PeerRef, own: &Endpoints, theirs: u64) {
        let opened = match self.offers.get(own) {
            Some(offer) => {
                let offer = Offer { ..*offer };
                self.open_link(node, from, own, &offer, 1)
            }
            None => None,
        };
        let Some(id) = opened else { return send(node, from, Kind::Released, theirs, &[]) };
        send(node, from, Kind::Confirm, theirs, &id.to_le_bytes());
        self.match_offers(node, id, theirs);
    }

    fn confirmed(&mut self, node: &mut dyn Node, id: u64, theirs: u64) {
        if theirs != 0 && self.between.links[&id].theirs == 0 {
            self.match_offers(node, id, theirs);
        }
    }

    /// Both nodes have a slot: the offer has found its counterpart, if it still stands.
    fn match_offers(&mut self, node: &mut dyn Node, id: u64, theirs: u64) {
        let link = self.between.links.get_mut(&id).expect("the caller has it");
        link.theirs = theirs;
        self.between.unconfirmed.remove(&link.own);
        let (own, place) = (link.own.clone(), link.place);
        let cookie = self.slabs.link(place).map(|l| l.cookies[place.end as usize]);
        let stands = self.offers.get(&own).filter(|offer| Some(offer.cookie) == cookie);
        let Some(&Offer { client, connection, cookie }) = stands else {
            // The process has gone, or has let the offer go.
            if let Some(slot) = self.slabs.slot(place) {
                slot.words().ends[place.end as usize].attached.store(EndWords::NO, Ordering::Release);
            }
            if let Some(link) = self.slabs.link(place) {
                link.released[place.end as usize] = true;
            }
            self.between.links.get_mut(&id).expect("as above").pending.released = true;
            self.send_pending(node, id);
            return;
        };
        self.take_offer(&own);
        self.matches += 1;
        let process = self.clients[&client].process;
        if let Some(link) = self.slabs.link(place) {
            link.holders[place.end as usize] = Holders::of(process);
        }
        self.introduce(client, NODE, place.slab);
        self.client(client).ends.insert(place);
        self.by_cookie.insert(cookie, place);
        let end = self.end_ref(place);
        self.queue_event(client, SocketEvent::Matched { connection, end, peer: NODE }, Vec::new());
    }

    /// A slot for an offer, as one of two replicas.
    fn open_link(
        &mut self,
        node: &mut dyn Node,
        peer: PeerRef,
        own: &Endpoints,
        offer: &Offer,
        end: usize,
    ) -> Option<u64> {
        let Client { process, uid, .. } = *self.clients.get(&offer.client)?;
        let secret = secret()?;
        self.between.last += 1;
        let id = self.between.last;
        if !self.between.shares.take(uid, 1, BETWEEN_LINKS_MAX as u64) {
            return None;
        }
        let Some(token) = self.between.take_token(id) else {
            self.between.shares.give(uid, 1);
            return None;
        };
        let Some((slab, number)) = self.slabs.take_slot([process, NODE], uid) else {
            self.between.shares.give(uid, 1);
            self.between.by_token[token as usize] = None;
            self.between.free_tokens.push(token);
            return None;
        };
        let of = |mine, other| if end == 0 { [mine, other] } else { [other, mine] };
        let ends = if end == 0 { [own.clone(), own.mirrored()] } else { [own.mirrored(), own.clone()] };
        let link = slabs::Link::new(uid, of(process, NODE), ends, cookies_by_end(end, offer.cookie), secret);
        self.slabs.set_link(slab, number, link);
        let place = Place { slab, slot: number, end: end as u8 };
        let slot = self.slabs.slot(place)?;
        let words = slot.words();
        words.between.store(1, Ordering::Relaxed);
        let watch = Watch { process: NODE, bell: BELL, token }.to_word();
        words.directions[end].receiver_watch[0].store(watch, Ordering::Relaxed);
        words.directions[1 - end].sender_watch[0].store(watch, Ordering::SeqCst);
        let replica = Replica::new(slot, end);
        let link = Remote {
            peer,
            uid,
            theirs: 0,
            own: own.clone(),
            place,
            token,
            replica,
            queued: false,
            pending: PendingNotices::default(),
            released: false,
            abandoned: false,
            reported_dead: false,
        };
        self.between.links.insert(id, link);
        self.between.unconfirmed.insert(own.clone());
        self.between.by_place.insert((slab, number), id);
        node.retain_peer(peer);
        Some(id)
    }

    /// Sends what is pending of a link. False: there is no room for it now.
    fn send_pending(&mut self, node: &mut dyn Node, id: u64) -> bool {
        let Some(link) = self.between.links.get_mut(&id) else { return false };
        link.queued = false;
        if link.theirs == 0 {
            // Once it is confirmed its process rings.
            return true;
        }
        loop {
            let room = node.message_room(link.peer).saturating_sub(HEAD_BYTES);
            let message = &mut self.between.scratch;
            message.clear();
            message.push(Kind::Update as u8);
            message.extend_from_slice(&link.theirs.to_le_bytes());
            match link.replica.encode_update(room, message) {
                Ok(Encoded::Nothing) => break,
                Ok(Encoded::NoRoom) => {
                    // The next step tries again; what makes room is a datagram.
                    self.between.queue(id);
                    return false;
                }
                Ok(encoded) => {
                    node.send_message(link.peer, &[message]);
                    if encoded == Encoded::All {
                        break;
                    }
                }
                Err(_) => {
                    self.break_link(node, id);
                    return true;
                }
            }
        }
        let (peer, theirs) = (link.peer, link.theirs);
        if link.pending.is_any() && node.holds_messages_back(peer) {
            self.between.queue(id);
            return false;
        }
        let pending = std::mem::take(&mut link.pending);
        if let Some(ended) = pending.hint {
            send(node, peer, Kind::Hint, theirs, &[u8::from(ended)]);
        }
        if pending.question {
            send(node, peer, Kind::Question, theirs, &[]);
        }
        if pending.complete {
            send(node, peer, Kind::Complete, theirs, &[]);
        }
        if pending.released {
            send(node, peer, Kind::Released, theirs, &[]);
            link.released = true;
            let place = link.place;
            self.close_if_over(node, id, place);
        }
        true
    }

    /// A client asks whether all is here.
    pub(crate) fn kernel_ended(&mut self, index: usize, place: Place) {
        if !self.client(index).ends.contains(&place) {
            return;
        }
        if let Some((id, link)) = self.between.link_at(place) {
            link.pending.question = true;
            self.between.queue(id);
        }
    }

    /// All known holders of an end have gone. True: the end is one here whose other end is on
    /// another node.
    pub(crate) fn hint_other_node(&mut self, place: Place, ended: bool) -> bool {
        let Some((id, link)) = self.between.link_at(place).filter(|(_, link)| link.place == place) else {
            return false;
        };
        link.pending.hint = Some(ended);
        link.reported_dead |= ended;
        self.between.queue(id);
        true
    }

    /// Somebody holds an end after all: the other node should not take it for dead.
    pub(crate) fn not_dead_on_other_node(&mut self, place: Place) {
        let Some((id, link)) = self.between.link_at(place).filter(|(_, link)| link.place == place) else { return };
        if std::mem::take(&mut link.reported_dead) {
            link.pending.hint = Some(false);
            self.between.queue(id);
        }
    }

    /// A client had no bell of ours. False: the other end is not on another node.
    pub(crate) fn ring_link(&mut self, place: Place) -> bool {
        let Some((id, _)) = self.between.link_at(place) else { return false };
        self.between.queue(id);
        true
    }

    /// The end here was released: the other node learns of it behind the last bytes. True: the slot
    /// is not to be freed yet.
    pub(crate) fn release_between(&mut self, place: Place, abandoned: bool) -> bool {
        let Some((id, link)) = self.between.link_at(place) else { return false };
        link.pending.released = true;
        link.abandoned |= abandoned;
        self.between.queue(id);
        true
    }

    fn other_released(&mut self, node: &mut dyn Node, id: u64) {
        let place = self.between.links[&id].place;
        if let Some(link) = self.slabs.link(place) {
            link.released[1 - place.end as usize] = true;
            link.holders[1 - place.end as usize].clear();
        }
        if self.between.links[&id].theirs == 0 {
            // It does not come by after all; the offer stands.
            if let Some(link) = self.slabs.link(place) {
                link.released[place.end as usize] = true;
            }
            self.between.links.get_mut(&id).expect("as above").released = true;
        }
        self.close_if_over(node, id, place);
    }

    /// Both ends were released, and both nodes know it.
    fn close_if_over(&mut self, node: &mut dyn Node, id: u64, place: Place) {
        let both = self.slabs.link(place).is_none_or(|link| link.released == [true; 2]);
        let Some(link) = self.between.links.get(&id).filter(|link| both && link.released) else { return };
        let abandoned = link.abandoned;
        self.forget_link(node, id);
        if abandoned {
            self.slabs.abandon(place);
        } else {
            self.slabs.free(place);
        }
    }

    fn forget_link(&mut self, node: &mut dyn Node, id: u64) {
        let Some(link) = self.between.links.remove(&id) else { return };
        self.between.by_place.remove(&(link.place.slab, link.place.slot));
        self.between.by_token[link.token as usize] = None;
        self.between.free_tokens.push(link.token);
        self.between.shares.give(link.uid, 1);
        if link.theirs == 0 {
            self.between.unconfirmed.remove(&link.own);
        }
        node.release_peer(link.peer);
    }

    /// The connection ends as a reset one, on both nodes.
    fn break_link(&mut self, node: &mut dyn Node, id: u64) {
        let Some(link) = self.between.links.get(&id) else { return };
        let (place, peer, theirs, confirmed) = (link.place, link.peer, link.theirs, link.theirs != 0);
        send(node, peer, Kind::Broken, theirs, &[]);
        self.forget_link(node, id);
        if let Some(slot) = self.slabs.slot(place) {
            slot.words().broken.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        self.wake(place);
        let end = place.end as usize;
        let over = self.slabs.link(place).is_none_or(|link| {
            link.released[1 - end] = true;
            link.holders[1 - end].clear();
            link.released[end] || !confirmed
        });
        if over {
            self.slabs.free(place);
        }
    }

    /// A session with another node has ended: so have the connections that it carried.
    pub(crate) fn peers_changed(&mut self, node: &mut dyn Node) {
        let lost: Vec<u64> =
            self.between.links.iter().filter(|(_, link)| !node.has_peer(link.peer)).map(|(&id, _)| id).collect();
        lost.into_iter().for_each(|id| self.break_link(node, id));
    }

    /// A session has begun: offers that stand may have their other ends there.
    pub(crate) fn peer_came(&mut self) {
        let between = &mut self.between;
        self.offers.keys().take(BETWEEN_ASKS_MAX).for_each(|own| between.wants(own));
    }

    /// Wakes those whom a message concerns.
    fn wake_for(&self, place: Place, wakes: Wakes) {
        let Some((slot, uid)) = self.slabs.slot(place).zip(self.slabs.user(place.slab)) else { return };
        let (end, words) = (place.end as usize, slot.words());
        if wakes.receiver {
            words.directions[1 - end].receiver_sleep.wake();
            self.ring_all(uid, &words.directions[1 - end], |d| &d.receiver_watch);
        }
        if wakes.sender {
            words.directions[end].sender_sleep.wake();
            self.ring_all(uid, &words.directions[end], |d| &d.sender_watch);
        }
    }

    fn ring_all(
        &self,
        uid: u32,
        direction: &DirectionWords,
        of: impl Fn(&DirectionWords) -> &[std::sync::atomic::AtomicU64; 4],
    ) {
        for watch in of(direction).iter().filter_map(|word| Watch::from_word(word.load(Ordering::Relaxed))) {
            let Some(client) = self.watcher(watch, uid) else { continue };
            if client.bells.mark(watch.bell, watch.token) {
                if let Some(fd) = &client.bell_fds[watch.bell as usize] {
                    // It was seen to be an eventfd when it came.
                    let _ = self.ring_fd(fd.as_fd());
                }
            }
        }
    }

    /// Makes sure that a client can ring the node.
    pub(crate) fn introduce_node(&mut self, index: usize) {
        if !self.client(index).peers.insert(NODE) {
            return;
        }
        let made = Bells::create().ok().zip(
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)
                .ok(),
        );
        let Some((bells, fd)) = made else { return };
        let Some((memory, theirs)) = bells.share().ok().zip(fd.try_clone().ok()) else { return };
        self.queue_event(index, SocketEvent::Peer { process: NODE }, vec![memory]);
        self.queue_event(index, SocketEvent::PeerBell { process: NODE, bell: BELL }, vec![theirs]);
        self.between.new_bells.push(index);
        self.client(index).node_bells = Some(NodeBells { bells, fd });
    }
}

/// Bytes of a message before those of a replica.
const HEAD_BYTES: usize = 9;

fn cookies_by_end(end: usize, cookie: u64) -> [u64; 2] {
    if end == 0 { [cookie, 0] } else { [0, cookie] }
}

fn send(node: &mut dyn Node, to: PeerRef, kind: Kind, number: u64, rest: &[u8]) {
    node.send_message(to, &[&[kind as u8], &number.to_le_bytes(), rest]);
}

fn same(one: IpAddr, other: IpAddr) -> bool {
    one.to_canonical() == other.to_canonical()
}

fn addresses(kind: Kind, number: u64, own: &Endpoints) -> Vec<u8> {
    let mut message = vec![kind as u8];
    message.extend_from_slice(&number.to_le_bytes());
    for address in [own.local, own.remote] {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        message.extend_from_slice(&ip.octets());
        message.extend_from_slice(&address.port().to_le_bytes());
    }
    message
}

fn read_addresses(bytes: &[u8], network: u64) -> Option<(u64, Endpoints)> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    let address = |at: usize| -> Option<SocketAddr> {
        let ip: [u8; 16] = rest.get(at..at + 16)?.try_into().ok()?;
        let port: [u8; 2] = rest.get(at + 16..at + 18)?.try_into().ok()?;
        Some(SocketAddr::new(IpAddr::from(ip).to_canonical(), u16::from_le_bytes(port)))
    };
    Some((u64::from_le_bytes(*number), Endpoints { network, local: address(0)?, remote: address(18)? }))
}

#[cfg(test)]
mod tests;
