//! Promised sizes: 64 processes, 1,000 exports, 10,000 imports on a node.

use crate::testing::{Raw, World};
use std::sync::atomic::Ordering;
use vmmc_host::control::{Answer, Call};
use vmmc_nic::Rights;

#[test]
fn a_node_carries_what_is_promised() {
    let world = World::new(1, None);
    let mut processes: Vec<Raw> = (0..64).map(|_| Raw::attach(&world, 0)).collect();
    let memory = processes[0].register(4096);
    for i in 0..1_000 {
        processes[0].call(Raw::export_call(&memory, &format!("e{i}"))).unwrap();
    }
    let mut last = 0;
    for i in 0..10_000 {
        let (grant, _) = processes[1 + i % 63].import(None, &format!("e{}", i % 1_000), Rights::READ | Rights::WRITE);
        assert_eq!(grant.mapped, Ok(()));
        last = grant.export;
    }
    let Ok(Answer::Info(info)) = processes[5].call(Call::Info { details: true }) else { panic!("no description") };
    assert_eq!(info.processes.len(), 64);
    assert!(!info.exports.is_empty() && !info.imports.is_empty(), "cut, not left out");
    // An engine transfer still works in the crowd, and so does the end of an export with all its
    // importers.
    let (grant, _) = processes[63].import(None, "e7", Rights::WRITE);
    processes[63].send(grant.import, 8, &[1; 8], 1);
    assert_eq!(processes[63].completion().status, 0);
    assert_eq!(memory.region.word(8).unwrap().load(Ordering::SeqCst), u64::from_ne_bytes([1; 8]));
    let answer = processes[0].call(Call::Unexport { export: last, moving: false });
    assert_eq!(answer, Ok(Answer::Unexported { must_move: false }));
    drop(processes.remove(0));
    processes[0].pump();
    assert_eq!(world.borrow().stations[0].processes(), 63);
}
