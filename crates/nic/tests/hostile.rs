//! Random, truncated and mutated bytes at every decoder and at the engine, for a bounded time.

mod common;

use common::{PLAIN_BODY_AT, World, addr, seal_plainly};
use std::time::Duration;
use vmmc_nic::*;

#[test]
fn decoders_take_any_bytes() {
    let mut world = World::new(1);
    let mut data = vec![0; 400];
    let mut read = [0; 3];
    for round in 0..60_000u32 {
        let len = world.random() as usize % data.len();
        for byte in &mut data[..len] {
            *byte = world.random() as u8;
        }
        if len > 0 && round % 2 == 0 {
            // Most first bytes mean nothing: help them.
            data[0] = [1, 2, 3, 4, 5, 6, 7][world.random() as usize % 7];
            data[0] = if round % 4 == 0 { 0x10 + (world.random() % 0x12) as u8 } else { data[0] };
        }
        match round % 8 {
            1 => data[0] = b'V',
            // A refusal, and an introduction by a short name with sensible sizes.
            3 => data[..3].copy_from_slice(&[1, (world.random() % 16) as u8, 0]),
            5 => {
                data[..2].copy_from_slice(&[1, b'n']);
                data[12..20].copy_from_slice(&[0, 0, 1, 0, 0, 0, 1, 0]);
                data[20] %= 4;
                [21, 28].into_iter().for_each(|at| data[at] = 4);
            }
            _ => {}
        }
        for bytes in [&data[..len], &data[..len / 2]] {
            let taken = [fuzzing::header(bytes), fuzzing::body(bytes) > 0, fuzzing::handshake(bytes)];
            read.iter_mut().zip(taken).for_each(|(count, taken)| *count += u32::from(taken));
        }
    }
    // Most of it means nothing, and some of it gets as far as its decoder does.
    assert!(read.iter().all(|count| (100..100_000).contains(count)), "{read:?}");
}

/// Traffic of a pair, as recorded.
fn tape(sealed: bool) -> Vec<common::Recorded> {
    let mut world = World::pair(2, sealed);
    world.tape = Some(Vec::new());
    let (ours, owner) = (world.process(0), world.process(1));
    let target = world.region(1, owner, 1, 10_000);
    world.export(1, target, "buffer");
    let import = world.import(0, ours, 1, "buffer").import;
    let source = world.region(0, ours, 2, 10_000);
    world.send_region(0, source, import, 10_000, 1);
    world.completion(0, 1).expect("done");
    world.tape.take().expect("recorded")
}

#[test]
fn an_engine_takes_any_datagram_and_goes_on() {
    for sealed in [true, false] {
        let recorded = tape(sealed);
        let mut world = World::pair(3, sealed);
        let (ours, owner) = (world.process(0), world.process(1));
        let target = world.region(1, owner, 1, 10_000);
        world.export(1, target, "buffer");
        let import = world.import(0, ours, 1, "buffer").import;
        for round in 0..20_000 {
            let (from, _, data) = &recorded[world.random() as usize % recorded.len()];
            let mut data = data.clone();
            for _ in 0..world.random() % 4 {
                let at = world.random() as usize % data.len();
                data[at] = world.random() as u8;
            }
            data.truncate(1 + world.random() as usize % data.len().max(1));
            let from = if world.random() % 2 == 0 { *from } else { addr(50, 0) };
            let node = world.random() as usize % 2;
            world.deliver(node, from, &mut data);
            if round % 100 == 0 {
                world.run_for(Duration::from_millis(1));
            }
        }
        world.send(0, ours, import, 0, b"still here", 9);
        assert_eq!(world.completion(0, 9), Ok(10), "sealed {sealed}");
        assert_eq!(world.nodes[0].engine.stats().sessions_lost, 0);
    }
}

