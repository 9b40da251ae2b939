//! An embedded node and the children of its process: a child has a copy of the keys and of the
//! packet numbers, and uses neither.

#[path = "../src/testing/raw.rs"]
#[allow(dead_code, reason = "shared with the tests of the crate")]
mod raw;

use raw::{Raw, wait};
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vmmc_host::Nanos;
use vmmc_host::control::{Answer, Reply};
use vmmc_nic::Rights;
use vmmc_node::{AttachError, Embedded, KeySource, NodeConfig};

/// Forks; so many times that some children come while another thread has the node.
const CHILDREN: usize = 8;
/// Where a datagram's header has its kind, its session and its packet number (docs/protocol.md).
const DATA: u8 = 4;

/// Every (session, packet number) under which a data packet passed, and how often.
type Seen = Arc<Mutex<HashMap<([u8; 10], u64), u32>>>;

/// Passes datagrams on between `far` and its senders, and notes what is under way to `far`.
struct Relay {
    address: SocketAddr,
    seen: Seen,
    stop: Arc<AtomicBool>,
}

impl Relay {
    fn to(far: SocketAddr) -> Relay {
        let bound = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            socket
        };
        let (near_side, far_side) = (bound(), bound());
        let address = near_side.local_addr().unwrap();
        let (seen, stop) = (Seen::default(), Arc::new(AtomicBool::new(false)));
        let (noted, ended) = (seen.clone(), stop.clone());
        std::thread::spawn(move || {
            let (mut buffer, mut near) = (vec![0; 1 << 16], None);
            while !ended.load(Ordering::SeqCst) {
                if let Ok((len, from)) = near_side.recv_from(&mut buffer) {
                    near = Some(from);
                    if len >= 20 && buffer[1] & 15 == DATA {
                        let session = buffer[2..12].try_into().unwrap();
                        let number = u64::from_le_bytes(buffer[12..20].try_into().unwrap());
                        *noted.lock().unwrap().entry((session, number)).or_default() += 1;
                    }
                    let _ = far_side.send_to(&buffer[..len], far);
                }
                if let (Ok((len, _)), Some(near)) = (far_side.recv_from(&mut buffer), near) {
                    let _ = near_side.send_to(&buffer[..len], near);
                }
            }
        });
        Relay { address, seen, stop }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn node(name: &str, poller: bool) -> NodeConfig {
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut config = NodeConfig::new(name).listen(listen).key(KeySource::Given([5; 32]));
    config.poller = poller;
    config
}

/// What a child does with all that it has from its parent. Its answer: 0 if nothing of it had an
/// effect.
fn misuse(near: Embedded, parent: u32, attachment: vmmc_host::Attachment, importer: Raw) -> i32 {
    match near.attach() {
        Err(AttachError::Forked { parent: told }) if told == parent => {}
        Err(_) => return 2,
        Ok(again) => {
            // As the message of a forked session advised.
            let mut again = Raw::stepped(again);
            let serial = again.ask(Raw::import_call(Some("fork-far"), "x", Rights::WRITE));
            let _ = again.answer(serial);
            return 3;
        }
    }
    let stepper = attachment.stepper.clone().unwrap();
    for _ in 0..500 {
        if stepper.step() || stepper.step_again(3) {
            return 4;
        }
        importer.pump();
    }
    stepper.park(Nanos::monotonic() + Duration::from_millis(2));
    if near.name() != "fork-near" || near.addresses().is_empty() {
        return 5;
    }
    // What goes last would say goodbye, join the poller and close.
    drop((stepper, attachment, importer, near));
    0
}

#[test]
fn a_child_of_an_embedded_node_uses_no_key_of_its_parent() {
    for poller in [true, false] {
        let far = Embedded::start(node("fork-far", true)).unwrap();
        let relay = Relay::to(far.addresses()[0]);
        let near = Embedded::start(node("fork-near", poller).peer(&[relay.address])).unwrap();
        let mut owner = Raw::stepped(far.attach().unwrap());
        let (_, memory) = owner.export("x");
        let mut importer = Raw::stepped(near.attach().unwrap());
        let serial = importer.ask(Raw::import_call(Some("fork-far"), "x", Rights::WRITE));
        let (answer, _) = wait(&|| importer.pump(), || importer.channel.try_receive().ok());
        let reply: Reply = vmmc_host::control::decode(&answer).unwrap();
        assert_eq!(reply.serial, serial);
        let Ok(Answer::Imported(grant)) = reply.result else { panic!("{reply:?}") };
        let mut last = 0;
        for child in 0..CHILDREN {
            // Something is under way when the child is made.
            last = 100 * child as u64 + 1;
            importer.send(grant.import, 0, &last.to_le_bytes(), last);
            importer.pump();
            let spare = near.attach().unwrap();
            let parent = std::process::id();
            // SAFETY: the child uses what it has of its parent and ends; another thread's lock that
            // it would wait for is what this test is about.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // A child that hangs is a failure too, not a test without end.
                // SAFETY: plain system calls without pointers.
                unsafe { libc::alarm(20) };
                let code =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| misuse(near, parent, spare, importer)));
                // SAFETY: as above; nothing of the parent's runs at exit.
                unsafe { libc::_exit(code.unwrap_or(9)) };
            }
            for more in 1..20 {
                last = 100 * child as u64 + 1 + more;
                importer.send(grant.import, 0, &last.to_le_bytes(), last);
                wait(&|| importer.pump(), || {
                    (memory.region.word(0).unwrap().load(Ordering::SeqCst) == last).then_some(())
                });
            }
            let mut status = -1;
            let end = || {
                // SAFETY: `status` outlives the call.
                let ended = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
                (ended == pid).then_some(())
            };
            wait(&|| importer.pump(), end);
            assert_eq!(status, 0, "child {child}, poller {poller}: misuse had an effect (status {status:#x})");
        }
        while let Some(completion) = importer.try_completion() {
            assert_eq!(completion.status, 0, "the session of the parent lives");
        }
        let seen = relay.seen.lock().unwrap();
        assert!(seen.len() >= CHILDREN, "the relay was passed by: {}", seen.len());
        let twice: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "packet numbers used twice: {twice:?}");
        let sessions: std::collections::HashSet<_> = seen.keys().map(|(session, _)| session).collect();
        assert_eq!(sessions.len(), 1, "the parent's session has lasted");
        assert!(last > 0);
    }
}
