//! Slabs and their slots: who shares which.
//!
//! Invariant: a slab belongs to one pair of processes for its whole life; a slot is free, or has a
//! link, never both.

use super::between::NODE;
use super::holders::Holders;
use super::quota::Quota;
use crate::limits::{
    SOCKET_LARGE_BYTES_MAX, SOCKET_LARGE_IDLE, SOCKET_LARGE_RING_BYTES, SOCKET_LARGE_SCAN, SOCKET_LARGE_TAKEN_PER_SCAN,
    SOCKET_RING_BYTES, SOCKET_SLAB_SLOTS_MAX, SOCKET_SLAB_SLOTS_MIN, SOCKET_SLOTS_MAX,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use vmmc_host::Nanos;
use vmmc_stream::messages::Place;
use vmmc_stream::{Endpoints, Shape, Slab, Slot};

/// All slabs of a node.
#[derive(Default)]
pub(crate) struct Slabs {
    slabs: HashMap<u64, Record>,
    /// By pair of processes, the smaller id first; those that have one.
    pairs: HashMap<[u32; 2], Vec<u64>>,
    /// By process, the node itself aside.
    of_process: HashMap<u32, HashSet<u64>>,
    /// Those of processes that have ended, without connections: to be let go.
    idle: VecDeque<u64>,
    last: u64,
    /// Slots that have memory, whether a connection is in them or not.
    pub(crate) slots: Quota,
    /// Slabs: each is a descriptor and a mapping of the node.
    taken: Quota,
    /// How many more there may be, all users together; none: as many as there are slots for.
    room: Option<u64>,
    /// Bytes of large rings.
    large: Quota,
    /// Time of the last scan for idle large rings.
    scanned_at: Option<Nanos>,
}

struct Record {
    slab: Slab,
    pair: [u32; 2],
    /// Of both processes.
    user: u32,
    /// One of the pair has ended: no new connection comes in here.
    retired: bool,
    /// Large rings of slots that were abandoned: they keep their memory.
    abandoned: u64,
    free: Vec<u32>,
    links: HashMap<u32, Link>,
}

/// What a slab counts in the share of its user until nobody has its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LetGo {
    user: u32,
    slots: u64,
    large: u64,
}

/// A slab without use.
pub(crate) struct Idle {
    pub(crate) id: u64,
    pub(crate) pair: [u32; 2],
    pub(crate) slab: Slab,
    pub(crate) held: LetGo,
}

/// An upgraded connection.
pub(crate) struct Link {
    /// Of both ends, or of the one that is here.
    pub(crate) user: u32,
    pub(crate) endpoints: [Endpoints; 2],
    pub(crate) cookies: [u64; 2],
    /// Processes that are known to hold each end.
    pub(crate) holders: [Holders; 2],
    pub(crate) released: [bool; 2],
    /// Stands in the slot, too; there it is a claim.
    pub(crate) secret: u64,
    /// Large rings that have memory.
    large: [Option<Large>; 2],
}

/// A large ring: the tail of its direction when it was last seen to move, and when that was.
#[derive(Clone, Copy)]
struct Large {
    tail: u64,
    seen: Nanos,
}

impl Link {
    pub(crate) fn new(
        user: u32,
        processes: [u32; 2],
        endpoints: [Endpoints; 2],
        cookies: [u64; 2],
        secret: u64,
    ) -> Link {
        let holders = processes.map(Holders::of);
        Link { user, endpoints, cookies, holders, released: [false; 2], secret, large: [None; 2] }
    }

    fn large_bytes(&self) -> u64 {
        self.large.iter().flatten().count() as u64 * SOCKET_LARGE_RING_BYTES
    }
}

impl Record {
    fn is_idle(&self) -> bool {
        self.retired && self.links.is_empty()
    }
}

impl Slabs {
    /// A free slot that a pair of processes of a user shares; none when memory is short, or the
    /// user has its share.
    pub(crate) fn take_slot(&mut self, mut pair: [u32; 2], user: u32) -> Option<(u64, u32)> {
        pair.sort_unstable();
        let of_pair = self.pairs.get(&pair).map_or(&[][..], Vec::as_slice);
        for &id in of_pair {
            let record = self.slabs.get_mut(&id).expect("pairs name slabs that are there");
            if let Some(slot) = record.free.pop() {
                return Some((id, slot));
            }
        }
        let slots = (SOCKET_SLAB_SLOTS_MIN << of_pair.len().min(16)).min(SOCKET_SLAB_SLOTS_MAX);
        let shape = Shape { slots, small_bytes: SOCKET_RING_BYTES, large_bytes: SOCKET_LARGE_RING_BYTES };
        // A user has no more of them than are free, beside what it has otherwise.
        let most = self.room.map_or(u64::MAX, |room| self.slabs.len() as u64 + room);
        if !self.taken.take(user, 1, most) {
            return None;
        }
        if !self.slots.take(user, u64::from(slots), SOCKET_SLOTS_MAX) {
            self.taken.give(user, 1);
            return None;
        }
        let Ok(slab) = Slab::create(shape) else {
            self.taken.give(user, 1);
            self.slots.give(user, u64::from(slots));
            return None;
        };
        self.room = self.room.map(|room| room.saturating_sub(1));
        self.last += 1;
        self.pairs.entry(pair).or_default().push(self.last);
        let free = (1..slots).rev().collect();
        let record = Record { slab, pair, user, retired: false, abandoned: 0, free, links: HashMap::new() };
        for process in pair.into_iter().filter(|process| *process != NODE) {
            self.of_process.entry(process).or_default().insert(self.last);
        }
        self.slabs.insert(self.last, record);
        Some((self.last, 0))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.slabs.len() as u64
    }

