//! The world of one run: engines, streams, TCP flows and links on a virtual clock.
//!
//! Invariant: time moves only in [`World::advance`]; after every call into an engine its events,
//! datagrams and work have been taken before anything else happens. A packet takes the route of the
//! moment in which it was sent.

use std::time::Duration;

use vmmc_nic::{
    Access, ClusterKey, Codepoint, Command, Config, Cookie, Engine, Event, ExportKind, ExportSpec, Fit, ImportSpec,
    ImportTarget, NodeSpec, OpError, Owner, PeerDownReason, ProcessId, RegionRef, Rights, Source, Time, Transmit,
};

use super::fetches::Pings;
use super::link::{Link, LinkSpec};
use super::scenario::{Route, Scenario, Shape};
use super::sizes::Expected;
use super::stream::{MESSAGE_BYTES, Port, Ram, SLOTS, SOURCE, Stream, TARGET, slot_of};
use super::tamper::LinkTamper;
use super::tcp::{ACK_BYTES, SEGMENT_BYTES, TcpFlow};
use crate::agenda::Agenda;
use crate::cluster::node_name;
use crate::judge::Verdict;
use crate::limits::{
    DATAGRAMS_PER_CALL_MAX, LINK_EVENTS_MAX, LINK_HEADERS_BYTES, LINK_PING_BYTES_MAX, LINK_REST_NS, LINK_SAMPLE_NS,
    LINK_SETUP_NS, WORK_PIECES_PER_CALL_MAX,
};
use crate::network::{address, locate};
use crate::rng::Rng;
use crate::trace::Trace;

/// Cookie of the import of a stream.
const IMPORT: Cookie = Cookie(u64::MAX);
/// Links from hosts to the bottleneck are so much faster.
const ACCESS_TIMES: u64 = 20;

pub(super) enum Body {
    /// Those that may be cut up on the way have been, as far as it matters to the link.
    Datagram {
        from: usize,
        codepoint: Codepoint,
        cut_up: bool,
        bytes: Vec<u8>,
    },
    Segment(u64),
    Ack(usize),
}

pub(super) struct Packet {
    to: usize,
    body: Body,
}

pub(super) enum What {
    /// A packet has come to the bottleneck, which is this link.
    Cross(usize, u64, Packet),
    Arrive(Packet),
    Wake(usize),
    WakeTcp,
    Begin(usize),
    Route(usize),
    /// A node hears what its path takes.
    Told(usize, u64),
    /// Streams go on.
    Resume,
    BeginPings,
    Ping,
    Sample,
}

pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(super) ram: Ram,
    wake_ns: Option<u64>,
    /// When it sent last.
    pub(crate) sent_ns: u64,
    pub(crate) packets: u64,
    /// Bytes of a datagram that its kernel believes its path to take.
    pub(crate) kernel_bytes: u64,
    pub(crate) expected: Expected,
}

/// What was seen at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at_ns: u64,
    pub(crate) queued_bytes: u64,
    /// Bytes that have arrived of each stream, and of the TCP flow behind them.
    pub(crate) arrived_bytes: Vec<u64>,
}

