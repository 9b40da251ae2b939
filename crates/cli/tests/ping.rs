//! `vmmc ping --load` between two nodes.
//!
//! Invariant: pings are counted beside a stream that moves bytes, or there is an error.

mod common;

use common::{Folder, Node, Running, command, fails, json, kill, ok, wait_until};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Two nodes that know each other.
fn nodes(folder: &Folder) -> [Node; 2] {
    let key = folder.file("cluster.key");
    let a = Node::start("load-a", &["--key-file", &key]);
    let b = Node::start("load-b", &["--key-file", &key, "--peer", &a.address]);
    ok(&["ping", &a.address, "--name", &b.name, "-c", "1"]);
    [a, b]
}

/// The other end of streams.
fn listen(node: &Node) -> Running {
    let listens = ["ping", "--listen", "--name", &node.name];
    let child = command(&listens).stdout(Stdio::null()).spawn().expect("it can be started");
    wait_until("it listens", || ok(&["node", "status", "--name", &node.name]).contains("vmmc-ping"));
    Running(child)
}

#[test]
fn pings_are_counted_beside_streams_either_way() {
    let folder = Folder::new();
    let [a, b] = nodes(&folder);
    let ping = ["ping", &a.name, "--name", &b.name, "-c", "20"];
    let said = fails(1, &[&ping[..], &["--load"]].concat());
    assert!(said.contains(&format!("vmmc ping --listen --name {}", a.name)), "{said}");
    let _listener = listen(&a);
    for way in ["--load", "--load=in", "--load=both"] {
        let counted = json(&[&ping[..], &[way, "--json"]].concat());
        let beside = &counted["beside_load"];
        assert_eq!(counted["rtt_ns"].as_array().map(Vec::len), Some(20), "{way}: {counted}");
        assert_eq!(beside["rtt_ns"].as_array().map(Vec::len), Some(20), "{way}: {counted}");
        assert!(beside["bytes_per_s"].as_f64() > Some(0.0), "{way}: {counted}");
    }
    let said = ok(&[&ping[..], &["--load"]].concat());
    assert!(said.contains(": 20 of 20") && said.lines().any(|l| l.starts_with("beside ")), "{said}");
    assert!(!json(&[&ping[..], &["--json"]].concat())["beside_load"].is_object());
    let said = fails(1, &["ping", &a.name, "--name", &a.name, "--load"]);
    assert!(said.contains("a stream to itself passes no network"), "{said}");
    fails(2, &["ping", "--listen", "--name", &b.name, "--load"]);
    fails(2, &["ping", "--name", &b.name]);
}

#[test]
fn explain_says_how_fast_data_goes_to_the_other_node_and_why() {
    let folder = Folder::new();
    let [a, b] = nodes(&folder);
    let _listener = listen(&a);
    let explain = ["explain", &a.name, "vmmc-ping", "--name", &b.name];
    let peer = json(&[&explain[..], &["--json"]].concat())["peer"].clone();
    assert!(peer["congestion"].as_str().is_some_and(|said| said.starts_with("bbr")), "{peer}");
    assert!(peer["window_bytes"].as_u64() > Some(0), "{peer}");
    let said = ok(&explain);
    assert!(said.contains("control") && said.contains("window"), "{said}");
    // On its own node there is no such peer.
    assert!(json(&["explain", &a.name, "vmmc-ping", "--name", &a.name, "--json"])["peer"].is_null());
}

#[test]
fn the_end_of_the_other_end_is_an_error() {
    let folder = Folder::new();
    let [a, b] = nodes(&folder);
    let listener = listen(&a);
    let pings = ["ping", &a.name, "--name", &b.name, "-c", "5000", "--load"];
    let mut pinging = command(&pings).stdout(Stdio::piped()).spawn().expect("it can be started");
    let mut lines = BufReader::new(pinging.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let first = lines.find(|line| line.contains("beside a stream"));
    assert!(first.is_some(), "it comes to a stream");
    let reading = std::thread::spawn(move || lines.count());
    kill(listener.0.id());
    let (killed, limit) = (Instant::now(), Duration::from_secs(20));
    let ended = loop {
        match pinging.try_wait().expect("it is ours") {
            Some(status) => break status,
            None if killed.elapsed() > limit => panic!("it goes on beside no stream"),
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    assert_eq!(ended.code(), Some(1));
    let counted = reading.join().expect("it only reads");
    assert!(counted < 4999, "all were counted beside a stream that had ended");
}
