//! What a node that root runs hands on to the programs that it starts for others: nothing of
//! root's.
//!
//! Invariant: no descriptor, variable, terminal, signal disposition, mask or bound of the process
//! that started the node reaches a process of another user, and the secret of a job is no argument
//! of any process.
//!
//! Needs root and `setpriv` (util-linux); without them the tests print `SKIP` and why.

mod common;

use common::{Folder, command, text, unique, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// A user without rights: `nobody` of every distribution.
const NOBODY: &str = "65534";

/// One process as `/proc` shows it to root.
struct Seen {
    pid: u32,
    arguments: String,
    environment: Vec<String>,
    files: Vec<String>,
    status: String,
    limits: String,
}

impl Seen {
    fn of(pid: u32) -> Seen {
        let read = |name: &str| text(&std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default());
        let words = |name: &str| read(name).split('\0').map(str::to_string).collect::<Vec<_>>();
        let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok);
        let files = links.filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.display().to_string()));
        Seen {
            pid,
            arguments: words("cmdline").join(" "),
            environment: words("environ"),
            files: files.collect(),
            status: read("status"),
            limits: read("limits"),
        }
    }

    fn field(&self, name: &str) -> &str {
        let line = self.status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("process {} shows no {name}: {}", self.pid, self.status)).trim()
    }

    fn parent(&self) -> Seen {
        Seen::of(self.field("PPid").parse().expect("a number"))
    }

    fn session(&self) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).expect("it runs");
        let fields = stat.rsplit(") ").next().expect("there is one");
        fields.split(' ').nth(3).expect("the fourth is the session").to_string()
    }

    fn ignores(&self, signal: u32) -> bool {
        u64::from_str_radix(self.field("SigIgn"), 16).expect("a mask") & 1 << (signal - 1) != 0
    }

    fn open_files(&self) -> Vec<&str> {
        let line = self.limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        line.expect("every process has this bound").split_whitespace().take(2).collect()
    }
}

fn marked(mark: &str, arguments: &str) -> Option<Seen> {
    let entries = std::fs::read_dir("/proc").expect("there is /proc").filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.map(Seen::of).find(|seen| seen.arguments.starts_with(arguments) && seen.environment.iter().any(|v| v == mark))
}

#[test]
fn what_root_had_open_and_in_its_environment_reaches_no_process_of_another_user() {
    if !rustix::process::geteuid().is_root() || Command::new("setpriv").arg("--version").output().is_err() {
        println!("SKIP what a node of root hands on: needs root and setpriv");
        return;
    }
    let folder = Folder::new();
    let (secret, name) = (folder.file("secret"), unique("apart"));
    std::fs::write(&secret, "for root alone").expect("the folder can be written");
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).expect("the file is ours");
    // As from a careless shell: a file open under a number, signals ignored, a narrow mask, a low
    // bound, a secret variable.
    let start = "exec 33<\"$0\"; trap '' USR1 HUP; umask 077; ulimit -Sn 300; exec \"$@\"";
    let vmmc = env!("CARGO_BIN_EXE_vmmc");
    let node = ["node", "start", "--name", &name, "--plain", "--linger-s", "120", "--log-level", "off"];
    let mut shell = Command::new("bash");
    shell.args(["-c", start, &secret, vmmc]).args(node).env("ROOTS_SECRET", "77").env("VMMC_TRACE", "/root/trace");
    let output = shell.stdin(Stdio::null()).output().expect("there is a shell");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let _stop = Stop(&name);

    let mark = format!("APART_MARK={}", unique("mark"));
    let mut job = Command::new("setpriv");
    job.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", vmmc, "run", "--node", &name, "--"]);
    job.args(["sleep", "1000"]).env_clear().env("PATH", "/usr/bin:/bin").envs(mark.split_once('='));
    let mut job = job.current_dir("/").stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("setpriv runs");
    wait_until("the rank runs", || {
        assert!(job.try_wait().expect("it is ours").is_none(), "the job has ended");
        marked(&mark, "sleep").is_some()
    });
    let rank = marked(&mark, "sleep").expect("just seen");
    let supervisor = rank.parent();
    let (keeper, daemon) = (supervisor.parent(), supervisor.parent().parent());
    let (asker, _) = (job.id(), job.kill());
    assert!(keeper.arguments.contains("supervise") && daemon.arguments.contains("node run"), "{}", daemon.arguments);

    for seen in [&rank, &supervisor, &keeper, &daemon] {
        let who = &seen.arguments;
        assert!(
            !seen.environment.iter().any(|v| v.starts_with("ROOTS_SECRET") || v.starts_with("VMMC_TRACE")),
            "{who}"
        );
        assert!(!seen.files.contains(&secret), "{who}: {:?}", seen.files);
        assert!(!seen.ignores(10) && !seen.ignores(1), "{who}: {}", seen.field("SigIgn"));
        assert!(!who.contains("vmmc.launch/"), "{who}");
    }
    for seen in [&rank, &supervisor, &keeper] {
        assert_eq!(seen.field("Uid").split_whitespace().next(), Some(NOBODY));
        assert_eq!(seen.field("Groups"), "");
        assert_eq!(seen.field("Umask"), "0022");
        assert_eq!(seen.open_files()[0], "300", "as found at the node's start, not as the node raised it");
        assert_ne!(seen.session(), daemon.session(), "no terminal of the node's");
    }
    assert_ne!(rank.session(), supervisor.session());
    assert!(keeper.environment.contains(&format!("HOME={}", home_of_nobody())), "{:?}", keeper.environment);
    wait_until("the job has gone", || !common::alive(rank.pid));
    job.wait().expect("it is ours");
    assert!(!common::alive(asker));
}

fn home_of_nobody() -> String {
    let users = std::fs::read_to_string("/etc/passwd").expect("there are users");
    let home = users.lines().map(|l| l.split(':').collect::<Vec<_>>()).find(|f| f.get(2) == Some(&NOBODY));
    home.map(|fields| fields[5].to_string()).unwrap_or_default()
}

struct Stop<'a>(&'a str);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let _ = command(&["node", "stop", "--name", self.0]).output();
    }
}
