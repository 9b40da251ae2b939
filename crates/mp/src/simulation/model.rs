//! What is true of the messages of a simulated job: two lists for each member, searched from their
//! beginnings, and where each message is.
//!
//! Invariant: a message is in one place at a time. The lists follow what the network does, never
//! what members say; what members say is held against them.

use crate::error::{Gone, MpError};
use crate::limits::{EAGER_BYTES_MAX, MESSAGE_COST};
use crate::matching::{Envelope, Pattern};
use crate::state::Received;
use crate::wire::Said;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(super) type MessageId = usize;
pub(super) type ReceiveId = usize;
/// A collective call: its place on the list, and what kind of a call the member makes.
pub(super) type Turn = (usize, u64);

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// At its sender.
    Queued,
    OnItsWay,
    /// At its receiver, without a receive.
    Waits,
    Matched(ReceiveId),
    /// Taken back by its sender.
    Withdrawn,
    /// With a member that has gone.
    Lost,
}

#[derive(Debug)]
pub(super) struct Sent {
    pub(super) envelope: Envelope,
    pub(super) to: u32,
    pub(super) len: u64,
    pub(super) stage: Stage,
    /// Of which collective call it is, and then its bytes.
    turn: Option<Turn>,
    bytes: Option<Shown>,
    /// It has gone at once.
    eager: bool,
    /// Its sender has given it up, whoever has it.
    given_up: bool,
}

/// Bytes, which are shown as how many they are.
struct Shown(Vec<u8>);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

#[derive(Debug)]
pub(super) struct Posted {
    rank: u32,
    pub(super) pattern: Pattern,
    room: u64,
    /// Of which collective call it is.
    turn: Option<Turn>,
    pub(super) got: Option<MessageId>,
}

/// See the module page.
#[derive(Default)]
pub(super) struct Model {
    /// What was wrong first.
    pub(super) wrong: Option<String>,
    sent: Vec<Sent>,
    receives: Vec<Posted>,
    /// Begun and not gone, in order, by sender and receiver.
    queues: BTreeMap<(u32, u32), VecDeque<MessageId>>,
    /// Receives that wait, in order, by member.
    posted: BTreeMap<u32, Vec<ReceiveId>>,
    /// Messages that wait, in order, by member.
    waiting: BTreeMap<u32, Vec<MessageId>>,
    /// Members that a member takes nothing of any more.
    gone: BTreeSet<(u32, u32)>,
    /// Messages that have asked, by sender and number of the send.
    asks: BTreeMap<(u32, u32), MessageId>,
    /// The last message that has come, and one, by sender and receiver.
    latest: BTreeMap<(u32, u32), MessageId>,
    pub(super) matched: u64,
}

