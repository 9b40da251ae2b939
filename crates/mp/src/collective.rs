//! Calls that all members of a group make: barrier, broadcast, gather, scatter, all to all. Those
//! that compute are in `reducing.rs`.
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

mod number;
mod reducing;
#[cfg(test)]
mod tests;

use crate::error::MpError;
use crate::group::Group;
use crate::limits::{BROADCAST_TREE_MAX, BRUCK_BLOCK_MAX, BRUCK_MEMBERS_MIN, BRUCK_TOTAL_MAX, TREE_BLOCK_MAX};
use crate::matching::Pattern;
use crate::memory::{Payload, Room};
pub use number::{Number, Op};
use std::ops::Range;

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

/// One call under way.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    group: &'a Group,
    call: Call,
    own: usize,
    count: usize,
}

impl Group {
    pub(crate) fn turn(&self, call: Call) -> Turn<'_> {
        Turn { group: self, call, own: self.rank() as usize, count: self.size() as usize }
    }

    /// Waits until all members have called this.
    ///
    /// # Errors
    /// [`MpError`]; [`MpError::Gone`]: a member has failed.
    pub fn barrier(&self) -> Result<(), MpError> {
        let turn = self.turn(Call::Barrier);
        for far in turn.distances() {
            turn.exchange(turn.before(far), &[], turn.behind(far), &mut [])?;
        }
        Ok(())
    }

    /// Gives all members the bytes of one.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier).
    pub fn broadcast(&self, root: u32, bytes: &mut [u8]) -> Result<(), MpError> {
        self.member(root)?;
        let turn = self.turn(Call::Broadcast);
        if bytes.len() <= BROADCAST_TREE_MAX || turn.count <= 2 {
            return turn.broadcast_tree(root as usize, bytes);
        }
        // Each gets a part of it, then all parts go round.
        let parts = parts(bytes.len(), 1, turn.count);
        let place = |part: usize| (part + root as usize) % turn.count;
        if turn.own == root as usize {
            for (part, range) in parts.iter().enumerate().skip(1) {
                turn.send(place(part), &bytes[range.clone()])?;
            }
        } else {
            let part = (turn.own + turn.count - root as usize) % turn.count;
            turn.receive(root as usize, &mut bytes[parts[part].clone()])?;
        }
        turn.ring(root as usize, &parts, bytes)
    }

    /// Gives one member the bytes of all, in order of rank; the others give no memory for it. Each
    /// has as many bytes.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier). [`MpError::Length`]: `all` is not as long as all are.
    pub fn gather(&self, root: u32, own: &[u8], all: &mut [u8]) -> Result<(), MpError> {
        self.member(root)?;
        let turn = self.turn(Call::Gather);
        if turn.own == root as usize {
            check("gather: memory for all", all.len(), own.len() * turn.count)?;
        }
        if own.len() > TREE_BLOCK_MAX {
            let lens = vec![own.len(); turn.count];
            return turn.gather_each(root as usize, own, &lens, all);
        }
        turn.gather_tree(root as usize, own, all)
    }

    /// As [`gather`](Self::gather), of as many bytes as each has; the root knows how many.
    ///
    /// # Errors
    /// As for [`gather`](Self::gather).
    pub fn gather_varied(&self, root: u32, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), MpError> {
        self.member(root)?;
        let turn = self.turn(Call::Gather);
        if turn.own == root as usize {
            turn.check_lens("gather: memory for all", own.len(), lens, all.len())?;
        }
        turn.gather_each(root as usize, own, lens, all)
    }

    /// Gives each member its part of what one has, in order of rank; the others give none.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier). [`MpError::Length`]: `all` is not as long as all are.
    pub fn scatter(&self, root: u32, all: &[u8], own: &mut [u8]) -> Result<(), MpError> {
        self.member(root)?;
        let turn = self.turn(Call::Scatter);
        let len = own.len();
        if turn.own == root as usize {
            check("scatter: bytes of all", all.len(), len * turn.count)?;
        }
        if len <= TREE_BLOCK_MAX {
            return turn.scatter_tree(root as usize, all, own);
        }
        if turn.own != root as usize {
            return turn.receive(root as usize, own);
        }
        for (rank, part) in all.chunks_exact(len).enumerate() {
            if rank == turn.own {
                own.copy_from_slice(part);
            } else {
                turn.send(rank, part)?;
            }
        }
        Ok(())
    }

    /// Gives all members the bytes of all, in order of rank. Each has as many.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier). [`MpError::Length`]: `all` is not as long as all are.
    pub fn allgather(&self, own: &[u8], all: &mut [u8]) -> Result<(), MpError> {
        let turn = self.turn(Call::Allgather);
        check("allgather: memory for all", all.len(), own.len() * turn.count)?;
        if all.len() <= BRUCK_TOTAL_MAX {
            return turn.allgather_bruck(own, all);
        }
        self.allgather_varied(own, &vec![own.len(); turn.count], all)
    }

    /// As [`allgather`](Self::allgather), of as many bytes as each has; all members know how many.
    ///
    /// # Errors
    /// As for [`allgather`](Self::allgather).
    pub fn allgather_varied(&self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), MpError> {
        let turn = self.turn(Call::Allgather);
        turn.check_lens("allgather: memory for all", own.len(), lens, all.len())?;
        let parts = places(lens);
        all[parts[turn.own].clone()].copy_from_slice(own);
        turn.ring(0, &parts, all)
    }

    /// Gives each member its part of what each other one has for it: `from` has a part for each, in
    /// order of rank, and `to` gets one of each.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier). [`MpError::Length`]: they are not as long as each other,
    /// or no multiple of the members.
    pub fn all_to_all(&self, from: &[u8], to: &mut [u8]) -> Result<(), MpError> {
        let turn = self.turn(Call::AllToAll);
        check("all to all: memory for all", to.len(), from.len())?;
        let len = from.len() / turn.count;
        check("all to all: bytes for all", from.len(), len * turn.count)?;
        if len <= BRUCK_BLOCK_MAX && turn.count >= BRUCK_MEMBERS_MIN {
            return turn.all_to_all_bruck(len, from, to);
        }
        let lens = vec![len; turn.count];
        turn.all_to_all_pairs(from, &places(&lens), to, &places(&lens))
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
        let turn = self.turn(Call::AllToAll);
        for (what, lens, len) in
            [("all to all: bytes for all", from_lens, from.len()), ("all to all: memory for all", to_lens, to.len())]
        {
            check("all to all: lengths", lens.len(), turn.count)?;
            check(what, len, lens.iter().sum())?;
        }
        check("all to all: bytes for oneself", to_lens[turn.own], from_lens[turn.own])?;
        turn.all_to_all_pairs(from, &places(from_lens), to, &places(to_lens))
    }
}

