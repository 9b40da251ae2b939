//! Acknowledgements that come in: what has arrived, what is lost, how fast to go on.

use std::time::Duration;

use super::tx::{Body, Deferred, State};
use super::{InboundFetch, Op, Session};
use crate::congestion::Snapshot;
use crate::limits::{MTU_PROOF_SLACK_BYTES, PROBES_MAX, WINDOW_MIN_PACKETS};
use crate::slab::Key;
use crate::tables::Tables;
use crate::time::Time;
use crate::wire::frame::Ack;

/// The peer acknowledged what was never sent.
pub(crate) struct Nonsense;

impl Session {
    /// Takes an acknowledgement.
    pub(crate) fn acknowledged(&mut self, now: Time, ack: &Ack<'_>, tables: &mut Tables) -> Result<(), Nonsense> {
        if ack.largest >= self.tx.next_packet || ack.cumulative > self.tx.next_number() {
            return Err(Nonsense);
        }
        let before = self.tx.largest_acked;
        let newest = self.measure(now, ack);
        let news = News { before, largest: ack.largest };
        let base = self.tx.base;
        let mut bytes = 0;
        if ack.barrier > self.rx.next {
            // Failures first: a send must not complete before its error has come. What has arrived
            // does not go again, or both sides could fill their windows with it and wait for each
            // other's failures for ever.
            bytes += self.mark_held(base, ack.cumulative, news)?;
            if self.tx.deferred.is_none_or(|deferred| deferred.cumulative < ack.cumulative) {
                self.tx.deferred = Some(Deferred { cumulative: ack.cumulative, barrier: ack.barrier });
            }
        } else {
            bytes += self.pop_acknowledged(ack.cumulative, news, tables)?;
        }
        for (start, end) in ack.ranges() {
            bytes += self.mark_held(start, end, news)?;
        }
        if bytes > 0 || self.tx.base > base {
            self.tx.backoff = 0;
            self.tx.probed = 0;
            self.tx.last_heard = now;
            self.progressed(now);
            let (in_flight, next) = (self.tx.in_flight, self.tx.next_packet);
            self.congestion.acknowledged(now, (bytes, in_flight), (ack.largest, next), newest, &self.rtt);
        }
        self.detect_losses(now, tables);
        self.notification.look();
        Ok(())
    }

    /// To be called when chunks have come: the failures before which an acknowledgement was not to
    /// count may be among them.
    #[inline]
    pub(crate) fn take_deferred(&mut self, now: Time, tables: &mut Tables) {
        if let Some(Deferred { cumulative, .. }) = self.tx.deferred.take_if(|deferred| deferred.barrier <= self.rx.next)
        {
            let none = News { before: None, largest: 0 };
            let bytes = self.pop_acknowledged(cumulative, none, tables);
            assert!(matches!(bytes, Ok(0)), "chunks of a deferred acknowledgement are held");
            self.progressed(now);
        }
    }

    /// Both directions work.
    fn progressed(&mut self, now: Time) {
        self.last_proof = now;
        self.ping_wait = None;
        self.chunk_wait = if self.tx.chunks.is_empty() { None } else { Some(now) };
    }

    pub(super) fn ponged(&mut self, now: Time) {
        self.last_proof = now;
        self.ping_wait = None;
    }

    /// The newest packet that has arrived, and the round trip that it took, if none newer had.
    fn measure(&mut self, now: Time, ack: &Ack<'_>) -> Option<(Snapshot, Duration)> {
        if self.tx.largest_acked.is_some_and(|largest| ack.largest <= largest) {
            return None;
        }
        self.tx.largest_acked = Some(ack.largest);
        let index = self.tx.sent.binary_search_by_key(&ack.largest, |packet| packet.number).ok()?;
        let packet = self.tx.sent[index];
        if packet.is_large {
            (self.tx.large_arrived, self.tx.large_lost) = (Some(ack.largest), 0);
            let asked = self.tx.size_asked.is_some_and(|from| ack.largest >= from);
            self.tx.size_is_proven |= asked && packet.bytes + MTU_PROOF_SLACK_BYTES >= self.packet_bytes;
        }
        let sent = packet.sent;
        let delay = Duration::from_micros(ack.delay_us.into());
        self.tx.largest_took = now.since(sent.at);
        let took = self.tx.largest_took.saturating_sub(delay);
        self.rtt.sample(now, took);
        Some((sent, took))
    }

