//! One session between two engines: the reliable, ordered stream of chunks in both directions.
//!
//! Invariants: chunks are processed exactly once, and in order but for those that may be
//! [early](early); an operation leaves the table when
//! no chunk names it any more; what is under way never exceeds the receiver's budget.

mod ack;
mod answers;
mod appends;
mod asks;
mod early;
mod ecn;
mod encode;
mod fetches;
mod pieces;
mod receive;
mod reordering;
mod requests;
mod transmit;
mod turns;
mod tx;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::command::AtomicOp;
use crate::congestion::{Congestion, CongestionControl, RoundTrip};
use crate::crypto::Seals;
use crate::ecn::Ecn;
use crate::engine::{Lent, Placement};
use crate::error::OpError;
use crate::ids::{Cookie, ImportId, ProcessId, RegionId};
use crate::intervals::IntervalSet;
use crate::limits::{PASSED_OPS_MAX, PROCESSES_MAX, REMOTE_WAITS_PER_PEER_MAX, share_allows};
use crate::ranges::Ranges;
use crate::replay::ReplayWindow;
use crate::slab::{Key, Slab};
use crate::stats::PeerStats;
use crate::tables::{OpData, SessionId, Tables};
use crate::time::Time;
use crate::tokens::TokenPart;
use crate::wire::hello::Introduction;
use crate::wire::packet::SessionRef;

use asks::Asks;
pub(crate) use early::Order;
use early::{Followed, Waiting};
use ecn::Notification;
use fetches::Fetches;
use pieces::Pieced;
pub(crate) use receive::Outcome;
use turns::{InTurn, Turns};
pub(crate) use tx::Tx;

/// An operation of a process on this side.
pub(crate) struct Op {
    pub(crate) process: ProcessId,
    pub(crate) import: ImportId,
    pub(crate) grant: u64,
    pub(crate) cookie: Option<Cookie>,
    /// In the export.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) kind: OpKind,
    /// Where a gather-send goes.
    pub(crate) ranges: Option<Box<Ranges>>,
    /// Of a payload by token.
    pub(crate) token: Option<Box<TokenPart>>,
    /// Bytes of a send put into chunks, of a fetch received.
    pub(crate) progress: u64,
    /// Bytes of a fetch that were asked for, from its start on.
    pub(crate) asked: u64,
    /// Chunks of this side that name it.
    pub(crate) chunks: u32,
    /// In a queue, not all in chunks.
    pub(crate) queued: bool,
    /// Answered or withdrawn; nothing more may come of it.
    pub(crate) ended: bool,
    /// Of the operations of its process [apart](Queue::apart), so many go before it.
    pub(crate) after: u64,
    /// It has the order of its import.
    pub(crate) own_order: bool,
}

impl Op {
    #[inline]
    pub(crate) fn order(&self) -> Order {
        Order { process: self.process, own: self.own_order.then_some(self.import) }
    }

