//! What a member knows of its messages: who the others are, which sends and receives are under way,
//! and what has come and waits.
//!
//! ```text
//!  short  ── Eager ─▶ receive, or kept: up to 256 KiB of a sender ── Taken ─▶ the sender may go on so
//!  long   ── Ask ──▶ receive ── Go, a token for each part ──▶ parts by token ──▶ its memory
//! ```
//!
//! Here is what comes in; `sending.rs`, `receiving.rs` and `leaving.rs` have the rest.
//!
//! Invariant: what goes to one member goes in the order in which it was begun, whichever way. What
//! a member says is held against what it may say, and who breaks that is cut off. Nothing here
//! waits.

mod leaving;
mod ledger;
mod receiving;
mod sending;

use crate::error::{Gone, MpError};
use crate::limits::{ASKS_MAX, ASKS_SAID_MAX, GROUPS_MAX, MESSAGE_COST, TOLD_EACH, UNEXPECTED_BYTES_MAX};
use crate::matching::{Envelope, Matcher, Pattern};
use crate::slab::Slab;
use crate::transport::Transport;
use crate::wire::{Encoded, Said, VERSION, eager_of};
pub(crate) use leaving::context_of;
pub(crate) use receiving::{Direct, Receive, Received};
pub(crate) use sending::{Held, Send};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use vmmc::{AccessError, Came, Nanos};

/// See the module page.
pub(crate) struct State<T: Transport> {
    pub(crate) transport: T,
    pub(crate) rank: u32,
    pub(crate) peers: Vec<Peer<T>>,
    pub(crate) matcher: Matcher<Waiting>,
    pub(crate) receives: Slab<Receive<T>>,
    pub(crate) sends: Slab<Send<T>>,
    /// Members that something waits to go to.
    busy: VecDeque<u32>,
    /// Sends of long messages whose next part may go.
    granted: VecDeque<u32>,
    /// Receives of long messages that wait for a buffer.
    starved: VecDeque<u32>,
    /// Members of each group, by its number.
    groups: HashMap<u32, Weak<[u32]>>,
    /// Numbers that this member has given to groups.
    numbers: u32,
    pub(crate) aborted: Option<MpError>,
    /// Some member has gone.
    pub(crate) some_gone: bool,
    looked_at: Nanos,
    /// Receives since the last send, as far as they came early; of a stream, if they are many.
    pub(crate) received_in_a_row: u32,
    pub(crate) counts: Counts,
}

/// What a look of a receive that nothing is noted of has found.
pub(crate) enum Early {
    Nothing,
    /// A message, which is to be handled.
    Message,
    /// Its own message, and how long that is.
    Received(Envelope, u64),
}

/// What became of messages so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages sent at once.
    pub eager: u64,
    /// Messages sent that asked for their place first.
    pub asked: u64,
    /// Of those, short ones: so much had gone at once that was not received yet.
    pub asked_short: u64,
    /// Messages that came before a receive for them.
    pub unexpected: u64,
    /// Members that were cut off, for what they said made no sense.
    pub misbehaved: u64,
}

/// A member, this one among them.
pub(crate) struct Peer<T: Transport> {
    connection: Option<T::Connection>,
    connecting: bool,
    /// By whom its messages come.
    from: Option<T::Sender>,
    /// How it has gone.
    pub(crate) gone: Option<Gone>,
    /// It is said to have gone, since then: what it has sent may still come.
    going: Option<(Nanos, Gone)>,
    /// What is to be said to it, in order.
    says: VecDeque<Encoded>,
    /// Sends to it that have not begun to go, in order.
    out: VecDeque<u32>,
    /// It is among the busy ones.
    busy: bool,
    /// What went to it at once, and what of that it has received: bytes and costs.
    spent: u64,
    taken: u64,
    /// Messages to it that have asked, and have no answer.
    asks: usize,
    /// What came from it at once and was received, and what it was told of that.
    received: u64,
    told: u64,
    /// What came from it at once and waits.
    held: u64,
    /// Messages of it that have asked, and wait.
    asked: usize,
}

