//! Which gate of a process belongs to which export.
//!
//! Invariant: a gate word never shows a value that it showed before for another export: each use of
//! a slot has its own generation.

use super::memory::duplicate;
use std::os::fd::OwnedFd;
use vmmc_host::abi::{GateState, gate_word};
use vmmc_host::area;
use vmmc_host::limits::EXPORTS_PER_PROCESS_MAX;
use vmmc_host::{GateTable, RegionError};

/// An export's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// The gates of one process.
pub(super) struct Gates {
    table: GateTable,
    /// The table for importers.
    readers: OwnedFd,
    /// Users whose processes were handed it.
    users: Vec<u32>,
    /// Last generation of each slot that was ever used.
    generations: Vec<u32>,
    free: Vec<u32>,
}

impl Gates {
    pub(super) fn new() -> Result<Gates, RegionError> {
        let (table, readers) = GateTable::create()?;
        Ok(Gates { table, readers, users: Vec::new(), generations: Vec::new(), free: Vec::new() })
    }

    /// A descriptor of the table for an importer of this user.
    pub(super) fn share(&mut self, uid: u32) -> Result<OwnedFd, RegionError> {
        let copy = duplicate(&self.readers)?;
        if !self.users.contains(&uid) {
            self.users.push(uid);
        }
        Ok(copy)
    }

    /// The table, and the users whose processes may have it.
    pub(super) fn shared(&self) -> (&OwnedFd, &[u32]) {
        (&self.readers, &self.users)
    }

    /// Whether another export can have a gate.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.generations.len() < EXPORTS_PER_PROCESS_MAX
    }

    /// Opens a gate; none when all are in use.
    pub(super) fn open(&mut self) -> Option<Gate> {
        if !self.has_room() {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.generations.push(0);
            self.generations.len() as u32 - 1
        });
        let generation = self.generations[slot as usize].wrapping_add(1);
        self.generations[slot as usize] = generation;
        let gate = Gate { slot, generation };
        self.set(gate, GateState::Open);
        Some(gate)
    }

    /// Shows a state to the importers, and orders it before a read of their lanes: the caller that
    /// closed it may wait until the transfers under way have ended.
    pub(super) fn set(&self, gate: Gate, state: GateState) {
        let word = self.table.gate(gate.slot).expect("slots below the bound");
        area::set_gate(word, gate_word(gate.generation, state));
    }

    /// The slot can be used again.
    pub(super) fn free(&mut self, gate: Gate) {
        self.free.push(gate.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_gate_used_again_does_not_open_for_its_former_importers() {
        let mut gates = Gates::new().unwrap();
        let first = gates.open().unwrap();
        gates.set(first, GateState::Revoked);
        gates.free(first);
        let second = gates.open().unwrap();
        assert_eq!(first.slot, second.slot);
        let word = gates.table.gate(second.slot).unwrap().load(Ordering::SeqCst);
        assert_ne!(word, gate_word(first.generation, GateState::Open));
        assert_eq!(word, gate_word(second.generation, GateState::Open));
    }

    #[test]
    fn gates_are_bounded() {
        let mut gates = Gates::new().unwrap();
        assert_eq!(std::iter::from_fn(|| gates.open()).count(), EXPORTS_PER_PROCESS_MAX);
    }
}
