//! What goes out in a superstep, until others have read it: short streams in private memory, to be
//! written into the slot at the receiver; longer ones in blocks of shared memory of this member.
//!
//! Invariant: what is in blocks stays as it is until the outbox is emptied; `bytes` is the sum of
//! all streams, at most [`OUTGOING_BYTES_MAX`].

use crate::error::BspError;
use crate::limits::{BLOCK_BYTES_MIN, BLOCKS_MAX, OUTGOING_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MAX};
use crate::superstep::{Outgoing, Stream};
use crate::wire::{Block, SLOT_HEAD_BYTES, SlotHead};
use vmmc::Export;
use vmmc_host::stores::Stores;

/// Memory that blocks are of.
pub(crate) enum Segment {
    /// Others read it.
    Shared(Export),
    /// There are no others.
    Private(Vec<u8>),
}

impl Segment {
    fn len(&self) -> u64 {
        match self {
            Segment::Shared(export) => export.len(),
            Segment::Private(bytes) => bytes.len() as u64,
        }
    }

    fn write(&mut self, stores: &Stores, offset: u64, data: &[u8]) -> Result<(), BspError> {
        match self {
            // Nobody looks before the slot says that it is there.
            Segment::Shared(export) => export.write_for(stores, offset, data)?,
            Segment::Private(bytes) => bytes[offset as usize..][..data.len()].copy_from_slice(data),
        }
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BspError> {
        match self {
            Segment::Shared(export) => export.read(offset, into)?,
            Segment::Private(bytes) => into.copy_from_slice(&bytes[offset as usize..][..into.len()]),
        }
        Ok(())
    }
}

/// Makes a piece of memory: its number, its bytes.
pub(crate) type Maker = Box<dyn Fn(u64, u64) -> Result<Segment, BspError> + Send>;

/// What goes to one member.
#[derive(Default)]
struct Parcel {
    /// While it is short.
    short: [Vec<u8>; 2],
    bytes: [u64; 2],
    blocks: [Vec<Block>; 2],
    /// Bytes that its blocks have, filled or not.
    room: [u64; 2],
}

impl Parcel {
    fn is_short(&self) -> bool {
        self.blocks.iter().all(Vec::is_empty)
    }

    fn is_empty(&self) -> bool {
        self.bytes == [0, 0]
    }
}

/// All that goes out.
pub(crate) struct Outbox {
    pid: u32,
    slot_bytes: u64,
    parcels: Vec<Parcel>,
    /// Members for which there is something.
    filled: Vec<u32>,
    /// Memory, and how much of it is in blocks.
    segments: Vec<(Segment, u64)>,
    maker: Maker,
    /// Which stores pay between this member and its readers.
    stores: Stores,
    bytes: u64,
}

impl Outbox {
    pub(crate) fn new(pid: u32, nprocs: u32, slot_bytes: u64, maker: Maker) -> Outbox {
        let parcels = (0..nprocs).map(|_| Parcel::default()).collect();
        Outbox {
            pid,
            slot_bytes,
            parcels,
            filled: Vec::new(),
            segments: Vec::new(),
            maker,
            stores: Stores::default(),
            bytes: 0,
        }
    }

    /// Empties it; the memory stays.
    pub(crate) fn clear(&mut self) {
        for to in self.filled.drain(..) {
            let parcel = &mut self.parcels[to as usize];
            parcel.short.iter_mut().for_each(Vec::clear);
            parcel.blocks.iter_mut().for_each(Vec::clear);
            (parcel.bytes, parcel.room) = ([0; 2], [0; 2]);
        }
        self.segments.iter_mut().for_each(|(_, used)| *used = 0);
        self.bytes = 0;
    }

    /// Members for which there is something.
    pub(crate) fn filled(&self) -> &[u32] {
        &self.filled
    }

    /// Where the streams for a member are.
    pub(crate) fn head(&self, to: u32, number: u64) -> SlotHead {
        let parcel = &self.parcels[to as usize];
        SlotHead { number, bytes: parcel.bytes, blocks: parcel.blocks.clone() }
    }

    /// What is to be written into the slot of a member.
    pub(crate) fn slot(&self, to: u32, number: u64) -> Vec<u8> {
        let mut bytes = self.head(to, number).encode();
        let parcel = &self.parcels[to as usize];
        if parcel.is_short() {
            parcel.short.iter().for_each(|short| bytes.extend(short));
        }
        bytes
    }

    /// Bytes of a block of ours.
    pub(crate) fn read(&self, segment: u64, offset: u64, into: &mut [u8]) -> Result<(), BspError> {
        self.segments[segment as usize].0.read(offset, into)
    }

    fn add(&mut self, to: u32, stream: usize, mut data: &[u8]) -> Result<(), BspError> {
        while !data.is_empty() {
            let filled: u64 = self.parcels[to as usize].blocks[stream].iter().map(|block| block.len).sum();
            let room = self.parcels[to as usize].room[stream] - filled;
            if room == 0 {
                let most = self.parcels[to as usize].room[stream].max(BLOCK_BYTES_MIN).max(data.len() as u64);
                let (segment, offset) = self.block(most)?;
                let parcel = &mut self.parcels[to as usize];
                parcel.room[stream] += most;
                parcel.blocks[stream].push(Block { segment, offset, len: 0 });
                continue;
            }
            let (part, rest) = data.split_at(data.len().min(room as usize));
            let block = self.parcels[to as usize].blocks[stream].last_mut().expect("there is room in it");
            let segment = &mut self.segments[block.segment as usize].0;
            segment.write(&self.stores, block.offset + block.len, part)?;
            block.len += part.len() as u64;
            data = rest;
        }
        Ok(())
    }

