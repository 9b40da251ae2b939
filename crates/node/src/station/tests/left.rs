//! What clients leave behind costs those who are served no more than a turn's work, and its user's
//! share until it is gone.

use crate::limits::{REVOCATION_WAIT, REVOCATIONS_PER_TURN};
use crate::testing::{Raw, World};
use std::sync::atomic::Ordering;
use vmmc_host::control::{Answer, Call, rights};

#[test]
fn revocations_that_wait_are_looked_at_in_turns() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let count = REVOCATIONS_PER_TURN + 100;
    let memory = a.register(4096);
    let exports: Vec<u64> = (0..count)
        .map(|at| {
            let Ok(Answer::Exported { export }) = a.call(Raw::export_call(&memory, &format!("e{at}"))) else {
                panic!("no export")
            };
            let (grant, _) = b.import(None, &format!("e{at}"), rights::READ);
            // It never leaves.
            b.area.lane(at).store(grant.import, Ordering::SeqCst);
            export
        })
        .collect();
    for export in exports {
        a.ask(Call::Unexport { export, moving: false });
        a.pump();
    }
    assert!(a.has_no_answer(), "threads are inside");
    let answered = || std::iter::from_fn(|| a.channel.try_receive().ok()).count();
    {
        let mut world = world.borrow_mut();
        world.now = world.now + REVOCATION_WAIT;
        world.step();
    }
    let first = answered();
    assert!(first > 0 && first <= REVOCATIONS_PER_TURN, "{first} answers in one turn");
    world.borrow_mut().step();
    assert_eq!(first + answered(), count);
}
