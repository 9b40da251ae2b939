//! `vmmc trace record` as a user sees it: the transfers of all processes of a program in one trace,
//! its exit code, and what is said when there is nothing.
//!
//! Invariant: the program that is recorded is this test itself, started again.

use std::path::PathBuf;
use std::process::{Command, Output};
use vmmc_node::{Embedded, KeySource, NodeConfig};
use vmmc_utlb::trace::{Format, Op, Record, read};

const PAGE: usize = 4096;
/// More than a ring has room for, so that part of a trace is in its file and part in the ring.
const SENDS: usize = 1500;
const FETCHES: usize = 40;

/// Sends and fetches; with `VMMC_TEST_CHILDREN` it does so in two children besides.
#[test]
#[ignore = "a role that the other tests start"]
fn recorded_program() {
    let name = format!("record-{}", std::process::id());
    let node = Embedded::start(NodeConfig::new(&name).key(KeySource::Plain)).unwrap();
    let attach = || vmmc::Session::over(node.attach().unwrap()).unwrap();
    let (owner, user) = (attach(), attach());
    let export = owner.export(4 * PAGE as u64).name("x").create().unwrap();
    let import = user.import("x").open().unwrap();
    let mut memory = vec![7u8; 4 * PAGE];
    (0..SENDS).for_each(|i| import.send(0, &memory[i..i + PAGE]).unwrap());
    (0..FETCHES).for_each(|_| import.fetch(0, &mut memory[..3 * PAGE]).unwrap());
    if std::env::var_os("VMMC_TEST_CHILDREN").is_some() {
        let children: Vec<_> = (0..2).map(|_| role().env_remove("VMMC_TEST_CHILDREN").spawn().unwrap()).collect();
        children.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
    }
    if let Some(end) = std::env::var_os("VMMC_TEST_END") {
        // Other threads still have their rings, and nothing is freed.
        let other = std::thread::scope(|scope| scope.spawn(|| import.send(0, &memory[..16])).join().unwrap());
        other.unwrap();
        std::mem::forget((import, user, export, owner, node));
        match end.to_str().unwrap() {
            "exit" => std::process::exit(0),
            "return" => {}
            "kill" => rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap(),
            end => unreachable!("{end}"),
        }
        return;
    }
    drop((import, user, export));
    if let Some(code) = std::env::var_os("VMMC_TEST_EXIT") {
        drop(owner);
        std::process::exit(code.to_str().unwrap().parse().unwrap());
    }
}

const ROLE: [&str; 4] = ["--exact", "recorded_program", "--ignored", "--test-threads=1"];

fn role() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(ROLE);
    command
}

fn record(out: &PathBuf, program: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmmc"));
    command.args(["trace", "record", "--out"]).arg(out).arg("--").args(program).envs(variables.iter().copied());
    command.output().unwrap()
}

fn records(trace: &PathBuf) -> Vec<Record> {
    let file = std::fs::File::open(trace).unwrap();
    read("trace", file, Format::Own).unwrap().collect::<Result<_, _>>().unwrap()
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("vmmc-record-{}-{name}", std::process::id()))
}

fn own_program() -> Vec<String> {
    let own = std::env::current_exe().unwrap().to_str().unwrap().to_string();
    std::iter::once(own).chain(ROLE.map(String::from)).collect()
}

#[test]
fn every_transfer_of_every_process_is_in_the_trace() {
    let (own, out) = (own_program(), file("all.vmmc.zst"));
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let output = record(&out, &own, &[("VMMC_TEST_CHILDREN", "1")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let records = records(&out);
    let count = |op: Op, len: usize| records.iter().filter(|r| r.op == op && r.len_bytes == len as u32).count();
    assert_eq!((count(Op::Send, PAGE), count(Op::Fetch, 3 * PAGE)), (3 * SENDS, 3 * FETCHES));
    assert_eq!(records.len(), 3 * (SENDS + FETCHES));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains(&format!("{} records", records.len())), "{told}");
    let processes: std::collections::BTreeSet<u16> = records.iter().map(|r| r.process.0).collect();
    assert_eq!(processes.len(), 3, "equal numbers in different processes are told apart: {processes:?}");
    assert!(records.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns), "by time");
    let info = Command::new(env!("CARGO_BIN_EXE_vmmc")).args(["utlb", "trace", "info"]).arg(&out).output().unwrap();
    assert!(String::from_utf8_lossy(&info.stdout).contains("footprint"));
    std::fs::remove_file(out).unwrap();
}

#[test]
fn its_exit_code_is_the_programs() {
    let (own, out) = (own_program(), file("code.vmmc"));
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let output = record(&out, &own, &[("VMMC_TEST_EXIT", "7")]);
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(records(&out).len(), SENDS + FETCHES, "its trace is kept all the same");
    std::fs::remove_file(out).unwrap();
    let killed = record(&file("none"), &["sh", "-c", "kill -9 $$"], &[]);
    assert_eq!(killed.status.code(), Some(128 + 9));
}

#[test]
fn no_way_to_end_loses_a_record() {
    let (own, out) = (own_program(), file("ends.vmmc"));
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    for (end, code) in [("exit", 0), ("return", 0), ("kill", 128 + 9)] {
        let output = record(&out, &own, &[("VMMC_TEST_END", end)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{end}: {said}");
        assert!(!said.contains("cut"), "{end}: {said}");
        let records = records(&out);
        assert_eq!(records.len(), SENDS + FETCHES + 1, "{end}");
        assert!(records.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns), "{end}: by time");
        std::fs::remove_file(&out).unwrap();
    }
}

#[test]
fn nothing_to_record_is_said() {
    let out = file("nothing.vmmc");
    let output = record(&out, &["true"], &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("attached to no node"), "{said}");
    let output = record(&out, &["/no/such/program"], &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(127) && said.contains("/no/such/program cannot be executed"), "{said}");
    assert!(!out.exists());
}
