//! One collective call under way: what it sends and receives, and the algorithms.
//!
//! Invariant: a call does nothing but send and receive by [`Calls`], so it runs as it is in a
//! process, whose sends and receives wait, and in the simulation, whose do not.

use super::Call;
use crate::error::MpError;
use crate::limits::{BROADCAST_TREE_MAX, BRUCK_BLOCK_MAX, BRUCK_MEMBERS_MIN, BRUCK_TOTAL_MAX, TREE_BLOCK_MAX};
use crate::matching::{Envelope, Pattern};
use std::ops::Range;

/// A member, a context and a tag.
pub(crate) type To = (u32, u32, u64);

/// The sends and receives that collective calls are made of. Each is over when its memory may be
/// used again.
pub(crate) trait Calls {
    async fn send(&self, to: To, bytes: &[u8]) -> Result<(), MpError>;
    async fn receive(&self, of: Pattern, into: &mut [u8]) -> Result<(Envelope, u64), MpError>;
    /// Both at once.
    async fn exchange(&self, to: To, bytes: &[u8], of: Pattern, into: &mut [u8]) -> Result<(Envelope, u64), MpError>;
}

/// One call under way.
pub(crate) struct Turn<'a, C> {
    pub(crate) calls: &'a C,
    /// The context of the group's collective calls.
    pub(crate) context: u32,
    /// Members by rank of the group.
    pub(crate) members: &'a [u32],
    pub(crate) call: Call,
    /// Rank of this member.
    pub(crate) own: usize,
    /// Members: at least one.
    pub(crate) count: usize,
}

impl<C> Clone for Turn<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Turn<'_, C> {}

