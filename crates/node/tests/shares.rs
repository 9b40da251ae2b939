//! What one user may have of the tables of a node: a real daemon of root's, a user that takes all
//! it gets of one of them until it is told that it has its share, and an honest pair that is served
//! meanwhile.
//!
//! Invariant: a test ends with the numbers that the limits promise, so it fails when the share is
//! larger, as when it is smaller.

mod common;

use common::raw::{self, LONG, Raw};
use common::wild::{HONEST, HOSTILE, as_user, can_be_others};
use common::{Honest, Node, ask, attach_call, connect, nap};
use std::os::fd::AsFd;
use std::rc::Rc;
use vmmc_host::control::ExportKind;
use vmmc_host::control::{Access, Answer, Call, Refusal, RefusalCode, Reply, Request, decode, encode};
use vmmc_host::limits::EXPORTS_PER_PROCESS_MAX;
use vmmc_host::wait::Deadline;
use vmmc_host::{Channel, Region};
use vmmc_nic::Rights;
use vmmc_nic::limits::EXPORTS_MAX;
use vmmc_node::limits::{CALLS_MAX, CALLS_WAITING_MAX, PEERS_CALLED_MAX};
use vmmc_node::{KeySource, NodeConfig};

/// Longer than any test.
const FOR_EVER_MS: u64 = 600_000;

/// An attached process.
fn attached(name: &str) -> Channel {
    let channel = connect(0, name).unwrap();
    ask(&channel, attach_call(), &[]).unwrap().unwrap();
    channel
}

/// An honest pair has a part of whatever another user holds its share of.
fn an_honest_pair_is_served(name: &str) {
    as_user(HONEST, || {
        let mut honest = Honest::new(name);
        (0..20).for_each(|_| honest.exchange());
        honest.check();
    });
}

/// What a user is told that holds its share of a table of which nobody else has anything.
fn share_of(uid: u32, max: usize, what: &str) -> Refusal {
    let half = max / 2;
    let message = format!(
        "user {uid} holds {half} of the {max} {what} of this node, which is its share while {half} are free for others; let some go"
    );
    Refusal { code: RefusalCode::TableFull, message }
}

fn export_nameless(region: u32) -> Call {
    Call::Export {
        name: None,
        region,
        offset: 0,
        len: 4096,
        rights: Rights::READ.bits(),
        access: Access::SameUser,
        notify: false,
        redirectable: false,
        kind: ExportKind::Memory,
        mappable: false,
    }
}

/// Exports as much as it is let, in as many processes as that takes; gives these, how many exports
/// they have, and why there are no more.
fn export_all(name: &str) -> (Vec<Channel>, usize, Refusal) {
    let memory = Region::create(4096).unwrap().share().unwrap();
    let (mut processes, mut count) = (Vec::new(), 0);
    loop {
        let process = attached(name);
        let region = ask(&process, Call::RegisterRegion { len: 4096 }, &[memory.as_fd()]).unwrap().unwrap();
        let Answer::Region { region } = region else { panic!("{region:?}") };
        let before = count;
        let refusal = loop {
            match ask(&process, export_nameless(region), &[]).unwrap() {
                Ok(_) => count += 1,
                Err(refusal) => break refusal,
            }
        };
        processes.push(process);
        if count - before < EXPORTS_PER_PROCESS_MAX {
            return (processes, count, refusal);
        }
    }
}

#[test]
fn a_user_that_exports_all_it_can_leaves_exports_to_others() {
    if !can_be_others() {
        return;
    }
    let node = Node::start("exports", None);
    let (processes, count, refusal) = as_user(HOSTILE, || export_all(&node.name));
    println!("{count} exports of {} processes: {refusal}", processes.len());
    assert_eq!((count, &refusal), (EXPORTS_MAX / 2, &share_of(HOSTILE, EXPORTS_MAX, "exports")));
    an_honest_pair_is_served(&node.name);
    let (others, count, _) = as_user(HOSTILE + 1, || export_all(&node.name));
    // The honest pair may not be gone yet.
    assert!((EXPORTS_MAX / 4 - 8..=EXPORTS_MAX / 4).contains(&count), "{count}");
    an_honest_pair_is_served(&node.name);
    drop((processes, others));
    as_user(HOSTILE, || {
        let memory = Region::create(4096).unwrap().share().unwrap();
        let process = attached(&node.name);
        ask(&process, Call::RegisterRegion { len: 4096 }, &[memory.as_fd()]).unwrap().unwrap();
        raw::wait(&nap, || ask(&process, export_nameless(0), &[]).unwrap().ok());
    });
}

