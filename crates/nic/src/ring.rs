//! Append rings: exports into which many senders put records, one behind the other, without asking
//! where.
//!
//! ```text
//!   0                64               128
//!   +----------------+----------------+----------------------------------------------+
//!   | bytes read     | bytes written  | record | record | ..                          |
//!   +----------------+----------------+----------------------------------------------+
//!     the owner's      the node's       head of 32 bytes, data, up to a multiple of 8
//! ```
//!
//! Both counts only grow. Byte `n` that was ever written lies at `n` modulo the size of the ring,
//! so a record may go on at the beginning. The node alone writes records, for all senders: one that
//! dies or stops in the middle holds nobody up, none can write over what was not read, and the
//! sender that a record names is its sender.
//!
//! Invariants: what is unread has room in the ring; what the owner says it has read is a claim, and
//! counts while it is no more than was written. Source: [GMS §2] receive
//! ring.

use std::collections::BTreeMap;

use crate::command::{AtomicOp, Dma};
use crate::error::{ExportError, OpError};
use crate::event::Sender;
use crate::limits::{APPEND_BYTES_MAX, RING_BYTES_MAX, RING_BYTES_MIN, RING_READS_PER_APPEND, RING_WRITERS_MAX};
use crate::rights::{ExportSpec, Rights};
use crate::tables::Target;

/// Where the owner counts the bytes that it has read.
pub const RING_READ_AT: u64 = 0;
/// Where the node counts the bytes that it has written.
pub const RING_WRITTEN_AT: u64 = 64;
/// Bytes before the first record.
pub const RING_HEAD_BYTES: u64 = 128;
/// Bytes of a record before its data.
pub const RECORD_HEAD_BYTES: u64 = 32;
/// Bytes of the longest record, in whole words.
const RECORD_BYTES_MAX: usize = RECORD_HEAD_BYTES as usize + APPEND_BYTES_MAX;

/// What stands before the data of a record: four words, little endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHead {
    /// Bytes of data.
    pub len: u32,
    /// Who appended it.
    pub from: Sender,
    /// The word of its sender.
    pub word: u64,
}

impl RecordHead {
    /// Bytes that the record takes in the ring.
    pub fn record_bytes(&self) -> u64 {
        record_bytes(self.len.into())
    }

    /// As it stands in memory.
    pub fn to_bytes(self) -> [u8; RECORD_HEAD_BYTES as usize] {
        let from = u64::from(self.from.session) << 32 | u64::from(self.from.process.0);
        let words = [self.len.into(), from, self.from.import.to_u64(), self.word];
        let mut bytes = [0; RECORD_HEAD_BYTES as usize];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// The inverse of [`to_bytes`](Self::to_bytes); `None`: no record has such a length.
    pub fn from_bytes(bytes: &[u8; RECORD_HEAD_BYTES as usize]) -> Option<RecordHead> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[8 * at + i]));
        let len = u32::try_from(word(0)).ok().filter(|len| *len as usize <= APPEND_BYTES_MAX)?;
        let (session, process) = ((word(1) >> 32) as u32, crate::ProcessId(word(1) as u32));
        let from = Sender { session, process, import: crate::ImportId::from_u64(word(2)) };
        Some(RecordHead { len, from, word: word(3) })
    }
}

/// Bytes that a record with `len` bytes of data takes.
fn record_bytes(len: u64) -> u64 {
    RECORD_HEAD_BYTES + len.next_multiple_of(8)
}

/// A process, wherever it is: it has its share of a ring through all its imports.
type Writer = (u32, u32);

/// What the node knows of one ring.
#[derive(Default)]
pub(crate) struct Ring {
    /// Bytes that the owner has read, as far as the node has checked.
    read: u64,
    written: u64,
    /// Bytes unread of each writer.
    held: BTreeMap<Writer, u64>,
}

/// Checks a ring to be exported.
pub(crate) fn check(spec: &ExportSpec) -> Result<(), ExportError> {
    let (start, len) = (spec.offset, spec.len);
    let only_appends = spec.rights == Rights::WRITE && !spec.redirectable;
    let size = len.saturating_sub(RING_HEAD_BYTES);
    if !only_appends || start % 8 != 0 || size % 8 != 0 || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&size) {
        let (min, max) = (RING_BYTES_MIN + RING_HEAD_BYTES, RING_BYTES_MAX + RING_HEAD_BYTES);
        return Err(ExportError::BadRing { offset: start, len, min, max });
    }
    Ok(())
}

