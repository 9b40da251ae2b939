//! Receives: of what waits, and of what comes; long messages part by part.
//!
//! Invariant: a receive that has its message takes no other. A part is taken when it is the one
//! that was asked for, whole.

use super::leaving::is_collective;
use super::{Eager, State, Waiting};
use crate::error::MpError;
use crate::limits::{
    MESSAGE_COST, PART_BYTES, PART_STEP_BYTES, PARTS_AT_ONCE, PARTS_BETWEEN_NODES_BYTES, RANGE_BYTES_MAX,
};
use crate::matching::{Envelope, Pattern};
use crate::transport::{Landing, Transport};
use crate::wire::Said;

/// A receive under way.
pub(crate) struct Receive<T: Transport> {
    pub(crate) pattern: Pattern,
    /// Bytes that there are for its message.
    room: u64,
    /// Where it lands, if that is memory for it.
    place: Option<T::Place>,
    /// What it owns. None, and no place: its caller has the memory.
    own: Option<T::Room>,
    /// A short message whose memory the caller has, who was not here.
    stash: Option<Vec<u8>>,
    long: Option<Long<T>>,
    /// Set once it is over: the message and its bytes.
    pub(crate) done: Option<Received>,
    /// Nobody waits for it.
    dropped: bool,
}

/// How a receive ended.
pub(crate) type Received = Result<(Envelope, u64), MpError>;

/// A long message that is on its way.
struct Long<T: Transport> {
    envelope: Envelope,
    send: u32,
    len: u64,
    /// First byte that was not asked for.
    next: u64,
    /// Bytes that have come.
    came: u64,
    parts: Vec<Part<T>>,
}

struct Part<T: Transport> {
    offset: u64,
    len: u64,
    buffer: T::Buffer,
    here: bool,
}

/// The receive whose caller is here, and its memory.
#[derive(Default)]
pub(crate) struct Direct<'a> {
    pub(crate) receive: Option<u32>,
    pub(crate) memory: Option<&'a mut [u8]>,
}

impl Direct<'_> {
    fn of(&mut self, id: u32) -> Option<&mut [u8]> {
        self.memory.as_deref_mut().filter(|_| self.receive == Some(id))
    }
}

impl<T: Transport> Eager<'_, T> {
    /// Copies it to the beginning of memory that is long enough.
    #[inline]
    pub(super) fn copy_to(&self, into: &mut [u8]) {
        match self {
            Eager::Inline(bytes) => into[..bytes.len()].copy_from_slice(bytes),
            Eager::Frame(frame) => T::read_frame(frame, into),
        }
    }
}

impl<T: Transport> Receive<T> {
    /// The memory that it has itself.
    fn memory(&mut self) -> Option<&mut [u8]> {
        T::room(self.own.as_mut()?)
    }
}

