//! What the messages of a member stand on: a queue of what has come, connections, memory that long
//! messages land in, a clock, and who is still there.
//!
//! [`State`](crate::state::State) knows no more of the world than this. `endpoints.rs` makes it of
//! a session; `simulation` of a virtual clock and of faults.
//!
//! Invariant: nothing here waits, and messages of one connection come in the order in which they
//! were sent. Source: [GMS §2], whose control messages and payloads these are.

pub(crate) mod endpoints;

use crate::error::{Gone, MpError};
use crate::wire::HEAD_BYTES;
use std::ops::Range;
use vmmc::{AccessError, Came, Nanos, PayloadToken};

/// See the module page.
pub(crate) trait Transport: Sized {
    /// One that has come; empty ones are made by default.
    type Message: Default;
    /// The payload of a message, which keeps its place at the receiver.
    type Frame;
    /// Whose connection a message came by.
    type Sender: Copy + PartialEq;
    /// A way to another member.
    type Connection;
    /// Memory that a part of a long message was let into.
    type Buffer;
    /// Memory that long messages land in, without a copy.
    type Place: Landing;
    /// What a send owns.
    type Payload;
    /// What a receive owns.
    type Room;

    /// About the time it is: with an error of milliseconds.
    fn now(&self) -> Nanos;
    /// Takes the next message, if one has come.
    fn poll(&mut self, message: &mut Self::Message) -> Result<bool, AccessError>;
    /// The same, but what stands behind the head of a message without a payload goes to where
    /// `place` says, if it says so.
    fn poll_split<'m>(
        &mut self,
        message: &mut Self::Message,
        place: impl FnOnce(Self::Sender, &[u8; HEAD_BYTES], usize) -> Option<&'m mut [u8]>,
    ) -> Result<Came, AccessError>;
    /// A quick look whether one has.
    fn has_message(&self) -> bool;

    fn control(message: &Self::Message) -> &[u8];
    fn from(message: &Self::Message) -> Self::Sender;
    /// Bytes of its payload, if it has one.
    fn payload_len(message: &Self::Message) -> Option<u64>;
    fn take_payload(message: &mut Self::Message) -> Option<Self::Frame>;
    /// What went beside it by token, and its bytes if they are there.
    fn by_token(message: &Self::Message) -> Option<(PayloadToken, Option<u64>)>;
    fn frame_len(frame: &Self::Frame) -> u64;
    /// Copies all of it to the beginning of memory that is long enough.
    fn read_frame(frame: &Self::Frame, into: &mut [u8]);
    /// Whether it is this process.
    fn is_own(&self, sender: &Self::Sender) -> bool;

    /// Has a connection made, which is among [`connections`](Self::connections) some time.
    fn connect(&mut self, rank: u32) -> Result<(), MpError>;
    /// Whether some have been made.
    fn has_connections(&self) -> bool;
    /// Those made since the last call; or why there is none.
    fn connections(&mut self) -> Vec<(u32, Result<Self::Connection, String>)>;
    /// No more are made.
    fn connect_no_more(&mut self);
    /// Sends a control message, and bytes in frames of the receiver if there are any.
    fn send(
        connection: &mut Self::Connection,
        control: &[u8],
        bytes: Bytes<'_, Self::Place>,
        range: Range<u64>,
    ) -> Result<(), NotSent>;
    /// Sends a control message that is these two parts, if it can be stored in the memory of the
    /// member now. False: nothing was sent.
    fn send_at_once(connection: &mut Self::Connection, head: &[u8; HEAD_BYTES], inline: &[u8]) -> bool;
    /// As [`send`](Self::send), with the bytes to where a token says.
    fn send_by_token(
        connection: &mut Self::Connection,
        control: &[u8],
        token: PayloadToken,
        bytes: Bytes<'_, Self::Place>,
        range: Range<u64>,
    ) -> Result<(), NotSent>;
    /// Whether what is sent by it is stored into the member's memory, without a node.
    fn is_mapped(connection: &Self::Connection) -> bool;
    /// Why nothing can be sent by it any more, if so.
    fn broken(connection: &Self::Connection) -> Option<String>;

    /// Lets a part into memory of its own, or into a range of a place. None: there is none now.
    fn arm(&self, place: Option<(&Self::Place, Range<u64>)>) -> Result<Option<Self::Buffer>, MpError>;
    fn token(buffer: &Self::Buffer) -> PayloadToken;
    /// Copies its first bytes out.
    fn read_buffer(buffer: &Self::Buffer, into: &mut [u8]) -> Result<(), MpError>;
    fn payload(owned: &Self::Payload) -> Bytes<'_, Self::Place>;
    /// The memory, if it is no place.
    fn room(owned: &mut Self::Room) -> Option<&mut [u8]>;

    /// Which members have gone, and how, as far as somebody else says it.
    fn gone(&mut self) -> Result<Vec<(u32, Gone)>, MpError>;
}

/// Memory that long messages land in.
pub(crate) trait Landing: Clone {
    fn len(&self) -> u64;
    /// Copies its first bytes out.
    fn read(&self, into: &mut [u8]) -> Result<(), MpError>;
    /// Copies to its beginning.
    fn write(&self, data: &[u8]) -> Result<(), MpError>;
}

/// Bytes to be sent, which stay as they are meanwhile.
pub(crate) enum Bytes<'a, P> {
    Slice(&'a [u8]),
    Place(&'a P),
}

impl<P> Clone for Bytes<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Bytes<'_, P> {}

impl<P: Landing> Bytes<'_, P> {
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        match self {
            Bytes::Slice(slice) => slice.len() as u64,
            Bytes::Place(place) => place.len(),
        }
    }
}

/// Why a message has not gone.
#[derive(Debug)]
pub(crate) enum NotSent {
    /// There is no room now.
    Full,
    /// Its bytes are in memory of another session.
    Foreign,
    /// It cannot go any more.
    Broken(String),
}
