//! Building packets: what is lost first, then new chunks in turn over the processes, with the
//! acknowledgement on the same packet. Data is gathered straight into the datagram.

use super::early::{early_bytes, put_early};
use super::tx::{Body, Cause, Run, SentPacket, may_be_too_large};
use super::{APART_TURNS, Op, OpKind, Order, Session};
use crate::command::Dma;
use crate::ids::ProcessId;
use crate::limits::{
    ACK_ALONG_AFTER, ACK_ALONG_PACKETS, ACK_DELAY, ACK_RANGES_MAX, CHUNK_WINDOW, INBOUND_REQUESTS_MAX, LENT_BYTES_MIN,
    LENT_PAGES_BYTES_MIN, LENT_PAGES_MAX, MESSAGE_BYTES_MAX, PAGE_BYTES, RUNS_PER_PACKET_MAX, share_allows,
};
use crate::slab::Key;
use crate::tables::{OpData, Tables};
use crate::time::Time;
use crate::wire::Writer;
use crate::wire::chunk::{
    ATOMIC_REQUEST_BYTES, Chunk, FETCH_REQUEST_BYTES, MESSAGE, MESSAGE_BYTES, NOP_BYTES, UNIMPORT_BYTES, WRITE_BYTES,
    WRITE_COUNTER_BYTES, WRITE_NOTIFY_BYTES, WRITE_TOKEN_BYTES, WriteHead,
};
use crate::wire::frame::{
    EARLY_BYTES, MARKS_BYTES, PING_BYTES, SEQ_BYTES, ack_bytes, write_ack, write_close, write_marks, write_padding,
    write_ping, write_pong, write_seq,
};
use crate::wire::packet::{Header, Kind};

/// A piece of a long transfer is not made smaller than this to fill up a packet.
const PIECE_BYTES_MIN: usize = 512;

/// The packet being built: its number, its chunks, and where they are written.
pub(super) struct Packet<'a> {
    pub(super) number: u64,
    pub(super) out: Writer<'a>,
    runs: [Run; RUNS_PER_PACKET_MAX],
    used: usize,
    /// Number that continues the last run.
    next: Option<u64>,
}

impl<'a> Packet<'a> {
    fn new(number: u64, out: Writer<'a>) -> Packet<'a> {
        Packet { number, out, runs: [Run::default(); RUNS_PER_PACKET_MAX], used: 0, next: None }
    }

    /// Bytes the numbering of `number` takes; `None`: no further run fits.
    #[inline]
    pub(super) fn cost(&self, number: u64) -> Option<usize> {
        if self.next == Some(number) {
            Some(0)
        } else if self.used < RUNS_PER_PACKET_MAX {
            Some(SEQ_BYTES)
        } else {
            None
        }
    }

    #[inline]
    pub(super) fn add(&mut self, number: u64) {
        if self.next != Some(number) {
            write_seq(number, &mut self.out);
            self.runs[self.used].first = number;
            self.used += 1;
        }
        self.runs[self.used - 1].count += 1;
        self.next = Some(number + 1);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }
}

/// What taking from one queue led to.
pub(super) enum Taken {
    /// A chunk is in the packet, there may be more.
    Chunk,
    /// The queue is empty.
    Empty,
    /// It cannot go on now, others may.
    HeldBack,
    /// The packet or the window is full.
    Full,
}

/// What may go out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum May {
    All,
    /// What is short: window or pace are used up, and it has credit.
    Short,
    Nothing,
}

/// Of up to `most` bytes from `start` on, those that end with a page and touch no more pages than a
/// driver can hand on.
fn whole_pages(start: u64, most: usize) -> usize {
    let end = (start + most as u64) / PAGE_BYTES;
    let end = end.min(start / PAGE_BYTES + LENT_PAGES_MAX) * PAGE_BYTES;
    (end - start) as usize
}

