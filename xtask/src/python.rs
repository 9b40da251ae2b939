//! The Python package: installed with pip into a virtual environment of its own, then its tests,
//! the tutorial and the check of its stubs run against that.
//!
//! Invariant: nothing outside of the target folder changes; without Python 3.11, venv or a package
//! index the step is skipped with the reason.

use crate::Outcome::{self, Failed, Passed, Skipped};
use crate::c::need;
use crate::steps::{PROFILE, build, built, log_text, run, succeeds, without_logs};
use crate::{root, target_folder};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the step needs from the package index. NumPy and mypy widen what is tested.
const TOOLS: &[&str] = &["maturin>=1.7,<2", "numpy", "mypy", "typing_extensions"];

/// The step.
pub(crate) fn check() -> Outcome {
    let python = match find_python() {
        Ok(python) => python,
        Err(why) => return Skipped(why),
    };
    let venv = target_folder().join("xtask/python-venv");
    if let Err(why) = prepare(&python, &venv) {
        return Skipped(why);
    }
    match try_check(&venv) {
        Ok(note) => Passed(note),
        Err(why) => Failed(why),
    }
}

/// An interpreter that the package supports, with venv.
fn find_python() -> Result<String, String> {
    let good = |python: &str| {
        let code = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
        succeeds(Command::new(python).args(["-c", code]))
    };
    if !good("python3") {
        let _ = need("python3", "python3");
        // On Debian venv is a package that no program shows.
        let _ = Command::new("apt-get").args(["install", "-y", "-q", "python3-venv"]).output();
    }
    let candidates = ["python3", "/usr/bin/python3"];
    let found = candidates.into_iter().find(|python| good(python));
    found.map(str::to_string).ok_or_else(|| "no Python 3.11 with venv here; install python3 and python3-venv".into())
}

/// Makes the environment, once.
fn prepare(python: &str, venv: &Path) -> Result<(), String> {
    let tools_there = || succeeds(Command::new(venv.join("bin/maturin")).arg("--version"));
    if tools_there() {
        return Ok(());
    }
    let mut make = Command::new(python);
    make.args(["-m", "venv", "--clear"]).arg(venv);
    if let Failed(why) = run("python-venv", make) {
        return Err(format!("no virtual environment can be made ({why}); install python3-venv"));
    }
    let mut install = Command::new(venv.join("bin/pip"));
    install.args(["install", "--quiet", "--disable-pip-version-check"]).args(TOOLS);
    match run("python-tools", install) {
        Failed(why) => Err(format!("{TOOLS:?} cannot be installed ({why}); a package index must be in reach")),
        _ => Ok(()),
    }
}

fn try_check(venv: &Path) -> Result<String, String> {
    build()?;
    install(venv)?;
    let node = format!("xtask-python-{}", std::process::id());
    let ran = ["test_vmmc", "test_rpc", "test_mp"]
        .iter()
        .map(|tests| run_tests(venv, &node, tests))
        .collect::<Result<Vec<_>, _>>()?;
    let ran = ran.join(", ");
    let examples = examples()?;
    let tutorial = examples.iter().try_for_each(|example| {
        let name = example.file_stem().and_then(|n| n.to_str()).unwrap_or_default();
        step(venv, &node, &format!("python-example-{name}"), &[example.to_str().unwrap_or_default()])
    });
    let _ = Command::new(built("vmmc")).args(["node", "stop", "--name", &node]).output();
    tutorial?;
    let allowed = root().join("bindings/python/tests/stubtest-allowlist.txt");
    let allowed = allowed.to_str().expect("the tree's path is UTF-8");
    let stubtest = ["-m", "mypy.stubtest", "vmmc", "--ignore-unused-allowlist", "--allowlist", allowed];
    step(venv, &node, "python-stubs", &stubtest)?;
    // Programs with types are checked against the oldest Python, where the stubs of NumPy say
    // least.
    let typed = root().join("bindings/python/tests/typed.py");
    let typed = typed.to_str().expect("the tree's path is UTF-8");
    step(venv, &node, "python-typed", &["-m", "mypy", "--strict", "--python-version", "3.11", typed])?;
    Ok(format!("{ran}; {} examples run; stubs agree with the module, and programs with them", examples.len()))
}

/// Runs a file of tests; says how many there were.
fn run_tests(venv: &Path, node: &str, name: &str) -> Result<String, String> {
    let tests = root().join("bindings/python/tests").join(name).with_extension("py");
    let log = format!("python-{name}");
    step(venv, node, &log, &[tests.to_str().expect("the tree's path is UTF-8")])?;
    let log = log_text(&log);
    log.lines().filter(|line| line.contains("skipped")).for_each(crate::skipped);
    Ok(log.lines().find(|line| line.starts_with("Ran ")).unwrap_or_default().to_string())
}

/// `pip install ./bindings/python`.
fn install(venv: &Path) -> Result<(), String> {
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-build-isolation", "--force-reinstall"]);
    pip.args(["--no-deps", &format!("--config-settings=build-args=--profile {PROFILE}"), "./bindings/python"]);
    // The build finds maturin in the environment.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(venv.join("bin")).chain(std::env::split_paths(&path));
    pip.env("PATH", std::env::join_paths(paths).map_err(|e| e.to_string())?);
    pip.env("CARGO_TARGET_DIR", target_folder());
    match run("python-install", pip) {
        Failed(why) => Err(format!("pip install ./bindings/python: {why}")),
        _ => Ok(()),
    }
}

/// Runs the environment's interpreter, outside of the tree, so that it is the installed package
/// that is tested.
fn step(venv: &Path, node: &str, name: &str, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new(venv.join("bin/python"));
    without_logs(&mut command)
        .args(arguments)
        .env("VMMC_BIN", built("vmmc"))
        .env("VMMC_NODE", node)
        .env_remove("PYTHONPATH");
    command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(venv);
    match run(name, command) {
        Failed(why) => Err(format!("{name}: {why}")),
        _ => Ok(()),
    }
}

fn examples() -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(root().join("bindings/python/examples")).map_err(|e| e.to_string())?.flatten();
    let mut examples: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "py") && !path.ends_with("tutorial.py"))
        .collect();
    examples.sort();
    if examples.is_empty() { Err("no Python examples found".into()) } else { Ok(examples) }
}
