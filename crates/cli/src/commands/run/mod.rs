//! `vmmc run`: starts a program many times, on one node or several, shows what it prints and
//! reports how it ended.
//!
//! Invariant: when this command ends, in whatever way, nothing of the job goes on: it tells the
//! supervisors, or they see that it is gone.

mod hosts;
mod nodes;
mod printer;

use crate::args::run::Run;
use crate::failure::{CANNOT_EXECUTE, Failure, NOT_FOUND};
use hosts::Host;
use nodes::LocalNodes;
use printer::{Printer, Written};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use vmmc::RefusalCode;
use vmmc_job::limits::LAUNCH_POLL;
use vmmc_job::{Exit, JobEvent, Launch, LaunchError, Launched, LinkError};

/// Bytes read from standard input at once.
const INPUT_BYTES: usize = 32 << 10;

/// Exit code after Ctrl-C, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;
/// Exit code when a node is lost: that of everything unreachable.
const LOST: u8 = 5;

/// Runs the command.
pub(crate) fn run(run: &Run) -> Result<(), Failure> {
    let interrupts = Interrupts::catch()?;
    let mut printer = Printer::new(run)?;
    let (hosts, local) = where_to(run)?;
    let places = hosts::places(&hosts, run.ranks)?;
    let (program, args) = run.command.split_first().ok_or_else(|| Failure::Usage("name a program".into()))?;
    let mut launch = Launch::new(program)
        .args(args)
        .places(places)
        .input(run.stdin.rank())
        .keep_going(run.keep_going)
        .grace(std::time::Duration::from_millis(run.grace_ms))
        .timeout(std::time::Duration::from_millis(run.timeout_ms));
    let node = local.as_ref().map(LocalNodes::first).or(run.name.as_deref());
    launch = node.iter().fold(launch, |launch, node| launch.node(node));
    launch = run.chdir.iter().fold(launch, |launch, folder| launch.current_dir(folder));
    launch = run.env.iter().fold(launch, |launch, (name, value)| launch.env(name, value));
    let job = launch.start().map_err(|error| match (error, &local) {
        (LaunchError::Node { node, error }, Some(local)) => LaunchError::Node { node: local.name_of(node), error },
        (error, _) => error,
    })?;
    let mut watch = Watch { job, interrupts, failure: None, stdin: run.stdin.rank(), verbose: run.verbose };
    watch.go_on(&mut printer)?;
    let failure = watch.failure.take();
    drop(watch);
    drop(local);
    failure.map_or(Ok(()), Err)
}

fn where_to(run: &Run) -> Result<(Vec<Host>, Option<LocalNodes>), Failure> {
    if let Some(file) = &run.hosts {
        return Ok((hosts::read(file)?, None));
    }
    match run.nodes {
        1 => Ok((vec![Host::default()], None)),
        count => {
            let local = LocalNodes::start(count)?;
            Ok((local.hosts(), Some(local)))
        }
    }
}

/// Ctrl-C and its like.
struct Interrupts {
    bell: UnixStream,
}

impl Interrupts {
    fn catch() -> std::io::Result<Interrupts> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let (bell, ringer) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, ringer.try_clone()?)?;
        }
        Ok(Interrupts { bell })
    }

    /// New ones since the last call: each is a byte.
    fn take(&self) -> usize {
        let mut bytes = [0; 64];
        rustix::io::read(&self.bell, &mut bytes).unwrap_or(0)
    }
}

/// A job that is watched.
struct Watch {
    job: Launched,
    interrupts: Interrupts,
    failure: Option<Failure>,
    /// Rank that gets our standard input, until that ends.
    stdin: Option<u32>,
    verbose: bool,
}

impl Watch {
    fn go_on(&mut self, printer: &mut Printer) -> Result<(), Failure> {
        let mut asked = 0;
        loop {
            asked += self.take_interrupts(asked, printer);
            while let Some(event) = self.job.poll_event() {
                if event == JobEvent::Ended {
                    return printer.finish();
                }
                self.show(event, printer)?;
                asked += self.take_interrupts(asked, printer);
            }
            self.sleep()?;
            self.move_input();
        }
    }

    /// The first one ends the job politely, the second one by force. Says how many are new.
    fn take_interrupts(&mut self, before: usize, printer: &mut Printer) -> usize {
        let new = self.interrupts.take();
        if new > 0 {
            printer.hurry();
            self.failure
                .get_or_insert(Failure::Rank { code: INTERRUPTED, text: "interrupted; the job was ended".into() });
            if before + new == 1 { self.job.end() } else { self.job.kill() }
        }
        new
    }

