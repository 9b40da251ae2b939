//! Levels inside engines that must stay bounded, read through what engines say of themselves.

use vmmc_nic::limits as nic;

use crate::cluster::Cluster;
use crate::limits::IDLE_PACKETS_PER_NODE_MAX;
use crate::model::Seen;

/// Bytes beyond gaps that a node keeps of all of so many peers: `most`, and of each some in any
/// case. The one chunk of each peer that is wanted most has room beside.
pub(crate) fn held_of_all_max(most: usize, peers: u64) -> u64 {
    let own = nic::HELD_BYTES_OWN.max(nic::PACKET_BYTES_MAX + nic::PIECED_BYTES) as u64;
    most as u64 + peers * own
}

impl Cluster {
    /// Reads the levels of one random node: all of them after every action would cost more than the
    /// simulation.
    pub(crate) fn gauge_one(&mut self) {
        let node = self.rng.below(self.options.nodes as u64) as usize;
        for (what, value, bound) in self.levels(node) {
            self.level(node, what, value, bound);
        }
    }

    /// Reads the levels of all nodes once every process has left: nothing may be left over.
    pub(crate) fn gauge_at_rest(&mut self, packets_while_idle: u64) {
        for node in 0..self.options.nodes {
            for (what, value, _) in self.levels(node) {
                if what != "peers" {
                    self.level(node, what, value, 0);
                }
            }
        }
        let bound = IDLE_PACKETS_PER_NODE_MAX * self.options.nodes as u64;
        self.level(0, "packets sent by the idle cluster", packets_while_idle, bound);
    }

    fn level(&mut self, node: usize, what: &'static str, value: u64, bound: u64) {
        let value = self.tamper.as_mut().map_or(value, |t| t.level(what, value));
        self.judge.see(&mut self.model, &Seen::Level { node, what, value, bound });
    }

    fn levels(&self, node: usize) -> Vec<(&'static str, u64, u64)> {
        let Some(engine) = &self.hosts[node].engine else { return Vec::new() };
        let budget = (self.setup.recv_buffer_bytes + nic::CONTROL_SLACK_BYTES) as u64;
        let (mut held, mut held_bytes, mut queued, mut flying, mut peers) = (0, 0, 0, 0, 0);
        let mut held_of_all = 0;
        for peer in engine.peers() {
            held = held.max(peer.held_chunks as u64);
            held_bytes = held_bytes.max(peer.held_bytes as u64);
            held_of_all += peer.held_bytes as u64;
            queued = queued.max(peer.queued_ops as u64);
            flying = flying.max(peer.in_flight_bytes as u64);
            peers += 1;
        }
        let (mut outstanding, mut processes) = (0, 0);
        for process in engine.processes() {
            outstanding = outstanding.max(process.outstanding_ops as u64);
            processes += 1;
        }
        vec![
            ("chunks held out of order for one peer", held, nic::CHUNK_WINDOW),
            ("bytes held out of order for one peer", held_bytes, budget),
            ("bytes held out of order of all peers", held_of_all, held_of_all_max(self.setup.held_bytes_max, peers)),
            ("operations queued for one peer", queued, (nic::QUEUE_OPS_MAX * nic::PROCESSES_MAX) as u64),
            ("bytes in flight to one peer", flying, budget),
            ("operations outstanding of one process", outstanding, nic::PROCESS_OPS_MAX as u64),
            ("peers", peers, nic::PEERS_MAX as u64),
            ("processes", processes, nic::PROCESSES_MAX as u64),
            ("exports", engine.exports().count() as u64, nic::EXPORTS_MAX as u64),
            ("imports", engine.imports().count() as u64, (nic::IMPORTS_PER_PROCESS_MAX * nic::PROCESSES_MAX) as u64),
        ]
    }
}