    /// Says how many more there may be.
    pub(crate) fn set_room(&mut self, room: u64) {
        self.room = Some(room);
    }

    pub(crate) fn set_link(&mut self, slab: u64, slot: u32, link: Link) {
        let record = self.slabs.get_mut(&slab).expect("the slot was just taken");
        if let Some(slot) = record.slab.slot(slot) {
            slot.words().reset();
            slot.words().secret.store(link.secret, Ordering::Relaxed);
        }
        record.links.insert(slot, link);
    }

    /// What a process needs to map a slab.
    pub(crate) fn share(&self, slab: u64) -> Option<(OwnedFd, Shape)> {
        let slab = &self.slabs.get(&slab)?.slab;
        Some((slab.share().ok()?, slab.shape()))
    }

    /// The user whose processes share a slab.
    pub(crate) fn user(&self, slab: u64) -> Option<u32> {
        self.slabs.get(&slab).map(|record| record.user)
    }

    /// Gives the direction from an end its large ring; false: there is no room for it, or it has it
    /// already.
    pub(crate) fn grow(&mut self, place: Place, now: Nanos) -> bool {
        self.grow_within(place, now, SOCKET_LARGE_BYTES_MAX)
    }

    /// The same, so that all of them together have `most` bytes.
    fn grow_within(&mut self, place: Place, now: Nanos, most: u64) -> bool {
        let direction = usize::from(place.end);
        let Some(link) = self.link(place).filter(|link| link.large[direction].is_none()) else { return false };
        let user = link.user;
        if !self.large.take(user, SOCKET_LARGE_RING_BYTES, most) {
            if self.scanned_at.is_some_and(|last| now.since(last) < SOCKET_LARGE_SCAN) {
                return false;
            }
            self.scanned_at = Some(now);
            self.take_back_idle(now);
            if !self.large.take(user, SOCKET_LARGE_RING_BYTES, most) {
                return false;
            }
        }
        let granted = self.slot(place).is_some_and(|slot| slot.grant_large(direction).is_ok());
        match self.link(place).filter(|_| granted) {
            Some(link) => link.large[direction] = Some(Large { tail: 0, seen: now }),
            None => self.large.give(user, SOCKET_LARGE_RING_BYTES),
        }
        granted
    }

    /// Takes large rings back in which nothing has moved since the last scan, long enough ago.
    fn take_back_idle(&mut self, now: Nanos) {
        // The others go with the next scans.
        let mut left = SOCKET_LARGE_TAKEN_PER_SCAN;
        for record in self.slabs.values_mut() {
            for (&index, link) in &mut record.links {
                let Some(slot) = record.slab.slot(index) else { continue };
                for direction in 0..2 {
                    let Some(large) = &mut link.large[direction] else { continue };
                    let tail = slot.words().directions[direction].tail.load(Ordering::Relaxed);
                    if tail != large.tail {
                        *large = Large { tail, seen: now };
                    } else if left > 0 && now.since(large.seen) >= SOCKET_LARGE_IDLE && slot.take_large_back(direction)
                    {
                        left -= 1;
                        link.large[direction] = None;
                        self.large.give(link.user, SOCKET_LARGE_RING_BYTES);
                    }
                }
            }
        }
    }

    /// The connection at a place; none: the place is a claim that is wrong.
    pub(crate) fn link(&mut self, place: Place) -> Option<&mut Link> {
        if place.end > 1 {
            return None;
        }
        self.slabs.get_mut(&place.slab)?.links.get_mut(&place.slot)
    }

    /// Its memory.
    pub(crate) fn slot(&self, place: Place) -> Option<Slot> {
        self.slabs.get(&place.slab)?.slab.slot(place.slot)
    }

