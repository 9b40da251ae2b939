//! The one door: `cargo xtask check` runs everything that CI runs, in the order in which failures
//! are cheapest to find.
//!
//! Invariant: a step passes, fails or is skipped with a printed reason; the last line counts all
//! three, and the exit code is not 0 when a step failed.

mod bsp;
mod c;
mod columns;
mod failures;
mod first_hour;
mod install;
mod library;
mod man;
#[cfg(test)]
mod man_kinds;
mod man_statuses;
mod nx;
mod onc;
mod printed;
mod python;
mod reference;
mod steps;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// How a step ended.
pub(crate) enum Outcome {
    /// All of it held. The text, if any, is a short count.
    Passed(String),
    /// Something did not; the text says what.
    Failed(String),
    /// It could not run here; the text says why and what would make it run.
    Skipped(String),
}

/// Parts of steps that could not run here.
static PARTS_SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Says that a part of a step could not run here, and counts it.
pub(crate) fn skipped(why: &str) {
    PARTS_SKIPPED.fetch_add(1, Ordering::Relaxed);
    println!("   SKIP {why}");
}

const HELP: &str = "\
cargo xtask check [STEP...]   run all steps, or only those whose name contains one of the words
cargo xtask check --lean      the same; what a step builds for itself alone is taken away after it
cargo xtask check --full first-hour
                              with the profile that users build instead of the check's own (minutes more)
cargo xtask list              name the steps
cargo xtask install --prefix DIR [--destdir DIR] [--profile P] [--features F] [--no-build] [--no-strip]
                              install the command, the library for `vmmc exec`, the C library, man pages, completions, units
cargo xtask install --uninstall --prefix DIR [--destdir DIR]
                              take all of that away again
cargo xtask install-c --prefix DIR [...]
                              install the C library alone: header, libraries, pkg-config and CMake files, man pages, examples;
                              with a compiler also libvmmc_bsp and libvmmc_nx, for BSPlib and NX,
                              with libtirpc also libvmmc_onc, for programs of ONC RPC";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("check") => check(&arguments[1..]),
        Some("list") => {
            steps::all().iter().for_each(|step| println!("{:<10} {}", step.name, step.what));
            ExitCode::SUCCESS
        }
        Some("install") => said(install::command(install::Part::All, &arguments[1..])),
        Some("install-c") => said(install::command(install::Part::C, &arguments[1..])),
        _ => {
            eprintln!("{HELP}");
            ExitCode::from(2)
        }
    }
}

fn said(result: Result<String, String>) -> ExitCode {
    match result {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Where cargo builds.
pub(crate) fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The project's root folder.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root folder").to_path_buf()
}

fn check(words: &[String]) -> ExitCode {
    let words: Vec<&String> = words.iter().filter(|word| !word.starts_with("--")).collect();
    let chosen = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let (mut passed, mut failed, mut skipped) = (0, Vec::new(), 0);
    let start = Instant::now();
    for step in steps::all().into_iter().filter(|step| chosen(step.name)) {
        println!("── {} · {}", step.name, step.what);
        let began = Instant::now();
        let outcome = (step.run)();
        let seconds = began.elapsed().as_secs_f64();
        match outcome {
            Outcome::Passed(note) => {
                passed += 1;
                println!("   passed in {seconds:.0} s{}{note}", if note.is_empty() { "" } else { ": " });
            }
            Outcome::Failed(why) => {
                println!("   FAILED in {seconds:.0} s: {why}");
                failed.push((step.name, why));
            }
            Outcome::Skipped(why) => {
                skipped += 1;
                println!("   SKIPPED: {why}");
            }
        }
    }
    println!("── {:.0} s in all", start.elapsed().as_secs_f64());
    // Again, for whoever sees the end of the output alone.
    failed.iter().for_each(|(name, why)| println!("   FAILED: {name}: {why}"));
    let parts = PARTS_SKIPPED.load(Ordering::Relaxed);
    println!("{passed} passed, {} failed, {skipped} skipped, and {parts} parts of others", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
