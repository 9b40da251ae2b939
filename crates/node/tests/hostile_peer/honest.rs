//! The honest pair, and what is checked while somebody does his worst beside it.
//!
//! Invariant: each word that is sent is looked for before the next one, and nothing else is there.

use super::*;
use vmmc_nic::Rights;

/// A process of an honest user on either node: one sends to, fetches from and counts in memory of
/// the other.
pub(crate) struct Honest {
    _owner: Raw,
    pub(crate) importer: Raw,
    pub(crate) memory: Registered,
    /// What is sent, and what comes back.
    pub(crate) ours: Registered,
    pub(crate) import: u64,
    pub(crate) count: u64,
    pub(crate) longest: Duration,
}

/// Its export, and where in it words, counter and long data are.
pub(crate) const NAME: &str = "honest";
pub(crate) const WORD: u64 = 0;
pub(crate) const COUNTER: u64 = 8;
pub(crate) const LONG_AT: u64 = 4096;
pub(crate) const LONG: u64 = 32 << 10;

impl Honest {
    /// To be called by a thread that is the honest user.
    pub(crate) fn new([owner, importer]: [(&Node, Channel); 2]) -> Honest {
        let near = address(owner.0.host);
        let (mut owner, mut importer) = (owner.0.attach(owner.1), importer.0.attach(importer.1));
        let (_, memory) = owner.export(NAME);
        let ours = importer.register(64 << 10);
        let all = Rights::ALL;
        let (grant, _) = importer.import(Some(&near.to_string()), NAME, all);
        Honest { _owner: owner, importer, memory, ours, import: grant.import, count: 0, longest: Duration::ZERO }
    }

    pub(crate) fn there(&self, at: u64) -> u64 {
        self.memory.region.word(at).unwrap().load(Ordering::SeqCst)
    }

    pub(crate) fn done(&mut self, command: RawCommand, inline: &[u8]) -> u64 {
        let command = RawCommand { cookie: self.count, ..command };
        self.importer.post(&command, inline);
        self.importer.ring();
        let done = self.importer.completion();
        assert_eq!((done.cookie, done.status), (self.count, 0), "{command:?}: {done:?}");
        done.value
    }

    /// A word, a count, and now and then long data there and back: each is checked, and what came
    /// before is still as it was left.
    pub(crate) fn exchange(&mut self) {
        let start = Instant::now();
        assert_eq!(self.there(WORD), self.count, "what had arrived is as it was");
        assert_eq!(self.there(COUNTER), self.count, "nothing is counted twice");
        self.count += 1;
        let mut send = RawCommand::new(Op::Send, self.import);
        (send.flags, send.offset) = (flags::INLINE | flags::COMPLETE, WORD);
        self.done(send, &self.count.to_le_bytes());
        assert_eq!(self.there(WORD), self.count);
        let mut add = RawCommand::new(Op::FetchAdd, self.import);
        (add.flags, add.offset, add.counter) = (flags::COMPLETE, COUNTER, 1);
        assert_eq!(self.done(add, &[]), self.count - 1, "the count before");
        if self.count % 4 == 1 {
            self.long();
        }
        self.longest = self.longest.max(start.elapsed());
    }

    pub(crate) fn long(&mut self) {
        let bytes: Vec<u8> = (0..LONG).map(|at| (at / 3 + self.count) as u8).collect();
        self.ours.region.write(0, &bytes).unwrap();
        let mut send = RawCommand::new(Op::Send, self.import);
        (send.flags, send.offset, send.region, send.len) = (flags::COMPLETE, LONG_AT, self.ours.id.into(), LONG);
        self.done(send, &[]);
        let mut got = vec![0; LONG as usize];
        self.memory.region.read(LONG_AT, &mut got).unwrap();
        assert!(got == bytes, "message {} came with other bytes", self.count);
        let mut fetch = RawCommand::new(Op::Fetch, self.import);
        (fetch.flags, fetch.offset, fetch.len) = (flags::COMPLETE, LONG_AT, LONG);
        (fetch.region, fetch.region_offset) = (self.ours.id.into(), LONG);
        self.done(fetch, &[]);
        self.ours.region.read(LONG, &mut got).unwrap();
        assert!(got == bytes, "fetch {} came with other bytes", self.count);
        for at in [16, LONG_AT - 8, LONG_AT + LONG, (64 << 10) - 8] {
            assert_eq!(self.there(at), 0, "foreign bytes at {at}");
        }
    }
}

