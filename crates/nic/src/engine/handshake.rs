//! Handshakes: hellos answered, welcomes taken, sessions begun.
//!
//! What comes without proof costs a hash and changes nothing. A hello is examined only if a holder
//! of the cluster key has made it (its proof) and after this node asked for it (its cookie); one
//! without a cookie is answered with one, and this node keeps nothing of it. Then the answer is a
//! session on probation, which displaces nothing until a packet under its keys has come. A
//! rejection proves nothing and is a hint for the text of an error.

use std::net::SocketAddr;

use super::Engine;
use crate::cipher::{Cipher, Offer};
use crate::crypto::{HANDSHAKE_OVERHEAD, Handshake, Seal, Seals, checksum};
use crate::error::{PeerDownReason, RejectReason};
use crate::limits::{
    COOKIE_HOLD, HELLO_RETRY_FIRST, LOOSE_DATAGRAMS_MAX, NAME_CONTEST, OURS_WINS, PENDING_SESSIONS_MAX,
};
use crate::mtu::Search;
use crate::peer::Contest;
use crate::proof::{COOKIE_BYTES, Cookie};
use crate::session::{Opening, Session};
use crate::time::Time;
use crate::wire::hello::{HELLO_BYTES_MAX, Introduction, Welcome};
use crate::wire::packet::{HEADER_BYTES, HELLO_SEALED, Header, Kind, SessionRef};
use crate::wire::{Reader, Writer};

/// What a slot of the session table is used for.
pub(super) enum Use {
    Free,
    /// The hello of this peer's attempt.
    Attempt(u16),
    Pending(Box<Pending>),
    Live(u16),
}

pub(super) struct Slot {
    pub(super) id: u64,
    pub(super) used: Use,
}

/// A hello was answered; nobody has used the session yet.
pub(super) struct Pending {
    pub(super) created: Time,
    pub(super) remote: SessionRef,
    pub(super) hello: Box<[u8]>,
    pub(super) reply: Box<[u8]>,
    pub(super) seals: Seals,
    pub(super) introduction: Introduction,
}

/// Token bucket.
pub(super) struct Limiter {
    per_second: u64,
    burst: u64,
    /// Tokens times 10^9.
    level: u64,
    at: Time,
}

impl Limiter {
    pub(super) fn new(per_second: u64, burst: u64, now: Time) -> Limiter {
        Limiter { per_second, burst, level: burst * 1_000_000_000, at: now }
    }

    /// Tokens, in parts of 10^9.
    pub(super) fn left(&self) -> u64 {
        self.level
    }

    pub(super) fn take(&mut self, now: Time) -> bool {
        let gone = u64::try_from(now.since(self.at).as_nanos()).unwrap_or(u64::MAX);
        self.at = self.at.max(now);
        let full = self.burst * 1_000_000_000;
        self.level = self.level.saturating_add(gone.saturating_mul(self.per_second)).min(full);
        let taken = self.level >= 1_000_000_000;
        if taken {
            self.level -= 1_000_000_000;
        }
        taken
    }
}

impl Engine {
    pub(super) fn introduction(&self) -> Introduction {
        Introduction {
            name: self.config.name.clone(),
            incarnation: self.incarnation,
            budget_bytes: self.config.recv_buffer_bytes as u32,
            packet_bytes_max: self.config.recv_packet_bytes_max as u32,
            listen: self.config.listen.clone(),
            messages: self.config.messages,
            ciphers: self.offer(),
        }
    }

    /// What this node can seal with.
    fn offer(&self) -> Offer {
        if self.config.key.is_some() { Offer::of(self.config.ciphers) } else { Offer::default() }
    }

    pub(super) fn send_loose(&mut self, to: SocketAddr, datagram: Box<[u8]>) {
        if self.loose.len() >= LOOSE_DATAGRAMS_MAX {
            self.tables.stats.loose_dropped += 1;
            return;
        }
        self.loose.push_back((to, datagram));
    }

