//! Channels on every path: mapped, through the node of one machine, and between two nodes.
#![allow(dead_code)] // each test uses some of it

#[path = "../../../node/src/testing/named.rs"]
mod named;

use named::config;
pub(crate) use named::unique;
use std::time::Duration;
use vmmc::Session;
use vmmc_node::Embedded;
use vmmc_techniques::{Receiver, ReceiverBuilder, Sender, Technique};

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// Time for what must not happen to happen.
pub(crate) const SHORT: Duration = Duration::from_millis(60);
pub(crate) const PAGE: usize = 4096;

/// Which way the bytes of a channel take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Mapped,
    Engine,
    Network,
}

pub(crate) const PATHS: [Path; 3] = [Path::Mapped, Path::Engine, Path::Network];

/// Two nodes that know each other.
pub(crate) struct Nodes([Embedded; 2]);

impl Nodes {
    pub(crate) fn start() -> Nodes {
        let a = Embedded::start(config(&unique("a"))).expect("node a starts");
        let b = Embedded::start(config(&unique("b")).peer(&a.addresses())).expect("node b starts");
        let nodes = Nodes([a, b]);
        let address = nodes.attach(0).node().listen[0].clone();
        nodes.attach(1).ping(&address, LONG).expect("node b reaches node a");
        nodes
    }

    pub(crate) fn attach(&self, node: usize) -> Session {
        let attachment = self.0[node].attach().expect("the node takes us");
        Session::builder().timeout(LONG).over(attachment).expect("attach")
    }
}

/// Both ends of a channel, and their sessions.
pub(crate) struct Ends {
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    pub(crate) owner: Session,
    pub(crate) user: Session,
}

/// Opens a channel on a path.
pub(crate) fn open(nodes: &Nodes, path: Path, technique: Technique) -> Ends {
    open_with(nodes, path, technique, |builder| builder)
}

pub(crate) fn open_with(
    nodes: &Nodes,
    path: Path,
    technique: Technique,
    choose: impl FnOnce(ReceiverBuilder) -> ReceiverBuilder,
) -> Ends {
    let (owner, user) = (nodes.attach(0), nodes.attach(if path == Path::Network { 1 } else { 0 }));
    let name = unique("channel");
    let builder = Receiver::builder(&owner, &name).technique(technique).mappable(path != Path::Engine);
    let receiver = choose(builder).open().expect("the channel opens");
    let sender = Sender::builder(&user, &name).node(&owner.node().name).connect().expect("it connects");
    let expected = match path {
        Path::Mapped => vmmc::Path::Mapped,
        Path::Engine => vmmc::Path::Engine,
        Path::Network => vmmc::Path::Network,
    };
    assert_eq!(sender.explain().path, expected);
    Ends { receiver, sender, owner, user }
}

/// Bytes that show where they belong.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

/// Compares without printing megabytes.
pub(crate) fn assert_same(got: &[u8], expected: &[u8], what: &str) {
    let wrong = got.iter().zip(expected).position(|(a, b)| a != b);
    assert!(got.len() == expected.len() && wrong.is_none(), "{what}: byte {wrong:?} of {}", expected.len());
}
