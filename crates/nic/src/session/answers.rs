//! Answers to the fetches and atomic operations of the other side.
//!
//! Invariant: the processes that wait for them take turns, piece by piece.

use std::collections::VecDeque;

use super::early::{early_bytes, put_early};
use super::transmit::{Runs, Taken};
use super::tx::{Body, Cause};
use super::{INBOUND_FETCH_TURN, InboundFetch, Session};
use crate::command::Dma;
use crate::ids::ProcessId;
use crate::limits::PROCESSES_MAX;
use crate::slab::Key;
use crate::tables::Tables;
use crate::wire::Writer;
use crate::wire::chunk::{ATOMIC_REPLY_BYTES, FETCH_DATA_BYTES};

impl Session {
    pub(super) fn take_inbound_fetch(
        &mut self,
        packet: u64,
        runs: &mut Runs,
        out: &mut Writer<'_>,
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) -> Taken {
        let front = self.inbound_fetch_queue.front().and_then(|(_, of_process)| of_process.front());
        let Some(&key) = front else { return Taken::Empty };
        let fetch = self.inbound_fetches.get(key).expect("a queued fetch is in the table");
        let (part, left) = (fetch.progress, fetch.len - fetch.progress);
        if self.inbound_fetch_target(key, tables).is_none() {
            self.fail_inbound_fetch(key);
            self.dequeue_inbound_fetch(key);
            // The failure has its number now and goes before anything new.
            return Taken::Full;
        }
        let early = self.early_answer().filter(|_| part == 0);
        let head = FETCH_DATA_BYTES + early_bytes(early);
        let Some(take) = self.room_for(head, left, runs, out) else { return Taken::Full };
        let last = left == take as u64;
        let early = early.filter(|_| last);
        runs.add(self.tx.next_number(), out);
        put_early(early, out);
        self.encode_fetch_data(key, part, take as u32, last, out, tables, dma);
        let body = Body::FetchData { fetch: key, part, len: take as u32, last };
        self.tx.push_in_flight(body, FETCH_DATA_BYTES + take, packet, early);
        let fetch = self.inbound_fetches.get_mut(key).expect("found above");
        fetch.progress += take as u64;
        fetch.chunks += 1;
        if last {
            self.dequeue_inbound_fetch(key);
        } else {
            // Fetches take turns too, piece by piece, and so do the processes that wait for them.
            self.inbound_fetch_queue.front_mut().expect("seen above").1.rotate_left(1);
            self.inbound_fetch_queue.rotate_left(1);
        }
        Taken::Chunk
    }

    fn dequeue_inbound_fetch(&mut self, key: Key<InboundFetch>) {
        if let Some((process, mut rest)) = self.inbound_fetch_queue.pop_front() {
            rest.pop_front();
            if !rest.is_empty() {
                self.inbound_fetch_queue.push_back((process, rest));
            }
        }
        if let Some(fetch) = self.inbound_fetches.get_mut(key) {
            fetch.queued = false;
        }
        self.release_inbound_fetch(key);
    }

    /// Queues the answer to a fetch of a process of the other side.
    pub(super) fn serve(&mut self, process: u32, ticket: u64, grant: u64, offset: u64, len: u64) {
        let key = self.inbound_fetches.insert(InboundFetch {
            ticket,
            grant,
            offset,
            len,
            progress: 0,
            chunks: 0,
            queued: true,
            failed: false,
        });
        // As many as that side may have, whatever it says.
        let process = ProcessId(process).slot() as u32 % PROCESSES_MAX as u32;
        match self.inbound_fetch_queue.iter_mut().find(|(of, _)| *of == process) {
            Some((_, waiting)) => waiting.push_back(key),
            None => self.inbound_fetch_queue.push_back((process, VecDeque::from([key]))),
        }
        if !self.inbound_fetches_active {
            self.inbound_fetches_active = true;
            self.active.push_back(INBOUND_FETCH_TURN);
        }
    }

    pub(super) fn queue_atomic_reply(&mut self, ticket: u64, old: u64) {
        let early = self.early_answer();
        self.tx.queue(Body::AtomicReply { ticket, old }, ATOMIC_REPLY_BYTES, Cause::Answer, early);
    }
}
