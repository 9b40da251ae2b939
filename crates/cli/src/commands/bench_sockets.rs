//! `vmmc bench sockets`: stream sockets beside plain TCP, between two processes of one node, in
//! turns.
//!
//! Invariant: both sides of a ratio come from the same run, on the same cores, by the same code;
//! only the way the bytes take differs. Processor time is that of both processes together.

mod between;
mod peer;
mod programs;
mod silent;

use crate::args::{Bench, Part, Path};
use crate::failure::Failure;
use crate::machine::{Machine, Quiet, core_pair};
use crate::report::table;
pub(crate) use between::serve as serve_between;
use peer::{Both, Node, Peer, context, on_core};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmmc_node::{KeySource, NodeConfig};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    /// 8 bytes there and back; `same_core`: both ends on one; `busy`: a third thread on the same
    /// core that never rests.
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

impl Figure {
    fn mean(self, other: Figure) -> Figure {
        Figure { wall: (self.wall + other.wall) / 2.0, cpu: (self.cpu + other.cpu) / 2.0 }
    }
}

/// A case, what people call it, and the bound of its ratio to TCP: of time, of processor time.
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
    let time = bench.time();
    let mut lines = Vec::new();
    let mut values = Vec::new();
    let mut broken = 0;
    let wanted = |part| bench.part.is_empty() || bench.part.contains(&part);
    for row in rows().into_iter().filter(|_| wanted(Part::Pairs)) {
        let mut pairs = Vec::new();
        for _ in 0..bench.runs() {
            pairs.push((world.measure(row.case, Way::Tcp, time)?, world.measure(row.case, Way::Vmmc, time)?));
        }
        let outcome = Outcome::of(row.name, (row.time_most, row.cpu_most), &pairs);
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
        let mut text = format!("vmmc bench sockets on {}\n", Machine::here());
        if !lines.is_empty() {
            text += &format!("{}\n", show(&lines, bench.runs()));
        }
        if !programs.is_empty() {
            text += &format!("\n{}", programs::show(&programs, bench.runs()));
        }
        quiet.warnings().iter().for_each(|w| text += &format!("warning: {w}\n"));
        crate::output(&text)?;
    }
    checked(bench, broken)
}

/// The table of outcomes, and what its figures are.
fn show(lines: &[Vec<String>], runs: u32) -> String {
    let header = ["what", "TCP", "VMMC", "time ratio", "at most", "cpu TCP", "cpu VMMC", "cpu ratio", "at most", ""];
    format!(
        "\n{}\ntime and processor time for an operation, microseconds (1 MiB for writes); medians of {runs} runs in turns",
        table::align(&header, lines, 1)
    )
}

fn checked(bench: &Bench, missed: usize) -> Result<(), Failure> {
    match missed {
        n if bench.check && n > 0 => Err(Failure::Check(format!("{n} promises are not met"))),
        _ => Ok(()),
    }
}

/// Bounds of ratios to TCP: of time, of processor time.
type Bounds = (Option<f64>, Option<f64>);

struct Outcome {
    name: &'static str,
    tcp: Figure,
    vmmc: Figure,
    time_ratio: f64,
    cpu_ratio: f64,
    time_most: Option<f64>,
    cpu_most: Option<f64>,
    met: bool,
    /// A bound is exceeded, by no more than TCP differs from itself.
    undecided: bool,
    /// How far two runs of TCP are apart, as parts of one: in time, in processor time.
    spread: Option<(f64, f64)>,
}

impl Outcome {
    /// Medians of pairs, and whether they keep within the bounds of time and of processor time.
    fn of(name: &'static str, most: Bounds, pairs: &[(Figure, Figure)]) -> Outcome {
        let of = |f: &dyn Fn(&(Figure, Figure)) -> f64| median(pairs.iter().map(f).collect());
        let (time_ratio, cpu_ratio) = (of(&|p| p.1.wall / p.0.wall), of(&|p| p.1.cpu / p.0.cpu));
        let holds = |ratio: f64, most: Option<f64>| most.is_none_or(|most| ratio <= most);
        Outcome {
            name,
            tcp: Figure { wall: of(&|p| p.0.wall), cpu: of(&|p| p.0.cpu) },
            vmmc: Figure { wall: of(&|p| p.1.wall), cpu: of(&|p| p.1.cpu) },
            time_ratio,
            cpu_ratio,
            time_most: most.0,
            cpu_most: most.1,
            met: holds(time_ratio, most.0) && holds(cpu_ratio, most.1),
            undecided: false,
            spread: None,
        }
    }

