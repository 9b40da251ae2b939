//! TCP and VMMC over emulated links, between two network namespaces of this machine.
//!
//! ```text
//!   namespace A, 10.99.0.1                                  namespace B, 10.99.0.2
//!   TCP clients ─┐                                              ┌─ TCP servers
//!   VMMC client ─┴─ node ── TUN ──▶ rate, delay, queue ──▶ TUN ─┴─ node ── exports
//!                                   loss (wire.rs)
//! ```
//!
//! Invariant: every measurement has connections, or nodes, of its own, so that none begins with
//! what another has learned; bytes count when the other side has all of them; a ping during which
//! the emulator stood still does not count, whoever carried it.

mod tcp;
mod vmmc;
mod wire;

use super::TaskError;
use super::stats::Sample;
use crate::limits::{PARTNER_WAIT, PING_PAUSE, PINGS_ALONE_MAX, WIRE_MTU, WIRE_QUEUE};
use crate::machine;
use std::cell::Cell;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use vmmc_host::tun::Tun;
use vmmc_node::CongestionControl;
pub(crate) use wire::Conditions;
use wire::Wire;

/// Addresses of the two ends.
const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// TCP with this congestion control of the kernel.
    Tcp(&'static str),
    /// Two nodes.
    Vmmc(Vmmc),
}

/// Whether nodes encrypt, and their congestion control; none: the default.
pub(crate) type Vmmc = (bool, Option<CongestionControl>);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// A stream of long messages.
    Bulk,
    /// A request of 8 bytes and its answer (of VMMC: a fetch), nothing beside.
    Ping,
    /// The same beside a stream.
    PingBesideBulk,
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace, and a thread in it that starts others there.
struct Home(mpsc::Sender<Job>);

/// A result that a thread of a namespace will have.
struct Pending<T>(mpsc::Receiver<T>);

impl<T> Pending<T> {
    fn wait(self, within: Duration) -> Result<T, TaskError> {
        self.0.recv_timeout(within).map_err(|e| match e {
            mpsc::RecvTimeoutError::Timeout => TaskError::PartnerSilent,
            mpsc::RecvTimeoutError::Disconnected => TaskError::PartnerGone,
        })
    }
}

impl Home {
    fn open(address: Ipv4Addr) -> Result<(Home, Tun), TaskError> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (ready, opened) = mpsc::channel();
        let all = machine::cores();
        std::thread::Builder::new().name("namespace".into()).spawn(move || {
            // The last one is the link's.
            machine::leave_last(&all);
            let tun = Tun::in_new_network(address, 24, WIRE_MTU, WIRE_QUEUE);
            let open = tun.is_ok();
            let _ = ready.send(tun);
            if open {
                // The kernel shall not remember one connection's path for the next.
                let _ = std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
                inbox.into_iter().for_each(|job| drop(std::thread::spawn(job)));
            }
        })?;
        let tun = Pending(opened).wait(PARTNER_WAIT)?.map_err(|e| TaskError::Protocol(e.to_string()))?;
        Ok((Home(jobs), tun))
    }

    /// Does this on a thread of the namespace.
    fn start<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Pending<T> {
        let (done, result) = mpsc::channel();
        // A thread that has ended drops the job, and with it the sender: that is what `wait` says.
        let _ = self.0.send(Box::new(move || drop(done.send(work()))));
        Pending(result)
    }
}

/// Two namespaces and the link between them.
pub(crate) struct World {
    homes: [Home; 2],
    wire: Wire,
    stops: Cell<Stops>,
}

/// How often the emulator has stood still, the longest time, and the pings that met it.
#[derive(Clone, Copy, Default)]
struct Stops {
    times: usize,
    longest: Duration,
    pings: usize,
}

impl World {
    /// Makes them.
    pub(crate) fn open(conditions: Conditions) -> Result<World, TaskError> {
        let (near, one) = Home::open(ENDS[0])?;
        let (far, other) = Home::open(ENDS[1])?;
        let wire = Wire::start([one, other], conditions)?;
        Ok(World { homes: [near, far], wire, stops: Cell::default() })
    }

