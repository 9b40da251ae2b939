//! Packets that come in: each chunk once and in order, the rest held or dropped, or processed if it
//! may be [early](super::early).

use std::net::SocketAddr;

use super::{Op, Session};
use crate::command::Dma;
use crate::engine::Placement;
use crate::error::OpError;
use crate::event::Sender;
use crate::ids::{ImportId, NodeName, ProcessId, RegionRef};
use crate::limits::{
    ACK_DELAY, ACK_EVERY_BYTES, ACK_EVERY_PACKETS, CHUNK_WINDOW, CONTROL_SLACK_BYTES, HELD_BYTES_OWN,
    HELD_RELEASED_MAX, REORDER_PACKETS,
};
use crate::local::{has_right, in_bounds};
use crate::rights::Rights;
use crate::slab::Key;
use crate::tables::{Incoming, Tables, Target};
use crate::time::Time;
use crate::wire::Reader;
use crate::wire::chunk::{Chunk, Handle, WriteHead};
use crate::wire::frame::{self, Ack, Frame, Marks};

/// What a packet meant for the session as a whole.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The other side broke the protocol.
    pub(crate) nonsense: bool,
    /// It says goodbye.
    pub(crate) closed: bool,
    /// A ping of this side was answered.
    pub(crate) pong: Option<u64>,
    /// There was a chunk in it that had come before.
    pub(crate) duplicate: bool,
    /// With which codepoints packets of this side have come, to be taken after the acknowledgement.
    pub(crate) marks: Option<Marks>,
}

impl Session {
    /// Notes the arrival of a packet that opened, which is the peer's therefore.
    #[inline]
    pub(crate) fn received_from(&mut self, from: SocketAddr, number: u64) {
        self.received_any = true;
        if number >= self.newest_packet {
            self.newest_packet = number;
            self.last_from = Some(from);
        }
    }

    /// Whether a chunk that comes with this number is processed at once, and nothing else is.
    pub(crate) fn is_next(&self, seq: u64) -> bool {
        seq == self.rx.next && self.rx.held.is_empty()
    }

    /// The data of the next chunk, which is a write, is in its place already, or none is.
    pub(crate) fn place(&mut self, placed: Option<Placement>) {
        self.rx.placed = placed;
    }

