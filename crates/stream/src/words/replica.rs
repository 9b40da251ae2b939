//! One connection in two slots, one on each of two nodes: what an end says about itself, taken out
//! of its own slot and put into the other.
//!
//! Invariant: what an end writes is only written by that end in its own replica, and only by the
//! node in the other one. What was seen before the tail was read is no newer than the bytes up to
//! that tail, so a node that puts bytes, then tail, then the rest in place shows a state in which
//! the end once was.

use super::{DirectionWords, SlotWords};
use crate::atomics::{Ordering, fence};

/// What one end says about itself: everything that the other one reads, but for the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SideWords {
    /// Of the direction from this end.
    pub tail: u64,
    /// As in the words.
    pub epoch: u64,
    /// Of the last change that was announced.
    pub boundary: u64,
    /// Of the direction to this end.
    pub head: u64,
    /// Epoch of that direction that it has reached.
    pub reached: u64,
    /// [`Flags`](super::Flags) of the sending side.
    pub sender_flags: u32,
    /// [`Flags`](super::Flags) of the receiving side.
    pub receiver_flags: u32,
    /// As in [`EndWords`](super::EndWords).
    pub attached: u32,
    /// As in [`EndWords`](super::EndWords).
    pub holders: u32,
    /// As in [`EndWords`](super::EndWords).
    pub soon: u32,
    /// As in [`EndWords`](super::EndWords).
    pub ready: u32,
    /// As in [`EndWords`](super::EndWords), and no older than the epoch.
    pub back: u32,
}

/// Words of [`SideWords`] as bytes.
const BYTES: usize = 5 * 8 + 7 * 4;

impl SideWords {
    /// Bytes of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = BYTES;

    /// For the wire.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let long = [self.tail, self.epoch, self.boundary, self.head, self.reached];
        let flags = [self.sender_flags, self.receiver_flags];
        let short = [self.attached, self.holders, self.soon, self.ready, self.back];
        let (front, back) = bytes.split_at_mut(40);
        front.chunks_exact_mut(8).zip(long).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        back.chunks_exact_mut(4)
            .zip(flags.into_iter().chain(short))
            .for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// From the wire: a claim of the other node.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> SideWords {
        let long = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
        let short = |i: usize| u32::from_le_bytes(bytes[40 + i * 4..44 + i * 4].try_into().expect("four bytes"));
        SideWords {
            tail: long(0),
            epoch: long(1),
            boundary: long(2),
            head: long(3),
            reached: long(4),
            sender_flags: short(0),
            receiver_flags: short(1),
            attached: short(2),
            holders: short(3),
            soon: short(4),
            ready: short(5),
            back: short(6),
        }
    }
}

impl DirectionWords {
    /// Epoch and boundary that belong together. The sending end does not announce another change
    /// before the receiving one has followed the last, so a pair that did not change while it was
    /// read is one.
    fn change_announced(&self) -> (u64, u64) {
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            let boundary = self.boundary.load(Ordering::Acquire);
            fence(Ordering::SeqCst);
            if self.epoch.load(Ordering::Acquire) == epoch {
                return (epoch, boundary);
            }
        }
    }
}

impl SlotWords {
    /// What an end says about itself now.
    pub fn side(&self, end: usize) -> SideWords {
        let (from, to, own) = (&self.directions[end], &self.directions[1 - end], &self.ends[end]);
        let sender_flags = from.sender_flags.load(Ordering::Acquire);
        let (epoch, boundary) = from.change_announced();
        SideWords {
            back: own.back.load(Ordering::Acquire),
            attached: own.attached.load(Ordering::Acquire),
            holders: own.holders.load(Ordering::Relaxed),
            ready: own.ready.load(Ordering::Acquire),
            // A request for the ring is withdrawn before the change that ends it.
            soon: own.soon.load(Ordering::Acquire),
            // Before the head: a request to give back stands in front of the last one.
            receiver_flags: to.receiver_flags.load(Ordering::Acquire),
            reached: to.reached.load(Ordering::Acquire),
            head: to.head.load(Ordering::Acquire),
            sender_flags,
            epoch,
            boundary,
            // Last: see the module.
            tail: from.tail.load(Ordering::Acquire),
        }
    }

    /// Puts what an end says on its own node into this replica; the bytes up to its tail are there.
    /// Passes the fence that the check for sleepers needs.
    pub fn set_side(&self, end: usize, side: &SideWords) {
        let (from, to, own) = (&self.directions[end], &self.directions[1 - end], &self.ends[end]);
        own.soon.store(side.soon, Ordering::Release);
        from.tail.store(side.tail, Ordering::Release);
        from.boundary.store(side.boundary, Ordering::Relaxed);
        from.epoch.store(side.epoch, Ordering::SeqCst);
        from.sender_flags.store(side.sender_flags, Ordering::SeqCst);
        own.back.store(side.back, Ordering::Release);
        to.head.store(side.head, Ordering::Release);
        to.reached.store(side.reached, Ordering::Release);
        to.receiver_flags.store(side.receiver_flags, Ordering::SeqCst);
        own.ready.store(side.ready, Ordering::Release);
        own.holders.store(side.holders, Ordering::Relaxed);
        own.attached.store(side.attached, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_end_writes_survives_the_way_into_the_other_replica() {
        let (here, there) = (SlotWords::default(), SlotWords::default());
        let from = &here.directions[1];
        from.publish(77);
        from.begin_change();
        from.change(55);
        from.sender_flags.store(1, Ordering::Relaxed);
        let to = &here.directions[0];
        to.consume(33, 4096);
        to.reach_next();
        to.receiver_flags.store(2, Ordering::Relaxed);
        here.ends[1].attached.store(1, Ordering::Relaxed);
        here.ends[1].holders.store(3, Ordering::Relaxed);
        here.ends[1].soon.store(4, Ordering::Relaxed);
        here.ends[1].ready.store(5, Ordering::Relaxed);
        here.ends[1].back.store(6, Ordering::Relaxed);
        let side = SideWords::from_bytes(&here.side(1).to_bytes());
        there.set_side(1, &side);
        assert_eq!(there.side(1), here.side(1));
        assert_eq!(there.directions[1].phase(), super::super::Phase::EndsAt(55));
        assert_eq!(there.side(0), SideWords::default(), "the other end speaks for itself");
    }
}
