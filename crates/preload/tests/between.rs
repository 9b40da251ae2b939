//! Programs on two nodes: their connections go through the engine, nobody notices, and what one
//! side loses the other hears of.
//!
//! Invariant: no test says how fast anything is; what a program prints is compared with what it
//! would print over TCP.

mod common;

use common::{By, PATIENCE, World, built, finish, have, kill, port, text};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Answers each line with the line, and says how its connections end.
const SERVER: &str = r#"
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
def serve(c):
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        while data := c.recv(4096):
            c.sendall(data)
        print("end", flush=True)
    except OSError as e:
        print(type(e).__name__, flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"#;

/// Rounds for each line of input, then what its arguments say: `end` does nothing more; `block` and
/// `poll` wait for bytes that never come.
const CLIENT: &str = r#"
import select, socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def rounds(n):
    for i in range(n):
        message = b"%d." % i * (1 + i % 50)
        c.sendall(message)
        got = b""
        while len(got) < len(message):
            piece = c.recv(4096)
            assert piece, "ended at %d" % i
            got += piece
        assert got == message, (got, message)
try:
    print("ready", flush=True)
    while sys.stdin.readline().strip() == "more":
        rounds(200)
        print("done", flush=True)
    if sys.argv[2] == "end":
        rounds(200)
    elif sys.argv[2] == "block":
        print("got", len(c.recv(10)), flush=True)
    elif sys.argv[2] == "poll":
        set = select.epoll()
        set.register(c, select.EPOLLIN)
        set.poll()
        print("got", len(c.recv(10)), flush=True)
    print("fine", flush=True)
except OSError as e:
    print(type(e).__name__, flush=True)
"#;

/// Answers each message with the message, until one says what becomes of the connection, and how
/// many bytes come before: then it goes to a program that is not ours, which answers their digest
/// and whatever comes.
const PASSER: &str = r#"
import array, fcntl, os, socket, sys, termios, time
OTHER = """
import hashlib, socket, sys
def go_on(c, n):
    got = b''
    while len(got) < n:
        piece = c.recv(n - len(got))
        assert piece, 'ended at %d' % len(got)
        got += piece
    c.sendall(hashlib.sha256(got).digest())
    while data := c.recv(4096):
        c.sendall(data)
print('started', flush=True)
c = socket.socket(fileno=int(sys.argv[1]))
go_on(socket.socket(fileno=socket.recv_fds(c, 1, 1)[1][0]) if sys.argv[3] == 'pass' else c, int(sys.argv[2]))
"""
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
c = listener.accept()[0]
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while not (data := c.recv(4096)).startswith(b"!"):
    c.sendall(data)
how, n = data[1:].decode().split()
c.sendall(b"!")
unread = array.array("i", [0])
while unread[0] < min(int(n), 20000):
    fcntl.ioctl(c.fileno(), termios.FIONREAD, unread)
    time.sleep(0.001)
print("unread", flush=True)
sys.stdin.readline()
# Without the environment the library is not loaded.
words = lambda fd: [sys.executable, "-c", OTHER, str(fd.fileno()), n, how]
if how == "pass":
    here, there = socket.socketpair()
    there.set_inheritable(True)
    pid = os.posix_spawn(sys.executable, words(there), {})
    socket.send_fds(here, [b"x"], [c.fileno()])
    c.close()
    os.waitpid(pid, 0)
else:
    c.set_inheritable(True)
    os.execve(sys.executable, words(c), {})
"#;

/// The client of [`PASSER`]: rounds, then so many bytes that the program at the other end does not
/// read.
const OWNER: &str = r#"
import hashlib, select, socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def exactly(n):
    got = b""
    while len(got) < n:
        piece = c.recv(n - len(got))
        assert piece, "ended at %d" % len(got)
        got += piece
    return got
def rounds(n):
    for i in range(n):
        message = b"%d." % i * (1 + i % 50)
        c.sendall(message)
        assert exactly(len(message)) == message
print("ready", flush=True)
while (line := sys.stdin.readline().split())[0] == "more":
    rounds(200)
    print("done", flush=True)
how, n, wait = line[0], int(line[1]), line[2]
c.sendall(b"!%s %d" % (how.encode(), n))
assert exactly(1) == b"!"
data = bytes(i * 7 % 251 for i in range(n))
for at in range(0, min(n, 20000), 1000):
    c.sendall(data[at:at + 1000])
if n > 20000:
    # Too long for a ring.
    c.sendall(data[20000:])
print("sent", flush=True)
if wait == "busy":
    sys.stdin.readline()
elif wait == "epoll":
    set = select.epoll()
    set.register(c, select.EPOLLIN)
    assert set.poll(30), "nothing came"
elif wait == "poll":
    set = select.poll()
    set.register(c, select.POLLIN)
    assert set.poll(30000), "nothing came"
assert exactly(32) == hashlib.sha256(data).digest()
rounds(50)
c.shutdown(socket.SHUT_WR)
assert c.recv(1) == b""
print("fine", flush=True)
"#;

/// Reads blocks in small pieces, each when its event loop says so, levels and edges; then reads
/// nothing until it is told to.
const SIPPER: &str = r#"
import select, socket, sys
BLOCK = 40000
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
c = listener.accept()[0]
c.setblocking(False)
set = select.epoll()
set.register(c, select.EPOLLIN)
def sip(n, most):
    got = 0
    while got < n:
        assert set.poll(20), "%d of %d, and no event" % (got, n)
        if most:
            got += len(c.recv(most))
            continue
        try:
            while True:
                got += len(c.recv(5000))
        except BlockingIOError:
            pass
    assert got == n and set.poll(0) == [], "nothing is left"
for turn in range(200):
    sip(BLOCK, [999, BLOCK, 65536][turn % 3])
    c.sendall(b"k")
set.modify(c, select.EPOLLIN | select.EPOLLET)
for turn in range(200):
    sip(BLOCK, 0)
    c.sendall(b"k")
print("sipped", flush=True)
sys.stdin.readline()
c.setblocking(True)
while c.recv(1 << 20):
    pass
print("end", flush=True)
"#;

/// The client of [`SIPPER`].
const FILLER: &str = r#"
import select, socket, sys
BLOCK = 40000
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
for turn in range(400):
    c.sendall(bytes(BLOCK))
    assert c.recv(9) == b"k"
print("sent", flush=True)
sys.stdin.readline()
c.setblocking(False)
set = select.epoll()
set.register(c, select.EPOLLOUT)
def fill():
    n = 0
    try:
        while True:
            assert set.poll(0) or n, "there is room"
            n += c.send(bytes(100 if n % 3 else BLOCK))
    except BlockingIOError:
        return n
assert fill() > 2 * BLOCK
# What is on its way to the other end's buffer makes room for a while.
while set.poll(0.3):
    fill()
print("full", flush=True)
sys.stdin.readline()
assert set.poll(20), "there is room again"
c.setblocking(True)
c.sendall(bytes(BLOCK))
c.shutdown(socket.SHUT_WR)
print("fine", flush=True)
"#;

/// A program that talks, ended when dropped.
struct Talker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Talker {
    fn start(world: &World, by: By, words: &[&str]) -> Talker {
        let mut command = world.command(by, words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (said, lines) = channel();
        // Ends with the program.
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
        Talker { child, input, lines }
    }

    fn line(&mut self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something before it ends, and in time")
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server on one node, and a client of the other that is connected to it.
fn connected(one: &World, two: &World, then: &str) -> (Talker, Talker) {
    connected_by(one, two, SERVER, &[CLIENT, then])
}

fn connected_by(one: &World, two: &World, server: &str, client: &[&str]) -> (Talker, Talker) {
    let number = port();
    let at = number.to_string();
    let server = Talker::start(two, By::Exec, &["python3", "-c", server, &at]);
    let end = Instant::now() + PATIENCE;
    while !common::listens(number) {
        assert!(Instant::now() < end, "the server does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut client = Talker::start(one, By::Exec, &[&["python3", "-c", client[0], &at], &client[1..]].concat());
    assert_eq!(client.line(), "ready");
    (server, client)
}

fn make_rounds(client: &mut Talker) {
    client.tell("more");
    assert_eq!(client.line(), "done");
}

/// As many rounds as bring the connection into the ring, both ways: the nodes find each other's
/// offers when they come to run.
fn into_the_ring(one: &World, two: &World, client: &mut Talker) {
    let end = Instant::now() + PATIENCE;
    loop {
        make_rounds(client);
        let lists = [one, two].map(World::sockets);
        if lists.iter().all(|list| list.contains("between nodes, ring")) {
            return;
        }
        assert!(Instant::now() < end, "not in the ring: {lists:?}");
    }
}

#[test]
fn short_messages_between_nodes_go_by_the_ring_and_the_list_says_so() {
    if !have("python3", "python3") {
        return;
    }
    let [one, two] = World::two(&[]);
    let (mut server, mut client) = connected(&one, &two, "end");
    into_the_ring(&one, &two, &mut client);
    for world in [&one, &two] {
        let list = world.sockets();
        assert!(list.contains(" node test-preload-"), "{list}");
        assert!(list.contains("KiB") && !list.contains(" 0 B  "), "bytes went by the ring: {list}");
    }
    client.tell("on");
    assert_eq!(client.line(), "fine");
    assert_eq!(server.line(), "end");
}

#[test]
fn a_node_that_was_told_not_to_leaves_connections_with_the_kernel() {
    if !have("python3", "python3") {
        return;
    }
    let [one, two] = World::two(&["--no-sockets-between"]);
    let (_server, mut client) = connected(&one, &two, "end");
    (0..3).for_each(|_| make_rounds(&mut client));
    let list = one.sockets();
    assert!(!list.contains("between nodes"), "{list}");
    client.tell("on");
    assert_eq!(client.line(), "fine");
}

#[test]
fn event_loops_hear_of_all_that_comes_by_the_kernel() {
    if !have("python3", "python3") {
        return;
    }
    let [one, two] = World::two(&[]);
    let (mut server, mut client) = connected_by(&one, &two, SIPPER, &[FILLER]);
    assert_eq!((client.line().as_str(), server.line().as_str()), ("sent", "sipped"));
    let list = one.sockets();
    // Blocks are too long for the ring; what answers them may go by it.
    assert!(
        ["between nodes, kernel", "between nodes, sends by kernel"].iter().any(|path| list.contains(path)),
        "{list}"
    );
    client.tell("fill");
    assert_eq!(client.line(), "full");
    server.tell("read");
    client.tell("go on");
    assert_eq!((client.line().as_str(), server.line().as_str()), ("fine", "end"));
}

#[test]
fn who_waits_for_a_dead_node_hears_of_a_reset() {
    if !have("python3", "python3") {
        return;
    }
    for then in ["block", "poll"] {
        for own in [true, false] {
            let [one, two] = World::two(&[]);
            let (_server, mut client) = connected(&one, &two, then);
            into_the_ring(&one, &two, &mut client);
            client.tell("on");
            let pid = if own { one.node_pid() } else { two.node_pid() };
            let start = Instant::now();
            kill(pid, "-KILL");
            let heard = client.line();
            // As a dropped connection: how, depends on which kernel message comes first. Never as
            // if the stream had gone on.
            assert!(["ConnectionResetError", "got 0"].contains(&heard.as_str()), "{then}, own {own}: {heard}");
            // A second, or the peer timeout of these nodes as well; and what a busy machine takes.
            let bound = Duration::from_secs(if own { 3 } else { 5 });
            assert!(start.elapsed() < bound, "{then}, own {own}: it took {:?}", start.elapsed());
        }
    }
}

#[test]
fn who_waits_for_a_killed_program_hears_of_its_end() {
    if !have("python3", "python3") {
        return;
    }
    let [one, two] = World::two(&[]);
    for then in ["block", "poll"] {
        let (server, mut client) = connected(&one, &two, then);
        into_the_ring(&one, &two, &mut client);
        client.tell("on");
        drop(server);
        let heard = client.line();
        assert!(["ConnectionResetError", "got 0"].contains(&heard.as_str()), "{then}: {heard}");
    }
}

#[test]
fn unread_bytes_between_nodes_follow_a_connection_to_a_program_that_is_not_ours() {
    if !have("python3", "python3") {
        return;
    }
    let [one, two] = World::two(&[]);
    for how in ["exec", "pass"] {
        let cases = [(11, "recv"), (20_000, "recv"), (20_000, "epoll"), (3_000, "poll"), (20_000, "busy")];
        // The last ones went on by the kernel before, with bytes in the ring.
        for (bytes, wait) in cases.into_iter().chain([(60_000, "busy"), (300_000, "recv")]) {
            let (mut server, mut client) = passed(&one, &two, how, bytes, wait);
            server.tell("go");
            assert_eq!(server.line(), "started");
            if wait == "busy" {
                client.tell("on");
            }
            assert_eq!(client.line(), "fine", "{how} {bytes} {wait}");
        }
    }
}

#[test]
fn what_was_promised_to_a_program_that_is_not_ours_comes_without_the_node() {
    if !have("python3", "python3") {
        return;
    }
    for own in [true, false] {
        let [one, two] = World::two(&[]);
        let (mut server, mut client) = passed(&one, &two, "exec", 5_000, "busy");
        server.tell("go");
        assert_eq!(server.line(), "started");
        kill(if own { one.node_pid() } else { two.node_pid() }, "-KILL");
        std::thread::sleep(Duration::from_millis(100));
        client.tell("on");
        assert_eq!(client.line(), "fine", "own {own}");
    }
}

/// A connection with so many unread bytes in its ring, and its ends just before the server passes
/// it on.
fn passed(one: &World, two: &World, how: &str, bytes: u64, wait: &str) -> (Talker, Talker) {
    let (mut server, mut client) = connected_by(one, two, PASSER, &[OWNER]);
    into_the_ring(one, two, &mut client);
    client.tell(&format!("{how} {bytes} {wait}"));
    assert_eq!(client.line(), "sent");
    assert_eq!(server.line(), "unread");
    let (list, path) = if bytes > 20_000 {
        (two.sockets(), "between nodes, sends by ring, receives by kernel")
    } else {
        (one.sockets(), "between nodes, ring")
    };
    assert!(list.contains(path), "the bytes are not in the ring, or nothing is behind them: {list}");
    (server, client)
}

/// Longest life of a connection of the stress program, far above what one takes and far below a
/// wait that a timeout ended.
const STALLED: Duration = Duration::from_secs(10);

/// Runs the stress program between two nodes: connections of every kind that is named, each with a
/// seed and a count.
fn stress([one, two]: &[World; 2], runs: &[[&str; 3]]) {
    let stress = built().join("examples/stress");
    let stress = stress.to_str().expect("ASCII");
    let number = port();
    let at = number.to_string();
    let _server = two.server(By::Exec, &[stress, "serve", &at], number);
    for [seed, count, kind] in runs {
        let start = Instant::now();
        let printed = one.run(By::Exec, &[stress, "drive", &at, seed, count, kind]);
        let all = format!("{count} connections");
        assert!(printed.contains(&all) && printed.contains(" 0 failed"), "{kind}: {printed}");
        assert!(start.elapsed() < STALLED * 2, "{kind} took {:?}: {printed}", start.elapsed());
    }
    let end = Instant::now() + PATIENCE;
    while let Some(list) = [one, two].map(World::sockets).iter().find(|list| list.contains("between nodes")) {
        assert!(Instant::now() < end, "the server runs, and its connections have ended: {list}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = std::fs::read_to_string(two.folder.join("server.log")).unwrap_or_default();
    let is_complaint = |l: &&str| l.starts_with("server:") && !l.contains("seed:");
    let complaints: Vec<&str> = log.lines().filter(is_complaint).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn connections_between_nodes_that_do_everything_lose_no_byte() {
    let seeds = ["7", "17", "8", "9", "10", "13"];
    let kinds = [
        ("160", "held"),
        ("60", "ping-pong"),
        ("60", "fork"),
        ("60", "both-ways"),
        ("160", "pass"),
        ("60", "pass-long"),
    ];
    let runs: Vec<_> = seeds.iter().zip(kinds).map(|(seed, (count, kind))| [*seed, count, kind]).collect();
    stress(&World::two(&[]), &runs);
    stress(&World::two_with(Vec::new(), &[]), &[["11", "160", "held"], ["12", "60", "ping-pong"]]);
}

#[test]
fn connections_whose_node_dies_end_as_dropped_ones_and_leave_nothing_behind() {
    for which in [0, 1] {
        let worlds = World::two(&[]);
        let [one, two] = &worlds;
        let stress = built().join("examples/stress");
        let stress = stress.to_str().expect("ASCII");
        let number = port();
        let at = number.to_string();
        let _server = two.server(By::Exec, &[stress, "serve", &at], number);
        std::thread::scope(|scope| {
            let driver = scope.spawn(|| one.run(By::Exec, &[stress, "drive", &at, "21", "200", "held", "torn"]));
            std::thread::sleep(Duration::from_millis(400));
            kill(worlds[which].node_pid(), "-KILL");
            let printed = driver.join().expect("no connection ends too early, or never");
            assert!(printed.contains(" 0 failed"), "node {which}: {printed}");
        });
        let log = std::fs::read_to_string(two.folder.join("server.log")).unwrap_or_default();
        assert!(!log.contains("WRONG") && !log.contains("HUNG"), "node {which}: {log}");
        let end = Instant::now() + PATIENCE;
        while worlds[1 - which].sockets().contains("between nodes") {
            assert!(Instant::now() < end, "the other node keeps {}", worlds[1 - which].sockets());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn redis_on_another_node_answers() {
    if !have("redis-server", "redis-server") || !have("redis-cli", "redis-tools") {
        return;
    }
    let [one, two] = World::two(&[]);
    let number = port();
    let at = number.to_string();
    let folder = two.folder.to_str().expect("ASCII").to_string();
    let server = ["redis-server", "--port", &at, "--save", "", "--appendonly", "no", "--dir", &folder];
    let _server = two.server(By::Exec, &server, number);
    let script = "for i = 1, 300 do redis.call('set', 'k' .. i, string.rep('v', i)) end return redis.call('dbsize')";
    assert_eq!(one.run(By::Exec, &["redis-cli", "-p", &at, "eval", script, "0"]).trim(), "300");
    let printed = one.run(By::Exec, &["redis-cli", "-p", &at, "-r", "200", "incr", "counter"]);
    assert_eq!(printed.lines().last(), Some("200"));
    // Few requests each: on a busy machine a message between nodes takes some milliseconds. Several
    // times, for connections come and go each time.
    let [alone, many, pipes] = [
        ["-c", "1", "-P", "1", "-n", "300"],
        ["-c", "20", "-P", "1", "-n", "1000"],
        ["-c", "5", "-P", "16", "-n", "3000"],
    ];
    for more in [alone, many, pipes, many, pipes, many] {
        let words = [&["redis-benchmark", "-q", "-p", &at, "-t", "set,get"][..], &more].concat();
        let printed = one.run(By::Exec, &words);
        assert!(printed.matches("requests per second").count() >= 2, "{printed}");
    }
    let output = finish(two.command(By::Itself, &["redis-cli", "-p", &at, "get", "k300"]));
    assert_eq!(text(&output).trim(), "v".repeat(300));
}
