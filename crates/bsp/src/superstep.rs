//! The superstep as a state machine without I/O: what goes to whom, and what is done with what
//! comes, in which order.
//!
//! ```text
//!  calls ──▶ requests (gets, registrations) and data (puts, messages) for each member
//!  sync:  close ─ all are here ─ requests of all ─▶ answers ─ answers to own gets ─ data of all ─ turn
//! ```
//!
//! Invariant: every get of the superstep has been read before anything is written, on each member,
//! for the requests of all are looked at before the data of any. What others wrote is a claim.
//! Source: Hill and others, *BSPlib: The BSP programming library*, 1998.

use crate::error::BspError;
use crate::limits::TAG_BYTES_MAX;
use crate::queue::Queue;
use crate::registry::{Place, Places, Registry};
use crate::wire::{Operation, RECORD_BYTES, Record};
use std::collections::VecDeque;

/// One of the two streams of a superstep from one member to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Gets, and what all do together; and answers to gets, which go by themselves.
    Requests = 0,
    /// Puts and messages.
    Data = 1,
}

/// Where what goes out is kept.
pub(crate) trait Outgoing {
    /// Adds bytes to a stream, all or none.
    fn append(&mut self, to: u32, stream: Stream, parts: &[&[u8]]) -> Result<(), BspError>;
}

/// One stream of another member.
pub(crate) trait Incoming {
    /// Bytes that were not read.
    fn left(&self) -> u64;
    /// Reads so many bytes, which are there.
    fn read(&mut self, into: &mut [u8]) -> Result<(), BspError>;
}

/// Where what a get brings goes.
struct Wanted {
    place: Place,
    offset: u64,
    len: u64,
}

/// One member in one superstep.
pub(crate) struct Superstep {
    pid: u32,
    nprocs: u32,
    registry: Registry,
    /// Gets of each member, in order.
    wanted: Vec<VecDeque<Wanted>>,
    /// Operations of each member, as they came.
    operations: Vec<Vec<Operation>>,
    pub(crate) queue: Queue,
}

impl Superstep {
    pub(crate) fn new(pid: u32, nprocs: u32) -> Superstep {
        Superstep {
            pid,
            nprocs,
            registry: Registry::new(pid),
            wanted: (0..nprocs).map(|_| VecDeque::new()).collect(),
            operations: (0..nprocs).map(|_| Vec::new()).collect(),
            queue: Queue::default(),
        }
    }

    fn member(&self, pid: u32) -> Result<(), BspError> {
        if pid < self.nprocs { Ok(()) } else { Err(BspError::NoProcess { pid, nprocs: self.nprocs }) }
    }

    /// Bytes of tags that messages have now.
    pub(crate) fn tag_size(&self) -> u64 {
        self.registry.tag_size()
    }

    pub(crate) fn push_reg(&mut self, place: Option<Place>) -> Result<(), BspError> {
        self.registry.push(place)
    }

    pub(crate) fn pop_reg(&mut self, name: Option<u64>) -> Result<(), BspError> {
        self.registry.pop(name)
    }

    /// Gives what was said before.
    pub(crate) fn set_tag_size(&mut self, size: u64) -> Result<u64, BspError> {
        if size > TAG_BYTES_MAX as u64 {
            return Err(BspError::TagTooLong { size });
        }
        let before = self.registry.next_tag_size();
        self.registry.set_tag_size(size)?;
        Ok(before)
    }

    /// Bytes for the area of another member that this one has registered under this name.
    pub(crate) fn put(
        &mut self,
        out: &mut impl Outgoing,
        to: u32,
        name: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), BspError> {
        self.member(to)?;
        let len = bytes.len() as u64;
        let registration = self.registry.check(to, name, offset, len)?;
        if bytes.is_empty() {
            return Ok(());
        }
        out.append(to, Stream::Data, &[&Record::Put { registration, offset, len }.encode(), bytes])
    }

    /// Bytes of the area of another member, for memory of this one.
    pub(crate) fn get(
        &mut self,
        out: &mut impl Outgoing,
        from: u32,
        (name, offset): (u64, u64),
        (place, to): (Place, u64),
        len: u64,
    ) -> Result<(), BspError> {
        self.member(from)?;
        let registration = self.registry.check(from, name, offset, len)?;
        match to.checked_add(len) {
            Some(end) if end <= place.len() => {}
            end => return Err(BspError::NoRange { start: to, end: end.unwrap_or(u64::MAX), size: place.len() }),
        }
        if len == 0 {
            return Ok(());
        }
        out.append(from, Stream::Requests, &[&Record::Get { registration, offset, len }.encode()])?;
        self.wanted[from as usize].push_back(Wanted { place, offset: to, len });
        Ok(())
    }

    pub(crate) fn send(&mut self, out: &mut impl Outgoing, to: u32, tag: &[u8], bytes: &[u8]) -> Result<(), BspError> {
        self.member(to)?;
        let (len, size) = (tag.len() as u64, self.tag_size());
        if len != size {
            return Err(BspError::TagSize { len, size });
        }
        let head = Record::Message { tag: len as u32, len: bytes.len() as u64 };
        out.append(to, Stream::Data, &[&head.encode(), tag, bytes])
    }