    fn send_bare(&mut self, to: SocketAddr, kind: Kind, session: SessionRef, number: u64) {
        let mut bytes = [0; HEADER_BYTES];
        Header { kind, session, number }.write(&mut bytes);
        self.send_loose(to, bytes.into());
    }

    pub(super) fn new_slot(&mut self, used: Use) -> Option<SessionRef> {
        let id = self.rng.u64().max(1);
        let slot = match self.free_slots.pop_front() {
            Some(slot) => slot,
            None => {
                let slot = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { id: 0, used: Use::Free });
                slot
            }
        };
        self.slots[usize::from(slot)] = Slot { id, used };
        Some(SessionRef { slot, id })
    }

    pub(super) fn free_slot(&mut self, reference: SessionRef) {
        if let Some(slot) = self.slots.get_mut(usize::from(reference.slot)) {
            if slot.id == reference.id {
                *slot = Slot { id: 0, used: Use::Free };
                self.free_slots.push_back(reference.slot);
            }
        }
    }

    /// A hello for the session `local` and its handshake.
    pub(super) fn make_hello(&mut self, local: SessionRef) -> (Option<Handshake>, Box<[u8]>) {
        let sealed = self.config.key.is_some();
        let mut datagram = vec![0; HEADER_BYTES];
        let number = if sealed { HELLO_SEALED } else { 0 };
        Header { kind: Kind::Hello, session: local, number }.write(&mut datagram);
        let mut payload = [0; HELLO_BYTES_MAX];
        let mut out = Writer::new(&mut payload);
        self.introduction().write(&mut out);
        let len = out.len();
        let handshake = self.config.key.as_ref().map(|key| Handshake::initiate(key, &datagram, &mut self.rng));
        let handshake = append(handshake, &payload[..len], &mut datagram);
        datagram.extend_from_slice(&[0; COOKIE_BYTES]);
        self.proof.append(&mut datagram, &[]);
        (handshake, datagram.into())
    }

    pub(super) fn reject(&mut self, now: Time, to: SocketAddr, session: SessionRef, reason: RejectReason) {
        self.tables.stats.rejects += 1;
        if self.reject_limit.take(now) {
            self.send_bare(to, Kind::Reject, session, reason.code().into());
        }
    }

    pub(super) fn handle_hello(&mut self, now: Time, from: SocketAddr, header: Header, datagram: &[u8]) {
        self.tables.stats.hellos_in += 1;
        let sealed = header.number & HELLO_SEALED != 0;
        match (sealed, self.config.key.is_some()) {
            (true, false) => return self.reject(now, from, header.session, RejectReason::PlainOnly),
            (false, true) => return self.reject(now, from, header.session, RejectReason::NeedsKey),
            _ => {}
        }
        let Some(covered) = self.proof.check(datagram, &[]) else {
            self.tables.stats.bad_seals += 1;
            if sealed {
                self.hinted(from, RejectReason::OtherKey);
                self.reject(now, from, header.session, RejectReason::OtherKey);
            }
            return;
        };
        let Some((hello, cookie)) = covered.split_last_chunk::<COOKIE_BYTES>() else {
            self.tables.stats.malformed += 1;
            return;
        };
        if !self.cookies.knows(now, header.session, cookie) {
            return self.ask_again(now, from, header.session);
        }
        if let Some(reply) = self.reply_given(header.session, datagram) {
            return self.send_loose(from, reply);
        }
        if self.is_session_of(header.session) {
            // Said again on its way, and answered long since.
            return;
        }
        if !self.hello_limit.take(now) {
            self.tables.stats.hellos_limited += 1;
            return;
        }
        let mut handshake =
            self.config.key.as_ref().map(|key| Handshake::respond(key, &hello[..HEADER_BYTES], &mut self.rng));
        let Some(payload) = open(handshake.as_mut(), hello) else {
            self.tables.stats.bad_seals += 1;
            return;
        };
        let Some(introduction) = Introduction::read(&mut Reader::new(&payload)) else {
            self.tables.stats.malformed += 1;
            return;
        };
        self.judge_hello(now, from, header.session, datagram, introduction, handshake);
    }

    /// Gives the sender of a hello a cookie, which it puts into the hello. Only a sender that gets
    /// datagrams at its address, and in sealed mode has the key, can do that: a recorded hello goes
    /// no further.
    fn ask_again(&mut self, now: Time, to: SocketAddr, attempt: SessionRef) {
        let mut datagram = vec![0; HEADER_BYTES];
        Header { kind: Kind::Retry, session: attempt, number: 0 }.write(&mut datagram);
        datagram.extend_from_slice(&self.cookies.give(now, attempt));
        self.proof.append(&mut datagram, &[]);
        self.tables.stats.cookies_out += 1;
        self.send_loose(to, datagram.into());
    }

    /// A node wants its cookie in the hello of an attempt.
    pub(super) fn handle_retry(&mut self, now: Time, from: SocketAddr, header: Header, datagram: &[u8]) {
        let Some(index) = self.attempt_of(header.session) else {
            self.tables.stats.unknown_session += 1;
            return;
        };
        let Some(covered) = self.proof.check(datagram, &[]) else {
            self.tables.stats.bad_seals += 1;
            return self.hinted_of(index, RejectReason::OtherKey);
        };
        let Ok(cookie) = Cookie::try_from(&covered[HEADER_BYTES.min(covered.len())..]) else {
            self.tables.stats.malformed += 1;
            return;
        };
        let peer = self.peers[usize::from(index)].as_mut().expect("an attempt has its peer");
        let path = peer.path_of(from);
        let attempt = peer.attempt.as_mut().expect("the slot says so");
        let held = attempt.cookie_at.is_some_and(|at| now.since(at) < COOKIE_HOLD);
        let mut hello = attempt.hello[..attempt.hello.len() - self.proof.bytes()].to_vec();
        let at = hello.len() - COOKIE_BYTES;
        if held || hello[at..] == cookie {
            return;
        }
        hello[at..].copy_from_slice(&cookie);
        self.proof.append(&mut hello, &[]);
        attempt.hello = hello.into();
        (attempt.cookie_at, attempt.sent) = (Some(now), 0);
        attempt.retry = HELLO_RETRY_FIRST;
        attempt.path = path.unwrap_or(attempt.path);
        self.send_hello(now, index);
        self.arm(index);
    }

    /// Keeps what somebody at `from` says, or what junk from there looks like, for the text of an
    /// error.
    fn hinted(&mut self, from: SocketAddr, hint: RejectReason) {
        if let Some(index) = self.peer_at(from) {
            self.hinted_of(index, hint);
        }
    }

    fn hinted_of(&mut self, index: u16, hint: RejectReason) {
        if let Some(peer) = self.peer_mut(index).filter(|peer| peer.session.is_none()) {
            peer.hint = Some(hint);
        }
    }

    /// Whether a session came from the attempt that its other side calls so.
    fn is_session_of(&self, remote: SessionRef) -> bool {
        let made = |peer: &crate::peer::Peer| {
            peer.session.as_deref().is_some_and(|session| session.remote == remote && !session.initiator)
        };
        self.peers.iter().flatten().any(made)
    }

    /// The answer to this very hello, if it was given already.
    fn reply_given(&self, remote: SessionRef, hello: &[u8]) -> Option<Box<[u8]>> {
        self.pending.iter().find_map(|&(slot, id)| match &self.slots[usize::from(slot)] {
            Slot { id: at, used: Use::Pending(pending) }
                if *at == id && pending.remote == remote && *pending.hello == *hello =>
            {
                Some(pending.reply.clone())
            }
            _ => None,
        })
    }

    fn judge_hello(
        &mut self,
        now: Time,
        from: SocketAddr,
        remote: SessionRef,
        hello: &[u8],
        introduction: Introduction,
        handshake: Option<Handshake>,
    ) {
        if introduction.name == self.config.name {
            return self.refuse(from, remote, handshake, RejectReason::DuplicateName);
        }
        let cipher = self.offer().common(introduction.ciphers);
        if cipher.is_none() && handshake.is_some() {
            return self.refuse(from, remote, handshake, RejectReason::NoCommonCipher);
        }
        let index = self.find_peer(&introduction.name, from, &introduction.listen);
        let mut current = SessionRef::default();
        if let Some(index) = index {
            if self.ours_wins(now, index, &introduction) {
                return;
            }
            let peer = self.peers[usize::from(index)].as_mut().expect("it was just found");
            // Two handshakes at once: the smaller name's goes on, this one waits for it.
            if let Some(attempt) = peer.attempt.as_mut() {
                attempt.next = attempt.next.max(now + crate::limits::HELLO_RETRY_MAX);
            }
            match peer.session.as_deref() {
                Some(session) if session.incarnation == introduction.incarnation => current = session.local,
                Some(_) => match self.contest(now, index, from) {
                    Verdict::Free => {}
                    Verdict::Wait => return,
                    Verdict::Taken => {
                        return self.refuse(from, remote, handshake, RejectReason::DuplicateName);
                    }
                },
                None => {}
            }
        } else if self.peers_full() {
            return self.refuse(from, remote, handshake, RejectReason::PeerTableFull);
        }
        self.welcome(now, from, remote, hello, introduction, (handshake, cipher), current);
    }

    /// Whether a handshake of this side goes before the peer's.
    fn ours_wins(&self, now: Time, index: u16, theirs: &Introduction) -> bool {
        if self.config.name >= theirs.name {
            return false;
        }
        let Some(peer) = self.peer(index) else { return false };
        let fresh =
            |session: &Session| session.initiator && !session.received_any && session.incarnation == theirs.incarnation;
        // One that has had no answer for long may be going to an address that is no more.
        let going = |attempt: &crate::peer::Attempt| now.since(attempt.started) < OURS_WINS;
        peer.attempt.as_ref().is_some_and(going) || peer.session.as_deref().is_some_and(fresh)
    }

    /// Somebody at `from` has the name of a peer with a session, and another incarnation: the peer
    /// restarted, or two nodes have one name.
    fn contest(&mut self, now: Time, index: u16, from: SocketAddr) -> Verdict {
        let token = self.rng.u64();
        let peer = self.peers[usize::from(index)].as_mut().expect("the caller found it");
        if peer.path_of(from).is_some() {
            // No two nodes share an address: the old one is gone.
            return Verdict::Free;
        }
        if peer.contest.as_ref().is_some_and(|contest| now.since(contest.since) > NAME_CONTEST * 20) {
            peer.contest = None;
        }
        let contest = peer.contest.get_or_insert(Contest { since: now, token, alive: false });
        if contest.alive {
            // The next hello is judged anew.
            peer.contest = None;
            return Verdict::Taken;
        }
        if now.since(contest.since) >= NAME_CONTEST {
            peer.contest = None;
            return Verdict::Free;
        }
        let token = contest.token;
        if let Some(session) = peer.session.as_deref_mut() {
            session.queue_ping(None, token);
        }
        self.wake(index);
        Verdict::Wait
    }

    fn refuse(&mut self, to: SocketAddr, remote: SessionRef, handshake: Option<Handshake>, reason: RejectReason) {
        self.tables.stats.rejects += 1;
        let (datagram, _) = welcome_datagram(remote, &Welcome::Refuse(reason), handshake);
        self.send_loose(to, datagram);
    }

    #[allow(clippy::too_many_arguments)] // one hello and what is known about it
    fn welcome(
        &mut self,
        now: Time,
        from: SocketAddr,
        remote: SessionRef,
        hello: &[u8],
        introduction: Introduction,
        (handshake, cipher): (Option<Handshake>, Option<Cipher>),
        current: SessionRef,
    ) {
        while self.pending.len() >= PENDING_SESSIONS_MAX {
            let Some((slot, id)) = self.pending.pop_front() else { break };
            self.drop_pending(SessionRef { slot, id });
        }
        let Some(local) = self.new_slot(Use::Free) else { return };
        let answer = Welcome::Accept { session: local, current, cipher, introduction: self.introduction() };
        let (reply, handshake) = welcome_datagram(remote, &answer, handshake);
        let pending = Pending {
            created: now,
            remote,
            hello: hello.into(),
            reply: reply.clone(),
            seals: seals(handshake.zip(cipher), false),
            introduction,
        };
        self.slots[usize::from(local.slot)].used = Use::Pending(Box::new(pending));
        self.pending.push_back((local.slot, local.id));
        self.send_loose(from, reply);
        self.arm_pending(now);
    }

    pub(super) fn drop_pending(&mut self, reference: SessionRef) {
        let slot = self.slots.get(usize::from(reference.slot));
        if slot.is_some_and(|slot| slot.id == reference.id && matches!(slot.used, Use::Pending(_))) {
            self.free_slot(reference);
        }
    }

    pub(super) fn handle_welcome(&mut self, now: Time, from: SocketAddr, header: Header, datagram: &[u8]) {
        let Some(index) = self.attempt_of(header.session) else {
            self.tables.stats.unknown_session += 1;
            return;
        };
        if header.number != 0 {
            // The seal of a welcome does not cover it.
            self.tables.stats.malformed += 1;
            return;
        }
        let peer = self.peers[usize::from(index)].as_mut().expect("an attempt has its peer");
        let attempt = peer.attempt.as_mut().expect("the slot says so");
        let Some(payload) = open(attempt.handshake.as_mut(), datagram) else {
            self.tables.stats.bad_seals += 1;
            return;
        };
        match Welcome::read(&mut Reader::new(&payload)) {
            None => self.tables.stats.malformed += 1,
            Some(Welcome::Refuse(reason)) => self.attempt_rejected(index, reason),
            Some(Welcome::Accept { session, current, cipher, introduction }) => {
                let offered = match cipher {
                    Some(cipher) => self.offer().has(cipher),
                    None => self.config.key.is_none(),
                };
                if offered {
                    self.accepted(now, from, index, session, current, cipher, introduction);
                } else {
                    self.attempt_rejected(index, RejectReason::NoCommonCipher);
                }
            }
        }
    }

    /// A rejection needs no key, as its sender may have another one or none. So it proves nothing:
    /// this node goes on trying, and reports it when that was in vain.
    pub(super) fn handle_reject(&mut self, header: Header) {
        let reason = u16::try_from(header.number).ok().and_then(RejectReason::from_code);
        match (self.attempt_of(header.session), reason) {
            (Some(index), Some(reason)) => {
                self.tables.stats.rejects += 1;
                self.hinted_of(index, reason);
            }
            _ => self.tables.stats.malformed += 1,
        }
    }

    fn attempt_of(&self, reference: SessionRef) -> Option<u16> {
        let slot = self.slots.get(usize::from(reference.slot)).filter(|slot| slot.id == reference.id)?;
        match slot.used {
            Use::Attempt(index) => Some(index),
            _ => None,
        }
    }

    #[allow(clippy::too_many_arguments)] // what a welcome says
    fn accepted(
        &mut self,
        now: Time,
        from: SocketAddr,
        index: u16,
        remote: SessionRef,
        current: SessionRef,
        cipher: Option<Cipher>,
        introduction: Introduction,
    ) {
        if introduction.name == self.config.name {
            return self.attempt_rejected(index, RejectReason::DuplicateName);
        }
        let peer = self.peers[usize::from(index)].as_mut().expect("the caller found it");
        let attempt = peer.attempt.take().expect("the caller found it");
        let local = attempt.local;
        let begun = attempt.started;
        let round_trip = attempt.cookie_at.filter(|_| attempt.sent == 1).map(|said| now.since(said));
        let index = self.merge_peer(now, index, &introduction.name);
        let peer = self.peers[usize::from(index)].as_mut().expect("merging keeps one");
        if let Some(session) = peer.session.as_deref() {
            let same_life = session.incarnation == introduction.incarnation;
            if same_life && session.remote == current {
                // The hint was false: the peer still has the session.
                peer.hint_not_before = now + std::time::Duration::from_secs(1);
                self.free_slot(local);
                self.start_waits(now, index);
                return;
            }
            let why = if same_life { PeerDownReason::Reset } else { PeerDownReason::Restarted };
            self.end_session(now, index, why);
        }
        let seals = seals(attempt.handshake.zip(cipher), true);
        self.begin(now, from, index, local, remote, (true, begun), seals, &introduction);
        if let Some(session) = self.peer_mut(index).and_then(|peer| peer.session.as_deref_mut()) {
            if let Some(sample) = round_trip {
                session.rtt.sample(now, sample);
                session.congestion.measured(&session.rtt);
            }
            session.queue_nop();
        }
        self.start_waits(now, index);
        self.wake(index);
        self.arm(index);
    }

    /// A packet under the keys of a pending session opened: the session is real.
    pub(super) fn confirm(&mut self, now: Time, from: SocketAddr, local: SessionRef) -> Option<u16> {
        let slot = &mut self.slots[usize::from(local.slot)];
        let Use::Pending(pending) = std::mem::replace(&mut slot.used, Use::Free) else { return None };
        self.pending.retain(|&(slot, id)| (slot, id) != (local.slot, local.id));
        let introduction = pending.introduction;
        let index = match self.find_peer(&introduction.name, from, &introduction.listen) {
            Some(index) => index,
            None => match self.add_peer_entry(Some(introduction.name.clone()), false) {
                Some(index) => index,
                None => {
                    self.free_slot(local);
                    return None;
                }
            },
        };
        // Decided as for two hellos that cross.
        let fresh = |session: &Session| {
            session.initiator && !session.received_any && session.incarnation == introduction.incarnation
        };
        // The packet may have been long under way, and be of a life before that of the present
        // session. A life that followed another receives no answer that was sent before it began:
        // of two that took the answers to handshakes begun here, that of the later handshake is the
        // later one.
        let later =
            |session: &Session| session.incarnation != introduction.incarnation && session.begun > pending.created;
        let peer = self.peers[usize::from(index)].as_ref().expect("it was just found");
        let crossed = self.config.name < introduction.name && peer.session.as_deref().is_some_and(fresh);
        if crossed || peer.session.as_deref().is_some_and(later) {
            self.free_slot(local);
            return None;
        }
        let index = self.merge_peer(now, index, &introduction.name);
        self.drop_attempt(index);
        if let Some(session) = self.peer(index).and_then(|peer| peer.session.as_deref()) {
            let same_life = session.incarnation == introduction.incarnation;
            let why = if same_life { PeerDownReason::Reset } else { PeerDownReason::Restarted };
            self.end_session(now, index, why);
        }
        let began = (false, pending.created);
        self.begin(now, from, index, local, pending.remote, began, pending.seals, &introduction);
        self.start_waits(now, index);
        Some(index)
    }

    #[allow(clippy::too_many_arguments)] // the outcome of a handshake
    fn begin(
        &mut self,
        now: Time,
        from: SocketAddr,
        index: u16,
        local: SessionRef,
        remote: SessionRef,
        (initiator, begun): (bool, Time),
        seals: Seals,
        introduction: &Introduction,
    ) {
        self.serial += 1;
        let via = crate::tables::SessionId { peer: index, serial: self.serial };
        let from_mtu = self.mtu_of(from);
        let mtus: Vec<Search> = introduction.listen.iter().map(|addr| self.mtu_of(*addr)).collect();
        self.slots[usize::from(local.slot)].used = Use::Live(index);
        let receive_budget = self.config.recv_buffer_bytes;
        let peer = self.peers[usize::from(index)].as_mut().expect("the caller found it");
        peer.name = Some(introduction.name.clone());
        peer.answered_from(from, from_mtu);
        for (addr, mtu) in introduction.listen.iter().zip(mtus) {
            if !addr.ip().is_unspecified() {
                peer.add_path(*addr, mtu);
            }
        }
        peer.contest = None;
        peer.hint = None;
        peer.newcomer = None;
        peer.ping_tries = 0;
        peer.paths.iter_mut().for_each(|path| path.search.session_begins(now));
        let path_bytes = peer.mtu_bytes();
        let (congestion, ecn) = (self.config.congestion, self.config.ecn);
        let seed = local.id;
        let opening =
            Opening { via, local, remote, begun, initiator, seals, receive_budget, path_bytes, congestion, ecn, seed };
        peer.session = Some(Box::new(Session::new(opening, introduction, now)));
        self.tables.stats.sessions += 1;
        self.tables.events.push_back(crate::event::Event::PeerUp { name: introduction.name.clone(), addr: from });
        self.arm(index);
    }
}

