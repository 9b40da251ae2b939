//! kill -9 at random moments, in a loop, then a search for leftovers.
//!
//! Invariant: peers of a killed process get an error, never hang; nothing of it remains in the
//! node; the same names can be used again at once.

mod common;

use common::{Node, PATIENCE, kill, memory_mappings, ok, open_files, wait_until};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vmmc::{Import, Rights, Session};
use vmmc_utlb::Rng;

/// Rounds of every loop: each kills at another moment. More with `VMMC_KILLS`.
fn rounds() -> u64 {
    std::env::var("VMMC_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

fn attach(node: &str) -> Session {
    Session::builder().node(node).start_node(false).timeout(PATIENCE).attach().expect("the node runs")
}

/// A child process that is killed when dropped.
struct Victim(Child);

impl Victim {
    fn start(role: &str, node: &str) -> Victim {
        let child = Command::new(std::env::current_exe().expect("the test has a program"))
            .args(["child", "--exact", "--ignored", "--nocapture"])
            .env("TEST_ROLE", role)
            .env("TEST_NODE", node)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Victim(child.expect("a process can be started"))
    }

    fn kill(mut self) {
        kill(self.0.id());
        let _ = self.0.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process that is killed; its parent says what it does.
#[test]
#[ignore = "the child process of the other tests"]
fn child() {
    let (Ok(node), Ok(role)) = (std::env::var("TEST_NODE"), std::env::var("TEST_ROLE")) else { return };
    let session = attach(&node);
    match role.as_str() {
        "sender" => {
            let import =
                session.import("target").rights(Rights::ALL).wait(PATIENCE).open().expect("the parent exports");
            let data = vec![7; 40_000];
            let options = vmmc::SendOptions { notify: Some(0), counter: Some(0), ..Default::default() };
            let end = Instant::now() + PATIENCE;
            while Instant::now() < end && import.send_with(8, &data, options).is_ok() {}
        }
        _ => {
            let _export = session.export(65_536).name("victim").notify(true).create().expect("there is memory");
            // Until we are killed, or the parent is gone.
            let _ = std::io::read_to_string(std::io::stdin());
        }
    }
}

#[test]
fn a_killed_sender_leaves_nothing_behind() {
    let node = Node::start("senders", &["--plain"]);
    let session = attach(&node.name);
    let export = session.export(65_536).name("target").notify(true).create().expect("there is memory");
    let only_us = || session.node_info(true).is_ok_and(|i| i.processes.len() == 1 && i.imports.is_empty());
    wait_until("the node has only us", only_us);
    let before = (open_files(node.pid), memory_mappings(node.pid));
    let mut random = Rng::new(1);
    for round in 0..rounds() {
        let start = export.word(0).expect("a word is there").load(std::sync::atomic::Ordering::Relaxed);
        let victim = Victim::start("sender", &node.name);
        if round % 2 == 0 {
            // In the middle of sending; the other rounds hit its start.
            export.wait_word_by(0, |w| w > start, session.deadline(PATIENCE)).expect("it sends");
        }
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        victim.kill();
        wait_until("the killed sender is forgotten", only_us);
    }
    wait_until("descriptors and mappings are as before", || {
        (open_files(node.pid), memory_mappings(node.pid)) <= before
    });
}

/// Sends until that fails; how long after `since` it failed.
fn send_until_error(import: &Import, since: Instant) -> (vmmc::TransferError, Duration) {
    let data = vec![1; 10_000];
    loop {
        if let Err(e) = import.send(0, &data).and_then(|()| import.flush()) {
            return (e, since.elapsed());
        }
        assert!(since.elapsed() < PATIENCE, "sends to a killed process still succeed after {} s", PATIENCE.as_secs());
    }
}

#[test]
fn a_killed_receiver_is_an_error_for_senders_and_its_name_is_free_at_once() {
    let node = Node::start("receivers", &["--plain"]);
    let session = attach(&node.name);
    let mut random = Rng::new(2);
    let mut slowest = Duration::ZERO;
    for _ in 0..rounds() {
        let victim = Victim::start("receiver", &node.name);
        let import = session.import("victim").rights(Rights::ALL).wait(PATIENCE).open().expect("it exports");
        import.send(0, b"hello").expect("it lives");
        std::thread::sleep(Duration::from_micros(random.below(5_000)));
        victim.kill();
        let (error, after) = send_until_error(&import, Instant::now());
        assert!(error.to_string().contains("victim"), "{error}");
        slowest = slowest.max(after);
        drop(import);
    }
    println!("slowest error after {slowest:?}");
    wait_until("nothing is exported any more", || session.node_info(true).is_ok_and(|i| i.exports.is_empty()));
}

#[test]
fn a_killed_receiver_on_another_node_is_an_error_too() {
    let a = Node::start("far-a", &["--plain", "--plain-trust-users"]);
    let b = Node::start("far-b", &["--plain", "--plain-trust-users", "--peer", &a.address]);
    let session = attach(&a.name);
    let mut random = Rng::new(3);
    for _ in 0..rounds() / 3 {
        let victim = Victim::start("receiver", &b.name);
        let import = session.import("victim").node(&b.address).rights(Rights::ALL).wait(PATIENCE);
        let import = import.open().expect("it exports");
        import.send(0, b"hello").and_then(|()| import.flush()).expect("it lives");
        std::thread::sleep(Duration::from_micros(random.below(5_000)));
        victim.kill();
        let (error, _) = send_until_error(&import, Instant::now());
        assert!(error.to_string().contains("victim"), "{error}");
    }
}

#[test]
fn a_killed_daemon_is_an_error_and_a_new_one_takes_its_place() {
    let mut random = Rng::new(4);
    let name = common::unique("daemon");
    for _ in 0..rounds() / 3 {
        let node = Node::start_named(&name, &["--plain"]);
        let session = attach(&node.name);
        let export = session.export(65_536).name("here").create().expect("there is memory");
        let victim = Victim::start("receiver", &node.name);
        let import = session.import("victim").rights(Rights::ALL).wait(PATIENCE).open().expect("it exports");
        import.send(0, b"hello").expect("it lives");
        std::thread::sleep(Duration::from_micros(random.below(5_000)));
        node.kill();
        let (error, _) = send_until_error(&import, Instant::now());
        assert!(error.to_string().contains(&name), "{error}");
        wait_until("calls fail", || session.node_info(false).is_err());
        drop((import, export, session, victim));
    }
    let again = Node::start_named(&name, &["--plain"]);
    assert!(ok(&["node", "list"]).contains(&again.name));
}

#[test]
fn an_unreachable_node_is_an_error_within_the_stated_time() {
    let a = Node::start("lost-a", &["--plain", "--plain-trust-users", "--peer-timeout-ms", "2000"]);
    let b =
        Node::start("lost-b", &["--plain", "--plain-trust-users", "--peer", &a.address, "--peer-timeout-ms", "2000"]);
    let (near, far) = (attach(&a.name), attach(&b.name));
    let _export = far.export(65_536).name("victim").create().expect("there is memory");
    let import = near.import("victim").node(&b.address).rights(Rights::ALL).wait(PATIENCE).open().expect("it exports");
    import.send(0, b"hello").and_then(|()| import.flush()).expect("it lives");
    b.kill();
    let (error, after) = send_until_error(&import, Instant::now());
    println!("{error} (after {after:?})");
    ok(&["node", "status", "--name", &a.name]);
}
