//! Stream sockets between two nodes beside plain TCP: short and long messages there and back, a stream, a client that thinks.
//!
//! Invariant: each node and its program share one core, as on two machines of one core, for TCP too; so both sides of a ratio have the same cores. What goes
//! between the nodes is encrypted, TCP is not. Processor time is that of both programs and both nodes.

use super::{ASK_CPU, Both, CHUNK, Figure, Outcome, Way, context, median, own_cpu};
use crate::args::Bench;
use crate::failure::Failure;
use crate::limits::BETWEEN_WARM_ROUNDS;
use crate::machine::{Machine, Quiet, core_pair, pin};
use crate::report::table;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc_node::{Daemon, KeySource, NodeConfig, Stopper};
use vmmc_sockets::{Context, Stream};

#[derive(Clone, Copy)]
enum Case {
    /// So many bytes there and back.
    Ping { bytes: usize },
    /// The same, 8 bytes, after a pause.
    Think { us: u64 },
    /// 1 MiB writes in one direction.
    Push,
}

/// What is measured, and the bound of the ratio to TCP: of time.
fn rows() -> [(Case, &'static str, f64); 8] {
    let ping = |bytes| Case::Ping { bytes };
    [
        (ping(8), "8 B there and back", 1.0),
        (ping(1 << 10), "1 KiB there and back", 1.0),
        (ping(4 << 10), "4 KiB there and back", 1.0),
        (ping(16 << 10), "16 KiB there and back", 1.0),
        (ping(64 << 10), "64 KiB there and back", 1.0),
        (Case::Push, "1 MiB writes, one way", 1.0),
        (Case::Think { us: 50 }, "8 B, client thinks 50 us", 1.0),
        (Case::Think { us: 200 }, "8 B, client thinks 200 us", 1.0),
    ]
}

/// Runs this part of the bench.
pub(super) fn run(bench: &Bench) -> Result<(), Failure> {
    let quiet = Quiet::start();
    let world = World::start()?;
    let time = Duration::from_millis(bench.time_ms);
    let mut outcomes = Vec::new();
    for (case, name, most) in rows() {
        let mut pairs = Vec::new();
        for _ in 0..bench.runs {
            pairs.push((world.measure(case, Way::Tcp, time)?, world.measure(case, Way::Vmmc, time)?));
        }
        let of = |f: &dyn Fn(&(Figure, Figure)) -> f64| median(pairs.iter().map(f).collect());
        let time_ratio = of(&|p| p.1.wall / p.0.wall);
        outcomes.push(Outcome {
            name,
            tcp: Figure { wall: of(&|p| p.0.wall), cpu: of(&|p| p.0.cpu) },
            vmmc: Figure { wall: of(&|p| p.1.wall), cpu: of(&|p| p.1.cpu) },
            time_ratio,
            cpu_ratio: of(&|p| p.1.cpu / p.0.cpu),
            time_most: Some(most),
            cpu_most: None,
            met: time_ratio <= most,
        });
    }
    if bench.output.json {
        let rows: Vec<_> = outcomes.iter().map(Outcome::json).collect();
        crate::output_json(&serde_json::json!({
            "bench": "sockets", "path": "two-nodes", "machine": Machine::here().to_string(), "rows": rows,
        }))?;
    } else {
        let header =
            ["what", "TCP", "VMMC", "time ratio", "at most", "cpu TCP", "cpu VMMC", "cpu ratio", "at most", ""];
        let lines: Vec<Vec<String>> = outcomes.iter().map(Outcome::line).collect();
        let mut text = format!(
            "vmmc bench sockets --path two-nodes on {}\n\n{}\ntime and processor time for an operation, microseconds (1 MiB for writes); medians of {} runs in turns; each node and its program share one core\n",
            Machine::here(),
            table::align(&header, &lines, 1),
            bench.runs
        );
        quiet.warnings().iter().for_each(|w| text += &format!("warning: {w}\n"));
        crate::output(&text)?;
    }
    let missed = outcomes.iter().filter(|outcome| !outcome.met).count();
    if bench.check && missed > 0 {
        return Err(Failure::Check(format!("{missed} promises are not met")));
    }
    Ok(())
}

/// A node, and another process with another node that answers; they end with this value.
struct World {
    peer: Child,
    plain: SocketAddr,
    through: SocketAddr,
    context: Arc<Context>,
    node: Node,
    key: PathBuf,
    /// Of the measuring side, and of the other one.
    cores: (usize, usize),
}

/// A node in a thread of its own, on a core.
struct Node {
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
    address: SocketAddr,
}

impl Node {
    fn start(name: &str, key: &Path, peers: &[SocketAddr], core: usize) -> Result<Node, Failure> {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = NodeConfig::new(name).listen(listen).key(KeySource::File(key.into()));
        let config = peers.iter().fold(config, |config, peer| config.peer(&[*peer]));
        let daemon = Daemon::start(config).map_err(Failure::new)?;
        let running = daemon.running();
        let address = *running.addresses.first().ok_or_else(|| Failure::new("the node has no address"))?;
        let stopper = daemon.stopper();
        let run = move || {
            pin(core);
            drop(daemon.run());
        };
        Ok(Node { stopper, thread: Some(std::thread::spawn(run)), address })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl World {
    fn start() -> Result<World, Failure> {
        let name = format!("bench-sockets-{}", std::process::id());
        let key = std::env::temp_dir().join(format!("{name}.key"));
        let cores = core_pair();
        let node = Node::start(&name, &key, &[], cores.0)?;
        let mut peer = Command::new(std::env::current_exe()?)
            .args(["sockets-peer", &format!("{name}-2"), "--peer", &node.address.to_string(), "--key-file"])
            .arg(&key)
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
        Ok(World { peer, plain, through, context, node, key, cores })
    }

    fn measure(&self, case: Case, way: Way, time: Duration) -> Result<Figure, Failure> {
        // A thread of its own, so that the rest of the program stays where it is.
        std::thread::scope(|scope| {
            let measured = scope.spawn(move || {
                pin(self.cores.0);
                self.case(case, way, time)
            });
            measured.join().map_err(|_| Failure::new("the measuring thread failed"))?
        })
    }

    fn case(&self, case: Case, way: Way, time: Duration) -> Result<Figure, Failure> {
        let size = match case {
            Case::Ping { bytes } => bytes,
            Case::Think { .. } => 8,
            Case::Push => 0,
        };
        let tcp = TcpStream::connect(if way == Way::Tcp { self.plain } else { self.through })?;
        tcp.set_nodelay(true)?;
        let mut both: Box<dyn Both> = match way {
            Way::Tcp => Box::new(tcp),
            Way::Vmmc => Box::new(Stream::new(&self.context, tcp)),
        };
        both.write_all(&[self.cores.1 as u8])?;
        both.write_all(&(size as u32).to_le_bytes())?;
        let mut data = vec![b's'; size.max(1)];
        let mut operation = || -> Result<(), Failure> {
            match case {
                Case::Push => {
                    both.write_all(&[b's'; CHUNK])?;
                    both.write_all(b"e")?;
                    return Ok(both.read_exact(&mut [0u8; 8])?);
                }
                Case::Think { us } => std::thread::sleep(Duration::from_micros(us)),
                Case::Ping { .. } => {}
            }
            both.write_all(&data)?;
            Ok(both.read_exact(&mut data)?)
        };
        // Until the connection has found the medium that is faster for it.
        let rounds = if size == 0 { BETWEEN_WARM_ROUNDS / 50 } else { BETWEEN_WARM_ROUNDS };
        (0..rounds).try_for_each(|_| operation())?;
        let (cpu, start, mut done) = (self.cpu()?, Instant::now(), 0u32);
        while start.elapsed() < time {
            operation()?;
            done += 1;
        }
        let wall = start.elapsed().as_secs_f64();
        Ok(Figure { wall: wall / f64::from(done), cpu: (self.cpu()? - cpu) / f64::from(done) })
    }

    /// Processor time of both processes so far, seconds. The nodes are part of them.
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
        self.node.stopper.stop();
        let _ = std::fs::remove_file(&self.key);
    }
}

/// The other process: answers on both listeners until its standard input closes.
pub(crate) fn serve(name: &str, peer: SocketAddr, key: &Path) -> Result<(), Failure> {
    let _node = Node::start(name, key, &[peer], core_pair().1)?;
    let (plain, through) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    crate::output(&format!("{}\n{}\n", plain.local_addr()?, through.local_addr()?))?;
    let context = context(name);
    std::thread::spawn(move || accept(&plain, |tcp| Box::new(tcp)));
    std::thread::spawn(move || accept(&through, |tcp| Box::new(Stream::new(&context, tcp))));
    let mut end = Vec::new();
    std::io::stdin().read_to_end(&mut end)?;
    Ok(())
}

fn accept(listener: &TcpListener, dress: impl Fn(TcpStream) -> Box<dyn Both>) {
    while let Ok((tcp, _)) = listener.accept() {
        let _ = tcp.set_nodelay(true);
        let mut both = dress(tcp);
        // A client that goes away ends its thread.
        std::thread::spawn(move || drop(answer(&mut *both)));
    }
}

fn answer(both: &mut dyn Both) -> std::io::Result<()> {
    let mut core = [0u8];
    both.read_exact(&mut core)?;
    if core[0] == ASK_CPU {
        return both.write_all(&own_cpu().to_le_bytes());
    }
    pin(core[0] as usize);
    let mut size = [0u8; 4];
    both.read_exact(&mut size)?;
    let size = u32::from_le_bytes(size) as usize;
    let mut data = vec![0; if size == 0 { CHUNK } else { size }];
    loop {
        if size > 0 {
            both.read_exact(&mut data)?;
            both.write_all(&data)?;
            continue;
        }
        match both.read(&mut data)? {
            0 => return Ok(()),
            got if data[got - 1] == b'e' => both.write_all(&data[..8])?,
            _ => {}
        }
    }
}
