//! Jobs as their members see them, on one node and on several: ranks, memory by rank and name,
//! barrier, allgather, changes.
//!
//! Invariant: a member that ends is an error of those who wait for it, never a hang.

mod common;

use common::{Folder, PATIENCE, command, text};
use std::process::Output;
use std::time::Duration;
use vmmc_job::{Change, Job, JobError};

/// What a rank does. Started by the tests below.
#[test]
#[ignore = "the ranks of the other tests"]
fn member() {
    let Ok(role) = std::env::var("TEST_ROLE") else { return };
    if role == "crowd" {
        return crowd();
    }
    let job = Job::attach().expect("we were started by vmmc run");
    match role.as_str() {
        "collect" => collect(&job),
        "dies" => dies(&job),
        "leaves" => leaves(&job),
        "grows" => grows(&job),
        "hears" => hears(&job),
        other => panic!("no role {other}"),
    }
    println!("fine");
}

/// Stays until somebody finds no room, which ends the job.
fn crowd() {
    match Job::attach() {
        Ok(_job) => std::thread::sleep(PATIENCE),
        Err(error) => {
            println!("{error}");
            std::process::exit(1);
        }
    }
}

fn by(job: &Job) -> vmmc::Deadline {
    job.session().deadline(PATIENCE)
}

fn collect(job: &Job) {
    let (rank, size) = (job.rank(), job.size());
    assert_eq!(job.members(), (0..size).collect::<Vec<_>>());
    for round in 0..20u8 {
        let value = vec![rank as u8 ^ round; (rank as usize * 7 + round as usize) % 200];
        let all = job.allgather_by(&value, by(job)).expect("all are there");
        assert_eq!(all.len(), size as usize);
        for (other, value) in all.iter().enumerate() {
            let len = (other * 7 + round as usize) % 200;
            assert_eq!(*value, vec![other as u8 ^ round; len], "round {round}, value of {other}");
        }
        job.barrier_by(by(job)).expect("all are there");
    }
    // Everybody adds to everybody's counter; after the barrier all have arrived.
    let counter = job.export("counter", 4096).create().expect("there is memory");
    for other in 0..size {
        let import = job.import(other, "counter").expect("it exists").rights(vmmc::Rights::ALL).wait(PATIENCE);
        let import = import.open().expect("it exports");
        assert_eq!(import.node(), job.node_of(other).expect("it exists"));
        import.fetch_add(0, u64::from(rank) + 1).expect("it lives");
    }
    job.barrier_by(by(job)).expect("all are there");
    let sum = counter.word(0).expect("aligned").load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(sum, (1..=u64::from(size)).sum::<u64>());
    let long = job.allgather(&[0; 1000]).expect_err("too long");
    assert!(matches!(long, JobError::ValueTooLong { len: 1000, .. }));
    assert!(matches!(job.import(size, "x").map(drop), Err(JobError::NoRank { .. })));
    // So that nobody's memory goes while others add to it.
    job.barrier_by(by(job)).expect("all are there");
}

fn dies(job: &Job) {
    job.barrier_by(by(job)).expect("all are there");
    if job.rank() == 1 {
        std::process::abort();
    }
    let start = std::time::Instant::now();
    let error = job.barrier_by(by(job)).expect_err("rank 1 has gone");
    assert!(matches!(error, JobError::MemberGone { rank: 1, .. }), "{error}");
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    wait_for(job, Change::Failed(1));
    job.barrier_by(by(job)).expect("the others are there");
}

fn leaves(job: &Job) {
    job.barrier_by(by(job)).expect("all are there");
    if job.rank() == 0 {
        job.leave().expect("the supervisor is there");
        assert!(matches!(job.barrier(), Err(JobError::HasLeft { .. })));
        // A failure now is none of the job's business.
        println!("fine");
        std::process::exit(9);
    }
    wait_for(job, Change::Left(0));
    assert!(!job.members().contains(&0));
    let all = job.allgather_by(&[job.rank() as u8], by(job)).expect("the others are there");
    assert_eq!(all, job.members().iter().map(|rank| vec![*rank as u8]).collect::<Vec<_>>());
}