enum Verdict {
    Free,
    Wait,
    Taken,
}

fn seals(handshake: Option<(Handshake, Cipher)>, initiator: bool) -> Seals {
    match handshake {
        Some((handshake, cipher)) => handshake.finish(initiator, cipher),
        None => Seals { send: Seal::Plain, receive: Seal::Plain, cipher: None },
    }
}

/// Appends a handshake payload: sealed, or in plain mode with its checksum.
fn append(mut handshake: Option<Handshake>, payload: &[u8], datagram: &mut Vec<u8>) -> Option<Handshake> {
    match handshake.as_mut() {
        Some(handshake) => handshake.write(payload, datagram),
        None => {
            datagram.extend_from_slice(payload);
            let sum = checksum(datagram);
            datagram.extend_from_slice(&sum.to_le_bytes());
        }
    }
    handshake
}

/// Takes the payload out of a handshake datagram.
fn open(handshake: Option<&mut Handshake>, datagram: &[u8]) -> Option<Vec<u8>> {
    let body = datagram.get(HEADER_BYTES..)?;
    match handshake {
        Some(handshake) => {
            if body.len() > HELLO_BYTES_MAX + HANDSHAKE_OVERHEAD {
                return None;
            }
            let mut payload = vec![0; body.len()];
            let len = handshake.read(body, &mut payload)?;
            payload.truncate(len);
            Some(payload)
        }
        None => {
            let end = datagram.len().checked_sub(8).filter(|end| *end >= HEADER_BYTES)?;
            let (covered, sum) = datagram.split_at(end);
            (sum == checksum(covered).to_le_bytes()).then(|| covered[HEADER_BYTES..].to_vec())
        }
    }
}

fn welcome_datagram(
    remote: SessionRef,
    welcome: &Welcome,
    handshake: Option<Handshake>,
) -> (Box<[u8]>, Option<Handshake>) {
    let mut datagram = vec![0; HEADER_BYTES];
    Header { kind: Kind::Welcome, session: remote, number: 0 }.write(&mut datagram);
    let mut payload = [0; HELLO_BYTES_MAX];
    let mut out = Writer::new(&mut payload);
    welcome.write(&mut out);
    let len = out.len();
    let handshake = append(handshake, &payload[..len], &mut datagram);
    (datagram.into(), handshake)
}
