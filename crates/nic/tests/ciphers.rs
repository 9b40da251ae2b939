//! The cipher is a choice of both ends: every pair of choices gives the common one or a clear
//! refusal.

mod common;

use common::{World, key};
use vmmc_nic::*;

const CHOICES: [Ciphers; 3] = [Ciphers::Any, Ciphers::Only(Cipher::Aegis128L), Ciphers::Only(Cipher::Aes256Gcm)];

/// What two nodes of this build seal with.
fn common_cipher(ours: Ciphers, theirs: Ciphers) -> Option<Cipher> {
    let takes = |choice, cipher| choice == Ciphers::Any || choice == Ciphers::Only(cipher);
    Cipher::ALL.into_iter().find(|&cipher| cipher.is_built() && takes(ours, cipher) && takes(theirs, cipher))
}

#[test]
fn every_pair_of_choices_agrees_on_the_best_common_cipher_or_says_that_there_is_none() {
    for ours in CHOICES {
        for theirs in CHOICES {
            let mut world = World::new(2);
            world.add(|config| (config.key, config.ciphers) = (key(), ours));
            world.add(|config| (config.key, config.ciphers) = (key(), theirs));
            let (importer, owner) = (world.process(0), world.process(1));
            let target = world.region(1, owner, 1, 10_000);
            world.export(1, target, "buffer");
            world.start_import(0, importer, 1, "buffer", false);
            let answer = world.import_answer(0);
            let Some(cipher) = common_cipher(ours, theirs) else {
                assert_eq!(answer, Err(ImportError::Rejected(RejectReason::NoCommonCipher)), "{ours} and {theirs}");
                continue;
            };
            let import = answer.unwrap_or_else(|why| panic!("{ours} and {theirs}: {why}")).import;
            let source = world.region(0, importer, 2, 10_000);
            world.fill(0, source, |index| index as u8);
            world.send_region(0, source, import, 10_000, 1);
            assert_eq!(world.completion(0, 1), Ok(10_000));
            assert_eq!(world.bytes(1, target), world.bytes(0, source));
            for node in &world.nodes {
                assert_eq!(node.engine.peers().next().and_then(|peer| peer.cipher), Some(cipher));
            }
        }
    }
}

#[test]
fn an_offer_that_was_tampered_with_makes_no_session_and_no_weaker_one() {
    let mut world = World::new(4);
    world.add(|config| config.key = key());
    world.add(|config| config.key = key());
    let importer = world.process(0);
    world.tape = Some(Vec::new());
    world.start_import(0, importer, 1, "buffer", false);
    world.run_to_quiescence();
    let tape = world.tape.take().expect("recorded");
    let hello = tape.iter().rfind(|(_, _, data)| data[1] & 15 == 1).expect("a hello with a cookie");
    let stats = *world.nodes[1].engine.stats();
    for bit in 20 * 8..hello.2.len() * 8 {
        let mut changed = hello.2.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let before = fuzzing::state(&world.nodes[1].engine);
        world.deliver(1, hello.0, &mut changed);
        assert_eq!(fuzzing::state(&world.nodes[1].engine), before, "bit {bit}");
    }
    let refused = world.nodes[1].engine.stats().bad_seals - stats.bad_seals;
    assert_eq!(refused as usize, (hello.2.len() - 20) * 8);
}
