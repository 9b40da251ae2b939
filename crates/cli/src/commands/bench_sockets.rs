//! `vmmc bench sockets`: stream sockets beside plain TCP, between two processes of one node, in turns.
//!
//! Invariant: both sides of a ratio come from the same run, on the same cores, by the same code; only the way the bytes take differs. Processor time is that of both
//! processes together.

mod between;
mod programs;
mod silent;

use crate::args::{Bench, Part, Path};
use crate::failure::Failure;
use crate::machine::{Machine, Quiet, core_pair, pin};
use crate::report::table;
pub(crate) use between::serve as serve_between;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmmc_node::{Daemon, KeySource, NodeConfig, Stopper};
use vmmc_sockets::{Context, Medium, Settings, Stream};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    /// 8 bytes there and back; `same_core`: both ends on one; `busy`: a third thread on the same core that never rests.
    Ping { same_core: bool, busy: bool },
    /// 1 MiB writes in one direction.
    Push,
    /// A new connection for each request.
    Connect,
    /// 8 bytes there and back, with a pause before each.
    Think { us: u64 },
}

/// A way to carry bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Tcp,
    Vmmc,
}

/// Seconds for an operation (a byte, for [`Case::Push`]), on the clock and of processors.
#[derive(Clone, Copy, Debug)]
struct Figure {
    wall: f64,
    cpu: f64,
}

/// A case, what people call it, and the bound of the ratio to TCP: of time, of processor time.
struct Row {
    case: Case,
    name: &'static str,
    time_most: Option<f64>,
    cpu_most: Option<f64>,
}

const CHUNK: usize = 1 << 20;

fn rows() -> Vec<Row> {
    let ping = |same_core, busy| Case::Ping { same_core, busy };
    let row = |case, name, time_most, cpu_most| Row { case, name, time_most, cpu_most };
    vec![
        row(ping(false, false), "8 B there and back, two cores", Some(0.08), None),
        row(ping(true, false), "8 B there and back, one core", Some(0.5), None),
        row(ping(true, true), "the same beside a busy thread", Some(1.0), None),
        row(Case::Push, "1 MiB writes, one way", Some(1.0 / 2.2), None),
        row(Case::Connect, "a connection for each request", Some(1.1), None),
        row(Case::Think { us: 50 }, "8 B, client thinks 50 us", None, Some(1.0)),
        row(Case::Think { us: 200 }, "8 B, client thinks 200 us", None, Some(1.0)),
    ]
}

/// Runs the bench.
pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    match bench.path[..] {
        [] | [Path::SameNode] => {}
        [Path::TwoNodes] => return between::run(bench),
        _ => return Err(Failure::Usage("sockets are measured with --path same-node or --path two-nodes".into())),
    }
    let quiet = Quiet::start();
    let world = World::start()?;
    let time = Duration::from_millis(bench.time_ms);
    let mut lines = Vec::new();
    let mut values = Vec::new();
    let mut broken = 0;
    let wanted = |part| bench.part.is_empty() || bench.part.contains(&part);
    for row in rows().into_iter().filter(|_| wanted(Part::Pairs)) {
        let mut pairs = Vec::new();
        for _ in 0..bench.runs {
            pairs.push((world.measure(row.case, Way::Tcp, time)?, world.measure(row.case, Way::Vmmc, time)?));
        }
        let outcome = Outcome::of(&row, &pairs);
        broken += usize::from(!outcome.met);
        lines.push(outcome.line());
        values.push(outcome.json());
    }
    let silent = if wanted(Part::Silent) { silent::measure(&world, bench, time)? } else { Vec::new() };
    for outcome in silent {
        broken += usize::from(!outcome.met);
        lines.push(outcome.line);
        values.push(outcome.json);
    }
    let programs = if wanted(Part::Programs) { programs::measure(&world, bench)? } else { Vec::new() };
    broken += programs.iter().filter(|p| p.is_missed()).count();
    if bench.output.json {
        let programs: Vec<_> = programs.iter().map(programs::Outcome::json).collect();
        crate::output_json(&serde_json::json!({
            "bench": "sockets", "machine": Machine::here().to_string(), "rows": values, "programs": programs,
        }))?;
    } else {
        let header =
            ["what", "TCP", "VMMC", "time ratio", "at most", "cpu TCP", "cpu VMMC", "cpu ratio", "at most", ""];
        let mut text = format!("vmmc bench sockets on {}\n", Machine::here());
        if !lines.is_empty() {
            text += &format!(
                "\n{}\ntime and processor time for an operation, microseconds (1 MiB for writes); medians of {} runs in turns\n",
                table::align(&header, &lines, 1),
                bench.runs
            );
        }
        if !programs.is_empty() {
            text += &format!("\n{}", programs::show(&programs, bench.runs));
        }
        quiet.warnings().iter().for_each(|w| text += &format!("warning: {w}\n"));
        crate::output(&text)?;
    }
    if bench.check && broken > 0 {
        return Err(Failure::Check(format!("{broken} promises are not met")));
    }
    Ok(())
}

