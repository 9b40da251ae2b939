//! Sends and receives under way.
//!
//! Invariant: a request has its buffer until it is over, and then gives it back; so nobody touches
//! it meanwhile.

use crate::error::MpError;
use crate::group::Group;
use crate::memory::{HeldRoom, Place, ReceiveBuffer, Room, SendBuffer};
use crate::select::{Select, Status};
use crate::state::{Direct, Held, State};
use crate::transport::endpoints::Endpoints;
use sealed::Number;
use std::any::Any;

/// A send or a receive under way; from [`Group::start_send`] and [`Group::start_receive`].
///
/// It makes progress in calls: of this request, or any other call of these messages. Dropping it
/// leaves a send to itself, and takes a receive back that has no message yet.
#[must_use = "dropping it leaves the send to itself, and takes the receive back"]
pub struct Request<B> {
    group: Group,
    stage: Stage<B>,
}

enum Stage<B> {
    /// A send of this message, by its number.
    Send(u32, Status),
    Receive(u32),
    /// It is over, and nobody was told.
    Over(Result<Status, MpError>, Option<B>),
    Told,
}

/// What a request has become: the message, or why there is none; and the buffer, if it is left.
pub(crate) type Outcome<B> = (Result<Status, MpError>, Option<B>);

/// A request of whatever buffer, for [`wait_any`].
pub trait UnderWay: sealed::Sealed {}

pub(crate) mod sealed {
    use crate::group::Group;

    /// What a request waits for, by number.
    pub enum Number {
        Send(u32),
        Receive(u32),
        Nothing,
    }

    pub trait Sealed {
        fn group(&self) -> &Group;
        fn number(&self) -> Number;
    }
}

impl<B: 'static> UnderWay for Request<B> {}

impl<B: 'static> sealed::Sealed for Request<B> {
    fn group(&self) -> &Group {
        &self.group
    }

    fn number(&self) -> Number {
        match self.stage {
            Stage::Send(id, _) => Number::Send(id),
            Stage::Receive(id) => Number::Receive(id),
            Stage::Over(..) | Stage::Told => Number::Nothing,
        }
    }
}

fn is_over(request: &dyn UnderWay, state: &mut State<Endpoints>) -> bool {
    match request.number() {
        Number::Send(id) => state.sends.get(id).is_none_or(|send| send.done.is_some()),
        Number::Receive(id) => state.receives.get(id).is_none_or(|receive| receive.done.is_some()),
        Number::Nothing => true,
    }
}

impl<B: 'static> Request<B> {
    pub(crate) fn send(group: &Group, to: u32, tag: u64, buffer: B) -> Result<Request<B>, MpError>
    where
        B: SendBuffer,
    {
        let (rank, context) = (group.member(to)?, group.context());
        let group = group.clone();
        let mut engine = group.shared.lock()?;
        engine.take_all(&mut Direct::default())?;
        let len = buffer.payload().len();
        let status = Status { source: group.rank(), tag, len };
        let stage = match engine.state.send_now(rank, context, tag, buffer.payload().into())? {
            true => Stage::Over(Ok(status), Some(buffer)),
            false => {
                let id = engine.state.send_in_turn(rank, context, tag, len, Held::Own(Box::new(buffer)))?;
                Stage::Send(id, status)
            }
        };
        drop(engine);
        Ok(Request { group, stage })
    }

    pub(crate) fn receive(group: &Group, select: Select, mut buffer: B) -> Result<Request<B>, MpError>
    where
        B: ReceiveBuffer,
    {
        let pattern = group.pattern(group.context(), select)?;
        let group = group.clone();
        let mut engine = group.shared.lock()?;
        engine.take_all(&mut Direct::default())?;
        let (len, place) = match buffer.room() {
            Room::Slice(slice) => (slice.len() as u64, None),
            Room::Place(place) => (place.len(), Some(Place::clone(place))),
        };
        let own: Box<dyn HeldRoom> = Box::new(buffer);
        let id = engine.state.receive(pattern, len, place, Some(own), &mut Direct::default())?;
        engine.state.pump();
        drop(engine);
        Ok(Request { group, stage: Stage::Receive(id) })
    }

    /// Waits until it is over: the message, and the buffer.
    ///
    /// # Errors
    /// [`MpError`]: the buffer is dropped.
    pub fn wait(mut self) -> Result<(Status, B), MpError> {
        told(self.finish()?)
    }

    /// If it is over: the message, and the buffer. It is asked for once; then the request is
    /// empty.
    ///
    /// # Errors
    /// [`MpError`]: the request is over.
    pub fn test(&mut self) -> Result<Option<(Status, B)>, MpError> {
        let group = self.group.clone();
        let mut engine = group.shared.lock()?;
        engine.take_all(&mut Direct::default())?;
        engine.state.pump();
        match self.take(&mut engine.state) {
            Some(outcome) => told(outcome).map(Some),
            None => Ok(None),
        }
    }

    /// Takes it back if nothing has happened yet: it then ends with [`MpError::Cancelled`], which
    /// [`wait`](Self::wait) says. A message that is on its way is not taken back.
    ///
    /// # Errors
    /// [`MpError`].
    pub fn cancel(&mut self) -> Result<(), MpError> {
        let mut engine = self.group.shared.lock()?;
        match self.stage {
            Stage::Send(id, _) => engine.state.withdraw(id),
            Stage::Receive(id) => drop(engine.state.cancel_receive(id)),
            Stage::Over(..) | Stage::Told => {}
        }
        engine.state.pump();
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> Result<Outcome<B>, MpError> {
        let group = self.group.clone();
        let engine = group.shared.lock()?;
        let (_engine, outcome) =
            group.shared.wait(engine, "wait for a request", &mut Direct::default(), |state, _| self.take(state));
        outcome
    }

    pub(crate) fn take(&mut self, state: &mut State<Endpoints>) -> Option<Outcome<B>> {
        let outcome = match &mut self.stage {
            Stage::Send(id, status) => {
                let (done, held) = state.take_send(*id)?;
                (done.map(|()| *status), held.and_then(|held| back(held.into_any())))
            }
            Stage::Receive(id) => {
                let (done, own) = state.take_receive(*id)?;
                let done = done.map(|received| self.group.status(received));
                (done, own.and_then(|own| back(own.into_any())))
            }
            Stage::Over(result, buffer) => (result.clone(), buffer.take()),
            Stage::Told => (Err(MpError::Cancelled), None),
        };
        self.stage = Stage::Told;
        Some(outcome)
    }
}