fn wait_for(job: &Job, wanted: Change) {
    let end = std::time::Instant::now() + PATIENCE;
    while std::time::Instant::now() < end {
        if job.wait_changes(Duration::from_secs(1)).expect("the supervisor is there").contains(&wanted) {
            return;
        }
    }
    panic!("not within {PATIENCE:?}: {wanted:?}");
}

fn grows(job: &Job) {
    let (rank, started) = (job.rank(), 2);
    if rank < started {
        // A rank that attaches later sees no change.
        job.barrier_by(by(job)).expect("all are there");
    }
    if rank == 0 {
        job.grow(2).expect("the supervisor is there");
    }
    if rank < started {
        let mut joined = Vec::new();
        while joined.len() < 2 {
            joined.extend(job.wait_changes(PATIENCE).expect("the supervisor is there"));
        }
        assert_eq!(joined, [Change::Joined(2), Change::Joined(3)]);
    }
    assert_eq!(job.members(), [0, 1, 2, 3]);
    let all = job.allgather_by(&[rank as u8], by(job)).expect("all are there");
    assert_eq!(all, [[0], [1], [2], [3]]);
    job.barrier_by(by(job)).expect("all are there");
}

fn hears(job: &Job) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let readable = |time: Duration| {
        let fd = job.changes_fd().expect("the supervisor is there");
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&time)) == Ok(1)
    };
    if job.rank() != 0 {
        // The first word of the supervisor, which may report what was before, is for this poll.
        assert!(readable(PATIENCE));
        assert_eq!(job.changes().expect("the supervisor is there"), []);
        assert!(!readable(Duration::ZERO), "nothing has changed since");
    }
    job.barrier_by(by(job)).expect("all are there");
    if job.rank() == 0 {
        return job.leave().expect("the supervisor is there");
    }
    let mut heard = Vec::new();
    while !heard.contains(&Change::Left(0)) {
        assert!(readable(PATIENCE), "nothing heard but {heard:?}");
        heard.extend(job.changes().expect("the supervisor is there"));
    }
    assert!(job.session().take_notification().is_none(), "changes are not for those who take notifications");
}

fn run(role: &str, args: &[&str]) -> Output {
    let folder = Folder::new();
    let program = std::env::current_exe().expect("the test has a program");
    let program = program.to_str().expect("its path is text");
    let mut run =
        command(&[&["run"], args, &["--", program, "member", "--exact", "--ignored", "--nocapture"]].concat());
    let run = run.env("TEST_ROLE", role).env("XDG_CONFIG_HOME", &folder.0);
    run.output().expect("it can be started")
}

/// All ranks have come to their end.
fn fine(output: &Output, ranks: usize) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(out.matches("fine").count(), ranks, "{}: {out}\n{err}", output.status);
}

