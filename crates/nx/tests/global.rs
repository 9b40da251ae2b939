//! Global operations on one to five processes, within a node and between two, beside the same
//! computed at once.
//!
//! Invariant: all processes have the same bits.

mod common;

use common::{pattern, run};
use vmmc_mp::MpError;
use vmmc_nx::{Nx, NxError};

/// One by one over all processes.
fn folded<T: Copy>(size: i64, of: impl Fn(i64) -> Vec<T>, op: impl Fn(T, T) -> T) -> Vec<T> {
    let all: Vec<Vec<T>> = (0..size).map(of).collect();
    let mut result = all[0].clone();
    all[1..].iter().for_each(|next| result.iter_mut().zip(next).for_each(|(one, other)| *one = op(*one, *other)));
    result
}

fn integers(node: i64) -> Vec<i64> {
    (0..7).map(|at| (node + 3) * (at - 2) % 11).collect()
}

/// Small integers, so that no order of additions rounds.
fn floats(node: i64) -> Vec<f64> {
    integers(node).into_iter().map(|number| number as f64).collect()
}

fn singles(node: i64) -> Vec<f32> {
    integers(node).into_iter().map(|number| number as f32).collect()
}

fn check<T: Copy + PartialEq + std::fmt::Debug>(
    nx: &Nx,
    of: fn(i64) -> Vec<T>,
    call: impl Fn(&Nx, &mut [T]) -> Result<(), NxError>,
    op: impl Fn(T, T) -> T,
) {
    let mut values = of(nx.mynode());
    call(nx, &mut values).expect("all are there");
    assert_eq!(values, folded(nx.numnodes(), of, op));
}

#[test]
fn every_operation_gives_what_it_says() {
    for (nodes, size) in [(1, 1), (1, 2), (2, 3), (2, 5)] {
        run(nodes, size, |nx| {
            check(nx, floats, Nx::gdsum, |a, b| a + b);
            check(nx, floats, Nx::gdprod, |a, b| a * b);
            check(nx, floats, Nx::gdhigh, f64::max);
            check(nx, floats, Nx::gdlow, f64::min);
            check(nx, singles, Nx::gssum, |a, b| a + b);
            check(nx, singles, Nx::gsprod, |a, b| a * b);
            check(nx, singles, Nx::gshigh, f32::max);
            check(nx, singles, Nx::gslow, f32::min);
            check(nx, integers, Nx::gisum, |a, b| a + b);
            check(nx, integers, Nx::giprod, |a, b| a * b);
            check(nx, integers, Nx::gihigh, i64::max);
            check(nx, integers, Nx::gilow, i64::min);
            check(nx, integers, Nx::giand, |a, b| a & b);
            check(nx, integers, Nx::gior, |a, b| a | b);
            check(nx, integers, Nx::gixor, |a, b| a ^ b);
            let truths = |node| integers(node).into_iter().map(|n| i64::from(n != 0)).collect::<Vec<_>>();
            for (call, op) in [
                (Nx::gland as fn(&Nx, &mut [i64]) -> _, (|a, b| a & b) as fn(i64, i64) -> i64),
                (Nx::glor, |a, b| a | b),
                (Nx::glxor, |a, b| a ^ b),
            ] {
                let mut values = integers(nx.mynode());
                call(nx, &mut values).expect("all are there");
                assert_eq!(values, folded(nx.numnodes(), truths, op));
            }
        });
    }
}

#[test]
fn bytes_of_all_are_put_behind_each_other_by_node() {
    run(2, 5, |nx| {
        let len = |node: i64| 1000 * node as usize % 3001;
        let bytes = |node| pattern(len(node), node as u64);
        let wanted: Vec<u8> = (0..5).flat_map(bytes).collect();
        let mut all = vec![0; wanted.len() + 10];
        assert_eq!(nx.gcol(&bytes(nx.mynode()), &mut all), Ok(wanted.len()));
        assert!(all[..wanted.len()] == wanted && all[wanted.len()..] == [0; 10]);
        let lens: Vec<usize> = (0..5).map(len).collect();
        let mut all = vec![0; wanted.len()];
        nx.gcolx(&bytes(nx.mynode()), &lens, &mut all).expect("all are there");
        assert!(all == wanted);
        // One that has too little room is an error of all, and the next call goes well.
        let room = if nx.mynode() == 3 { wanted.len() - 1 } else { wanted.len() };
        let short = nx.gcol(&bytes(nx.mynode()), &mut all[..room]).expect_err("there is too little room");
        assert!(matches!(short, NxError::Messages(MpError::Length { .. })), "{short}");
        assert_eq!(nx.gcol(&bytes(nx.mynode()), &mut all), Ok(wanted.len()));
    });
}

#[test]
fn a_function_combines_in_the_order_of_nodes() {
    run(1, 5, |nx| {
        // The first letter of the one before, the last one of the one behind: grouping is free,
        // order is not.
        let own = b'a' + nx.mynode() as u8;
        let mut bytes = [own, own];
        nx.gopf(&mut bytes, &mut |one, other| one[1] = other[1]).expect("all are there");
        assert_eq!(&bytes, b"ae");
    });
}

#[test]
fn messages_of_the_program_do_not_meet_those_of_global_operations() {
    run(1, 3, |nx| {
        let id = nx.irecv(-1, vec![0; 100]).expect("it begins");
        for _ in 0..10 {
            nx.gsync().expect("all are there");
            nx.gdsum(&mut [1.0]).expect("all are there");
        }
        assert!(nx.msgdone(id).expect("it is known").is_none());
        nx.gsync().expect("all are there");
        nx.csend(5, b"mine", (nx.mynode() + 1) % 3, 0).expect("it is sent");
        assert_eq!(nx.msgwait(id).expect("it comes").bytes(), b"mine");
    });
}
