//! Public tools of other libraries: found on the machine or named as missing, run as they come,
//! their output read.
//!
//! Invariant: no tool is needed; a tool that hangs is killed.

use crate::args::{Peer, What};
use crate::commands::bench::{COLLECTIVE_BYTES, EXCHANGES, MEMBERS, MESSAGE, MESSAGE_STREAM, of_members};
use crate::machine::core_pair;
use crate::measure::plan::{Plan, Source};
use crate::measure::stats::Sample;
use crate::measure::task::Beside;
use crate::report::{Key, Missing};
use std::cell::OnceCell;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Longest run of a tool.
const TOOL_WAIT: Duration = Duration::from_secs(20);
/// Time that a tool's server gets to listen before its client starts.
const SERVER_START: Duration = Duration::from_millis(400);
/// Iterations of a latency tool, for measurements of [`FULL_TIME`] or more.
const LATENCY_ITERATIONS: u64 = 20_000;
/// Bytes that a bandwidth tool moves, likewise.
const BANDWIDTH_BYTES: u64 = 512 << 20;
/// Shorter measurements have fewer: on a processor that others keep busy each iteration takes
/// milliseconds, and a caller that asks for little should not wait [`TOOL_WAIT`] for it.
const FULL_TIME: Duration = Duration::from_millis(100);
/// What a tool does not report: `null` in JSON, empty in a table.
const UNKNOWN: f64 = f64::NAN;
/// A collective call of more members than processors takes up to some hundred times as long as a
/// message, so there are this many times fewer.
const CALLS_FEWER: u64 = 10;
/// The C program that stands for MPI: ping-pong, stream, exchange, barrier and allreduce.
const MPI_SOURCE: &str = include_str!("external/mpi.c");
/// The C program that stands for ONC RPC: server and client.
const SUNRPC_SOURCE: &str = include_str!("external/sunrpc.c");
/// The program of `examples/grpc`.
const GRPC_PROGRAM: &str = "vmmc-example-grpc";
/// The program of `peers/iceoryx2`.
const ICEORYX2_PROGRAM: &str = "vmmc-peer-iceoryx2";
/// Where the headers of libtirpc are.
const TIRPC_HEADERS: &str = "/usr/include/tirpc";
/// Bytes of a message of UCX that stands for none.
const LEAST_BYTES: u64 = 8;

/// What messages of MPI go over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MpiOver {
    /// What the implementation takes within a machine.
    Best,
    /// TCP, as between machines.
    Tcp,
}

/// Settings of Open MPI, of its versions 4 and 5, by which more ranks may run than there are
/// processors.
const MPI_OVERSUBSCRIBED: [(&str, &str); 2] =
    [("OMPI_MCA_rmaps_base_oversubscribe", "1"), ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")];

/// What is measured of a tool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exercise {
    /// Half of a round trip, or all of a call.
    Latency,
    Bandwidth,
    /// Messages to each other at once, and what the ranks do meanwhile.
    Exchange(Beside),
    /// Collective calls of so many ranks.
    Barrier(u32),
    Allreduce(u32),
}

/// Settings of Open MPI, and of MPICH over UCX or libfabric, by which messages within a machine go
/// over TCP. Each ignores those of the others.
const MPI_OVER_TCP: [(&str, &str); 6] = [
    ("OMPI_MCA_pml", "ob1"),
    ("OMPI_MCA_btl", "tcp,self"),
    ("OMPI_MCA_btl_tcp_if_include", "lo"),
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("UCX_TLS", "tcp"),
    ("FI_PROVIDER", "tcp"),
];

