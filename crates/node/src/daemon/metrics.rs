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
use vmmc_host::control::{ImportInfo, Moved, NodeInfo, PeerInfo, ProcessInfo};
use vmmc_host::counters::{Counter, MOVED, NODE, PEER, find};
use vmmc_host::wait::WakeSender;
use vmmc_nic::{ExportId, ImportId};

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

/// A description in Prometheus's text format. Names end in their unit, those of counters in `_total`; times are seconds.
fn render(info: &NodeInfo) -> String {
    let mut page = Page { out: String::new(), node: label(&info.name) };
    page.family(
        "uptime_seconds",
        "gauge",
        "Time since the node started.",
        [(String::new(), info.uptime_ms as f64 / 1e3)],
    );
    page.family("processes", "gauge", "Attached processes.", [(String::new(), info.processes.len() as f64)]);
    page.family("peers", "gauge", "Nodes that this one knows.", [(String::new(), info.peers.len() as f64)]);
    for (name, value) in &info.counters {
        match name.strip_suffix("_us") {
            Some(name) => {
                page.counter(&format!("{name}_seconds"), NODE, "process_cpu_us", [(String::new(), *value as f64 / 1e6)])
            }
            None => page.counter(name, NODE, name, [(String::new(), *value as f64)]),
        }
    }
    peers(&mut page, info);
    moved(&mut page, info);
    page.out
}

fn peers(page: &mut Page, info: &NodeInfo) {
    let each = |value: &dyn Fn(&PeerInfo) -> f64| -> Vec<(String, f64)> {
        let labels = |peer: &PeerInfo| format!(",peer=\"{}\",address=\"{}\"", label(&peer.name), label(&peer.address));
        info.peers.iter().map(|peer| (labels(peer), value(peer))).collect()
    };
    page.family(
        "peer_up",
        "gauge",
        "1 while a session with the peer is open.",
        each(&|p| f64::from(u8::from(p.state == "up"))),
    );
    page.family("peer_rtt_seconds", "gauge", "Smoothed round trip time.", each(&|p| p.rtt_ns as f64 / 1e9));
    page.family("peer_window_bytes", "gauge", "Congestion window.", each(&|p| p.window_bytes as f64));
    page.family(
        "peer_in_flight_bytes",
        "gauge",
        "Bytes sent and not acknowledged.",
        each(&|p| p.in_flight_bytes as f64),
    );
    for counter in PEER {
        let value = |peer: &PeerInfo| {
            peer.counters.iter().find(|(name, _)| name == counter.name).map_or(0.0, |(_, value)| *value as f64)
        };
        page.counter(&format!("peer_{}", counter.name), PEER, counter.name, each(&value));
    }
}

/// What processes moved, by process and by import.
fn moved(page: &mut Page, info: &NodeInfo) {
    let who = |process: &ProcessInfo| {
        let (pid, uid, program) = (process.pid, process.uid, label(&process.program));
        format!(",process=\"{}\",pid=\"{pid}\",uid=\"{uid}\",program=\"{program}\"", process.process)
    };
    let of = |import: &ImportInfo| {
        let process = info.processes.iter().find(|process| process.process == import.process);
        let (export, name) = (ExportId::from_u64(import.export), label(import.name.as_deref().unwrap_or_default()));
        let (pid, path, node) = (process.map_or(0, |process| process.pid), label(&import.path), label(&import.node));
        let import = ImportId::from_u64(import.import);
        format!(
            ",process=\"{}\",pid=\"{pid}\",import=\"{import}\",export=\"{export}\",name=\"{name}\",of=\"{node}\",path=\"{path}\"",
            process.map_or(0, |process| process.process)
        )
    };
    type Part = fn(&Moved) -> u64;
    let parts: [Part; 5] = [|m| m.sends, |m| m.send_bytes, |m| m.fetches, |m| m.fetch_bytes, |m| m.atomics];
    for (counter, part) in MOVED.iter().zip(parts) {
        let all: Vec<_> = info.processes.iter().map(|process| (who(process), part(&process.mapped) as f64)).collect();
        page.counter(&format!("process_mapped_{}", counter.name), MOVED, counter.name, all);
        let all: Vec<_> = info.imports.iter().map(|import| (of(import), part(&import.moved) as f64)).collect();
        page.counter(&format!("import_{}", counter.name), MOVED, counter.name, all);
    }
}

struct Page {
    out: String,
    node: String,
}

impl Page {
    /// A counter or gauge that the table of counters explains.
    fn counter(
        &mut self,
        name: &str,
        table: &'static [Counter],
        key: &str,
        samples: impl IntoIterator<Item = (String, f64)>,
    ) {
        let (gauge, help) = find(table, key).map_or((false, "See docs/counters.md."), |c| (c.gauge, c.help));
        match gauge {
            true => self.family(name, "gauge", help, samples),
            false => self.family(&format!("{}_total", unit_last(name)), "counter", help, samples),
        }
    }

