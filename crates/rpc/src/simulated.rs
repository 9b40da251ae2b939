//! A cluster of callers and servers on a virtual clock: the two state machines of this crate, with
//! messages that take their time, and processes that die. Each seed is another run.
//!
//! Checkers, after each step and at the end: a call has one outcome, and it is one that can be; its
//! handlers begin once each, in time and not after a withdrawal; nothing is left over.

use crate::admission::{Admission, Admitted, Turn, Withdrawal};
use crate::calls::Calls;
use crate::wire::{CallId, Status};
use std::collections::{BTreeMap, HashSet, VecDeque};
use vmmc_host::Nanos;
use vmmc_utlb::Rng;

const CALLERS: usize = 3;
const SERVERS: usize = 3;
const STEPS: usize = 400;
/// Calls that wait in a server.
const QUEUE: usize = 4;
/// The longest way of a message.
const DELAY_MAX: u64 = 50;
/// The longest time of a call.
const TIME_MAX: u64 = 600;

/// What is on its way.
#[derive(Clone, Debug)]
enum Message {
    Request {
        caller: usize,
        id: CallId,
        left: u64,
        hops: u32,
    },
    Cancel {
        caller: usize,
        id: CallId,
    },
    Answer {
        from: usize,
        id: CallId,
        status: Status,
    },
    /// A caller learns that a server has died.
    ServerLost {
        server: usize,
    },
    /// A server learns that a caller, or another server, has died.
    CallerLost {
        caller: usize,
    },
    DelegateLost {
        server: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Caller(usize),
    Server(usize),
}

struct Server {
    alive: bool,
    calls: Admission<usize, usize>,
    queue: VecDeque<(usize, CallId)>,
    /// Calls that have a handler, and over how many servers they have come.
    running: Vec<(usize, CallId, u32)>,
    hops: BTreeMap<(usize, CallId), (u64, u32)>,
}

/// What is known of a call by who sees everything.
#[derive(Debug)]
struct Known {
    caller: usize,
    deadline: u64,
    withdrawn: bool,
    /// Servers where a handler has begun, and over how many others the call had come there.
    begun: HashSet<(usize, u32)>,
    answered: u32,
    outcomes: Vec<Status>,
}

struct World {
    rng: Rng,
    now: u64,
    serial: u64,
    wire: BTreeMap<(u64, u64), (To, Message)>,
    /// Records of each caller, for each server.
    calls: Vec<Vec<Calls<(), ()>>>,
    callers: Vec<bool>,
    servers: Vec<Server>,
    known: BTreeMap<CallId, Known>,
    /// In the order of each pair.
    latest: BTreeMap<(usize, usize, usize), u64>,
}

impl World {
    fn new(seed: u64) -> World {
        let server = || Server {
            alive: true,
            calls: Admission::new(QUEUE),
            queue: VecDeque::new(),
            running: Vec::new(),
            hops: BTreeMap::new(),
        };
        World {
            rng: Rng::new(seed),
            now: 0,
            serial: 0,
            wire: BTreeMap::new(),
            calls: (0..CALLERS).map(|_| (0..SERVERS).map(|_| Calls::default()).collect()).collect(),
            callers: vec![true; CALLERS],
            servers: (0..SERVERS).map(|_| server()).collect(),
            known: BTreeMap::new(),
            latest: BTreeMap::new(),
        }
    }

    /// Messages of one process to another keep their order; a process is 0.. for callers, and
    /// behind them servers.
    fn send(&mut self, from: usize, to: To, message: Message) {
        let (kind, number) = match to {
            To::Caller(number) => (0, number),
            To::Server(number) => (1, number),
        };
        let latest = self.latest.entry((from, kind, number)).or_default();
        let at = (self.now + 1 + self.rng.below(DELAY_MAX)).max(*latest);
        *latest = at;
        self.serial += 1;
        self.wire.insert((at, self.serial), (to, message));
    }

    fn step(&mut self) {
        self.now += 1 + self.rng.below(20);
        self.deliver();
        let (caller, server) = (self.rng.below(CALLERS as u64) as usize, self.rng.below(SERVERS as u64) as usize);
        match self.rng.below(100) {
            0..35 => self.call(caller, server),
            35..42 => self.withdraw(caller, server),
            42..70 => self.begin(server),
            70..97 => self.finish(server),
            97..99 => self.kill_server(server),
            _ => self.kill_caller(caller),
        }
        self.expire();
    }

