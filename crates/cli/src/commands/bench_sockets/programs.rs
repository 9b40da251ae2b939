//! Real programs, with and without `vmmc exec` at both ends, in turns: what users see.
//!
//! Invariant: both sides of a ratio are the same programs with the same arguments, one run after
//! the other; only `vmmc exec` differs. Processor time is that of the server with all its processes
//! and of the client, its start included. A program that is not installed is named, and its
//! workloads are left out.

use super::{Way, World, median};
use crate::args::Bench;
use crate::external::in_path;
use crate::failure::Failure;
use crate::limits::{PARTNER_WAIT, PROGRAM_TIME, PROGRAM_WAIT};
use crate::measure::plan::progress;
use crate::report::table;
use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vmmc_host::process::die_with_this_thread;

/// A server, how it is asked, and the bounds of the ratio to TCP: of the rate, of processor time.
struct Workload {
    name: &'static str,
    server: Server,
    ask: Ask,
    rate_least: f64,
    cpu_most: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Server {
    Redis,
    Nginx,
    Postgres,
    Iperf,
}

#[derive(Clone, Copy)]
enum Ask {
    /// `redis-benchmark` with so many clients, each with so many requests under way.
    Get { clients: u32, pipeline: u32 },
    /// `wrk` with so many connections at once.
    Page { connections: u32 },
    /// The same with a page of [`LONG_PAGE_BYTES`], each by a connection of its own.
    PageAndClose { connections: u32 },
    /// `pgbench`, select only, one client.
    Select,
    /// `pgbench`, its TPC-B like transactions.
    Transactions { clients: u32 },
    /// `iperf3` with writes of 1 MiB.
    Stream,
}

fn workloads() -> Vec<Workload> {
    let get = |name, clients, pipeline, rate_least| Workload {
        name,
        server: Server::Redis,
        ask: Ask::Get { clients, pipeline },
        rate_least,
        cpu_most: Some(0.4),
    };
    let row = |name, server, ask, rate_least| Workload { name, server, ask, rate_least, cpu_most: None };
    vec![
        get("redis GET, 1 client", 1, 1, 6.0),
        get("redis GET, 50 clients", 50, 1, 5.0),
        get("redis GET, 50 clients, pipeline 16", 50, 16, 1.5),
        row("nginx 1 KiB, 50 connections", Server::Nginx, Ask::Page { connections: 50 }, 2.0),
        row("nginx 80 KB and close, 100 at once", Server::Nginx, Ask::PageAndClose { connections: 100 }, NO_SLOWER),
        row("pgbench select-only, 1 client", Server::Postgres, Ask::Select, 1.2),
        row("pgbench TPC-B, 20 clients", Server::Postgres, Ask::Transactions { clients: 20 }, NO_SLOWER),
        row("iperf3, 1 MiB writes", Server::Iperf, Ask::Stream, 2.2),
    ]
}

/// Operations, in how many seconds, and processor seconds of both ends.
#[derive(Clone, Copy, Debug)]
struct Figure {
    rate: f64,
    cpu: f64,
}

/// What was measured of a workload, or what is missing.
pub(super) struct Outcome {
    workload: Workload,
    pairs: Result<Vec<(Figure, Figure)>, String>,
}

/// Measures all of them.
pub(super) fn measure(world: &World, bench: &Bench) -> Result<Vec<Outcome>, Failure> {
    let all = workloads();
    let bar = progress(u64::from(bench.runs()) * 2 * all.len() as u64);
    let time = PROGRAM_TIME.max(bench.time());
    let outcomes = all.into_iter().map(|workload| {
        bar.set_message(workload.name);
        let pairs = missing(workload.server).map_or_else(
            || {
                let stand = Stand::start(world, workload.server).map_err(|e| e.to_string())?;
                let requests = stand.requests(&workload, time)?;
                let turn = |way, at: usize| {
                    bar.inc(1);
                    stand.figure(&workload, way, requests[at], time)
                };
                (0..bench.runs()).map(|_| Ok((turn(Way::Tcp, 0)?, turn(Way::Vmmc, 1)?))).collect()
            },
            |what| Err(format!("left out: {what}")),
        );
        Outcome { workload, pairs }
    });
    let outcomes = outcomes.collect();
    bar.finish_and_clear();
    Ok(outcomes)
}

/// What a workload lacks here.
fn missing(server: Server) -> Option<String> {
    let lacks = |program: &str, package: &str| {
        in_path(program).is_none().then(|| format!("{program} is not installed (Debian package {package})"))
    };
    match server {
        Server::Redis => lacks("redis-server", "redis-server").or_else(|| lacks("redis-benchmark", "redis-tools")),
        Server::Nginx => lacks("nginx", "nginx-light").or_else(|| lacks("wrk", "wrk")),
        Server::Iperf => lacks("iperf3", "iperf3"),
        Server::Postgres if postgres().is_none() => {
            Some("PostgreSQL is not installed (Debian package postgresql)".into())
        }
        // It refuses to run as root.
        Server::Postgres if is_root() => lacks("setpriv", "util-linux"),
        Server::Postgres => None,
    }
}

/// Debian keeps the programs of a database server in a folder for each version.
fn postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = versions.map(|entry| entry.path().join("bin")).filter(|folder| folder.join("initdb").exists());
    folders.max().or_else(|| Some(in_path("initdb")?.parent()?.to_path_buf()))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A server of each way, and a folder of their own; all of it is gone with the value.
struct Stand {
    node: String,
    folder: PathBuf,
    servers: Vec<(u16, Child)>,
}

impl Stand {
    fn start(world: &World, server: Server) -> Result<Stand, Failure> {
        let folder = std::env::temp_dir().join(format!("vmmc-bench-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("www"))?;
        let mut stand = Stand { node: world.name.clone(), folder, servers: Vec::new() };
        for way in [Way::Tcp, Way::Vmmc] {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let words = stand.server(server, way, port)?;
            let mut command = stand.command(server, way, &words);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            die_with_this_thread(&mut command);
            stand.servers.push((port, command.spawn()?));
            let start = Instant::now();
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                if start.elapsed() > PARTNER_WAIT {
                    return Err(Failure::new(format!("{} does not answer on port {port}", words[0])));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if server == Server::Postgres {
            for (port, _) in &stand.servers {
                let statement = format!("create database {TRANSACTIONS}");
                stand.once(server, &stand.postgres("psql", *port, &["-q", "-c", &statement], SELECTS))?;
                for (database, scale) in [(SELECTS, "1"), (TRANSACTIONS, TRANSACTIONS_SCALE)] {
                    stand.once(server, &stand.postgres("pgbench", *port, &["-i", "-q", "-s", scale], database))?;
                }
            }
        }
        Ok(stand)
    }

    /// A program of a workload, as it is started.
    fn command(&self, server: Server, way: Way, words: &[String]) -> Command {
        let mut all: Vec<String> = Vec::new();
        if way == Way::Vmmc {
            let own = std::env::current_exe().map_or_else(|_| "vmmc".into(), |p| p.display().to_string());
            all.extend([own, "exec".into(), "--name".into(), self.node.clone(), "--".into()]);
        }
        if server == Server::Postgres && is_root() {
            let user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"];
            all.extend(user.map(String::from));
        }
        all.extend(words.iter().cloned());
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).current_dir(&self.folder).env_remove("VMMC_NODE");
        command
    }

    /// Runs a program that prepares something.
    fn once(&self, server: Server, words: &[String]) -> Result<(), Failure> {
        let output = self.command(server, Way::Tcp, words).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(Failure::new(format!("{}: {}", words[0], String::from_utf8_lossy(&output.stderr).trim())))
    }

    fn server(&self, server: Server, way: Way, port: u16) -> Result<Vec<String>, Failure> {
        let folder = self.folder.display();
        let port = port.to_string();
        Ok(match server {
            Server::Redis => words(&["redis-server", "--port", &port, "--save", "", "--appendonly", "no"]),
            Server::Iperf => words(&["iperf3", "-s", "-p", &port]),
            Server::Nginx => {
                let user = if is_root() { "user root;" } else { "" };
                let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                    .map(|name| format!("{name}_temp_path {folder}/{name}-{port};"))
                    .concat();
                let config = self.folder.join(format!("nginx-{port}.conf"));
                let text = format!(
                    "{user} worker_processes 1; daemon off; pid {folder}/pid-{port}; error_log {folder}/error.log;
                    events {{ worker_connections 512; }}
                    http {{ access_log off; sendfile on; keepalive_requests 1000000000; {temporary}
                    server {{ listen 127.0.0.1:{port} backlog=512; root {folder}/www; }} }}"
                );
                std::fs::write(self.folder.join("www/page"), vec![b'n'; 1024])?;
                std::fs::write(self.folder.join("www/long-page"), vec![b'n'; LONG_PAGE_BYTES])?;
                std::fs::write(&config, text)?;
                words(&["nginx", "-e", &format!("{folder}/error.log"), "-c", &config.display().to_string()])
            }
            Server::Postgres => {
                let data = self.folder.join(format!("data-{way:?}"));
                std::fs::create_dir(&data)?;
                if is_root() {
                    self.once(Server::Redis, &words(&["chown", "postgres", &data.display().to_string()]))?;
                }
                let data = data.display().to_string();
                let program = |name: &str| postgres().unwrap_or_default().join(name).display().to_string();
                let init = [&program("initdb"), "--no-sync", "-A", "trust", "-U", "tester", "-D", &data];
                self.once(server, &words(&init))?;
                let settings =
                    ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"];
                [words(&[&program("postgres"), "-D", &data, "-p", &port]), words(&settings)].concat()
            }
        })
    }

    /// A client program of the database server.
    fn postgres(&self, program: &str, port: u16, more: &[&str], database: &str) -> Vec<String> {
        let program = postgres().unwrap_or_default().join(program).display().to_string();
        let port = port.to_string();
        let who = [&program, "-h", "127.0.0.1", "-p", &port, "-U", "tester"];
        [words(&who), words(more), words(&[database])].concat()
    }

    fn client(&self, ask: Ask, way: Way, requests: u64, time: Duration) -> Vec<String> {
        let port = self.servers[usize::from(way == Way::Vmmc)].0;
        let at = port.to_string();
        let seconds = time.as_secs().max(1).to_string();
        match ask {
            Ask::Get { clients, pipeline } => {
                let [clients, pipeline, requests] =
                    [clients.into(), pipeline.into(), requests].map(|n: u64| n.to_string());
                let first = ["redis-benchmark", "-p", &at, "-t", "get", "--csv", "-c", &clients];
                [words(&first), words(&["-P", &pipeline, "-n", &requests])].concat()
            }
            Ask::Page { connections } => {
                let page = format!("http://127.0.0.1:{at}/page");
                words(&["wrk", "-t", "1", "-c", &connections.to_string(), "-d", &format!("{seconds}s"), &page])
            }
            Ask::PageAndClose { connections } => {
                let page = format!("http://127.0.0.1:{at}/long-page");
                let (connections, time) = (connections.to_string(), format!("{seconds}s"));
                words(&["wrk", "-t", "1", "-c", &connections, "-d", &time, "-H", "Connection: close", &page])
            }
            Ask::Select => self.postgres("pgbench", port, &["-n", "-S", "-c", "1", "-T", &seconds], SELECTS),
            Ask::Transactions { clients } => {
                let clients = clients.to_string();
                self.postgres("pgbench", port, &["-n", "-c", &clients, "-T", &seconds], TRANSACTIONS)
            }
            Ask::Stream => words(&["iperf3", "-c", "127.0.0.1", "-p", &at, "-t", &seconds, "-l", "1M", "-J"]),
        }
    }

    /// Requests that take about so long, for programs that count them; a first, short run
    /// determines them.
    fn requests(&self, workload: &Workload, time: Duration) -> Result<[u64; 2], String> {
        let mut all = [FIRST_REQUESTS; 2];
        for (requests, way) in all.iter_mut().zip([Way::Tcp, Way::Vmmc]) {
            if matches!(workload.ask, Ask::Get { .. }) {
                *requests = (self.figure(workload, way, FIRST_REQUESTS, time)?.rate * time.as_secs_f64()) as u64;
            }
        }
        Ok(all)
    }

    fn figure(&self, workload: &Workload, way: Way, requests: u64, time: Duration) -> Result<Figure, String> {
        let words = self.client(workload.ask, way, requests, time);
        let server = self.servers[usize::from(way == Way::Vmmc)].1.id();
        let before = cpu_of(server) + cpu_of_ended_children();
        let mut command = self.command(workload.server, way, &words);
        die_with_this_thread(&mut command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let output = in_time(child.map_err(|e| format!("{}: {e}", words[0]))?)?;
        let cpu = cpu_of(server) + cpu_of_ended_children() - before;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (operations, rate) = match workload.ask {
            Ask::Get { .. } => (requests as f64, redis_rate(&said)),
            Ask::Page { .. } | Ask::PageAndClose { .. } => wrk(&said).map_or((0.0, None), |(n, rate)| (n, Some(rate))),
            Ask::Select | Ask::Transactions { .. } => pgbench(&said).map_or((0.0, None), |(n, rate)| (n, Some(rate))),
            Ask::Stream => iperf(&said).map_or((0.0, None), |(n, rate)| (n, Some(rate))),
        };
        let complaint = || {
            let errors = String::from_utf8_lossy(&output.stderr);
            format!("{} ended with {}: {} {}", words[0], output.status, said.trim(), errors.trim())
        };
        let rate = rate.filter(|r| *r > 0.0 && operations > 0.0 && output.status.success()).ok_or_else(complaint)?;
        Ok(Figure { rate, cpu: cpu / operations })
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        for (_, server) in &mut self.servers {
            // In order, so that its own processes end too.
            if let Some(pid) = rustix::process::Pid::from_raw(server.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
            }
            let start = Instant::now();
            while matches!(server.try_wait(), Ok(None)) && start.elapsed() < PARTNER_WAIT {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Bytes of a page that fills a connection just past the bytes after which it is offered.
const LONG_PAGE_BYTES: usize = 80_000;
/// Least ratio where VMMC is to be no slower than TCP: two runs of TCP differ by as much.
const NO_SLOWER: f64 = 0.95;
/// Database of the selects: one that is there, with the smallest tables, so that it is the round
/// trip that is measured.
const SELECTS: &str = "postgres";
/// Database of the transactions, and the scale of its tables: with as many branches as clients they
/// seldom wait for each other.
const TRANSACTIONS: &str = "transactions";
const TRANSACTIONS_SCALE: &str = "20";
/// Requests of the run that determines how many fit the time.
const FIRST_REQUESTS: u64 = 20_000;

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_string()).collect()
}

/// What a program printed, unless it goes on for too long.
fn in_time(mut child: Child) -> Result<std::process::Output, String> {
    let id = child.id();
    let (ended, wait) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if wait.recv_timeout(PROGRAM_WAIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            if let Some(pid) = rustix::process::Pid::from_raw(id as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    });
    child.stdin.take();
    let output = child.wait_with_output().map_err(|e| e.to_string());
    drop(ended);
    let _ = guard.join();
    output
}

/// `"GET","48123.45",...` behind a line of names.
fn redis_rate(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.starts_with("\"GET\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

/// `  48120 requests in 2.00s, ...` and `Requests/sec:  24060.00`; nothing when some failed.
fn wrk(said: &str) -> Option<(f64, f64)> {
    if said.contains("Socket errors") || said.contains("Non-2xx") {
        return None;
    }
    let operations = said.lines().find_map(|line| line.trim().split_once(" requests in "))?.0.parse().ok()?;
    let rate = said.lines().find_map(|line| line.strip_prefix("Requests/sec:"))?.trim().parse().ok()?;
    Some((operations, rate))
}

/// `number of transactions actually processed: 9000` and `tps = 4500.1 (without initial connection
/// time)`.
fn pgbench(said: &str) -> Option<(f64, f64)> {
    let after = |words: &str| said.lines().find_map(|line| line.strip_prefix(words)).map(str::trim);
    let operations = after("number of transactions actually processed:")?.split('/').next()?.parse().ok()?;
    Some((operations, after("tps =")?.split(' ').next()?.parse().ok()?))
}

/// MiB, and MiB a second.
fn iperf(said: &str) -> Option<(f64, f64)> {
    let all: serde_json::Value = serde_json::from_str(said).ok()?;
    let sum = &all["end"]["sum_received"];
    let mib = f64::from(1 << 20);
    Some((sum["bytes"].as_f64()? / mib, sum["bits_per_second"].as_f64()? / 8.0 / mib))
}

/// Processor seconds of a process, its descendants that live, and those that they have waited for.
fn cpu_of(root: u32) -> f64 {
    let mut all: HashMap<u32, (u32, f64)> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some((pid, times)) = pid.and_then(|pid: u32| Some((pid, times(&entry.path())?))) {
            all.insert(pid, (times.parent, times.own + times.children));
        }
    }
    let below = |mut pid: u32| {
        // A process that ends meanwhile may leave a circle of ids; no tree is deeper than this.
        for _ in 0..64 {
            match all.get(&pid) {
                _ if pid == root => return true,
                Some((parent, _)) => pid = *parent,
                None => return false,
            }
        }
        false
    };
    all.iter().filter(|(pid, _)| below(**pid)).map(|(_, (_, seconds))| seconds).sum()
}

/// Processor seconds of the programs that this process has waited for.
fn cpu_of_ended_children() -> f64 {
    times(Path::new("/proc/self")).map_or(0.0, |times| times.children)
}

struct Times {
    parent: u32,
    own: f64,
    children: f64,
}

fn times(process: &Path) -> Option<Times> {
    let text = std::fs::read_to_string(process.join("stat")).ok()?;
    // The program's name stands in brackets and may contain anything, brackets too.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let tick = rustix::param::clock_ticks_per_second() as f64;
    let seconds = |at: usize| fields.get(at)?.parse::<f64>().ok().map(|ticks| ticks / tick);
    let own = seconds(11)? + seconds(12)?;
    Some(Times { parent: fields.get(1)?.parse().ok()?, own, children: seconds(13)? + seconds(14)? })
}

impl Outcome {
    fn of(&self, figure: impl Fn(&(Figure, Figure)) -> f64) -> f64 {
        self.pairs.as_ref().map_or(f64::NAN, |pairs| median(pairs.iter().map(figure).collect()))
    }

    fn rate_ratio(&self) -> f64 {
        self.of(|(tcp, vmmc)| vmmc.rate / tcp.rate)
    }

    fn cpu_ratio(&self) -> f64 {
        self.of(|(tcp, vmmc)| vmmc.cpu / tcp.cpu)
    }

    fn spread(&self) -> (f64, f64) {
        let ratios: Vec<f64> = self.pairs.iter().flatten().map(|(tcp, vmmc)| vmmc.rate / tcp.rate).collect();
        (ratios.iter().copied().fold(f64::MAX, f64::min), ratios.iter().copied().fold(f64::MIN, f64::max))
    }

    /// Whether it was measured, and is as good as it should be; one that was left out is no
    /// failure.
    pub(super) fn is_missed(&self) -> bool {
        let cpu = self.workload.cpu_most.is_none_or(|most| self.cpu_ratio() <= most);
        self.pairs.is_ok() && !(self.rate_ratio() >= self.workload.rate_least && cpu)
    }

    fn line(&self) -> Vec<String> {
        if let Err(why) = &self.pairs {
            let mut line = vec![self.workload.name.to_string(), why.clone()];
            line.resize(11, String::new());
            return line;
        }
        let (least, most) = self.spread();
        let rate = |r: f64| format!("{r:.0}");
        let us = |s: f64| format!("{:.2}", s * 1e6);
        vec![
            self.workload.name.to_string(),
            rate(self.of(|p| p.0.rate)),
            rate(self.of(|p| p.1.rate)),
            format!("{:.2}", self.rate_ratio()),
            format!("{least:.2} to {most:.2}"),
            format!("{:.2}", self.workload.rate_least),
            us(self.of(|p| p.0.cpu)),
            us(self.of(|p| p.1.cpu)),
            format!("{:.2}", self.cpu_ratio()),
            self.workload.cpu_most.map(|m| format!("{m:.2}")).unwrap_or_default(),
            if self.is_missed() { "missed".into() } else { String::new() },
        ]
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let name = self.workload.name;
        match &self.pairs {
            Err(why) => serde_json::json!({ "what": name, "error": why }),
            Ok(pairs) => {
                let each = |pick: fn(&(Figure, Figure)) -> Figure| {
                    let figure = |p| (pick(p).rate, pick(p).cpu * 1e6);
                    pairs
                        .iter()
                        .map(figure)
                        .map(|(r, c)| serde_json::json!({ "rate": r, "cpu_us": c }))
                        .collect::<Vec<_>>()
                };
                serde_json::json!({
                    "what": name, "rate_ratio": self.rate_ratio(), "rate_ratio_least": self.workload.rate_least,
                    "rate_ratio_spread": [self.spread().0, self.spread().1], "cpu_ratio": self.cpu_ratio(),
                    "cpu_ratio_most": self.workload.cpu_most, "tcp": each(|p| p.0), "vmmc": each(|p| p.1),
                    "met": !self.is_missed(),
                })
            }
        }
    }
}

/// The table.
pub(super) fn show(outcomes: &[Outcome], runs: u32) -> String {
    let header =
        ["program", "TCP", "VMMC", "ratio", "spread", "at least", "cpu TCP", "cpu VMMC", "cpu ratio", "at most", ""];
    let lines: Vec<Vec<String>> = outcomes.iter().map(Outcome::line).collect();
    format!(
        "{}\noperations a second (MiB for iperf3) and processor microseconds of both ends for each; medians of {runs} runs in turns\n",
        table::align(&header, &lines, 1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_programs_print_is_read() {
        assert_eq!(redis_rate("\"test\",\"rps\"\n\"GET\",\"48123.5\",\"0.9\"\n"), Some(48123.5));
        let page = "  1 threads and 50 connections\n  48120 requests in 2.00s, 59 MB read\nRequests/sec:  24060.5\n";
        assert_eq!(wrk(page), Some((48120.0, 24060.5)));
        assert_eq!(wrk(&format!("{page}  Socket errors: connect 0\n")), None);
        let bench = "number of transactions actually processed: 9000\ntps = 4500.5 (without initial connection time)\n";
        assert_eq!(pgbench(bench), Some((9000.0, 4500.5)));
        let stream = r#"{"end":{"sum_received":{"bytes":2097152,"bits_per_second":8388608}}}"#;
        assert_eq!(iperf(stream), Some((2.0, 1.0)));
        assert_eq!((redis_rate(""), wrk(""), pgbench("x"), iperf("{}")), (None, None, None, None));
    }

    #[test]
    fn the_time_of_children_is_counted() {
        let before = cpu_of_ended_children();
        let status = Command::new("sh").args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"]).status();
        assert!(status.is_ok_and(|s| s.success()) && cpu_of_ended_children() > before);
        assert!(cpu_of(std::process::id()) >= cpu_of_ended_children());
    }
}