    /// Measures once over a link like this.
    pub(crate) fn measure(
        &self,
        conditions: Conditions,
        carrier: Carrier,
        load: Load,
        time: Duration,
    ) -> Result<Sample, TaskError> {
        self.wire.change(conditions);
        let ends = self.ends(carrier)?;
        let bulk = (load != Load::Ping).then(|| ends.bulk(time)).transpose()?;
        if load == Load::Bulk {
            return rate(bulk);
        }
        let over = Arc::new(AtomicBool::new(false));
        let (pause, most) = match &bulk {
            Some(_) => (PING_PAUSE, u64::MAX),
            None => (Duration::ZERO, PINGS_ALONE_MAX),
        };
        let pings = ends.pings(Pings { time, pause, most, over: Arc::clone(&over) })?;
        if bulk.is_some() {
            rate(bulk)?;
            over.store(true, Ordering::Relaxed);
        }
        let pings = pings.wait(time + PARTNER_WAIT)??;
        let mut times = self.without_stops(&pings);
        Sample::latency(&mut times, 1.0).ok_or_else(|| {
            TaskError::Protocol(
                "the link stood still in each ping: repeat on a machine with processors to spare".into(),
            )
        })
    }

    /// Nanoseconds of the pings during which the link worked.
    fn without_stops(&self, pings: &[Ping]) -> Vec<f64> {
        let stops = self.wire.stops();
        let nanos = |(sent, answered): &Ping| (*answered - *sent).as_nanos() as f64;
        let times: Vec<f64> = pings.iter().filter(|ping| !meets(ping, &stops)).map(nanos).collect();
        let mut all = self.stops.get();
        all.times += stops.len();
        all.longest = stops.iter().map(|(from, until)| *until - *from).fold(all.longest, Duration::max);
        all.pings += pings.len() - times.len();
        self.stops.set(all);
        times
    }

    /// What was wrong with the links during pings, for people.
    pub(crate) fn warning(&self) -> Option<String> {
        let Stops { times, longest, pings } = self.stops.get();
        let longest_ms = longest.as_secs_f64() * 1e3;
        (times > 0).then(|| {
            format!(
                "this machine stopped the emulated link {times} times beside pings, for up to {longest_ms:.1} ms; \
                 {pings} pings that met that do not count, what it left in queues does"
            )
        })
    }

    /// Measures two streams at once over a link like this.
    pub(crate) fn share(
        &self,
        conditions: Conditions,
        carriers: [Carrier; 2],
        time: Duration,
    ) -> Result<[Sample; 2], TaskError> {
        self.wire.change(conditions);
        let [one, other] = carriers.map(|carrier| self.ends(carrier));
        let (one, other) = (one?, other?);
        let (first, second) = (one.bulk(time)?, other.bulk(time)?);
        Ok([rate(Some(first))?, rate(Some(second))?])
    }

    /// Measures so many streams of VMMC at once over a link like this, each between two nodes of
    /// its own, which begin so far `apart`, for a time that begins `after` the last one does.
    pub(crate) fn pairs(
        &self,
        conditions: Conditions,
        (sealed, congestion): Vmmc,
        count: usize,
        (apart, after, time): (Duration, Duration, Duration),
    ) -> Result<Vec<Sample>, TaskError> {
        self.wire.change(conditions);
        let start = |_| vmmc::Nodes::start(&self.homes, sealed, congestion, 1);
        let pairs = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
        let begun = Instant::now();
        let share = |(pair, later): (&vmmc::Nodes<'_>, u32)| {
            let to_come = apart * (count as u32 - 1 - later);
            std::thread::sleep((apart * later).saturating_sub(begun.elapsed()));
            pair.share(to_come + after, time)
        };
        let streams = pairs.iter().zip(0..).map(share).collect::<Result<Vec<_>, _>>()?;
        let rate = |stream: Pending<Result<f64, TaskError>>| {
            Ok(Sample::Bandwidth { bytes_per_s: stream.wait(crate::limits::MEASUREMENT_WAIT)?? })
        };
        streams.into_iter().map(rate).collect()
    }

