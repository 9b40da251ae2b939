//! The steps of `cargo xtask check`.
//!
//! Invariant: a step never changes the tree; what it builds goes below `target`. Long output goes
//! to `target/xtask/STEP.log`, of which the end is printed on failure.

use crate::Outcome::{self, Failed, Passed, Skipped};
use crate::{failures, root, target_folder, tidy};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One step.
pub(crate) struct Step {
    /// Short name, for the command line.
    pub(crate) name: &'static str,
    /// What it shows.
    pub(crate) what: &'static str,
    /// Runs it.
    pub(crate) run: fn() -> Outcome,
}

/// Profile of all tests: optimised, because the simulator runs thousands of clusters, with
/// assertions and overflow checks.
pub(crate) const PROFILE: &str = "ci";
/// Features that tests turn on by a dependency of theirs, and so do clippy and whatever builds
/// tests or examples; other builds are told.
const FEATURES: &str = "vmmc-sockets/tokio";
/// Seeds of the simulator that every check runs.
const SIM_SEEDS: std::ops::Range<u64> = 1..2001;
/// Seeds that change with each commit, of clusters and as many of stream sockets.
const FRESH_SEEDS: u64 = 500;
/// Seeds of links, that every check runs: their bounds are of rates and times.
const LINK_SEEDS: std::ops::Range<u64> = 0..500;
/// Longest time for one command of a step; a hang is a failure, not a stuck machine.
const STEP_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Hexadecimal digits of the commit's hash that name its seeds: 2^40 starts, far from overflow.
const FRESH_HASH_DIGITS: usize = 10;
/// Seconds for each fuzz target.
const FUZZ_SECONDS: u32 = 10;

/// All steps, cheap ones first.
pub(crate) fn all() -> Vec<Step> {
    let step = |name, what, run| Step { name, what, run };
    vec![
        step("format", "cargo fmt", format as fn() -> Outcome),
        step("tidy", "arrows between crates, unsafe, file heads, licences", tidy::check),
        step("clippy", "warnings are errors", clippy),
        step("docs", "documentation builds without warnings", docs),
        step("tests", "unit, scripted, property, conformance, real processes", tests),
        step("loom", "rings, handshakes, credit and tokens under every interleaving", loom),
        step("miri", "rings under Miri", miri),
        step("ciphers", "the build with AES-256-GCM", ciphers),
        step(
            "sim",
            "simulated clusters with faults: 2,000 seeds, and 500 of each kind that change with each commit; 500 of links",
            sim,
        ),
        step("examples", "the tutorial, each with real processes", examples),
        step("c-library", "the C library: installed, examples built with pkg-config and CMake, run", crate::c::check),
        step("python", "the Python package: pip install, tests, tutorial, stubs", crate::python::check),
        step("first-hour", "what the documents tell users to type, typed in a fresh home", crate::first_hour::check),
        step("demo", "the main job", demo),
        step("fuzz", "every decoder, bounded", fuzz),
        step("msrv", "the minimum supported compiler", msrv),
    ]
}

fn format() -> Outcome {
    run("format", cargo(&["fmt", "--all", "--check"]))
}

fn clippy() -> Outcome {
    match run(
        "clippy",
        cargo(&["clippy", "--workspace", "--all-targets", "--profile", PROFILE, "--", "-D", "warnings"]),
    ) {
        Passed(_) => apart(),
        other => other,
    }
}

/// Programs that are workspaces of their own, because what they need is not what the project needs.
const APART: [&str; 2] = ["examples/grpc", "peers/iceoryx2"];

fn apart() -> Outcome {
    for folder in APART {
        let mut command = cargo(&["clippy", "--all-targets", "--locked", "--target-dir"]);
        command.arg(target_folder().join("apart")).args(["--", "-D", "warnings"]).current_dir(root().join(folder));
        let name = format!("clippy-{}", folder.replace('/', "-"));
        match run(&name, command) {
            Passed(_) => {}
            Failed(_) if is_offline(&name) => crate::skipped(&format!("{folder}: the package index is not in reach")),
            other => return other,
        }
    }
    Passed(format!("and {}", APART.join(", ")))
}

/// Whether a step failed because it could not reach the package index.
fn is_offline(name: &str) -> bool {
    let text = log_text(name);
    ["failed to download", "download of", "Could not resolve", "spurious network"].iter().any(|why| text.contains(why))
}

fn docs() -> Outcome {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--profile", PROFILE, "--features", FEATURES]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    run("docs", command)
}

