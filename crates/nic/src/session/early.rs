//! Chunks that are processed before those in front of them have come.
//!
//! Between two nodes there is one row of chunks, and a gap in it holds up what is behind. What
//! order demands is less: the operations of one process in their order, or those of an import that
//! has one of its own, and an answer after the failures before it (docs/memory-model.md). So a
//! chunk that is an operation, or an answer, by itself says which one it must follow, and is
//! processed once that one has been. Its number counts as held until the gap closes.
//!
//! Invariants: a chunk is marked only if it is all of its operation; the one it names is of the
//! same process, or a failure; each is processed once, for what has been stays in the row as an
//! empty one.

use super::Session;
use super::receive::Outcome;
use crate::command::Dma;
use crate::ids::{ImportId, NodeName, ProcessId};
use crate::limits::{EARLY_WAITING_MAX, OWN_ORDERS_FOLLOWED_MAX};
use crate::tables::Tables;
use crate::time::Time;
use crate::wire::chunk::Chunk;
use crate::wire::frame::{EARLY_BYTES, write_early};
use crate::wire::{Reader, Writer};
use std::collections::VecDeque;

/// In whose order an operation is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) process: ProcessId,
    /// That of this import alone, whatever else the process does.
    pub(crate) own: Option<ImportId>,
}

/// Which chunks those of a process must follow.
#[derive(Default)]
pub(super) struct Followed {
    /// Number of its last chunk in the order of the process.
    last: Option<u64>,
    /// The last chunk of each import with an order of its own, oldest first: where it is not
    /// acknowledged.
    own: VecDeque<(ImportId, u64)>,
    /// The newest chunk that is no longer there, for there were too many.
    forgotten: Option<u64>,
    /// The newest of them that may be processed before some of the process: what follows in the
    /// order of that has no one chunk to name, and waits for all before it.
    aside: Option<u64>,
}

impl Followed {
    /// The next chunk has this number; those before `base` are acknowledged.
    #[inline]
    fn sent(&mut self, own: Option<ImportId>, number: u64, early: Option<u16>, base: u64) {
        if let Some(import) = own {
            self.own.retain(|(of, last)| *of != import && *last >= base);
            if self.own.len() >= OWN_ORDERS_FOLLOWED_MAX {
                self.forgotten = self.own.pop_front().map(|(_, last)| last).max(self.forgotten);
            }
            self.own.push_back((import, number));
            if early.is_some() {
                self.aside = Some(number);
                return;
            }
        }
        self.last = Some(number);
        if early.is_none() {
            self.aside = None;
        }
    }
}

/// Bytes that a mark takes.
#[inline]
pub(super) fn early_bytes(early: Option<u16>) -> usize {
    if early.is_some() { EARLY_BYTES } else { 0 }
}

/// Writes it.
#[inline]
pub(super) fn put_early(early: Option<u16>, out: &mut Writer<'_>) {
    if let Some(back) = early {
        write_early(back, out);
    }
}

/// Chunks that wait for the one they follow: their number and that one's.
#[derive(Default)]
pub(super) struct Waiting(Vec<(u64, u64)>);

impl Session {
    /// How far back the chunk is that the next one must follow, `last`; `None`: it needs no mark,
    /// for it follows what is right in front of it.
    #[inline]
    fn early_behind(&self, last: Option<u64>) -> Option<u16> {
        // With nothing unacknowledged there is nothing to pass.
        let in_front = self.tx.chunks.back()?;
        let number = self.tx.next_number();
        match last.filter(|last| *last >= self.tx.base) {
            None => Some(0),
            Some(last) if last + 1 == number && in_front.early.is_none() => None,
            Some(last) => u16::try_from(number - last).ok(),
        }
    }

    /// The same of an operation of a process.
    #[inline]
    pub(super) fn early_of(&self, order: Order) -> Option<u16> {
        let Some(queue) = self.queues.get(order.process.slot()) else { return self.early_behind(None) };
        let Followed { last, own, forgotten, aside } = &queue.followed;
        let is_open = |number: &Option<u64>| number.is_some_and(|number| number >= self.tx.base);
        let Some(import) = order.own else {
            return if is_open(aside) { None } else { self.early_behind(*last) };
        };
        match own.iter().find(|(of, _)| *of == import) {
            None if is_open(forgotten) => None,
            found => self.early_behind(found.map(|(_, last)| *last)),
        }
    }

    /// A chunk of an operation of a process goes out for the first time, with this mark.
    #[inline]
    pub(super) fn follow(&mut self, order: Order, number: u64, early: Option<u16>) {
        let base = self.tx.base;
        self.queue_of(order.process).followed.sent(order.own, number, early, base);
    }

    /// The same of an answer: it follows the failures that were reported before it.
    #[inline]
    pub(super) fn early_answer(&self) -> Option<u16> {
        self.early_behind(self.tx.barrier.checked_sub(1))
    }

    fn is_processed(&self, number: u64) -> bool {
        let Some(beyond) = number.checked_sub(self.rx.next) else { return true };
        let held = usize::try_from(beyond).ok().and_then(|index| self.rx.held.get(index));
        held.is_some_and(|held| held.as_ref().is_some_and(|bytes| bytes.is_empty()))
    }

    /// Takes a chunk before which others are missing.
    #[allow(clippy::too_many_arguments)] // one chunk and the world it lands in
    pub(super) fn take_beyond_gap(
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
        // Nothing is so far back that it was never sent.
        let follows = early.and_then(|back| seq.checked_sub(back.into()));
        let ready = follows.is_some_and(|number| number == seq || self.is_processed(number));
        if !self.hold(seq, if ready { &[] } else { bytes }, tables) {
            return;
        }
        if ready {
            self.process(now, seq, chunk, peer, tables, dma, outcome);
            self.release_early(now, peer, tables, dma, outcome);
        } else if let Some(number) = follows.filter(|_| self.rx.early.0.len() < EARLY_WAITING_MAX) {
            self.rx.early.0.push((seq, number));
        }
    }

    /// Processes those of which the one they follow has been.
    pub(super) fn release_early(
        &mut self,
        now: Time,
        peer: &NodeName,
        tables: &mut Tables,
        dma: &mut dyn Dma,
        outcome: &mut Outcome,
    ) {
        let next = self.rx.next;
        self.rx.early.0.retain(|(seq, _)| *seq >= next);
        while let Some(at) = self.rx.early.0.iter().position(|(_, follows)| self.is_processed(*follows)) {
            let (seq, _) = self.rx.early.0.remove(at);
            let index = (seq - self.rx.next) as usize;
            let Some(held) = self.rx.held.get_mut(index).and_then(Option::as_mut) else { continue };
            let bytes = std::mem::take(held);
            self.give_held_back(bytes.len(), tables);
            let Some(chunk) = Chunk::read(&mut Reader::new(&bytes)) else { continue };
            self.process(now, seq, chunk, peer, tables, dma, outcome);
        }
    }
}
