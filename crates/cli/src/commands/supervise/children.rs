//! All processes below the supervisor: those that it started, and those that came to it because
//! their parents ended.
//!
//! Invariant: after [`Children::end_by_force`] none is left, short of a process that forks faster
//! than it can be killed for as long as we try.

use crate::limits::{SUPERVISOR_KILL_PAUSE, SUPERVISOR_KILL_TIME};
use rustix::process::{Pid, Signal, WaitOptions};
use std::time::Instant;
use vmmc_host::process::children_of_this_process;
use vmmc_job::protocol::Exit;

/// Collected ends that nobody has asked for yet.
#[derive(Default)]
pub(super) struct Children {
    ended: Vec<(Pid, Exit)>,
}

impl Children {
    /// Processes that have ended since the last call.
    pub(super) fn collect(&mut self) -> Vec<(Pid, Exit)> {
        self.reap();
        std::mem::take(&mut self.ended)
    }

    /// Whether any is left, ended ones that were not collected yet apart.
    pub(super) fn any(&mut self) -> bool {
        self.reap();
        !children_of_this_process().is_empty()
    }

    /// Asks all that are our own children to end.
    pub(super) fn end_politely(&self) {
        for pid in children_of_this_process() {
            // Gone already is as good.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }

    /// Kills all of them; children of the killed come to us and are killed next.
    pub(super) fn end_by_force(&mut self) {
        let end = Instant::now() + SUPERVISOR_KILL_TIME;
        loop {
            self.reap();
            let left = children_of_this_process();
            if left.is_empty() || Instant::now() >= end {
                return;
            }
            for pid in left {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(SUPERVISOR_KILL_PAUSE);
        }
    }

    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let exit = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, Some(signal)) => Exit::Signal(signal),
                // Stopped or continued, which we have not asked to be notified of.
                (None, None) => continue,
            };
            self.ended.push((pid, exit));
        }
    }
}
