//! The units for systemd: well-formed, as closed as their documents say, and not too closed for
//! what they start.
//!
//! Invariant: a daemon under the rights and the system calls of its unit does its work; the bounds
//! of exposure only fall.
//!
//! Needs `systemd-analyze` (systemd), and for some tests root, `setpriv` (util-linux) and `strace`;
//! without them the tests print `SKIP` and why. Nothing is started by systemd.

mod common;

use common::{Folder, Node, ok, text, unique, wait_until};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The units, and ten times the exposure that `systemd-analyze security` may find (0: none, 100:
/// all).
const UNITS: [(&str, u32); 3] =
    [("system/vmmc-node.service", 50), ("system/vmmc-memory.service", 25), ("user/vmmc-node.service", 80)];

fn source(unit: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd")).join(unit)
}

fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The units as they would be installed, in a folder.
fn installed(folder: &Folder) -> Vec<(String, u32)> {
    let with = |(unit, exposure): &(&str, u32)| {
        let text = std::fs::read_to_string(source(unit)).expect("the unit is there");
        assert!(text.contains("ExecStart=vmmc "), "{unit}");
        let text = text.replace("ExecStart=vmmc ", &format!("ExecStart={} ", env!("CARGO_BIN_EXE_vmmc")));
        let path = folder.file(unit);
        std::fs::create_dir_all(Path::new(&path).parent().expect("it has one")).expect("the folder can be written");
        std::fs::write(&path, text).expect("the folder can be written");
        (path, *exposure)
    };
    UNITS.iter().map(with).collect()
}

#[test]
fn systemd_finds_no_fault_in_the_units_and_no_more_exposure_than_they_say() {
    if !runs("systemd-analyze") {
        return println!("SKIP the units: needs systemd-analyze");
    }
    let folder = Folder::new();
    for (path, exposure) in installed(&folder) {
        let verify = Command::new("systemd-analyze").args(["verify", "--man=no", &path]).output().expect("it runs");
        let said = text(&verify.stderr);
        assert!(verify.status.success() && !said.contains(&path), "{path}: {said}");
        let threshold = format!("--threshold={exposure}");
        let secure = Command::new("systemd-analyze").args(["security", "--offline=true", &threshold, &path]).output();
        let secure = secure.expect("it runs");
        assert!(secure.status.success(), "{path}: {}{}", text(&secure.stdout), text(&secure.stderr));
    }
}

#[test]
fn each_unit_says_at_its_top_which_commands_install_it() {
    for (unit, _) in UNITS {
        let text = std::fs::read_to_string(source(unit)).expect("the unit is there");
        let commands: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
        let (user, file) = (unit.starts_with("user/"), unit.split_once('/').expect("a folder and a file").1);
        let (systemctl, folder) = match user {
            true => ("systemctl --user", "~/.config/systemd/user/"),
            false => ("systemctl", "/etc/systemd/system/"),
        };
        let name = file.strip_suffix(".service").expect("a service");
        for wanted in [format!("cp {file} {folder}"), format!("{systemctl} enable --now {name}")] {
            assert!(commands.contains(&wanted.as_str()), "{unit}: no line \"{wanted}\" in {commands:#?}");
        }
    }
}

/// A setting of a unit, all its lines.
fn setting(unit: &str, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(source(unit)).expect("the unit is there");
    text.lines().filter_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_string())).collect()
}

/// The system calls in a set of systemd, or the one that is named.
fn calls(set: &str, found: &mut BTreeSet<String>) {
    if !set.starts_with('@') {
        found.insert(set.to_string());
        return;
    }
    let output = Command::new("systemd-analyze").args(["--no-pager", "syscall-filter", set]).output();
    let listed = text(&output.expect("it runs").stdout);
    for word in listed.lines().skip(1).map(str::trim).filter(|word| !word.is_empty() && !word.starts_with('#')) {
        match word.starts_with('@') {
            true => calls(word, found),
            false => drop(found.insert(word.to_string())),
        }
    }
}

/// Whether the filter of a unit lets a system call pass.
fn filter(unit: &str) -> impl Fn(&str) -> bool {
    let (mut allowed, mut denied) = (BTreeSet::new(), BTreeSet::new());
    for line in setting(unit, "SystemCallFilter") {
        let (into, sets) = match line.strip_prefix('~') {
            Some(sets) => (&mut denied, sets),
            None => (&mut allowed, line.as_str()),
        };
        sets.split_whitespace().for_each(|set| calls(set, into));
    }
    assert!(denied.len() > 20, "{unit}: the sets are known: {denied:?}");
    move |call| (allowed.is_empty() || allowed.contains(call)) && !denied.contains(call)
}

