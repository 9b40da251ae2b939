//! Supersteps of real processes under `vmmc run`: on one node and on two, and with a process that
//! is killed.
//!
//! Invariant: a process that ends in any way is an error of `sync` of the others, never a hang.

mod common;

use common::{Node, PATIENCE, command, text};
use std::process::Output;
use std::time::Instant;
use vmmc_bsp::{Bsp, BspError, Gone};

/// What a process does. Started by the tests below.
#[test]
#[ignore = "the ranks of the other tests"]
fn member() {
    let Ok(role) = std::env::var("TEST_ROLE") else { return };
    let mut bsp = Bsp::attach().expect("we were started by vmmc run");
    match role.as_str() {
        "sums" => sums(&mut bsp),
        "dies" => return dies(&mut bsp),
        "aborts" => return aborts(bsp),
        "waits" => waits(&mut bsp),
        other => panic!("no role {other}"),
    }
    bsp.end().expect("all come to the end");
    println!("fine");
}

/// Everybody's values to everybody, by each way that there is.
fn sums(bsp: &mut Bsp) {
    let (pid, nprocs) = (bsp.pid(), bsp.nprocs());
    let (put, own, got) = (vec![0u64; nprocs as usize], vec![u64::from(pid) + 1], vec![0u64; nprocs as usize]);
    let (put, own, got) = (bsp.area(put), bsp.area(own), bsp.area(got));
    bsp.push_reg(put).expect("there is room");
    bsp.push_reg(own).expect("there is room");
    bsp.set_tagsize(8).expect("it is short");
    bsp.sync().expect("all register");
    for other in 0..nprocs {
        bsp.put(other, &[u64::from(pid) + 1], put, pid as usize).expect("it is inside");
        bsp.get(other, own, 0..1, got, other as usize).expect("it is inside");
        bsp.send(other, &u64::from(pid).to_le_bytes(), &vec![pid as u8; 20_000]).expect("it goes");
    }
    bsp.sync().expect("all goes well");
    let expected: Vec<u64> = (1..=u64::from(nprocs)).collect();
    assert_eq!(bsp.read(put).expect("it is ours"), expected);
    assert_eq!(bsp.read(got).expect("it is ours"), expected);
    assert_eq!(bsp.qsize(), (u64::from(nprocs), 20_000 * u64::from(nprocs)));
    while let Some(message) = bsp.take() {
        assert!(message.bytes.iter().all(|byte| *byte == message.tag[0]));
    }
}

fn dies(bsp: &mut Bsp) {
    bsp.sync().expect("all are here");
    if bsp.pid() == 1 {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("it is ours");
    }
    let start = Instant::now();
    let error = bsp.sync().expect_err("one was killed");
    assert_eq!(error, BspError::Gone { pid: 1, how: Gone::Failed });
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    println!("told");
}

fn aborts(mut bsp: Bsp) {
    bsp.sync().expect("all are here");
    if bsp.pid() == 2 {
        bsp.abort("the matrix is singular");
    }
    let error = bsp.sync().expect_err("one has ended all");
    assert_eq!(error, BspError::Aborted { pid: 2, text: "the matrix is singular".into() });
    println!("told");
}

/// The node does nothing for longer than one try to reach another process takes.
fn waits(bsp: &mut Bsp) {
    let pid = std::env::var("TEST_NODE").ok().and_then(|pid| pid.parse().ok());
    let node = pid.and_then(rustix::process::Pid::from_raw).expect("the test names it");
    let signal = move |signal| rustix::process::kill_process(node, signal).expect("it is ours");
    let later = (bsp.pid() == 0).then(|| {
        signal(rustix::process::Signal::STOP);
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(2500));
            signal(rustix::process::Signal::CONT);
        })
    });
    let done = bsp.sync();
    later.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
    done.expect("a node that is slow is no error");
}

fn job(options: &[&str], role: &str) -> Output {
    let own = std::env::current_exe().expect("a test is a file");
    let own = own.to_str().expect("its name is text");
    let mut args = vec!["run"];
    args.extend(options);
    args.extend(["--", own, "--exact", "member", "--ignored", "--nocapture"]);
    let node = Node::start("bsp", &["--plain"]);
    let mut command = command(&args);
    command.env("TEST_ROLE", role).env("TEST_NODE", node.pid.to_string()).env("VMMC_NODE", &node.name);
    command.output().expect("the command can be started")
}

fn count(output: &Output, word: &str) -> usize {
    text(&output.stdout).matches(word).count()
}

#[test]
fn processes_of_a_job_exchange_by_puts_gets_and_messages() {
    let output = job(&["-n", "4"], "sums");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(count(&output, "fine"), 4, "{output:?}");
}

#[test]
fn sixty_four_processes_get_through() {
    let output = job(&["-n", "64"], "sums");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(count(&output, "fine"), 64, "{output:?}");
}

#[test]
fn a_node_that_answers_late_is_no_error() {
    let output = job(&["-n", "2"], "waits");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(count(&output, "fine"), 2, "{output:?}");
}

#[test]
fn a_killed_process_is_an_error_of_the_sync_of_the_others() {
    let output = job(&["-n", "3", "--keep-going"], "dies");
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(count(&output, "told"), 2, "{output:?}");
}

#[test]
fn an_abort_ends_all_with_its_message() {
    let output = job(&["-n", "3", "--keep-going"], "aborts");
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(count(&output, "told"), 2, "{output:?}");
    assert!(text(&output.stderr).contains("process 2 ends all: the matrix is singular"), "{output:?}");
}
