//! Real processes: killed in the middle of anything, and ended without a word. The test program
//! starts itself once for each role.
//!
//! Invariant: a process that waits for one that has died is notified, and never gets a byte that
//! was not sent.

mod common;

use common::{Role, TestNode, settings};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc_sockets::{Context, Medium, Stream};

/// Within this time a death is reported; far more than it takes, for busy machines.
const TOLD: Duration = Duration::from_secs(20);
/// A death that is noticed within a second, as docs/sockets.md says, and what a busy machine takes.
const WITHIN_A_SECOND: Duration = Duration::from_secs(3);

fn connect(role: &Role, context: &Arc<Context>) -> Stream {
    let stream = Stream::new(context, TcpStream::connect(&role.address).unwrap());
    let start = Instant::now();
    while stream.describe().tx != Medium::Ring || stream.describe().rx != Medium::Ring {
        assert!(start.elapsed() < TOLD, "not upgraded: {:?}", stream.describe());
        (&stream).write_all(b"p").unwrap();
        (&stream).read_exact(&mut [0]).unwrap();
    }
    stream
}

#[test]
#[ignore = "a role of the other tests"]
fn child_process() {
    let Ok(role) = std::env::var("VMMC_TEST_ROLE") else { return };
    let node = std::env::var("VMMC_TEST_NODE").unwrap();
    if role == "node" {
        return common::run_node(&node, || println!("listens on no socket of its own"));
    }
    let context = Arc::new(Context::new(settings(&node)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("listens on {}", listener.local_addr().unwrap());
    let stream = Stream::new(&context, listener.accept().unwrap().0);
    let mut word = [0u8; 1];
    // Answers "p", and does what its role is once something else comes.
    loop {
        (&stream).read_exact(&mut word).unwrap();
        if word != *b"p" {
            break;
        }
        (&stream).write_all(&word).unwrap();
    }
    match role.as_str() {
        "silent" => loop {
            std::thread::park();
        },
        "writer" => loop {
            if (&stream).write_all(&[b'w'; 5000]).is_err() {
                return;
            }
        },
        // Ends without closing anything.
        "leaver" => std::process::exit(0),
        other => panic!("no role {other}"),
    }
}

/// Runs `what` and expects it to end in time.
fn in_time<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(run()));
    wait.recv_timeout(TOLD).unwrap_or_else(|_| panic!("{what} did not end within {TOLD:?}"))
}

#[test]
fn a_reader_asleep_is_told_when_its_peer_is_killed() {
    let node = TestNode::start();
    for _ in 0..3 {
        let context = node.context();
        let mut peer = Role::start("silent", &node.name);
        let stream = connect(&peer, &context);
        (&stream).write_all(b"x").unwrap();
        let reader = std::thread::spawn(move || in_time("the read", move || (&stream).read(&mut [0; 10])));
        peer.kill();
        let got = reader.join().unwrap();
        assert!(matches!(got, Ok(0)) || got.is_err(), "{got:?}");
    }
}

#[test]
fn a_writer_asleep_on_a_full_ring_is_told_when_its_peer_is_killed() {
    let node = TestNode::start();
    let context = node.context();
    let mut peer = Role::start("silent", &node.name);
    let stream = connect(&peer, &context);
    let writer = std::thread::spawn(move || {
        in_time("the write", move || {
            loop {
                if let Err(error) = (&stream).write_all(&[b'x'; 10_000]) {
                    return error;
                }
            }
        })
    });
    // The writer fills the ring or is still at it: both are deaths in the middle of something.
    peer.kill();
    let error = writer.join().unwrap();
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    assert!(matches!(error.kind(), BrokenPipe | ConnectionReset), "{error}");
}

#[test]
fn what_a_killed_peer_had_sent_is_whole_as_far_as_it_goes() {
    let node = TestNode::start();
    for _ in 0..3 {
        let context = node.context();
        let mut peer = Role::start("writer", &node.name);
        let stream = connect(&peer, &context);
        (&stream).write_all(b"x").unwrap();
        let mut some = vec![0; 1 << 20];
        (&stream).read_exact(&mut some).unwrap();
        peer.kill();
        let rest = in_time("the rest", move || {
            let mut rest = Vec::new();
            // An error after the last byte is as good as an end.
            let _ = (&stream).read_to_end(&mut rest);
            rest
        });
        assert!(some.iter().chain(&rest).all(|b| *b == b'w'), "a byte that nobody sent");
    }
}

#[test]
fn a_peer_that_exits_without_a_close_ends_the_stream() {
    let node = TestNode::start();
    let context = node.context();
    let peer = Role::start("leaver", &node.name);
    let stream = connect(&peer, &context);
    (&stream).write_all(b"x").unwrap();
    let got = in_time("the read", move || (&stream).read(&mut [0; 10]));
    assert!(matches!(got, Ok(0)) || got.is_err(), "{got:?}");
}

