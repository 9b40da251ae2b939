//! `vmmc supervise`: the process that a node starts for each job, and that starts, watches and ends
//! the job's ranks on its node.
//!
//! ```text
//!   launcher ──link──▶ supervisor ── fork, exec ──▶ ranks (each a process group of its own)
//!            ◀─────────          ◀── pipes, SIGCHLD ──
//! ```
//!
//! Invariant: nothing that a rank started outlives the supervisor's regular end. It is the
//! subreaper of all of it, so also what has left its parents comes to it; it ends everything when
//! the launcher's side of the link or its node has gone. Killed itself, it takes the ranks along
//! (the kernel kills them with it), and what they had started comes to its [`keeper`], which kills
//! it.

mod children;
mod keeper;
mod lines;
mod rank;
mod tables;

use crate::failure::Failure;
use crate::limits::{
    SUPERVISOR_HELLO, SUPERVISOR_LAST_WORDS, SUPERVISOR_LOOK, SUPERVISOR_LOST_GRACE, SUPERVISOR_OUT_BYTES,
};
use children::Children;
use rank::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tables::Tables;
use vmmc::{Rights, Session};
use vmmc_job::LinkError;
use vmmc_job::link::Link;
use vmmc_job::protocol::{Exit, Order, Program, Report};
use vmmc_node::CANNOT_RUN_AS;

/// As whom it is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunAs {
    uid: u32,
    gid: u32,
}

impl std::str::FromStr for RunAs {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<RunAs, Self::Err> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
        Ok(RunAs { uid: uid.parse()?, gid: gid.parse()? })
    }
}

/// Becomes the user, and executes itself as that. A node of root starts it as root, so that nobody
/// can stop what the node waits for.
pub(crate) fn become_user(node: &str, RunAs { uid, gid }: RunAs) -> Result<(), Failure> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("vmmc").args(["supervise", "--node", node]).uid(uid).gid(gid);
    let runtime = format!("/run/user/{uid}");
    if std::fs::metadata(&runtime).is_ok_and(|about| about.is_dir() && about.uid() == uid) {
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    // Without other groups than that one: root's go.
    let error = command.exec();
    let text = format!("cannot be executed as user {uid} with group {gid}: {error}");
    Err(Failure::Rank { code: CANNOT_RUN_AS, text })
}

/// Runs the command: the keeper, and below it, `kept`, the supervisor.
pub(crate) fn run(node: &str, export: &str, kept: bool) -> Result<(), Failure> {
    // Refused on kernels before 3.4 only.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    if !kept {
        return keeper::run(node, export);
    }
    // It was started through a link whose name says nothing.
    let _ = rustix::thread::set_name(c"vmmc");
    let signals = Signals::catch()?;
    let session = Session::builder().node(node).start_node(false).attach()?;
    let link = connect_launcher(&session, export).map_err(Failure::new)?;
    let mut supervisor = Supervisor {
        session,
        node: node.to_string(),
        link,
        signals,
        program: None,
        input: None,
        tables: None,
        ranks: BTreeMap::new(),
        children: Children::default(),
        end: None,
    };
    supervisor.serve()
}

/// Waits for the launcher to say where it is, and answers.
fn connect_launcher(session: &Session, export: &str) -> Result<Link, LinkError> {
    let mut link = Link::listen(session, export)?;
    let start = Instant::now();
    let mut look_at = start + SUPERVISOR_LOOK;
    let (launcher, inbox) = loop {
        link.take_in()?;
        match link.receive()? {
            Some(Order::Hello { node, inbox }) => break (node, inbox),
            Some(_) => return Err(LinkError::Protocol { what: "an order before hello".into() }),
            None if Instant::now() < look_at => std::thread::sleep(Duration::from_micros(200)),
            // The launcher waited for this export, so it imports it from its first moment to the
            // launcher's end.
            None if !link.is_imported()? => return Err(LinkError::Gone),
            None if start.elapsed() >= SUPERVISOR_HELLO => return Err(LinkError::Protocol { what: "nothing".into() }),
            None => look_at = Instant::now() + SUPERVISOR_LOOK,
        }
    };
    let node = session.node().name.clone();
    let import = session.import(&inbox).rights(Rights::READ | Rights::WRITE);
    let import = if launcher == node { import } else { import.node(&launcher) };
    link.connect(import.open()?);
    link.send(&Report::Ready { node, pid: std::process::id() });
    link.pump()?;
    Ok(link)
}

