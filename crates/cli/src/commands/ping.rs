//! `vmmc ping`: from engine to engine and back, alone and beside a stream between the two.
//!
//! Invariant: the time is the engines' own; what this process takes to ask is not in it. Pings
//! beside a stream are counted while it moves bytes, or there is an error.

use super::attach;
use crate::args::ping::{Load, Ping};
use crate::failure::Failure;
use crate::limits::{LOAD_BEGINS, LOAD_MOVES, STREAM_BYTES, STREAM_TRANSFERS};
use crate::measure::stats::{Sample, Spread};
use crate::report::units;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use vmmc::{Import, Rights, SendOptions, Session, Transfer, TransferError};

/// A stream under way, which ends by itself with an error only.
type Running<'a> = ScopedJoinHandle<'a, Result<(), Failure>>;

/// What `vmmc ping --listen` exports.
const EXPORT: &str = "vmmc-ping";

/// Runs the command.
pub(crate) fn run(ping: &Ping) -> Result<(), Failure> {
    let session = attach(&ping.which.name)?;
    let Some(node) = &ping.node else { return listen(&session, &ping.which.name) };
    let here = session.node();
    if ping.load.is_some() && (*node == here.name || here.listen.contains(node)) {
        return Err(Failure::new(format!("{node} is this node: a stream to itself passes no network")));
    }
    let streams = Stream::open(node, ping)?;
    let alone = count(&session, node, ping, None)?;
    let beside = (!streams.is_empty()).then(|| beside(&session, node, &streams, ping)).transpose()?;
    if ping.json {
        let Some(spread) = Spread::of(alone.clone()) else { return Ok(()) };
        let mut all = serde_json::json!({
            "node": node, "from": ping.which.name, "rtt_ns": alone,
            "min_ns": spread.min, "median_ns": spread.median, "max_ns": spread.max,
        });
        if let Some(Beside { times, bytes_per_s }) = beside {
            all["beside_load"] = serde_json::json!({ "rtt_ns": times, "bytes_per_s": bytes_per_s });
        }
        return crate::output_json(&all);
    }
    summary("round trip", alone)?;
    let Some(Beside { times, bytes_per_s }) = beside else { return Ok(()) };
    summary(&format!("beside {}", units::rate(bytes_per_s)), times)
}

fn summary(what: &str, mut times: Vec<f64>) -> Result<(), Failure> {
    let Some(Spread { median, min, max }) = Spread::of(times.clone()) else { return Ok(()) };
    let [min, median, max] = [min, median, max].map(units::time);
    let p99 = match Sample::latency(&mut times, 1.0) {
        // Of fewer it is the largest.
        Some(Sample::Latency { p99_ns, .. }) if times.len() >= 100 => format!(", p99 {}", units::time(p99_ns)),
        _ => String::new(),
    };
    crate::output(&format!("{what}: median {median}, smallest {min}{p99}, largest {max}\n"))
}

/// Round trips, nanoseconds. Beside streams it ends when one of them does.
fn count(session: &Session, node: &str, ping: &Ping, beside: Option<&[Running<'_>]>) -> Result<Vec<f64>, Failure> {
    let timeout = Duration::from_millis(ping.timeout_ms);
    let mut times = Vec::new();
    for n in 1..=ping.count {
        if beside.is_some_and(|streams| streams.iter().any(Running::is_finished)) {
            break;
        }
        let ns = session.ping(node, timeout)?.as_nanos() as f64;
        times.push(ns);
        if !ping.json {
            let (name, count, time) = (&ping.which.name, ping.count, units::time(ns));
            match beside {
                Some(_) => crate::output(&format!("{node} answered beside a stream: {n} of {count}, {time}\n"))?,
                None => crate::output(&format!("{node} answered to {name}: {n} of {count}, {time}\n"))?,
            }
        }
    }
    Ok(times)
}

/// Memory that others stream to and from, until this ends.
fn listen(session: &Session, name: &str) -> Result<(), Failure> {
    let _memory = session.export(STREAM_BYTES as u64).name(EXPORT).create().map_err(Failure::new)?;
    crate::output(&format!(
        "node {name} takes streams of `vmmc ping NODE --load` of your user until this is interrupted\n"
    ))?;
    while session.is_alive() {
        std::thread::sleep(LOAD_BEGINS);
    }
    Err(Failure::new(format!("node {name} has ended")))
}

/// Round trips beside a stream.
struct Beside {
    times: Vec<f64>,
    bytes_per_s: f64,
}

fn beside(session: &Session, node: &str, streams: &[Stream], ping: &Ping) -> Result<Beside, Failure> {
    let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, moved) = (&stop, &moved);
        let started = streams.iter().map(|stream| scope.spawn(move || stream.run(stop, moved)));
        let streams: Vec<Running<'_>> = started.collect();
        let _ends = Ends(stop);
        std::thread::sleep(LOAD_BEGINS);
        let (begun, before) = (Instant::now(), moved.load(Ordering::Relaxed));
        let times = count(session, node, ping, Some(&streams));
        // Few pings take less time than a message of a stream may.
        let ended = || streams.iter().any(|stream| stream.is_finished());
        while moved.load(Ordering::Relaxed) == before && begun.elapsed() < LOAD_MOVES && !ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let bytes_per_s = (moved.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        for stream in streams {
            stream.join().expect("streams do not panic")?;
        }
        Ok(Beside { times: times?, bytes_per_s })
    })
}

