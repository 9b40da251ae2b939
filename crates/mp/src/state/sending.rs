//! Sends: at once while there is room for them, else in turn; long ones part by part, as the
//! receiver asks.
//!
//! Invariant: a send is done when its memory is not needed any more. It goes behind those that were
//! begun before it.

use super::State;
use super::leaving::is_collective;
use crate::error::MpError;
use crate::limits::{
    ASKS_MAX, EAGER_BETWEEN_NODES_BYTES_MAX, EAGER_BYTES_MAX, INLINE_BYTES_MAX, MESSAGE_COST, PARTS_AT_ONCE,
    UNEXPECTED_BYTES_MAX,
};
use crate::transport::{Bytes, Landing, NotSent, Transport};
use crate::wire::{Encoded, Said, eager};
use std::collections::VecDeque;
use vmmc::PayloadToken;

/// A send that has not gone at once.
pub(crate) struct Send<T: Transport> {
    rank: u32,
    context: u32,
    tag: u64,
    len: u64,
    held: Held<T::Payload>,
    stage: Stage,
    grants: VecDeque<Grant>,
    /// Bytes of parts that have gone.
    sent: u64,
    /// Set once it is over.
    pub(crate) done: Option<Result<(), MpError>>,
    /// Nobody waits for it.
    dropped: bool,
}

/// How a send ended, and what it held.
pub(crate) type Sent<P> = (Result<(), MpError>, Option<P>);

/// Where its bytes are.
pub(crate) enum Held<P> {
    /// Whoever waits for it has them.
    Caller,
    /// A short one's.
    Copy(Vec<u8>),
    Own(P),
    /// Given up.
    Nowhere,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Queued,
    /// It has asked for its place.
    Asked,
    /// It has failed since, and waits for the answer alone: the receiver counts it until then.
    TakenBack,
    /// It has an answer.
    Answered,
}

/// Where a part goes.
struct Grant {
    receive: u32,
    offset: u64,
    len: u64,
    token: PayloadToken,
}

/// What became of a try.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Put {
    Gone,
    NoRoom,
}

impl<T: Transport> Send<T> {
    /// It has asked, and has no answer.
    fn has_asked(&self) -> bool {
        matches!(self.stage, Stage::Asked | Stage::TakenBack)
    }

    fn payload<'p>(&'p self, caller: Option<Bytes<'p, T::Place>>) -> Option<Bytes<'p, T::Place>> {
        match &self.held {
            Held::Caller => caller,
            Held::Copy(bytes) => Some(Bytes::Slice(bytes)),
            Held::Own(own) => Some(T::payload(own)),
            Held::Nowhere => None,
        }
    }
}

/// Whether a message is short enough to go without a question.
#[inline]
fn goes_at_once<T: Transport>(to: &T::Connection, len: u64) -> bool {
    len <= EAGER_BYTES_MAX || len <= EAGER_BETWEEN_NODES_BYTES_MAX && !T::is_mapped(to)
}

impl<T: Transport> State<T> {
    /// Sends a message if it is short and there is room for it now. False: it is to be queued.
    #[inline]
    pub(crate) fn send_now(
        &mut self,
        rank: u32,
        context: u32,
        tag: u64,
        payload: Bytes<'_, T::Place>,
    ) -> Result<bool, MpError> {
        self.received_in_a_row = 0;
        let len = payload.len();
        let peer = &self.peers[rank as usize];
        if !peer.out.is_empty() || !peer.connection.as_ref().is_some_and(|to| goes_at_once::<T>(to, len)) {
            self.check_member(rank)?;
            return Ok(false);
        }
        if peer.spent - peer.taken + len + MESSAGE_COST > UNEXPECTED_BYTES_MAX {
            return Ok(false);
        }
        Ok(self.put_eager(rank, context, tag, payload)? == Put::Gone)
    }