impl<T: Transport> Peer<T> {
    /// Whether what this sender says is this member's word, and still counts.
    #[inline]
    fn is_heard(&self, from: T::Sender) -> bool {
        self.from == Some(from) && self.gone.is_none()
    }
}

/// A message that waits for a receive.
pub(crate) enum Waiting {
    Here(Vec<u8>),
    Asked { send: u32, len: u64 },
}

impl Waiting {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Waiting::Here(bytes) => bytes.len() as u64,
            Waiting::Asked { len, .. } => *len,
        }
    }
}

impl<T: Transport> Default for Peer<T> {
    fn default() -> Self {
        Peer {
            connection: None,
            connecting: false,
            from: None,
            gone: None,
            going: None,
            says: VecDeque::new(),
            out: VecDeque::new(),
            busy: false,
            spent: 0,
            taken: 0,
            asks: 0,
            received: 0,
            told: 0,
            held: 0,
            asked: 0,
        }
    }
}

impl<T: Transport> State<T> {
    pub(crate) fn new(transport: T, rank: u32, size: u32) -> State<T> {
        State {
            looked_at: transport.now(),
            transport,
            rank,
            peers: (0..size).map(|_| Peer::default()).collect(),
            matcher: Matcher::default(),
            receives: Slab::default(),
            sends: Slab::default(),
            busy: VecDeque::new(),
            granted: VecDeque::new(),
            starved: VecDeque::new(),
            groups: HashMap::new(),
            numbers: 0,
            aborted: None,
            some_gone: false,
            received_in_a_row: 0,
            counts: Counts::default(),
        }
    }

    /// This member is in a group of this number from now on, as long as somebody has that.
    pub(crate) fn enter(&mut self, number: u32, members: &Arc<[u32]>) {
        self.groups.retain(|_, members| members.strong_count() > 0);
        self.groups.insert(number, Arc::downgrade(members));
    }

    /// A number for a new group, which no other member gives, nor this one again. None: it has
    /// given all that it has.
    pub(crate) fn new_number(&mut self) -> Option<u32> {
        let number = self.numbers + 1;
        (number < GROUPS_MAX).then(|| {
            self.numbers = number;
            self.rank * GROUPS_MAX + number
        })
    }

    fn members_of(&self, context: u32) -> Option<Arc<[u32]>> {
        self.groups.get(&(context / 2)).and_then(Weak::upgrade)
    }

    /// Whether something waits to go out, so that nobody tells when it can.
    #[inline]
    pub(crate) fn has_something_to_do(&self) -> bool {
        !self.busy.is_empty() || !self.granted.is_empty() || !self.starved.is_empty()
    }

