//! What the tests share: nodes on threads of this process, and the programs of rpcgen's, made once
//! for each test file.
//!
//! Invariant: every program that a test starts is gone when the test ends, also when it fails.
#![allow(dead_code)] // each test file uses some of it

#[path = "../../link.rs"]
pub(crate) mod link;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmmc::Session;
use vmmc_node::{Daemon, KeySource, NodeConfig, Stopper};

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// Longest wait for a program to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nodes that know each other.
pub(crate) struct Nodes {
    pub(crate) names: Vec<String>,
    running: Vec<Option<(Stopper, JoinHandle<()>)>>,
}

impl Nodes {
    pub(crate) fn start(count: usize) -> Nodes {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let mut nodes = Nodes { names: Vec::new(), running: Vec::new() };
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for _ in 0..count {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let name = format!("onc-{}-{serial}", std::process::id());
            let loopback: SocketAddr = "127.0.0.1:0".parse().expect("an address");
            let mut config = NodeConfig::new(&name).listen(loopback).key(KeySource::Given([7; 32]));
            config = addresses.iter().fold(config, |config, address| config.peer(&[*address]));
            let daemon = Daemon::start(config).expect("a node starts");
            addresses.extend(daemon.running().addresses);
            let stopper = daemon.stopper();
            let thread = std::thread::spawn(move || daemon.run().expect("the daemon ends well"));
            nodes.running.push(Some((stopper, thread)));
            nodes.names.push(name);
        }
        for from in 1..count {
            nodes.attach(from).ping(&addresses[0].to_string(), LONG).expect("the nodes reach each other");
        }
        nodes
    }

    pub(crate) fn attach(&self, node: usize) -> Session {
        let builder = Session::builder().node(&self.names[node]).start_node(false).timeout(LONG);
        builder.attach().expect("attach")
    }

    pub(crate) fn stop(&mut self, node: usize) {
        if let Some((stopper, thread)) = self.running[node].take() {
            stopper.stop();
            thread.join().expect("the daemon ends well");
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        (0..self.running.len()).for_each(|node| self.stop(node));
    }
}

/// Prints why a test does nothing here.
pub(crate) fn skip(why: &str) {
    println!("SKIP calls of ONC RPC programs: {why}");
}

/// The folder with `client` and `server`; none, and a skip: something is missing to make them.
pub(crate) fn programs() -> Option<&'static Path> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(make) {
        Ok(folder) => Some(folder),
        Err(why) => {
            skip(why);
            None
        }
    }
}

fn make() -> Result<PathBuf, String> {
    let cflags = link::libtirpc("--cflags")?;
    if Command::new("rpcgen").arg("--version").output().is_err() {
        return Err("no rpcgen here; the package rpcsvc-proto brings it".into());
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = std::env::current_exe().expect("a test is a file");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(own.file_stem().expect("it has a name"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    link::library(sources, &static_library(), &folder.join("libvmmc_onc.so.0")).expect("the library");
    std::os::unix::fs::symlink("libvmmc_onc.so.0", folder.join("libvmmc_onc.so")).expect("a link");
    fs::copy(sources.join("tests/programs/letters.x"), folder.join("letters.x")).expect("a copy");
    for (what, to) in [("-h", "letters.h"), ("-c", "xdr.c"), ("-l", "clnt.c"), ("-m", "svc.c")] {
        run(Command::new("rpcgen").args(["-C", what, "-o", to, "letters.x"]).current_dir(&folder));
    }
    for (program, stubs) in [("client", "clnt.c"), ("server", "svc.c")] {
        let mut command = Command::new("cc");
        command.args(["-D_GNU_SOURCE", "-O1", "-w", "-I."]).args(&cflags).arg("-I").arg(sources.join("include"));
        command.arg("-o").arg(program).arg(sources.join(format!("tests/programs/{program}.c"))).args([stubs, "xdr.c"]);
        command.args(["-L.", "-lvmmc_onc", "-ltirpc", "-lpthread", "-Wl,-rpath,$ORIGIN"]).current_dir(&folder);
        run(&mut command);
    }
    Ok(folder)
}

/// The newest one that cargo made: it makes it with the library that this test is linked with.
fn static_library() -> PathBuf {
    let own = std::env::current_exe().expect("a test is a file");
    let folder = own.parent().expect("a test is in a folder");
    let all = fs::read_dir(folder).expect("the folder can be read").flatten();
    let ours = all.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("libvmmc_onc") && name.ends_with(".a")
    });
    let newest = ours.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
    newest.expect("cargo makes the static library").path()
}

fn run(command: &mut Command) {
    let done = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A program that runs; killed when dropped.
pub(crate) struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Program {
    /// Starts one of [`programs`], attached to a node.
    pub(crate) fn start(name: &str, words: &[&str], node: &str) -> Program {
        Program::of(Command::new(programs().expect("they are made").join(name)).args(words), node)
    }

    /// The same as another user.
    pub(crate) fn start_as(uid: u32, name: &str, words: &[&str], node: &str) -> Program {
        let folder = programs().expect("they are made");
        Program::of(Command::new(folder.join(name)).args(words).uid(uid).gid(uid), node)
    }

    pub(crate) fn of(command: &mut Command, node: &str) -> Program {
        command.env("VMMC_NODE", node).env("VMMC_LOG", "off").env("VMMC_BIN", "/none");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        Program { child, out }
    }

    /// A server that is ready, and its port at TCP.
    pub(crate) fn server(words: &[&str], node: &str) -> (Program, u16) {
        Program::start("server", words, node).ready()
    }

    pub(crate) fn ready(mut self) -> (Program, u16) {
        let line = self.line();
        let port = line.strip_prefix("ready ").and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("the server is not ready: {line:?}"));
        (self, port)
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("text");
        line.trim_end().to_string()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The same, and what it prints to standard error, which must be piped and short.
    pub(crate) fn ended_with_report(mut self) -> (String, String) {
        let mut errors = self.child.stderr.take().expect("it is piped");
        let said = self.ended();
        let mut report = String::new();
        errors.read_to_string(&mut report).expect("text");
        (said, report)
    }

    /// What it prints until it ends.
    pub(crate) fn ended(mut self) -> String {
        let begun = Instant::now();
        while self.child.try_wait().expect("it is a child").is_none() {
            assert!(begun.elapsed() < PATIENCE, "the program does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut said = String::new();
        self.out.read_to_string(&mut said).expect("text");
        said
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a client says.
pub(crate) fn client(words: &[&str], node: &str) -> String {
    Program::start("client", words, node).ended()
}

/// A client's words, which must end in "ok".
pub(crate) fn client_does(words: &[&str], node: &str) -> String {
    let said = client(words, node);
    assert!(said.ends_with("ok\n"), "client {words:?}: {said}");
    said
}

/// rpcbind, if it can be had.
pub(crate) struct Rpcbind(Option<Child>);

impl Rpcbind {
    pub(crate) fn have() -> Option<Rpcbind> {
        let runs = || std::net::TcpStream::connect("127.0.0.1:111").is_ok();
        if runs() {
            return Some(Rpcbind(None));
        }
        let mut child = match Command::new("/usr/sbin/rpcbind").arg("-f").stderr(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(e) => {
                skip(&format!("no rpcbind ({e}); the package rpcbind brings it"));
                return None;
            }
        };
        let begun = Instant::now();
        while !runs() {
            if child.try_wait().expect("it is a child").is_some() || begun.elapsed() > LONG {
                skip("rpcbind does not start; it needs root, and its port");
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(Rpcbind(Some(child)))
    }
}

impl Drop for Rpcbind {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
