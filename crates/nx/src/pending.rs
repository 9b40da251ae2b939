//! Messages under way, by id.
//!
//! Invariant: an id is of one use; each names a place of the table and how often that was used, so
//! an old id is an error and never another message. At most [`IDS_MAX`] are in use.

use crate::error::NxError;
use crate::limits::IDS_MAX;
use crate::select::Info;
use std::sync::Arc;
use vmmc_mp::{MpError, Request, Status};

/// Memory for a message: `Vec<u8>` of its length, `Box<[u8]>`, or a type of one's own.
pub trait Buffer: Send + 'static {
    /// It.
    fn bytes(&self) -> &[u8];
    /// It, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// A message was received into it.
    fn received(&mut self, _info: &Info) {}
}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send + 'static> Buffer for T {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut()
    }
}

/// What is sent while a call goes on: `Vec<u8>`, `&'static [u8]`, or a type of one's own.
pub trait Payload: AsRef<[u8]> + Send + Sync + 'static {}

impl<T: AsRef<[u8]> + Send + Sync + 'static> Payload for T {}

/// A receive's buffer of whatever type.
pub(crate) struct Room(pub(crate) Box<dyn Buffer>);

impl AsRef<[u8]> for Room {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl AsMut<[u8]> for Room {
    fn as_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// What is sent, to one node or to several.
#[derive(Clone)]
pub(crate) struct Sent(pub(crate) Arc<dyn Payload>);

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// What an id stands for, when it is over.
#[derive(Default)]
pub struct Done {
    pub(crate) received: Vec<(Info, Box<dyn Buffer>)>,
}

impl Done {
    fn push(&mut self, info: Info, mut room: Room) {
        room.0.received(&info);
        self.received.push((info, room.0));
    }

    /// What was received; none: it was sends only.
    pub fn info(&self) -> Option<Info> {
        self.received.last().map(|(info, _)| *info)
    }

    /// The bytes that were received: of a merged id, those of its last message.
    pub fn bytes(&self) -> &[u8] {
        self.received.last().map_or(&[], |(info, buffer)| &buffer.bytes()[..info.count as usize])
    }

    /// All messages that were received, with their buffers.
    pub fn into_received(self) -> Vec<(Info, Box<dyn Buffer>)> {
        self.received
    }
}

impl std::fmt::Debug for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.received.iter().map(|(info, _)| info)).finish()
    }
}

/// One message under way.
pub(crate) enum Part {
    Send(Request<Sent>),
    Receive(Request<Room>),
}

/// What one id stands for.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) parts: Vec<Part>,
    /// It has sends that wait for their receives, if those were not there.
    pub(crate) waits: bool,
    pub(crate) done: Done,
}

/// Turns what was received, or not, into words of NX.
pub(crate) type Told<'a> = &'a dyn Fn(Result<Status, MpError>) -> Result<Info, NxError>;

impl Pending {
    pub(crate) fn new(parts: Vec<Part>) -> Pending {
        Pending { parts, ..Pending::default() }
    }

    /// Both.
    pub(crate) fn and(mut self, other: Pending) -> Pending {
        self.parts.extend(other.parts);
        self.waits |= other.waits;
        self.done.received.extend(other.done.received);
        self
    }

    /// Looks whether it is over, without a wait.
    pub(crate) fn look(&mut self, told: Told<'_>) -> Result<bool, NxError> {
        let mut first = Ok(());
        for mut part in std::mem::take(&mut self.parts) {
            let result = match &mut part {
                Part::Send(request) => request.test().map(|done| done.is_some()).map_err(|e| told(Err(e)).err()),
                Part::Receive(request) => match request.test() {
                    Ok(Some((status, room))) => {
                        told(Ok(status)).map(|info| self.done.push(info, room)).map_err(Some).map(|()| true)
                    }
                    Ok(None) => Ok(false),
                    Err(error) => Err(told(Err(error)).err()),
                },
            };
            match result {
                Ok(true) | Err(None) => {}
                Ok(false) => self.parts.push(part),
                Err(Some(error)) => first = first.and(Err(error)),
            }
        }
        first.map(|()| self.parts.is_empty())
    }

    /// Waits until it is over.
    pub(crate) fn wait(mut self, told: Told<'_>) -> Result<Done, NxError> {
        for part in self.parts {
            match part {
                Part::Send(request) => {
                    if let Err(error) = request.wait() {
                        told(Err(error))?;
                    }
                }
                Part::Receive(request) => match request.wait() {
                    Ok((status, room)) => self.done.push(told(Ok(status))?, room),
                    Err(error) => drop(told(Err(error))?),
                },
            }
        }
        Ok(self.done)
    }

    /// Takes back what has not happened, and waits for the rest.
    pub(crate) fn cancel(mut self) -> Result<(), MpError> {
        for part in &mut self.parts {
            match part {
                Part::Send(request) => request.cancel()?,
                Part::Receive(request) => request.cancel()?,
            }
        }
        // Whether it was taken back or had happened is all the same: the memory is free.
        for part in self.parts {
            let timed_out = match part {
                Part::Send(request) => request.wait().map(drop),
                Part::Receive(request) => request.wait().map(drop),
            };
            if let Err(error @ (MpError::TimedOut { .. } | MpError::Wait(_))) = timed_out {
                return Err(error);
            }
        }
        Ok(())
    }

    pub(crate) fn done(self) -> Done {
        self.done
    }
}

enum Place {
    Free,
    Used(Pending),
    /// Nobody asks for it any more; its place is free when it is over.
    Ignored(Pending),
}

