//! What the measurements between two processes stand on: a node in a thread, another process that
//! answers, streams of either kind, and the processor time of both.
//!
//! Invariant: a node, a process and a thread of a core end with the value that stands for them.

use super::{Figure, Way};
use crate::failure::Failure;
use crate::machine::pin;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmmc_node::{Daemon, NodeConfig, Stopper};
use vmmc_sockets::{Context, Medium, Settings, Stream};

/// A node in a thread of its own.
pub(super) struct Node {
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
    pub(super) address: SocketAddr,
}

impl Node {
    /// Starts it, on a core if that is said.
    pub(super) fn start(config: NodeConfig, core: Option<usize>) -> Result<Node, Failure> {
        let daemon = Daemon::start(config).map_err(Failure::new)?;
        let running = daemon.running();
        let address = *running.addresses.first().ok_or_else(|| Failure::new("the node has no address"))?;
        let stopper = daemon.stopper();
        let run = move || {
            core.into_iter().for_each(pin);
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

/// The other process. It answers as [`serve`] says.
pub(super) struct Peer {
    process: Child,
    plain: SocketAddr,
    through: SocketAddr,
    context: Arc<Context>,
    /// By which its processor time is asked for.
    cpu: Mutex<TcpStream>,
}

/// What was done in some time.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    wall: f64,
    cpu: f64,
    operations: u32,
}

impl Tally {
    pub(super) fn add(&mut self, other: Tally) {
        self.wall += other.wall;
        self.cpu += other.cpu;
        self.operations += other.operations;
    }

    /// What an operation took.
    pub(super) fn figure(self) -> Figure {
        let operations = f64::from(self.operations);
        Figure { wall: self.wall / operations, cpu: self.cpu / operations }
    }
}

impl Peer {
    /// Starts it, with arguments of this command; `node` is that of this side.
    pub(super) fn start<S: AsRef<OsStr>>(arguments: &[S], node: &str) -> Result<Peer, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("sockets-peer")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = process.stdout.take().ok_or_else(|| Failure::new("the other process has no output"))?;
        let mut lines = BufReader::new(out).lines();
        let mut address = || -> Result<SocketAddr, Failure> {
            let line = lines.next().ok_or_else(|| Failure::new("the other process said nothing"))??;
            line.parse().map_err(Failure::new)
        };
        let (plain, through) = (address()?, address()?);
        let mut cpu = TcpStream::connect(plain)?;
        cpu.set_nodelay(true)?;
        cpu.write_all(&[ASK_CPU])?;
        Ok(Peer { process, plain, through, context: context(node), cpu: Mutex::new(cpu) })
    }

    /// A connection, whose other end is on this core.
    pub(super) fn open(&self, way: Way, core: usize) -> Result<Box<dyn Both>, Failure> {
        let tcp = TcpStream::connect(if way == Way::Tcp { self.plain } else { self.through })?;
        tcp.set_nodelay(true)?;
        let mut both: Box<dyn Both> = match way {
            Way::Tcp => Box::new(tcp),
            Way::Vmmc => Box::new(Stream::new(&self.context, tcp)),
        };
        both.write_all(&[core as u8])?;
        Ok(both)
    }

    /// Does something again and again for some time; each time it is `operations` operations. The
    /// clock is read after each `batch`.
    pub(super) fn timed(
        &self,
        time: Duration,
        operations: u32,
        batch: u32,
        operation: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Figure, Failure> {
        self.tally(time, operations, batch, operation).map(Tally::figure)
    }

    /// As [`timed`](Self::timed), for one piece of several.
    pub(super) fn tally(
        &self,
        time: Duration,
        operations: u32,
        batch: u32,
        mut operation: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Tally, Failure> {
        let (cpu, start, mut done) = (self.cpu()?, Instant::now(), 0u32);
        while start.elapsed() < time {
            for _ in 0..batch {
                operation()?;
            }
            done += batch * operations;
        }
        let wall = start.elapsed().as_secs_f64();
        Ok(Tally { wall, cpu: self.cpu()? - cpu, operations: done })
    }

    /// Processor time of both processes so far, seconds. Nodes are parts of them.
    pub(super) fn cpu(&self) -> Result<f64, Failure> {
        let mut asked = self.cpu.lock().map_err(|_| Failure::new("a measurement panicked"))?;
        asked.write_all(&[ASK_CPU])?;
        let mut theirs = [0u8; 8];
        asked.read_exact(&mut theirs)?;
        Ok(own_cpu() + f64::from_le_bytes(theirs))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Does something in a thread on a core, so that the rest of the program stays where it is.
pub(super) fn on_core<R: Send>(core: usize, work: impl FnOnce() -> Result<R, Failure> + Send) -> Result<R, Failure> {
    std::thread::scope(|scope| {
        let working = scope.spawn(move || {
            pin(core);
            work()
        });
        working.join().map_err(|_| Failure::new("the measuring thread failed"))?
    })
}

/// The other process's part: says where it listens, for plain TCP and for streams that may move,
/// and answers each connection in a thread until standard input closes.
pub(super) fn serve(
    context: &Arc<Context>,
    answer: impl Fn(Box<dyn Both>) + Clone + Send + 'static,
) -> Result<(), Failure> {
    let (plain, through) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    crate::output(&format!("{}\n{}\n", plain.local_addr()?, through.local_addr()?))?;
    let (context, same) = (context.clone(), answer.clone());
    std::thread::spawn(move || accept(&plain, |tcp| Box::new(tcp), same));
    std::thread::spawn(move || accept(&through, |tcp| Box::new(Stream::new(&context, tcp)), answer));
    let mut end = Vec::new();
    std::io::stdin().read_to_end(&mut end)?;
    Ok(())
}

fn accept(
    listener: &TcpListener,
    dress: impl Fn(TcpStream) -> Box<dyn Both>,
    answer: impl Fn(Box<dyn Both>) + Clone + Send + 'static,
) {
    while let Ok((tcp, _)) = listener.accept() {
        let _ = tcp.set_nodelay(true);
        let (mut both, answer) = (dress(tcp), answer.clone());
        let answering = move || {
            let mut first = [0u8];
            // A client that goes away ends its thread.
            match both.read_exact(&mut first).map(|()| first[0]) {
                Err(_) => {}
                Ok(ASK_CPU) => {
                    while both.read_exact(&mut first).is_ok() && both.write_all(&own_cpu().to_le_bytes()).is_ok() {}
                }
                Ok(core) => {
                    pin(core as usize);
                    answer(both);
                }
            }
        };
        // Thousands of them wait at a time.
        if std::thread::Builder::new().stack_size(64 << 10).spawn(answering).is_err() {
            return;
        }
    }
}

/// Streams of this process, by way of a node.
pub(super) fn context(node: &str) -> Arc<Context> {
    Arc::new(Context::new(Settings { node_name: node.to_string(), ..Settings::from_env() }))
}

fn own_cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// In place of a core, and in each question: the other process's processor time is asked for.
const ASK_CPU: u8 = 255;

/// A stream of either kind.
pub(super) trait Both: Read + Write + Send {
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
