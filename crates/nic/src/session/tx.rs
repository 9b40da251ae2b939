//! The sending half: chunks by number, packets under way, what is lost.
//!
//! Invariants: `chunks[i]` has number `base + i`; `in_flight` is the sum over chunks `InFlight`;
//! `span_bytes` the sum over all chunks, which is what the receiver may have to hold; `answers` and
//! `message_bytes` count those of that cause.

use std::collections::VecDeque;

use super::{InboundFetch, Op};
use crate::limits::{ANSWERS_MAX, MESSAGES_KEPT_BYTES_MAX, REORDER_PACKETS, RUNS_PER_PACKET_MAX};
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
    FetchRequest {
        op: Key<Op>,
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

pub(crate) struct TxChunk {
    pub(crate) body: Body,
    pub(crate) state: State,
    pub(crate) cause: Cause,
    pub(crate) bytes: u32,
    /// Packet it was last sent in.
    pub(crate) packet: u64,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) count: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct SentPacket {
    pub(crate) number: u64,
    pub(crate) at: Time,
    pub(crate) runs: [Run; RUNS_PER_PACKET_MAX],
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
    pub(crate) resend: VecDeque<u64>,
    pub(crate) sent: VecDeque<SentPacket>,
    pub(crate) next_packet: u64,
    pub(crate) largest_acked: Option<u64>,
    pub(crate) last_sent: Time,
    /// Timeouts in a row.
    pub(crate) backoff: u32,
    /// Packets that may pass the congestion window: probes after a timeout.
    pub(crate) probes: u32,
    /// When the next packet overtaken by later ones counts as lost.
    pub(crate) loss_time: Option<Time>,
    /// One more than the number of the last chunk that reported a failure.
    pub(crate) barrier: u64,
    /// The window, not the queue, ended the last packet.
    pub(crate) limited: bool,
}

/// Result of looking for losses.
#[derive(Default)]
pub(crate) struct Losses {
    pub(crate) chunks: u64,
    pub(crate) largest_packet: Option<u64>,
}

impl Tx {
    pub(crate) fn next_number(&self) -> u64 {
        self.base + self.chunks.len() as u64
    }

    #[inline]
    pub(crate) fn chunk_mut(&mut self, number: u64) -> Option<&mut TxChunk> {
        let index = number.checked_sub(self.base)?;
        self.chunks.get_mut(usize::try_from(index).ok()?)
    }

    /// Numbers a chunk and queues it for sending.
    pub(crate) fn queue(&mut self, body: Body, bytes: usize, cause: Cause) -> u64 {
        let number = self.next_number();
        self.span_bytes += bytes;
        match cause {
            Cause::Own => {}
            Cause::Answer => self.answers += 1,
            Cause::Message => self.message_bytes += bytes,
        }
        self.chunks.push_back(TxChunk { body, state: State::Queued, cause, bytes: bytes as u32, packet: 0 });
        self.resend.push_back(number);
        number
    }

    /// Numbers a chunk that is in packet `packet`, being built.
    #[inline]
    pub(crate) fn push_in_flight(&mut self, body: Body, bytes: usize, packet: u64) {
        self.span_bytes += bytes;
        self.in_flight += bytes;
        let (state, cause) = (State::InFlight, Cause::Own);
        self.chunks.push_back(TxChunk { body, state, cause, bytes: bytes as u32, packet });
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
        match chunk.cause {
            Cause::Own => {}
            Cause::Answer => self.answers -= 1,
            Cause::Message => self.message_bytes -= chunk.bytes as usize,
        }
        Some(chunk)
    }

    /// Checks packets that later ones have overtaken.
    pub(crate) fn find_losses(&mut self, now: Time, reorder: std::time::Duration) -> Losses {
        let mut losses = Losses::default();
        self.loss_time = None;
        let Some(largest) = self.largest_acked else { return losses };
        while let Some(&packet) = self.sent.front() {
            if packet.number > largest {
                break;
            }
            if self.has_unacknowledged(&packet) {
                let due = packet.at + reorder;
                if packet.number + REORDER_PACKETS > largest && due > now {
                    self.loss_time = Some(due);
                    break;
                }
                losses.chunks += self.lose(&packet);
                losses.largest_packet = Some(packet.number);
            }
            self.sent.pop_front();
        }
        losses
    }

    fn has_unacknowledged(&self, packet: &SentPacket) -> bool {
        packet.runs.iter().any(|run| {
            let end = run.first + u64::from(run.count);
            (run.first.max(self.base)..end).any(|number| {
                let chunk = &self.chunks[(number - self.base) as usize];
                chunk.state == State::InFlight && chunk.packet == packet.number
            })
        })
    }

    fn lose(&mut self, packet: &SentPacket) -> u64 {
        let mut lost = 0;
        for run in packet.runs {
            let end = run.first + u64::from(run.count);
            for number in run.first.max(self.base)..end {
                let chunk = &mut self.chunks[(number - self.base) as usize];
                if chunk.state == State::InFlight && chunk.packet == packet.number {
                    chunk.state = State::Lost;
                    self.in_flight -= chunk.bytes as usize;
                    self.resend.push_back(number);
                    lost += 1;
                }
            }
        }
        lost
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
            self.in_flight -= chunk.bytes as usize;
            self.resend.push_back(number);
            lost += 1;
        }
        lost
    }

    pub(crate) fn clear(&mut self) {
        *self = Tx { next_packet: self.next_packet, ..Tx::default() };
    }
}
