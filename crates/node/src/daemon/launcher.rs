//! Process creation for others: starts one supervisor for each job that somebody wants to run on
//! this node [NT §3.2].
//!
//! A client imports `vmmc.launch/UID/TOKEN` and waits for it; the engine notifies us; we start
//! `vmmc supervise`, which exports that name, receives there what to start, and ends its processes
//! when the client, or this node, has gone. The token is the client's secret.
//!
//! Between us and a supervisor is its keeper, which the program puts there: what we call a
//! supervisor here is both.
//!
//! What a user asks for costs the node a bounded part of its time: starts have a rate for each
//! user, and what killed supervisors leave behind is looked for by a thread.
//!
//! A start waits until the new process has executed its program. A user who may send that process a
//! signal may stop it before, and the node with it. So it executes `vmmc supervise` as root, which
//! becomes the user by itself ([`RUN_AS`]), and then executes itself once more:
//!
//! ```text
//!  node ── fork, exec (root) ──▶ vmmc supervise --run-as UID:GID ── setuid, exec ──▶ vmmc supervise
//!     └── waits until here ────┘                  └── from here on its user may stop it
//! ```
//!
//! Invariant: the node waits for no process that a user can stop. A supervisor runs as the user who
//! asked, never as another, and finds nothing of this process but its standard streams, which are
//! its own; what a killed keeper leaves behind comes to us (we are its subreaper) and is killed. A
//! refusal is answered, counted and noted with its reason.

use crate::config::NodeConfig;
use crate::limits::{
    ACTIVATION_TIME, ORPHANS_PAUSE, ORPHANS_PAUSE_MAX, STARTERS_MAX, STARTS_BURST, STARTS_EVERY, STDERR_TAIL_BYTES,
    SUPERVISORS_MAX,
};
use crate::station::Station;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, waitid};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;
use vmmc_host::control::LAUNCH_PREFIX;
use vmmc_host::process::{Apart, OpenFiles, children_of_this_process, plain_environment, start_apart};
use vmmc_host::wait::WakeSender;
use vmmc_nic::{ActivationRefusal, ActivationWanted, Time};

/// Environment of a supervisor: name of the export that it is awaited under.
pub const EXPORT_VARIABLE: &str = "VMMC_SERVICE";
/// Option of a supervisor that is still root: as whom it is to run, `UID:GID`.
pub const RUN_AS: &str = "--run-as";
/// Exit code of a supervisor that cannot be executed as its user, as shells have it.
pub const CANNOT_RUN_AS: u8 = 126;

/// Starts supervisors and collects their ends.
pub(super) struct Launcher {
    /// The program `vmmc`; none: this node starts no processes.
    program: Option<PathBuf>,
    node: String,
    uid: u32,
    plain: bool,
    /// Whether remote requests are served in plain mode all the same.
    plain_run: bool,
    /// Whether this process belongs to the node alone, so that orphans that come to it are those of
    /// killed supervisors.
    own_process: bool,
    /// The bound on open files that this process was started with: ours is higher, and not for
    /// others.
    open_files: Option<OpenFiles>,
    running: Vec<Supervisor>,
    /// A supervisor was killed, and not all that it left behind has gone.
    cleaning: bool,
    searcher: Searcher,
    starts: Starts,
}

/// Searches for children of this process in a thread: that means a scan of all processes of the
/// machine, of which any user may have very many.
struct Searcher {
    /// Wakes the loop when there is something.
    ringer: Option<Arc<WakeSender>>,
    found: Option<Receiver<Vec<Pid>>>,
    pause: Duration,
}

impl Searcher {
    /// Begins a search, unless there is one.
    fn search(&mut self) {
        if self.found.is_some() {
            return;
        }
        let (tell, found) = channel();
        let (pause, ringer) = (self.pause, self.ringer.clone());
        let run = move || {
            std::thread::sleep(pause);
            // The receiver may have gone.
            let _ = tell.send(children_of_this_process());
            ringer.iter().for_each(|ringer| ringer.wake());
        };
        // Without memory for a thread the next end of a process is the next try.
        if std::thread::Builder::new().name("vmmc-orphans".into()).spawn(run).is_ok() {
            self.found = Some(found);
            self.pause = (self.pause * 2).clamp(ORPHANS_PAUSE, ORPHANS_PAUSE_MAX);
        }
    }

