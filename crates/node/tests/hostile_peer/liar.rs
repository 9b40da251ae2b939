//! A peer that makes a session in plain mode as it should be made, and lies from then on.
//!
//! Invariant: it sends frames of every kind that the decoder of the engine knows.

use super::*;
use std::ops::Range;
use vmmc_host::control;
use vmmc_nic::ExportKind;
use vmmc_nic::limits::RING_BYTES_MIN;
use vmmc_nic::{
    Command, ImportId, ProcessId, RECORD_HEAD_BYTES, RING_HEAD_BYTES, RING_READ_AT, RING_WRITTEN_AT, RecordHead,
    Rights, Source,
};

/// The hostile peer's engine has no memory.
pub(crate) struct NoMemory;

impl Dma for NoMemory {
    fn deposit(&mut self, _: RegionRef, _: u64, _: &[u8]) {}
    fn gather(&mut self, _: RegionRef, _: u64, out: &mut [u8]) {
        out.fill(0xee);
    }
    fn copy(&mut self, _: RegionRef, _: u64, _: RegionRef, _: u64, _: u64) {}
    fn atomic(&mut self, _: RegionRef, _: u64, _: AtomicOp) -> u64 {
        0
    }
}

/// A peer that makes a session as it should be made, and lies from then on.
pub(crate) struct Liar {
    pub(crate) noise: Noise,
    pub(crate) socket: UdpSocket,
    pub(crate) start: Instant,
    pub(crate) engine: Engine,
    /// Its last datagram in the session with the near node, with its number and that of the next
    /// chunk.
    pub(crate) said: Option<(Vec<u8>, u64, u64)>,
    /// Numbers that the near node knows: those of the liar's own import, and all.
    pub(crate) own: Vec<u64>,
    pub(crate) known: Vec<u64>,
    pub(crate) sent: u64,
}

pub(crate) const LIAR_PORT: u16 = 4_790;
/// What others export to anyone, and what the liar does.
pub(crate) const OPEN: [&str; 3] = ["open", "redirectable", "ring"];
pub(crate) const TRAP: &str = "trap";