#[test]
fn a_node_and_its_jobs_make_no_system_call_that_their_unit_forbids() {
    if !runs("systemd-analyze") || !runs("strace") {
        return println!("SKIP system calls under the units: needs systemd-analyze and strace");
    }
    for (unit, options) in [(UNITS[1].0, &["--no-run"][..]), (UNITS[0].0, &[][..])] {
        let (folder, name) = (Folder::new(), unique("traced"));
        let (trace, key) = (folder.file("trace"), folder.file("key"));
        let mut node = Command::new("strace");
        node.args(["-f", "-qq", "-o", &trace, env!("CARGO_BIN_EXE_vmmc"), "node", "run", "--name", &name]);
        node.args(["--listen", "127.0.0.1:0", "--key-file", &key, "--log-level", "debug"]).args(options);
        let mut node = node.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("strace runs");
        let up = || common::vmmc(&["node", "status", "--name", &name]).status.success();
        let mut ended = false;
        wait_until("the node is up", || {
            ended = node.try_wait().expect("it is ours").is_some();
            ended || up()
        });
        if ended {
            return println!("SKIP system calls under the units: strace may not trace here");
        }
        {
            let status = common::json(&["node", "status", "--name", &name, "--json"]);
            let address = status["listen"][0].as_str().expect("it listens").to_string();
            let near = Node::start("near", &["--key-file", &key]);
            ok(&["ping", &address, "--count", "2", "--name", &near.name]);
            if options.is_empty() {
                assert_eq!(ok(&["run", "-n", "2", "--name", &name, "--", "echo", "hello"]).matches("hello").count(), 2);
            }
            let session = vmmc::Session::builder().node(&name).start_node(false).attach().expect("the node runs");
            let export = session.export(8192).name("traced").create().expect("there is memory");
            session.import("traced").open().expect("it is exported").send(0, b"bytes").expect("it is open");
            drop(export);
        }
        ok(&["node", "stop", "--name", &name]);
        node.wait().expect("it is ours");
        let traced = std::fs::read_to_string(&trace).expect("strace wrote it");
        let made = traced.lines().filter_map(|line| line.split_once(' ')?.1.trim_start().split_once('('));
        // By number where strace is older than the call.
        let named = |call| if call == "syscall_0x1c3" { "cachestat" } else { call };
        // Of a thread that ended before strace could look there is no name.
        let is_named = |call: &&str| !call.starts_with('<') && *call != "???";
        let made: BTreeSet<&str> = made.map(|(call, _)| named(call)).filter(is_named).collect();
        assert!(made.contains("recvmsg") && made.contains("epoll_ctl"), "{made:?}");
        let passes = filter(unit);
        let stopped: Vec<&&str> = made.iter().filter(|call| !passes(call)).collect();
        assert!(stopped.is_empty(), "{unit} stops {stopped:?}");
    }
}

#[test]
fn a_node_with_the_rights_of_its_unit_alone_starts_jobs_as_the_users_who_ask() {
    if !rustix::process::geteuid().is_root() || !runs("setpriv") {
        return println!("SKIP a node with the rights of its unit: needs root and setpriv");
    }
    let rights = setting(UNITS[0].0, "CapabilityBoundingSet").concat();
    let set: String = rights.split_whitespace().map(|right| format!(",+{}", right[4..].to_lowercase())).collect();
    let (name, vmmc) = (unique("bounded"), env!("CARGO_BIN_EXE_vmmc"));
    let mut start = Command::new("setpriv");
    start.args([&format!("--bounding-set=-all{set}"), "--inh-caps=-all", "--no-new-privs", vmmc]);
    start.args(["node", "start", "--name", &name, "--plain", "--linger-s", "60", "--log-level", "off"]);
    let started = start.stdin(Stdio::null()).output().expect("setpriv runs");
    assert!(started.status.success(), "{}", text(&started.stderr));
    let pid = common::json(&["node", "status", "--name", &name, "--json"])["pid"].as_u64().expect("it has one");
    for user in ["65534", "0"] {
        let mut job = Command::new("setpriv");
        job.args(["--reuid", user, "--regid", user, "--clear-groups", vmmc, "run", "--name", &name, "-n", "2", "--"]);
        job.args(["sh", "-c", "id -u; exec sleep 0"]).current_dir("/").stdin(Stdio::null());
        let output = job.output().expect("setpriv runs");
        let printed = text(&output.stdout);
        assert_eq!(printed.matches(&format!("] {user}\n")).count(), 2, "{printed}{}", text(&output.stderr));
    }
    // A killed keeper leaves a supervisor of another user behind, which the node must be able to
    // kill.
    let mut job = Command::new("setpriv");
    job.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", vmmc, "run", "--name", &name, "--"]);
    let job = job.args(["sleep", "1000"]).current_dir("/").stdin(Stdio::null()).stderr(Stdio::null());
    let mut job = job.spawn().expect("setpriv runs");
    let below = || children(pid as u32);
    wait_until("the rank runs", || below().iter().flat_map(|k| children(*k)).any(|s| !children(s).is_empty()));
    let keeper = below()[0];
    let ranks: Vec<u32> = children(keeper).into_iter().flat_map(|s| [vec![s], children(s)].concat()).collect();
    common::kill(keeper);
    wait_until("nothing is left", || !ranks.iter().any(|pid| common::alive(*pid)));
    assert!(!job.wait().expect("it is ours").success());
    // The daemon has no other right, whatever it was started with.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let has =
        status.lines().find_map(|line| line.strip_prefix("CapPrm:")).expect("there is the line").trim().to_string();
    ok(&["node", "stop", "--name", &name]);
    let unbounded = Node::start("unbounded", &["--plain"]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", unbounded.pid)).expect("it runs");
    let found = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).expect("there is the line").trim();
    assert_eq!(has, found);
    assert_eq!(
        u64::from_str_radix(found, 16).expect("a mask").count_ones() as usize,
        rights.split_whitespace().count()
    );
}

/// Children of a process that run.
fn children(of: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| common::alive(*pid)).collect()
}
