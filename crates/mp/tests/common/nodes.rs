//! Nodes on threads of this process, and members on more of them, each with its own session. Tests
//! of `vmmc-bsp` and `vmmc-nx` use it too.
#![allow(dead_code)] // each test uses some of it

#[path = "../../../node/src/testing/named.rs"]
mod named;

use named::config;
pub(crate) use named::unique;
use std::thread::JoinHandle;
use std::time::Duration;
use vmmc::Session;
use vmmc_node::{Daemon, Stopper};

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Daemons on threads of this process: the second one knows the first.
pub(crate) struct Nodes {
    names: Vec<String>,
    address: String,
    daemons: Vec<(Stopper, JoinHandle<()>)>,
}

impl Nodes {
    pub(crate) fn start(count: usize) -> Nodes {
        let names: Vec<String> = (0..count).map(|_| unique("members")).collect();
        let mut nodes = Nodes { names, address: String::new(), daemons: Vec::new() };
        let mut addresses = Vec::new();
        for name in &nodes.names {
            let daemon = Daemon::start(config(name).peer(&addresses)).expect("the node starts");
            addresses.extend(daemon.running().addresses);
            let stopper = daemon.stopper();
            let thread = std::thread::spawn(move || daemon.run().expect("the daemon ends well"));
            nodes.daemons.push((stopper, thread));
        }
        nodes.address = nodes.attach(0).node().listen[0].clone();
        for node in 1..count {
            nodes.attach(node).ping(&nodes.address, LONG).expect("the nodes reach each other");
        }
        nodes
    }

    pub(crate) fn attach(&self, node: usize) -> Session {
        let builder = Session::builder().timeout(LONG).node(&self.names[node]).start_node(false);
        builder.attach().expect("the node lets processes in")
    }

    /// On which node each member is, as one of them names it: they are on the nodes by turns.
    pub(crate) fn places(&self, own: u32, size: u32) -> Vec<Option<String>> {
        let node = |rank: u32| rank as usize % self.names.len();
        (0..size).map(|rank| (node(rank) != node(own)).then(|| self.names[node(rank)].clone())).collect()
    }

    /// A session on the node of a member.
    pub(crate) fn attach_member(&self, rank: u32) -> Session {
        self.attach(rank as usize % self.names.len())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (stopper, thread) in self.daemons.drain(..) {
            stopper.stop();
            let _ = thread.join();
        }
    }
}

/// Runs each member on a thread of its own, with nodes and a name for all of them.
pub(crate) fn each(nodes: usize, size: u32, member: impl Fn(&Nodes, &str, u32) + Sync) {
    let (nodes, name) = (Nodes::start(nodes), unique("set"));
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (nodes, name, member) = (&nodes, &name, &member);
            let thread = std::thread::Builder::new().name(format!("rank {rank}"));
            thread.spawn_scoped(scope, move || member(nodes, name, rank)).expect("a thread");
        }
    });
}
