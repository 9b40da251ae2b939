//! Registered areas: what others may put into and get from, known by a number that is the same
//! everywhere.
//!
//! Invariant: a registration has one number on all members, for all make the same ones in the same
//! order; what is found by an address is the last registration of it that is in force.

use crate::error::BspError;
use crate::limits::{OPERATIONS_MAX, REGISTRATIONS_MAX};
use crate::wire::Operation;

/// Memory of the program: what it was registered under, and its bytes. Whoever makes one says what
/// the name means; see [`Places`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    name: u64,
    len: u64,
}

impl Place {
    /// Memory of so many bytes that [`Places::bytes`] knows by this name.
    pub const fn new(name: u64, len: u64) -> Place {
        Place { name, len }
    }

    /// Its name.
    pub const fn name(self) -> u64 {
        self.name
    }

    /// Its bytes.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Whether it has none.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// The memory that names stand for.
pub trait Places {
    /// Bytes of a place, which was made by the program and is registered now, or the target of a
    /// get. None: there are no such bytes.
    fn bytes(&mut self, place: Place, offset: u64, len: u64) -> Option<&mut [u8]>;
}

struct Registration {
    number: u32,
    /// None: this member has nothing there.
    own: Option<Place>,
    /// Bytes that each member says it has there.
    sizes: Box<[Option<u64>]>,
}

/// An operation of this superstep.
struct Pending {
    operation: Operation,
    place: Option<Place>,
}

/// All registrations, and what becomes of them at the next sync.
pub(crate) struct Registry {
    pid: u32,
    in_force: Vec<Registration>,
    pending: Vec<Pending>,
    /// Number of the next one to come into force.
    next: u32,
    tag_size: u64,
}

impl Registry {
    pub(crate) fn new(pid: u32) -> Registry {
        Registry { pid, in_force: Vec::new(), pending: Vec::new(), next: 0, tag_size: 0 }
    }

    /// Bytes of tags in this superstep.
    pub(crate) fn tag_size(&self) -> u64 {
        self.tag_size
    }

    /// Bytes that tags will have after the next sync, as far as this member has said.
    pub(crate) fn next_tag_size(&self) -> u64 {
        let said = self.pending.iter().rev().find_map(|pending| match pending.operation {
            Operation::TagSize(size) => Some(size),
            _ => None,
        });
        said.unwrap_or(self.tag_size)
    }

    /// What this member has done in this superstep, in order.
    pub(crate) fn operations(&self) -> impl Iterator<Item = Operation> {
        self.pending.iter().map(|pending| pending.operation)
    }

    pub(crate) fn push(&mut self, place: Option<Place>) -> Result<(), BspError> {
        let pushes = self.operations().filter(|operation| matches!(operation, Operation::Push(_))).count();
        if self.in_force.len() + pushes >= REGISTRATIONS_MAX {
            return Err(BspError::TooManyRegistrations);
        }
        self.add(Operation::Push(place.map(Place::len)), place)
    }

    /// The end of the last registration under this name; none: this member has nothing there.
    pub(crate) fn pop(&mut self, name: Option<u64>) -> Result<(), BspError> {
        let which = match name {
            None => None,
            Some(name) => Some(self.last_of(name).ok_or(BspError::NothingToPop)?),
        };
        self.add(Operation::Pop(which), None)
    }

    pub(crate) fn set_tag_size(&mut self, size: u64) -> Result<(), BspError> {
        self.add(Operation::TagSize(size), None)
    }

    fn add(&mut self, operation: Operation, place: Option<Place>) -> Result<(), BspError> {
        if self.pending.len() >= OPERATIONS_MAX {
            return Err(BspError::TooManyRegistrations);
        }
        self.pending.push(Pending { operation, place });
        Ok(())
    }

