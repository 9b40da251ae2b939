//! Two engines and what they say to each other: the plain course of things, in both modes.

mod common;

use common::{NOTIFICATION_WORD, World, addr, export_spec, plain_send};
use std::time::Duration;
use vmmc_nic::*;

/// A pair, an export of `len` bytes on node 1, its import on node 0.
struct Setup {
    world: World,
    sender: ProcessId,
    receiver: ProcessId,
    target: RegionRef,
    export: ExportId,
    import: ImportId,
}

fn setup(seed: u64, sealed: bool, len: usize) -> Setup {
    let mut world = World::pair(seed, sealed);
    let (sender, receiver) = (world.process(0), world.process(1));
    let target = world.region(1, receiver, 1, len);
    let export = world.export(1, target, "buffer");
    let grant = world.import(0, sender, 1, "buffer");
    assert_eq!((grant.export, grant.len, grant.rights), (export, len as u64, Rights::ALL));
    Setup { world, sender, receiver, target, export, import: grant.import }
}

#[test]
fn a_small_send_arrives_and_completes() {
    for sealed in [false, true] {
        let mut s = setup(1, sealed, 64);
        s.world.send(0, s.sender, s.import, 8, b"hello", 7);
        assert_eq!(s.world.completion(0, 7), Ok(5));
        assert_eq!(&s.world.bytes(1, s.target)[8..13], b"hello");
    }
}

#[test]
fn a_short_send_goes_past_the_queues_while_nothing_stands_before_it() {
    for sealed in [false, true] {
        let mut s = setup(4, sealed, 64);
        s.world.run_to_quiescence();
        let to = (s.import, 8);
        assert!(s.world.try_send_inline(0, s.sender, to, b"at once"));
        s.world.run_to_quiescence();
        assert_eq!(&s.world.bytes(1, s.target)[8..15], b"at once");
        assert_eq!(s.world.nodes[0].engine.stats().sends, 1, "it was acknowledged");
        // What is wrong is left to the queue, where it gets its answer; so is what comes after
        // something queued.
        assert!(!s.world.try_send_inline(0, s.sender, (s.import, 60), b"too long"));
        let other = s.world.process(0);
        assert!(!s.world.try_send_inline(0, other, to, b"not his"));
        s.world.send(0, s.sender, s.import, 8, b"queued", 7);
        assert!(!s.world.try_send_inline(0, s.sender, to, b"after"));
        assert_eq!(s.world.completion(0, 7), Ok(6));
        // A datagram that is lost is sent again.
        s.world.faults.loss = 1_000;
        assert!(s.world.try_send_inline(0, s.sender, to, b"lost"));
        s.world.faults.loss = 0;
        s.world.run_to_quiescence();
        assert_eq!(&s.world.bytes(1, s.target)[8..14], b"losted");
        assert!(s.world.nodes[0].engine.stats().retransmits > 0);
        // If others follow, they reveal that it is missing before a timeout does.
        let timeouts = s.world.nodes[0].engine.stats().timeouts;
        s.world.faults.loss = 1_000;
        assert!(s.world.try_send_inline(0, s.sender, (s.import, 32), b"missing"));
        s.world.faults.loss = 0;
        for number in 0..6 {
            assert!(s.world.try_send_inline(0, s.sender, (s.import, 40), &[number]));
        }
        s.world.run_to_quiescence();
        assert_eq!(&s.world.bytes(1, s.target)[32..41], b"missing\0\x05");
        assert_eq!(s.world.nodes[0].engine.stats().timeouts, timeouts);
        // Until the window is full.
        let mut number = 0u64;
        while s.world.try_send_inline(0, s.sender, (s.import, 0), &number.to_le_bytes()) {
            number += 1;
            assert!(number < 100_000, "the window has no end");
        }
        assert!(number > 2);
        s.world.run_to_quiescence();
        assert_eq!(s.world.bytes(1, s.target)[..8], (number - 1).to_le_bytes());
        assert_eq!(s.world.nodes[0].engine.stats().sends, 10 + number);
        assert!(s.world.try_send_inline(0, s.sender, (s.import, 0), b"room"));
        // After the end of the export it is an error like any other.
        let now = s.world.now;
        s.world.nodes[1].engine.unexport(now, s.receiver, s.export).expect("it is there");
        s.world.run_to_quiescence();
        assert!(!s.world.try_send_inline(0, s.sender, (s.import, 0), b"late"));
    }
}

