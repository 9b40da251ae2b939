//! The keeper: the process between a node's daemon and a supervisor, which is there for the moment
//! when both are killed at once.
//!
//! ```text
//!   daemon ── keeper ── supervisor ── ranks ── what they start
//! ```
//!
//! What the dead leave behind comes to the nearest subreaper that lives, and each of the first
//! three is one: of two that are killed, the third ends the rest. The keeper has another name in
//! lists of processes than the other two, so that `killall vmmc` leaves it to its work.
//!
//! Invariant: it does nothing before the supervisor ends but pass signals on; it ends after all
//! that was below it.

use super::Signals;
use super::children::Children;
use crate::failure::Failure;
use crate::limits::KEEPER_LOOK;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering;
use vmmc_job::Exit;
use vmmc_node::EXPORT_VARIABLE;

/// Starts the supervisor and stays until it and all below it have gone.
pub(super) fn run(node: &str, export: &str) -> Result<(), Failure> {
    // A name is for people; without it all else works.
    let _ = rustix::thread::set_name(c"job-keeper");
    let signals = Signals::catch()?;
    let mut children = Children::default();
    let mut supervisor = Command::new("/proc/self/exe");
    supervisor.arg0("vmmc").args(["supervise", "--node", node, "--kept"]);
    // The name is a secret, and arguments are not.
    supervisor.env(EXPORT_VARIABLE, export);
    let supervisor = supervisor.spawn().map_err(|e| Failure::new(format!("the supervisor cannot be started: {e}")))?;
    let pid = Pid::from_child(&supervisor);
    let exit = loop {
        signals.drain();
        if signals.end.swap(false, Ordering::Relaxed) {
            // Gone already is as good.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        if let Some((_, exit)) = children.collect().into_iter().find(|(ended, _)| *ended == pid) {
            break exit;
        }
        let nap = Timespec { tv_sec: KEEPER_LOOK.as_secs() as i64, tv_nsec: 0 };
        // An interrupted poll is a short one.
        let _ = poll(&mut [PollFd::new(&signals.bell, PollFlags::IN)], Some(&nap));
    };
    children.end_by_force();
    match exit {
        Exit::Code(0) => Ok(()),
        // It has said why.
        Exit::Code(code) => std::process::exit(code),
        Exit::Signal(signal) => Err(Failure::new(format!("the supervisor was killed by signal {signal}"))),
    }
}