/// Programs that tests run, most of them unchanged, and the packages that bring them.
const PROGRAMS: &[(&str, &str)] = &[
    ("mpirun", "openmpi-bin"),
    ("ip", "iproute2"),
    ("promtool", "prometheus"),
    ("haproxy", "haproxy"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("nginx", "nginx-light"),
    ("wrk", "wrk"),
    ("memcached", "memcached"),
    ("iperf3", "iperf3"),
    ("curl", "curl"),
    ("openssl", "openssl"),
    ("pgbench", "postgresql"),
    ("sshd", "openssh-server"),
    ("node", "nodejs"),
    ("javac", "default-jdk-headless"),
    ("rpcgen", "rpcsvc-proto"),
    ("rpcbind", "rpcbind"),
];
/// What no program shows: how to see that it is there, and the package that brings it.
const PARTS: &[(&str, &str)] = &[
    ("pkg-config --exists libtirpc", "libtirpc-dev"),
    ("mpicc -E -x c -include mpi.h /dev/null", "libopenmpi-dev"),
    // Debian's own tests of Debian's own Python, which is another one elsewhere.
    (
        "! /usr/bin/python3 --version | grep -q ' 3\\.11\\.' || /usr/bin/python3 -c 'import test.test_selectors'",
        "libpython3.11-testsuite",
    ),
];

fn tests() -> Outcome {
    // A test whose program is missing skips itself and says so.
    for (program, package) in PROGRAMS {
        let _ = crate::c::need(program, package);
    }
    for (there, package) in PARTS {
        let _ = crate::c::need_part(there, package);
    }
    // Built first, by a command with a limit of its own: a slow compiler is no hang of a test.
    let all = ["test", "--workspace", "--profile", PROFILE];
    let began = Instant::now();
    if let failed @ Failed(_) = run("tests-build", cargo(&[&all[..], &["--no-run"]].concat())) {
        return failed;
    }
    let built = began.elapsed().as_secs();
    let outcome = run("tests", cargo(&[&all[..], &["--no-fail-fast", "--", "--show-output"]].concat()));
    let log = log_text("tests");
    let skips: Vec<&str> = log.lines().filter(|line| line.starts_with("SKIP")).collect();
    skips.iter().for_each(|line| crate::skipped(line.trim_start_matches("SKIP").trim()));
    match outcome {
        Passed(_) => {
            let (count, skipped) = (count_tests(&log), skips.len());
            Passed(format!("{count} tests, {skipped} of them skipped with the reasons above; built in {built} s"))
        }
        Failed(why) => {
            let failures: String = failures::summary(&log).iter().map(|test| format!("\n   {test}")).collect();
            Failed(format!("{why}{failures}"))
        }
        other => other,
    }
}

fn loom() -> Outcome {
    let words = ["--package", "vmmc-host", "--package", "vmmc-stream", "--lib"];
    let tokens = ["--package", "vmmc-nic", "--test", "loom"];
    let mut count = 0;
    for (log, what) in [("loom", &words[..]), ("loom-tokens", &tokens)] {
        let mut command = cargo(&["test", "--release", "--target-dir"]);
        command.arg(target_folder().join("loom")).args(what);
        command.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3");
        if let failed @ Failed(_) = run(log, command) {
            return alone(&target_folder().join("loom"), failed);
        }
        count += log_text(log).lines().filter(|line| line.contains("loom_") && line.ends_with(" ok")).count();
    }
    alone(&target_folder().join("loom"), Passed(format!("{count} models")))
}

fn miri() -> Outcome {
    if !succeeds(Command::new("cargo").args(["+nightly", "miri", "--version"])) {
        return Skipped("no Miri here; `rustup +nightly component add miri` brings it".into());
    }
    let mut command = Command::new("cargo");
    command.args([
        "+nightly",
        "miri",
        "test",
        "--package",
        "vmmc-host",
        "--package",
        "vmmc-stream",
        "--lib",
        "--target-dir",
    ]);
    command.arg(target_folder().join("miri"));
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    alone(&target_folder().join("miri"), run("miri", command))
}

/// The one feature that no other step builds, in a build of its own: the workspace's would get
/// it too.
fn ciphers() -> Outcome {
    let mut command = cargo(&["test", "--package", "vmmc-nic", "--package", "vmmc-node", "--test", "ciphers"]);
    command.args(["--features", "vmmc-node/aes-256-gcm", "--target-dir"]).arg(target_folder().join("ciphers"));
    match alone(&target_folder().join("ciphers"), run("ciphers", command)) {
        Passed(_) => Passed(format!("{} tests", count_tests(&log_text("ciphers")))),
        other => other,
    }
}

/// Takes away what a step has built for itself alone: where every build is the first one, it is
/// never looked at again.
fn alone(folder: &Path, outcome: Outcome) -> Outcome {
    if std::env::args().any(|word| word == "--lean") {
        let _ = std::fs::remove_dir_all(folder);
    }
    outcome
}

fn sim() -> Outcome {
    let fresh = fresh_seeds();
    let span = |seeds: &std::ops::Range<u64>| format!("{}..{}", seeds.start, seeds.end);
    println!("   seeds of this commit: {} (vmmc sim [--sockets|--mp] --seeds {})", span(&fresh), span(&fresh));
    let kinds = [("sim-fresh", None), ("sim-sockets-fresh", Some("--sockets")), ("sim-mp-fresh", Some("--mp"))];
    for (log, kind) in kinds {
        let seeds = span(&fresh);
        let words: Vec<&str> = ["sim"].into_iter().chain(kind).chain(["--seeds", &seeds]).collect();
        if let Failed(why) = vmmc(log, &words) {
            return Failed(why);
        }
    }
    if let Failed(why) = vmmc("sim-network", &["sim", "--network", "--seeds", &span(&LINK_SEEDS)]) {
        return Failed(why);
    }
    let outcome = vmmc("sim", &["sim", "--seeds", &span(&SIM_SEEDS)]);
    last_line_on_pass(outcome, "sim")
}

/// Seeds that nobody has run before this commit: they start at a place that its hash names. Outside
/// of a repository the day names it.
fn fresh_seeds() -> std::ops::Range<u64> {
    let head = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()).output();
    let hash = head.ok().filter(|o| o.status.success()).and_then(|o| {
        let text = String::from_utf8(o.stdout).ok()?;
        u64::from_str_radix(text.get(..FRESH_HASH_DIGITS)?, 16).ok()
    });
    let day = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs() / 86_400)
    };
    let first = SIM_SEEDS.end + hash.unwrap_or_else(day) * FRESH_SEEDS;
    first..first + FRESH_SEEDS
}

