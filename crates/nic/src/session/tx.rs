//! The sending half: chunks by number, packets under way, what is lost.
//!
//! Invariants: `chunks[i]` has number `base + i`; `in_flight` is the sum over chunks `InFlight`;
//! `span_bytes` the sum over all chunks, which is what the receiver may have to hold; `answers` and
//! `message_bytes` count those of that cause.

use std::collections::VecDeque;
use std::time::Duration;

use super::early::early_bytes;
use super::pieces::Cut;
use super::reordering::Reordering;
use super::turns::Again;
use super::{InboundFetch, Op};
use crate::congestion::{LostPacket, Pacer, RoundTrip, Snapshot};
use crate::limits::{
    ANSWERS_MAX, LATE_MIN, MESSAGES_KEPT_BYTES_MAX, MTU_LOSSES_MAX, MTU_PROOF_SLACK_BYTES, PACKET_BYTES_MIN,
    REORDER_PACKETS, RUNS_PER_PACKET_MAX, SHORT_BYTES,
};
use crate::slab::Key;
use crate::time::Time;

/// Where a chunk is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Numbered, not sent yet.
    Queued,
    InFlight,
    /// To be sent again.
    Lost,
    /// Received beyond a gap.
    Held,
}

/// Why a chunk is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// This node has something to say.
    Own,
    /// The peer has asked.
    Answer,
    /// A message of the driver.
    Message,
}

/// What a chunk is made from each time it is sent: data is gathered anew, never kept.
pub(crate) enum Body {
    Write {
        op: Key<Op>,
        part: u64,
        len: u32,
        last: bool,
        ack_now: bool,
    },
    Append {
        op: Key<Op>,
        ack_now: bool,
    },
    /// Of a part of it, or all.
    FetchRequest {
        op: Key<Op>,
        start: u64,
        len: u64,
    },
    AtomicRequest {
        op: Key<Op>,
    },
    Flush {
        op: Key<Op>,
    },
    Unimport {
        op: Key<Op>,
    },
    FetchData {
        fetch: Key<InboundFetch>,
        part: u64,
        len: u32,
        last: bool,
    },
    AtomicReply {
        ticket: u64,
        old: u64,
    },
    /// Encoded.
    Control(Box<[u8]>),
    Nop,
}

impl Body {
    /// It is no piece of something long.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        match self {
            Body::Write { part, len, last, .. } | Body::FetchData { part, len, last, .. } => {
                *part == 0 && *last && u64::from(*len) <= SHORT_BYTES
            }
            Body::Control(bytes) => bytes.len() as u64 <= SHORT_BYTES,
            _ => true,
        }
    }

    /// The peer acknowledges it without waiting for company.
    #[inline]
    pub(crate) fn is_answered_at_once(&self) -> bool {
        match self {
            Body::Write { ack_now, .. } | Body::Append { ack_now, .. } => *ack_now,
            Body::FetchRequest { .. } | Body::AtomicRequest { .. } | Body::Flush { .. } | Body::Nop => true,
            Body::Unimport { .. } | Body::FetchData { .. } | Body::AtomicReply { .. } | Body::Control(_) => false,
        }
    }
}

pub(crate) struct TxChunk {
    pub(crate) body: Body,
    pub(crate) state: State,
    pub(crate) cause: Cause,
    pub(crate) bytes: u32,
    /// It may be processed early: see [`early`](super::early).
    pub(crate) early: Option<u16>,
    /// Packet it was last sent in.
    pub(crate) packet: u64,
    /// It counted as lost once, in that reduction of the window; 0: in none.
    pub(crate) lost: Option<u32>,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) count: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct SentPacket {
    pub(crate) number: u64,
    pub(crate) sent: Snapshot,
    pub(crate) runs: [Run; RUNS_PER_PACKET_MAX],
    /// Of the whole packet.
    pub(crate) bytes: usize,
    /// It may have been lost for its size: [`may_be_too_large`].
    pub(crate) is_large: bool,
    /// It holds a piece of a chunk, which does not tell when it has arrived: the chunk does, once
    /// it is whole.
    pub(crate) is_piece: bool,
}

/// Whether a packet is larger than every path must carry; or, where packets of that size are in
/// use, about as large: there may be a path that does not carry even those.
pub(crate) fn may_be_too_large(bytes: usize, in_use: usize) -> bool {
    bytes > PACKET_BYTES_MIN.min(in_use - MTU_PROOF_SLACK_BYTES)
}

