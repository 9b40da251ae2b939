//! Simulated nodes that ordinary library code attaches to: real stations and engines, a simulated
//! wire, a virtual clock.
//!
//! A thread that waits steps every node of the cluster; when nothing is left to do now, the clock
//! moves to the next packet or timer. So blocking user code runs unchanged, and a deadline of an
//! hour passes in a moment.
//!
//! Invariant: the clock moves only in `park`, never past a packet that is due, never back.
//!
//! The faulty network of [`run`](crate::run) is no part of this: here the wire delays and, if
//! asked, loses packets, which is what a conformance suite needs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use vmmc_host::limits::SIMULATED_WAITS;
use vmmc_host::wait::{BackoffLimits, Stepper};
use vmmc_host::{Attachment, Channel, Nanos};
use vmmc_nic::{ClusterKey, Codepoint, NodeName, Time};
use vmmc_node::station::StationError;
use vmmc_node::{Station, StationConfig};

use crate::rng::Rng;

/// One way over the simulated wire.
const WIRE_DELAY: Duration = Duration::from_micros(5);
/// Bytes of the largest datagram on the simulated wire.
const WIRE_MTU_BYTES: usize = 9000;
/// Rounds over all nodes in one step; bounds a step, not the work that is left.
const ROUNDS_A_STEP: usize = 64;
/// The clock moves at most this far at a time, so that a thread of the program that computes
/// meanwhile does not find all its deadlines past.
const LEAP_MAX_NS: u64 = 1_000_000;
/// Real time that such a leap takes.
const LEAP_PAUSE: Duration = Duration::from_micros(50);

/// What the cluster is like.
#[derive(Clone, Debug)]
pub struct HostedOptions {
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// Decides every random choice.
    pub seed: u64,
    /// Packets lost, of 1000.
    pub loss_permille: u32,
    /// Whether the nodes seal their packets.
    pub sealed: bool,
}

/// Why the cluster or an attachment could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostedError {
    /// Not a name for a node.
    #[error("{0:?} cannot be the name of a node; use letters, digits, dot, underscore and dash, at most 63")]
    Name(String),
    /// No such node.
    #[error("the cluster has no node {0:?}")]
    UnknownNode(String),
    /// The station refused.
    #[error(transparent)]
    Station(#[from] StationError),
    /// No socket pair.
    #[error(transparent)]
    Channel(#[from] vmmc_host::channel::ChannelError),
}

/// A cluster of simulated nodes. Clones are handles to the same one.
#[derive(Clone)]
pub struct Hosted(Arc<Core>);

struct Core {
    cluster: Mutex<Cluster>,
    /// The virtual clock, ns.
    now: AtomicU64,
}

struct Cluster {
    nodes: Vec<HostedNode>,
    wire: BinaryHeap<Reverse<Packet>>,
    sent: u64,
    rng: Rng,
    loss_permille: u32,
}

struct HostedNode {
    name: String,
    address: SocketAddr,
    station: Station,
    cut_off: bool,
}

/// A packet on the wire; ordered by arrival, then by sending.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    at: u64,
    number: u64,
    to: usize,
    from: SocketAddr,
    bytes: Vec<u8>,
}

impl Hosted {
    /// Starts the nodes; each knows the addresses of all others.
    pub fn start(options: &HostedOptions) -> Result<Hosted, HostedError> {
        let mut rng = Rng::new(options.seed);
        let now = Time::from_nanos(1);
        let mut nodes = Vec::new();
        for (index, name) in options.nodes.iter().enumerate() {
            let parsed = NodeName::parse(name).map_err(|_| HostedError::Name(name.clone()))?;
            let mut config = StationConfig::new(parsed);
            config.key = options.sealed.then_some(ClusterKey([7; 32]));
            let address = address_of(index);
            config.listen = vec![address];
            let station = Station::new(config, rng.bytes32(), now)?;
            nodes.push(HostedNode { name: name.clone(), address, station, cut_off: false });
        }
        let addresses: Vec<SocketAddr> = nodes.iter().map(|n| n.address).collect();
        for (index, node) in nodes.iter_mut().enumerate() {
            for (_, address) in addresses.iter().enumerate().filter(|(other, _)| *other != index) {
                node.station.set_path_mtu(*address, WIRE_MTU_BYTES);
                // A full peer table only means that this pair meets when an import names the
                // address.
                let _ = node.station.add_peer(now, &[*address]);
            }
        }
        let cluster = Cluster { nodes, wire: BinaryHeap::new(), sent: 0, rng, loss_permille: options.loss_permille };
        Ok(Hosted(Arc::new(Core { cluster: Mutex::new(cluster), now: AtomicU64::new(1) })))
    }

