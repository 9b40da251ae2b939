//! A user that leaves descriptors of a daemon of root's unread, beside an honest pair.
//!
//! The kernel counts what root has under way, and lets root send no more of them once they are as
//! many as the daemon may have open. Needs root; without it the tests print `SKIP` and why.

mod common;

use common::raw::{self, Raw};
use common::wild::can_be_others;
use common::{Node, ask, attach_call, beside, connect, nap};
use std::rc::Rc;
use std::time::Duration;
use vmmc_host::Channel;
use vmmc_host::control::{Call, Request, encode};
use vmmc_nic::Rights;

/// Descriptors that the daemon may have: so few that a user can leave as many unread soon.
const LIMIT: u32 = 2_000;
/// Imports that a connection asks for, with five descriptors in each answer.
const IMPORTS: usize = 60;

fn attached(name: &str) -> Raw {
    Raw::over(connect(0, name).unwrap(), Rc::new(std::thread::yield_now))
}

/// A process with replies that it does not read; none: the node takes no further one.
fn deaf(name: &str, imports: usize) -> Option<Channel> {
    let channel = connect(0, name).ok()?;
    ask(&channel, attach_call(), &[]).ok()?.ok()?;
    for _ in 0..imports {
        let call = Raw::import_call(None, "unread", Rights::READ | Rights::WRITE);
        // Once replies wait the node reads no further request, and then its queue is full.
        if channel.try_send(&encode(&Request { serial: 2, call }), &[]).is_err() {
            break;
        }
    }
    // Until the node has answered as much as it does.
    std::thread::sleep(Duration::from_millis(10));
    Some(channel)
}

#[test]
fn descriptors_that_a_user_leaves_unread_keep_nobody_from_attaching() {
    if !can_be_others() {
        return;
    }
    let mut node = Node::start("under-way", Some(LIMIT));
    let name = node.name.clone();
    let before = node.daemon.descriptors();
    beside(&mut node, || {
        let mut exporter = attached(&name);
        let _export = exporter.export("unread");
        let kept: Vec<Channel> = (0..30).map_while(|_| deaf(&name, IMPORTS)).collect();
        println!("{} processes read nothing", kept.len());
        std::thread::sleep(Duration::from_secs(1));
    });
    raw::wait(&nap, || (node.daemon.descriptors() <= before + 4).then_some(()));
}

#[test]
fn descriptors_in_the_queues_of_connections_that_are_over_count_until_they_are_gone() {
    if !can_be_others() {
        return;
    }
    let mut node = Node::start("over", Some(LIMIT));
    let name = node.name.clone();
    let before = node.daemon.descriptors();
    beside(&mut node, || {
        let mut exporter = attached(&name);
        let _export = exporter.export("unread");
        let mut kept = Vec::new();
        for _ in 0..60 {
            let Some(channel) = deaf(&name, 20) else { break };
            let _ = channel.try_send(&[0xff; 40], &[]);
            kept.push(channel);
        }
        println!("{} connections that are over keep their queues", kept.len());
        std::thread::sleep(Duration::from_secs(1));
        // What the user gets back is what has gone.
        drop(kept);
        raw::wait(&nap, || deaf(&name, 20));
    });
    raw::wait(&nap, || (node.daemon.descriptors() <= before + 4).then_some(()));
}

#[test]
fn a_process_that_reads_late_gets_all_its_answers() {
    let node = Node::start("late", Some(LIMIT));
    let mut exporter = Raw::over(node.connect().unwrap(), Rc::new(std::thread::yield_now));
    let _export = exporter.export("unread");
    let mut late = Raw::over(node.connect().unwrap(), Rc::new(std::thread::yield_now));
    let call = || Raw::import_call(None, "unread", Rights::READ | Rights::WRITE);
    let asked: Vec<u64> = (0..IMPORTS).map(|_| late.ask(call())).collect();
    std::thread::sleep(Duration::from_millis(50));
    let ticks = node.daemon.ticks();
    std::thread::sleep(Duration::from_secs(1));
    let ticks = node.daemon.ticks() - ticks;
    assert!(ticks <= 25, "{ticks} of 100 ticks for waiting");
    for serial in asked {
        late.answer(serial).unwrap();
    }
    late.call(Call::Info { details: false }).unwrap();
}
