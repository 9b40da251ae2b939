//! A datagram without proof changes nothing: every kind, forged, damaged and replayed, at engines
//! in every state of a session's life.

mod common;

use common::{Recorded, World, addr, key};
use std::time::Duration;
use vmmc_nic::*;

/// A pair on its way to a session and through some traffic, so many steps of the virtual clock far.
/// Nothing is lost, so what was sent longer ago than the delay has come.
fn pair_after(steps: usize) -> World {
    let mut world = World::pair(2, true);
    world.tape = Some(Vec::new());
    let (ours, owner) = (world.process(0), world.process(1));
    let target = world.region(1, owner, 1, 10_000);
    world.export(1, target, "buffer");
    world.start_import(0, ours, 1, "buffer", false);
    for _ in 0..steps {
        world.flush();
        world.step();
    }
    world.flush();
    world
}

/// All that two nodes of this key said in an earlier life: from the first hello to data both ways.
fn earlier_life() -> Vec<Recorded> {
    let mut world = World::pair(4, true);
    world.tape = Some(Vec::new());
    let (ours, owner) = (world.process(0), world.process(1));
    let target = world.region(1, owner, 1, 10_000);
    world.export(1, target, "buffer");
    let import = world.import(0, ours, 1, "buffer").import;
    world.send(0, ours, import, 0, b"word", 1);
    world.completion(0, 1).expect("done");
    // The other side loses the session and says so.
    world.restart(1, |config| config.key = key());
    let command = common::plain_send(import, 0, b"word");
    world.post(0, ours, command).expect("room");
    world.run_to_quiescence();
    let tape = world.tape.take().expect("recorded");
    for kind in [1, 2, 4, 5, 6] {
        assert!(tape.iter().any(|(_, _, data)| data[1] & 15 == kind), "kind {kind} is on the tape");
    }
    tape
}

/// Delivers a datagram from where it may seem to come from; nothing but counters and answers to
/// strangers may follow.
fn changes_nothing(world: &mut World, data: &[u8], what: &str) {
    for node in 0..2 {
        for from in [addr(1 - node, 0), addr(40, 0)] {
            let before = fuzzing::state(&world.nodes[node].engine);
            world.deliver(node, from, &mut data.to_vec());
            let after = fuzzing::state(&world.nodes[node].engine);
            assert_eq!(before, after, "{what} changed node {node}, seemingly from {from}: {data:02x?}");
        }
    }
}

/// Header of a session that both know, kind and packet number as wanted.
fn forged(version_and_kind: u8, session: &[u8], number: u64, body: &[u8]) -> Vec<u8> {
    [&[b'V', version_and_kind], session, &number.to_le_bytes(), body].concat()
}

#[test]
fn a_datagram_without_proof_changes_nothing_in_any_state() {
    let old = earlier_life();
    let version = old[0].2[1] & 0xf0;
    let mut states = std::collections::BTreeSet::new();
    for steps in 0..14 {
        let mut world = pair_after(steps);
        states.insert(world.nodes.iter().map(|node| fuzzing::state(&node.engine)).collect::<String>());
        let tape = world.tape.clone().expect("recorded");
        for (_, _, data) in &old {
            changes_nothing(&mut world, data, "a datagram of an earlier life");
        }
        for (_, _, data) in &tape {
            for at in 0..data.len() {
                let mut damaged = data.clone();
                damaged[at] ^= 1 << (at % 8);
                changes_nothing(&mut world, &damaged, "a damaged datagram");
            }
            changes_nothing(&mut world, &data[..data.len() - 1], "a datagram cut short");
            // Every kind with the name of this session or attempt, known to observers of the wire.
            for kind in 0..16 {
                for number in (0..10).chain([u64::MAX, 1 << 40]) {
                    for body in [&[][..], &[0; 16], &[7; 32], &[1; 200]] {
                        let forged = forged(version | kind, &data[2..12], number, body);
                        changes_nothing(&mut world, &forged, "a forged datagram");
                    }
                }
            }
            for other in [0x00, 0x10, 0x40, 0xf0] {
                for kind in 1..7 {
                    let forged = forged(other | kind, &data[2..12], 1, &[0; 100]);
                    changes_nothing(&mut world, &forged, "a datagram of another version");
                }
            }
        }
        // The pair goes on as if nothing had been.
        let answer = world.import_answer(0).unwrap_or_else(|why| panic!("after {steps} steps: {why}"));
        assert_eq!(answer.len, 10_000);
        assert_eq!(world.nodes[0].engine.stats().sessions_lost, 0);
        assert_eq!(world.nodes[0].engine.stats().hellos_out, 2, "one with a cookie and one without");
    }
    assert!(states.len() > 5, "the states differ: {}", states.len());
}

#[test]
fn what_was_said_before_changes_nothing_when_it_is_said_again() {
    let mut world = pair_after(40);
    world.import_answer(0).expect("granted");
    world.run_to_quiescence();
    let tape = world.tape.clone().expect("recorded");
    assert!(tape.len() > 5);
    for (_, _, data) in &tape {
        changes_nothing(&mut world, data, "a datagram said again");
    }
    world.run_for(Duration::from_secs(60));
    for (_, _, data) in &tape {
        changes_nothing(&mut world, data, "a datagram said again after a minute");
    }
}

#[test]
fn copies_of_a_node_make_other_keys_once_they_are_stirred() {
    let hello = |fresh: Option<[u8; 32]>| {
        let mut config = Config::new(NodeName::parse("copy").expect("a name"));
        config.key = key();
        let now = Time::from_nanos(1);
        let mut engine = Engine::new(config, [3; 32], now);
        fresh.into_iter().for_each(|fresh| engine.stir(fresh));
        engine.add_peer(now, &[addr(0, 0)]).expect("room");
        let mut buf = [0; 2_000];
        let sent = engine.poll_transmit(now, &mut buf, &mut common::Memory::default()).expect("a hello");
        buf[..sent.len].to_vec()
    };
    assert_eq!(hello(None), hello(None), "copies are alike");
    assert_ne!(hello(Some([1; 32])), hello(Some([2; 32])));
}

#[test]
fn junk_and_recorded_hellos_keep_no_new_session_away() {
    let mut world = World::new(6);
    world.add(|config| config.key = key());
    world.add(|config| config.key = key());
    let recorded: Vec<Vec<u8>> =
        earlier_life().into_iter().map(|(_, _, data)| data).filter(|data| data[1] & 15 == 1).collect();
    let (ours, owner) = (world.process(1), world.process(0));
    let target = world.region(0, owner, 1, 64);
    world.export(0, target, "buffer");
    // A second of 20,000 hellos: junk by turns with recorded ones, from everywhere.
    for round in 0..20_000usize {
        let mut hello = recorded[round % recorded.len()].clone();
        if round % 2 == 0 {
            hello[40] ^= round as u8 | 1;
        }
        world.deliver(0, addr(50 + round % 100, 0), &mut hello);
        world.flush();
        if round % 20 == 0 {
            world.run_for(Duration::from_millis(1));
        }
        if round == 10_000 {
            world.start_import(1, ours, 0, "buffer", false);
        }
    }
    let start = world.now;
    world.import_answer(1).expect("the honest one gets in");
    assert!(world.now - start < Duration::from_millis(1), "it had got in long before the flood ended");
    let stats = world.nodes[0].engine.stats();
    assert_eq!((stats.hellos_limited, stats.sessions), (0, 1));
    assert_eq!(world.nodes[1].engine.stats().hellos_out, 2, "no hello was in vain");
}