    /// Room for a block, in the first piece of memory that has it, else in a new one.
    fn block(&mut self, len: u64) -> Result<(u64, u64), BspError> {
        // So that each begins at a line of its own.
        let len = len.next_multiple_of(64);
        let found = self.segments.iter().position(|(segment, used)| segment.len() - used >= len);
        let at = match found {
            Some(at) => at,
            None => {
                let number = self.segments.len() as u64;
                let all: u64 = self.segments.iter().map(|(segment, _)| segment.len()).sum();
                if number >= SEGMENTS_MAX {
                    return Err(BspError::TooMuch { pid: self.pid });
                }
                let bytes = len.max(all).max(SEGMENT_BYTES_MIN);
                self.segments.push(((self.maker)(number, bytes)?, 0));
                number as usize
            }
        };
        let used = &mut self.segments[at].1;
        let offset = *used;
        *used += len;
        Ok((at as u64, offset))
    }

    /// Both streams of a member leave private memory.
    fn spill(&mut self, to: u32) -> Result<(), BspError> {
        for stream in 0..2 {
            let short = std::mem::take(&mut self.parcels[to as usize].short[stream]);
            self.add(to, stream, &short)?;
            let parcel = &mut self.parcels[to as usize];
            parcel.short[stream] = short;
            parcel.short[stream].clear();
        }
        Ok(())
    }
}

impl Outgoing for Outbox {
    #[inline]
    fn append(&mut self, to: u32, stream: Stream, parts: &[&[u8]]) -> Result<(), BspError> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if len > OUTGOING_BYTES_MAX - self.bytes {
            return Err(BspError::TooMuch { pid: self.pid });
        }
        let (most, stream) = (self.slot_bytes - SLOT_HEAD_BYTES as u64, stream as usize);
        let parcel = &mut self.parcels[to as usize];
        if parcel.is_empty() {
            self.filled.push(to);
        }
        if parcel.is_short() && parcel.bytes[0] + parcel.bytes[1] + len <= most {
            parts.iter().for_each(|part| parcel.short[stream].extend_from_slice(part));
        } else {
            if parcel.is_short() {
                self.spill(to)?;
            }
            parts.iter().try_for_each(|part| self.add(to, stream, part))?;
        }
        let parcel = &mut self.parcels[to as usize];
        parcel.bytes[stream] += len;
        self.bytes += len;
        debug_assert!(parcel.blocks.iter().map(Vec::len).sum::<usize>() <= BLOCKS_MAX);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outbox() -> Outbox {
        Outbox::new(0, 3, 1024, Box::new(|_, bytes| Ok(Segment::Private(vec![0; bytes as usize]))))
    }

    /// The bytes of a stream, as a receiver finds them.
    fn stream(outbox: &Outbox, to: u32, stream: usize) -> Vec<u8> {
        let slot = outbox.slot(to, 7);
        assert!(slot.len() <= 1024, "a slot has {} bytes", slot.len());
        let mut padded = slot.clone();
        padded.resize(1024, 0);
        let head = SlotHead::decode(&padded).expect("what is written can be read");
        assert_eq!(head.number, 7);
        if head.is_inline() {
            let start = SLOT_HEAD_BYTES + if stream == 1 { head.bytes[0] as usize } else { 0 };
            return slot[start..start + head.bytes[stream] as usize].to_vec();
        }
        let read = |block: &Block| {
            let mut bytes = vec![0; block.len as usize];
            outbox.read(block.segment, block.offset, &mut bytes).expect("it is ours");
            bytes
        };
        head.blocks[stream].iter().flat_map(read).collect()
    }

    proptest! {
        #[test]
        fn streams_are_read_as_they_were_written(
            pieces in proptest::collection::vec((0u32..3, any::<bool>(), 1usize..40_000, any::<u8>()), 1..40),
            again in any::<bool>(),
        ) {
            let mut outbox = outbox();
            for _ in 0..=usize::from(again) {
                outbox.clear();
                let mut model = vec![[Vec::new(), Vec::new()]; 3];
                for (to, data, len, seed) in &pieces {
                    let len = if seed % 2 == 0 { len % 100 } else { *len };
                    let bytes: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_mul(*seed)).collect();
                    let which = if *data { Stream::Data } else { Stream::Requests };
                    outbox.append(*to, which, &[&bytes]).expect("there is room");
                    model[*to as usize][which as usize].extend(&bytes);
                }
                for to in 0..3 {
                    for (which, expected) in model[to as usize].iter().enumerate() {
                        prop_assert!(&stream(&outbox, to, which) == expected);
                    }
                }
            }
        }
    }

    #[test]
    fn many_short_pieces_take_few_blocks() {
        let mut outbox = outbox();
        for _ in 0..1 << 18 {
            outbox.append(1, Stream::Data, &[&[1; 24], &[2; 40]]).expect("there is room");
        }
        assert!(outbox.head(1, 1).blocks[1].len() <= 14, "{:?}", outbox.head(1, 1));
        assert!(outbox.segments.len() <= 9, "{} segments", outbox.segments.len());
    }

    #[test]
    fn what_is_too_much_is_refused_and_nothing_of_it_goes() {
        let mut outbox = outbox();
        outbox.bytes = OUTGOING_BYTES_MAX - 10;
        assert_eq!(outbox.append(1, Stream::Data, &[&[0; 8], &[0; 3]]), Err(BspError::TooMuch { pid: 0 }));
        assert_eq!(outbox.head(1, 1).bytes, [0, 0]);
        outbox.append(1, Stream::Data, &[&[0; 8], &[0; 2]]).expect("that fits");
    }
}
