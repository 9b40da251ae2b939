//! Counters for Prometheus: `GET /metrics` over HTTP, off unless `--metrics ADDR` says where.
//!
//! A thread takes connections, one at a time, and asks the daemon's loop for a description; the loop never waits for the thread.
//!
//! Invariant: a client can hold up other clients for a few times [`METRICS_TIME`] and nobody else; it can ask and nothing more. There is no access control: listen where only
//! those can connect who may know the counters.

use crate::limits::{METRICS_PAUSE, METRICS_REQUEST_BYTES_MAX, METRICS_TIME};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;
use vmmc_host::control::NodeInfo;
use vmmc_host::wait::WakeSender;

/// Counters that can go down.
const GAUGES: [&str; 4] = ["exports", "pinned_pages", "pinned_pages_free", "udp_hot_sockets"];

/// The loop's end: who waits for a description.
pub(super) struct Metrics {
    asked: Receiver<SyncSender<NodeInfo>>,
    /// Where it listens.
    pub(super) address: SocketAddr,
}

impl Metrics {
    /// Listens, and starts the thread. `ringer` wakes the loop.
    pub(super) fn start(address: SocketAddr, ringer: Arc<WakeSender>) -> std::io::Result<Metrics> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let (ask, asked) = sync_channel(1);
        let run = move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else {
                    // A client that fails is its own affair; too few descriptors are not over at once.
                    std::thread::sleep(METRICS_PAUSE);
                    continue;
                };
                if serve(stream, &ask, &ringer).is_err() && is_over(&ask) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("vmmc-metrics".into()).spawn(run)?;
        Ok(Metrics { asked, address })
    }

    /// Answers who asks; says whether anybody did.
    pub(super) fn answer(&self, describe: impl Fn() -> NodeInfo) -> bool {
        match self.asked.try_recv() {
            Ok(who) => {
                // Whoever has not waited gets nothing.
                let _ = who.try_send(describe());
                true
            }
            Err(_) => false,
        }
    }
}

/// Whether the loop has gone.
fn is_over(ask: &SyncSender<SyncSender<NodeInfo>>) -> bool {
    let (nobody, _) = sync_channel(1);
    matches!(ask.try_send(nobody), Err(std::sync::mpsc::TrySendError::Disconnected(_)))
}

fn serve(
    mut stream: TcpStream,
    ask: &SyncSender<SyncSender<NodeInfo>>,
    ringer: &WakeSender,
) -> Result<(), Box<dyn std::error::Error>> {
    stream.set_read_timeout(Some(METRICS_TIME))?;
    stream.set_write_timeout(Some(METRICS_TIME))?;
    let head = request(&mut stream)?;
    let (status, body) = match head.split(' ').collect::<Vec<_>>()[..] {
        ["GET", path, ..] if path == "/metrics" || path.starts_with("/metrics?") => {
            let (answer, answered) = sync_channel(1);
            ask.try_send(answer)?;
            ringer.wake();
            ("200 OK", render(&answered.recv_timeout(METRICS_TIME)?))
        }
        ["GET", ..] => ("404 Not Found", "there is only /metrics\n".to_string()),
        _ => ("405 Method Not Allowed", "only GET is understood\n".to_string()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    Ok(())
}

/// First line of a request, once its head is whole.
fn request(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    let end = Instant::now() + METRICS_TIME;
    while Instant::now() < end
        && !bytes.windows(4).any(|end| end == b"\r\n\r\n")
        && bytes.len() < METRICS_REQUEST_BYTES_MAX
    {
        match stream.read(&mut piece)? {
            0 => break,
            n => bytes.extend_from_slice(&piece[..n]),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().next().unwrap_or_default().to_string())
}

/// A description in Prometheus's text format.
fn render(info: &NodeInfo) -> String {
    let mut out = String::new();
    let node = label(&info.name);
    let mut single = |name: &str, kind: &str, value: f64| {
        let _ = writeln!(out, "# TYPE vmmc_{name} {kind}\nvmmc_{name}{{node=\"{node}\"}} {value}");
    };
    single("uptime_seconds", "gauge", info.uptime_ms as f64 / 1e3);
    single("processes", "gauge", info.processes.len() as f64);
    single("peers", "gauge", info.peers.len() as f64);
    for (name, value) in &info.counters {
        match GAUGES.contains(&name.as_str()) {
            true => single(name, "gauge", *value as f64),
            false => single(&format!("{name}_total"), "counter", *value as f64),
        }
    }
    let mut each = |name: &str, kind: &str, value: &dyn Fn(&vmmc_host::control::PeerInfo) -> f64| {
        if !info.peers.is_empty() {
            let _ = writeln!(out, "# TYPE vmmc_peer_{name} {kind}");
        }
        for peer in &info.peers {
            let (who, address) = (label(&peer.name), label(&peer.address));
            let value = value(peer);
            let _ = writeln!(out, "vmmc_peer_{name}{{node=\"{node}\",peer=\"{who}\",address=\"{address}\"}} {value}");
        }
    };
    each("up", "gauge", &|peer| f64::from(u8::from(peer.state == "up")));
    each("rtt_seconds", "gauge", &|peer| peer.rtt_ns as f64 / 1e9);
    each("window_bytes", "gauge", &|peer| peer.window_bytes as f64);
    each("in_flight_bytes", "gauge", &|peer| peer.in_flight_bytes as f64);
    let names: Vec<String> =
        info.peers.first().map(|p| p.counters.iter().map(|c| c.0.clone()).collect()).unwrap_or_default();
    for name in names {
        let value = |peer: &vmmc_host::control::PeerInfo| {
            peer.counters.iter().find(|(other, _)| *other == name).map_or(0.0, |(_, value)| *value as f64)
        };
        each(&name, "untyped", &value);
    }
    out
}

/// A label's value: backslash, quote and line end are written as the format wants.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmmc_host::control::PeerInfo;

    #[test]
    fn every_counter_has_a_line_and_labels_are_escaped() {
        let peer =
            PeerInfo { name: "b\"x".into(), rtt_ns: 1_500, counters: vec![("lost".into(), 3)], ..PeerInfo::default() };
        let info = NodeInfo {
            name: "a".into(),
            counters: vec![("commands".into(), 7), ("exports".into(), 2)],
            peers: vec![peer],
            ..NodeInfo::default()
        };
        let text = render(&info);
        assert!(text.contains("# TYPE vmmc_commands_total counter\nvmmc_commands_total{node=\"a\"} 7\n"), "{text}");
        assert!(text.contains("# TYPE vmmc_exports gauge\nvmmc_exports{node=\"a\"} 2\n"), "{text}");
        assert!(text.contains("vmmc_peer_rtt_seconds{node=\"a\",peer=\"b\\\"x\",address=\"\"} 0.0000015\n"), "{text}");
        assert!(text.contains("vmmc_peer_lost{node=\"a\",peer=\"b\\\"x\",address=\"\"} 3\n"), "{text}");
    }
}