#[test]
fn a_reader_asleep_is_told_when_its_peer_and_the_node_are_killed_at_once() {
    let name = format!("sock{}killed", std::process::id());
    let mut node = Role::start("node", &name);
    let context = Arc::new(Context::new(settings(&name)));
    let mut peer = Role::start("silent", &name);
    let stream = connect(&peer, &context);
    (&stream).write_all(b"x").unwrap();
    let reader = std::thread::spawn(move || in_time("the read", move || (&stream).read(&mut [0; 10])));
    // Long enough to be asleep for good; nothing depends on it.
    std::thread::sleep(Duration::from_millis(600));
    node.child.kill().unwrap();
    let killed = Instant::now();
    peer.kill();
    node.child.wait().unwrap();
    let got = reader.join().unwrap();
    assert!(killed.elapsed() < WITHIN_A_SECOND, "it was told after {:?}", killed.elapsed());
    assert!(matches!(got, Ok(0)) || got.is_err(), "{got:?}");
}

/// What becomes of the node.
#[derive(Clone, Copy, Debug)]
enum Node {
    Stopped,
    Killed,
}

fn do_to(node: &mut Role, what: Node) {
    match what {
        Node::Stopped => signal(node, rustix::process::Signal::STOP),
        Node::Killed => node.kill(),
    }
}

fn signal(role: &Role, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(role.child.id() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn node_of_its_own(what: &str) -> (Role, String) {
    let name = format!("sock{}{what}", std::process::id());
    (Role::start("node", &name), name)
}

#[test]
fn whoever_sleeps_is_told_of_a_death_in_time_whatever_state_the_node_is_in() {
    for (what, asleep_ms) in [(Node::Stopped, 0), (Node::Stopped, 700), (Node::Killed, 0), (Node::Killed, 3_000)] {
        let (mut node, name) = node_of_its_own(&format!("told{what:?}{asleep_ms}"));
        let context = Arc::new(Context::new(settings(&name)));
        let (mut for_reader, mut for_writer) = (Role::start("silent", &name), Role::start("silent", &name));
        let (reads, writes) = (connect(&for_reader, &context), connect(&for_writer, &context));
        [&reads, &writes].iter_mut().for_each(|stream| stream.write_all(b"x").unwrap());
        let (done, wait) = std::sync::mpsc::channel();
        let ended = done.clone();
        std::thread::spawn(move || {
            let got = (&reads).read(&mut [0; 10]);
            assert!(matches!(got, Ok(0)) || got.is_err(), "{got:?}");
            ended.send("reader")
        });
        std::thread::spawn(move || {
            while (&writes).write_all(&[b'x'; 10_000]).is_ok() {}
            done.send("writer")
        });
        std::thread::sleep(Duration::from_millis(asleep_ms));
        do_to(&mut node, what);
        let killed = Instant::now();
        for_reader.kill();
        for_writer.kill();
        for _ in 0..2 {
            wait.recv_timeout(WITHIN_A_SECOND).unwrap_or_else(|_| panic!("{what:?} after {asleep_ms} ms"));
        }
        println!("{what:?} after {asleep_ms} ms: both were told within {:?}", killed.elapsed());
    }
}

#[test]
fn a_connection_ends_at_once_whatever_the_node_does_with_its_offer() {
    use rustix::event::epoll;
    use std::os::fd::AsFd;
    let (node, name) = node_of_its_own("offer");
    let context = Arc::new(Context::new(settings(&name)));
    let _warm = common::upgraded_pair(&context, &context);
    signal(&node, rustix::process::Signal::STOP);
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for resets in [false, true] {
        let (one, two) = common::tcp_pair();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        epoll::add(&set, one.as_fd(), epoll::EventData::new_u64(7), flags).unwrap();
        if resets {
            rustix::net::sockopt::set_socket_linger(&one, Some(Duration::ZERO)).unwrap();
        }
        let one = Stream::new(&context, one);
        for _ in 0..8 {
            (&one).write_all(b"p").unwrap();
            (&two).read_exact(&mut [0]).unwrap();
            (&two).write_all(b"q").unwrap();
            (&one).read_exact(&mut [0]).unwrap();
        }
        assert_eq!(one.describe().reason, Some(vmmc_sockets::Bypass::PeerPlain), "it was offered, and nobody answers");
        drop(one);
        two.set_read_timeout(Some(TOLD)).unwrap();
        let got = (&two).read(&mut [0]).map_err(|error| error.kind());
        let expected = if resets { Err(std::io::ErrorKind::ConnectionReset) } else { Ok(0) };
        assert_eq!(got, expected, "resets: {resets}");
        drop(two);
        let mut events = Vec::with_capacity(4);
        let soon = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&soon)).unwrap();
        assert!(events.is_empty(), "an event of a connection that was closed");
    }
    signal(&node, rustix::process::Signal::CONT);
}