    /// What a search has found, once it is over.
    fn take(&mut self) -> Option<Vec<Pid>> {
        let found = self.found.as_ref()?;
        let pids = match found.try_recv() {
            Ok(pids) => Some(pids),
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => None,
        };
        self.found = None;
        pids
    }
}

/// Supervisors started for users, and those that may be started in a row.
#[derive(Default)]
struct Starts(HashMap<u32, (f64, Time)>);

impl Starts {
    /// Counts a start for a user; false: there were too many.
    fn take(&mut self, uid: u32, now: Time) -> bool {
        if self.0.len() >= STARTERS_MAX && !self.0.contains_key(&uid) {
            let first = self.0.iter().min_by_key(|(_, (_, at))| *at).map(|(uid, _)| *uid);
            if let Some(first) = first {
                self.0.remove(&first);
            }
        }
        let burst = f64::from(STARTS_BURST);
        let (left, at) = self.0.entry(uid).or_insert((burst, now));
        *left = (*left + now.since(*at).as_secs_f64() / STARTS_EVERY.as_secs_f64()).min(burst);
        *at = now;
        let may = *left >= 1.0;
        *left -= f64::from(u8::from(may));
        may
    }
}

struct Supervisor {
    pid: Pid,
    /// Whose.
    uid: u32,
    /// Name of the export that it is awaited under.
    export: String,
    /// What it says when it fails.
    stderr: Option<ChildStderr>,
    /// Until when it has to serve; none: it has begun to.
    due: Option<Time>,
}

/// A user of this machine.
struct User {
    name: String,
    gid: u32,
    home: String,
    shell: String,
}

impl User {
    /// What the supervisor of this user finds: who it is, and what the machine says about language
    /// and time. Nothing of ours beyond that. Nothing of the user's is read: a file system of its
    /// own could make the node wait.
    fn environment(self) -> impl Iterator<Item = (OsString, OsString)> {
        let kept = |name: &OsString| {
            let name = name.to_str().unwrap_or_default();
            ["LANG", "LANGUAGE", "TZ"].contains(&name) || name.starts_with("LC_")
        };
        let own = [
            ("PATH", USER_PATH.to_string()),
            ("HOME", self.home),
            ("USER", self.name.clone()),
            ("LOGNAME", self.name),
            ("SHELL", self.shell),
        ];
        let own = own.into_iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        own.chain(plain_environment().into_iter().filter(move |(name, _)| kept(name)))
    }
}

/// Where the supervisor of another user finds programs, as after a login.
const USER_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Mask for new files of another user's processes: that of a login, whatever root's is.
const USER_UMASK: u32 = 0o022;

impl Launcher {
    /// `open_files`: what programs may have open. `ringer` wakes the loop, which then has
    /// [`reap`](Self::reap) called.
    pub(super) fn new(
        config: &NodeConfig,
        plain: bool,
        open_files: Option<OpenFiles>,
        ringer: Option<Arc<WakeSender>>,
    ) -> Launcher {
        if config.handle_signals {
            // Refused on kernels before 3.4 only; then orphans of a killed supervisor stay with
            // init.
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        }
        Launcher {
            program: config.launcher.clone(),
            node: config.name.clone(),
            uid: rustix::process::geteuid().as_raw(),
            plain,
            plain_run: config.plain_run,
            own_process: config.handle_signals,
            open_files,
            running: Vec::new(),
            cleaning: false,
            searcher: Searcher { ringer, found: None, pause: Duration::ZERO },
            starts: Starts::default(),
        }
    }

    /// Whether the end of a process may concern us.
    pub(super) fn is_concerned(&self) -> bool {
        self.cleaning || !self.running.is_empty()
    }

