//! What the tests with real programs share: the built command and library, a node of their own,
//! programs with and without `vmmc exec`.
//!
//! Invariant: every node and program that a test starts is gone when the test ends, also when it
//! fails.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for a program to start or end: far above anything but a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

static NAMES: AtomicU32 = AtomicU32::new(1);

/// The folder with the command `vmmc` and the library, which are built first: a library for
/// preloading is linked by nobody, so nobody else makes cargo build it.
pub(crate) fn built() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let own = std::env::current_exe().expect("a test is a file");
        let folder = own.parent().and_then(Path::parent).expect("tests lie in PROFILE/deps").to_path_buf();
        let name = folder.file_name().and_then(|name| name.to_str()).expect("the folder has the profile's name");
        let profile = if name == "debug" { "dev" } else { name };
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["build", "--package", "vmmc-preload", "--package", "vmmc-cli", "--profile", profile]);
        command.args(["--lib", "--bins", "--example", "stress"]);
        command.args(["--target-dir".as_ref(), folder.parent().expect("a target folder").as_os_str()]);
        let output = command.output().expect("cargo runs");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        folder
    })
}

/// Prints why a test does nothing here, and that it does nothing.
pub(crate) fn skip(why: &str) {
    println!("SKIP {why}");
}

/// Whether a program is installed; prints a skip if not.
pub(crate) fn have(program: &str, package: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|f| f.join(program).exists()));
    if !found {
        skip(&format!("{program} is not installed; `apt-get install {package}` brings it"));
    }
    found
}

/// A free port, which nobody else gets soon: below those that the kernel gives to whoever connects,
/// who could take it first, or meet himself there.
pub(crate) fn port() -> u16 {
    static TRIES: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 16_384;
    const COUNT: u32 = 16_384;
    let candidates = (0..COUNT).map(|_| {
        let number = std::process::id().wrapping_mul(97).wrapping_add(TRIES.fetch_add(1, Ordering::Relaxed));
        (FIRST + number % COUNT) as u16
    });
    let mut free = candidates.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("a free port")
}

/// Whether a program is started by `vmmc exec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Exec,
    /// The same, with its connections offered at other moments than usual (`vmmc exec --offer`).
    Offered(&'static str),
    Itself,
}

/// All ways to start a server and its client.
pub(crate) const PAIRS: [(By, By); 7] = [
    (By::Exec, By::Exec),
    (By::Exec, By::Itself),
    (By::Itself, By::Exec),
    (By::Itself, By::Itself),
    (AT_ONCE, AT_ONCE),
    (AT_ONCE, RANDOM),
    (RANDOM, RANDOM),
];

/// All that a program does on a connection happens in a ring.
pub(crate) const AT_ONCE: By = By::Offered("at-once");
/// A connection moves whatever the program is doing.
pub(crate) const RANDOM: By = By::Offered("random:7");

/// A node of a test, and a folder.
pub(crate) struct World {
    node: String,
    pub(crate) folder: PathBuf,
    /// Everything runs as this user.
    user: Option<&'static str>,
    /// What else the programs find in their environment.
    variables: Vec<(&'static str, &'static str)>,
}

impl World {
    pub(crate) fn new() -> World {
        World::made(None, &["--plain", "--listen", "127.0.0.1:0"], Vec::new())
    }

    /// Two nodes of one cluster on this machine; whatever programs of one and of the other send
    /// each other in short messages goes by rings, whether that is faster here or not. `options`
    /// are the second node's.
    pub(crate) fn two(options: &[&str]) -> [World; 2] {
        World::two_with(vec![("VMMC_SOCKETS_BETWEEN", "always")], options)
    }

    /// The same with these variables for the programs.
    pub(crate) fn two_with(variables: Vec<(&'static str, &'static str)>, options: &[&str]) -> [World; 2] {
        let key = std::env::temp_dir().join(format!("test-preload-key-{}-{}", std::process::id(), port()));
        let key = key.to_str().expect("ASCII");
        let at = format!("127.0.0.1:{}", port());
        let listen = ["--key-file", key, "--peer-timeout-ms", "2000", "--listen"];
        let one = World::made(None, &[&listen[..], &[&at]].concat(), variables.clone());
        let two = World::made(None, &[&listen[..], &["127.0.0.1:0", "--peer", &at], options].concat(), variables);
        std::fs::remove_file(key).expect("the first node made the key");
        [one, two]
    }

