//! What the network and the other side can do to a session, and what must hold all the same.

mod common;

use common::{Faults, Node, World, addr, key};
use std::time::Duration;
use vmmc_nic::*;

fn bad_network() -> Faults {
    Faults { loss: 150, duplicate: 50, reorder: 200, corrupt: 20 }
}

/// Numbered words in a row; returns the world for further checks.
fn stream(seed: u64, sealed: bool, faults: Faults) -> World {
    stream_in(World::pair(seed, sealed), seed, faults)
}

fn stream_in(mut world: World, seed: u64, faults: Faults) -> World {
    world.faults = faults;
    let (sender, owner) = (world.process(0), world.process(1));
    let target = world.region(1, owner, 1, 1 << 20);
    world.export(1, target, "buffer");
    let import = world.import(0, sender, 1, "buffer").import;
    let big = world.region(0, sender, 2, 200_000);
    world.fill(0, big, |index| (index * 31 + 7) as u8);
    let (mut posted, mut completed, mut notified) = (0u64, 0u64, 0u64);
    let total = 300;
    while completed < total {
        while posted < total && posted < completed + 40 {
            let word = (posted + 1).to_le_bytes();
            let command = if posted % 50 == 49 {
                Command::Send {
                    import,
                    offset: 4_096,
                    source: Source::Region { region: big.region, offset: 0, len: 200_000 },
                    notify: Some(77),
                    counter: Some(8),
                    completion: Some(Cookie(posted)),
                }
            } else {
                Command::Send {
                    import,
                    offset: 0,
                    source: Source::Inline(&word),
                    notify: Some(77),
                    counter: Some(8),
                    completion: Some(Cookie(posted)),
                }
            };
            world.post(0, sender, command).expect("room");
            posted += 1;
        }
        assert!(world.step());
        world.flush();
        for event in std::mem::take(&mut world.nodes[0].events) {
            match event {
                Event::Completion { cookie, result, .. } => {
                    assert!(result.is_ok(), "seed {seed}: {result:?}");
                    assert_eq!(cookie, Cookie(completed), "completions come in order");
                    completed += 1;
                }
                Event::PeerUp { .. } | Event::Pong { .. } => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        for event in std::mem::take(&mut world.nodes[1].events) {
            if let Event::Notification { last_word, .. } = event {
                notified += 1;
                if notified % 50 != 0 {
                    assert_eq!(last_word, notified, "seed {seed}: order");
                }
            }
        }
        assert!(notified >= completed, "a completion is never before the data");
    }
    assert_eq!(notified, total, "seed {seed}: once each");
    let (here, there) = (world.bytes(0, big).to_vec(), world.bytes(1, target).to_vec());
    assert_eq!(there[4_096..4_096 + 200_000], here, "seed {seed}");
    assert_eq!(there[8..16], total.to_le_bytes(), "seed {seed}: each counted once");
    world
}

#[test]
fn a_bad_network_loses_doubles_and_reorders_nothing_for_the_user() {
    for seed in 0..40 {
        let world = stream(seed, seed % 2 == 0, bad_network());
        let stats = world.nodes[0].engine.stats();
        assert!(stats.retransmits > 0);
    }
}

#[test]
fn what_is_sent_from_its_place_in_memory_arrives_as_whole_as_anything() {
    for seed in 0..20 {
        let mut world = World::pair(seed, seed % 4 == 0);
        for (index, other) in [(0, 1), (1, 0)] {
            let to = world.nodes[other].addrs[0];
            world.nodes[index].engine.set_path_mtu(to, 60_000);
        }
        let world = stream_in(world, seed, bad_network());
        assert_eq!(world.lent > 1_000_000, seed % 4 != 0, "only plain packets lend: {}", world.lent);
        assert!(world.placed == 0 || seed % 4 != 0, "only those are placed: {}", world.placed);
    }
}

/// A plain pair whose packets are large enough to lend, a region on either side, and an import of
/// node 1's.
fn lending(seed: u64) -> (World, RegionRef, RegionRef, ImportId) {
    let mut world = World::pair(seed, false);
    world.faults = bad_network();
    for (index, other) in [(0, 1), (1, 0)] {
        let to = world.nodes[other].addrs[0];
        world.nodes[index].engine.set_path_mtu(to, 65_507);
    }
    let (ours, owner) = (world.process(0), world.process(1));
    let (source, target) = (world.region(0, ours, 2, 300_000), world.region(1, owner, 1, 300_000));
    world.export(1, target, "buffer");
    let import = world.import(0, ours, 1, "buffer").import;
    (world, source, target, import)
}

#[test]
fn memory_may_change_when_its_send_is_done_even_if_references_to_it_are_under_way() {
    for seed in 0..20 {
        let (mut world, source, target, import) = lending(seed);
        for version in 1..=10u8 {
            world.fill(0, source, |index| (index / 100) as u8 ^ version);
            world.send_region(0, source, import, 300_000, version.into());
            assert_eq!(world.completion(0, version.into()), Ok(300_000), "seed {seed}");
            // What is under way twice, or late, shows this when it arrives.
            world.fill(0, source, |_| 0xee);
            world.run_for(Duration::from_millis(u64::from(version) % 3 * 5));
            let there = world.bytes(1, target);
            assert!(there.iter().enumerate().all(|(i, byte)| *byte == (i / 100) as u8 ^ version), "seed {seed}");
        }
        assert!(world.referred > 1_000_000, "seed {seed}: {} bytes by reference", world.referred);
        assert!(world.placed > 100_000, "seed {seed}: {} bytes placed", world.placed);
    }
}

#[test]
fn the_rest_of_a_send_is_not_cut_up_to_fill_the_packet_that_lends() {
    let (mut world, source, _, import) = lending(3);
    world.faults = Faults::default();
    world.tape = Some(Vec::new());
    // Fifteen pages are lent, and the last one does not fit beside them.
    world.send_region(0, source, import, 65_536, 7);
    assert_eq!(world.completion(0, 7), Ok(65_536));
    let tape = world.tape.take().expect("it was put there");
    let long: Vec<usize> = tape.iter().map(|(.., datagram)| datagram.len()).filter(|len| *len > 1_000).collect();
    assert!(matches!(long[..], [61_440..=61_700, 4_096..=4_300]), "{long:?}");
}

#[test]
fn what_a_fetch_reads_never_goes_by_reference() {
    let (mut world, source, target, import) = lending(1);
    world.fill(1, target, |index| (index / 100) as u8);
    let fetch =
        Command::Fetch { import, offset: 0, len: 300_000, region: source.region, region_offset: 0, cookie: Cookie(1) };
    world.post(0, source.process, fetch).expect("room");
    assert_eq!(world.completion(0, 1), Ok(300_000));
    assert_eq!(world.bytes(0, source), world.bytes(1, target));
    // Its owner may end the export at any moment, and write what the user must not see.
    assert!(world.lent > 200_000 && world.referred == 0, "{} lent, {} by reference", world.lent, world.referred);
}

#[test]
fn three_lost_in_ten_is_slow_and_not_dead() {
    for seed in 100..110 {
        stream(seed, true, Faults { loss: 300, duplicate: 100, reorder: 300, corrupt: 20 });
    }
}

#[test]
fn atomics_and_fetches_are_exactly_once_on_a_bad_network() {
    for seed in 0..20 {
        let mut world = World::pair(seed, true);
        world.faults = bad_network();
        let (ours, owner) = (world.process(0), world.process(1));
        let target = world.region(1, owner, 1, 200_000);
        world.fill(1, target, |index| (index * 3 / 8) as u8);
        let expected = world.bytes(1, target)[8..].to_vec();
        world.export(1, target, "buffer");
        let import = world.import(0, ours, 1, "buffer").import;
        let back = world.region(0, ours, 2, 200_000);
        let first = u64::from_le_bytes(world.bytes(1, target)[..8].try_into().expect("8 bytes"));
        for cookie in 0..100 {
            let command = Command::Atomic { import, offset: 0, op: AtomicOp::FetchAdd(1), cookie: Cookie(cookie) };
            world.post(0, ours, command).expect("room");
        }
        let fetch = Command::Fetch {
            import,
            offset: 8,
            len: 199_992,
            region: back.region,
            region_offset: 0,
            cookie: Cookie(1_000),
        };
        world.post(0, ours, fetch).expect("room");
        for cookie in 0..100 {
            assert_eq!(world.completion(0, cookie), Ok(first + cookie), "seed {seed}");
        }
        assert_eq!(world.completion(0, 1_000), Ok(199_992));
        assert_eq!(world.bytes(0, back)[..199_992], expected, "seed {seed}");
    }
}

/// An import on node 0 of an export on node 1, over `paths` paths.
fn connected(seed: u64, paths: usize, sealed: bool) -> (World, ProcessId, RegionRef, ImportId) {
    let mut world = World::new(seed);
    for node in 0..2 {
        let addrs: Vec<_> = (0..paths).map(|path| addr(node, path)).collect();
        let config = Config::new(NodeName::parse(&format!("node{node}")).expect("a name"));
        world.add_with(config, addrs, |config| config.key = if sealed { key() } else { None });
    }
    let to = world.nodes[1].addrs.clone();
    world.nodes[0].engine.add_peer(world.now, &to).expect("room");
    let (ours, owner) = (world.process(0), world.process(1));
    let target = world.region(1, owner, 1, 1 << 20);
    world.export(1, target, "buffer");
    let import = world.import(0, ours, 1, "buffer").import;
    (world, ours, target, import)
}

#[test]
fn an_unreachable_node_is_an_error_in_time_and_comes_back() {
    let (mut world, ours, _, import) = connected(1, 1, true);
    let cut = world.nodes[1].addrs[0];
    world.cut.insert(cut);
    let start = world.now;
    world.send(0, ours, import, 0, b"into the void", 1);
    assert!(matches!(world.completion(0, 1), Err(OpError::NodeUnreachable { after_ms: 5_000.. })));
    let took = world.now - start;
    assert!(took >= Duration::from_secs(5) && took < Duration::from_millis(5_300), "{took:?}");
    world.wait_for(0, |event| matches!(event, Event::ImportBroken { .. }));
    world.start_import(0, ours, 1, "buffer", false);
    assert!(matches!(world.import_answer(0), Err(ImportError::NodeUnreachable { .. })));
    world.cut.clear();
    let import = world.import(0, ours, 1, "buffer").import;
    world.send(0, ours, import, 0, b"back again", 2);
    assert_eq!(world.completion(0, 2), Ok(10));
}

#[test]
fn a_silent_node_is_noticed_without_traffic() {
    let (mut world, _, _, import) = connected(2, 1, true);
    world.run_for(Duration::from_secs(20));
    assert!(!world.nodes[0].events.iter().any(|event| matches!(event, Event::ImportBroken { .. })));
    world.nodes[1].down = true;
    let start = world.now;
    let broken = world.wait_for(0, |event| matches!(event, Event::ImportBroken { .. }));
    let Event::ImportBroken { import: at, why, .. } = broken else { unreachable!() };
    assert_eq!(at, import);
    assert!(matches!(why, OpError::NodeUnreachable { .. }));
    assert!(world.now - start < Duration::from_millis(6_500));
}

#[test]
fn a_restarted_node_is_not_mistaken_for_its_former_self() {
    let (mut world, ours, _, import) = connected(3, 1, true);
    world.restart(1, |config| config.key = key());
    world.send(0, ours, import, 0, b"for the dead", 1);
    assert_eq!(world.completion(0, 1), Err(OpError::NodeRestarted));
    let owner = world.process(1);
    let target = world.region(1, owner, 1, 64);
    world.export(1, target, "buffer");
    let import = world.import(0, ours, 1, "buffer").import;
    world.send(0, ours, import, 0, b"for the heir", 2);
    assert_eq!(world.completion(0, 2), Ok(12));
    assert_eq!(&world.bytes(1, target)[..12], b"for the heir");
}

/// The first packet of a life that has ended comes when there is a session with the next one, while
/// the answer to the former hello still waits for it.
#[test]
fn a_late_packet_of_a_former_life_ends_no_session_of_the_next_one() {
    let mut world = World::pair(5, true);
    world.tape = Some(Vec::new());
    let ours = world.process(1);
    let caller = world.process(0);
    world.start_import(0, caller, 1, "none", true);
    let (welcome, data) = (2, 4);
    let late = loop {
        world.flush();
        let said = |from, kind| {
            let tape = world.tape.as_ref().expect("recorded");
            tape.iter().find(|(by, _, bytes)| *by == from && bytes[1] & 15 == kind).cloned()
        };
        if let Some(late) = said(addr(0, 0), data) {
            break late;
        }
        if said(addr(1, 0), welcome).is_some() {
            world.cut.insert(addr(0, 0));
        }
        assert!(world.step(), "no handshake");
    };
    world.cut.clear();
    world.restart(0, |config| config.key = key());
    let owner = world.process(0);
    let target = world.region(0, owner, 1, 64);
    world.export(0, target, "buffer");
    let import = world.import(1, ours, 0, "buffer").import;
    let (from, _, mut data) = late;
    world.deliver(1, from, &mut data);
    world.send(1, ours, import, 0, b"for the heir", 2);
    assert_eq!(world.completion(1, 2), Ok(12));
    assert_eq!(&world.bytes(0, target)[..12], b"for the heir");
}

#[test]
fn a_failed_path_is_left_and_taken_again() {
    let (mut world, ours, _, import) = connected(4, 2, true);
    let path =
        |world: &World, index: usize| world.nodes[0].engine.peers().next().expect("one peer").paths[index].clone();
    assert!(path(&world, 0).active);
    let cut = world.nodes[1].addrs[0];
    world.cut.insert(cut);
    let start = world.now;
    world.send(0, ours, import, 0, b"around", 1);
    assert_eq!(world.completion(0, 1), Ok(6));
    assert!(world.now - start < Duration::from_secs(1));
    assert!(path(&world, 1).active && path(&world, 0).failed);
    assert_eq!(world.nodes[0].engine.stats().path_switches, 1);
    world.cut.clear();
    world.run_for(Duration::from_secs(5));
    assert!(path(&world, 0).active && !path(&world, 0).failed);
    world.send(0, ours, import, 0, b"straight", 2);
    assert_eq!(world.completion(0, 2), Ok(8));
}

#[test]
fn replayed_packets_and_hellos_change_nothing() {
    let (mut world, _, target, _) = connected(5, 1, true);
    world.tape = Some(Vec::new());
    world.restart(0, |config| config.key = key());
    let ours = world.process(0);
    let import = world.import(0, ours, 1, "buffer").import;
    world.send(0, ours, import, 0, b"once", 1);
    assert_eq!(world.completion(0, 1), Ok(4));
    world.run_to_quiescence();
    world.fill(1, target, |_| 0);
    let tape = world.tape.take().expect("recorded");
    for (from, to, data) in &tape {
        let node = world.nodes.iter().position(|node| node.addrs.contains(to)).expect("known");
        world.deliver(node, *from, &mut data.clone());
    }
    world.run_to_quiescence();
    assert!(world.bytes(1, target).iter().all(|byte| *byte == 0));
    assert!(world.nodes[1].engine.stats().replays > 0);
    world.send(0, ours, import, 0, b"still alive", 2);
    assert_eq!(world.completion(0, 2), Ok(11));
    assert_eq!(world.nodes[0].engine.stats().sessions_lost, 0);
}

#[test]
fn a_forged_hint_does_not_end_a_session() {
    let (mut world, ours, _, import) = connected(6, 1, true);
    world.tape = Some(Vec::new());
    world.send(0, ours, import, 0, b"x", 1);
    assert_eq!(world.completion(0, 1), Ok(1));
    let tape = world.tape.take().expect("recorded");
    let (_, to, data) = tape.iter().find(|(from, ..)| *from == world.nodes[0].addrs[0]).expect("sent").clone();
    let asked = world.nodes[0].engine.stats().hellos_out;
    let mut hint = data[..36].to_vec();
    hint[1] = hint[1] & 0xf0 | 5;
    world.deliver(0, to, &mut hint);
    world.run_to_quiescence();
    assert_eq!(world.nodes[0].engine.stats().hellos_out, asked, "it is not even worth a question");
    world.send(0, ours, import, 0, b"y", 2);
    assert_eq!(world.completion(0, 2), Ok(1));
    assert_eq!(world.nodes[0].engine.stats().sessions_lost, 0);
}

#[test]
fn nodes_that_do_not_fit_together_say_why() {
    for (ours, theirs, reason) in [(None, key(), RejectReason::NeedsKey), (key(), None, RejectReason::PlainOnly)] {
        let mut world = World::new(7);
        world.add(|config| config.key = ours.clone());
        world.add(|config| config.key = theirs.clone());
        let process = world.process(0);
        world.start_import(0, process, 1, "buffer", false);
        let answer = world.import_answer(0);
        assert!(matches!(answer, Err(ImportError::NoSession { hint, .. }) if hint == reason), "{answer:?}");
    }
    let mut world = World::new(8);
    world.add(|config| config.key = key());
    world.add(|config| config.key = Some(ClusterKey([1; 32])));
    let process = world.process(0);
    world.start_import(0, process, 1, "buffer", false);
    let answer = world.import_answer(0);
    assert!(matches!(answer, Err(ImportError::NoSession { hint: RejectReason::OtherKey, .. })), "{answer:?}");
    assert!(world.nodes[1].engine.stats().bad_seals > 0);
    assert_eq!(world.nodes[1].engine.peers().count(), 0);
}

#[test]
fn without_trust_in_users_other_nodes_import_only_what_is_for_anyone() {
    for trust in [false, true] {
        let mut world = World::new(21);
        world.add(|config| config.trust_users = trust);
        world.add(|config| config.trust_users = trust);
        let (ours, owner) = (world.process(0), world.process(1));
        let now = world.now;
        for (region, name, access) in
            [(1, "mine", Access::SameUser), (2, "listed", Access::Users(vec![1_000])), (3, "open", Access::Anyone)]
        {
            let at = world.region(1, owner, region, 64);
            let spec = ExportSpec { access, ..common::export_spec(at.region, 64, name) };
            world.nodes[1].engine.export(now, owner, spec).expect("exported");
        }
        for name in ["mine", "listed", "open"] {
            world.start_import(0, ours, 1, name, false);
            let answer = world.import_answer(0).map(|grant| grant.len);
            let expected = if trust || name == "open" { Ok(64) } else { Err(ImportError::NobodyVouches) };
            assert_eq!(answer, expected, "{name}, trust {trust}");
        }
        // One that waits for its name is judged alike.
        world.start_import(0, ours, 1, "later", true);
        world.run_to_quiescence();
        let at = world.region(1, owner, 4, 64);
        world.export(1, at, "later");
        assert_eq!(world.import_answer(0).is_ok(), trust);
        // Processes of one node are known to it.
        let neighbour = world.process(1);
        let spec = ImportSpec {
            node: None,
            what: ImportTarget::Name("mine".into()),
            owner: vmmc_nic::Owner::Any,
            rights: Rights::ALL,
            wait: false,
            deadline: world.now + Duration::from_secs(1),
            own_order: false,
        };
        let now = world.now;
        world.nodes[1].engine.import(now, neighbour, spec, Cookie(5));
        world.import_answer(1).expect("the kernel vouches for it");
    }
}

#[test]
fn a_second_node_of_one_name_is_refused_while_the_first_lives() {
    let (mut world, ours, _, import) = connected(9, 1, true);
    let twin = Config::new(NodeName::parse("node0").expect("a name"));
    world.add_with(twin, vec![addr(7, 0)], |config| config.key = key());
    let process = world.process(2);
    world.start_import(2, process, 1, "buffer", false);
    assert_eq!(world.import_answer(2), Err(ImportError::Rejected(RejectReason::DuplicateName)));
    world.send(0, ours, import, 0, b"mine", 1);
    assert_eq!(world.completion(0, 1), Ok(4));
    // The first one is gone: the name is free again, at the new address.
    world.nodes[0].down = true;
    world.run_to_quiescence();
    world.import(2, process, 1, "buffer");
}

#[test]
fn two_nodes_that_call_each_other_at_once_agree_on_one_session() {
    for seed in 0..60 {
        let mut world = World::new(seed);
        if seed % 3 > 0 {
            world.faults = bad_network();
        }
        for _ in 0..2 {
            world.add(|config| config.key = key());
        }
        let processes = [world.process(0), world.process(1)];
        for (node, process) in processes.into_iter().enumerate() {
            let memory = world.region(node, process, 1, 64);
            world.export(node, memory, "buffer");
        }
        for (node, process) in processes.into_iter().enumerate() {
            world.start_import(node, process, 1 - node, "buffer", false);
        }
        let grants = [world.import_answer(0).expect("granted"), world.import_answer(1).expect("granted")];
        for (node, process) in processes.into_iter().enumerate() {
            world.send(node, process, grants[node].import, 0, b"ho", 1);
        }
        for node in 0..2 {
            assert_eq!(world.completion(node, 1), Ok(2), "seed {seed}");
        }
        assert_eq!(world.nodes[0].engine.stats().sessions_lost, 0, "seed {seed}");
    }
}

#[test]
fn a_node_that_shuts_down_says_so() {
    let (mut world, ours, _, import) = connected(10, 1, true);
    let now = world.now;
    world.nodes[1].engine.shutdown(now);
    let broken = world.wait_for(0, |event| matches!(event, Event::ImportBroken { .. }));
    let why = OpError::NodeClosed;
    assert_eq!(broken, Event::ImportBroken { process: ours, import, why });
}

#[test]
fn an_import_by_name_finds_the_node_among_the_peers() {
    let mut world = World::new(11);
    for _ in 0..3 {
        world.add(|config| config.key = key());
    }
    let (ours, owner) = (world.process(0), world.process(2));
    let memory = world.region(2, owner, 1, 64);
    world.export(2, memory, "buffer");
    let now = world.now;
    for node in 1..3 {
        world.nodes[0].engine.add_peer(now, &[addr(node, 0)]).expect("room");
    }
    for (name, known) in [("node2", true), ("node9", false)] {
        let spec = ImportSpec {
            node: Some(NodeSpec::Name(NodeName::parse(name).expect("a name"))),
            what: ImportTarget::Name("buffer".into()),
            owner: vmmc_nic::Owner::Any,
            rights: Rights::READ,
            wait: false,
            deadline: world.now + Duration::from_secs(30),
            own_order: false,
        };
        let now = world.now;
        world.nodes[0].engine.import(now, ours, spec, Cookie(0));
        let answer = world.import_answer(0);
        assert_eq!(answer.is_ok(), known);
        if !known {
            assert_eq!(answer, Err(ImportError::UnknownNode));
        }
    }
}

#[test]
fn a_process_that_floods_its_queue_is_told_to_wait_and_others_go_on() {
    let (mut world, ours, _, import) = connected(12, 1, true);
    let source = world.region(0, ours, 5, 1 << 20);
    let mut accepted = 0;
    loop {
        let command = Command::Send {
            import,
            offset: 0,
            source: Source::Region { region: source.region, offset: 0, len: 1 << 20 },
            notify: None,
            counter: None,
            completion: None,
        };
        match world.post(0, ours, command) {
            Ok(()) => accepted += 1,
            Err(Busy { queued }) => break assert_eq!(queued, accepted),
        }
    }
    let other = world.process(0);
    let owner = world.process(1);
    let memory = world.region(1, owner, 1, 64);
    world.export(1, memory, "other");
    let import = world.import(0, other, 1, "other").import;
    let start = world.now;
    world.send(0, other, import, 0, b"me too", 1);
    assert_eq!(world.completion(0, 1), Ok(6));
    assert!(world.now - start < Duration::from_millis(100));
}

#[test]
fn smaller_packets_on_a_path_in_use_do_not_stop_it() {
    let (mut world, ours, _, import) = connected(13, 1, true);
    let to = world.nodes[1].addrs[0];
    world.nodes[0].engine.set_path_mtu(to, 9_000);
    let source = world.region(0, ours, 5, 1 << 20);
    world.faults.loss = 200;
    world.send_region(0, source, import, 1 << 20, 1);
    world.run_for(Duration::from_micros(100));
    world.nodes[0].engine.set_path_mtu(to, 1_400);
    assert_eq!(world.completion(0, 1), Ok(1 << 20));
}

#[test]
fn the_packets_of_a_new_peer_fit_its_path_however_many_strangers_were_told_of() {
    let mut world = World::pair(16, true);
    world.tape = Some(Vec::new());
    let to = world.nodes[1].addrs[0];
    // A path that is in use, many others, and the path of a node that is met later.
    world.nodes[0].engine.set_path_mtu(to, 1_300);
    world.nodes[0].engine.add_peer(world.now, &[to]).expect("room");
    for stranger in 0..2 * limits::PATH_MTUS_MAX {
        let addr = std::net::SocketAddr::from(([172, 16, (stranger >> 8) as u8, stranger as u8], 7_000));
        world.nodes[0].engine.set_path_mtu(addr, 1_472);
    }
    let later = world.add(|config| config.key = key());
    let path = world.nodes[later].addrs[0];
    world.nodes[0].engine.set_path_mtu(path, 1_350);
    let ours = world.process(0);
    let source = world.region(0, ours, 5, 1 << 20);
    for (node, most) in [(1, 1_300), (later, 1_350)] {
        let owner = world.process(node);
        let target = world.region(node, owner, 1, 1 << 20);
        world.export(node, target, "buffer");
        let import = world.import(0, ours, node, "buffer").import;
        world.send_region(0, source, import, 1 << 20, node as u64);
        assert_eq!(world.completion(0, node as u64), Ok(1 << 20));
        let to = world.nodes[node].addrs[0];
        let tape = world.tape.as_ref().expect("recorded");
        let longest = tape.iter().filter(|(_, at, _)| *at == to).map(|(_, _, data)| data.len()).max();
        assert!(longest.is_some_and(|len| (most - 50..=most).contains(&len)), "packets to node {node}: {longest:?}");
    }
}

#[test]
fn nothing_is_kept_for_packets_without_proof() {
    let mut world = World::new(14);
    world.add(|config| config.key = key());
    let mut attacker = World::new(15);
    attacker
        .add_with(Config::new(NodeName::parse("x").expect("a name")), vec![addr(9, 0)], |config| config.key = key());
    let now = world.now;
    // Replayed hellos of engines that had the key, from everywhere.
    for round in 0..300u64 {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&round.to_le_bytes());
        let mut config = Config::new(NodeName::parse(&format!("x{round}")).expect("a name"));
        config.key = key();
        let mut engine = Engine::new(config, seed, now);
        engine.add_peer(now, &[addr(0, 0)]).expect("room");
        let mut buf = [0; 2_000];
        let hello = engine.poll_transmit(now, &mut buf, &mut common::Memory::default()).expect("a hello");
        world.deliver(0, addr(20 + round as usize % 100, 0), &mut buf[..hello.len]);
    }
    let Node { engine, .. } = &world.nodes[0];
    assert_eq!(engine.peers().count(), 0);
    assert_eq!((engine.stats().cookies_out, engine.stats().hellos_limited), (300, 0));
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.nodes[0].engine.poll_timeout(), None);
}