#[test]
fn a_request_goes_past_the_queues_while_nothing_stands_before_it() {
    for sealed in [false, true] {
        let mut s = setup(4, sealed, 64);
        s.world.run_to_quiescence();
        let into = s.world.region(0, s.sender, 9, 64);
        let fetch = |cookie, offset| Command::Fetch {
            import: s.import,
            offset,
            len: 8,
            region: into.region,
            region_offset: 16,
            cookie: Cookie(cookie),
        };
        let add =
            |cookie| Command::Atomic { import: s.import, offset: 8, op: AtomicOp::FetchAdd(5), cookie: Cookie(cookie) };
        s.world.send(0, s.sender, s.import, 8, &40u64.to_le_bytes(), 1);
        assert!(!s.world.do_now(0, s.sender, fetch(2, 8)), "a send is queued before it");
        assert_eq!(s.world.completion(0, 1), Ok(8));
        assert!(s.world.do_now(0, s.sender, add(3)));
        assert!(s.world.do_now(0, s.sender, fetch(4, 8)));
        assert_eq!(s.world.completion(0, 3), Ok(40));
        assert_eq!(s.world.completion(0, 4), Ok(8));
        assert_eq!(s.world.bytes(0, into)[16..24], 45u64.to_le_bytes(), "in the order asked");
        // One that is lost is asked again, and done once.
        s.world.faults.loss = 1_000;
        assert!(s.world.do_now(0, s.sender, add(5)));
        s.world.faults.loss = 0;
        assert_eq!(s.world.completion(0, 5), Ok(45));
        assert_eq!(s.world.bytes(1, s.target)[8..16], 50u64.to_le_bytes());
        // What is wrong is left to the queue, where it gets its answer.
        assert!(!s.world.do_now(0, s.sender, fetch(6, 60)));
        // No more are asked for at once than the share of one process of what the peer answers at
        // once; the others wait in the queue.
        let mut asked = 10u64;
        while s.world.do_now(0, s.sender, fetch(asked, 0)) {
            asked += 1;
            assert!(asked < 10_000, "there is no bound");
        }
        assert_eq!(asked - 10, limits::INBOUND_REQUESTS_MAX as u64 / 2);
        assert!(s.world.post(0, s.sender, fetch(asked, 0)).is_ok());
        for cookie in 10..=asked {
            assert_eq!(s.world.completion(0, cookie), Ok(8), "request {cookie} of {asked}");
        }
        // After the end of the export it is an error like any other.
        let now = s.world.now;
        s.world.nodes[1].engine.unexport(now, s.receiver, s.export).expect("it is there");
        assert!(s.world.do_now(0, s.sender, fetch(7, 0)), "this side does not know yet");
        assert_eq!(s.world.completion(0, 7), Err(OpError::Revoked));
        s.world.run_to_quiescence();
        assert!(!s.world.do_now(0, s.sender, add(8)));
        assert_eq!(s.world.nodes[0].engine.processes().map(|process| process.outstanding_ops).sum::<usize>(), 0);
    }
}

/// As [`setup`], with an import of the receiver too, of memory that the sender exports.
fn setup_both_ways(sealed: bool) -> (Setup, RegionRef, ImportId) {
    let mut s = setup(2, sealed, 64);
    let back = s.world.region(0, s.sender, 1, 64);
    s.world.export(0, back, "back");
    let answers = s.world.import(1, s.receiver, 0, "back").import;
    s.world.run_to_quiescence();
    (s, back, answers)
}

#[test]
fn messages_that_follow_each_other_closely_share_acknowledgements() {
    for sealed in [false, true] {
        let (mut s, _, answers) = setup_both_ways(sealed);
        let mut sizes = [Vec::new(), Vec::new()];
        let mut turn = |world: &mut World, from: usize, after: u64| {
            world.now = world.now + Duration::from_micros(after);
            let (process, import) = if from == 0 { (s.sender, s.import) } else { (s.receiver, answers) };
            let (now, mut buf) = (world.now, [0; 1500]);
            let node = &mut world.nodes[from];
            let sent =
                node.engine.try_send_inline(now, process, plain_send(import, 0, b"a word"), &mut buf, |_, _, _| {});
            let (at, len) = (node.addrs[0], sent.expect("nothing stands before it").len);
            world.deliver(1 - from, at, &mut buf[..len]);
            sizes[from].push(len);
        };
        let every = u64::from(limits::ACK_ALONG_PACKETS);
        let rounds = 3 * every + 1;
        for _ in 0..rounds {
            turn(&mut s.world, 0, 2);
            turn(&mut s.world, 1, 2);
        }
        // This one comes so long after the last that nobody can tell when the next will.
        turn(&mut s.world, 0, limits::ACK_ALONG_AFTER.as_micros() as u64);
        let alone = sizes[0][0];
        let along = |sizes: &[usize]| sizes.iter().map(|&size| size > alone).collect::<Vec<_>>();
        let answered = (0..=rounds).map(|number| number > 0 && number % every == 0).collect::<Vec<_>>();
        assert_eq!(along(&sizes[1]), answered[1..]);
        assert_eq!(along(&sizes[0]), [&answered[..rounds as usize], &[true]].concat());
        // What nothing follows is acknowledged by itself.
        s.world.run_to_quiescence();
        let stats = [0, 1].map(|node| s.world.nodes[node].engine.stats());
        assert_eq!(stats.map(|stats| (stats.sends, stats.retransmits)), [(rounds + 1, 0), (rounds, 0)]);
    }
}

