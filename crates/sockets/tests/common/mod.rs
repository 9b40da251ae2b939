//! A node of its own for a test, and pairs of streams on it.
//!
//! Invariant: names are unique to process and test, and the node ends with the test.

#![allow(dead_code)]

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use vmmc_node::{Daemon, KeySource, NodeConfig, Stopper};
use vmmc_sockets::{Context, Settings, Stream};

/// Longest wait for a port: longer than the kernel keeps one.
const PORT_TIME: Duration = Duration::from_secs(90);

/// A daemon in a thread.
pub(crate) struct TestNode {
    pub(crate) name: String,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TestNode {
    pub(crate) fn start() -> TestNode {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        TestNode::start_named(format!("sock{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn start_named(name: String) -> TestNode {
        let config = NodeConfig::new(&name).listen("127.0.0.1:0".parse().unwrap()).key(KeySource::Plain);
        let daemon = Daemon::start(config).unwrap();
        let stopper = daemon.stopper();
        let thread = std::thread::spawn(move || daemon.run().unwrap());
        TestNode { name, stopper, thread: Some(thread) }
    }

    pub(crate) fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// A client as a process has one; offers after few exchanges.
    pub(crate) fn context(&self) -> Arc<Context> {
        Arc::new(Context::new(settings(&self.name)))
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Is a node until it is killed.
pub(crate) fn run_node(name: &str, ready: impl FnOnce()) {
    let config = NodeConfig::new(name).listen("127.0.0.1:0".parse().unwrap()).key(KeySource::Plain);
    let daemon = Daemon::start(config).unwrap();
    ready();
    daemon.run().unwrap();
}

pub(crate) fn settings(node: &str) -> Settings {
    Settings { node_name: node.to_string(), offer_after_exchanges: 2, offer_after_bytes: 4096, ..Settings::from_env() }
}

/// Two ends of a TCP connection. A long run uses ports up faster than the kernel gives them back,
/// a minute after the close, so this waits for one.
pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    let end = Instant::now() + PORT_TIME;
    let listener = loop {
        match TcpListener::bind("127.0.0.1:0") {
            Err(e) if e.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(100));
            }
            other => break other.unwrap(),
        }
    };
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A connection between two contexts that is in the ring in both directions.
pub(crate) fn upgraded_pair(a: &Arc<Context>, b: &Arc<Context>) -> (Stream, Stream) {
    upgrade(a, b, tcp_pair())
}

/// The same of two ends that are there.
pub(crate) fn upgrade(a: &Arc<Context>, b: &Arc<Context>, (one, two): (TcpStream, TcpStream)) -> (Stream, Stream) {
    use std::io::{Read, Write};
    let (one, two) = (Stream::new(a, one), Stream::new(b, two));
    let start = std::time::Instant::now();
    while [&one, &two].iter().any(|s| {
        let d = s.describe();
        d.tx != vmmc_sockets::Medium::Ring || d.rx != vmmc_sockets::Medium::Ring
    }) {
        assert!(start.elapsed().as_secs() < 20, "{:?} {:?}", one.describe(), two.describe());
        let mut byte = [0];
        (&one).write_all(b"x").unwrap();
        (&two).read_exact(&mut byte).unwrap();
        (&two).write_all(b"y").unwrap();
        (&one).read_exact(&mut byte).unwrap();
    }
    (one, two)
}

/// A child process in some role, and its listener's address: the test program starts itself.
pub(crate) struct Role {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Role {
    /// Runs the ignored test `child_process` of this program, which says where it "listens on".
    pub(crate) fn start(role: &str, node: &str) -> Role {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env("VMMC_TEST_ROLE", role)
            .env("VMMC_TEST_NODE", node)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| line.unwrap().split_once("listens on ").map(|(_, a)| a.to_string()));
        Role { child, address: address.expect("the child says where it listens") }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
