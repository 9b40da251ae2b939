//! The node is stopped, has died, or was started anew: connections that are there go on as TCP's
//! do.
//!
//! Invariant: nobody waits for a node, and what one node named is not said to the next one.

mod common;

use common::{TestNode, settings, upgraded_pair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc_sockets::{Context, Interest, ReadySet, Stream};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node in a process of its own, which can be stopped.
struct NodeProcess {
    child: Child,
    name: String,
}

impl NodeProcess {
    fn start(name: &str) -> NodeProcess {
        let name = format!("{name}{}", std::process::id());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env("VMMC_TEST_NODE", &name)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.map_while(Result::ok).find(|line| line.contains("runs")).expect("the node starts");
        NodeProcess { child, name }
    }

    fn context(&self) -> Arc<Context> {
        Arc::new(Context::new(settings(&self.name)))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a role of the other tests"]
fn node_process() {
    let Ok(name) = std::env::var("VMMC_TEST_NODE") else { return };
    common::run_node(&name, || println!("runs"));
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn taken(set: &ReadySet) -> Vec<u32> {
    let mut all = Vec::new();
    set.take(&mut |token| all.push(token));
    all
}

/// Whether the bell rings when the other end sends a byte.
fn rings(set: &ReadySet, from: &Stream) -> bool {
    let _ = rustix::io::read(set.bell(), &mut [0u8; 8]);
    taken(set);
    assert!(!set.arm());
    let mut other = from;
    other.write_all(b"x").unwrap();
    let timeout = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
    let rang = poll(&mut [PollFd::from_borrowed_fd(set.bell(), PollFlags::IN)], Some(&timeout)) == Ok(1);
    set.disarm();
    rang
}

#[test]
fn a_bell_that_a_stopped_node_has_not_told_of_is_known_to_be_deaf() {
    let node = NodeProcess::start("deaf");
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    node.signal(Signal::STOP);
    let set = b.ready_set().unwrap();
    set.add(two.connection(), 7, Interest::READ).unwrap();
    taken(&set);
    assert!(set.is_deaf(), "nobody rings it, so its loop must look");
    assert!(!set.any());
    (&one).write_all(b"x").unwrap();
    assert_eq!(taken(&set), [7], "whoever looks finds it");
    node.signal(Signal::CONT);
    until("the node tells the peers of the bell", || {
        b.poll();
        !set.is_deaf()
    });
    assert!(rings(&set, &one));
}

#[test]
fn connections_of_a_node_that_has_gone_are_rung_by_the_name_of_then() {
    let mut node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    let before = b.ready_set().unwrap();
    before.add(two.connection(), 7, Interest::READ).unwrap();
    until("the node tells the peers of the bell", || {
        b.poll();
        !before.is_deaf()
    });
    before.remove(two.connection());
    node.stop();
    let node = TestNode::start_named(node.name.clone());
    // Others come first, so that numbers of this node mean other processes than those of the last
    // one.
    let (c, d) = (node.context(), node.context());
    let _others = upgraded_pair(&c, &d);
    std::thread::sleep(vmmc_sockets::limits::NODE_RETRY);
    let (three, four) = upgraded_pair(&b, &a);
    before.add(two.connection(), 7, Interest::READ).unwrap();
    before.add(three.connection(), 8, Interest::READ).unwrap();
    assert!(!before.is_deaf());
    assert!(rings(&before, &one), "a connection of the last node");
    assert!(rings(&before, &four), "a connection of this one");
    let after = b.ready_set().unwrap();
    after.add(three.connection(), 8, Interest::READ).unwrap();
    until("the node tells the peers of the bell", || {
        b.poll();
        !after.is_deaf()
    });
    assert!(after.add(two.connection(), 7, Interest::READ).is_err(), "its peer cannot have this bell");
    assert!(rings(&after, &four));
}

#[test]
fn an_end_of_a_connection_of_the_last_node_takes_no_place_of_the_next_one() {
    let mut node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let old = upgraded_pair(&a, &b);
    node.stop();
    let _node = TestNode::start_named(node.name.clone());
    std::thread::sleep(vmmc_sockets::limits::NODE_RETRY);
    let new = upgraded_pair(&a, &b);
    drop(old);
    let others: Vec<_> = (0..4).map(|_| upgraded_pair(&a, &b)).collect();
    for (n, (one, _)) in std::iter::once(&new).chain(&others).enumerate() {
        let mut one = one;
        one.write_all(&[n as u8; 100]).unwrap();
    }
    for (n, (_, two)) in std::iter::once(&new).chain(&others).enumerate() {
        let (mut two, mut got) = (two, [0; 100]);
        two.read_exact(&mut got).unwrap();
        assert_eq!(got, [n as u8; 100], "two connections in one slot");
    }
}
