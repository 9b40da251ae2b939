//! Programs on two nodes: their connections go through the engine, nobody notices, and what one side loses the other hears of.
//!
//! Invariant: no test says how fast anything is; what a program prints is compared with what it would print over TCP.

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

/// Rounds for each line of input, then what its arguments say: `end` does nothing more; `block` and `poll` wait for bytes that never come.
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
    let number = port();
    let at = number.to_string();
    let server = Talker::start(two, By::Exec, &["python3", "-c", SERVER, &at]);
    let end = Instant::now() + PATIENCE;
    while !common::listens(number) {
        assert!(Instant::now() < end, "the server does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut client = Talker::start(one, By::Exec, &["python3", "-c", CLIENT, &at, then]);
    assert_eq!(client.line(), "ready");
    (server, client)
}

fn make_rounds(client: &mut Talker) {
    client.tell("more");
    assert_eq!(client.line(), "done");
}

/// As many rounds as bring the connection into the ring, both ways: the nodes find each other's offers when they come to run.
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
            // As a dropped connection: how, depends on which kernel message comes first. Never as if the stream had gone on.
            assert!(["ConnectionResetError", "got 0"].contains(&heard.as_str()), "{then}, own {own}: {heard}");
            assert!(start.elapsed() < Duration::from_secs(30), "{then}, own {own}: it took {:?}", start.elapsed());
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
fn connections_between_nodes_that_do_everything_lose_no_byte() {
    let [one, two] = World::two(&[]);
    let stress = built().join("examples/stress");
    let stress = stress.to_str().expect("ASCII");
    let number = port();
    let at = number.to_string();
    let _server = two.server(By::Exec, &[stress, "serve", &at], number);
    // Passed on with unread bytes in the ring, a connection between nodes is reset (docs/sockets.md), so none is.
    for more in [&["7", "200", "alone"][..], &["17", "60", "ping-pong"], &["8", "60", "fork"]] {
        let printed = one.run(By::Exec, &[&[stress, "drive", &at][..], more].concat());
        let count = format!("{} connections", more[1]);
        assert!(printed.contains(&count) && printed.contains(" 0 failed"), "{printed}");
    }
    let log = std::fs::read_to_string(two.folder.join("server.log")).unwrap_or_default();
    let complaints: Vec<&str> = log.lines().filter(|l| l.starts_with("server:") && !l.contains("seed:")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
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
    // Few requests each: on a busy machine a message between nodes takes some milliseconds. Several times, for connections come and go each time.
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
