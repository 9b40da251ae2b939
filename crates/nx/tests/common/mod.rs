//! Processes of NX on threads of this process, each with its own session, on one node or on two.
#![allow(dead_code, unused_imports)] // each test uses some of it

#[path = "../../../mp/tests/common/nodes.rs"]
mod nodes;

pub(crate) use nodes::{LONG, Nodes, each, unique};
use vmmc_mp::Messages;
use vmmc_nx::Nx;

impl Nodes {
    pub(crate) fn process(&self, name: &str, rank: u32, size: u32) -> Nx {
        let builder = Messages::among_nodes(self.attach_member(rank), name, rank, &self.places(rank, size));
        Nx::over(builder.timeout(LONG).create().expect("the member is made"))
    }
}

/// Runs each process on a thread of its own.
pub(crate) fn run(nodes: usize, size: u32, process: impl Fn(&Nx) + Sync) {
    each(nodes, size, |nodes, name, rank| {
        let nx = nodes.process(name, rank, size);
        process(&nx);
        // Nobody leaves while others may still want something.
        nx.gsync().expect("all end");
    });
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ seed.wrapping_mul(97)) as u8).collect()
}
