//! Long fetches of this side, asked for in parts: as much of them as may be under way to this node.
//!
//! Invariants: `asked` is the sum, over long fetches that have not ended, of what was asked for and
//! has not come; while something of one is to be asked for it is in `waiting`, and that has a turn
//! as soon as a part may be asked for. A part may be, whatever else there is, when nothing is asked
//! for.

use std::time::Duration;

use super::transmit::{Packet, Taken};
use super::turns::InTurn;
use super::tx::Body;
use super::{FETCHES_TURN, Op, OpKind, Session};
use crate::fetching::{Fetching, Part};
use crate::ids::ProcessId;
use crate::limits::SHORT_BYTES;
use crate::local::in_bounds;
use crate::slab::Key;
use crate::tables::Tables;
use crate::time::Time;
use crate::wire::chunk::FETCH_REQUEST_BYTES;

/// See the module page.
#[derive(Default)]
pub(super) struct Fetches {
    /// Those of which not all is asked for, by process.
    pub(super) waiting: InTurn<Op>,
    /// Those that have begun and not ended.
    pub(super) under_way: usize,
    pub(super) asked: u64,
    part: Part,
}

impl Op {
    /// It is a fetch that is asked for in parts.
    #[inline]
    pub(super) fn is_long_fetch(&self) -> bool {
        self.len > SHORT_BYTES && matches!(self.kind, OpKind::Fetch { .. })
    }

    /// These bytes of a fetch are asked for, and so many have not come.
    #[inline]
    pub(super) fn has_asked_for(&self, offset: u64, len: u64) -> bool {
        in_bounds(offset, len, self.asked).is_ok() && len <= self.asked - self.progress
    }
}

impl Session {
    /// A long fetch has had its turn among the operations of its process, and waits for its turn
    /// among fetches.
    pub(super) fn begin_fetch(&mut self, process: ProcessId, key: Key<Op>, tables: &mut Tables) {
        self.fetches.under_way += 1;
        tables.fetching.begins(&mut self.fetches.part);
        self.fetches.waiting.push(process.slot() as u32, key);
        self.go_on_fetching(tables);
    }

    /// Whether a fetch of that length may be asked for as a whole, at once.
    #[inline]
    pub(crate) fn may_fetch(&self, len: u64, tables: &Tables) -> bool {
        let nobody_waits = self.fetches.waiting.front().is_none();
        len <= SHORT_BYTES || nobody_waits && self.next_part(tables).is_some_and(|part| len <= part)
    }

    /// A long fetch was asked for as a whole.
    pub(super) fn fetch_asked(&mut self, len: u64, tables: &mut Tables) {
        self.fetches.under_way += 1;
        self.fetches.asked += len;
        tables.fetching.begins(&mut self.fetches.part);
    }

    /// One has ended, whatever is left of it.
    pub(super) fn fetch_ends(&mut self, key: Key<Op>, tables: &mut Tables) {
        let Some(op) = self.ops.get(key).filter(|op| op.is_long_fetch()) else { return };
        self.fetches.asked -= op.asked - op.progress;
        self.fetches.under_way -= 1;
        if self.fetches.under_way == 0 {
            tables.fetching.ends(&mut self.fetches.part);
        }
        self.go_on_fetching(tables);
    }

    /// A packet came from the peer.
    #[inline]
    pub(crate) fn fetched_packet(&mut self, now: Time, bytes: usize, tables: &mut Tables) {
        if self.fetches.under_way > 0 {
            let round_trip = (self.shortest_round_trip(), self.rtt.smoothed().unwrap_or_default());
            tables.fetching.came(now, bytes, round_trip, &mut self.fetches.part);
        }
    }

    fn shortest_round_trip(&self) -> Duration {
        self.rtt.shortest().unwrap_or_default()
    }

    /// Bytes of the next request for a fetch; `None`: enough is asked for.
    fn next_part(&self, tables: &Tables) -> Option<u64> {
        let share = tables.fetching.share(&self.fetches.part, self.shortest_round_trip(), self.packet_bytes);
        let part = Fetching::request(share);
        (self.fetches.asked == 0 || self.fetches.asked + part <= share).then_some(part)
    }

    /// Gives fetches a turn, if one of them waits for it and may have it.
    pub(super) fn go_on_fetching(&mut self, tables: &Tables) {
        while let Some(key) = self.fetches.waiting.front() {
            if self.ops.get(key).is_some_and(|op| !op.ended) {
                break;
            }
            self.fetches.waiting.pop();
        }
        let waits = !self.fetches.waiting.active && self.fetches.waiting.front().is_some();
        if waits && self.next_part(tables).is_some() {
            self.fetches.waiting.active = true;
            self.turns.push(FETCHES_TURN, true);
        }
    }

    /// Asks for a part of the fetch whose turn it is.
    pub(super) fn take_fetch(&mut self, packet: &mut Packet<'_>, tables: &mut Tables) -> Taken {
        let (Some(key), Some(part)) = (self.fetches.waiting.front(), self.next_part(tables)) else {
            return Taken::Empty;
        };
        let Some(op) = self.ops.get(key).filter(|op| !op.ended) else {
            self.fetches.waiting.pop();
            return Taken::Chunk;
        };
        let (order, start, len) = (op.order(), op.asked, part.min(op.len - op.asked));
        let early = self.early_of(order);
        let Some(number) = self.start_whole(FETCH_REQUEST_BYTES, early, packet) else { return Taken::Full };
        self.encode_request(key, (start, len), &mut packet.out);
        self.follow(order, number, early);
        self.tx.push_in_flight(Body::FetchRequest { op: key, start, len }, FETCH_REQUEST_BYTES, packet.number, early);
        self.fetches.asked += len;
        let op = self.ops.get_mut(key).expect("found above");
        op.asked += len;
        op.chunks += 1;
        if op.asked == op.len {
            self.fetches.waiting.pop();
        } else {
            self.fetches.waiting.rotate();
        }
        Taken::Chunk
    }
}
