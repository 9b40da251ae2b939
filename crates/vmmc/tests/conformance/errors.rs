//! What goes wrong is an error that names the thing and the numbers, in time.

use crate::nodes::{LONG, Nodes, Place, SHORT, eventually, join, join_with};
use std::time::{Duration, Instant};
use vmmc::{CallError, RefusalCode, Rights, SendOptions, TransferError, WaitError};

pub(crate) fn ranges_outside_are_refused(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 100);
        let buffer = j.user.buffer(200).unwrap();
        let outside = |result: Result<(), TransferError>| match result {
            Err(TransferError::OutOfBounds { size: 100, import, .. }) => assert!(import.contains("export"), "{import}"),
            other => panic!("{place:?}: {other:?}"),
        };
        outside(j.import.send(99, b"ab"));
        outside(j.import.send(u64::MAX, b"ab"));
        outside(j.import.send_with(0, b"x", SendOptions::counter(96)));
        outside(j.import.fetch(50, &mut [0; 51]));
        outside(j.import.send(0, buffer.range(0..101)));
        outside(j.import.fetch(1, buffer.range(0..100)));
        outside(j.import.fetch_add(96, 1).map(drop));
        let error = j.import.send(0, buffer.range(150..201)).unwrap_err();
        assert!(matches!(error, TransferError::BufferOutOfBounds { size: 200, .. }), "{error}");
        assert!(j.export.read(99, &mut [0; 2]).is_err() && j.export.word(97).is_err());
        j.import.send(99, b"a").unwrap();
    }
}

pub(crate) fn missing_rights_are_named(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 64);
        let home = nodes.name(0);
        let with = |rights| j.user.import_id(j.export.id()).node(&home).rights(rights).open().unwrap();
        let needs = |result: Result<(), TransferError>, right| match result {
            Err(TransferError::NoRight { needed, .. }) => assert_eq!(needed, right),
            other => panic!("{place:?}: {other:?}"),
        };
        let both = with(Rights::READ | Rights::WRITE);
        let said = both.fetch_add(0, 1).unwrap_err().to_string();
        assert!(said.contains("import it with the rights read, write and atomic"), "{said}");
        let all = with(Rights::READ | Rights::WRITE | Rights::ATOMIC);
        all.send(0, &[0; 8]).unwrap();
        assert_eq!(all.fetch_add(0, 1), Ok(0), "{place:?}: who does what it says has all that it needs");
        let reader = with(Rights::READ);
        needs(reader.send(0, b"x"), Rights::WRITE);
        needs(reader.send_with(0, b"x", SendOptions::notify()), Rights::WRITE);
        needs(reader.fetch_add(0, 1).map(drop), Rights::ATOMIC);
        let writer = with(Rights::WRITE);
        needs(writer.fetch(0, &mut [0]), Rights::READ);
        writer.send(0, b"x").unwrap();
        with(Rights::ATOMIC).fetch_add(8, 1).unwrap();
    }
}

pub(crate) fn misaligned_words_are_refused(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 64);
        for result in [j.import.fetch_add(4, 1), j.import.swap(1, 1), j.import.compare_swap(7, 0, 1)] {
            assert!(matches!(result, Err(TransferError::Misaligned { .. })), "{place:?}: {result:?}");
        }
        assert!(j.export.word(4).is_err());
    }
}

pub(crate) fn buffers_of_other_sessions_are_refused(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Mapped, 64);
    let foreign = j.owner.buffer(64).unwrap();
    assert!(matches!(j.import.send(0, foreign.range(0..1)), Err(TransferError::ForeignBuffer { .. })));
}

pub(crate) fn impossible_exports_are_refused(nodes: &dyn Nodes) {
    let session = nodes.attach(0);
    let message = |len| session.export(len).name("x").create().unwrap_err().to_string();
    assert!(message(0).contains("between 1 and"), "{}", message(0));
    assert!(message(1 << 45).contains("available"), "{}", message(1 << 45));
    assert!(session.export_memory(Vec::new()).create().unwrap_err().to_string().contains("empty"));
    let long = "n".repeat(300);
    assert!(session.export(64).name(&long).create().is_err());
    assert!(session.export(64).rights(Rights::NONE).create().is_err());
    assert!(session.import("x").rights(Rights::NONE).open().is_err());
}

pub(crate) fn an_unknown_or_silent_node_is_an_error_in_time(nodes: &dyn Nodes) {
    let session = nodes.attach(0);
    let error = session.import("x").node("nowhere").open().unwrap_err();
    assert_eq!(error.refusal(), Some(RefusalCode::UnknownNode), "{error}");
    // A port that swallows everything: bound, never read.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let start = Instant::now();
    let error = session.import("x").node(&address).wait(Duration::from_millis(500)).open().unwrap_err();
    let kind = error.refusal();
    assert!(matches!(kind, Some(RefusalCode::TimedOut | RefusalCode::Unreachable)), "{error}");
    assert!(session.ping(&address, Duration::from_millis(300)).is_err());
    assert!(start.elapsed() < LONG);
}

pub(crate) fn when_the_node_ends_calls_and_waits_end(nodes: &dyn Nodes) {
    let mapped = join_with(nodes, Place::Mapped, 4096, |e| e.notify(true));
    let served = join(nodes, Place::Engine, 4096);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| mapped.export.wait_notification_by(mapped.owner.deadline(2 * LONG)));
        std::thread::sleep(SHORT);
        if !nodes.stop(0) {
            mapped.owner.leave();
        }
        let ended = waiting.join().unwrap();
        assert!(matches!(ended, Err(WaitError::NodeGone { .. })), "a blocked wait ends too: {ended:?}");
    });
    if mapped.user.is_alive() && !nodes.stop(0) {
        return;
    }
    for j in [mapped, served] {
        eventually("the session being told", || !j.owner.is_alive() && !j.user.is_alive());
        let error = j.import.send(0, b"x").unwrap_err();
        assert!(matches!(error, TransferError::NodeGone { .. }), "{error}");
        assert!(j.import.fetch(0, &mut [0]).is_err());
        assert!(matches!(j.export.wait_word(0, |w| w == 1), Err(WaitError::NodeGone { .. })));
        assert!(matches!(j.owner.node_info(false), Err(CallError::NodeGone { .. })));
        let error = j.owner.export(64).create().unwrap_err();
        assert!(error.to_string().contains("start it again"), "{error}");
    }
}

pub(crate) fn when_the_other_node_ends_imports_are_told(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Network, 1 << 20);
    let waiting = j.user.import("never").node(&nodes.name(0));
    if !nodes.stop(0) {
        return;
    }
    let start = Instant::now();
    eventually("the import being told", || j.import.send(0, b"x").and_then(|()| j.import.flush()).is_err());
    assert!(start.elapsed() < LONG / 2);
    let error = j.import.send(0, b"x").and_then(|()| j.import.flush()).unwrap_err();
    let known = matches!(error, TransferError::NodeUnreachable { .. } | TransferError::Engine { .. });
    assert!(known || matches!(error, TransferError::NodeRestarted { .. }), "{error}");
    assert!(waiting.wait(SHORT).open().is_err());
    // The own node serves on.
    let local = j.user.export(64).name("local").create().unwrap();
    j.user.import("local").open().unwrap().send(0, b"alive").unwrap();
    drop(local);
}