impl Ring {
    /// Puts a record behind the others; says where in the export it begins.
    pub(crate) fn append(
        &mut self,
        target: &Target,
        head: RecordHead,
        data: &[u8],
        dma: &mut dyn Dma,
    ) -> Result<u64, OpError> {
        if data.len() > APPEND_BYTES_MAX {
            return Err(OpError::RecordTooLong { len: data.len() as u64, max: APPEND_BYTES_MAX as u64 });
        }
        let size = target.len - RING_HEAD_BYTES;
        let needed = head.record_bytes();
        let writer = (head.from.session, head.from.process.0);
        self.take_reads(target, dma);
        let free = size - (self.written - self.read);
        let held = self.held.get(&writer).copied().unwrap_or(0);
        // With the record it holds no more than is then free: so one that appends all it can leaves
        // half of the ring to the others.
        if held + 2 * needed > free || held == 0 && self.held.len() >= RING_WRITERS_MAX {
            return Err(self.full(target, needed));
        }
        let mut record = [0; RECORD_BYTES_MAX];
        record[..RECORD_HEAD_BYTES as usize].copy_from_slice(&head.to_bytes());
        record[RECORD_HEAD_BYTES as usize..][..data.len()].copy_from_slice(data);
        let record = &record[..needed as usize];
        let at = self.written % size;
        let first = record.len().min((size - at) as usize);
        let start = target.base + RING_HEAD_BYTES;
        dma.deposit(target.memory, start + at, &record[..first]);
        if first < record.len() {
            dma.deposit(target.memory, start, &record[first..]);
        }
        self.written += needed;
        *self.held.entry(writer).or_default() += needed;
        dma.atomic(target.memory, target.base + RING_WRITTEN_AT, AtomicOp::Swap(self.written));
        Ok(RING_HEAD_BYTES + at)
    }

    /// As [`append`](Self::append) of `needed` bytes that finds no room.
    pub(crate) fn refuse(&mut self, target: &Target, needed: u64, dma: &mut dyn Dma) -> OpError {
        self.take_reads(target, dma);
        self.full(target, needed)
    }

    fn full(&self, target: &Target, needed: u64) -> OpError {
        let size = target.len - RING_HEAD_BYTES;
        OpError::RingFull { needed, free: size - (self.written - self.read), size }
    }

    /// Checks how far the owner has read, some records further each time.
    fn take_reads(&mut self, target: &Target, dma: &mut dyn Dma) {
        let mut word = [0; 8];
        dma.gather(target.memory, target.base + RING_READ_AT, &mut word);
        let claimed = u64::from_le_bytes(word);
        if claimed == self.written {
            self.read = claimed;
            return self.held.clear();
        }
        for _ in 0..RING_READS_PER_APPEND {
            if self.read >= claimed || claimed > self.written {
                return;
            }
            // The owner can write here. What it changes it does to its own ring: then what is held
            // is not known, and counts anew.
            let head = self.head_at(target, dma).filter(|head| self.read + head.record_bytes() <= claimed);
            let Some(head) = head else {
                self.read = claimed;
                return self.held.clear();
            };
            self.read += head.record_bytes();
            let writer = (head.from.session, head.from.process.0);
            if let Some(held) = self.held.get_mut(&writer) {
                *held = held.saturating_sub(head.record_bytes());
                if *held == 0 {
                    self.held.remove(&writer);
                }
            }
        }
    }

    /// The head of the oldest record that is not known to be read.
    fn head_at(&self, target: &Target, dma: &mut dyn Dma) -> Option<RecordHead> {
        let size = target.len - RING_HEAD_BYTES;
        let at = self.read % size;
        let mut bytes = [0; RECORD_HEAD_BYTES as usize];
        let (first, rest) = bytes.split_at_mut(RECORD_HEAD_BYTES.min(size - at) as usize);
        let start = target.base + RING_HEAD_BYTES;
        dma.gather(target.memory, start + at, first);
        if !rest.is_empty() {
            dma.gather(target.memory, start, rest);
        }
        RecordHead::from_bytes(&bytes)
    }
}
