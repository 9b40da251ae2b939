//! Two nodes that know each other, as daemons on threads of this process or embedded ones.
#![allow(dead_code)] // each test uses some of it

#[path = "../../../node/src/testing/named.rs"]
pub(crate) mod named;

use named::config;
pub(crate) use named::unique;
use std::thread::JoinHandle;
use std::time::Duration;
use vmmc::Session;
use vmmc_node::{Daemon, Embedded, Stopper};

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Two nodes.
pub(crate) enum Nodes {
    Embedded([Embedded; 2]),
    Daemons([String; 2], Vec<(Stopper, JoinHandle<()>)>),
}

impl Nodes {
    pub(crate) fn embedded() -> Nodes {
        let a = Embedded::start(config(&unique("a"))).expect("node a starts");
        let b = Embedded::start(config(&unique("b")).peer(&a.addresses())).expect("node b starts");
        Nodes::Embedded([a, b]).introduced()
    }

    pub(crate) fn daemons() -> Nodes {
        let names = [unique("a"), unique("b")];
        let a = Daemon::start(config(&names[0])).expect("node a starts");
        let addresses = a.running().addresses;
        let b = Daemon::start(config(&names[1]).peer(&addresses)).expect("node b starts");
        let run = |daemon: Daemon| {
            let stopper = daemon.stopper();
            (stopper, std::thread::spawn(move || daemon.run().expect("the daemon ends well")))
        };
        Nodes::Daemons(names, [a, b].map(run).into()).introduced()
    }

    fn introduced(self) -> Nodes {
        let address = self.attach(0).node().listen[0].clone();
        self.attach(1).ping(&address, LONG).expect("node b reaches node a");
        self
    }

    pub(crate) fn attach(&self, node: usize) -> Session {
        let builder = Session::builder().timeout(LONG);
        match self {
            Nodes::Embedded(nodes) => builder.over(nodes[node].attach().expect("the node takes us")),
            Nodes::Daemons(names, _) => builder.node(&names[node]).start_node(false).attach(),
        }
        .expect("attach")
    }

    pub(crate) fn name(&self, node: usize) -> String {
        match self {
            Nodes::Embedded(nodes) => nodes[node].name(),
            Nodes::Daemons(names, _) => names[node].clone(),
        }
    }
}

/// An embedded node that knows this one alone.
pub(crate) fn apart(nodes: &Nodes, knows: usize) -> Embedded {
    let address = nodes.attach(knows).node().listen[0].parse().expect("an address");
    let apart = Embedded::start(config(&unique("c")).peer(&[address])).expect("node c starts");
    let session = Session::builder().timeout(LONG).over(apart.attach().expect("the node takes us")).expect("attach");
    session.ping(&nodes.name(knows), LONG).expect("node c reaches the node it knows");
    apart
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Nodes::Daemons(_, running) = self {
            for (stopper, thread) in running.drain(..) {
                stopper.stop();
                thread.join().expect("the daemon ends well");
            }
        }
    }
}

/// Does this with nodes of both kinds, and the caller on the server's node and on the other one.
pub(crate) fn everywhere(test: impl Fn(&Nodes, usize)) {
    for nodes in [Nodes::embedded(), Nodes::daemons()] {
        [0, 1].into_iter().for_each(|caller| test(&nodes, caller));
    }
}

/// Bytes that show where they belong.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + LONG;
    while !holds() {
        assert!(std::time::Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_micros(200));
    }
}