    /// Both ends were released: the slot can serve another connection of the pair.
    pub(crate) fn free(&mut self, place: Place) {
        if let Some(record) = self.slabs.get_mut(&place.slab) {
            if let Some(link) = record.links.remove(&place.slot) {
                if let Some(slot) = record.slab.slot(place.slot) {
                    (0..2).filter(|&d| link.large[d].is_some()).for_each(|d| slot.release_large(d));
                }
                self.large.give(link.user, link.large_bytes());
                record.free.push(place.slot);
                self.idle.extend(record.is_idle().then_some(place.slab));
            }
        }
    }

    /// The connection has ended somehow, and somebody may still have the slot in use: it is not
    /// used again.
    pub(crate) fn abandon(&mut self, place: Place) {
        if let Some(record) = self.slabs.get_mut(&place.slab) {
            if let Some(link) = record.links.remove(&place.slot) {
                record.abandoned += link.large_bytes();
                self.idle.extend(record.is_idle().then_some(place.slab));
            }
        }
    }

    /// A process has ended: no new connection will use its slabs, and each is let go once it has
    /// none.
    pub(crate) fn retire(&mut self, process: u32) {
        for id in self.of_process.remove(&process).unwrap_or_default() {
            let Some(record) = self.slabs.get_mut(&id).filter(|record| !record.retired) else { continue };
            record.retired = true;
            self.pairs.remove(&record.pair);
            self.idle.extend(record.is_idle().then_some(id));
        }
    }

    /// Whether [`take_idle`](Self::take_idle) has some to give.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Lets up to `most` slabs go that have no use any more: each is memory that the kernel takes
    /// back, and counts until it has, which is reported to [`is_gone`](Self::is_gone).
    pub(crate) fn take_idle(&mut self, most: usize) -> Vec<Idle> {
        let mut gone = Vec::new();
        for id in self.idle.drain(..most.min(self.idle.len())) {
            let Some(record) = self.slabs.remove(&id) else { continue };
            self.taken.give(record.user, 1);
            let slots = u64::from(record.slab.shape().slots);
            let held = LetGo { user: record.user, slots, large: record.abandoned };
            for process in record.pair {
                if let Some(slabs) = self.of_process.get_mut(&process) {
                    slabs.remove(&id);
                }
            }
            gone.push(Idle { id, pair: record.pair, slab: record.slab, held });
        }
        gone
    }

    /// Nobody has the memory of a slab any more that was let go.
    pub(crate) fn is_gone(&mut self, held: LetGo) {
        self.slots.give(held.user, held.slots);
        self.large.give(held.user, held.large);
    }