#[test]
fn nobody_can_change_a_bit_of_a_packet_under_way() {
    for sealed in [false, true] {
        let mut s = setup(2, sealed, 64);
        s.world.run_to_quiescence();
        let (mut whole, node) = (vec![0; 1500], &mut s.world.nodes[0]);
        let send = plain_send(s.import, 0, b"text");
        let sent = node.engine.try_send_inline(s.world.now, s.sender, send, &mut whole, |_, _, _| {});
        let (len, from) = (sent.expect("nothing stands before it").len, node.addrs[0]);
        whole.truncate(len);
        for bit in 0..len * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            s.world.deliver(1, from, &mut damaged);
            assert_eq!(s.world.bytes(1, s.target), [0; 64], "bit {bit}, sealed: {sealed}");
        }
        s.world.deliver(1, from, &mut whole);
        assert_eq!(&s.world.bytes(1, s.target)[..4], b"text", "none of them has ended the session");
    }
}

#[test]
fn an_answer_takes_along_an_acknowledgement_unless_another_one_follows_soon() {
    // Sizes of an answer that goes out so long after the question, at once or by way of the queues;
    // nothing is settled in between.
    let answer = |sealed: bool, at_once: bool, after: Duration| {
        let (mut s, _, answers) = setup_both_ways(sealed);
        let (mut buf, send) = ([0; 1500], plain_send(answers, 0, b"answer"));
        let asker = &mut s.world.nodes[0];
        let question = plain_send(s.import, 0, b"question");
        let sent = asker.engine.try_send_inline(s.world.now, s.sender, question, &mut buf, |_, _, _| {});
        let (len, at) = (sent.expect("nothing stands before it").len, asker.addrs[0]);
        s.world.deliver(1, at, &mut buf[..len]);
        let now = s.world.now + after;
        let node = &mut s.world.nodes[1];
        let sent = if at_once {
            node.engine.try_send_inline(now, s.receiver, send, &mut buf, |_, _, _| {})
        } else {
            node.engine.post(now, s.receiver, send, &mut node.memory).expect("room");
            node.engine.poll_transmit(now, &mut buf, &mut node.memory)
        };
        let (len, at) = (sent.expect("nothing stands before it").len, node.addrs[0]);
        s.world.now = now;
        s.world.deliver(0, at, &mut buf[..len]);
        (len, s.world.nodes[0].engine.stats().sends)
    };
    let (soon, later) = (Duration::from_micros(2), limits::ACK_ALONG_AFTER);
    for sealed in [false, true] {
        let (alone, acknowledged) = answer(sealed, true, soon);
        assert_eq!(acknowledged, 0, "left to a later one");
        for (at_once, after) in [(true, later), (false, soon), (false, later)] {
            let (len, acknowledged) = answer(sealed, at_once, after);
            assert!(len > alone, "{len} bytes, {alone} without an acknowledgement");
            assert_eq!(acknowledged, 1);
        }
    }
}

