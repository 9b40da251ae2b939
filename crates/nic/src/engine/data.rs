//! Datagrams in and out.

use std::net::SocketAddr;
use std::time::Duration;

use super::handshake::Use;
use super::{Engine, Fit, Lent, Transmit};
use crate::command::Dma;
use crate::ecn::Codepoint;
use crate::error::PeerDownReason;
use crate::ids::NodeName;
use crate::limits::{NEWCOMER_RETRY, PACKET_BYTES_MIN, PATHS_MAX};
use crate::peer::{Newcomer, fit_of};
use crate::replay::Freshness;
use crate::session::{Outcome, Ping};
use crate::time::Time;
use crate::wire::chunk::Chunk;
use crate::wire::packet::{BadHeader, HEADER_BYTES, Header, Kind, SessionRef};

impl Engine {
    /// Takes a datagram that came from `from`; it is opened in place. Whatever it holds, the worst
    /// it can do is to be counted and dropped.
    #[inline]
    pub fn handle_datagram(&mut self, now: Time, from: SocketAddr, datagram: &mut [u8], dma: &mut dyn Dma) {
        self.handle_datagram_with(now, from, Codepoint::NotEct, datagram, dma);
    }

    /// As [`handle_datagram`](Self::handle_datagram), of a datagram that came with a codepoint.
    /// Nothing vouches for that: it is counted, and the peer hears of it.
    pub fn handle_datagram_with(
        &mut self,
        now: Time,
        from: SocketAddr,
        codepoint: Codepoint,
        datagram: &mut [u8],
        dma: &mut dyn Dma,
    ) {
        self.now = now;
        self.tables.stats.packets_in += 1;
        self.tables.stats.bytes_in += datagram.len() as u64;
        match Header::parse(datagram) {
            Ok(header) => match header.kind {
                Kind::Data => self.handle_data(now, (from, codepoint), header, datagram, dma),
                Kind::Hello => self.handle_hello(now, from, header, datagram),
                Kind::Welcome => self.handle_welcome(now, from, header, datagram),
                Kind::Retry => self.handle_retry(now, from, header, datagram),
                Kind::Reject => self.handle_reject(header),
                Kind::UnknownSession => self.handle_hint(now, from, header.session, datagram),
            },
            Err(BadHeader::HelloVersion(session)) => {
                self.reject(now, from, session, crate::error::RejectReason::Version);
            }
            Err(BadHeader::Version | BadHeader::Malformed) => self.tables.stats.malformed += 1,
        }
    }

    fn handle_data(
        &mut self,
        now: Time,
        (from, codepoint): (SocketAddr, Codepoint),
        header: Header,
        datagram: &mut [u8],
        dma: &mut dyn Dma,
    ) {
        let local = header.session;
        let slot = self.slots.get_mut(usize::from(local.slot)).filter(|slot| slot.id == local.id);
        let (index, body) = match slot.map(|slot| &mut slot.used) {
            Some(Use::Live(index)) => {
                let index = *index;
                let Some(body) = self.open_live(index, header.number, datagram) else { return };
                (index, body)
            }
            Some(Use::Pending(pending)) => {
                let Some(body) = pending.seals.receive.open(header.number, datagram) else {
                    self.tables.stats.bad_seals += 1;
                    return;
                };
                let Some(index) = self.confirm(now, from, local) else { return };
                (index, body)
            }
            _ => return self.unknown_session(now, from, local),
        };
        self.deliver(now, (from, codepoint), index, header.number, body, dma);
    }

