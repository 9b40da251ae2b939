//! One node that fetches from many at once: what it asks for meets in the queue before it.
//!
//! Invariant: all fetches begin when every import has been granted; pings, one after the other, go
//! to a node of their own over the same bottleneck, until the last fetch has ended.

use vmmc_nic::limits as nic;
use vmmc_nic::{
    Access, Command, Cookie, Event, ExportKind, ExportSpec, ImportId, ProcessId, RegionId, RegionRef, Rights,
};

use super::link::LinkSpec;
use super::scenario::{Scenario, Shape, link, scenario, symmetric};
use super::stream::{MESSAGE_BYTES, SOURCE, Stream, TARGET};
use super::world::{What, World};
use crate::limits::LINK_PING_NS;
use crate::rng::Rng;

const SECOND: u64 = 1_000_000_000;
/// Bytes of each fetch.
pub(super) const FETCH_BYTES: u64 = 1 << 20;
/// Most nodes that are fetched from.
const PEERS_MAX: u64 = 64;
/// Bytes of a ping, and the memory that they come from.
const PING_BYTES: u64 = 8;
const PINGED: RegionId = RegionId(2);
/// Cookie of a fetch; pings have others.
const FETCH: Cookie = Cookie(1 << 40);

/// Pings beside fetches.
#[derive(Debug)]
pub(crate) struct Pings {
    /// The node that is asked.
    pub(crate) node: usize,
    /// The process that asks, at the node that fetches, and that whose memory it is.
    process: ProcessId,
    pub(crate) import: Option<ImportId>,
    asked_ns: u64,
    number: u64,
    /// How long each took.
    took_ns: Vec<u64>,
}

/// Draws a run.
pub(super) fn draw(rng: &mut Rng) -> Scenario {
    let there = LinkSpec {
        queue_bytes: rng.pick(&[250_000, 500_000, 1_000_000]),
        ..link(1_000_000_000, rng.between(100, 1_000) * 1_000, 10)
    };
    let any = rng.between(2, PEERS_MAX);
    let peers = rng.pick(&[2, 4, 16, PEERS_MAX, any]);
    let mut drawn = scenario(Shape::Fetches, vec![0; peers as usize], vec![symmetric(there)], 20 * SECOND);
    drawn.ends_ns = 20 * SECOND;
    drawn.stream_bytes = Some(FETCH_BYTES);
    drawn
}

