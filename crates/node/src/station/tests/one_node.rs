//! Export, import, transfer, notification within one node.

use crate::testing::{Raw, World};
use std::sync::atomic::Ordering;
use vmmc_host::abi::{GateState, Op, RawCommand, RawNotification, flags, gate_word};
use vmmc_host::area::PIN_COUNTER_NAMES;
use vmmc_host::control::{Access, Answer, CONTROL_VERSION, Call, NodeEvent, NotMapped, RefusalCode, What};
use vmmc_host::counters::{NODE, PEER, PINNING, find};
use vmmc_host::wait::WakeSender;
use vmmc_host::{GateTable, PairRing, Protection, Region};
use vmmc_nic::OpError;
use vmmc_nic::Rights;

#[test]
fn an_importer_maps_the_region_and_sees_an_open_gate() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (export, memory) = a.export("x");
    let (grant, mut fds) = b.import(None, "x", Rights::ALL);
    assert_eq!(
        (grant.export, grant.len, grant.mapped, grant.pair, grant.exporter),
        (export, 65536, Ok(()), true, a.id)
    );
    assert_eq!(fds.len(), 5);
    let region = Region::map(fds.remove(0), grant.len, Protection::ReadWrite).unwrap();
    region.write(100, b"through the mapping").unwrap();
    let mut got = [0; 19];
    memory.region.read(100, &mut got).unwrap();
    assert_eq!(&got, b"through the mapping");
    let gates = GateTable::open(fds.remove(0)).unwrap();
    let word = gates.gate(grant.gate).unwrap().load(Ordering::SeqCst);
    assert_eq!(word, gate_word(grant.gate_generation, GateState::Open));

    let (event, ring) = a.event();
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(
        (event, a.area.events_sent().load(Ordering::SeqCst)),
        (NodeEvent::Pair { process: b.id, uid, same_user: true }, 1)
    );
    let note = RawNotification { export, offset: 1, len: 2, last_word: 3, ..RawNotification::default() };
    let (ours, theirs) =
        (PairRing::open(fds.remove(2)).unwrap(), PairRing::open(ring.into_iter().next().unwrap()).unwrap());
    assert!(note.push(&mut ours.producer()));
    assert_eq!(RawNotification::pop(&mut theirs.consumer()), Some(note));
    WakeSender::from_fd(fds.remove(1)).wake();
    let mut byte = [0; 2];
    assert_eq!(rustix::io::read(&a.wake, &mut byte), Ok(1), "the exporter is woken");
}

#[test]
fn a_second_import_shares_the_ring_and_tells_the_exporter_nothing() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    a.export("x");
    a.export("y");
    assert!(b.import(None, "x", Rights::ALL).0.pair && b.import(None, "y", Rights::ALL).0.pair);
    assert!(!b.import(None, "y", Rights::READ).0.pair, "a reader notifies nobody");
    a.event();
    a.pump();
    assert!(a.events.try_receive().is_err());
}

#[test]
fn a_reader_cannot_write_through_what_it_gets() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    a.export("x");
    let (grant, mut fds) = b.import(None, "x", Rights::READ);
    assert_eq!(grant.mapped, Ok(()));
    assert!(Region::map(fds.remove(0), grant.len, Protection::ReadWrite).is_err());
}

#[test]
fn what_cannot_be_mapped_says_why() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let memory = a.register(8192);
    let mut export = |name: &str, change: &dyn Fn(&mut u64, &mut bool, &mut bool)| {
        let mut call = Raw::export_call(&memory, name);
        let Call::Export { len, redirectable, mappable, .. } = &mut call else { unreachable!() };
        change(len, redirectable, mappable);
        a.call(call).unwrap();
    };
    export("part", &|len, _, _| *len = 4096);
    export("redirectable", &|_, redirectable, _| *redirectable = true);
    export("private", &|_, _, mappable| *mappable = false);
    export("whole", &|_, _, _| {});
    let mut why = |name: &str, rights| b.import(None, name, rights).0.mapped.unwrap_err();
    assert_eq!(why("part", Rights::ALL), NotMapped::SharesPages);
    assert_eq!(why("redirectable", Rights::ALL), NotMapped::Redirectable);
    assert_eq!(why("private", Rights::ALL), NotMapped::NotAllowed);
    assert_eq!(why("whole", Rights::WRITE), NotMapped::NoReadRight);
    assert_eq!(why("whole", Rights::READ | Rights::ATOMIC), NotMapped::RightsNotExpressible);
    assert_eq!(b.import(None, "whole", Rights::ALL).0.mapped, Ok(()));
}

