//! Messages among the ranks of jobs: members that are killed, floods, an abort, more members than
//! processors.
//!
//! Invariant: who waits for a member that has gone learns of it, and the others go on; nothing
//! grows, and nothing is lost.

mod common;

use common::{PATIENCE, command, kill, text};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc_job::Job;
use vmmc_mp::limits::CONNECT_TRY;
use vmmc_mp::{Gone, Messages, MpError, Op, Request, Select};

/// What a rank does. Started by the tests below.
#[test]
#[ignore = "the ranks of the other tests"]
fn member() {
    let Ok(role) = std::env::var("TEST_ROLE") else { return };
    let job = Arc::new(Job::attach().expect("we were started by vmmc run"));
    let messages = Messages::over(job.clone()).timeout(PATIENCE).create().expect("it is made");
    match role.as_str() {
        "killed" => killed(&messages),
        "killed-busy" => killed_while_busy(&messages),
        "flood" => flood(&messages),
        "never" => never_received(&messages),
        "abort" => abort(&messages),
        "crowd" => crowd(&messages),
        "late-node" => late_node(&job, &messages),
        other => panic!("no role {other}"),
    }
    println!("fine");
}

fn die() -> ! {
    kill(std::process::id());
    unreachable!("SIGKILL ends a process");
}

fn failed_last(messages: &Messages, error: &MpError) {
    let last = messages.size() - 1;
    assert!(
        matches!(error, MpError::Gone { rank, how: Gone::Failed | Gone::Unreachable { .. } } if *rank == last),
        "{error}"
    );
}

/// The last of four dies while others wait for it in every way; those then go on without it.
fn killed(messages: &Messages) {
    let world = messages.world();
    let (rank, last) = (world.rank(), world.size() - 1);
    let rest = world.split((rank != last).then_some(1), 0).expect("all are here");
    let Some(rest) = rest else {
        world.send(0, 1, b"last words").expect("it is sent");
        for _ in 0..last {
            world.receive(Select::any().tag(7), &mut [0; 1]).expect("each is ready");
        }
        die();
    };
    world.send(last, 7, b"!").expect("it lives");
    let error = match rank {
        0 => {
            let error = world.receive(Select::from(last).tag(2), &mut [0; 8]).expect_err("it dies");
            let mut bytes = [0; 10];
            world.receive(Select::from(last), &mut bytes).expect("what it sent before is here");
            assert_eq!(&bytes, b"last words");
            error
        }
        // Longer than what goes at once: it waits for a receive.
        1 => world.send(last, 3, &vec![1; 1 << 20]).expect_err("it dies"),
        _ => world.barrier().expect_err("one of all dies"),
    };
    failed_last(messages, &error);
    let mut sum = [1u32];
    rest.allreduce(&mut sum, Op::Sum).expect("the others are here");
    assert_eq!(sum[0], last);
    failed_last(messages, &world.allreduce(&mut sum, Op::Sum).expect_err("one of all is gone"));
    failed_last(messages, &world.send(last, 1, b"x").expect_err("it is gone"));
    rest.barrier().expect("the others are here");
}

/// The last one dies in the middle of long messages from all to all.
fn killed_while_busy(messages: &Messages) {
    let world = messages.world();
    let (rank, size, last) = (world.rank(), world.size(), world.size() - 1);
    let rest = world.split((rank != last).then_some(1), 0).expect("all are here");
    let (own, mut all) = (vec![rank as u8; 300_000 * size as usize], vec![0; 300_000 * size as usize]);
    if rank == last {
        // Somewhere in it.
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            die();
        });
    }
    let error = loop {
        match world.all_to_all(&own, &mut all) {
            Ok(()) => {
                for (from, part) in all.chunks_exact(300_000).enumerate() {
                    assert!(part.iter().all(|byte| *byte == from as u8), "what came of rank {from}");
                }
            }
            Err(error) => break error,
        }
    };
    failed_last(messages, &error);
    let rest = rest.expect("the last one is dead");
    for _ in 0..20 {
        let mut sum = [1u32];
        rest.allreduce(&mut sum, Op::Sum).expect("the others are here");
        assert_eq!(sum[0], last);
    }
}

/// Memory of this process, bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("there is /proc");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number");
    pages * 4096
}

/// A million messages to one that does nothing, then lets them come, then receives them.
fn flood(messages: &Messages) {
    const COUNT: u64 = 1_000_000;
    let world = messages.world();
    world.barrier().expect("both are here");
    let before = resident();
    if world.rank() == 0 {
        (0..COUNT).for_each(|number| world.send(1, 1, &number.to_le_bytes()).expect("it waits for room"));
    } else {
        std::thread::sleep(Duration::from_millis(300));
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            messages.poll().expect("it goes on");
        }
        assert!(resident() < before + (8 << 20), "{before} bytes have become {}", resident());
        let mut bytes = [0; 8];
        for number in 0..COUNT {
            world.receive(Select::from(0), &mut bytes).expect("it comes");
            assert_eq!(u64::from_le_bytes(bytes), number);
        }
    }
    assert!(resident() < before + (8 << 20), "{before} bytes have become {}", resident());
    world.barrier().expect("both are here");
}

/// One that never receives, and ends: who sends to it waits, then learns of its end.
fn never_received(messages: &Messages) {
    let world = messages.world();
    if world.rank() == 1 {
        std::thread::sleep(Duration::from_millis(500));
        return;
    }
    let before = resident();
    let mut sent = 0;
    let error = loop {
        match world.send(1, 1, &[1; 64]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, MpError::Gone { rank: 1, .. }), "{error}");
    assert!(sent < 10_000 && resident() < before + (8 << 20), "{sent} messages were sent");
}