    /// When [`serve`](Self::serve) must be called although nobody asks for anything.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.running.iter().filter_map(|supervisor| supervisor.due).min()
    }

    /// Starts what is wanted; says whether anything was.
    pub(super) fn serve(&mut self, station: &mut Station, now: Time) -> bool {
        let mut any = false;
        while let Some(wanted) = station.poll_activation() {
            any = true;
            if self.running.iter().any(|s| s.export == wanted.name) {
                continue;
            }
            if let Err((why, detail)) = self.start(station, &wanted, now) {
                let who = wanted.from.as_ref().map_or("this node".to_string(), |node| format!("node {node}"));
                let note = format!("refused to start processes for user {} of {who}: {detail}", wanted.uid);
                station.note_of(now, wanted.uid, note);
                station.refuse_activation(now, &wanted.name, why);
            }
        }
        self.end_late(station, now);
        any
    }

    /// Ends supervisors that do not come to serve: their users have stopped them, or their machine
    /// is far too slow.
    fn end_late(&mut self, station: &mut Station, now: Time) {
        for supervisor in self.running.iter_mut().filter(|supervisor| supervisor.due.is_some()) {
            if station.is_exported(&supervisor.export, supervisor.uid) {
                supervisor.due = None;
            } else if supervisor.due.is_some_and(|due| due <= now) {
                supervisor.due = None;
                // Also what is stopped ends of this one; gone already is as good.
                let _ = rustix::process::kill_process(supervisor.pid, Signal::KILL);
                let seconds = ACTIVATION_TIME.as_secs();
                let note = format!("a supervisor was ended, because it did not serve within {seconds} s");
                station.note_of(now, supervisor.uid, note);
                station.refuse_activation(now, &supervisor.export, ActivationRefusal::Ended);
            }
        }
    }

    fn start(
        &mut self,
        station: &Station,
        wanted: &ActivationWanted,
        now: Time,
    ) -> Result<(), (ActivationRefusal, String)> {
        let Some(program) = &self.program else {
            return Err((ActivationRefusal::Never, "this node starts no processes".into()));
        };
        if wanted.from.is_some() && self.plain && !self.plain_run {
            return Err((ActivationRefusal::Plain, "it is in plain mode, and was not started with --plain-run".into()));
        }
        self.check_user(wanted)?;
        if self.running.len() >= SUPERVISORS_MAX {
            return Err((ActivationRefusal::TooMany, format!("{SUPERVISORS_MAX} jobs run here already")));
        }
        // As the station divides its tables: a user that is neither root nor ours has at most as
        // many as are free.
        let own = self.running.iter().filter(|s| s.uid == wanted.uid).count();
        let other = wanted.uid != self.uid && wanted.uid != 0;
        if other && own + 2 > SUPERVISORS_MAX - self.running.len() {
            let detail = format!("the user has {own} jobs here, its share of {SUPERVISORS_MAX}");
            return Err((ActivationRefusal::TooMany, detail));
        }
        if other && !self.starts.take(wanted.uid, now) {
            let every = STARTS_EVERY.as_millis();
            return Err((
                ActivationRefusal::TooMany,
                format!("the user has started very many jobs; one in {every} ms goes on"),
            ));
        }
        let user = self.user(wanted.uid)?;
        let mut command = Command::new(program);
        command.args(["supervise", "--node", &self.node]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).current_dir("/");
        command.env_clear();
        let mut apart = Apart { umask: None, open_files: self.open_files };
        match user {
            Some(user) => {
                command.args([RUN_AS, &format!("{}:{}", wanted.uid, user.gid)]).envs(user.environment());
                apart.umask = Some(USER_UMASK);
            }
            None => {
                command.envs(plain_environment());
            }
        }
        // Not among the arguments, which every user of the machine can read: a user that knows the
        // name can meet the supervisor.
        command.env(EXPORT_VARIABLE, &wanted.name);
        start_apart(&mut command, apart);
        let paused = station.close_nothing();
        let child = command.spawn();
        drop(paused);
        let mut child =
            child.map_err(|e| (ActivationRefusal::Failed, format!("{} cannot be executed: {e}", program.display())))?;
        let pid = Pid::from_child(&child);
        self.running.push(Supervisor {
            pid,
            uid: wanted.uid,
            export: wanted.name.clone(),
            stderr: child.stderr.take(),
            due: Some(now + ACTIVATION_TIME),
        });
        Ok(())
    }

    /// Whether this node may start something for the user that asks.
    fn check_user(&self, wanted: &ActivationWanted) -> Result<(), (ActivationRefusal, String)> {
        let stated = wanted.name.strip_prefix(LAUNCH_PREFIX).and_then(|rest| rest.split_once('/'));
        if stated.is_none_or(|(uid, _)| uid.parse() != Ok(wanted.uid)) {
            let detail = format!("the service {:?} is not one of user {}", wanted.name, wanted.uid);
            return Err((ActivationRefusal::OtherUser, detail));
        }
        if wanted.uid != self.uid && self.uid != 0 {
            return Err((ActivationRefusal::OtherUser, format!("this node runs as user {}", self.uid)));
        }
        Ok(())
    }

    /// As whom to run: none, as ourselves. Reads the machine's list of users, which starts have a
    /// rate for.
    fn user(&self, uid: u32) -> Result<Option<User>, (ActivationRefusal, String)> {
        if uid == self.uid {
            return Ok(None);
        }
        let unknown = || (ActivationRefusal::OtherUser, format!("user {uid} is not known on this machine"));
        find_user(uid).map(Some).ok_or_else(unknown)
    }

    /// Collects supervisors that have ended, and kills what a killed one left behind.
    pub(super) fn reap(&mut self, station: &mut Station, now: Time) {
        let mut notes = Vec::new();
        let mut killed = false;
        self.running.retain_mut(|supervisor| {
            let ended = match rustix::process::waitpid(Some(supervisor.pid), WaitOptions::NOHANG) {
                Ok(None) => return true,
                Ok(Some((_, status))) => status,
                Err(_) => return false,
            };
            let last_line = supervisor.stderr.take().map(stderr_tail).unwrap_or_default();
            let mut why = ActivationRefusal::Ended;
            match (ended.terminating_signal(), ended.exit_status()) {
                (Some(signal), _) => {
                    killed = true;
                    let text = format!("the keeper of a job was killed by signal {signal}; the job's processes end");
                    notes.push((supervisor.uid, text));
                }
                (None, Some(code)) if code == i32::from(CANNOT_RUN_AS) => {
                    why = ActivationRefusal::Failed;
                    notes.push((
                        supervisor.uid,
                        format!("a supervisor did not become user {}: {last_line}", supervisor.uid),
                    ));
                }
                (None, Some(code)) if code != 0 => {
                    notes.push((supervisor.uid, format!("a job ended with its supervisor: {last_line}")));
                }
                _ => {}
            }
            // A supervisor that could not come up leaves somebody waiting.
            station.refuse_activation(now, &supervisor.export, why);
            false
        });
        notes.into_iter().for_each(|(uid, note)| station.note_of(now, uid, note));
        if killed && self.own_process {
            self.cleaning = true;
            // At once: this one is not to wait for what another one has left.
            self.searcher.pause = Duration::ZERO;
        }
        if self.cleaning {
            self.clean_up();
        }
    }

    /// Kills what has come to us. The children of what dies of it come to us then: so until nothing
    /// comes any more.
    fn clean_up(&mut self) {
        if let Some(pids) = self.searcher.take() {
            let orphans: Vec<Pid> = pids.into_iter().filter(|pid| self.is_orphan(*pid)).collect();
            for pid in &orphans {
                // Gone already is as good.
                let _ = rustix::process::kill_process(*pid, Signal::KILL);
                let _ = rustix::process::waitpid(Some(*pid), WaitOptions::NOHANG);
            }
            self.cleaning = !orphans.is_empty();
        }
        if self.cleaning {
            self.searcher.search();
        } else {
            self.searcher.pause = Duration::ZERO;
        }
    }

    /// Whether a process is a child still, and no supervisor. Only we collect our children, so the
    /// id means none else while it is one.
    fn is_orphan(&self, pid: Pid) -> bool {
        let known = self.running.iter().any(|s| s.pid == pid);
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !known && waitid(WaitId::Pid(pid), look).is_ok()
    }
}

