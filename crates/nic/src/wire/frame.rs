//! The body of a data packet: frames one after the other.
//!
//! A chunk has no number of its own: `SEQ` gives the number of the next one, and each that follows
//! counts on.

use super::chunk::{CHUNK_FIRST, Chunk};
use super::{Reader, Writer};
use crate::limits::ACK_RANGES_MAX;

const ACK: u8 = 0x01;
const SEQ: u8 = 0x02;
const PING: u8 = 0x03;
const PONG: u8 = 0x04;
const CLOSE: u8 = 0x05;

/// Bytes of these frames.
pub(crate) const SEQ_BYTES: usize = 9;
pub(crate) const PING_BYTES: usize = 9;
const ACK_BYTES: usize = 30;
const ACK_RANGE_BYTES: usize = 8;

/// Bytes of an acknowledgement with `ranges` ranges.
pub(crate) const fn ack_bytes(ranges: usize) -> usize {
    ACK_BYTES + ranges * ACK_RANGE_BYTES
}

/// What one side has received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack<'a> {
    /// All chunks below have been processed.
    pub(crate) cumulative: u64,
    /// Largest number of a packet with chunks.
    pub(crate) largest: u64,
    /// Microseconds that packet waited here.
    pub(crate) delay_us: u32,
    /// The failures of all chunks below `cumulative` are in chunks of the other direction below this.
    pub(crate) barrier: u64,
    ranges: &'a [u8],
}

impl Ack<'_> {
    /// The same without a hold on the packet, if it tells of no gap.
    #[inline]
    pub(crate) fn without_ranges(&self) -> Option<Ack<'static>> {
        self.ranges.is_empty().then_some(Ack { ranges: &[], ..*self })
    }

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

/// A decoded frame.
#[derive(Debug)]
pub(crate) enum Frame<'a> {
    Ack(Ack<'a>),
    Seq(u64),
    Ping(u64),
    Pong(u64),
    Close,
    /// With its bytes, for the case that it must be held.
    Chunk(Chunk<'a>, &'a [u8]),
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
        _ => return None,
    })
}

/// Writes an acknowledgement; `ranges` are absolute, above `cumulative`.
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
