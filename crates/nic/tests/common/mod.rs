//! A cluster of engines in memory: a virtual clock, a network with faults from a seed, memory that
//! notices what must not happen.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use vmmc_nic::*;
use vmmc_utlb::Rng;

/// What the notifications of [`World::send_region`] carry.
pub const NOTIFICATION_WORD: u64 = 0xfeed;

/// Memory of one node.
#[derive(Default)]
pub struct Memory {
    pub regions: HashMap<RegionRef, Vec<u8>>,
}

impl Memory {
    fn region(&mut self, at: RegionRef) -> Option<&mut Vec<u8>> {
        self.regions.get_mut(&at)
    }
}

impl Dma for Memory {
    fn deposit(&mut self, to: RegionRef, offset: u64, data: &[u8]) {
        if let Some(region) = self.region(to) {
            region[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        }
    }
    fn gather(&mut self, from: RegionRef, offset: u64, out: &mut [u8]) {
        match self.region(from) {
            Some(region) => out.copy_from_slice(&region[offset as usize..offset as usize + out.len()]),
            None => out.fill(0),
        }
    }
    fn copy(&mut self, from: RegionRef, from_offset: u64, to: RegionRef, to_offset: u64, len: u64) {
        let mut data = vec![0; len as usize];
        self.gather(from, from_offset, &mut data);
        self.deposit(to, to_offset, &data);
    }
    fn atomic(&mut self, at: RegionRef, offset: u64, op: AtomicOp) -> u64 {
        let Some(region) = self.region(at) else { return 0 };
        let word = &mut region[offset as usize..offset as usize + 8];
        let old = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        word.copy_from_slice(&op.apply(old).to_le_bytes());
        old
    }
}

pub struct Node {
    pub engine: Engine,
    pub memory: Memory,
    pub addrs: Vec<SocketAddr>,
    pub events: VecDeque<Event>,
    pub down: bool,
}

/// From, to, bytes.
pub type Recorded = (SocketAddr, SocketAddr, Vec<u8>);
/// Receiving node, from, bytes, those of them that are read in the sender's memory only when they
/// arrive, codepoint, and whether the bytes are as they were sent.
type Carried = (usize, SocketAddr, Vec<u8>, Option<Referred>, Codepoint, bool);
/// Sending node, and what goes by reference.
type Referred = (usize, Lent);

/// Faults of the network, in one of 1,000.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub loss: u64,
    pub duplicate: u64,
    pub reorder: u64,
    pub corrupt: u64,
}

/// What a script has happen to a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Arrives,
    Lost,
    /// Arrives so much later.
    Late(Duration),
    /// Arrives no sooner than that.
    NotBefore(Time),
}

/// Decides about the datagram of that length to that node.
pub type Script = Box<dyn FnMut(usize, usize) -> Fate>;

/// Decides about the datagram of that length that goes to that node now.
pub type Link = Box<dyn FnMut(Time, usize, usize) -> Fate>;

/// Says with which codepoint a datagram to there arrives that went out with one; none: it is lost.
pub type Marker = Box<dyn FnMut(SocketAddr, Codepoint) -> Option<Codepoint>>;

pub struct World {
    pub now: Time,
    pub nodes: Vec<Node>,
    pub faults: Faults,
    /// Addresses nothing gets to or from.
    pub cut: BTreeSet<SocketAddr>,
    wire: BTreeMap<(Time, u64), Carried>,
    serial: u64,
    rng: Rng,
    pub delay: Duration,
    /// If there is one, nothing happens to datagrams but what it says.
    pub script: Option<Script>,
    /// If there is one, what it says happens to datagrams.
    pub link: Option<Link>,
    /// If there is one, it marks what gets through.
    pub marker: Option<Marker>,
    /// Larger datagrams are swallowed, unless they may be cut up.
    pub narrow: Option<usize>,
    /// What is imported has an order of its own.
    pub own_order: bool,
    /// Nodes do nothing of what may wait.
    pub work_waits: bool,
    /// Everything sent, for replays.
    pub tape: Option<Vec<Recorded>>,
    pub sent: u64,
    /// Bytes that went out from their place in memory.
    pub lent: u64,
    /// Those of them that were read only when they arrived.
    pub referred: u64,
    /// Bytes that were put in their place before the engine had the datagram.
    pub placed: u64,
}

