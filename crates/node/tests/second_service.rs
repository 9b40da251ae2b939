//! A second service in a node needs nothing of the station, of the boundary or of the engine: one
//! that counts, for processes of two nodes.
//!
//! Invariant: this file uses what any other crate could use.

mod common;

use common::raw;
use common::{connect, nap};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use vmmc_host::Channel;
use vmmc_host::control::{Answer, Call, Refusal, RefusalCode, Reply, Request, decode, encode};
use vmmc_nic::PeerRef;
use vmmc_node::{Daemon, KeySource, NodeConfig, Stopper};
use vmmc_service::{About, Client, Figure, Misbehaved, Node, Service};

const ABOUT: About = About { id: 900, version: 3, name: "tally", descriptors_per_client: 0 };

/// Adds up what its clients send, and tells all of them, on every node, what it comes to.
#[derive(Default)]
struct Tally {
    sum: u64,
    clients: Vec<usize>,
}

impl Tally {
    fn add(&mut self, node: &mut dyn Node, message: &[u8]) -> Result<(), Misbehaved> {
        let number = <[u8; 8]>::try_from(message).map_err(|_| Misbehaved)?;
        self.sum = self.sum.wrapping_add(u64::from_le_bytes(number));
        let sum = self.sum.to_le_bytes();
        self.clients.iter().for_each(|client| node.send(*client, sum.to_vec(), Vec::new()));
        Ok(())
    }
}

impl Service for Tally {
    fn about(&self) -> About {
        ABOUT
    }
    fn join(
        &mut self,
        _: &mut dyn Node,
        client: Client,
        message: &[u8],
        _: Vec<OwnedFd>,
    ) -> Result<Result<(), Misbehaved>, Refusal> {
        if message == b"closed" {
            return Err(Refusal { code: RefusalCode::NotPermitted, message: "come later".into() });
        }
        self.clients.push(client.index);
        Ok(Ok(()))
    }
    fn call(&mut self, node: &mut dyn Node, _: Client, message: &[u8], _: Vec<OwnedFd>) -> Result<(), Misbehaved> {
        self.add(node, message)?;
        for (peer, _) in node.peers() {
            node.send_message(peer, &[message]);
        }
        Ok(())
    }
    fn ask(&self, _: &dyn Node, _: &[u8]) -> Result<Vec<u8>, Misbehaved> {
        Ok(self.sum.to_le_bytes().to_vec())
    }
    fn last_message(
        &mut self,
        node: &mut dyn Node,
        client: Client,
        said: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Misbehaved> {
        self.call(node, client, said, fds)
    }
    fn gone(&mut self, _: &mut dyn Node, client: Client) {
        self.clients.retain(|index| *index != client.index);
    }
    fn message(&mut self, node: &mut dyn Node, _: PeerRef, message: &[u8]) -> Result<(), Misbehaved> {
        self.add(node, message)
    }
    fn figures(&self) -> Vec<Figure> {
        vec![Figure { name: "tally_sum", help: "What it comes to.", value: self.sum }]
    }
}

/// A daemon in a thread, which ends with this.
struct Running {
    name: String,
    address: std::net::SocketAddr,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(name: &str, key: &std::path::Path, peer: Option<std::net::SocketAddr>) -> Running {
        let name = format!("tally-{name}-{}", std::process::id());
        let mut config = NodeConfig::new(&name).listen("127.0.0.1:0".parse().unwrap());
        config = config.key(KeySource::File(key.to_path_buf()));
        config.handle_signals = false;
        config.peers.extend(peer.map(|peer| vec![peer]));
        let (ready, started) = std::sync::mpsc::channel();
        // A daemon stays in the thread that made it.
        let thread = std::thread::spawn(move || {
            let mut daemon = Daemon::start(config).unwrap();
            daemon.add_service(Box::new(Tally::default()));
            ready.send((daemon.running().addresses[0], daemon.stopper())).unwrap();
            daemon.run().unwrap();
        });
        let (address, stopper) = started.recv().unwrap();
        Running { name, address, stopper, thread: Some(thread) }
    }