#[test]
fn a_send_from_another_address_teaches_a_path_that_answers_unless_it_is_an_old_packet() {
    for sealed in [false, true] {
        let (mut s, ..) = setup_both_ways(sealed);
        let [old, new] = [0, 1].map(|_| {
            let (node, mut buf) = (&mut s.world.nodes[0], [0; 1500]);
            let send = plain_send(s.import, 0, b"a word");
            let sent = node.engine.try_send_inline(s.world.now, s.sender, send, &mut buf, |_, _, _| {});
            buf[..sent.expect("nothing stands before it").len].to_vec()
        });
        let paths = |world: &World| {
            let peer = world.nodes[1].engine.peers().next().expect("one peer");
            peer.paths.iter().map(|path| path.addr).collect::<Vec<_>>()
        };
        let before = paths(&s.world);
        let [later, earlier, nowhere] = [7, 8, 9].map(|path| addr(0, path));
        s.world.nodes[0].addrs.extend([later, earlier]);
        // What is held for the gap, and what closes it: only the newest packet shows where the peer
        // is.
        s.world.deliver(1, later, &mut new.clone());
        s.world.deliver(1, earlier, &mut old.clone());
        assert_eq!(paths(&s.world), before, "anybody could have sent it on from there");
        s.world.run_to_quiescence();
        assert_eq!(paths(&s.world), [&before[..], &[later]].concat());
        let mut third = [0; 1500];
        let send = plain_send(s.import, 0, b"a word");
        let sent = s.world.nodes[0].engine.try_send_inline(s.world.now, s.sender, send, &mut third, |_, _, _| {});
        s.world.deliver(1, earlier, &mut third[..sent.expect("nothing stands before it").len]);
        s.world.run_to_quiescence();
        assert_eq!(paths(&s.world), [&before[..], &[later, earlier]].concat());
        let mut fourth = [0; 1500];
        let sent = s.world.nodes[0].engine.try_send_inline(s.world.now, s.sender, send, &mut fourth, |_, _, _| {});
        s.world.deliver(1, nowhere, &mut fourth[..sent.expect("nothing stands before it").len]);
        s.world.run_to_quiescence();
        assert_eq!(paths(&s.world), [&before[..], &[later, earlier]].concat());
    }
}

#[test]
fn a_large_send_arrives_whole_with_one_notification_after_it() {
    for sealed in [false, true] {
        let len = 3_000_003;
        let mut s = setup(2, sealed, len);
        let source = s.world.region(0, s.sender, 5, len);
        s.world.fill(0, source, |index| (index * 7 / 3) as u8);
        s.world.send_region(0, source, s.import, len as u64, 1);
        let note = s.world.wait_for(1, |event| matches!(event, Event::Notification { .. }));
        let data = s.world.bytes(0, source).to_vec();
        assert_eq!(s.world.bytes(1, s.target), data);
        let last_word = u64::from_le_bytes(data[len - 8..].try_into().expect("8 bytes"));
        let (process, export, len) = (s.receiver, s.export, len as u64);
        let Event::Notification { from, .. } = note else { unreachable!("it was waited for") };
        assert_eq!((from.process, from.import, from.is_local()), (s.sender, s.import, false));
        let name = s.world.nodes[1].engine.session_name(from.session).cloned();
        assert_eq!(name.as_ref(), Some(s.world.nodes[0].engine.name()));
        assert_eq!(s.world.nodes[1].engine.session_name(from.session + 1), None);
        let word = NOTIFICATION_WORD;
        assert_eq!(note, Event::Notification { process, export, offset: 0, len, last_word, word, from });
        assert_eq!(s.world.completion(0, 1), Ok(len));
    }
}

#[test]
fn a_fetch_sees_what_was_sent_before_it() {
    let mut s = setup(3, true, 100_000);
    let source = s.world.region(0, s.sender, 5, 100_000);
    let back = s.world.region(0, s.sender, 6, 100_000);
    s.world.fill(0, source, |index| (index * 13) as u8);
    s.world.send_region(0, source, s.import, 100_000, 1);
    let fetch = Command::Fetch {
        import: s.import,
        offset: 0,
        len: 100_000,
        region: back.region,
        region_offset: 0,
        cookie: Cookie(2),
    };
    s.world.post(0, s.sender, fetch).expect("room");
    assert_eq!(s.world.completion(0, 2), Ok(100_000));
    assert_eq!(s.world.bytes(0, back), s.world.bytes(0, source));
}

#[test]
fn atomics_return_the_old_value_and_happen_once() {
    let mut s = setup(4, true, 64);
    for (cookie, (op, old)) in [
        (AtomicOp::FetchAdd(5), 0),
        (AtomicOp::FetchAdd(2), 5),
        (AtomicOp::CompareSwap { expected: 7, desired: 100 }, 7),
        (AtomicOp::CompareSwap { expected: 7, desired: 200 }, 100),
        (AtomicOp::Swap(1), 100),
    ]
    .into_iter()
    .enumerate()
    {
        let cookie = cookie as u64;
        let command = Command::Atomic { import: s.import, offset: 16, op, cookie: Cookie(cookie) };
        s.world.post(0, s.sender, command).expect("room");
        assert_eq!(s.world.completion(0, cookie), Ok(old));
    }
    let misaligned = Command::Atomic { import: s.import, offset: 17, op: AtomicOp::Swap(0), cookie: Cookie(9) };
    s.world.post(0, s.sender, misaligned).expect("room");
    assert_eq!(s.world.completion(0, 9), Err(OpError::Misaligned { offset: 17, align: 8 }));
}

