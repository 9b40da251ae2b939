//! Real processes that are killed, and one that forks. The test program starts itself once for each
//! role.
//!
//! Source: "a process killed -9 in the middle of anything: peers get an error within a second, its
//! memory and names are gone".

#[path = "common/role.rs"]
mod role;

use role::Role;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use vmmc::{AccessError, BindOptions, Rights, SendOptions, Session, TransferError, WaitError};
use vmmc_node::{KeySource, NodeConfig};

const LONG: Duration = Duration::from_secs(30);
/// Within this time a death is reported. It is promised to be one second; the rest is for busy
/// machines.
const TOLD: Duration = Duration::from_secs(10);

impl Role {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn node_name() -> String {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    format!("processes-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed))
}

fn attach(node: &str) -> Session {
    Session::builder().node(node).start_node(false).timeout(LONG).attach().unwrap()
}

fn told<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(start.elapsed() < TOLD, "{what}: not told within {TOLD:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "a role of the other tests"]
fn child_process() {
    let Ok(role) = std::env::var("VMMC_TEST_ROLE") else { return };
    let node = std::env::var("VMMC_TEST_NODE").unwrap();
    match role.as_str() {
        "node" => {
            let config = NodeConfig::new(&node).key(KeySource::Plain);
            vmmc_node::run_with(config, |_| println!("ready")).unwrap();
        }
        "owner" => {
            let session = attach(&node);
            let _mapped = session.export(1 << 20).name("mapped").create().unwrap();
            let _served = session.export(1 << 20).name("served").mappable(false).create().unwrap();
            println!("ready");
            std::thread::sleep(10 * LONG);
        }
        "sender" => {
            let session = attach(&node);
            let imports = ["target", "served-target"].map(|name| session.import(name).open().unwrap());
            let data = vec![7u8; 600_000];
            println!("ready");
            loop {
                for import in &imports {
                    import.send_with(64, &data, SendOptions::notify()).unwrap();
                }
            }
        }
        "messenger" => {
            let session = attach(&node);
            let mut inbox = session.connect("inbox").open().unwrap();
            println!("ready");
            for number in 0u64.. {
                inbox.send(&number.to_le_bytes(), &payload_of(number)[..]).unwrap();
            }
        }
        other => panic!("no role {other}"),
    }
}

#[test]
fn when_an_owner_is_killed_its_importers_are_told_and_its_names_are_free() {
    let node = node_name();
    let _daemon = Role::start("node", &node);
    let user = attach(&node);
    for _ in 0..3 {
        let mut owner = Role::start("owner", &node);
        let imports = ["mapped", "served"].map(|name| user.import(name).rights(Rights::ALL).open().unwrap());
        imports.iter().for_each(|import| import.send(0, b"alive").unwrap());
        owner.kill();
        for import in &imports {
            let error = told("the importer", || import.send(0, b"dead?").and_then(|()| import.flush()).err());
            assert!(matches!(error, TransferError::OwnerDied { .. }), "{error}");
        }
        told("the name", || user.import("mapped").open().err());
    }
}

#[test]
fn an_importer_killed_in_the_middle_of_sends_holds_up_nobody() {
    let node = node_name();
    let _daemon = Role::start("node", &node);
    let owner = attach(&node);
    for round in 0..5 {
        let target = owner.export(1 << 20).name("target").notify(true).create().unwrap();
        let served = owner.export(1 << 20).name("served-target").notify(true).mappable(false).create().unwrap();
        let mut sender = Role::start("sender", &node);
        target.wait_notification().unwrap();
        std::thread::sleep(Duration::from_micros(300 * round));
        sender.kill();
        let start = Instant::now();
        target.unexport().unwrap();
        served.unexport().unwrap();
        assert!(start.elapsed() < TOLD);
    }
}

/// Each byte says which message it is of.
fn payload_of(number: u64) -> Vec<u8> {
    vec![number as u8; 1 + (number * 997 % 4096) as usize]
}

#[test]
fn senders_killed_in_the_middle_of_messages_leave_none_half_visible_and_others_are_heard() {
    const KILLS: u64 = 12;
    let node = node_name();
    let _daemon = Role::start("node", &node);
    let (owner, user) = (attach(&node), attach(&node));
    let mut endpoint = owner.endpoint("inbox").frames(4, 4096).create().unwrap();
    let mut other = std::thread::scope(|scope| {
        let opening = scope.spawn(|| user.connect("inbox").open().unwrap());
        while !opening.is_finished() {
            assert!(endpoint.poll().unwrap().is_none());
        }
        opening.join().unwrap()
    });
    for round in 0..KILLS {
        let starting = std::thread::spawn({
            let node = node.clone();
            move || Role::start("messenger", &node)
        });
        let (mut next, mut sender) = (0u64, None);
        let check = |message: &vmmc::Message, next: &mut u64| {
            assert_eq!(message.control(), next.to_le_bytes(), "round {round}");
            assert!(message.payload().unwrap().to_vec() == payload_of(*next), "round {round}, message {next}");
            *next += 1;
        };
        while sender.is_none() || next < 200 + 50 * round {
            if let Some(message) = endpoint.poll().unwrap() {
                check(&message, &mut next);
                sender = sender.or(Some(message.from()));
            }
        }
        let mut role = starting.join().unwrap();
        std::thread::sleep(Duration::from_micros(100 * (round % 4)));
        role.kill();
        other.send(b"all well", b"").unwrap();
        let mut heard = false;
        while !heard {
            let message = endpoint.wait().unwrap();
            if Some(message.from()) == sender {
                check(&message, &mut next);
            } else {
                assert_eq!(message.control(), b"all well");
                heard = true;
            }
        }
        // What it had sent whole is taken, and nothing else comes.
        while let Some(message) = endpoint.poll().unwrap() {
            check(&message, &mut next);
        }
    }
    told("the places of the dead", || {
        assert!(endpoint.poll().unwrap().is_none());
        (endpoint.senders() == 1).then_some(())
    });
    assert_eq!((endpoint.counts().accepted, endpoint.counts().misbehaved), (1 + KILLS, 0));
}

#[test]
fn when_the_daemon_is_killed_calls_fail_soon_and_a_new_one_takes_its_place() {
    let node = node_name();
    let mut daemon = Role::start("node", &node);
    let (owner, user) = (attach(&node), attach(&node));
    let export = owner.export(4096).name("here").notify(true).create().unwrap();
    let import = user.import("here").open().unwrap();
    let served = user.import("here").rights(Rights::WRITE).open().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| export.wait_notification());
        let fetching = scope.spawn(|| told("the sender", || import.send(0, b"x").err()));
        std::thread::sleep(Duration::from_millis(50));
        daemon.kill();
        assert!(matches!(waiting.join().unwrap(), Err(WaitError::NodeGone { .. })));
        assert!(matches!(fetching.join().unwrap(), TransferError::NodeGone { .. }));
    });
    assert!(matches!(served.send(0, b"x"), Err(TransferError::NodeGone { .. })));
    let message = user.import("here").open().unwrap_err().to_string();
    assert!(message.contains("vmmc node start"), "{message}");
    let _new = Role::start("node", &node);
    let again = attach(&node);
    let export = again.export(4096).name("here").create().unwrap();
    again.import("here").open().unwrap().send(0, b"again").unwrap();
    drop(export);
}