#[test]
fn a_peer_that_has_the_key_and_lies_harms_only_its_session() {
    // In plain mode a checksum is all that stands before the frames: random frames go through.
    let mut world = World::pair(4, false);
    let (ours, owner) = (world.process(0), world.process(1));
    let target = world.region(1, owner, 1, 64);
    world.export(1, target, "buffer");
    let guard = world.region(1, owner, 2, 64);
    for round in 0..300 {
        let grant = world.import(0, ours, 1, "buffer");
        world.tape = Some(Vec::new());
        world.send(0, ours, grant.import, 0, b"x", round);
        world.run_to_quiescence();
        let tape = world.tape.take().expect("recorded");
        let to = world.nodes[1].addrs[0];
        let (from, _, data) = tape.iter().find(|(_, at, _)| *at == to).expect("sent").clone();
        for _ in 0..20 {
            let mut data = data.clone();
            // A later packet number, and a body in which a few bytes are others.
            data[12..20].copy_from_slice(&(100 + world.random() % 3_000).to_le_bytes());
            for _ in 0..1 + world.random() % 5 {
                let at = PLAIN_BODY_AT + world.random() as usize % (data.len() - PLAIN_BODY_AT);
                data[at] = world.random() as u8;
            }
            seal_plainly(&mut data);
            world.deliver(1, from, &mut data);
        }
        world.run_to_quiescence();
        world.nodes[0].events.clear();
        let now = world.now;
        // Unless the lies have ended the session, and the import with it.
        let done = world.nodes[0].engine.unimport(now, ours, grant.import);
        assert!(matches!(done, Ok(()) | Err(UnimportError::StaleImport { .. })), "{done:?}");
        world.run_for(Duration::from_secs(6));
        world.nodes[0].events.clear();
    }
    assert!(world.bytes(1, guard).iter().all(|byte| *byte == 0));
}

#[test]
fn wild_chunks_of_every_kind_harm_no_honest_pair() {
    // The liar is node 0, in plain mode, where all that it takes is a checksum; nodes 1 and 2 are
    // honest.
    let mut world = World::new(8);
    (0..3).for_each(|_| _ = world.add(|_| {}));
    let (liar, owner, honest) = (world.process(0), world.process(1), world.process(2));
    let target = world.region(1, owner, 1, 64);
    world.export(1, target, "buffer");
    let guard = world.region(1, owner, 2, 64);
    world.export(1, guard, "guarded");
    let import = world.import(2, honest, 1, "guarded").import;
    let (mut chunks, mut ended) = (0u64, 0);
    let kinds: Vec<u8> = (0..=255).filter(|kind| fuzzing::is_chunk(*kind) == Some(true)).collect();
    for round in 0..400u64 {
        let grant = world.import(0, liar, 1, "buffer").import;
        world.tape = Some(Vec::new());
        world.send(0, liar, grant, 0, b"x", round);
        world.flush();
        let to = world.nodes[1].addrs[0];
        let tape = world.tape.take().expect("recorded");
        let Some((from, _, sent)) = tape.iter().find(|(_, at, data)| *at == to && data[PLAIN_BODY_AT] == 2) else {
            continue;
        };
        let fuzzing::Seen { number, next_seq, names } = fuzzing::seen(sent).expect("it is plain");
        let (next, from) = (next_seq.expect("a send"), *from);
        world.deliver(1, from, &mut sent.clone());
        for step in 0..29 {
            // Each kind comes first now and then: what follows on a breach finds no session.
            let kind = kinds[chunks as usize % kinds.len()];
            chunks += 1;
            let mut random = || world.random();
            let mut wild = fuzzing::Wild { random: &mut random, known: &names, names: &["buffer"] };
            let chunk = fuzzing::wild_frame(kind, &mut wild).expect("the kind exists");
            let frames = [&[2], &(next + step).to_le_bytes()[..], &chunk].concat();
            let mut packet = fuzzing::plain_datagram(sent, number + 1 + step, &frames);
            world.deliver(1, from, &mut packet);
        }
        // What the liar's own engine makes of the answers is its affair: it starts again.
        world.run_for(Duration::from_millis(20));
        world.restart(0, |_| {});
        assert_eq!(world.process(0), liar, "the first process of a new life");
        // The honest pair goes on at once.
        let start = world.now;
        world.send(2, honest, import, 8, &round.to_le_bytes(), round);
        assert_eq!(world.completion(2, round), Ok(8), "round {round}");
        assert!(world.now - start < Duration::from_millis(50), "round {round} took {:?}", world.now - start);
        let held = world.bytes(1, guard);
        assert_eq!(held[8..16], round.to_le_bytes());
        assert!(held[..8].iter().chain(&held[16..]).all(|byte| *byte == 0), "round {round}: written outside");
        ended = world.nodes[1].engine.stats().sessions_lost;
        world.nodes.iter_mut().for_each(|node| node.events.clear());
    }
    assert!(ended > 0, "some of it was a breach of protocol");
    let refused = world.nodes[1].engine.stats().refused;
    assert!(refused > 100, "much of it was refused: {refused}");
    assert!(world.nodes[1].engine.peers().count() <= 2);
}
