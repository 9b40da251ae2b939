//! Operations within the node that the engine carries out: the same checks as for other nodes,
//! memory to memory. Long ones go in pieces so that nobody stalls the node.

use crate::command::{AtomicOp, Dma};
use crate::error::OpError;
use crate::event::{Event, Sender};
use crate::ids::{Cookie, ExportId, ImportId, ProcessId, RegionId, RegionRef};
use crate::limits::{APPEND_BYTES_MAX, INLINE_BYTES_MAX, LOCAL_PIECE_BYTES, LOCAL_PIECES};
use crate::ranges::Ranges;
use crate::rights::Rights;
use crate::slab::Key;
use crate::tables::{Appended, Appender, Export, Incoming, OpData, Tables, Target};
use crate::tokens::TokenPart;

/// An operation that has not ended. Its export may vanish at any time, so it is looked up anew.
pub(crate) struct LocalOp {
    pub(crate) import: ImportId,
    pub(crate) export: Key<Export>,
    pub(crate) offset: u64,
    pub(crate) cookie: Option<Cookie>,
    pub(crate) kind: LocalKind,
    /// Bytes copied so far.
    pub(crate) done: u64,
}

pub(crate) enum LocalKind {
    Send {
        data: OpData,
        len: u64,
        notify: Option<u64>,
        counter: Option<u64>,
        /// Of a gather-send.
        ranges: Option<Box<Ranges>>,
        /// Of a payload by token.
        token: Option<Box<TokenPart>>,
    },
    Append {
        data: OpData,
        len: u64,
        word: u64,
        notify: bool,
        refusals: u32,
    },
    Fetch {
        region: RegionId,
        to: u64,
        len: u64,
    },
    Atomic(AtomicOp),
    Flush,
}

impl LocalKind {
    /// The buffer that its data is in.
    pub(crate) fn inline_slot(&self) -> Option<u32> {
        match *self {
            LocalKind::Send { data: OpData::Inline { slot }, .. }
            | LocalKind::Append { data: OpData::Inline { slot }, .. } => Some(slot),
            _ => None,
        }
    }
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
            LocalKind::Send { ranges: Some(_), .. } => self.gather_step(process, &target, tables, dma),
            LocalKind::Send { data, len, notify, counter, ranges: None, ref token } => {
                let piece = tables.piece(&target, self.offset + self.done, len - self.done);
                let last = self.done + piece == len;
                let at = self.offset + self.done;
                let with = (counter.filter(|_| last), token.as_deref());
                put(process, &target, at, (data, self.done, piece), with, tables, dma)?;
                self.done += piece;
                if !last {
                    return Ok(Progress::More);
                }
                if let Some(word) = notify {
                    let tail = tail(process, data, len, len.min(8), tables, dma);
                    tables.notify(&target, self.sender(process), (self.offset, len), tail, word);
                }
                Ok(Progress::Done(len))
            }
            LocalKind::Append { data, len, word, notify, refusals } => {
                let mut bytes = [0; APPEND_BYTES_MAX];
                let bytes = &mut bytes[..len as usize];
                gather(process, data, 0, bytes, tables, dma);
                let record = Appended { from: self.sender(process), word, notify, refusals, data: bytes };
                let by = Appender::Import(process, self.import.into());
                tables.append(&target, by, &record, dma).map(|()| Progress::Done(len))
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

impl LocalOp {
    /// Some ranges of a gather-send, or a part of a long one.
    fn gather_step(
        &mut self,
        process: ProcessId,
        target: &Target,
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) -> Result<Progress, OpError> {
        let LocalKind::Send { data, len, notify, counter, ranges: Some(ranges), .. } = &self.kind else {
            unreachable!("the caller has looked")
        };
        let (data, len, notify, counter) = (*data, *len, *notify, *counter);
        let (mut done, mut left) = (self.done, LOCAL_PIECE_BYTES);
        for _ in 0..LOCAL_PIECES {
            let (at, run) = ranges.place(done, len);
            let piece = tables.piece(target, at, run.min(left));
            let counter = counter.filter(|_| done + piece == len);
            put(process, target, at, (data, done, piece), (counter, None), tables, dma)?;
            (done, left) = (done + piece, left - piece);
            if done == len || left == 0 {
                break;
            }
        }
        let (span, last) = (ranges.span(), ranges.last_len(len));
        self.done = done;
        if done < len {
            return Ok(Progress::More);
        }
        if let Some(word) = notify {
            let tail = tail(process, data, len, last.min(8), tables, dma);
            tables.notify(target, self.sender(process), span, tail, word);
        }
        Ok(Progress::Done(len))
    }
}

/// Copies `len` bytes of data, from its byte `start` on, to `at` in the export.
fn put(
    process: ProcessId,
    target: &Target,
    at: u64,
    (data, start, len): (OpData, u64, u64),
    (counter, token): (Option<u64>, Option<&TokenPart>),
    tables: &mut Tables,
    dma: &mut dyn Dma,
) -> Result<(), OpError> {
    let mut land = |data: Incoming<'_>, tables: &mut Tables| match token {
        Some(token) => tables.fill(target, token, at, data, dma),
        None => tables.arrived(target, at, data, counter, dma),
    };
    match data {
        OpData::Inline { slot } => {
            // Copied out: the pool and the landing both belong to the tables.
            let mut copy = [0; INLINE_BYTES_MAX];
            let copy = &mut copy[..len as usize];
            copy.copy_from_slice(tables.inline.data(slot, start, len as usize));
            land(Incoming::Bytes(copy), tables)
        }
        OpData::Memory { region, from } => {
            let data = Incoming::Memory { from: RegionRef { process, region }, offset: from + start, len };
            land(data, tables)
        }
    }
}

/// Reads data of an operation of this node, from byte `at` of it on.
fn gather(process: ProcessId, data: OpData, at: u64, out: &mut [u8], tables: &Tables, dma: &mut dyn Dma) {
    match data {
        OpData::Inline { slot } => out.copy_from_slice(tables.inline.data(slot, at, out.len())),
        OpData::Memory { region, from } if !out.is_empty() => {
            dma.gather(RegionRef { process, region }, from + at, out);
        }
        OpData::Memory { .. } => {}
    }
}

/// The last `bytes` (up to 8) of `len` bytes of data, as a number.
fn tail(process: ProcessId, data: OpData, len: u64, bytes: u64, tables: &Tables, dma: &mut dyn Dma) -> u64 {
    let mut tail = [0; 8];
    gather(process, data, len - bytes, &mut tail[..bytes as usize], tables, dma);
    u64::from_le_bytes(tail)
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

    /// Notifies the exporter, if the export allows it.
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
        let export = ExportId::from(target.export);
        let process = target.memory.process;
        self.events.push_back(Event::Notification { process, export, offset, len, last_word, word, from });
    }
}