#[test]
fn a_counter_counts_sends_and_a_flush_waits_for_them() {
    let mut s = setup(5, true, 4_096);
    for index in 0..100u64 {
        let data = index.to_le_bytes();
        let command = Command::Send {
            import: s.import,
            offset: 8 + index * 8,
            source: Source::Inline(&data),
            notify: None,
            counter: Some(0),
            completion: None,
        };
        s.world.post(0, s.sender, command).expect("room");
    }
    s.world.post(0, s.sender, Command::Flush { import: s.import, cookie: Cookie(1) }).expect("room");
    assert_eq!(s.world.completion(0, 1), Ok(0));
    let bytes = s.world.bytes(1, s.target);
    assert_eq!(bytes[..8], 100u64.to_le_bytes());
    assert!((0..100u64).all(|index| bytes[8 + index as usize * 8] == index as u8));
}

#[test]
fn small_sends_share_packets() {
    let mut s = setup(6, true, 4_096);
    s.world.run_to_quiescence();
    let before = s.world.nodes[0].engine.stats().packets_out;
    for index in 0..20 {
        s.world.send(0, s.sender, s.import, index * 8, &[1; 8], index);
    }
    s.world.run_to_quiescence();
    let packets = s.world.nodes[0].engine.stats().packets_out - before;
    assert!(packets <= 3, "{packets} packets for 20 sends of 8 bytes");
}

#[test]
fn wrong_commands_are_told_why() {
    let mut s = setup(7, false, 64);
    s.world.send(0, s.sender, s.import, 60, &[1; 8], 1);
    assert_eq!(s.world.completion(0, 1), Err(OpError::OutOfBounds { offset: 60, len: 8, size: 64 }));
    s.world.send(0, s.sender, s.import, u64::MAX, &[1; 8], 2);
    assert!(matches!(s.world.completion(0, 2), Err(OpError::OutOfBounds { .. })));
    s.world.send(0, s.sender, ImportId { slot: 9, generation: 9 }, 0, &[1; 8], 3);
    assert_eq!(s.world.completion(0, 3), Err(OpError::StaleImport));
    let long = [0; INLINE_BYTES_MAX + 1];
    let mut t = setup(7, false, 4_096);
    t.world.send(0, t.sender, t.import, 0, &long, 4);
    assert_eq!(t.world.completion(0, 4), Err(OpError::InlineTooLong { len: 217, max: 216 }));
}

#[test]
fn an_import_needs_right_and_permission() {
    let mut world = World::pair(8, true);
    let (ours, owner) = (world.process(0), world.process(1));
    let memory = world.region(1, owner, 1, 64);
    let now = world.now;
    let mut spec = export_spec(memory.region, 64, "read-only");
    spec.rights = Rights::READ;
    world.nodes[1].engine.export(now, owner, spec).expect("exported");
    world.start_import(0, ours, 1, "read-only", false);
    let (wanted, allowed) = (Rights::ALL, Rights::READ);
    assert_eq!(world.import_answer(0), Err(ImportError::NoRight { wanted, allowed }));
    world.start_import(0, ours, 1, "nothing", false);
    assert_eq!(world.import_answer(0), Err(ImportError::NoSuchExport));
    let stranger = world.nodes[0].engine.attach(4).expect("room");
    world.start_import(0, stranger, 1, "read-only", false);
    assert_eq!(world.import_answer(0), Err(ImportError::NotPermitted { uid: 4 }));
}

#[test]
fn an_import_can_wait_for_its_export() {
    let mut world = World::pair(9, true);
    let (ours, owner) = (world.process(0), world.process(1));
    world.start_import(0, ours, 1, "later", true);
    world.run_for(Duration::from_secs(8));
    let memory = world.region(1, owner, 1, 64);
    world.export(1, memory, "later");
    assert!(world.import_answer(0).is_ok());
    world.start_import(0, ours, 1, "never", true);
    assert!(matches!(world.import_answer(0), Err(ImportError::TimedOut { waited_ms: 30_000 })));
    let memory = world.region(1, owner, 2, 64);
    world.export(1, memory, "never");
    world.run_to_quiescence();
    assert_eq!(world.nodes[1].engine.exports().map(|export| export.remote_importers).sum::<usize>(), 1);
}

