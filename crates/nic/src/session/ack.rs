//! Acknowledgements that come in: what has arrived, what is lost, how fast to go on.

use super::tx::{Body, State};
use super::{InboundFetch, Op, Session};
use crate::limits::WINDOW_MIN_PACKETS;
use crate::slab::Key;
use crate::tables::Tables;
use crate::time::Time;
use crate::wire::frame::Ack;

/// The peer acknowledged what was never sent.
pub(crate) struct Nonsense;

impl Session {
    /// Takes an acknowledgement.
    pub(crate) fn acknowledged(&mut self, now: Time, ack: &Ack<'_>, tables: &mut Tables) -> Result<(), Nonsense> {
        // Failures first: a send must not complete before its error has come.
        if ack.barrier > self.rx.next {
            return Ok(());
        }
        if ack.largest >= self.tx.next_packet || ack.cumulative > self.tx.next_number() {
            return Err(Nonsense);
        }
        self.measure(now, ack);
        let mut bytes = self.pop_acknowledged(ack.cumulative, tables)?;
        for (start, end) in ack.ranges() {
            bytes += self.mark_held(start, end)?;
        }
        if bytes > 0 {
            self.tx.backoff = 0;
            self.progressed(now);
            let limited = self.tx.limited;
            self.congestion.acknowledged(bytes, limited);
        }
        self.detect_losses(now, tables);
        Ok(())
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

    fn measure(&mut self, now: Time, ack: &Ack<'_>) {
        if self.tx.largest_acked.is_some_and(|largest| ack.largest <= largest) {
            return;
        }
        self.tx.largest_acked = Some(ack.largest);
        if let Ok(index) = self.tx.sent.binary_search_by_key(&ack.largest, |packet| packet.number) {
            let delay = std::time::Duration::from_micros(ack.delay_us.into());
            self.rtt.sample(now.since(self.tx.sent[index].at).saturating_sub(delay));
        }
    }

    fn pop_acknowledged(&mut self, cumulative: u64, tables: &mut Tables) -> Result<usize, Nonsense> {
        let mut bytes = 0;
        while self.tx.base < cumulative {
            let Some(chunk) = self.tx.pop() else { break };
            match chunk.state {
                State::InFlight => {
                    self.tx.in_flight -= chunk.bytes as usize;
                    bytes += chunk.bytes as usize;
                }
                // Declared lost too early, or known already.
                State::Lost | State::Held => bytes += 1,
                State::Queued => return Err(Nonsense),
            }
            self.chunk_delivered(chunk.body, tables);
        }
        Ok(bytes)
    }

    fn mark_held(&mut self, start: u64, end: u64) -> Result<usize, Nonsense> {
        if end > self.tx.next_number() {
            return Err(Nonsense);
        }
        let mut bytes = 0;
        for number in start.max(self.tx.base)..end {
            let chunk = &mut self.tx.chunks[(number - self.tx.base) as usize];
            match chunk.state {
                State::InFlight => {
                    self.tx.in_flight -= chunk.bytes as usize;
                    bytes += chunk.bytes as usize;
                    chunk.state = State::Held;
                }
                State::Lost => chunk.state = State::Held,
                State::Held => {}
                State::Queued => return Err(Nonsense),
            }
        }
        Ok(bytes)
    }

    /// The other side has processed a chunk.
    fn chunk_delivered(&mut self, body: Body, tables: &mut Tables) {
        match body {
            Body::Write { op, .. } | Body::Append { op, .. } => self.op_chunk_delivered(op, true, tables),
            Body::Flush { op } | Body::Unimport { op } => self.op_chunk_delivered(op, true, tables),
            // These end with their answer.
            Body::FetchRequest { op } | Body::AtomicRequest { op } => {
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
        let losses = self.tx.find_losses(now, self.rtt.reorder_window());
        self.stats.lost += losses.chunks;
        tables.stats.retransmits += losses.chunks;
        if let Some(packet) = losses.largest_packet {
            self.congestion.lost(packet, self.tx.next_packet);
        }
    }

    /// When the retransmission timeout fires.
    pub(crate) fn timeout_at(&self) -> Option<Time> {
        (self.tx.in_flight > 0).then(|| self.tx.last_sent + self.rtt.timeout(self.tx.backoff))
    }

    /// Nothing came back in time. The first time a probe goes out, after that all counts as lost.
    pub(crate) fn timed_out(&mut self, tables: &mut Tables) {
        self.tx.backoff += 1;
        self.stats.timeouts += 1;
        tables.stats.timeouts += 1;
        let lost = if self.tx.backoff == 1 {
            self.tx.lose_oldest(self.packet_bytes / 2)
        } else {
            self.congestion.collapsed(self.tx.next_packet);
            self.tx.lose_oldest(usize::MAX)
        };
        self.stats.lost += lost;
        tables.stats.retransmits += lost;
        self.tx.probes = WINDOW_MIN_PACKETS as u32;
    }
}
