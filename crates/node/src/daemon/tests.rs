//! Daemons in threads of the test, over real sockets.

use super::*;
use crate::config::KeySource;
use crate::testing::{LONG, Raw, wait};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmmc_host::Channel;
use vmmc_host::channel::listening_nodes;
use vmmc_host::control::{Answer, Call, NodeEvent};
use vmmc_nic::Rights;

struct TestDaemon {
    name: String,
    address: SocketAddr,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl TestDaemon {
    fn start(name: &str, change: impl FnOnce(NodeConfig) -> NodeConfig) -> TestDaemon {
        TestDaemon::start_after(name, change, |_| ()).0
    }

    /// As [`start`](TestDaemon::start), with something done once processes can connect and before
    /// the daemon runs.
    fn start_after<T>(
        name: &str,
        change: impl FnOnce(NodeConfig) -> NodeConfig,
        before: impl FnOnce(&str) -> T,
    ) -> (TestDaemon, T) {
        let name = format!("test-{name}-{}", std::process::id());
        let config =
            NodeConfig::new(&name).listen(SocketAddr::from(([127, 0, 0, 1], 0))).key(KeySource::Given([9; 32]));
        let daemon = Daemon::start(change(config)).unwrap();
        let (address, stopper) = (daemon.running().addresses[0], daemon.stopper());
        let done = before(&name);
        let thread = Some(std::thread::spawn(move || daemon.run()));
        (TestDaemon { name, address, stopper, thread }, done)
    }

    fn connect(&self) -> Channel {
        connect(&self.name)
    }

    fn attach(&self) -> Raw {
        Raw::over(self.connect(), Rc::new(std::thread::yield_now))
    }

    fn join(mut self) -> Result<(), RunError> {
        self.thread.take().expect("joined once").join().unwrap()
    }
}

fn connect(name: &str) -> Channel {
    Channel::connect(&node_socket_name(rustix::process::geteuid().as_raw(), name)).unwrap()
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

#[test]
fn processes_of_two_daemons_talk() {
    for plain in [false, true] {
        let key = if plain { KeySource::Plain } else { KeySource::Given([9; 32]) };
        let a = TestDaemon::start("a", |c| c.key(key.clone()).plain_trust_users());
        let b = TestDaemon::start("b", |c| c.key(key.clone()).plain_trust_users());
        let (mut owner, mut importer) = (a.attach(), b.attach());
        let (_, memory) = owner.export("x");
        let (grant, _) = importer.import(Some(&a.address.to_string()), "x", Rights::READ | Rights::WRITE);
        for i in 1..=300u64 {
            importer.send(grant.import, 0, &i.to_le_bytes(), i);
            assert_eq!(importer.completion().cookie, i);
            assert_eq!(memory.region.word(0).unwrap().load(Ordering::SeqCst), i);
            if i % 100 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
    }
}

#[test]
fn a_sleeping_daemon_hears_its_doorbell() {
    let a = TestDaemon::start("bell", |c| c);
    let (mut owner, mut importer) = (a.attach(), a.attach());
    let (_, memory) = owner.export("x");
    let (grant, _) = importer.import(None, "x", Rights::WRITE);
    for i in 1..=20u64 {
        wait(&std::thread::yield_now, || (importer.area.node_sleeping().load(Ordering::SeqCst) != 0).then_some(()));
        importer.send(grant.import, 0, &i.to_le_bytes(), i);
        assert_eq!(importer.completion().status, 0);
    }
    assert_eq!(memory.region.word(0).unwrap().load(Ordering::SeqCst), 20);
}

#[test]
fn who_sleeps_for_a_word_is_woken_by_short_data() {
    let (a, b) = (TestDaemon::start("word-a", |c| c), TestDaemon::start("word-b", |c| c));
    let (mut owner, mut importer) = (a.attach(), b.attach());
    let (_, memory) = owner.export("x");
    let (grant, _) = importer.import(Some(&a.address.to_string()), "x", Rights::WRITE);
    let is_rung = |owner: &Raw| {
        let mut fds = [PollFd::new(&owner.wake, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    };
    importer.send(grant.import, 0, &1u64.to_le_bytes(), 1);
    assert_eq!(importer.completion().status, 0);
    // The node checks which processes sleep after it has reported that the data is there: one that
    // announces its sleep now might be rung for the data from before.
    wait(&std::thread::yield_now, || (owner.area.node_sleeping().load(Ordering::SeqCst) != 0).then_some(()));
    assert!(!is_rung(&owner), "nobody sleeps");
    owner.area.words_awaited().store(1, Ordering::SeqCst);
    importer.send(grant.import, 0, &2u64.to_le_bytes(), 2);
    wait(&std::thread::yield_now, || is_rung(&owner).then_some(()));
    assert_eq!(memory.region.word(0).unwrap().load(Ordering::SeqCst), 2);
}

#[test]
fn a_name_has_one_daemon() {
    let a = TestDaemon::start("one", |c| c);
    let config = NodeConfig::new(&a.name).key(KeySource::Plain);
    let error = Daemon::start(config).map(drop).unwrap_err();
    assert!(matches!(error, RunError::NameTaken { .. }));
    assert!(error.to_string().contains("vmmc node stop"));
    assert!(listening_nodes().iter().any(|(_, name)| *name == a.name));
}

#[test]
fn a_daemon_that_is_told_to_stop_tells_its_processes() {
    let a = TestDaemon::start("stop", |c| c);
    let (mut owner, mut other) = (a.attach(), a.attach());
    owner.export("x");
    let (grant, mut fds) = other.import(None, "x", Rights::READ);
    other.call(Call::Stop).unwrap();
    assert_eq!(owner.event().0, NodeEvent::Stopping);
    let gates = vmmc_host::GateTable::open(fds.remove(1)).unwrap();
    let word = gates.gate(grant.gate).unwrap().load(Ordering::SeqCst);
    let state = vmmc_host::abi::gate_state(word, grant.gate_generation);
    assert_eq!(state, vmmc_host::abi::GateState::NodeStopped);
    let name = a.name.clone();
    a.join().unwrap();
    // Another test's child has a copy of the listening socket until it runs its program.
    let gone = || !listening_nodes().iter().any(|(_, n)| *n == name);
    wait(&std::thread::yield_now, || gone().then_some(()));
    wait(&std::thread::yield_now, || {
        owner.channel.try_receive().is_err_and(|e| e == ChannelError::Closed).then_some(())
    });
}

#[test]
fn a_daemon_that_nobody_uses_ends() {
    // A process is there before the daemon checks for the first time: on a busy machine it might be
    // gone before one has come.
    let linger = |c| NodeConfig { linger: Some(Duration::from_millis(150)), ..c };
    let (a, channel) = TestDaemon::start_after("linger", linger, connect);
    let process = Raw::over(channel, Rc::new(std::thread::yield_now));
    std::thread::sleep(Duration::from_millis(400));
    assert!(!a.thread.as_ref().unwrap().is_finished(), "it is used");
    drop(process);
    let start = Instant::now();
    while !a.thread.as_ref().unwrap().is_finished() {
        assert!(start.elapsed() < LONG, "it goes on alone");
        std::thread::sleep(Duration::from_millis(5));
    }
    a.join().unwrap();
}

#[test]
fn an_idle_daemon_sleeps() {
    let a = TestDaemon::start("idle", |c| c);
    let mut process = a.attach();
    process.export("x");
    let steps = |process: &mut Raw| match process.call(Call::Info { details: false }) {
        Ok(Answer::Info(info)) => info.counters.iter().find(|(name, _)| name == "sleeps").unwrap().1,
        other => panic!("{other:?}"),
    };
    wait(&std::thread::yield_now, || (process.area.node_sleeping().load(Ordering::SeqCst) != 0).then_some(()));
    let before = steps(&mut process);
    std::thread::sleep(Duration::from_millis(700));
    let after = steps(&mut process);
    assert!(after - before <= 3, "it woke {} times in 700 ms of nothing", after - before);
}

#[test]
fn nobody_connects_to_a_daemon_that_cannot_start() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let config = NodeConfig::new(&format!("test-in-vain-{}", std::process::id()));
    let config = config.listen(socket.local_addr().unwrap()).key(KeySource::Plain);
    let name = node_socket_name(rustix::process::geteuid().as_raw(), &config.name);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let mut connected = 0;
            while !ended.load(Ordering::Relaxed) {
                connected += u32::from(Channel::connect(&name).is_ok());
            }
            connected
        });
        for _ in 0..100 {
            assert!(matches!(Daemon::start(config.clone()).map(drop), Err(RunError::Bind { .. })));
        }
        ended.store(true, Ordering::Relaxed);
        assert_eq!(connecting.join().unwrap(), 0, "it has let processes connect, and let them go");
    });
}

#[test]
fn addresses_that_cannot_be_listened_on_are_named() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = socket.local_addr().unwrap();
    let name = format!("test-bind-{}", std::process::id());
    let error = Daemon::start(NodeConfig::new(&name).listen(taken).key(KeySource::Plain)).map(drop).unwrap_err();
    assert!(matches!(error, RunError::Bind { address, .. } if address == taken));
    drop(socket);
    let error = Daemon::start(NodeConfig::new("no good").key(KeySource::Plain)).map(drop).unwrap_err();
    assert!(matches!(error, RunError::Name(_)));
}