    /// An operation that is to be queued.
    #[inline]
    pub(crate) fn new(
        (process, import, grant): (ProcessId, ImportId, u64),
        cookie: Option<Cookie>,
        (offset, len): (u64, u64),
        kind: OpKind,
    ) -> Op {
        let (ranges, token) = (None, None);
        Op {
            process,
            import,
            grant,
            cookie,
            offset,
            len,
            kind,
            ranges,
            token,
            progress: 0,
            asked: 0,
            chunks: 0,
            queued: true,
            ended: false,
            after: 0,
            own_order: false,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum OpKind {
    Send {
        data: OpData,
        notify: Option<u64>,
        counter: Option<u64>,
    },
    Append {
        data: OpData,
        word: u64,
        notify: bool,
        refusals: u32,
    },
    Fetch {
        region: RegionId,
        to: u64,
    },
    Atomic(AtomicOp),
    Flush,
    /// The exporter learns that the import is not used any more.
    Unimport,
}

/// A fetch by the peer that this node answers.
pub(crate) struct InboundFetch {
    ticket: u64,
    grant: u64,
    offset: u64,
    /// Where that is in the fetch it is a part of.
    start: u64,
    len: u64,
    /// Bytes put into chunks.
    progress: u64,
    chunks: u32,
    queued: bool,
    failed: bool,
}

/// Operations that wait for their turn, one behind the other.
#[derive(Default)]
struct Lane {
    ops: VecDeque<Key<Op>>,
    /// In the round robin.
    active: bool,
}

/// Operations of one process that wait for their turn.
#[derive(Default)]
struct Queue {
    /// In the order of the process.
    in_order: Lane,
    /// Short ones through imports with an order of their own, that need not wait for what is long
    /// among the former.
    apart: Lane,
    /// Of the latter, so many have had their turn.
    taken_apart: u64,
    /// Fetches and atomics of it without an answer.
    requests: usize,
    followed: Followed,
}

/// Waits of a peer for names here, and whose they are.
#[derive(Default, Debug)]
pub(crate) struct RemoteWaits {
    total: usize,
    users: BTreeMap<u32, usize>,
}

impl RemoteWaits {
    /// Counts one more for a user; false: it has its share.
    pub(crate) fn take(&mut self, uid: u32) -> bool {
        let own = self.users.get(&uid).copied().unwrap_or(0);
        let fits = share_allows(own, self.total, REMOTE_WAITS_PER_PEER_MAX);
        if fits {
            self.total += 1;
            self.users.insert(uid, own + 1);
        }
        fits
    }

    /// One of a user is over.
    pub(crate) fn give(&mut self, uid: u32) {
        let Some(own) = self.users.get_mut(&uid) else { return };
        *own -= 1;
        self.total -= 1;
        if *own == 0 {
            self.users.remove(&uid);
        }
    }
}

/// What has been received.
struct Rx {
    /// Number of the next chunk to process.
    next: u64,
    /// Chunks `next ..`, as far as they came, if any of them did; empty ones have been processed.
    /// The first is missing, or it is to be processed soon.
    held: VecDeque<Option<Box<[u8]>>>,
    held_numbers: IntervalSet,
    held_bytes: usize,
    early: Waiting,
    pieced: Pieced,
    /// Largest number of a packet with chunks, and when it came.
    largest: u64,
    largest_at: Time,
    /// Packets and bytes not yet acknowledged.
    pending_packets: u32,
    pending_bytes: usize,
    ack_now: bool,
    ack_deadline: Option<Time>,
    /// So many packets behind the newest gap are acknowledged one by one still.
    told_singly: u64,
    /// Where the data of the next chunk is already.
    placed: Option<Placement>,
}

/// Turns from here on are those of operations apart, by process slot; below are those in order.
const APART_TURNS: u16 = PROCESSES_MAX as u16;
/// The turn of the other side's fetches in the round robin.
const INBOUND_FETCH_TURN: u16 = u16::MAX;
/// The turn of those whose answers are short.
const SHORT_ANSWERS_TURN: u16 = u16::MAX - 2;
/// The turn of long fetches that are to be asked for.
const FETCHES_TURN: u16 = u16::MAX - 3;
/// The turn of what the peer's driver is asked for.
const ASKS_TURN: u16 = u16::MAX - 1;

/// See the module page.
pub(crate) struct Session {
    pub(crate) via: SessionId,
    pub(crate) local: SessionRef,
    pub(crate) remote: SessionRef,
    pub(crate) incarnation: u64,
    /// When this side sent the hello or answered it: the other side, which has the keys, lived on
    /// after that.
    pub(crate) begun: Time,
    /// This side sent the hello.
    pub(crate) initiator: bool,
    /// A packet of this session has arrived.
    pub(crate) received_any: bool,
    pub(crate) seals: Seals,
    pub(crate) replay: ReplayWindow,
    /// Bytes the other side can have under way to it.
    pub(crate) budget: usize,
    /// Largest datagram on all paths to it.
    pub(crate) packet_bytes: usize,
    /// Largest datagram it takes.
    pub(crate) packet_bytes_max: usize,
    /// Bytes held for a gap to close, at most.
    receive_budget: usize,
    pub(crate) tx: Tx,
    rx: Rx,
    pub(crate) ops: Slab<Op>,
    /// By process slot.
    queues: Vec<Queue>,
    turns: Turns,
    pub(crate) queued_ops: usize,
    inbound_fetches: Slab<InboundFetch>,
    short_answers: InTurn<InboundFetch>,
    long_answers: InTurn<InboundFetch>,
    fetches: Fetches,
    pub(crate) asks: Asks,
    /// Fetches and atomics without an answer.
    requests_out: usize,
    pub(crate) rtt: RoundTrip,
    pub(crate) congestion: Congestion,
    pub(crate) notification: Notification,
    /// Imports through this session, grants to it, its waits for names here.
    pub(crate) imports: usize,
    pub(crate) grants: usize,
    pub(crate) remote_waits: RemoteWaits,
    /// The peer's driver takes messages.
    pub(crate) messages: bool,
    /// What the driver has between it and the peer's: see
    /// [`Engine::hold_peer`](crate::Engine::hold_peer).
    pub(crate) held_by_driver: usize,
    /// Pings of the peer to be answered, where they came from.
    pub(crate) pongs: VecDeque<(SocketAddr, u64)>,
    /// Pings to be sent: to an address, or on the current path.
    pub(crate) pings: VecDeque<Ping>,
    /// The packet being built may lend memory, and what it lends.
    lending: bool,
    pub(crate) lent: Option<Lent>,
    /// Where the newest packet came from: answers that carry no data go there.
    pub(crate) last_from: Option<SocketAddr>,
    newest_packet: u64,
    /// Chunks wait for an acknowledgement since; none: nothing was sent.
    pub(crate) chunk_wait: Option<Time>,
    /// A keepalive waits for its answer since, and the next one goes out at.
    pub(crate) ping_wait: Option<Time>,
    pub(crate) ping_next: Time,
    /// When the peer last proved that both directions work.
    pub(crate) last_proof: Time,
    pub(crate) stats: PeerStats,
}

/// A ping to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ping {
    /// None: on the current path.
    pub(crate) to: Option<SocketAddr>,
    pub(crate) token: u64,
    /// Of the whole packet; 0: no more than it takes.
    pub(crate) bytes: usize,
}

/// What a new session starts with.
pub(crate) struct Opening {
    pub(crate) via: SessionId,
    pub(crate) local: SessionRef,
    pub(crate) remote: SessionRef,
    pub(crate) begun: Time,
    pub(crate) initiator: bool,
    pub(crate) seals: Seals,
    pub(crate) receive_budget: usize,
    pub(crate) path_bytes: usize,
    pub(crate) congestion: CongestionControl,
    pub(crate) ecn: Ecn,
    /// Of what its congestion control leaves to chance.
    pub(crate) seed: u64,
}

impl Session {
    pub(crate) fn new(opening: Opening, introduction: &Introduction, now: Time) -> Session {
        let packet_bytes_max = introduction.packet_bytes_max as usize;
        let packet_bytes = opening.path_bytes.min(packet_bytes_max);
        Session {
            via: opening.via,
            local: opening.local,
            remote: opening.remote,
            incarnation: introduction.incarnation,
            begun: opening.begun,
            initiator: opening.initiator,
            received_any: false,
            seals: opening.seals,
            replay: ReplayWindow::new(),
            budget: introduction.budget_bytes as usize,
            packet_bytes,
            packet_bytes_max,
            receive_budget: opening.receive_budget,
            tx: Tx::default(),
            rx: Rx {
                next: 0,
                held: VecDeque::new(),
                held_numbers: IntervalSet::default(),
                held_bytes: 0,
                early: Waiting::default(),
                pieced: Pieced::default(),
                largest: 0,
                largest_at: now,
                pending_packets: 0,
                pending_bytes: 0,
                ack_now: false,
                ack_deadline: None,
                told_singly: 0,
                placed: None,
            },
            ops: Slab::default(),
            queues: Vec::new(),
            turns: Turns::default(),
            queued_ops: 0,
            inbound_fetches: Slab::default(),
            short_answers: InTurn::default(),
            long_answers: InTurn::default(),
            fetches: Fetches::default(),
            asks: Asks::default(),
            requests_out: 0,
            rtt: RoundTrip::default(),
            congestion: Congestion::new(opening.congestion, opening.ecn, packet_bytes, opening.seed),
            notification: Notification::new(opening.ecn),
            imports: 0,
            grants: 0,
            remote_waits: RemoteWaits::default(),
            messages: introduction.messages,
            held_by_driver: 0,
            pongs: VecDeque::new(),
            pings: VecDeque::new(),
            last_from: None,
            newest_packet: 0,
            chunk_wait: None,
            ping_wait: None,
            ping_next: now,
            last_proof: now,
            stats: PeerStats::default(),
            lending: false,
            lent: None,
        }
    }

    /// For tests: all that a packet could change.
    pub(crate) fn state(&self) -> String {
        let ids = (self.via, self.local, self.remote, self.received_any, self.newest_packet, self.last_from);
        let rx = (self.rx.next, self.rx.held.len(), self.rx.held_bytes, self.rx.pending_packets, self.rx.ack_now);
        let tx = (self.tx.chunks.len(), self.tx.in_flight, self.ops.len(), self.queued_ops, self.inbound_fetches.len());
        let waits = (&self.pings, &self.pongs, self.chunk_wait, self.ping_wait, self.ping_next, self.last_proof);
        let counts =
            (self.imports, self.grants, self.remote_waits.total, self.asks.counts(), self.packet_bytes, self.stats);
        format!("{ids:?} {rx:?} {tx:?} {waits:?} {counts:?} {:?}", self.notification)
    }

    /// Sends a ping to an address, or on the current path; dropped when too many wait.
    pub(crate) fn queue_ping(&mut self, to: Option<SocketAddr>, token: u64) {
        if self.pings.len() < crate::limits::PINGS_QUEUED_MAX {
            self.pings.push_back(Ping { to, token, bytes: 0 });
        }
    }

    /// The same of a ping that makes a packet of that size.
    pub(crate) fn queue_probe(&mut self, to: SocketAddr, token: u64, bytes: usize) {
        if self.pings.len() < crate::limits::PINGS_QUEUED_MAX {
            self.pings.push_back(Ping { to: Some(to), token, bytes });
        }
    }

    /// Operations of the process in `slot` that wait for their turn.
    #[inline]
    pub(crate) fn queue_len(&self, slot: usize) -> usize {
        self.queues.get(slot).map_or(0, |queue| queue.in_order.ops.len() + queue.apart.ops.len())
    }

    /// Queues an operation, of an import with an order of its own or not; the caller has counted it
    /// with its process.
    #[inline]
    pub(crate) fn enqueue(&mut self, op: Op) {
        let (slot, process, is_short) = (op.process.slot(), op.process, op.is_short());
        let apart = op.own_order && is_short && self.passes(&op);
        let queue = self.queue_of(process);
        let after = queue.taken_apart + queue.apart.ops.len() as u64;
        let key = self.ops.insert(Op { after, ..op });
        self.queued_ops += 1;
        let turn = if apart { APART_TURNS + slot as u16 } else { slot as u16 };
        let lane = self.lane(turn);
        lane.ops.push_back(key);
        if !std::mem::replace(&mut lane.active, true) {
            self.turns.push(turn, is_short);
        }
    }

    /// Whether an operation with the order of its import may go before what its process has queued:
    /// something of that is long, and nothing is of its import.
    fn passes(&self, op: &Op) -> bool {
        let Some(queue) = self.queues.get(op.process.slot()) else { return false };
        let mut queued = queue.in_order.ops.iter().filter_map(|key| self.ops.get(*key));
        queue.in_order.ops.len() <= PASSED_OPS_MAX
            && queued.clone().any(|queued| !queued.is_short())
            && queued.all(|queued| queued.import != op.import)
    }

    /// The queue of a turn, and the operations in it whose turn that is.
    #[inline]
    fn queue_at(&mut self, turn: u16) -> &mut Queue {
        &mut self.queues[usize::from(turn % APART_TURNS)]
    }

    #[inline]
    fn lane(&mut self, turn: u16) -> &mut Lane {
        let queue = self.queue_at(turn);
        if turn < APART_TURNS { &mut queue.in_order } else { &mut queue.apart }
    }

    #[inline]
    fn queue_of(&mut self, process: ProcessId) -> &mut Queue {
        let slot = process.slot();
        if self.queues.len() <= slot {
            self.queues.resize_with(slot + 1, Queue::default);
        }
        &mut self.queues[slot]
    }

    /// A fetch or an atomic operation goes out.
    #[inline]
    fn asked(&mut self, process: ProcessId) {
        self.requests_out += 1;
        self.queue_of(process).requests += 1;
    }

    /// Something may go out, if the window lets it.
    #[inline]
    pub(crate) fn has_to_send(&self) -> bool {
        self.rx.ack_now
            || !self.tx.resend.is_empty()
            || !self.turns.is_empty()
            || !self.pings.is_empty()
            || !self.pongs.is_empty()
            || self.tx.cut.is_going()
    }

    /// Nothing was sent that the peer would have to acknowledge. What is held back until it answers
    /// something else says nothing about it.
    pub(crate) fn nothing_outstanding(&self) -> bool {
        self.tx.chunks.is_empty()
    }

    /// Queues the message that an import is not used any more, behind what was sent through it: the
    /// queue of the process is in order, and what is in it names the grant.
    pub(crate) fn queue_unimport(&mut self, process: ProcessId, import: ImportId, grant: u64) {
        let of_it = |key: &Key<Op>| self.ops.get(*key).is_some_and(|op| op.import == import);
        let waiting = |queue: &Queue| queue.in_order.ops.iter().chain(&queue.apart.ops).any(of_it);
        if !self.queues.get(process.slot()).is_some_and(waiting) {
            self.queue_control(&crate::wire::chunk::Chunk::Unimport { grant });
            return;
        }
        self.enqueue(Op::new((process, import, grant), None, (0, 0), OpKind::Unimport));
    }

    pub(crate) fn held(&self) -> (usize, usize) {
        (self.rx.held.iter().flatten().count(), self.held_bytes())
    }

    /// Something here depends on the peer being alive.
    pub(crate) fn matters(&self) -> bool {
        self.imports + self.grants + self.remote_waits.total + self.ops.len() + self.held_by_driver > 0
    }

    /// The sizes of its paths are asked for: also where nothing here depends on the peer, but is
    /// owed to it.
    pub(crate) fn needs_sizes(&self) -> bool {
        self.matters() || !self.nothing_outstanding()
    }

    /// Tells the process how the operation ended. It stays in the table while chunks name it.
    pub(crate) fn end_op(&mut self, key: Key<Op>, result: Result<u64, OpError>, tables: &mut Tables) {
        let Some(op) = self.ops.get_mut(key) else { return };
        if !op.ended {
            op.ended = true;
            let (process, import, cookie) = (op.process, op.import, op.cookie);
            if let OpKind::Unimport = op.kind {
                // Nobody waits for it and no count knows it.
                return self.release_op(key, tables);
            }
            let (kind, queued) = (op.kind, op.queued);
            match kind {
                OpKind::Fetch { .. } | OpKind::Atomic(_) if !queued => {
                    self.requests_out -= 1;
                    self.queues[process.slot()].requests -= 1;
                    self.fetch_ends(key, tables);
                }
                _ => {}
            }
            if result.is_ok() {
                match kind {
                    OpKind::Fetch { .. } => tables.stats.fetches += 1,
                    OpKind::Atomic(_) => tables.stats.atomics += 1,
                    OpKind::Flush | OpKind::Unimport => {}
                    _ => tables.stats.sends += 1,
                }
            }
            tables.op_ended(process);
            match (result, cookie) {
                (Ok(value), Some(cookie)) => tables.complete(process, cookie, Ok(value)),
                (Ok(_), None) => {}
                (Err(why), cookie) => tables.fail(process, import, cookie, why),
            }
        }
        self.release_op(key, tables);
    }

    /// Forgets an ended operation that nothing names any more.
    fn release_op(&mut self, key: Key<Op>, tables: &mut Tables) {
        let Some(op) = self.ops.get(key) else { return };
        if !op.ended || op.queued || op.chunks > 0 {
            return;
        }
        let Some(op) = self.ops.remove(key) else { return };
        if let OpKind::Send { data: OpData::Inline { slot }, .. }
        | OpKind::Append { data: OpData::Inline { slot }, .. } = op.kind
        {
            tables.inline.release(slot);
        }
        if let Some(ranges) = op.ranges {
            tables.ranges_ended(op.process, ranges.count());
        }
    }

    /// The process has left: its operations vanish; chunks under way become aborts.
    pub(crate) fn forget_process(&mut self, process: ProcessId, tables: &mut Tables) {
        if let Some(queue) = self.queues.get_mut(process.slot()) {
            let in_order = std::mem::take(&mut queue.in_order.ops);
            for key in in_order.into_iter().chain(std::mem::take(&mut queue.apart.ops)) {
                self.queued_ops -= 1;
                if let Some(op) = self.ops.get_mut(key) {
                    op.queued = false;
                    // Not sent, so it never counted as a request under way.
                    if op.progress == 0 && matches!(op.kind, OpKind::Fetch { .. } | OpKind::Atomic(_)) {
                        op.ended = true;
                    }
                }
                self.release_op(key, tables);
            }
        }
        self.fetches.waiting.remove(process.slot() as u32);
        let keys: Vec<Key<Op>> = self.ops.iter().filter(|(_, op)| op.process == process).map(|(key, _)| key).collect();
        for key in keys {
            self.end_op(key, Err(OpError::Cancelled), tables);
        }
    }

    /// The session is over: every operation fails, all that was lent comes back.
    pub(crate) fn fail_all(&mut self, why: OpError, tables: &mut Tables) {
        self.tx.clear();
        self.fetches.waiting.clear();
        for key in self.ops.keys() {
            let Some(op) = self.ops.get_mut(key) else { continue };
            op.chunks = 0;
            let unsent = std::mem::take(&mut op.queued);
            if unsent && matches!(op.kind, OpKind::Fetch { .. } | OpKind::Atomic(_)) {
                // As if it had gone out: its end takes it off again.
                let process = op.process;
                let is_long = op.is_long_fetch();
                self.requests_out += 1;
                self.queues[process.slot()].requests += 1;
                self.fetches.under_way += usize::from(is_long);
            }
            // An import that ends reports posted sends as well; the cookie-less ones stay quiet.
            if op.cookie.is_none() && !op.ended {
                op.ended = true;
                if !matches!(op.kind, OpKind::Unimport) {
                    tables.op_ended(op.process);
                }
            }
            self.end_op(key, Err(why), tables);
        }
        debug_assert_eq!(self.ops.len(), 0, "nothing names an operation of a dead session");
    }
}
