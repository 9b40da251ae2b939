//! Every descriptor that a client ever gets, and what its holder can do with it; compared with the
//! table in docs/security.md.
//!
//! Invariant: a descriptor that the node begins to hand out, or one that gives more than before,
//! fails here until the table says so.

#[path = "../src/testing/raw.rs"]
#[allow(dead_code, reason = "shared with the tests of the crate")]
mod raw;

use raw::Raw;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Uid;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use vmmc_host::control::{Answer, CONTROL_VERSION, Call, Grant, NodeEvent, Reply, Request, decode, encode};
use vmmc_host::region::PAGE_BYTES;
use vmmc_host::{Attachment, Channel};
use vmmc_nic::Rights;
use vmmc_node::{Embedded, KeySource, NodeConfig};
use vmmc_stream::Bells;
use vmmc_stream::messages::{SocketCall, SocketEvent};

/// Users that own nothing here.
const ONE_USER: u32 = 54_321;
const ANOTHER_USER: u32 = 54_322;

/// The node, among the ids of processes.
const NODE: u32 = u32::MAX;
const VMMCD: &str = env!("CARGO_BIN_EXE_vmmcd");

/// The table of the document.
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");

/// A descriptor as a client gets it.
struct Handed {
    /// The message that it comes with.
    with: &'static str,
    /// What it is.
    what: &'static str,
    fd: OwnedFd,
}

/// What a holder can do.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Gives {
    reading: bool,
    writing: bool,
}

impl std::fmt::Display for Gives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match (self.reading, self.writing) {
            (true, true) => "reading, writing",
            (true, false) => "reading",
            (false, true) => "writing",
            (false, false) => "nothing",
        })
    }
}

/// Names for the descriptors of a message, which must be as many.
fn name<const N: usize>(with: &'static str, names: [&'static str; N], fds: Vec<OwnedFd>) -> Vec<Handed> {
    assert_eq!(fds.len(), N, "{with} brings other descriptors than {names:?}");
    names.into_iter().zip(fds).map(|(what, fd)| Handed { with, what, fd }).collect()
}

/// Names the descriptors of an answer. A new answer must be added here.
fn of_answer(answer: &Answer, fds: Vec<OwnedFd>) -> Vec<Handed> {
    match answer {
        Answer::Attached { .. } => {
            name("`Attached`", ["area", "own bell", "wake receiver", "doorbell of the node", "events socket"], fds)
        }
        Answer::Imported(Grant { pair: true, .. }) => {
            let names = ["region", "gate table", "bell", "wake sender", "notification ring"];
            name("`Imported` to write", names, fds)
        }
        Answer::Imported(Grant { mapped: Ok(()), .. }) => {
            name("`Imported` to read", ["region", "gate table", "bell", "wake sender"], fds)
        }
        Answer::Service { .. } => of_socket_event(&SocketEvent::of(answer).unwrap(), fds),
        Answer::Imported(_)
        | Answer::Done
        | Answer::Region { .. }
        | Answer::EvictFirst { .. }
        | Answer::Exported { .. }
        | Answer::Unexported { .. }
        | Answer::Redirection(_)
        | Answer::Importers { .. }
        | Answer::Pong { .. }
        | Answer::SessionNode { .. }
        | Answer::Info(_) => name("an answer", [], fds),
    }
}

fn of_socket_event(event: &SocketEvent, fds: Vec<OwnedFd>) -> Vec<Handed> {
    match event {
        SocketEvent::Peer { process: NODE } => name("sockets: `Peer`", ["bells of the node"], fds),
        SocketEvent::PeerBell { process: NODE, .. } => name("sockets: `PeerBell`", ["eventfd of the node"], fds),
        SocketEvent::Peer { .. } => name("sockets: `Peer`", ["bells of a peer"], fds),
        SocketEvent::PeerBell { .. } => name("sockets: `PeerBell`", ["eventfd of a peer"], fds),
        SocketEvent::Slab { .. } => name("sockets: `Slab`", ["slab"], fds),
        SocketEvent::Matched { .. }
        | SocketEvent::Refused { .. }
        | SocketEvent::Adopted { .. }
        | SocketEvent::Attached { .. }
        | SocketEvent::SlabGone { .. }
        | SocketEvent::PeerGone { .. } => name("event about sockets", [], fds),
    }
}

/// Names the descriptors of an event. A new event must be added here.
fn of_event(event: &NodeEvent, fds: Vec<OwnedFd>) -> Vec<Handed> {
    match event {
        NodeEvent::Pair { .. } => name("`Pair`", ["notification ring"], fds),
        NodeEvent::PairGone { .. }
        | NodeEvent::ImportBroken { .. }
        | NodeEvent::Reclaim { .. }
        | NodeEvent::Stopping => name("an event", [], fds),
    }
}