    /// A chunk that was under way, or taken for lost, has arrived.
    fn arrived(&mut self, state: State, packet: u64, lost: Option<u32>, news: News) {
        match (state, lost) {
            // It has not been sent again, or that has not arrived: the first one has.
            (State::Lost, Some(reduction)) => self.was_not_lost(packet, reduction),
            (State::InFlight, Some(reduction)) if news.largest < packet => self.was_not_lost(packet, reduction),
            (State::InFlight, None) if news.before.is_some_and(|before| packet < before) => {
                self.tx.reordering.noticed();
            }
            _ => {}
        }
    }

    fn was_not_lost(&mut self, packet: u64, reduction: u32) {
        self.stats.spurious += 1;
        if reduction > 0 {
            self.tx.reordering.hasty(packet, self.tx.next_packet);
            self.congestion.not_lost(reduction);
        }
    }

    fn pop_acknowledged(&mut self, cumulative: u64, news: News, tables: &mut Tables) -> Result<usize, Nonsense> {
        let mut bytes = 0;
        while self.tx.base < cumulative {
            let Some(chunk) = self.tx.pop() else { break };
            self.arrived(chunk.state, chunk.packet, chunk.lost, news);
            match chunk.state {
                State::InFlight => {
                    self.tx.in_flight -= chunk.bytes as usize;
                    bytes += chunk.bytes as usize;
                }
                // Declared lost too early.
                State::Lost => bytes += chunk.bytes as usize,
                State::Held => {}
                State::Queued => return Err(Nonsense),
            }
            self.chunk_delivered(chunk.body, tables);
        }
        Ok(bytes)
    }

    fn mark_held(&mut self, start: u64, end: u64, news: News) -> Result<usize, Nonsense> {
        if end > self.tx.next_number() {
            return Err(Nonsense);
        }
        let mut bytes = 0;
        for number in start.max(self.tx.base)..end {
            let chunk = &mut self.tx.chunks[(number - self.tx.base) as usize];
            let (state, packet, lost) = (chunk.state, chunk.packet, chunk.lost);
            match state {
                State::InFlight => {
                    self.tx.in_flight -= chunk.bytes as usize;
                    bytes += chunk.bytes as usize;
                    chunk.state = State::Held;
                }
                State::Lost => {
                    bytes += chunk.bytes as usize;
                    chunk.state = State::Held;
                }
                State::Held => continue,
                State::Queued => return Err(Nonsense),
            }
            self.arrived(state, packet, lost, news);
        }
        Ok(bytes)
    }

    /// The other side has processed a chunk.
    fn chunk_delivered(&mut self, body: Body, tables: &mut Tables) {
        match body {
            Body::Write { op, .. } | Body::Append { op, .. } => self.op_chunk_delivered(op, true, tables),
            Body::Flush { op } | Body::Unimport { op } => self.op_chunk_delivered(op, true, tables),
            // These end with their answer.
            Body::FetchRequest { op, .. } | Body::AtomicRequest { op } => {
                self.op_chunk_delivered(op, false, tables);
            }
            Body::FetchData { fetch, .. } => {
                let Some(entry) = self.inbound_fetches.get_mut(fetch) else { return };
                entry.chunks -= 1;
                self.release_inbound_fetch(fetch);
            }
            Body::AtomicReply { .. } | Body::Control(_) | Body::Nop => {}
        }
    }

    fn op_chunk_delivered(&mut self, key: Key<Op>, completes: bool, tables: &mut Tables) {
        let Some(op) = self.ops.get_mut(key) else { return };
        op.chunks -= 1;
        if op.chunks > 0 || op.queued {
            return;
        }
        let len = op.len;
        if completes && !op.ended {
            self.end_op(key, Ok(len), tables);
        } else {
            self.release_op(key, tables);
        }
    }

    pub(super) fn release_inbound_fetch(&mut self, key: Key<InboundFetch>) {
        if self.inbound_fetches.get(key).is_some_and(|entry| entry.chunks == 0 && !entry.queued) {
            self.inbound_fetches.remove(key);
        }
    }

