//! Members on threads of this process, each with its own session, on one node or on two.
#![allow(dead_code)] // each test uses some of it

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use vmmc::Session;
use vmmc_bsp::Bsp;
use vmmc_node::{Daemon, KeySource, NodeConfig, Stopper};

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Daemons on threads of this process: the second one knows the first.
pub(crate) struct Nodes {
    names: Vec<String>,
    address: String,
    daemons: Vec<(Stopper, JoinHandle<()>)>,
}

/// A name that no other test uses.
pub(crate) fn unique(what: &str) -> String {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed))
}

fn config(name: &str) -> NodeConfig {
    let loopback: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut config = NodeConfig::new(name).listen(loopback).key(KeySource::Given([7; 32]));
    config.peer_timeout = Duration::from_secs(2);
    config
}

impl Nodes {
    pub(crate) fn start(count: usize) -> Nodes {
        let names: Vec<String> = (0..count).map(|_| unique("bsp")).collect();
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

    /// Members by turns on the nodes.
    pub(crate) fn member(&self, name: &str, pid: u32, nprocs: u32) -> Bsp {
        let count = self.names.len();
        let own = pid as usize % count;
        let place = |pid: u32| {
            let node = pid as usize % count;
            (node != own).then(|| self.names[node].clone())
        };
        let places: Vec<_> = (0..nprocs).map(place).collect();
        let builder = Bsp::among(self.attach(own), name, pid, &places);
        builder.timeout(LONG).create().expect("the member is made")
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

/// Runs each process on a thread of its own, to the end.
pub(crate) fn run(nodes: usize, nprocs: u32, process: impl Fn(&mut Bsp) + Sync) {
    run_open(nodes, nprocs, |mut bsp| {
        process(&mut bsp);
        bsp.end().expect("all come to the end");
    });
}

/// The same, which end by themselves.
pub(crate) fn run_open(nodes: usize, nprocs: u32, process: impl Fn(Bsp) + Sync) {
    let nodes = Nodes::start(nodes);
    let name = unique("set");
    std::thread::scope(|scope| {
        for pid in 0..nprocs {
            let (nodes, name, process) = (&nodes, &name, &process);
            let body = move || process(nodes.member(name, pid, nprocs));
            std::thread::Builder::new().name(format!("process {pid}")).spawn_scoped(scope, body).expect("a thread");
        }
    });
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ seed.wrapping_mul(97)) as u8).collect()
}
