//! `vmmc sockets`: which TCP connections go through shared memory, how fast, and why the others do
//! not.
//!
//! Invariant: byte counts are claims of the programs; the node knows connections that were upgraded
//! or offered, not those that were too short to be.

use super::attach;
use crate::args::Sockets;
use crate::failure::Failure;
use crate::report::{table, units};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use vmmc::Session;
use vmmc_host::control::decode;
use vmmc_stream::messages::{SERVICE, SocketInfo, SocketList, SocketQuestion, VERSION};

/// Runs the command.
pub(crate) fn run(sockets: &Sockets) -> Result<(), Failure> {
    let session = attach(&sockets.which.name)?;
    let (before, start) = (list_of(&session)?, Instant::now());
    let mut now = before.clone();
    if sockets.rate_ms > 0 {
        std::thread::sleep(Duration::from_millis(sockets.rate_ms));
        now = list_of(&session)?;
    }
    let SocketList { sockets: list, total } = now;
    let rates =
        Rates { before: before.sockets.iter().map(|s| (key(s), s.ring_sent_bytes)).collect(), passed: start.elapsed() };
    if sockets.json {
        let list: Vec<serde_json::Value> = list.iter().map(|s| json(s, rates.of(s))).collect();
        return crate::output_json(&serde_json::json!({ "sockets": list, "total": total }));
    }
    crate::output(&shown(&list, total as usize, &rates))
}

fn list_of(session: &Session) -> Result<SocketList, Failure> {
    let answer = session.ask_service(SERVICE, VERSION, SocketQuestion::List.to_bytes())?;
    decode(&answer).map_err(|why| Failure::Failed(why.to_string()))
}

/// A table of those that the node listed, and how many more it has.
fn shown(list: &[SocketInfo], total: usize, rates: &Rates) -> String {
    let lines: Vec<Vec<String>> = list.iter().map(|s| line(s, rates.of(s))).collect();
    let header = ["process", "local", "remote", "peer", "path", "why not", "rings", "sent", "received", "sending"];
    let table = table::align(&header, &lines, 7);
    match total.saturating_sub(list.len()) {
        0 => table,
        more => format!("{table}and {more} more\n"),
    }
}

struct Rates {
    before: HashMap<(String, String), u64>,
    passed: Duration,
}

impl Rates {
    /// Bytes a second that an end sends through its ring.
    fn of(&self, socket: &SocketInfo) -> f64 {
        let before = self.before.get(&key(socket)).copied().unwrap_or(socket.ring_sent_bytes);
        let seconds = self.passed.as_secs_f64();
        if seconds > 0.0 { socket.ring_sent_bytes.saturating_sub(before) as f64 / seconds } else { 0.0 }
    }
}

fn key(socket: &SocketInfo) -> (String, String) {
    (socket.local.clone(), socket.remote.clone())
}

fn line(socket: &SocketInfo, rate: f64) -> Vec<String> {
    vec![
        program(socket.pid),
        socket.local.clone(),
        socket.remote.clone(),
        peer(socket),
        socket.path.clone(),
        socket.reason.clone(),
        rings(socket),
        units::size(socket.ring_sent_bytes),
        units::size(socket.ring_received_bytes),
        if rate > 0.0 { units::rate(rate) } else { String::new() },
    ]
}

fn json(socket: &SocketInfo, rate: f64) -> serde_json::Value {
    serde_json::json!({
        "pid": socket.pid, "local": socket.local, "remote": socket.remote, "peer_pid": socket.peer_pid, "peer_node": socket.peer_node, "path": socket.path,
        "reason": socket.reason, "ring_bytes": socket.ring_bytes, "ring_sent_bytes": socket.ring_sent_bytes, "ring_received_bytes": socket.ring_received_bytes,
        "sending_bytes_per_s": rate,
    })
}

/// Sizes of the rings to the peer and from it.
fn rings(socket: &SocketInfo) -> String {
    match socket.ring_bytes {
        [0, 0] => String::new(),
        [to, from] => format!("{} / {}", units::size(to), units::size(from)),
    }
}

/// Who has the other end: a process here, or a node.
fn peer(socket: &SocketInfo) -> String {
    let node = socket.peer_node.as_ref().map(|node| format!("node {node}"));
    node.or(socket.peer_pid.map(program)).unwrap_or_default()
}

/// A process as people know it.
fn program(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{pid} {}", name.trim()).trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_beyond_the_list_are_counted() {
        let rates = Rates { before: HashMap::new(), passed: Duration::from_secs(1) };
        let list = vec![SocketInfo::default(); 3];
        assert!(shown(&list, 5000, &rates).ends_with("\nand 4997 more\n"));
        // One that came between the two counts is no surprise.
        for total in [2, 3] {
            assert!(!shown(&list, total, &rates).contains("more"));
        }
    }
}
