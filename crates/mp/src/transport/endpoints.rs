//! The transport of a session: an endpoint, connections to those of the others, and payloads by
//! token.
//!
//! Invariant: as in `transport.rs`; what it does is what endpoints do, without a copy or a branch
//! more.

use super::{Bytes, Landing, NotSent, Transport};
use crate::connecting::Connecting;
use crate::error::{Gone, MpError};
use crate::members::Members;
use crate::memory::{HeldPayload, HeldRoom, Payload, Place, Room};
use crate::wire::HEAD_BYTES;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use vmmc::{
    AccessError, BufferRange, Came, Connection, Endpoint, Frame, Message, MessageError, Nanos, PayloadToken, Sender,
    Session, TokenBuffer, TokenError, TokenPool, TransferError,
};

/// See the module page.
pub(crate) struct Endpoints {
    pub(crate) session: Session,
    pub(crate) endpoint: Endpoint,
    pool: TokenPool,
    members: Members,
    connecting: Arc<Connecting>,
}

impl Endpoints {
    /// The endpoint must have been made with tokens.
    pub(crate) fn new(session: Session, endpoint: Endpoint, members: Members) -> Endpoints {
        let pool = endpoint.token_pool().expect("it was made with one").clone();
        Endpoints { session, endpoint, pool, members, connecting: Arc::default() }
    }

    pub(crate) fn pool(&self) -> &TokenPool {
        &self.pool
    }
}

impl Transport for Endpoints {
    type Message = Message;
    type Frame = Frame;
    type Sender = Sender;
    type Connection = Connection;
    type Buffer = TokenBuffer;
    type Place = Place;
    type Payload = Box<dyn HeldPayload>;
    type Room = Box<dyn HeldRoom>;

    fn now(&self) -> Nanos {
        // A second away or more it is cheap; this is not about milliseconds.
        self.session.about_now(Duration::from_secs(1))
    }

    #[inline]
    fn poll(&mut self, message: &mut Message) -> Result<bool, AccessError> {
        self.endpoint.poll_into(message)
    }

