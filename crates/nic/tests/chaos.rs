//! A small cluster in which everything happens at random: what was started ends, and once the
//! faults are over everything works and nothing is left behind.

mod common;

use common::{Faults, World, addr, key};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use vmmc_nic::*;

const NODES: usize = 4;
const SIZE: usize = 40_000;

#[derive(Default)]
struct Actor {
    process: Option<ProcessId>,
    exports: Vec<ExportId>,
    imports: Vec<(ImportId, Rights)>,
    /// Cookies without an answer.
    open: HashSet<u64>,
    asked: HashSet<u64>,
}

struct Chaos {
    world: World,
    actors: Vec<Actor>,
    next_cookie: u64,
    restarts: usize,
    completed: HashMap<&'static str, u64>,
    sealed: bool,
}

/// Each congestion control has senders, to nodes with the same one and to others.
fn set(config: &mut Config, sealed: bool, node: usize) {
    config.key = if sealed { key() } else { None };
    config.congestion = CongestionControl::ALL[node % 2];
}

impl Chaos {
    fn new(seed: u64) -> Chaos {
        let mut world = World::new(seed);
        let sealed = seed % 2 == 0;
        for node in 0..NODES {
            let addrs: Vec<_> = (0..2).map(|path| addr(node, path)).collect();
            let config = Config::new(NodeName::parse(&format!("node{node}")).expect("a name"));
            world.add_with(config, addrs, |config| set(config, sealed, node));
        }
        let mut chaos =
            Chaos { world, actors: Vec::new(), next_cookie: 0, restarts: 0, completed: HashMap::new(), sealed };
        for node in 0..NODES {
            chaos.actors.push(Actor::default());
            chaos.start(node);
        }
        chaos
    }

    fn start(&mut self, node: usize) {
        let now = self.world.now;
        for other in 0..NODES {
            if other != node {
                let addrs = self.world.nodes[other].addrs.clone();
                self.world.nodes[node].engine.add_peer(now, &addrs).expect("room");
            }
        }
        self.attach(node);
    }

    fn attach(&mut self, node: usize) {
        let process = self.world.process(node);
        self.actors[node] = Actor { process: Some(process), ..Actor::default() };
        for region in 0..3 {
            self.world.region(node, process, region, SIZE);
        }
    }

    fn cookie(&mut self) -> u64 {
        self.next_cookie += 1;
        self.next_cookie
    }

    fn act(&mut self) {
        let node = self.world.random() as usize % NODES;
        let Some(process) = self.actors[node].process else { return };
        let now = self.world.now;
        match self.world.random() % 100 {
            0..=5 => self.export(node, process),
            6..=8 => {
                if let Some(export) = self.actors[node].exports.pop() {
                    self.world.nodes[node].engine.unexport(now, process, export).expect("ours");
                }
            }
            9..=20 => self.import(node, process),
            21..=22 => {
                if let Some((import, _)) = self.actors[node].imports.pop() {
                    self.world.nodes[node].engine.unimport(now, process, import).expect("held");
                }
            }
            23 => {
                self.world.nodes[node].engine.detach(now, process);
                self.world.nodes[node].memory.regions.retain(|at, _| at.process != process);
                self.attach(node);
            }
            24 if self.world.random() % 4 == 0 => self.restart(node),
            25 if self.world.random() % 4 == 0 => {
                let path = self.world.random() as usize % 2;
                let at = self.world.nodes[node].addrs[path];
                if !self.world.cut.remove(&at) {
                    self.world.cut.insert(at);
                }
            }
            26 if self.world.random() % 10 == 0 => {
                for path in 0..2 {
                    let at = self.world.nodes[node].addrs[path];
                    self.world.cut.insert(at);
                }
            }
            _ => self.transfer(node, process),
        }
    }

    fn restart(&mut self, node: usize) {
        let sealed = self.sealed;
        self.world.restart(node, |config| set(config, sealed, node));
        self.restarts += 1;
        self.start(node);
    }

    fn export(&mut self, node: usize, process: ProcessId) {
        let now = self.world.now;
        let number = self.world.random() % 3;
        let mut spec = common::export_spec(RegionId(0), SIZE as u64, &format!("buffer{number}"));
        spec.redirectable = number == 0;
        if let Ok(export) = self.world.nodes[node].engine.export(now, process, spec) {
            self.actors[node].exports.push(export);
        }
    }

