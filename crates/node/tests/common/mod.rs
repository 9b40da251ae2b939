//! What tests of a hostile user on a real daemon of root's share: the daemon, and an honest pair
//! whose exchanges have a deadline ([`SLOW`]) and a content.

#![allow(dead_code, reason = "each test file uses a part")]

#[path = "../../src/testing/raw.rs"]
pub(crate) mod raw;
#[path = "../../src/testing/wild.rs"]
pub(crate) mod wild;

pub(crate) use raw::LONG;
use raw::{Raw, Registered};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use vmmc_host::Channel;
use vmmc_host::channel::{ChannelError, node_socket_name};
use vmmc_host::control::{Answer, CONTROL_VERSION, Call, Refusal, Reply, Request, decode, encode};
use vmmc_host::process::{INTERRUPT, interrupt_thread};
use vmmc_host::wait::Deadline;
use vmmc_nic::Rights;
use vmmc_node::{KeySource, NodeConfig};
use wild::{HONEST, HOSTILE, Watched, become_user};

pub(crate) const VMMCD: &str = env!("CARGO_BIN_EXE_vmmcd");
/// An honest exchange that takes longer was held up. The machine itself may be slow now and then:
/// one in fifty may take up to [`TOO_SLOW`].
pub(crate) const SLOW: Duration = Duration::from_millis(250);
pub(crate) const TOO_SLOW: Duration = Duration::from_secs(3);
/// Memory that one hostile user may cost the daemon: its bound on replies that wait, and as much
/// for tables.
pub(crate) const COST_KIB_MAX: u64 = 128 << 10;

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) daemon: Watched,
    _turn: MutexGuard<'static, ()>,
}

/// One test at a time: a process that another one starts would have copies of descriptors that
/// linger, and wait for them when it closes them, before it is what it was started as.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|failed| failed.into_inner())
}

impl Node {
    pub(crate) fn start(test: &str, descriptors: Option<u32>) -> Node {
        Node::with(test, descriptors, |_| {})
    }

    pub(crate) fn with(test: &str, descriptors: Option<u32>, choose: impl FnOnce(&mut NodeConfig)) -> Node {
        let turn = turn();
        let name = format!("hostile-{test}-{}", std::process::id());
        let mut config = NodeConfig::new(&name).listen("127.0.0.1:0".parse().unwrap()).key(KeySource::Plain);
        choose(&mut config);
        let daemon = Watched::start(VMMCD, config.to_args(), descriptors);
        let node = Node { name, daemon, _turn: turn };
        // The kernel takes connections before the daemon has all that it holds: only its answer
        // says that it has.
        raw::wait(&nap, || ask(&node.connect().ok()?, Call::Info { details: false }, &[]).ok()?.ok());
        node
    }

    pub(crate) fn connect(&self) -> Result<Channel, ChannelError> {
        connect(0, &self.name)
    }
}

pub(crate) fn connect(uid: u32, name: &str) -> Result<Channel, ChannelError> {
    Channel::try_connect(&node_socket_name(uid, name))
}

pub(crate) fn nap() {
    std::thread::sleep(Duration::from_millis(1));
}

