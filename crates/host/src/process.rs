//! Watching and binding other processes: a descriptor that becomes readable when a process ends; children that die with their parent.
//!
//! Invariant: the descriptor means the process that had the id when it was opened, never a later one with the same id. Whoever opens it for the other side of a
//! socket must hold that socket too: if the process ended before, the socket says so.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A process of this machine.
#[derive(Debug)]
pub struct ProcessWatch(OwnedFd);

impl ProcessWatch {
    /// Watches a process; none if it is gone already or cannot be seen from here (another pid namespace).
    pub fn open(pid: u32) -> Option<ProcessWatch> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(ProcessWatch)
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        loop {
            match poll(&mut fds, Some(&now)) {
                Err(Errno::INTR) => continue,
                other => return matches!(other, Ok(n) if n > 0),
            }
        }
    }
}

impl AsFd for ProcessWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Asks a process to end (`SIGTERM`). False: it is gone, or not ours to end.
pub fn terminate(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::kill_process(pid, Signal::TERM).is_ok())
}

/// Has the kernel kill the process that `command` starts as soon as the calling thread ends: start it from a thread that lives as long as this process. The child's own
/// children are not covered; they come to the nearest subreaper.
pub fn die_with_this_thread(command: &mut Command) {
    let parent = rustix::process::getpid();
    let bind = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent ended before the line above nobody would send the signal.
        if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec the closure only makes two system calls and builds an error from a number: it takes no lock, allocates nothing, and touches no
    // memory but its own copy of `parent`, so it does not matter what other threads of the parent were doing.
    unsafe { command.pre_exec(bind) };
}

/// Children of this process, those that came to it as subreaper included.
pub fn children_of_this_process() -> Vec<Pid> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(own)).filter_map(Pid::from_raw).collect()
}

fn parent_of(pid: i32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in brackets and may contain anything, brackets too.
    text.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_bound_child_runs_and_is_listed_and_dies_with_its_thread() {
        let (child, listed) = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            die_with_this_thread(command.arg("1000"));
            let child = command.spawn().unwrap();
            let listed = children_of_this_process().contains(&Pid::from_child(&child));
            (child, listed)
        })
        .join()
        .unwrap();
        assert!(listed);
        use std::os::unix::process::ExitStatusExt;
        assert_eq!({ child }.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let watch = ProcessWatch::open(child.id()).unwrap();
        assert!(!watch.has_ended());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(watch.has_ended());
        assert!(ProcessWatch::open(0).is_none());
    }
}