    /// Number of the last registration under a name, those of this superstep among them.
    fn last_of(&self, name: u64) -> Option<u32> {
        let named = |place: &Option<Place>| place.is_some_and(|place| place.name == name);
        let in_force = self.in_force.iter().filter(|one| named(&one.own)).map(|one| one.number);
        let mut numbers: Vec<u32> = in_force.collect();
        let mut next = self.next;
        for pending in &self.pending {
            match pending.operation {
                Operation::Push(_) => {
                    if named(&pending.place) {
                        numbers.push(next);
                    }
                    next = next.wrapping_add(1);
                }
                Operation::Pop(Some(which)) => numbers.retain(|number| *number != which),
                _ => {}
            }
        }
        numbers.last().copied()
    }

    /// The registration that an access of this member to another one's memory is of.
    pub(crate) fn check(&self, pid: u32, name: u64, offset: u64, len: u64) -> Result<u32, BspError> {
        let named = |one: &&Registration| one.own.is_some_and(|place| place.name == name);
        let found = self.in_force.iter().rev().find(named).ok_or(BspError::NotRegistered)?;
        let size = found.sizes[pid as usize].ok_or(BspError::NothingThere { pid })?;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(found.number),
            end => Err(BspError::OutsideOfArea { pid, offset, end: end.unwrap_or(u64::MAX), size }),
        }
    }

    /// The memory that an access of another member is to, which is a claim; none: it has none.
    pub(crate) fn place(&self, number: u32, offset: u64, len: u64) -> Option<Place> {
        let at = self.in_force.binary_search_by_key(&number, |one| one.number).ok()?;
        let place = self.in_force[at].own?;
        (offset.checked_add(len)? <= place.len).then_some(place)
    }

    /// Has come into force what all have done, which is the same: `all` are their operations, by
    /// number of the member; that of this one is not looked at.
    pub(crate) fn turn(&mut self, all: &[Vec<Operation>]) -> Result<(), BspError> {
        let pending = std::mem::take(&mut self.pending);
        for (other, theirs) in all.iter().enumerate() {
            if other != self.pid as usize && theirs.len() != pending.len() {
                let (ours, theirs) = (pending.len() as u64, theirs.len() as u64);
                return Err(BspError::Uneven { pid: self.pid, ours, other: other as u32, theirs });
            }
        }
        for (at, own) in pending.iter().enumerate() {
            let said = |other: usize| if other == self.pid as usize { own.operation } else { all[other][at] };
            let said: Vec<Operation> = (0..all.len()).map(said).collect();
            self.make(at as u64 + 1, own, &said)?;
        }
        Ok(())
    }

    fn make(&mut self, number: u64, own: &Pending, said: &[Operation]) -> Result<(), BspError> {
        let pid = self.pid;
        let different = |other: usize, what| BspError::Different { pid, other: other as u32, what, number };
        let kinds = "push_reg, pop_reg and set_tagsize";
        match own.operation {
            Operation::Push(_) => {
                let size = |(other, operation): (usize, &Operation)| match operation {
                    Operation::Push(size) => Ok(*size),
                    _ => Err(different(other, kinds)),
                };
                let sizes = said.iter().enumerate().map(size).collect::<Result<Box<[_]>, _>>()?;
                self.in_force.push(Registration { number: self.next, own: own.place, sizes });
                self.next = self.next.wrapping_add(1);
            }
            Operation::Pop(_) => {
                let mut agreed = None;
                for (other, operation) in said.iter().enumerate() {
                    match (operation, agreed) {
                        (Operation::Pop(None), _) => {}
                        (Operation::Pop(Some(which)), None) => agreed = Some(*which),
                        (Operation::Pop(Some(which)), Some(agreed)) if *which == agreed => {}
                        (Operation::Pop(_), _) => return Err(different(other, "the area of pop_reg")),
                        _ => return Err(different(other, kinds)),
                    }
                }
                let at = match agreed {
                    Some(which) => self.in_force.iter().rposition(|one| one.number == which),
                    None => self.in_force.iter().rposition(|one| one.sizes.iter().all(Option::is_none)),
                };
                self.in_force.remove(at.ok_or(BspError::NothingToPop)?);
            }
            Operation::TagSize(size) => {
                if let Some(other) = said.iter().position(|operation| *operation != own.operation) {
                    return Err(different(other, "the size of set_tagsize"));
                }
                self.tag_size = size;
            }
        }
        Ok(())
    }
}
