//! What a run is asked to do. Everything not said here is drawn from the seed.
//!
//! Invariant: two runs with equal [`Options`] are the same run, packet for packet.

use vmmc_nic::CongestionControl;

use crate::limits::{HELD_FEW_BYTES, NODES_KNOWN_MAX, NODES_MAX, NODES_MIN, STEPS_DEFAULT, TRACE_LINES_DEFAULT};

/// One simulated run: `run(Options::new(4, 17))`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Nodes in the cluster, 2 to 1,000. Beyond 64 each knows the 64 next to it.
    pub nodes: usize,
    /// The seed everything else is drawn from.
    pub seed: u64,
    /// Workload actions (an operation, an export, a fault ...) before the faults end and the run is
    /// wound up.
    pub steps: u64,
    /// Which faults may happen, and how often.
    pub faults: Faults,
    /// Encrypted or plain engines, or by seed.
    pub mode: Mode,
    /// How many of the last events a [`Failure`](crate::Failure) reports; 0 for none.
    pub trace_lines: usize,
}

impl Options {
    /// The default run of `seed` on `nodes` nodes: all faults, either mode.
    pub fn new(nodes: usize, seed: u64) -> Options {
        Options {
            nodes: nodes.clamp(NODES_MIN, NODES_MAX),
            seed,
            steps: STEPS_DEFAULT,
            faults: Faults::ALL,
            mode: Mode::BySeed,
            trace_lines: TRACE_LINES_DEFAULT,
        }
    }

    /// What all nodes have: by the seed, without a draw, and by other ones than the cipher.
    pub(crate) fn control(&self) -> CongestionControl {
        CongestionControl::ALL[(self.seed / 2 % 2) as usize]
    }

    /// Whether links swallow large datagrams: a quarter of the seeds, without a draw, with either
    /// control and cipher.
    pub(crate) fn swallows_large(&self) -> bool {
        self.faults.sizes && self.seed / 4 % 4 == 1
    }

    /// Bytes beyond gaps that a node keeps of all peers: what it does unless it is told otherwise,
    /// or in a quarter of the seeds so few that they are met.
    pub(crate) fn held_bytes_max(&self) -> usize {
        if self.seed / 16 % 4 == 2 { HELD_FEW_BYTES } else { vmmc_nic::limits::HELD_BYTES_MAX }
    }

    /// Nodes that a node knows and talks to, and itself: all, or those next to it in a ring.
    pub(crate) fn known_to(&self, node: usize) -> impl Iterator<Item = usize> + use<> {
        let nodes = self.nodes;
        let known = nodes.min(NODES_KNOWN_MAX);
        // In a cluster where all are known they come in the order of their numbers.
        let first = if nodes <= NODES_KNOWN_MAX { 0 } else { node + nodes - known / 2 };
        (first..first + known).map(move |at| at % nodes)
    }

    /// The run a sweep does for `seed`: the number of nodes follows from the seed too, two to
    /// eight.
    pub fn for_sweep(seed: u64) -> Options {
        Options::new(2 + (seed % 7) as usize, seed)
    }
}

/// Whether engines encrypt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The seed decides.
    BySeed,
    /// All nodes plain: damaged packets are dropped by the simulated UDP checksum.
    Plain,
    /// All nodes sealed with one cluster key: damaged packets reach the engine.
    Sealed,
}

/// Faults that may happen, with their worst rates. The conditions of a moment are drawn below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Packets lost, in thousandths (300 = 30 %).
    pub loss: u32,
    /// Packets doubled, in thousandths.
    pub duplicate: u32,
    /// Packets overtaken by later ones, in thousandths.
    pub reorder: u32,
    /// Packets damaged, in thousandths.
    pub corrupt: u32,
    /// Old packets that come back, in thousandths.
    pub replay: u32,
    /// Longest one-way delay, in microseconds.
    pub delay_us: u64,
    /// Whether groups of nodes lose each other, in one or both directions.
    pub partitions: bool,
    /// Whether one of several network interfaces of a node dies.
    pub path_failures: bool,
    /// Whether nodes crash and restart.
    pub node_crashes: bool,
    /// Whether processes crash.
    pub process_crashes: bool,
    /// Whether links swallow datagrams that are smaller than what their hosts take, in a quarter of
    /// the seeds.
    pub sizes: bool,
}

impl Faults {
    /// Everything, at the worst rates the project promises to survive.
    pub const ALL: Faults = Faults {
        loss: 300,
        duplicate: 200,
        reorder: 300,
        corrupt: 100,
        replay: 30,
        delay_us: 2_000,
        partitions: true,
        path_failures: true,
        node_crashes: true,
        process_crashes: true,
        sizes: true,
    };

    /// A perfect network and no crashes.
    pub const NONE: Faults = Faults {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        corrupt: 0,
        replay: 0,
        delay_us: 50,
        partitions: false,
        path_failures: false,
        node_crashes: false,
        process_crashes: false,
        sizes: false,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_have_either_control_and_neighbours_know_each_other() {
        for control in CongestionControl::ALL {
            let seeds: Vec<u64> = (0..4).filter(|seed| Options::for_sweep(*seed).control() == control).collect();
            assert!(seeds.len() == 2 && seeds[0] % 2 != seeds[1] % 2, "both ciphers have it: {seeds:?}");
        }
        let large: Vec<u64> = (0..16).filter(|seed| Options::for_sweep(*seed).swallows_large()).collect();
        assert_eq!(large, [4, 5, 6, 7], "a quarter, with all of those");
        for nodes in [2, 64, 65, 1_000] {
            let options = Options::new(nodes, 1);
            let known = |node| options.known_to(node).collect::<Vec<_>>();
            assert_eq!(known(0).len(), nodes.min(64));
            let (one, other) = (nodes - 1, nodes / 2);
            assert!(known(one).contains(&one) && known(0).contains(&1) && known(1).contains(&0));
            assert_eq!(known(one).contains(&other), nodes <= 65, "{nodes}");
        }
    }
}