    /// Sends a message if that is stored in the memory of the member now. False: nothing has gone;
    /// [`send_now`](Self::send_now) sends it, or says why not.
    #[inline]
    pub(crate) fn send_at_once(&mut self, rank: u32, context: u32, tag: u64, bytes: &[u8]) -> bool {
        let (len, own) = (bytes.len() as u64, self.rank);
        let Some(peer) = self.peers.get_mut(rank as usize).filter(|peer| peer.out.is_empty()) else { return false };
        let has_room = peer.spent - peer.taken + len + MESSAGE_COST <= UNEXPECTED_BYTES_MAX;
        let Some(connection) = peer.connection.as_mut().filter(|_| has_room) else { return false };
        if bytes.len() > INLINE_BYTES_MAX || !T::send_at_once(connection, &eager(own, context, tag), bytes) {
            return false;
        }
        peer.spent += len + MESSAGE_COST;
        self.counts.eager += 1;
        self.received_in_a_row = 0;
        true
    }

    /// Queues a message.
    pub(crate) fn send_in_turn(
        &mut self,
        rank: u32,
        context: u32,
        tag: u64,
        len: u64,
        held: Held<T::Payload>,
    ) -> Result<u32, MpError> {
        self.check_member(rank)?;
        if self.some_gone && is_collective(context) {
            // The other member may have ended the call, and then receives nothing of it.
            self.failed_in(context).map_or(Ok(()), Err)?;
        }
        let (stage, grants) = (Stage::Queued, VecDeque::new());
        let send = Send { rank, context, tag, len, held, stage, grants, sent: 0, done: None, dropped: false };
        let id = self.sends.insert(send).ok_or(MpError::TooManyRequests)?;
        self.peers[rank as usize].out.push_back(id);
        self.push(rank);
        Ok(id)
    }

    fn check_member(&self, rank: u32) -> Result<(), MpError> {
        let peer = &self.peers[rank as usize];
        match peer.gone.as_ref().or(peer.going.as_ref().map(|(_, how)| how)) {
            Some(how) => Err(MpError::Gone { rank, how: how.clone() }),
            None => Ok(()),
        }
    }

    #[inline]
    fn put_eager(&mut self, rank: u32, context: u32, tag: u64, payload: Bytes<'_, T::Place>) -> Result<Put, MpError> {
        let len = payload.len();
        let peer = &mut self.peers[rank as usize];
        let Some(connection) = peer.connection.as_mut() else { return Ok(Put::NoRoom) };
        let eager = |inline| Said::Eager { context, tag, inline }.encode(self.rank);
        let put = match payload {
            _ if len <= INLINE_BYTES_MAX as u64 => {
                let mut short = [0; INLINE_BYTES_MAX];
                let inline = match payload {
                    Bytes::Slice(slice) => slice,
                    Bytes::Place(place) => {
                        let inline = &mut short[..len as usize];
                        place.read(inline)?;
                        inline
                    }
                };
                say::<T>(connection, &eager(inline))
            }
            payload => T::send(connection, eager(&[]).bytes(), payload, 0..len),
        };
        match put {
            Ok(()) => {
                peer.spent += len + MESSAGE_COST;
                self.counts.eager += 1;
                Ok(Put::Gone)
            }
            Err(NotSent::Full) => Ok(Put::NoRoom),
            Err(error) => Err(self.failed(rank, error)),
        }
    }

    /// A message could not be sent: for whom it was has gone, or its memory is another session's.
    fn failed(&mut self, rank: u32, error: NotSent) -> MpError {
        match error {
            NotSent::Foreign => MpError::Foreign,
            NotSent::Broken(why) => self.unreachable(rank, why),
            NotSent::Full => self.unreachable(rank, "no room for a greeting".into()),
        }
    }