    /// All connections and their memory.
    pub(crate) fn links(&self) -> impl Iterator<Item = (Place, &Link, Slot)> {
        let slots = |r: &'_ Record, i: u32| r.slab.slot(i).expect("links are of slots that exist");
        let place = |slab: u64, slot: u32| Place { slab, slot, end: 0 };
        let all = self.slabs.iter();
        all.flat_map(move |(&id, r)| r.links.iter().map(move |(&i, link)| (place(id, i), link, slots(r, i))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const USER: u32 = 1000;

    fn link(number: u16) -> Link {
        let of = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let one = Endpoints { network: 0, local: of(number), remote: of(7) };
        Link::new(USER, [1, 2], [one.clone(), one.mirrored()], [u64::from(number), 1], 5)
    }

    #[test]
    fn large_rings_are_bounded_and_those_that_rest_are_taken_back() {
        let mut slabs = Slabs::default();
        let places = [1, 2, 3].map(|number| {
            let (slab, slot) = slabs.take_slot([1, 2], USER).unwrap();
            slabs.set_link(slab, slot, link(number));
            Place { slab, slot, end: 0 }
        });
        let tail = |slabs: &Slabs, i: usize, to: u64| {
            let slot = slabs.slot(places[i]).unwrap();
            slot.words().directions[0].tail.store(to, Ordering::Relaxed);
            slot
        };
        let (start, most) = (Nanos::monotonic(), 4 * SOCKET_LARGE_RING_BYTES);
        assert!(slabs.grow_within(places[0], start, most) && slabs.grow_within(places[1], start, most));
        assert!(!slabs.grow_within(places[0], start, most), "it has it");
        assert!(!slabs.grow_within(places[2], start, most), "both are fresh");
        let later = |ms: u64| start + (SOCKET_LARGE_IDLE + Duration::from_millis(ms));
        // One moves, the other holds bytes that nobody has read.
        tail(&slabs, 0, 99);
        tail(&slabs, 1, 99);
        assert!(!slabs.grow_within(places[2], later(1), most), "both have moved");
        let read = |slabs: &Slabs, i: usize, to: u64| {
            tail(slabs, i, to).words().directions[0].head.store(to, Ordering::Relaxed)
        };
        read(&slabs, 0, 200);
        assert!(!slabs.grow_within(places[2], later(2000), most), "one has moved, the other is not empty");
        read(&slabs, 1, 99);
        assert!(slabs.grow_within(places[2], later(2500), most), "the second one rests");
        assert!(!tail(&slabs, 1, 99).words().directions[0].may_grow());
        slabs.free(places[0]);
        assert!(slabs.grow_within(places[1], later(2500), most), "a connection has ended");
    }

    #[test]
    fn very_many_large_rings_that_rest_are_taken_back_in_turns() {
        const RINGS: usize = 2 * SOCKET_LARGE_TAKEN_PER_SCAN;
        let mut slabs = Slabs::default();
        let place = |slabs: &mut Slabs, number: usize| {
            let (slab, slot) = slabs.take_slot([1, 2], USER).unwrap();
            slabs.set_link(slab, slot, link(number as u16));
            Place { slab, slot, end: 0 }
        };
        let (start, most) = (Nanos::monotonic(), 2 * RINGS as u64 * SOCKET_LARGE_RING_BYTES);
        for number in 0..RINGS {
            let place = place(&mut slabs, number);
            assert!(slabs.grow_within(place, start, most));
        }
        let next = place(&mut slabs, RINGS);
        let large = |slabs: &Slabs| slabs.links().filter(|(_, link, _)| link.large[0].is_some()).count();
        assert!(slabs.grow_within(next, start + SOCKET_LARGE_IDLE, most), "some are taken back for it");
        assert_eq!(large(&slabs), RINGS - SOCKET_LARGE_TAKEN_PER_SCAN + 1);
    }

    #[test]
    fn slots_and_large_rings_are_divided_among_users_and_given_back() {
        let mut slabs = Slabs::default();
        let per_pair = u64::from(SOCKET_SLAB_SLOTS_MIN);
        slabs.slots.take(USER, SOCKET_SLOTS_MAX / 2 - per_pair, SOCKET_SLOTS_MAX);
        let (slab, slot) = slabs.take_slot([1, 2], USER).unwrap();
        assert!(slabs.take_slot([1, 3], USER).is_none(), "it has its half");
        slabs.take_slot([4, 5], USER + 1).expect("others find something");
        slabs.set_link(slab, slot, link(1));
        let (place, now) = (Place { slab, slot, end: 0 }, Nanos::monotonic());
        let most = 2 * SOCKET_LARGE_RING_BYTES;
        assert!(slabs.grow_within(place, now, most));
        assert!(!slabs.grow_within(Place { end: 1, ..place }, now, most), "it has its half");
        slabs.abandon(place);
        assert!(!slabs.large.take(USER, SOCKET_LARGE_RING_BYTES, most), "what is abandoned has memory still");
        slabs.retire(1);
        let idle = slabs.take_idle(9);
        assert_eq!(idle.iter().map(|idle| (idle.id, idle.pair)).collect::<Vec<_>>(), [(slab, [1, 2])]);
        assert!(!slabs.large.take(USER, SOCKET_LARGE_RING_BYTES, most), "its memory is there still");
        assert!(slabs.take_slot([1, 3], USER).is_none(), "its slots have memory still");
        slabs.is_gone(idle[0].held);
        assert!(slabs.large.take(USER, SOCKET_LARGE_RING_BYTES, most));
        assert!(slabs.take_slot([1, 3], USER).is_some());
    }

    #[test]
    fn slabs_are_divided_among_users_by_the_descriptors_that_are_free() {
        let mut slabs = Slabs::default();
        slabs.set_room(12);
        let fill = |slabs: &mut Slabs, user: u32, first: u32| {
            (first..first + 99).take_while(|&process| slabs.take_slot([first - 1, process], user).is_some()).count()
        };
        assert_eq!([fill(&mut slabs, USER, 10), fill(&mut slabs, USER + 1, 200)], [6, 3]);
        assert_eq!((slabs.count(), slabs.room), (9, Some(3)));
        // What is free otherwise meanwhile is so for both.
        slabs.set_room(0);
        assert!(slabs.take_slot([500, 501], USER + 2).is_none());
        (9..110).for_each(|process| slabs.retire(process));
        assert_eq!(slabs.take_idle(99).len(), 6);
        slabs.set_room(9);
        assert!(fill(&mut slabs, USER, 10) == 5 && slabs.count() == 8);
    }

    #[test]
    fn a_user_that_has_its_share_of_slots_leaves_nothing_behind_when_it_asks_again() {
        let mut slabs = Slabs::default();
        slabs.slots.take(USER, SOCKET_SLOTS_MAX / 2, SOCKET_SLOTS_MAX);
        for process in 2..1_000 {
            assert!(slabs.take_slot([1, process], USER).is_none());
            slabs.retire(process);
        }
        slabs.retire(1);
        assert!(slabs.pairs.is_empty() && slabs.of_process.is_empty());
    }
}
