//! What a node writes down, where, and how it is shown.
//!
//! Invariant: what happened is found afterwards, also when the node has gone, and nobody can fill
//! the disk with it.

mod common;

use common::{Folder, NOBODY, Node, as_nobody, command, fails, no_other_user, ok, text, unique, wait_until};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;
use vmmc_host::Channel;
use vmmc_host::channel::node_socket_name;

#[test]
fn starts_peers_and_ends_are_found_after_the_node_has_gone() {
    let folder = Folder::new();
    let file = folder.file("logs/near.log");
    let near = Node::start("near", &["--plain", "--log-file", &file, "--log-level", "info"]);
    let mut follower = command(&["node", "log", "-f", "--name", &near.name]);
    let mut follower = follower.stdout(Stdio::piped()).spawn().expect("it can be started");
    {
        let far = Node::start("far", &["--plain"]);
        ok(&["ping", &far.address, "--count", "1", "--name", &near.name]);
    }
    let shown = || ok(&["node", "log", "--name", &near.name]);
    wait_until("the peer has come and gone", || shown().contains("is down: it shut down"));
    let log = shown();
    let first = log.lines().next().expect("there is a line");
    let time = first.split(' ').next().unwrap_or_default();
    assert!(time.len() == 24 && time.ends_with('Z'), "{first}");
    assert!(first.contains(" info  node: starts: ") && first.contains(&near.name), "{first}");
    assert!(log.contains("peer: node \"") && log.contains("is up at 127.0.0.1:"), "{log}");
    assert_eq!(ok(&["node", "log", "-n", "1", "--name", &near.name]).lines().count(), 1);
    ok(&["node", "stop", "--name", &near.name]);
    let whole = std::fs::read_to_string(&file).expect("the log outlives the node");
    assert!(whole.contains("node: ends: its user told it to"), "{whole}");
    assert_eq!(std::fs::metadata(&file).expect("it is there").mode() & 0o777, 0o600);
    let mut followed = std::io::BufReader::new(follower.stdout.take().expect("it is a pipe"));
    let mut seen = String::new();
    while !seen.contains("node: ends") {
        assert!(std::io::BufRead::read_line(&mut followed, &mut seen).is_ok_and(|n| n > 0), "{seen}");
    }
    follower.kill().expect("it is ours");
    follower.wait().expect("it is ours");
    assert_eq!(seen, whole, "every line came once");
}

#[test]
fn a_process_that_misbehaves_is_written_down_and_cannot_flood_the_log() {
    let folder = Folder::new();
    let file = folder.file("node.log");
    let node = Node::start("junk", &["--plain", "--log-file", &file, "--log-level", "debug"]);
    let socket = node_socket_name(rustix::process::geteuid().as_raw(), &node.name);
    for round in 0..300 {
        let Ok(channel) = Channel::connect(&socket) else { continue };
        // Refused or not: the node may have closed it already.
        let _ = channel.try_send(&[0xff, 0xfe, round as u8], &[]);
    }
    let log = || std::fs::read_to_string(&file).expect("it is written");
    wait_until("it is written down", || log().contains("sent a message that is none"));
    ok(&["node", "status", "--name", &node.name]);
    let lines = log().matches("sent a message that is none").count();
    assert!((1..=40).contains(&lines), "{lines} lines of one source");
}

#[test]
fn a_background_node_of_a_user_writes_below_the_state_folder_and_is_quiet_when_told() {
    if let Some(why) = no_other_user() {
        return println!("SKIP the log of another user's node: {why}");
    }
    let folder = Folder::new();
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o777)).expect("the folder is ours");
    let as_nobody = |args: &[&str]| {
        let output = as_nobody(args).env("XDG_STATE_HOME", &folder.0).output().expect("setpriv runs");
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let (loud, silent) = (unique("loud"), unique("silent"));
    for (name, level) in [(&loud, "info"), (&silent, "off")] {
        let start = ["node", "start", "--name", name, "--plain", "--linger-s", "60", "--log-level", level];
        let (started, said) = as_nobody(&start);
        assert!(started, "{said}");
        let (shown, log) = as_nobody(&["node", "log", "--name", name]);
        assert_eq!(shown, level == "info", "{log}");
        assert!(if shown { log.contains("node: starts") } else { log.contains("keeps no log") }, "{log}");
        assert!(as_nobody(&["node", "stop", "--name", name]).0);
    }
    let (shown, log) = as_nobody(&["node", "log", "--name", &loud]);
    assert!(shown && log.contains("node: ends"), "{log}");
    let file = folder.0.join("vmmc").join(format!("{loud}.log"));
    let about = file.metadata().expect("it is there");
    assert_eq!((about.mode() & 0o777, about.uid().to_string()), (0o600, NOBODY.to_string()));
    assert!(!folder.0.join("vmmc").join(format!("{silent}.log")).exists());
}