    /// Ends the calls of a superstep: all are told what this member has registered.
    pub(crate) fn close(&mut self, out: &mut impl Outgoing) -> Result<(), BspError> {
        let heads: Vec<_> = self.registry.operations().map(|one| Record::Operation(one).encode()).collect();
        if !heads.is_empty() {
            let others = (0..self.nprocs).filter(|other| *other != self.pid);
            let heads = heads.as_flattened();
            others.into_iter().try_for_each(|other| out.append(other, Stream::Requests, &[heads]))?;
        }
        self.operations.iter_mut().for_each(Vec::clear);
        Ok(())
    }

    /// The requests of a member: answers its gets from memory as it is, in order.
    pub(crate) fn requests(
        &mut self,
        from: u32,
        incoming: &mut impl Incoming,
        places: &mut impl Places,
        answers: &mut impl Outgoing,
    ) -> Result<(), BspError> {
        while incoming.left() > 0 {
            match self.record(from, incoming)? {
                Record::Get { registration, offset, len } => {
                    let place = self.registry.place(registration, offset, len);
                    let bytes = place.and_then(|place| places.bytes(place, offset, len));
                    let bytes = bytes.ok_or(BspError::Misbehaved { pid: from, what: "a get outside of an area" })?;
                    answers.append(from, Stream::Requests, &[bytes])?;
                }
                Record::Operation(operation) => {
                    let theirs = &mut self.operations[from as usize];
                    if theirs.len() >= crate::limits::OPERATIONS_MAX {
                        return Err(BspError::Misbehaved { pid: from, what: "too many registrations" });
                    }
                    theirs.push(operation);
                }
                _ => return Err(BspError::Misbehaved { pid: from, what: "data among requests" }),
            }
        }
        Ok(())
    }

    /// Members that this one has asked for something.
    pub(crate) fn asked(&self) -> impl Iterator<Item = u32> + use<> {
        let asked = |(pid, wanted): (usize, &VecDeque<Wanted>)| (!wanted.is_empty()).then_some(pid as u32);
        self.wanted.iter().enumerate().filter_map(asked).collect::<Vec<_>>().into_iter()
    }

    /// What a member has answered to all gets.
    pub(crate) fn answers(
        &mut self,
        from: u32,
        incoming: &mut impl Incoming,
        places: &mut impl Places,
    ) -> Result<(), BspError> {
        let short = BspError::Misbehaved { pid: from, what: "answers of another length than was asked for" };
        while let Some(Wanted { place, offset, len }) = self.wanted[from as usize].pop_front() {
            let bytes = places.bytes(place, offset, len).ok_or(BspError::NoArea)?;
            if incoming.left() < len {
                return Err(short);
            }
            incoming.read(bytes)?;
        }
        if incoming.left() > 0 { Err(short) } else { Ok(()) }
    }

    /// From here on what comes is written.
    pub(crate) fn begin_data(&mut self) {
        self.queue.clear();
    }

    /// The data of a member.
    pub(crate) fn data(
        &mut self,
        from: u32,
        incoming: &mut impl Incoming,
        places: &mut impl Places,
    ) -> Result<(), BspError> {
        let nonsense = |what| BspError::Misbehaved { pid: from, what };
        while incoming.left() > 0 {
            match self.record(from, incoming)? {
                Record::Put { registration, offset, len } if len <= incoming.left() => {
                    let place = self.registry.place(registration, offset, len);
                    let bytes = place.and_then(|place| places.bytes(place, offset, len));
                    incoming.read(bytes.ok_or(nonsense("a put outside of an area"))?)?;
                }
                Record::Message { tag, len } if u64::from(tag).saturating_add(len) <= incoming.left() => {
                    let tag = u64::from(tag);
                    if tag != self.registry.tag_size() {
                        return Err(nonsense("a tag of another size"));
                    }
                    let (tags, body) = self.queue.add(self.pid, tag, len)?;
                    incoming.read(tags)?;
                    incoming.read(body)?;
                }
                _ => return Err(nonsense("a record that is longer than what came, or no data")),
            }
        }
        Ok(())
    }

    /// The next superstep begins: registrations come into force.
    pub(crate) fn turn(&mut self) -> Result<(), BspError> {
        self.registry.turn(&self.operations)
    }

    fn record(&self, from: u32, incoming: &mut impl Incoming) -> Result<Record, BspError> {
        let nonsense = BspError::Misbehaved { pid: from, what: "no record" };
        if incoming.left() < RECORD_BYTES as u64 {
            return Err(nonsense);
        }
        let mut head = [0; RECORD_BYTES];
        incoming.read(&mut head)?;
        Record::decode(&head).ok_or(nonsense)
    }
}

#[cfg(test)]
mod tests;
