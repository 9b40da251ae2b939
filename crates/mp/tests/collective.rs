//! Collective calls of every number of members up to nine, of few and many bytes, beside what they
//! are to give.

mod common;

use common::{pattern, run};
use vmmc_mp::{Group, MpError, Op, Select};

/// Few bytes, many, and such as are no multiple of anything: all algorithms are taken.
const SIZES: [usize; 8] = [0, 1, 8, 100, 1000, 5000, 70_001, 200_000];

fn all_sizes(call: impl Fn(&Group, usize) + Sync) {
    for members in 1..=9 {
        run(1, members, |messages| {
            for len in SIZES.into_iter().filter(|len| members < 6 || *len < 100_000) {
                call(messages.world(), len);
            }
        });
    }
}

type Naive = fn(u64, u64) -> u64;

fn of(rank: usize, len: usize) -> Vec<u8> {
    pattern(len, rank as u64 + 1)
}

fn of_all(world: &Group, len: usize) -> Vec<u8> {
    (0..world.size() as usize).flat_map(|rank| of(rank, len)).collect()
}

#[test]
fn a_broadcast_gives_all_the_bytes_of_one() {
    all_sizes(|world, len| {
        for root in [0, world.size() - 1, world.size() / 2] {
            let mut bytes = if world.rank() == root { of(root as usize, len) } else { vec![0; len] };
            world.broadcast(root, &mut bytes).expect("all are here");
            assert!(bytes == of(root as usize, len), "{len} bytes of rank {root} of {}", world.size());
        }
    });
}

#[test]
fn gather_and_scatter_are_each_others_inverse() {
    all_sizes(|world, len| {
        for root in [0, world.size() - 1] {
            let (own, is_root) = (of(world.rank() as usize, len), world.rank() == root);
            let mut all = if is_root { vec![0; len * world.size() as usize] } else { Vec::new() };
            world.gather(root, &own, &mut all).expect("all are here");
            assert!(!is_root || all == of_all(world, len), "{len} bytes of {}", world.size());
            let mut back = vec![0; len];
            world.scatter(root, &all, &mut back).expect("all are here");
            assert!(back == own, "{len} bytes of {}", world.size());
        }
    });
}

#[test]
fn an_allgather_gives_all_the_bytes_of_all() {
    all_sizes(|world, len| {
        let mut all = vec![0; len * world.size() as usize];
        world.allgather(&of(world.rank() as usize, len), &mut all).expect("all are here");
        assert!(all == of_all(world, len), "{len} bytes of {}", world.size());
    });
}

#[test]
fn all_to_all_exchanges_rows_and_columns() {
    all_sizes(|world, len| {
        let (size, own) = (world.size() as usize, world.rank() as usize);
        let len = len.min(50_000);
        let from: Vec<u8> = (0..size).flat_map(|to| of(own * size + to, len)).collect();
        let wanted: Vec<u8> = (0..size).flat_map(|from| of(from * size + own, len)).collect();
        let mut to = vec![0; from.len()];
        world.all_to_all(&from, &mut to).expect("all are here");
        assert!(to == wanted, "{len} bytes of {size}");
    });
}

#[test]
fn varied_lengths_are_gathered_and_exchanged() {
    run(1, 5, |messages| {
        let world = messages.world();
        let own = world.rank() as usize;
        let lens: Vec<usize> = (0..5).map(|rank| rank * 9_000).collect();
        let wanted: Vec<u8> = (0..5).flat_map(|rank| of(rank, lens[rank])).collect();
        let mut all = vec![0; wanted.len()];
        world.allgather_varied(&of(own, lens[own]), &lens, &mut all).expect("all are here");
        assert!(all == wanted);
        let mut all = if own == 2 { vec![0; wanted.len()] } else { Vec::new() };
        world.gather_varied(2, &of(own, lens[own]), &lens, &mut all).expect("all are here");
        assert!(own != 2 || all == wanted);
        // Each has for each what the product of their ranks says.
        let lens: Vec<usize> = (0..5).map(|other| own * other * 1000).collect();
        let from: Vec<u8> = (0..5).flat_map(|to| of(own * 5 + to, own * to * 1000)).collect();
        let wanted: Vec<u8> = (0..5).flat_map(|from| of(from * 5 + own, own * from * 1000)).collect();
        let mut to = vec![0; wanted.len()];
        world.all_to_all_varied(&from, &lens, &mut to, &lens).expect("all are here");
        assert!(to == wanted);
    });
}

#[test]
fn values_are_combined() {
    for members in 1..=9u64 {
        run(1, members as u32, |messages| {
            let world = messages.world();
            let rank = u64::from(world.rank());
            for count in [1usize, 7, 300, 30_000] {
                let own: Vec<u64> = (0..count as u64).map(|at| at * 3 + rank * rank + 1).collect();
                let of = |op: Naive, upto: u64| -> Vec<u64> {
                    let value = |at: u64| (0..upto).map(|rank| at * 3 + rank * rank + 1).reduce(op).expect("some");
                    (0..count as u64).map(value).collect()
                };
                let ops: [(Op, Naive); 6] = [
                    (Op::Sum, u64::wrapping_add),
                    (Op::Product, u64::wrapping_mul),
                    (Op::Min, u64::min),
                    (Op::Max, u64::max),
                    (Op::Or, |a, b| a | b),
                    (Op::Xor, |a, b| a ^ b),
                ];
                for (op, naive) in ops {
                    let mut values = own.clone();
                    world.allreduce(&mut values, op).expect("all are here");
                    assert!(values == of(naive, members), "{op:?} of {count} values of {members}");
                    let (mut values, root) = (own.clone(), world.size() - 1);
                    world.reduce(root, &mut values, op).expect("all are here");
                    let wanted = if world.rank() == root { of(naive, members) } else { own.clone() };
                    assert!(values == wanted, "{op:?} of {count} values of {members} at one");
                    let mut values = own.clone();
                    world.scan(&mut values, op).expect("all are here");
                    assert!(values == of(naive, rank + 1), "scan: {op:?} of {count} values of {members}");
                }
            }
        });
    }
}

