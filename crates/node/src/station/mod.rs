//! One node without transport.

use std::net::SocketAddr;
use std::time::Duration;
use vmmc_host::Channel;
use vmmc_nic::{ClusterKey, NodeName, Time, Transmit};

/// Settings of a station.
#[derive(Clone, Debug)]
pub struct StationConfig {
    /// Name of the node.
    pub name: NodeName,
    /// Cluster key; none: plain mode.
    pub key: Option<ClusterKey>,
    /// Addresses told to peers and shown to processes.
    pub listen: Vec<SocketAddr>,
    /// See [`vmmc_nic::Config`].
    pub recv_buffer_bytes: usize,
    /// See [`vmmc_nic::Config`].
    pub peer_timeout: Duration,
    /// Whether the node lives in the process that is attached to it.
    pub embedded: bool,
}

/// One node without transport.
pub struct Station;

/// Why a station or a connection to it cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StationError {
    /// Too many.
    #[error("{max} connections exist already")]
    TableFull {
        /// The bound.
        max: usize,
    },
}

impl Station {
    /// A node with nobody attached. `seed`: random bytes; the same seed gives the same node.
    pub fn new(_config: StationConfig, _seed: [u8; 32], _now: Time) -> Result<Station, StationError> {
        unimplemented!()
    }
    /// Takes a connection; who it is says the kernel.
    pub fn accept(&mut self, _now: Time, _channel: Channel) -> Result<(), StationError> {
        unimplemented!()
    }
    /// Serves rings, due timers and events of the engine once; says whether there was anything.
    pub fn step(&mut self, _now: Time) -> bool {
        unimplemented!()
    }
    /// Serves the control sockets that have something; says whether there was anything. One system call when there is nothing.
    pub fn poll_control(&mut self, _now: Time) -> bool {
        unimplemented!()
    }
    /// A datagram came. It is decrypted in place.
    pub fn handle_datagram(&mut self, _now: Time, _from: SocketAddr, _datagram: &mut [u8]) {
        unimplemented!()
    }
    /// The next datagram to send, written to the start of `buf`.
    pub fn poll_transmit(&mut self, _now: Time, _buf: &mut [u8]) -> Option<Transmit> {
        unimplemented!()
    }
    /// When [`step`](Self::step) must be called although nothing comes.
    pub fn next_timeout(&self) -> Option<Time> {
        unimplemented!()
    }
}
