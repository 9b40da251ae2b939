//! The simulated network: directed links with rate, delay and conditions, several paths per node,
//! partitions.
//!
//! Invariant: a datagram is delivered whole or not at all, any number of times, at any later
//! moment, and only to the address it was sent to. Bits flip only where an engine is able to
//! notice: in plain mode the UDP checksum of a real network drops a damaged packet, so here it is
//! dropped too.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use vmmc_nic::limits::PACKET_BYTES_MIN;

use crate::limits::{LINK_QUEUE_NS_MAX, REPLAY_STORE_PACKETS};
use crate::options::Faults;
use crate::rng::Rng;

/// UDP port of every simulated node.
const PORT: u16 = 7000;

/// The address of `node` on `path`. Paths are separate networks: path p is 10.p.0.0/16.
pub(crate) fn address(node: usize, path: usize) -> SocketAddr {
    let (high, low) = ((node >> 8) as u8, (node & 0xff) as u8);
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, path as u8, high, low)), PORT)
}

/// The node and path of an address made by [`address`]; `None` for any other.
pub(crate) fn locate(at: SocketAddr) -> Option<(usize, usize)> {
    match at {
        SocketAddr::V4(v4) if v4.port() == PORT => {
            let [ten, path, high, low] = v4.ip().octets();
            (ten == 10).then_some((usize::from(high) << 8 | usize::from(low), usize::from(path)))
        }
        _ => None,
    }
}

/// How badly the network behaves at the moment. Rates in thousandths of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkConditions {
    pub(crate) loss: u32,
    pub(crate) duplicate: u32,
    pub(crate) reorder: u32,
    pub(crate) corrupt: u32,
    pub(crate) replay: u32,
    pub(crate) delay_ns: u64,
    pub(crate) jitter_ns: u64,
    pub(crate) ns_per_kib: u64,
}

impl LinkConditions {
    /// Those of a calm local network.
    pub(crate) const CALM: LinkConditions = LinkConditions {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        corrupt: 0,
        replay: 0,
        delay_ns: 20_000,
        jitter_ns: 2_000,
        ns_per_kib: 800,
    };

    /// Conditions drawn within what `faults` allows. A third of draws is mild, so that throughput
    /// is exercised as well.
    pub(crate) fn draw(rng: &mut Rng, faults: &Faults) -> LinkConditions {
        let level = rng.pick(&[0, 20, 100, 300, 1000, 1000]);
        let mut rate = |max: u32| rng.below(u64::from(max * level / 1000) + 1) as u32;
        let (loss, duplicate, reorder) = (rate(faults.loss), rate(faults.duplicate), rate(faults.reorder));
        let (corrupt, replay) = (rate(faults.corrupt), rate(faults.replay));
        let delay_ns = rng.between(1_000, faults.delay_us.max(2) * 1_000);
        let jitter_ns = rng.below(delay_ns + 1);
        let ns_per_kib = rng.pick(&[80, 800, 8_000]);
        LinkConditions { loss, duplicate, reorder, corrupt, replay, delay_ns, jitter_ns, ns_per_kib }
    }
}

/// A datagram under way.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// What the network did to packets, for the report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Injected {
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupted: u64,
    pub(crate) replayed: u64,
    pub(crate) blocked: u64,
    pub(crate) too_large: u64,
}

/// The network between all nodes.
#[derive(Debug)]
pub(crate) struct Network {
    nodes: usize,
    paths: usize,
    rng: Rng,
    conditions: LinkConditions,
    /// Packets that fail their checksum are dropped before the engine sees them.
    checksummed: bool,
    /// `blocked[from * nodes + to]`: how many partitions forbid this direction now.
    blocked: Vec<u16>,
    /// `broken[node * paths + path]`: this network interface is dead, both ways.
    broken: Vec<bool>,
    /// When the directed link is free to send the next packet, ns.
    free_at: Vec<u64>,
    /// Old packets that may come back, as a hostile network would replay them.
    store: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    injected: Injected,
    sent: u64,
    /// Where there is one: what swallows large datagrams.
    sizes: Option<Sizes>,
}

/// What the links of each path take.
#[derive(Debug)]
struct Sizes {
    /// Bytes of a datagram that hosts take for right.
    host_bytes: usize,
    /// Those that get through, on each path.
    takes: Vec<usize>,
    rng: Rng,
}

impl Network {
    pub(crate) fn new(nodes: usize, paths: usize, checksummed: bool, rng: Rng) -> Network {
        Network {
            nodes,
            paths,
            rng,
            conditions: LinkConditions::CALM,
            checksummed,
            blocked: vec![0; nodes * nodes],
            broken: vec![false; nodes * paths],
            free_at: vec![0; nodes * nodes],
            store: Vec::new(),
            spare: Vec::new(),
            injected: Injected::default(),
            sent: 0,
            sizes: None,
        }
    }

