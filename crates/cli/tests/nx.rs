//! The C library for NX: every call, on one node and on two, what goes wrong, and applications that
//! start themselves. Its programs are in `bindings/nx/tests/programs`.
//!
//! Invariant: where there is no compiler for C a line says that the tests do nothing.

mod common;
#[path = "../../../bindings/nx/link.rs"]
mod link;

use common::{Folder, Node, command, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
// So that cargo makes the static library.
use vmmc_nx_c as _;

/// The folder with the library and the programs, made once; none, and a line: nothing compiles C.
fn programs() -> Option<&'static Path> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(make) {
        Ok(folder) => Some(folder),
        Err(why) => {
            println!("SKIP programs of NX: {why}");
            None
        }
    }
}

fn make() -> Result<PathBuf, String> {
    if link::compiler().arg("--version").output().is_err() {
        return Err("no compiler for C here; the package gcc brings one".into());
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/nx");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nx");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    link::library(&sources, &static_library(), &folder.join(link::SONAME)).expect("the library");
    std::os::unix::fs::symlink(link::SONAME, folder.join("libvmmc_nx.so")).expect("a link");
    for source in ["tests/programs/conformance.c", "tests/programs/failures.c", "examples/barnes.c", "examples/ocean.c"]
    {
        let name = Path::new(source).file_stem().expect("it has a name");
        let mut command = link::compiler();
        command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(sources.join("include"));
        command.arg("-o").arg(name).arg(sources.join(source));
        command.args(["-L.", "-lvmmc_nx", "-lm", "-Wl,-rpath,$ORIGIN"]).current_dir(&folder);
        let done = command.output().expect("the compiler runs");
        assert!(done.status.success(), "{source}: {}", text(&done.stderr));
    }
    Ok(folder)
}

/// The newest one that cargo made: it makes it with the library that this test is linked with.
fn static_library() -> PathBuf {
    let own = std::env::current_exe().expect("a test is a file");
    let folder = own.parent().expect("a test is in a folder");
    let all = std::fs::read_dir(folder).expect("the folder can be read").flatten();
    let ours = all.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("libvmmc_nx_c") && name.ends_with(".a")
    });
    let newest = ours.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
    newest.expect("cargo makes the static library").path()
}

/// Runs a command to its end; one that hangs is ended, and fails with status 124.
fn ended(command: &Command) -> Output {
    let mut bounded = Command::new("timeout");
    bounded.args(["--kill-after=10", "240"]).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(name, value),
            None => bounded.env_remove(name),
        };
    }
    bounded.output().expect("it can be started")
}

/// Runs a program as a job.
fn run(folder: &Path, args: &[&str], program: &str, own: &[&str]) -> Output {
    let home = Folder::new();
    let program = folder.join(program);
    let program = [program.to_str().expect("its path is text")];
    let mut run = command(&[&["run"], args, &["--"], &program, own].concat());
    ended(run.env("XDG_CONFIG_HOME", &home.0))
}

/// Runs a program that is not of a job, with a node of its own.
fn alone(folder: &Path, program: &str, args: &[&str]) -> Output {
    let node = Node::start("nx", &["--plain"]);
    let mut command = Command::new(folder.join(program));
    command.args(args).env("VMMC_NODE", &node.name).env("VMMC_LOG", "off");
    ended(command.env("VMMC_BIN", env!("CARGO_BIN_EXE_vmmc")))
}

