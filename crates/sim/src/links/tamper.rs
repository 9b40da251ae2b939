//! Where a test may put a bug into a run over links, as [`crate::tamper`] for the other runs.

use vmmc_nic::{Codepoint, CongestionControl, Event};

/// A bug to plant. Every method changes nothing unless it is overridden.
pub(crate) trait LinkTamper {
    /// How often to write what a node wants to deposit.
    fn deposit(&mut self, _bytes: usize) -> usize {
        1
    }

    /// The events to show instead of this one.
    fn event(&mut self, event: Event) -> Vec<Event> {
        vec![event]
    }

    /// The level of a node to show instead of this one.
    fn level(&mut self, _what: &'static str, value: u64) -> u64 {
        value
    }

    /// The congestion control that engines have instead of the scenario's.
    fn control(&mut self) -> Option<CongestionControl> {
        None
    }

    /// How much later than asked for a node is woken, ns.
    fn late_ns(&mut self, _now_ns: u64, _node: usize) -> u64 {
        0
    }

    /// What a packet says of the queues it came through.
    fn codepoint(&mut self, codepoint: Codepoint) -> Codepoint {
        codepoint
    }

    /// Bytes by which a fetch is asked for, by the process, instead of these.
    fn fetch_part(&mut self, bytes: u64) -> u64 {
        bytes
    }

    /// Whether what this node sends vanishes.
    fn swallows(&mut self, _now_ns: u64, _node: usize) -> bool {
        false
    }
}

/// No bug.
pub(crate) struct Honest;

impl LinkTamper for Honest {}