/// The table of ids.
#[derive(Default)]
pub(crate) struct Ids {
    /// Each with how often it was used.
    places: Vec<(u64, Place)>,
    free: Vec<usize>,
    ignored: usize,
    /// Those with [`Pending::waits`].
    waiting: usize,
}

impl Ids {
    /// Those in use.
    pub(crate) fn used(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there may be sends among them that wait for their receives.
    pub(crate) fn has_sends(&self) -> bool {
        self.waiting > 0
    }

    /// Whether there is room for one more, beside `others` that are elsewhere; takes out what was
    /// ignored and is over.
    pub(crate) fn has_room(&mut self, others: usize, told: Told<'_>) -> Result<(), NxError> {
        if self.used() + others >= IDS_MAX && self.ignored > 0 {
            self.sweep(told);
        }
        if self.used() + others >= IDS_MAX { Err(NxError::IdsUsedUp) } else { Ok(()) }
    }

    fn sweep(&mut self, told: Told<'_>) {
        for (number, (_, place)) in self.places.iter_mut().enumerate() {
            if let Place::Ignored(pending) = place {
                if !matches!(pending.look(told), Ok(false)) {
                    self.waiting -= usize::from(pending.waits);
                    *place = Place::Free;
                    self.free.push(number);
                    self.ignored -= 1;
                }
            }
        }
    }

    pub(crate) fn insert(&mut self, pending: Pending) -> i64 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, Place::Free));
            self.places.len() - 1
        });
        self.waiting += usize::from(pending.waits);
        let (uses, place) = &mut self.places[number];
        (*uses, *place) = (*uses + 1, Place::Used(pending));
        (*uses * IDS_MAX as u64 + number as u64) as i64
    }

    fn find(&mut self, id: i64) -> Result<usize, NxError> {
        let (number, uses) = (id.rem_euclid(IDS_MAX as i64) as usize, id.div_euclid(IDS_MAX as i64));
        match self.places.get(number) {
            Some((own, Place::Used(_))) if i64::try_from(*own) == Ok(uses) => Ok(number),
            _ => Err(NxError::Id { id }),
        }
    }

    /// What an id stands for; the id is used up.
    pub(crate) fn take(&mut self, id: i64) -> Result<Pending, NxError> {
        let number = self.find(id)?;
        match std::mem::replace(&mut self.places[number].1, Place::Free) {
            Place::Used(pending) => {
                self.waiting -= usize::from(pending.waits);
                self.free.push(number);
                Ok(pending)
            }
            _ => Err(NxError::Id { id }),
        }
    }

    /// The same, and the id stays.
    pub(crate) fn at(&mut self, id: i64) -> Result<&mut Pending, NxError> {
        let number = self.find(id)?;
        match &mut self.places[number].1 {
            Place::Used(pending) => Ok(pending),
            _ => Err(NxError::Id { id }),
        }
    }

    pub(crate) fn ignore(&mut self, id: i64) -> Result<(), NxError> {
        let number = self.find(id)?;
        let place = &mut self.places[number].1;
        if let Place::Used(pending) = std::mem::replace(place, Place::Free) {
            *place = Place::Ignored(pending);
            self.ignored += 1;
        }
        Ok(())
    }

    /// Whether some that nobody asks for any more still have messages to be sent.
    pub(crate) fn sends_left(&mut self, told: Told<'_>) -> bool {
        self.sweep(told);
        let sends = |place: &Place| match place {
            Place::Ignored(pending) => pending.parts.iter().any(|part| matches!(part, Part::Send(_))),
            _ => false,
        };
        self.places.iter().any(|(_, place)| sends(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        /// Beside a set: an id is known exactly from when it is given until it is taken.
        #[test]
        fn an_id_is_of_one_use(steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 0..200)) {
            let (mut ids, mut known, mut old) = (Ids::default(), Vec::new(), Vec::new());
            let mut given = HashSet::new();
            for (step, which) in steps {
                match step {
                    0 => {
                        let id = ids.insert(Pending::default());
                        prop_assert!(id > 0 && given.insert(id), "{} was given before", id);
                        known.push(id);
                    }
                    1 if !known.is_empty() => {
                        let id = known.swap_remove(which.index(known.len()));
                        prop_assert!(ids.at(id).is_ok() && ids.take(id).is_ok());
                        old.push(id);
                    }
                    2 if !old.is_empty() => {
                        let id = old[which.index(old.len())];
                        prop_assert_eq!(ids.take(id).map(drop), Err(NxError::Id { id }));
                        prop_assert_eq!(ids.ignore(id), Err(NxError::Id { id }));
                    }
                    _ => {}
                }
                prop_assert_eq!(ids.used(), known.len());
            }
        }
    }

    #[test]
    fn ids_are_bounded_and_those_ignored_make_room_when_they_are_over() {
        let mut ids = Ids::default();
        let told = |_| Ok(Info::default());
        let first = ids.insert(Pending::default());
        for _ in 1..IDS_MAX {
            ids.has_room(0, &told).expect("there is room");
            ids.insert(Pending::default());
        }
        assert_eq!(ids.has_room(0, &told), Err(NxError::IdsUsedUp));
        ids.ignore(first).expect("it is known");
        assert_eq!(ids.ignore(first), Err(NxError::Id { id: first }));
        assert_eq!(ids.has_room(0, &told), Ok(()));
        assert_eq!(ids.has_room(1, &told), Err(NxError::IdsUsedUp));
        for id in [0, -1, i64::MIN, i64::MAX, first] {
            assert_eq!(ids.take(id).map(drop), Err(NxError::Id { id }));
        }
    }
}