    fn import(&mut self, node: usize, process: ProcessId) {
        let to = self.world.random() as usize % NODES;
        let name = format!("buffer{}", self.world.random() % 3);
        let cookie = self.cookie();
        let by_name = self.world.random() % 2 == 0;
        let spec = ImportSpec {
            node: Some(if by_name {
                NodeSpec::Name(NodeName::parse(&format!("node{to}")).expect("a name"))
            } else {
                NodeSpec::Addr(addr(to, 0))
            }),
            what: ImportTarget::Name(name),
            owner: vmmc_nic::Owner::Any,
            rights: Rights::ALL,
            wait: self.world.random() % 2 == 0,
            deadline: self.world.now + Duration::from_millis(self.world.random() % 8_000),
            own_order: false,
        };
        if to == node && !by_name {
            return;
        }
        self.actors[node].asked.insert(cookie);
        let now = self.world.now;
        self.world.nodes[node].engine.import(now, process, spec, Cookie(cookie));
    }

    fn transfer(&mut self, node: usize, process: ProcessId) {
        let count = self.actors[node].imports.len();
        if count == 0 {
            return;
        }
        let (import, _) = self.actors[node].imports[self.world.random() as usize % count];
        let cookie = self.cookie();
        let offset = self.world.random() % 100 * 8;
        let len = if self.world.random() % 4 == 0 { 30_000 } else { self.world.random() % 300 };
        let data = [cookie as u8; 200];
        let source = if len <= 200 {
            Source::Inline(&data[..len as usize])
        } else {
            Source::Region { region: RegionId(1), offset: 0, len }
        };
        let command = match self.world.random() % 8 {
            0 => Command::Atomic { import, offset, op: AtomicOp::FetchAdd(1), cookie: Cookie(cookie) },
            1 => Command::Fetch { import, offset, len, region: RegionId(2), region_offset: 0, cookie: Cookie(cookie) },
            2 => Command::Flush { import, cookie: Cookie(cookie) },
            choice => Command::Send {
                import,
                offset,
                source,
                notify: (choice == 3).then_some(choice),
                counter: (choice == 4).then_some(0),
                completion: (choice != 5).then_some(Cookie(cookie)),
            },
        };
        if command.cookie().is_some() {
            self.actors[node].open.insert(cookie);
        }
        if self.world.random() % 2 == 0 && self.world.do_now(node, process, command) {
            let what = if command.cookie().is_some() { "asked at once" } else { "sent at once" };
            *self.completed.entry(what).or_default() += 1;
            return;
        }
        if self.world.post(node, process, command).is_err() {
            self.actors[node].open.remove(&cookie);
        }
    }

    fn take_events(&mut self) {
        self.world.flush();
        for node in 0..NODES {
            for event in std::mem::take(&mut self.world.nodes[node].events) {
                self.take_event(node, event);
            }
        }
    }

