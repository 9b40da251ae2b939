//! What an unexport promises.

use crate::testing::{Raw, World};
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc_host::GateTable;
use vmmc_host::abi::{GateState, gate_state};
use vmmc_host::area::{enter_lane, leave_lane};
use vmmc_host::control::{Answer, Call, NodeEvent, RefusalCode};
use vmmc_nic::OpError;
use vmmc_nic::Rights;

const BOTH: Rights = Rights::READ.union(Rights::WRITE);

/// A gate for callers that check none.
static GATE: AtomicU64 = AtomicU64::new(0);

#[test]
fn nobody_inside_means_no_moving() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (export, _) = a.export("x");
    let (grant, mut fds) = b.import(None, "x", BOTH);
    let answer = a.call(Call::Unexport { export, moving: false });
    assert_eq!(answer, Ok(Answer::Unexported { must_move: false }));
    let gates = GateTable::open(fds.remove(1)).unwrap();
    let word = gates.gate(grant.gate).unwrap().load(Ordering::SeqCst);
    assert_eq!(gate_state(word, grant.gate_generation), GateState::Revoked);
    let why = OpError::Revoked;
    let broken = NodeEvent::ImportBroken { import: grant.import, status: why.code(), args: why.args() };
    assert_eq!(b.event().0, broken);
    assert_eq!(a.call(Call::Unexport { export, moving: false }).unwrap_err().code, RefusalCode::Stale);
}

#[test]
fn a_transfer_under_way_is_waited_for() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (export, _) = a.export("x");
    let (grant, _) = b.import(None, "x", BOTH);
    let lane = b.area.lane(7).load(Ordering::SeqCst);
    assert_eq!(lane, 0);
    enter_lane(b.area.lane(7), grant.import, &GATE);
    let serial = a.ask(Call::Unexport { export, moving: false });
    for _ in 0..100 {
        a.pump();
    }
    assert!(a.has_no_answer(), "a thread is inside");
    leave_lane(b.area.lane(7));
    assert_eq!(a.answer(serial), Ok(Answer::Unexported { must_move: false }));
}

#[test]
fn a_transfer_that_does_not_end_makes_the_pages_move() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (export, _) = a.export("x");
    let (grant, _) = b.import(None, "x", BOTH);
    enter_lane(b.area.lane(255), grant.import, &GATE);
    let serial = a.ask(Call::Unexport { export, moving: false });
    assert_eq!(a.answer(serial), Ok(Answer::Unexported { must_move: true }));
}

#[test]
fn an_importer_inside_another_import_is_not_waited_for() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (export, _) = a.export("x");
    a.export("y");
    b.import(None, "x", BOTH);
    let (other, _) = b.import(None, "y", BOTH);
    enter_lane(b.area.lane(0), other.import, &GATE);
    assert_eq!(a.call(Call::Unexport { export, moving: false }), Ok(Answer::Unexported { must_move: false }));
}

#[test]
fn a_bound_importer_and_a_wish_to_move_make_the_pages_move() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (bound, _) = a.export("bound");
    let (wished, _) = a.export("wished");
    let (grant, _) = b.import(None, "bound", BOTH);
    b.call(Call::Bind { import: grant.import }).unwrap();
    assert_eq!(b.call(Call::Bind { import: 77 }).unwrap_err().code, RefusalCode::Stale);
    assert_eq!(a.call(Call::Unexport { export: bound, moving: false }), Ok(Answer::Unexported { must_move: true }));
    assert_eq!(a.call(Call::Unexport { export: wished, moving: true }), Ok(Answer::Unexported { must_move: true }));
}

#[test]
fn an_importer_that_left_inside_a_transfer_makes_the_pages_move() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (export, _) = a.export("x");
    let (grant, _) = b.import(None, "x", BOTH);
    enter_lane(b.area.lane(3), grant.import, &GATE);
    drop(b);
    for _ in 0..10 {
        a.pump();
    }
    assert_eq!(a.call(Call::Unexport { export, moving: false }), Ok(Answer::Unexported { must_move: true }));
}

#[test]
fn the_engine_deposits_nothing_after_an_unexport() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (export, memory) = a.export("x");
    let (grant, _) = b.import(None, "x", Rights::WRITE);
    a.call(Call::Unexport { export, moving: false }).unwrap();
    b.send(grant.import, 0, b"late", 4);
    assert_eq!(b.completion().status, OpError::Revoked.code());
    assert_eq!(memory.region.word(0).unwrap().load(Ordering::SeqCst), 0);
    a.call(Call::ReleaseRegion { region: memory.id }).unwrap();
}
