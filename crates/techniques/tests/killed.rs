//! Senders and receivers that are killed, again and again, in the middle of messages. The test
//! program starts itself once for each role.
//!
//! Invariant: what is received is whole; a death is an error of the other end, in time; a channel
//! of the same name can be opened at once, and serves.

mod common;
#[path = "../../vmmc/tests/common/role.rs"]
mod role;

use common::{LONG, PAGE, assert_same, pattern, unique};
use role::Role;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmmc::Session;
use vmmc_node::{Daemon, KeySource, NodeConfig, Stopper};
use vmmc_techniques::{Error, PageBuffer, PostedMemory, Receiver, Sender, Technique};

/// Within this time a death is reported. It is promised to be one second; the rest is for busy
/// machines.
const TOLD: Duration = Duration::from_secs(10);
const ROUNDS: u64 = 3;
/// Bytes of the longest message.
const LONGEST: usize = 300_000;

fn length(number: u64) -> usize {
    (number * 7919 % LONGEST as u64) as usize
}

fn attach(node: &str) -> Session {
    Session::builder().node(node).start_node(false).timeout(LONG).attach().unwrap()
}

/// Sends messages for ever; what ended it.
fn send_all(sender: &mut Sender, session: &Session) -> Error {
    let mut pages = PageBuffer::new(session, LONGEST as u64).unwrap();
    for number in 0.. {
        let message = pattern(length(number), number as u8);
        let len = message.len() as u64;
        let result = match sender.technique() {
            Technique::DirectDma => {
                sender.agreed().write(0, &message).unwrap();
                sender.send_agreed(0..len).and_then(|sending| sending.wait())
            }
            Technique::V2pDma => sender.send_posted(&message).and_then(|sending| sending.wait()),
            Technique::PexDma | Technique::Auto => {
                pages.write(0, &message).unwrap();
                sender.send_pages(&mut pages, 0..len)
            }
            _ => sender.send(&message),
        };
        if let Err(error) = result {
            return error;
        }
    }
    unreachable!("an end that is not killed sends for ever")
}

/// Receives messages until there is an error; how many.
fn receive_all(receiver: &mut Receiver) -> (u64, Error) {
    let mut pages = receiver.page_buffer(if receiver.technique() == Technique::PexDma { 80 * PAGE as u64 } else { 1 });
    let memory: Option<PostedMemory> =
        (receiver.technique() == Technique::V2pDma).then(|| receiver.memory(LONGEST as u64).unwrap());
    let mut buffer = vec![0; LONGEST];
    for number in 0.. {
        let len = length(number);
        let result = match (&memory, &mut pages) {
            (Some(memory), _) => {
                receiver.post(memory, 0..LONGEST as u64).unwrap();
                receiver.receive_posted().map(|arrived| {
                    memory.read(0, &mut buffer[..len]).unwrap();
                    arrived.range.end as usize
                })
            }
            (None, Ok(pages)) if number % 2 == 0 && pages.len() > 1 => {
                receiver.receive_pages(pages, 0).map(|received| {
                    pages.read(0, &mut buffer[..len]).unwrap();
                    received.len as usize
                })
            }
            _ => receiver.receive(&mut buffer),
        };
        match result {
            Ok(received) => assert_eq!(received, len),
            Err(error) => return (number, error),
        }
        // In agreed memory the next one may have come.
        if receiver.technique() != Technique::DirectDma {
            assert_same(&buffer[..len], &pattern(len, number as u8), "a message of a process that is killed");
        }
    }
    unreachable!("its sender is killed")
}