#[test]
fn an_event_loop_is_told_that_the_daemon_was_killed() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let node = node_name();
    let mut daemon = Role::start("node", &node);
    let (session, user) = (attach(&node), attach(&node));
    let _export = session.export(4096).name("here").notify(true).create().unwrap();
    // A process that may notify has the other end of the session's wake-up, which therefore does
    // not hang up.
    let _import = user.import("here").open().unwrap();
    let fd = session.event_fd().unwrap();
    let readable = |within: Duration| {
        let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    };
    while readable(Duration::from_millis(50)) {
        assert!(session.take_notification().is_none());
    }
    daemon.kill();
    assert!(readable(TOLD), "the loop sleeps on");
    assert!(session.take_notification().is_none());
    told("who asks why", || (!session.is_alive()).then_some(()));
    assert!(readable(Duration::ZERO), "it stays so for loops that look later");
}

#[test]
fn an_event_loop_is_told_that_its_session_has_left_a_node_that_is_stopped() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, Signal, kill_process};
    let node = node_name();
    let daemon = Role::start("node", &node);
    let session = attach(&node);
    let fd = session.event_fd().unwrap();
    while session.take_notification().is_some() {}
    kill_process(Pid::from_child(&daemon.0), Signal::STOP).unwrap();
    let readable = |tv_sec| {
        let timeout = Timespec { tv_sec, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    };
    assert!(!readable(0));
    session.leave();
    assert!(readable(TOLD.as_secs() as i64), "the loop sleeps on");
    assert!(!session.is_alive() && readable(0));
}

