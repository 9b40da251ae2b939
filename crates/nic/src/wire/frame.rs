//! The body of a data packet: frames one after the other.
//!
//! A chunk has no number of its own: `SEQ` gives the number of the next one, and each that follows
//! counts on.

use super::chunk::{self, Brings, CHUNK_FIRST, Chunk, FLAG_ACK_NOW, FLAG_FIRST, WRITE, WRITE_BYTES, WriteHead};
use super::{Reader, Writer, u32_at, u64_at};
use crate::limits::{ACK_RANGES_MAX, PACKET_BYTES_MAX};

const ACK: u8 = 0x01;
const SEQ: u8 = 0x02;
const PING: u8 = 0x03;
const PONG: u8 = 0x04;
const CLOSE: u8 = 0x05;
const EARLY: u8 = 0x06;
const MARKS: u8 = 0x07;
const PIECE: u8 = 0x08;
const PADDING: u8 = 0x09;

/// Bytes of these frames.
pub(crate) const SEQ_BYTES: usize = 9;
pub(crate) const PING_BYTES: usize = 9;
pub(crate) const EARLY_BYTES: usize = 3;
pub(crate) const MARKS_BYTES: usize = 25;
/// Bytes of a piece before its data.
pub(crate) const PIECE_BYTES: usize = 21;
const ACK_BYTES: usize = 30;
const ACK_RANGE_BYTES: usize = 8;

/// Bytes of an acknowledgement with `ranges` ranges.
pub(crate) const fn ack_bytes(ranges: usize) -> usize {
    ACK_BYTES + ranges * ACK_RANGE_BYTES
}

/// What one side has received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ack<'a> {
    /// All chunks below have been processed.
    pub(crate) cumulative: u64,
    /// Largest number of a packet with chunks.
    pub(crate) largest: u64,
    /// Microseconds that packet waited here.
    pub(crate) delay_us: u32,
    /// The failures of all chunks below `cumulative` are in chunks of the other direction below
    /// this.
    pub(crate) barrier: u64,
    ranges: &'a [u8],
}

impl Ack<'_> {
    /// Chunks held beyond the gap: first and one past the last.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut reader = Reader::new(self.ranges);
        let base = self.cumulative;
        std::iter::from_fn(move || {
            let start = base.checked_add(reader.u32()?.into())?;
            Some((start, start.checked_add(reader.u32()?.into())?))
        })
    }
}

/// Packets of a session that one side has received, by the codepoint with which they came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks {
    pub(crate) ect0: u64,
    pub(crate) ect1: u64,
    pub(crate) ce: u64,
}

/// A part of a chunk that is larger than packets may be now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece<'a> {
    /// Number of the chunk.
    pub(crate) number: u64,
    /// Bytes of the chunk, with its mark if it is early.
    pub(crate) total: usize,
    /// Where in them `data` stands: `start + data.len() <= total`.
    pub(crate) start: usize,
    pub(crate) data: &'a [u8],
}

/// A decoded frame.
#[derive(Debug)]
pub(crate) enum Frame<'a> {
    Ack(Ack<'a>),
    Seq(u64),
    Ping(u64),
    Pong(u64),
    Close,
    /// The next chunk may be processed before the ones in front of it, once the one so far back has
    /// been; 0: at once.
    Early(u16),
    Marks(Marks),
    /// With its bytes, for the case that it must be held.
    Chunk(Chunk<'a>, &'a [u8]),
    Piece(Piece<'a>),
    /// The rest of the packet says nothing.
    Padding,
}

/// Takes one frame; `None`: these bytes are none.
#[inline]
pub(crate) fn read<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let rest = reader.rest();
    if *rest.first()? >= CHUNK_FIRST {
        let chunk = Chunk::read(reader)?;
        return Some(Frame::Chunk(chunk, &rest[..rest.len() - reader.rest().len()]));
    }
    Some(match reader.u8()? {
        ACK => {
            let (cumulative, largest) = (reader.u64()?, reader.u64()?);
            let (delay_us, barrier) = (reader.u32()?, reader.u64()?);
            let count = usize::from(reader.u8()?);
            if count > ACK_RANGES_MAX {
                return None;
            }
            let ranges = reader.bytes(count * ACK_RANGE_BYTES)?;
            Frame::Ack(Ack { cumulative, largest, delay_us, barrier, ranges })
        }
        SEQ => Frame::Seq(reader.u64()?),
        PING => Frame::Ping(reader.u64()?),
        PONG => Frame::Pong(reader.u64()?),
        CLOSE => Frame::Close,
        EARLY => Frame::Early(reader.u16()?),
        MARKS => Frame::Marks(Marks { ect0: reader.u64()?, ect1: reader.u64()?, ce: reader.u64()? }),
        PIECE => {
            let (number, total, start) = (reader.u64()?, reader.u32()? as usize, reader.u32()? as usize);
            let len = reader.u32()? as usize;
            let data = reader.bytes(len)?;
            // Numbers near the end of u64 could not be counted on.
            let fits = start.checked_add(len)? <= total && total <= PACKET_BYTES_MAX && number < u64::MAX / 2;
            if !fits {
                return None;
            }
            Frame::Piece(Piece { number, total, start, data })
        }
        PADDING => {
            reader.bytes(reader.rest().len())?;
            Frame::Padding
        }
        _ => return None,
    })
}

