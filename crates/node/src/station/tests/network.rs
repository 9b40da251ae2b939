//! Two stations on a wire.

use crate::testing::{Raw, World, address};
use std::sync::atomic::Ordering;
use vmmc_host::abi::{COOKIE_SEND_FAILED, Op, RawCommand, flags};
use vmmc_host::control::{Answer, Call, NodeEvent, NotMapped, RefusalCode};
use vmmc_nic::OpError;
use vmmc_nic::Rights;

#[test]
fn a_send_reaches_another_node_plain_and_sealed() {
    for key in [None, Some([7; 32])] {
        let world = World::new(2, key);
        let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 1));
        let (export, memory) = a.export("x");
        for node in ["10.0.0.1:4000", "n0"] {
            let (grant, fds) = b.import(Some(node), "x", Rights::ALL);
            assert!(fds.is_empty());
            assert_eq!((grant.mapped, grant.node.as_str(), grant.export), (Err(NotMapped::OtherNode), "n0", export));
            assert_eq!(grant.sealed, key.is_some());
            let mut command = RawCommand::new(Op::Send, grant.import);
            command.flags = flags::INLINE | flags::COMPLETE | flags::NOTIFY;
            (command.offset, command.cookie) = (32, 5);
            b.post(&command, b"over the wire");
            assert_eq!((b.completion().status, a.notification().offset), (0, 32));
            let mut got = [0; 13];
            memory.region.read(32, &mut got).unwrap();
            assert_eq!(&got, b"over the wire");
        }
    }
}

#[test]
fn a_large_transfer_crosses_and_comes_back() {
    let world = World::new(2, Some([1; 32]));
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 1));
    let memory = a.register(1 << 20);
    a.call(Raw::export_call(&memory, "big")).unwrap();
    let (grant, _) = b.import(Some("10.0.0.1:4000"), "big", Rights::ALL);
    let (source, back) = (b.register(1 << 20), b.register(1 << 20));
    let bytes: Vec<u8> = (0..1u32 << 20).map(|i| (i / 3) as u8).collect();
    source.region.write(0, &bytes).unwrap();
    let mut command = RawCommand::new(Op::Send, grant.import);
    command.flags = flags::COMPLETE;
    (command.region, command.len) = (source.id.into(), 1 << 20);
    b.post(&command, &[]);
    assert_eq!(b.completion().status, 0);
    let mut got = vec![0; 1 << 20];
    memory.region.read(0, &mut got).unwrap();
    assert!(got == bytes);
    let mut fetch = RawCommand::new(Op::Fetch, grant.import);
    (fetch.region, fetch.len) = (back.id.into(), 1 << 20);
    b.post(&fetch, &[]);
    assert_eq!(b.completion().status, 0);
    back.region.read(0, &mut got).unwrap();
    assert!(got == bytes);
}

#[test]
fn a_remote_importer_is_told_of_the_end() {
    let world = World::new(2, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 1));
    let (export, memory) = a.export("x");
    a.export("y");
    let (x, _) = b.import(Some("n0"), "x", Rights::ALL);
    let (y, _) = b.import(Some("n0"), "y", Rights::ALL);
    a.call(Call::Unexport { export, moving: false }).unwrap();
    let broken = |import, why: OpError| NodeEvent::ImportBroken { import, status: why.code(), args: why.args() };
    assert_eq!(b.event().0, broken(x.import, OpError::Revoked));
    b.send(x.import, 0, b"late", 1);
    assert_ne!(b.completion().status, 0);
    assert_eq!(memory.region.word(0).unwrap().load(Ordering::SeqCst), 0);
    drop(a);
    assert_eq!(b.event().0, broken(y.import, OpError::OwnerDied));
}

#[test]
fn a_posted_send_that_fails_is_told_with_its_import() {
    let world = World::new(2, None);
    let (mut a, mut b) = (Raw::attach(&world, 0), Raw::attach(&world, 1));
    a.export("x");
    let (grant, _) = b.import(Some("n0"), "x", Rights::ALL);
    let mut command = RawCommand::new(Op::Send, grant.import);
    command.flags = flags::INLINE;
    command.offset = 65_536;
    b.post(&command, b"outside");
    let failed = b.completion();
    assert_eq!((failed.cookie, failed.value), (COOKIE_SEND_FAILED, grant.import));
    assert!(matches!(OpError::from_code(failed.status, failed.args), Some(OpError::OutOfBounds { size: 65_536, .. })));
}

#[test]
fn nodes_answer_pings_and_strangers_time_out() {
    let world = World::new(2, None);
    let mut b = Raw::attach(&world, 1);
    let ping = |node: String| Call::Ping { node, timeout_ms: 2_000 };
    let Ok(Answer::Pong { rtt_ns, node }) = b.call(ping(address(0).to_string())) else { panic!("no answer") };
    assert!(rtt_ns > 0);
    assert_eq!(node, "n0");
    let Ok(Answer::Pong { rtt_ns: 0, node }) = b.call(ping("n1".into())) else { panic!("no answer") };
    assert_eq!(node, "n1");
    let code = b.call(ping("10.9.9.9:1".into())).unwrap_err().code;
    assert!(matches!(code, RefusalCode::TimedOut | RefusalCode::Unreachable));
}

#[test]
fn peers_are_added_by_their_addresses_only() {
    let world = World::new(1, None);
    let mut a = Raw::attach(&world, 0);
    let add = |addresses: &[&str]| Call::AddPeer { addresses: addresses.iter().map(|a| a.to_string()).collect() };
    a.call(add(&["10.0.0.9:4000", "10.0.1.9:4000"])).unwrap();
    assert_eq!(a.call(add(&["localhost:4000"])).unwrap_err().code, RefusalCode::Invalid);
    assert_eq!(a.call(add(&[])).unwrap_err().code, RefusalCode::Invalid);
}