#[test]
fn revocation_is_told_and_nothing_arrives_after_it() {
    for owner_died in [false, true] {
        let mut s = setup(10, true, 1_000_000);
        let source = s.world.region(0, s.sender, 5, 1_000_000);
        s.world.fill(0, source, |_| 7);
        s.world.send_region(0, source, s.import, 1_000_000, 1);
        s.world.run_for(Duration::from_micros(200));
        let now = s.world.now;
        if owner_died {
            s.world.nodes[1].engine.detach(now, s.receiver);
        } else {
            s.world.nodes[1].engine.unexport(now, s.receiver, s.export).expect("ours");
        }
        let before = s.world.bytes(1, s.target).to_vec();
        assert!(before.contains(&0), "the transfer was not over");
        assert!(s.world.completion(0, 1).is_err());
        let why = if owner_died { OpError::OwnerDied } else { OpError::Revoked };
        let broken = Event::ImportBroken { process: s.sender, import: s.import, why };
        s.world.wait_for(0, |event| *event == broken);
        s.world.run_to_quiescence();
        assert_eq!(s.world.bytes(1, s.target), before);
        s.world.send(0, s.sender, s.import, 0, &[1], 2);
        assert_eq!(s.world.completion(0, 2), Err(why));
    }
}

#[test]
fn an_importer_that_dies_leaves_nothing_behind() {
    let mut s = setup(11, true, 1_000_000);
    let source = s.world.region(0, s.sender, 5, 1_000_000);
    s.world.send_region(0, source, s.import, 1_000_000, 1);
    let now = s.world.now;
    s.world.nodes[0].engine.detach(now, s.sender);
    s.world.run_to_quiescence();
    assert_eq!(s.world.nodes[1].engine.exports().map(|export| export.remote_importers).sum::<usize>(), 0);
    assert_eq!(s.world.nodes[0].engine.processes().count(), 0);
    let info = s.world.nodes[0].engine.peers().next().expect("one peer");
    assert_eq!((info.in_flight_bytes, info.queued_ops), (0, 0));
    let again = s.world.process(0);
    assert_ne!(again, s.sender);
    assert!(!s.world.nodes[0].events.iter().any(|event| matches!(event, Event::Completion { .. })));
}

#[test]
fn an_import_given_back_still_delivers_what_was_sent() {
    let mut s = setup(12, true, 1_000_000);
    let source = s.world.region(0, s.sender, 5, 1_000_000);
    s.world.fill(0, source, |_| 7);
    s.world.send_region(0, source, s.import, 1_000_000, 1);
    let now = s.world.now;
    s.world.nodes[0].engine.unimport(now, s.sender, s.import).expect("held");
    assert_eq!(s.world.completion(0, 1), Ok(1_000_000));
    assert!(s.world.bytes(1, s.target).iter().all(|byte| *byte == 7));
    s.world.run_to_quiescence();
    assert_eq!(s.world.nodes[1].engine.exports().map(|export| export.remote_importers).sum::<usize>(), 0);
    assert!(s.world.nodes[0].engine.unimport(s.world.now, s.sender, s.import).is_err());
}

/// A redirection of `(offset, len)` of an export to the start of a region.
fn redirect(export: ExportId, (offset, len): (u64, u64), to: RegionRef, cookie: u64) -> Redirect {
    Redirect { export, offset, len, to: to.region, to_offset: 0, cookie: Cookie(cookie) }
}

#[test]
fn incoming_data_goes_where_the_receiver_redirects_it() {
    let mut world = World::pair(13, true);
    let (ours, owner) = (world.process(0), world.process(1));
    let memory = world.region(1, owner, 1, 1_000);
    let place = world.region(1, owner, 2, 1_000);
    let now = world.now;
    let mut spec = export_spec(memory.region, 1_000, "redirectable");
    spec.redirectable = true;
    let export = world.nodes[1].engine.export(now, owner, spec).expect("exported");
    let import = world.import(0, ours, 1, "redirectable").import;
    world.send(0, ours, import, 0, &[1; 200], 1);
    assert!(world.completion(0, 1).is_ok());
    let common::Node { engine, memory: dma, .. } = &mut world.nodes[1];
    let wanted = redirect(export, (100, 300), place, 5);
    assert!(engine.redirect(now, owner, wanted, dma).expect("posted").is_some(), "so little is copied at once");
    assert!(!engine.redirect_report(owner, wanted.at()).expect("there").complete);
    for index in 1..3 {
        world.send(0, ours, import, index * 200, &[index as u8 + 1; 200], 1 + index);
    }
    let done = world.wait_for(1, |event| matches!(event, Event::RedirectDone { .. }));
    let Event::RedirectDone { report, cookie, export: of, .. } = done else { unreachable!() };
    assert_eq!((cookie, of), (Cookie(5), export));
    assert_eq!(report.copied, [ByteRange { start: 100, end: 200 }]);
    assert_eq!(report.redirected, [ByteRange { start: 200, end: 400 }]);
    world.run_to_quiescence();
    let bytes = world.bytes(1, place);
    assert!(bytes[..100] == [1; 100] && bytes[100..300] == [2; 200] && bytes[300] == 0);
    assert!(world.bytes(1, memory)[400..600] == [3; 200]);
}