    /// Measures how long so many bytes of each of so many nodes take to one, all at the same time.
    pub(crate) fn incast(
        &self,
        conditions: Conditions,
        (sealed, congestion): Vmmc,
        senders: usize,
        bytes: u64,
    ) -> Result<Vec<Sample>, TaskError> {
        self.wire.change(conditions);
        let times = vmmc::Nodes::start(&self.homes, sealed, congestion, senders)?.converge(bytes)?;
        let sample = |took: Duration| Sample::latency(&mut [took.as_nanos() as f64], 1.0);
        Ok(times.into_iter().filter_map(sample).collect())
    }

    fn ends(&self, carrier: Carrier) -> Result<Box<dyn Ends + '_>, TaskError> {
        Ok(match carrier {
            Carrier::Tcp(control) => Box::new(tcp::Tcp { homes: &self.homes, control }),
            Carrier::Vmmc((sealed, congestion)) => Box::new(vmmc::Nodes::start(&self.homes, sealed, congestion, 1)?),
        })
    }
}

/// How pings are made.
struct Pings {
    /// For so long, alone.
    time: Duration,
    /// With so long a rest after each.
    pause: Duration,
    /// At most so many.
    most: u64,
    /// The stream beside them is over.
    over: Arc<AtomicBool>,
}

impl Pings {
    /// When each was sent and answered.
    fn make(&self, mut ping: impl FnMut() -> Result<(), TaskError>) -> Result<Vec<Ping>, TaskError> {
        let begun = Instant::now();
        let mut times = Vec::new();
        let beside = self.pause > Duration::ZERO;
        let goes_on = |done: usize| {
            let timed_out = !beside && begun.elapsed() >= self.time;
            !timed_out && (done as u64) < self.most && !self.over.load(Ordering::Relaxed)
        };
        while times.is_empty() || goes_on(times.len()) {
            let sent = Instant::now();
            ping()?;
            times.push((sent, Instant::now()));
            if beside {
                std::thread::sleep(self.pause);
            }
        }
        Ok(times)
    }
}

/// When a ping was sent, and when it was answered.
type Ping = (Instant, Instant);

/// Whether a ping was under way while the link stood still.
fn meets((sent, answered): &Ping, stops: &[wire::Stop]) -> bool {
    stops.iter().any(|(from, until)| sent < until && from < answered)
}

/// Bytes, and the time until the other side had them.
type Moved = (u64, Duration);

/// Two ends with what runs there.
trait Ends {
    /// Starts a stream of about that time.
    fn bulk(&self, time: Duration) -> Result<Pending<Result<Moved, TaskError>>, TaskError>;
    /// Starts pings.
    fn pings(&self, how: Pings) -> Result<Pending<Result<Vec<Ping>, TaskError>>, TaskError>;
}

fn rate(bulk: Option<Pending<Result<Moved, TaskError>>>) -> Result<Sample, TaskError> {
    let bulk = bulk.ok_or_else(|| TaskError::Protocol("no stream was started".into()))?;
    let (bytes, taken) = bulk.wait(crate::limits::MEASUREMENT_WAIT)??;
    Ok(Sample::Bandwidth { bytes_per_s: bytes as f64 / taken.as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_meets_a_stop_while_it_is_under_way() {
        let begun = Instant::now();
        let span = |from: u64, until: u64| (begun + Duration::from_millis(from), begun + Duration::from_millis(until));
        let stops = [span(10, 14), span(30, 31)];
        for (from, until, met) in [(0, 10, false), (0, 11, true), (11, 12, true), (14, 30, false), (13, 40, true)] {
            assert_eq!(meets(&span(from, until), &stops), met, "{from} to {until} ms");
        }
    }
}
