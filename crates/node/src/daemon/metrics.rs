//! Counters for Prometheus: `GET /metrics` over HTTP, off unless `--metrics ADDR` says where.
//!
//! A thread takes connections, one of its own serves each, and asks the daemon's loop for a
//! description; the loop never waits for them.
//!
//! Invariant: a silent client holds up nobody: there are at most [`METRICS_CLIENTS_MAX`], and one
//! more ends the oldest. However many ask, the loop describes the node once in [`METRICS_FRESH`].
//! There is no access control: listen where only those can connect who may know the counters.

use crate::limits::{METRICS_CLIENTS_MAX, METRICS_FRESH, METRICS_PAUSE, METRICS_REQUEST_BYTES_MAX, METRICS_TIME};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;
use vmmc_host::control::{ImportInfo, Moved, NodeInfo, PeerInfo, ProcessInfo};
use vmmc_host::counters::{Counter, MOVED, NODE, PEER, find};
use vmmc_host::published::{Figure, FigureKind, bucket_end_ns};
use vmmc_host::wait::WakeSender;
use vmmc_nic::{ExportId, ImportId};

/// The way back to a thread that waits for a description.
type Asker = SyncSender<Arc<NodeInfo>>;
/// How the threads ask: each once, so their number bounds the queue.
type Ask = Sender<Asker>;

/// The loop's end.
pub(super) struct Metrics {
    asked: Receiver<Asker>,
    /// Shows the thread that the loop is there.
    _alive: Arc<()>,
    /// The last description, and when it was made.
    last: RefCell<Option<(Instant, Arc<NodeInfo>)>>,
    /// Where it listens.
    pub(super) address: SocketAddr,
}

