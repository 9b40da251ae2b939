//! Supersteps of processes on threads, within a node and between two.

mod common;

use common::{pattern, run, run_open};
use vmmc_bsp::{Bsp, BspError};

const LENGTHS: [usize; 9] = [1, 8, 900, 5_000, 16_000, 17_000, 70_000, 300_000, 3_000_001];

/// Every process puts to, gets from and sends to every one, itself among them.
fn all_to_all(bsp: &mut Bsp) {
    let (pid, nprocs) = (bsp.pid() as usize, bsp.nprocs() as usize);
    let most = LENGTHS[LENGTHS.len() - 1];
    let area = bsp.area(vec![0u8; most * nprocs]);
    let own = bsp.area(vec![0u8; most]);
    let got = bsp.area(vec![0u8; most * nprocs]);
    bsp.push_reg(area).expect("there is room");
    bsp.push_reg(own).expect("there is room");
    bsp.set_tagsize(2).expect("it is short");
    bsp.sync().expect("all register");
    for (round, len) in LENGTHS.into_iter().enumerate() {
        let seed = |from: usize, to: usize| (100 * round + 10 * from + to) as u64;
        bsp.write(own).expect("it is ours")[..len].copy_from_slice(&pattern(len, seed(pid, pid) + 7));
        for to in 0..nprocs {
            let data = pattern(len, seed(pid, to));
            bsp.put(to as u32, &data, area, most * pid).expect("it is inside");
            bsp.get(to as u32, own, 0..len, got, most * to).expect("it is inside");
            bsp.send(to as u32, &[pid as u8, round as u8], &data).expect("it goes");
        }
        bsp.sync().expect("all goes well");
        let mut came = vec![false; nprocs];
        assert_eq!(bsp.qsize(), (nprocs as u64, (nprocs * len) as u64));
        while let Some(message) = bsp.take() {
            let from = message.tag[0] as usize;
            assert!(message.bytes == pattern(len, seed(from, pid)), "a message of {len} bytes");
            assert_eq!((message.tag[1] as usize, came[from]), (round, false));
            came[from] = true;
        }
        for from in 0..nprocs {
            let put = &bsp.read(area).expect("it is ours")[most * from..][..len];
            assert!(put == pattern(len, seed(from, pid)), "{len} bytes put by {from}");
            let got = &bsp.read(got).expect("it is ours")[most * from..][..len];
            assert!(got == pattern(len, seed(from, from) + 7), "{len} bytes got from {from}");
        }
    }
}

#[test]
fn all_lengths_go_from_all_to_all_within_a_node() {
    run(1, 3, all_to_all);
}

#[test]
fn all_lengths_go_from_all_to_all_between_nodes() {
    run(2, 3, all_to_all);
}

#[test]
fn a_process_alone_has_supersteps_without_a_node() {
    let mut bsp = Bsp::alone().create().expect("nothing is needed");
    all_to_all(&mut bsp);
    bsp.end().expect("nobody is waited for");
}

#[test]
fn gets_read_before_puts_write_and_what_is_put_is_copied_at_once() {
    run(1, 4, |bsp| {
        let (pid, nprocs) = (bsp.pid(), bsp.nprocs());
        let next = (pid + 1) % nprocs;
        let value = bsp.area(vec![u64::from(pid)]);
        let got = bsp.area(vec![0u64]);
        bsp.push_reg(value).expect("there is room");
        bsp.sync().expect("all register");
        for round in 0..500u64 {
            let mut mine = [1000 * round + u64::from(pid)];
            bsp.get(next, value, 0..1, got, 0).expect("it is inside");
            bsp.put(next, &mine, value, 0).expect("it is inside");
            mine[0] = u64::MAX;
            let before = bsp.read(value).expect("it is ours")[0];
            bsp.sync().expect("all goes well");
            let expected = |of: u32, round: u64| 1000 * round + u64::from((of + nprocs - 1) % nprocs);
            assert_eq!(bsp.read(value).expect("it is ours")[0], expected(pid, round));
            let old = if round == 0 { u64::from(next) } else { expected(next, round - 1) };
            assert_eq!(bsp.read(got).expect("it is ours")[0], old, "round {round}, {mine:?}, {before}");
        }
    });
}

