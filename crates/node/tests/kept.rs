//! A user that keeps the memory which a daemon of root's has made for its processes, beside an
//! honest pair.
//!
//! Needs root; without it the tests print `SKIP` and why.

mod common;

use common::raw::{self, Raw};
use common::wild::can_be_others;
use common::{LONG, Node, attach_call, beside, connect, nap};
use rustix::fs::fstat;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use vmmc_host::control::{Answer, RefusalCode, Reply, Request, decode, encode};
use vmmc_host::wait::Deadline;
use vmmc_nic::Rights;

/// More processes than one user may have at once: each is let go before the next one comes.
const PROCESSES: usize = 200;

/// Bytes of memory behind descriptors; what is none has none.
fn bytes(kept: &[OwnedFd]) -> u64 {
    kept.iter().map(|fd| fstat(fd).map_or(0, |stat| stat.st_blocks as u64 * 512)).sum()
}

fn attached(name: &str) -> Raw {
    Raw::over(raw::wait(&nap, || connect(0, name).ok()), Rc::new(std::thread::yield_now))
}

#[test]
fn gate_tables_that_a_client_keeps_count_until_they_are_gone() {
    if !can_be_others() {
        return;
    }
    // 64 MiB, of which one user has half; and one process has some.
    const TABLES_MAX: usize = 1_024;
    let mut node = Node::start("gates", None);
    let name = node.name.clone();
    beside(&mut node, || {
        let mut importer = attached(&name);
        let mut kept = Vec::new();
        let mut import = || {
            let mut exporter = attached(&name);
            let _export = exporter.export("kept");
            let (answer, mut fds) = importer.call_with(Raw::import_call(None, "kept", Rights::READ), &[]);
            // The name is free for the next one.
            let _ = exporter.channel.try_send(&[0xff; 40], &[]);
            answer.map(|_| fds.swap_remove(1))
        };
        let refusal = loop {
            assert!(kept.len() <= TABLES_MAX, "{} MiB are kept", bytes(&kept) >> 20);
            match import() {
                Ok(table) => kept.push(table),
                Err(refusal) => break refusal,
            }
        };
        println!("{} tables, {} MiB: {refusal}", kept.len(), bytes(&kept) >> 20);
        assert_eq!(refusal.code, RefusalCode::TableFull);
        assert!(refusal.message.contains("pages of processes that have ended"), "{refusal}");
        assert!(kept.len() > TABLES_MAX / 2, "{}", kept.len());
        // What the user gets back is what nobody has any more, not even mapped.
        drop(kept);
        raw::wait(&nap, || import().ok());
    });
}

#[test]
fn rings_of_importers_that_have_gone_are_emptied_but_for_the_last_ones() {
    if !can_be_others() {
        return;
    }
    const RING: u64 = 16 << 10;
    // `FORMER_RINGS_MAX` of the node.
    const UNREAD_MAX: u64 = 32;
    let mut node = Node::start("rings", None);
    let name = node.name.clone();
    beside(&mut node, || {
        let mut exporter = attached(&name);
        let _export = exporter.export("kept");
        let mut kept = Vec::new();
        for _ in 0..PROCESSES {
            let mut importer = attached(&name);
            let (_, mut fds) = importer.import(None, "kept", Rights::READ | Rights::WRITE);
            kept.push(fds.swap_remove(4));
            // It was told of them all, and reads nothing of what they said.
            exporter.event();
            importer.channel.try_send(&[0xff; 40], &[]).unwrap();
            exporter.event();
        }
        println!("{} KiB of {} rings", bytes(&kept) >> 10, kept.len());
        let last = kept.len() - UNREAD_MAX as usize;
        raw::wait(&nap, || (bytes(&kept[..last]) == 0).then_some(()));
        assert_eq!(bytes(&kept[last..]), UNREAD_MAX * RING, "it may read those of the last ones");
        drop(exporter);
        raw::wait(&nap, || (bytes(&kept) == 0).then_some(()));
    });
}

#[test]
fn what_a_client_keeps_of_the_memory_of_a_process_that_ended_is_empty() {
    if !can_be_others() {
        return;
    }
    let mut node = Node::start("kept", None);
    let name = node.name.clone();
    beside(&mut node, || {
        let mut kept = Vec::new();
        let mut while_attached = 0;
        for _ in 0..PROCESSES {
            // As many as may be at once are there until the last ones are closed.
            let fds = raw::wait(&nap, || {
                let channel = connect(0, &name).ok()?;
                let call = encode(&Request { serial: 1, call: attach_call() });
                channel.send(&call, &[], Deadline::after(LONG)).ok()?;
                let (answer, fds) = channel.receive(Deadline::after(LONG)).ok()?;
                matches!(decode::<Reply>(&answer).unwrap().result, Ok(Answer::Attached { .. })).then_some(())?;
                while_attached += bytes(&fds);
                let _ = channel.try_send(&[0xff; 40], &[]);
                Some(fds)
            });
            // The area and the bell; the other ones are no memory.
            kept.extend(fds.into_iter().take(2));
        }
        println!("{} KiB while they were attached", while_attached >> 10);
        assert!(while_attached > PROCESSES as u64 * (200 << 10), "{while_attached}");
        raw::wait(&nap, || (bytes(&kept) == 0).then_some(()));
    });
}
