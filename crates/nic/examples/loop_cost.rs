//! What the engine itself costs: two engines in one loop, memory copies and nothing else.
//!
//! `cargo run --release -p vmmc-nic --example loop_cost`

use std::net::SocketAddr;
use std::time::Instant;

use vmmc_nic::*;

struct Flat(Vec<Vec<u8>>);

impl Dma for Flat {
    #[inline]
    fn deposit(&mut self, to: RegionRef, offset: u64, data: &[u8]) {
        let region = &mut self.0[to.region.0 as usize];
        region[offset as usize..offset as usize + data.len()].copy_from_slice(data);
    }
    #[inline]
    fn gather(&mut self, from: RegionRef, offset: u64, out: &mut [u8]) {
        let region = &self.0[from.region.0 as usize];
        out.copy_from_slice(&region[offset as usize..offset as usize + out.len()]);
    }
    fn copy(&mut self, from: RegionRef, from_offset: u64, to: RegionRef, to_offset: u64, len: u64) {
        let mut data = vec![0; len as usize];
        self.gather(from, from_offset, &mut data);
        self.deposit(to, to_offset, &data);
    }
    fn atomic(&mut self, at: RegionRef, offset: u64, op: AtomicOp) -> u64 {
        let word = &mut self.0[at.region.0 as usize][offset as usize..offset as usize + 8];
        let old = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        word.copy_from_slice(&op.apply(old).to_le_bytes());
        old
    }
}

struct Bench {
    engines: [Engine; 2],
    memory: [Flat; 2],
    addrs: [SocketAddr; 2],
    origin: Instant,
    buf: Vec<u8>,
    process: ProcessId,
    import: ImportId,
    completions: u64,
    packets: u64,
    /// The clock is read once per step: reading it is the driver's cost, not the engine's.
    time: Time,
}

/// Processor time of this thread where the system reports it, so that a busy machine does not spoil
/// the figures; else the time on the wall.
fn spent_ns(origin: Instant) -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let told = told.and_then(|text| text.split(' ').next().and_then(|field| field.parse::<f64>().ok()));
    told.unwrap_or_else(|| origin.elapsed().as_nanos() as f64)
}

const BULK: usize = 8 << 20;

impl Bench {
    fn new(sealed: bool, mtu: usize) -> Bench {
        let origin = Instant::now();
        let addrs = [0, 1].map(|node: u16| SocketAddr::from(([127, 0, 0, 1], 7_000 + node)));
        let engines = [0u8, 1].map(|node| {
            let mut config = Config::new(NodeName::parse(&format!("n{node}")).expect("a name"));
            config.key = sealed.then_some(ClusterKey([1; 32]));
            config.path_mtu_bytes = mtu;
            config.recv_buffer_bytes = 4 << 20;
            Engine::new(config, [node; 32], Time::ZERO)
        });
        let memory = [0, 1].map(|_| Flat(vec![vec![1; BULK]; 2]));
        let (process, import) = (ProcessId(0), ImportId { slot: 0, generation: 0 });
        let buf = vec![0; 65_536];
        let mut bench = Bench {
            engines,
            memory,
            addrs,
            origin,
            buf,
            process,
            import,
            completions: 0,
            packets: 0,
            time: Time::ZERO,
        };
        bench.connect();
        bench
    }

    fn now(&self) -> Time {
        self.time
    }

    fn connect(&mut self) {
        self.process = self.engines[0].attach(0).expect("room");
        let owner = self.engines[1].attach(0).expect("room");
        let now = self.now();
        let spec = ExportSpec {
            name: Some("buffer".into()),
            region: RegionId(1),
            offset: 0,
            len: BULK as u64,
            rights: Rights::ALL,
            access: Access::Anyone,
            notify: false,
            redirectable: false,
            kind: vmmc_nic::ExportKind::Memory,
        };
        self.engines[1].export(now, owner, spec).expect("exported");
        let spec = ImportSpec {
            node: Some(NodeSpec::Addr(self.addrs[1])),
            what: ImportTarget::Name("buffer".into()),
            owner: vmmc_nic::Owner::Any,
            rights: Rights::ALL,
            wait: true,
            deadline: Time::MAX,
            own_order: false,
        };
        self.engines[0].import(now, self.process, spec, Cookie(0));
        loop {
            self.step();
            while let Some(event) = self.engines[0].poll_event() {
                if let Event::ImportDone { result, .. } = event {
                    self.import = result.expect("granted").import;
                    return;
                }
            }
        }
    }