/// All descriptors that clients of a node get, in the course of everything that brings some.
fn all_handed() -> Vec<Handed> {
    let config = NodeConfig { poller: false, ..NodeConfig::new("descriptors").key(KeySource::Plain) };
    let node = Embedded::start(config).unwrap();
    let (attached, fds) = call(&node.attach().unwrap(), &Call::Attach { version: CONTROL_VERSION }, &[]);
    let mut all = of_answer(&attached, fds);
    let (mut owner, mut importer) = (Raw::stepped(node.attach().unwrap()), Raw::stepped(node.attach().unwrap()));
    owner.export("memory");
    for wanted in [Rights::READ, Rights::READ | Rights::WRITE] {
        let (grant, fds) = importer.import(None, "memory", wanted);
        all.extend(of_answer(&Answer::Imported(grant), fds));
    }
    let (event, fds) = owner.event();
    all.extend(of_event(&event, fds));
    all.extend(handed_for_sockets(&node));
    all.extend(handed_between_nodes());
    all
}

/// A daemon, which ends with this.
struct Daemon(std::process::Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What two clients get for a connection between them, each with a daemon of its own, whose packets
/// are sealed.
fn handed_between_nodes() -> Vec<Handed> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let uid = rustix::process::getuid().as_raw();
    let tag = format!("descriptors-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let key = std::env::temp_dir().join(&tag);
    std::fs::write(&key, "5a".repeat(32)).unwrap();
    rustix::fs::chmod(&key, Mode::from_raw_mode(0o600)).unwrap();
    let ports = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let addresses = ports.map(|port| port.local_addr().unwrap());
    let names = ["a", "b"].map(|side| format!("{tag}-{side}"));
    let nodes = [0, 1].map(|side| {
        let mut config = NodeConfig::new(&names[side])
            .listen(addresses[side])
            .peer(&addresses[1 - side..][..1])
            .key(KeySource::File(key.clone()));
        config.known_as = Some(names[side].clone());
        Daemon(
            std::process::Command::new(VMMCD)
                .args(config.to_args())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap(),
        )
    });
    let nap = || std::thread::sleep(std::time::Duration::from_millis(1));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ends = [one, listener.accept().unwrap().0];
    let clients = names
        .each_ref()
        .map(|name| raw::wait(&nap, || Channel::try_connect(&vmmc_host::channel::node_socket_name(uid, name)).ok()));
    for (client, end) in clients.iter().zip(&ends) {
        let bells = Bells::create().unwrap().share().unwrap();
        send(client, &SocketCall::Attach.to_call(), &[bells.as_fd()]);
        let socket = vmmc_stream::claim(end.as_fd()).unwrap();
        send(client, &SocketCall::Offer { connection: 1, socket }.to_call(), &[]);
    }
    let all = clients.iter().flat_map(|client| until_matched(client, &nap)).collect();
    drop(nodes);
    let _ = std::fs::remove_file(&key);
    all
}

/// What a client gets until its connection is upgraded.
fn until_matched(client: &Channel, pump: &dyn Fn()) -> Vec<Handed> {
    let mut all = Vec::new();
    loop {
        let (answer, fds) = receive(client, pump);
        let Some(event) = SocketEvent::of(&answer) else { panic!("{answer:?}") };
        assert!(!matches!(event, SocketEvent::Refused { .. }), "{event:?}");
        let matched = matches!(event, SocketEvent::Matched { .. });
        all.extend(of_answer(&answer, fds));
        if matched {
            return all;
        }
    }
}

/// What two clients get for a connection between them.
fn handed_for_sockets(node: &Embedded) -> Vec<Handed> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ends = [one, listener.accept().unwrap().0];
    let clients = ends.each_ref().map(|_| node.attach().unwrap());
    for client in &clients {
        let bells = Bells::create().unwrap().share().unwrap();
        let call = SocketCall::Attach.to_call();
        send(&client.channel, &call, &[bells.as_fd()]);
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        send(&client.channel, &SocketCall::Bell { bell: 0 }.to_call(), &[bell.as_fd()]);
    }
    for (client, end) in clients.iter().zip(&ends) {
        let socket = vmmc_stream::claim(end.as_fd()).unwrap();
        send(&client.channel, &SocketCall::Offer { connection: 1, socket }.to_call(), &[]);
    }
    clients.iter().flat_map(|client| until_matched(&client.channel, &pump_of(client))).collect()
}