impl<C: Calls> Turn<'_, C> {
    pub(crate) fn root(self, root: u32) -> Result<usize, MpError> {
        let size = self.count as u32;
        if root < size { Ok(root as usize) } else { Err(MpError::NoRank { rank: root, size }) }
    }

    pub(crate) async fn barrier(self) -> Result<(), MpError> {
        for far in self.distances() {
            self.exchange(self.before(far), &[], self.behind(far), &mut []).await?;
        }
        Ok(())
    }

    pub(crate) async fn broadcast(self, root: u32, bytes: &mut [u8]) -> Result<(), MpError> {
        let root = self.root(root)?;
        if bytes.len() <= BROADCAST_TREE_MAX || self.count <= 2 {
            return self.broadcast_tree(root, bytes).await;
        }
        // Each gets a part of it, then all parts go round.
        let parts = parts(bytes.len(), 1, self.count);
        let place = |part: usize| (part + root) % self.count;
        if self.own == root {
            for (part, range) in parts.iter().enumerate().skip(1) {
                self.send(place(part), &bytes[range.clone()]).await?;
            }
        } else {
            let part = (self.own + self.count - root) % self.count;
            self.receive(root, &mut bytes[parts[part].clone()]).await?;
        }
        self.ring(root, &parts, bytes).await
    }

    pub(crate) async fn gather(self, root: u32, own: &[u8], all: &mut [u8]) -> Result<(), MpError> {
        let root = self.root(root)?;
        if self.own == root {
            check("gather: memory for all", all.len(), own.len() * self.count)?;
        }
        if own.len() > TREE_BLOCK_MAX {
            let lens = vec![own.len(); self.count];
            return self.gather_each(root, own, &lens, all).await;
        }
        self.gather_tree(root, own, all).await
    }

    pub(crate) async fn gather_varied(
        self,
        root: u32,
        own: &[u8],
        lens: &[usize],
        all: &mut [u8],
    ) -> Result<(), MpError> {
        let root = self.root(root)?;
        if self.own == root {
            self.check_lens("gather: memory for all", own.len(), lens, all.len())?;
        }
        self.gather_each(root, own, lens, all).await
    }

    pub(crate) async fn scatter(self, root: u32, all: &[u8], own: &mut [u8]) -> Result<(), MpError> {
        let root = self.root(root)?;
        let len = own.len();
        if self.own == root {
            check("scatter: bytes of all", all.len(), len * self.count)?;
        }
        if len <= TREE_BLOCK_MAX {
            return self.scatter_tree(root, all, own).await;
        }
        if self.own != root {
            return self.receive(root, own).await;
        }
        for (rank, part) in all.chunks_exact(len).enumerate() {
            if rank == self.own {
                own.copy_from_slice(part);
            } else {
                self.send(rank, part).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn allgather(self, own: &[u8], all: &mut [u8]) -> Result<(), MpError> {
        check("allgather: memory for all", all.len(), own.len() * self.count)?;
        if all.len() <= BRUCK_TOTAL_MAX {
            return self.allgather_bruck(own, all).await;
        }
        self.allgather_varied(own, &vec![own.len(); self.count], all).await
    }

    pub(crate) async fn allgather_varied(self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), MpError> {
        self.check_lens("allgather: memory for all", own.len(), lens, all.len())?;
        let parts = places(lens);
        all[parts[self.own].clone()].copy_from_slice(own);
        self.ring(0, &parts, all).await
    }

    pub(crate) async fn all_to_all(self, from: &[u8], to: &mut [u8]) -> Result<(), MpError> {
        check("all to all: memory for all", to.len(), from.len())?;
        let len = from.len() / self.count;
        check("all to all: bytes for all", from.len(), len * self.count)?;
        if len <= BRUCK_BLOCK_MAX && self.count >= BRUCK_MEMBERS_MIN {
            return self.all_to_all_bruck(len, from, to).await;
        }
        let lens = vec![len; self.count];
        self.all_to_all_pairs(from, &places(&lens), to, &places(&lens)).await
    }

    pub(crate) async fn all_to_all_varied(
        self,
        from: &[u8],
        from_lens: &[usize],
        to: &mut [u8],
        to_lens: &[usize],
    ) -> Result<(), MpError> {
        for (what, lens, len) in
            [("all to all: bytes for all", from_lens, from.len()), ("all to all: memory for all", to_lens, to.len())]
        {
            check("all to all: lengths", lens.len(), self.count)?;
            check(what, len, lens.iter().sum())?;
        }
        check("all to all: bytes for oneself", to_lens[self.own], from_lens[self.own])?;
        self.all_to_all_pairs(from, &places(from_lens), to, &places(to_lens)).await
    }

    /// Powers of two below the number of members.
    pub(super) fn distances(self) -> impl Iterator<Item = usize> {
        (0..).map(|bit| 1usize << bit).take_while(move |far| *far < self.count)
    }

    /// The member so far before this one, in a ring.
    pub(super) fn before(self, far: usize) -> usize {
        (self.own + self.count - far % self.count) % self.count
    }

    /// The member so far behind this one.
    pub(super) fn behind(self, far: usize) -> usize {
        (self.own + far) % self.count
    }

    fn to(self, rank: usize) -> To {
        (self.members[rank], self.context, self.call as u64)
    }

    fn of(self, rank: usize) -> Pattern {
        let (member, context, tag) = self.to(rank);
        Pattern { context, source: Some(member), tag, mask: u64::MAX }
    }

    pub(crate) async fn send(self, rank: usize, bytes: &[u8]) -> Result<(), MpError> {
        self.calls.send(self.to(rank), bytes).await
    }

    /// Receives just as many bytes.
    pub(crate) async fn receive(self, rank: usize, into: &mut [u8]) -> Result<(), MpError> {
        let wanted = into.len();
        let (_, len) = self.calls.receive(self.of(rank), into).await?;
        check("a collective call: bytes of another member", len as usize, wanted)
    }

    /// Sends to one and receives from another.
    pub(crate) async fn exchange(self, to: usize, bytes: &[u8], from: usize, into: &mut [u8]) -> Result<(), MpError> {
        let wanted = into.len();
        let (_, len) = self.calls.exchange(self.to(to), bytes, self.of(from), into).await?;
        check("a collective call: bytes of another member", len as usize, wanted)
    }

    fn check_lens(self, what: &'static str, own: usize, lens: &[usize], all: usize) -> Result<(), MpError> {
        check("lengths of all members", lens.len(), self.count)?;
        check("this member's bytes", own, lens[self.own])?;
        check(what, all, lens.iter().sum())
    }

    /// The way from a root to all: in each step all that have it tell one more.
    pub(crate) async fn broadcast_tree(self, root: usize, bytes: &mut [u8]) -> Result<(), MpError> {
        let place = (self.own + self.count - root) % self.count;
        let rank = |place: usize| (place + root) % self.count;
        let top = self.count.next_power_of_two();
        let got = if place == 0 { top } else { 1 << place.trailing_zeros() };
        if place > 0 {
            self.receive(rank(place - got), bytes).await?;
        }
        let mut far = got / 2;
        while far > 0 {
            if place + far < self.count {
                self.send(rank(place + far), bytes).await?;
            }
            far /= 2;
        }
        Ok(())
    }

    /// Each passes on what it has got last. Part `p` is at first that of the member so far behind
    /// the root.
    pub(crate) async fn ring(self, root: usize, parts: &[Range<usize>], all: &mut [u8]) -> Result<(), MpError> {
        let place = (self.own + self.count - root) % self.count;
        for step in 0..self.count.saturating_sub(1) {
            let out = parts[(place + self.count - step) % self.count].clone();
            let into = parts[(place + self.count - step - 1) % self.count].clone();
            let (out, into) = apart(all, out, into);
            self.exchange(self.behind(1), out, self.before(1), into).await?;
        }
        Ok(())
    }

    async fn gather_each(self, root: usize, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), MpError> {
        if self.own != root {
            return self.send(root, own).await;
        }
        for (rank, place) in places(lens).into_iter().enumerate() {
            if rank == root {
                all[place].copy_from_slice(own);
            } else {
                self.receive(rank, &mut all[place]).await?;
            }
        }
        Ok(())
    }

    /// How many members a subtree has that begins at this place of a binomial tree.
    fn below(self, place: usize) -> usize {
        let most = if place == 0 { self.count } else { 1 << place.trailing_zeros() };
        most.min(self.count - place)
    }

    async fn gather_tree(self, root: usize, own: &[u8], all: &mut [u8]) -> Result<(), MpError> {
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
                self.receive(rank(place + far), &mut known[far * len..(far + count) * len]).await?;
            }
            far *= 2;
        }
        if place > 0 {
            return self.send(rank(place - far), &known).await;
        }
        for (place, part) in known.chunks_exact(len.max(1)).enumerate() {
            all[rank(place) * len..][..len].copy_from_slice(part);
        }
        Ok(())
    }

    async fn scatter_tree(self, root: usize, all: &[u8], own: &mut [u8]) -> Result<(), MpError> {
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
            self.receive(rank(place - far), &mut known).await?;
        }
        far /= 2;
        while far > 0 {
            if place + far < self.count {
                let count = self.below(place + far);
                self.send(rank(place + far), &known[far * len..(far + count) * len]).await?;
            }
            far /= 2;
        }
        own.copy_from_slice(&known[..len]);
        Ok(())
    }

    async fn allgather_bruck(self, own: &[u8], all: &mut [u8]) -> Result<(), MpError> {
        let len = own.len();
        all[..len].copy_from_slice(own);
        let mut known = 1;
        let mut passed = Vec::new();
        while known < self.count {
            let count = known.min(self.count - known);
            passed.clear();
            passed.extend_from_slice(&all[..count * len]);
            self.exchange(self.before(known), &passed, self.behind(known), &mut all[known * len..][..count * len])
                .await?;
            known += count;
        }
        all.rotate_right(self.own * len);
        Ok(())
    }

    async fn all_to_all_bruck(self, len: usize, from: &[u8], to: &mut [u8]) -> Result<(), MpError> {
        // By how far they have to go.
        to.copy_from_slice(from);
        to.rotate_left(self.own * len);
        let (mut out, mut into) = (Vec::new(), Vec::new());
        for far in self.distances() {
            let moved = || (0..self.count).filter(move |block| block & far != 0);
            out.clear();
            moved().for_each(|block| out.extend_from_slice(&to[block * len..][..len]));
            into.resize(out.len(), 0);
            self.exchange(self.behind(far), &out, self.before(far), &mut into).await?;
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

    async fn all_to_all_pairs(
        self,
        from: &[u8],
        from_places: &[Range<usize>],
        to: &mut [u8],
        to_places: &[Range<usize>],
    ) -> Result<(), MpError> {
        to[to_places[self.own].clone()].copy_from_slice(&from[from_places[self.own].clone()]);
        for far in 1..self.count {
            let (out, into) = (self.behind(far), self.before(far));
            self.exchange(out, &from[from_places[out].clone()], into, &mut to[to_places[into].clone()]).await?;
        }
        Ok(())
    }
}

fn check(what: &'static str, len: usize, wanted: usize) -> Result<(), MpError> {
    let (len, wanted) = (len as u64, wanted as u64);
    if len == wanted { Ok(()) } else { Err(MpError::Length { what, len, wanted }) }
}

/// Where each part lies, one behind the other.
pub(super) fn places(lens: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let place = |len: &usize| {
        let start = end;
        end += len;
        start..end
    };
    lens.iter().map(place).collect()
}

/// So many parts of some bytes, none of which splits a unit; nearly alike.
pub(super) fn parts(len: usize, unit: usize, count: usize) -> Vec<Range<usize>> {
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
