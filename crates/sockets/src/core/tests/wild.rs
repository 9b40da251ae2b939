//! The other end writes whatever it likes into the words that both share.
//!
//! Invariant: this end moves no more bytes than there can be, fails no assertion, and waits for
//! nothing.

use super::*;

#[test]
fn wild_claims_of_the_other_side_do_no_harm_here() {
    let mut rng = Rng(77);
    let mut moved = [0; 2];
    for seed in 0..300 {
        let mut world = World::new(seed + 1);
        world.attach(0);
        world.attach(1);
        for _ in 0..200 {
            let words = world.slot.words();
            // What end 1 can write: its lines of both directions, and more, for it can write all of
            // them.
            let (tail, head) = (&words.directions[1].tail, &words.directions[0].head);
            match rng.below(8) {
                0 => tail.store(rng.below(u64::MAX), Ordering::Relaxed),
                1 => head.store(rng.below(u64::MAX), Ordering::Relaxed),
                2 => words.directions[1].change(rng.below(u64::MAX)),
                3 => words.directions[1].begin_change(),
                4 => words.directions[1].sender_flags.store(rng.below(4) as u32, Ordering::Relaxed),
                5 => words.directions[0].receiver_flags.store(rng.below(8) as u32, Ordering::Relaxed),
                _ => {
                    let other = &world.ends[1];
                    let (sending, _) = other.core.send(ME, &socket(&world.wires, 1), &[IoSlice::new(&[2; 100])]);
                    if sending == Sending::Kernel {
                        other.core.end_kernel_send();
                    }
                }
            }
            let end = &world.ends[0];
            let mut buffer = [0; 300];
            let mut into = [IoSliceMut::new(&mut buffer)];
            let (receiving, _) = end.core.receive(ME, &socket(&world.wires, 0), &mut into, true);
            match receiving {
                Receiving::Done(n) | Receiving::OfKernel(n) => {
                    assert!(n <= 300, "{n} bytes came into 300");
                    moved[0] += n;
                }
                Receiving::Failed(errno) => assert_ne!(errno, Errno::FAULT),
                Receiving::Empty | Receiving::Kernel | Receiving::Locked(_) => {}
            }
            let (sending, _) = end.core.send(ME, &socket(&world.wires, 0), &[IoSlice::new(&[1; 100])]);
            match sending {
                Sending::Done(n) => {
                    assert!((1..=100).contains(&n), "{n} bytes went of 100");
                    moved[1] += n;
                }
                Sending::Kernel => end.core.end_kernel_send(),
                Sending::Failed(errno) => assert_ne!(errno, Errno::FAULT),
                Sending::Full | Sending::Locked(_) => {}
            }
            end.core.may_be_readable();
            end.core.may_be_writable();
        }
    }
    assert!(moved.iter().all(|bytes| *bytes > 1_000), "nothing is left to be claimed wrongly: {moved:?}");
}

#[test]
fn wild_words_of_a_ring_that_is_taken_back_do_no_harm() {
    let mut rng = Rng(78);
    let mut withdrawn = 0;
    for seed in 0..300 {
        let mut world = World::new(seed + 1);
        enter_ring(&mut world);
        // More than a ring at a time.
        world.wires[0].more.set(1 << 20);
        let (core, own) = (&world.ends[0].core, &world.slot.words().directions[0]);
        let _ = core.ask_back(ME);
        for _ in 0..20 {
            // Nobody has followed; the other end can write all of the words.
            own.receiver_flags.store(0, Ordering::Relaxed);
            while !own.announced().in_ring() || own.announced().number == own.reached() {
                own.enter_ring(rng.below(u64::MAX));
            }
            let words = [&own.tail, &own.head, &own.leaves_from, &own.spills_behind, &own.ring_began, &own.head_seen];
            (0..rng.below(6)).for_each(|_| {
                words[rng.below(6) as usize].store(rng.below(u64::MAX), Ordering::Relaxed);
            });
            match rng.below(6) {
                0 => own.begin_change(),
                1 => own.cancel_change(),
                2 => drop(own.begin_spill()),
                3 => own.end_front(),
                _ => {}
            }
            let in_ring = core.outgoing().announced().in_ring();
            let before = socket(&world.wires, 0).sent().unwrap();
            core.hand_back(ME, &socket(&world.wires, 0));
            let moved = socket(&world.wires, 0).sent().unwrap() - before;
            assert!(moved <= world.slot.most_bytes(), "{moved} bytes went of a ring");
            world.wires[0].deliver(usize::MAX);
            let mut rest = [0; 8192];
            while socket(&world.wires, 1).receive_now(&mut [IoSliceMut::new(&mut rest)], true).is_ok_and(|n| n > 0) {}
            withdrawn += usize::from(in_ring && !core.outgoing().announced().in_ring());
        }
    }
    assert!(withdrawn >= 50, "hardly a ring was left or withdrawn: {withdrawn}");
}
