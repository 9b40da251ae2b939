//! What the tests of the command share: running it, temporary nodes, waiting.
//!
//! Invariant: every node that a test starts has a name of its own and is gone when the test ends,
//! also when it fails.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for what the promises give a second or five: the machine may be busy with other
/// tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

static NAMES: AtomicU32 = AtomicU32::new(1);

/// A name that no other test uses.
pub(crate) fn unique(what: &str) -> String {
    format!("test-{}-{}-{what}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed))
}

/// A folder that is removed when dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        let path = std::env::temp_dir().join(unique("folder"));
        std::fs::create_dir_all(&path).expect("the temporary folder can be written");
        Folder(path)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the name is ASCII").to_string()
    }
}

/// A program that ends with the value.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The command, with nothing of the user's environment that matters to it.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmmc"));
    command.args(args).env_remove("VMMC_NODE").env("VMMC_LOG", "off").stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub(crate) fn vmmc(args: &[&str]) -> Output {
    command(args).output().expect("the command can be started")
}

/// Runs it, expects success, gives what it printed.
pub(crate) fn ok(args: &[&str]) -> String {
    let output = vmmc(args);
    assert!(output.status.success(), "vmmc {args:?}: {}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}

/// Runs it, expects success, gives what it printed as JSON.
pub(crate) fn json(args: &[&str]) -> serde_json::Value {
    let printed = ok(args);
    serde_json::from_str(&printed).unwrap_or_else(|e| panic!("vmmc {args:?} printed no JSON: {e}\n{printed}"))
}

/// Runs it, expects this exit code, gives what it said.
pub(crate) fn fails(code: i32, args: &[&str]) -> String {
    let output = vmmc(args);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "vmmc {args:?}: {said}{}", text(&output.stdout));
    said
}

/// A user without rights or files.
pub(crate) const NOBODY: &str = "65534";

/// Why commands cannot be run as another user here.
pub(crate) fn no_other_user() -> Option<&'static str> {
    let can = rustix::process::geteuid().is_root() && Command::new("setpriv").arg("--version").output().is_ok();
    (!can).then_some("needs root and setpriv")
}

/// The command as run by [`NOBODY`], with nothing of our environment.
pub(crate) fn as_nobody(args: &[&str]) -> Command {
    let mut run = Command::new("setpriv");
    run.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", env!("CARGO_BIN_EXE_vmmc")]).args(args);
    run.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/").stdin(Stdio::null());
    run
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A node daemon of a test.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) address: String,
}

impl Node {
    /// Starts a node on loopback with these options besides.
    pub(crate) fn start(what: &str, options: &[&str]) -> Node {
        Node::start_named(&unique(what), options)
    }

    pub(crate) fn start_named(name: &str, options: &[&str]) -> Node {
        let basic = ["node", "start", "--name", name, "--listen", "127.0.0.1:0", "--linger-s", "120"];
        ok(&[&basic, options].concat());
        let status = json(&["node", "status", "--name", name, "--json"]);
        let pid = status["pid"].as_u64().expect("a node has a process id") as u32;
        let address = status["listen"][0].as_str().expect("a node listens").to_string();
        Node { name: name.to_string(), pid, address }
    }

    /// Kills the daemon at once.
    pub(crate) fn kill(&self) {
        kill(self.pid);
        wait_until("the daemon is gone", || !alive(self.pid));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = vmmc(&["node", "stop", "--name", &self.name]);
        if alive(self.pid) {
            kill(self.pid);
        }
    }
}

/// Kills a process with SIGKILL.
pub(crate) fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Whether a process runs; one that has ended and was not waited for does not.
pub(crate) fn alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Waits, patiently, until something holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Descriptors that a process has open.
pub(crate) fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Mappings of unnamed memory that a process has.
pub(crate) fn memory_mappings(pid: u32) -> usize {
    std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .unwrap_or_default()
        .lines()
        .filter(|l| l.contains("memfd:"))
        .count()
}

/// Runs `ip` of iproute2.
pub(crate) fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(args).output().map_err(|e| format!("`ip` of iproute2 is needed: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", args.join(" "), text(&output.stderr).trim())),
    }
}