fn examples() -> Outcome {
    let names = match example_names() {
        Ok(names) if !names.is_empty() => names,
        Ok(_) => return Failed("no examples found".into()),
        Err(e) => return Failed(format!("the examples folder cannot be read: {e}")),
    };
    if let Err(why) = build() {
        return Failed(why);
    }
    for name in &names {
        let mut command = Command::new(built(&format!("examples/{name}")));
        without_logs(&mut command).env("VMMC_BIN", built("vmmc"));
        if let Failed(why) = run(&format!("example-{name}"), command) {
            return Failed(format!("{name}: {why}"));
        }
    }
    Passed(names.join(", "))
}

fn demo() -> Outcome {
    vmmc("demo", &["demo", "--json"])
}

fn fuzz() -> Outcome {
    alone(&root().join("crates/nic/fuzz/target"), fuzz_targets())
}

fn fuzz_targets() -> Outcome {
    if !succeeds(Command::new("cargo").args(["+nightly", "fuzz", "--version"])) {
        return Skipped("no cargo-fuzz here (`cargo install cargo-fuzz`, and a nightly toolchain); the tests throw random bytes at every decoder all the same".into());
    }
    let folder = root().join("crates/nic");
    let listed = Command::new("cargo").args(["+nightly", "fuzz", "list"]).current_dir(&folder).output();
    let targets = listed.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let mut count = 0;
    for target in targets.lines().filter(|t| !t.is_empty()) {
        let mut command = Command::new("cargo");
        command.args(["+nightly", "fuzz", "run", target, "--", &format!("-max_total_time={FUZZ_SECONDS}")]);
        command.current_dir(&folder);
        if let Failed(why) = run(&format!("fuzz-{target}"), command) {
            return Failed(format!("{target}: {why}"));
        }
        count += 1;
    }
    if count == 0 {
        Failed("cargo fuzz lists no targets".into())
    } else {
        Passed(format!("{count} targets, {FUZZ_SECONDS} s each"))
    }
}

fn msrv() -> Outcome {
    if !succeeds(Command::new("cargo").args(["+1.85", "--version"])) {
        return Skipped("toolchain 1.85 is not installed; `rustup toolchain install 1.85` brings it".into());
    }
    let mut command = Command::new("cargo");
    command
        .args(["+1.85", "check", "--workspace", "--features", FEATURES, "--target-dir"])
        .arg(target_folder().join("msrv"));
    let outcome = match run("msrv", command) {
        Passed(_) => outside(),
        other => other,
    };
    alone(&target_folder().join("msrv"), outcome)
}