impl Liar {
    /// To be made on the hub.
    pub(crate) fn new() -> Liar {
        let noise = Noise::new(wild::seed());
        let socket = UdpSocket::bind((*address(HUB).ip(), LIAR_PORT)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let engine = Liar::engine(0);
        Liar { noise, socket, start: Instant::now(), engine, said: None, own: Vec::new(), known: Vec::new(), sent: 0 }
    }

    pub(crate) fn engine(seed: u64) -> Engine {
        let seed = std::array::from_fn(|at| seed.to_le_bytes()[at % 8]);
        Engine::new(vmmc_nic::Config::new(NodeName::parse("liar").unwrap()), seed, Time::ZERO)
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Makes a session and imports; says whether that worked.
    pub(crate) fn begin(&mut self, name: &str) -> bool {
        self.engine = Liar::engine(self.noise.next());
        (self.said, self.known) = (None, Vec::new());
        let (now, process) = (self.now(), self.engine.attach(HOSTILE).unwrap());
        let all = vmmc_nic::Rights::ALL;
        let offered = if name == OPEN[2] { vmmc_nic::Rights::WRITE } else { all };
        let trap = vmmc_nic::ExportSpec {
            name: Some(TRAP.into()),
            region: RegionId(0),
            offset: 0,
            len: 1 << 20,
            rights: all,
            access: vmmc_nic::Access::Anyone,
            notify: true,
            redirectable: false,
            kind: ExportKind::Memory,
        };
        self.engine.export(now, process, trap).unwrap();
        let wanted = vmmc_nic::ImportSpec {
            node: Some(NodeSpec::Addr(address(NEAR).into())),
            what: vmmc_nic::ImportTarget::Name(name.into()),
            owner: vmmc_nic::Owner::Any,
            rights: offered,
            wait: false,
            deadline: now + Duration::from_secs(2),
            own_order: false,
        };
        self.engine.import(now, process, wanted, Cookie(1));
        loop {
            self.step();
            while let Some(event) = self.engine.poll_event() {
                if let Event::ImportDone { result, .. } = event {
                    self.own = self.known.clone();
                    let Ok(grant) = result else { return false };
                    if grant.kind == ExportKind::Ring {
                        self.append(process, grant.import);
                    }
                    return true;
                }
            }
            nap();
        }
    }

    /// Records as they should be; their sender does not care whether they find room.
    fn append(&mut self, process: ProcessId, import: ImportId) {
        let now = self.now();
        for _ in 0..self.noise.below(40) {
            let (data, word) = ([0xdd; 150], self.noise.next());
            let source = Source::Inline(&data[..self.noise.below(data.len())]);
            let append = Command::Append { import, source, word, notify: true, refusals: 0, completion: None };
            self.engine.post(now, process, append, &mut NoMemory).unwrap();
        }
    }

    /// What an honest peer does.
    pub(crate) fn step(&mut self) {
        let (now, mut buf) = (self.now(), vec![0; 1 << 16]);
        while let Ok((len, from)) = self.socket.recv_from(&mut buf) {
            self.learn(&buf[..len]);
            self.engine.handle_datagram(now, from, &mut buf[..len], &mut NoMemory);
        }
        self.engine.handle_timeout(now);
        while self.engine.poll_work(now, &mut NoMemory) {}
        while let Some(sent) = self.engine.poll_transmit(now, &mut buf, &mut NoMemory) {
            let datagram = &buf[..sent.len];
            if let Some(seen) = fuzzing::seen(datagram).filter(|_| sent.to == SocketAddr::from(address(NEAR))) {
                let next = seen.next_seq.or(self.said.as_ref().map(|said| said.2)).unwrap_or(0);
                self.said = Some((datagram.to_vec(), seen.number, next));
            }
            let _ = self.socket.send_to(datagram, sent.to);
        }
    }

    pub(crate) fn learn(&mut self, datagram: &[u8]) {
        let Some(seen) = fuzzing::seen(datagram) else { return };
        self.known.extend(seen.names);
        let surplus = self.known.len().saturating_sub(64);
        self.known.drain(..surplus);
    }

    /// Some hundred datagrams: of this kind first, then of some others too. Where those break the
    /// protocol the session ends early, where they do not it goes on.
    pub(crate) fn lie(&mut self, kinds: &[u8], first: u8) {
        let others = self.noise.pick(&[1, 2, 4, kinds.len()]);
        let kinds: Vec<u8> = (0..others).map(|_| self.noise.pick(kinds)).chain([first]).collect();
        let Some((of, mut number, mut next)) = self.said.take() else { return };
        let mut buf = vec![0; 1 << 16];
        let steps = 20 + self.noise.below(300);
        for step in 0..steps {
            let mut frames = Vec::new();
            // In their order mostly; else anew, beyond what is missing, or from anywhere.
            let seq = match self.noise.below(16) {
                0 => next.wrapping_sub(self.noise.next() % 20),
                1 => next + self.noise.next() % 200,
                2 => self.noise.number(),
                _ => next,
            };
            frames.push(2);
            frames.extend(seq.to_le_bytes());
            for _ in 0..1 + self.noise.below(3) {
                // A frame that is no chunk often is a breach at once.
                let kind = if step == 0 { first } else { self.noise.pick(&kinds) };
                let is_chunk = fuzzing::is_chunk(kind) == Some(true);
                if !is_chunk && step > 0 && !self.noise.one_in(20) {
                    continue;
                }
                let mut noise = Noise::new(self.noise.next());
                let mut random = || noise.next();
                let names = [OPEN[0], OPEN[1], OPEN[2], NAME, TRAP];
                let known = if step % 2 == 0 { &self.own } else { &self.known };
                let mut wild = fuzzing::Wild { random: &mut random, known, names: &names };
                frames.extend(fuzzing::wild_frame(kind, &mut wild).unwrap());
                next += u64::from(is_chunk && seq == next);
            }
            match self.noise.below(60) {
                0 => frames.truncate(self.noise.below(frames.len())),
                1 => {
                    let at = self.noise.below(frames.len());
                    frames[at] ^= 1 << self.noise.below(8);
                }
                _ => {}
            }
            frames.truncate(1_400);
            number = match self.noise.below(30) {
                0 => number.saturating_sub(self.noise.next() % 10),
                1 => number + self.noise.next() % 100,
                _ => number + 1,
            };
            let datagram = fuzzing::plain_datagram(&of, number, &frames);
            let _ = self.socket.send_to(&datagram, address(NEAR));
            self.sent += 1;
            if step % 8 == 0 {
                std::thread::sleep(Duration::from_millis(1));
                while let Ok((len, _)) = self.socket.recv_from(&mut buf) {
                    if buf[1] & 15 == UNKNOWN_SESSION {
                        // It has ended.
                        return;
                    }
                    self.learn(&buf[..len]);
                }
            }
        }
    }
}

/// Where the ring lies in its region.
const RING: Range<u64> = 4_096..4_096 + RING_HEAD_BYTES + RING_BYTES_MIN;

/// Reads what a ring holds: whole records of the liar, who cannot say that it is somebody else.
/// Gives how many.
fn records(memory: &Registered) -> u64 {
    let word = |at: u64| memory.region.word(RING.start + at).unwrap();
    let (mut read, written) =
        (word(RING_READ_AT).load(Ordering::Acquire), word(RING_WRITTEN_AT).load(Ordering::Acquire));
    assert!(written - read <= RING_BYTES_MIN, "{written} bytes written, {read} read");
    let mut count = 0;
    while read < written {
        // Every byte by itself, as the ring goes on at its beginning.
        let byte = |at: u64| {
            let mut one = [0];
            memory.region.read(RING.start + RING_HEAD_BYTES + (read + at) % RING_BYTES_MIN, &mut one).unwrap();
            one[0]
        };
        let head: [u8; RECORD_HEAD_BYTES as usize] = std::array::from_fn(|at| byte(at as u64));
        let head = RecordHead::from_bytes(&head).expect("a record is there");
        assert!(!head.from.is_local(), "{head:?} says that it is from this node");
        read += head.record_bytes();
        count += 1;
    }
    assert_eq!(read, written, "the last record is whole");
    word(RING_READ_AT).store(read, Ordering::Release);
    count
}

/// Where in a region exports to anyone lie, and what fetches go to; all else stays 0.
pub(crate) const WITHIN: Range<u64> = 4_096..8_192;

pub(crate) fn guards_are_untouched(memory: &Registered, within: &Range<u64>, whose: &str) {
    let mut bytes = vec![0; memory.region.len_bytes() as usize];
    memory.region.read(0, &mut bytes).unwrap();
    let outside = |at: usize| !within.contains(&(at as u64));
    let found = bytes.iter().enumerate().find(|(at, byte)| **byte != 0 && outside(*at));
    assert_eq!(found, None, "{whose} was written outside of what a peer may write");
}

/// Asks the hostile peer for whatever can be asked, and examines what comes of it; does this too
/// each time.
pub(crate) fn be_a_victim(victim: &mut Raw, memory: &Registered, over: &AtomicBool, mut each_time: impl FnMut()) {
    let (mut asked, mut granted, mut answered) = (0u64, 0u64, 0u64);
    let node = SocketAddrV4::new(*address(HUB).ip(), LIAR_PORT).to_string();
    let mut open = BTreeMap::new();
    while !over.load(Ordering::SeqCst) {
        let call = Call::Import {
            node: Some(node.clone()),
            what: What::Name(TRAP.into()),
            owner: Owner::Any,
            rights: Rights::ALL.bits(),
            wait: asked % 3 == 0,
            timeout_ms: 100,
            own_order: false,
        };
        asked += 1;
        let Ok(Answer::Imported(grant)) = victim.call(call) else {
            nap();
            continue;
        };
        granted += 1;
        for number in 0..20 {
            let op = [Op::Fetch, Op::FetchAdd, Op::Send, Op::Swap][number % 4];
            let mut command = RawCommand::new(op, grant.import);
            (command.flags, command.cookie) = (flags::COMPLETE, asked * 100 + number as u64);
            if matches!(op, Op::Fetch | Op::Send) {
                (command.region, command.region_offset) = (memory.id.into(), WITHIN.start);
                command.len = WITHIN.end - WITHIN.start;
            }
            open.insert(command.cookie, op);
            victim.post(&command, &[]);
        }
        victim.ring();
        for _ in 0..500 {
            while let Some(done) = victim.try_completion() {
                answered += u64::from(done.status == 0);
                assert!(open.remove(&done.cookie).is_some(), "{done:?} was completed twice, or never asked for");
            }
            while victim.events.try_receive().is_ok() {}
            if open.is_empty() {
                break;
            }
            nap();
        }
        guards_are_untouched(memory, &WITHIN, "the process that fetched");
        each_time();
        let _ = victim.call(Call::Unimport { import: grant.import });
        let _ = victim.call(Call::Ping { node: node.clone(), timeout_ms: 10 });
    }
    // All that was asked ends: with an answer, an import that ended or a peer that is gone.
    raw::wait(&nap, || {
        while let Some(done) = victim.try_completion() {
            assert!(open.remove(&done.cookie).is_some(), "{done:?} was completed twice, or never asked for");
        }
        open.is_empty().then_some(())
    });
    println!("{asked} imports from the liar, {granted} granted, {answered} operations answered");
    assert!(granted > 0, "the victim never met the liar");
}

#[test]
fn wild_chunks_of_every_kind_in_plain_sessions_harm_no_honest_pair() {
    let Some(wire) = Wire::new() else { return };
    let (mut near, mut far, _stranger) = pair(&wire, None);
    let channels = [0; 3].map(|_| near.try_connect(&wire, VICTIM).unwrap());
    let (over, (ready, go)) = (AtomicBool::new(false), mpsc::channel());
    let kinds: Vec<u8> = (0..=255).filter(|kind| fuzzing::is_chunk(*kind).is_some()).collect();
    std::thread::scope(|scope| {
        let over = &over;
        let victim = scope.spawn(move || {
            become_user(VICTIM);
            let [mut owner, mut other, mut victim] = channels.map(|channel| Raw::over(channel, Rc::new(nap)));
            let within = [WITHIN, WITHIN, RING];
            let memories: Vec<Registered> = OPEN
                .iter()
                .zip(&within)
                .map(|(name, within)| {
                    let (owner, ring) = (if *name == OPEN[0] { &mut owner } else { &mut other }, *name == OPEN[2]);
                    let memory = owner.register(within.end.next_multiple_of(4_096) + 4_096);
                    let Call::Export { name: called, region, rights, .. } = Raw::export_call(&memory, name) else {
                        unreachable!()
                    };
                    let call = Call::Export {
                        name: called,
                        region,
                        offset: within.start,
                        len: within.end - within.start,
                        rights: if ring { Rights::WRITE.bits() } else { rights },
                        access: Access::Anyone,
                        notify: true,
                        redirectable: *name == OPEN[1],
                        kind: if ring { control::ExportKind::Ring } else { control::ExportKind::Memory },
                        mappable: false,
                    };
                    assert!(matches!(owner.call(call), Ok(Answer::Exported { .. })));
                    memory
                })
                .collect();
            let target = victim.register(12_288);
            ready.send(()).unwrap();
            let mut appended = 0;
            be_a_victim(&mut victim, &target, over, || appended += records(&memories[2]));
            println!("{appended} records from the liar");
            assert!(appended > 0, "the liar never appended");
            for (memory, (within, name)) in memories.iter().zip(within.iter().zip(OPEN)) {
                guards_are_untouched(memory, within, name);
            }
        });
        let failed = go.recv().is_err();
        beside(&wire, [&mut near, &mut far], PEER_KIB_MAX, || {
            let _over = Over(over);
            let mut liar = Liar::new();
            let end = Instant::now() + hostile_time();
            let (mut sessions, mut tries) = (0, 0);
            while !failed && Instant::now() < end {
                tries += 1;
                if liar.begin(OPEN[tries % OPEN.len()]) {
                    // Some of it as it should be, so that the victim's requests come in.
                    let until = Instant::now() + Duration::from_millis(liar.noise.next() % 5);
                    while Instant::now() < until {
                        liar.step();
                        nap();
                    }
                    liar.lie(&kinds, kinds[sessions % kinds.len()]);
                    sessions += 1;
                }
            }
            println!("{sessions} sessions of {tries} tries");
            assert!(sessions >= kinds.len(), "not every kind came first in a session: {sessions} of {tries}");
            liar.sent
        });
        victim.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