/// The body of a packet that is one short send, and perhaps an acknowledgement that reports no gap.
pub(crate) struct SingleWrite<'a> {
    pub(crate) seq: u64,
    pub(crate) head: WriteHead,
    pub(crate) data: &'a [u8],
    pub(crate) ack: Option<Ack<'static>>,
}

/// Takes such a body apart, all of it at once. `None`: it is anything else; [`read`] says what.
#[inline]
pub(crate) fn single_write(body: &[u8]) -> Option<SingleWrite<'_>> {
    let (fields, rest) = body.split_first_chunk::<{ SEQ_BYTES + WRITE_BYTES }>()?;
    let flags = fields[10];
    if fields[0] != SEQ || fields[9] != WRITE || flags & !FLAG_ACK_NOW != FLAG_FIRST {
        return None;
    }
    let (data, rest) = rest.split_at_checked(u32_at(fields, 27) as usize)?;
    let ack = if rest.is_empty() { None } else { Some(single_ack(rest)?) };
    let head = WriteHead::whole(flags & FLAG_ACK_NOW != 0, u64_at(fields, 11), u64_at(fields, 19));
    Some(SingleWrite { seq: u64_at(fields, 1), head, data, ack })
}

#[inline]
fn single_ack(bytes: &[u8]) -> Option<Ack<'static>> {
    let fields: &[u8; ACK_BYTES] = bytes.try_into().ok()?;
    let [ACK, .., 0] = fields else { return None };
    let (cumulative, largest) = (u64_at(fields, 1), u64_at(fields, 9));
    Some(Ack { cumulative, largest, delay_us: u32_at(fields, 17), barrier: u64_at(fields, 21), ranges: &[] })
}

/// What a body begins with that brings data, without that.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct FirstChunk {
    pub(crate) seq: u64,
    pub(crate) what: Brings,
    /// Where its data begins.
    pub(crate) at: usize,
    /// Bytes of that.
    pub(crate) len: usize,
}

/// The chunk that a body begins with, of which only these bytes are at hand. `None`: it brings no
/// data, or its head is longer than they are.
pub(crate) fn first_chunk(bytes: &[u8]) -> Option<FirstChunk> {
    let mut reader = Reader::new(bytes);
    let seq = if reader.u8()? == SEQ { reader.u64()? } else { return None };
    let (what, len) = chunk::read_head(&mut reader)?;
    Some(FirstChunk { seq, what, at: bytes.len() - reader.rest().len(), len: len as usize })
}

/// Writes an acknowledgement; `ranges` are absolute, from `cumulative` on.
pub(crate) fn write_ack(
    cumulative: u64,
    largest: u64,
    delay_us: u32,
    barrier: u64,
    ranges: impl ExactSizeIterator<Item = (u64, u64)>,
    out: &mut Writer<'_>,
) {
    out.u8(ACK);
    out.u64(cumulative);
    out.u64(largest);
    out.u32(delay_us);
    out.u64(barrier);
    out.u8(ranges.len() as u8);
    for (start, end) in ranges {
        // The receive window bounds both far below 2^32.
        out.u32((start - cumulative) as u32);
        out.u32((end - start) as u32);
    }
}

#[inline]
pub(crate) fn write_seq(seq: u64, out: &mut Writer<'_>) {
    out.u8(SEQ);
    out.u64(seq);
}

#[inline]
pub(crate) fn write_early(back: u16, out: &mut Writer<'_>) {
    out.u8(EARLY);
    out.u16(back);
}

pub(crate) fn write_marks(marks: &Marks, out: &mut Writer<'_>) {
    out.u8(MARKS);
    [marks.ect0, marks.ect1, marks.ce].into_iter().for_each(|count| out.u64(count));
}

