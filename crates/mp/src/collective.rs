//! Calls that all members of a group make: barrier, broadcast, gather, scatter, all to all. Those
//! that compute are in `reducing.rs`, the algorithms of these in `turn.rs`.
//!
//! Which algorithm is taken depends on how many members there are and how many bytes each has,
//! which all of them know alike.
//!
//! | call | few bytes | many bytes |
//! | --- | --- | --- |
//! | barrier | dissemination: each tells the one 1, 2, 4 … behind it | |
//! | broadcast | binomial tree | scatter, then a ring |
//! | gather, scatter | binomial tree | the root and each member |
//! | allgather | Bruck: what is known doubles in each step | a ring |
//! | all to all | Bruck: blocks travel by the bits of their distance | in each step one partner |
//!
//! Invariant: all members make the same calls in the same order, each with the same lengths. Their
//! messages have a context of their own, so those of the program do not meet them; the order of
//! messages between two members tells one call from the next.

mod groups;
mod number;
mod reducing;
#[cfg(test)]
mod tests;
mod turn;

use crate::engine::Shared;
use crate::error::MpError;
use crate::group::Group;
use crate::matching::{Envelope, Pattern};
use crate::memory::{Payload, Room};
pub use number::{Number, Op};
pub(crate) use reducing::combine;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
pub(crate) use turn::{Calls, To, Turn};

/// What a message of a collective call is called: the call, so that a member that makes another one
/// waits in vain and takes nothing that is not for it.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    Barrier = 1,
    Broadcast,
    Gather,
    Allgather,
    Scatter,
    AllToAll,
    Reduce,
    Allreduce,
    Scan,
}

/// Those of a process wait, so that they are over when they have been begun.
impl Calls for Shared {
    #[inline]
    async fn send(&self, (member, context, tag): To, bytes: &[u8]) -> Result<(), MpError> {
        Shared::send(self, member, context, tag, Payload::Slice(bytes))
    }

    #[inline]
    async fn receive(&self, of: Pattern, into: &mut [u8]) -> Result<(Envelope, u64), MpError> {
        Shared::receive(self, of, Room::Slice(into))
    }

    #[inline]
    async fn exchange(&self, to: To, bytes: &[u8], of: Pattern, into: &mut [u8]) -> Result<(Envelope, u64), MpError> {
        Shared::exchange(self, to, Payload::Slice(bytes), of, Room::Slice(into))
    }
}

/// Makes a call whose sends and receives wait.
#[inline]
pub(crate) fn at_once<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("each of its sends and receives is over when it has been begun"),
    }
}

impl Group {
    pub(crate) fn turn(&self, call: Call) -> Turn<'_, Shared> {
        Turn {
            calls: &self.shared,
            context: self.context() + 1,
            members: &self.members,
            call,
            own: self.rank() as usize,
            count: self.size() as usize,
        }
    }

    /// Waits until all members have called this.
    ///
    /// # Errors
    /// [`MpError`]; [`MpError::Gone`]: a member has failed.
    pub fn barrier(&self) -> Result<(), MpError> {
        at_once(self.turn(Call::Barrier).barrier())
    }

    /// Gives all members the bytes of one.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier).
    pub fn broadcast(&self, root: u32, bytes: &mut [u8]) -> Result<(), MpError> {
        at_once(self.turn(Call::Broadcast).broadcast(root, bytes))
    }

    /// Gives one member the bytes of all, in order of rank; the others give no memory for it. Each
    /// has as many bytes.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier). [`MpError::Length`]: `all` is not as long as all are.
    pub fn gather(&self, root: u32, own: &[u8], all: &mut [u8]) -> Result<(), MpError> {
        at_once(self.turn(Call::Gather).gather(root, own, all))
    }

    /// As [`gather`](Self::gather), of as many bytes as each has; the root knows how many.
    ///
    /// # Errors
    /// As for [`gather`](Self::gather).
    pub fn gather_varied(&self, root: u32, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), MpError> {
        at_once(self.turn(Call::Gather).gather_varied(root, own, lens, all))
    }

    /// Gives each member its part of what one has, in order of rank; the others give none.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier). [`MpError::Length`]: `all` is not as long as all are.
    pub fn scatter(&self, root: u32, all: &[u8], own: &mut [u8]) -> Result<(), MpError> {
        at_once(self.turn(Call::Scatter).scatter(root, all, own))
    }

    /// Gives all members the bytes of all, in order of rank. Each has as many.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier). [`MpError::Length`]: `all` is not as long as all are.
    pub fn allgather(&self, own: &[u8], all: &mut [u8]) -> Result<(), MpError> {
        at_once(self.turn(Call::Allgather).allgather(own, all))
    }

    /// As [`allgather`](Self::allgather), of as many bytes as each has; all members know how many.
    ///
    /// # Errors
    /// As for [`allgather`](Self::allgather).
    pub fn allgather_varied(&self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), MpError> {
        at_once(self.turn(Call::Allgather).allgather_varied(own, lens, all))
    }

    /// Gives each member its part of what each other one has for it: `from` has a part for each, in
    /// order of rank, and `to` gets one of each.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier). [`MpError::Length`]: they are not as long as each other,
    /// or no multiple of the members.
    pub fn all_to_all(&self, from: &[u8], to: &mut [u8]) -> Result<(), MpError> {
        at_once(self.turn(Call::AllToAll).all_to_all(from, to))
    }

    /// As [`all_to_all`](Self::all_to_all), of as many bytes as each has for each; both sides know
    /// how many.
    ///
    /// # Errors
    /// As for [`all_to_all`](Self::all_to_all).
    pub fn all_to_all_varied(
        &self,
        from: &[u8],
        from_lens: &[usize],
        to: &mut [u8],
        to_lens: &[usize],
    ) -> Result<(), MpError> {
        at_once(self.turn(Call::AllToAll).all_to_all_varied(from, from_lens, to, to_lens))
    }
}
