//! Appends: records that this side sends, and records that come for rings of this node.
//!
//! Invariant: a record is one chunk, and so in one packet. Source: [GMS §2] send ring and receive
//! ring.

use super::transmit::{Packet, Taken};
use super::tx::Body;
use super::{Op, OpKind, Session};
use crate::command::Dma;
use crate::crypto::SEAL_BYTES_MAX;
use crate::error::OpError;
use crate::ids::RegionRef;
use crate::limits::{ACK_RANGES_MAX, APPEND_BYTES_MAX, PACKET_BYTES_MIN};
use crate::local::has_right;
use crate::rights::Rights;
use crate::slab::Key;
use crate::tables::{Appended, Appender, OpData, Tables};
use crate::wire::Writer;
use crate::wire::chunk::{APPEND_BYTES, AppendHead, Chunk};
use crate::wire::frame::{SEQ_BYTES, ack_bytes};
use crate::wire::packet::HEADER_BYTES;

/// A record goes into one packet, be that the smallest and with the longest acknowledgement.
const _: () = assert!(
    HEADER_BYTES + SEAL_BYTES_MAX + SEQ_BYTES + APPEND_BYTES + APPEND_BYTES_MAX + ack_bytes(ACK_RANGES_MAX)
        <= PACKET_BYTES_MIN
);

impl Session {
    /// Puts a record into the packet being built, if it has room.
    pub(super) fn take_append(
        &mut self,
        turn: u16,
        key: Key<Op>,
        packet: &mut Packet<'_>,
        tables: &Tables,
        dma: &mut dyn Dma,
    ) -> Taken {
        let alone = self.lane(turn).ops.len() == 1;
        let op = self.ops.get(key).expect("the caller found it");
        let (len, order, ack_now) = (op.len, op.order(), alone && op.cookie.is_some());
        let early = self.early_of(order);
        let bytes = APPEND_BYTES + len as usize;
        let Some(number) = self.start_whole(bytes, early, packet) else { return Taken::Full };
        self.encode_append(key, ack_now, &mut packet.out, tables, dma);
        self.follow(order, number, early);
        self.tx.push_in_flight(Body::Append { op: key, ack_now }, bytes, packet.number, early);
        let op = self.ops.get_mut(key).expect("found above");
        op.progress = len;
        op.chunks += 1;
        self.leave_queue(turn, key);
        Taken::Chunk
    }

    /// The record as a chunk, be it for the first time or again.
    pub(super) fn encode_append(
        &mut self,
        key: Key<Op>,
        ack_now: bool,
        out: &mut Writer<'_>,
        tables: &Tables,
        dma: &mut dyn Dma,
    ) {
        let op = self.ops.get(key).expect("an operation stays while chunks name it");
        let OpKind::Append { data, word, notify, refusals } = op.kind else { unreachable!("only appends are written") };
        if op.ended {
            return Chunk::Nop { ack_now }.write(out);
        }
        AppendHead { ack_now, notify, grant: op.grant, refusals, word }.write(op.len as u32, out);
        match data {
            OpData::Inline { slot } => out.bytes(tables.inline.data(slot, 0, op.len as usize)),
            OpData::Memory { .. } if op.len == 0 => {}
            OpData::Memory { region, from } => {
                dma.gather(RegionRef { process: op.process, region }, from, out.space(op.len as usize));
            }
        }
    }

    pub(super) fn receive_append(
        &mut self,
        seq: u64,
        head: &AppendHead,
        data: &[u8],
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) {
        self.rx.ack_now |= head.ack_now;
        if let Err(why) = self.append(head, data, tables, dma) {
            tables.stats.refused += 1;
            self.report_failure(seq, why);
        }
    }

    fn append(&self, head: &AppendHead, data: &[u8], tables: &mut Tables, dma: &mut dyn Dma) -> Result<(), OpError> {
        let grant = tables.grant(self.via, head.grant).ok_or(OpError::Revoked)?;
        has_right(grant.rights, Rights::WRITE)?;
        let (target, from) = (grant.target, self.sender(grant.handle));
        let record = Appended { from, word: head.word, notify: head.notify, refusals: head.refusals, data };
        tables.append(&target, Appender::Grant(Key::from_u64(head.grant)), &record, dma)
    }
}
