//! Jobs over several hosts: network namespaces joined by veth pairs and a bridge, one of them cut
//! off and healed, and users who may and who may not.
//!
//! Invariant: a host that is cut off ends its part of the job by itself, as the others end theirs.
//!
//! Needs root, `ip` (iproute2) and `setpriv` (util-linux); without them the tests print `SKIP` and
//! why.

mod common;

use common::{Folder, PATIENCE, ip, text, unique, wait_until};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// A user without rights: `nobody` of every distribution.
const NOBODY: &str = "65534";

/// Three namespaces on one bridge, and a node in each.
struct Hosts {
    folder: Folder,
    tag: String,
}

impl Hosts {
    /// None, with the reason printed, where it cannot be.
    fn new() -> Option<Hosts> {
        let skip = |why: &str| {
            println!("SKIP hosts in network namespaces: {why}");
            None
        };
        if !rustix::process::geteuid().is_root() {
            return skip("needs root");
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let tag = format!("v{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let hosts = Hosts { folder: Folder::new(), tag };
        if let Err(why) = hosts.make() {
            return skip(&why);
        }
        Some(hosts)
    }

    fn namespace(&self, host: usize) -> String {
        format!("{}-{host}", self.tag)
    }

    fn make(&self) -> Result<(), String> {
        let hub = self.namespace(0);
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "hub", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "hub", "up"])?;
        for host in 1..=3 {
            let (inner, port) = (self.namespace(host), format!("port{host}"));
            ip(&["netns", "add", &inner])?;
            ip(&["-n", &inner, "link", "add", "eth0", "type", "veth", "peer", "name", &port, "netns", &hub])?;
            ip(&["-n", &hub, "link", "set", &port, "master", "hub", "up"])?;
            ip(&["-n", &inner, "addr", "add", &format!("10.97.0.{host}/24"), "dev", "eth0"])?;
            ip(&["-n", &inner, "link", "set", "eth0", "up"])?;
            ip(&["-n", &inner, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    /// The wire of a host.
    fn plug(&self, host: usize, state: &str) {
        ip(&["-n", &self.namespace(0), "link", "set", &format!("port{host}"), state]).expect("the port exists");
    }

    /// A command on a host, as root or as another user.
    fn on(&self, host: usize, user: &str, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        let namespace = self.namespace(host);
        command.args(["netns", "exec", &namespace, "setpriv", "--reuid", user, "--regid", user, "--clear-groups"]);
        command.arg(env!("CARGO_BIN_EXE_vmmc")).args(args).env_remove("VMMC_NODE").stdin(Stdio::null());
        command.current_dir("/");
        command
    }

    fn node_name(&self, host: usize) -> String {
        format!("{}-node{host}", self.tag)
    }

    /// The key, in a file of that user.
    fn key(&self, user: &str) -> String {
        let path = self.folder.0.join(format!("key-{user}"));
        let text = "5a".repeat(32);
        std::fs::write(&path, text).expect("the folder can be written");
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, permissions).expect("the file is ours");
        let id = user.parse().expect("a number");
        std::os::unix::fs::chown(&path, Some(id), Some(id)).expect("we are root");
        path.to_str().expect("ASCII").to_string()
    }

    fn start(&self, host: usize, user: &str) {
        let (name, key) = (self.node_name(host), self.key(user));
        let listen = format!("10.97.0.{host}:4791");
        let args =
            ["node", "start", "--name", &name, "--listen", &listen, "--key-file", &key, "--peer-timeout-ms", "1500"];
        let output = self.on(host, user, &args).output().expect("ip can be started");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    fn stop(&self, host: usize, user: &str) {
        let _ = self.on(host, user, &["node", "stop", "--name", &self.node_name(host)]).output();
    }

    /// `vmmc run` on host 1.
    fn run(&self, user: &str, hosts: &[usize], args: &[&str]) -> Command {
        let file = self.folder.file(&unique("hosts"));
        let lines =
            hosts.iter().map(|host| if *host == 1 { "local\n".into() } else { format!("10.97.0.{host}:4791\n") });
        std::fs::write(&file, lines.collect::<String>()).expect("the folder can be written");
        let node = self.node_name(1);
        let mut command = self.on(1, user, &["run", "--node", &node, "--hosts", &file]);
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn output(&self, user: &str, hosts: &[usize], args: &[&str]) -> Output {
        self.run(user, hosts, args).output().expect("ip can be started")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in 1..=3 {
            self.stop(host, "0");
            self.stop(host, NOBODY);
        }
        for host in 0..=3 {
            let _ = ip(&["netns", "del", &self.namespace(host)]);
        }
    }
}

fn lines(output: &Output) -> Vec<String> {
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_string).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_job_spans_hosts_and_one_of_them_is_cut_off_and_healed() {
    let Some(hosts) = Hosts::new() else { return };
    (1..=3).for_each(|host| hosts.start(host, "0"));
    let names: Vec<String> = (1..=3).map(|host| format!("[{}] {}", host - 1, hosts.node_name(host))).collect();
    let output = hosts.output("0", &[1, 2, 3], &["--", "sh", "-c", "echo $VMMC_NODE"]);
    assert_eq!(lines(&output), names, "{}", text(&output.stderr));

    // Output of a remote rank in bulk, and input to it.
    let mut copy = hosts.run("0", &[1, 2], &["--stdin", "1", "--no-prefix", "--", "cksum"]);
    let mut copy = copy.stdin(Stdio::piped()).spawn().expect("ip can be started");
    let mut input = copy.stdin.take().expect("it is a pipe");
    std::io::Write::write_all(&mut input, &vec![7; 2_000_000]).expect("the rank reads");
    drop(input);
    let output = copy.wait_with_output().expect("it is ours");
    assert!(text(&output.stdout).contains(" 2000000\n"), "{}{}", text(&output.stdout), text(&output.stderr));
    let output = hosts.output("0", &[2, 3], &["--no-prefix", "--", "sh", "-c", "yes | head -c 1000000"]);
    assert_eq!(output.stdout.len(), 2_000_000, "{}", text(&output.stderr));

    // Host 3 is cut off: the job ends as lost here, and by itself there.
    let mark = unique("cut");
    let mut job = hosts.run("0", &[1, 2, 3], &["--", "sh", "-c", "echo up; exec sleep 1000"]);
    let mut job = job.env("VMMC_TEST_MARK", &mark).spawn().expect("ip can be started");
    let mut out = std::io::BufReader::new(job.stdout.take().expect("it is a pipe"));
    (0..3).for_each(|_| assert!(std::io::BufRead::read_line(&mut out, &mut String::new()).is_ok()));
    // A shell that is about to become `sleep` has no environment for a moment.
    wait_until("three ranks and vmmc run are there", || marked(&mark) == 3 + 1);
    hosts.plug(3, "down");
    let start = Instant::now();
    let output = job.wait_with_output().expect("it is ours");
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains(&hosts.node_name(3)), "{}", text(&output.stderr));
    assert!(start.elapsed() < PATIENCE, "it took {:?}", start.elapsed());
    wait_until("nothing of the job is left, on host 3 neither", || marked(&mark) == 0);

    // Cut off, it cannot be used; healed, it can.
    let output = hosts.output("0", &[1, 3], &["--timeout-ms", "2000", "--", "true"]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    hosts.plug(3, "up");
    let again = || {
        let output = hosts.output("0", &[1, 2, 3], &["--", "sh", "-c", "echo $VMMC_NODE"]);
        lines(&output) == names
    };
    wait_until("the healed host serves again", again);
}

/// Processes with our mark in their environment.
fn marked(mark: &str) -> usize {
    let wanted = format!("VMMC_TEST_MARK={mark}");
    let pids = std::fs::read_dir("/proc").expect("there is /proc").filter_map(Result::ok);
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        common::alive(*pid) && environment.split(|b| *b == 0).any(|variable| variable == wanted.as_bytes())
    };
    pids.filter(has).count()
}

#[test]
fn a_node_starts_processes_for_its_user_alone_and_that_of_root_as_the_user_who_asks() {
    let Some(hosts) = Hosts::new().filter(|_| Command::new("setpriv").arg("--version").output().is_ok()) else {
        return;
    };
    // Everybody must be able to reach the keys and the program.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&hosts.folder.0, open).expect("the folder is ours");
    hosts.start(1, NOBODY);
    hosts.start(2, NOBODY);
    hosts.start(3, "0");
    let whoami = ["--", "sh", "-c", "id -u"];
    let output = hosts.output(NOBODY, &[1, 2], &whoami);
    assert_eq!(lines(&output), [format!("[0] {NOBODY}"), format!("[1] {NOBODY}")], "{}", text(&output.stderr));
    // The node of root serves the user as the user.
    let output = hosts.output(NOBODY, &[3], &whoami);
    assert_eq!(lines(&output), [format!("[0] {NOBODY}")], "{}", text(&output.stderr));
    // Root's job on a node of somebody else is refused, and that node notes why.
    hosts.stop(1, NOBODY);
    hosts.start(1, "0");
    let output = hosts.output("0", &[2], &whoami);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("another user"), "{}", text(&output.stderr));
    let status = hosts.on(2, NOBODY, &["node", "status", "--name", &hosts.node_name(2)]).output();
    let status = text(&status.expect("ip can be started").stdout);
    assert!(status.contains("refused to start processes for user 0"), "{status}");
}