impl Session {
    /// Writes one packet to `buf`; its length, and whether it must go to the address the peer last
    /// used instead of the current path.
    pub(crate) fn build(
        &mut self,
        now: Time,
        buf: &mut [u8],
        tables: &mut Tables,
        dma: &mut dyn Dma,
        lending: bool,
    ) -> Option<(usize, bool)> {
        self.lending = lending && self.seals.send.may_lend();
        let may_send = self.may_send(now);
        if let Some(number) = self.next_cut(may_send) {
            return Some((self.build_piece(now, number, buf, tables, dma)?, false));
        }
        let ack_due = self.rx.ack_now;
        if !ack_due && may_send == May::Nothing {
            return None;
        }
        let (number, in_flight) = (self.tx.next_packet, self.tx.in_flight);
        let (body_at, beside) = (self.seals.send.body_at(), self.seals.send.beside_body());
        let ack_ranges = self.rx.held_numbers.len().min(ACK_RANGES_MAX);
        let ack_size = ack_bytes(ack_ranges) + self.notification.due().map_or(0, |_| MARKS_BYTES);
        let size = self.packet_bytes.min(buf.len());
        // What is sent again may go another way than the acknowledgement that went with it the
        // first time, and was lost with it.
        let mut has_ack = self.rx.pending_packets > 0 || ack_due || self.tx.has_waited() && self.rx.next > 0;
        let lost_size = if self.may_go_again(may_send) { self.lost_size() } else { 0 };
        if beside + lost_size + ack_size > size {
            // A lost chunk that filled its packet leaves no room for an acknowledgement now. (One
            // that is larger than packets may be went in pieces, or waits for the window.)
            has_ack = beside + lost_size > size;
        }
        let reserve = self.seals.send.tag_bytes() + if has_ack { ack_size } else { 0 };
        let prompt = std::mem::take(&mut self.tx.prompt);
        let mut packet = Packet::new(number, Writer::new(&mut buf[..size.checked_sub(reserve)?]));
        packet.out.space(body_at);
        if may_send != May::Nothing {
            self.fill(may_send == May::Short, &mut packet, tables, dma);
        }
        let (end, is_empty, runs) = (packet.out.len(), packet.is_empty(), packet.runs);
        if is_empty {
            self.tx.prompt = prompt;
            if may_send == May::All {
                // The peer has no room.
                self.tx.pacer.held_otherwise();
            }
            if end == body_at && !(has_ack && ack_due) {
                return None;
            }
        }
        let mut out = Writer::new(&mut buf[end..size]);
        if has_ack {
            self.add_ack(now, ack_ranges, &mut out);
        }
        let end = end + out.len();
        if !is_empty {
            let lent = self.lent.map_or(0, |lent| lent.len);
            self.note_sent(now, number, runs, in_flight, end + self.seals.send.tag_bytes() + lent);
        }
        self.notification.sent();
        Some((self.finish(buf, end), is_empty))
    }

    #[inline]
    fn has_data(&self) -> bool {
        !self.tx.resend.is_empty() || !self.turns.is_empty()
    }

    /// Which chunks window and pace let go.
    #[inline]
    fn may_send(&mut self, now: Time) -> May {
        if !self.has_data() {
            return May::Nothing;
        }
        if self.tx.probes > 0 {
            return May::All;
        }
        if self.tx.in_flight >= self.congestion.window() {
            self.congestion.is_full(self.tx.next_packet);
            self.tx.pacer.held_otherwise();
        } else if self.tx.pacer.may_send(now, self.congestion.pacing_rate()) {
            return May::All;
        }
        // On a path that may be dead nothing goes beyond the window.
        if self.has_short() && self.turns.has_credit() && self.tx.backoff == 0 { May::Short } else { May::Nothing }
    }

    /// Whether the first chunk that is to be sent again may go.
    #[inline]
    pub(super) fn may_go_again(&self, may_send: May) -> bool {
        may_send == May::All || may_send == May::Short && self.tx.resend.has_short()
    }

    /// When the next packet may go, if there is something to send and the window has room.
    #[inline]
    pub(crate) fn paced_until(&self) -> Option<Time> {
        let at = self.tx.pacer.opens_at().filter(|_| self.has_data())?;
        (self.tx.in_flight < self.congestion.window()).then_some(at)
    }

    /// Whether a chunk of `bytes` that comes now would be the next thing to go out, by itself and
    /// at once: nothing waits to be sent (again) or for room.
    #[inline]
    pub(crate) fn is_clear_for(&self, now: Time, bytes: usize) -> bool {
        self.tx.resend.is_empty()
            && self.turns.is_empty()
            && self.pings.is_empty()
            && self.pongs.is_empty()
            && self.tx.backoff == 0
            && !self.tx.cut.is_going()
            && self.rx.held.is_empty()
            && self.tx.in_flight < self.congestion.window()
            && self.tx.pacer.is_open(now, self.congestion.pacing_rate())
            && self.tx.chunks.len() < CHUNK_WINDOW as usize
            && self.tx.span_bytes + EARLY_BYTES + bytes <= self.budget
            && self.seals.send.beside_body() + SEQ_BYTES + EARLY_BYTES + bytes + ack_bytes(0) + MARKS_BYTES
                <= self.packet_bytes
    }

