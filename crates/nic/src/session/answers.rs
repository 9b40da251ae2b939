//! Answers to the fetches and atomic operations of the other side.
//!
//! Invariant: the processes that wait for them take turns, piece by piece; short answers have one
//! of their own.

use super::early::early_bytes;
use super::transmit::{Packet, Taken};
use super::turns::InTurn;
use super::tx::{Body, Cause};
use super::{INBOUND_FETCH_TURN, InboundFetch, SHORT_ANSWERS_TURN, Session};
use crate::command::Dma;
use crate::ids::ProcessId;
use crate::limits::{PROCESSES_MAX, SHORT_BYTES};
use crate::slab::Key;
use crate::tables::Tables;
use crate::wire::chunk::{ATOMIC_REPLY_BYTES, FETCH_DATA_BYTES};

impl Session {
    /// The answers that have this turn.
    pub(super) fn answers(&mut self, turn: u16) -> &mut InTurn<InboundFetch> {
        if turn == SHORT_ANSWERS_TURN { &mut self.short_answers } else { &mut self.long_answers }
    }

    pub(super) fn take_inbound_fetch(
        &mut self,
        turn: u16,
        packet: &mut Packet<'_>,
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) -> Taken {
        let Some(key) = self.answers(turn).front() else { return Taken::Empty };
        let fetch = self.inbound_fetches.get(key).expect("a queued fetch is in the table");
        let (part, left) = (fetch.progress, fetch.len - fetch.progress);
        if self.inbound_fetch_target(key, tables).is_none() {
            self.fail_inbound_fetch(key);
            self.dequeue_inbound_fetch(turn, key);
            // The failure has its number now and goes before anything new.
            return Taken::Full;
        }
        let early = self.early_answer().filter(|_| part == 0);
        let head = FETCH_DATA_BYTES + early_bytes(early);
        let Some(take) = self.room_for(head, left, packet) else { return Taken::Full };
        let last = left == take as u64;
        let early = early.filter(|_| last);
        self.start_chunk(early, packet);
        self.encode_fetch_data(key, part, take as u32, last, &mut packet.out, tables, dma);
        let body = Body::FetchData { fetch: key, part, len: take as u32, last };
        self.tx.push_in_flight(body, FETCH_DATA_BYTES + take, packet.number, early);
        let fetch = self.inbound_fetches.get_mut(key).expect("found above");
        fetch.progress += take as u64;
        fetch.chunks += 1;
        if last {
            self.dequeue_inbound_fetch(turn, key);
        } else {
            // Fetches take turns too, piece by piece, and so do the processes that wait for them.
            self.answers(turn).rotate();
        }
        Taken::Chunk
    }

    fn dequeue_inbound_fetch(&mut self, turn: u16, key: Key<InboundFetch>) {
        self.answers(turn).pop();
        if let Some(fetch) = self.inbound_fetches.get_mut(key) {
            fetch.queued = false;
        }
        self.release_inbound_fetch(key);
    }

    /// Queues the answer to a fetch, or a part of one, of a process of the other side.
    pub(super) fn serve(
        &mut self,
        (process, ticket): (u32, u64),
        (grant, offset): (u64, u64),
        (start, len): (u64, u64),
    ) {
        let key = self.inbound_fetches.insert(InboundFetch {
            ticket,
            grant,
            offset,
            start,
            len,
            progress: 0,
            chunks: 0,
            queued: true,
            failed: false,
        });
        // As many as that side may have, whatever it says.
        let process = ProcessId(process).slot() as u32 % PROCESSES_MAX as u32;
        let turn = if len <= SHORT_BYTES { SHORT_ANSWERS_TURN } else { INBOUND_FETCH_TURN };
        let answers = self.answers(turn);
        answers.push(process, key);
        if !std::mem::replace(&mut answers.active, true) {
            self.turns.push(turn, turn == SHORT_ANSWERS_TURN);
        }
    }

    pub(super) fn queue_atomic_reply(&mut self, ticket: u64, old: u64) {
        let early = self.early_answer();
        self.tx.queue(Body::AtomicReply { ticket, old }, ATOMIC_REPLY_BYTES, Cause::Answer, early);
    }
}