/// An operation whose order matters: one linear function after another.
fn after(first: &mut [u8], second: &[u8]) {
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (a, b) = (number(first, 0), number(first, 8));
    let (c, d) = (number(second, 0), number(second, 8));
    first[..8].copy_from_slice(&a.wrapping_mul(c).to_le_bytes());
    first[8..].copy_from_slice(&b.wrapping_mul(c).wrapping_add(d).to_le_bytes());
}

#[test]
fn the_order_of_ranks_holds_where_it_matters() {
    for members in 1..=9u64 {
        run(1, members as u32, |messages| {
            let world = messages.world();
            let of = |rank: u64| [(2 * rank + 3).to_le_bytes(), (rank + 5).to_le_bytes()].concat();
            let upto = |end: u64| {
                (0..end).map(of).reduce(|mut all, next| {
                    after(&mut all, &next);
                    all
                })
            };
            let rank = u64::from(world.rank());
            let mut bytes = of(rank);
            world.allreduce_by(&mut bytes, &mut after).expect("all are here");
            assert_eq!(Some(bytes), upto(members));
            let mut bytes = of(rank);
            world.scan_by(&mut bytes, &mut after).expect("all are here");
            assert_eq!(Some(bytes), upto(rank + 1));
            for root in 0..world.size() {
                let mut bytes = of(rank);
                world.reduce_by(root, &mut bytes, &mut after).expect("all are here");
                assert!(world.rank() != root || Some(bytes) == upto(members));
            }
        });
    }
}

#[test]
fn floats_have_no_bits_and_lengths_are_checked() {
    run(1, 2, |messages| {
        let world = messages.world();
        assert_eq!(world.allreduce(&mut [1.0], Op::Xor), Err(MpError::NoOperation { op: Op::Xor }));
        let error = world.allgather(b"12", &mut [0; 5]).expect_err("it is too long");
        assert_eq!(error, MpError::Length { what: "allgather: memory for all", len: 5, wanted: 4 });
        let error = world.all_to_all(b"123", &mut [0; 3]).expect_err("no two parts");
        assert_eq!(error, MpError::Length { what: "all to all: bytes for all", len: 3, wanted: 2 });
        assert_eq!(world.broadcast(2, &mut [0]), Err(MpError::NoRank { rank: 2, size: 2 }));
        world.barrier().expect("nothing of that was sent");
    });
}

#[test]
fn a_barrier_is_left_when_all_have_entered_it() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let entered = AtomicU32::new(0);
    run(1, 7, |messages| {
        for round in 1..=100 {
            entered.fetch_add(1, Ordering::SeqCst);
            messages.world().barrier().expect("all are here");
            assert!(entered.load(Ordering::SeqCst) >= 7 * round);
        }
    });
}

#[test]
fn groups_are_apart() {
    run(1, 6, |messages| {
        let world = messages.world();
        let rank = world.rank();
        // Odd and even ones, backwards; one is in none.
        let colour = (rank != 5).then_some(u64::from(rank % 2));
        let group = world.split(colour, -i64::from(rank)).expect("all are here");
        assert_eq!(group.is_some(), rank != 5);
        if let Some(group) = &group {
            let members: &[u32] = if rank % 2 == 0 { &[4, 2, 0] } else { &[3, 1] };
            let known: Vec<u32> = (0..group.size()).map(|own| group.member(own).expect("it is there")).collect();
            assert_eq!((known.as_slice(), known[group.rank() as usize]), (members, rank));
            let mut sum = [rank];
            group.allreduce(&mut sum, Op::Sum).expect("all are here");
            assert_eq!(sum[0], members.iter().sum::<u32>());
        }
        // A message of one group is not received in another, be it the newer one.
        let twin = world.duplicate().expect("all are here");
        let (next, last) = ((rank + 1) % 6, (rank + 5) % 6);
        world.send(next, 1, b"world").expect("it is sent");
        twin.send(next, 1, b"twin").expect("it is sent");
        let mut bytes = [0; 8];
        let status = twin.receive(Select::any(), &mut bytes).expect("it comes");
        assert_eq!((status.source, &bytes[..status.len as usize]), (last, &b"twin"[..]));
        // With its tag, for others that are through say so in the same group.
        let status = world.receive(Select::any().tag(1), &mut bytes).expect("it comes");
        assert_eq!((status.source, &bytes[..status.len as usize]), (last, &b"world"[..]));
        if let Some(group) = &group {
            let other = (group.rank() + 1) % group.size();
            let mut came = [0];
            let status = group.exchange(other, 2, &[rank as u8], Select::any(), &mut came).expect("both go");
            assert_eq!(group.member(status.source), Ok(came[0].into()));
        }
    });
}
