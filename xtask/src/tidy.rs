//! Rules about the tree that matter enough to be tests: arrows between crates, where `unsafe` may
//! be, heads of files, licences.
//!
//! Invariant: a rule that fails names file, line and what to do. Source: ARCHITECTURE.md,
//! "invariants".

use crate::Outcome::{self, Failed, Passed};
use crate::{columns, reference, root};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which crate of ours may depend on which, for its own code. Tests and examples may use more.
const ARROWS: &[(&str, &[&str])] = &[
    ("vmmc-nic", &[]),
    ("vmmc-utlb", &[]),
    ("vmmc-host", &[]),
    ("vmmc", &["vmmc-host", "vmmc-nic", "vmmc-utlb"]),
    ("onc-rpc", &[]),
    ("vmmc-job", &["vmmc", "vmmc-host"]),
    ("vmmc-mp", &["vmmc", "vmmc-host", "vmmc-job"]),
    ("vmmc-nx", &["vmmc", "vmmc-job", "vmmc-mp"]),
    ("vmmc-bsp", &["vmmc", "vmmc-host", "vmmc-job"]),
    ("vmmc-rpc", &["vmmc", "vmmc-host", "vmmc-rpc-macros"]),
    ("vmmc-rpc-macros", &[]),
    ("vmmc-techniques", &["vmmc", "vmmc-host"]),
    ("vmmc-stream", &["vmmc-host"]),
    ("vmmc-sockets", &["vmmc-host", "vmmc-stream"]),
    ("vmmc-service", &["vmmc-host", "vmmc-nic"]),
    ("vmmc-sockets-service", &["vmmc-host", "vmmc-nic", "vmmc-service", "vmmc-stream"]),
    ("vmmc-node", &["vmmc-host", "vmmc-nic", "vmmc-service", "vmmc-sockets-service", "vmmc-utlb"]),
    ("vmmc-sim", &["vmmc-host", "vmmc-nic", "vmmc-node"]),
    ("vmmc-preload", &["vmmc-host", "vmmc-sockets", "vmmc-stream"]),
    (
        "vmmc-cli",
        &[
            "vmmc",
            "vmmc-bsp",
            "vmmc-host",
            "vmmc-job",
            "vmmc-mp",
            "vmmc-nic",
            "vmmc-node",
            "vmmc-rpc",
            "vmmc-sim",
            "vmmc-sockets",
            "vmmc-stream",
            "vmmc-techniques",
            "vmmc-utlb",
        ],
    ),
    ("vmmc-c", &["vmmc", "vmmc-job", "vmmc-node", "vmmc-rpc"]),
    ("vmmc-python", &["vmmc", "vmmc-job", "vmmc-mp", "vmmc-node", "vmmc-rpc"]),
    ("vmmc-nx-c", &["vmmc", "vmmc-nx"]),
    ("vmmc-onc", &["onc-rpc", "vmmc", "vmmc-host", "vmmc-rpc"]),
    ("vmmc-bsp-c", &["vmmc-bsp", "vmmc-job"]),
    ("xtask", &[]),
];

/// Folders of crates that may contain `unsafe`.
const UNSAFE_CRATES: &[&str] =
    &["crates/host", "crates/preload", "bindings/bsp", "bindings/c", "bindings/nx", "bindings/onc", "bindings/python"];

/// Tools of tests with other licences, which are in nothing that is shipped.
const TEST_TOOLS: &[(&str, &str)] = &[("cbindgen", "MPL-2.0")];

/// Licences that dependencies may have; one of them must be offered.
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Unlicense",
    "CC0-1.0",
    "0BSD",
    "BSL-1.0",
    "MIT-0",
];

/// Marks of unfinished work, spelled in two halves so that this file does not contain them.
const MARKS: &[(&str, &str)] = &[("todo", "!("), ("unimplemented", "!("), ("FIX", "ME"), ("X", "XX")];

/// Runs all rules.
pub(crate) fn check() -> Outcome {
    let mut complaints = Vec::new();
    match metadata() {
        Ok(metadata) => {
            arrows(&metadata, &mut complaints);
            licences(&metadata, &mut complaints);
        }
        Err(e) => complaints.push(format!("cargo metadata: {e}")),
    }
    let files = rust_files();
    files.iter().for_each(|file| sources(file, &mut complaints));
    documents(&mut complaints);
    named_tests(&files, &mut complaints);
    columns::check(&mut complaints);
    reference::check(&mut complaints);
    if complaints.is_empty() {
        return Passed(format!("{} source files", files.len()));
    }
    complaints.iter().for_each(|c| println!("   | {c}"));
    Failed(format!("{} complaints", complaints.len()))
}

fn metadata() -> Result<Value, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