/// The bytes of a message.
pub(super) fn content(message: MessageId, len: u64) -> Vec<u8> {
    let mut word = (message as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while bytes.len() < len as usize {
        bytes.extend_from_slice(&word.to_le_bytes());
        word = word.rotate_left(23).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    }
    bytes.truncate(len as usize);
    bytes
}

impl Model {
    pub(super) fn message(&self, id: MessageId) -> &Sent {
        &self.sent[id]
    }

    /// Its bytes.
    pub(super) fn content(&self, id: MessageId) -> Vec<u8> {
        let Sent { bytes, len, .. } = &self.sent[id];
        bytes.as_ref().map_or_else(|| content(id, *len), |bytes| bytes.0.clone())
    }

    pub(super) fn receive(&self, id: ReceiveId) -> &Posted {
        &self.receives[id]
    }

    pub(super) fn messages(&self) -> u64 {
        self.sent.len() as u64
    }

    fn is_wrong(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }

    /// A member begins a send.
    pub(super) fn begins(&mut self, envelope: Envelope, to: u32, len: u64) -> MessageId {
        let (turn, bytes) = (None, None);
        self.begins_a(Sent { envelope, to, len, stage: Stage::Queued, turn, bytes, eager: false, given_up: false })
    }

    /// The same, of these bytes, for a collective call.
    pub(super) fn begins_of(&mut self, envelope: Envelope, to: u32, bytes: Vec<u8>, turn: Option<Turn>) -> MessageId {
        let (len, bytes) = (bytes.len() as u64, Some(Shown(bytes)));
        self.begins_a(Sent { envelope, to, len, stage: Stage::Queued, turn, bytes, eager: false, given_up: false })
    }

    fn begins_a(&mut self, sent: Sent) -> MessageId {
        let (id, envelope, to) = (self.sent.len(), sent.envelope, sent.to);
        self.sent.push(sent);
        self.queues.entry((envelope.source, to)).or_default().push_back(id);
        id
    }

    /// It does not go: it has failed, or was taken back where it was. False: it has gone before.
    pub(super) fn never_goes(&mut self, id: MessageId, stage: Stage) -> bool {
        if self.sent[id].stage != Stage::Queued {
            return false;
        }
        let pair = (self.sent[id].envelope.source, self.sent[id].to);
        self.queues.entry(pair).or_default().retain(|queued| *queued != id);
        self.sent[id].stage = stage;
        true
    }

    /// Messages of one member to another that have not gone.
    pub(super) fn queued(&self, from: u32, to: u32) -> usize {
        self.queues.get(&(from, to)).map_or(0, VecDeque::len)
    }

    /// All of these never go.
    pub(super) fn queue_is_lost(&mut self, from: u32, to: u32) {
        let queue = self.queues.remove(&(from, to)).unwrap_or_default();
        queue.into_iter().for_each(|id| self.sent[id].stage = Stage::Lost);
    }

    /// What one member sends to another, as it goes.
    pub(super) fn goes(&mut self, from: u32, to: u32, control: &[u8], payload: &[u8]) -> Option<MessageId> {
        let (_, said) = Said::decode(control)?;
        let (context, tag, len) = match said {
            Said::Eager { context, tag, inline } => (context, tag, (payload.len() + inline.len()) as u64),
            Said::Ask { context, tag, len, .. } => (context, tag, len),
            _ => return None,
        };
        let Some(id) = self.queues.entry((from, to)).or_default().pop_front() else {
            self.is_wrong(format!("{from} sends to {to} what was never sent, or once more: {said:?}"));
            return None;
        };
        let &Sent { envelope, len: due, .. } = &self.sent[id];
        if (context, tag, len) != (envelope.context, envelope.tag, due) {
            self.is_wrong(format!("{from} sends to {to} out of turn: {said:?}, and {:?} was due", self.sent[id]));
        }
        match said {
            Said::Eager { inline, .. } => {
                self.sent[id].eager = true;
                let bytes = if payload.is_empty() { inline } else { payload };
                if bytes != self.content(id) {
                    self.is_wrong(format!("{from} sends other bytes to {to} than those of message {id}"));
                }
            }
            Said::Ask { send, .. } => drop(self.asks.insert((from, send), id)),
            _ => {}
        }
        self.sent[id].stage = Stage::OnItsWay;
        Some(id)
    }

    /// A message is taken from the network, and so is for the oldest receive that is for it.
    pub(super) fn comes(&mut self, from: u32, rank: u32, control: &[u8], message: Option<MessageId>) {
        if self.gone.contains(&(rank, from)) {
            message.into_iter().for_each(|id| self.lose(id));
            return;
        }
        if let Some(id) = message {
            let latest = self.latest.entry((from, rank)).or_default();
            if std::mem::replace(latest, id + 1) > id {
                self.is_wrong(format!("{from} to {rank}: a message comes before one that went before it: {id}"));
            }
            let envelope = self.sent[id].envelope;
            let posted = self.posted.entry(rank).or_default();
            let receives = &mut self.receives;
            match posted.iter().position(|receive| receives[*receive].pattern.is_for(&envelope)) {
                Some(at) => {
                    let receive = posted.remove(at);
                    receives[receive].got = Some(id);
                    self.sent[id].stage = Stage::Matched(receive);
                    self.matched += 1;
                }
                None => {
                    self.waiting.entry(rank).or_default().push(id);
                    self.sent[id].stage = Stage::Waits;
                }
            }
        }
        if let Some((_, Said::Withdraw { send, forced })) = Said::decode(control) {
            let Some(id) = self.asks.get(&(from, send)).copied() else {
                return self.is_wrong(format!("{from} takes back a send that it did not ask for: {send}"));
            };
            if self.sent[id].stage == Stage::Waits {
                self.waiting.entry(rank).or_default().retain(|waiting| *waiting != id);
                self.sent[id].stage = Stage::Withdrawn;
            } else {
                self.sent[id].given_up |= forced;
            }
        }
    }

    /// A message does not arrive.
    pub(super) fn lose(&mut self, id: MessageId) {
        self.sent[id].stage = Stage::Lost;
    }

    /// What a message takes of its sender's credit.
    pub(super) fn eager_cost(&self, id: MessageId) -> u64 {
        let &Sent { eager, len, .. } = &self.sent[id];
        if eager { len + MESSAGE_COST } else { 0 }
    }

    /// A member begins a receive, which takes the oldest message that it is for.
    pub(super) fn posts(&mut self, rank: u32, pattern: Pattern, room: u64) -> ReceiveId {
        self.posts_of(rank, pattern, room, None)
    }

    /// The same, for a collective call.
    pub(super) fn posts_of(&mut self, rank: u32, pattern: Pattern, room: u64, turn: Option<Turn>) -> ReceiveId {
        let id = self.receives.len();
        let waiting = self.waiting.entry(rank).or_default();
        let sent = &mut self.sent;
        let at = waiting.iter().position(|message| pattern.is_for(&sent[*message].envelope));
        let got = at.map(|at| waiting.remove(at));
        match got {
            Some(message) => {
                sent[message].stage = Stage::Matched(id);
                self.matched += 1;
            }
            None => self.posted.entry(rank).or_default().push(id),
        }
        self.receives.push(Posted { rank, pattern, room, turn, got });
        id
    }

    /// A receive waits no longer. False: it has a message.
    pub(super) fn unposts(&mut self, id: ReceiveId) -> bool {
        let posted = self.posted.entry(self.receives[id].rank).or_default();
        let count = posted.len();
        posted.retain(|posted| *posted != id);
        posted.len() < count
    }

    /// A member takes nothing more of another one.
    pub(super) fn member_gone(&mut self, rank: u32, who: u32) {
        self.gone.insert((rank, who));
        self.queue_is_lost(rank, who);
        let sent = &mut self.sent;
        self.waiting.entry(rank).or_default().retain(|id| {
            let keeps = sent[*id].envelope.source != who || sent[*id].eager;
            if !keeps {
                sent[*id].stage = Stage::Lost;
            }
            keeps
        });
    }

    /// The oldest message that a receive of this pattern would get.
    pub(super) fn finds(&self, rank: u32, pattern: &Pattern) -> Option<MessageId> {
        self.waits(rank).iter().copied().find(|id| pattern.is_for(&self.sent[*id].envelope))
    }

    /// Messages that wait at a member, oldest first.
    pub(super) fn waits(&self, rank: u32) -> &[MessageId] {
        self.waiting.get(&rank).map_or(&[], Vec::as_slice)
    }

    /// Bytes and costs of what waits at a member, of those that one has sent at once; and how many
    /// of its messages wait that have asked.
    pub(super) fn held(&self, rank: u32, of: u32) -> (u64, usize) {
        let its = || self.waits(rank).iter().filter(|id| self.sent[**id].envelope.source == of);
        (its().map(|id| self.eager_cost(*id)).sum(), its().filter(|id| !self.sent[**id].eager).count())
    }

    /// Holds the outcome of a receive against what is true; gives its message if it has one.
    pub(super) fn outcome(
        &self,
        id: ReceiveId,
        outcome: &Received,
        memory: &[u8],
        asked_back: bool,
        gone: &dyn Fn(u32) -> Option<Gone>,
    ) -> Result<(), String> {
        let Posted { rank, pattern, room, turn, got } = &self.receives[id];
        let got = got.map(|message| (message, &self.sent[message]));
        let wrong = |what: &str| {
            Err(format!("{rank}: {what}: a receive of {room} bytes, {pattern:?}, gave {outcome:?}; due was {got:?}"))
        };
        match (outcome, got) {
            (Ok((envelope, len)), Some((message, sent))) => {
                if (*envelope, *len) != (sent.envelope, sent.len) {
                    return wrong("another message");
                }
                // At the end what is left of failed calls is received by nobody's call.
                let is_rest = turn.is_none() && pattern.context % 2 == 1;
                if *turn != sent.turn && !is_rest {
                    return wrong("a message of another call");
                }
                if *len > *room || memory[..*len as usize] != self.content(message) {
                    return wrong("other bytes");
                }
                Ok(())
            }
            (Err(MpError::Truncated { source_rank, len, .. }), Some((_, sent))) => {
                let is_it = (*source_rank, *len) == (sent.envelope.source, sent.len) && len > room;
                if is_it { Ok(()) } else { wrong("no reason to truncate") }
            }
            (Err(MpError::GivenUp { rank }), Some((_, sent))) => {
                let is_it = sent.given_up && *rank == sent.envelope.source;
                if is_it { Ok(()) } else { wrong("nobody has given it up") }
            }
            (Err(MpError::Cancelled), None) if asked_back => Ok(()),
            (Err(MpError::Gone { rank: who, .. }), got) => {
                let collective = pattern.context % 2 == 1;
                let waits_for = got.map_or(pattern.source, |(_, sent)| Some(sent.envelope.source));
                if gone(*who).is_none() {
                    return wrong("it is there");
                }
                // A short message that has come is received, whoever has gone.
                let has = got.is_some_and(|(_, sent)| sent.eager);
                if (waits_for == Some(*who) || collective) && !has { Ok(()) } else { wrong("it was not needed") }
            }
            (Err(MpError::AllGone), None) if pattern.source.is_none() => Ok(()),
            _ => wrong("no such outcome"),
        }
    }

    /// Holds the outcome of a send against what is true.
    pub(super) fn send_outcome(
        &self,
        id: MessageId,
        outcome: &Result<(), MpError>,
        asked_back: bool,
        gone: &dyn Fn(u32) -> Option<Gone>,
    ) -> Result<(), String> {
        let sent = &self.sent[id];
        let is_due = match outcome {
            Ok(()) if sent.eager => sent.stage != Stage::Queued,
            // The receiver has said something of it.
            Ok(()) => matches!(sent.stage, Stage::Matched(_) | Stage::Lost),
            Err(MpError::Cancelled) => asked_back && sent.stage == Stage::Withdrawn,
            Err(MpError::Gone { rank, .. }) => {
                (*rank == sent.to || sent.envelope.context % 2 == 1) && gone(*rank).is_some()
            }
            Err(_) => false,
        };
        if is_due { Ok(()) } else { Err(format!("a send ended with {outcome:?}, and is {sent:?}")) }
    }

    /// Whether it goes in a way that needs no answer, if there is room.
    pub(super) fn is_short(&self, id: MessageId) -> bool {
        self.sent[id].len <= EAGER_BYTES_MAX
    }
}
