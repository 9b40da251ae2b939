//! Slabs and their slots: who shares which.
//!
//! Invariant: a slab belongs to one pair of processes for its whole life; a slot is free, or has a link, never both.

use crate::limits::{SOCKET_RING_BYTES, SOCKET_SLAB_SLOTS_MAX, SOCKET_SLAB_SLOTS_MIN};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use vmmc_host::stream::messages::Place;
use vmmc_host::stream::{Endpoints, Slab, Slot};

/// All slabs of a node.
#[derive(Default)]
pub(super) struct Slabs {
    slabs: HashMap<u64, Record>,
    /// By pair of processes, the smaller id first.
    pairs: HashMap<[u32; 2], Vec<u64>>,
    last: u64,
}

struct Record {
    slab: Slab,
    pair: [u32; 2],
    free: Vec<u32>,
    links: HashMap<u32, Link>,
}

/// An upgraded connection.
pub(super) struct Link {
    pub(super) endpoints: [Endpoints; 2],
    pub(super) cookies: [u64; 2],
    /// Processes that are known to hold each end.
    pub(super) holders: [Vec<u32>; 2],
    pub(super) released: [bool; 2],
    /// Stands in the slot, too; there it is a claim.
    pub(super) secret: u64,
}

impl Link {
    pub(super) fn new(processes: [u32; 2], endpoints: [Endpoints; 2], cookies: [u64; 2], secret: u64) -> Link {
        Link { endpoints, cookies, holders: processes.map(|p| vec![p]), released: [false; 2], secret }
    }
}

impl Slabs {
    /// A free slot that a pair of processes shares; none when memory is short.
    pub(super) fn take_slot(&mut self, mut pair: [u32; 2]) -> Option<(u64, u32)> {
        pair.sort_unstable();
        let of_pair = self.pairs.entry(pair).or_default();
        for &id in of_pair.iter() {
            let record = self.slabs.get_mut(&id).expect("pairs name slabs that are there");
            if let Some(slot) = record.free.pop() {
                return Some((id, slot));
            }
        }
        let slots = (SOCKET_SLAB_SLOTS_MIN << of_pair.len().min(16)).min(SOCKET_SLAB_SLOTS_MAX);
        let slab = Slab::create(slots, SOCKET_RING_BYTES).ok()?;
        self.last += 1;
        of_pair.push(self.last);
        let free = (1..slots).rev().collect();
        self.slabs.insert(self.last, Record { slab, pair, free, links: HashMap::new() });
        Some((self.last, 0))
    }

    pub(super) fn set_link(&mut self, slab: u64, slot: u32, link: Link) {
        let record = self.slabs.get_mut(&slab).expect("the slot was just taken");
        if let Some(slot) = record.slab.slot(slot) {
            slot.words().reset();
            slot.words().secret.store(link.secret, Ordering::Relaxed);
        }
        record.links.insert(slot, link);
    }

    /// What a process needs to map a slab.
    pub(super) fn share(&self, slab: u64) -> Option<(OwnedFd, u32, u64)> {
        let slab = &self.slabs.get(&slab)?.slab;
        Some((slab.share().ok()?, slab.slots(), slab.ring_bytes()))
    }

    /// The connection at a place; none: the place is a claim that is wrong.
    pub(super) fn link(&mut self, place: Place) -> Option<&mut Link> {
        if place.end > 1 {
            return None;
        }
        self.slabs.get_mut(&place.slab)?.links.get_mut(&place.slot)
    }

    /// Its memory.
    pub(super) fn slot(&self, place: Place) -> Option<Slot> {
        self.slabs.get(&place.slab)?.slab.slot(place.slot)
    }

    /// Both ends were released: the slot can serve another connection of the pair.
    pub(super) fn free(&mut self, place: Place) {
        if let Some(record) = self.slabs.get_mut(&place.slab) {
            if record.links.remove(&place.slot).is_some() {
                record.free.push(place.slot);
            }
        }
    }

    /// The connection has ended somehow, and somebody may still have the slot in use: it is not used again.
    pub(super) fn abandon(&mut self, place: Place) {
        if let Some(record) = self.slabs.get_mut(&place.slab) {
            record.links.remove(&place.slot);
        }
    }

    /// A process has ended: no new connection will use its slabs; those without connections are let go.
    pub(super) fn forget_unused(&mut self, process: u32) {
        let pairs = &mut self.pairs;
        self.slabs.retain(|id, record| {
            let keep = !record.pair.contains(&process) || !record.links.is_empty();
            if !keep {
                if let Some(of_pair) = pairs.get_mut(&record.pair) {
                    of_pair.retain(|s| s != id);
                }
            }
            keep
        });
        pairs.retain(|pair, slabs| !slabs.is_empty() || !pair.contains(&process));
    }

    /// All connections and their memory.
    pub(super) fn links(&self) -> impl Iterator<Item = (&Link, Slot)> {
        let slots = |r: &'_ Record, i: u32| r.slab.slot(i).expect("links are of slots that exist");
        self.slabs.values().flat_map(move |r| r.links.iter().map(move |(&i, link)| (link, slots(r, i))))
    }
}
