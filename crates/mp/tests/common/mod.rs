//! Members on threads of this process, each with its own session, on one node or on two.
#![allow(dead_code, unused_imports)] // each test uses some of it

mod nodes;

pub(crate) use nodes::{LONG, Nodes, each, unique};
use vmmc_mp::Messages;

impl Nodes {
    pub(crate) fn member(&self, name: &str, rank: u32, size: u32) -> Messages {
        let builder = Messages::among_nodes(self.attach_member(rank), name, rank, &self.places(rank, size));
        builder.timeout(LONG).create().expect("the member is made")
    }
}

/// Runs each member on a thread of its own.
pub(crate) fn run(nodes: usize, size: u32, member: impl Fn(&Messages) + Sync) {
    each(nodes, size, |nodes, name, rank| {
        let messages = nodes.member(name, rank, size);
        member(&messages);
        // Nobody leaves while others may still want something.
        finish(&messages);
    });
}

/// Waits for all members: each tells the first one, which answers.
pub(crate) fn finish(messages: &Messages) {
    use vmmc_mp::Select;
    const END: u64 = u64::MAX;
    let world = messages.world();
    let others = 1..world.size();
    if world.rank() == 0 {
        for _ in others.clone() {
            world.receive(Select::any().tag(END), &mut [0; 0]).expect("each ends");
        }
        others.for_each(|rank| world.send(rank, END, b"").expect("it takes the end"));
    } else {
        world.send(0, END, b"").expect("the first one takes the end");
        world.receive(Select::from(0).tag(END), &mut [0; 0]).expect("the first one answers");
    }
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ seed.wrapping_mul(97)) as u8).collect()
}