    /// Attaches the calling process to a node; give the attachment to the library.
    pub fn attach(&self, node: &str) -> Result<Attachment, HostedError> {
        let (ours, theirs) = Channel::pair()?;
        let now = self.0.time();
        let mut cluster = self.0.lock();
        let node = cluster.node(node)?;
        node.station.accept(now, ours)?;
        drop(cluster);
        Ok(Attachment::stepped(theirs, self.0.clone()))
    }

    /// Lets the cluster run for this long by its own clock, for programs that do something else
    /// than wait for it.
    pub fn run(&self, duration: Duration) {
        let end = self.0.now() + duration;
        while self.0.now() < end {
            if !self.0.step() {
                self.0.park(end);
            }
        }
    }

    /// Cuts a node off from all others, or joins it again.
    pub fn cut_off(&self, node: &str, cut_off: bool) -> Result<(), HostedError> {
        self.0.lock().node(node)?.cut_off = cut_off;
        Ok(())
    }

    /// Address of a node on the simulated wire, for imports that name an address.
    pub fn address(&self, node: &str) -> Result<SocketAddr, HostedError> {
        Ok(self.0.lock().node(node)?.address)
    }
}

fn address_of(index: usize) -> SocketAddr {
    let [high, low] = (index as u16 + 1).to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(10, 0, high, low), 4500))
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().expect("a step of the simulated cluster panicked")
    }

    fn time(&self) -> Time {
        Time::from_nanos(self.now.load(Ordering::Relaxed))
    }
}

impl Stepper for Core {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }

    fn step(&self) -> bool {
        let mut cluster = self.lock();
        let now = self.time();
        let mut worked = false;
        for _ in 0..ROUNDS_A_STEP {
            if !cluster.round(now) {
                break;
            }
            worked = true;
        }
        worked
    }

    fn park(&self, until: Nanos) {
        let leap = {
            let cluster = self.lock();
            let now = self.now.load(Ordering::Relaxed);
            let next = cluster.next(self.time()).unwrap_or(u64::MAX).min(until.0);
            let leap = next.saturating_sub(now).clamp(1, LEAP_MAX_NS);
            self.now.store(now + leap, Ordering::Relaxed);
            leap
        };
        if leap == LEAP_MAX_NS {
            std::thread::sleep(LEAP_PAUSE);
        }
    }

    fn wait_limits(&self) -> &'static BackoffLimits {
        &SIMULATED_WAITS
    }
}

impl Cluster {
    fn node(&mut self, name: &str) -> Result<&mut HostedNode, HostedError> {
        self.nodes.iter_mut().find(|n| n.name == name).ok_or_else(|| HostedError::UnknownNode(name.into()))
    }

    /// Lets every node do what it can do now; says whether there was anything.
    fn round(&mut self, now: Time) -> bool {
        let mut worked = self.deliver(now);
        for index in 0..self.nodes.len() {
            let station = &mut self.nodes[index].station;
            worked |= station.poll_control(now);
            worked |= station.step(now);
            worked |= self.send(index, now);
        }
        worked
    }

    fn deliver(&mut self, now: Time) -> bool {
        let mut worked = false;
        while self.wire.peek().is_some_and(|Reverse(packet)| packet.at <= now.as_nanos()) {
            let Some(Reverse(mut packet)) = self.wire.pop() else { break };
            self.nodes[packet.to].station.handle_datagram(now, packet.from, Codepoint::NotEct, &mut packet.bytes);
            worked = true;
        }
        worked
    }

    fn send(&mut self, index: usize, now: Time) -> bool {
        let mut buffer = [0u8; WIRE_MTU_BYTES];
        let mut worked = false;
        while let Some(transmit) = self.nodes[index].station.poll_transmit(now, &mut buffer) {
            worked = true;
            let from = &self.nodes[index];
            let to = self.nodes.iter().position(|n| n.address == transmit.to && !n.cut_off && !from.cut_off);
            let lost = self.rng.chance(self.loss_permille);
            let (Some(to), false) = (to, lost) else { continue };
            self.sent += 1;
            let at = now.as_nanos() + WIRE_DELAY.as_nanos() as u64;
            let packet =
                Packet { at, number: self.sent, to, from: from.address, bytes: buffer[..transmit.len].to_vec() };
            self.wire.push(Reverse(packet));
        }
        worked
    }

    /// When something happens next, ns.
    fn next(&self, now: Time) -> Option<u64> {
        let wire = self.wire.peek().map(|Reverse(packet)| packet.at);
        let timers = self.nodes.iter().filter_map(|n| n.station.next_timeout(now)).map(Time::as_nanos);
        wire.into_iter().chain(timers).min()
    }
}
