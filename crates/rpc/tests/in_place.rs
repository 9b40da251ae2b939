//! Answers out of memory that stays as it is, to a caller whose node is silent for a while. The
//! test program starts itself as the caller.

mod common;
#[path = "../../vmmc/tests/common/role.rs"]
mod role;

use common::{LONG, eventually, named, pattern};
use role::Role;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmmc::Session;
use vmmc_node::Embedded;
use vmmc_rpc::limits::ANSWERS_IN_PLACE_MAX;
use vmmc_rpc::{Call, Client, Server};

const READ: u16 = 1;
/// The same at once: the server learns where the caller's buffers are.
const FIRST: u16 = 2;
const BYTES: u64 = 4_000;
/// More than go out of their place at a time.
const CALLS: usize = ANSWERS_IN_PLACE_MAX + 8;
/// Much less than a node waits for another one before it is given up.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Longer than a process takes to stop.
const STOPPED: Duration = Duration::from_millis(50);

/// A session of a node in this process, which knows these others.
fn embedded(peers: &[&str]) -> (Embedded, Session) {
    let peers: Vec<_> = peers.iter().map(|peer| peer.parse().unwrap()).collect();
    let node = Embedded::start(named::config(&named::unique("in-place")).peer(&peers)).unwrap();
    let session = Session::builder().timeout(LONG).over(node.attach().unwrap()).unwrap();
    (node, session)
}

#[test]
#[ignore = "a role of the other test"]
fn child_process() {
    let Ok(address) = std::env::var("VMMC_TEST_NODE") else { return };
    let (_node, session) = embedded(&[&address]);
    let client = Client::new(&session, "stays").node(&address).bulk(CALLS as u64, BYTES).connect().unwrap();
    client.request(FIRST).wants_bulk().call().unwrap();
    let calls: Vec<_> = (0..CALLS).map(|_| client.request(READ).wants_bulk().start().unwrap()).collect();
    println!("ready");
    for call in calls {
        let bulk = call.wait().unwrap().bulk.expect("it was asked for");
        assert!(bulk.to_vec().unwrap() == pattern(BYTES as usize, 3));
    }
}

#[test]
fn nobody_waits_for_a_silent_node_and_it_holds_few_places() {
    let (_node, session) = embedded(&[]);
    let address = session.node().listen[0].clone();
    let buffer = session.buffer(BYTES).unwrap();
    buffer.write(0, &pattern(BYTES as usize, 3)).unwrap();
    let held: Arc<Mutex<Vec<Call>>> = Arc::default();
    let (hold, first) = (held.clone(), buffer.clone());
    let handler = move |call: Call| match call.method() {
        FIRST => call.answer_in_place(b"", first.range(0..BYTES)),
        _ => hold.lock().unwrap().push(call),
    };
    let _server = Server::new(&session, "stays").serve(handler).unwrap();

    let mut caller = Role::start("caller", &address);
    eventually("all calls are here", || held.lock().unwrap().len() == CALLS);
    let pid = Pid::from_child(&caller.0);
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::sleep(STOPPED);
    let (before, begun) = (session.stats(), Instant::now());
    for call in held.lock().unwrap().drain(..) {
        call.answer_in_place(b"", buffer.range(0..BYTES));
    }
    let (took, after) = (begun.elapsed(), session.stats());
    kill_process(pid, Signal::CONT).unwrap();
    assert!(took < AT_ONCE, "{took:?}");
    let in_place = after.sends_registered - before.sends_registered;
    assert_eq!(in_place, ANSWERS_IN_PLACE_MAX as u64);
    assert_eq!(after.sends_staged - before.sends_staged, CALLS as u64 - in_place, "the others are copied");
    assert!(caller.0.wait().unwrap().success(), "they are what they were to be");
}