/// The last line that a supervisor wrote.
fn stderr_tail(mut pipe: ChildStderr) -> String {
    let mut bytes = vec![0; STDERR_TAIL_BYTES];
    // What a process that it left behind may still write is not waited for.
    let read = rustix::io::ioctl_fionbio(&pipe, true).map_err(Into::into).and_then(|()| pipe.read(&mut bytes));
    let text = String::from_utf8_lossy(&bytes[..read.unwrap_or(0)]).into_owned();
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing");
    line.strip_prefix("vmmc: ").unwrap_or(line).to_string()
}

/// What the machine knows of a user, from the machine's list of users.
fn find_user(uid: u32) -> Option<User> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, id, gid, _, home, shell] = fields[..] else { return None };
        let user = || User {
            name: name.into(),
            gid: gid.parse().unwrap_or(uid),
            home: home.into(),
            shell: if shell.is_empty() { "/bin/sh".into() } else { shell.into() },
        };
        (id.parse() == Ok(uid)).then(user)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_among_the_users_and_nobody_else_has_a_number_of_its_own() {
        assert_eq!(find_user(0).map(|user| user.gid), Some(0));
        assert!(find_user(u32::MAX - 7).is_none());
    }

    #[test]
    fn a_request_in_the_name_of_another_user_is_refused() {
        let launcher = Launcher::new(&NodeConfig::new("launcher-test"), true, None, None);
        let wanted = |name: &str, uid| ActivationWanted { name: name.into(), uid, from: None };
        let own = launcher.uid;
        assert!(launcher.check_user(&wanted(&format!("vmmc.launch/{own}/t"), own)).is_ok());
        for name in ["vmmc.launch/4294967000/t", "vmmc.launch/", "vmmc.launch/x/t", "other"] {
            assert_eq!(
                launcher.check_user(&wanted(name, own)).err().map(|e| e.0),
                Some(ActivationRefusal::OtherUser),
                "{name}"
            );
        }
    }

    #[test]
    fn a_supervisor_that_does_not_come_to_serve_is_ended_and_whoever_waits_is_told() {
        use crate::testing::{Raw, World};
        use std::os::unix::fs::PermissionsExt;
        use vmmc_host::control::{Call, RefusalCode, What};
        use vmmc_nic::Rights;
        let program = std::env::temp_dir().join(format!("vmmc-never-{}", std::process::id()));
        std::fs::write(&program, "#!/bin/sh\nkill -STOP $$\n").unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let config = NodeConfig { launcher: Some(program.clone()), ..NodeConfig::new("launcher-test") };
        let mut launcher = Launcher::new(&config, true, None, None);
        let world = World::new(1, None);
        let mut raw = Raw::attach(&world, 0);
        let what = What::Name(format!("vmmc.launch/{}/never", launcher.uid));
        let call = |wait| Call::Import {
            node: None,
            what: what.clone(),
            owner: Default::default(),
            rights: Rights::READ.bits(),
            wait,
            timeout_ms: 3_600_000,
            own_order: false,
        };
        let serial = raw.ask(call(true));
        let start = crate::testing::wait(&|| raw.pump(), || {
            let mut world = world.borrow_mut();
            let now = world.now;
            launcher.serve(&mut world.stations[0], now).then_some(now)
        });
        let pid = launcher.running[0].pid;
        assert_eq!(launcher.next_timeout(), Some(start + ACTIVATION_TIME));
        // Whenever it is polled before, nothing happens.
        launcher.serve(&mut world.borrow_mut().stations[0], start + ACTIVATION_TIME / 2);
        assert!(launcher.is_concerned() && raw.has_no_answer());
        launcher.serve(&mut world.borrow_mut().stations[0], start + ACTIVATION_TIME);
        assert_eq!(raw.answer(serial).map_err(|refusal| refusal.code), Err(RefusalCode::NotStarted));
        crate::testing::wait(&|| raw.pump(), || {
            launcher.reap(&mut world.borrow_mut().stations[0], start + ACTIVATION_TIME);
            launcher.running.is_empty().then_some(())
        });
        assert!(!launcher.is_orphan(pid), "it is collected");
        assert_eq!(launcher.next_timeout(), None);
        std::fs::remove_file(program).unwrap();
    }

    #[test]
    fn starts_have_a_rate_for_each_user() {
        let mut starts = Starts::default();
        let mut now = Time::ZERO;
        let granted = (0..1_000).filter(|_| starts.take(7, now)).count();
        assert_eq!(granted, STARTS_BURST as usize);
        assert!(starts.take(8, now), "another user");
        now = now + STARTS_EVERY;
        assert_eq!([starts.take(7, now), starts.take(7, now)], [true, false]);
        assert!((100..5_000).all(|uid| starts.take(uid, now)));
        assert!(starts.0.len() <= STARTERS_MAX);
    }

    #[test]
    fn what_comes_again_and_again_is_looked_for_with_pauses_and_never_by_the_loop() {
        let mut searcher = Searcher { ringer: None, found: None, pause: Duration::ZERO };
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let (start, mut searches, mut looks) = (std::time::Instant::now(), 0, 0);
        // As the loop does while something comes again and again, and wakes it each time.
        while start.elapsed() < Duration::from_millis(600) {
            if let Some(pids) = searcher.take() {
                assert!(pids.contains(&pid));
                searches += 1;
            }
            searcher.search();
            looks += 1;
            std::thread::sleep(Duration::from_micros(200));
        }
        // 5 + 10 + 20 + ... ms: far fewer searches than wake-ups.
        assert!((1..=10).contains(&searches) && looks > 10 * searches, "{searches} searches in {looks} wake-ups");
        let launcher = Launcher::new(&NodeConfig::new("launcher-test"), true, None, None);
        assert!(launcher.is_orphan(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!launcher.is_orphan(pid), "whoever has that id now is no child");
    }
}
