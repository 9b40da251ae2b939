//! A user that keeps the memory which a daemon of root's has made for its processes, beside an
//! honest pair.
//!
//! Needs root; without it the tests print `SKIP` and why.

mod common;

use common::raw;
use common::wild::can_be_others;
use common::{LONG, Node, attach_call, beside, connect, nap};
use rustix::fs::fstat;
use std::os::fd::OwnedFd;
use vmmc_host::control::{Answer, Reply, Request, decode, encode};
use vmmc_host::wait::Deadline;

/// More processes than one user may have at once: each is let go before the next one comes.
const PROCESSES: usize = 200;

/// Bytes of memory behind descriptors; what is none has none.
fn bytes(kept: &[OwnedFd]) -> u64 {
    kept.iter().map(|fd| fstat(fd).map_or(0, |stat| stat.st_blocks as u64 * 512)).sum()
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
