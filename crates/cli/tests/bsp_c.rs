//! BSPlib for C: programs of the header `bsp.h` under `vmmc run`, and alone.
//!
//! Invariant: where there is no compiler for C, each test says so in a line that begins with SKIP.

mod common;

#[path = "../../../bindings/bsp/link.rs"]
mod link;

use common::{Node, command, text, unique};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/bsp")
}

/// The newest one that cargo made: it makes it for this test.
fn static_library() -> PathBuf {
    let own = std::env::current_exe().expect("a test is a file");
    let all = std::fs::read_dir(own.parent().expect("a test is in a folder")).expect("it can be read").flatten();
    let ours = all.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("libvmmc_bsp_c") && name.ends_with(".a")
    });
    let newest = ours.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
    newest.expect("cargo makes the static library").path()
}

/// The folder with the library; none, and a skip: there is no compiler.
fn library() -> Option<&'static Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        if link::compiler().arg("--version").output().is_err() {
            return None;
        }
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bsp_c");
        let _ = std::fs::remove_dir_all(&made);
        std::fs::create_dir_all(&made).expect("a folder");
        link::library(&folder(), &static_library(), &made.join(link::SONAME)).expect("the library");
        std::os::unix::fs::symlink(link::SONAME, made.join("libvmmc_bsp.so")).expect("a link");
        Some(made)
    });
    if made.is_none() {
        println!("SKIP programs of BSPlib in C: no compiler here; the package gcc brings one");
    }
    made.as_deref()
}

/// Makes a program of one source, in a file of its own: another test may run it meanwhile.
fn program(source: &str) -> Option<String> {
    let made = library()?;
    let name = Path::new(source).file_stem().expect("it has a name").to_string_lossy();
    let to = made.join(unique(&name));
    let mut compile = link::compiler();
    compile.args(["-std=c99", "-D_DEFAULT_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]);
    compile.arg(folder().join("include")).arg("-o").arg(&to).arg(folder().join(source)).arg("-L").arg(made);
    let done = compile.args(["-lvmmc_bsp", "-lm", "-Wl,-rpath,$ORIGIN"]).output().expect("the compiler can be started");
    assert!(done.status.success(), "{source}: {}", text(&done.stderr));
    Some(to.to_str().expect("its name is text").to_string())
}

fn job(ranks: &str, program: &str, args: &[&str]) -> Output {
    let node = Node::start("bsp-c", &["--plain"]);
    let all: Vec<&str> = ["run", "-n", ranks, "--", program].into_iter().chain(args.iter().copied()).collect();
    command(&all).env("VMMC_NODE", &node.name).output().expect("the command can be started")
}

#[test]
fn every_call_does_what_the_header_says() {
    let Some(program) = program("tests/programs/conformance.c") else { return };
    for ranks in ["1", "2", "5"] {
        let output = job(ranks, &program, &[]);
        assert!(output.status.success(), "{ranks}: {output:?}");
        let ranks: usize = ranks.parse().expect("a number");
        assert_eq!(text(&output.stdout).matches("fine").count(), ranks, "{output:?}");
    }
}

#[test]
fn a_program_that_is_started_alone_is_the_only_process() {
    let Some(program) = program("tests/programs/conformance.c") else { return };
    let output = Command::new(program).env_remove("VMMC_JOB").output().expect("it can be started");
    assert!(output.status.success() && text(&output.stdout) == "fine\n", "{output:?}");
}

#[test]
fn mistakes_end_all_with_a_message_that_says_what_to_do() {
    let Some(program) = program("tests/programs/failures.c") else { return };
    let cases = [
        ("early", "bsp_sync: call bsp_begin first"),
        ("outside", "process 1: bsp_put: bytes 5 to 9 of an area of which process 0 has registered 8"),
        ("negative", "process 1: bsp_put: `offset` is -4; give 0 or more"),
        ("process", "process 1: bsp_put: process 3 does not exist; there are 3, counted from 0"),
        ("below", "process 1: bsp_get: `pid` is -1; processes are counted from 0"),
        ("unregistered", "process 1: bsp_put: this area is not registered"),
        ("null", "process 1: bsp_put: `src` is NULL"),
        ("empty", "process 1: bsp_move: the queue is empty"),
        ("uneven", "all make the same, in the same order"),
        ("abort", "process 1 ends all: the answer is 42"),
        ("exit", "bsp_sync: process 1 is no longer there"),
        ("late", "bsp_sync: bsp_end was called; no calls follow it"),
    ];
    for (what, message) in cases {
        let output = job("3", &program, &[what]);
        assert!(!output.status.success(), "{what}: {output:?}");
        assert!(text(&output.stderr).contains(message), "{what}: {output:?}");
    }
    let output = job("3", &program, &["kill"]);
    assert!(!output.status.success() && text(&output.stderr).contains("signal 9"), "{output:?}");
}

#[test]
fn processes_beyond_those_that_are_wanted_end_at_once() {
    let Some(program) = program("tests/programs/failures.c") else { return };
    let output = job("5", &program, &["fewer"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout).matches("one of 2\n").count(), 2, "{output:?}");
    assert_eq!(text(&output.stdout).lines().count(), 2, "{output:?}");
}

/// Each checks its own result, and fails if it is wrong.
#[test]
fn ordinary_programs_get_the_right_results() {
    let programs = [
        ("inner_product", "inner product of 100000 numbers"),
        ("sieve", "78498 primes up to 1000000"),
        ("matrix_vector", "4 products of a matrix of 240 rows"),
        ("fft", "transform of 4096 numbers"),
        ("lu", "LU of 96 rows"),
        ("radix_sort", "keys sorted by"),
    ];
    for (name, said) in programs {
        let Some(program) = program(&format!("examples/{name}.c")) else { return };
        for ranks in ["1", "3", "4"] {
            let output = job(ranks, &program, &[]);
            assert!(output.status.success() && text(&output.stdout).contains(said), "{name}, {ranks}: {output:?}");
        }
    }
}

#[test]
fn the_header_the_map_and_the_sources_have_the_same_calls() {
    let read = |name: &str| std::fs::read_to_string(folder().join(name)).expect("it is in the tree");
    let named = |text: &str, before: &str| -> BTreeSet<String> {
        let words = text.lines().filter(|line| line.starts_with(before)).filter_map(|line| {
            let at = line.find("bsp_")?;
            Some(line[at..].split(|c: char| !c.is_alphanumeric() && c != '_').next()?.to_string())
        });
        words.collect()
    };
    let map = named(&read("vmmc_bsp.map"), "        bsp_");
    let header = read("include/bsp.h");
    let declared = ["void bsp_", "int bsp_", "double bsp_"].iter().flat_map(|kind| named(&header, kind));
    assert_eq!(declared.collect::<BTreeSet<_>>(), map);
    let source = read("src/lib.rs").replace("pub unsafe extern", "pub extern");
    let mut defined = named(&source, "pub extern \"C\" fn bsp_");
    defined.extend(named(&read("c/abort.c"), "void bsp_"));
    assert_eq!(defined, map);
    assert_eq!(map.len(), 20);
}
