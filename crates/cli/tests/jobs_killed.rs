//! Jobs on one, two and four nodes that lose a process to kill -9 at a random moment while their
//! ranks talk to each other.
//!
//! Invariant: whatever is killed, `vmmc run` fails and names it, and nothing of the job is left.

mod common;

use common::{Folder, Node, PATIENCE, alive, command, kill, unique, wait_until};
use std::fs::{File, read_to_string};
use std::process::Child;
use std::time::Duration;
use vmmc_job::Job;
use vmmc_utlb::Rng;

/// Ranks of every job: all nodes have one, and with fewer nodes some share one.
const RANKS: u32 = 4;

/// Longest time from the moment that a round chose to its kill.
const MOMENTS_US: u64 = 80_000;

/// Where the random numbers start. Others with `VMMC_SEED`.
fn seed() -> u64 {
    std::env::var("VMMC_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(7)
}

/// How often each kind of process is killed on each number of nodes. More with `VMMC_KILLS`.
fn rounds() -> u64 {
    std::env::var("VMMC_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// What a rank does: it talks to all others until one of them is gone. Started by the test below.
#[test]
#[ignore = "the ranks of the jobs of the other test"]
fn member() {
    let Ok(role) = std::env::var("TEST_ROLE") else { return };
    assert_eq!(role, "talks");
    let talk = || -> Result<(), vmmc_job::JobError> {
        let job = Job::attach()?;
        for round in 0u64.. {
            let all = job.allgather_by(&round.to_le_bytes(), job.session().deadline(PATIENCE))?;
            assert!(all.iter().all(|value| value[..] == round.to_le_bytes()), "round {round}: {all:?}");
            if round == 0 {
                println!("talking");
            }
        }
        Ok(())
    };
    // Like a program that does not care: an error ends it, with a failure.
    if let Err(error) = talk() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Rank,
    Run,
    Supervisor,
    Daemon,
}

const KINDS: [Kind; 4] = [Kind::Rank, Kind::Run, Kind::Supervisor, Kind::Daemon];

/// A process to kill, and its name in the report of its end.
#[derive(Debug)]
struct Victim {
    pid: u32,
    name: String,
}

/// A job under way; its processes are known by a variable of their environment, or by the name of a
/// node of the job among their arguments: what a node starts has nothing of the starter's
/// environment.
struct Running {
    run: Child,
    mark: String,
    folder: Folder,
    /// The node of a job on one node; several are the job's own.
    node: Option<Node>,
}

impl Running {
    fn start(nodes: u32) -> Running {
        let (mark, folder) = (unique("mark"), Folder::new());
        let node = (nodes == 1).then(|| Node::start("killed", &["--plain"]));
        let (ranks, count) = (RANKS.to_string(), nodes.to_string());
        let place = node.as_ref().map_or(["--nodes", &count], |node| ["--node", &node.name]);
        let program = std::env::current_exe().expect("the test has a program");
        let program = program.to_str().expect("its path is text");
        let rank = ["--", program, "member", "--exact", "--ignored", "--nocapture"];
        let file = |name: &str| File::create(folder.0.join(name)).expect("the folder can be written");
        let mut run = command(&[&["run", "-n", &ranks, "--grace-ms", "300"], &place[..], &rank].concat());
        let run = run.env("TEST_ROLE", "talks").env("VMMC_TEST_MARK", &mark).env("XDG_CONFIG_HOME", &folder.0);
        let run = run.stdout(file("out")).stderr(file("err")).spawn().expect("it can be started");
        Running { run, mark, folder, node }
    }

    fn said(&self, file: &str) -> String {
        read_to_string(self.folder.0.join(file)).unwrap_or_default()
    }

    /// Processes of the job that run: with `vmmc run` until that was waited for, without the node
    /// that was there before.
    fn processes(&self) -> Vec<u32> {
        let mark = format!("VMMC_TEST_MARK={}", self.mark);
        let pids = std::fs::read_dir("/proc").expect("there is /proc").filter_map(Result::ok);
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ours = |pid: &u32| {
            let serves = match &self.node {
                Some(node) => node.pid != *pid && words(*pid, "cmdline").contains(&node.name),
                None => words(*pid, "cmdline").iter().any(|word| word.starts_with(&format!("run-{}-", self.run.id()))),
            };
            alive(*pid) && (serves || words(*pid, "environ").contains(&mark))
        };
        pids.filter(ours).collect()
    }

    /// Those that a kill of this kind can hit now.
    fn victims(&self, kind: Kind) -> Vec<Victim> {
        let ours = self.processes();
        let of = |pid: u32| {
            let arguments = words(pid, "cmdline");
            let does = |word: &str| arguments.get(1).is_some_and(|first| first == word);
            let name = match kind {
                Kind::Rank => {
                    let rank =
                        words(pid, "environ").iter().find_map(|v| Some(v.strip_prefix("VMMC_RANK=")?.to_owned()));
                    format!("rank {}", rank?)
                }
                Kind::Supervisor if does("supervise") => after("--node", &arguments)?,
                Kind::Daemon if does("node") => after("--name", &arguments)?,
                _ => return None,
            };
            Some(Victim { pid, name })
        };
        match (kind, &self.node) {
            (Kind::Run, _) => vec![Victim { pid: self.run.id(), name: "nothing is said".into() }],
            (Kind::Daemon, Some(node)) => vec![Victim { pid: node.pid, name: node.name.clone() }],
            _ => ours.into_iter().filter_map(of).collect(),
        }
    }

    /// `vmmc run` has failed and named who died, and all has ended.
    fn check(mut self, kind: Kind, victim: &Victim) {
        wait_until("vmmc run ends", || self.run.try_wait().expect("it is ours").is_some());
        let status = self.run.wait().expect("it is ours");
        if !matches!(kind, Kind::Run) {
            let said = self.said("err");
            assert!(status.code().is_some_and(|code| code > 0), "{kind:?} {victim:?} was killed: {status}, {said}");
            let last = said.lines().rfind(|line| line.starts_with("vmmc")).unwrap_or_default();
            println!("    {status}: {last}");
            assert!(last.contains(&victim.name), "{kind:?} {victim:?} was killed, and not named: {said}");
        }
        let mut left = Vec::new();
        wait_until(&format!("nothing is left of the job whose {kind:?} {victim:?} was killed"), || {
            left = self.processes();
            left.is_empty()
        });
    }
}

/// What is between the zeros of a file of a process; nothing if it has gone.
fn words(pid: u32, file: &str) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(common::text).collect()
}

fn after(flag: &str, arguments: &[String]) -> Option<String> {
    arguments.windows(2).find(|pair| pair[0] == flag).map(|pair| pair[1].clone())
}

/// A job on so many nodes loses a process of each kind.
fn loses_any_process(nodes: u32) {
    println!("VMMC_SEED={}", seed());
    let mut random = Rng::new(seed() + u64::from(nodes));
    for round in 0..rounds() * KINDS.len() as u64 {
        let kind = KINDS[round as usize % KINDS.len()];
        let job = Running::start(nodes);
        // Some are hit while they talk, the others while they start.
        let talking = random.below(2) == 0;
        if talking {
            wait_until("all ranks talk", || job.said("out").matches("talking").count() == RANKS as usize);
        }
        let mut victims = Vec::new();
        wait_until(&format!("there is a {kind:?}"), || {
            victims = job.victims(kind);
            !victims.is_empty()
        });
        let moment = Duration::from_micros(random.below(MOMENTS_US));
        std::thread::sleep(moment);
        let victim = victims.swap_remove(random.below(victims.len() as u64) as usize);
        let start = std::time::Instant::now();
        println!("{nodes} nodes, {kind:?} {victim:?}, talking: {talking}, after {moment:?}");
        kill(victim.pid);
        job.check(kind, &victim);
        println!("    nothing is left after {:?}", start.elapsed());
    }
}

#[test]
fn a_job_on_one_node_that_loses_any_process_at_any_moment_fails_and_names_it_and_leaves_nothing() {
    loses_any_process(1);
}

#[test]
fn a_job_on_two_nodes_that_loses_any_process_at_any_moment_fails_and_names_it_and_leaves_nothing() {
    loses_any_process(2);
}

#[test]
fn a_job_on_four_nodes_that_loses_any_process_at_any_moment_fails_and_names_it_and_leaves_nothing() {
    loses_any_process(4);
}