/// A program of somebody else with the same compiler: no workspace of ours around it, so neither
/// our lock file nor our settings of the resolver. Its edition is an old one, so that it names the
/// resolver that asks which compiler a version needs, as docs/installing.md says.
fn outside() -> Outcome {
    let folder = target_folder().join("xtask/outside");
    let path = root().join("crates/vmmc");
    let manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2021\"\nresolver = \"3\"\n\n[dependencies]\nvmmc = {{ path = {path:?} }}\n\n[workspace]\n"
    );
    let program =
        "fn main() {\n    let session = vmmc::Session::attach();\n    println!(\"{}\", session.is_ok());\n}\n";
    let _ = std::fs::remove_file(folder.join("Cargo.lock"));
    let written = std::fs::create_dir_all(folder.join("src"))
        .and_then(|()| std::fs::write(folder.join("Cargo.toml"), manifest))
        .and_then(|()| std::fs::write(folder.join("src/main.rs"), program));
    if let Err(e) = written {
        return Failed(format!("{}: {e}", folder.display()));
    }
    let mut resolve = Command::new("cargo");
    resolve.args(["+1.85", "generate-lockfile"]).current_dir(&folder);
    if let Failed(why) = run("msrv-resolve", resolve) {
        if is_offline("msrv-resolve") {
            crate::skipped("a program outside: the package index is not in reach");
            return Passed(String::new());
        }
        return Failed(format!("a program outside finds no versions of its dependencies: {why}"));
    }
    let mut command = Command::new("cargo");
    command.args(["+1.85", "check", "--target-dir"]).arg(target_folder().join("msrv")).current_dir(&folder);
    match run("msrv-outside", command) {
        Passed(_) => Passed("and a program outside, without our lock file".into()),
        Failed(why) => Failed(format!("a program outside does not build, without our lock file: {why}")),
        other => other,
    }
}

pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Builds libraries, programs and examples. Always all of them at once: a part of the workspace
/// would get dependencies with other features, and build them again.
pub(crate) fn build() -> Result<(), String> {
    let arguments = ["build", "--workspace", "--profile", PROFILE, "--lib", "--bins", "--examples"];
    match run("build", cargo(&arguments)) {
        Failed(why) => Err(format!("build: {why}")),
        _ => Ok(()),
    }
}

/// Something that [`build`] made.
pub(crate) fn built(path: &str) -> PathBuf {
    target_folder().join(PROFILE).join(path)
}

/// Runs the program `vmmc` as a step.
fn vmmc(step: &str, arguments: &[&str]) -> Outcome {
    if let Err(why) = build() {
        return Failed(why);
    }
    let mut command = Command::new(built("vmmc"));
    without_logs(&mut command).args(arguments);
    run(step, command)
}

/// Runs a command with its output in a log file; prints the end of it on failure.
pub(crate) fn run(name: &str, mut command: Command) -> Outcome {
    let path = root().join("target/xtask").join(format!("{name}.log"));
    let opened = std::fs::create_dir_all(path.parent().expect("has a folder")).and_then(|()| File::create(&path));
    let pipes = opened.and_then(|file| Ok((file.try_clone()?, file)));
    let (out, err) = match pipes {
        Ok(pipes) => pipes,
        Err(e) => return Failed(format!("no log file at {}: {e}", path.display())),
    };
    if command.get_current_dir().is_none() {
        command.current_dir(root());
    }
    let mut child = match command.stdin(Stdio::null()).stdout(out).stderr(err).spawn() {
        Ok(child) => child,
        Err(e) => return Failed(format!("{command:?} cannot be started: {e}")),
    };
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() > STEP_LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                print_tail(name);
                return Failed(format!("stopped after {} s without an end", STEP_LIMIT.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
            Err(e) => return Failed(format!("waiting for it failed: {e}")),
        }
    };
    if status.success() {
        return Passed(String::new());
    }
    print_tail(name);
    Failed(format!("{status}; all of its output: {}", path.display()))
}

/// Has the nodes that a command starts keep no log: what a step writes goes below `target`, and
/// logs of nodes do not.
pub(crate) fn without_logs(command: &mut Command) -> &mut Command {
    command.env("VMMC_LOG", "off")
}

/// Whether this is root, for whom some things are elsewhere.
pub(crate) fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.starts_with(b"0\n"))
}

pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

pub(crate) fn log_text(name: &str) -> String {
    std::fs::read(root().join("target/xtask").join(format!("{name}.log")))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

fn print_tail(name: &str) {
    let text = log_text(name);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(80)..].iter().for_each(|line| println!("   | {line}"));
}

/// Sum of the test runners' own counts.
fn count_tests(log: &str) -> usize {
    log.lines().filter_map(|l| l.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<usize>().ok()).sum()
}

fn last_line_on_pass(outcome: Outcome, name: &str) -> Outcome {
    match outcome {
        Passed(_) => Passed(log_text(name).lines().last().unwrap_or_default().trim().to_string()),
        other => other,
    }
}

fn example_names() -> std::io::Result<Vec<String>> {
    let mut names: Vec<String> = std::fs::read_dir(root().join("crates/vmmc/examples"))?
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let path = entry.path();
            let is_example = path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists();
            let name = path.file_stem()?.to_str()?.to_string();
            (is_example && name.starts_with(|c: char| c.is_ascii_digit())).then_some(name)
        })
        .collect();
    names.sort();
    Ok(names)
}
