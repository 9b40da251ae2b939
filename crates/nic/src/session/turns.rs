//! What goes next: short operations and answers before long ones, within a credit.
//!
//! Invariants: each queue of a process is in order, and in one of the two rows while it is not
//! empty, by what is at its front. Short ones go before long ones, and although the window or the
//! pace is used up, only while they have credit; that is at most [`SHORT_CREDIT_BYTES`], they spend
//! it when something long waits, and what is long earns it. So of what goes out while both wait at
//! least half is long, but for the credit.

use std::collections::VecDeque;

use super::transmit::{Packet, Taken};
use super::tx::State;
use super::{APART_TURNS, ASKS_TURN, FETCHES_TURN, INBOUND_FETCH_TURN, Op, OpKind, SHORT_ANSWERS_TURN, Session};
use crate::command::Dma;
use crate::limits::{CHUNK_WINDOW, SHORT_BYTES, SHORT_CREDIT_BYTES};
use crate::slab::Key;
use crate::tables::Tables;
use crate::wire::frame::SEQ_BYTES;

/// Queues that have something to send, by their turn.
pub(super) struct Turns {
    pub(super) short: VecDeque<u16>,
    pub(super) long: VecDeque<u16>,
    /// Bytes that short ones may send ahead.
    credit: usize,
    /// What is put into the packet now goes ahead.
    pub(super) ahead: bool,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { short: VecDeque::new(), long: VecDeque::new(), credit: SHORT_CREDIT_BYTES, ahead: false }
    }
}

impl Turns {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty()
    }

    /// One that has become active, or has another front.
    #[inline]
    pub(super) fn push(&mut self, turn: u16, is_short: bool) {
        if is_short {
            self.short.push_back(turn);
        } else {
            self.long.push_back(turn);
        }
    }

    #[inline]
    pub(super) fn has_credit(&self) -> bool {
        self.credit > 0
    }

    /// Bytes have gone ahead.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.credit = self.credit.saturating_sub(bytes);
    }

    /// Bytes have gone in their turn.
    #[inline]
    pub(super) fn earn(&mut self, bytes: usize) {
        self.credit = (self.credit + bytes).min(SHORT_CREDIT_BYTES);
    }

    /// Bytes beyond the peer's budget that what goes ahead may have under way.
    #[inline]
    pub(super) fn reserve(&self) -> usize {
        if self.ahead { SHORT_CREDIT_BYTES } else { 0 }
    }
}

/// Fetches to be answered, or asked for, by process that waits for them, so that those take turns
/// too.
pub(super) struct InTurn<T> {
    queue: VecDeque<(u32, VecDeque<Key<T>>)>,
    /// In the round robin.
    pub(super) active: bool,
}

impl<T> Default for InTurn<T> {
    fn default() -> InTurn<T> {
        InTurn { queue: VecDeque::new(), active: false }
    }
}

impl<T> InTurn<T> {
    pub(super) fn push(&mut self, process: u32, key: Key<T>) {
        match self.queue.iter_mut().find(|(of, _)| *of == process) {
            Some((_, waiting)) => waiting.push_back(key),
            None => self.queue.push_back((process, VecDeque::from([key]))),
        }
    }

    pub(super) fn front(&self) -> Option<Key<T>> {
        self.queue.front().and_then(|(_, waiting)| waiting.front().copied())
    }

    /// Takes the front out; the next process has its turn.
    pub(super) fn pop(&mut self) {
        let Some((process, mut rest)) = self.queue.pop_front() else { return };
        rest.pop_front();
        if !rest.is_empty() {
            self.queue.push_back((process, rest));
        }
    }

    /// Goes on with the next one of the next process.
    pub(super) fn rotate(&mut self) {
        if let Some((_, waiting)) = self.queue.front_mut() {
            waiting.rotate_left(1);
        }
        if !self.queue.is_empty() {
            self.queue.rotate_left(1);
        }
    }

    /// Takes out those of one process.
    pub(super) fn remove(&mut self, process: u32) {
        self.queue.retain(|(of, _)| *of != process);
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}

impl Op {
    /// It is a message by itself, and a short one.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        match self.kind {
            OpKind::Send { .. } => self.len <= SHORT_BYTES && self.progress == 0,
            OpKind::Append { .. } | OpKind::Fetch { .. } | OpKind::Atomic(_) | OpKind::Flush | OpKind::Unimport => true,
        }
    }
}

/// Numbers of chunks to be sent, or sent again, before new ones are made: short ones first.
#[derive(Default)]
pub(crate) struct Again {
    short: VecDeque<u64>,
    long: VecDeque<u64>,
}

impl Again {
    pub(super) fn push(&mut self, number: u64, is_short: bool) {
        if is_short { self.short.push_back(number) } else { self.long.push_back(number) }
    }

    pub(super) fn front(&self) -> Option<u64> {
        self.short.front().or(self.long.front()).copied()
    }

    pub(super) fn pop(&mut self) {
        if self.short.pop_front().is_none() {
            self.long.pop_front();
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty()
    }

    pub(super) fn has_short(&self) -> bool {
        !self.short.is_empty()
    }

    pub(super) fn has_long(&self) -> bool {
        !self.long.is_empty()
    }
}

impl Session {
    /// Something short has something to send.
    #[inline]
    pub(super) fn has_short(&self) -> bool {
        self.tx.resend.has_short() || !self.turns.short.is_empty()
    }