/// Signals that have come.
struct Signals {
    end: Arc<AtomicBool>,
    /// Readable after any of them.
    bell: UnixStream,
}

impl Signals {
    fn catch() -> std::io::Result<Signals> {
        use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
        let (bell, ringer) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let end = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register(signal, end.clone())?;
        }
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGCHLD] {
            signal_hook::low_level::pipe::register(signal, ringer.try_clone()?)?;
        }
        Ok(Signals { end, bell })
    }

    fn drain(&self) {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.bell, &mut bytes).is_ok_and(|n| n == bytes.len()) {}
    }
}

/// How the end goes on.
struct End {
    /// When politeness ends.
    by_force_at: Instant,
}

struct Supervisor {
    session: Session,
    /// Name by which processes of this machine find the node.
    node: String,
    link: Link,
    signals: Signals,
    program: Option<Program>,
    input: Option<u32>,
    tables: Option<Tables>,
    ranks: BTreeMap<u32, Rank>,
    children: Children,
    end: Option<End>,
}

impl Supervisor {
    fn serve(&mut self) -> Result<(), Failure> {
        loop {
            self.signals.drain();
            self.collect_children();
            if self.signals.end.load(Ordering::Relaxed) {
                self.begin_end(SUPERVISOR_LOST_GRACE);
            }
            if let Err(error) = self.talk() {
                // Nobody is left to tell: the node's daemon sees how we end.
                self.children.end_by_force();
                return Err(Failure::new(error));
            }
            if self.is_over() {
                self.link.send(&Report::Done);
                self.send_last_reports();
                return Ok(());
            }
            self.sleep();
            self.move_streams();
        }
    }