pub fn addr(node: usize, path: usize) -> SocketAddr {
    format!("10.0.{path}.{}:7000", node + 1).parse().expect("an address")
}

fn same_network(a: &SocketAddr, b: &SocketAddr) -> bool {
    a.ip().to_string()[..7] == b.ip().to_string()[..7]
}

pub fn key() -> Option<ClusterKey> {
    Some(ClusterKey([9; 32]))
}

impl World {
    pub fn new(seed: u64) -> World {
        World {
            now: Time::from_nanos(1_000_000_000),
            nodes: Vec::new(),
            faults: Faults::default(),
            cut: BTreeSet::new(),
            wire: BTreeMap::new(),
            serial: 0,
            rng: Rng::new(seed),
            delay: Duration::from_micros(30),
            script: None,
            link: None,
            marker: None,
            narrow: None,
            own_order: false,
            work_waits: false,
            tape: None,
            sent: 0,
            lent: 0,
            referred: 0,
            placed: 0,
        }
    }

    /// Two nodes, `sealed` or plain, that know each other.
    pub fn pair(seed: u64, sealed: bool) -> World {
        World::pair_with(seed, |config| config.key = if sealed { key() } else { None })
    }

    /// Two nodes that are told so, of which the first knows the other.
    pub fn pair_with(seed: u64, change: impl Fn(&mut Config)) -> World {
        let mut world = World::new(seed);
        for _ in 0..2 {
            world.add(&change);
        }
        let to = world.nodes[1].addrs.clone();
        world.nodes[0].engine.add_peer(world.now, &to).expect("room");
        world
    }

    pub fn add(&mut self, change: impl FnOnce(&mut Config)) -> usize {
        let index = self.nodes.len();
        let config = Config::new(NodeName::parse(&format!("node{index}")).expect("a name"));
        self.add_with(config, vec![addr(index, 0)], change)
    }

    pub fn add_with(&mut self, mut config: Config, addrs: Vec<SocketAddr>, change: impl FnOnce(&mut Config)) -> usize {
        change(&mut config);
        let engine = Engine::new(config, self.seed(), self.now);
        self.nodes.push(Node { engine, memory: Memory::default(), addrs, events: VecDeque::new(), down: false });
        self.nodes.len() - 1
    }

    /// The node starts again, with nothing.
    pub fn restart(&mut self, node: usize, change: impl FnOnce(&mut Config)) {
        let mut config = Config::new(self.nodes[node].engine.name().clone());
        change(&mut config);
        let engine = Engine::new(config, self.seed(), self.now);
        self.nodes[node].engine = engine;
        self.nodes[node].events.clear();
        self.nodes[node].memory = Memory::default();
        self.nodes[node].down = false;
    }

    fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.random().to_le_bytes());
        seed
    }

    pub fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn happens(&mut self, per_mille: u64) -> bool {
        self.random() % 1_000 < per_mille
    }

    pub fn process(&mut self, node: usize) -> ProcessId {
        self.nodes[node].engine.attach(1_000).expect("room")
    }

    pub fn region(&mut self, node: usize, process: ProcessId, region: u32, len: usize) -> RegionRef {
        let at = RegionRef { process, region: RegionId(region) };
        self.nodes[node].memory.regions.insert(at, vec![0; len]);
        at
    }

    pub fn bytes(&self, node: usize, at: RegionRef) -> &[u8] {
        &self.nodes[node].memory.regions[&at]
    }

    pub fn fill(&mut self, node: usize, at: RegionRef, with: impl Fn(usize) -> u8) {
        let region = self.nodes[node].memory.regions.get_mut(&at).expect("there");
        region.iter_mut().enumerate().for_each(|(index, byte)| *byte = with(index));
    }

    /// Exports all of a region under `name`.
    pub fn export(&mut self, node: usize, at: RegionRef, name: &str) -> ExportId {
        let len = self.bytes(node, at).len() as u64;
        let spec = export_spec(at.region, len, name);
        let now = self.now;
        self.nodes[node].engine.export(now, at.process, spec).expect("exported")
    }

    pub fn start_import(&mut self, node: usize, process: ProcessId, to: usize, name: &str, wait: bool) {
        self.start_import_of(node, process, to, (ImportTarget::Name(name.into()), Owner::Any), wait);
    }

    pub fn start_import_of(
        &mut self,
        node: usize,
        process: ProcessId,
        to: usize,
        (what, owner): (ImportTarget, Owner),
        wait: bool,
    ) -> Option<ImportId> {
        let spec = ImportSpec {
            node: (to != node).then(|| NodeSpec::Addr(self.nodes[to].addrs[0])),
            what,
            owner,
            rights: Rights::ALL,
            wait,
            deadline: self.now + Duration::from_secs(30),
            own_order: self.own_order,
        };
        let now = self.now;
        self.nodes[node].engine.import(now, process, spec, Cookie(1 << 32))
    }

    pub fn import(&mut self, node: usize, process: ProcessId, to: usize, name: &str) -> ImportGrant {
        self.start_import(node, process, to, name, false);
        self.import_answer(node).expect("granted")
    }

    pub fn import_answer(&mut self, node: usize) -> Result<ImportGrant, ImportError> {
        let event = self.wait_for(node, |event| matches!(event, Event::ImportDone { .. }));
        let Event::ImportDone { result, .. } = event else { unreachable!() };
        result
    }

    pub fn post(&mut self, node: usize, process: ProcessId, command: Command<'_>) -> Result<(), Busy> {
        let now = self.now;
        let Node { engine, memory, .. } = &mut self.nodes[node];
        engine.post(now, process, command, memory)
    }

    /// Does this past the queues, if the engine lets it; its datagram is on the wire then.
    pub fn do_now(&mut self, node: usize, process: ProcessId, command: Command<'_>) -> bool {
        let (now, mut buf) = (self.now, [0; 1500]);
        let Node { engine, addrs, .. } = &mut self.nodes[node];
        let Some(sent) = engine.try_send_inline(now, process, command, &mut buf, |_, _, _| {}) else { return false };
        let from = *addrs.iter().find(|from| same_network(from, &sent.to)).unwrap_or(&addrs[0]);
        self.carry((from, sent.to, sent.codepoint), &buf[..sent.len], 0..0, None);
        true
    }

    /// Sends short data past the queues, if the engine lets it.
    pub fn try_send_inline(
        &mut self,
        node: usize,
        process: ProcessId,
        (import, offset): (ImportId, u64),
        data: &[u8],
    ) -> bool {
        self.do_now(node, process, plain_send(import, offset, data))
    }

    pub fn send(&mut self, node: usize, process: ProcessId, import: ImportId, offset: u64, data: &[u8], cookie: u64) {
        let command = Command::Send {
            import,
            offset,
            source: Source::Inline(data),
            notify: None,
            counter: None,
            completion: Some(Cookie(cookie)),
        };
        self.post(node, process, command).expect("room");
    }

    pub fn send_region(&mut self, node: usize, from: RegionRef, import: ImportId, len: u64, cookie: u64) {
        let command = Command::Send {
            import,
            offset: 0,
            source: Source::Region { region: from.region, offset: 0, len },
            notify: Some(NOTIFICATION_WORD),
            counter: None,
            completion: Some(Cookie(cookie)),
        };
        self.post(node, from.process, command).expect("room");
    }

    pub fn completion(&mut self, node: usize, cookie: u64) -> Result<u64, OpError> {
        let wanted = Cookie(cookie);
        let event = self.wait_for(node, |event| matches!(event, Event::Completion { cookie, .. } if *cookie == wanted));
        let Event::Completion { result, .. } = event else { unreachable!() };
        result
    }

    /// Steps until an event of `node` fits, for at most 60 virtual seconds.
    #[track_caller]
    pub fn wait_for(&mut self, node: usize, fits: impl Fn(&Event) -> bool) -> Event {
        let limit = self.now + Duration::from_secs(60);
        loop {
            self.flush();
            if let Some(at) = self.nodes[node].events.iter().position(&fits) {
                return self.nodes[node].events.remove(at).expect("found");
            }
            assert!(self.step() && self.now < limit, "it never happened; events: {:?}", self.nodes[node].events);
        }
    }

    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.next_time().is_some_and(|at| at <= until) {
            self.step();
        }
        self.now = until;
        self.flush();
    }

    /// Steps until nothing happens before `limit`.
    pub fn run_to_quiescence(&mut self) {
        self.run_for(Duration::from_millis(500));
    }

    fn next_time(&mut self) -> Option<Time> {
        self.flush();
        let packet = self.wire.keys().next().map(|(at, _)| *at);
        let timer = self.nodes.iter().filter(|node| !node.down).filter_map(|node| node.engine.poll_timeout()).min();
        [packet, timer].into_iter().flatten().min()
    }

    /// Goes on to the next packet or timeout; false: nothing will ever happen.
    pub fn step(&mut self) -> bool {
        let Some(at) = self.next_time() else { return false };
        self.now = self.now.max(at);
        let now = self.now;
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (to, from, mut data, referred, codepoint, whole) = entry.remove();
            if let Some((sender, lent)) = referred {
                let bytes = &mut data[lent.at..lent.at + lent.len];
                self.nodes[sender].memory.gather(lent.memory, lent.offset, bytes);
            }
            // The kernel has checked what it lets be looked at.
            if !whole || !self.deliver_placed(to, from, codepoint, &mut data) {
                self.deliver_with(to, from, codepoint, &mut data);
            }
        }
        for node in self.nodes.iter_mut().filter(|node| !node.down) {
            if node.engine.poll_timeout().is_some_and(|at| at <= now) {
                node.engine.handle_timeout(now);
            }
            while !self.work_waits && node.engine.poll_work(now, &mut node.memory) {}
        }
        self.flush();
        true
    }

    pub fn deliver(&mut self, to: usize, from: SocketAddr, data: &mut [u8]) {
        self.deliver_with(to, from, Codepoint::NotEct, data);
    }

    pub fn deliver_with(&mut self, to: usize, from: SocketAddr, codepoint: Codepoint, data: &mut [u8]) {
        let now = self.now;
        let Node { engine, memory, down, .. } = &mut self.nodes[to];
        if !*down {
            engine.handle_datagram_with(now, from, codepoint, data, memory);
        }
    }

    /// Puts a piece of a datagram straight where the engine says that it belongs, in three of four
    /// cases.
    fn deliver_placed(&mut self, to: usize, from: SocketAddr, codepoint: Codepoint, data: &mut [u8]) -> bool {
        let (now, head) = (self.now, data.len().min(256));
        let Node { engine, memory, down, .. } = &mut self.nodes[to];
        let before = format!("{:?}", engine.stats());
        let placement = engine.placement(from, &data[..head], data.len(), memory);
        assert_eq!(before, format!("{:?}", engine.stats()), "to ask changes nothing");
        let Some(placement) = placement.filter(|_| !*down) else { return false };
        if self.happens(250) {
            return false;
        }
        let Node { engine, memory, .. } = &mut self.nodes[to];
        let piece = &mut data[placement.at..placement.at + placement.len];
        memory.deposit(placement.memory, placement.offset, piece);
        piece.fill(0xaa);
        engine.handle_placed_datagram(now, from, codepoint, data, &placement, memory);
        self.placed += placement.len as u64;
        true
    }

    /// Takes events and datagrams from every engine.
    pub fn flush(&mut self) {
        let mut buf = vec![0; 65_536];
        for index in 0..self.nodes.len() {
            let now = self.now;
            loop {
                let Node { engine, memory, events, addrs, down } = &mut self.nodes[index];
                events.extend(std::iter::from_fn(|| engine.poll_event()));
                if *down {
                    break;
                }
                let Some((sent, lent)) = engine.poll_transmit_lending(now, &mut buf, memory, true) else { break };
                let Transmit { to, len, codepoint, fit, .. } = sent;
                // UDP's checksum guards what the engine has not seen: damage there is loss.
                let guarded = lent.map_or(0..0, |lent| lent.at..lent.at + lent.len);
                let len = lent.map_or(len, |lent| lent.put_in(&mut buf, len, memory));
                self.lent += guarded.len() as u64;
                let referred = lent.filter(|lent| lent.by_reference.is_some()).map(|lent| (index, lent));
                self.referred += referred.map_or(0, |(_, lent)| lent.len as u64);
                if fit != Fit::CutUp && self.narrow.is_some_and(|most| len > most) {
                    continue;
                }
                let from = *addrs.iter().find(|from| same_network(from, &to)).unwrap_or(&addrs[0]);
                self.carry((from, to, codepoint), &buf[..len], guarded, referred);
            }
        }
    }

    fn carry(
        &mut self,
        (from, to, codepoint): (SocketAddr, SocketAddr, Codepoint),
        data: &[u8],
        guarded: Range<usize>,
        referred: Option<Referred>,
    ) {
        self.sent += 1;
        if let Some(tape) = self.tape.as_mut() {
            tape.push((from, to, data.to_vec()));
        }
        let Some(index) = self.nodes.iter().position(|node| node.addrs.contains(&to)) else { return };
        if self.cut.contains(&to) || self.cut.contains(&from) {
            return;
        }
        let said = match (self.link.as_mut(), self.script.as_mut()) {
            (Some(link), _) => Some(link(self.now, index, data.len())),
            (None, Some(script)) => Some(script(index, data.len())),
            (None, None) => None,
        };
        let codepoint = match self.marker.as_mut() {
            Some(marker) if said != Some(Fate::Lost) => marker(to, codepoint),
            _ => Some(codepoint),
        };
        let Some(codepoint) = codepoint else { return };
        if let Some(fate) = said {
            let soonest = self.now + self.delay;
            let at = match fate {
                Fate::Arrives => soonest,
                Fate::Late(by) => soonest + by,
                Fate::NotBefore(at) => soonest.max(at),
                Fate::Lost => return,
            };
            self.serial += 1;
            self.wire.insert((at, self.serial), (index, from, data.to_vec(), referred, codepoint, true));
            return;
        }
        let copies = if self.happens(self.faults.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            if self.happens(self.faults.loss) {
                continue;
            }
            let (mut data, whole) = (data.to_vec(), !self.happens(self.faults.corrupt));
            if !whole {
                let at = self.random() as usize % data.len();
                data[at] ^= 1 << (self.random() % 8);
                if guarded.contains(&at) {
                    continue;
                }
            }
            let late = if self.happens(self.faults.reorder) { self.random() % 3_000 } else { self.random() % 3 };
            self.serial += 1;
            let at = self.now + self.delay + Duration::from_micros(late);
            self.wire.insert((at, self.serial), (index, from, data, referred, codepoint, whole));
        }
    }
}

