//! Probes of one call each, TCP beside the ring: results, errors, signals, bytes and events compared
//! line by line. `probes.c` has sequences in one process; `matrix.c` has every state of a connection
//! times every call, between two processes.
//!
//! Invariant: every connection of a run that is to be in rings was in one when its probe began, and
//! what differs is named in docs/exec.md under "Known differences".

mod common;

use common::{By, World, finish, have, kill, text};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// What docs/exec.md says of differences.
fn known_differences() -> &'static str {
    let page = include_str!("../../../docs/exec.md");
    page.split("## Known differences").nth(1).expect("the page has such a chapter")
}

/// A C program of this folder, built.
fn built(world: &World, name: &str) -> String {
    let folder = env!("CARGO_MANIFEST_DIR");
    let binary = world.folder.join(name).to_str().expect("ASCII").to_string();
    let (include, source) = (format!("-I{folder}/include"), format!("{folder}/tests/{name}.c"));
    world.run(By::Itself, &["cc", "-std=gnu11", "-O2", "-w", &include, "-o", &binary, &source]);
    binary
}

/// What a program printed, a part for each probe.
fn parts(printed: &str) -> Vec<(String, Vec<String>)> {
    let mut parts: Vec<(String, Vec<String>)> = Vec::new();
    for line in printed.lines() {
        match (line.strip_prefix("  "), parts.last_mut()) {
            (Some(result), Some((_, results))) => results.push(result.to_string()),
            _ => parts.push((line.to_string(), Vec::new())),
        }
    }
    parts
}

#[test]
fn a_connection_in_a_ring_answers_every_probe_as_tcp_does() {
    if !have("cc", "gcc") {
        return;
    }
    let world = World::new();
    let binary = built(&world, "probes");
    let tcp = parts(&world.run(By::Itself, &[&binary]));
    assert!(tcp.len() >= 50, "{} probes", tcp.len());
    let mut command = world.command(By::Exec, &[&binary]);
    command.env("VMMC_OFFER", "at-once");
    let output = finish(command);
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{report}");
    let moved = report.lines().find_map(|line| line.strip_suffix(" connections moved")?.split_once(" of "));
    assert!(moved.is_some_and(|(moved, all)| moved == all), "{report}");
    let ring = parts(&text(&output));
    let different: Vec<String> = tcp
        .iter()
        .zip(&ring)
        .filter(|(one, two)| one != two && !known_differences().contains(&format!("`{}`", one.0)))
        .map(|(one, two)| format!("{}\n   TCP  {:?}\n   ring {:?}", one.0, one.1, two.1))
        .collect();
    assert!(different.is_empty() && tcp.len() == ring.len(), "{}", different.join("\n"));
}

/// What the node does from the moment on at which the connections are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Runs,
    Stopped,
    Killed,
}

/// Which end the process has that makes the calls.
const ENDS: [&str; 2] = ["connects", "accepts"];

/// What each probe of the matrix printed, by its name.
type Answers = BTreeMap<String, String>;

/// The same of several runs of TCP: whatever it was seen to answer.
type Seen = BTreeMap<String, BTreeSet<String>>;

/// Runs of TCP after those in which it is asked everything, for states whose lines differ.
const RUNS_MORE: usize = 3;

/// A run of the matrix, or of some of its states: the answers, and how many of all connections were
/// in rings.
fn matrix(
    world: &World,
    binary: &str,
    (actor, peer): (By, By),
    offer: &str,
    end: &str,
    (node, states): (Node, &[&str]),
) -> (Answers, (usize, usize)) {
    let socket = world.folder.join(format!("matrix-{end}"));
    let _ = std::fs::remove_file(&socket);
    let socket = socket.to_str().expect("ASCII");
    let node = match node {
        Node::Runs => "alive".to_string(),
        Node::Stopped => format!("stopped:{}", world.node_pid()),
        Node::Killed => format!("killed:{}", world.node_pid()),
    };
    let mut other = world.command(peer, &[binary, "peer", socket]);
    let mut other = other.env("VMMC_OFFER", offer).spawn().expect("it starts");
    let mut command = world.command(actor, &[&[binary, "actor", socket, end, &node], states].concat());
    command.env("VMMC_OFFER", offer);
    let output = finish(command);
    let _ = other.kill();
    let _ = other.wait();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let counts = said.lines().find_map(|line| line.strip_suffix(" connections moved")?.split_once(" of "));
    let (moved, all) = counts.and_then(|(m, a)| Some((m.parse().ok()?, a.parse().ok()?))).expect("it counts them");
    let printed = text(&output);
    let answers = printed.lines().filter_map(|line| line.split_once(':'));
    (answers.map(|(name, answer)| (name.to_string(), answer.to_string())).collect(), (moved, all))
}

/// What TCP answers in two runs.
fn tcp_answers(world: &World, binary: &str, end: &'static str) -> Seen {
    static ALL: [OnceLock<Seen>; 2] = [OnceLock::new(), OnceLock::new()];
    let all = ALL[usize::from(end == ENDS[1])].get_or_init(|| {
        let mut seen = Seen::new();
        (0..2).for_each(|_| ask_tcp(world, binary, end, &[], &mut seen));
        assert!(seen.len() > 10_000, "{} lines", seen.len());
        seen
    });
    all.clone()
}