/// Streams end when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stream to the other node, or from it.
struct Stream {
    import: Import,
    is_fetched: bool,
}

impl Stream {
    /// Those that are asked for.
    fn open(node: &str, ping: &Ping) -> Result<Vec<Stream>, Failure> {
        let ways: &[bool] = match ping.load {
            None => &[],
            Some(Load::Out) => &[false],
            Some(Load::In) => &[true],
            Some(Load::Both) => &[false, true],
        };
        // Each has a session of its own: what one waits for holds up nobody else.
        ways.iter().map(|is_fetched| Stream::open_one(node, &attach(&ping.which.name)?, *is_fetched)).collect()
    }

    fn open_one(node: &str, session: &Session, is_fetched: bool) -> Result<Stream, Failure> {
        let rights = if is_fetched { Rights::READ } else { Rights::WRITE };
        let import = session.import(EXPORT).node(node).rights(rights).open().map_err(|error| {
            Failure::new(format!("{error}; the other end of a stream is `vmmc ping --listen --name {node}` there"))
        })?;
        Ok(Stream { import, is_fetched })
    }

    /// Moves messages until told to stop, and counts their bytes.
    fn run(&self, stop: &AtomicBool, moved: &AtomicU64) -> Result<(), Failure> {
        if self.is_fetched { self.fetch(stop, moved) } else { self.send(stop, moved) }.map_err(Failure::new)
    }

    fn send(&self, stop: &AtomicBool, moved: &AtomicU64) -> Result<(), TransferError> {
        let source = vec![0; STREAM_BYTES];
        let mut under_way: VecDeque<Transfer<'_>> = VecDeque::with_capacity(STREAM_TRANSFERS);
        while !stop.load(Ordering::Relaxed) || !under_way.is_empty() {
            if !stop.load(Ordering::Relaxed) && under_way.len() < STREAM_TRANSFERS {
                under_way.push_back(self.import.post_send(0, &source[..], SendOptions::default())?);
            } else if let Some(mut oldest) = under_way.pop_front() {
                moved.fetch_add(oldest.wait()?, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn fetch(&self, stop: &AtomicBool, moved: &AtomicU64) -> Result<(), TransferError> {
        let mut spare = Vec::new();
        let mut under_way: VecDeque<Transfer<'_, Vec<u8>>> = VecDeque::with_capacity(STREAM_TRANSFERS);
        while !stop.load(Ordering::Relaxed) || !under_way.is_empty() {
            if !stop.load(Ordering::Relaxed) && under_way.len() < STREAM_TRANSFERS {
                let into = spare.pop().unwrap_or_else(|| vec![0; STREAM_BYTES]);
                under_way.push_back(self.import.post_fetch(0, into)?);
            } else if let Some(mut oldest) = under_way.pop_front() {
                moved.fetch_add(oldest.wait()?, Ordering::Relaxed);
                spare.push(oldest.into_inner());
            }
        }
        Ok(())
    }
}