fn arrows(metadata: &Value, complaints: &mut Vec<String>) {
    for package in packages(metadata).filter(|p| p["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = ARROWS.iter().find(|(n, _)| *n == name) else {
            complaints
                .push(format!("crate {name} has no row in the table of arrows (xtask/src/tidy.rs, ARCHITECTURE.md)"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let target = dependency["name"].as_str().unwrap_or_default();
            let ours = ARROWS.iter().any(|(n, _)| *n == target);
            if ours && dependency["kind"].is_null() && !allowed.contains(&target) {
                complaints.push(format!("{name} depends on {target}: the table of arrows does not allow it"));
            }
        }
    }
}

fn licences(metadata: &Value, complaints: &mut Vec<String>) {
    for package in packages(metadata).filter(|p| !p["source"].is_null()) {
        let licence = package["license"].as_str().unwrap_or("none stated");
        let name = package["name"].as_str().unwrap_or("?");
        let offered = TEST_TOOLS.contains(&(name, licence))
            || licence.split([' ', '/', '(', ')']).any(|word| LICENCES.contains(&word));
        if !offered {
            complaints.push(format!("dependency {} has licence {licence:?}", name));
        }
    }
}

fn rust_files() -> Vec<PathBuf> {
    let output = Command::new("git").args(["ls-files", "--", "*.rs"]).current_dir(root()).output();
    let listed = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    listed.lines().map(|line| root().join(line)).filter(|path| path.exists()).collect()
}

fn sources(path: &Path, complaints: &mut Vec<String>) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let shown = path.strip_prefix(root()).unwrap_or(path).display().to_string();
    let first = text.lines().find(|l| !l.starts_with("#!") && !l.is_empty()).unwrap_or_default();
    if !first.starts_with("//!") {
        complaints.push(format!("{shown}: does not open with //! (role, invariant, source)"));
    }
    let may = UNSAFE_CRATES.iter().any(|name| shown.starts_with(&format!("{name}/")));
    for (index, line) in text.lines().enumerate() {
        let at = format!("{shown}:{}", index + 1);
        let code = line.split("//").next().unwrap_or_default();
        // This file names what it looks for.
        if !may
            && shown != "xtask/src/tidy.rs"
            && (code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl"))
            && !shown.contains("tests")
        {
            complaints.push(format!("{at}: unsafe outside of {UNSAFE_CRATES:?}"));
        }
        if MARKS.iter().any(|(a, b)| line.contains(&format!("{a}{b}"))) {
            complaints.push(format!("{at}: unfinished mark"));
        }
        if code.trim() == "#[ignore]" {
            complaints.push(format!("{at}: a test that is not run needs a reason"));
        }
    }
    let is_root = shown.ends_with("src/lib.rs") || shown.ends_with("src/main.rs");
    if is_root && !may && !shown.starts_with("xtask") && !text.contains("#![forbid(unsafe_code)]") {
        complaints.push(format!("{shown}: lacks #![forbid(unsafe_code)]"));
    }
}

/// Documents that name the test behind each promise.
const PROMISES: &[&str] = &["PROMISES.md", "docs/security.md", "docs/techniques.md"];
/// Words of a name that is taken for a test's: names of counters and options are shorter.
const TEST_NAME_WORDS: usize = 4;

/// What a promise names as its test must be there: a function, or a file.
fn named_tests(files: &[PathBuf], complaints: &mut Vec<String>) {
    let functions: BTreeSet<String> = files.iter().flat_map(|path| functions_of(path)).collect();
    for document in PROMISES {
        let text = std::fs::read_to_string(root().join(document)).unwrap_or_default();
        for quoted in text.split('`').skip(1).step_by(2) {
            let is_name = quoted.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            if is_name && quoted.split('_').count() >= TEST_NAME_WORDS && !functions.contains(quoted) {
                complaints.push(format!("{document}: there is no test {quoted}"));
            }
            if quoted.starts_with("crates/") && quoted.ends_with(".rs") && !root().join(quoted).exists() {
                complaints.push(format!("{document}: there is no file {quoted}"));
            }
        }
    }
}

fn functions_of(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let named = |rest: &str| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().map(str::to_string);
    text.split("fn ").skip(1).filter_map(named).collect()
}

/// Links between documents must lead somewhere.
fn documents(complaints: &mut Vec<String>) {
    let output = Command::new("git").args(["ls-files", "--", "*.md"]).current_dir(root()).output();
    let listed = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    for name in listed.lines() {
        let path = root().join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next()) {
            let outside = target.is_empty() || target.contains("://");
            let base = path.parent().expect("a file lies in a folder");
            if !outside && !base.join(target).exists() {
                complaints.push(format!("{name}: link to {target} leads nowhere"));
            }
        }
    }
}
