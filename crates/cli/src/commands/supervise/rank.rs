//! One rank: its process, and its three streams.
//!
//! Invariant: all pipes are non-blocking on our side; what a rank does not read is bounded by what
//! the launcher may send ahead.

use super::lines::Lines;
use crate::limits::{SUPERVISOR_DRAIN_READS, SUPERVISOR_READ_BYTES};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vmmc_host::process::{Apart, start_apart};
use vmmc_job::protocol::{Program, Stream};

/// A rank that was started.
pub(super) struct Rank {
    pid: Pid,
    running: bool,
    out: Output,
    err: Output,
    input: Option<OwnedFd>,
    /// Input that the rank has not read.
    pending: VecDeque<u8>,
    /// No more input comes.
    closing: bool,
}

struct Output {
    pipe: Option<OwnedFd>,
    lines: Lines,
}

/// A rank that was not started.
pub(super) struct NotStarted {
    /// Names the program and what to do.
    pub(super) why: String,
    /// Whether the program is there, and cannot be executed.
    pub(super) found: bool,
}

impl NotStarted {
    fn missing(why: String) -> NotStarted {
        NotStarted { why, found: false }
    }

    fn refused(why: String) -> NotStarted {
        NotStarted { why, found: true }
    }
}

/// Starts a rank.
pub(super) fn start(program: &Program, variables: &[(&str, String)], with_input: bool) -> Result<Rank, NotStarted> {
    let cwd = Path::new(OsStr::from_bytes(&program.cwd));
    if !cwd.is_dir() {
        return Err(NotStarted::missing(format!(
            "the working directory {} does not exist on this node; give one that does (--chdir)",
            cwd.display()
        )));
    }
    let file = find(program, cwd)?;
    let text = |bytes: &Vec<u8>| OsStr::from_bytes(bytes).to_os_string();
    let mut command = Command::new(&file);
    command
        .arg0(OsStr::from_bytes(&program.program))
        .args(program.args.iter().map(text))
        .env_clear()
        .envs(program.env.iter().map(|(name, value)| (text(name), text(value))))
        .envs(variables.iter().map(|(name, value)| (*name, value.as_str())))
        .current_dir(cwd)
        .stdin(if with_input { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // A session is a process group too, which is how its signals reach it.
    start_apart(&mut command, Apart::default());
    vmmc_host::process::die_with_this_thread(&mut command);
    let failed = |e| NotStarted::refused(format!("{} cannot be executed: {e}", file.display()));
    let mut child = command.spawn().map_err(failed)?;
    let ours = |fd: OwnedFd| {
        // On a pipe this cannot fail.
        let _ = rustix::io::ioctl_fionbio(&fd, true);
        fd
    };
    let output = |fd: Option<OwnedFd>| Output { pipe: fd.map(ours), lines: Lines::default() };
    Ok(Rank {
        pid: Pid::from_child(&child),
        running: true,
        out: output(child.stdout.take().map(OwnedFd::from)),
        err: output(child.stderr.take().map(OwnedFd::from)),
        input: child.stdin.take().map(|stdin| ours(OwnedFd::from(stdin))),
        pending: VecDeque::new(),
        closing: false,
    })
}

/// The program's file, as a shell would find it.
fn find(program: &Program, cwd: &Path) -> Result<PathBuf, NotStarted> {
    let name = Path::new(OsStr::from_bytes(&program.program));
    if program.program.contains(&b'/') {
        let file = cwd.join(name);
        return match file.metadata() {
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(NotStarted::refused(format!("{} cannot be reached on this node: {e}", file.display())))
            }
            Err(e) => Err(NotStarted::missing(format!("{} was not found on this node: {e}", file.display()))),
            Ok(about) if !about.is_file() || about.permissions().mode() & 0o111 == 0 => {
                Err(NotStarted::refused(format!("{} is not an executable file", file.display())))
            }
            Ok(_) => Ok(file),
        };
    }
    let path = program.env.iter().find(|(name, _)| name == b"PATH").map(|(_, value)| value.as_slice());
    let path = OsStr::from_bytes(path.unwrap_or(b"/usr/local/bin:/usr/bin:/bin"));
    let places: Vec<PathBuf> = std::env::split_paths(path).map(|folder| cwd.join(folder).join(name)).collect();
    let is_file = |file: &&PathBuf| file.metadata().is_ok_and(|about| about.is_file());
    let is_program = |file: &&PathBuf| file.metadata().is_ok_and(|about| about.permissions().mode() & 0o111 != 0);
    if let Some(file) = places.iter().filter(is_file).find(is_program) {
        return Ok(file.clone());
    }
    Err(match places.iter().find(is_file) {
        Some(file) => NotStarted::refused(format!("{} is not an executable file", file.display())),
        None => NotStarted::missing(format!(
            "program {:?} was not found in PATH ({}) on this node; write ./{} for one in the working directory",
            name.display().to_string(),
            Path::new(path).display(),
            name.display()
        )),
    })
}

impl Rank {
    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    pub(super) fn is(&self, pid: Pid) -> bool {
        self.running && self.pid == pid
    }

    /// Whether process and streams have ended.
    pub(super) fn is_done(&self) -> bool {
        !self.running && self.out.pipe.is_none() && self.err.pipe.is_none()
    }

    /// Sends a signal to the rank's process group.
    pub(super) fn signal(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        if self.running {
            // Gone already is as good.
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }

    /// The process has ended; says how much input it will never read.
    pub(super) fn ended(&mut self) -> u64 {
        self.running = false;
        self.input = None;
        std::mem::take(&mut self.pending).len() as u64
    }

    pub(super) fn give_input(&mut self, bytes: Vec<u8>) {
        self.pending.extend(bytes);
    }

    pub(super) fn close_input(&mut self) {
        self.closing = true;
        self.close_if_empty();
    }

    /// Writes input as far as the rank reads; says how much is out of the way.
    pub(super) fn move_input(&mut self) -> u64 {
        let mut taken = 0;
        while !self.pending.is_empty() {
            let Some(input) = &self.input else {
                // It has closed its end: nobody will read this.
                taken += std::mem::take(&mut self.pending).len() as u64;
                break;
            };
            match rustix::io::write(input, self.pending.as_slices().0) {
                Ok(n) => {
                    self.pending.drain(..n);
                    taken += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.input = None,
            }
        }
        self.close_if_empty();
        taken
    }

    fn close_if_empty(&mut self) {
        if self.closing && self.pending.is_empty() {
            self.input = None;
        }
    }

    /// Reads once from each stream.
    pub(super) fn move_output(&mut self, mut say: impl FnMut(Stream, Vec<u8>)) {
        self.out.read(|bytes| say(Stream::Out, bytes));
        self.err.read(|bytes| say(Stream::Err, bytes));
    }

    /// Reads all that is there, and ends the last line.
    pub(super) fn drain_output(&mut self, mut say: impl FnMut(Stream, Vec<u8>)) {
        self.out.drain(|bytes| say(Stream::Out, bytes));
        self.err.drain(|bytes| say(Stream::Err, bytes));
    }

    /// What to wait for.
    pub(super) fn poll_fds<'a>(&'a self, full: bool, fds: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        if !full {
            let outputs = [&self.out.pipe, &self.err.pipe].into_iter().flatten();
            fds.extend(outputs.map(|pipe| (pipe.as_fd(), PollFlags::IN)));
        }
        if let (Some(input), false) = (&self.input, self.pending.is_empty()) {
            fds.push((input.as_fd(), PollFlags::OUT));
        }
    }
}

impl Output {
    /// Reads once; says whether there was anything.
    fn read(&mut self, say: impl FnMut(Vec<u8>)) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let mut bytes = vec![0; SUPERVISOR_READ_BYTES];
        match rustix::io::read(pipe, &mut bytes) {
            Ok(0) => {
                self.pipe = None;
                self.lines.finish().into_iter().for_each(say);
                false
            }
            Ok(n) => {
                self.lines.take(&bytes[..n]).into_iter().for_each(say);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => {
                self.pipe = None;
                false
            }
        }
    }

    fn drain(&mut self, mut say: impl FnMut(Vec<u8>)) {
        for _ in 0..SUPERVISOR_DRAIN_READS {
            if !self.read(&mut say) {
                break;
            }
        }
        self.lines.finish().into_iter().for_each(say);
    }
}