/// What a daemon takes of the machine.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) memory_kib: u64,
    pub(crate) descriptors: usize,
    pub(crate) ticks: u64,
}

impl Taken {
    pub(crate) fn by(node: &Node) -> Taken {
        let daemon = &node.daemon;
        Taken { memory_kib: daemon.memory_kib(), descriptors: daemon.descriptors(), ticks: daemon.ticks() }
    }
}

/// Says that something is over when it goes, also in a panic: a thread that waits for it would wait
/// for ever.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Has an honest pair go on on these nodes while a thread in the hub does its worst, which says how
/// many datagrams it sent.
pub(crate) fn beside(wire: &Wire, nodes: [&mut Node; 2], cost_kib_max: u64, worst: impl FnOnce() -> u64 + Send) {
    let [near, far] = &nodes;
    let over = AtomicBool::new(false);
    let exchanges = AtomicU64::new(0);
    let channels = [near, far].map(|node| node.try_connect(wire, HONEST).unwrap());
    let (ready, go) = mpsc::channel();
    let (sent, before, most) = std::thread::scope(|scope| {
        let [one, two] = channels;
        let (over, exchanges) = (&over, &exchanges);
        let honest = scope.spawn(move || {
            become_user(HONEST);
            let mut honest = Honest::new([(near, one), (far, two)]);
            (0..20).for_each(|_| honest.exchange());
            honest.longest = Duration::ZERO;
            ready.send(()).unwrap();
            while !over.load(Ordering::SeqCst) {
                honest.exchange();
                exchanges.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
            }
            // What was held back and comes late changes nothing either.
            (0..20).for_each(|_| honest.exchange());
            honest.longest
        });
        // It fails by itself, with its reason.
        let failed = go.recv().is_err();
        let before = [near, far].map(|node| Taken::by(node));
        let hostile = scope.spawn(move || {
            let _over = Over(over);
            wire.enter(HUB);
            if failed { 0 } else { worst() }
        });
        let mut most = before;
        while !(honest.is_finished() && hostile.is_finished()) {
            for (most, node) in most.iter_mut().zip([near, far]) {
                let now = Taken::by(node);
                most.memory_kib = most.memory_kib.max(now.memory_kib);
                most.descriptors = most.descriptors.max(now.descriptors);
                most.ticks = now.ticks;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let sent = hostile.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let longest = honest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let done = exchanges.load(Ordering::SeqCst);
        println!("{sent} hostile datagrams; {done} exchanges beside them, the longest {longest:?}");
        assert!(longest < STALL, "an exchange took {longest:?}");
        (sent, before, most)
    });
    assert!(sent > 0, "the generator has not run");
    for (node, (before, most)) in nodes.into_iter().zip(before.into_iter().zip(most)) {
        let (more, ticks) = (most.memory_kib - before.memory_kib, most.ticks - before.ticks);
        let each = ticks as f64 * 10_000.0 / sent as f64;
        println!("{}: {more} KiB more, {ticks} ticks, {each:.1} us for each hostile datagram", node.name);
        assert!(node.daemon.is_alive(), "{} has ended", node.name);
        assert!(more <= cost_kib_max, "{} took {more} KiB more", node.name);
        assert!(most.descriptors <= before.descriptors + 8, "{} took {} descriptors", node.name, most.descriptors);
        settles(node, before);
    }
}

/// When it is over a daemon is idle again, and has the descriptors that it had.
pub(crate) fn settles(node: &Node, before: Taken) {
    let mut last = 0;
    for _ in 0..20 {
        let start = node.daemon.ticks();
        std::thread::sleep(Duration::from_secs(1));
        last = node.daemon.ticks() - start;
        if last <= IDLE_TICKS && node.daemon.descriptors() <= before.descriptors {
            return;
        }
    }
    let now = node.daemon.descriptors();
    panic!("{}: {last} ticks in a second without work, {now} of {} descriptors", node.name, before.descriptors);
}
