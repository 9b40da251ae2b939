//! Unchanged programs: their TCP connections go through VMMC under `vmmc exec`, and programs that
//! call `clnt_vmmc_create` and `svc_vmmc_create` run under it too.
//!
//! Invariant: nothing of the program knows. Source: docs/exec.md.

mod common;

use common::{Nodes, Program, programs};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The folder with the command `vmmc` and the library that it preloads, which are built first.
fn built() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let own = std::env::current_exe().expect("a test is a file");
        let folder = own.parent().and_then(Path::parent).expect("tests lie in PROFILE/deps").to_path_buf();
        let name = folder.file_name().and_then(|name| name.to_str()).expect("the folder has the profile's name");
        let profile = if name == "debug" { "dev" } else { name };
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["build", "--package", "vmmc-preload", "--package", "vmmc-cli", "--profile", profile]);
        command.args(["--lib", "--bins"]);
        command.args(["--target-dir".as_ref(), folder.parent().expect("a target folder").as_os_str()]);
        let output = command.output().expect("cargo runs");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        folder
    })
}

fn under_exec(name: &str, words: &[&str], node: &str) -> Program {
    let folder = built();
    let mut command = Command::new(folder.join("vmmc"));
    command.args(["exec", "--verbose", "--offer", "at-once", "--"]);
    command.arg(programs().expect("they are made").join(name)).args(words).stderr(Stdio::piped());
    Program::of(command.env("VMMC_PRELOAD", folder.join("libvmmc_preload.so")), node)
}

#[test]
fn unchanged_programs_and_ours_call_each_other_under_exec_and_without() {
    let (Some(_), nodes) = (programs(), Nodes::start(1)) else { return };
    let node = &nodes.names[0];
    let (_server, port) = under_exec("server", &["vmmc", "tcp-here"], node).ready();
    let by_port = format!("port:{port}");
    for (how, upgraded) in [("vmmc", false), (&by_port, true)] {
        let (said, report) = under_exec("client", &[how, "all"], node).ended_with_report();
        assert!(said.ends_with("ok\n"), "{how} under exec: {said}");
        assert_eq!(report.contains("1 connections upgraded"), upgraded, "{how}: {report}");
        common::client_does(&[how, "all"], node);
    }
    // A server without VMMC, and clients under exec.
    let (_plain, port) = Program::server(&["tcp-here"], node);
    let said = under_exec("client", &[&format!("port:{port}"), "all"], node).ended();
    assert!(said.ends_with("ok\n"), "{said}");
}
