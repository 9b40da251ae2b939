//! What connections cost that say nothing: memory, processors, and a busy one beside them.
//!
//! Invariant: all of them are upgraded before anything is measured. At the other side some have a
//! thread each that sleeps in a receive, as in a server with threads; the others are in one event
//! loop. On this side nobody waits for them.

use super::{Case, PARK, Way, World, median};
use crate::args::Bench;
use crate::failure::Failure;
use crate::limits::{IDLE_SETTLE, IDLE_SLEEPERS, IDLE_SOCKETS, IDLE_WATCH, MANY_IDLE_SOCKETS};
use crate::machine::core_pair;
use rustix::event::epoll;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vmmc_sockets::{Context, Interest, ReadySet, Stream};

/// A line that compares something else than TCP and VMMC.
pub(super) struct Special {
    pub(super) line: Vec<String>,
    pub(super) json: serde_json::Value,
    pub(super) met: bool,
}

/// Most memory of 10,000 silent connections, and of fewer in proportion.
const SILENT_BYTES_MOST: f64 = (1u64 << 30) as f64 / 10_000.0;
/// Processor time a second that is nothing: the measurement itself and the node's clock.
const SILENT_CPU_MOST: f64 = 0.02;

impl Special {
    fn new(name: String, figures: [String; 4], json: serde_json::Value, met: bool) -> Special {
        let mut line = vec![name];
        line.extend(figures);
        line.extend([(); 4].map(|()| String::new()));
        line.push(if met { String::new() } else { "missed".into() });
        Special { line, json, met }
    }

    fn beside(count: usize, alone: f64, beside: f64) -> Special {
        let (ratio, us) = (beside / alone, |s: f64| format!("{:.2}", s * 1e6));
        let json = serde_json::json!({
            "what": "8 B beside silent connections (first figure: without them)", "connections": count,
            "alone_us": alone * 1e6, "beside_us": beside * 1e6, "time_ratio": ratio, "time_ratio_most": 1.2, "met": ratio <= 1.2,
        });
        let figures = [us(alone), us(beside), format!("{ratio:.3}"), "1.20".into()];
        Special::new(format!("8 B, alone and beside {count} silent ones"), figures, json, ratio <= 1.2)
    }

    fn silent(count: usize, bytes: u64, cpu: f64) -> Special {
        let met = bytes as f64 <= SILENT_BYTES_MOST * count as f64 && cpu <= SILENT_CPU_MOST;
        let json = serde_json::json!({
            "what": "silent connections", "connections": count, "shared_memory_bytes": bytes, "cpu_s_per_s": cpu, "met": met,
        });
        let name = format!("{count} silent: {} MiB, {cpu:.3} s of processors a second", bytes >> 20);
        Special::new(name, [(); 4].map(|()| String::new()), json, met)
    }
}

/// What thousands of silent connections cost a busy one, in memory, and in processor time.
pub(super) fn measure(world: &World, bench: &Bench, time: Duration) -> Result<Vec<Special>, Failure> {
    let best = || -> Result<f64, Failure> {
        let ping = Case::Ping { same_core: false, busy: false };
        let walls: Result<Vec<f64>, Failure> =
            (0..bench.runs()).map(|_| world.measure(ping, Way::Vmmc, time).map(|f| f.wall)).collect();
        Ok(median(walls?))
    };
    let alone = best()?;
    let memory = shared_memory_bytes();
    let mut silent = Vec::new();
    fall_silent(world, &mut silent, IDLE_SOCKETS)?;
    let some = silent.len();
    let beside = best()?;
    fall_silent(world, &mut silent, MANY_IDLE_SOCKETS)?;
    let many = silent.len();
    let taken = shared_memory_bytes().saturating_sub(memory);
    std::thread::sleep(IDLE_SETTLE);
    let cpu = world.peer.cpu()?;
    std::thread::sleep(IDLE_WATCH);
    let cpu = (world.peer.cpu()? - cpu) / IDLE_WATCH.as_secs_f64();
    Ok(vec![Special::beside(some, alone, beside), Special::silent(many, taken, cpu)])
}

/// Opens connections that say nothing once they are upgraded, until there are so many; fewer, and
/// the reason is printed, on a system that allows fewer descriptors or threads.
fn fall_silent(world: &World, silent: &mut Vec<Box<dyn super::Both>>, count: usize) -> Result<(), Failure> {
    let (_, core) = core_pair();
    while silent.len() < count {
        let one = world.ready_after(0, Way::Vmmc, core).and_then(|mut one| {
            if silent.len() >= IDLE_SLEEPERS {
                one.write_all(&[PARK])?;
            }
            Ok(one)
        });
        match one {
            Ok(one) => silent.push(one),
            Err(failure) if silent.is_empty() => return Err(failure),
            Err(failure) => {
                let now = silent.len();
                eprintln!(
                    "{now} silent connections instead of {count}: {failure}; see `ulimit -n`, each takes a descriptor at either side, and `ulimit -u`"
                );
                break;
            }
        }
    }
    Ok(())
}

/// Shared memory of the machine, which is what rings are made of.
fn shared_memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Shmem:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

/// The other side's event loop: it waits for all silent connections as a server does, in the ring
/// and in the kernel.
pub(super) struct Parked {
    epoll: OwnedFd,
    set: ReadySet,
    streams: Mutex<Vec<Stream>>,
}

impl Parked {
    pub(super) fn start(context: &Context) -> Result<Arc<Parked>, Failure> {
        let set = context.ready_set().map_err(Failure::new)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Failure::new)?;
        let bell = epoll::EventData::new_u64(u64::MAX);
        epoll::add(&epoll, set.bell(), bell, epoll::EventFlags::IN | epoll::EventFlags::ET).map_err(Failure::new)?;
        let parked = Arc::new(Parked { epoll, set, streams: Mutex::default() });
        let waits = parked.clone();
        std::thread::Builder::new().name("parked".into()).spawn(move || waits.wait())?;
        Ok(parked)
    }

    pub(super) fn add(&self, stream: Stream) {
        let mut streams = self.streams.lock().unwrap_or_else(|e| e.into_inner());
        let token = streams.len();
        let what = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        // One that cannot be watched is silent all the same.
        let _ = epoll::add(&self.epoll, stream.socket(), epoll::EventData::new_u64(token as u64), what);
        let _ = self.set.add(stream.connection(), token as u32, Interest::READ);
        streams.push(stream);
    }

    /// Until the process ends. A peer that speaks is not answered: it said that it would not.
    fn wait(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            self.set.take(&mut |_| {});
            if !self.set.arm() {
                events.clear();
                let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None);
            }
            self.set.disarm();
        }
    }
}