pub(crate) struct World<'a> {
    pub(crate) scenario: Scenario,
    pub(crate) now_ns: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) tcp: Option<TcpFlow>,
    pub(crate) pings: Option<Pings>,
    /// Bottlenecks there and back, of each route in turn.
    pub(crate) links: Vec<Link>,
    /// From each host to the bottleneck.
    access: Vec<Link>,
    pub(crate) route: usize,
    /// Since when packets take it, and since when one is up.
    pub(crate) route_ns: u64,
    pub(crate) up_ns: u64,
    /// When a datagram with data last got through to the receiver of a stream.
    pub(crate) through_ns: u64,
    pub(crate) samples: Vec<Sample>,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) trace: Trace,
    pub(crate) tamper: &'a mut dyn LinkTamper,
    pub(super) due: Agenda<What>,
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
    tcp_wake_ns: Option<u64>,
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: Scenario, seed: u64, tamper: &'a mut dyn LinkTamper) -> World<'a> {
        let mut rng = Rng::new(seed);
        let mut links = Vec::new();
        for Route { there, back, .. } in &scenario.routes {
            links.push(Link::new(*there, rng.fork()));
            links.push(Link::new(*back, rng.fork()));
        }
        let streams = scenario.starts_ns.len();
        let receivers = if scenario.stream_bytes.is_some() { 1 } else { streams };
        let there = scenario.routes[0].there;
        // Hosts take a moment for each packet, up to the time that it takes on the bottleneck.
        // Without that flows fall into step, and the queue always drops packets of the same one
        // [Floyd and Jacobson, On Traffic Phase Effects in Packet-Switched Gateways].
        let host = LinkSpec {
            jitter_ns: there.ns_of(SEGMENT_BYTES),
            ..LinkSpec::plain(ACCESS_TIMES * there.bits_per_s, u64::MAX, 0)
        };
        let access = (0..scenario.nodes() + 2).map(|_| Link::new(host, rng.fork())).collect();
        let mut world = World {
            now_ns: 0,
            nodes: Vec::new(),
            streams: Vec::new(),
            tcp: scenario.tcp.map(TcpFlow::new),
            pings: None,
            links,
            access,
            route: 0,
            route_ns: 0,
            up_ns: 0,
            through_ns: 0,
            samples: Vec::new(),
            verdict: None,
            trace: Trace::new(0),
            tamper,
            due: Agenda::new(),
            buffer: vec![0; vmmc_nic::limits::PACKET_BYTES_MAX],
            spare: Vec::new(),
            tcp_wake_ns: None,
            scenario,
        };
        for node in 0..world.scenario.nodes() {
            world.add_node(node, &mut rng);
        }
        for stream in 0..streams {
            world.add_stream(stream, streams + stream.min(receivers - 1));
        }
        if world.scenario.shape == Shape::Fetches {
            world.add_pings();
        }
        for route in 1..world.scenario.routes.len() {
            world.due.push(world.scenario.routes[route].from_ns, What::Route(route));
        }
        if let Some((_, until_ns)) = world.scenario.pause_ns {
            world.due.push(until_ns, What::Resume);
        }
        world.sizes_change();
        world.due.push(0, What::Sample);
        world
    }

    /// Lets the next thing happen, unless it lies beyond `until_ns`.
    pub(crate) fn advance(&mut self, until_ns: u64) -> bool {
        if self.verdict.is_some() {
            return false;
        }
        let Some((at_ns, what)) = self.due.pop_until(until_ns) else { return false };
        self.now_ns = at_ns;
        if self.due.asked() > LINK_EVENTS_MAX {
            self.fail("progress", format!("{LINK_EVENTS_MAX} events and no end: a livelock"));
        }
        match what {
            What::Cross(link, bytes, packet) => self.cross(link, bytes, packet),
            What::Arrive(packet) => self.arrive(packet),
            What::Wake(node) => self.wake(node, at_ns),
            What::WakeTcp => self.wake_tcp(at_ns),
            What::Begin(stream) => self.begin(stream),
            What::Route(route) => self.take_route(route),
            What::Told(node, bytes) => self.nodes[node].kernel_bytes = bytes.min(self.nodes[node].kernel_bytes),
            What::Resume => (0..self.streams.len()).for_each(|stream| self.resume(stream)),
            What::BeginPings => self.begin_pings(),
            What::Ping => self.ping(),
            What::Sample => self.sample(),
        }
        true
    }

    /// The first failure is kept.
    pub(crate) fn fail(&mut self, checker: &'static str, message: String) {
        self.verdict.get_or_insert(Verdict { checker, message });
    }

    fn take_route(&mut self, route: usize) {
        let was_down = self.scenario.routes[self.route].is_down();
        self.route = route;
        self.sizes_change();
        if was_down {
            self.up_ns = self.now_ns;
        }
    }

    /// Whether streams have nothing to send.
    pub(crate) fn is_paused(&self) -> bool {
        self.scenario.pause_ns.is_some_and(|(from_ns, until_ns)| (from_ns..until_ns).contains(&self.now_ns))
    }

    /// Since when streams can move that could not: what was down, or at rest, begins anew.
    pub(crate) fn again_ns(&self) -> u64 {
        let rested_ns = self.scenario.pause_ns.map(|(_, until_ns)| until_ns);
        rested_ns.filter(|at_ns| *at_ns <= self.now_ns).unwrap_or(0).max(self.up_ns)
    }

    /// Link there of the present route.
    pub(crate) fn bottleneck(&self) -> &Link {
        &self.links[2 * self.route]
    }

    pub(crate) fn time(&self) -> Time {
        Time::from_nanos(self.now_ns)
    }

    fn add_node(&mut self, node: usize, rng: &mut Rng) {
        let mut config = Config::new(node_name(node));
        config.key = self.scenario.sealed.then_some(ClusterKey([7; 32]));
        config.listen = vec![address(node, 0)];
        config.recv_buffer_bytes = crate::limits::LINK_BUDGET_BYTES;
        config.congestion = self.tamper.control().unwrap_or(self.scenario.control);
        config.ecn = self.scenario.ecn;
        let kernel_bytes = self.scenario.host_bytes - LINK_HEADERS_BYTES;
        config.path_mtu_bytes = kernel_bytes as usize;
        let engine = Engine::new(config, rng.bytes32(), self.time());
        let (ram, expected) = (Ram::default(), Expected::default());
        self.nodes.push(Node { engine, ram, wake_ns: None, sent_ns: 0, packets: 0, kernel_bytes, expected });
    }

    fn add_stream(&mut self, index: usize, to: usize) {
        // Drivers ask their kernel when they have something to send for the first time.
        for (node, other) in [(to, index), (index, to)] {
            let Node { engine, kernel_bytes, .. } = &mut self.nodes[node];
            engine.set_path_mtu(address(other, 0), *kernel_bytes as usize);
        }
        let (sender, receiver) = match self.scenario.shape {
            Shape::Fetches => self.add_fetch(index, to),
            _ => self.add_ends(index, to),
        };
        self.streams.push(Stream {
            from: index,
            to,
            sender,
            receiver,
            import: None,
            wanted: self.scenario.stream_bytes.map(|bytes| bytes / MESSAGE_BYTES),
            posted: 0,
            complete: 0,
            announced: 0,
            arrived_bytes: 0,
            began_ns: None,
            moved_ns: 0,
            ended_ns: None,
            lost_ns: None,
            failed: 0,
            still_ns: 0,
        });
        self.due.push(self.scenario.starts_ns[index], What::Begin(index));
    }

    /// Makes the process that sends, and that to which it does.
    fn add_ends(&mut self, index: usize, to: usize) -> (ProcessId, ProcessId) {
        let now = self.time();
        let Node { engine, ram, .. } = &mut self.nodes[to];
        let receiver = engine.attach(1_000).expect("a new node has room");
        ram.add(RegionRef { process: receiver, region: TARGET }, SLOTS * MESSAGE_BYTES);
        let spec = ExportSpec {
            name: Some(format!("stream{index}")),
            region: TARGET,
            offset: 0,
            len: SLOTS * MESSAGE_BYTES,
            rights: Rights::WRITE,
            access: Access::Anyone,
            notify: true,
            redirectable: false,
            kind: ExportKind::Memory,
        };
        engine.export(now, receiver, spec).expect("a new process has room");
        let Node { engine, ram, .. } = &mut self.nodes[index];
        let sender = engine.attach(1_000).expect("a new node has room");
        ram.add(RegionRef { process: sender, region: SOURCE }, SLOTS * MESSAGE_BYTES);
        (sender, receiver)
    }

    /// A stream connects; it begins once it is let in.
    fn begin(&mut self, index: usize) {
        let Stream { from, to, sender, receiver, .. } = self.streams[index];
        if index == 0 && self.tcp.is_some() {
            self.send_tcp();
        }
        let name = format!("stream{index}");
        match self.scenario.shape {
            Shape::Fetches => self.import(to, receiver, from, name, Rights::READ),
            _ => self.import(from, sender, to, name, Rights::WRITE),
        }
    }

    /// Asks another node for an import, of whoever owns that name.
    pub(super) fn import(&mut self, node: usize, process: ProcessId, of: usize, name: String, rights: Rights) {
        let spec = ImportSpec {
            node: Some(NodeSpec::Addr(address(of, 0))),
            what: ImportTarget::Name(name),
            owner: Owner::Any,
            rights,
            wait: true,
            deadline: self.time() + Duration::from_nanos(LINK_SETUP_NS),
            own_order: false,
        };
        self.call(node, |engine, now, _| {
            engine.import(now, process, spec, IMPORT);
        });
    }

    fn resume(&mut self, index: usize) {
        self.post(index);
        self.settle(self.streams[index].from);
    }

    /// Calls into an engine with its way to memory; what the call gives is for the caller to take.
    pub(super) fn with_port<R>(&mut self, node: usize, act: impl FnOnce(&mut Engine, &mut Port<'_>) -> R) -> R {
        let Node { engine, ram, .. } = &mut self.nodes[node];
        act(engine, &mut Port { ram, tamper: self.tamper })
    }

    fn call(&mut self, node: usize, act: impl FnOnce(&mut Engine, Time, &mut Port<'_>)) {
        let now = self.time();
        let Node { engine, ram, .. } = &mut self.nodes[node];
        act(engine, now, &mut Port { ram, tamper: self.tamper });
        self.settle(node);
    }

    /// Takes what an engine has to give until it has nothing more.
    pub(super) fn settle(&mut self, node: usize) {
        let now = self.time();
        for round in 0.. {
            let mut worked = false;
            while let Some(event) = self.nodes[node].engine.poll_event() {
                worked = true;
                for event in self.tamper.event(event) {
                    self.on_event(node, event);
                }
            }
            worked |= self.take_datagrams(node);
            let Node { engine, ram, .. } = &mut self.nodes[node];
            worked |= engine.poll_work(now, &mut Port { ram, tamper: self.tamper });
            if !worked {
                break;
            }
            if round > WORK_PIECES_PER_CALL_MAX {
                return self.fail("progress", format!("node {node} finds work for ever at one moment"));
            }
        }
        self.plan_wake(node);
    }

    fn take_datagrams(&mut self, node: usize) -> bool {
        let (now, mut taken) = (self.time(), 0);
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            let Node { engine, ram, .. } = &mut self.nodes[node];
            let port = &mut Port { ram, tamper: self.tamper };
            let Some(out) = engine.poll_transmit(now, &mut buffer, port) else { break };
            taken += 1;
            if taken > DATAGRAMS_PER_CALL_MAX {
                self.fail("progress", format!("node {node} gives datagrams for ever"));
                break;
            }
            let Node { sent_ns, packets, .. } = &mut self.nodes[node];
            (*sent_ns, *packets) = (self.now_ns, *packets + 1);
            if self.tamper.swallows(self.now_ns, node) {
                continue;
            }
            let (Some((to, _)), Some(cut_up)) = (locate(out.to), self.fits(node, &out)) else { continue };
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(&buffer[..out.len]);
            let packet = Packet { to, body: Body::Datagram { from: node, codepoint: out.codepoint, cut_up, bytes } };
            self.leave(node, self.scenario.sends_there(node), out.len as u64 + LINK_HEADERS_BYTES, packet);
        }
        self.buffer = buffer;
        taken > 0
    }

    /// What a kernel does to a datagram that is to go out, as drivers ask it to: whether it is cut
    /// up, or may be on the way; none: it goes nowhere. Who asks whether a size fits asks the
    /// kernel too, and so does whose datagram is refused.
    fn fits(&mut self, node: usize, out: &Transmit) -> Option<bool> {
        let Node { engine, kernel_bytes, .. } = &mut self.nodes[node];
        let fits = out.len as u64 <= *kernel_bytes;
        if out.fit == Fit::Probe || out.fit == Fit::Path && !fits {
            engine.set_path_mtu(out.to, *kernel_bytes as usize);
        }
        match out.fit {
            Fit::Probe => fits.then_some(false),
            Fit::Path => Some(!fits),
            Fit::CutUp => Some(true),
        }
    }

    /// A packet leaves its host for the bottleneck.
    fn leave(&mut self, host: usize, there: bool, bytes: u64, packet: Packet) {
        let link = 2 * self.route + usize::from(!there);
        if let Some(at_ns) = self.access[host].take(self.now_ns, bytes) {
            self.due.push(at_ns, What::Cross(link, bytes, packet));
        }
    }

    fn cross(&mut self, link: usize, bytes: u64, mut packet: Packet) {
        if let Body::Datagram { from, codepoint, cut_up, .. } = &mut packet.body {
            let (route, from) = (self.scenario.routes[link / 2], *from);
            let fits_in_fragments = *cut_up && route.cuts_up && !route.is_down();
            if !fits_in_fragments && self.links[link].swallows(bytes) {
                if route.tells && !route.is_down() && !*cut_up {
                    let takes = self.links[link].spec.takes_bytes - LINK_HEADERS_BYTES;
                    self.due.push(self.now_ns + self.links[link ^ 1].spec.delay_ns, What::Told(from, takes));
                }
                return;
            }
            *codepoint = self.links[link].mark(self.now_ns, *codepoint);
        }
        match (self.links[link].take(self.now_ns, bytes), packet.body) {
            (Some(at_ns), body) => self.due.push(at_ns, What::Arrive(Packet { body, ..packet })),
            (None, Body::Datagram { bytes, .. }) => self.spare.push(bytes),
            (None, _) => {}
        }
    }

    fn arrive(&mut self, packet: Packet) {
        match packet.body {
            Body::Datagram { from, codepoint, mut bytes, .. } => {
                if from < self.streams.len() && bytes.len() > LINK_PING_BYTES_MAX {
                    self.through_ns = self.now_ns;
                }
                self.trace.digest(&[self.now_ns, packet.to as u64]);
                self.trace.digest_bytes(&bytes);
                let codepoint = self.tamper.codepoint(codepoint);
                self.call(packet.to, |engine, now, port| {
                    engine.handle_datagram_with(now, address(from, 0), codepoint, &mut bytes, port);
                });
                self.spare.push(bytes);
                self.note_arrivals(packet.to);
            }
            Body::Segment(number) => {
                let Some(told) = self.tcp.as_mut().map(|tcp| tcp.receive(number)) else { return };
                self.leave(self.nodes.len() + 1, false, ACK_BYTES, Packet { to: 0, body: Body::Ack(told) });
            }
            Body::Ack(told) => {
                if let Some(tcp) = &mut self.tcp {
                    tcp.acknowledge(self.now_ns, told);
                }
                self.trace.digest(&[self.now_ns, told as u64]);
                self.send_tcp();
            }
        }
    }

    /// What has been deposited counts for its stream.
    fn note_arrivals(&mut self, node: usize) {
        let (again_ns, now_ns) = (self.again_ns(), self.now_ns);
        let ram = &mut self.nodes[node].ram;
        for stream in self.streams.iter_mut().filter(|stream| stream.to == node) {
            let bytes = ram.take_deposited(RegionRef { process: stream.receiver, region: TARGET });
            if bytes > 0 {
                stream.still_ns =
                    stream.still_ns.max(now_ns - stream.moved_ns.max(stream.began_ns.unwrap_or(now_ns)).max(again_ns));
                stream.moved_ns = now_ns;
                stream.arrived_bytes += bytes;
            }
        }
    }

    fn send_tcp(&mut self) {
        let host = self.nodes.len();
        while let Some(number) = self.tcp.as_mut().and_then(|tcp| tcp.send(self.now_ns)) {
            self.leave(host, true, SEGMENT_BYTES, Packet { to: 0, body: Body::Segment(number) });
        }
        self.plan_tcp();
    }

    fn plan_tcp(&mut self) {
        // One event at a time: it looks when the time-out is due then.
        let timeout = self.tcp.as_ref().and_then(TcpFlow::timeout_ns);
        if let (Some(at_ns), None) = (timeout, self.tcp_wake_ns) {
            self.tcp_wake_ns = Some(at_ns);
            self.due.push(at_ns, What::WakeTcp);
        }
    }

    fn wake_tcp(&mut self, now_ns: u64) {
        self.tcp_wake_ns = None;
        if let Some(tcp) = &mut self.tcp {
            tcp.time_out(now_ns);
        }
        self.send_tcp();
    }

    fn wake(&mut self, node: usize, at_ns: u64) {
        if self.nodes[node].wake_ns == Some(at_ns) {
            self.nodes[node].wake_ns = None;
            self.call(node, |engine, now, _| engine.handle_timeout(now));
        }
    }

    fn plan_wake(&mut self, node: usize) {
        let late_ns = self.tamper.late_ns(self.now_ns, node);
        let Some(at) = self.nodes[node].engine.poll_timeout().filter(|at| *at != Time::MAX) else {
            self.nodes[node].wake_ns = None;
            return;
        };
        let at_ns = at.as_nanos().max(self.now_ns) + late_ns;
        if self.nodes[node].wake_ns != Some(at_ns) {
            self.nodes[node].wake_ns = Some(at_ns);
            self.due.push(at_ns, What::Wake(node));
        }
    }

    fn on_event(&mut self, node: usize, event: Event) {
        if self.scenario.shape == Shape::Fetches {
            return self.on_fetch_event(node, event);
        }
        let found = self.streams.iter().position(|stream| match &event {
            Event::Notification { process, .. } => stream.to == node && stream.receiver == *process,
            Event::Completion { process, .. } | Event::ImportDone { process, .. } => {
                stream.from == node && stream.sender == *process
            }
            _ => false,
        });
        match (event, found) {
            (Event::ImportDone { result: Ok(grant), .. }, Some(index)) => {
                self.streams[index].import = Some(grant.import);
                self.streams[index].began_ns = Some(self.now_ns);
                self.post(index);
            }
            (Event::Completion { cookie, result: Ok(_), .. }, Some(index)) => self.complete(index, cookie.0),
            (Event::Notification { word, .. }, Some(index)) => self.announce(index, word),
            (Event::PeerUp { .. }, _) => {}
            (event, found) if self.scenario.routes[self.route].ends_sessions() => self.end(node, event, found),
            (event, _) => self.fail("honest-errors", format!("node {node}: {event:?}, and nothing is the matter")),
        }
    }

    /// A session ends because of what its path takes, and what was under way with it.
    fn end(&mut self, node: usize, event: Event, found: Option<usize>) {
        let is_sender = node < self.streams.len();
        let unreachable = |why: &OpError| matches!(why, OpError::NodeUnreachable { .. });
        match (&event, found) {
            (Event::PeerDown { why: PeerDownReason::Unreachable { .. }, .. }, _) if is_sender => {
                self.streams[node].lost_ns = Some(self.now_ns);
            }
            (Event::PeerDown { .. }, _) if !is_sender => {}
            (Event::Completion { result: Err(why), .. }, Some(index)) if unreachable(why) => {
                self.streams[index].failed += 1;
            }
            (Event::ImportBroken { why, .. }, _) if unreachable(why) => {}
            _ => self.fail("size", format!("node {node}: {event:?}, where its path takes too little")),
        }
    }

    /// Posts what the slots have room for.
    fn post(&mut self, index: usize) {
        let now = self.time();
        if self.is_paused() {
            return;
        }
        while self.streams[index].has_more() {
            let Stream { from, sender, import, posted, .. } = self.streams[index];
            let Some(import) = import else { return };
            let Node { engine, ram, .. } = &mut self.nodes[from];
            ram.compose(RegionRef { process: sender, region: SOURCE }, posted);
            let offset = slot_of(posted);
            let send = Command::Send {
                import,
                offset,
                source: Source::Region { region: SOURCE, offset, len: MESSAGE_BYTES },
                notify: Some(posted),
                counter: None,
                completion: Some(Cookie(posted)),
            };
            if let Err(busy) = engine.post(now, sender, send, &mut Port { ram, tamper: self.tamper }) {
                return self.fail("progress", format!("stream {index} is refused with {posted} sends: {busy}"));
            }
            self.streams[index].posted += 1;
        }
    }

    fn complete(&mut self, index: usize, number: u64) {
        let stream = &mut self.streams[index];
        let expected = stream.complete;
        if number != expected || expected >= stream.announced {
            let message = format!(
                "stream {index}: message {number} is complete, {expected} ought to be next, {} are announced",
                stream.announced
            );
            return self.fail("order", message);
        }
        stream.complete += 1;
        if stream.is_over() {
            stream.ended_ns = Some(self.now_ns);
        }
        self.post(index);
    }

    fn announce(&mut self, index: usize, word: u64) {
        let Stream { to, receiver, announced, .. } = self.streams[index];
        if word != announced {
            let message = format!("stream {index}: message {word} is announced, {announced} ought to be next");
            return self.fail("order", message);
        }
        let at = RegionRef { process: receiver, region: TARGET };
        if let Err(why) = self.nodes[to].ram.examine(at, word) {
            return self.fail("exactly-once", format!("stream {index}: {why}"));
        }
        self.streams[index].announced += 1;
    }

    fn sample(&mut self) {
        let tcp = self.tcp.iter().map(TcpFlow::arrived_bytes);
        let arrived_bytes = self.streams.iter().map(|stream| stream.arrived_bytes).chain(tcp).collect();
        let queued_bytes = self.bottleneck().queued_bytes(self.now_ns);
        self.samples.push(Sample { at_ns: self.now_ns, queued_bytes, arrived_bytes });
        self.look();
        let next_ns = self.now_ns + LINK_SAMPLE_NS;
        let next_ns = match self.scenario.pause_ns {
            Some((_, until_ns)) if self.is_paused() => (self.now_ns + LINK_REST_NS).min(until_ns),
            _ => next_ns,
        };
        self.due.push(next_ns, What::Sample);
    }
}