#[test]
fn members_meet_and_gather_on_one_two_and_four_nodes() {
    for (nodes, ranks) in [("1", "1"), ("2", "5"), ("4", "7")] {
        let own = if nodes == "1" { vec![] } else { vec!["--nodes", nodes] };
        let node = (nodes == "1").then(|| common::Node::start("members", &["--plain"]));
        let on = node.iter().flat_map(|node| ["--node", node.name.as_str()]);
        let args: Vec<&str> = ["-n", ranks].into_iter().chain(own).chain(on).collect();
        let output = run("collect", &args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        fine(&output, ranks.parse().expect("a number"));
    }
}

#[test]
fn more_ranks_than_a_node_serves_are_told_to_use_more_nodes() {
    let node = common::Node::start("crowd", &["--plain"]);
    let output = run("crowd", &["-n", "300", "--node", &node.name]);
    assert!(!output.status.success());
    let said = text(&output.stdout);
    assert!(said.contains("256 processes are attached to this node already"), "{said}{}", text(&output.stderr));
    assert!(said.contains("use more nodes (`vmmc run --nodes 2`, `vmmc run --hosts FILE`)"), "{said}");
}

#[test]
fn a_member_that_dies_is_an_error_of_the_others_who_go_on_without_it() {
    for nodes in ["2", "3"] {
        let output = run("dies", &["-n", "4", "--nodes", nodes, "--keep-going"]);
        assert_eq!(output.status.code(), Some(128 + 6), "{}", text(&output.stderr));
        fine(&output, 3);
    }
}

#[test]
fn a_member_leaves_and_the_others_go_on() {
    let output = run("leaves", &["-n", "4", "--nodes", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    fine(&output, 4);
}

#[test]
fn members_are_told_of_changes_through_a_descriptor() {
    let output = run("hears", &["-n", "3", "--nodes", "2"]);
    assert!(output.status.success(), "{}{}", text(&output.stderr), text(&output.stdout));
    fine(&output, 3);
}

#[test]
fn a_job_grows_and_all_are_told() {
    let output = run("grows", &["-n", "2", "--nodes", "2"]);
    assert!(output.status.success(), "{}{}", text(&output.stderr), text(&output.stdout));
    fine(&output, 4);
}

/// Another launcher, as far as its command lines differ.
struct Launcher {
    program: &'static str,
    /// What makes it start more processes than there are cores, as root too.
    options: &'static [&'static str],
    /// How to get it.
    package: &'static str,
}

const MPIRUN: Launcher = Launcher {
    program: "mpirun",
    options: &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    package: "Debian: openmpi-bin",
};
const PRTERUN: Launcher = Launcher {
    program: "prterun",
    options: &["--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"],
    package: "PRRTE, or Open MPI 5",
};

/// Jobs of this launcher on one node and on two.
fn a_job_finds_its_ranks(launcher: &Launcher) {
    if std::process::Command::new(launcher.program).arg("--version").output().is_err() {
        println!("SKIP jobs of {}: it is not installed ({})", launcher.program, launcher.package);
        return;
    }
    let [a, b] = ["mpi-a", "mpi-b"].map(|name| common::Node::start(name, &["--plain", "--plain-trust-users"]));
    let program = std::env::current_exe().expect("the test has a program");
    let on = |node: &common::Node, ranks: &str| -> Vec<String> {
        let node = format!("VMMC_NODE={}", node.name);
        let variables = ["-x", "TEST_ROLE=collect", "-x", &node];
        let rank = [program.to_str().expect("text"), "member", "--exact", "--ignored", "--nocapture"];
        [&["-n", ranks], &variables[..], &rank].concat().iter().map(|word| (*word).to_string()).collect()
    };
    for parts in [vec![on(&a, "3")], vec![on(&a, "2"), on(&b, "2")]] {
        let mut run = std::process::Command::new(launcher.program);
        run.args(launcher.options).env_remove("VMMC_JOB").args(parts.join(&":".to_string()));
        let output = run.env("OMPI_MCA_rmaps_base_oversubscribe", "1").output().expect("it can be started");
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        fine(&output, if parts.len() == 1 { 3 } else { 4 });
    }
}

#[test]
fn a_job_of_mpirun_finds_its_ranks_on_one_node_and_on_two() {
    a_job_finds_its_ranks(&MPIRUN);
}

#[test]
fn a_job_of_prterun_finds_its_ranks_on_one_node_and_on_two() {
    a_job_finds_its_ranks(&PRTERUN);
}

#[test]
fn a_job_of_srun_finds_its_ranks() {
    // With the state of its nodes it also says whether there is a cluster to run on.
    let nodes = std::process::Command::new("sinfo").args(["-h", "-t", "idle,mixed"]).output();
    if !nodes.is_ok_and(|output| output.status.success() && !output.stdout.is_empty()) {
        println!("SKIP jobs of srun: no Slurm cluster here (Debian: slurmctld, slurmd, libpmix-dev)");
        return;
    }
    let node = common::Node::start("srun", &["--plain"]);
    let program = std::env::current_exe().expect("the test has a program");
    let mut run = std::process::Command::new("srun");
    run.args(["-n", "3", "--overcommit", "--mpi=pmix"]).arg(program).args([
        "member",
        "--exact",
        "--ignored",
        "--nocapture",
    ]);
    let run = run.env_remove("VMMC_JOB").env("TEST_ROLE", "collect").env("VMMC_NODE", &node.name);
    let output = run.output().expect("it can be started");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    fine(&output, 3);
}

#[test]
fn a_process_that_is_no_rank_is_told_how_to_become_one() {
    if std::env::var_os("VMMC_JOB").is_none() {
        let error = Job::attach().expect_err("this test is not part of a job");
        assert!(error.to_string().contains("vmmc run"), "{error}");
    }
}