    pub(crate) fn detect_losses(&mut self, now: Time, tables: &mut Tables) {
        let (next, congestion) = (self.tx.next_packet, &mut self.congestion);
        let before = congestion.reductions();
        let notification = &mut self.notification;
        let arrived = |packet| notification.has_arrived(packet);
        let lost = self.tx.find_losses(now, &self.rtt, arrived, |packet| congestion.lost(now, packet, next));
        if congestion.reductions() > before {
            self.tx.reordering.reduced();
        }
        self.stats.lost += lost;
        tables.stats.retransmits += lost;
    }

    /// When the newest packet has waited long enough for news, and why: to probe, or because the
    /// retransmission timeout has passed.
    fn waits_until(&self) -> Option<(Time, Wait)> {
        if self.tx.in_flight == 0 {
            return None;
        }
        let timeout = self.tx.last_sent + self.rtt.timeout(self.tx.backoff);
        if self.tx.backoff == 0 && self.tx.probed < PROBES_MAX {
            let since = self.tx.last_sent.max(self.tx.last_heard);
            // What the peer has sent a round trip after that would have taken its answer along.
            let speaks = self.rtt.smoothed().is_some_and(|trip| self.rx.largest_at >= self.tx.last_sent + trip);
            let prompt = self.tx.prompt || speaks;
            let probe = self.rtt.probe_timeout(prompt, self.tx.probed).map(|after| since + after);
            if let Some(probe) = probe.filter(|probe| *probe < timeout) {
                return Some((probe, Wait::Probe));
            }
        }
        Some((timeout, Wait::Timeout))
    }

    /// When to call [`waited`](Self::waited).
    pub(crate) fn timeout_at(&self) -> Option<Time> {
        self.waits_until().map(|(at, _)| at)
    }

    /// Does what is due when no news have come; says whether the retransmission timeout has passed.
    pub(crate) fn waited(&mut self, now: Time, tables: &mut Tables) -> bool {
        match self.waits_until().filter(|(at, _)| *at <= now) {
            None => false,
            Some((_, Wait::Probe)) => {
                self.probe(tables);
                false
            }
            Some((_, Wait::Timeout)) => {
                self.timed_out(tables);
                true
            }
        }
    }

    /// Sends the oldest chunk under way again, in the newest packet: its acknowledgement says what
    /// of the rest has arrived [RFC 8985, section 7]. The window stays.
    fn probe(&mut self, tables: &mut Tables) {
        self.tx.probed += 1;
        self.stats.probes += 1;
        self.notification.goes_again(self.tx.next_packet);
        tables.stats.retransmits += self.tx.lose_oldest(0);
        self.tx.probes = self.tx.probes.max(1);
    }

    /// The peer has sent something twice: it has no answer to it. If that went out long enough ago,
    /// it is lost, and what the peer has not acknowledged with it.
    pub(crate) fn peer_probed(&mut self, now: Time, tables: &mut Tables) {
        let Some(smoothed) = self.rtt.smoothed() else { return };
        let old = now >= self.tx.last_sent + smoothed + self.tx.reordering.window(&self.rtt);
        if self.tx.in_flight > 0 && old && self.tx.probed < PROBES_MAX {
            self.probe(tables);
        }
    }

    /// Nothing came back in time. The first time a probe goes out, after that all counts as lost.
    fn timed_out(&mut self, tables: &mut Tables) {
        self.tx.backoff += 1;
        self.tx.size_is_doubtful |= self.tx.sent.iter().any(|packet| packet.is_large);
        self.stats.timeouts += 1;
        tables.stats.timeouts += 1;
        self.notification.timed_out();
        self.notification.goes_again(self.tx.next_packet);
        let lost = if self.tx.backoff == 1 {
            self.tx.lose_oldest(self.packet_bytes / 2)
        } else {
            self.congestion.timed_out(self.tx.next_packet);
            self.tx.lose_oldest(usize::MAX)
        };
        self.stats.lost += lost;
        tables.stats.retransmits += lost;
        self.tx.probes = WINDOW_MIN_PACKETS as u32;
    }
}

/// What an acknowledgement adds.
#[derive(Clone, Copy)]
struct News {
    /// Largest number of a packet that was known to have arrived.
    before: Option<u64>,
    /// Largest number of one that had when it was written.
    largest: u64,
}

/// What a wait ends with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Probe,
    Timeout,
}