#[test]
fn a_foreground_node_writes_to_standard_error_and_to_the_journal_with_its_levels() {
    for journal in [false, true] {
        let (folder, name) = (Folder::new(), unique("foreground"));
        let path = folder.file("stderr");
        let file = std::fs::File::create(&path).expect("the folder can be written");
        let about = file.metadata().expect("it is open");
        let mut node = command(&["node", "run", "--name", &name, "--plain", "--log-level", "info"]);
        if journal {
            node.env("JOURNAL_STREAM", format!("{}:{}", about.dev(), about.ino()));
        }
        let mut node = node.stderr(file).stdout(Stdio::null()).spawn().expect("it can be started");
        let said = || std::fs::read_to_string(&path).unwrap_or_default();
        wait_until("it starts", || said().contains("node: starts"));
        if !journal {
            assert!(fails(1, &["node", "log", "--name", &name]).contains("--log-file"));
        }
        ok(&["node", "stop", "--name", &name]);
        assert!(node.wait().expect("it is ours").success());
        let said = said();
        let journals = said.lines().all(|line| line.starts_with("<6>node: "));
        assert_eq!(journals, journal, "{said}");
        assert!(said.contains("node: ends"), "{said}");
    }
}

/// A stand-in for the journal's reader, which prints what it was asked; and, asked for the last
/// entry's time, this one.
fn journalctl(folder: &Folder, time: &str) -> String {
    let script = format!("#!/bin/sh\ncase \"$*\" in *short-unix*) echo '{time} x' ;; *) echo \"asked: $*\" ;; esac\n");
    let path = folder.file("journalctl");
    std::fs::write(&path, script).expect("the folder can be written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("it is ours");
    format!("{}:/usr/bin:/bin", folder.0.display())
}

#[test]
fn the_journal_is_asked_for_the_unit_also_when_no_node_runs() {
    if let Some(why) = no_other_user() {
        return println!("SKIP the journal of a user's unit: {why}");
    }
    let folder = Folder::new();
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o777)).expect("the folder is ours");
    let ask = |time: &str, name: &str| {
        let path = journalctl(&folder, time);
        let mut run = as_nobody(&["node", "log", "-n", "7", "--name", name]);
        let output = run.env("PATH", path).env("XDG_STATE_HOME", &folder.0).output().expect("setpriv runs");
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    // A node of root in the background may have this name on this machine; then its log is what is
    // asked for.
    if vmmc_host::channel::listening_nodes().iter().any(|(uid, name)| *uid == 0 && name == "default") {
        return println!("SKIP the journal of a unit that does not run: root runs a node \"default\" here");
    }
    let (code, said) = ask("", "default");
    assert_eq!(code, Some(3), "neither a file nor an entry: {said}");
    let units = "--unit=vmmc-node --unit=vmmc-memory --user-unit=vmmc-node --no-hostname --lines=7\n";
    assert_eq!(ask("1700000000.5", "default"), (Some(0), format!("asked: {units}")));
    assert_eq!(ask("1700000000.5", "other").0, Some(3), "no unit runs a node of another name");
    // A file that is younger than the last entry is of a node that wrote later.
    std::fs::create_dir_all(folder.0.join("vmmc")).expect("the folder is ours");
    std::fs::write(folder.0.join("vmmc/default.log"), "from the file\n").expect("it can be written");
    assert_eq!(ask("1700000000.5", "default"), (Some(0), "from the file\n".into()));
    assert_eq!(ask("99999999999.5", "default"), (Some(0), format!("asked: {units}")));
}

#[test]
fn a_log_of_root_is_refused_with_who_can_read_it() {
    if let Some(why) = no_other_user() {
        return println!("SKIP the log of root's node: {why}");
    }
    let folder = Folder::new();
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).expect("the folder is ours");
    let file = folder.file("node.log");
    let options = ["--plain", "--serve", "any", "--log-file", &file, "--log-level", "info"];
    let node = Node::start("rootlog", &options);
    let output = as_nobody(&["node", "log", "--name", &node.name]).output().expect("setpriv runs");
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains(&file) && said.contains("ask root"), "{said}");
}