#[derive(Default)]
pub(crate) struct Tx {
    pub(crate) base: u64,
    pub(crate) chunks: VecDeque<TxChunk>,
    pub(crate) span_bytes: usize,
    pub(crate) in_flight: usize,
    /// Chunks that answer the peer.
    pub(crate) answers: usize,
    /// Bytes of messages of the driver.
    pub(crate) message_bytes: usize,
    /// Numbers of chunks to be sent (again) before new ones are made.
    pub(crate) resend: Again,
    pub(crate) sent: VecDeque<SentPacket>,
    pub(crate) next_packet: u64,
    pub(crate) largest_acked: Option<u64>,
    /// From its sending to its acknowledgement, whatever that waited for.
    pub(crate) largest_took: Duration,
    pub(crate) reordering: Reordering,
    pub(crate) last_sent: Time,
    /// When something was acknowledged last.
    pub(crate) last_heard: Time,
    /// The peer answers the newest packet at once.
    pub(crate) prompt: bool,
    /// Probes since something was acknowledged.
    pub(crate) probed: u32,
    /// Timeouts in a row.
    pub(crate) backoff: u32,
    /// Packets that may pass the congestion window: probes after a timeout.
    pub(crate) probes: u32,
    /// When the next packet overtaken by later ones counts as lost.
    pub(crate) loss_time: Option<Time>,
    /// One more than the number of the last chunk that reported a failure.
    pub(crate) barrier: u64,
    /// The newest acknowledgement that waits for failures of the peer.
    pub(crate) deferred: Option<Deferred>,
    /// When packets may go.
    pub(crate) pacer: Pacer,
    /// Number of the newest large packet that is known to have arrived, and how many behind it
    /// were lost.
    pub(crate) large_arrived: Option<u64>,
    pub(crate) large_lost: u32,
    /// And they were many enough to doubt that the path takes them.
    pub(crate) size_is_doubtful: bool,
    /// The size has been asked for since this packet, and one of about that size has arrived.
    pub(crate) size_asked: Option<u64>,
    pub(crate) size_is_proven: bool,
    pub(crate) cut: Cut,
}

/// All below chunk `cumulative` of ours has arrived, which is to count when all below chunk
/// `barrier` of the peer has come: failures of the former are among the latter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deferred {
    pub(crate) cumulative: u64,
    pub(crate) barrier: u64,
}

impl Tx {
    pub(crate) fn next_number(&self) -> u64 {
        self.base + self.chunks.len() as u64
    }

    /// A timeout or a probe has passed without news.
    pub(crate) fn has_waited(&self) -> bool {
        self.backoff > 0 || self.probed > 0
    }

    #[inline]
    pub(crate) fn chunk_mut(&mut self, number: u64) -> Option<&mut TxChunk> {
        let index = number.checked_sub(self.base)?;
        self.chunks.get_mut(usize::try_from(index).ok()?)
    }

    /// Numbers a chunk and queues it for sending.
    pub(crate) fn queue(&mut self, body: Body, bytes: usize, cause: Cause, early: Option<u16>) -> u64 {
        let number = self.next_number();
        let bytes = bytes + early_bytes(early);
        self.span_bytes += bytes;
        match cause {
            Cause::Own => {}
            Cause::Answer => self.answers += 1,
            Cause::Message => self.message_bytes += bytes,
        }
        self.resend.push(number, body.is_short());
        self.chunks.push_back(TxChunk {
            body,
            state: State::Queued,
            cause,
            bytes: bytes as u32,
            early,
            packet: 0,
            lost: None,
        });
        number
    }

    /// Numbers a chunk that is in packet `packet`, being built.
    #[inline]
    pub(crate) fn push_in_flight(&mut self, body: Body, bytes: usize, packet: u64, early: Option<u16>) {
        let bytes = bytes + early_bytes(early);
        self.span_bytes += bytes;
        self.in_flight += bytes;
        self.prompt |= body.is_answered_at_once();
        let (state, cause) = (State::InFlight, Cause::Own);
        self.chunks.push_back(TxChunk { body, state, cause, bytes: bytes as u32, early, packet, lost: None });
    }

