//! A group of members: their messages are apart from those of other groups.
//!
//! Invariant: a rank of a group is a place in its list of members; contexts of two groups that a
//! member is in differ.

use crate::collective::{Call, at_once};
use crate::engine::Shared;
use crate::error::MpError;
use crate::matching::{Envelope, Pattern};
use crate::memory::{Payload, ReceiveBuffer, Room, SendBuffer};
use crate::request::{Persistent, Request};
use crate::select::{Select, Status};
use crate::state::{Direct, context_of};
use std::sync::Arc;

/// Some of the members, or all of them ([`Messages::world`](crate::Messages::world)): messages of
/// one group are never received in another. Clones are the same group.
///
/// All members make the same collective calls in the same order. After one has failed members may
/// be in different ones, so no more are made of the group.
#[derive(Clone)]
pub struct Group {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u32,
    /// Members by rank of the group.
    pub(crate) members: Arc<[u32]>,
    own: u32,
}

impl Group {
    /// This member is one of them.
    pub(crate) fn new(shared: Arc<Shared>, number: u32, members: Arc<[u32]>) -> Group {
        let own = members.iter().position(|member| *member == shared.rank).unwrap_or_default() as u32;
        Group { shared, number, members, own }
    }

    /// Number of this member in the group.
    pub fn rank(&self) -> u32 {
        self.own
    }

    /// Members.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// Number among all members of a member of the group.
    ///
    /// # Errors
    /// [`MpError::NoRank`].
    #[inline]
    pub fn member(&self, rank: u32) -> Result<u32, MpError> {
        match self.members.get(rank as usize) {
            Some(member) => Ok(*member),
            None => Err(MpError::NoRank { rank, size: self.size() }),
        }
    }

    /// The same members as a group of their own; all of them call this.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier). [`MpError::TooManyGroups`].
    pub fn duplicate(&self) -> Result<Group, MpError> {
        let number = at_once(self.turn(Call::Broadcast).agree(self.new_number()?))?;
        self.enter(number, self.members.clone())
    }

    /// Groups of those that say the same `colour`, in order of `key`, and of rank where that is the
    /// same; all members call this. None: those that say none are in no group.
    ///
    /// # Errors
    /// As for [`duplicate`](Self::duplicate).
    pub fn split(&self, colour: Option<u64>, key: i64) -> Result<Option<Group>, MpError> {
        let chosen = at_once(self.turn(Call::Allgather).split(self.new_number()?, colour, key))?;
        chosen.map(|(number, members)| self.enter(number, members)).transpose()
    }

    /// A number for a new group, if this member is the one that gives it.
    fn new_number(&self) -> Result<Option<u32>, MpError> {
        if self.own == 0 { Ok(self.shared.lock()?.state.new_number()) } else { Ok(None) }
    }

    fn enter(&self, number: u32, members: Arc<[u32]>) -> Result<Group, MpError> {
        self.shared.lock()?.state.enter(number, &members);
        Ok(Group::new(self.shared.clone(), number, members))
    }

    #[inline]
    pub(crate) fn context(&self) -> u32 {
        context_of(self.number)
    }

    #[inline]
    pub(crate) fn rank_of(&self, member: u32) -> u32 {
        if self.number == 0 {
            return member;
        }
        self.members.iter().position(|own| *own == member).map_or(member, |rank| rank as u32)
    }

    #[inline]
    pub(crate) fn pattern(&self, context: u32, select: Select) -> Result<Pattern, MpError> {
        let source = match select.source {
            Some(rank) => Some(self.member(rank)?),
            None => None,
        };
        Ok(Pattern { context, source, tag: select.tag, mask: select.mask })
    }

    #[inline]
    pub(crate) fn status(&self, (envelope, len): (Envelope, u64)) -> Status {
        Status { source: self.rank_of(envelope.source), tag: envelope.tag, len }
    }

    fn told(&self, error: MpError) -> MpError {
        match error {
            MpError::Truncated { source_rank, tag, len, room } => {
                MpError::Truncated { source_rank: self.rank_of(source_rank), tag, len, room }
            }
            error => error,
        }
    }