fn abort(messages: &Messages) {
    let world = messages.world();
    let entered = world.barrier();
    if world.rank() == 2 {
        messages.abort(7, "that is enough");
    }
    // That one leaves the barrier when all have entered it: others may still be in it.
    let receive = |()| world.receive(Select::any(), &mut [0; 1]);
    let error = entered.and_then(receive).expect_err("one ends all");
    println!("{error}");
    assert_eq!(error, MpError::Aborted { rank: 2, code: 7, text: "that is enough".into() });
    assert_eq!(world.barrier(), Err(error));
}

/// Everybody with everybody, in every way.
fn crowd(messages: &Messages) {
    let world = messages.world();
    let (rank, size) = (world.rank(), world.size());
    for round in 0..20u64 {
        world.barrier().expect("all are here");
        let mut sum = [u64::from(rank) + round];
        world.allreduce(&mut sum, Op::Sum).expect("all are here");
        assert_eq!(sum[0], (0..u64::from(size)).sum::<u64>() + round * u64::from(size));
    }
    let from: Vec<u8> = (0..size).flat_map(|to| [rank as u8, to as u8, 0, 0].repeat(250)).collect();
    let mut to = vec![0; from.len()];
    world.all_to_all(&from, &mut to).expect("all are here");
    for (of, part) in to.chunks_exact(1000).enumerate() {
        assert_eq!(part[..2], [of as u8, rank as u8]);
    }
    let next = (rank + 1) % size;
    let (own, mut came) = (vec![rank as u8; 100_000], vec![0; 100_000]);
    let status = world.exchange(next, 5, &own, Select::any().tag(5), &mut came).expect("all are here");
    assert!(status.source == (rank + size - 1) % size && came.iter().all(|byte| u32::from(*byte) == status.source));
    // All to one.
    if rank == 0 {
        let begin = |_| world.start_receive(Select::any().tag(6), vec![0; 8]).expect("it begins");
        let requests: Vec<Request<Vec<u8>>> = (1..size).map(begin).collect();
        let mut sources: Vec<u32> =
            vmmc_mp::wait_all(requests).expect("all come").iter().map(|(status, _)| status.source).collect();
        sources.sort_unstable();
        assert_eq!(sources, (1..size).collect::<Vec<_>>());
    } else {
        world.send(0, 6, b"to one").expect("it is sent");
    }
    world.barrier().expect("all are here");
}

/// The node does nothing for longer than one try to connect to a member takes.
fn late_node(job: &Job, messages: &Messages) {
    let node = std::env::var("TEST_NODE").ok().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let signal = move |signal| kill_process(node.expect("the test names it"), signal).expect("it is ours");
    let world = messages.world();
    // Both have asked it for all that they need, but for each other.
    job.barrier().expect("both are here");
    if world.rank() == 1 {
        world.receive(Select::from(0), &mut [0; 8]).expect("it comes");
        return;
    }
    signal(Signal::STOP);
    let later = std::thread::spawn(move || {
        std::thread::sleep(CONNECT_TRY + Duration::from_secs(3));
        signal(Signal::CONT);
    });
    let sent = world.send(1, 0, b"late");
    later.join().expect("it does not panic");
    sent.expect("a node that is slow is no error");
}

fn job(ranks: &str, options: &[&str], role: &str) -> Output {
    let program = std::env::current_exe().expect("the test has a program");
    let rank = ["--", program.to_str().expect("text"), "member", "--exact", "--ignored", "--nocapture"];
    let node = (!options.contains(&"--nodes")).then(|| common::Node::start(role, &["--plain"]));
    let place: Vec<&str> = node.iter().flat_map(|node| ["--node", node.name.as_str()]).collect();
    let mut run = command(&[&["run", "-n", ranks], &place[..], options, &rank].concat());
    let pid = node.as_ref().map_or(0, |node| node.pid);
    run.env("TEST_ROLE", role).env("TEST_NODE", pid.to_string()).output().expect("it can be started")
}

fn fine(output: &Output, ranks: usize) {
    let said = text(&output.stdout);
    let count = said.lines().filter(|line| line.ends_with("fine")).count();
    assert_eq!(count, ranks, "{said}\n{}", text(&output.stderr));
}

#[test]
fn a_member_that_is_killed_is_an_error_of_who_waits_for_it_and_the_others_go_on() {
    fine(&job("4", &["--keep-going"], "killed"), 3);
    fine(&job("4", &["--keep-going", "--nodes", "2"], "killed"), 3);
}

#[test]
fn a_member_that_is_killed_in_mid_message_leaves_the_others_well() {
    fine(&job("4", &["--keep-going"], "killed-busy"), 3);
    fine(&job("4", &["--keep-going", "--nodes", "2"], "killed-busy"), 3);
}

#[test]
fn a_million_messages_that_are_not_received_wait_with_their_sender() {
    fine(&job("2", &[], "flood"), 2);
}

#[test]
fn a_member_that_never_receives_holds_its_sender_up() {
    fine(&job("2", &[], "never"), 2);
}

#[test]
fn one_member_ends_all_with_its_message() {
    let output = job("4", &["--keep-going"], "abort");
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("rank 2 ends all: that is enough"), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert_eq!(said.matches("rank 2 has ended all with code 7: that is enough").count(), 3, "{said}");
    fine(&output, 3);
}

#[test]
fn sixty_four_members_share_the_processors() {
    fine(&job("64", &[], "crowd"), 64);
    fine(&job("16", &["--nodes", "4"], "crowd"), 16);
}

#[test]
fn a_node_that_answers_late_is_no_error() {
    let output = job("2", &[], "late-node");
    assert!(output.status.success(), "{output:?}");
    fine(&output, 2);
}
