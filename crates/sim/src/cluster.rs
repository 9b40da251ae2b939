//! The cluster: engines, network, memory and clock, stepped one event at a time.
//!
//! Invariant: time moves only in [`Cluster::advance`]; after every call into an engine its copies,
//! events and datagrams have all been taken before anything else happens, as its documentation asks
//! for.

use vmmc_nic::{Cipher, Ciphers, ClusterKey, Config, Engine, Fit, NodeName, Time, Transmit};

use crate::agenda::Agenda;
use crate::chaos::ChaosEvent;
use crate::judge::{Judge, Verdict};
use crate::limits::{
    DATAGRAMS_PER_CALL_MAX, EVENTS_PER_CALL_MAX, OPERATIONS_FLOOD, OPERATIONS_PER_PROCESS_MAX, PATHS_MAX,
    RUN_EVENTS_MAX, WORK_PIECES_PER_CALL_MAX,
};
use crate::memory::{Memory, Port};
use crate::model::{Model, Seen};
use crate::network::{Network, Packet, address};
use crate::options::{Mode, Options};
use crate::report::{EngineCounts, FaultCounts};
use crate::rng::Rng;
use crate::tamper::Tamper;

/// What happens at a moment.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A datagram arrives.
    Arrive(Packet),
    /// An engine's timeout, if it still is the one asked for.
    Wake { node: usize },
    /// The workload acts.
    Act,
    /// A fault begins or ends.
    Chaos(ChaosEvent),
}

/// What the seed decides once for all nodes.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) key: Option<ClusterKey>,
    pub(crate) paths: usize,
    pub(crate) path_mtu_bytes: usize,
    pub(crate) recv_buffer_bytes: usize,
    /// Bytes beyond gaps that a node keeps of all peers.
    pub(crate) held_bytes_max: usize,
    /// Operations one process has outstanding before the workload waits.
    pub(crate) operations_max: usize,
    /// A node that has another key or mode than the cluster, and knocks.
    pub(crate) stranger: Option<usize>,
    /// Whether engines are told all addresses of a peer, or one and learn the others.
    pub(crate) tells_all_paths: bool,
    /// Whether links swallow datagrams that are smaller than what their hosts take.
    pub(crate) swallows_large: bool,
}

impl Setup {
    fn draw(options: &Options, rng: &mut Rng) -> Setup {
        let sealed = match options.mode {
            Mode::BySeed => rng.chance(500),
            Mode::Plain => false,
            Mode::Sealed => true,
        };
        let key = rng.bytes32();
        let (path_mtu_bytes, recv_buffer_bytes) =
            rng.pick(&[(1_472, 64 << 10), (1_472, 1 << 20), (1_200, 256 << 10), (9_000, 1 << 20), (65_507, 4 << 20)]);
        Setup {
            key: sealed.then_some(ClusterKey(key)),
            paths: rng.between(1, PATHS_MAX as u64) as usize,
            path_mtu_bytes,
            recv_buffer_bytes,
            held_bytes_max: options.held_bytes_max(),
            operations_max: if rng.chance(20) { OPERATIONS_FLOOD } else { OPERATIONS_PER_PROCESS_MAX },
            stranger: rng.chance(300).then_some(options.nodes),
            tells_all_paths: rng.chance(700),
            swallows_large: options.swallows_large(),
        }
    }
}

/// One node: its engine while it is up.
#[derive(Default)]
pub(crate) struct Host {
    pub(crate) engine: Option<Engine>,
    /// When the engine is to be woken, ns.
    wake_at_ns: Option<u64>,
    /// Counts of former lives.
    pub(crate) counts_before: EngineCounts,
}

/// A simulated cluster in the middle of a run.
pub(crate) struct Cluster {
    pub(crate) options: Options,
    pub(crate) setup: Setup,
    pub(crate) rng: Rng,
    pub(crate) hosts: Vec<Host>,
    pub(crate) model: Model,
    pub(crate) memory: Memory,
    pub(crate) judge: Judge,
    pub(crate) network: Network,
    pub(crate) tamper: Option<Box<dyn Tamper>>,
    pub(crate) faults: FaultCounts,
    /// Redirections that were accepted.
    pub(crate) redirects_made: u64,
    /// Faults and workload still go on.
    pub(crate) stormy: bool,
    due: Agenda<Happening>,
    happened: u64,
    buffer: Vec<u8>,
}

impl Cluster {
    pub(crate) fn new(options: Options, tamper: Option<Box<dyn Tamper>>) -> Cluster {
        let mut rng = Rng::new(options.seed ^ (options.nodes as u64) << 56);
        let setup = Setup::draw(&options, &mut rng);
        let places = options.nodes + usize::from(setup.stranger.is_some());
        let mut network = Network::new(places, setup.paths, setup.key.is_none(), rng.fork());
        if setup.swallows_large {
            // A generator of its own: all else is as it is without.
            network.swallow_large(setup.path_mtu_bytes, Rng::new(options.seed ^ 0x51_2e5));
        }
        let peer_timeout = Config::new(node_name(0)).peer_timeout;
        Cluster {
            model: Model::new(options.nodes, places, peer_timeout.as_nanos() as u64),
            memory: Memory::default(),
            judge: Judge::new(options.trace_lines),
            hosts: (0..places).map(|_| Host::default()).collect(),
            network,
            tamper,
            faults: FaultCounts::default(),
            redirects_made: 0,
            stormy: true,
            due: Agenda::new(),
            happened: 0,
            buffer: vec![0; vmmc_nic::limits::PACKET_BYTES_MAX],
            options,
            setup,
            rng,
        }
    }