impl Metrics {
    /// Listens, and starts the thread. `ringer` wakes the loop.
    pub(super) fn start(address: SocketAddr, ringer: Arc<WakeSender>) -> std::io::Result<Metrics> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let (ask, asked) = channel();
        let alive = Arc::new(());
        let is_there: Weak<()> = Arc::downgrade(&alive);
        let run = move || {
            let mut clients = Clients::default();
            for stream in listener.incoming() {
                let taken = stream.and_then(|stream| clients.take(stream, &ask, &ringer));
                if taken.is_err() {
                    // A client that fails is its own affair; too few descriptors or threads are not
                    // over at once.
                    std::thread::sleep(METRICS_PAUSE);
                }
                if is_there.strong_count() == 0 {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("vmmc-metrics".into()).spawn(run)?;
        Ok(Metrics { asked, _alive: alive, last: RefCell::default(), address })
    }

    /// Answers all who ask; says whether anybody did.
    pub(super) fn answer(&self, mut describe: impl FnMut() -> NodeInfo) -> bool {
        let mut any = false;
        while let Ok(who) = self.asked.try_recv() {
            any = true;
            let mut last = self.last.borrow_mut();
            let fresh = last.take_if(|(at, _)| at.elapsed() < METRICS_FRESH);
            let (at, info) = fresh.unwrap_or_else(|| (Instant::now(), Arc::new(describe())));
            *last = Some((at, info.clone()));
            // A thread that has not waited gets nothing.
            let _ = who.try_send(info);
        }
        any
    }
}

/// Those that are served, the oldest first.
#[derive(Default)]
struct Clients {
    served: VecDeque<(TcpStream, JoinHandle<()>)>,
    /// Threads of clients that were ended for others.
    ending: Vec<JoinHandle<()>>,
}

impl Clients {
    fn take(&mut self, stream: TcpStream, ask: &Ask, ringer: &Arc<WakeSender>) -> std::io::Result<()> {
        self.served.retain(|(_, thread)| !thread.is_finished());
        self.ending.retain(|thread| !thread.is_finished());
        if self.ending.len() >= METRICS_CLIENTS_MAX {
            // Ends as soon as it runs, or with the loop's answer, for which this client would wait
            // too.
            let _ = self.ending.remove(0).join();
        }
        while self.served.len() >= METRICS_CLIENTS_MAX {
            if let Some((oldest, thread)) = self.served.pop_front() {
                // Its thread, wherever it waits, finds that the connection has ended.
                let _ = oldest.shutdown(Shutdown::Both);
                self.ending.push(thread);
            }
        }
        let (own, ask, ringer) = (stream.try_clone()?, ask.clone(), ringer.clone());
        let run = move || {
            // A client that fails is its own affair.
            let _ = serve(&stream, &ask, &ringer);
            // There is another descriptor of it.
            let _ = stream.shutdown(Shutdown::Both);
        };
        self.served.push_back((own, std::thread::Builder::new().name("vmmc-metrics".into()).spawn(run)?));
        Ok(())
    }
}

fn serve(mut stream: &TcpStream, ask: &Ask, ringer: &WakeSender) -> Result<(), Box<dyn std::error::Error>> {
    stream.set_write_timeout(Some(METRICS_TIME))?;
    let head = request(&mut stream)?;
    let (status, body) = match head.split(' ').collect::<Vec<_>>()[..] {
        ["GET", path, ..] if path == "/metrics" || path.starts_with("/metrics?") => {
            let (answer, answered) = sync_channel(1);
            ask.send(answer)?;
            ringer.wake();
            let info = answered.recv_timeout(METRICS_TIME)?;
            ("200 OK", render(&info))
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
fn request(stream: &mut &TcpStream) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    let end = Instant::now() + METRICS_TIME;
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") && bytes.len() < METRICS_REQUEST_BYTES_MAX {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => break,
            n => bytes.extend_from_slice(&piece[..n]),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().next().unwrap_or_default().to_string())
}

/// A description in Prometheus's text format. Names end in their unit, those of counters in
/// `_total`; times are seconds.
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
    for figure in &info.figures {
        let kind = if figure.name.ends_with("_total") { "counter" } else { "gauge" };
        page.family(&figure.name, kind, &figure.help, [(String::new(), figure.value as f64)]);
    }
    peers(&mut page, info);
    moved(&mut page, info);
    published(&mut page, info);
    page.out
}

/// What processes have published, under names that are none of the node's. Of a family that some
/// publish as one kind and some as another only the first kind is shown.
fn published(page: &mut Page, info: &NodeInfo) {
    type Samples<'a> = Vec<(String, &'a Figure)>;
    let mut families: BTreeMap<&str, (FigureKind, Samples<'_>)> = BTreeMap::new();
    for source in &info.published {
        let pid = info.processes.iter().find(|process| process.process == source.process).map_or(0, |p| p.pid);
        let who = format!(",process=\"{}\",pid=\"{pid}\",source=\"{}\"", source.process, label(&source.source));
        for figure in &source.figures {
            let (kind, samples) = families.entry(&figure.family).or_insert_with(|| (figure.kind, Vec::new()));
            let labels = format!("{who},item=\"{}\"", label(&figure.item));
            if *kind == figure.kind && !samples.iter().any(|(other, _)| *other == labels) {
                samples.push((labels, figure));
            }
        }
    }
    for (family, (kind, samples)) in families {
        let value = |(labels, figure): (String, &Figure)| (labels, figure.value as f64);
        let help = "Published by processes.";
        match kind {
            FigureKind::Counter => {
                page.family(&format!("published_{family}_total"), "counter", help, samples.into_iter().map(value));
            }
            FigureKind::Gauge => {
                page.family(&format!("published_{family}"), "gauge", help, samples.into_iter().map(value));
            }
            FigureKind::Times => page.times(&format!("published_{family}_seconds"), help, &samples),
        }
    }
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
        "peer_pace_bytes_per_second",
        "gauge",
        "Rate at which packets go out; 0: not known yet.",
        each(&|p| p.pace_bytes_per_s as f64),
    );
    page.family(
        "peer_bandwidth_bytes_per_second",
        "gauge",
        "What the path takes, as far as the congestion control measures it; else 0.",
        each(&|p| p.bandwidth_bytes_per_s as f64),
    );
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
        let (gauge, help) = find(table, key).map_or((false, "See counters.md."), |c| (c.gauge, c.help));
        // Base units here, whatever unit the counter has.
        let help = if name.ends_with("_seconds") { help.replace("microseconds", "seconds") } else { help.into() };
        match gauge {
            true => self.family(name, "gauge", &help, samples),
            false => self.family(&format!("{}_total", unit_last(name)), "counter", &help, samples),
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP vmmc_{name} {help}\n# TYPE vmmc_{name} {kind}");
    }

    /// Times, as a histogram.
    fn times(&mut self, name: &str, help: &str, samples: &[(String, &Figure)]) {
        self.head(name, "histogram", help);
        let node = &self.node;
        for (labels, figure) in samples {
            let mut count = 0u64;
            for (times, bucket) in figure.buckets.iter().zip(0..) {
                count = count.saturating_add(*times);
                if let Some(end) = bucket_end_ns(bucket) {
                    let end = end as f64 / 1e9;
                    let _ = writeln!(self.out, "vmmc_{name}_bucket{{node=\"{node}\"{labels},le=\"{end}\"}} {count}");
                }
            }
            let sum = figure.value as f64 / 1e9;
            let _ = writeln!(self.out, "vmmc_{name}_bucket{{node=\"{node}\"{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(self.out, "vmmc_{name}_sum{{node=\"{node}\"{labels}}} {sum}");
            let _ = writeln!(self.out, "vmmc_{name}_count{{node=\"{node}\"{labels}}} {count}");
        }
    }

    /// Samples of one name, each with its labels.
    fn family(&mut self, name: &str, kind: &str, help: &str, samples: impl IntoIterator<Item = (String, f64)>) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        self.head(name, kind, help);
        let node = &self.node;
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
    use vmmc_host::control::{FigureInfo, PublishedInfo};

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
            figures: vec![FigureInfo { name: "toys_total".into(), help: "Toys.".into(), value: 4 }],
            peers: vec![peer.clone(), PeerInfo { name: "c".into(), ..peer }],
            processes: vec![process],
            imports: vec![import],
            published: published_info(),
            ..NodeInfo::default()
        }
    }

    /// Of two processes that mean the same by a name, and one that does not.
    fn published_info() -> Vec<PublishedInfo> {
        let figure = |kind, family: &str, item: &str, value, buckets: &[u64]| Figure {
            kind,
            family: family.into(),
            item: item.into(),
            value,
            buckets: buckets.to_vec(),
        };
        let of = |process, figures| PublishedInfo { process, source: "rpc.pa\"ges".into(), figures };
        let calls = |value| figure(FigureKind::Counter, "rpc_calls", "read", value, &[]);
        let answers = figure(FigureKind::Times, "rpc_answer", "read", 1_000, &[2, 0, 1]);
        let callers = figure(FigureKind::Gauge, "callers", "", 3, &[]);
        vec![
            of(5, vec![calls(7), answers, callers, calls(8)]),
            of(6, vec![calls(9), figure(FigureKind::Gauge, "rpc_calls", "other", 1, &[])]),
        ]
    }

    #[test]
    fn every_counter_has_a_line_and_labels_are_escaped() {
        let text = render(&info());
        for line in [
            "# TYPE vmmc_commands_total counter\nvmmc_commands_total{node=\"a\"} 2\n",
            "# HELP vmmc_toys_total Toys.\n# TYPE vmmc_toys_total counter\nvmmc_toys_total{node=\"a\"} 4\n",
            "# TYPE vmmc_exports gauge\nvmmc_exports{node=\"a\"} ",
            "vmmc_process_cpu_seconds_total{node=\"a\"} 0.000001\n",
            "Processor time of the process that runs the node, seconds.\n",
            "vmmc_engine_out_bytes_total{node=\"a\"} ",
            "vmmc_peer_rtt_seconds{node=\"a\",peer=\"b\\\"x\",address=\"\"} 0.0000015\n",
            "vmmc_peer_lost_total{node=\"a\",peer=\"b\\\"x\",address=\"\"} 6\n",
            "vmmc_process_mapped_send_bytes_total{node=\"a\",process=\"5\",pid=\"77\",uid=\"0\",program=\"wr\\\\iter\"} 16\n",
            "vmmc_published_rpc_calls_total{node=\"a\",process=\"5\",pid=\"77\",source=\"rpc.pa\\\"ges\",item=\"read\"} 7\n",
            "source=\"rpc.pa\\\"ges\",item=\"read\"} 9\n",
            "item=\"read\",le=\"0.000000128\"} 2\n",
            "item=\"read\",le=\"0.000000512\"} 3\n",
            "item=\"read\",le=\"+Inf\"} 3\n",
            "import=\"3.0\",export=\"12.1\",name=\"\",of=\"\",path=\"mapped\"} 16\n",
        ] {
            assert!(text.contains(line), "{line}\nin\n{text}");
        }
    }

    /// The part of the format that we use: of each name HELP, TYPE and samples in this order and in
    /// one place, names in lower case that end as their kind wants.
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
                assert!(["counter", "gauge", "histogram"].contains(&typed.1), "{line}");
                assert!(!typed.0.contains("_us_") && !typed.0.contains("bytes_out"), "{line}: unit last, base units");
            } else {
                let (name, rest) = line.split_once('{').expect("labels");
                let (labels, value) = rest.rsplit_once("} ").expect("a value");
                let part = name.strip_prefix(typed.0).unwrap_or("another name");
                let is_part =
                    part.is_empty() || typed.1 == "histogram" && ["_bucket", "_sum", "_count"].contains(&part);
                assert!(is_part && value.parse::<f64>().is_ok(), "{line}");
                assert!(samples.insert((name, labels)), "{line}: twice");
            }
        }
        assert!(samples.len() > 90);
        // What is published as two kinds is shown as the first one.
        assert_eq!(text.matches("TYPE vmmc_published_rpc_calls").count(), 1);
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

    #[test]
    fn silent_clients_starve_no_scrape_and_the_loop_describes_the_node_once_for_many() {
        let (_receiver, ringer) = vmmc_host::wait::wake_pair().unwrap();
        let metrics = Metrics::start("127.0.0.1:0".parse().unwrap(), Arc::new(ringer)).unwrap();
        let address = metrics.address;
        // More than a client may wait for them one after the other, and they come again and again.
        let _silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        let scrape = move || {
            let _more: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(4 * METRICS_TIME)).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        let start = Instant::now();
        let all = std::thread::spawn(move || (0..5).map(|_| scrape()).collect::<Vec<String>>());
        let mut made = 0;
        while !all.is_finished() {
            let describe = std::cell::Cell::new(0);
            metrics.answer(|| {
                describe.set(describe.get() + 1);
                info()
            });
            made += describe.get();
            std::thread::sleep(METRICS_PAUSE / 50);
        }
        let all = all.join().unwrap();
        assert!(all.iter().all(|text| text.starts_with("HTTP/1.1 200 OK")), "{all:?}");
        let descriptions = 1 + start.elapsed().as_millis() / METRICS_FRESH.as_millis();
        assert!(made as u128 <= descriptions, "{made} descriptions in {:?}", start.elapsed());
        assert!(start.elapsed() < 40 * METRICS_TIME, "silent clients are not waited for one by one");
    }
}