    #[inline]
    fn poll_split<'m>(
        &mut self,
        message: &mut Message,
        place: impl FnOnce(Sender, &[u8; HEAD_BYTES], usize) -> Option<&'m mut [u8]>,
    ) -> Result<Came, AccessError> {
        self.endpoint.poll_split(message, place)
    }

    #[inline]
    fn has_message(&self) -> bool {
        self.endpoint.has_message()
    }

    #[inline]
    fn control(message: &Message) -> &[u8] {
        message.control()
    }

    #[inline]
    fn from(message: &Message) -> Sender {
        message.from()
    }

    #[inline]
    fn payload_len(message: &Message) -> Option<u64> {
        message.payload().map(Frame::len)
    }

    #[inline]
    fn take_payload(message: &mut Message) -> Option<Frame> {
        message.take_payload()
    }

    fn by_token(message: &Message) -> Option<(PayloadToken, Option<u64>)> {
        message.by_token().map(|by| (by.token, by.len.ok()))
    }

    #[inline]
    fn frame_len(frame: &Frame) -> u64 {
        frame.len()
    }

    #[inline]
    fn read_frame(frame: &Frame, into: &mut [u8]) {
        frame.read(0, &mut into[..frame.len() as usize]).expect("it is as long as it says");
    }

    fn is_own(&self, sender: &Sender) -> bool {
        sender.is_local() && sender.process.0 == self.session.process_id()
    }

    fn connect(&mut self, rank: u32) -> Result<(), MpError> {
        let node = self.members.node(rank)?;
        self.connecting.begin(&self.session, rank, self.members.endpoint(rank), node)
    }

    #[inline]
    fn has_connections(&self) -> bool {
        self.connecting.has_news()
    }

    #[inline]
    fn connections(&mut self) -> Vec<(u32, Result<Connection, String>)> {
        let came = self.connecting.take();
        came.into_iter().map(|(rank, result)| (rank, result.map_err(|error| error.to_string()))).collect()
    }

    fn connect_no_more(&mut self) {
        self.connecting.end();
    }

    #[inline]
    fn send(
        connection: &mut Connection,
        control: &[u8],
        bytes: Bytes<'_, Place>,
        range: Range<u64>,
    ) -> Result<(), NotSent> {
        let sent = match bytes {
            Bytes::Slice(slice) => connection.send_within(control, part(slice, range), Duration::ZERO),
            Bytes::Place(place) => connection.send_within(control, place.source(range), Duration::ZERO),
        };
        sent.map_err(not_sent)
    }

    #[inline]
    fn send_at_once(connection: &mut Connection, head: &[u8; HEAD_BYTES], inline: &[u8]) -> bool {
        connection.send_at_once(head, inline)
    }

    fn send_by_token(
        connection: &mut Connection,
        control: &[u8],
        token: PayloadToken,
        bytes: Bytes<'_, Place>,
        range: Range<u64>,
    ) -> Result<(), NotSent> {
        let sent = match bytes {
            Bytes::Slice(slice) => connection.send_by_token_within(control, token, part(slice, range), Duration::ZERO),
            Bytes::Place(place) => connection.send_by_token_within(control, token, place.source(range), Duration::ZERO),
        };
        sent.map_err(not_sent)
    }

    fn is_mapped(connection: &Connection) -> bool {
        connection.is_mapped()
    }

    fn broken(connection: &Connection) -> Option<String> {
        connection.broken().map(|error| error.to_string())
    }

    fn arm(&self, place: Option<(&Place, Range<u64>)>) -> Result<Option<TokenBuffer>, MpError> {
        let armed = match place {
            Some((Place { memory, range }, part)) => {
                self.pool.arm_region(&memory.region, range.start + part.start..range.start + part.end)
            }
            None => self.pool.arm(),
        };
        match armed {
            Ok(buffer) => Ok(Some(buffer)),
            Err(TokenError::InUse { .. } | TokenError::Ranges { .. }) => Ok(None),
            Err(TokenError::Foreign { .. }) => Err(MpError::Foreign),
            Err(error) => Err(Box::new(error).into()),
        }
    }

    fn token(buffer: &TokenBuffer) -> PayloadToken {
        buffer.token()
    }

    fn read_buffer(buffer: &TokenBuffer, into: &mut [u8]) -> Result<(), MpError> {
        buffer.read(0, into).map_err(MpError::Access)
    }

    fn payload(owned: &Self::Payload) -> Bytes<'_, Place> {
        owned.payload().into()
    }

    fn room(owned: &mut Self::Room) -> Option<&mut [u8]> {
        match owned.room() {
            Room::Slice(slice) => Some(slice),
            Room::Place(_) => None,
        }
    }

    fn gone(&mut self) -> Result<Vec<(u32, Gone)>, MpError> {
        self.members.gone()
    }
}

impl Landing for Place {
    #[inline]
    fn len(&self) -> u64 {
        Place::len(self)
    }

    fn read(&self, into: &mut [u8]) -> Result<(), MpError> {
        Place::read(self, into)
    }

    fn write(&self, data: &[u8]) -> Result<(), MpError> {
        Place::write(self, data)
    }
}

impl<'a> From<Payload<'a>> for Bytes<'a, Place> {
    #[inline]
    fn from(payload: Payload<'a>) -> Self {
        match payload {
            Payload::Slice(slice) => Bytes::Slice(slice),
            Payload::Place(place) => Bytes::Place(place),
        }
    }
}

impl Place {
    fn source(&self, part: Range<u64>) -> BufferRange<'_> {
        let Range { start, end } = self.range;
        let inside = |at: u64| (start + at).min(end);
        self.memory.region.memory().range(inside(part.start)..inside(part.end))
    }
}

/// A part of what has been checked to have it.
#[inline]
fn part(slice: &[u8], range: Range<u64>) -> &[u8] {
    slice.get(range.start as usize..range.end as usize).unwrap_or_default()
}

#[cold]
fn not_sent(error: MessageError) -> NotSent {
    match error {
        MessageError::Full { .. } => NotSent::Full,
        MessageError::Transfer { error: TransferError::ForeignBuffer { .. }, .. } => NotSent::Foreign,
        error => NotSent::Broken(error.to_string()),
    }
}