    /// Carries what each has to say to the other.
    fn step(&mut self) {
        self.time = Time::from_nanos(self.origin.elapsed().as_nanos() as u64);
        for from in 0..2 {
            let now = self.now();
            if self.engines[from].poll_timeout().is_some_and(|at| at <= now) {
                self.engines[from].handle_timeout(now);
            }
            while let Some(sent) = self.engines[from].poll_transmit(now, &mut self.buf, &mut self.memory[from]) {
                self.packets += 1;
                let to = 1 - from;
                self.engines[to].handle_datagram(
                    now,
                    self.addrs[from],
                    &mut self.buf[..sent.len],
                    &mut self.memory[to],
                );
            }
        }
    }

    fn take_completions(&mut self) {
        while let Some(event) = self.engines[0].poll_event() {
            if let Event::Completion { result, .. } = event {
                result.expect("done");
                self.completions += 1;
            }
        }
    }

    fn post(&mut self, command: Command<'_>) -> bool {
        let now = self.now();
        self.engines[0].post(now, self.process, command, &mut self.memory[0]).is_ok()
    }

    /// One at a time: post, carry, complete.
    fn small(&mut self, count: u64) -> f64 {
        let start = spent_ns(self.origin);
        for index in 0..count {
            let data = index.to_le_bytes();
            let (import, source) = (self.import, Source::Inline(&data));
            let completion = Some(Cookie(index));
            self.post(Command::Send { import, offset: 0, source, notify: None, counter: None, completion });
            while self.completions <= index {
                self.step();
                self.take_completions();
            }
        }
        self.completions = 0;
        (spent_ns(self.origin) - start) / count as f64
    }

    /// Posted sends, one packet each, one way.
    fn posted(&mut self, count: u64) -> f64 {
        let start = spent_ns(self.origin);
        for index in 0..count {
            let data = index.to_le_bytes();
            let (import, source) = (self.import, Source::Inline(&data));
            self.post(Command::Send { import, offset: 0, source, notify: None, counter: None, completion: None });
            self.step();
        }
        (spent_ns(self.origin) - start) / count as f64
    }

    /// Many at once: they share packets.
    fn batched(&mut self, rounds: u64) -> f64 {
        let start = spent_ns(self.origin);
        let mut done = 0;
        for _ in 0..rounds {
            for index in 0..64u64 {
                let data = index.to_le_bytes();
                let (import, source) = (self.import, Source::Inline(&data));
                let completion = Some(Cookie(index));
                self.post(Command::Send { import, offset: 0, source, notify: None, counter: None, completion });
            }
            done += 64;
            while self.completions < done {
                self.step();
                self.take_completions();
            }
        }
        self.completions = 0;
        (spent_ns(self.origin) - start) / done as f64
    }

    fn bulk(&mut self, rounds: u64) -> f64 {
        let start = spent_ns(self.origin);
        for round in 0..rounds {
            let source = Source::Region { region: RegionId(0), offset: 0, len: BULK as u64 };
            let (import, completion) = (self.import, Some(Cookie(round)));
            self.post(Command::Send { import, offset: 0, source, notify: None, counter: None, completion });
            while self.completions <= round {
                self.step();
                self.take_completions();
            }
        }
        self.completions = 0;
        rounds as f64 * BULK as f64 / (spent_ns(self.origin) - start)
    }
}

fn best(mut measure: impl FnMut() -> f64, better: fn(f64, f64) -> f64) -> f64 {
    (0..5).map(|_| measure()).reduce(better).expect("five")
}

fn main() {
    println!(
        "{:8} {:>18} {:>14} {:>14} {:>12} {:>12}",
        "mode", "8 B send+ack, ns", "8 B posted, ns", "8 B of 64, ns", "64 KiB GB/s", "1472 GB/s"
    );
    for sealed in [false, true] {
        let mut bench = Bench::new(sealed, 65_507);
        let mut small_packets = Bench::new(sealed, 1_472);
        println!(
            "{:8} {:18.0} {:14.0} {:14.0} {:12.2} {:12.2}",
            if sealed { "sealed" } else { "plain" },
            best(|| bench.small(50_000), f64::min),
            best(|| bench.posted(50_000), f64::min),
            best(|| bench.batched(2_000), f64::min),
            best(|| bench.bulk(20), f64::max),
            best(|| small_packets.bulk(10), f64::max),
        );
    }
}