impl<T: Transport> State<T> {
    /// Begins a receive, which may be over at once; `direct` is of its caller.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        pattern: Pattern,
        room: u64,
        place: Option<T::Place>,
        own: Option<T::Room>,
        direct: &mut Direct<'_>,
    ) -> Result<u32, MpError> {
        let receive = Receive { pattern, room, place, own, stash: None, long: None, done: None, dropped: false };
        let id = self.receives.insert(receive).ok_or(MpError::TooManyRequests)?;
        direct.receive = Some(id);
        match self.matcher.post(&pattern, id.into()) {
            None if self.some_gone => {
                if let Some(error) = self.nobody_for(&pattern) {
                    self.matcher.cancel(&pattern, id.into());
                    self.receives.remove(id);
                    return Err(error);
                }
            }
            None => {}
            Some((envelope, Waiting::Here(bytes))) => {
                let len = bytes.len() as u64;
                self.peers[envelope.source as usize].held -= len + MESSAGE_COST;
                self.count_received(envelope.source, len);
                self.receive_here(id, envelope, Eager::Inline(&bytes), direct);
            }
            Some((envelope, Waiting::Asked { send, len })) => {
                self.peers[envelope.source as usize].asked -= 1;
                // Its sender ends a collective call that a member has failed in, or has done so.
                let failed = self.some_gone && is_collective(pattern.context);
                if let Some(error) = failed.then(|| self.nobody_for(&pattern)).flatten() {
                    self.say(envelope.source, &Said::Over { send });
                    self.receives.remove(id);
                    return Err(error);
                }
                self.receive_asked(id, envelope, send, len);
            }
        }
        Ok(id)
    }

    #[inline]
    pub(super) fn receive_here(&mut self, id: u32, envelope: Envelope, from: Eager<'_, T>, direct: &mut Direct<'_>) {
        let Some(receive) = self.receives.get(id) else { return };
        let (len, room) = (from.len(), receive.room);
        let fits = |memory: &&mut [u8]| memory.len() as u64 >= len;
        if len > room {
            receive.done = Some(Err(truncated(envelope, len, room)));
        } else if let Some(place) = &receive.place {
            receive.done = Some(place.write(&from.to_vec()).map(|()| (envelope, len)));
        } else if let Some(memory) = direct.of(id) {
            from.copy_to(memory);
            receive.done = Some(Ok((envelope, len)));
        } else if receive.own.is_some() {
            let copied = receive.memory().filter(fits).map(|memory| from.copy_to(memory));
            receive.done = Some(copied.map(|()| (envelope, len)).ok_or_else(|| truncated(envelope, len, room)));
        } else {
            receive.stash = Some(from.to_vec());
            receive.done = Some(Ok((envelope, len)));
        }
        self.end_receive(id);
    }

    pub(super) fn receive_asked(&mut self, id: u32, envelope: Envelope, send: u32, len: u64) {
        let Some(receive) = self.receives.get(id) else { return };
        let room = receive.room;
        if len > room || len == 0 {
            receive.done = Some(if len > room { Err(truncated(envelope, len, room)) } else { Ok((envelope, 0)) });
            self.say(envelope.source, &Said::Over { send });
            return self.end_receive(id);
        }
        receive.long = Some(Long { envelope, send, len, next: 0, came: 0, parts: Vec::new() });
        self.ask_for_parts(id);
    }

    /// Asks for the next parts of a long message, as many as there are buffers.
    pub(super) fn ask_for_parts(&mut self, id: u32) {
        loop {
            let Some(receive) = self.receives.get(id) else { return };
            let Some(long) = receive.long.as_mut().filter(|_| receive.done.is_none()) else { return };
            if long.next >= long.len || long.parts.len() >= PARTS_AT_ONCE {
                return;
            }
            let to = self.peers[long.envelope.source as usize].connection.as_ref();
            let (part_min, part_max) = PARTS_BETWEEN_NODES_BYTES;
            let most = match &receive.place {
                Some(_) => RANGE_BYTES_MAX,
                None if to.is_some_and(|to| !T::is_mapped(to)) => {
                    (long.len / 8).clamp(part_min, part_max) / PART_STEP_BYTES * PART_STEP_BYTES
                }
                None => PART_BYTES,
            };
            let (offset, len) = (long.next, (long.len - long.next).min(most));
            let armed = self.transport.arm(receive.place.as_ref().map(|place| (place, offset..offset + len)));
            let (rank, send) = (long.envelope.source, long.send);
            match armed {
                Ok(Some(buffer)) => {
                    let token = T::token(&buffer);
                    long.parts.push(Part { offset, len, buffer, here: false });
                    long.next += len;
                    self.say(rank, &Said::Go { send, receive: id, offset, len, token });
                }
                Ok(None) => {
                    // With parts under way it goes on when one of them comes.
                    if long.parts.is_empty() {
                        self.starved.push_back(id);
                    }
                    return;
                }
                Err(error) => {
                    receive.done = Some(Err(error));
                    self.say(rank, &Said::Over { send });
                    return self.end_receive(id);
                }
            }
        }
    }

    /// A part has come, or so its sender says.
    pub(super) fn part_came(&mut self, rank: u32, id: u32, offset: u64, message: &T::Message, direct: &mut Direct<'_>) {
        // Of one that has been given up nothing is wanted.
        let Some(long) = self.receives.get(id).and_then(|receive| receive.long.as_mut()) else { return };
        let part = long.parts.iter_mut().find(|part| part.offset == offset && !part.here);
        let is_it = |part: &&mut Part<T>| T::by_token(message) == Some((T::token(&part.buffer), Some(part.len)));
        match part.filter(is_it).filter(|_| long.envelope.source == rank) {
            Some(part) => part.here = true,
            None => return self.cut_off(rank, "a part that it was not asked for"),
        }
        self.take_parts(id, direct);
    }

    /// Takes the parts that are here, and asks for more.
    pub(crate) fn take_parts(&mut self, id: u32, direct: &mut Direct<'_>) {
        let Some(receive) = self.receives.get(id) else { return };
        let Some(mut long) = receive.long.take() else { return };
        let place = receive.place.is_some();
        let mut failed = None;
        let memory = if receive.own.is_some() { receive.memory() } else { direct.of(id) };
        if place || memory.is_some() {
            let mut memory = memory;
            long.parts.retain(|part| {
                if !part.here {
                    return true;
                }
                let range = part.offset as usize..(part.offset + part.len) as usize;
                if let Some(memory) = memory.as_deref_mut().filter(|_| !place) {
                    let copied = memory.get_mut(range).map(|memory| T::read_buffer(&part.buffer, memory));
                    failed = failed.take().or(match copied {
                        Some(copied) => copied.err(),
                        None => Some(truncated(long.envelope, long.len, part.offset)),
                    });
                }
                long.came += part.len;
                false
            });
        }
        let (envelope, send, len) = (long.envelope, long.send, long.len);
        if let Some(error) = failed {
            receive.done = Some(Err(error));
            self.say(envelope.source, &Said::Over { send });
            return self.end_receive(id);
        }
        if long.came >= long.len {
            receive.done = Some(Ok((envelope, len)));
            return self.end_receive(id);
        }
        receive.long = Some(long);
        self.ask_for_parts(id);
    }

    /// As [`take_receive`](Self::take_receive), for the caller who has the memory.
    #[inline]
    pub(crate) fn take_receive_of(&mut self, id: u32, direct: &mut Direct<'_>) -> Option<Received> {
        let receive = self.receives.get(id)?;
        if receive.stash.is_some() || receive.long.is_some() {
            self.settle(id, direct);
        }
        self.take_receive(id).map(|(done, _)| done)
    }

    /// What came while the caller of a receive was not here is copied to its memory.
    fn settle(&mut self, id: u32, direct: &mut Direct<'_>) {
        let Some(receive) = self.receives.get(id) else { return };
        if let (Some(bytes), Some(memory)) = (receive.stash.take(), direct.of(id)) {
            memory[..bytes.len()].copy_from_slice(&bytes);
        }
        if receive.long.as_ref().is_some_and(|long| long.parts.iter().any(|part| part.here)) {
            self.take_parts(id, direct);
        }
    }

    /// One that nobody waits for goes when it is over.
    #[inline]
    fn end_receive(&mut self, id: u32) {
        if self.receives.get(id).is_some_and(|receive| receive.dropped) {
            self.receives.remove(id);
        }
    }

    /// Takes a receive that is over, and what it owned.
    #[inline]
    pub(crate) fn take_receive(&mut self, id: u32) -> Option<(Received, Option<T::Room>)> {
        let done = self.receives.get(id)?.done.take()?;
        let receive = self.receives.remove(id)?;
        Some((done, receive.own))
    }

    /// Takes back a receive that has no message yet: it is over with [`MpError::Cancelled`]. False:
    /// it has one.
    pub(crate) fn cancel_receive(&mut self, id: u32) -> bool {
        let Some(receive) = self.receives.get(id) else { return false };
        let waits = self.matcher.cancel(&receive.pattern, id.into());
        if waits {
            receive.done = Some(Err(MpError::Cancelled));
        }
        waits
    }

    /// Nobody waits for a receive any more. One that owns its memory goes on if it has its message;
    /// else it is taken back, and a message that was on its way is lost.
    pub(crate) fn drop_receive(&mut self, id: u32) {
        self.cancel_receive(id);
        let Some(receive) = self.receives.get(id) else { return };
        if receive.done.is_none() && receive.own.is_some() {
            receive.dropped = true;
            return;
        }
        let long = self.receives.remove(id).and_then(|receive| receive.long);
        if let Some(Long { envelope, send, .. }) = long {
            self.say(envelope.source, &Said::Over { send });
        }
    }

    /// Buffers that are let into.
    pub(crate) fn buffers(&mut self) -> usize {
        let numbers = self.receives.numbers().into_iter();
        let parts = |receive: &mut Receive<T>| receive.long.as_ref().map_or(0, |long| long.parts.len());
        numbers.map(|id| self.receives.get(id).map_or(0, parts)).sum()
    }

    /// A sender wants to have back what it has asked for.
    pub(super) fn withdrawn_by(&mut self, rank: u32, send: u32, forced: bool) {
        let it = |envelope: &Envelope, waiting: &Waiting| {
            envelope.source == rank && matches!(waiting, Waiting::Asked { send: asked, .. } if *asked == send)
        };
        let mut was = self.matcher.remove_where(it).is_some();
        if was {
            self.peers[rank as usize].asked -= 1;
        } else if forced {
            for id in self.receives.numbers() {
                let Some(receive) = self.receives.get(id) else { continue };
                let its = |long: &Long<T>| (long.envelope.source, long.send) == (rank, send);
                if receive.done.is_none() && receive.long.as_ref().is_some_and(its) {
                    receive.long = None;
                    receive.done = Some(Err(MpError::GivenUp { rank }));
                    self.end_receive(id);
                }
            }
            was = true;
        }
        self.say(rank, &Said::Withdrawn { send, was });
    }

    /// Ends the receives that get nothing any more, now that a member has gone.
    pub(super) fn fail_receives(&mut self, rank: u32, error: &MpError) {
        while self
            .matcher
            .remove_where(|envelope, waiting| envelope.source == rank && matches!(waiting, Waiting::Asked { .. }))
            .is_some()
        {}
        for id in self.receives.numbers() {
            let Some(receive) = self.receives.get(id).filter(|receive| receive.done.is_none()) else { continue };
            let pattern = receive.pattern;
            let error = match &receive.long {
                Some(long) if long.envelope.source == rank => Some(error.clone()),
                // It has its message, whoever else has gone.
                Some(_) if !is_collective(pattern.context) => None,
                _ => self.nobody_for(&pattern),
            };
            if let (Some(error), Some(receive)) = (error, self.receives.get(id)) {
                receive.done = Some(Err(error));
                let long = receive.long.take();
                match long {
                    None => drop(self.matcher.cancel(&pattern, id.into())),
                    Some(long) => self.say(long.envelope.source, &Said::Over { send: long.send }),
                }
                self.end_receive(id);
            }
        }
    }
}

fn truncated(envelope: Envelope, len: u64, room: u64) -> MpError {
    MpError::Truncated { source_rank: envelope.source, tag: envelope.tag, len, room }
}
