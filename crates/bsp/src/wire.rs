//! What members write for each other: records of a stream, and the head of a slot, which says where
//! the streams are.
//!
//! Invariant: decoding never panics, whatever was written; what is decoded is a claim.

use crate::limits::BLOCKS_MAX;
use zerocopy::IntoBytes;

/// Bytes of the head of a record.
pub(crate) const RECORD_BYTES: usize = 24;
/// Bytes of the head of a slot: number of the superstep, bytes and blocks of each stream.
pub(crate) const SLOT_HEAD_BYTES: usize = 32;
/// Bytes of the place of a block.
const BLOCK_BYTES: usize = 24;

const PUT: u32 = 1;
const MESSAGE: u32 = 2;
const GET: u32 = 3;
const PUSH: u32 = 4;
const POP: u32 = 5;
const TAG: u32 = 6;
/// No registration, no area.
const NONE: u64 = u64::MAX;

/// Head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// Bytes for an area follow.
    Put { registration: u32, offset: u64, len: u64 },
    /// A tag and a message follow.
    Message { tag: u32, len: u64 },
    /// Bytes of an area are wanted.
    Get { registration: u32, offset: u64, len: u64 },
    /// An operation that all make.
    Operation(Operation),
}

/// What all members do in the same superstep, in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// An area of so many bytes; none: this member has nothing there.
    Push(Option<u64>),
    /// The end of a registration; none: this member does not know which.
    Pop(Option<u32>),
    /// Bytes of tags.
    TagSize(u64),
}

impl Record {
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let (kind, word, first, second) = match *self {
            Record::Put { registration, offset, len } => (PUT, registration, offset, len),
            Record::Message { tag, len } => (MESSAGE, tag, 0, len),
            Record::Get { registration, offset, len } => (GET, registration, offset, len),
            Record::Operation(Operation::Push(size)) => (PUSH, 0, size.unwrap_or(NONE), 0),
            Record::Operation(Operation::Pop(which)) => (POP, 0, which.map_or(NONE, u64::from), 0),
            Record::Operation(Operation::TagSize(size)) => (TAG, 0, size, 0),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&word.to_le_bytes());
        bytes[8..16].copy_from_slice(&first.to_le_bytes());
        bytes[16..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (registration, offset, len) = (word(4), long(8), long(16));
        match word(0) {
            PUT => Some(Record::Put { registration, offset, len }),
            MESSAGE => Some(Record::Message { tag: registration, len }),
            GET => Some(Record::Get { registration, offset, len }),
            PUSH => Some(Record::Operation(Operation::Push((offset != NONE).then_some(offset)))),
            POP if offset == NONE => Some(Record::Operation(Operation::Pop(None))),
            POP => Some(Record::Operation(Operation::Pop(Some(u32::try_from(offset).ok()?)))),
            TAG => Some(Record::Operation(Operation::TagSize(offset))),
            _ => None,
        }
    }
}

/// A range of shared memory of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Which of its pieces.
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Where the streams of a superstep are: in the slot itself, or in blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotHead {
    pub(crate) number: u64,
    /// Bytes of each stream.
    pub(crate) bytes: [u64; 2],
    /// Blocks of each; both have none: the bytes follow the head.
    pub(crate) blocks: [Vec<Block>; 2],
}