#[test]
#[ignore = "a role of the other tests"]
fn child_process() {
    let Ok(role) = std::env::var("VMMC_TEST_ROLE") else { return };
    let session = attach(&std::env::var("VMMC_TEST_NODE").unwrap());
    let (role, rest) = role.split_once(' ').unwrap();
    match role {
        "sender" => {
            let (node, name) = rest.split_once(' ').unwrap();
            let mut sender = Sender::builder(&session, name).node(node).connect().unwrap();
            println!("ready");
            let _ = send_all(&mut sender, &session);
        }
        _ => {
            let (technique, name) = rest.split_once(' ').unwrap();
            let builder = Receiver::builder(&session, name).technique(technique.parse().unwrap());
            let mut receiver = builder.pages(100 * PAGE as u64).open().unwrap();
            println!("ready");
            let _ = receive_all(&mut receiver);
        }
    }
}

/// Two daemons on threads of this process.
struct Daemons([String; 2], Vec<(Stopper, JoinHandle<()>)>);

impl Daemons {
    fn start() -> Daemons {
        let names = [unique("kill-a"), unique("kill-b")];
        let config = |name: &str| {
            let loopback: SocketAddr = "127.0.0.1:0".parse().expect("an address");
            NodeConfig::new(name).listen(loopback).key(KeySource::Given([7; 32]))
        };
        let a = Daemon::start(config(&names[0])).unwrap();
        let addresses = a.running().addresses;
        let b = Daemon::start(config(&names[1]).peer(&addresses)).unwrap();
        let run = |daemon: Daemon| (daemon.stopper(), std::thread::spawn(move || daemon.run().unwrap()));
        let daemons = Daemons(names, [a, b].map(run).into());
        attach(&daemons.0[1]).ping(&attach(&daemons.0[0]).node().listen[0], LONG).unwrap();
        daemons
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for (stopper, thread) in self.1.drain(..) {
            stopper.stop();
            thread.join().unwrap();
        }
    }
}

/// When a role is killed in a round.
fn moment(round: u64, technique: Technique) -> Duration {
    Duration::from_micros(500 + round * 9_000 + technique as u64 * 1_300)
}

#[test]
fn senders_that_are_killed_are_an_error_in_time_after_messages_that_are_whole() {
    let daemons = Daemons::start();
    let [a, b] = &daemons.0;
    let mut whole = 0;
    for node in [a, b] {
        for technique in Technique::ALL {
            for round in 0..ROUNDS {
                let session = attach(a);
                let name = format!("killed-sender-{technique}");
                let builder = Receiver::builder(&session, &name).technique(technique);
                let mut receiver = builder.pages(100 * PAGE as u64).open().unwrap();
                let role = Role::start(&format!("sender {a} {name}"), node);
                let killer = std::thread::spawn(move || {
                    std::thread::sleep(moment(round, technique));
                    drop(role);
                    Instant::now()
                });
                let (received, error) = receive_all(&mut receiver);
                let told = Instant::now();
                assert!(matches!(error, Error::SenderGone { .. }), "{technique}: {error}");
                let late = told.saturating_duration_since(killer.join().unwrap());
                assert!(late < TOLD, "{technique}: {late:?}");
                whole += received;
            }
        }
    }
    assert!(whole > 20, "{whole} messages came before");
}

#[test]
fn receivers_that_are_killed_are_an_error_in_time_and_their_successors_serve() {
    let daemons = Daemons::start();
    let [a, b] = &daemons.0;
    for node in [a, b] {
        let session = attach(node);
        for technique in Technique::ALL {
            for round in 0..ROUNDS {
                let name = format!("killed-receiver-{technique}");
                let role = Role::start(&format!("receiver {technique} {name}"), a);
                let mut sender = Sender::builder(&session, &name).node(a).connect().unwrap();
                let killer = std::thread::spawn(move || {
                    std::thread::sleep(moment(round, technique));
                    drop(role);
                    Instant::now()
                });
                let error = send_all(&mut sender, &session);
                let told = Instant::now();
                assert!(matches!(error, Error::Transfer(_) | Error::Import(_)), "{technique}: {error}");
                let late = told.saturating_duration_since(killer.join().unwrap());
                assert!(late < TOLD, "{technique}: {late:?}");
            }
        }
    }
}