/// Lets this process and its children have so many descriptors; false: they may not.
fn may_have_descriptors(count: u64) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < count) {
        return false;
    }
    let current = limit.current.map(|current| current.max(count));
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).is_ok()
}

#[test]
fn two_hundred_attach_at_once_to_a_node_that_was_stopped_for_a_moment() {
    use rustix::process::{Pid, Signal, kill_process};
    const SESSIONS: usize = 200;
    const STOPPED: Duration = Duration::from_millis(300);
    // A dozen for each at the node, and less here.
    if !may_have_descriptors(4096) {
        return println!("SKIP attaches at once: {SESSIONS} sessions take up to 4096 descriptors (ulimit -Hn)");
    }
    let node = node_name();
    let daemon = Role::start("node", &node);
    let pid = Pid::from_child(&daemon.0);
    kill_process(pid, Signal::STOP).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", daemon.0.id())).unwrap();
    told("that it is stopped", || state().rsplit(") ").next().unwrap().starts_with('T').then_some(()));
    let begin = Barrier::new(SESSIONS + 1);
    // As programs do it, with the timeout that they have when they choose none.
    let attach = || {
        begin.wait();
        Session::builder().node(&node).start_node(false).attach().map(|session| (session, Instant::now()))
    };
    let (attached, went_on) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SESSIONS).map(|_| scope.spawn(attach)).collect();
        begin.wait();
        std::thread::sleep(STOPPED);
        let went_on = Instant::now();
        kill_process(pid, Signal::CONT).unwrap();
        (threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>(), went_on)
    });
    let refused: Vec<_> = attached.iter().filter_map(|attached| attached.as_ref().err()).collect();
    assert!(refused.is_empty(), "{} of {SESSIONS} were refused: {}", refused.len(), refused[0]);
    let sessions: Vec<_> = attached.into_iter().map(Result::unwrap).collect();
    assert!(sessions.iter().all(|(_, at)| *at > went_on), "a node that is stopped has answered");
    let last = sessions.iter().map(|(_, at)| *at - went_on).max();
    println!("the last of {SESSIONS} was attached {last:?} after the node went on");
    // Each of them is served.
    let exports: Vec<_> = sessions.iter().map(|(session, _)| session.export(64).create().unwrap()).collect();
    for ((session, _), export) in sessions.iter().zip(exports.iter().rev()) {
        session.import_id(export.id()).open().unwrap().send(0, b"served").unwrap();
    }
    let mut word = [0; 6];
    exports.iter().for_each(|export| {
        export.read(0, &mut word).unwrap();
        assert_eq!(&word, b"served");
    });
}

#[test]
fn a_missing_node_is_an_error_with_a_next_step() {
    let error = Session::builder().node("nobody-runs-this").start_node(false).attach().unwrap_err();
    assert!(error.to_string().contains("vmmc node start --name nobody-runs-this"), "{error}");
}

