//! `vmmc run`: streams, ends, and kills at random moments.
//!
//! Invariant: whatever is killed, nothing that the job started is left, and the node serves the
//! next job.

mod common;

use common::{Node, alive, command, kill, ok, text, unique, wait_until};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use vmmc_utlb::Rng;

/// Rounds of the loops that kill. More with `VMMC_KILLS`.
fn rounds() -> u64 {
    std::env::var("VMMC_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

/// A node and the jobs that a test runs on it, recognised by a variable of their environment.
struct Place {
    node: Node,
    mark: String,
}

impl Place {
    fn new(what: &str) -> Place {
        Place { node: Node::start(what, &["--plain"]), mark: unique("mark") }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&["run", "--node", &self.node.name]);
        command.args(args).env("VMMC_TEST_MARK", &self.mark).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the command can be started")
    }

    fn start(&self, args: &[&str]) -> Child {
        self.command(args).spawn().expect("the command can be started")
    }

    /// Process ids of what has our mark.
    fn marked(&self) -> Vec<u32> {
        let wanted = format!("VMMC_TEST_MARK={}", self.mark);
        let pids = std::fs::read_dir("/proc").expect("there is /proc").filter_map(Result::ok);
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let has = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            alive(*pid) && environment.split(|b| *b == 0).any(|variable| variable == wanted.as_bytes())
        };
        pids.filter(has).collect()
    }

    /// Keepers that run.
    fn keepers(&self) -> Vec<u32> {
        children(self.node.pid)
    }

    /// Supervisors that run, each below its keeper.
    fn supervisors(&self) -> Vec<u32> {
        self.keepers().into_iter().flat_map(children).collect()
    }

    fn nothing_is_left(&self) {
        wait_until(&format!("nothing of the job is left: {:?} {:?}", self.marked(), self.keepers()), || {
            self.marked().is_empty() && self.keepers().is_empty()
        });
    }
}

/// Children of a process that run.
fn children(of: u32) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").expect("there is /proc").filter_map(Result::ok);
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        status.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok())
    };
    pids.filter(|pid| alive(*pid) && parent(pid) == Some(of)).collect()
}

/// Waits until `job` has printed so many lines, and gives its standard output back.
fn printed(job: &mut Child, lines: usize) -> BufReader<std::process::ChildStdout> {
    let mut out = BufReader::new(job.stdout.take().expect("it is a pipe"));
    let mut line = String::new();
    (0..lines).for_each(|_| assert!(out.read_line(&mut line).expect("it prints text") > 0, "it ended: {line}"));
    out
}

/// Prints a line, starts something that leaves its parents, and waits.
const DAEMONS: &str = "(setsid sh -c 'sleep 1000 & sleep 1000' & ) ; echo up ; sleep 1000";