fn wait_for(node: Option<&str>, timeout_ms: u64) -> Call {
    let mut call = Raw::import_call(node, "nobody", Rights::READ);
    let Call::Import { wait, timeout_ms: until, .. } = &mut call else { unreachable!() };
    (*wait, *until) = (true, timeout_ms);
    call
}

/// What an import that waits for an instant comes to.
fn waited(process: &Channel) -> Refusal {
    ask(process, wait_for(None, 1), &[]).unwrap().unwrap_err()
}

/// Lets imports wait until one is refused for another reason than what its process may have, in as
/// many processes as that takes; gives these, and the reason.
fn wait_all(name: &str) -> (Vec<Channel>, Refusal) {
    let mut processes = Vec::new();
    loop {
        let process = attached(name);
        let bytes = encode(&Request { serial: 2, call: wait_for(None, FOR_EVER_MS) });
        let refusal = loop {
            process.send(&bytes, &[], Deadline::after(LONG)).unwrap();
            // Those that wait are not answered.
            if let Ok((bytes, _)) = process.try_receive() {
                break decode::<Reply>(&bytes).unwrap().result.unwrap_err();
            }
        };
        processes.push(process);
        if !refusal.message.contains(&format!("{CALLS_WAITING_MAX} calls of this process")) {
            return (processes, refusal);
        }
    }
}

#[test]
fn a_user_that_waits_for_all_imports_it_can_leaves_waits_to_others() {
    if !can_be_others() {
        return;
    }
    let node = Node::start("waits", None);
    let (processes, refusal) = as_user(HOSTILE, || wait_all(&node.name));
    println!("{} processes: {refusal}", processes.len());
    assert_eq!(refusal, share_of(HOSTILE, CALLS_MAX, "waiting calls"));
    assert_eq!(processes.len(), CALLS_MAX / 2 / CALLS_WAITING_MAX + 1);
    an_honest_pair_is_served(&node.name);
    as_user(HONEST, || {
        let attach = || Raw::over(connect(0, &node.name).unwrap(), Rc::new(std::thread::yield_now));
        let (mut importer, mut owner) = (attach(), attach());
        let mut call = Raw::import_call(None, "soon", Rights::READ);
        let Call::Import { wait, .. } = &mut call else { unreachable!() };
        *wait = true;
        let serial = importer.ask(call);
        owner.export("soon");
        assert!(matches!(importer.answer(serial), Ok(Answer::Imported(_))));
    });
    drop(processes);
    as_user(HOSTILE, || {
        let process = attached(&node.name);
        raw::wait(&nap, || (waited(&process).code == RefusalCode::TimedOut).then_some(()));
    });
}

#[test]
fn a_user_that_asks_at_all_addresses_it_can_leaves_nodes_to_others() {
    if !can_be_others() {
        return;
    }
    let node = Node::start("addresses", None);
    let config = NodeConfig::new(&format!("{}-2", node.name)).listen("127.0.0.1:0".parse().unwrap());
    let daemon = vmmc_node::Daemon::start(config.key(KeySource::Plain)).unwrap();
    let (there, stopper) = (daemon.running().addresses[0].to_string(), daemon.stopper());
    let thread = std::thread::spawn(move || daemon.run().unwrap());
    let ask_at = |process: &Channel, at: u32| {
        let address = format!("127.9.0.{}:9", 1 + at);
        let call = wait_for(Some(&address), FOR_EVER_MS);
        process.send(&encode(&Request { serial: 2, call }), &[], Deadline::after(LONG)).unwrap();
    };
    let (process, refusal) = as_user(HOSTILE, || {
        let process = attached(&node.name);
        (0..=PEERS_CALLED_MAX as u32 / 2).for_each(|at| ask_at(&process, at));
        let (bytes, _) = process.receive(Deadline::after(LONG)).unwrap();
        // More of the same address takes nothing more.
        ask_at(&process, 0);
        assert_eq!(waited(&process).code, RefusalCode::TimedOut);
        (process, decode::<Reply>(&bytes).unwrap().result.unwrap_err())
    });
    println!("{refusal}");
    assert_eq!(refusal, share_of(HOSTILE, PEERS_CALLED_MAX, "nodes asked by address"));
    as_user(HONEST, || {
        let process = attached(&node.name);
        let ping = Call::Ping { node: there, timeout_ms: LONG.as_millis() as u64 };
        let answer = ask(&process, ping, &[]).unwrap();
        assert!(matches!(&answer, Ok(Answer::Pong { node, .. }) if node.ends_with("-2")), "{answer:?}");
    });
    an_honest_pair_is_served(&node.name);
    drop(process);
    stopper.stop();
    thread.join().unwrap();
}