#[test]
fn processes_that_are_early_do_not_disturb_those_that_are_late() {
    run(1, 3, |bsp| {
        let (pid, nprocs) = (bsp.pid(), bsp.nprocs());
        let area = bsp.area(vec![0u32; 50_000 * nprocs as usize]);
        bsp.push_reg(area).expect("there is room");
        bsp.sync().expect("all register");
        for round in 0..60u32 {
            if round % nprocs == pid {
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
            let values = vec![1000 * round + pid; 50_000];
            for to in 0..nprocs {
                bsp.put(to, &values, area, 50_000 * pid as usize).expect("it is inside");
            }
            bsp.sync().expect("all goes well");
            for (at, value) in bsp.read(area).expect("it is ours").iter().enumerate() {
                assert_eq!(*value, 1000 * round + at as u32 / 50_000);
            }
        }
    });
}

#[test]
fn more_processes_than_cores_get_through() {
    run(1, 20, |bsp| {
        let (pid, nprocs) = (bsp.pid(), bsp.nprocs());
        let all = bsp.area(vec![0u32; nprocs as usize]);
        bsp.push_reg(all).expect("there is room");
        bsp.sync().expect("all register");
        for round in 0..5 {
            (0..nprocs).for_each(|to| bsp.put(to, &[pid + round], all, pid as usize).expect("it is inside"));
            bsp.sync().expect("all goes well");
            assert!(bsp.read(all).expect("it is ours").iter().enumerate().all(|(at, v)| *v == at as u32 + round));
        }
    });
}

#[test]
fn what_makes_no_sense_is_an_error_and_changes_nothing() {
    run(1, 2, |bsp| {
        let area = bsp.area(vec![0u16; 4 + 4 * bsp.pid() as usize]);
        let other = bsp.area(vec![0u16; 4]);
        assert_eq!(bsp.put(0, &[1u16], area, 0), Err(BspError::NotRegistered));
        bsp.push_reg(area).expect("there is room");
        bsp.sync().expect("all register");
        assert_eq!(bsp.put(2, &[1u16], area, 0), Err(BspError::NoProcess { pid: 2, nprocs: 2 }));
        let outside = BspError::OutsideOfArea { pid: 0, offset: 8, end: 10, size: 8 };
        assert_eq!(bsp.put(0, &[1u16], area, 4), Err(outside));
        bsp.put(1, &[1u16], area, 7).expect("the other one has registered more");
        let outside = BspError::OutsideOfArea { pid: 0, offset: u64::MAX, end: u64::MAX, size: 8 };
        assert_eq!(bsp.put(0, &[1u16], area, usize::MAX), Err(outside));
        assert_eq!(bsp.get(1, area, 0..5, other, 0), Err(BspError::NoRange { start: 0, end: 10, size: 8 }));
        assert_eq!(bsp.get(1, other, 0..1, area, 0), Err(BspError::NotRegistered));
        assert_eq!(bsp.send(1, &[1], &[]), Err(BspError::TagSize { len: 1, size: 0 }));
        assert_eq!(bsp.set_tagsize(5000), Err(BspError::TagTooLong { size: 5000 }));
        assert_eq!(bsp.pop_reg(other), Err(BspError::NothingToPop));
        bsp.sync().expect("nothing has happened");
        assert_eq!(bsp.qsize(), (0, 0));
        let mut alone = Bsp::alone().create().expect("nothing is needed");
        let foreign = alone.area(vec![0u16; 4]);
        assert_eq!(bsp.push_reg(foreign), Err(BspError::NoArea));
    });
}

#[test]
fn a_sync_that_failed_is_an_error_on_all_and_later_calls_say_why() {
    run_open(1, 2, |mut bsp| {
        if bsp.pid() == 0 {
            bsp.push_none().expect("there is room");
        }
        let (ours, theirs) = if bsp.pid() == 0 { (1, 0) } else { (0, 1) };
        let uneven = BspError::Uneven { pid: bsp.pid(), ours, other: 1 - bsp.pid(), theirs };
        assert_eq!(bsp.sync(), Err(uneven.clone()));
        assert_eq!(bsp.sync(), Err(BspError::Over(Box::new(uneven.clone()))));
        assert_eq!(bsp.end(), Err(BspError::Over(Box::new(uneven))));
    });
}

#[test]
fn who_goes_without_an_end_is_an_error_of_the_others() {
    run_open(1, 3, |mut bsp| {
        bsp.sync().expect("all are here");
        if bsp.pid() == 1 {
            return;
        }
        let error = bsp.sync().expect_err("one has gone");
        assert!(matches!(&error, BspError::Aborted { pid: 1, text } if text.contains("without the call")), "{error}");
    });
}