    /// Samples of one name, each with its labels.
    fn family(&mut self, name: &str, kind: &str, help: &str, samples: impl IntoIterator<Item = (String, f64)>) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let node = &self.node;
        let _ = writeln!(self.out, "# HELP vmmc_{name} {help}\n# TYPE vmmc_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(self.out, "vmmc_{name}{{node=\"{node}\"{labels}}} {value}");
        }
    }
}

/// The unit belongs behind the name: `bytes_out` becomes `out_bytes`.
fn unit_last(name: &str) -> String {
    match name.split_once("bytes_") {
        Some((before, after)) => format!("{before}{after}_bytes"),
        None => name.to_string(),
    }
}

/// A label's value: backslash, quote and line end are written as the format wants.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::process::{Command, Stdio};

    fn info() -> NodeInfo {
        let counters = |table: &[Counter]| table.iter().zip(1..).map(|(c, n)| (c.name.to_string(), n)).collect();
        let peer = PeerInfo { name: "b\"x".into(), rtt_ns: 1_500, counters: counters(PEER), ..PeerInfo::default() };
        let moved = Moved { sends: 2, send_bytes: 16, ..Moved::default() };
        let process =
            ProcessInfo { process: 5, pid: 77, program: "wr\\iter".into(), mapped: moved, ..ProcessInfo::default() };
        let import = ImportInfo {
            import: 3,
            process: 5,
            export: 1 << 32 | 12,
            path: "mapped".into(),
            moved,
            ..ImportInfo::default()
        };
        NodeInfo {
            name: "a".into(),
            counters: counters(NODE),
            peers: vec![peer.clone(), PeerInfo { name: "c".into(), ..peer }],
            processes: vec![process],
            imports: vec![import],
            ..NodeInfo::default()
        }
    }

    #[test]
    fn every_counter_has_a_line_and_labels_are_escaped() {
        let text = render(&info());
        for line in [
            "# TYPE vmmc_commands_total counter\nvmmc_commands_total{node=\"a\"} 2\n",
            "# TYPE vmmc_exports gauge\nvmmc_exports{node=\"a\"} ",
            "vmmc_process_cpu_seconds_total{node=\"a\"} 0.000001\n",
            "vmmc_engine_out_bytes_total{node=\"a\"} ",
            "vmmc_peer_rtt_seconds{node=\"a\",peer=\"b\\\"x\",address=\"\"} 0.0000015\n",
            "vmmc_peer_lost_total{node=\"a\",peer=\"b\\\"x\",address=\"\"} 6\n",
            "vmmc_process_mapped_send_bytes_total{node=\"a\",process=\"5\",pid=\"77\",uid=\"0\",program=\"wr\\\\iter\"} 16\n",
            "import=\"3.0\",export=\"12.1\",name=\"\",of=\"\",path=\"mapped\"} 16\n",
        ] {
            assert!(text.contains(line), "{line}\nin\n{text}");
        }
    }

    /// The part of the format that we use: of each name HELP, TYPE and samples in this order and in one place, names in lower case that end as their kind wants.
    #[test]
    fn the_page_keeps_the_grammar_of_the_format() {
        let text = render(&info());
        assert!(text.ends_with('\n'));
        let (mut seen, mut samples) = (HashSet::new(), HashSet::new());
        let (mut named, mut typed) = ("", ("", ""));
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a text");
                assert!(seen.insert(name) && help.len() > 3 && help.ends_with('.'), "{line}");
                assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit()), "{line}");
                named = name;
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                typed = rest.split_once(' ').expect("a kind");
                assert_eq!(typed.0, named);
                assert_eq!(typed.1 == "counter", typed.0.ends_with("_total"), "{line}");
                assert!(["counter", "gauge"].contains(&typed.1), "{line}");
                assert!(!typed.0.contains("_us_") && !typed.0.contains("bytes_out"), "{line}: unit last, base units");
            } else {
                let (name, rest) = line.split_once('{').expect("labels");
                let (labels, value) = rest.rsplit_once("} ").expect("a value");
                assert!(name == typed.0 && value.parse::<f64>().is_ok(), "{line}");
                assert!(samples.insert((name, labels)), "{line}: twice");
            }
        }
        assert!(samples.len() > 90);
    }

    #[test]
    fn promtool_finds_nothing_to_say() {
        let tool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut tool) = tool else { return println!("SKIP promtool is not installed (package prometheus)") };
        tool.stdin.take().expect("piped").write_all(render(&info()).as_bytes()).expect("it reads");
        let output = tool.wait_with_output().expect("it ends");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
    }
}