#[test]
fn the_engine_serves_an_import_that_is_not_mapped() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (export, memory) = a.export("x");
    let (grant, fds) = b.import(None, "x", Rights::WRITE);
    assert!(fds.is_empty());
    let mut command = RawCommand::new(Op::Send, grant.import);
    command.flags = flags::INLINE | flags::COMPLETE | flags::NOTIFY | flags::COUNTER;
    (command.offset, command.counter, command.cookie) = (16, 8, 7);
    b.post(&command, b"by the engine");
    let done = b.completion();
    assert_eq!((done.cookie, done.status), (7, 0));
    let mut got = [0; 13];
    memory.region.read(16, &mut got).unwrap();
    assert_eq!(&got, b"by the engine");
    assert_eq!(memory.region.word(8).unwrap().load(Ordering::SeqCst), 1);
    let note = a.notification();
    assert_eq!((note.export, note.offset, note.len), (export, 16, 13));

    let source = b.register(4096);
    source.region.write(0, &[9; 4096]).unwrap();
    let mut command = RawCommand::new(Op::Send, grant.import);
    command.flags = flags::COMPLETE;
    (command.offset, command.region, command.len, command.cookie) = (4096, source.id.into(), 4096, 8);
    b.post(&command, &[]);
    assert_eq!(
        (b.completion().status, memory.region.word(8184).unwrap().load(Ordering::SeqCst)),
        (0, u64::from_ne_bytes([9; 8]))
    );
}

#[test]
fn fetch_and_atomics_go_through_the_engine_too() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (_, memory) = a.export("x");
    memory.region.write(0, b"fetch me").unwrap();
    let (grant, _) = b.import(None, "x", Rights::READ | Rights::ATOMIC);
    assert_eq!(grant.mapped, Err(NotMapped::RightsNotExpressible));
    let into = b.register(4096);
    let mut fetch = RawCommand::new(Op::Fetch, grant.import);
    (fetch.region, fetch.region_offset, fetch.len, fetch.cookie) = (into.id.into(), 100, 8, 1);
    b.post(&fetch, &[]);
    assert_eq!(b.completion().status, 0);
    let mut got = [0; 8];
    into.region.read(100, &mut got).unwrap();
    assert_eq!(&got, b"fetch me");
    for (op, operands, old, new) in [
        (Op::FetchAdd, (5, 0), 0, 5),
        (Op::CompareSwap, (5, 8), 5, 8),
        (Op::CompareSwap, (5, 9), 8, 8),
        (Op::Swap, (1, 0), 8, 1),
    ] {
        let mut atomic = RawCommand::new(op, grant.import);
        (atomic.offset, atomic.counter, atomic.region, atomic.cookie) = (64, operands.0, operands.1, 2);
        b.post(&atomic, &[]);
        let done = b.completion();
        assert_eq!((done.status, done.value), (0, old));
        assert_eq!(memory.region.word(64).unwrap().load(Ordering::SeqCst), new);
    }
}

#[test]
fn an_import_may_wait_for_its_export() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let call = |timeout_ms| Call::Import {
        node: None,
        what: What::Name("late".into()),
        owner: Default::default(),
        rights: 1,
        wait: true,
        timeout_ms,
        own_order: false,
    };
    let serial = b.ask(call(60_000));
    for _ in 0..20 {
        b.pump();
    }
    assert!(b.has_no_answer());
    a.export("late");
    assert!(matches!(b.answer(serial), Ok(Answer::Imported(_))));
    let other = Call::Import {
        node: None,
        what: What::Name("never".into()),
        owner: Default::default(),
        rights: 1,
        wait: true,
        timeout_ms: 1,
        own_order: false,
    };
    assert_eq!(b.call(other).unwrap_err().code, RefusalCode::TimedOut);
}