#[test]
fn each_rank_knows_its_number_and_lines_are_marked_with_it() {
    let place = Place::new("marked");
    let script = "echo rank $VMMC_RANK of $VMMC_SIZE on $VMMC_NODE; echo trouble >&2; printf no-newline";
    let output = place.run(&["-n", "3", "--", "sh", "-c", script]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    for rank in 0..3 {
        assert!(out.contains(&format!("[{rank}] rank {rank} of 3 on {}\n", place.node.name)), "{out}");
        assert!(out.contains(&format!("[{rank}] no-newline\n")), "{out}");
        assert!(err.contains(&format!("[{rank}] trouble\n")), "{err}");
    }
    place.nothing_is_left();
}

#[test]
fn working_directory_and_environment_are_kept_and_can_be_set() {
    let place = Place::new("kept");
    let folder = common::Folder::new();
    let here = folder.0.to_str().expect("ASCII").to_string();
    let mut run = place.command(&["--no-prefix", "--env", "SET=x y", "--", "sh", "-c", "pwd; echo $KEPT; echo $SET"]);
    let output = run.env("KEPT", "was there").current_dir(&folder.0).output().expect("it can be started");
    assert_eq!(text(&output.stdout), format!("{here}\nwas there\nx y\n"));
    let output = place.run(&["--no-prefix", "--chdir", "/", "--", "pwd"]);
    assert_eq!(text(&output.stdout), "/\n");
    let output = place.run(&["--chdir", "/nonexistent-folder", "--", "pwd"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("/nonexistent-folder"), "{}", text(&output.stderr));
}

#[test]
fn a_program_that_is_not_there_is_a_clear_error() {
    let place = Place::new("missing");
    for (program, said, code) in
        [("no-such-program", "PATH", 127), ("./no-such-file", "not found", 127), ("/etc/passwd", "executable", 126)]
    {
        let output = place.run(&["-n", "3", "--", program]);
        assert_eq!(output.status.code(), Some(code), "{program}");
        let error = text(&output.stderr);
        assert!(error.contains(program.trim_start_matches("./")) && error.contains(said), "{error}");
    }
    place.nothing_is_left();
}

#[test]
fn the_first_failure_ends_the_job_or_not() {
    let place = Place::new("failure");
    let script = "if [ $VMMC_RANK = 1 ]; then exit 7; fi; sleep 1000";
    let output = place.run(&["-n", "3", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7));
    assert!(text(&output.stderr).contains("rank 1"), "{}", text(&output.stderr));
    place.nothing_is_left();
    let script = "if [ $VMMC_RANK = 1 ]; then kill -SEGV $$; fi; sleep 0.3; echo done";
    let output = place.run(&["-n", "3", "--keep-going", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(128 + 11));
    assert_eq!(text(&output.stdout).matches("done").count(), 2);
    place.nothing_is_left();
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed_after_the_grace() {
    let place = Place::new("stubborn");
    let script = "trap '' TERM; if [ $VMMC_RANK = 0 ]; then exit 3; fi; while :; do sleep 0.1; done";
    let output = place.run(&["-n", "2", "--grace-ms", "200", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(3));
    place.nothing_is_left();
}

#[test]
fn standard_input_goes_to_the_chosen_rank_whole() {
    let place = Place::new("input");
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut job = place
        .command(&["-n", "2", "--stdin", "1", "--no-prefix", "--", "sh", "-c", "cat | cksum"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it can be started");
    job.stdin.take().expect("it is a pipe").write_all(&data).expect("the job reads");
    let printed = text(&job.wait_with_output().expect("it is ours").stdout);
    assert!(printed.contains(" 3000000\n") && printed.contains(" 0\n"), "{printed}");
}

#[test]
fn a_flood_of_output_comes_whole_and_line_by_line() {
    let place = Place::new("flood");
    let script = "i=0; while [ $i -lt 20000 ]; do echo $VMMC_RANK-line-$i; i=$((i+1)); done";
    let output = place.run(&["-n", "4", "--", "sh", "-c", script]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    for rank in 0..4 {
        let mine: Vec<&str> =
            out.lines().filter_map(|line| line.strip_prefix(&format!("[{rank}] {rank}-line-"))).collect();
        assert_eq!(mine.len(), 20_000);
        assert!(mine.iter().enumerate().all(|(i, n)| n.parse() == Ok(i)), "lines of rank {rank} are out of order");
    }
    assert_eq!(out.lines().count(), 80_000);
}

#[test]
fn output_goes_to_files_when_asked() {
    let place = Place::new("files");
    let folder = common::Folder::new();
    let output =
        place.run(&["-n", "2", "--output-dir", &folder.file("logs"), "--", "sh", "-c", "echo $VMMC_RANK; echo e >&2"]);
    assert!(output.status.success() && output.stdout.is_empty());
    let read = |name: &str| std::fs::read_to_string(folder.0.join("logs").join(name)).expect("the file is there");
    assert_eq!((read("0.out"), read("1.out"), read("1.err")), ("0\n".into(), "1\n".into(), "e\n".into()));
}

#[test]
fn a_rank_that_closes_its_output_goes_on_and_a_reader_that_goes_ends_the_job() {
    let place = Place::new("closed");
    let output = place.run(&["-n", "2", "--", "sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 4"]);
    assert_eq!(output.status.code(), Some(4));
    let mut job = place.start(&["-n", "2", "--", "sh", "-c", "while :; do echo flood; done"]);
    drop(printed(&mut job, 10));
    job.wait().expect("it is ours");
    place.nothing_is_left();
}

#[test]
fn nobody_reads_and_memory_stays_bounded_until_it_is_interrupted() {
    let place = Place::new("unread");
    let mut job = place.start(&["-n", "2", "--grace-ms", "100", "--", "sh", "-c", "yes"]);
    let _out = printed(&mut job, 10);
    std::thread::sleep(Duration::from_millis(500));
    for pid in place.supervisors().into_iter().chain([job.id()]) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kib =
            status.lines().find_map(|l| l.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        assert!(kib.is_some_and(|kib| kib < 64 << 10), "process {pid} has {kib:?} KiB");
    }
    interrupt(&job);
    wait_until("the job ends although nobody reads", || job.try_wait().expect("it is ours").is_some());
    place.nothing_is_left();
}

fn interrupt(job: &Child) {
    signal(job.id(), rustix::process::Signal::INT);
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("no process has the id 0");
    rustix::process::kill_process(pid, signal).expect("it is ours");
}

#[test]
fn an_interrupt_ends_everything() {
    let place = Place::new("interrupt");
    let mut job = place.start(&["-n", "3", "--", "sh", "-c", DAEMONS]);
    let mut out = printed(&mut job, 3);
    interrupt(&job);
    assert_eq!(job.wait().expect("it is ours").code(), Some(130));
    let _ = out.read_to_string(&mut String::new());
    place.nothing_is_left();
}

#[test]
fn run_killed_at_any_moment_leaves_nothing() {
    let place = Place::new("run-killed");
    let mut random = Rng::new(1);
    for round in 0..rounds() {
        let mut job = place.start(&["-n", "3", "--", "sh", "-c", DAEMONS]);
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
        } else {
            drop(printed(&mut job, 3));
        }
        kill(job.id());
        job.wait().expect("it is ours");
        place.nothing_is_left();
    }
    assert_eq!(text(&place.run(&["--", "echo", "again"]).stdout), "[0] again\n");
}

#[test]
fn a_supervisor_or_its_keeper_killed_at_any_moment_ends_the_job_and_leaves_nothing() {
    let place = Place::new("supervisor-killed");
    let mut random = Rng::new(2);
    for round in 0..rounds() {
        let job = place.start(&["-n", "3", "--", "sh", "-c", DAEMONS]);
        let victims = || if round % 2 == 0 { place.supervisors() } else { place.keepers() };
        wait_until("there is one to kill", || !victims().is_empty());
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        victims().into_iter().for_each(kill);
        let output = job.wait_with_output().expect("it is ours");
        assert!(!output.status.success());
        place.nothing_is_left();
    }
    assert_eq!(text(&place.run(&["--", "echo", "again"]).stdout), "[0] again\n");
}

#[test]
fn a_daemon_killed_ends_the_job_and_leaves_nothing() {
    for _ in 0..2 {
        let place = Place::new("daemon-killed");
        let mut job = place.start(&["-n", "3", "--", "sh", "-c", DAEMONS]);
        let out = printed(&mut job, 3);
        let supervisors = [place.keepers(), place.supervisors()].concat();
        place.node.kill();
        assert!(!job.wait().expect("it is ours").success());
        drop(out);
        wait_until("nothing of the job is left", || place.marked().is_empty());
        wait_until("no supervisor is left", || !supervisors.iter().any(|pid| alive(*pid)));
    }
}

#[test]
fn a_daemon_and_a_supervisor_killed_at_once_leave_nothing() {
    for which in ["keeper", "supervisor"] {
        let place = Place::new("both-killed");
        let mut job = place.start(&["-n", "3", "--", "sh", "-c", DAEMONS]);
        let out = printed(&mut job, 3);
        let keepers = place.keepers();
        let victims = if which == "keeper" { keepers.clone() } else { place.supervisors() };
        assert_eq!((keepers.len(), victims.len()), (1, 1), "one keeper, with one supervisor below it");
        // Neither sees the other's end: both are stopped first.
        let both = [place.node.pid, victims[0]];
        both.into_iter().for_each(|pid| signal(pid, rustix::process::Signal::STOP));
        both.into_iter().for_each(kill);
        assert!(!job.wait().expect("it is ours").success());
        drop(out);
        let below = place.marked();
        wait_until(&format!("nothing is left after the {which}: {below:?}"), || place.marked().is_empty());
        wait_until("no keeper is left", || !keepers.iter().any(|pid| alive(*pid)));
    }
}

#[test]
fn a_supervisor_that_nobody_waits_for_ends() {
    let place = Place::new("unwanted");
    let export = format!("vmmc.launch/{}/test", rustix::process::geteuid().as_raw());
    let said = common::fails(1, &["supervise", "--node", &place.node.name, "--service", &export]);
    assert!(said.contains("has gone"), "{said}");
}

#[test]
fn a_supervisor_that_does_not_come_up_is_told_with_the_reason() {
    for (program, said, noted) in [
        ("/bin/false", "ended before it served", "it said nothing"),
        ("/nonexistent", "cannot be executed", "/nonexistent"),
    ] {
        let node = Node::start("no-supervisor", &["--plain", "--launcher", program]);
        let error = common::fails(1, &["run", "--node", &node.name, "--", "true"]);
        assert!(error.contains(said) && error.contains(&node.name), "{error}");
        let status = ok(&["node", "status", "--name", &node.name]);
        assert!(status.contains(noted), "{status}");
    }
}

#[test]
fn two_hundred_ranks_run() {
    let place = Place::new("many");
    let output = place.run(&["-n", "200", "--", "sh", "-c", "echo $VMMC_RANK"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut numbers: Vec<u32> =
        text(&output.stdout).lines().filter_map(|line| line.split_once("] ")?.1.parse().ok()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    place.nothing_is_left();
}

#[test]
fn a_node_that_starts_no_processes_says_so() {
    let node = Node::start("no-run", &["--plain", "--no-run"]);
    let said = common::fails(1, &["run", "--node", &node.name, "--", "true"]);
    assert!(said.contains("starts no processes") && said.contains(&node.name), "{said}");
    assert!(ok(&["node", "status", "--name", &node.name]).contains("refused to start processes"));
}

#[test]
fn a_node_in_plain_mode_starts_nothing_for_others_unless_it_was_told_to() {
    let (near, far) = (Node::start("near", &["--plain", "--plain-trust-users"]), Node::start("far", &["--plain"]));
    let told = Node::start("told", &["--plain", "--plain-run"]);
    let folder = common::Folder::new();
    let hosts = folder.file("hosts");
    std::fs::write(&hosts, format!("{} # the other one\n", far.address)).expect("the folder can be written");
    let said = common::fails(1, &["run", "--node", &near.name, "--hosts", &hosts, "--", "true"]);
    assert!(said.contains("plain mode") && said.contains(&far.address), "{said}");
    let status = ok(&["node", "status", "--name", &far.name]);
    assert!(status.contains("refused to start processes") && status.contains("plain"), "{status}");
    std::fs::write(&hosts, format!("local slots=1\n{} slots=2\n", told.address)).expect("the folder can be written");
    let printed = ok(&["run", "--node", &near.name, "--hosts", &hosts, "--", "sh", "-c", "echo $VMMC_NODE"]);
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, [format!("[0] {}", near.name), format!("[1] {}", told.name), format!("[2] {}", told.name)]);
}

#[test]
fn a_node_that_is_given_twice_and_a_rank_that_is_not_there_are_errors() {
    let (near, far) =
        (Node::start("near", &["--plain", "--plain-trust-users"]), Node::start("far", &["--plain", "--plain-run"]));
    let folder = common::Folder::new();
    let hosts = folder.file("hosts");
    std::fs::write(&hosts, format!("{0}\n{0}\n", far.address)).expect("the folder can be written");
    let said = common::fails(2, &["run", "--node", &near.name, "--hosts", &hosts, "--", "true"]);
    assert!(said.contains("twice") && said.contains(&far.name) && said.contains(&far.address), "{said}");
    let said = common::fails(2, &["run", "--node", &near.name, "-n", "2", "--stdin", "2", "--", "cat"]);
    assert!(said.contains("rank 2") && said.contains("0 to 1"), "{said}");
}

#[test]
fn local_nodes_come_and_go_with_the_job() {
    let folder = common::Folder::new();
    let mut run = command(&["run", "-n", "4", "--nodes", "4", "--", "sh", "-c", "echo $VMMC_NODE"]);
    let output = run.env("XDG_CONFIG_HOME", &folder.0).output().expect("it can be started");
    let out = text(&output.stdout);
    let nodes: std::collections::BTreeSet<&str> = out.lines().filter_map(|l| Some(l.split_once(' ')?.1)).collect();
    assert_eq!(nodes.len(), 4, "{out}{}", text(&output.stderr));
    let listed = || ok(&["node", "list"]);
    wait_until("the nodes have ended", || nodes.iter().all(|node| !listed().contains(node)));
}