struct Outcome {
    name: &'static str,
    tcp: Figure,
    vmmc: Figure,
    time_ratio: f64,
    cpu_ratio: f64,
    time_most: Option<f64>,
    cpu_most: Option<f64>,
    met: bool,
}

impl Outcome {
    fn of(row: &Row, pairs: &[(Figure, Figure)]) -> Outcome {
        let of = |f: &dyn Fn(&(Figure, Figure)) -> f64| median(pairs.iter().map(f).collect());
        let (time_ratio, cpu_ratio) = (of(&|p| p.1.wall / p.0.wall), of(&|p| p.1.cpu / p.0.cpu));
        let holds = |ratio: f64, most: Option<f64>| most.is_none_or(|most| ratio <= most);
        Outcome {
            name: row.name,
            tcp: Figure { wall: of(&|p| p.0.wall), cpu: of(&|p| p.0.cpu) },
            vmmc: Figure { wall: of(&|p| p.1.wall), cpu: of(&|p| p.1.cpu) },
            time_ratio,
            cpu_ratio,
            time_most: row.time_most,
            cpu_most: row.cpu_most,
            met: holds(time_ratio, row.time_most) && holds(cpu_ratio, row.cpu_most),
        }
    }

    fn line(&self) -> Vec<String> {
        let us = |s: f64| format!("{:.2}", s * 1e6);
        let most = |m: Option<f64>| m.map(|m| format!("{m:.2}")).unwrap_or_default();
        vec![
            self.name.to_string(),
            us(self.tcp.wall),
            us(self.vmmc.wall),
            format!("{:.3}", self.time_ratio),
            most(self.time_most),
            us(self.tcp.cpu),
            us(self.vmmc.cpu),
            format!("{:.3}", self.cpu_ratio),
            most(self.cpu_most),
            if self.met { String::new() } else { "missed".into() },
        ]
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "what": self.name, "tcp_us": self.tcp.wall * 1e6, "vmmc_us": self.vmmc.wall * 1e6, "time_ratio": self.time_ratio,
            "time_ratio_most": self.time_most, "tcp_cpu_us": self.tcp.cpu * 1e6, "vmmc_cpu_us": self.vmmc.cpu * 1e6,
            "cpu_ratio": self.cpu_ratio, "cpu_ratio_most": self.cpu_most, "met": self.met,
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A node, and another process that answers; they end with this value.
struct World {
    name: String,
    peer: Child,
    plain: SocketAddr,
    through: SocketAddr,
    context: Arc<Context>,
    stopper: Stopper,
    node: Option<std::thread::JoinHandle<()>>,
}

impl World {
    fn start() -> Result<World, Failure> {
        let name = format!("bench-sockets-{}", std::process::id());
        let config = NodeConfig::new(&name).listen("127.0.0.1:0".parse().map_err(Failure::new)?).key(KeySource::Plain);
        let daemon = Daemon::start(config).map_err(Failure::new)?;
        let stopper = daemon.stopper();
        let node = std::thread::spawn(move || drop(daemon.run()));
        let mut peer = Command::new(std::env::current_exe()?)
            .args(["sockets-peer", &name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = peer.stdout.take().ok_or_else(|| Failure::new("the other process has no output"))?;
        let mut lines = BufReader::new(out).lines();
        let mut address = || -> Result<SocketAddr, Failure> {
            let line = lines.next().ok_or_else(|| Failure::new("the other process said nothing"))??;
            line.parse().map_err(Failure::new)
        };
        let (plain, through) = (address()?, address()?);
        let context = context(&name);
        Ok(World { name, peer, plain, through, context, stopper, node: Some(node) })
    }

    fn open(&self, way: Way, core: usize) -> Result<Box<dyn Both>, Failure> {
        let tcp = TcpStream::connect(if way == Way::Tcp { self.plain } else { self.through })?;
        tcp.set_nodelay(true)?;
        let mut both: Box<dyn Both> = match way {
            Way::Tcp => Box::new(tcp),
            Way::Vmmc => Box::new(Stream::new(&self.context, tcp)),
        };
        both.write_all(&[core as u8])?;
        Ok(both)
    }

    fn measure(&self, case: Case, way: Way, time: Duration) -> Result<Figure, Failure> {
        let (first, second) = core_pair();
        let (same, busy) = match case {
            Case::Ping { same_core, busy } => (same_core, busy),
            _ => (false, false),
        };
        let theirs = if same { first } else { second };
        // A thread of its own, so that the rest of the program stays where it is.
        std::thread::scope(|scope| {
            let measured = scope.spawn(move || {
                pin(first);
                let stop = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    if busy {
                        scope.spawn(|| {
                            while !stop.load(Ordering::Relaxed) {
                                std::hint::spin_loop()
                            }
                        });
                    }
                    let figure = self.case(case, way, theirs, time);
                    stop.store(true, Ordering::Relaxed);
                    figure
                })
            });
            measured.join().map_err(|_| Failure::new("the measuring thread failed"))?
        })
    }

    fn case(&self, case: Case, way: Way, core: usize, time: Duration) -> Result<Figure, Failure> {
        match case {
            Case::Connect => self.timed(time, 1, 20, || {
                let mut both = self.open(way, core)?;
                round(&mut *both)
            }),
            Case::Ping { .. } => {
                let mut both = self.ready(way, core)?;
                self.timed(time, 1, 50, || round(&mut *both))
            }
            Case::Think { us } => {
                let mut both = self.ready(way, core)?;
                self.timed(time, 1, 5, || {
                    std::thread::sleep(Duration::from_micros(us));
                    round(&mut *both)
                })
            }
            Case::Push => {
                let mut both = self.ready(way, core)?;
                let data = vec![b's'; CHUNK];
                self.timed(time, 1, 4, || {
                    both.write_all(&data)?;
                    both.write_all(b"e")?;
                    Ok(both.read_exact(&mut [0u8; 8])?)
                })
            }
        }
    }

    /// A connection on which some rounds have been made; a VMMC one that is in the ring.
    fn ready(&self, way: Way, core: usize) -> Result<Box<dyn Both>, Failure> {
        self.ready_after(100, way, core)
    }

    fn ready_after(&self, rounds: u32, way: Way, core: usize) -> Result<Box<dyn Both>, Failure> {
        let mut both = self.open(way, core)?;
        let start = Instant::now();
        for i in 0.. {
            round(&mut *both)?;
            if i > rounds && (way == Way::Tcp || both.in_ring()) {
                return Ok(both);
            }
            if start.elapsed() > crate::limits::PARTNER_WAIT {
                break;
            }
        }
        Err(Failure::new("the connection did not move into shared memory"))
    }

    fn timed(
        &self,
        time: Duration,
        operations: u32,
        batch: u32,
        mut operation: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Figure, Failure> {
        let (cpu, start, mut done) = (self.cpu()?, Instant::now(), 0u32);
        while start.elapsed() < time {
            for _ in 0..batch {
                operation()?;
            }
            done += batch * operations;
        }
        let wall = start.elapsed().as_secs_f64();
        Ok(Figure { wall: wall / f64::from(done), cpu: (self.cpu()? - cpu) / f64::from(done) })
    }

    /// Processor time of both processes so far, seconds. The node is part of this one.
    fn cpu(&self) -> Result<f64, Failure> {
        let mut asked = TcpStream::connect(self.plain)?;
        asked.write_all(&[ASK_CPU])?;
        let mut theirs = [0u8; 8];
        asked.read_exact(&mut theirs)?;
        Ok(own_cpu() + f64::from_le_bytes(theirs))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.peer.kill();
        let _ = self.peer.wait();
        self.stopper.stop();
        if let Some(node) = self.node.take() {
            let _ = node.join();
        }
    }
}

fn context(node: &str) -> Arc<Context> {
    Arc::new(Context::new(Settings { node_name: node.to_string(), ..Settings::from_env() }))
}

fn own_cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A stream of either kind.
trait Both: Read + Write + Send {
    /// Whether both directions are in shared memory.
    fn in_ring(&self) -> bool {
        false
    }

    /// The stream that it is, if it can move into shared memory.
    fn into_stream(self: Box<Self>) -> Option<Stream> {
        None
    }
}

impl Both for TcpStream {}

impl Both for Stream {
    fn in_ring(&self) -> bool {
        let how = self.describe();
        how.tx == Medium::Ring && how.rx == Medium::Ring
    }

    fn into_stream(self: Box<Self>) -> Option<Stream> {
        Some(*self)
    }
}

fn round(both: &mut dyn Both) -> Result<(), Failure> {
    both.write_all(b"pppppppp")?;
    Ok(both.read_exact(&mut [0u8; 8])?)
}

const ASK_CPU: u8 = 255;
/// Says that the connection falls silent.
const PARK: u8 = b'q';

/// The other process: answers on both listeners until its standard input closes.
pub(crate) fn serve(node: &str) -> Result<(), Failure> {
    let (plain, through) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    crate::output(&format!("{}\n{}\n", plain.local_addr()?, through.local_addr()?))?;
    let context = context(node);
    let parked = silent::Parked::start(&context)?;
    std::thread::spawn(move || accept(&plain, None, |tcp| Box::new(tcp)));
    std::thread::spawn(move || accept(&through, Some(parked), |tcp| Box::new(Stream::new(&context, tcp))));
    let mut end = Vec::new();
    std::io::stdin().read_to_end(&mut end)?;
    Ok(())
}

fn accept(listener: &TcpListener, parked: Option<Arc<silent::Parked>>, dress: impl Fn(TcpStream) -> Box<dyn Both>) {
    while let Ok((tcp, _)) = listener.accept() {
        let _ = tcp.set_nodelay(true);
        let mut both = dress(tcp);
        let parked = parked.clone();
        // A client that goes away ends its thread.
        let answering = move || {
            if let (Ok(Asked::ToPark), Some(parked), Some(stream)) = (answer(&mut *both), parked, both.into_stream()) {
                // It stays open, and silent, in whatever way.
                parked.add(stream);
            }
        };
        // Thousands of them wait at a time.
        if std::thread::Builder::new().stack_size(64 << 10).spawn(answering).is_err() {
            return;
        }
    }
}

/// How a conversation ends.
enum Asked {
    /// The client has gone.
    Nothing,
    /// No more comes for a while: no thread should wait for it.
    ToPark,
}

fn answer(both: &mut dyn Both) -> std::io::Result<Asked> {
    let mut core = [0u8];
    both.read_exact(&mut core)?;
    if core[0] == ASK_CPU {
        both.write_all(&own_cpu().to_le_bytes())?;
        return Ok(Asked::Nothing);
    }
    pin(core[0] as usize);
    let mut short = [0u8; 8];
    let mut long = Vec::new();
    loop {
        let got = if long.is_empty() { both.read(&mut short)? } else { both.read(&mut long)? };
        let last = if long.is_empty() { short[..got].last() } else { long[..got].last() };
        match last {
            None => return Ok(Asked::Nothing),
            Some(&PARK) if long.is_empty() => return Ok(Asked::ToPark),
            Some(b'p') | Some(b'e') => both.write_all(b"pppppppp")?,
            // A stream begins: read in large pieces from now on.
            Some(_) if long.is_empty() => long = vec![0u8; CHUNK],
            Some(_) => {}
        }
    }
}
