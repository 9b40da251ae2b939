//! Programs whose node is stopped, has died or was started anew while they have connections in
//! rings: they see what TCP would have shown them.
//!
//! Invariant: the program says "fine" and ends; one that hangs says where, or is killed at its
//! limit.

mod common;

use common::{By, World, finish_within, have, kill, text};
use std::time::Duration;

/// Runs a part of `without_node.py`.
fn run(state: &str, probe: &str) {
    if !have("python3", "python3") {
        return;
    }
    let world = World::new();
    let node = world.node_pid();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/without_node.py");
    let vmmc = common::built().join("vmmc");
    let words = ["python3", script, state, probe, vmmc.to_str().expect("ASCII"), &node.to_string()];
    let mut command = world.command(By::Exec, &words);
    command.env("VMMC_OFFER", "at-once");
    let output = finish_within(Duration::from_secs(100), command);
    kill(node, "-CONT");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text(&output) == "fine\n", "{state} {probe}: {}{said}", text(&output));
}

const STATES: [&str; 4] = ["alive", "stopped", "killed", "anew"];

#[test]
fn waits_for_several_descriptors_hear_of_bytes_and_ends() {
    STATES.iter().for_each(|state| run(state, "waits"));
}

#[test]
fn two_ends_that_both_write_before_they_read_do_not_stop_each_other() {
    STATES.iter().for_each(|state| run(state, "both_write"));
}

#[test]
fn a_poll_for_room_hears_of_the_death_of_a_peer_that_reads_nothing() {
    STATES.iter().for_each(|state| run(state, "dies_unread"));
}

#[test]
fn a_set_without_a_bell_tells_of_bytes_that_were_there_before() {
    STATES.iter().for_each(|state| run(state, "many_sets"));
    ["alive", "stopped", "killed"].iter().for_each(|state| run(state, "foreign_set"));
}

#[test]
fn a_connection_that_is_passed_on_goes_on() {
    STATES.iter().for_each(|state| run(state, "passed"));
}

#[test]
fn a_program_that_is_started_goes_on_with_connections() {
    STATES.iter().for_each(|state| run(state, "started"));
}

#[test]
fn a_program_that_closes_what_it_does_not_know_is_heard_by_its_peers() {
    for state in ["alive", "stopped", "killed"] {
        ["closes_all", "closes_one_by_one"].iter().for_each(|probe| run(state, probe));
    }
}