/// Asks TCP once more, everything or about these states.
fn ask_tcp(world: &World, binary: &str, end: &str, states: &[&str], seen: &mut Seen) {
    let (answers, _) = matrix(world, binary, (By::Itself, By::Itself), "usual", end, (Node::Runs, states));
    answers.into_iter().for_each(|(name, answer)| _ = seen.entry(name).or_default().insert(answer));
}

/// Whether the documents name this difference: by the call, or by state and call.
fn is_known(name: &str) -> bool {
    let probe = name.split(',').next().expect("a name");
    let (_, call) = probe.split_once('/').unwrap_or((probe, probe));
    [probe, call].iter().any(|name| known_differences().contains(&format!("`{name}`")))
}

/// Lines that TCP was not seen to answer, and that are not known to differ.
fn differences<'a>(tcp: &Seen, found: &'a Answers) -> Vec<(&'a str, &'a str)> {
    let foreign = |name: &str, answer: &str| tcp.get(name).is_some_and(|tcp| !tcp.contains(answer));
    let lines = found.iter().map(|(name, answer)| (name.as_str(), answer.as_str()));
    lines.filter(|(name, answer)| foreign(name, answer) && !is_known(name)).collect()
}

/// Every line is one that TCP was seen to answer. Some depend on how long things take: so before a
/// line is called different TCP is asked again, about that state, on the machine as it is now.
fn assert_as_tcp(what: &str, (world, binary, end): (&World, &str, &str), tcp: &mut Seen, found: &Answers) {
    for _ in 0..RUNS_MORE {
        let names = differences(tcp, found).into_iter().map(|(name, _)| name);
        let states: BTreeSet<&str> = names.filter_map(|name| Some(name.split_once('/')?.0)).collect();
        if states.is_empty() {
            return;
        }
        ask_tcp(world, binary, end, &states.into_iter().collect::<Vec<_>>(), tcp);
    }
    let different = differences(tcp, found);
    let lines = different.iter().map(|(name, answer)| format!("{name}\n   TCP {:?}\n   now {answer}", tcp[*name]));
    let lines: Vec<String> = lines.collect();
    assert!(lines.is_empty(), "{what}: {} lines\n{}", lines.len(), lines.join("\n"));
}

/// Two processes under `vmmc exec`, all connections in rings.
fn compare_rings(node: Node) {
    if !have("cc", "gcc") {
        return;
    }
    let world = World::new();
    let binary = built(&world, "matrix");
    let states = world.run(By::Itself, &[&binary, "states"]);
    for end in ENDS {
        let mut tcp = tcp_answers(&world, &binary, end);
        // A node that is killed is needed again for the next state.
        let parts: Vec<Vec<&str>> = match node {
            Node::Killed => states.lines().map(|state| vec![state]).collect(),
            _ => vec![Vec::new()],
        };
        for states in parts {
            let both = (By::Exec, By::Exec);
            let (found, (moved, all)) = matrix(&world, &binary, both, "at-once", end, (node, &states));
            assert_eq!(moved, all, "connections in rings");
            assert_as_tcp(&format!("{end}, node {node:?}"), (&world, &binary, end), &mut tcp, &found);
            if node == Node::Killed {
                world.start_node();
            }
        }
        if node == Node::Stopped {
            kill(world.node_pid(), "-CONT");
        }
    }
}

#[test]
fn every_call_in_every_state_is_answered_in_a_ring_as_by_tcp() {
    compare_rings(Node::Runs);
}

#[test]
fn every_call_in_every_state_is_answered_as_by_tcp_while_the_node_is_stopped() {
    compare_rings(Node::Stopped);
}

#[test]
fn every_call_in_every_state_is_answered_as_by_tcp_after_the_node_was_killed() {
    compare_rings(Node::Killed);
}

#[test]
fn a_peer_without_vmmc_is_served_as_by_tcp() {
    if !have("cc", "gcc") {
        return;
    }
    let world = World::new();
    let binary = built(&world, "matrix");
    for (pair, end) in [((By::Exec, By::Itself), ENDS[0]), ((By::Itself, By::Exec), ENDS[1])] {
        let mut tcp = tcp_answers(&world, &binary, end);
        let (found, (moved, _)) = matrix(&world, &binary, pair, "at-once", end, (Node::Runs, &[]));
        assert_eq!(moved, 0, "connections in rings");
        assert_as_tcp(&format!("{pair:?}"), (&world, &binary, end), &mut tcp, &found);
    }
}

/// Connections that are offered, and join, at random moments are on their way into the ring when the
/// state is entered and the call is made.
#[test]
fn a_connection_that_moves_at_a_random_moment_answers_as_tcp_does() {
    const SEEDS: [&str; 3] = ["random:1", "random:2", "random:3"];
    if !have("cc", "gcc") {
        return;
    }
    let world = World::new();
    let binary = built(&world, "matrix");
    let end = ENDS[0];
    let mut tcp = tcp_answers(&world, &binary, end);
    for offer in SEEDS {
        let (found, _) = matrix(&world, &binary, (By::Exec, By::Exec), offer, end, (Node::Runs, &[]));
        assert_as_tcp(offer, (&world, &binary, end), &mut tcp, &found);
    }
}