    /// Sends on what waits, to all members and of all parts, as far as there is room.
    pub(crate) fn pump(&mut self) {
        for (rank, connection) in self.transport.connections() {
            match connection {
                Ok(connection) => self.connected(rank, connection),
                Err(why) => drop(self.unreachable(rank, why)),
            }
        }
        for _ in 0..self.busy.len() {
            let Some(rank) = self.busy.pop_front() else { break };
            self.peers[rank as usize].busy = false;
            self.push(rank);
        }
        for _ in 0..self.granted.len() {
            let Some(id) = self.granted.pop_front() else { break };
            self.serve(id, None);
        }
        for _ in 0..self.starved.len() {
            let Some(id) = self.starved.pop_front() else { break };
            self.ask_for_parts(id);
        }
    }

    fn connected(&mut self, rank: u32, mut connection: T::Connection) {
        let hello = Said::Hello { version: crate::wire::VERSION }.encode(self.rank);
        let greeted = say::<T>(&mut connection, &hello);
        let peer = &mut self.peers[rank as usize];
        peer.connecting = false;
        match greeted {
            Ok(()) => {
                peer.connection = Some(connection);
                self.now_busy(rank);
            }
            Err(error) => drop(self.failed(rank, error)),
        }
    }

    /// Has a connection to a member made, if there is none.
    pub(crate) fn connect(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        if peer.connection.is_some() || peer.gone.is_some() || std::mem::replace(&mut peer.connecting, true) {
            return;
        }
        if let Err(error) = self.transport.connect(rank) {
            self.unreachable(rank, error.to_string());
        }
    }

    /// Whether there is a connection to it.
    pub(crate) fn is_connected(&self, rank: u32) -> bool {
        self.peers[rank as usize].connection.is_some()
    }

    /// Sends on what waits for one member.
    fn push(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        if peer.gone.is_some() || peer.says.is_empty() && peer.out.is_empty() {
            return;
        }
        if peer.connection.is_none() {
            self.connect(rank);
            return self.now_busy(rank);
        }
        if self.push_says(rank) && self.push_out(rank) {
            return;
        }
        if self.peers[rank as usize].gone.is_none() {
            self.now_busy(rank);
        }
    }

    /// Whether all has gone.
    fn push_says(&mut self, rank: u32) -> bool {
        loop {
            let peer = &mut self.peers[rank as usize];
            let (Some(connection), Some(said)) = (peer.connection.as_mut(), peer.says.front()) else {
                return peer.says.is_empty();
            };
            match say::<T>(connection, said) {
                Ok(()) => drop(peer.says.pop_front()),
                Err(NotSent::Full) => return false,
                Err(error) => {
                    self.failed(rank, error);
                    return false;
                }
            }
        }
    }

    /// Whether all has gone.
    fn push_out(&mut self, rank: u32) -> bool {
        while let Some(id) = self.peers[rank as usize].out.front().copied() {
            match self.go(rank, id) {
                Ok(Put::NoRoom) => return false,
                Ok(Put::Gone) => {}
                Err(error) => self.end_send(id, Err(error)),
            }
            // Its end may have emptied the queue.
            let out = &mut self.peers[rank as usize].out;
            if out.front() == Some(&id) {
                out.pop_front();
            }
        }
        true
    }

