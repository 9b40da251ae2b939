//! What a node is told about itself.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::cipher::Ciphers;
use crate::congestion::CongestionControl;
use crate::ecn::Ecn;
use crate::ids::NodeName;

/// The key all nodes of a cluster share. It never appears in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey(pub [u8; 32]);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this node, unique in the cluster.
    pub name: NodeName,
    /// `None`: plain mode, for trusted wires only.
    pub key: Option<ClusterKey>,
    /// What its packets may be sealed with, if there is a key.
    pub ciphers: Ciphers,
    /// Own addresses, told to peers as further paths to this node; may be empty.
    pub listen: Vec<SocketAddr>,
    /// UDP payload bytes per packet, unless [`set_path_mtu`](crate::Engine::set_path_mtu) says
    /// otherwise.
    pub path_mtu_bytes: usize,
    /// Largest datagram this node can receive, bytes; peers send no larger ones.
    pub recv_packet_bytes_max: usize,
    /// Bytes that may be under way to this node from each peer, and that it keeps of those beyond a
    /// gap. What its sockets cannot hold is lost, and shows the peer's congestion control where the
    /// limit is.
    pub recv_buffer_bytes: usize,
    /// Bytes beyond gaps that are kept of all peers together. Of each,
    /// [`HELD_BYTES_OWN`](crate::limits::HELD_BYTES_OWN) are kept whatever others have.
    pub held_bytes_max: usize,
    /// A peer that owes an answer this long is dead.
    pub peer_timeout: Duration,
    /// Time between signs of life while imports exist.
    pub keepalive: Duration,
    /// Whether peers are believed whose process asks. If not, as is wise in plain mode, where
    /// anybody can say anything, they may only import what is exported to anyone.
    pub trust_users: bool,
    /// Whether the driver takes messages of other drivers
    /// ([`poll_message`](crate::Engine::poll_message)); peers are told.
    pub messages: bool,
    /// How much it has under way to its peers, and how fast that goes out.
    pub congestion: CongestionControl,
    /// Whether it asks queues to mark its packets, and what it does about marks.
    pub ecn: Ecn,
    /// How the names of exports begin that the driver can bring up on demand
    /// ([`poll_activation`](crate::Engine::poll_activation)); none: it brings none up.
    pub on_demand: Option<String>,
}

impl Config {
    /// Defaults for Ethernet: 1472-byte packets, 1 MiB under way, 5 s until a peer is dead.
    pub fn new(name: NodeName) -> Config {
        Config {
            name,
            key: None,
            ciphers: Ciphers::Any,
            listen: Vec::new(),
            path_mtu_bytes: 1_472,
            recv_packet_bytes_max: crate::limits::PACKET_BYTES_MAX,
            recv_buffer_bytes: 1 << 20,
            held_bytes_max: crate::limits::HELD_BYTES_MAX,
            peer_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(1),
            trust_users: true,
            messages: false,
            congestion: CongestionControl::default(),
            ecn: Ecn::default(),
            on_demand: None,
        }
    }
}
