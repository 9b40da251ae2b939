//! Chunks in pieces: what was cut for a path that has become smaller since.
//!
//! A chunk keeps its number and its meaning, so it cannot be cut into smaller chunks when it goes
//! again; and IP would cut its packet up only where somebody on the way is willing to, which IPv6
//! forbids and a black hole does not do. So its bytes go as pieces, and the receiver puts them
//! together. They are gathered once for that and kept, for pieces of different times must make one
//! chunk.
//!
//! Invariants: pieces of a chunk follow each other without a wait for window or pace, so that one
//! that is larger than the window gets through, and count as under way as the chunk does; what is
//! kept of a peer's pieces counts as what is held beyond a gap does, and stays within the same
//! bounds, but for one chunk: the one that is wanted most always has room.

use std::collections::BTreeMap;

use super::Session;
use super::receive::Outcome;
use super::transmit::May;
use super::tx::{Run, State};
use crate::command::Dma;
use crate::ids::NodeName;
use crate::intervals::IntervalSet;
use crate::limits::{ACK_RANGES_MAX, CHUNK_WINDOW, PIECE_RANGES_MAX, PIECED_BYTES, RUNS_PER_PACKET_MAX};
use crate::tables::Tables;
use crate::time::Time;
use crate::wire::frame::{self, Frame, MARKS_BYTES, PIECE_BYTES, Piece, ack_bytes, write_piece};
use crate::wire::{Reader, Writer};

/// What a sender keeps of chunks that go in pieces.
#[derive(Default)]
pub(crate) struct Cut {
    /// Their bytes, until they have arrived.
    kept: BTreeMap<u64, Box<[u8]>>,
    /// The one that is going out, and how much of it has.
    going: Option<(u64, usize)>,
}

impl Cut {
    /// A chunk has arrived.
    #[inline]
    pub(super) fn arrived(&mut self, number: u64) {
        if !self.kept.is_empty() {
            self.kept.remove(&number);
        }
    }

    /// Pieces are to follow.
    #[inline]
    pub(super) fn is_going(&self) -> bool {
        self.going.is_some()
    }
}

/// What a receiver has of one chunk.
struct Parts {
    bytes: Box<[u8]>,
    there: IntervalSet,
}

/// What a receiver keeps of chunks that come in pieces.
#[derive(Default)]
pub(super) struct Pieced {
    chunks: BTreeMap<u64, Parts>,
    bytes: usize,
}

impl Pieced {
    /// What they take.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What has been processed is wanted no more; the bytes that it took.
    #[inline]
    pub(super) fn forget_below(&mut self, next: u64) -> usize {
        let before = self.bytes;
        while self.chunks.first_key_value().is_some_and(|(number, _)| *number < next) {
            let Some((_, parts)) = self.chunks.pop_first() else { break };
            self.bytes -= parts.bytes.len() + PIECED_BYTES;
        }
        before - self.bytes
    }

    /// Makes room for a chunk, at the cost of later ones; false: there is none.
    fn make_room(&mut self, number: u64, total: usize, budget: usize) -> bool {
        while !self.chunks.is_empty() && self.bytes + total + PIECED_BYTES > budget {
            let Some(last) = self.chunks.last_entry().filter(|last| *last.key() > number) else { return false };
            self.bytes -= last.remove().bytes.len() + PIECED_BYTES;
        }
        true
    }

    /// Adds a piece; gives the chunk if that was the last. `Err`: it contradicts the others.
    fn add(&mut self, piece: &Piece<'_>, budget: usize) -> Result<Option<Box<[u8]>>, ()> {
        let Piece { number, total, start, data } = *piece;
        if !self.chunks.contains_key(&number) {
            if !self.make_room(number, total, budget) {
                return Ok(None);
            }
            self.bytes += total + PIECED_BYTES;
            self.chunks.insert(number, Parts { bytes: vec![0; total].into(), there: IntervalSet::default() });
        }
        let Some(parts) = self.chunks.get_mut(&number) else { return Ok(None) };
        if parts.bytes.len() != total {
            return Err(());
        }
        let (from, to) = (start as u64, (start + data.len()) as u64);
        if !parts.there.has_room(from, to, PIECE_RANGES_MAX) {
            return Ok(None);
        }
        parts.there.insert(from, to);
        parts.bytes[start..start + data.len()].copy_from_slice(data);
        if parts.there.ranges().first().is_none_or(|first| (first.start, first.end) != (0, total as u64)) {
            return Ok(None);
        }
        let whole = self.chunks.remove(&number);
        self.bytes -= total + PIECED_BYTES;
        Ok(whole.map(|parts| parts.bytes))
    }
}

impl Session {
    /// The chunk of which a piece goes out next, if one does.
    #[inline]
    pub(super) fn next_cut(&mut self, may_send: May) -> Option<u64> {
        if let Some((number, _)) = self.tx.cut.going {
            if self.tx.chunk_mut(number).is_some_and(|chunk| chunk.state == State::InFlight) {
                return Some(number);
            }
            self.tx.cut.going = None;
        }
        if self.tx.resend.is_empty() || !self.may_go_again(may_send) {
            return None;
        }
        let size = self.seals.send.beside_body() + self.lost_size();
        let number = self.tx.resend.front().filter(|_| size > self.packet_bytes)?;
        (number < self.tx.base + CHUNK_WINDOW).then_some(number)
    }