    fn connect(&self) -> Channel {
        let uid = rustix::process::geteuid().as_raw();
        raw::wait(&nap, || connect(uid, &self.name).ok())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

fn send(to: &Channel, version: u16, message: &[u8]) {
    let call = Call::Service { service: ABOUT.id, version, message: message.to_vec() };
    to.try_send(&encode(&Request { serial: 1, call }), &[]).unwrap();
}

fn receive(from: &Channel) -> Result<Answer, Refusal> {
    let (bytes, _) = raw::wait(&nap, || from.try_receive().ok());
    decode::<Reply>(&bytes).unwrap().result
}

fn sum(from: &Channel) -> u64 {
    let Ok(Answer::Service { message }) = receive(from) else { panic!("no sum") };
    u64::from_le_bytes(message.try_into().unwrap())
}

#[test]
fn a_service_serves_processes_of_two_nodes_without_a_line_in_either() {
    let key = std::env::temp_dir().join(format!("vmmc-tally-{}.key", std::process::id()));
    std::fs::write(&key, format!("{}\n", "7b".repeat(32))).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let one = Running::start("one", &key, None);
    let two = Running::start("two", &key, Some(one.address));
    let [near, other, far] = [one.connect(), one.connect(), two.connect()];
    // Whoever hears what it has said itself has joined, so that it hears what others say from then
    // on.
    send(&other, ABOUT.version, b"hello");
    send(&other, ABOUT.version, &0u64.to_le_bytes());
    assert_eq!(sum(&other), 0);
    send(&near, ABOUT.version, b"hello");
    send(&far, ABOUT.version, b"hello");
    // The session between the nodes takes a moment; until then what is said stays on one node.
    let mut all = 0u64;
    raw::wait(&nap, || {
        send(&near, ABOUT.version, &1u64.to_le_bytes());
        all += 1;
        assert_eq!((sum(&near), sum(&other)), (all, all));
        far.try_receive().ok()
    });
    send(&far, ABOUT.version, &1_000u64.to_le_bytes());
    assert_eq!(sum(&near), all + 1_000);

    // The node itself refuses other versions, other services, and questions of strangers.
    for (service, version, text) in [(ABOUT.id, 4, "version 4 of tally"), (901, 1, "no service of number 901")] {
        let call = Call::Service { service, version, message: Vec::new() };
        let client = one.connect();
        client.try_send(&encode(&Request { serial: 1, call }), &[]).unwrap();
        let refusal = receive(&client).unwrap_err();
        assert!(refusal.message.contains(text), "{}", refusal.message);
    }
    let refused = one.connect();
    send(&refused, ABOUT.version, b"closed");
    assert_eq!(receive(&refused).unwrap_err().message, "come later");
    // A client that breaks its rules loses the connection, and nobody else notices.
    send(&other, ABOUT.version, b"three");
    raw::wait(&nap, || matches!(other.try_receive(), Err(vmmc_host::channel::ChannelError::Closed)).then_some(()));
    send(&near, ABOUT.version, &1u64.to_le_bytes());
    assert_eq!(sum(&near), all + 1_001);

    // Its figures and answers reach any client that asks the node.
    let asker = one.connect();
    let call = Call::Attach { version: vmmc_host::control::CONTROL_VERSION };
    asker.try_send(&encode(&Request { serial: 1, call }), &[]).unwrap();
    receive(&asker).unwrap();
    let call = Call::Ask { service: ABOUT.id, version: ABOUT.version, message: Vec::new() };
    asker.try_send(&encode(&Request { serial: 2, call }), &[]).unwrap();
    assert_eq!(sum(&asker), all + 1_001);
    asker.try_send(&encode(&Request { serial: 3, call: Call::Info { details: false } }), &[]).unwrap();
    let Ok(Answer::Info(info)) = receive(&asker) else { panic!("no description") };
    assert!(info.figures.iter().any(|figure| figure.name == "tally_sum" && figure.value == all + 1_001));
    let _ = std::fs::remove_file(&key);
}
