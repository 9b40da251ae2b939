//! Members on threads of this process, each with its own session, on one node or on two.
#![allow(dead_code, unused_imports)] // each test uses some of it

#[path = "../../../mp/tests/common/nodes.rs"]
mod nodes;

pub(crate) use nodes::{LONG, Nodes, each, unique};
use vmmc_bsp::Bsp;

impl Nodes {
    pub(crate) fn member(&self, name: &str, pid: u32, nprocs: u32) -> Bsp {
        let builder = Bsp::among(self.attach_member(pid), name, pid, &self.places(pid, nprocs));
        builder.timeout(LONG).create().expect("the member is made")
    }
}

/// Runs each process on a thread of its own, to the end.
pub(crate) fn run(nodes: usize, nprocs: u32, process: impl Fn(&mut Bsp) + Sync) {
    run_open(nodes, nprocs, |mut bsp| {
        process(&mut bsp);
        bsp.end().expect("all come to the end");
    });
}

/// The same, which end by themselves.
pub(crate) fn run_open(nodes: usize, nprocs: u32, process: impl Fn(Bsp) + Sync) {
    each(nodes, nprocs, |nodes, name, pid| process(nodes.member(name, pid, nprocs)));
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ seed.wrapping_mul(97)) as u8).collect()
}