#[test]
fn a_forked_child_finds_the_session_unusable() {
    let node = node_name();
    let _daemon = Role::start("node", &node);
    let session = attach(&node);
    let export = session.export(4096).name("parents").create().unwrap();
    let mapped = session.import("parents").rights(Rights::ALL).open().unwrap();
    let served = session.import("parents").rights(Rights::WRITE).open().unwrap();
    let spare = (session.export(4096).notify(true).create().unwrap(), session.import("parents").open().unwrap());
    let buffer = session.buffer(4096).unwrap();
    let bound = session.import("parents").open().unwrap();
    let binding = bound.bind(BindOptions::default()).unwrap();
    let handler = spare.0.on_notification(|_| {}).unwrap();
    let redirectable = session.export(4096).redirectable(true).create().unwrap();
    let redirected = [0, 100].map(|at| redirectable.post_redirect(at..at + 100, &buffer, at).unwrap());
    // SAFETY: the child runs only the calls below, which take no lock that another thread could
    // hold at the fork (they fail before), and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |result: Result<(), TransferError>| matches!(result, Err(TransferError::Forked { .. }));
        let not_here = |result: Result<(), AccessError>| matches!(result, Err(AccessError::Forked { .. }));
        let all = forked(mapped.send(0, b"child"))
            && forked(served.send(0, b"child"))
            && forked(served.flush())
            && forked(mapped.fetch(0, &mut [0; 4]))
            && forked(mapped.fetch_add(0, 1).map(drop))
            && forked(mapped.compare_swap(0, 0, 1).map(drop))
            && forked(mapped.swap(0, 1).map(drop))
            && forked(mapped.send_with(0, b"child", SendOptions::notify()))
            && not_here(export.write(0, b"child"))
            && not_here(export.read(0, &mut [0; 4]))
            && not_here(export.word(0).map(drop))
            && export.wait_word(0, |_| true).is_err()
            && matches!(session.on_notification(|_| {}), Err(WaitError::Forked { .. }))
            && matches!(spare.0.on_notification(|_| {}), Err(WaitError::Forked { .. }))
            && not_here(buffer.write(0, b"child"))
            && not_here(buffer.read(0, &mut [0; 4]))
            && not_here(buffer.word(0).map(drop))
            && not_here(binding.write(0, b"child"))
            && not_here(binding.read(0, &mut [0; 4]))
            && not_here(binding.word(0).map(drop))
            && redirectable.post_redirect(300..400, &buffer, 0).is_err()
            && redirected[0].is_over()
            && redirected[0].wait().is_err()
            && redirected[0].report().is_err()
            && session.node_info(false).is_err();
        // What the child drops is only its own view.
        drop((handler, spare, buffer, redirected, redirectable));
        session.leave();
        // SAFETY: ends the child without running destructors of the parent's objects.
        unsafe { libc::_exit(if all { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child; `status` is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child could use its parent's session");
    mapped.send(0, b"parent").unwrap();
    let mut got = [0; 6];
    export.read(0, &mut got).unwrap();
    assert_eq!(&got, b"parent");
    served.send(0, b"served").and_then(|()| served.flush()).unwrap();
    assert!(session.is_alive() && session.node_info(true).unwrap().exports.len() == 3);
    assert!(redirected.iter().all(|one| one.report().unwrap().pending.len() == 1), "the child's drop is its own");
    handler_still_works(&session, spare, handler);
    drop(buffer);
}

/// The parent's handler takes what comes after the child has dropped its copy.
fn handler_still_works(
    session: &Session,
    (export, _import): (vmmc::Export, vmmc::Import),
    handler: vmmc::HandlerGuard,
) {
    let import = session.import_id(export.id()).open().unwrap();
    import.send_with(0, b"!", SendOptions::notify()).unwrap();
    told("the handler", || (session.stats().notifications_taken == 1).then_some(()));
    drop(handler);
}