#[test]
fn refusals_name_what_was_wrong() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    let (export, memory) = a.export("x");
    let code = |r: Result<Answer, vmmc_host::control::Refusal>| {
        let refusal = r.unwrap_err();
        assert!(refusal.message.len() > 20, "{}", refusal.message);
        refusal.code
    };
    assert_eq!(code(b.call(Raw::import_call(None, "nothing", Rights::READ))), RefusalCode::UnknownName);
    assert_eq!(code(b.call(Raw::import_call(Some("nowhere"), "x", Rights::READ))), RefusalCode::UnknownNode);
    assert_eq!(code(b.call(Raw::import_call(Some("no such name"), "x", Rights::READ))), RefusalCode::UnknownNode);
    let mut unknown = Raw::import_call(None, "x", Rights::READ);
    let Call::Import { rights, .. } = &mut unknown else { unreachable!() };
    *rights = 0x80;
    assert_eq!(code(b.call(unknown)), RefusalCode::Invalid);
    assert_eq!(code(a.call(Raw::export_call(&memory, "x"))), RefusalCode::NameTaken);
    assert_eq!(code(a.call(Call::ReleaseRegion { region: memory.id })), RefusalCode::Busy);
    assert_eq!(code(a.call(Call::ReleaseRegion { region: 999 })), RefusalCode::Stale);
    assert_eq!(code(b.call(Call::Unexport { export, moving: false })), RefusalCode::Stale);
    assert_eq!(code(b.call(Call::Unimport { import: 5 })), RefusalCode::Stale);
    assert_eq!(code(b.call(Call::Attach { version: CONTROL_VERSION })), RefusalCode::Invalid);
    assert_eq!(code(b.call(Call::RegisterRegion { len: 4096 })), RefusalCode::BadRegion);
    let mut call = Raw::export_call(&memory, "y");
    let Call::Export { offset, .. } = &mut call else { unreachable!() };
    *offset = 1;
    assert_eq!(code(a.call(call)), RefusalCode::OutOfBounds);
    let mut call = Raw::export_call(&memory, "reading");
    let Call::Export { rights, .. } = &mut call else { unreachable!() };
    *rights = Rights::READ.bits();
    a.call(call).unwrap();
    assert_eq!(code(b.call(Raw::import_call(None, "reading", Rights::ALL))), RefusalCode::NoRight);
    let mut call = Raw::export_call(&memory, "others");
    let Call::Export { access, .. } = &mut call else { unreachable!() };
    *access = Access::Users(vec![4_000_000]);
    a.call(call).unwrap();
    assert_eq!(code(b.call(Raw::import_call(None, "others", Rights::READ))), RefusalCode::NotPermitted);
}

#[test]
fn an_export_name_comes_free_when_its_process_goes() {
    let world = World::new(1, None);
    let mut a = Raw::attach(&world, 0);
    a.export("x");
    let mut b = Raw::attach(&world, 0);
    let (grant, mut fds) = b.import(None, "x", Rights::ALL);
    drop(a);
    let (event, _) = b.event();
    let why = OpError::OwnerDied;
    assert_eq!(event, NodeEvent::ImportBroken { import: grant.import, status: why.code(), args: why.args() });
    let gates = GateTable::open(fds.remove(1)).unwrap();
    let word = gates.gate(grant.gate).unwrap().load(Ordering::SeqCst);
    assert_eq!(word, gate_word(grant.gate_generation, GateState::OwnerDied));
    let mut c = Raw::attach(&world, 0);
    c.export("x");
    assert_eq!(world.borrow().stations[0].processes(), 2);
}

#[test]
fn a_receiver_learns_that_its_notifier_has_gone() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    a.export("x");
    b.import(None, "x", Rights::ALL);
    let gone = b.id;
    a.event();
    drop(b);
    assert_eq!(a.event().0, NodeEvent::PairGone { process: gone });
}

#[test]
fn a_node_describes_itself() {
    let world = World::new(1, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 0));
    a.export("x");
    b.import(None, "x", Rights::ALL);
    let Ok(Answer::Info(info)) = b.call(Call::Info { details: true }) else { panic!("no description") };
    assert_eq!((info.name.as_str(), info.processes.len()), ("n0", 2));
    assert_eq!((info.exports[0].name.as_deref(), info.imports[0].path.as_str()), (Some("x"), "mapped"));
    assert!(info.counters.iter().any(|(name, n)| name == "control_calls" && *n > 0));
    b.call(Call::Stop).unwrap();
    assert!(world.borrow().stations[0].stop_requested());
}

#[test]
fn every_counter_has_its_words() {
    let world = World::new(2, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 1));
    a.export("x");
    b.import(Some("n0"), "x", Rights::ALL);
    let Ok(Answer::Info(info)) = b.call(Call::Info { details: true }) else { panic!("no description") };
    let peers = info.peers.iter().flat_map(|peer| &peer.counters).map(|(name, _)| (name, PEER));
    let all: Vec<_> = info.counters.iter().map(|(name, _)| (name, NODE)).chain(peers).collect();
    assert!(all.len() > NODE.len() / 2 + PEER.len() && !info.peers.is_empty());
    for (name, table) in all {
        assert!(find(table, name).is_some(), "{name} has no words in vmmc_host::counters");
    }
    let names = PIN_COUNTER_NAMES.iter();
    assert!(names.clone().all(|name| find(PINNING, name).is_some()), "{names:?}");
}