    /// Sends a queued message, or asks for its place.
    fn go(&mut self, rank: u32, id: u32) -> Result<Put, MpError> {
        let peer = &mut self.peers[rank as usize];
        let Some(send) = self.sends.get(id) else { return Ok(Put::Gone) };
        let Send { context, tag, len, .. } = *send;
        let room = peer.spent - peer.taken + len + MESSAGE_COST <= UNEXPECTED_BYTES_MAX;
        let Some(connection) = peer.connection.as_mut() else { return Ok(Put::NoRoom) };
        let short = goes_at_once::<T>(connection, len) && !matches!(send.held, Held::Caller);
        if short && room {
            // It is taken out, and put back if there was no room.
            let held = std::mem::replace(&mut send.held, Held::Nowhere);
            let put = match &held {
                Held::Copy(bytes) => self.put_eager(rank, context, tag, Bytes::Slice(bytes)),
                Held::Own(own) if T::payload(own).len() == len => self.put_eager(rank, context, tag, T::payload(own)),
                _ => Err(MpError::Cancelled),
            };
            if let Some(send) = self.sends.get(id) {
                send.held = held;
            }
            if put == Ok(Put::Gone) {
                self.end_send(id, Ok(()));
            }
            return put;
        }
        if peer.asks >= ASKS_MAX {
            return Ok(Put::NoRoom);
        }
        let ask = Said::Ask { context, tag, send: id, len }.encode(self.rank);
        match say::<T>(connection, &ask) {
            Ok(()) => {
                peer.asks += 1;
                send.stage = Stage::Asked;
                self.counts.asked += 1;
                self.counts.asked_short += u64::from(short);
                Ok(Put::Gone)
            }
            Err(NotSent::Full) => Ok(Put::NoRoom),
            Err(error) => Err(self.failed(rank, error)),
        }
    }

    /// The receiver says where a part of a message goes.
    pub(super) fn grant(&mut self, rank: u32, id: u32, receive: u32, offset: u64, len: u64, token: PayloadToken) {
        let Some(send) = self.sends.get(id).filter(|send| send.rank == rank) else { return };
        let inside = offset.checked_add(len).is_some_and(|end| end <= send.len);
        if send.stage == Stage::Queued || !inside || send.grants.len() >= 2 * PARTS_AT_ONCE {
            return self.cut_off(rank, "a place for what was not asked");
        }
        send.grants.push_back(Grant { receive, offset, len, token });
        self.answered(id);
        self.serve(id, None);
    }

    fn answered(&mut self, id: u32) {
        let Some(send) = self.sends.get(id).filter(|send| send.has_asked()) else { return };
        send.stage = Stage::Answered;
        let rank = send.rank;
        let peer = &mut self.peers[rank as usize];
        peer.asks -= 1;
        if !peer.out.is_empty() {
            self.now_busy(rank);
        }
    }

    /// Sends the parts that may go; `caller` has the bytes if the send has not.
    pub(crate) fn serve(&mut self, id: u32, caller: Option<Bytes<'_, T::Place>>) {
        loop {
            let Some(send) = self.sends.get(id) else { return };
            let Some(grant) = send.grants.front().filter(|_| send.done.is_none()) else { return };
            let Some(payload) = send.payload(caller) else { return };
            let rank = send.rank;
            let Some(connection) = self.peers[rank as usize].connection.as_mut() else { return };
            let said = Said::Part { receive: grant.receive, offset: grant.offset }.encode(self.rank);
            let part = grant.offset..grant.offset + grant.len;
            match T::send_by_token(connection, said.bytes(), grant.token, payload, part) {
                Ok(()) => {
                    send.sent += grant.len;
                    let all = send.sent >= send.len;
                    send.grants.pop_front();
                    if all {
                        return self.end_send(id, Ok(()));
                    }
                }
                Err(NotSent::Full) => {
                    if !matches!(send.held, Held::Caller) {
                        self.granted.push_back(id);
                    }
                    return;
                }
                Err(error) => {
                    let error = self.failed(rank, error);
                    return self.end_send(id, Err(error));
                }
            }
        }
    }

    /// The receiver wants nothing more of it.
    pub(super) fn send_over(&mut self, rank: u32, id: u32) {
        if self.sends.get(id).is_none_or(|send| send.rank != rank || send.stage == Stage::Queued) {
            return;
        }
        self.answered(id);
        self.end_send(id, Ok(()));
    }

    /// The receiver says whether a send was withdrawn.
    pub(super) fn withdrawn(&mut self, rank: u32, id: u32, was: bool) {
        if self.sends.get(id).is_none_or(|send| send.rank != rank || send.stage == Stage::Queued) {
            return;
        }
        if was {
            self.answered(id);
            self.end_send(id, Err(MpError::Cancelled));
        }
    }