pub(crate) fn check(what: &'static str, len: usize, wanted: usize) -> Result<(), MpError> {
    let (len, wanted) = (len as u64, wanted as u64);
    if len == wanted { Ok(()) } else { Err(MpError::Length { what, len, wanted }) }
}

/// Where each part lies, one behind the other.
fn places(lens: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let place = |len: &usize| {
        let start = end;
        end += len;
        start..end
    };
    lens.iter().map(place).collect()
}

/// So many parts of some bytes, none of which splits a unit; nearly alike.
pub(crate) fn parts(len: usize, unit: usize, count: usize) -> Vec<Range<usize>> {
    let units = len / unit.max(1);
    let at = |part: usize| units * part / count * unit;
    (0..count).map(|part| at(part)..if part + 1 == count { len } else { at(part + 1) }).collect()
}

/// Two ranges that do not overlap, one to change.
fn apart(all: &mut [u8], one: Range<usize>, other: Range<usize>) -> (&[u8], &mut [u8]) {
    if one.end <= other.start {
        let (low, high) = all.split_at_mut(other.start);
        (&low[one], &mut high[..other.len()])
    } else {
        let (low, high) = all.split_at_mut(one.start);
        (&high[..one.len()], &mut low[other])
    }
}

impl Turn<'_> {
    /// Powers of two below the number of members.
    fn distances(self) -> impl Iterator<Item = usize> {
        (0..).map(|bit| 1usize << bit).take_while(move |far| *far < self.count)
    }

    /// The member so far before this one, in a ring.
    fn before(self, far: usize) -> usize {
        (self.own + self.count - far % self.count) % self.count
    }

    /// The member so far behind this one.
    fn behind(self, far: usize) -> usize {
        (self.own + far) % self.count
    }

    fn to(self, rank: usize) -> (u32, u32, u64) {
        (self.group.members[rank], self.group.context() + 1, self.call as u64)
    }

    fn of(self, rank: usize) -> Pattern {
        let (member, context, tag) = self.to(rank);
        Pattern { context, source: Some(member), tag, mask: u64::MAX }
    }

    pub(crate) fn send(self, rank: usize, bytes: &[u8]) -> Result<(), MpError> {
        let (member, context, tag) = self.to(rank);
        self.group.shared.send(member, context, tag, Payload::Slice(bytes))
    }

    /// Receives just as many bytes.
    pub(crate) fn receive(self, rank: usize, into: &mut [u8]) -> Result<(), MpError> {
        let wanted = into.len();
        let (_, len) = self.group.shared.receive(self.of(rank), Room::Slice(into))?;
        check("a collective call: bytes of another member", len as usize, wanted)
    }

    /// Sends to one and receives from another.
    pub(crate) fn exchange(self, to: usize, bytes: &[u8], from: usize, into: &mut [u8]) -> Result<(), MpError> {
        let wanted = into.len();
        let (payload, room) = (Payload::Slice(bytes), Room::Slice(into));
        let (_, len) = self.group.shared.exchange(self.to(to), payload, self.of(from), room)?;
        check("a collective call: bytes of another member", len as usize, wanted)
    }

    fn check_lens(self, what: &'static str, own: usize, lens: &[usize], all: usize) -> Result<(), MpError> {
        check("lengths of all members", lens.len(), self.count)?;
        check("this member's bytes", own, lens[self.own])?;
        check(what, all, lens.iter().sum())
    }

    /// The way from a root to all: in each step all that have it tell one more.
    pub(crate) fn broadcast_tree(self, root: usize, bytes: &mut [u8]) -> Result<(), MpError> {
        let place = (self.own + self.count - root) % self.count;
        let rank = |place: usize| (place + root) % self.count;
        let top = self.count.next_power_of_two();
        let got = if place == 0 { top } else { 1 << place.trailing_zeros() };
        if place > 0 {
            self.receive(rank(place - got), bytes)?;
        }
        let mut far = got / 2;
        while far > 0 {
            if place + far < self.count {
                self.send(rank(place + far), bytes)?;
            }
            far /= 2;
        }
        Ok(())
    }

    /// Each passes on what it has got last. Part `p` is at first that of the member so far behind
    /// the root.
    pub(crate) fn ring(self, root: usize, parts: &[Range<usize>], all: &mut [u8]) -> Result<(), MpError> {
        let place = (self.own + self.count - root) % self.count;
        for step in 0..self.count.saturating_sub(1) {
            let out = parts[(place + self.count - step) % self.count].clone();
            let into = parts[(place + self.count - step - 1) % self.count].clone();
            let (out, into) = apart(all, out, into);
            self.exchange(self.behind(1), out, self.before(1), into)?;
        }
        Ok(())
    }

    fn gather_each(self, root: usize, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), MpError> {
        if self.own != root {
            return self.send(root, own);
        }
        for (rank, place) in places(lens).into_iter().enumerate() {
            if rank == root {
                all[place].copy_from_slice(own);
            } else {
                self.receive(rank, &mut all[place])?;
            }
        }
        Ok(())
    }

    /// How many members a subtree has that begins at this place of a binomial tree.
    fn below(self, place: usize) -> usize {
        let most = if place == 0 { self.count } else { 1 << place.trailing_zeros() };
        most.min(self.count - place)
    }

    fn gather_tree(self, root: usize, own: &[u8], all: &mut [u8]) -> Result<(), MpError> {
        let len = own.len();
        let place = (self.own + self.count - root) % self.count;
        let rank = |place: usize| (place + root) % self.count;
        // Those of the subtree, by place.
        let mut known = vec![0; len * self.below(place)];
        known[..len].copy_from_slice(own);
        let mut far = 1;
        while far < self.count && place & far == 0 {
            if place + far < self.count {
                let count = self.below(place + far).min(far);
                self.receive(rank(place + far), &mut known[far * len..(far + count) * len])?;
            }
            far *= 2;
        }
        if place > 0 {
            return self.send(rank(place - far), &known);
        }
        for (place, part) in known.chunks_exact(len.max(1)).enumerate() {
            all[rank(place) * len..][..len].copy_from_slice(part);
        }
        Ok(())
    }

    fn scatter_tree(self, root: usize, all: &[u8], own: &mut [u8]) -> Result<(), MpError> {
        let len = own.len();
        let place = (self.own + self.count - root) % self.count;
        let rank = |place: usize| (place + root) % self.count;
        let mut known = vec![0; len * self.below(place)];
        let mut far = self.count.next_power_of_two();
        if place == 0 {
            for (place, part) in known.chunks_exact_mut(len.max(1)).enumerate() {
                part.copy_from_slice(&all[rank(place) * len..][..len]);
            }
        } else {
            far = 1 << place.trailing_zeros();
            self.receive(rank(place - far), &mut known)?;
        }
        far /= 2;
        while far > 0 {
            if place + far < self.count {
                let count = self.below(place + far);
                self.send(rank(place + far), &known[far * len..(far + count) * len])?;
            }
            far /= 2;
        }
        own.copy_from_slice(&known[..len]);
        Ok(())
    }

    fn allgather_bruck(self, own: &[u8], all: &mut [u8]) -> Result<(), MpError> {
        let len = own.len();
        all[..len].copy_from_slice(own);
        let mut known = 1;
        let mut passed = Vec::new();
        while known < self.count {
            let count = known.min(self.count - known);
            passed.clear();
            passed.extend_from_slice(&all[..count * len]);
            self.exchange(self.before(known), &passed, self.behind(known), &mut all[known * len..][..count * len])?;
            known += count;
        }
        all.rotate_right(self.own * len);
        Ok(())
    }

    fn all_to_all_bruck(self, len: usize, from: &[u8], to: &mut [u8]) -> Result<(), MpError> {
        // By how far they have to go.
        to.copy_from_slice(from);
        to.rotate_left(self.own * len);
        let (mut out, mut into) = (Vec::new(), Vec::new());
        for far in self.distances() {
            let moved = || (0..self.count).filter(move |block| block & far != 0);
            out.clear();
            moved().for_each(|block| out.extend_from_slice(&to[block * len..][..len]));
            into.resize(out.len(), 0);
            self.exchange(self.behind(far), &out, self.before(far), &mut into)?;
            for (at, block) in moved().enumerate() {
                to[block * len..][..len].copy_from_slice(&into[at * len..][..len]);
            }
        }
        // Block `i` is now of the member so far before this one.
        out.clear();
        for rank in 0..self.count {
            let block = (self.own + self.count - rank) % self.count;
            out.extend_from_slice(&to[block * len..][..len]);
        }
        to.copy_from_slice(&out);
        Ok(())
    }

    fn all_to_all_pairs(
        self,
        from: &[u8],
        from_places: &[Range<usize>],
        to: &mut [u8],
        to_places: &[Range<usize>],
    ) -> Result<(), MpError> {
        to[to_places[self.own].clone()].copy_from_slice(&from[from_places[self.own].clone()]);
        for far in 1..self.count {
            let (out, into) = (self.behind(far), self.before(far));
            self.exchange(out, &from[from_places[out].clone()], into, &mut to[to_places[into].clone()])?;
        }
        Ok(())
    }
}