    /// Whether the peer has asked for more than it may without acknowledging the answers. What this
    /// node has to say by itself never comes so far.
    #[inline]
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.answers > ANSWERS_MAX || self.message_bytes > MESSAGES_KEPT_BYTES_MAX
    }

    /// Takes out the oldest chunk, which has arrived.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<TxChunk> {
        let chunk = self.chunks.pop_front()?;
        self.base += 1;
        self.span_bytes -= chunk.bytes as usize;
        self.cut.arrived(self.base - 1);
        match chunk.cause {
            Cause::Own => {}
            Cause::Answer => self.answers -= 1,
            Cause::Message => self.message_bytes -= chunk.bytes as usize,
        }
        Some(chunk)
    }

    /// Checks packets that later ones have overtaken [RFC 8985]: one is lost when it was sent so
    /// long before one that has arrived that it is not just late. `lost` is told of it, and says
    /// which reduction of the window it belongs to; `arrived` is told the numbers of the others, as
    /// far as that is known of them.
    pub(crate) fn find_losses(
        &mut self,
        now: Time,
        rtt: &RoundTrip,
        mut arrived: impl FnMut(u64),
        mut lost: impl FnMut(LostPacket) -> u32,
    ) -> u64 {
        let mut chunks = 0;
        self.loss_time = None;
        let Some(largest) = self.largest_acked else { return chunks };
        let took = self.largest_took.max(rtt.smoothed().unwrap_or_default());
        let late = (took + self.reordering.window(rtt)).max(LATE_MIN);
        while let Some(&packet) = self.sent.front() {
            if packet.number > largest {
                break;
            }
            let unacknowledged = self.unacknowledged(&packet);
            if unacknowledged.chunks > 0 {
                let due = packet.sent.at + late;
                let by_number = !self.reordering.seen && packet.number + REORDER_PACKETS <= largest;
                if !by_number && due > now {
                    self.loss_time = Some(due);
                    break;
                }
                let reduction = lost(unacknowledged);
                let behind = self.large_arrived.is_none_or(|arrived| arrived < packet.number);
                self.large_lost += u32::from(packet.is_large && behind);
                if self.large_lost >= MTU_LOSSES_MAX {
                    self.large_lost = 0;
                    self.size_is_doubtful = true;
                }
                self.lose(&packet, reduction);
                chunks += unacknowledged.chunks;
            } else if !packet.is_piece {
                arrived(packet.number);
            }
            self.sent.pop_front();
        }
        chunks
    }

    /// Chunks of a packet that have not arrived, as far as is known, and are not under way again.
    fn unacknowledged(&self, packet: &SentPacket) -> LostPacket {
        let mut lost = LostPacket { number: packet.number, sent: packet.sent, chunks: 0, bytes: 0 };
        for run in &packet.runs {
            let end = run.first + u64::from(run.count);
            for number in run.first.max(self.base)..end {
                let chunk = &self.chunks[(number - self.base) as usize];
                if chunk.state == State::InFlight && chunk.packet == packet.number {
                    lost.chunks += 1;
                    lost.bytes += chunk.bytes as usize;
                }
            }
        }
        lost
    }

    fn lose(&mut self, packet: &SentPacket, reduction: u32) {
        for run in packet.runs {
            let end = run.first + u64::from(run.count);
            for number in run.first.max(self.base)..end {
                let chunk = &mut self.chunks[(number - self.base) as usize];
                if chunk.state == State::InFlight && chunk.packet == packet.number {
                    chunk.state = State::Lost;
                    chunk.lost = Some(reduction);
                    self.in_flight -= chunk.bytes as usize;
                    self.resend.push(number, chunk.body.is_short());
                }
            }
        }
    }

    /// After a timeout: the oldest chunks count as lost, up to `bytes` of them.
    pub(crate) fn lose_oldest(&mut self, bytes: usize) -> u64 {
        let (mut lost, mut total) = (0, 0);
        for (chunk, number) in self.chunks.iter_mut().zip(self.base..) {
            if chunk.state != State::InFlight {
                continue;
            }
            total += chunk.bytes as usize;
            if lost > 0 && total > bytes {
                break;
            }
            chunk.state = State::Lost;
            chunk.lost = Some(0);
            self.in_flight -= chunk.bytes as usize;
            self.resend.push(number, chunk.body.is_short());
            lost += 1;
        }
        lost
    }

    pub(crate) fn clear(&mut self) {
        *self = Tx { next_packet: self.next_packet, ..Tx::default() };
    }
}
