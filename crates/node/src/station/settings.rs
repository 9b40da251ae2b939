//! What a station is told when it is made.

use super::pins;
use crate::config::{Serve, UtlbConfig};
use std::net::SocketAddr;
use std::time::Duration;
use vmmc_nic::{Ciphers, ClusterKey, Config, CongestionControl, Ecn, NodeName};

/// Settings of a station.
#[derive(Clone, Debug)]
pub struct StationConfig {
    /// Name of the node.
    pub name: NodeName,
    /// Name that processes of this machine look for.
    pub local_name: String,
    /// Cluster key; none: plain mode.
    pub key: Option<ClusterKey>,
    /// What its packets may be sealed with.
    pub ciphers: Ciphers,
    /// How it decides what may be under way to a peer.
    pub congestion: CongestionControl,
    /// See [`Config`].
    pub ecn: Ecn,
    /// Which users of the machine it serves.
    pub serve: Serve,
    /// Whether peers are believed whose process asks; see [`Config::trust_users`].
    pub trust_users: bool,
    /// Own addresses, told to peers and shown to processes.
    pub listen: Vec<SocketAddr>,
    /// Bytes that may be under way to this node from each peer: what its sockets can hold.
    pub recv_buffer_bytes: usize,
    /// A peer that owes an answer for this long is dead.
    pub peer_timeout: Duration,
    /// Whether the node lives in the process that is attached to it.
    pub embedded: bool,
    /// Pages of their own memory that all processes together may have pinned.
    pub pinned_pages_max: usize,
    /// The cache of translations.
    pub utlb: UtlbConfig,
    /// Whether its services talk to those of other nodes. Only in sealed mode.
    pub messages: bool,
}

impl StationConfig {
    /// A node of this name with default settings, in plain mode.
    pub fn new(name: NodeName) -> StationConfig {
        let defaults = Config::new(name.clone());
        StationConfig {
            local_name: name.as_str().to_string(),
            name,
            key: None,
            serve: Serve::ByOwner,
            trust_users: true,
            ciphers: Ciphers::Any,
            congestion: defaults.congestion,
            ecn: defaults.ecn,
            listen: Vec::new(),
            recv_buffer_bytes: defaults.recv_buffer_bytes,
            peer_timeout: defaults.peer_timeout,
            embedded: false,
            pinned_pages_max: pins::default_pages(),
            utlb: UtlbConfig::default(),
            messages: false,
        }
    }

    /// Whether services of this node and of others talk to each other. In plain mode anybody on the
    /// wire could do so in their name.
    pub fn talks(&self) -> bool {
        self.messages && self.key.is_some()
    }
}
