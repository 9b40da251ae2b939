//! Tests of connections to other nodes: the wire, and what a silent node costs.
//!
//! Invariant: each test drives the service itself, without a station.

use super::*;
use crate::testing::{OnEngine, engine};
use std::os::fd::AsFd;
use vmmc_nic::{AtomicOp, Dma, Engine, RegionRef, Time};
use vmmc_stream::messages::{EndRef, SocketCall};

/// Nothing is exported here.
struct NoMemory;

impl Dma for NoMemory {
    fn deposit(&mut self, _: RegionRef, _: u64, _: &[u8]) {}
    fn gather(&mut self, _: RegionRef, _: u64, _: &mut [u8]) {}
    fn copy(&mut self, _: RegionRef, _: u64, _: RegionRef, _: u64, _: u64) {}
    fn atomic(&mut self, _: RegionRef, _: u64, _: AtomicOp) -> u64 {
        0
    }
}

/// Two nodes of this machine with a session, of which the second can be silent.
struct Two {
    now: Time,
    engines: [Engine; 2],
    addresses: [SocketAddr; 2],
    silent: bool,
    /// Bytes from the first to the second one.
    bytes: usize,
}

impl Two {
    fn new() -> Two {
        let now = Time::from_nanos(1_000_000_000);
        let addresses = ["127.0.0.1:4001", "127.0.0.1:4002"].map(|at| at.parse().unwrap());
        let engines = [("b", 1), ("a", 2)].map(|(name, seed)| engine(name, seed, now));
        let mut two = Two { now, engines, addresses, silent: false, bytes: 0 };
        two.engines[0].add_peer(now, &addresses[1..]).unwrap();
        two.exchange(100);
        two
    }

    fn exchange(&mut self, milliseconds: u64) {
        let mut buf = vec![0; 65_536];
        for _ in 0..milliseconds {
            self.now = self.now + std::time::Duration::from_millis(1);
            for from in 0..2 {
                if from == 1 && self.silent {
                    continue;
                }
                self.engines[from].handle_timeout(self.now);
                while let Some(sent) = self.engines[from].poll_transmit(self.now, &mut buf, &mut NoMemory) {
                    if self.silent {
                        continue;
                    }
                    self.bytes += if from == 0 { sent.len } else { 0 };
                    let (at, to) = (self.addresses[from], &mut self.engines[1 - from]);
                    to.handle_datagram(self.now, at, &mut buf[..sent.len], &mut NoMemory);
                    while to.poll_message().is_some() {}
                }
            }
        }
    }

    /// The first node, now.
    fn node(&mut self) -> OnEngine<'_> {
        OnEngine { engine: &mut self.engines[0], now: self.now }
    }

    fn peer(&self) -> PeerRef {
        self.engines[0].message_peers().next().expect("there is a session").0
    }
}

/// The service with a client, whose node has that session.
fn service() -> Option<(Two, Sockets, Bells)> {
    let mut sockets = Sockets::new(true);
    if let Err(why) = sockets.prepare() {
        println!("SKIP {why}");
        return None;
    }
    let bells = Bells::create().unwrap();
    sockets.attach(0, std::process::id(), rustix::process::geteuid().as_raw(), bells.share().unwrap()).unwrap();
    Some((Two::new(), sockets, bells))
}

#[test]
fn offers_made_and_withdrawn_while_a_node_is_silent_leave_little_to_say_to_it() {
    let Some((mut two, mut sockets, _bells)) = service() else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let claim = vmmc_stream::claim(socket.as_fd()).unwrap();
    two.silent = true;
    for round in 0..50_000 {
        let offer = SocketCall::Offer { connection: 1, socket: claim.clone() };
        sockets.handle(two.now, 0, offer, Vec::new()).unwrap();
        if round % 5 == 0 {
            // Nobody has asked meanwhile.
            let withdraw = SocketCall::Withdraw { connection: 1, cookie: claim.cookie };
            sockets.handle(two.now, 0, withdraw, Vec::new()).unwrap();
            let offer = SocketCall::Offer { connection: 1, socket: claim.clone() };
            sockets.handle(two.now, 0, offer, Vec::new()).unwrap();
        }
        sockets.serve_between(&mut two.node());
        let withdraw = SocketCall::Withdraw { connection: 1, cookie: claim.cookie };
        sockets.handle(two.now, 0, withdraw, Vec::new()).unwrap();
        sockets.take_outbox();
        assert!(sockets.between.to_ask.len() <= sockets.offers.len(), "who has withdrawn its offer asks nothing");
    }
    two.bytes = 0;
    two.silent = false;
    let peer = two.peer();
    two.exchange(1_000);
    assert!(two.engines[0].has_peer(peer), "the session has ended");
    assert!(two.bytes < 2 * vmmc_nic::limits::MESSAGES_QUEUED_BYTES_MAX, "{} bytes", two.bytes);
    // One that was held back meanwhile is asked about.
    let offer = SocketCall::Offer { connection: 1, socket: claim };
    sockets.handle(two.now, 0, offer, Vec::new()).unwrap();
    assert!(sockets.serve_between(&mut two.node()) && sockets.between.to_ask.is_empty());
}

#[test]
fn questions_about_a_connection_while_a_node_is_silent_leave_little_to_say_to_it() {
    let Some((mut two, mut sockets, _bells)) = service() else { return };
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let own = Endpoints { network: sockets.between.network, local: at(5), remote: at(6) };
    sockets.offers.insert(own.clone(), Offer { client: 0, connection: 1, cookie: 9 });
    let offer = Offer { client: 0, connection: 1, cookie: 9 };
    let peer = two.peer();
    let id = sockets.open_link(&mut two.node(), peer, &own, &offer, 1).unwrap();
    sockets.match_offers(&mut two.node(), id, 77);
    let place = *sockets.clients[&0].ends.iter().next().expect("it was matched");
    let end: EndRef = sockets.end_ref(place);
    two.silent = true;
    for _ in 0..100_000 {
        sockets.handle(two.now, 0, SocketCall::Ended { end }, Vec::new()).unwrap();
        sockets.serve_between(&mut two.node());
    }
    two.bytes = 0;
    two.silent = false;
    two.exchange(1_000);
    assert!(two.engines[0].has_peer(peer), "the session has ended");
    assert!(two.bytes < 2 * vmmc_nic::limits::MESSAGES_QUEUED_BYTES_MAX, "{} bytes", two.bytes);
}

#[test]
fn addresses_survive_the_way_and_a_cut_message_is_none() {
    for (local, remote) in [("10.0.0.1:5", "10.0.0.2:6"), ("[2001:db8::1]:7", "[2001:db8::2]:8")] {
        let own = Endpoints { network: 9, local: local.parse().unwrap(), remote: remote.parse().unwrap() };
        let message = addresses(Kind::Accept, 77, &own);
        assert_eq!(read_addresses(&message[1..], 9), Some((77, own)));
        for cut in 1..message.len() {
            assert_eq!(read_addresses(&message[1..cut], 9), None);
        }
    }
}
