//! Every call of the C library that touches a stream socket, made by a C program (`calls.c`) on
//! connections in shared memory: it prints the same with and without `vmmc exec`.
//!
//! Invariant: a case compares everything that it prints, and its connections were in shared memory
//! when it began. The program is compiled as distributions do it, with the checked forms of the
//! calls. Source: the table of calls in docs/exec.md, and glibc's manual.

mod common;

use common::{By, World, finish, have, text};

/// The cases of `calls.c`, and how many of its connections stay with the kernel for what the
/// program asked of them before they were used.
const CASES: &[(&str, usize)] = &[
    ("send", 0),
    ("receive", 0),
    ("requests", 0),
    ("no_delay", 0),
    ("low_water", 0),
    ("signals", 1),
    ("names_and_ends", 0),
    ("timeouts", 0),
    ("waiting", 0),
    ("sets", 0),
    ("high_numbers", 0),
    ("descriptors", 0),
    ("programs", 0),
    ("exits", 0),
    ("cancel", 0),
    ("cancel_in_kernel", 0),
    ("forks", 0),
    ("kernel_aio", 1),
];

#[test]
fn every_call_says_and_does_the_same() {
    if !have("cc", "gcc") {
        return;
    }
    let world = World::new();
    let (source, binary) = (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calls.c"), world.folder.join("calls"));
    let binary = binary.to_str().expect("ASCII");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let checked = ["-std=gnu11", "-O2", "-D_FORTIFY_SOURCE=2", "-w", "-pthread", include];
    world.run(By::Itself, &[&["cc"][..], &checked, &["-o", binary, source]].concat());
    let mut different = Vec::new();
    for (case, stay) in CASES {
        let without = world.run(By::Itself, &[binary, case]);
        let with = finish(world.verbose(&[binary, case]));
        let report = String::from_utf8_lossy(&with.stderr);
        let moved = report.lines().find_map(|line| {
            let (moved, all) = line.strip_suffix(" connections moved")?.split_once(" of ")?;
            Some((moved.parse::<usize>().ok()?, all.parse::<usize>().ok()?))
        });
        if !with.status.success() || text(&with) != without {
            different.push(format!("{case}: {}\n{}{report}", with.status, difference(&without, &text(&with))));
        } else if moved.is_none_or(|(moved, all)| moved + stay != all) {
            different.push(format!("{case}: {moved:?} moved, not all but {stay}\n{report}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// The first lines that are not the same, with the line before them.
fn difference(without: &str, with: &str) -> String {
    let (one, two): (Vec<&str>, Vec<&str>) = (without.lines().collect(), with.lines().collect());
    let at = one.iter().zip(&two).take_while(|(one, two)| one == two).count();
    let from = at.saturating_sub(2);
    let some = |lines: &[&str]| lines.iter().skip(from).take(6).map(|line| format!("   {line}\n")).collect::<String>();
    format!("line {at} without:\n{}with:\n{}", some(&one), some(&two))
}