    /// From now on links swallow datagrams that are too large for them, whatever their hosts say;
    /// and no smaller ones than every path must carry.
    pub(crate) fn swallow_large(&mut self, host_bytes: usize, rng: Rng) {
        self.sizes = Some(Sizes { host_bytes, takes: vec![host_bytes; self.paths], rng });
        self.change_sizes();
    }

    /// Draws what each path takes anew.
    fn change_sizes(&mut self) {
        let Some(Sizes { host_bytes, takes, rng }) = &mut self.sizes else { return };
        for takes in takes {
            let drawn = rng.between(PACKET_BYTES_MIN as u64, *host_bytes as u64) as usize;
            *takes = rng.pick(&[*host_bytes, drawn, 1_472.min(*host_bytes), PACKET_BYTES_MIN]);
        }
    }

    /// Paths of every node.
    pub(crate) fn paths(&self) -> usize {
        self.paths
    }

    /// Packets that engines handed over.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn injected(&self) -> Injected {
        self.injected
    }

    pub(crate) fn set_conditions(&mut self, conditions: LinkConditions) {
        self.conditions = conditions;
        self.change_sizes();
    }

    /// Blocks (or frees again) packets from `from` to `to`.
    pub(crate) fn block(&mut self, from: usize, to: usize, blocked: bool) {
        let count = &mut self.blocked[from * self.nodes + to];
        *count = if blocked { *count + 1 } else { count.saturating_sub(1) };
    }

    /// Breaks (or mends) one interface of a node.
    pub(crate) fn break_path(&mut self, node: usize, path: usize, broken: bool) {
        self.broken[node * self.paths + path] = broken;
    }

    /// Whether `path` is broken at `node`.
    pub(crate) fn is_broken(&self, node: usize, path: usize) -> bool {
        self.broken[node * self.paths + path]
    }

    /// Ends every fault for good. Packets already under way still arrive, late as they may be.
    pub(crate) fn heal(&mut self) {
        self.conditions = LinkConditions::CALM;
        self.blocked.fill(0);
        self.broken.fill(false);
        self.store.clear();
    }

    /// Sends a datagram, which may be cut up on the way or not; each copy that will arrive is given
    /// to `deliver` with its arrival time in ns.
    pub(crate) fn send(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        to: SocketAddr,
        (bytes, may_be_cut_up): (&[u8], bool),
        deliver: &mut dyn FnMut(u64, Packet),
    ) {
        self.sent += 1;
        let Some(link) = self.open_link(from, to) else {
            self.injected.blocked += 1;
            return;
        };
        if !may_be_cut_up && !self.fits(from, bytes.len()) {
            self.injected.too_large += 1;
            return;
        }
        self.keep_for_replay(from, to, bytes);
        let start_ns = self.free_at[link].max(now_ns);
        if self.rng.chance(self.conditions.loss) || start_ns - now_ns > LINK_QUEUE_NS_MAX {
            self.injected.lost += 1;
            return;
        }
        let done_ns = start_ns + bytes.len() as u64 * self.conditions.ns_per_kib / 1024;
        self.free_at[link] = done_ns;
        self.deliver_one(done_ns, from, to, bytes, deliver);
        if self.rng.chance(self.conditions.duplicate) {
            self.injected.duplicated += 1;
            self.deliver_one(done_ns, from, to, bytes, deliver);
        }
        if !self.store.is_empty() && self.rng.chance(self.conditions.replay) {
            let old = self.rng.index(self.store.len()).expect("checked not to be empty");
            let (from, to, bytes) = self.store.swap_remove(old);
            self.injected.replayed += 1;
            self.deliver_one(done_ns, from, to, &bytes, deliver);
        }
    }

    /// A buffer to fill, from those delivered before.
    pub(crate) fn recycle(&mut self, bytes: Vec<u8>) {
        self.spare.push(bytes);
    }

    /// The link's index, unless a partition or a broken interface swallows the packet.
    fn open_link(&self, from: SocketAddr, to: SocketAddr) -> Option<usize> {
        let ((source, source_path), (target, target_path)) = (locate(from)?, locate(to)?);
        let known = source < self.nodes && target < self.nodes && target_path < self.paths;
        if !known || source_path != target_path {
            return None;
        }
        let link = source * self.nodes + target;
        let broken = self.is_broken(source, source_path) || self.is_broken(target, target_path);
        (!broken && self.blocked[link] == 0).then_some(link)
    }

    fn fits(&self, from: SocketAddr, bytes: usize) -> bool {
        let (Some(sizes), Some((_, path))) = (&self.sizes, locate(from)) else { return true };
        sizes.takes.get(path).is_none_or(|takes| bytes <= *takes)
    }

    fn deliver_one(
        &mut self,
        done_ns: u64,
        from: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
        deliver: &mut dyn FnMut(u64, Packet),
    ) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        if self.rng.chance(self.conditions.corrupt) {
            self.injected.corrupted += 1;
            if self.checksummed {
                self.spare.push(copy);
                return;
            }
            self.damage(&mut copy);
        }
        let mut at_ns = done_ns + self.conditions.delay_ns;
        if self.rng.chance(self.conditions.reorder) {
            self.injected.reordered += 1;
            at_ns += self.rng.below(8 * (self.conditions.delay_ns + self.conditions.jitter_ns) + 1);
        } else {
            // Jitter alone keeps the order of a link: it only depends on the moment.
            at_ns += self.conditions.jitter_ns * (done_ns / 100_000 % 8) / 8;
        }
        deliver(at_ns, Packet { from, to, bytes: copy });
    }

    /// Flips one to four bits, or cuts the tail off.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let Some(last) = bytes.len().checked_sub(1) else { return };
        if self.rng.chance(150) {
            bytes.truncate(self.rng.below(last as u64 + 1) as usize);
            return;
        }
        for _ in 0..self.rng.between(1, 4) {
            let at = self.rng.below(last as u64 + 1) as usize;
            bytes[at] ^= 1 << self.rng.below(8);
        }
    }

    fn keep_for_replay(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if self.conditions.replay == 0 || !self.rng.chance(20) {
            return;
        }
        if self.store.len() < REPLAY_STORE_PACKETS {
            self.store.push((from, to, bytes.to_vec()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(network: &mut Network, count: usize) -> Vec<(u64, Packet)> {
        let mut got = Vec::new();
        for i in 0..count {
            let now_ns = i as u64 * 10_000;
            network.send(now_ns, address(0, 0), address(1, 0), (&[i as u8; 50], false), &mut |at, p| got.push((at, p)));
        }
        got
    }

    #[test]
    fn a_calm_network_delivers_everything_once_and_unchanged() {
        let mut network = Network::new(2, 1, true, Rng::new(1));
        let got = arrivals(&mut network, 100);
        assert_eq!(got.len(), 100);
        assert!(got.iter().enumerate().all(|(i, (_, p))| p.bytes == [i as u8; 50]));
    }

    #[test]
    fn a_partition_and_a_broken_interface_swallow_packets_until_healed() {
        let mut network = Network::new(2, 2, true, Rng::new(1));
        network.block(0, 1, true);
        assert!(arrivals(&mut network, 5).is_empty());
        network.block(0, 1, false);
        network.break_path(1, 0, true);
        assert!(arrivals(&mut network, 5).is_empty());
        network.heal();
        assert_eq!(arrivals(&mut network, 5).len(), 5);
    }

    #[test]
    fn links_swallow_what_is_too_large_unless_it_may_be_cut_up() {
        for seed in 0..20 {
            let mut network = Network::new(2, 3, true, Rng::new(1));
            network.swallow_large(9_000, Rng::new(seed));
            for path in 0..3 {
                let mut gets_through = |len: usize, may_be_cut_up| {
                    let (mut got, bytes) = (0, vec![1; len]);
                    let from = address(0, path);
                    network.send(0, from, address(1, path), (&bytes, may_be_cut_up), &mut |_, _| got += 1);
                    got == 1
                };
                assert!(gets_through(PACKET_BYTES_MIN, false) && !gets_through(9_001, false));
                assert!(gets_through(9_001, true));
            }
            assert_eq!(network.injected().too_large, 3);
        }
    }

    #[test]
    fn bad_conditions_lose_double_and_damage() {
        for checksummed in [false, true] {
            let mut network = Network::new(2, 1, checksummed, Rng::new(5));
            let conditions = LinkConditions { loss: 300, duplicate: 300, corrupt: 300, ..LinkConditions::CALM };
            network.set_conditions(conditions);
            let got = arrivals(&mut network, 1000);
            let damaged = got.iter().filter(|(_, p)| p.bytes.len() != 50 || p.bytes.windows(2).any(|w| w[0] != w[1]));
            assert_eq!(damaged.count() == 0, checksummed);
            let injected = network.injected();
            assert!(injected.lost > 200 && injected.duplicated > 100 && injected.corrupted > 100);
        }
    }

    #[test]
    fn addresses_are_found_back() {
        assert_eq!(locate(address(300, 2)), Some((300, 2)));
        assert_eq!(locate("127.0.0.1:1".parse().expect("a constant address")), None);
    }
}