    /// The data of a chunk, which is elsewhere if it was [placed](Self::place).
    #[inline]
    fn incoming<'a>(&mut self, data: &'a [u8]) -> Incoming<'a> {
        match self.rx.placed.take() {
            Some(Placement { memory: from, offset, len, .. }) => Incoming::Memory { from, offset, len: len as u64 },
            None => Incoming::Bytes(data),
        }
    }

    /// Takes the opened body of a packet that has not been seen before, if it is one send that is
    /// next in order. The acknowledgement in it is the caller's, as of [`receive`](Self::receive).
    /// `None`: nothing happened.
    #[inline]
    pub(crate) fn receive_single_chunk(
        &mut self,
        now: Time,
        number: u64,
        body: &[u8],
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) -> Option<Option<Ack<'static>>> {
        let next = |single: &frame::SingleWrite<'_>| self.is_next(single.seq);
        let single = frame::single_write(body).filter(next)?;
        self.rx.next += 1;
        self.take_write(single.seq, &single.head, single.data, tables, dma);
        self.count_for_ack(now, number, body.len());
        Some(single.ack)
    }

    /// Takes the opened body of packet `number`, which has not been seen before, but for its
    /// acknowledgement: that is the caller's, to be [taken](Self::acknowledged) after the chunks,
    /// for failures among them come before the acknowledgement they belong to.
    #[allow(clippy::too_many_arguments)] // one packet and the world it lands in
    pub(crate) fn receive<'a>(
        &mut self,
        now: Time,
        from: SocketAddr,
        number: u64,
        body: &'a [u8],
        peer: &NodeName,
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) -> (Outcome, Option<Ack<'a>>) {
        let mut outcome = Outcome::default();
        let mut reader = Reader::new(body);
        let (mut next, mut chunks, mut ack) = (None, 0u32, None);
        let mut early = None;
        let duplicates = self.stats.duplicates;
        while !reader.is_empty() {
            match frame::read(&mut reader) {
                Some(Frame::Chunk(chunk, bytes)) => {
                    let Some(seq) = next else {
                        outcome.nonsense = true;
                        break;
                    };
                    next = Some(seq + 1);
                    chunks += 1;
                    self.take_chunk(now, seq, early.take(), chunk, bytes, peer, tables, dma, &mut outcome);
                }
                // Numbers near the end of u64 could not be counted on.
                Some(Frame::Seq(seq)) if seq < u64::MAX / 2 => next = Some(seq),
                Some(Frame::Early(back)) => early = Some(back),
                Some(Frame::Ack(frame)) => ack = Some(frame),
                Some(Frame::Ping(token)) => self.pinged(from, token),
                Some(Frame::Pong(token)) => {
                    self.ponged(now);
                    outcome.pong = Some(token);
                }
                Some(Frame::Marks(marks)) => outcome.marks = Some(marks),
                Some(Frame::Piece(piece)) => {
                    chunks += 1;
                    self.take_piece(now, &piece, peer, tables, dma, &mut outcome);
                }
                Some(Frame::Padding) => {}
                Some(Frame::Close) => outcome.closed = true,
                Some(Frame::Seq(_)) | None => {
                    tables.stats.malformed += 1;
                    outcome.nonsense = true;
                    break;
                }
            }
        }
        if chunks > 0 {
            tables.held_bytes -= self.rx.pieced.forget_below(self.rx.next);
            self.count_for_ack(now, number, body.len());
        }
        outcome.duplicate = self.stats.duplicates > duplicates;
        (outcome, ack)
    }

    fn pinged(&mut self, from: SocketAddr, token: u64) {
        if self.pongs.len() < crate::limits::PINGS_QUEUED_MAX {
            self.pongs.push_back((from, token));
        }
    }

    /// Counts a packet that calls for an acknowledgement. Each of the first behind a gap calls for
    /// one at once [RFC 9000 §13.2.1], so that the sender knows of the loss as early as it may;
    /// those that follow them are no news, and each would cost both sides as much as a packet.
    fn count_for_ack(&mut self, now: Time, number: u64, bytes: usize) {
        let rx = &mut self.rx;
        if number >= rx.largest {
            rx.largest = number;
            rx.largest_at = now;
        }
        rx.pending_packets += 1;
        rx.pending_bytes += bytes;
        let enough = rx.pending_packets >= ACK_EVERY_PACKETS
            || (rx.pending_packets >= 2
                && (rx.pending_bytes >= ACK_EVERY_BYTES || rx.pending_bytes >= self.receive_budget / 4));
        if !rx.held.is_empty() && rx.told_singly > 0 {
            rx.told_singly -= 1;
            rx.ack_now = true;
        }
        rx.ack_now |= enough;
        if !rx.ack_now {
            rx.ack_deadline.get_or_insert(now + ACK_DELAY);
        }
    }

    pub(crate) fn ack_deadline(&self) -> Option<Time> {
        if self.rx.ack_now { None } else { self.rx.ack_deadline }
    }

    pub(crate) fn ack_waited_enough(&mut self) {
        self.rx.ack_now = true;
    }

    #[allow(clippy::too_many_arguments)] // one chunk and the world it lands in
    #[inline]
    pub(super) fn take_chunk(
        &mut self,
        now: Time,
        seq: u64,
        early: Option<u16>,
        chunk: Chunk<'_>,
        bytes: &[u8],
        peer: &NodeName,
        tables: &mut Tables,
        dma: &mut dyn Dma,
        outcome: &mut Outcome,
    ) {
        if seq < self.rx.next || seq == self.rx.next && self.has_closed_gap() {
            self.duplicate(tables);
        } else if seq == self.rx.next {
            self.rx.next += 1;
            self.process(now, seq, chunk, peer, tables, dma, outcome);
            if self.rx.held.pop_front().is_some() {
                self.release_held(now, peer, tables, dma, outcome);
            }
        } else {
            self.take_beyond_gap(now, seq, early, chunk, bytes, peer, tables, dma, outcome);
        }
    }

    pub(super) fn duplicate(&mut self, tables: &mut Tables) {
        self.stats.duplicates += 1;
        tables.stats.duplicates += 1;
        self.rx.ack_now = true;
    }

    /// Keeps a chunk beyond a gap, or nothing of one that is to be processed now; false: it cannot,
    /// or has it.
    pub(super) fn hold(&mut self, seq: u64, bytes: &[u8], tables: &mut Tables) -> bool {
        let index = seq - self.rx.next;
        let behind_all = self.rx.held.len() as u64;
        if self.rx.held.is_empty() || index > behind_all {
            self.rx.told_singly = REORDER_PACKETS;
        }
        // An older gap closes in part.
        self.rx.ack_now |= index < behind_all;
        if index > CHUNK_WINDOW || bytes.len() > self.room_to_hold(tables) {
            self.rx.ack_now = true;
            tables.stats.out_of_window += 1;
            return false;
        }
        let index = index as usize;
        if self.rx.held.len() <= index {
            self.rx.held.resize_with(index + 1, || None);
        }
        if self.rx.held[index].is_some() {
            self.duplicate(tables);
            return false;
        }
        self.rx.held[index] = Some(bytes.into());
        self.rx.held_bytes += bytes.len();
        tables.held_bytes += bytes.len();
        self.rx.held_numbers.insert(seq, seq + 1);
        true
    }

    /// Bytes that are kept until a gap closes, or a chunk is whole.
    pub(crate) fn held_bytes(&self) -> usize {
        self.rx.held_bytes + self.rx.pieced.bytes()
    }

    /// How many more may be.
    pub(super) fn room_to_hold(&self, tables: &Tables) -> usize {
        let held = self.held_bytes();
        let own = HELD_BYTES_OWN.saturating_sub(held);
        let shared = tables.held_bytes_max.saturating_sub(tables.held_bytes);
        own.max(shared).min((self.receive_budget + CONTROL_SLACK_BYTES).saturating_sub(held))
    }

    pub(super) fn give_held_back(&mut self, bytes: usize, tables: &mut Tables) {
        self.rx.held_bytes -= bytes;
        tables.held_bytes -= bytes;
    }

    /// What follows is there, and is to be [processed](Self::release_held).
    #[inline]
    pub(crate) fn has_closed_gap(&self) -> bool {
        self.rx.held.front().is_some_and(Option::is_some)
    }

    /// The gap has closed: some of what was held beyond it is processed, up to the next gap.
    pub(crate) fn release_held(
        &mut self,
        now: Time,
        peer: &NodeName,
        tables: &mut Tables,
        dma: &mut dyn Dma,
        outcome: &mut Outcome,
    ) {
        for _ in 0..HELD_RELEASED_MAX {
            if !self.has_closed_gap() {
                break;
            }
            let bytes = self.rx.held.pop_front().flatten().expect("it is there");
            let seq = self.rx.next;
            self.rx.next += 1;
            self.give_held_back(bytes.len(), tables);
            if bytes.is_empty() {
                continue;
            }
            let chunk = Chunk::read(&mut Reader::new(&bytes)).expect("it was decoded before it was held");
            self.process(now, seq, chunk, peer, tables, dma, outcome);
        }
        self.rx.held_numbers.trim_below(self.rx.next);
        self.rx.ack_now = true;
        self.release_early(now, peer, tables, dma, outcome);
        tables.held_bytes -= self.rx.pieced.forget_below(self.rx.next);
    }

    #[allow(clippy::too_many_arguments)] // one chunk and the world it lands in
    #[inline]
    pub(super) fn process(
        &mut self,
        now: Time,
        seq: u64,
        chunk: Chunk<'_>,
        peer: &NodeName,
        tables: &mut Tables,
        dma: &mut dyn Dma,
        outcome: &mut Outcome,
    ) {
        match chunk {
            Chunk::Write { head, data } => self.take_write(seq, &head, data, tables, dma),
            Chunk::Append { head, data } => self.receive_append(seq, &head, data, tables, dma),
            Chunk::Nop { ack_now } => self.rx.ack_now |= ack_now,
            Chunk::Abort { grant } => self.skip_rest(grant, tables),
            Chunk::FetchData { ticket, offset, last, data } => {
                self.fetched(Key::from_u64(ticket), offset, last, data, tables, dma);
            }
            Chunk::FetchFail { ticket, why } | Chunk::AtomicFail { ticket, why } => {
                self.end_op_sent(Key::from_u64(ticket), Err(why), tables);
            }
            Chunk::AtomicReply { ticket, old } => self.end_op_sent(Key::from_u64(ticket), Ok(old), tables),
            Chunk::Error { seq, why } => self.op_failed(seq, why, tables),
            Chunk::EchoReply { token } => self.echoed(now, token, tables),
            // A peer that was told that nobody takes messages sends none.
            Chunk::Message { data } if tables.takes_messages => {
                tables.messages.push_back((self.via, data.into()));
            }
            Chunk::Message { .. } => outcome.nonsense = true,
            other => self.request(now, other, peer, tables, dma),
        }
    }

    #[inline]
    fn take_write(&mut self, seq: u64, head: &WriteHead, data: &[u8], tables: &mut Tables, dma: &mut dyn Dma) {
        self.rx.ack_now |= head.ack_now;
        let data = self.incoming(data);
        let mut target = Err(OpError::Revoked);
        if let Some(grant) = tables.grant_mut(self.via, head.grant) {
            grant.skip &= !head.first;
            if grant.skip {
                return;
            }
            let from = self.sender(grant.handle);
            target = has_right(grant.rights, Rights::WRITE).map(|()| (grant.target, from));
        }
        if let Err(why) = target.and_then(|(target, from)| write(&target, from, head, data, tables, dma)) {
            tables.stats.refused += 1;
            self.skip_rest(head.grant, tables);
            self.report_failure(seq, why);
        }
    }

    /// Who sends through a grant to this session.
    #[inline]
    pub(super) fn sender(&self, Handle { process, import }: Handle) -> Sender {
        Sender { session: self.via.number(), process: ProcessId(process), import: ImportId::from_u64(import) }
    }

    /// The rest of the send under way on this grant is void.
    fn skip_rest(&self, grant: u64, tables: &mut Tables) {
        if let Some(grant) = tables.grant_mut(self.via, grant) {
            grant.skip = true;
        }
    }

    pub(super) fn report_failure(&mut self, seq: u64, why: OpError) {
        let number = self.answer(&Chunk::Error { seq, why });
        self.tx.barrier = number + 1;
        self.rx.ack_now = true;
    }

    /// Where a part of the answer to a fetch goes, with certainty.
    pub(crate) fn place_of_answer(&self, ticket: u64, offset: u64, len: u64) -> Option<(RegionRef, u64)> {
        let op = self.ops.get(Key::from_u64(ticket)).filter(|op| !op.ended && !op.queued)?;
        let super::OpKind::Fetch { region, to } = op.kind else { return None };
        op.has_asked_for(offset, len).then_some((RegionRef { process: op.process, region }, to + offset))
    }

    fn fetched(
        &mut self,
        ticket: Key<Op>,
        offset: u64,
        last: bool,
        data: &[u8],
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) {
        let data = self.incoming(data);
        let Some(op) = self.ops.get_mut(ticket).filter(|op| !op.ended && !op.queued) else { return };
        let super::OpKind::Fetch { region, to } = op.kind else { return };
        let len = data.len();
        // Nothing but what was asked for, and each byte once.
        if !op.has_asked_for(offset, len) {
            return self.end_op_sent(ticket, Err(OpError::Protocol), tables);
        }
        data.put(0, len, RegionRef { process: op.process, region }, to + offset, dma);
        tables.stats.bytes_deposited += len;
        op.progress += len;
        let (progress, whole, is_long) = (op.progress, op.len, op.is_long_fetch());
        if is_long {
            self.fetches.asked -= len;
            self.go_on_fetching(tables);
        }
        // With a part missing, its failure is on the way in a chunk of its own.
        if last && progress == whole {
            self.end_op_sent(ticket, Ok(whole), tables);
        }
    }

    /// Ends an operation by the peer's word, which must be about one that was sent.
    fn end_op_sent(&mut self, key: Key<Op>, result: Result<u64, OpError>, tables: &mut Tables) {
        let answered =
            |op: &&super::Op| !op.queued && matches!(op.kind, super::OpKind::Fetch { .. } | super::OpKind::Atomic(_));
        if self.ops.get(key).filter(answered).is_some() {
            self.end_op(key, result, tables);
        }
    }

    /// The peer refused chunk `seq` of a send.
    fn op_failed(&mut self, seq: u64, why: OpError, tables: &mut Tables) {
        let Some(chunk) = self.tx.chunk_mut(seq) else { return };
        if let super::tx::Body::Write { op, .. } | super::tx::Body::Append { op, .. } = chunk.body {
            self.end_op(op, Err(why), tables);
        }
    }
}

/// Puts data where a grant leads, after every check.
#[inline]
fn write(
    target: &Target,
    from: Sender,
    head: &WriteHead,
    data: Incoming<'_>,
    tables: &mut Tables,
    dma: &mut dyn Dma,
) -> Result<(), OpError> {
    if let Some(token) = &head.token {
        return tables.fill(target, token, head.offset, data, dma);
    }
    in_bounds(head.offset, data.len(), target.len)?;
    tables.arrived(target, head.offset, data, head.counter, dma)?;
    if let Some((offset, len, word)) = head.notify {
        // What is reported to the owner is a claim of the sender; it must make sense at least.
        in_bounds(offset, len, target.len)?;
        tables.notify(target, from, (offset, len), data.tail(dma), word);
    }
    Ok(())
}
