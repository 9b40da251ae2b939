//! What `vmmc top` shows: descriptions of nodes, and rates between two of them.
//!
//! Invariant: a rate is the difference of two counters of the same run of a node over the time
//! between them; a node that was restarted starts anew.

use crate::commands::attach;
use crate::failure::Failure;
use crate::report::published;
use std::collections::HashMap;
use std::time::Instant;
use vmmc::{Moved, NodeInfo, Session};
use vmmc_host::channel::listening_nodes;
use vmmc_host::control::{ImportInfo, PeerInfo, ProcessInfo, PublishedInfo};
use vmmc_host::published::{Figure, FigureKind};

/// One sample of all nodes.
#[derive(Default)]
pub(super) struct View {
    pub(super) nodes: Vec<NodeView>,
}

/// A node, and how it changes.
pub(super) struct NodeView {
    pub(super) info: NodeInfo,
    /// Change of each counter in a second.
    pub(super) rates: HashMap<String, f64>,
    /// The same for each peer, by address.
    pub(super) peer_rates: HashMap<String, HashMap<String, f64>>,
    /// What processes copied within the node in a second, by the node's number of the process.
    pub(super) process_rates: HashMap<u32, Rate>,
    /// What went through imports, by process and import.
    pub(super) import_rates: HashMap<(u32, u64), Rate>,
    /// Change of what was published in a second, by process, source and figure: of times, how many
    /// there were.
    pub(super) published_rates: HashMap<(u32, String, String), f64>,
}

/// What moved in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) bytes: f64,
    pub(super) operations: f64,
}

impl Rate {
    fn between(before: Moved, now: Moved, seconds: f64) -> Rate {
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds.max(1e-3);
        Rate { bytes: rate(before.bytes(), now.bytes()), operations: rate(before.operations(), now.operations()) }
    }
}

impl NodeView {
    /// Change of a counter in a second.
    pub(super) fn rate(&self, counter: &str) -> f64 {
        self.rates.get(counter).copied().unwrap_or(0.0)
    }

    /// What the node says of a process.
    pub(super) fn process(&self, process: u32) -> Option<&ProcessInfo> {
        self.info.processes.iter().find(|info| info.process == process)
    }

    /// Process id, for people, of what the node counts as this process.
    pub(super) fn pid_of(&self, process: u32) -> String {
        self.process(process).map_or_else(|| "?".into(), |info| info.pid.to_string())
    }

    /// Change of a peer's counter in a second.
    pub(super) fn peer_rate(&self, peer: &PeerInfo, counter: &str) -> f64 {
        self.peer_rates.get(&peer.address).and_then(|rates| rates.get(counter)).copied().unwrap_or(0.0)
    }
}

/// Samples nodes again and again.
pub(super) struct Sampler {
    only: Option<String>,
    sessions: HashMap<String, Session>,
    last: HashMap<String, (Instant, NodeInfo)>,
}

impl Sampler {
    pub(super) fn new(only: Option<String>) -> Sampler {
        Sampler { only, sessions: HashMap::new(), last: HashMap::new() }
    }

    /// Samples all nodes.
    pub(super) fn sample(&mut self) -> Result<View, Failure> {
        let uid = rustix::process::geteuid().as_raw();
        let names: Vec<String> = match &self.only {
            Some(name) => vec![name.clone()],
            None => names(listening_nodes(), uid),
        };
        self.sessions.retain(|name, session| names.contains(name) && session.is_alive());
        let mut nodes = Vec::new();
        for name in names {
            match self.sample_node(&name) {
                Ok(node) => nodes.push(node),
                // The only one that was asked for is not there; others just disappear.
                Err(failure) if self.only.is_some() => return Err(failure),
                Err(_) => drop(self.sessions.remove(&name)),
            }
        }
        Ok(View { nodes })
    }