/// One request and its answer, on a connection that may not be attached.
pub(crate) fn ask(
    channel: &Channel,
    call: Call,
    fds: &[BorrowedFd<'_>],
) -> Result<Result<Answer, Refusal>, ChannelError> {
    let deadline = Deadline::after(LONG);
    channel.send(&encode(&Request { serial: 1, call }), fds, deadline)?;
    let (bytes, _) = channel.receive(deadline)?;
    Ok(decode::<Reply>(&bytes).unwrap().result)
}

pub(crate) fn attach_call() -> Call {
    Call::Attach { version: CONTROL_VERSION }
}

/// Two processes of an honest user, whose transfers the node carries.
pub(crate) struct Honest {
    pub(crate) name: String,
    node: String,
    owner: Raw,
    pub(crate) importer: Raw,
    memory: Registered,
    pub(crate) count: u64,
    times: Vec<Duration>,
}

impl Honest {
    /// To be called by a thread that is the honest user.
    pub(crate) fn new(node: &str) -> Honest {
        let attach = || Raw::over(connect(0, node).unwrap(), Rc::new(std::thread::yield_now));
        let (mut owner, importer) = (attach(), attach());
        let name = format!("honest-{}", owner.id);
        let (_, memory) = owner.export(&name);
        Honest { name, node: node.into(), owner, importer, memory, count: 0, times: Vec::new() }
    }

    /// Imports, sends a word, sees it arrive, and gives the import back; now and then a third
    /// process comes and goes.
    pub(crate) fn exchange(&mut self) {
        let start = Instant::now();
        self.count += 1;
        // Write-only, so that the node carries it.
        let (grant, fds) = self.importer.import(None, &self.name, Rights::WRITE);
        assert!(fds.is_empty());
        self.importer.send(grant.import, 0, &self.count.to_le_bytes(), self.count);
        let done = self.importer.completion();
        assert_eq!((done.cookie, done.status), (self.count, 0));
        assert_eq!(self.memory.region.word(0).unwrap().load(Ordering::SeqCst), self.count);
        assert_eq!(self.memory.region.word(8).unwrap().load(Ordering::SeqCst), 0, "foreign bytes");
        self.importer.call(Call::Unimport { import: grant.import }).unwrap();
        if self.count % 8 == 0 {
            let mut third = Raw::over(connect(0, &self.node).unwrap(), Rc::new(std::thread::yield_now));
            third.export(&format!("{}-third", self.name));
        }
        assert!(self.owner.no_completion(), "the receiver does nothing");
        self.times.push(start.elapsed());
    }

    pub(crate) fn check(&self) {
        let slow = self.times.iter().filter(|time| **time > SLOW).count();
        let worst = self.times.iter().max().unwrap();
        println!("{} honest exchanges, {slow} slow, the worst {worst:?}", self.times.len());
        assert!(slow <= 1 + self.times.len() / 50, "{slow} of {} exchanges were held up", self.times.len());
        assert!(*worst < TOO_SLOW, "an exchange took {worst:?}");
    }
}

/// Says that something is over when it is dropped, also by a panic: a thread that goes on until
/// then would go on for ever.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Has the honest pair go on while others do their worst, at least some exchanges long.
pub(crate) fn beside(node: &mut Node, worst: impl FnOnce() + Send) {
    beside_user(HOSTILE, node, worst);
}

/// The same, with another hostile user.
pub(crate) fn beside_user(uid: u32, node: &mut Node, worst: impl FnOnce() + Send) {
    let memory = node.daemon.memory_kib();
    let over = AtomicBool::new(false);
    let name = node.name.clone();
    // The hostile thread may be the last to close what lingers; a signal ends its wait.
    signal_hook::flag::register(INTERRUPT, Default::default()).unwrap();
    let hostile_thread = AtomicI32::new(0);
    let peak = std::thread::scope(|scope| {
        let honest = scope.spawn(|| {
            become_user(HONEST);
            let mut honest = Honest::new(&name);
            while !over.load(Ordering::SeqCst) || honest.count < 20 {
                honest.exchange();
                std::thread::sleep(Duration::from_millis(2));
            }
            honest.check();
        });
        let hostile = scope.spawn(|| {
            let _over = Over(&over);
            hostile_thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
            become_user(uid);
            worst();
        });
        let mut peak = memory;
        while !(honest.is_finished() && hostile.is_finished()) {
            peak = peak.max(node.daemon.memory_kib());
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(1));
                if !hostile.is_finished() {
                    interrupt_thread(hostile_thread.load(Ordering::SeqCst));
                }
            }
        }
        hostile.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        honest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        peak
    });
    assert!(node.daemon.is_alive(), "the daemon has ended");
    println!("the daemon took up to {} KiB more", peak - memory);
    assert!(peak - memory <= COST_KIB_MAX, "the daemon took {} KiB more", peak - memory);
}