    /// Writes a packet with the next piece of a chunk; its length.
    pub(super) fn build_piece(
        &mut self,
        now: Time,
        number: u64,
        buf: &mut [u8],
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) -> Option<usize> {
        let beside = self.seals.send.beside_body();
        let room = self.packet_bytes.min(buf.len()).checked_sub(beside + PIECE_BYTES + 1)?;
        let has_ack = self.rx.ack_now || self.tx.has_waited() && self.rx.next > 0;
        let ack_ranges = self.rx.held_numbers.len().min(ACK_RANGES_MAX);
        let marks_size = self.notification.due().map_or(0, |_| MARKS_BYTES);
        let ack_size = if has_ack { ack_bytes(ack_ranges) + marks_size } else { 0 };
        let room = room + 1 - ack_size.min(room);
        let (packet, before) = (self.tx.next_packet, self.tx.in_flight);
        let start = match self.tx.cut.going {
            Some((_, start)) => start,
            None => self.begin_to_cut(number, tables, dma)?,
        };
        let chunk = self.tx.chunk_mut(number)?;
        chunk.packet = packet;
        let bytes = self.tx.cut.kept.get(&number)?;
        let end = bytes.len().min(start + room);
        self.tx.cut.going = (end < bytes.len()).then_some((number, end));
        let mut out = Writer::new(buf);
        out.space(self.seals.send.body_at());
        write_piece(&Piece { number, total: bytes.len(), start, data: &bytes[start..end] }, &mut out);
        if has_ack {
            self.add_ack(now, ack_ranges, &mut out);
        }
        let len = out.len();
        let mut runs = [Run::default(); RUNS_PER_PACKET_MAX];
        runs[0] = Run { first: number, count: 1 };
        self.note_sent(now, packet, runs, before, len + self.seals.send.tag_bytes());
        if let Some(sent) = self.tx.sent.back_mut() {
            sent.is_piece = true;
        }
        self.notification.sent();
        Some(self.finish(buf, len))
    }

    /// Gathers the bytes of a chunk that is to be sent again, and counts it as under way.
    fn begin_to_cut(&mut self, number: u64, tables: &mut Tables, dma: &mut dyn Dma) -> Option<usize> {
        self.tx.resend.pop();
        let bytes = self.tx.chunk_mut(number)?.bytes as usize;
        if !self.tx.cut.kept.contains_key(&number) {
            let mut kept = vec![0; bytes];
            let mut out = Writer::new(&mut kept);
            self.lending = false;
            self.encode(number, &mut out, tables, dma);
            let len = out.len();
            kept.truncate(len);
            self.tx.cut.kept.insert(number, kept.into());
        }
        let chunk = self.tx.chunk_mut(number)?;
        if std::mem::replace(&mut chunk.state, State::InFlight) == State::Lost {
            self.stats.retransmits += 1;
        }
        self.tx.in_flight += bytes;
        Some(0)
    }

    /// What is under way does not get through, for its packets were too large: all of it goes again
    /// at once. That says nothing about congestion.
    pub(crate) fn packets_were_too_large(&mut self, tables: &mut Tables) {
        self.tx.cut.going = None;
        self.notification.goes_again(self.tx.next_packet);
        let lost = self.tx.lose_oldest(usize::MAX);
        self.stats.lost += lost;
        tables.stats.retransmits += lost;
        self.tx.backoff = 0;
        self.tx.large_lost = 0;
    }

    /// Takes a piece; the chunk, when it is whole.
    pub(super) fn take_piece(
        &mut self,
        now: Time,
        piece: &Piece<'_>,
        peer: &NodeName,
        tables: &mut Tables,
        dma: &mut dyn Dma,
        outcome: &mut Outcome,
    ) {
        let beyond = piece.number.checked_sub(self.rx.next);
        let held = beyond.and_then(|beyond| self.rx.held.get(usize::try_from(beyond).ok()?));
        if beyond.is_none() || held.is_some_and(Option::is_some) {
            return self.duplicate(tables);
        }
        if beyond.is_some_and(|beyond| beyond > CHUNK_WINDOW) {
            tables.stats.out_of_window += 1;
            self.rx.ack_now = true;
            return;
        }
        let before = self.rx.pieced.bytes();
        let added = self.rx.pieced.add(piece, before + self.room_to_hold(tables));
        tables.held_bytes = tables.held_bytes - before + self.rx.pieced.bytes();
        match added {
            Ok(None) => {}
            Ok(Some(bytes)) => self.take_pieced(now, piece.number, &bytes, peer, tables, dma, outcome),
            Err(()) => outcome.nonsense = true,
        }
    }

    #[allow(clippy::too_many_arguments)] // one chunk and the world it lands in
    fn take_pieced(
        &mut self,
        now: Time,
        number: u64,
        bytes: &[u8],
        peer: &NodeName,
        tables: &mut Tables,
        dma: &mut dyn Dma,
        outcome: &mut Outcome,
    ) {
        let mut reader = Reader::new(bytes);
        let mut frame = frame::read(&mut reader);
        let mut early = None;
        if let Some(Frame::Early(back)) = frame {
            early = Some(back);
            frame = frame::read(&mut reader);
        }
        match frame {
            Some(Frame::Chunk(chunk, bytes)) if reader.is_empty() => {
                self.take_chunk(now, number, early, chunk, bytes, peer, tables, dma, outcome);
            }
            _ => {
                tables.stats.malformed += 1;
                outcome.nonsense = true;
            }
        }
    }
}
