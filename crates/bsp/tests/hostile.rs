//! A member that writes what it likes onto the board of another one.
//!
//! Invariant: `sync` of the other one ends, well or with an error: no panic, no hang.

mod common;

use common::{LONG, Nodes, unique};
use std::time::{Duration, Instant};
use vmmc::Rights;
use vmmc_bsp::{Bsp, BspError};

/// Where on a board of two members the slots of sender 1 begin, and bytes of one (`src/board.rs`).
const SENDERS: u64 = 12 * 64;
const SLOT: u64 = 16 << 10;
const SENDER: u64 = 3 * SLOT + 256;

fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *seed >> 33
}

/// What a slot may begin with: words that are small, large, or random.
fn head(seed: &mut u64) -> Vec<u8> {
    let mut words = vec![1u64];
    for _ in 0..24 {
        let word = match next(seed) % 5 {
            0 => next(seed) % 4,
            1 => next(seed) % 5000,
            2 => u64::MAX - next(seed) % 3,
            3 => ((next(seed) % 3) << 32) | (next(seed) % 3),
            _ => (next(seed) << 32) | next(seed),
        };
        words.push(word);
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn whatever_a_member_writes_a_sync_ends() {
    let nodes = Nodes::start(1);
    let mut refused = 0;
    for round in 0..120u64 {
        let mut seed = round + 1;
        let name = unique("hostile");
        let (victim, hostile) = (nodes.attach(0), nodes.attach(0));
        let mut bsp = Bsp::among(victim, &name, 0, &[None, None]).timeout(Duration::from_secs(2)).create().unwrap();
        let area = bsp.area(vec![0u8; 64]);
        bsp.push_reg(area).unwrap();
        let _own = hostile.export(SENDERS + 2 * SENDER).name(&format!("bsp.{name}.1/vmmc.bsp.board")).create().unwrap();
        let _out = hostile.export(4096).name(&format!("bsp.{name}.1/vmmc.bsp.out1.0")).create().unwrap();
        let board = hostile.import(&format!("bsp.{name}.0/vmmc.bsp.board")).rights(Rights::READ | Rights::WRITE);
        let board = board.wait(LONG).open().unwrap();
        let head = head(&mut seed);
        for half in 0..3 {
            board.send(SENDERS + SENDER + half * SLOT, &head).unwrap();
        }
        if round % 7 == 0 {
            board.send(11 * 64, &(next(&mut seed) % 4).to_le_bytes()).unwrap();
        }
        // The barrier, as often as is wanted.
        board.send(0, &u64::MAX.to_le_bytes()).unwrap();
        let start = Instant::now();
        match bsp.sync() {
            Ok(()) => {}
            Err(BspError::Misbehaved { pid: 1, .. }) => refused += 1,
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(start.elapsed() < LONG, "round {round}");
    }
    assert!(refused > 20, "{refused} were refused");
}