    /// With what pairs of the same thing say. A bound that is exceeded by less than they differ is
    /// missed all the same; the run just cannot tell.
    fn with_spread(self, pairs: &[(Figure, Figure)]) -> Outcome {
        let of = |f: &dyn Fn(&Figure) -> f64| median(pairs.iter().map(|(a, b)| (f(b) / f(a) - 1.0).abs()).collect());
        let spread = (of(&|f| f.wall), of(&|f| f.cpu));
        let exceeds = |ratio: f64, most: Option<f64>, spread: f64| most.is_some_and(|most| ratio > most + spread);
        let clearly =
            exceeds(self.time_ratio, self.time_most, spread.0) || exceeds(self.cpu_ratio, self.cpu_most, spread.1);
        Outcome { spread: Some(spread), undecided: !self.met && !clearly, ..self }
    }

    /// What is to be said of a bound that was not kept, and of how much the run can tell.
    fn verdict(&self) -> String {
        let spread = self.spread.map(|(time, cpu)| format!("spread {:.0} %, {:.0} %", time * 100.0, cpu * 100.0));
        let word = if self.undecided { Some("missed within the spread") } else { (!self.met).then_some("missed") };
        word.map(str::to_string).into_iter().chain(spread).collect::<Vec<_>>().join(", ")
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
            self.verdict(),
        ]
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "what": self.name, "tcp_us": self.tcp.wall * 1e6, "vmmc_us": self.vmmc.wall * 1e6, "time_ratio": self.time_ratio,
            "time_ratio_most": self.time_most, "tcp_cpu_us": self.tcp.cpu * 1e6, "vmmc_cpu_us": self.vmmc.cpu * 1e6,
            "cpu_ratio": self.cpu_ratio, "cpu_ratio_most": self.cpu_most, "met": self.met, "within_spread": self.undecided,
            "tcp_spread": self.spread.map(|s| s.0), "tcp_cpu_spread": self.spread.map(|s| s.1),
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A node, and another process that answers; they end with this value, the process first.
struct World {
    name: String,
    peer: Peer,
    _node: Node,
}

impl World {
    fn start() -> Result<World, Failure> {
        let name = format!("bench-sockets-{}", std::process::id());
        let config = NodeConfig::new(&name).listen("127.0.0.1:0".parse().map_err(Failure::new)?).key(KeySource::Plain);
        let node = Node::start(config, None)?;
        let peer = Peer::start(&[&name], &name)?;
        Ok(World { name, peer, _node: node })
    }

    fn measure(&self, case: Case, way: Way, time: Duration) -> Result<Figure, Failure> {
        let (first, second) = core_pair();
        let (same, busy) = match case {
            Case::Ping { same_core, busy } => (same_core, busy),
            _ => (false, false),
        };
        let theirs = if same { first } else { second };
        on_core(first, || {
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
        })
    }

    fn case(&self, case: Case, way: Way, core: usize, time: Duration) -> Result<Figure, Failure> {
        match case {
            Case::Connect => self.peer.timed(time, 1, 20, || {
                let mut both = self.peer.open(way, core)?;
                round(&mut *both)
            }),
            Case::Ping { .. } => {
                let mut both = self.ready(way, core)?;
                self.peer.timed(time, 1, 50, || round(&mut *both))
            }
            Case::Think { us } => {
                let mut both = self.ready(way, core)?;
                self.peer.timed(time, 1, 5, || {
                    std::thread::sleep(Duration::from_micros(us));
                    round(&mut *both)
                })
            }
            Case::Push => {
                let mut both = self.ready(way, core)?;
                let data = vec![b's'; CHUNK];
                self.peer.timed(time, 1, 4, || {
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
        let mut both = self.peer.open(way, core)?;
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
}

fn round(both: &mut dyn Both) -> Result<(), Failure> {
    both.write_all(b"pppppppp")?;
    Ok(both.read_exact(&mut [0u8; 8])?)
}

/// Says that the connection falls silent.
const PARK: u8 = b'q';

/// The other process: answers on both listeners until its standard input closes.
pub(crate) fn serve(node: &str) -> Result<(), Failure> {
    let context = context(node);
    let parked = silent::Parked::start(&context)?;
    peer::serve(&context, move |mut both| {
        if let (Ok(Asked::ToPark), Some(stream)) = (answer(&mut *both), both.into_stream()) {
            // It stays open, and silent, in whatever way.
            parked.add(stream);
        }
    })
}

/// How a conversation ends.
enum Asked {
    /// The client has gone.
    Nothing,
    /// No more comes for a while: no thread should wait for it.
    ToPark,
}

fn answer(both: &mut dyn Both) -> std::io::Result<Asked> {
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