impl SlotHead {
    /// The head and the places of the blocks.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let counts = self.blocks.each_ref().map(|blocks| blocks.len() as u64);
        let mut words = vec![self.number, self.bytes[0], self.bytes[1], counts[0] | counts[1] << 32];
        for block in self.blocks.iter().flatten() {
            words.extend([block.segment, block.offset, block.len]);
        }
        words.iter_mut().for_each(|word| *word = word.to_le());
        words.as_bytes().to_vec()
    }

    /// Bytes of a slot with this head that are used, as its first [`SLOT_HEAD_BYTES`] claim.
    pub(crate) fn slot_bytes(head: &[u8]) -> Option<u64> {
        let word = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().expect("eight bytes")));
        let counts = word(24)?;
        let blocks = (counts & 0xffff_ffff) + (counts >> 32);
        let follows = if blocks == 0 { word(8)?.checked_add(word(16)?)? } else { BLOCK_BYTES as u64 * blocks };
        follows.checked_add(SLOT_HEAD_BYTES as u64)
    }

    /// From the bytes of a slot.
    pub(crate) fn decode(slot: &[u8]) -> Option<SlotHead> {
        let word = |at: usize| Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().expect("eight bytes")));
        let counts = word(24)?;
        let counts = [(counts & 0xffff_ffff) as usize, (counts >> 32) as usize];
        if counts[0] + counts[1] > BLOCKS_MAX {
            return None;
        }
        let block = |at: usize| {
            let start = SLOT_HEAD_BYTES + BLOCK_BYTES * at;
            Some(Block { segment: word(start)?, offset: word(start + 8)?, len: word(start + 16)? })
        };
        let blocks = |from: usize, count: usize| (from..from + count).map(block).collect::<Option<Vec<_>>>();
        let head = SlotHead {
            number: word(0)?,
            bytes: [word(8)?, word(16)?],
            blocks: [blocks(0, counts[0])?, blocks(counts[0], counts[1])?],
        };
        head.is_consistent(slot.len() as u64).then_some(head)
    }

    /// Whether the bytes are those of the blocks, or fit the slot.
    fn is_consistent(&self, slot: u64) -> bool {
        if self.is_inline() {
            let bytes = self.bytes[0].checked_add(self.bytes[1]);
            return bytes.is_some_and(|bytes| bytes <= slot - SLOT_HEAD_BYTES as u64);
        }
        let of = |at: usize| self.blocks[at].iter().try_fold(0u64, |sum, block| sum.checked_add(block.len));
        of(0) == Some(self.bytes[0]) && of(1) == Some(self.bytes[1])
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.blocks.iter().all(Vec::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_and_heads_come_back_as_they_were() {
        let records = [
            Record::Put { registration: 3, offset: 1 << 40, len: 7 },
            Record::Message { tag: 8, len: 0 },
            Record::Get { registration: 0, offset: 5, len: 6 },
            Record::Operation(Operation::Push(Some(9))),
            Record::Operation(Operation::Push(None)),
            Record::Operation(Operation::Pop(Some(4))),
            Record::Operation(Operation::Pop(None)),
            Record::Operation(Operation::TagSize(16)),
        ];
        records.iter().for_each(|record| assert_eq!(Record::decode(&record.encode()), Some(*record)));
        let block = |segment| Block { segment, offset: 64, len: 100 };
        let head = SlotHead { number: 9, bytes: [100, 200], blocks: [vec![block(1)], vec![block(2), block(3)]] };
        let mut slot = head.encode();
        slot.resize(1024, 0);
        assert_eq!(SlotHead::decode(&slot), Some(head));
    }

    #[test]
    fn a_head_whose_bytes_are_not_those_of_its_blocks_is_none() {
        let block = Block { segment: 0, offset: 0, len: 100 };
        let head = SlotHead { number: 1, bytes: [0, 101], blocks: [vec![], vec![block]] };
        let mut slot = head.encode();
        slot.resize(1024, 0);
        assert_eq!(SlotHead::decode(&slot), None);
        let mut slot = SlotHead { number: 1, bytes: [900, 900], blocks: Default::default() }.encode();
        slot.resize(1024, 0);
        assert_eq!(SlotHead::decode(&slot), None);
        let mut slot = SlotHead { number: 1, bytes: [u64::MAX, 2], blocks: Default::default() }.encode();
        slot.resize(1024, 0);
        assert_eq!(SlotHead::decode(&slot), None);
    }

    proptest! {
        #[test]
        fn decoding_never_panics(slot in proptest::collection::vec(any::<u8>(), 0..1100)) {
            let _ = SlotHead::decode(&slot);
            if let Some(bytes) = slot.first_chunk() {
                let _ = Record::decode(bytes);
            }
        }
    }
}