/// Makes the node of an attachment go on.
fn pump_of(client: &Attachment) -> impl Fn() + use<> {
    let stepper = client.stepper.clone().unwrap();
    move || _ = stepper.step()
}

fn send(client: &Channel, call: &Call, fds: &[BorrowedFd<'_>]) {
    client.try_send(&encode(&Request { serial: 1, call: call.clone() }), fds).unwrap();
}

fn receive(client: &Channel, pump: &dyn Fn()) -> (Answer, Vec<OwnedFd>) {
    let (bytes, fds) = raw::wait(pump, || client.try_receive().ok());
    (decode::<Reply>(&bytes).unwrap().result.unwrap(), fds)
}

fn call(client: &Attachment, call: &Call, fds: &[BorrowedFd<'_>]) -> (Answer, Vec<OwnedFd>) {
    send(&client.channel, call, fds);
    receive(&client.channel, &pump_of(client))
}

/// What the holder of a descriptor can do, by itself and by opening it once more, if need be after
/// changing its mode.
fn gives(fd: &OwnedFd) -> Gives {
    let mode = rustix::fs::fcntl_getfl(fd).unwrap() & OFlags::ACCMODE;
    let mut gives = Gives {
        reading: mode != OFlags::WRONLY,
        writing: if is_file(fd) { can_map_for_writing(fd.as_fd()) } else { mode != OFlags::RDONLY },
    };
    let _ = rustix::fs::fchmod(fd, Mode::from_raw_mode(0o666));
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    let open = |flags| rustix::fs::open(&path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    gives.reading |= open(OFlags::RDONLY).is_ok();
    gives.writing |= open(OFlags::RDWR).is_ok_and(|fd| !is_file(&fd) || can_map_for_writing(fd.as_fd()));
    gives.writing |= open(OFlags::WRONLY).is_ok_and(|fd| rustix::io::pwrite(&fd, &[0], 0).is_ok() || !is_file(&fd));
    gives
}

fn is_file(fd: &OwnedFd) -> bool {
    rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(fd).unwrap().st_mode) == rustix::fs::FileType::RegularFile
}

fn can_map_for_writing(fd: BorrowedFd<'_>) -> bool {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address that the kernel chooses, removed at once.
    unsafe {
        match rustix::mm::mmap(std::ptr::null_mut(), PAGE_BYTES, both, MapFlags::SHARED, fd, 0) {
            Ok(base) => rustix::mm::munmap(base, PAGE_BYTES).is_ok(),
            Err(_) => false,
        }
    }
}

/// Runs in a thread of another user. Identities belong to threads, as far as the kernel is
/// concerned.
fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> T {
    let run = move || {
        let uid = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root becomes anybody");
        what()
    };
    std::thread::scope(|scope| scope.spawn(run).join().expect("no panic in there"))
}

/// The rows of the document: (comes with, descriptor), (the same user, another user).
fn documented() -> Vec<(String, [String; 2])> {
    let text = std::fs::read_to_string(DOCUMENT).unwrap();
    let table = text.split("<!-- descriptors:begin -->").nth(1).expect("the table's begin");
    let table = table.split("<!-- descriptors:end -->").next().expect("the table's end");
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [with, what, same, other, _why] = cells[..] else { panic!("a row of other columns: {row}") };
        (format!("{with}: {what}"), [same.into(), other.into()])
    })
    .collect()
}

/// The observed side of the table, each row once.
fn observed(all: &[Handed]) -> Vec<(String, String)> {
    let mut rows: Vec<_> = all.iter().map(|h| (format!("{}: {}", h.with, h.what), gives(&h.fd).to_string())).collect();
    rows.sort();
    rows.dedup();
    rows
}

fn compare(column: usize, observed: &[(String, String)]) {
    let mut expected: Vec<_> = documented().into_iter().map(|(name, gives)| (name, gives[column].clone())).collect();
    expected.sort();
    assert_eq!(observed, expected, "left: what holders can do; right: what docs/security.md says");
}

#[test]
fn what_a_holder_of_the_same_user_can_do_is_documented() {
    // Root may open everything, so it is no user to try it with.
    let observe = || observed(&all_handed());
    compare(0, &if rustix::process::geteuid().is_root() { as_user(ONE_USER, observe) } else { observe() });
}

#[test]
fn what_a_holder_of_another_user_can_do_is_documented() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP other users: only root becomes one");
    }
    // A node of some user, and one of root.
    for all in [as_user(ONE_USER, all_handed), all_handed()] {
        compare(1, &as_user(ANOTHER_USER, || observed(&all)));
    }
}
