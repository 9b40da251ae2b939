//! Where a test may put a bug: between an engine and the memory, the events and the levels that it
//! shows.
//!
//! Checkers must be shown to fail. The engines are taken as they are; a [`Tamper`] stands between
//! them and the simulation and does what a broken engine would have done. Honest runs have none.

use vmmc_nic::{AtomicOp, Event, RegionRef};

use crate::model::Model;

/// A write an engine asked for.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) to: RegionRef,
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

/// A bug to plant. Every method passes everything on unchanged unless it is overridden.
pub(crate) trait Tamper {
    /// The writes to do instead of this one.
    fn write(&mut self, _model: &Model, _node: usize, write: Write) -> Vec<Write> {
        vec![write]
    }

    /// The changes of a word to do instead of this one; the engine gets the old value of the last.
    fn atomic(&mut self, change: AtomicOp) -> Vec<AtomicOp> {
        vec![change]
    }

    /// The events to show instead of this one.
    fn event(&mut self, event: Event) -> Vec<Event> {
        vec![event]
    }

    /// The level to show instead of this one.
    fn level(&mut self, _what: &'static str, value: u64) -> u64 {
        value
    }
}