pub fn export_spec(region: RegionId, len: u64, name: &str) -> ExportSpec {
    ExportSpec {
        name: Some(name.into()),
        region,
        offset: 0,
        len,
        rights: Rights::ALL,
        access: Access::SameUser,
        notify: true,
        redirectable: false,
        kind: ExportKind::Memory,
    }
}

/// A send of short data that wants nothing else.
pub fn plain_send(import: ImportId, offset: u64, data: &[u8]) -> Command<'_> {
    let source = Source::Inline(data);
    Command::Send { import, offset, source, notify: None, counter: None, completion: None }
}

/// Where the body of a plain packet begins.
pub const PLAIN_BODY_AT: usize = 36;

/// Makes what stands before the body of a plain packet right for the rest of it: no bytes are left
/// out.
pub fn seal_plainly(packet: &mut [u8]) {
    packet[20..PLAIN_BODY_AT].fill(0);
    let sum = checksum_of(&[]).rotate_left(1) ^ checksum_of(packet);
    packet[28..PLAIN_BODY_AT].copy_from_slice(&sum.to_le_bytes());
}

/// The plain mode's checksum, as docs/protocol.md describes it.
pub fn checksum_of(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [bytes.len() as u64, K, !K, K.rotate_left(32)];
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len() / 32 * 32 + 32, 0);
    for block in padded.chunks(32) {
        for (lane, word) in lanes.iter_mut().zip(block.chunks(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            *lane = (*lane ^ word).wrapping_mul(K).rotate_left(29);
        }
    }
    lanes.iter().fold(0, |sum: u64, lane| (sum ^ lane ^ lane >> 31).wrapping_mul(K).rotate_left(27))
}