    /// Process id of the node.
    pub(crate) fn node_pid(&self) -> u32 {
        let printed = text(&self.vmmc(&["node", "status"]).output().expect("the command starts"));
        let pid = printed.split("process ").nth(1).and_then(|rest| rest.split(',').next());
        pid.and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("no process in {printed:?}"))
    }

    /// What `vmmc sockets` says.
    pub(crate) fn sockets(&self) -> String {
        text(&self.vmmc(&["sockets", "--rate-ms", "0"]).output().expect("the command starts"))
    }

    /// The node and all programs run as another user, and the folder is theirs. Only root can.
    pub(crate) fn of_user(user: &'static str) -> World {
        World::made(Some(user), &["--plain", "--listen", "127.0.0.1:0"], Vec::new())
    }

    fn made(user: Option<&'static str>, options: &[&str], variables: Vec<(&'static str, &'static str)>) -> World {
        let name = format!("test-preload-{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let world = World { node: name, folder, user, variables };
        if let Some(user) = user {
            let output = Command::new("chown").arg(user).arg(&world.folder).output().expect("chown starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        world.start_node_with(options);
        world
    }

    /// Starts the node again, after its death.
    pub(crate) fn start_node(&self) {
        self.start_node_with(&["--plain", "--listen", "127.0.0.1:0"]);
    }

    fn start_node_with(&self, options: &[&str]) {
        let output = self.vmmc(&[&["node", "start"], options].concat()).output();
        let output = output.expect("the command starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn vmmc(&self, arguments: &[&str]) -> Command {
        let mut command = self.starting(built().join("vmmc").as_ref());
        command.args(arguments).env("VMMC_NODE", &self.node).env_remove("VMMC_PRELOAD").stdin(Stdio::null());
        command.env("VMMC_LOG", "off");
        command.envs(self.variables.iter().copied());
        command
    }

    /// A program, as the user of this world.
    fn starting(&self, program: &std::ffi::OsStr) -> Command {
        let Some(user) = self.user else { return Command::new(program) };
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]).arg(program).env("HOME", &self.folder);
        command
    }

    /// A program, started so.
    pub(crate) fn command(&self, by: By, words: &[&str]) -> Command {
        match by {
            By::Exec => self.vmmc(&[&["exec", "--"], words].concat()),
            By::Offered(when) => self.vmmc(&[&["exec", "--offer", when, "--"], words].concat()),
            By::Itself => {
                let mut command = self.starting(words[0].as_ref());
                command.args(&words[1..]).stdin(Stdio::null());
                command
            }
        }
    }

    /// The same, with a report of what was left to the kernel on standard error.
    pub(crate) fn verbose(&self, words: &[&str]) -> Command {
        self.vmmc(&[&["exec", "--verbose", "--"], words].concat())
    }

    /// Runs a program to its end and gives its output, which must be a success.
    pub(crate) fn run(&self, by: By, words: &[&str]) -> String {
        let output = finish(self.command(by, words));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{by:?} {words:?}: {}\n{said}{}", output.status, text(&output));
        text(&output)
    }

    /// Starts a server and waits until somebody listens on the port.
    pub(crate) fn server(&self, by: By, words: &[&str], port: u16) -> Server {
        let log = std::fs::File::create(self.folder.join("server.log")).expect("the folder can be written");
        let mut command = self.command(by, words);
        command.stdout(log.try_clone().expect("a file can be cloned")).stderr(log);
        let server = Server(command.spawn().unwrap_or_else(|e| panic!("{words:?}: {e}")));
        let end = Instant::now() + PATIENCE;
        while !listens(port) {
            assert!(Instant::now() < end, "{words:?} does not listen on port {port}");
            std::thread::yield_now();
        }
        server
    }
}

/// Whether somebody listens on a port: read, not tried, for some servers count connections.
pub(crate) fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X} ");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (local, state) = (words.next().unwrap_or_default(), words.nth(1));
            format!("{local} ").ends_with(&wanted) && state == Some("0A")
        })
    })
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.vmmc(&["node", "stop"]).output();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Standard output.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command, but not for ever.
pub(crate) fn finish(command: Command) -> Output {
    finish_within(PATIENCE * 2, command)
}

/// The same with a limit of its own.
pub(crate) fn finish_within(limit: Duration, mut command: Command) -> Output {
    // Into memory and not into pipes: a process that the program left behind would keep them open.
    let [out, err] = ["out", "err"].map(|name| {
        File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).expect("memory for its output"))
    });
    let copy = |file: &File| file.try_clone().expect("a file can be cloned");
    let child = command.stdout(copy(&out)).stderr(copy(&err)).process_group(0).spawn();
    let mut child = child.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let pid = child.id();
    let (done, waiting) = std::sync::mpsc::channel();
    let watch = std::thread::spawn(move || {
        let late = waiting.recv_timeout(limit).is_err();
        if late {
            // With all that it started.
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{pid}")]).status();
        }
        late
    });
    let status = child.wait().expect("a child can be waited for");
    let _ = done.send(());
    let late = watch.join().expect("the watch does not panic");
    let content = |file: File| {
        let mut bytes = vec![0; file.metadata().map_or(0, |m| m.len() as usize)];
        file.read_exact_at(&mut bytes, 0).expect("what was written");
        bytes
    };
    let output = Output { status, stdout: content(out), stderr: content(err) };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !late,
        "{command:?} hung; it said: {}{}",
        text(&output),
        said.lines().rev().take(30).collect::<Vec<_>>().join(" <- ")
    );
    output
}

pub(crate) fn kill(pid: u32, signal: &str) {
    let _ = Command::new("kill").args([signal, &pid.to_string()]).status();
}

/// A running server: ends when dropped.
pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends it without a chance to say anything.
    pub(crate) fn kill(mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        kill(self.0.id(), "-TERM");
        let end = Instant::now() + Duration::from_secs(5);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::yield_now();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