fn said(output: &Output) -> String {
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_call_does_what_it_says_on_one_node_and_on_two() {
    let Some(folder) = programs() else { return };
    for (nodes, ranks) in [("1", 1), ("1", 2), ("2", 3), ("2", 5)] {
        let count = ranks.to_string();
        let node = (nodes == "1").then(|| Node::start("nx", &["--plain"]));
        let mut args = vec!["-n", &count];
        match &node {
            Some(node) => args.extend(["--node", &node.name]),
            None => args.extend(["--nodes", nodes]),
        }
        let output = run(folder, &args, "conformance", &[]);
        assert!(output.status.success(), "{ranks} ranks: {}", said(&output));
        assert_eq!(text(&output.stdout).matches("fine").count(), ranks, "{}", said(&output));
        let error = "said: a message of 8 bytes, type 30, from node";
        assert!(text(&output.stderr).contains(error), "{}", said(&output));
    }
}

#[test]
fn applications_on_several_nodes_come_to_the_bits_of_one_node_alone() {
    let Some(folder) = programs() else { return };
    for (nodes, ranks) in [("1", "1"), ("1", "2"), ("1", "5"), ("2", "4")] {
        let node = (nodes == "1").then(|| Node::start("nx", &["--plain"]));
        let mut args = vec!["-n", ranks];
        match &node {
            Some(node) => args.extend(["--node", &node.name]),
            None => args.extend(["--nodes", nodes]),
        }
        for (program, own) in [("barnes", ["600", "3"]), ("ocean", ["34", "2"])] {
            let output = run(folder, &args, program, &own);
            assert!(output.status.success(), "{program} on {ranks}: {}", said(&output));
            let right = format!("{program}: right, to the last bit");
            assert!(text(&output.stdout).contains(&right), "{}", said(&output));
        }
    }
}

#[test]
fn a_plain_call_that_goes_wrong_ends_all_processes_with_its_message() {
    let Some(folder) = programs() else { return };
    let node = Node::start("nx", &["--plain"]);
    for (what, why) in [
        ("long", "node 0, crecv: a message of 10 bytes, type 4, from node 1 for 5 bytes of memory"),
        ("node", "node 1, csend: node 99 does not exist; the application has 3 nodes"),
        ("handler", "node 0, hrecv: a message of 10 bytes, type 4, from node 1 for 5 bytes of memory"),
    ] {
        let output = run(folder, &["-n", "3", "--node", &node.name], "failures", &[what]);
        assert_eq!(output.status.code(), Some(1), "{what}: {}", said(&output));
        assert!(text(&output.stderr).contains(why), "{what}: {}", said(&output));
        assert!(!text(&output.stdout).contains("not to be printed"), "{what}: {}", said(&output));
    }
}

#[test]
fn a_process_that_is_killed_is_an_error_of_the_others_who_go_on() {
    let Some(folder) = programs() else { return };
    for nodes in ["1", "2"] {
        let output = run(folder, &["-n", "3", "--nodes", nodes, "--keep-going"], "failures", &["killed"]);
        assert_eq!(output.status.code(), Some(128 + 9), "{}", said(&output));
        assert_eq!(text(&output.stdout).matches("fine").count(), 2, "{}", said(&output));
    }
}

#[test]
fn what_a_process_has_sent_before_its_end_is_received() {
    let Some(folder) = programs() else { return };
    for (nodes, what, count) in [("1", "leaves", 2), ("2", "leaves", 2), ("1", "exits", 1), ("2", "exits", 1)] {
        let output = run(folder, &["-n", "2", "--nodes", nodes], "failures", &[what]);
        assert!(output.status.success(), "{what}: {}", said(&output));
        assert_eq!(text(&output.stdout).matches("fine").count(), count, "{what}: {}", said(&output));
    }
}

#[test]
fn a_program_starts_itself_or_another_one_as_an_application() {
    let Some(folder) = programs() else { return };
    for (what, count) in [("forks", 3), ("forks-some", 2)] {
        let output = alone(folder, "failures", &[what]);
        assert!(output.status.success(), "{what}: {}", said(&output));
        let out = text(&output.stdout);
        assert!(out.matches("fine").count() == count && out.ends_with("all have ended\n"), "{what}: {}", said(&output));
    }
    let program = folder.join("conformance");
    let output = alone(folder, "failures", &["loads", "-sz", "5", program.to_str().expect("its path is text")]);
    assert!(output.status.success(), "{}", said(&output));
    let out = text(&output.stdout);
    assert!(out.matches("fine").count() == 5 && out.ends_with("0 have failed\n"), "{}", said(&output));
    assert!(text(&output.stderr).contains("said: node 0 was not started"), "{}", said(&output));
}

#[test]
fn a_process_of_no_application_is_told_how_to_start_one() {
    let Some(folder) = programs() else { return };
    let output = alone(folder, "failures", &["alone"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let why = "mynode: this process is no part of an application; start it with `vmmc run -n N -- PROGRAM`";
    assert!(text(&output.stderr).contains(why), "{}", said(&output));
}