    /// Takes orders, serves what ranks ask, and sends what is queued.
    fn talk(&mut self) -> Result<(), LinkError> {
        self.link.take_in()?;
        while let Some(order) = self.link.receive::<Order>()? {
            self.obey(order)?;
        }
        self.pass_on_asks();
        self.link.put_out()?;
        match self.link.broken() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    fn pass_on_asks(&mut self) {
        let asks = self.tables.as_mut().map(|tables| tables.asks(&self.session)).unwrap_or_default();
        asks.into_iter().for_each(|report| self.link.send(&report));
    }

    fn obey(&mut self, order: Order) -> Result<(), LinkError> {
        match order {
            Order::Hello { .. } => {}
            Order::Begin { job, program, nodes, own, places, input } => {
                self.tables = Some(Tables::begin(&self.session, &job, nodes, own, &places)?);
                (self.program, self.input) = (Some(program), input);
            }
            Order::Start { ranks } => self.start(&ranks),
            Order::Members { view, joined, changed } => {
                if let Some(tables) = &mut self.tables {
                    tables.change(view, &joined, &changed);
                }
            }
            Order::Input { rank, bytes } => match self.ranks.get_mut(&rank) {
                Some(found) => found.give_input(bytes),
                None => self.link.send(&Report::InputTaken { rank, bytes: bytes.len() as u64 }),
            },
            Order::CloseInput { rank } => self.ranks.get_mut(&rank).into_iter().for_each(Rank::close_input),
            Order::Signal { signal } => self.ranks.values().for_each(|rank| rank.signal(signal)),
            Order::End { grace_ms } => self.begin_end(Duration::from_millis(grace_ms)),
        }
        Ok(())
    }

    fn start(&mut self, ranks: &[u32]) {
        let (Some(program), Some(tables)) = (&self.program, &self.tables) else { return };
        let mut started = Vec::new();
        for &number in ranks {
            let variables = tables.variables(number, &self.node);
            let with_input = self.input == Some(number);
            match if self.end.is_some() {
                Err(rank::NotStarted { why: "the job is being ended".into(), found: true })
            } else {
                rank::start(program, &variables, with_input)
            } {
                Ok(rank) => {
                    started.push((number, rank.pid()));
                    self.ranks.insert(number, rank);
                }
                Err(rank::NotStarted { why, found }) => {
                    self.link.send(&Report::NotStarted { rank: number, why, found });
                }
            }
        }
        self.link.send(&Report::Started { ranks: started });
    }

    /// Politely at first.
    fn begin_end(&mut self, grace: Duration) {
        let by_force_at = Instant::now() + grace;
        match &mut self.end {
            Some(end) => end.by_force_at = end.by_force_at.min(by_force_at),
            None => {
                self.ranks.values().for_each(|rank| rank.signal(signal_hook::consts::SIGTERM));
                self.children.end_politely();
                self.end = Some(End { by_force_at });
            }
        }
    }

    /// Whether the job has been ended and nothing of it runs.
    fn is_over(&mut self) -> bool {
        let Some(end) = &self.end else { return false };
        if self.children.any() && Instant::now() < end.by_force_at {
            return false;
        }
        self.children.end_by_force();
        self.collect_children();
        true
    }

    /// Collects processes that have ended, and reports ranks with all that they printed.
    fn collect_children(&mut self) {
        let ended = self.children.collect();
        if !ended.is_empty() {
            // What a rank has asked for before its end comes before its end.
            self.pass_on_asks();
        }
        for (pid, exit) in ended {
            let Some((number, rank)) = self.ranks.iter_mut().find(|(_, rank)| rank.is(pid)) else { continue };
            report_end(&mut self.link, *number, rank, exit);
        }
        self.ranks.retain(|_, rank| !rank.is_done());
    }

    fn move_streams(&mut self) {
        let full = self.link.waiting_bytes() >= SUPERVISOR_OUT_BYTES;
        for (number, rank) in &mut self.ranks {
            let taken = rank.move_input();
            if taken > 0 {
                self.link.send(&Report::InputTaken { rank: *number, bytes: taken });
            }
            if !full {
                let link = &mut self.link;
                rank.move_output(|stream, bytes| link.send(&Report::Output { rank: *number, stream, bytes }));
            }
        }
    }

    /// Sleeps until something can be done, or for a short while: the end of another node makes
    /// nothing readable.
    fn sleep(&self) {
        let nap = match &self.end {
            Some(_) => SUPERVISOR_LOOK / 10,
            None => SUPERVISOR_LOOK,
        };
        let mut fds: Vec<(BorrowedFd<'_>, PollFlags)> = vec![(self.signals.bell.as_fd(), PollFlags::IN)];
        // Without its node it would be readable for ever.
        if let Some(fd) = self.session.event_fd().ok().filter(|_| self.session.is_alive()) {
            fds.push((fd, PollFlags::IN));
        }
        let full = self.link.waiting_bytes() >= SUPERVISOR_OUT_BYTES;
        self.ranks.values().for_each(|rank| rank.poll_fds(full, &mut fds));
        let mut fds: Vec<PollFd<'_>> = fds.into_iter().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(nap.subsec_nanos()) };
        // An interrupted poll is a short one.
        let _ = poll(&mut fds, Some(&timeout));
    }

    fn send_last_reports(&mut self) {
        let end = Instant::now() + SUPERVISOR_LAST_WORDS;
        while self.link.pump().is_ok() && self.link.waiting_bytes() > 0 && self.link.broken().is_none() {
            if Instant::now() >= end {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn report_end(link: &mut Link, number: u32, rank: &mut Rank, exit: Exit) {
    rank.drain_output(|stream, bytes| link.send(&Report::Output { rank: number, stream, bytes }));
    let left = rank.ended();
    if left > 0 {
        link.send(&Report::InputTaken { rank: number, bytes: left });
    }
    link.send(&Report::Exited { rank: number, exit });
}