/// Counts what is copied from memory to memory.
struct Counted<'a>(&'a mut dyn Dma, u64);

impl Dma for Counted<'_> {
    fn deposit(&mut self, to: RegionRef, offset: u64, data: &[u8]) {
        self.0.deposit(to, offset, data);
    }

    fn gather(&mut self, from: RegionRef, offset: u64, into: &mut [u8]) {
        self.0.gather(from, offset, into);
    }

    fn copy(&mut self, from: RegionRef, from_offset: u64, to: RegionRef, to_offset: u64, len: u64) {
        self.1 += len;
        self.0.copy(from, from_offset, to, to_offset, len);
    }

    fn atomic(&mut self, to: RegionRef, offset: u64, op: AtomicOp) -> u64 {
        self.0.atomic(to, offset, op)
    }
}

#[test]
fn a_redirection_of_much_that_has_arrived_copies_a_piece_at_a_time() {
    let mut world = World::pair(17, true);
    let (ours, owner) = (world.process(0), world.process(1));
    let len: u64 = 5 << 20;
    let memory = world.region(1, owner, 1, len as usize);
    let place = world.region(1, owner, 2, len as usize);
    let source = world.region(0, ours, 5, len as usize);
    world.fill(0, source, |index| (index / 1_000) as u8);
    let now = world.now;
    let mut spec = export_spec(memory.region, len, "redirectable");
    spec.redirectable = true;
    let export = world.nodes[1].engine.export(now, owner, spec).expect("exported");
    let import = world.import(0, ours, 1, "redirectable").import;
    world.send_region(0, source, import, len, 1);
    assert_eq!(world.completion(0, 1), Ok(len));
    let common::Node { engine, memory: dma, .. } = &mut world.nodes[1];
    let mut counted = Counted(dma, 0);
    let wanted = redirect(export, (0, len), place, 5);
    let mut report = engine.redirect(now, owner, wanted, &mut counted).expect("posted");
    let mut steps = 1;
    while report.is_none() {
        assert!(counted.1 <= steps * limits::LOCAL_PIECE_BYTES, "{} bytes in {steps} steps", counted.1);
        report = engine.advance_redirect(now, owner, wanted.at(), &mut counted).expect("there");
        steps += 1;
    }
    assert_eq!((steps, counted.1), (5, len));
    assert!(report.expect("seen").complete && engine.redirect_report(owner, wanted.at()).is_err());
    world.wait_for(1, |event| matches!(event, Event::RedirectDone { .. }));
    assert_eq!(world.bytes(1, place), world.bytes(0, source));
}

#[test]
fn redirections_of_others_and_more_than_the_bounds_are_refused() {
    let mut world = World::pair(19, false);
    let (owner, other) = (world.process(1), world.process(1));
    let count = limits::REDIRECTS_PER_EXPORT_MAX as u64;
    let memory = world.region(1, owner, 1, 2 * count as usize);
    let place = world.region(1, owner, 2, 10);
    let now = world.now;
    let exports: Vec<ExportId> = (0..6)
        .map(|number| {
            let mut spec = export_spec(memory.region, 2 * count, &format!("e{number}"));
            spec.redirectable = number < 5;
            world.nodes[1].engine.export(now, owner, spec).expect("exported")
        })
        .collect();
    let common::Node { engine, memory: dma, .. } = &mut world.nodes[1];
    let mut post = |by, export, range| engine.redirect(now, by, redirect(export, range, place, 5), dma);
    assert_eq!(post(other, exports[0], (0, 1)), Err(RedirectError::NoSuchExport { export: exports[0] }));
    assert_eq!(post(owner, exports[5], (0, 1)), Err(RedirectError::NotRedirectable { export: exports[5] }));
    for (offset, len) in [(0, 0), (2 * count, 1), (0, 2 * count + 1), (u64::MAX, 2)] {
        let size = 2 * count;
        assert_eq!(post(owner, exports[0], (offset, len)), Err(RedirectError::OutOfBounds { offset, len, size }));
    }
    for export in &exports[..4] {
        (0..count).for_each(|at| assert!(post(owner, *export, (2 * at, 2)).is_ok()));
    }
    let max = limits::REDIRECTS_PER_PROCESS_MAX as u64;
    assert_eq!(post(owner, exports[4], (0, 1)), Err(RedirectError::ProcessFull { max }));
    let at = redirect(exports[1], (2, 2), place, 5).at();
    assert_eq!(engine.cancel_redirect(now, other, at), Err(RedirectError::NoSuchExport { export: exports[1] }));
    assert!(engine.cancel_redirect(now, owner, at).is_ok());
    engine.unexport(now, owner, exports[0]).expect("exported");
    assert!(engine.cancel_redirect(now, owner, redirect(exports[0], (0, 2), place, 5).at()).is_err());
    for at in 0..=count {
        let posted = engine.redirect(now, owner, redirect(exports[4], (at, 1), place, 5), dma);
        assert_eq!(posted.is_ok(), at < count, "the ones of the export that ended made room");
    }
    assert!(engine.redirect(now, owner, redirect(exports[1], (2, 2), place, 5), dma).is_ok());
}

