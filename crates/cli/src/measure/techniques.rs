//! Techniques measured as [SEMANTICS §4] did: one side alone, while the other passes protocol words
//! only; and both together. Each side is a process of its own.
//!
//! Invariant: the side that is measured holds the clock and prints what it counted; the other one
//! goes on until it is killed.

pub(crate) mod kernel;

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vmmc::Session;
use vmmc_techniques::{PageBuffer, Receiver, Sender, Technique};

/// What a process is started for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// An end of a channel.
    Channel(Channel),
    /// An end of a TCP connection.
    Tcp(kernel::Tcp),
}

/// An end of a channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Channel {
    /// Its node, the receiver's node, and the name of the channel.
    pub(crate) node: String,
    pub(crate) receiver: String,
    pub(crate) name: String,
    pub(crate) technique: String,
    pub(crate) is_sender: bool,
    /// Bytes of a message.
    pub(crate) size: u64,
    pub(crate) moves: Moves,
    /// For how long, if this is the side that is measured.
    pub(crate) time_ms: Option<u64>,
    pub(crate) core: usize,
}

/// What an end does with the bytes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Moves {
    /// Nothing: protocol words only.
    Words,
    /// What its technique does.
    Bytes,
    /// The same, and the receiver reads each byte.
    BytesRead,
}

/// What a side counted.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// Of sends by reference: how many, and how many the kernel copied after all.
    pub(crate) sends: u64,
    pub(crate) copied: u64,
    /// Bytes that were mapped and not copied.
    pub(crate) mapped: u64,
}

impl Counted {
    /// Bytes a second.
    pub(crate) fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }
}

/// Longest time until the other side is there.
const MEETING: Duration = Duration::from_secs(10);
/// Messages before the clock starts.
const WARM_UP: u64 = 8;
/// Bytes that a receiver reads at a time: they stay in the first-level cache.
const SCRATCH: usize = 4096;
/// Bytes of a page.
const PAGE: usize = 4096;

/// A process that carries out a job; killed when dropped.
pub(crate) struct Side {
    child: Child,
}