impl World<'_> {
    /// Makes the memory that a node fetches, and the process that does.
    pub(super) fn add_fetch(&mut self, index: usize, to: usize) -> (ProcessId, ProcessId) {
        let (owner, fetcher) = (self.attach(index), self.attach(to));
        let source = RegionRef { process: owner, region: SOURCE };
        self.nodes[to].ram.add(RegionRef { process: fetcher, region: TARGET }, FETCH_BYTES);
        self.nodes[index].ram.add(source, FETCH_BYTES);
        (0..FETCH_BYTES / MESSAGE_BYTES).for_each(|message| self.nodes[index].ram.compose(source, message));
        self.offer(index, source, FETCH_BYTES, format!("stream{index}"));
        (owner, fetcher)
    }

    /// The same of pings; the node that is asked is the last of all.
    pub(super) fn add_pings(&mut self) {
        let (node, to) = (self.nodes.len() - 1, self.streams.len());
        let (owner, process) = (self.attach(node), self.attach(to));
        let source = RegionRef { process: owner, region: PINGED };
        self.nodes[node].ram.add(source, MESSAGE_BYTES);
        self.nodes[to].ram.add(RegionRef { process, region: PINGED }, MESSAGE_BYTES);
        self.offer(node, source, PING_BYTES, "pinged".to_owned());
        self.pings = Some(Pings { node, process, import: None, asked_ns: 0, number: 0, took_ns: Vec::new() });
        self.due.push(0, What::BeginPings);
    }

    fn attach(&mut self, node: usize) -> ProcessId {
        self.nodes[node].engine.attach(1_000).expect("a new node has room")
    }

    fn offer(&mut self, node: usize, source: RegionRef, len: u64, name: String) {
        let spec = ExportSpec {
            name: Some(name),
            region: source.region,
            offset: 0,
            len,
            rights: Rights::READ,
            access: Access::Anyone,
            notify: false,
            redirectable: false,
            kind: ExportKind::Memory,
        };
        let now = self.time();
        self.nodes[node].engine.export(now, source.process, spec).expect("a new process has room");
    }

    pub(super) fn begin_pings(&mut self) {
        let Some(Pings { node, process, .. }) = self.pings else { return };
        self.import(self.streams.len(), process, node, "pinged".to_owned(), Rights::READ);
    }

    /// Asks once more, unless all fetches have ended.
    pub(super) fn ping(&mut self) {
        let now_ns = self.now_ns;
        let Some(pings) = &mut self.pings else { return };
        let Some(import) = pings.import else { return };
        pings.asked_ns = now_ns;
        let (process, cookie) = (pings.process, Cookie(pings.number));
        let fetch = Command::Fetch { import, offset: 0, len: PING_BYTES, region: PINGED, region_offset: 0, cookie };
        self.post_fetch(process, fetch);
        self.settle(self.streams.len());
    }

    fn post_fetch(&mut self, process: ProcessId, fetch: Command<'_>) {
        let (now, to) = (self.time(), self.streams.len());
        let posted = self.with_port(to, |engine, port| engine.post(now, process, fetch, port));
        if let Err(busy) = posted {
            self.fail("progress", format!("a fetch is refused: {busy}"));
        }
    }

    pub(super) fn on_fetch_event(&mut self, node: usize, event: Event) {
        let of_ping = |process: &ProcessId| self.pings.as_ref().is_some_and(|pings| pings.process == *process);
        let stream = |process: &ProcessId| self.streams.iter().position(|stream| stream.receiver == *process);
        let here = node == self.streams.len();
        match event {
            Event::PeerUp { .. } => {}
            Event::ImportDone { process, result: Ok(grant), .. } if here => {
                match (of_ping(&process), stream(&process)) {
                    (false, Some(index)) => self.streams[index].import = Some(grant.import),
                    _ => self.pings.iter_mut().for_each(|pings| pings.import = Some(grant.import)),
                }
                let pings = self.pings.as_ref().is_some_and(|pings| pings.import.is_some());
                if pings && self.streams.iter().all(|stream| stream.import.is_some()) {
                    self.begin_fetches();
                }
            }
            Event::Completion { process, cookie, result: Ok(bytes) } if here => {
                match (of_ping(&process), stream(&process)) {
                    (false, Some(index)) => self.fetched(index, cookie, bytes),
                    _ => self.pinged(cookie, bytes),
                }
            }
            event => self.fail("honest-errors", format!("node {node}: {event:?}, and nothing is the matter")),
        }
    }

    fn begin_fetches(&mut self) {
        let part = self.tamper.fetch_part(FETCH_BYTES);
        for index in 0..self.streams.len() {
            let Some(import) = self.streams[index].import else { continue };
            self.streams[index].began_ns = Some(self.now_ns);
            let process = self.streams[index].receiver;
            for offset in (0..FETCH_BYTES).step_by(part as usize) {
                let cookie = Cookie(FETCH.0 + offset);
                let fetch = Command::Fetch { import, offset, len: part, region: TARGET, region_offset: offset, cookie };
                self.post_fetch(process, fetch);
            }
        }
        self.due.push(self.now_ns, What::Ping);
    }

    fn fetched(&mut self, index: usize, cookie: Cookie, bytes: u64) {
        let stream = &mut self.streams[index];
        stream.posted += bytes;
        if stream.posted < FETCH_BYTES {
            return;
        }
        if stream.is_over() {
            return self.fail("exactly-once", format!("fetch {index} ends again, as {cookie:?} with {bytes} bytes"));
        }
        let at = RegionRef { process: stream.receiver, region: TARGET };
        (stream.complete, stream.ended_ns) = (FETCH_BYTES / MESSAGE_BYTES, Some(self.now_ns));
        for message in 0..FETCH_BYTES / MESSAGE_BYTES {
            if let Err(why) = self.nodes[self.streams[index].to].ram.examine(at, message) {
                return self.fail("exactly-once", format!("fetch {index}: {why}"));
            }
        }
    }

    fn pinged(&mut self, cookie: Cookie, bytes: u64) {
        let (now_ns, over) = (self.now_ns, self.streams.iter().all(Stream::is_over));
        let Some(pings) = &mut self.pings else { return };
        if (cookie, bytes) != (Cookie(pings.number), PING_BYTES) {
            let message = format!("{cookie:?} ends with {bytes} bytes, ping {} was asked", pings.number);
            return self.fail("exactly-once", message);
        }
        pings.took_ns.push(now_ns - pings.asked_ns);
        pings.number += 1;
        if !over {
            self.due.push(now_ns + LINK_PING_NS, What::Ping);
        }
    }

    /// Of 100 pings 99 took no longer, ms.
    pub(super) fn ping_p99_ms(&self) -> f64 {
        let mut took = self.pings.as_ref().map_or(Vec::new(), |pings| pings.took_ns.clone());
        took.sort_unstable();
        took.get((took.len().max(1) - 1) * 99 / 100).map_or(0.0, |ns| *ns as f64 / 1e6)
    }
}

/// What a ping may take beside fetches: what is asked for at the start, or the part that each peer
/// may be asked for in any case, meets in the queue; and as much again while the rate doubles with
/// each round trip.
pub(super) fn ping_at_most_ms(scenario: &Scenario) -> f64 {
    let peers = scenario.starts_ns.len() as u64;
    let asked = (nic::WINDOW_INITIAL_BYTES as u64).max(peers * nic::FETCH_PART_MIN);
    let there = scenario.routes[0].there;
    nic::FETCH_TIMES as f64 * (scenario.round_trip_ns() + there.ns_of(asked)) as f64 / 1e6
}