    /// Checks that a packet is new and opens it; gives its body.
    #[inline]
    fn open_live<'p>(&mut self, index: u16, number: u64, datagram: &'p mut [u8]) -> Option<&'p [u8]> {
        let session = self.peers[usize::from(index)].as_mut()?.session.as_deref_mut()?;
        let stats = &mut self.tables.stats;
        match session.replay.check(number) {
            Freshness::New => {}
            Freshness::Seen => {
                stats.replays += 1;
                return None;
            }
            Freshness::TooOld => {
                stats.out_of_window += 1;
                return None;
            }
        }
        let body = session.seals.receive.open(number, datagram);
        if body.is_none() {
            stats.bad_seals += 1;
        }
        body
    }

    #[inline]
    fn deliver(
        &mut self,
        now: Time,
        (from, codepoint): (SocketAddr, Codepoint),
        index: u16,
        number: u64,
        body: &[u8],
        dma: &mut dyn Dma,
    ) {
        let Some(peer) = self.peers[usize::from(index)].as_mut() else { return };
        let (Some(name), Some(session)) = (peer.name.as_ref(), peer.session.as_deref_mut()) else { return };
        session.replay.mark(number);
        session.stats.packets_in += 1;
        session.stats.bytes_in += body.len() as u64;
        session.received_from(from, number);
        session.fetched_packet(now, body.len(), &mut self.tables);
        let marked = session.came_with(codepoint);
        let elsewhere = peer.paths[peer.current].addr != from;
        let (mut outcome, ack) = match session.receive_single_chunk(now, number, body, &mut self.tables, dma) {
            Some(ack) => (Outcome::default(), ack),
            None => session.receive(now, from, number, body, name, &mut self.tables, dma),
        };
        if let Some(ack) = ack {
            outcome.nonsense |= session.acknowledged(now, &ack, &mut self.tables).is_err();
        }
        if let Some(marks) = outcome.marks {
            outcome.nonsense |= session.marks_told(now, number, marks).is_err();
        }
        session.was_marked(marked);
        session.take_deferred(now, &mut self.tables);
        session.notification.came(outcome.duplicate);
        if outcome.duplicate {
            session.peer_probed(now, &mut self.tables);
        }
        if std::mem::take(&mut session.tx.size_is_proven) {
            session.tx.size_asked = None;
            peer.paths[peer.current].search.proven();
        } else if std::mem::take(&mut session.tx.size_is_doubtful) {
            peer.paths[peer.current].search.doubt(session.packet_bytes_max);
        }
        if elsewhere {
            self.learn_path(now, index, from);
        }
        self.settle(now, index, &outcome);
    }

    /// Chunks of a peer were processed, with that outcome.
    #[inline]
    fn settle(&mut self, now: Time, index: u16, outcome: &Outcome) {
        let Some(session) = self.peers[usize::from(index)].as_mut().and_then(|peer| peer.session.as_deref_mut()) else {
            return;
        };
        let hostile = session.tx.is_overdrawn();
        let has_to_send = session.has_to_send();
        if session.has_closed_gap() && !self.releases.contains(&index) {
            self.releases.push_back(index);
        }
        self.conclude(now, index, outcome, hostile);
        self.trim_deadlines();
        if has_to_send {
            self.wake(index);
        }
        self.arm(index);
    }

    /// Processes some of the chunks that a peer's closed gap has held up; peers take turns.
    pub(super) fn release_more(&mut self, now: Time, dma: &mut dyn Dma) {
        let Some(index) = self.releases.pop_front() else { return };
        let Some(peer) = self.peers[usize::from(index)].as_mut() else { return };
        let (Some(name), Some(session)) = (peer.name.as_ref(), peer.session.as_deref_mut()) else { return };
        if !session.has_closed_gap() {
            return;
        }
        let mut outcome = Outcome::default();
        session.release_held(now, name, &mut self.tables, dma, &mut outcome);
        if !session.has_closed_gap() {
            // All has been acknowledged as held, so nothing of the peer's may be under way that
            // would call for the last word again if it is lost.
            session.answer(&Chunk::Nop { ack_now: true });
        }
        session.take_deferred(now, &mut self.tables);
        self.settle(now, index, &outcome);
    }

    /// The newest packet of a peer came from an address that is not its current one. The packet is
    /// proven and where it came from is not: if that is none of the peer's paths, it becomes one
    /// when a question to it is answered.
    #[cold]
    fn learn_path(&mut self, now: Time, index: u16, from: SocketAddr) {
        let token = self.rng.u64();
        let Some(peer) = self.peer_mut(index) else { return };
        let newest = peer.session.as_deref().is_some_and(|session| session.last_from == Some(from));
        let asked = peer.newcomer.as_ref().is_some_and(|newcomer| now.since(newcomer.asked) < NEWCOMER_RETRY);
        if !newest || asked || peer.path_of(from).is_some() || peer.paths.len() >= PATHS_MAX {
            return;
        }
        peer.newcomer = Some(Newcomer { addr: from, token, asked: now });
        if let Some(session) = peer.session.as_deref_mut() {
            session.queue_ping(Some(from), token);
        }
        self.wake(index);
    }

    /// Acts on what a packet meant for the peer as a whole.
    #[inline]
    fn conclude(&mut self, now: Time, index: u16, outcome: &Outcome, hostile: bool) {
        if let Some(token) = outcome.pong {
            self.ponged(index, token);
        }
        if outcome.nonsense || hostile {
            self.lose_peer(now, index, PeerDownReason::Protocol);
        } else if outcome.closed {
            self.lose_peer(now, index, PeerDownReason::Closed);
        }
    }

    fn ponged(&mut self, index: u16, token: u64) {
        let Some(peer) = self.peer_mut(index) else { return };
        peer.ping_tries = 0;
        if let Some(contest) = peer.contest.as_mut().filter(|contest| contest.token == token) {
            contest.alive = true;
        }
        if let Some(newcomer) = peer.newcomer.take_if(|newcomer| newcomer.token == token) {
            let mtu = self.mtu_of(newcomer.addr);
            if let Some(peer) = self.peer_mut(index) {
                peer.add_path(newcomer.addr, mtu);
            }
            return;
        }
        if peer.size_answered(token) {
            return;
        }
        if peer.probe_answered(token) {
            if let Some(session) = peer.session.as_deref_mut() {
                session.path_changed();
            }
            self.tables.stats.path_switches += 1;
        }
    }

    /// A packet for a session that is not here: its sender may have outlived it.
    fn unknown_session(&mut self, now: Time, from: SocketAddr, session: SessionRef) {
        self.tables.stats.unknown_session += 1;
        let known = self.peer_at(from).is_some();
        let limit = if known { &mut self.hint_limit } else { &mut self.stranger_limit };
        if limit.take(now) {
            let mut datagram = vec![0; HEADER_BYTES];
            Header { kind: Kind::UnknownSession, session, number: 0 }.write(&mut datagram);
            self.proof.append(&mut datagram, self.config.name.as_str().as_bytes());
            self.send_loose(from, datagram.into());
        }
    }

    /// Somebody says that a peer has lost its session with this node. In sealed mode the peer's
    /// name and the cluster key vouch for that, and ids are not used again. In plain mode nobody
    /// does; in both a handshake finds out, and the peer's answer to it says whether it still has
    /// the session.
    fn handle_hint(&mut self, now: Time, from: SocketAddr, session: SessionRef, datagram: &[u8]) {
        let lost = |peer: &crate::peer::Peer| {
            peer.session.as_deref().is_some_and(|at| at.remote == session) && peer.path_of(from).is_some()
        };
        let found = self.peers.iter().position(|peer| peer.as_ref().is_some_and(lost));
        let Some(index) = found.map(|index| index as u16) else { return };
        let name = self.peer(index).and_then(|peer| peer.name.as_ref()).map_or("", NodeName::as_str);
        if self.proof.check(datagram, name.as_bytes()).is_none() {
            self.tables.stats.bad_seals += 1;
            return;
        }
        let Some(peer) = self.peer_mut(index) else { return };
        if peer.attempt.is_some() || now < peer.hint_not_before {
            return;
        }
        peer.hint_not_before = now + Duration::from_millis(100);
        self.start_attempt(now, index);
    }

    /// Gives the next datagram to send, written to the front of `buf`, which should hold the
    /// largest packet of any path (and at least 1,200 bytes).
    #[inline]
    pub fn poll_transmit(&mut self, now: Time, buf: &mut [u8], dma: &mut dyn Dma) -> Option<Transmit> {
        self.poll_transmit_lending(now, buf, dma, false).map(|(transmit, _)| transmit)
    }

    /// As [`poll_transmit`](Self::poll_transmit). If `lending`, a long piece of memory may be left
    /// out of the buffer for the caller to put in; `Transmit::len` counts the bytes in the buffer.
    /// Only packets in plain mode lend.
    #[inline]
    pub fn poll_transmit_lending(
        &mut self,
        now: Time,
        buf: &mut [u8],
        dma: &mut dyn Dma,
        lending: bool,
    ) -> Option<(Transmit, Option<Lent>)> {
        self.now = now;
        if buf.len() < PACKET_BYTES_MIN {
            return None;
        }
        if !self.work.is_empty() {
            self.poll_work(now, dma);
        }
        let (transmit, lent) = match self.loose.pop_front() {
            Some((to, datagram)) => {
                buf[..datagram.len()].copy_from_slice(&datagram);
                let answers = [Kind::Retry, Kind::Reject, Kind::UnknownSession];
                let to_stranger = Header::parse(&datagram).is_ok_and(|header| answers.contains(&header.kind));
                let (codepoint, fit) = (Codepoint::NotEct, Fit::Path);
                (Transmit { to, len: datagram.len(), codepoint, to_stranger, fit }, None)
            }
            None => self.poll_sessions(now, buf, dma, lending)?,
        };
        self.tables.stats.packets_out += 1;
        self.tables.stats.bytes_out += (transmit.len + lent.map_or(0, |lent| lent.len)) as u64;
        Some((transmit, lent))
    }

    #[inline]
    fn poll_sessions(
        &mut self,
        now: Time,
        buf: &mut [u8],
        dma: &mut dyn Dma,
        lending: bool,
    ) -> Option<(Transmit, Option<Lent>)> {
        while let Some(index) = self.ready.pop_front() {
            let Some(peer) = self.peers[usize::from(index)].as_mut() else { continue };
            peer.in_ready = false;
            let Some(session) = peer.session.as_deref_mut() else { continue };
            let current = peer.paths[peer.current].addr;
            let (codepoint, plain) = (session.notification.codepoint(), Codepoint::NotEct);
            let (mut sent, mut lent) = (None, None);
            if let Some((to, token)) = session.pongs.pop_front() {
                let len = session.build_ping(token, true, buf);
                sent = len.map(|len| Transmit { to, len, codepoint: plain, to_stranger: false, fit: Fit::Path });
            } else if let Some(Ping { to, token, bytes }) = session.pings.pop_front() {
                let (to, fit) = (to.unwrap_or(current), if bytes > 0 { Fit::Probe } else { Fit::Path });
                let len = if bytes > 0 {
                    session.build_probe(token, bytes, buf)
                } else {
                    session.build_ping(token, false, buf)
                };
                sent = len.map(|len| Transmit { to, len, codepoint: plain, to_stranger: false, fit });
            } else if let Some((len, only_ack)) = session.build(now, buf, &mut self.tables, dma, lending) {
                let last = session.last_from.filter(|from| only_ack && *from != current);
                let known = last.filter(|from| peer.paths.iter().any(|path| path.addr == *from));
                let to = known.unwrap_or(current);
                lent = session.lent.take();
                sent = Some(Transmit { to, len, codepoint, to_stranger: false, fit: fit_of(&peer.paths, to) });
            }
            if let Some(transmit) = sent {
                // If there may be more, the others have their turn first.
                if session.has_to_send() {
                    peer.in_ready = true;
                    self.ready.push_back(index);
                }
                self.arm(index);
                return Some((transmit, lent));
            }
            if session.paced_until().is_some() {
                self.arm(index);
            }
        }
        None
    }
}
