//! Operations within the node that the engine carries out: the same checks as for other nodes,
//! memory to memory. Long ones go in pieces so that nobody stalls the node.

use crate::command::{AtomicOp, Dma};
use crate::error::OpError;
use crate::event::{Event, Sender};
use crate::ids::{Cookie, ExportId, ImportId, ProcessId, RegionId, RegionRef};
use crate::limits::LOCAL_PIECE_BYTES;
use crate::rights::Rights;
use crate::slab::Key;
use crate::tables::{Incoming, Tables, Target};

/// An operation that has not ended. Its export may vanish at any time, so it is looked up anew.
pub(crate) struct LocalOp {
    pub(crate) import: ImportId,
    pub(crate) export: Key,
    pub(crate) offset: u64,
    pub(crate) cookie: Option<Cookie>,
    pub(crate) kind: LocalKind,
    /// Bytes copied so far.
    pub(crate) done: u64,
}

pub(crate) enum LocalKind {
    /// Data in the inline pool.
    SendInline {
        slot: u32,
        len: u64,
        notify: Option<u64>,
        counter: Option<u64>,
    },
    Send {
        region: RegionId,
        from: u64,
        len: u64,
        notify: Option<u64>,
        counter: Option<u64>,
    },
    Fetch {
        region: RegionId,
        to: u64,
        len: u64,
    },
    Atomic(AtomicOp),
    Flush,
}

/// How far a step came.
pub(crate) enum Progress {
    More,
    Done(u64),
}

impl LocalOp {
    fn sender(&self, process: ProcessId) -> Sender {
        Sender { session: 0, process, import: self.import }
    }

    /// Does one piece.
    pub(crate) fn step(
        &mut self,
        process: ProcessId,
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) -> Result<Progress, OpError> {
        if matches!(self.kind, LocalKind::Flush) {
            return Ok(Progress::Done(0));
        }
        let target = tables.target(self.export).ok_or(OpError::Revoked)?;
        match self.kind {
            LocalKind::SendInline { slot, len, notify, counter } => {
                // Copied out: the pool and the landing both belong to the tables.
                let mut data = [0; crate::limits::INLINE_BYTES_MAX];
                let data = &mut data[..len as usize];
                data.copy_from_slice(tables.inline.data(slot, 0, len as usize));
                let tail = tail_of(data);
                tables.arrived(&target, self.offset, Incoming::Bytes(data), counter, dma)?;
                if let Some(word) = notify {
                    tables.notify(&target, self.sender(process), (self.offset, len), tail, word);
                }
                Ok(Progress::Done(len))
            }
            LocalKind::Send { region, from, len, notify, counter } => {
                let piece = (len - self.done).min(LOCAL_PIECE_BYTES);
                let last = self.done + piece == len;
                let source = RegionRef { process, region };
                let data = Incoming::Memory { from: source, offset: from + self.done, len: piece };
                let counter = counter.filter(|_| last);
                tables.arrived(&target, self.offset + self.done, data, counter, dma)?;
                self.done += piece;
                if !last {
                    return Ok(Progress::More);
                }
                if let Some(word) = notify {
                    let mut tail = [0; 8];
                    let bytes = len.min(8);
                    dma.gather(source, from + len - bytes, &mut tail[..bytes as usize]);
                    let tail = u64::from_le_bytes(tail);
                    tables.notify(&target, self.sender(process), (self.offset, len), tail, word);
                }
                Ok(Progress::Done(len))
            }
            LocalKind::Fetch { region, to, len } => {
                let piece = (len - self.done).min(LOCAL_PIECE_BYTES);
                let (into, from) = (RegionRef { process, region }, target.base + self.offset + self.done);
                if piece > 0 {
                    dma.copy(target.memory, from, into, to + self.done, piece);
                }
                self.done += piece;
                tables.stats.bytes_deposited += piece;
                Ok(if self.done == len { Progress::Done(len) } else { Progress::More })
            }
            LocalKind::Atomic(op) => {
                aligned(target.base + self.offset)?;
                Ok(Progress::Done(dma.atomic(target.memory, target.base + self.offset, op)))
            }
            LocalKind::Flush => Ok(Progress::Done(0)),
        }
    }
}

/// The last 8 bytes as a number.
pub(crate) fn tail_of(data: &[u8]) -> u64 {
    let mut tail = [0; 8];
    let last = &data[data.len().saturating_sub(8)..];
    tail[..last.len()].copy_from_slice(last);
    u64::from_le_bytes(tail)
}

pub(crate) fn aligned(offset: u64) -> Result<(), OpError> {
    if offset % 8 == 0 { Ok(()) } else { Err(OpError::Misaligned { offset, align: 8 }) }
}

/// Whether `[offset, offset + len)` lies inside `size` bytes.
pub(crate) fn in_bounds(offset: u64, len: u64, size: u64) -> Result<(), OpError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(OpError::OutOfBounds { offset, len, size }),
    }
}

/// Whether `held` includes `needed`.
pub(crate) fn has_right(held: Rights, needed: Rights) -> Result<(), OpError> {
    if held.contains(needed) { Ok(()) } else { Err(OpError::NoRight { needed }) }
}

impl Tables {
    /// Lands data and counts it. The counter's place is checked before a byte moves.
    pub(crate) fn arrived(
        &mut self,
        target: &Target,
        offset: u64,
        data: Incoming<'_>,
        counter: Option<u64>,
        dma: &mut dyn Dma,
    ) -> Result<(), OpError> {
        if let Some(counter) = counter {
            in_bounds(counter, 8, target.len)?;
            aligned(target.base + counter)?;
        }
        self.land(target, offset, data, dma)?;
        if let Some(counter) = counter {
            dma.atomic(target.memory, target.base + counter, AtomicOp::FetchAdd(1));
        }
        Ok(())
    }

    /// Tells the exporter, if the export allows it.
    pub(crate) fn notify(
        &mut self,
        target: &Target,
        from: Sender,
        (offset, len): (u64, u64),
        last_word: u64,
        word: u64,
    ) {
        if !target.notify {
            return;
        }
        self.stats.notifications += 1;
        let export = ExportId::from_u64(target.export);
        let process = target.memory.process;
        self.events.push_back(Event::Notification { process, export, offset, len, last_word, word, from });
    }
}