/// Writes a piece, for which there is room.
pub(crate) fn write_piece(piece: &Piece<'_>, out: &mut Writer<'_>) {
    out.u8(PIECE);
    out.u64(piece.number);
    out.u32(piece.total as u32);
    out.u32(piece.start as u32);
    out.u32(piece.data.len() as u32);
    out.bytes(piece.data);
}

/// Fills the packet up: `bytes` with the code.
pub(crate) fn write_padding(bytes: usize, out: &mut Writer<'_>) {
    if let Some(zeros) = bytes.checked_sub(1) {
        out.u8(PADDING);
        out.space(zeros).fill(0);
    }
}

pub(crate) fn write_ping(token: u64, out: &mut Writer<'_>) {
    out.u8(PING);
    out.u64(token);
}

pub(crate) fn write_pong(token: u64, out: &mut Writer<'_>) {
    out.u8(PONG);
    out.u64(token);
}

pub(crate) fn write_close(out: &mut Writer<'_>) {
    out.u8(CLOSE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A send by itself as [`Session`](crate::session::Session) writes it.
    fn packet(seq: u64, head: WriteHead, data: &[u8], ack: Option<(u64, u64, u32, u64)>) -> Vec<u8> {
        let mut bytes = vec![0; 400];
        let mut out = Writer::new(&mut bytes);
        write_seq(seq, &mut out);
        head.write(data.len() as u32, &mut out);
        out.bytes(data);
        if let Some((cumulative, largest, delay_us, barrier)) = ack {
            write_ack(cumulative, largest, delay_us, barrier, std::iter::empty(), &mut out);
        }
        let len = out.len();
        bytes.truncate(len);
        bytes
    }

    proptest! {
        #[test]
        fn a_send_by_itself_is_taken_apart_at_once_as_it_is_frame_by_frame(
            seq: u64,
            (ack_now, grant, offset) in any::<(bool, u64, u64)>(),
            data in proptest::collection::vec(any::<u8>(), 0..217),
            ack: Option<(u64, u64, u32, u64)>,
            (at, bit) in (0usize..300, 0u8..8),
            cut in 0usize..300,
        ) {
            let head = WriteHead::whole(ack_now, grant, offset);
            let mut bytes = packet(seq, head, &data, ack);
            let single = single_write(&bytes).expect("it is one");
            prop_assert_eq!((single.seq, single.head, single.data), (seq, head, &data[..]));
            prop_assert_eq!(single.ack.map(|a| (a.cumulative, a.largest, a.delay_us, a.barrier)), ack);
            crate::fuzzing::body(&bytes);
            crate::fuzzing::body(&bytes[..cut.min(bytes.len())]);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            crate::fuzzing::body(&bytes);
        }
    }

    proptest! {
        #[test]
        fn marks_survive_the_wire_and_no_part_of_them_is_some(ect0: u64, ect1: u64, ce: u64, cut in 0..MARKS_BYTES) {
            let marks = Marks { ect0, ect1, ce };
            let mut bytes = [0; MARKS_BYTES];
            write_marks(&marks, &mut Writer::new(&mut bytes));
            let mut reader = Reader::new(&bytes);
            prop_assert!(matches!(read(&mut reader), Some(Frame::Marks(read)) if read == marks));
            prop_assert!(reader.is_empty() && read(&mut Reader::new(&bytes[..cut])).is_none());
        }
    }

    #[test]
    fn what_is_more_than_a_send_by_itself_is_left_to_be_read_frame_by_frame() {
        let whole = WriteHead::whole(false, 1, 2);
        let others = [
            WriteHead { first: false, ..whole },
            WriteHead { notify: Some((0, 8, 7)), ..whole },
            WriteHead { counter: Some(8), ..whole },
        ];
        for head in others {
            assert!(single_write(&packet(1, head, &[1; 8], None)).is_none(), "{head:?}");
        }
        let one = packet(1, whole, &[1; 8], Some((1, 1, 1, 1)));
        let mut with_gap = one.clone();
        *with_gap.last_mut().expect("not empty") = 1;
        with_gap.extend([0; ACK_RANGE_BYTES]);
        for other in [&[PING; PING_BYTES][..], &one[one.len() - ACK_BYTES..], &one, &[CLOSE]] {
            assert!(single_write(&[&one, other].concat()).is_none());
        }
        assert!(single_write(&with_gap).is_none());
    }
}
