//! Stream sockets between two nodes beside plain TCP: short and long messages there and back, a
//! stream, a client that thinks.
//!
//! Invariant: each node and its program share one core, as on two machines of one core, for TCP
//! too; so both sides of a ratio have the same cores. What goes between the nodes is encrypted, TCP
//! is not. Processor time is that of both programs and both nodes. A run holds a connection of
//! either kind and lets them work in turns of a few milliseconds, so that what the machine does
//! otherwise meets both. Every second turn of TCP counts for one half of it: how far the halves are
//! apart says what the run can tell, for a connection that stays with the kernel is TCP itself.

use super::peer::{self, Both, Node, Peer, Tally, context, on_core};
use super::{Bounds, CHUNK, Figure, Outcome, Way};
use crate::args::Bench;
use crate::failure::Failure;
use crate::limits::{BETWEEN_TURN, BETWEEN_WARM_ROUNDS};
use crate::machine::{Machine, Quiet, core_pair};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vmmc_node::{KeySource, NodeConfig};

#[derive(Clone, Copy)]
enum Case {
    /// So many bytes there and back.
    Ping { bytes: usize },
    /// The same, 8 bytes, after a pause.
    Think { us: u64 },
    /// 1 MiB writes in one direction.
    Push,
}

/// What is measured, and its bounds.
fn rows() -> [(Case, &'static str, Bounds); 8] {
    let ping = |bytes| Case::Ping { bytes };
    let time = (Some(1.0), None);
    let both = (Some(1.0), Some(1.0));
    [
        (ping(8), "8 B there and back", time),
        (ping(1 << 10), "1 KiB there and back", time),
        (ping(4 << 10), "4 KiB there and back", time),
        (ping(16 << 10), "16 KiB there and back", time),
        (ping(64 << 10), "64 KiB there and back", time),
        (Case::Push, "1 MiB writes, one way", time),
        (Case::Think { us: 50 }, "8 B, client thinks 50 us", both),
        (Case::Think { us: 200 }, "8 B, client thinks 200 us", both),
    ]
}

/// Runs this part of the bench.
pub(super) fn run(bench: &Bench) -> Result<(), Failure> {
    let quiet = Quiet::start();
    let world = World::start()?;
    let time = bench.time();
    let mut outcomes = Vec::new();
    for (case, name, most) in rows() {
        let (mut pairs, mut again) = (Vec::new(), Vec::new());
        for _ in 0..bench.runs() {
            let (tcp, vmmc) = world.measure(case, time)?;
            pairs.push((tcp[0].mean(tcp[1]), vmmc));
            again.push((tcp[0], tcp[1]));
        }
        outcomes.push(Outcome::of(name, most, &pairs).with_spread(&again));
    }
    if bench.output.json {
        let rows: Vec<_> = outcomes.iter().map(Outcome::json).collect();
        crate::output_json(&serde_json::json!({
            "bench": "sockets", "path": "two-nodes", "machine": Machine::here().to_string(), "rows": rows,
        }))?;
    } else {
        let lines: Vec<_> = outcomes.iter().map(Outcome::line).collect();
        let mut text = format!(
            "vmmc bench sockets --path two-nodes on {}\n{}; each node and its program share one core\n\
             spread: by how much TCP differs from itself, in time and in processor time; what is missed within it cannot be told from TCP\n",
            Machine::here(),
            super::show(&lines, bench.runs())
        );
        quiet.warnings().iter().for_each(|w| text += &format!("warning: {w}\n"));
        crate::output(&text)?;
    }
    super::checked(bench, outcomes.iter().filter(|outcome| !outcome.met).count())
}

/// A node, and another process with another node that answers; they end with this value, the
/// process first.
struct World {
    peer: Peer,
    _node: Node,
    key: PathBuf,
    /// Of the measuring side, and of the other one.
    cores: (usize, usize),
}

/// A node that knows others, on a core.
fn start_node(name: &str, key: &Path, peers: &[SocketAddr], core: usize) -> Result<Node, Failure> {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = NodeConfig::new(name).listen(listen).key(KeySource::File(key.into()));
    Node::start(peers.iter().fold(config, |config, peer| config.peer(&[*peer])), Some(core))
}

impl World {
    fn start() -> Result<World, Failure> {
        let name = format!("bench-sockets-{}", std::process::id());
        let key = std::env::temp_dir().join(format!("{name}.key"));
        let cores = core_pair();
        let node = start_node(&name, &key, &[], cores.0)?;
        let (other, at) = (format!("{name}-2"), node.address.to_string());
        let arguments = [other.as_ref(), "--peer".as_ref(), at.as_ref(), "--key-file".as_ref(), key.as_os_str()];
        let peer = Peer::start(&arguments, &name)?;
        Ok(World { peer, _node: node, key, cores })
    }

    /// TCP in two halves, and VMMC.
    fn measure(&self, case: Case, time: Duration) -> Result<([Figure; 2], Figure), Failure> {
        on_core(self.cores.0, || {
            let mut tcp = Work::start(self, case, Way::Tcp)?;
            let mut vmmc = Work::start(self, case, Way::Vmmc)?;
            let mut done = [Tally::default(); 3];
            let turns = (time.as_nanos() / BETWEEN_TURN.as_nanos()).max(2);
            for turn in 0..turns {
                done[turn as usize % 2].add(tcp.tally(&self.peer)?);
                done[2].add(vmmc.tally(&self.peer)?);
            }
            let [first, second, vmmc] = done.map(Tally::figure);
            Ok(([first, second], vmmc))
        })
    }
}

/// A connection and what is done with it.
struct Work {
    case: Case,
    both: Box<dyn Both>,
    data: Vec<u8>,
}

impl Work {
    fn start(world: &World, case: Case, way: Way) -> Result<Work, Failure> {
        let size = match case {
            Case::Ping { bytes } => bytes,
            Case::Think { .. } => 8,
            Case::Push => 0,
        };
        let mut both = world.peer.open(way, world.cores.1)?;
        both.write_all(&(size as u32).to_le_bytes())?;
        let data = vec![b's'; if size == 0 { CHUNK } else { size }];
        let mut work = Work { case, both, data };
        // Until the connection has found the medium that is faster for it.
        let rounds = if size == 0 { BETWEEN_WARM_ROUNDS / 50 } else { BETWEEN_WARM_ROUNDS };
        (0..rounds).try_for_each(|_| work.operation())?;
        Ok(work)
    }

    fn operation(&mut self) -> Result<(), Failure> {
        match self.case {
            Case::Push => {
                self.both.write_all(&self.data)?;
                self.both.write_all(b"e")?;
                return Ok(self.both.read_exact(&mut [0u8; 8])?);
            }
            Case::Think { us } => std::thread::sleep(Duration::from_micros(us)),
            Case::Ping { .. } => {}
        }
        self.both.write_all(&self.data)?;
        Ok(self.both.read_exact(&mut self.data)?)
    }

    /// One turn.
    fn tally(&mut self, peer: &Peer) -> Result<Tally, Failure> {
        // What the other connection's turn left in caches, and of sleeping nodes, is not this
        // one's.
        self.operation()?;
        peer.tally(BETWEEN_TURN, 1, 1, || self.operation())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.key);
    }
}

/// The other process: answers on both listeners until its standard input closes.
pub(crate) fn serve(name: &str, peer: SocketAddr, key: &Path) -> Result<(), Failure> {
    let _node = start_node(name, key, &[peer], core_pair().1)?;
    peer::serve(&context(name), |mut both| drop(answer(&mut *both)))
}

fn answer(both: &mut dyn Both) -> std::io::Result<()> {
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
