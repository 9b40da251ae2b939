//! Watching other processes: a descriptor that becomes readable when a process ends.
//!
//! Invariant: the descriptor means the process that had the id when it was opened, never a later one with the same id. Whoever opens it for the other side of a
//! socket must hold that socket too: if the process ended before, the socket says so.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

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
