//! Probes of one call each (`probes.c`): TCP beside the ring, on both ends, results, errors, bytes and events compared line by line.
//!
//! Invariant: every connection of the run under `vmmc exec` was in a ring when its probe began, and what differs is named in docs/exec.md under "Known differences" by the probe's name.

mod common;

use common::{By, World, finish, have, text};

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
    let (source, binary) = (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/probes.c"), world.folder.join("probes"));
    let binary = binary.to_str().expect("ASCII");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    world.run(By::Itself, &["cc", "-std=gnu11", "-O2", "-w", include, "-o", binary, source]);
    let accepted = include_str!("../../../docs/exec.md");
    let accepted = accepted.split("## Known differences").nth(1).expect("the page has such a chapter");
    let tcp = parts(&world.run(By::Itself, &[binary]));
    assert!(tcp.len() >= 50, "{} probes", tcp.len());
    let mut command = world.command(By::Exec, &[binary]);
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
        .filter(|(one, two)| one != two && !accepted.contains(&format!("`{}`", one.0)))
        .map(|(one, two)| format!("{}\n   TCP  {:?}\n   ring {:?}", one.0, one.1, two.1))
        .collect();
    assert!(different.is_empty() && tcp.len() == ring.len(), "{}", different.join("\n"));
}
