//! Real daemons and real processes: killed, stopped, replaced.

#[path = "../src/testing/raw.rs"]
#[allow(dead_code, reason = "shared with the tests of the crate")]
mod raw;

use raw::{LONG, Raw, wait};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vmmc_host::Channel;
use vmmc_host::channel::{ChannelError, Listener, listening_nodes, node_socket_name};
use vmmc_host::control::{Answer, Call, NodeEvent};
use vmmc_nic::Rights;
use vmmc_node::{KeySource, NodeConfig, StartError, start_detached};

const VMMCD: &str = env!("CARGO_BIN_EXE_vmmcd");

fn config(test: &str) -> NodeConfig {
    let name = format!("test-{test}-{}", std::process::id());
    NodeConfig::new(&name).listen("127.0.0.1:0".parse().unwrap()).key(KeySource::Plain).plain_trust_users()
}

fn connect(config: &NodeConfig) -> Result<Channel, ChannelError> {
    Channel::connect(&node_socket_name(rustix::process::geteuid().as_raw(), &config.name))
}

fn attach(config: &NodeConfig) -> Raw {
    Raw::over(connect(config).unwrap(), Rc::new(std::thread::yield_now))
}

/// A daemon that is our child.
fn daemon(config: &NodeConfig) -> Child {
    let child = Command::new(VMMCD).args(config.to_args()).stdout(Stdio::null()).spawn().unwrap();
    wait(&nap, || connect(config).ok());
    child
}

fn nap() {
    std::thread::sleep(Duration::from_millis(1));
}

fn listed(config: &NodeConfig) -> bool {
    listening_nodes().iter().any(|(_, name)| *name == config.name)
}

fn pid_of(process: &mut Raw) -> u32 {
    match process.call(Call::Info { details: false }) {
        Ok(Answer::Info(info)) => info.pid,
        other => panic!("no description: {other:?}"),
    }
}

#[test]
fn a_killed_daemon_leaves_nothing_and_the_next_takes_its_place() {
    let config = config("killed");
    for _ in 0..3 {
        let mut child = daemon(&config);
        let (mut a, mut b) = (attach(&config), attach(&config));
        let (_, memory) = a.export("x");
        let (grant, mut fds) = b.import(None, "x", Rights::READ | Rights::WRITE);
        let mapped = vmmc_host::Region::map(fds.remove(0), grant.len, vmmc_host::Protection::ReadWrite).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let start = Instant::now();
        wait(&nap, || (a.channel.try_receive().unwrap_err() == ChannelError::Closed).then_some(()));
        assert!(start.elapsed() < Duration::from_secs(1), "the end is seen after {:?}", start.elapsed());
        // What is mapped stays whole.
        mapped.word(0).unwrap().store(7, Ordering::SeqCst);
        assert_eq!(memory.region.word(0).unwrap().load(Ordering::SeqCst), 7);
        assert!(!listed(&config));
    }
}

#[test]
fn a_daemon_that_gets_a_signal_says_goodbye() {
    let config = config("signal");
    let child = daemon(&config);
    let mut a = attach(&config);
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(a.event().0, NodeEvent::Stopping);
    let status = { child }.wait().unwrap();
    assert!(status.success(), "{status}");
    assert!(!listed(&config));
}

#[test]
fn a_killed_process_is_gone_within_a_second() {
    if let Ok(name) = std::env::var("VMMC_TEST_VICTIM") {
        // We are the victim: export, say so, and wait for the end.
        let mut raw = attach(&NodeConfig::new(&name));
        raw.export("victim");
        println!("ready");
        loop {
            nap();
        }
    }
    let config = config("victim");
    let mut node = daemon(&config);
    let mut other = attach(&config);
    for _ in 0..3 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_process_is_gone_within_a_second", "--nocapture"])
            .env("VMMC_TEST_VICTIM", &config.name)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let call = Call::Import {
            node: None,
            what: vmmc_host::control::What::Name("victim".into()),
            owner: Default::default(),
            rights: Rights::READ.bits(),
            wait: true,
            timeout_ms: LONG.as_millis() as u64,
            own_order: false,
        };
        let (Ok(Answer::Imported(grant)), _) = other.call_with(call, &[]) else { panic!("no import") };
        victim.kill().unwrap();
        victim.wait().unwrap();
        let start = Instant::now();
        let (event, _): (_, Vec<OwnedFd>) = other.event();
        assert!(matches!(event, NodeEvent::ImportBroken { import, .. } if import == grant.import), "{event:?}");
        assert!(start.elapsed() < Duration::from_secs(1), "it is seen after {:?}", start.elapsed());
    }
    node.kill().unwrap();
    node.wait().unwrap();
}

#[test]
fn a_daemon_starts_in_the_background_and_ends_when_nobody_uses_it() {
    let mut config = config("background");
    config.linger = Some(Duration::from_secs(1));
    start_detached(Path::new(VMMCD), &config).unwrap();
    let mut a = attach(&config);
    let pid = pid_of(&mut a);
    assert_ne!(pid, std::process::id());
    // The one that runs serves; starting it again is no mistake.
    start_detached(Path::new(VMMCD), &config).unwrap();
    assert_eq!(pid_of(&mut attach(&config)), pid);
    drop(a);
    wait(&nap, || (!listed(&config)).then_some(()));
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut config = config("failing");
    config.listen = vec![taken.local_addr().unwrap()];
    let error = start_detached(Path::new(VMMCD), &config).unwrap_err();
    assert!(matches!(&error, StartError::Ended { stderr, .. } if stderr.contains("cannot listen on")), "{error}");
    let error = start_detached(Path::new("/nonexistent/vmmc"), &config).unwrap_err();
    assert!(matches!(error, StartError::Execute { .. }));
}

#[test]
fn a_start_that_finds_the_name_taken_waits_for_whoever_has_it() {
    let config = config("racing");
    let name = node_socket_name(rustix::process::geteuid().as_raw(), &config.name);
    let other = Listener::reserve(&name).unwrap();
    std::thread::scope(|scope| {
        let start = scope.spawn(|| start_detached(Path::new(VMMCD), &config));
        // Long enough for its daemon to end, most times: not needed for the result.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!start.is_finished(), "nobody serves yet");
        other.listen().unwrap();
        assert_eq!(start.join().unwrap(), Ok(()));
    });
}

#[test]
fn an_idle_daemon_uses_no_processor_time() {
    let config = config("idle");
    let mut child = daemon(&config);
    let _a = attach(&config);
    let ticks = || {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields: Vec<&str> = text.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    std::thread::sleep(Duration::from_millis(200));
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    // Ticks of 10 ms: 1 % of two seconds.
    assert!(ticks() - before <= 2, "{} ticks in 2 s of nothing", ticks() - before);
    child.kill().unwrap();
    child.wait().unwrap();
}
