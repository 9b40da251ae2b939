//! `vmmc stats`: counters of a node, of its processes' pinned memory, and of its peers with the
//! state of their congestion control, and what processes have published.
//!
//! Invariant: every counter that the node has is shown; none is renamed.

use super::{attach, name_or_id};
use crate::args::Stats;
use crate::failure::Failure;
use crate::report::{self, table};
use vmmc::Moved;
use vmmc_host::control::PeerInfo;
use vmmc_host::counters::MOVED;

/// Runs the command.
pub(crate) fn run(stats: &Stats) -> Result<(), Failure> {
    let info = attach(&stats.which.name)?.node_info(true)?;
    let figures: Vec<(String, u64)> = info.figures.iter().map(|f| (f.name.clone(), f.value)).collect();
    if stats.json {
        let map = |counters: &[(String, u64)]| -> serde_json::Map<String, serde_json::Value> {
            counters.iter().map(|(name, value)| (name.clone(), (*value).into())).collect()
        };
        let peer = |p: &PeerInfo| {
            let mut all = serde_json::json!(p);
            all["counters"] = map(&p.counters).into();
            all
        };
        let peers: Vec<serde_json::Value> = info.peers.iter().map(peer).collect();
        return crate::output_json(&super::with_ids(&serde_json::json!({
            "node": info.name, "uptime_ms": info.uptime_ms, "counters": map(&info.counters), "figures": map(&figures), "peers": peers,
            "imports": info.imports,
            "published": info.published.iter().map(|p| serde_json::json!({"process": p.process, "source": p.source, "figures": p.figures.iter().flat_map(report::published::numbers).map(|(name, value)| (name, value.into())).collect::<serde_json::Map<_, _>>()})).collect::<Vec<_>>(),
            "processes": info.processes.iter().map(|p| serde_json::json!({"process": p.process, "pid": p.pid, "program": p.program, "mapped": p.mapped, "counters": map(&p.counters)})).collect::<Vec<_>>(),
        }))?);
    }
    let line = |whose: &str, (name, value): &(String, u64)| vec![whose.to_string(), name.clone(), value.to_string()];
    let mut lines: Vec<Vec<String>> = info.counters.iter().chain(&figures).map(|c| line(&info.name, c)).collect();
    for process in &info.processes {
        let whose = format!("process {} {}", process.pid, process.program);
        lines.extend(moved("mapped_", &process.mapped).iter().map(|c| line(&whose, c)));
        lines.extend(process.counters.iter().map(|c| line(&whose, c)));
    }
    for published in &info.published {
        let pid = info.processes.iter().find(|p| p.process == published.process).map_or(0, |p| p.pid);
        let whose = format!("{} of process {pid}", published.source);
        lines.extend(published.figures.iter().flat_map(report::published::numbers).map(|c| line(&whose, &c)));
    }
    for import in &info.imports {
        let pid = info.processes.iter().find(|p| p.process == import.process).map_or(0, |p| p.pid);
        let whose = format!("import of {} by process {pid}", name_or_id(import.name.as_deref(), import.export));
        lines.extend(moved("", &import.moved).iter().map(|c| line(&whose, c)));
    }
    for peer in &info.peers {
        let whose = if peer.name.is_empty() { &peer.address } else { &peer.name };
        let whose = format!("peer {whose}");
        lines.extend(path(peer).map(|[name, value]| vec![whose.clone(), name, value]));
        lines.extend(peer.counters.iter().map(|c| line(&whose, c)));
    }
    crate::output(&table::align(&["of", "counter", "value"], &lines, 2))
}

/// What is known of the way to a peer, and what decides how much is under way there; 0: not known.
fn path(peer: &PeerInfo) -> impl Iterator<Item = [String; 2]> {
    let words = [("congestion", &peer.congestion), ("marks", &peer.marks)];
    let figures = [
        ("rtt_ns", peer.rtt_ns),
        ("shortest_ns", peer.shortest_ns),
        ("window_bytes", peer.window_bytes),
        ("in_flight_bytes", peer.in_flight_bytes),
        ("pace_bytes_per_s", peer.pace_bytes_per_s),
        ("bandwidth_bytes_per_s", peer.bandwidth_bytes_per_s),
    ];
    let shown = |word: &str| if word.is_empty() { "-".to_string() } else { word.to_string() };
    let words = words.map(|(name, word)| [name.to_string(), shown(word)]);
    words.into_iter().chain(figures.map(|(name, figure)| [name.to_string(), figure.to_string()]))
}

/// What was moved, as counters; nothing if nothing was.
fn moved(before: &str, moved: &Moved) -> Vec<(String, u64)> {
    if *moved == Moved::default() {
        return Vec::new();
    }
    let values = [moved.sends, moved.send_bytes, moved.fetches, moved.fetch_bytes, moved.atomics];
    MOVED.iter().zip(values).map(|(counter, value)| (format!("{before}{}", counter.name), value)).collect()
}