    /// Sends to a member that have asked and have no answer.
    pub(crate) fn unanswered(&mut self, rank: u32) -> usize {
        let numbers = self.sends.numbers().into_iter();
        let mut is_it = |id: u32| self.sends.get(id).is_some_and(|send| send.rank == rank && send.has_asked());
        numbers.filter(|id| is_it(*id)).count()
    }

    fn end_send(&mut self, id: u32, result: Result<(), MpError>) {
        let Some(send) = self.sends.get(id) else { return };
        send.done.get_or_insert(result);
        if send.dropped {
            self.sends.remove(id);
        }
    }

    /// Takes a send that is over, and what it held.
    pub(crate) fn take_send(&mut self, id: u32) -> Option<Sent<T::Payload>> {
        let send = self.sends.get(id)?;
        let done = send.done.take()?;
        let held = std::mem::replace(&mut send.held, Held::Nowhere);
        self.release(id);
        let held = match held {
            Held::Own(own) => Some(own),
            _ => None,
        };
        Some((done, held))
    }

    /// Nobody waits for a send that is over: it goes when its receiver does not count it any more.
    fn release(&mut self, id: u32) {
        match self.sends.get(id) {
            Some(send) if send.stage == Stage::TakenBack => (send.done, send.dropped) = (None, true),
            _ => drop(self.sends.remove(id)),
        }
    }

    /// Nobody waits for a send any more; it goes on, with what it holds. One whose caller has its
    /// bytes is given up.
    pub(crate) fn drop_send(&mut self, id: u32) {
        let Some(send) = self.sends.get(id) else { return };
        if send.done.is_some() {
            self.release(id);
        } else if matches!(send.held, Held::Caller) {
            let (rank, queued) = (send.rank, send.stage == Stage::Queued);
            (send.held, send.dropped) = (Held::Nowhere, true);
            if queued {
                self.peers[rank as usize].out.retain(|queued| *queued != id);
                self.sends.remove(id);
            } else {
                self.say(rank, &Said::Withdraw { send: id, forced: true });
            }
        } else {
            send.dropped = true;
        }
    }

    /// Withdraws a send, if that is still possible: it then ends with [`MpError::Cancelled`]. One
    /// that has asked learns of that later.
    pub(crate) fn withdraw(&mut self, id: u32) {
        let Some(send) = self.sends.get(id).filter(|send| send.done.is_none()) else { return };
        let rank = send.rank;
        match send.stage {
            Stage::Queued => {
                self.peers[rank as usize].out.retain(|queued| *queued != id);
                self.end_send(id, Err(MpError::Cancelled));
            }
            Stage::Asked => self.say(rank, &Said::Withdraw { send: id, forced: false }),
            Stage::TakenBack | Stage::Answered => {}
        }
    }

    /// Ends the sends to a member, and those of calls of a group that need it.
    pub(super) fn fail_sends(&mut self, rank: u32, error: &MpError, needed_in: impl Fn(u32) -> bool) {
        for id in self.sends.numbers() {
            let Some(send) = self.sends.get(id) else { continue };
            if send.rank == rank && send.stage == Stage::TakenBack {
                send.stage = Stage::Answered;
            }
            if send.done.is_some() {
                continue;
            }
            if send.rank == rank {
                self.end_send(id, Err(error.clone()));
            } else if needed_in(send.context) && !send.dropped {
                let (to, asked) = (send.rank, send.stage == Stage::Asked);
                send.done = Some(Err(error.clone()));
                if asked {
                    send.stage = Stage::TakenBack;
                    self.say(to, &Said::Withdraw { send: id, forced: false });
                }
                self.peers[to as usize].out.retain(|queued| *queued != id);
            }
        }
    }
}

#[inline]
fn say<T: Transport>(connection: &mut T::Connection, said: &Encoded) -> Result<(), NotSent> {
    T::send(connection, said.bytes(), Bytes::Slice(&[]), 0..0)
}