impl Side {
    /// Starts it, in a network namespace if one is named. One that is not measured ends when the
    /// other has gone, and its error is not shown.
    pub(crate) fn start(job: &Job, is_measured: bool, namespace: Option<&str>) -> Result<Side, Failure> {
        let program = std::env::current_exe()?;
        let job = serde_json::to_string(job).map_err(Failure::new)?;
        let mut command = match namespace {
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(["techniques-peer", &job]).stdin(Stdio::null()).stdout(Stdio::piped());
        if !is_measured {
            command.stderr(Stdio::null());
        }
        Ok(Side { child: command.spawn()? })
    }

    /// What it counted.
    pub(crate) fn counted(mut self) -> Result<Counted, Failure> {
        let mut out = self.child.stdout.take().ok_or_else(|| Failure::new("a side without output"))?;
        let mut said = String::new();
        out.read_to_string(&mut said)?;
        serde_json::from_str(&said)
            .map_err(|_| Failure::new(format!("a side of the measurement ended without a figure, and said {said:?}")))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Carries out a job: the process that [`Side`] starts.
pub(crate) fn serve(job: &str) -> Result<(), Failure> {
    let job: Job = serde_json::from_str(job)
        .map_err(|_| Failure::Usage("this command is started by `vmmc bench techniques` only".into()))?;
    let counted = match &job {
        Job::Channel(channel) => channel.run()?,
        Job::Tcp(tcp) => tcp.run()?,
    };
    crate::output_json(&serde_json::to_value(counted).map_err(Failure::new)?)
}

/// Does something for a time, after a warm-up; without one until it fails, for the other side has
/// gone.
pub(crate) fn repeat(
    time_ms: Option<u64>,
    mut one: impl FnMut() -> Result<u64, Failure>,
    finish: impl FnOnce() -> Result<(), Failure>,
) -> Result<Counted, Failure> {
    for _ in 0..WARM_UP {
        one()?;
    }
    let Some(time) = time_ms.map(Duration::from_millis) else {
        loop {
            one()?;
        }
    };
    let (begun, mut bytes) = (Instant::now(), 0);
    while begun.elapsed() < time {
        bytes += one()?;
    }
    finish()?;
    Ok(Counted { bytes, seconds: begun.elapsed().as_secs_f64(), ..Counted::default() })
}

impl Channel {
    fn run(&self) -> Result<Counted, Failure> {
        crate::machine::pin(self.core);
        let session = Session::builder().node(&self.node).start_node(false).attach()?;
        let technique: Technique = self.technique.parse().map_err(Failure::new)?;
        if self.is_sender { self.send(&session, technique) } else { self.receive(&session, technique) }
    }

    fn send(&self, session: &Session, technique: Technique) -> Result<Counted, Failure> {
        let mut builder = Sender::builder(session, &self.name).wait(MEETING).timeout(MEETING);
        if self.node != self.receiver {
            builder = builder.node(&self.receiver);
        }
        let mut sender = builder.connect().map_err(Failure::new)?;
        let size = self.size;
        let message = vec![7u8; size as usize];
        let mut pages = PageBuffer::new(session, size.max(1)).map_err(Failure::new)?;
        pages.write(0, &message).map_err(Failure::new)?;
        let words_only = self.moves == Moves::Words;
        let sender = std::cell::RefCell::new(&mut sender);
        let one = || {
            let sender = &mut *sender.borrow_mut();
            let sent = match technique {
                _ if words_only => sender.announce(size),
                Technique::Pio | Technique::CopyDma => sender.send(&message),
                Technique::DirectDma => sender.send_agreed(0..size).and_then(|sending| sending.wait()),
                Technique::V2pDma => sender.send_posted(&message).and_then(|sending| sending.wait()),
                Technique::PexDma | Technique::Auto => sender.send_pages(&mut pages, 0..size),
            };
            sent.map(|()| size).map_err(Failure::new)
        };
        repeat(self.time_ms, one, || sender.borrow().flush().map_err(Failure::new))
    }

    fn receive(&self, session: &Session, technique: Technique) -> Result<Counted, Failure> {
        let size = self.size;
        let exchanges = matches!(technique, Technique::PexDma | Technique::Auto);
        let builder = Receiver::builder(session, &self.name).technique(technique).timeout(MEETING);
        let builder = builder.agreed(if technique == Technique::DirectDma { size.max(1) } else { 0 });
        let builder = builder.pages(if exchanges { size.max(1).next_multiple_of(SCRATCH as u64) } else { 0 });
        let mut receiver = builder.open().map_err(Failure::new)?;
        let (mut buffer, mut scratch) = (vec![0; size as usize + PAGE], vec![0; SCRATCH + 2 * PAGE]);
        // Copies whose ends lie next to each other within their pages take several times as long on
        // some processors. So what is read begins on a page, and where it is read to is half a page
        // on.
        let buffer = &mut from_page(&mut buffer, 0)[..size as usize];
        let scratch = &mut from_page(&mut scratch, PAGE / 2)[..SCRATCH];
        let mut pages = exchanges.then(|| receiver.page_buffer(size.max(1))).transpose().map_err(Failure::new)?;
        let posted = technique == Technique::V2pDma;
        let memory = posted.then(|| receiver.memory(size.max(1))).transpose().map_err(Failure::new)?;
        if let Some(memory) = &memory {
            // One is under way while the next one is posted.
            for _ in 0..2 {
                receiver.post(memory, 0..size).map_err(Failure::new)?;
            }
        }
        let one = || {
            let received = match (technique, &memory, &mut pages) {
                (_, Some(memory), _) => {
                    let arrived = receiver.receive_posted().map_err(Failure::new)?;
                    if self.moves == Moves::BytesRead {
                        each(size, |at, len| memory.read(at, &mut scratch[..len]))?;
                    }
                    receiver.post(memory, 0..size).map_err(Failure::new)?;
                    arrived.range.end
                }
                _ if self.moves == Moves::Words => receiver.discard().map_err(Failure::new)?,
                (Technique::DirectDma, ..) => {
                    let range = receiver.receive_agreed().map_err(Failure::new)?;
                    if self.moves == Moves::BytesRead {
                        each(size, |at, len| receiver.read_agreed(at, &mut scratch[..len]))?;
                    }
                    range.end
                }
                (_, _, Some(pages)) => {
                    let received = receiver.receive_pages(pages, 0).map_err(Failure::new)?;
                    if self.moves == Moves::BytesRead {
                        each(size, |at, len| pages.read(at, &mut scratch[..len]))?;
                    }
                    received.len
                }
                _ => {
                    let len = receiver.receive(buffer).map_err(Failure::new)?;
                    if self.moves == Moves::BytesRead {
                        buffer.chunks(SCRATCH).for_each(|part| scratch[..part.len()].copy_from_slice(part));
                        std::hint::black_box(&*scratch);
                    }
                    len as u64
                }
            };
            Ok(received)
        };
        repeat(self.time_ms, one, || Ok(()))
    }
}

/// Memory from so many bytes behind the start of its first whole page on.
fn from_page(memory: &mut [u8], offset: usize) -> &mut [u8] {
    let first = memory.as_ptr().align_offset(PAGE);
    &mut memory[first + offset..]
}

/// Parts of a message as they are read.
fn each(size: u64, mut read: impl FnMut(u64, usize) -> Result<(), vmmc_techniques::Error>) -> Result<(), Failure> {
    let mut at = 0;
    while at < size {
        let len = (size - at).min(SCRATCH as u64);
        read(at, len as usize).map_err(Failure::new)?;
        at += len;
    }
    Ok(())
}
