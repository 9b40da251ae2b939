//! Faults: when they begin, whom they touch, when they end.
//!
//! Invariant: every fault that disturbs a node is counted in the model while it lasts, so that the
//! checker of honest errors knows which errors have a reason; and every fault has an end, so that
//! progress can be demanded.

use crate::cluster::{Cluster, Happening};
use crate::network::{LinkConditions, address};

/// A fault begins or ends.
#[derive(Clone, Debug)]
pub(crate) enum ChaosEvent {
    /// The conditions of the links change.
    Conditions,
    /// These directed links work again.
    Join { links: Vec<(usize, usize)> },
    /// This interface works again.
    Mend { node: usize, path: usize },
    /// This node starts again.
    Restart { node: usize },
}

impl Cluster {
    /// Perhaps begins a fault; called once per workload action.
    pub(crate) fn stir(&mut self) {
        let faults = self.options.faults;
        match self.rng.below(1000) {
            0..40 => self.chaos(ChaosEvent::Conditions),
            40..50 if faults.partitions => self.part(),
            50..62 if faults.path_failures => self.break_path(),
            62..68 if faults.node_crashes => self.crash(),
            68..75 if faults.replay > 0 => self.throw_garbage(),
            75..80 => self.change_mtu(),
            _ => {}
        }
    }

    /// A fault ends, or the conditions of the links change.
    pub(crate) fn chaos(&mut self, event: ChaosEvent) {
        self.judge.note(&self.model, format_args!("{event:?}"));
        match event {
            ChaosEvent::Conditions if self.stormy => {
                let conditions = LinkConditions::draw(&mut self.rng, &self.options.faults);
                self.network.set_conditions(conditions);
            }
            ChaosEvent::Conditions => {}
            ChaosEvent::Join { links } => {
                for (from, to) in links {
                    self.network.block(from, to, false);
                    self.model.calm(from);
                    self.model.calm(to);
                }
            }
            ChaosEvent::Mend { node, path } => {
                if self.network.is_broken(node, path) {
                    self.network.break_path(node, path, false);
                    self.model.calm(node);
                }
            }
            ChaosEvent::Restart { node } => {
                if self.hosts[node].engine.is_none() {
                    self.model.calm(node);
                    self.start_node(node);
                }
            }
        }
    }

    /// Ends all faults for good: the network is whole and calm, every node runs.
    pub(crate) fn heal(&mut self) {
        self.stormy = false;
        self.judge.note(&self.model, format_args!("all faults end"));
        self.network.heal();
        for node in 0..self.options.nodes {
            self.model.calm_down(node);
            if self.hosts[node].engine.is_none() {
                self.start_node(node);
            }
        }
        self.model.healed_at_ns = Some(self.model.now_ns);
    }

    /// A group of nodes and the rest lose each other, sometimes in one direction only.
    fn part(&mut self) {
        let inside: Vec<bool> = (0..self.options.nodes).map(|_| self.rng.chance(400)).collect();
        let one_way = self.rng.chance(300);
        let mut links = Vec::new();
        for from in 0..inside.len() {
            for to in self.options.known_to(from) {
                if inside[from] && !inside[to] || !one_way && !inside[from] && inside[to] {
                    links.push((from, to));
                }
            }
        }
        if links.is_empty() {
            return;
        }
        self.faults.partitions += 1;
        for &(from, to) in &links {
            self.network.block(from, to, true);
            self.model.disturb(from);
            self.model.disturb(to);
        }
        let lasts_ns = self.duration();
        self.judge.note(&self.model, format_args!("partition for {} ms: {links:?}", lasts_ns / 1_000_000));
        self.after(lasts_ns, Happening::Chaos(ChaosEvent::Join { links }));
    }

    /// One interface of a node dies. With a single path that is a partition of the node.
    fn break_path(&mut self) {
        let node = self.rng.below(self.options.nodes as u64) as usize;
        let path = self.rng.below(self.network.paths() as u64) as usize;
        if self.network.is_broken(node, path) {
            return;
        }
        self.faults.path_failures += 1;
        self.network.break_path(node, path, true);
        self.model.disturb(node);
        let lasts_ns = self.duration();
        self.judge.note(&self.model, format_args!("path {path} of node {node} dies for {} ms", lasts_ns / 1_000_000));
        self.after(lasts_ns, Happening::Chaos(ChaosEvent::Mend { node, path }));
    }

    fn crash(&mut self) {
        let node = self.rng.below(self.options.nodes as u64) as usize;
        if self.hosts[node].engine.is_none() {
            return;
        }
        self.faults.node_crashes += 1;
        self.model.disturb(node);
        if self.rng.chance(300) {
            self.stop_node(node);
        } else {
            self.crash_node(node);
        }
        let lasts_ns = self.duration();
        self.after(lasts_ns, Happening::Chaos(ChaosEvent::Restart { node }));
    }

    /// A path turns out to carry larger or smaller packets.
    fn change_mtu(&mut self) {
        let nodes = self.options.nodes as u64;
        let node = self.rng.below(nodes) as usize;
        let peer = self.some_known(node);
        let at = address(peer, self.rng.below(self.network.paths() as u64) as usize);
        let bytes = self.rng.pick(&[1_200, 1_472, self.setup.path_mtu_bytes]);
        self.call(node, |engine, _, _| engine.set_path_mtu(at, bytes));
    }

    /// Random bytes from a random place: a stray or hostile sender.
    fn throw_garbage(&mut self) {
        let nodes = self.options.nodes as u64;
        let from = self.rng.below(nodes) as usize;
        let to = self.some_known(from);
        let len = self.rng.pick(&[0, 1, 8, 16, 40, 100, 1_400]);
        let mut bytes: Vec<u8> = (0..len).map(|_| self.rng.next() as u8).collect();
        // Half of them begin as a real packet would, to get further into the decoder.
        if let (Some(first), true) = (bytes.first_mut(), self.rng.chance(500)) {
            *first = self.rng.below(16) as u8;
        }
        let from = address(from, 0);
        self.call(to, |engine, now, port| engine.handle_datagram(now, from, &mut bytes, port));
    }

    /// How long a fault lasts: mostly short, sometimes longer than a peer may be silent.
    fn duration(&mut self) -> u64 {
        let (low, high) =
            self.rng.pick(&[(1, 10), (10, 100), (10, 100), (100, 1_000), (1_000, 4_000), (5_000, 15_000)]);
        self.rng.between(low * 1_000_000, high * 1_000_000)
    }
}