    fn sample_node(&mut self, name: &str) -> Result<NodeView, Failure> {
        let session = match self.sessions.get(name) {
            Some(session) => session.clone(),
            None => {
                let session = attach(name)?;
                self.sessions.insert(name.to_string(), session.clone());
                session
            }
        };
        let mut info = session.node_info(true)?;
        // We are attached too while we sample, and have neither exports nor imports.
        info.processes.retain(|process| process.pid != std::process::id());
        let now = Instant::now();
        let last = self.last.insert(name.to_string(), (now, info.clone()));
        let last = last.filter(|(_, before)| before.pid == info.pid && before.uptime_ms <= info.uptime_ms);
        let (mut rates, mut peer_rates) = (HashMap::new(), HashMap::new());
        let (mut process_rates, mut import_rates) = (HashMap::new(), HashMap::new());
        let mut published_rates = HashMap::new();
        if let Some((then, before)) = last {
            let seconds = now.duration_since(then).as_secs_f64();
            rates = rates_between(&before.counters, &info.counters, seconds);
            for process in &info.processes {
                let was = before.processes.iter().find(|other| other.process == process.process);
                let was = was.map_or_else(Moved::default, |was| was.mapped);
                process_rates.insert(process.process, Rate::between(was, process.mapped, seconds));
            }
            for import in &info.imports {
                let same = |other: &&ImportInfo| (other.process, other.import) == (import.process, import.import);
                let was = before.imports.iter().find(same).map_or_else(Moved::default, |was| was.moved);
                import_rates.insert((import.process, import.import), Rate::between(was, import.moved, seconds));
            }
            let was = counts(&before);
            for (key, count) in counts(&info) {
                let before = was.get(&key).copied().unwrap_or(0);
                published_rates.insert(key, count.saturating_sub(before) as f64 / seconds.max(1e-3));
            }
            for peer in &info.peers {
                if let Some(was) = before.peers.iter().find(|other| other.address == peer.address) {
                    peer_rates.insert(peer.address.clone(), rates_between(&was.counters, &peer.counters, seconds));
                }
            }
        }
        Ok(NodeView { info, rates, peer_rates, process_rates, import_rates, published_rates })
    }
}

/// How often each thing was counted that was published.
fn counts(info: &NodeInfo) -> HashMap<(u32, String, String), u64> {
    let all = info.published.iter().flat_map(|of| of.figures.iter().map(move |figure| (of, figure)));
    let count = |(of, figure): (&PublishedInfo, &Figure)| {
        let count = if figure.kind == FigureKind::Times { figure.times() } else { figure.value };
        ((of.process, of.source.clone(), published::name(figure)), count)
    };
    all.map(count).collect()
}

/// Names under which a user finds a node: its own, and those of root, as for every session. One
/// that does not serve this user disappears when it is sampled.
fn names(listening: Vec<(u32, String)>, uid: u32) -> Vec<String> {
    let usable = listening.into_iter().filter(|(owner, _)| *owner == uid || *owner == 0);
    let mut names: Vec<String> = usable.map(|(_, name)| name).collect();
    names.sort();
    names.dedup();
    names
}

fn rates_between(before: &[(String, u64)], now: &[(String, u64)], seconds: f64) -> HashMap<String, f64> {
    let before: HashMap<&str, u64> = before.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let rate = |(name, value): &(String, u64)| {
        let was = before.get(name.as_str()).copied().unwrap_or(0);
        (name.clone(), value.saturating_sub(was) as f64 / seconds.max(1e-3))
    };
    now.iter().map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_of_what_moved_is_one_of_bytes_and_operations() {
        let moved = |sends, fetch_bytes| Moved { sends, fetch_bytes, ..Moved::default() };
        let rate = Rate::between(moved(10, 1000), moved(30, 5000), 2.0);
        assert_eq!(rate, Rate { bytes: 2000.0, operations: 10.0 });
        assert_eq!(Rate::between(moved(10, 1000), moved(0, 0), 2.0), Rate::default());
    }

    #[test]
    fn a_user_finds_its_own_nodes_and_those_of_root() {
        let listening = [(0, "default"), (0, "wide"), (1000, "default"), (1000, "own"), (1001, "other")];
        let listening = listening.map(|(uid, name)| (uid, name.to_string())).to_vec();
        assert_eq!(names(listening.clone(), 1000), ["default", "own", "wide"]);
        assert_eq!(names(listening, 0), ["default", "wide"]);
    }

    #[test]
    fn a_rate_is_a_difference_over_time_and_never_negative() {
        let counters = |a, b| vec![("a".to_string(), a), ("b".to_string(), b)];
        let rates = rates_between(&counters(10, 5), &counters(30, 2), 2.0);
        assert_eq!((rates["a"], rates["b"]), (10.0, 0.0));
    }
}