#[test]
fn a_send_cut_short_by_its_process_never_shows_its_last_byte() {
    let mut shown = 0;
    for seed in 0..40 {
        let (mut world, ours, target, import) = connected(seed, 1, true);
        let source = world.region(0, ours, 5, 3_000);
        world.fill(0, source, |_| 9);
        // The first of three packets is lost; the process dies before it goes out again.
        world.faults.loss = 400;
        world.send_region(0, source, import, 3_000, 1);
        world.flush();
        world.faults.loss = 0;
        world.run_for(Duration::from_micros(if seed % 2 == 0 { 100 } else { 1_500 }));
        let now = world.now;
        world.nodes[0].engine.detach(now, ours);
        world.run_to_quiescence();
        let bytes = &world.bytes(1, target)[..3_000];
        let told = world.nodes[1].events.iter().any(|event| matches!(event, Event::Notification { .. }));
        if bytes[2_999] == 9 || told {
            assert!(bytes.iter().all(|byte| *byte == 9), "seed {seed}");
            shown += 1;
        }
    }
    assert!((1..40).contains(&shown), "some are cut short, and some are not: {shown}");
}

#[test]
fn a_fetch_from_an_export_that_goes_away_ends() {
    for seed in 0..300 {
        let (mut world, ours, target, import) = connected(seed, 1, true);
        let back = world.region(0, ours, 5, 1 << 20);
        world.faults = bad_network();
        let (region, cookie) = (back.region, Cookie(1));
        let len = [5_000, 30_000, 1 << 20][seed as usize % 3];
        world.post(0, ours, Command::Fetch { import, offset: 0, len, region, region_offset: 0, cookie }).expect("room");
        world.run_for(Duration::from_micros(100 + seed % 40 * 150));
        let now = world.now;
        world.nodes[1].engine.detach(now, target.process);
        let start = world.now;
        let result = world.completion(0, 1);
        assert!(world.now - start < Duration::from_secs(3), "seed {seed}");
        // The last piece may come before the word that one in the middle was refused.
        assert!(!matches!(result, Err(vmmc_nic::OpError::Protocol)), "seed {seed}");
    }
}

#[test]
fn a_send_refused_by_a_revocation_is_never_reported_as_done() {
    let mut refused = 0;
    for seed in 0..80 {
        let (mut world, ours, target, import) = connected(seed, 1, seed % 2 == 0);
        let owner = target.process;
        let export = world.nodes[1].engine.exports().next().expect("exported").export;
        world.faults = Faults { loss: 400, duplicate: 0, reorder: 300, corrupt: 0 };
        for word in 1..=40u64 {
            world.send(0, ours, import, 0, &word.to_le_bytes(), word);
            world.run_for(Duration::from_micros(40));
        }
        let now = world.now;
        world.nodes[1].engine.unexport(now, owner, export).expect("ours");
        for word in 41..=60u64 {
            world.send(0, ours, import, 0, &word.to_le_bytes(), word);
            world.run_for(Duration::from_micros(40));
        }
        let bytes = &world.bytes(1, target)[..8];
        let landed = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        for word in 1..=60 {
            match world.completion(0, word) {
                Ok(_) => assert!(word <= landed, "seed {seed}: {word} is done but {landed} is there"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 0);
}
