//! A user that stops, or holds up, what a daemon of root's starts for it, beside an honest pair.
//!
//! Needs root, and the user `nobody` in the machine's list of users; without them the tests print
//! `SKIP` and why.

mod common;

use common::raw::Raw;
use common::wild::can_be_others;
use common::{Node, beside_user, connect};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmmc_host::control::{Call, What};
use vmmc_nic::Rights;

/// A user that every distribution knows, by number.
const NOBODY: u32 = 65_534;
/// Processes after the last one of the machine that are stopped before they are there.
const AHEAD: i32 = 6;
/// How long it goes on.
const ATTACK: Duration = Duration::from_secs(6);

fn is_known(uid: u32) -> bool {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = users.lines().any(|line| line.split(':').nth(2) == Some(&uid.to_string()));
    if !known {
        println!("SKIP: this machine has no user {uid}");
    }
    known
}

fn launch_call(name: &str) -> Call {
    let what = What::Name(format!("vmmc.launch/{NOBODY}/{name}"));
    Call::Import {
        node: None,
        what,
        owner: Default::default(),
        rights: Rights::READ.bits(),
        wait: true,
        timeout_ms: 20_000,
        own_order: false,
    }
}

/// Stops the next processes of the machine, as far as the calling thread's user may, until it is
/// over; gives them.
fn stop_what_comes(over: &AtomicBool) -> Vec<Pid> {
    let mut stopped = Vec::new();
    while !over.load(Ordering::SeqCst) {
        let text = std::fs::read_to_string("/proc/loadavg").unwrap();
        let last: i32 = text.split_whitespace().last().unwrap().parse().unwrap();
        // A thread of this very process is one of the user's processes, too.
        let first = last + i32::from(std::fs::exists(format!("/proc/self/task/{last}")).unwrap());
        for _ in 0..200 {
            for pid in first..=last + AHEAD {
                let pid = Pid::from_raw(pid).unwrap();
                if kill_process(pid, Signal::STOP).is_ok() && !stopped.contains(&pid) {
                    stopped.push(pid);
                }
            }
        }
    }
    stopped
}

#[test]
fn a_user_that_stops_what_is_started_for_it_holds_nobody_up() {
    if !can_be_others() || !is_known(NOBODY) {
        return;
    }
    // As `vmmc supervise` does: it becomes the user, and executes itself as that.
    let script = Script::new("exec setpriv --reuid 65534 --regid 65534 --clear-groups sleep 0.01");
    let mut node = Node::with("stopped", None, |config| config.launcher = Some(script.0.clone()));
    let name = node.name.clone();
    beside_user(NOBODY, &mut node, || {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stopper = scope.spawn(|| stop_what_comes(&over));
            let mut asker = Raw::over(connect(0, &name).unwrap(), Rc::new(std::thread::yield_now));
            let (end, mut asked) = (Instant::now() + ATTACK, 0);
            while Instant::now() < end {
                asked += 1;
                asker.ask(launch_call(&format!("x{asked}")));
                std::thread::sleep(Duration::from_millis(20));
                while !asker.has_no_answer() {}
            }
            over.store(true, Ordering::SeqCst);
            let stopped = stopper.join().unwrap();
            println!("{asked} starts were asked for, and {} processes were stopped", stopped.len());
            stopped.into_iter().for_each(|pid| _ = kill_process(pid, Signal::KILL));
        });
    });
}

/// A program that is started instead of `vmmc`.
struct Script(PathBuf);

impl Script {
    fn new(text: &str) -> Script {
        let path = std::env::temp_dir().join(format!("vmmc-starts-{}", std::process::id()));
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        Script(path)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