fn back<B: 'static>(held: Box<dyn Any>) -> Option<B> {
    held.downcast().ok().map(|buffer| *buffer)
}

fn told<B>((result, buffer): Outcome<B>) -> Result<(Status, B), MpError> {
    match (result, buffer) {
        (Ok(status), Some(buffer)) => Ok((status, buffer)),
        (Err(error), _) => Err(error),
        // It was told before.
        (Ok(_), None) => Err(MpError::Cancelled),
    }
}

impl<B> Drop for Request<B> {
    fn drop(&mut self) {
        let Ok(mut engine) = self.group.shared.lock() else { return };
        match self.stage {
            Stage::Send(id, _) => engine.state.drop_send(id),
            Stage::Receive(id) => engine.state.drop_receive(id),
            Stage::Over(..) | Stage::Told => {}
        }
    }
}

impl<B> std::fmt::Debug for Request<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.stage {
            Stage::Send(..) => "a send",
            Stage::Receive(_) => "a receive",
            Stage::Over(..) | Stage::Told => "over",
        };
        write!(f, "Request({what})")
    }
}

/// Waits until one of some requests of the same [`Messages`](crate::Messages) is over; says which:
/// its [`test`](Request::test) or [`wait`](Request::wait) then gives it at once. None: there are no
/// requests.
///
/// # Errors
/// [`MpError`]. That of a request is told by the request.
pub fn wait_any(requests: &[&dyn UnderWay]) -> Result<Option<usize>, MpError> {
    let Some(first) = requests.first() else { return Ok(None) };
    let shared = &first.group().shared;
    let engine = shared.lock()?;
    let (_engine, which) = shared.wait(engine, "wait for any request", &mut Direct::default(), |state, _| {
        requests.iter().position(|request| is_over(*request, state))
    });
    which.map(Some)
}

/// Waits until all requests are over; gives the messages and buffers in their order.
///
/// # Errors
/// [`MpError`], of the first that has failed; the others are dropped.
pub fn wait_all<B: 'static>(requests: impl IntoIterator<Item = Request<B>>) -> Result<Vec<(Status, B)>, MpError> {
    // Those that come later make progress meanwhile.
    requests.into_iter().collect::<Vec<_>>().into_iter().map(Request::wait).collect()
}

type Start<B> = Box<dyn Fn(&Group, B) -> Result<Request<B>, MpError> + Send>;

/// A send or a receive that is made again and again with one buffer; from
/// [`Group::persistent_send`] and [`Group::persistent_receive`].
pub struct Persistent<B> {
    group: Group,
    start: Start<B>,
    buffer: Option<B>,
    request: Option<Request<B>>,
}

impl<B: 'static> Persistent<B> {
    pub(crate) fn new(group: Group, start: Start<B>, buffer: B) -> Persistent<B> {
        Persistent { group, start, buffer: Some(buffer), request: None }
    }

    /// Begins it.
    ///
    /// # Errors
    /// [`MpError::Persistent`]: it is under way, or its buffer was lost by a failure.
    pub fn start(&mut self) -> Result<(), MpError> {
        let state = if self.request.is_some() { "is under way" } else { "has lost its buffer" };
        let buffer = self.buffer.take().ok_or(MpError::Persistent { state })?;
        self.request = Some((self.start)(&self.group, buffer)?);
        Ok(())
    }

    /// Waits until it is over.
    ///
    /// # Errors
    /// [`MpError`]. [`MpError::Persistent`]: it was not begun.
    pub fn wait(&mut self) -> Result<Status, MpError> {
        let request = self.request.as_mut().ok_or(MpError::Persistent { state: "was not begun" })?;
        let (result, buffer) = request.finish()?;
        (self.request, self.buffer) = (None, buffer);
        result
    }

    /// The buffer, while it is not under way.
    pub fn buffer(&mut self) -> Option<&mut B> {
        self.buffer.as_mut()
    }
}

impl<B> std::fmt::Debug for Persistent<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Persistent").field("request", &self.request).finish_non_exhaustive()
    }
}