    fn deliver(&mut self) {
        while let Some((&(at, serial), _)) = self.wire.iter().next() {
            if at > self.now {
                return;
            }
            let (to, message) = self.wire.remove(&(at, serial)).expect("it was just seen");
            match to {
                To::Caller(caller) if self.callers[caller] => self.at_caller(caller, message),
                To::Server(server) if self.servers[server].alive => self.at_server(server, message),
                _ => {}
            }
        }
    }

    fn call(&mut self, caller: usize, server: usize) {
        if !self.callers[caller] || !self.servers[server].alive {
            return;
        }
        let left = 1 + self.rng.below(TIME_MAX);
        let (key, deadline) = (self.rng.below(u64::MAX), self.now + left);
        let id = self.calls[caller][server].begin(key, Nanos(deadline), ()).expect("few are under way");
        let (begun, outcomes) = (HashSet::new(), Vec::new());
        self.known.insert(id, Known { caller, deadline, withdrawn: false, begun, answered: 0, outcomes });
        self.send(caller, To::Server(server), Message::Request { caller, id, left, hops: 0 });
    }

    fn open(&mut self, caller: usize, server: usize) -> Vec<CallId> {
        let ours = self.known.iter().filter(|(_, known)| known.caller == caller && known.outcomes.is_empty());
        let ids = ours.map(|(id, _)| *id);
        ids.filter(|id| self.calls[caller][server].has(*id)).collect()
    }

    fn withdraw(&mut self, caller: usize, server: usize) {
        let open = self.open(caller, server);
        let Some(&id) = open.get(self.rng.below(open.len().max(1) as u64) as usize) else { return };
        self.end(caller, server, id, Status::Cancelled);
        self.send(caller, To::Server(server), Message::Cancel { caller, id });
    }

    /// A call has its outcome, unless it had one.
    fn end(&mut self, caller: usize, server: usize, id: CallId, status: Status) {
        if self.calls[caller][server].end(id).is_some() {
            self.known.get_mut(&id).expect("it was made here").outcomes.push(status);
        }
    }

    fn at_caller(&mut self, caller: usize, message: Message) {
        match message {
            Message::Answer { from, id, status } => {
                let known = &self.known[&id];
                assert_eq!(known.caller, caller, "an answer goes to who asked");
                let ran = known.begun.iter().any(|(at, _)| *at == from);
                assert!(ran || status != Status::Done, "an answer of a handler that did not run");
                // Whichever server it was made of: the key says which record.
                (0..SERVERS).for_each(|server| self.end(caller, server, id, status));
            }
            Message::ServerLost { server } => {
                self.calls[caller][server].lose(|id, ()| {
                    self.known.get_mut(&id).expect("it was made here").outcomes.push(Status::DelegateLost);
                    None
                });
            }
            other => panic!("{other:?} came to a caller"),
        }
    }

    fn at_server(&mut self, at: usize, message: Message) {
        let server = &mut self.servers[at];
        match message {
            Message::Request { caller, id, left, hops } => {
                let deadline = self.now + left;
                match server.calls.admit((caller, id), Nanos(deadline)) {
                    Admitted::Waits => {
                        server.queue.push_back((caller, id));
                        server.hops.insert((caller, id), (deadline, hops));
                    }
                    Admitted::Busy => self.answer(at, caller, id, Status::Busy),
                    Admitted::Again => panic!("nothing comes twice"),
                }
            }
            Message::Cancel { caller, id } => {
                if let Withdrawal::Passed(to) = server.calls.withdraw(&(caller, id)) {
                    self.send(CALLERS + at, To::Server(to), Message::Cancel { caller, id });
                }
                self.known.get_mut(&id).expect("it was made").withdrawn = true;
            }
            Message::CallerLost { caller } => server.calls.caller_lost(&caller),
            Message::DelegateLost { server: lost } => {
                for (caller, id) in server.calls.delegate_lost(lost) {
                    self.answer(at, caller, id, Status::DelegateLost);
                }
            }
            other => panic!("{other:?} came to a server"),
        }
    }

    fn answer(&mut self, server: usize, caller: usize, id: CallId, status: Status) {
        self.send(CALLERS + server, To::Caller(caller), Message::Answer { from: server, id, status });
    }

    fn begin(&mut self, at: usize) {
        let server = &mut self.servers[at];
        let Some((caller, id)) = server.queue.pop_front() else { return };
        let (deadline, hops) = server.hops.remove(&(caller, id)).expect("what waits was admitted");
        match server.calls.begin(&(caller, id), Nanos(self.now)) {
            Turn::Begins => {
                server.running.push((caller, id, hops));
                assert!(self.now < deadline, "a handler began late");
                let known = self.known.get_mut(&id).expect("it was made");
                assert!(known.begun.insert((at, hops)), "a handler began twice");
            }
            Turn::Late => {
                assert!(self.now >= deadline, "late before its time");
                self.answer(at, caller, id, Status::Late);
            }
            Turn::Withdrawn => {
                let gone = !self.callers[caller];
                assert!(self.known[&id].withdrawn || gone, "withdrawn by nobody");
                self.answer(at, caller, id, Status::Cancelled);
            }
        }
    }