    /// Sends a message to a member, or to this one itself. On return the memory may be used again;
    /// that says nothing of whether it was received. Messages to one member are received in the
    /// order in which they were sent, as far as a receive is for both.
    ///
    /// Up to [`EAGER_BYTES_MAX`](crate::limits::EAGER_BYTES_MAX) it goes at once, unless the
    /// receiver has [`UNEXPECTED_BYTES_MAX`](crate::limits::UNEXPECTED_BYTES_MAX) of this member
    /// that it has not received; else this waits for the receive. Between nodes one of up to
    /// [`EAGER_BETWEEN_NODES_BYTES_MAX`](crate::limits::EAGER_BETWEEN_NODES_BYTES_MAX) goes at once
    /// as well, if nothing that was sent before it waits.
    ///
    /// # Errors
    /// [`MpError`].
    #[inline]
    pub fn send<'a>(&self, to: u32, tag: u64, payload: impl Into<Payload<'a>>) -> Result<(), MpError> {
        self.shared.send(self.member(to)?, self.context(), tag, payload.into())
    }

    /// Receives a message: the oldest that is for it; waits for one.
    ///
    /// # Errors
    /// [`MpError`]; [`MpError::Truncated`]: it is longer than the memory, and is lost.
    #[inline]
    pub fn receive<'a>(&self, select: Select, room: impl Into<Room<'a>>) -> Result<Status, MpError> {
        let pattern = self.pattern(self.context(), select)?;
        match self.shared.receive(pattern, room.into()) {
            Ok(received) => Ok(self.status(received)),
            Err(error) => Err(self.told(error)),
        }
    }

    /// Sends one message and receives another one, which may be of and for different members. Two
    /// members that do this with each other, or many in a ring, do not wait for each other in
    /// vain.
    ///
    /// # Errors
    /// As for [`send`](Self::send) and [`receive`](Self::receive).
    pub fn exchange<'a, 'b>(
        &self,
        to: u32,
        tag: u64,
        payload: impl Into<Payload<'a>>,
        select: Select,
        room: impl Into<Room<'b>>,
    ) -> Result<Status, MpError> {
        let pattern = self.pattern(self.context(), select)?;
        let to = (self.member(to)?, self.context(), tag);
        match self.shared.exchange(to, payload.into(), pattern, room.into()) {
            Ok(received) => Ok(self.status(received)),
            Err(error) => Err(self.told(error)),
        }
    }

    /// Begins to send a message, whose buffer the request has until it is done.
    ///
    /// # Errors
    /// [`MpError`].
    pub fn start_send<B: SendBuffer>(&self, to: u32, tag: u64, buffer: B) -> Result<Request<B>, MpError> {
        Request::send(self, to, tag, buffer)
    }

    /// Begins to receive a message, whose buffer the request has until it is done.
    ///
    /// # Errors
    /// [`MpError`].
    pub fn start_receive<B: ReceiveBuffer>(&self, select: Select, buffer: B) -> Result<Request<B>, MpError> {
        Request::receive(self, select, buffer)
    }

    /// A send that is made again and again, with one buffer; begun by
    /// [`Persistent::start`].
    pub fn persistent_send<B: SendBuffer>(&self, to: u32, tag: u64, buffer: B) -> Persistent<B> {
        let start = move |group: &Group, buffer| Request::send(group, to, tag, buffer);
        Persistent::new(self.clone(), Box::new(start), buffer)
    }

    /// A receive that is made again and again, with one buffer; begun by [`Persistent::start`].
    pub fn persistent_receive<B: ReceiveBuffer>(&self, select: Select, buffer: B) -> Persistent<B> {
        let start = move |group: &Group, buffer| Request::receive(group, select, buffer);
        Persistent::new(self.clone(), Box::new(start), buffer)
    }

    /// What the next receive would get, if it is here: the message stays.
    ///
    /// # Errors
    /// [`MpError`].
    pub fn try_probe(&self, select: Select) -> Result<Option<Status>, MpError> {
        let pattern = self.pattern(self.context(), select)?;
        let mut engine = self.shared.lock()?;
        engine.take_all(&mut Direct::default())?;
        let found = engine.state.matcher.probe(&pattern).map(|(envelope, waiting)| (*envelope, waiting.len()));
        Ok(found.map(|found| self.status(found)))
    }

    /// Waits for a message, which stays.
    ///
    /// # Errors
    /// [`MpError`].
    pub fn probe(&self, select: Select) -> Result<Status, MpError> {
        let pattern = self.pattern(self.context(), select)?;
        let engine = self.shared.lock()?;
        let (_engine, found) = self.shared.wait(engine, "probe", &mut Direct::default(), |state, _| {
            let found = state.matcher.probe(&pattern).map(|(envelope, waiting)| (*envelope, waiting.len()));
            found.map(Ok).or_else(|| state.nobody_for(&pattern).map(Err))
        });
        found?.map(|found| self.status(found))
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group {} (rank {} of {})", self.number, self.rank(), self.size())
    }
}