    /// Simulated time.
    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(self.model.now_ns)
    }

    /// Starts a node: a new engine that knows the addresses of all others.
    pub(crate) fn start_node(&mut self, node: usize) {
        let addrs = |n: usize, paths: usize| (0..paths).map(|p| address(n, p)).collect::<Vec<_>>();
        let mut config = Config::new(node_name(node));
        config.key = self.key_of(node);
        // Half of the seeds, without a draw: what the others are does not change.
        if self.options.seed % 2 == 1 && Cipher::Aes256Gcm.is_built() {
            config.ciphers = Ciphers::Only(Cipher::Aes256Gcm);
        }
        config.listen = addrs(node, self.setup.paths);
        config.path_mtu_bytes = self.setup.path_mtu_bytes;
        config.recv_buffer_bytes = self.setup.recv_buffer_bytes;
        config.held_bytes_max = self.setup.held_bytes_max;
        config.congestion = self.options.control();
        let mut engine = Engine::new(config, self.rng.bytes32(), self.now());
        let told = if self.setup.tells_all_paths { self.setup.paths } else { 1 };
        for peer in self.options.known_to(node).filter(|&p| p != node) {
            engine.add_peer(self.now(), &addrs(peer, told)).expect("64 nodes fit the peer table");
        }
        self.model.start_node(node, engine.incarnation());
        self.hosts[node].engine = Some(engine);
        self.hosts[node].wake_at_ns = None;
        self.judge.note(&self.model, format_args!("node {node} starts"));
        self.run_to_quiescence(node);
    }

    /// The cluster's key, or for the stranger anything else.
    fn key_of(&mut self, node: usize) -> Option<ClusterKey> {
        if self.setup.stranger != Some(node) {
            return self.setup.key.clone();
        }
        let other = ClusterKey(self.rng.bytes32());
        (self.setup.key.is_none() || self.rng.chance(500)).then_some(other)
    }

    /// Stops a node in good order: it says goodbye to its peers, as far as the network lets it.
    pub(crate) fn stop_node(&mut self, node: usize) {
        self.call_raw(node, |engine, now, _| engine.shutdown(now));
        self.take_datagrams(node);
        self.crash_node(node);
    }

    /// Crashes a node: its engine, its processes and their memory are gone at once.
    pub(crate) fn crash_node(&mut self, node: usize) {
        let Some(engine) = self.hosts[node].engine.take() else { return };
        self.hosts[node].counts_before.add(&EngineCounts::of(engine.stats()));
        self.hosts[node].wake_at_ns = None;
        self.judge.note(&self.model, format_args!("node {node} crashes"));
        for region in self.model.end_node(node) {
            self.memory.free(region);
        }
    }

    /// Calls into a node's engine with its way to memory, then takes what the call gave. `None`
    /// when the node is down.
    pub(crate) fn call<R>(
        &mut self,
        node: usize,
        act: impl FnOnce(&mut Engine, Time, &mut Port<'_>) -> R,
    ) -> Option<R> {
        let result = self.call_raw(node, act)?;
        self.run_to_quiescence(node);
        Some(result)
    }

    /// As [`Cluster::call`], but leaves events and datagrams for the caller to take with
    /// [`Cluster::run_to_quiescence`].
    pub(crate) fn call_raw<R>(
        &mut self,
        node: usize,
        act: impl FnOnce(&mut Engine, Time, &mut Port<'_>) -> R,
    ) -> Option<R> {
        let now = self.now();
        let Cluster { hosts, model, memory, judge, tamper, .. } = self;
        let engine = hosts[node].engine.as_mut()?;
        let mut port = Port { node, model, memory, judge, tamper: tamper.as_mut() };
        Some(act(engine, now, &mut port))
    }

    /// Takes copies, events and datagrams from an engine until it has none, and notes its next
    /// timeout.
    pub(crate) fn run_to_quiescence(&mut self, node: usize) {
        let mut pieces = 0;
        loop {
            let more = self.call_raw(node, |engine, now, port| engine.poll_work(now, port)).unwrap_or(false);
            let events = self.take_events(node);
            let sent = self.take_datagrams(node);
            if !more && !events && !sent {
                break;
            }
            pieces += 1;
            if pieces > WORK_PIECES_PER_CALL_MAX {
                return self.fail("progress", format!("node {node} finds work for ever at one moment"));
            }
        }
        self.judge.see(&mut self.model, &Seen::Quiescent);
        self.plan_wake(node);
    }

    /// Lets the next thing happen, unless it lies beyond `until_ns`. False when there is nothing
    /// left before then.
    pub(crate) fn advance(&mut self, until_ns: u64) -> bool {
        if self.judge.verdict.is_some() {
            return false;
        }
        let Some((at_ns, what)) = self.due.pop_until(until_ns) else { return false };
        debug_assert!(at_ns >= self.model.now_ns);
        self.model.now_ns = at_ns;
        self.happened += 1;
        if self.happened > RUN_EVENTS_MAX {
            self.fail("progress", format!("{RUN_EVENTS_MAX} events and no end: a livelock"));
            return false;
        }
        match what {
            Happening::Arrive(packet) => self.arrive(packet),
            Happening::Wake { node } => self.wake(node, at_ns),
            Happening::Act => self.act(),
            Happening::Chaos(event) => self.chaos(event),
        }
        true
    }

    /// Runs until `until_ns`.
    pub(crate) fn run_until(&mut self, until_ns: u64) {
        while self.advance(until_ns) {}
        if self.judge.verdict.is_none() {
            self.model.now_ns = self.model.now_ns.max(until_ns);
        }
    }

    /// Asks for something to happen after `delay_ns`.
    pub(crate) fn after(&mut self, delay_ns: u64, what: Happening) {
        let at_ns = self.model.now_ns + delay_ns;
        self.due.push(at_ns, what);
    }

    /// A failure that no checker found.
    pub(crate) fn fail(&mut self, checker: &'static str, message: String) {
        self.judge.verdict.get_or_insert(Verdict { checker, message });
    }

    fn arrive(&mut self, mut packet: Packet) {
        if let Some((node, _)) = crate::network::locate(packet.to) {
            self.judge.trace.digest(&[self.model.now_ns, node as u64]);
            self.judge.trace.digest_bytes(&packet.bytes);
            let Packet { from, ref mut bytes, .. } = packet;
            self.call(node, |engine, now, port| engine.handle_datagram(now, from, bytes, port));
        }
        self.network.recycle(packet.bytes);
    }

    fn wake(&mut self, node: usize, at_ns: u64) {
        if self.hosts[node].wake_at_ns == Some(at_ns) {
            self.hosts[node].wake_at_ns = None;
            self.call(node, |engine, now, _| engine.handle_timeout(now));
        }
    }

    fn take_events(&mut self, node: usize) -> bool {
        let mut taken = 0;
        while let Some(Some(event)) = self.call_raw(node, |engine, _, _| engine.poll_event()) {
            taken += 1;
            if taken > EVENTS_PER_CALL_MAX {
                self.fail("progress", format!("node {node} gives events for ever"));
                break;
            }
            match self.tamper.as_mut().map(|t| t.event(event.clone())) {
                None => self.on_event(node, event),
                Some(instead) => instead.into_iter().for_each(|event| self.on_event(node, event)),
            }
        }
        taken > 0
    }

    fn take_datagrams(&mut self, node: usize) -> bool {
        let mut taken = 0;
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(Some(out)) =
            self.call_raw(node, |engine, now, port| engine.poll_transmit(now, &mut buffer, port))
        {
            taken += 1;
            if taken > DATAGRAMS_PER_CALL_MAX {
                self.fail("progress", format!("node {node} gives datagrams for ever"));
                break;
            }
            self.transmit(node, &out, &buffer[..out.len]);
        }
        self.buffer = buffer;
        taken > 0
    }

    /// Hands a datagram to the network, from the sender's interface on the same network as the
    /// address.
    pub(crate) fn transmit(&mut self, node: usize, out: &Transmit, bytes: &[u8]) {
        let Transmit { to, fit, .. } = *out;
        let path = crate::network::locate(to).map_or(0, |(_, path)| path);
        let from = address(node, path.min(self.network.paths() - 1));
        self.judge.note(&self.model, format_args!("node {node} sends {} bytes to {to}", bytes.len()));
        let (now_ns, mut arrivals) = (self.model.now_ns, Vec::new());
        self.network
            .send(now_ns, from, to, (bytes, fit == Fit::CutUp), &mut |at_ns, packet| arrivals.push((at_ns, packet)));
        for (at_ns, packet) in arrivals {
            self.due.push(at_ns, Happening::Arrive(packet));
        }
    }

    fn plan_wake(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        let Some(at) = host.engine.as_ref().and_then(Engine::poll_timeout) else {
            host.wake_at_ns = None;
            return;
        };
        // A timeout in the past is due now; one at this very moment that stays would be a livelock,
        // which RUN_EVENTS_MAX ends.
        let at_ns = at.as_nanos().max(self.model.now_ns);
        if at != Time::MAX && host.wake_at_ns != Some(at_ns) {
            host.wake_at_ns = Some(at_ns);
            self.due.push(at_ns, Happening::Wake { node });
        }
    }
}

/// The name of a node.
pub(crate) fn node_name(node: usize) -> NodeName {
    NodeName::parse(&format!("node{node}")).expect("letters and digits make a name")
}