    /// Whether a message can be received that nothing is noted of: no receive waits that may be
    /// older, all members are there, and nothing waits to go out.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        let all_is_well = !self.some_gone && self.aborted.is_none();
        all_is_well && !self.matcher.has_receives() && !self.has_something_to_do() && !self.has_news()
    }

    /// Whether connections have come.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.transport.has_connections()
    }

    /// Takes a message that has come. `direct` is the receive whose caller is here.
    #[inline]
    pub(crate) fn handle(&mut self, message: &mut T::Message, direct: &mut Direct<'_>) {
        let Some((rank, said)) = Said::decode(T::control(message)) else { return self.nonsense(message) };
        let Some(peer) = self.peers.get_mut(rank as usize) else { return self.nonsense(message) };
        if peer.from != Some(T::from(message)) {
            return self.hello(rank, message);
        }
        if peer.gone.is_some() {
            return;
        }
        match said {
            Said::Eager { context, tag, .. } => {
                self.eager(Envelope { context, source: rank, tag }, message, direct);
            }
            Said::Part { receive, offset } => self.part_came(rank, receive, offset, message, direct),
            _ => self.handle_seldom(rank, message),
        }
    }

    /// Takes the next message. A short one that is for a receive of this pattern, before which none
    /// waits, and fits its memory, is received on the way, and copied once.
    #[inline]
    pub(crate) fn poll_for(
        &mut self,
        message: &mut T::Message,
        pattern: &Pattern,
        memory: &mut [u8],
    ) -> Result<Early, AccessError> {
        let (peers, mut received) = (&self.peers, None);
        let came = self.transport.poll_split(message, |from, head, len| {
            let (source, context, tag) = eager_of(head, len)?;
            let envelope = Envelope { context, source, tag };
            peers.get(source as usize).filter(|peer| pattern.is_for(&envelope) && peer.is_heard(from))?;
            received = Some((envelope, len as u64));
            memory.get_mut(..len)
        })?;
        Ok(match (came, received) {
            (Came::Split, Some((envelope, len))) => {
                self.count_received(envelope.source, len);
                self.received_in_a_row = self.received_in_a_row.saturating_add(1);
                Early::Received(envelope, len)
            }
            (Came::Nothing, _) => Early::Nothing,
            _ => Early::Message,
        })
    }

    /// Takes a message that has come, if it has come at once and is for a receive of this pattern,
    /// before which none waits, and fits its memory, which gets it. None: it is to be
    /// [handled](Self::handle).
    #[inline]
    pub(crate) fn receive_now(
        &mut self,
        message: &mut T::Message,
        pattern: &Pattern,
        memory: &mut [u8],
    ) -> Option<(Envelope, u64)> {
        let (rank, Said::Eager { context, tag, .. }) = Said::decode(T::control(message))? else { return None };
        let envelope = Envelope { context, source: rank, tag };
        let from = T::from(message);
        self.peers.get(rank as usize).filter(|peer| pattern.is_for(&envelope) && peer.is_heard(from))?;
        // A frame is taken out of the message only if it is used.
        let len = T::payload_len(message).unwrap_or((T::control(message).len() - crate::wire::HEAD_BYTES) as u64);
        if len > memory.len() as u64 {
            return None;
        }
        Eager::<T>::of(message).copy_to(memory);
        self.count_received(rank, len);
        self.received_in_a_row = self.received_in_a_row.saturating_add(1);
        Some((envelope, len))
    }

    #[inline(never)]
    fn handle_seldom(&mut self, rank: u32, message: &T::Message) {
        let Some((_, said)) = Said::decode(T::control(message)) else { return };
        match said {
            Said::Hello { .. } => self.cut_off(rank, "a second greeting"),
            Said::Ask { context, tag, send, len } => {
                self.asked(Envelope { context, source: rank, tag }, send, len);
            }
            Said::Go { send, receive, offset, len, token } => self.grant(rank, send, receive, offset, len, token),
            Said::Over { send } => self.send_over(rank, send),
            Said::Withdraw { send, forced } => self.withdrawn_by(rank, send, forced),
            Said::Withdrawn { send, was } => self.withdrawn(rank, send, was),
            Said::Taken { total } => self.taken_by(rank, total),
            Said::Bye => self.member_gone(rank, Gone::Left),
            Said::Abort { of, code, text } => {
                let text = String::from_utf8_lossy(text).into_owned();
                self.aborted.get_or_insert(MpError::Aborted { rank: of.into(), code, text });
            }
            Said::Eager { .. } | Said::Part { .. } => unreachable!("`handle` has taken it"),
        }
    }

    /// The first message of a connection says whose it is. Who says so of a rank that has one is
    /// not believed, nor does anybody but this process say so of its own.
    fn hello(&mut self, rank: u32, message: &T::Message) {
        let from = T::from(message);
        if (rank == self.rank) != self.transport.is_own(&from) {
            self.counts.misbehaved += 1;
            return;
        }
        let peer = &mut self.peers[rank as usize];
        match Said::decode(T::control(message)) {
            Some((_, Said::Hello { version })) if peer.from.is_none() => {
                peer.from = Some(from);
                if version != VERSION {
                    self.member_gone(rank, Gone::Version { theirs: version, ours: VERSION });
                }
            }
            _ => self.counts.misbehaved += 1,
        }
    }

    /// What makes no sense is from a member that has greeted, or from nobody that is known.
    fn nonsense(&mut self, message: &T::Message) {
        let from = T::from(message);
        match self.peers.iter().position(|peer| peer.from == Some(from)) {
            Some(rank) => self.cut_off(rank as u32, "no message"),
            None => self.counts.misbehaved += 1,
        }
    }

    pub(crate) fn cut_off(&mut self, rank: u32, what: &'static str) {
        self.counts.misbehaved += 1;
        self.member_gone(rank, Gone::Misbehaved { what });
    }

    #[inline]
    fn eager(&mut self, envelope: Envelope, message: &mut T::Message, direct: &mut Direct<'_>) {
        let from = Eager::<T>::of(message);
        match self.matcher.arrive(&envelope) {
            Some(id) => {
                self.count_received(envelope.source, from.len());
                self.receive_here(id as u32, envelope, from, direct);
            }
            None => {
                let cost = from.len() + MESSAGE_COST;
                let peer = &mut self.peers[envelope.source as usize];
                if peer.held + cost > UNEXPECTED_BYTES_MAX {
                    return self.cut_off(envelope.source, "more at once than it may");
                }
                peer.held += cost;
                self.counts.unexpected += 1;
                self.matcher.keep(envelope, Waiting::Here(from.to_vec()));
            }
        }
    }

    /// A message was received that had come at once. Its sender is told of many together.
    #[inline]
    pub(crate) fn count_received(&mut self, rank: u32, len: u64) {
        let peer = &mut self.peers[rank as usize];
        peer.received += len + MESSAGE_COST;
        if peer.received - peer.told >= TOLD_EACH {
            peer.told = peer.received;
            let total = peer.received;
            self.say(rank, &Said::Taken { total });
        }
    }

    fn taken_by(&mut self, rank: u32, total: u64) {
        let peer = &mut self.peers[rank as usize];
        if total < peer.taken || total > peer.spent {
            return self.cut_off(rank, "that it has received what was not sent");
        }
        peer.taken = total;
    }

    fn asked(&mut self, envelope: Envelope, send: u32, len: u64) {
        match self.matcher.arrive(&envelope) {
            Some(id) => self.receive_asked(id as u32, envelope, send, len),
            None => {
                let peer = &mut self.peers[envelope.source as usize];
                if peer.asked >= ASKS_MAX {
                    return self.cut_off(envelope.source, "more questions than it may");
                }
                peer.asked += 1;
                self.counts.unexpected += 1;
                self.matcher.keep(envelope, Waiting::Asked { send, len });
            }
        }
    }

    /// Says something to a member, now or as soon as there is room.
    pub(crate) fn say(&mut self, rank: u32, said: &Said<'_>) {
        let encoded = said.encode(self.rank);
        let peer = &mut self.peers[rank as usize];
        if peer.gone.is_some() {
            return;
        }
        if peer.says.len() >= ASKS_SAID_MAX {
            return self.cut_off(rank, "more than it takes answers for");
        }
        peer.says.push_back(encoded);
        self.now_busy(rank);
    }

    fn now_busy(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        if !std::mem::replace(&mut peer.busy, true) {
            self.busy.push_back(rank);
        }
    }
}

/// The bytes of a message that came at once.
pub(crate) enum Eager<'m, T: Transport> {
    Inline(&'m [u8]),
    Frame(T::Frame),
}

impl<'m, T: Transport> Eager<'m, T> {
    #[inline]
    fn of(message: &'m mut T::Message) -> Eager<'m, T> {
        match T::take_payload(message) {
            Some(frame) => Eager::Frame(frame),
            None => Eager::Inline(&T::control(message)[crate::wire::HEAD_BYTES..]),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        match self {
            Eager::Inline(bytes) => bytes.len() as u64,
            Eager::Frame(frame) => T::frame_len(frame),
        }
    }

    fn to_vec(&self) -> Vec<u8> {
        match self {
            Eager::Inline(bytes) => bytes.to_vec(),
            Eager::Frame(frame) => {
                let mut bytes = vec![0; T::frame_len(frame) as usize];
                T::read_frame(frame, &mut bytes);
                bytes
            }
        }
    }
}
