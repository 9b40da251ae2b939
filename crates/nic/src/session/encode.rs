//! Writing chunks into a packet, from the operation that each is of: data is gathered straight into
//! the datagram, or lent.
//!
//! Invariant: a chunk that goes again says what it said before, or, if what it told of has ended,
//! nothing; its number stays.

use super::early::put_early;
use super::tx::Body;
use super::{InboundFetch, Op, OpKind, Session};
use crate::command::Dma;
use crate::engine::{Lent, Transfer};
use crate::error::OpError;
use crate::ids::RegionRef;
use crate::limits::{LENT_BYTES_MIN, REFERENCE_BYTES_MAX, REFERENCE_SPAN};
use crate::slab::Key;
use crate::tables::{OpData, Tables, Target};
use crate::wire::Writer;
use crate::wire::chunk::{Chunk, WriteHead, write_fetch_head};

impl Session {
    /// Writes chunk `number` from its source.
    pub(super) fn encode(&mut self, number: u64, out: &mut Writer<'_>, tables: &mut Tables, dma: &mut dyn Dma) {
        let index = (number - self.tx.base) as usize;
        self.tx.prompt |= self.tx.chunks[index].body.is_answered_at_once();
        put_early(self.tx.chunks[index].early, out);
        match &self.tx.chunks[index].body {
            Body::Control(bytes) => out.bytes(bytes),
            Body::Nop => Chunk::Nop { ack_now: true }.write(out),
            &Body::AtomicReply { ticket, old } => Chunk::AtomicReply { ticket, old }.write(out),
            &Body::Write { op, part, len, last, ack_now } => {
                self.encode_write(op, part, len, last, ack_now, out, tables, dma);
            }
            &Body::Append { op, ack_now } => self.encode_append(op, ack_now, out, tables, dma),
            &Body::FetchRequest { op, start, len } => self.encode_request(op, (start, len), out),
            &(Body::AtomicRequest { op } | Body::Flush { op } | Body::Unimport { op }) => {
                self.encode_request(op, (0, 0), out);
            }
            &Body::FetchData { fetch, part, len, last } => {
                self.encode_fetch_data(fetch, part, len, last, out, tables, dma);
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of one chunk
    #[inline]
    pub(super) fn encode_write(
        &mut self,
        key: Key<Op>,
        part: u64,
        len: u32,
        last: bool,
        ack_now: bool,
        out: &mut Writer<'_>,
        tables: &Tables,
        dma: &mut dyn Dma,
    ) {
        let op = self.ops.get(key).expect("an operation stays while chunks name it");
        if op.ended {
            return Chunk::Abort { grant: op.grant }.write(out);
        }
        let OpKind::Send { data, notify, counter } = op.kind else { unreachable!("only sends are written") };
        let (offset, span) = match &op.ranges {
            None => (op.offset + part, (op.offset, op.len)),
            Some(ranges) => (ranges.place(part, op.len).0, ranges.span()),
        };
        let head = WriteHead {
            ack_now,
            first: part == 0,
            grant: op.grant,
            offset,
            notify: notify.filter(|_| last).map(|word| (span.0, span.1, word)),
            counter: counter.filter(|_| last),
            token: op.token.as_deref().copied(),
        };
        head.write(len, out);
        match data {
            OpData::Inline { slot } => out.bytes(tables.inline.data(slot, part, len as usize)),
            OpData::Memory { region, from } => {
                let memory = RegionRef { process: op.process, region };
                let keeps_up = self.tx.span_bytes <= self.budget / REFERENCE_SPAN.1 * REFERENCE_SPAN.0;
                let rest = op.len - part - u64::from(len);
                let transfer = Transfer { session: self.via.serial, operation: key.to_u64(), rest };
                let by_reference = (op.len <= REFERENCE_BYTES_MAX || keeps_up).then_some(transfer);
                self.put(memory, from + part, len as usize, by_reference, out, dma);
            }
        }
    }

    /// Puts bytes of memory into the packet, or leaves room for them and lends the memory.
    #[inline]
    pub(super) fn put(
        &mut self,
        memory: RegionRef,
        offset: u64,
        len: usize,
        by_reference: Option<Transfer>,
        out: &mut Writer<'_>,
        dma: &mut dyn Dma,
    ) {
        if self.lending && len >= LENT_BYTES_MIN && self.lent.is_none() {
            self.lent = Some(Lent { at: out.len(), memory, offset, len, by_reference });
            out.keep(len);
        } else if len > 0 {
            dma.gather(memory, offset, out.space(len));
        }
    }

    /// Writes the chunk of a request; of a fetch, for `len` bytes of it from `start` on.
    pub(super) fn encode_request(&self, key: Key<Op>, (start, len): (u64, u64), out: &mut Writer<'_>) {
        let Some(op) = self.ops.get(key).filter(|op| !op.ended) else {
            return Chunk::Nop { ack_now: false }.write(out);
        };
        match op.kind {
            OpKind::Fetch { .. } => {
                let (ticket, offset) = (key.to_u64(), op.offset + start);
                Chunk::FetchRequest { ticket, grant: op.grant, offset, start, len }.write(out);
            }
            OpKind::Atomic(change) => {
                Chunk::AtomicRequest { ticket: key.to_u64(), grant: op.grant, offset: op.offset, op: change }
                    .write(out);
            }
            OpKind::Unimport => Chunk::Unimport { grant: op.grant }.write(out),
            _ => Chunk::Nop { ack_now: true }.write(out),
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of one chunk
    pub(super) fn encode_fetch_data(
        &mut self,
        key: Key<InboundFetch>,
        part: u64,
        len: u32,
        last: bool,
        out: &mut Writer<'_>,
        tables: &Tables,
        dma: &mut dyn Dma,
    ) {
        let Some(target) = self.inbound_fetch_target(key, tables) else {
            // Revoked since. The chunk may have come already, so the failure goes by itself.
            self.fail_inbound_fetch(key);
            return Chunk::Nop { ack_now: false }.write(out);
        };
        let fetch = self.inbound_fetches.get(key).expect("it has a target");
        write_fetch_head(fetch.ticket, fetch.start + part, last, len, out);
        let offset = target.base + fetch.offset + part;
        self.put(target.memory, offset, len as usize, None, out, dma);
    }

    /// The memory a fetch reads, while the export is there.
    pub(super) fn inbound_fetch_target(&self, key: Key<InboundFetch>, tables: &Tables) -> Option<Target> {
        let fetch = self.inbound_fetches.get(key)?;
        Some(tables.grant(self.via, fetch.grant)?.target)
    }

    /// Notifies the requester, once.
    pub(super) fn fail_inbound_fetch(&mut self, key: Key<InboundFetch>) {
        let Some(fetch) = self.inbound_fetches.get_mut(key).filter(|fetch| !fetch.failed) else { return };
        fetch.failed = true;
        let ticket = fetch.ticket;
        self.answer(&Chunk::FetchFail { ticket, why: OpError::Revoked });
    }
}