    fn finish(&mut self, at: usize) {
        let running = self.servers[at].running.len() as u64;
        if running == 0 {
            return;
        }
        let which = self.rng.below(running) as usize;
        let (caller, id, hops) = self.servers[at].running.swap_remove(which);
        let to = self.rng.below(SERVERS as u64) as usize;
        let left = self.known[&id].deadline.saturating_sub(self.now);
        let passes = to != at && hops < 2 && left > 0 && self.rng.below(3) == 0;
        if passes && self.servers[at].calls.pass_on(&(caller, id), to) {
            if self.servers[to].alive {
                let hops = hops + 1;
                self.send(CALLERS + at, To::Server(to), Message::Request { caller, id, left, hops });
                return;
            }
            self.servers[at].calls.take_back(&(caller, id));
        }
        self.servers[at].calls.finish(&(caller, id));
        let known = self.known.get_mut(&id).expect("it was made");
        known.answered += 1;
        assert!(known.answered <= 1, "a call was answered by two handlers");
        self.answer(at, caller, id, Status::Done);
    }

    fn kill_server(&mut self, at: usize) {
        if !self.servers[at].alive || self.servers.iter().filter(|server| server.alive).count() == 1 {
            return;
        }
        self.servers[at].alive = false;
        (0..CALLERS).for_each(|caller| self.send(CALLERS + at, To::Caller(caller), Message::ServerLost { server: at }));
        for other in (0..SERVERS).filter(|other| *other != at) {
            self.send(CALLERS + at, To::Server(other), Message::DelegateLost { server: at });
        }
    }

    fn kill_caller(&mut self, caller: usize) {
        if !self.callers[caller] || self.callers.iter().filter(|alive| **alive).count() == 1 {
            return;
        }
        self.callers[caller] = false;
        (0..SERVERS).for_each(|server| self.send(caller, To::Server(server), Message::CallerLost { caller }));
    }

    fn expire(&mut self) {
        for caller in 0..CALLERS {
            for server in (0..SERVERS).take(if self.callers[caller] { SERVERS } else { 0 }) {
                let mut over = Vec::new();
                self.calls[caller][server].expire(Nanos(self.now), |id, ()| {
                    over.push(id);
                    None
                });
                for id in over {
                    let known = self.known.get_mut(&id).expect("it was made here");
                    assert!(known.deadline <= self.now, "it had time yet");
                    known.outcomes.push(Status::Late);
                    self.send(caller, To::Server(server), Message::Cancel { caller, id });
                }
            }
        }
        for server in self.servers.iter_mut().filter(|server| server.alive) {
            server.calls.forget_late(Nanos(self.now));
        }
    }

    /// Lets everything come to its end, and looks what is left.
    fn settle(&mut self) -> usize {
        for _ in 0..4 * SERVERS * QUEUE * SERVERS + (TIME_MAX + DELAY_MAX) as usize {
            self.now += 5;
            self.deliver();
            (0..SERVERS).filter(|at| self.servers[*at].alive).collect::<Vec<_>>().into_iter().for_each(|at| {
                self.begin(at);
                self.finish(at);
            });
            self.expire();
        }
        assert!(self.wire.is_empty());
        for (id, known) in &self.known {
            if self.callers[known.caller] {
                assert_eq!(known.outcomes.len(), 1, "{id:?} {known:?}");
            }
        }
        for (caller, alive) in self.callers.iter().enumerate() {
            let left: usize = self.calls[caller].iter().map(Calls::len).sum();
            assert!(!alive || left == 0, "records are left");
        }
        for server in self.servers.iter().filter(|server| server.alive) {
            assert!(server.calls.is_idle() && server.queue.is_empty() && server.running.is_empty());
        }
        self.known.values().filter(|known| known.outcomes == [Status::Done]).count()
    }
}

#[test]
fn calls_end_once_whatever_happens_to_messages_and_processes() {
    let (mut done, mut calls) = (0, 0);
    for seed in 0..1_000 {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            (world.settle(), world.known.len())
        });
        let Ok((some, all)) = outcome else { panic!("seed {seed} failed; its reason is above") };
        (done, calls) = (done + some, calls + all);
    }
    assert!(done * 6 > calls && calls > 40_000, "{done} of {calls} were answered");
}