    fn show(&mut self, event: JobEvent, printer: &mut Printer) -> Result<(), Failure> {
        match event {
            JobEvent::Output { rank, stream, bytes } => {
                let interrupted = &self.interrupts.bell;
                if printer.print(rank, stream, &bytes, interrupted)? == Written::ReaderGone {
                    self.job.end();
                }
            }
            JobEvent::Started { rank, pid } if self.verbose => {
                let node = self.job.node_of(rank).unwrap_or_default().to_string();
                say(&format!("rank {rank} runs on node {node} as process {pid}"));
            }
            JobEvent::NotStarted { rank, why, found } => {
                let code = if found { CANNOT_EXECUTE } else { NOT_FOUND };
                self.fail(code, format!("rank {rank} could not be started: {why}"));
            }
            JobEvent::Exited { rank, exit } => self.exited(rank, exit),
            JobEvent::NodeLost { node, ranks, why } => {
                self.fail(LOST, format!("node {node} is lost, with {} ranks: {why}", ranks.len()));
            }
            JobEvent::Left { rank } if self.verbose => say(&format!("rank {rank} has left the job")),
            JobEvent::Joined { ranks } if self.verbose => say(&format!("ranks {ranks:?} have joined the job")),
            _ => {}
        }
        Ok(())
    }

    fn exited(&mut self, rank: u32, exit: Exit) {
        let left = self.job.state_of(rank) == Some(vmmc_job::MemberState::Left);
        if self.verbose {
            say(&format!("rank {rank} {exit}"));
        }
        if exit.is_success() || left {
            return;
        }
        let code = match exit {
            Exit::Code(code) => u8::try_from(code).unwrap_or(1),
            Exit::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
        };
        let node = self.job.node_of(rank).unwrap_or_default().to_string();
        self.fail(code, format!("rank {rank} on node {node} {exit}"));
    }

    /// The first failure decides how the command ends; later ones, of ranks that were ended for it,
    /// are reported with --verbose.
    fn fail(&mut self, code: u8, text: String) {
        match &self.failure {
            None => self.failure = Some(Failure::Rank { code, text }),
            Some(_) if self.verbose => say(&text),
            Some(_) => {}
        }
    }

    fn sleep(&self) -> Result<(), Failure> {
        let stdin = std::io::stdin();
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.job.event_fd()?, PollFlags::IN),
            PollFd::new(&self.interrupts.bell, PollFlags::IN),
        ];
        if self.stdin.is_some_and(|rank| self.job.input_room(rank) > 0) {
            fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        let nap = Timespec { tv_sec: 0, tv_nsec: i64::from(LAUNCH_POLL.subsec_nanos()) };
        // An interrupted poll is a short one.
        let _ = poll(&mut fds, Some(&nap));
        Ok(())
    }

    /// Passes our standard input on, as far as there is some and the rank takes it.
    fn move_input(&mut self) {
        let Some(rank) = self.stdin.filter(|rank| self.job.input_room(*rank) > 0) else { return };
        let stdin = std::io::stdin();
        let mut fds = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0) {
            return;
        }
        let mut bytes = vec![0; INPUT_BYTES.min(self.job.input_room(rank))];
        match rustix::io::read(stdin.as_fd(), &mut bytes) {
            Ok(n) if n > 0 => {
                let taken = self.job.write_input(rank, &bytes[..n]);
                debug_assert_eq!(taken, n, "no more was read than there is room for");
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            _ => {
                self.job.close_input(rank);
                self.stdin = None;
            }
        }
    }
}

fn say(text: &str) {
    // The reader of our standard error may have gone; the job goes on.
    let line = format!("vmmc run: {}\n", vmmc_host::text::printable(text));
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Failure {
        let text = error.to_string();
        match error {
            LaunchError::Attach(error) => error.into(),
            LaunchError::Invalid { .. } => Failure::Usage(text),
            LaunchError::Node { error: LinkError::Import(error), .. } => match error.refusal() {
                Some(RefusalCode::NotStarted) => Failure::Failed(text),
                _ => match Failure::from(error) {
                    Failure::Unreachable(_) => Failure::Unreachable(text),
                    Failure::NoNode(_) => Failure::NoNode(text),
                    _ => Failure::Failed(text),
                },
            },
            _ => Failure::Failed(text),
        }
    }
}