    /// Fills a packet; `ahead_only`: with what is short and has credit.
    pub(super) fn fill(&mut self, ahead_only: bool, packet: &mut Packet<'_>, tables: &mut Tables, dma: &mut dyn Dma) {
        let before = self.tx.in_flight;
        let waits = ahead_only || self.tx.resend.has_long() || !self.turns.long.is_empty();
        if self.has_short() && self.turns.has_credit() {
            self.turns.ahead = true;
            self.add_again(true, packet, tables, dma);
            self.add_new(true, packet, tables, dma);
            // A failure that was found instead has its number now.
            self.add_again(true, packet, tables, dma);
            self.turns.ahead = false;
        }
        let ahead = self.tx.in_flight - before;
        if waits {
            self.turns.spend(ahead);
        }
        if ahead_only {
            return;
        }
        self.add_again(false, packet, tables, dma);
        // What is lost or reports failures goes before what is new.
        if self.tx.resend.is_empty() {
            self.add_new(false, packet, tables, dma);
            self.add_new(true, packet, tables, dma);
        }
        if packet.is_empty() {
            // Instead of new chunks there may be a failure to report.
            self.add_again(false, packet, tables, dma);
        }
        self.turns.earn(self.tx.in_flight - before - if waits { ahead } else { 0 });
    }

    /// Bytes the first chunk to be sent again takes.
    pub(super) fn lost_size(&mut self) -> usize {
        while let Some(number) = self.tx.resend.front() {
            match self.tx.chunk_mut(number).map(|chunk| (chunk.state, chunk.bytes)) {
                Some((State::Lost | State::Queued, bytes)) => {
                    return bytes as usize + SEQ_BYTES;
                }
                _ => self.tx.resend.pop(),
            }
        }
        0
    }

    /// Puts chunks into the packet that have their numbers.
    fn add_again(&mut self, short: bool, packet: &mut Packet<'_>, tables: &mut Tables, dma: &mut dyn Dma) {
        while let Some(number) = self.tx.resend.front().filter(|_| !short || self.tx.resend.has_short()) {
            let base = self.tx.base;
            let wanted = self.tx.chunk_mut(number).map(|chunk| (chunk.state, chunk.bytes));
            let Some((state @ (State::Lost | State::Queued), bytes)) = wanted else {
                self.tx.resend.pop();
                continue;
            };
            let Some(cost) = packet.cost(number) else { return };
            let room = bytes as usize + cost;
            if number >= base + CHUNK_WINDOW || packet.out.room() < room {
                return;
            }
            self.tx.resend.pop();
            packet.add(number);
            self.encode(number, &mut packet.out, tables, dma);
            let chunk = self.tx.chunk_mut(number).expect("found above");
            chunk.state = State::InFlight;
            chunk.packet = packet.number;
            self.tx.in_flight += bytes as usize;
            if state == State::Lost {
                self.stats.retransmits += 1;
            }
        }
    }

    fn row(&mut self, short: bool) -> &mut VecDeque<u16> {
        if short { &mut self.turns.short } else { &mut self.turns.long }
    }

    /// Makes new chunks, taking turns over the queues of a row.
    fn add_new(&mut self, short: bool, packet: &mut Packet<'_>, tables: &mut Tables, dma: &mut dyn Dma) {
        let mut held_back = 0;
        while let Some(&turn) = self.row(short).front() {
            let taken = match turn {
                INBOUND_FETCH_TURN | SHORT_ANSWERS_TURN => self.take_inbound_fetch(turn, packet, tables, dma),
                ASKS_TURN => self.take_ask(packet, tables),
                FETCHES_TURN => self.take_fetch(packet, tables),
                _ => self.take_op(turn, packet, tables, dma),
            };
            match taken {
                Taken::Chunk => {
                    held_back = 0;
                    self.change_row(turn, short);
                }
                Taken::Empty => {
                    self.row(short).pop_front();
                    match turn {
                        INBOUND_FETCH_TURN | SHORT_ANSWERS_TURN => self.answers(turn).active = false,
                        ASKS_TURN => self.asks.active = false,
                        FETCHES_TURN => self.fetches.waiting.active = false,
                        _ => self.lane(turn).active = false,
                    }
                }
                Taken::HeldBack => {
                    self.row(short).rotate_left(1);
                    held_back += 1;
                    if held_back >= self.row(short).len() {
                        return;
                    }
                }
                Taken::Full => {
                    if !packet.is_empty() {
                        self.row(short).rotate_left(1);
                    }
                    return;
                }
            }
        }
    }

    /// After a chunk of it the queue of a process may have another kind of front.
    fn change_row(&mut self, turn: u16, short: bool) {
        if turn >= 2 * APART_TURNS {
            return;
        }
        let front = self.lane(turn).ops.front().copied().and_then(|key| self.ops.get(key));
        // One that is partly sent stays in its row.
        let is_short = front.map(|op| op.is_short() || short && op.progress > 0);
        if is_short.is_some_and(|is_short| is_short != short) {
            self.row(short).pop_front();
            self.turns.push(turn, !short);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_spent_ahead_and_earned_in_turn_and_never_more_than_it_was() {
        let mut turns = Turns::default();
        turns.earn(1_000_000);
        turns.spend(SHORT_CREDIT_BYTES - 1);
        assert!(turns.has_credit());
        turns.spend(1_400);
        assert!(!turns.has_credit(), "one packet more than there was, at most");
        turns.earn(1_400);
        assert!(turns.has_credit());
    }

    #[test]
    fn short_ones_go_again_first() {
        let mut again = Again::default();
        [(1, false), (2, true), (3, false), (4, true)].into_iter().for_each(|(n, short)| again.push(n, short));
        let mut order = Vec::new();
        while let Some(number) = again.front() {
            order.push(number);
            again.pop();
        }
        assert_eq!(order, [2, 4, 1, 3]);
        assert!(again.is_empty() && !again.has_short() && !again.has_long());
    }
}