    /// Whether a fetch or an atomic operation may be asked for: what is served at once has a bound.
    #[inline]
    pub(crate) fn may_ask(&self, process: ProcessId) -> bool {
        let own = self.queues.get(process.slot()).map_or(0, |queue| queue.requests);
        share_allows(own, self.requests_out, INBOUND_REQUESTS_MAX)
    }

    /// Writes a packet with one chunk, which is [clear](Self::is_clear_for) to go, and the
    /// acknowledgement that is due with it; its length. [`note_chunk`](Self::note_chunk) is to
    /// follow, with nothing in between.
    #[inline]
    fn write_chunk(
        &mut self,
        now: Time,
        order: Order,
        buf: &mut [u8],
        chunk: impl FnOnce(&Session, &mut Writer<'_>),
    ) -> usize {
        let mut out = Writer::new(buf);
        out.space(self.seals.send.body_at());
        write_seq(self.tx.next_number(), &mut out);
        put_early(self.early_of(order), &mut out);
        chunk(self, &mut out);
        if self.takes_ack_along(now) {
            self.add_ack(now, 0, &mut out);
        }
        let end = out.len();
        self.notification.sent();
        self.finish(buf, end)
    }

    /// Whether a packet that goes out at once takes the acknowledgement along, rather than leave it
    /// to the next such packet or to its own time.
    #[inline]
    fn takes_ack_along(&self, now: Time) -> bool {
        let rx = &self.rx;
        let waited = |deadline: Time| deadline.since(now) <= ACK_DELAY - ACK_ALONG_AFTER;
        rx.ack_now || rx.pending_packets >= ACK_ALONG_PACKETS || rx.ack_deadline.is_some_and(waited)
    }

    /// Remembers the one chunk of the packet last written.
    #[inline]
    fn note_chunk(&mut self, now: Time, order: Order, body: Body, bytes: usize) {
        let (first, packet) = (self.tx.next_number(), self.tx.next_packet - 1);
        let early = self.early_of(order);
        self.follow(order, first, early);
        let in_flight = self.tx.in_flight;
        self.tx.prompt = false;
        self.tx.push_in_flight(body, bytes, packet, early);
        let mut runs = [Run::default(); RUNS_PER_PACKET_MAX];
        runs[0] = Run { first, count: 1 };
        self.note_sent(now, packet, runs, in_flight, bytes);
    }

    /// Writes a packet with one send; [`note_send`](Self::note_send) is to follow.
    #[inline]
    pub(crate) fn write_send(
        &mut self,
        now: Time,
        (order, grant): (Order, u64),
        offset: u64,
        data: &[u8],
        buf: &mut [u8],
    ) -> usize {
        self.write_chunk(now, order, buf, |_, out| {
            WriteHead::whole(false, grant, offset).write(data.len() as u32, out);
            out.bytes(data);
        })
    }

    /// Remembers the send of the packet last written.
    #[inline]
    pub(crate) fn note_send(&mut self, now: Time, op: Op) {
        let (order, len) = (op.order(), op.len);
        let op = self.ops.insert(Op { progress: len, chunks: 1, queued: false, ..op });
        let body = Body::Write { op, part: 0, len: len as u32, last: true, ack_now: false };
        self.note_chunk(now, order, body, WRITE_BYTES + len as usize);
    }

    /// Writes a packet with one fetch or atomic operation, and gives its length;
    /// [`note_request`](Self::note_request) is to follow.
    #[inline]
    pub(crate) fn write_request(&mut self, now: Time, op: Op, buf: &mut [u8]) -> (usize, Key<Op>) {
        let (order, len) = (op.order(), op.len);
        let key = self.ops.insert(Op { asked: len, chunks: 1, queued: false, ..op });
        (self.write_chunk(now, order, buf, |session, out| session.encode_request(key, (0, len), out)), key)
    }

    /// Remembers the request of the packet last written.
    #[inline]
    pub(crate) fn note_request(&mut self, now: Time, op: Key<Op>, tables: &mut Tables) {
        let found = self.ops.get(op).expect("it was just written");
        let (order, len, is_long) = (found.order(), found.len, found.is_long_fetch());
        let fetches = matches!(found.kind, OpKind::Fetch { .. });
        let (body, bytes) = match fetches {
            true => (Body::FetchRequest { op, start: 0, len }, FETCH_REQUEST_BYTES),
            false => (Body::AtomicRequest { op }, ATOMIC_REQUEST_BYTES),
        };
        if is_long {
            self.fetch_asked(len, tables);
        }
        self.asked(order.process);
        self.note_chunk(now, order, body, bytes);
    }

    /// Remembers the chunks of a packet of about `bytes`; `before` was under way without it.
    #[inline]
    pub(super) fn note_sent(
        &mut self,
        now: Time,
        number: u64,
        runs: [Run; RUNS_PER_PACKET_MAX],
        before: usize,
        bytes: usize,
    ) {
        self.tx.probes = self.tx.probes.saturating_sub(1);
        self.tx.last_sent = now;
        let in_flight = self.tx.in_flight;
        let sent = self.congestion.sent(now, before, in_flight);
        self.tx.pacer.sent(now, in_flight - before, self.congestion.pacing_rate());
        if !self.has_data() && in_flight < self.congestion.window() {
            self.congestion.has_no_more(in_flight);
        }
        let is_large = may_be_too_large(bytes, self.packet_bytes);
        self.tx.sent.push_back(SentPacket { number, sent, runs, bytes, is_large, is_piece: false });
        self.chunk_wait.get_or_insert(now);
    }

    /// A packet with one ping or pong only: it goes where it is told, not on the current path.
    pub(crate) fn build_ping(&mut self, token: u64, pong: bool, buf: &mut [u8]) -> Option<usize> {
        if buf.len() < self.seals.send.beside_body() + PING_BYTES {
            return None;
        }
        let body_at = self.seals.send.body_at();
        let mut out = Writer::new(&mut buf[body_at..]);
        if pong {
            write_pong(token, &mut out)
        } else {
            write_ping(token, &mut out)
        }
        Some(self.finish(buf, body_at + PING_BYTES))
    }

    /// A packet of `bytes` with one ping, as long as the buffer has room.
    pub(crate) fn build_probe(&mut self, token: u64, bytes: usize, buf: &mut [u8]) -> Option<usize> {
        let (body_at, end) = (self.seals.send.body_at(), bytes.checked_sub(self.seals.send.tag_bytes())?);
        let padding = end.checked_sub(body_at + PING_BYTES).filter(|_| bytes <= buf.len())?;
        let mut out = Writer::new(&mut buf[body_at..]);
        write_ping(token, &mut out);
        write_padding(padding, &mut out);
        Some(self.finish(buf, end))
    }

    /// A packet that says goodbye; `buf` holds 256 bytes.
    pub(crate) fn build_close(&mut self, buf: &mut [u8]) -> usize {
        let body_at = self.seals.send.body_at();
        let mut out = Writer::new(&mut buf[body_at..]);
        write_close(&mut out);
        let end = body_at + out.len();
        self.finish(buf, end)
    }

    pub(super) fn finish(&mut self, buf: &mut [u8], end: usize) -> usize {
        let number = self.tx.next_packet;
        self.tx.next_packet += 1;
        Header { kind: Kind::Data, session: self.remote, number }.write(buf);
        let lent = self.lent.map_or((0, 0), |lent| (lent.at, lent.len));
        let len = self.seals.send.seal(number, buf, end, lent);
        self.stats.packets_out += 1;
        self.stats.bytes_out += (len + lent.1) as u64;
        len
    }

    pub(super) fn add_ack(&mut self, now: Time, ranges: usize, out: &mut Writer<'_>) {
        let rx = &mut self.rx;
        let delay = now.since(rx.largest_at).as_micros().min(u32::MAX.into()) as u32;
        let newest = rx.held_numbers.ranges().iter().rev().take(ranges);
        let newest = newest.map(|range| (range.start, range.end));
        write_ack(rx.next, rx.largest, delay, self.tx.barrier, newest, out);
        if self.notification.due().is_some() {
            write_marks(&self.notification.echo(), out);
        }
        rx.pending_packets = 0;
        rx.pending_bytes = 0;
        rx.ack_now = false;
        rx.ack_deadline = None;
    }

    /// Room for the next chunk's data after `head` bytes; `None`: the packet or a window is full.
    #[inline]
    pub(super) fn room_for(&self, head: usize, wanted: u64, packet: &Packet<'_>) -> Option<usize> {
        let cost = packet.cost(self.tx.next_number())?;
        let room = packet.out.room().checked_sub(cost + head)?;
        let budget = (self.budget + self.turns.reserve()).checked_sub(self.tx.span_bytes + head)?;
        if self.tx.chunks.len() as u64 >= CHUNK_WINDOW {
            return None;
        }
        let take = room.min(budget).min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let whole = take as u64 == wanted;
        // A piece fills the packet; only when nothing is under way may it be what the peer can
        // take.
        let worthwhile = take >= PIECE_BYTES_MIN && (room <= budget || self.tx.span_bytes == 0);
        (whole || worthwhile).then_some(take)
    }

    /// Starts the next chunk, for which there is room; its number.
    #[inline]
    pub(super) fn start_chunk(&mut self, early: Option<u16>, packet: &mut Packet<'_>) -> u64 {
        let number = self.tx.next_number();
        packet.add(number);
        put_early(early, &mut packet.out);
        number
    }

    /// Starts one of so many bytes that is never cut up; `None`: the packet or a window is full.
    pub(super) fn start_whole(&mut self, bytes: usize, early: Option<u16>, packet: &mut Packet<'_>) -> Option<u64> {
        self.room_for(bytes + early_bytes(early), 0, packet)?;
        Some(self.start_chunk(early, packet))
    }

    pub(super) fn take_op(
        &mut self,
        turn: u16,
        packet: &mut Packet<'_>,
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) -> Taken {
        let lane = self.lane(turn);
        let Some(&key) = lane.ops.front() else { return Taken::Empty };
        let alone = lane.ops.len() == 1;
        let taken_apart = self.queue_at(turn).taken_apart;
        let op = self.ops.get(key).expect("a queued operation is in the table");
        if turn < APART_TURNS && op.after > taken_apart {
            // What may be early is never late.
            return Taken::HeldBack;
        }
        if op.ended {
            self.leave_queue(turn, key);
            self.release_op(key, tables);
            return Taken::Chunk;
        }
        match op.kind {
            OpKind::Flush | OpKind::Unimport | OpKind::Fetch { .. } | OpKind::Atomic(_) => {
                self.take_request(turn, key, packet, tables)
            }
            OpKind::Append { .. } => self.take_append(turn, key, packet, tables, dma),
            OpKind::Send { data, notify, counter } => {
                let mut head = WRITE_BYTES;
                head += if notify.is_some() { WRITE_NOTIFY_BYTES } else { 0 };
                head += if counter.is_some() { WRITE_COUNTER_BYTES } else { 0 };
                let by_token = if op.token.is_some() { WRITE_TOKEN_BYTES } else { 0 };
                head += by_token;
                let all_left = op.len - op.progress;
                // A chunk is of one range.
                let left = op.ranges.as_ref().map_or(all_left, |ranges| ranges.place(op.progress, op.len).1);
                let (part, order, wants_answer) = (op.progress, op.order(), op.cookie.is_some());
                // One that takes more than a chunk has its last bytes wait for the rest.
                let may_be_early = part == 0 && left == all_left;
                let early = self.early_of(order).filter(|_| may_be_early);
                let marked = early_bytes(early);
                let Some(mut take) = self.room_for(head + marked, left, packet) else { return Taken::Full };
                if let (true, OpData::Memory { from, .. }) = (self.lending, data) {
                    // A packet lends one piece; this one goes from its place with the next. Nor is
                    // the rest of a transfer cut up to fill this one: its other half would take a
                    // packet too, and both would be copied and summed up.
                    if self.lent.is_some() && (left >= LENT_BYTES_MIN as u64 || (take as u64) < left) {
                        return Taken::Full;
                    }
                    if (take as u64) < left && take >= LENT_PAGES_BYTES_MIN {
                        take = whole_pages(from + part, take);
                    }
                }
                let rest = left - take as u64;
                if rest > 0 && rest < 8 && take > 8 {
                    // The last chunk carries the whole last word, for its notification.
                    take -= 8;
                }
                let last = all_left == take as u64;
                let early = early.filter(|_| last);
                let number = self.start_chunk(early, packet);
                let ack_now = last && wants_answer && alone;
                self.encode_write(key, part, take as u32, last, ack_now, &mut packet.out, tables, dma);
                let bytes = take + if last { head } else { WRITE_BYTES + by_token };
                let body = Body::Write { op: key, part, len: take as u32, last, ack_now };
                self.follow(order, number, early);
                self.tx.push_in_flight(body, bytes, packet.number, early);
                let op = self.ops.get_mut(key).expect("found above");
                op.progress += take as u64;
                op.chunks += 1;
                if last {
                    self.leave_queue(turn, key);
                }
                Taken::Chunk
            }
        }
    }

    fn take_request(&mut self, turn: u16, key: Key<Op>, packet: &mut Packet<'_>, tables: &mut Tables) -> Taken {
        let op = self.ops.get(key).expect("the caller found it");
        let (process, order, len, is_long) = (op.process, op.order(), op.len, op.is_long_fetch());
        let (bytes, body, counts) = match op.kind {
            OpKind::Fetch { .. } => (FETCH_REQUEST_BYTES, Body::FetchRequest { op: key, start: 0, len }, true),
            OpKind::Atomic(_) => (ATOMIC_REQUEST_BYTES, Body::AtomicRequest { op: key }, true),
            OpKind::Unimport => (UNIMPORT_BYTES, Body::Unimport { op: key }, false),
            _ => (NOP_BYTES, Body::Flush { op: key }, false),
        };
        if counts && !self.may_ask(process) {
            return Taken::HeldBack;
        }
        if is_long {
            self.asked(process);
            self.leave_queue(turn, key);
            self.begin_fetch(process, key, tables);
            return Taken::Chunk;
        }
        // A flush waits for all that was sent before it, whoever sent it.
        let early = self.early_of(order).filter(|_| counts);
        let Some(number) = self.start_whole(bytes, early, packet) else { return Taken::Full };
        self.encode_request(key, (0, len), &mut packet.out);
        self.follow(order, number, early);
        self.tx.push_in_flight(body, bytes, packet.number, early);
        if counts {
            self.asked(process);
        }
        let op = self.ops.get_mut(key).expect("found above");
        (op.asked, op.chunks) = (len, 1);
        self.leave_queue(turn, key);
        Taken::Chunk
    }

    pub(super) fn leave_queue(&mut self, turn: u16, key: Key<Op>) {
        self.lane(turn).ops.pop_front();
        self.queued_ops -= 1;
        if turn >= APART_TURNS {
            self.queue_at(turn).taken_apart += 1;
        }
        if let Some(op) = self.ops.get_mut(key) {
            op.queued = false;
        }
    }

    /// Queues a chunk that carries no data, and that the peer has not asked for.
    pub(crate) fn queue_control(&mut self, chunk: &Chunk<'_>) {
        self.queue_chunk(chunk, Cause::Own);
    }

    /// Queues one that the peer has asked for.
    pub(crate) fn answer(&mut self, chunk: &Chunk<'_>) -> u64 {
        self.queue_chunk(chunk, Cause::Answer)
    }

    fn queue_chunk(&mut self, chunk: &Chunk<'_>, cause: Cause) -> u64 {
        let mut buf = [0; crate::wire::chunk::CONTROL_BYTES_MAX];
        let mut out = Writer::new(&mut buf);
        chunk.write(&mut out);
        let len = out.len();
        self.tx.queue(Body::Control(buf[..len].into()), len, cause, None)
    }

    /// Queues a message of the driver, whose parts together are no longer than
    /// [`message_bytes`](Self::message_bytes).
    pub(crate) fn queue_message(&mut self, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut bytes = Vec::with_capacity(MESSAGE_BYTES + len);
        bytes.push(MESSAGE);
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let size = bytes.len();
        self.tx.queue(Body::Control(bytes.into()), size, Cause::Message, None);
    }

    /// Bytes of the longest message: it fits a packet beside everything else that may be there.
    pub(crate) fn message_bytes(&self) -> usize {
        let beside = self.seals.send.beside_body() + SEQ_BYTES + MESSAGE_BYTES + ack_bytes(ACK_RANGES_MAX);
        self.packet_bytes.saturating_sub(beside).min(MESSAGE_BYTES_MAX)
    }

    /// The first chunk of an initiator: it proves to the other side that the handshake is done.
    pub(crate) fn queue_nop(&mut self) {
        self.tx.queue(Body::Nop, NOP_BYTES, Cause::Own, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_a_page_and_touch_no_more_than_can_be_handed_on() {
        let most = 65_440;
        for start in [0, 1, 4_095, 4_096, 61_440, 123_457] {
            for take in [LENT_PAGES_BYTES_MIN, 50_000, most] {
                let piece = whole_pages(start, take);
                let pages = (start + piece as u64) / PAGE_BYTES - start / PAGE_BYTES;
                assert!((start + piece as u64) % PAGE_BYTES == 0 && pages <= LENT_PAGES_MAX, "{start} {take} {piece}");
                let left_out = take - piece;
                assert!(left_out < PAGE_BYTES as usize || pages == LENT_PAGES_MAX, "{start} {take} {piece}");
            }
        }
        assert_eq!(whole_pages(0, most), 61_440);
    }
}