#[test]
fn a_copy_over_thousands_of_redirections_goes_in_steps() {
    let mut world = World::new(21);
    world.add(|_| {});
    let (ours, owner) = (world.process(0), world.process(0));
    let count = limits::REDIRECTS_PER_EXPORT_MAX as u64;
    let len = 16 * count;
    let memory = world.region(0, owner, 1, len as usize);
    let place = world.region(0, owner, 2, len as usize);
    let source = world.region(0, ours, 5, len as usize);
    world.fill(0, source, |index| (index / 100) as u8);
    let now = world.now;
    let mut spec = export_spec(memory.region, len, "near");
    spec.redirectable = true;
    let export = world.nodes[0].engine.export(now, owner, spec).expect("exported");
    let import = world.import(0, ours, 0, "near").import;
    let common::Node { engine, memory: dma, .. } = &mut world.nodes[0];
    for at in 0..count {
        let wanted = Redirect { to_offset: 16 * at, ..redirect(export, (16 * at, 16), place, at) };
        assert!(engine.redirect(now, owner, wanted, dma).is_ok());
    }
    let from = Source::Region { region: source.region, offset: 0, len };
    let send = Command::Send { import, offset: 0, source: from, notify: None, counter: None, completion: None };
    engine.post(now, ours, send, dma).expect("room");
    let mut done = 0;
    loop {
        let mut step = 0;
        while let Some(event) = engine.poll_event() {
            step += u64::from(matches!(event, Event::RedirectDone { .. }));
        }
        assert!(step <= limits::REDIRECTS_PER_PIECE as u64, "{step} in one step");
        done += step;
        if done == count {
            break;
        }
        engine.poll_work(now, dma);
    }
    assert_eq!(world.bytes(0, place), world.bytes(0, source));
}

#[test]
fn within_a_node_the_engine_copies() {
    let mut world = World::new(14);
    world.add(|_| {});
    let (ours, owner) = (world.process(0), world.process(0));
    let len = 5 << 20;
    let memory = world.region(0, owner, 1, len);
    world.export(0, memory, "near");
    let spec = ImportSpec {
        node: None,
        what: ImportTarget::Name("near".into()),
        owner: vmmc_nic::Owner::Any,
        rights: Rights::ALL,
        wait: false,
        deadline: world.now,
        own_order: false,
    };
    let now = world.now;
    world.nodes[0].engine.import(now, ours, spec, Cookie(0));
    let import = world.import_answer(0).expect("granted").import;
    let source = world.region(0, ours, 5, len);
    world.fill(0, source, |index| (index / 1_000) as u8);
    world.send_region(0, source, import, len as u64, 1);
    world.post(0, ours, Command::Flush { import, cookie: Cookie(2) }).expect("room");
    assert_eq!(world.completion(0, 2), Ok(0));
    assert_eq!(world.completion(0, 1), Ok(len as u64));
    assert_eq!(world.bytes(0, memory), world.bytes(0, source));
    assert_eq!(world.sent, 0);
}

#[test]
fn a_ping_measures_the_round_trip() {
    let mut world = World::pair(15, true);
    let (now, to) = (world.now, world.nodes[1].addrs[0]);
    let deadline = now + Duration::from_secs(9);
    world.nodes[0].engine.ping(now, NodeSpec::Addr(to), PingBy::Driver(1_000), Cookie(3), deadline);
    let pong = world.wait_for(0, |event| matches!(event, Event::Pong { .. }));
    let Event::Pong { result: Ok(rtt), .. } = pong else { panic!("{pong:?}") };
    assert!(rtt >= Duration::from_micros(60) && rtt < Duration::from_millis(5), "{rtt:?}");
}

#[test]
fn an_idle_engine_wants_no_attention() {
    let mut s = setup(16, true, 64);
    let now = s.world.now;
    s.world.nodes[0].engine.unimport(now, s.sender, s.import).expect("held");
    s.world.run_for(Duration::from_secs(40));
    let now = s.world.now;
    let soon = now + Duration::from_secs(600);
    for node in &s.world.nodes {
        assert!(node.engine.poll_timeout().is_none_or(|at| at > soon), "{:?} at {now:?}", node.engine.poll_timeout());
    }
}
