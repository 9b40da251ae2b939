//! From where messages are sent, and where they are received to: slices, memory of this crate, and
//! what requests own meanwhile.
//!
//! Invariant: bytes that senders may write are never a slice.

use crate::error::MpError;
use std::any::Any;
use std::ops::Range;
use vmmc::{Buffer, TokenRegion};

/// Memory that long messages land in without a copy on the way, and are sent from; made by
/// [`Messages::memory`](crate::Messages::memory). Clones are the same memory.
///
/// Members of the same node that send into a range of it can write all of it.
#[derive(Clone, Debug)]
pub struct Memory {
    pub(crate) region: TokenRegion,
}

/// A range of a [`Memory`].
#[derive(Clone, Debug)]
pub struct Place {
    pub(crate) memory: Memory,
    pub(crate) range: Range<u64>,
}

#[allow(clippy::len_without_is_empty)] // never empty
impl Memory {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// A range of it, for a send or a receive.
    ///
    /// # Errors
    /// [`MpError::NoRange`].
    pub fn range(&self, range: Range<u64>) -> Result<Place, MpError> {
        let (start, end, size) = (range.start, range.end, self.len());
        if start > end || end > size {
            return Err(MpError::NoRange { start, end, size });
        }
        Ok(Place { memory: self.clone(), range })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`MpError::Access`]: they are not all inside.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), MpError> {
        Ok(self.region.memory().read(offset, into)?)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`MpError::Access`]: they are not all inside.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), MpError> {
        Ok(self.region.memory().write(offset, data)?)
    }

    /// The same as a buffer, to export, or for transfers of other kinds.
    pub fn buffer(&self) -> &Buffer {
        self.region.memory()
    }
}

impl Place {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies out what is there from its first byte on.
    ///
    /// # Errors
    /// [`MpError::NoRange`]: `into` is longer.
    pub fn read(&self, into: &mut [u8]) -> Result<(), MpError> {
        self.check(into.len())?;
        self.memory.read(self.range.start, into)
    }

    /// Copies bytes to its beginning.
    ///
    /// # Errors
    /// [`MpError::NoRange`]: there are more than it has.
    pub fn write(&self, data: &[u8]) -> Result<(), MpError> {
        self.check(data.len())?;
        self.memory.write(self.range.start, data)
    }

    fn check(&self, len: usize) -> Result<(), MpError> {
        let (len, size) = (len as u64, self.len());
        if len > size { Err(MpError::NoRange { start: 0, end: len, size }) } else { Ok(()) }
    }
}

/// What is sent: bytes that stay as they are meanwhile.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Memory of any kind.
    Slice(&'a [u8]),
    /// A range of a [`Memory`]: between nodes it goes without a copy.
    Place(&'a Place),
}

impl Payload<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Payload::Slice(slice) => slice.len() as u64,
            Payload::Place(place) => place.len(),
        }
    }

    pub(crate) fn to_vec(self) -> Result<Vec<u8>, MpError> {
        match self {
            Payload::Slice(slice) => Ok(slice.to_vec()),
            Payload::Place(place) => {
                let mut bytes = vec![0; place.len() as usize];
                place.read(&mut bytes)?;
                Ok(bytes)
            }
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(slice: &'a [u8]) -> Self {
        Payload::Slice(slice)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(slice: &'a [u8; N]) -> Self {
        Payload::Slice(slice)
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(slice: &'a Vec<u8>) -> Self {
        Payload::Slice(slice)
    }
}

impl<'a> From<&'a Place> for Payload<'a> {
    fn from(place: &'a Place) -> Self {
        Payload::Place(place)
    }
}

/// Where a message is received to.
#[derive(Debug)]
pub enum Room<'a> {
    /// Memory of any kind: a long message is copied there.
    Slice(&'a mut [u8]),
    /// A range of a [`Memory`]: a long message lands there.
    Place(&'a Place),
}

impl Room<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Room::Slice(slice) => slice.len() as u64,
            Room::Place(place) => place.len(),
        }
    }
}

impl<'a> From<&'a mut [u8]> for Room<'a> {
    fn from(slice: &'a mut [u8]) -> Self {
        Room::Slice(slice)
    }
}

impl<'a, const N: usize> From<&'a mut [u8; N]> for Room<'a> {
    fn from(slice: &'a mut [u8; N]) -> Self {
        Room::Slice(slice)
    }
}

impl<'a> From<&'a mut Vec<u8>> for Room<'a> {
    fn from(slice: &'a mut Vec<u8>) -> Self {
        Room::Slice(slice)
    }
}

impl<'a> From<&'a Place> for Room<'a> {
    fn from(place: &'a Place) -> Self {
        Room::Place(place)
    }
}

/// What a send owns until it is done: anything that is bytes ([`AsRef`]: `Vec<u8>`, `Box<[u8]>`,
/// `&'static [u8]`, a type of one's own), or a [`Place`].
pub trait SendBuffer: Send + 'static {
    /// The bytes.
    fn payload(&self) -> Payload<'_>;
}

impl<T: AsRef<[u8]> + Send + 'static> SendBuffer for T {
    fn payload(&self) -> Payload<'_> {
        Payload::Slice(self.as_ref())
    }
}

impl SendBuffer for Place {
    fn payload(&self) -> Payload<'_> {
        Payload::Place(self)
    }
}

/// What a receive owns until it is done: anything that is bytes to be written ([`AsMut`]:
/// `Vec<u8>` of its length, `Box<[u8]>`, a type of one's own), or a [`Place`].
pub trait ReceiveBuffer: Send + 'static {
    /// Where the message goes.
    fn room(&mut self) -> Room<'_>;
}

impl<T: AsMut<[u8]> + Send + 'static> ReceiveBuffer for T {
    fn room(&mut self) -> Room<'_> {
        Room::Slice(self.as_mut())
    }
}

impl ReceiveBuffer for Place {
    fn room(&mut self) -> Room<'_> {
        Room::Place(self)
    }
}

/// A send's buffer whose type is not known here.
pub(crate) trait HeldPayload: Send {
    fn payload(&self) -> Payload<'_>;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<T: SendBuffer> HeldPayload for T {
    fn payload(&self) -> Payload<'_> {
        SendBuffer::payload(self)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A receive's buffer whose type is not known here.
pub(crate) trait HeldRoom: Send {
    fn room(&mut self) -> Room<'_>;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<T: ReceiveBuffer> HeldRoom for T {
    fn room(&mut self) -> Room<'_> {
        ReceiveBuffer::room(self)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