    fn take_event(&mut self, node: usize, event: Event) {
        let actor = &mut self.actors[node];
        match event {
            Event::Completion { process, cookie, result } if Some(process) == actor.process => {
                assert!(actor.open.remove(&cookie.0), "one answer each: {cookie:?} {result:?}");
                *self.completed.entry(if result.is_ok() { "ok" } else { "failed" }).or_default() += 1;
            }
            Event::ImportDone { process, cookie, result } if Some(process) == actor.process => {
                assert!(actor.asked.remove(&cookie.0), "one answer each");
                if let Ok(grant) = result {
                    actor.imports.push((grant.import, grant.rights));
                    *self.completed.entry("imports").or_default() += 1;
                }
            }
            Event::ImportBroken { process, import, .. } if Some(process) == actor.process => {
                let known = actor.imports.iter().any(|(at, _)| *at == import);
                assert!(known, "broken once, while held");
                actor.imports.retain(|(at, _)| *at != import);
                let now = self.world.now;
                self.world.nodes[node].engine.unimport(now, process, import).expect("held until given back");
            }
            _ => {}
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.world.now + time;
        while self.world.now < until && self.world.step() {
            self.take_events();
        }
    }
}

fn chaos(seed: u64) -> Chaos {
    let mut chaos = Chaos::new(seed);
    chaos.world.faults = Faults { loss: 50 + seed % 250, duplicate: 30, reorder: 100, corrupt: 10 };
    for _ in 0..1_500 {
        chaos.act();
        chaos.take_events();
        let pause = chaos.world.random() % 3_000;
        let pause = if chaos.world.random() % 200 == 0 { 2_000_000 } else { pause };
        chaos.run(Duration::from_micros(pause));
    }
    // Faults end; everything started comes to an end, and everything works.
    chaos.world.faults = Faults::default();
    chaos.world.cut.clear();
    chaos.run(Duration::from_secs(20));
    for (node, actor) in chaos.actors.iter().enumerate() {
        assert!(actor.open.is_empty(), "seed {seed}: node {node} waits for {:?}", actor.open);
        assert!(actor.asked.is_empty(), "seed {seed}: node {node} waits for imports {:?}", actor.asked);
    }
    chaos
}

fn everything_works_afterwards(chaos: &mut Chaos, seed: u64) {
    for node in 0..NODES {
        let (process, now) = (chaos.actors[node].process.expect("attached"), chaos.world.now);
        for (import, _) in std::mem::take(&mut chaos.actors[node].imports) {
            chaos.world.nodes[node].engine.unimport(now, process, import).expect("held");
        }
        for export in std::mem::take(&mut chaos.actors[node].exports) {
            chaos.world.nodes[node].engine.unexport(now, process, export).expect("ours");
        }
        let spec = common::export_spec(RegionId(0), SIZE as u64, "after");
        chaos.world.nodes[node].engine.export(now, process, spec).expect("exported");
    }
    chaos.run(Duration::from_secs(1));
    for node in 0..NODES {
        let to = (node + 1) % NODES;
        let process = chaos.actors[node].process.expect("attached");
        let import = chaos.world.import(node, process, to, "after").import;
        chaos.world.send(node, process, import, 0, b"well", u64::MAX);
        assert_eq!(chaos.world.completion(node, u64::MAX), Ok(4), "seed {seed}");
        let now = chaos.world.now;
        chaos.world.nodes[node].engine.unimport(now, process, import).expect("held");
    }
    chaos.run(Duration::from_secs(10));
    for node in &chaos.world.nodes {
        for peer in node.engine.peers() {
            let left = (peer.in_flight_bytes, peer.queued_ops, peer.held_bytes);
            assert_eq!(left, (0, 0, 0), "seed {seed}: {peer:?}");
        }
        assert_eq!(node.engine.exports().map(|export| export.remote_importers).sum::<usize>(), 0, "seed {seed}");
        assert!(node.engine.processes().all(|process| process.outstanding_ops == 0), "seed {seed}");
        assert!(node.engine.poll_timeout().is_none_or(|at| at > chaos.world.now + Duration::from_secs(5)));
    }
}

#[test]
fn a_cluster_in_chaos_answers_everything_once_and_recovers() {
    let seeds = std::env::var("VMMC_CHAOS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(12);
    let first = std::env::var("VMMC_CHAOS_FIRST").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let mut at_once = [0; 2];
    for seed in first..first + seeds {
        let result = std::panic::catch_unwind(|| {
            let mut chaos = chaos(seed);
            assert!(chaos.completed.get("ok").copied().unwrap_or(0) > 20, "{:?}", chaos.completed);
            everything_works_afterwards(&mut chaos, seed);
            ["sent at once", "asked at once"].map(|what| chaos.completed.get(what).copied().unwrap_or(0))
        });
        let counts = result.unwrap_or_else(|cause| {
            eprintln!("replay: VMMC_CHAOS_FIRST={seed} VMMC_CHAOS_SEEDS=1 cargo test -p vmmc-nic --test chaos");
            std::panic::resume_unwind(cause)
        });
        at_once = std::array::from_fn(|i| at_once[i] + counts[i]);
    }
    assert!(
        seeds < 12 || !at_once.contains(&0),
        "sends and requests that went past the queues in any seed: {at_once:?}"
    );
}
