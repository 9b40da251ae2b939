//! Nodes for the tests of several crates, which include this file: on loopback, with a key.
//!
//! Invariant: no two tests have a node, or anything else that they name here, of one name.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use vmmc_node::{KeySource, NodeConfig};

/// A name that no other test uses.
pub(crate) fn unique(what: &str) -> String {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed))
}

/// A node of this name, which finds out within seconds that another one is dead.
pub(crate) fn config(name: &str) -> NodeConfig {
    let loopback = "127.0.0.1:0".parse().expect("an address");
    let mut config = NodeConfig::new(name).listen(loopback).key(KeySource::Given([7; 32]));
    config.peer_timeout = Duration::from_secs(2);
    config
}