/// One series of a tool.
#[derive(Clone)]
pub(crate) struct Tool {
    series: &'static str,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    /// `ucx_perftest` with one-sided puts over these transports.
    Ucx { transports: &'static str },
    /// The same with messages by tag.
    UcxTag { transports: &'static str },
    /// The same with active messages there and back.
    UcxCall { transports: &'static str },
    /// `fi_pingpong` with this provider and endpoint type. It only knows latency.
    Libfabric { provider: &'static str, endpoint: &'static str },
    /// A program under `mpirun`, compiled when it is first needed.
    Mpi { over: MpiOver, program: Rc<OnceCell<Result<Compiled, String>>> },
    /// Unary calls of the program of `examples/grpc`, by the name of its line.
    Grpc { line: &'static str },
    /// Exchanges of the program of `peers/iceoryx2`: its first word.
    Iceoryx2 { exchange: &'static str },
    /// Calls of a program of libtirpc's over this transport, compiled when it is first needed.
    SunRpc { transport: &'static str, program: Rc<OnceCell<Result<Compiled, String>>> },
}

/// The tools of a peer for a measurement, or how to get them; none if the peer is the kernel's, or
/// cannot do it.
pub(crate) fn find(peer: Peer, what: What) -> Option<Result<Vec<Tool>, Missing>> {
    let missing = |series: &str, how: &str| Err(Missing { series: series.into(), how: how.into() });
    let calls = what == What::Rpc;
    let messages = what == What::Mp;
    let known = matches!(what, What::Latency | What::Bandwidth) || messages && matches!(peer, Peer::Ucx | Peer::Mpi);
    if !calls && (!known || matches!(peer, Peer::SunRpc | Peer::Grpc)) {
        return None;
    }
    Some(match peer {
        Peer::Ucx if messages && in_path("ucx_perftest").is_some() => Ok(vec![
            Tool { series: "ucx-tag-shm", kind: Kind::UcxTag { transports: "posix,self" } },
            Tool { series: "ucx-tag-tcp", kind: Kind::UcxTag { transports: "tcp,self" } },
        ]),
        Peer::Libfabric | Peer::Mpi if calls => return None,
        Peer::SunRpc => match in_path("cc").filter(|_| std::path::Path::new(TIRPC_HEADERS).is_dir()) {
            Some(_) => {
                let program: Rc<OnceCell<_>> = Rc::default();
                let over =
                    |series, transport| Tool { series, kind: Kind::SunRpc { transport, program: program.clone() } };
                Ok(vec![over("sunrpc-tcp", "tcp"), over("sunrpc-udp", "udp")])
            }
            None => missing("sunrpc", "a C compiler and Debian package libtirpc-dev"),
        },
        Peer::Grpc if in_path(GRPC_PROGRAM).is_some() => Ok(vec![
            Tool { series: "grpc-tcp", kind: Kind::Grpc { line: "TCP" } },
            Tool { series: "grpc-vmmc", kind: Kind::Grpc { line: "VMMC" } },
        ]),
        Peer::Grpc => missing(
            "grpc",
            "`cargo build --release` in examples/grpc, and its target/release on PATH for vmmc-example-grpc",
        ),
        Peer::Ucx if calls && in_path("ucx_perftest").is_some() => Ok(vec![
            Tool { series: "ucx-am-shm", kind: Kind::UcxCall { transports: "posix,self" } },
            Tool { series: "ucx-am-tcp", kind: Kind::UcxCall { transports: "tcp,self" } },
        ]),
        Peer::Ucx if in_path("ucx_perftest").is_some() => Ok(vec![
            Tool { series: "ucx-put-shm", kind: Kind::Ucx { transports: "posix,self" } },
            Tool { series: "ucx-put-tcp", kind: Kind::Ucx { transports: "tcp,self" } },
        ]),
        Peer::Ucx => missing("ucx", "Debian package ucx-utils"),
        Peer::Libfabric if in_path("fi_pingpong").is_some() => Ok(vec![
            Tool { series: "libfabric-shm", kind: Kind::Libfabric { provider: "shm", endpoint: "rdm" } },
            Tool { series: "libfabric-tcp", kind: Kind::Libfabric { provider: "tcp", endpoint: "msg" } },
        ]),
        Peer::Libfabric => missing("libfabric", "Debian package libfabric-bin"),
        // Open MPI's runtime package brings mpicc, but not what it compiles against.
        Peer::Mpi => match (in_path("mpirun"), in_path("mpicc").filter(|_| mpi_compiles())) {
            (Some(_), Some(_)) => {
                let program: Rc<OnceCell<_>> = Rc::default();
                let tool = |series, over| Tool { series, kind: Kind::Mpi { over, program: program.clone() } };
                let tcp = messages.then(|| tool("mpi-tcp", MpiOver::Tcp));
                Ok([tool("mpi", MpiOver::Best)].into_iter().chain(tcp).collect())
            }
            _ => missing("mpi", "Debian packages openmpi-bin and libopenmpi-dev, or mpich and libmpich-dev"),
        },
        Peer::Iceoryx2 if in_path(ICEORYX2_PROGRAM).is_some() => {
            let exchange = if calls { "call" } else { "publish" };
            Ok(vec![Tool { series: "iceoryx2", kind: Kind::Iceoryx2 { exchange } }])
        }
        Peer::Iceoryx2 => missing(
            "iceoryx2",
            "`cargo build --release` in peers/iceoryx2, and its target/release on PATH for vmmc-peer-iceoryx2",
        ),
        Peer::Pipe | Peer::Unix | Peer::Tcp | Peer::TcpSpin | Peer::Udp | Peer::UdpSpin => return None,
    })
}

/// Where a program is.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

impl Tool {
    /// Adds this series to a plan, if the tool can measure that.
    pub(crate) fn add(&self, plan: &mut Plan, what: What, size: u64, time: Duration) {
        let latency = what != What::Bandwidth;
        // An answer is as long as what was asked for.
        if size > 0 && matches!(self.kind, Kind::UcxCall { .. } | Kind::Grpc { .. }) {
            return;
        }
        if !latency && matches!(self.kind, Kind::Libfabric { .. } | Kind::Iceoryx2 { .. }) {
            return;
        }
        let mut add = |op: Option<&str>, exercise: Exercise| {
            let (series, op) = (self.series.into(), op.map(Into::into));
            let key = Key { series, path: "tool".into(), op, size_bytes: size, asleep_us: None };
            let tool = self.clone();
            let measure = move |size| tool.measure(exercise, size, iterations(exercise, size, time));
            plan.add(key, Source::Tool(Box::new(measure)));
        };
        if what != What::Mp {
            return add(None, if latency { Exercise::Latency } else { Exercise::Bandwidth });
        }
        add(Some(MESSAGE), Exercise::Latency);
        add(Some(MESSAGE_STREAM), Exercise::Bandwidth);
        if matches!(self.kind, Kind::Mpi { .. }) {
            EXCHANGES.into_iter().for_each(|(name, beside)| add(Some(name), Exercise::Exchange(beside)));
        }
        if size == COLLECTIVE_BYTES && matches!(self.kind, Kind::Mpi { .. }) {
            for members in MEMBERS {
                add(Some(&of_members("barrier", members)), Exercise::Barrier(members));
                add(Some(&of_members("allreduce", members)), Exercise::Allreduce(members));
            }
        }
    }

    fn measure(&self, exercise: Exercise, size: u64, count: u64) -> Result<Sample, String> {
        let latency = exercise != Exercise::Bandwidth;
        match &self.kind {
            Kind::Ucx { transports } => {
                ucx(transports, if latency { "ucp_put_lat" } else { "ucp_put_bw" }, size, count)
            }
            Kind::UcxTag { transports } => ucx(transports, if latency { "tag_lat" } else { "tag_bw" }, size, count),
            Kind::UcxCall { transports } => ucx(transports, "ucp_am_lat", LEAST_BYTES, count).map(|half| match half {
                Sample::Latency { p50_ns, p99_ns } => Sample::Latency { p50_ns: 2.0 * p50_ns, p99_ns: 2.0 * p99_ns },
                other => other,
            }),
            Kind::Grpc { line } => grpc(line),
            Kind::Iceoryx2 { exchange } => iceoryx2(exchange, size, count),
            Kind::SunRpc { transport, program } => match program.get_or_init(compile_sunrpc) {
                Ok(compiled) => sunrpc(&compiled.0.join("sunrpc"), transport, size, count),
                Err(why) => Err(format!("cc failed: {why}")),
            },
            Kind::Libfabric { provider, endpoint } => libfabric(provider, endpoint, size, count),
            Kind::Mpi { over, program } => match program.get_or_init(compile_mpi) {
                Ok(compiled) => mpi(*over, &compiled.0.join("mpi"), exercise, size, count),
                Err(why) => Err(format!("mpicc failed: {why}")),
            },
        }
    }
}

/// Iterations for a size and the time that the measurement aims at.
fn iterations(exercise: Exercise, size: u64, time: Duration) -> u64 {
    let share = |full: u64| (full as f64 * time.div_duration_f64(FULL_TIME).min(1.0)) as u64;
    match exercise {
        Exercise::Latency | Exercise::Exchange(_) => share(LATENCY_ITERATIONS * 1024 / size.max(1024)).max(200),
        Exercise::Bandwidth => share((BANDWIDTH_BYTES / size).min(50_000)).max(16),
        Exercise::Barrier(_) | Exercise::Allreduce(_) => share(LATENCY_ITERATIONS / CALLS_FEWER).max(100),
    }
}

fn ucx(transports: &str, test: &str, size: u64, count: u64) -> Result<Sample, String> {
    let port = free_port()?;
    let (first, second) = core_pair();
    let run = |core: usize, server: Option<&str>| {
        let mut command = Command::new("ucx_perftest");
        command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "lo").env("UCX_WARN_UNUSED_ENV_VARS", "n");
        command.args(server).args(["-t", test, "-s", &size.to_string(), "-n", &count.to_string()]);
        command.args(["-p", &port.to_string(), "-c", &core.to_string(), "-f", "-w", &count.min(1000).to_string()]);
        command
    };
    let text = server_and_client(run(second, None), run(first, Some("127.0.0.1")))?;
    parse_ucx(&text, test.ends_with("lat"))
        .ok_or_else(|| format!("the output of ucx_perftest could not be read: {text:?}"))
}

/// The last line of `ucx_perftest -f`, "Final:" or not by version: iterations, then latency (50th
/// percentile, average, overall) in microseconds, bandwidth (average, overall) in MiB/s, message
/// rates (average, overall).
fn parse_ucx(text: &str, latency: bool) -> Option<Sample> {
    let line = text.lines().rev().find(|l| !l.trim().is_empty())?;
    let numbers: Vec<f64> = line.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [_, p50_us, _, _, _, mib_per_s, _, _] = numbers[..] else { return None };
    Some(if latency {
        Sample::Latency { p50_ns: p50_us * 1e3, p99_ns: UNKNOWN }
    } else {
        Sample::Bandwidth { bytes_per_s: mib_per_s * 1048576.0 }
    })
}

fn libfabric(provider: &str, endpoint: &str, size: u64, count: u64) -> Result<Sample, String> {
    let port = free_port()?;
    let (first, second) = core_pair();
    let run = |core: usize, server: Option<&str>| {
        let mut command = pinned(core, "fi_pingpong");
        let side = if server.is_some() { "-P" } else { "-B" };
        command.args(["-p", provider, "-e", endpoint, "-I", &count.to_string()]);
        command.args(["-S", &size.to_string(), side, &port.to_string()]).args(server);
        command
    };
    let text = server_and_client(run(second, None), run(first, Some("127.0.0.1")))?;
    parse_pingpong(&text).ok_or_else(|| format!("the output of fi_pingpong could not be read: {text:?}"))
}

/// The last line of `fi_pingpong`: ..., microseconds a transfer (a mean, one way), millions of
/// transfers a second.
fn parse_pingpong(text: &str) -> Option<Sample> {
    let line = text.lines().rev().find(|l| l.split_ascii_whitespace().count() >= 8)?;
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let mean_us: f64 = fields.get(fields.len() - 2)?.parse().ok()?;
    Some(Sample::Latency { p50_ns: mean_us * 1e3, p99_ns: UNKNOWN })
}

/// A folder with the compiled program; removed when dropped.
struct Compiled(PathBuf);

impl Drop for Compiled {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the compiler finds the header of MPI.
fn mpi_compiles() -> bool {
    let mut command = Command::new("mpicc");
    command.args(["-fsyntax-only", "-include", "mpi.h", "-x", "c", "/dev/null"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn compile_mpi() -> Result<Compiled, String> {
    compile("mpi", MPI_SOURCE, "mpicc", &[])
}

fn compile_sunrpc() -> Result<Compiled, String> {
    let headers = format!("-I{TIRPC_HEADERS}");
    compile("sunrpc", SUNRPC_SOURCE, "cc", &[&headers, "-ltirpc"])
}

fn compile(name: &str, text: &str, compiler: &str, options: &[&str]) -> Result<Compiled, String> {
    let dir = std::env::temp_dir().join(format!("vmmc-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    let compiled = Compiled(dir);
    let (source, program) = (compiled.0.join(name).with_extension("c"), compiled.0.join(name));
    std::fs::write(&source, text).map_err(|e| e.to_string())?;
    let done = Command::new(compiler).arg("-O2").arg("-o").arg(&program).arg(&source).args(options).output();
    match done {
        Ok(output) if output.status.success() => Ok(compiled),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        Err(e) => Err(e.to_string()),
    }
}

fn mpi(over: MpiOver, program: &std::path::Path, exercise: Exercise, size: u64, count: u64) -> Result<Sample, String> {
    let (ranks, word) = match exercise {
        Exercise::Latency => (2, "lat"),
        Exercise::Bandwidth => (2, "bw"),
        Exercise::Exchange(Beside::Nothing) => (2, "exchange"),
        Exercise::Exchange(Beside::Computing) => (2, "computing"),
        Exercise::Exchange(Beside::Polled) => (2, "polled"),
        Exercise::Barrier(members) => (members, "barrier"),
        Exercise::Allreduce(members) => (members, "allreduce"),
    };
    let mut command = Command::new("mpirun");
    if over == MpiOver::Tcp {
        command.envs(MPI_OVER_TCP);
    }
    // Open MPI refuses to run as root unless told; other implementations ignore these.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    if ranks > 2 {
        command.envs(MPI_OVERSUBSCRIBED);
    }
    command.args(["-n", &ranks.to_string()]).arg(program).args([word, &size.to_string(), &count.to_string()]);
    let text = finish(spawn(&mut command)?, "mpirun")?;
    let numbers: Vec<f64> = text.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect();
    match (exercise == Exercise::Bandwidth, numbers.as_slice()) {
        (true, [bytes_per_s]) => Ok(Sample::Bandwidth { bytes_per_s: *bytes_per_s }),
        (false, [p50_ns, p99_ns]) => Ok(Sample::Latency { p50_ns: *p50_ns, p99_ns: *p99_ns }),
        _ => Err(format!("the output of the MPI program could not be read: {text:?}")),
    }
}

fn sunrpc(program: &std::path::Path, transport: &str, size: u64, count: u64) -> Result<Sample, String> {
    let mut command = Command::new(program);
    command.args([transport, &size.to_string(), &count.to_string()]);
    let text = finish(spawn(&mut command)?, "the program of libtirpc")?;
    parse_latency(&text).ok_or_else(|| format!("the output of the program of libtirpc could not be read: {text:?}"))
}

fn iceoryx2(exchange: &str, size: u64, count: u64) -> Result<Sample, String> {
    let (first, second) = core_pair();
    let name = format!("vmmc-bench-{}-{}", std::process::id(), free_port()?);
    let run = |core: usize, side: &str| {
        let mut command = pinned(core, ICEORYX2_PROGRAM);
        command.args([exchange, &name, side, &size.to_string(), &count.to_string()]);
        command
    };
    let text = server_and_client(run(second, "serve"), run(first, "ask"))?;
    parse_latency(&text).ok_or_else(|| format!("the output of {ICEORYX2_PROGRAM} could not be read: {text:?}"))
}

/// Median and 99th percentile, in ns.
fn parse_latency(text: &str) -> Option<Sample> {
    let numbers: Vec<f64> = text.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [p50_ns, p99_ns] = numbers[..] else { return None };
    Some(Sample::Latency { p50_ns, p99_ns })
}

fn grpc(line: &str) -> Result<Sample, String> {
    let text = finish(spawn(&mut Command::new(GRPC_PROGRAM))?, GRPC_PROGRAM)?;
    parse_grpc(&text, line).ok_or_else(|| format!("the output of {GRPC_PROGRAM} could not be read: {text:?}"))
}

/// A line like `TCP    189.9 us   (136.8 to 246.5)`: the median of the turns.
fn parse_grpc(text: &str, line: &str) -> Option<Sample> {
    let mut words = text.lines().map(str::split_ascii_whitespace);
    let p50_us: f64 = words.find_map(|mut words| (words.next()? == line).then(|| words.next()?.parse().ok())?)?;
    Some(Sample::Latency { p50_ns: p50_us * 1e3, p99_ns: UNKNOWN })
}

/// A command on one processor, if `taskset` is there.
fn pinned(core: usize, program: &str) -> Command {
    if in_path("taskset").is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), program]);
    command
}

fn server_and_client(mut server: Command, mut client: Command) -> Result<String, String> {
    let mut server = Killed(spawn(&mut server)?);
    std::thread::sleep(SERVER_START);
    let text = finish(spawn(&mut client)?, "the client")?;
    let _ = server.0.try_wait();
    Ok(text)
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|e| format!("{program}: {e}"))
}

/// Waits for a process within [`TOOL_WAIT`]; what it printed. Tools print less than a pipe holds.
fn finish(child: Child, name: &str) -> Result<String, String> {
    let mut child = Killed(child);
    let end = Instant::now() + TOOL_WAIT;
    let status = loop {
        match child.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            _ => return Err(format!("{name} did not end within {} s", TOOL_WAIT.as_secs())),
        }
    };
    let mut text = String::new();
    let mut errors = String::new();
    if let Some(mut out) = child.0.stdout.take() {
        let _ = std::io::Read::read_to_string(&mut out, &mut text);
    }
    if let Some(mut out) = child.0.stderr.take() {
        let _ = std::io::Read::read_to_string(&mut out, &mut errors);
    }
    if status.success() { Ok(text) } else { Err(format!("{name} failed ({status}): {}", errors.trim())) }
}

/// A TCP port that was free a moment ago.
fn free_port() -> Result<u16, String> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map(|a| a.port());
    port.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_measurements_have_fewer_iterations() {
        use Exercise::{Bandwidth, Barrier, Latency};
        let count = |exercise, size, ms| iterations(exercise, size, Duration::from_millis(ms));
        assert_eq!(
            [count(Latency, 8, 100), count(Latency, 8, 1000), count(Latency, 4096, 100)],
            [20_000, 20_000, 5_000]
        );
        assert_eq!([count(Latency, 8, 3), count(Latency, 1 << 20, 3)], [600, 200]);
        assert_eq!(
            [count(Bandwidth, 1 << 20, 100), count(Bandwidth, 8, 100), count(Bandwidth, 8, 10)],
            [512, 50_000, 5_000]
        );
        assert_eq!(count(Bandwidth, 1 << 30, 1), 16);
        assert_eq!([count(Barrier(8), 8, 100), count(Barrier(8), 8, 1)], [2_000, 100]);
    }

    #[test]
    fn the_output_of_the_tools_is_read() {
        let ucx = "+---+\n  1000000      0.176     0.178     0.178       42.90      42.90     5623012     5623012\n";
        let p50 = |sample| if let Some(Sample::Latency { p50_ns, .. }) = sample { p50_ns } else { f64::NAN };
        assert_eq!(p50(parse_ucx(ucx, true)), 176.0);
        assert_eq!(p50(parse_ucx(&ucx.replace("  1000000", "Final:  1000000"), true)), 176.0);
        let Some(Sample::Bandwidth { bytes_per_s }) = parse_ucx(ucx, false) else { panic!("no bandwidth") };
        assert!((bytes_per_s - 42.9 * 1048576.0).abs() < 1.0);
        let fabric = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n8       20k     =20k     312k        0.03s     10.95       0.73       1.37\n";
        assert_eq!(p50(parse_pingpong(fabric)), 730.0);
        assert_eq!(parse_ucx("no result", true), None);
        assert_eq!(parse_pingpong(""), None);
        let grpc = "unary calls, median of each\nTCP    189.9 us   (136.8 to 246.5)\nVMMC    99.1 us   (1 to 2)\nVMMC takes 0.54 of TCP's time\n";
        assert_eq!(["TCP", "VMMC"].map(|line| p50(parse_grpc(grpc, line))), [189_900.0, 99_100.0]);
        assert_eq!(parse_grpc("no result", "TCP"), None);
    }
}
