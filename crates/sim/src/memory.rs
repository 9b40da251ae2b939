//! The memory of all simulated processes, and the port through which an engine reaches it.
//!
//! Invariant: every byte an engine moves goes through [`Port`], which tells the judge whose byte it
//! is before moving it. Memory that is gone is the garbage page: writes vanish, reads give zeros.

use vmmc_nic::{AtomicOp, Dma, RegionRef};

use crate::judge::Judge;
use crate::model::{AtomicRole, Key, Model, ReadRole, RegionKey, Seen, WriteRole};
use crate::rings;
use crate::tamper::{Tamper, Write};

/// The bytes of every region, by its key.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    regions: Vec<Vec<u8>>,
}

impl Memory {
    /// Gives a region that the model has just numbered its bytes.
    pub(crate) fn add(&mut self, key: RegionKey, bytes: Vec<u8>) {
        assert_eq!(key.index(), self.regions.len(), "regions are added in the order of their keys");
        self.regions.push(bytes);
    }

    /// Frees a region.
    pub(crate) fn free(&mut self, key: RegionKey) {
        self.regions[key.index()] = Vec::new();
    }

    /// The bytes of a region; empty once it is freed.
    pub(crate) fn bytes(&self, key: RegionKey) -> &[u8] {
        &self.regions[key.index()]
    }

    /// The word at `offset`; 0 where there is no memory.
    pub(crate) fn word(&self, key: RegionKey, offset: u64) -> u64 {
        let bytes = self.slice(key, offset, 8);
        bytes.map_or(0, |b| u64::from_le_bytes(b.try_into().expect("eight bytes were asked for")))
    }

    /// Puts a word where its owner writes it.
    pub(crate) fn set_word(&mut self, key: RegionKey, offset: u64, value: u64) {
        let place = self.slice_mut(key, offset, 8).expect("the owner writes within its memory");
        place.copy_from_slice(&value.to_le_bytes());
    }

    fn slice(&self, key: RegionKey, offset: u64, len: u64) -> Option<&[u8]> {
        let end = offset.checked_add(len)?;
        self.regions[key.index()].get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
    }

    fn slice_mut(&mut self, key: RegionKey, offset: u64, len: u64) -> Option<&mut [u8]> {
        let end = offset.checked_add(len)?;
        self.regions[key.index()].get_mut(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
    }
}

/// One node's way to memory, for the time of one call into its engine.
pub(crate) struct Port<'a> {
    pub(crate) node: usize,
    pub(crate) model: &'a mut Model,
    pub(crate) memory: &'a mut Memory,
    pub(crate) judge: &'a mut Judge,
    pub(crate) tamper: Option<&'a mut Box<dyn Tamper>>,
}

impl Port<'_> {
    fn write(&mut self, to: RegionRef, offset: u64, data: &[u8]) {
        let role = self.model.write_role(self.node, to, offset, data);
        let len = data.len() as u64;
        self.judge.see(self.model, &Seen::Write { node: self.node, len, role });
        let place = self.model.region_of(self.node, to).and_then(|key| self.memory.slice_mut(key, offset, len));
        if let Some(place) = place {
            place.copy_from_slice(data);
        }
    }

    fn change(&mut self, at: RegionRef, offset: u64, change: AtomicOp) -> u64 {
        let role = self.model.atomic_role(self.node, at, offset, change);
        let word = self.model.region_of(self.node, at).and_then(|key| self.memory.slice_mut(key, offset, 8));
        let mut old = 0;
        if let Some(word) = word {
            old = u64::from_le_bytes((&*word).try_into().expect("eight bytes were asked for"));
            word.copy_from_slice(&change.apply(old).to_le_bytes());
        }
        self.judge.see(self.model, &Seen::Atomic { node: self.node, old, role: role.clone() });
        if let AtomicRole::Written { export, count } = role {
            let seen = rings::appended(self.model, self.memory, export, count);
            self.judge.see(self.model, &seen);
        }
        old
    }

    /// Moves bytes that had arrived to where they are redirected now.
    fn copy_redirected(&mut self, from: (RegionRef, u64), to: (RegionRef, u64), len: u64) -> bool {
        let Some((redirect, at)) = self.model.redirect_copy(self.node, from, to, len) else { return false };
        let node = self.node;
        let role = ReadRole::RedirectCopy;
        self.judge.see(self.model, &Seen::Read { node, len, role });
        let role = WriteRole::RedirectCopy { redirect, at };
        self.judge.see(self.model, &Seen::Write { node, len, role });
        let (Some(from_key), Some(to_key)) = (self.model.region_of(node, from.0), self.model.region_of(node, to.0))
        else {
            return true;
        };
        let data = self.memory.slice(from_key, from.1, len).map(<[u8]>::to_vec);
        if let (Some(data), Some(place)) = (data, self.memory.slice_mut(to_key, to.1, len)) {
            place.copy_from_slice(&data);
        }
        true
    }
}

impl Dma for Port<'_> {
    fn deposit(&mut self, to: RegionRef, offset: u64, data: &[u8]) {
        let Some(tamper) = self.tamper.as_mut() else { return self.write(to, offset, data) };
        let instead = tamper.write(self.model, self.node, Write { to, offset, data: data.to_vec() });
        for write in instead {
            self.write(write.to, write.offset, &write.data);
        }
    }

    fn gather(&mut self, from: RegionRef, offset: u64, out: &mut [u8]) {
        let len = out.len() as u64;
        let role = self.model.read_role(self.node, from, offset, len);
        self.judge.see(self.model, &Seen::Read { node: self.node, len, role });
        let key = self.model.region_of(self.node, from);
        match key.and_then(|key| self.memory.slice(key, offset, len)) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => out.fill(0),
        }
    }

    fn copy(&mut self, from: RegionRef, from_offset: u64, to: RegionRef, to_offset: u64, len: u64) {
        if self.copy_redirected((from, from_offset), (to, to_offset), len) {
            return;
        }
        let mut data = vec![0; usize::try_from(len).expect("copies are pieces of regions in memory")];
        self.gather(from, from_offset, &mut data);
        self.deposit(to, to_offset, &data);
    }

    fn atomic(&mut self, at: RegionRef, offset: u64, op: AtomicOp) -> u64 {
        let Some(tamper) = self.tamper.as_mut() else { return self.change(at, offset, op) };
        let instead = tamper.atomic(op);
        instead.into_iter().fold(0, |_, change| self.change(at, offset, change))
    }
}
