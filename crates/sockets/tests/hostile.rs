//! Clients of the sockets service that lie, and what that does to honest ones: nothing.
//!
//! Invariant: a message of a client changes only that client's own standing.

mod common;

use common::{TestNode, tcp_pair, upgraded_pair};
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use vmmc_host::channel::{ChannelError, node_socket_name};
use vmmc_host::control::{Answer, CONTROL_VERSION, Call, Reply, Request, decode, encode};
use vmmc_host::stream::Bells;
use vmmc_host::stream::messages::{OfferRefusal, Place, SocketCall, SocketNews};
use vmmc_host::{Channel, Deadline};

struct Liar(Channel);

impl Liar {
    fn connect(node: &TestNode) -> Liar {
        let uid = rustix::process::geteuid().as_raw();
        Liar(Channel::connect(&node_socket_name(uid, &node.name)).unwrap())
    }

    fn attached(node: &TestNode) -> Liar {
        let liar = Liar::connect(node);
        let bells = Bells::create().unwrap().share().unwrap();
        liar.say(SocketCall::Attach { version: CONTROL_VERSION }, &[bells.as_fd()]);
        assert!(matches!(liar.hear(), Some(SocketNews::Attached { .. })));
        liar
    }

    fn say(&self, call: SocketCall, fds: &[BorrowedFd<'_>]) {
        let request = Request { serial: 1, call: Call::Sockets(call) };
        // One that was let go cannot speak any more.
        let _ = self.0.send(&encode(&request), fds, Deadline::after(std::time::Duration::from_secs(10)));
    }

    /// The next news; none: let go.
    fn hear(&self) -> Option<SocketNews> {
        match self.0.receive(Deadline::after(std::time::Duration::from_secs(10))) {
            Ok((bytes, _)) => match decode::<Reply>(&bytes).unwrap().result {
                Ok(Answer::Sockets(news)) => Some(news),
                other => panic!("{other:?}"),
            },
            Err(ChannelError::Closed) => None,
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn sockets_that_are_no_connections_are_refused() {
    let node = TestNode::start();
    let liar = Liar::attached(&node);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (ended, peer) = tcp_pair();
    drop(peer);
    for (number, fd) in [udp.as_fd(), listener.as_fd(), unix.as_fd(), ended.as_fd()].into_iter().enumerate() {
        liar.say(SocketCall::Offer { connection: number as u64 }, &[fd]);
        let refused = SocketNews::Refused { connection: number as u64, why: OfferRefusal::NotConnected };
        assert_eq!(liar.hear(), Some(refused));
    }
}

#[test]
fn whoever_breaks_the_rules_is_let_go() {
    let node = TestNode::start();
    let (one, _two) = tcp_pair();
    let breaks: [(SocketCall, bool); 4] = [
        (SocketCall::Attach { version: CONTROL_VERSION }, false),
        (SocketCall::Bell { bell: 99 }, true),
        (SocketCall::Offer { connection: 1 }, false),
        (SocketCall::Attach { version: CONTROL_VERSION }, true),
    ];
    for (call, with_fd) in breaks {
        let liar = Liar::attached(&node);
        let fds = [one.as_fd()];
        liar.say(call.clone(), if with_fd { &fds } else { &[] });
        assert_eq!(liar.hear(), None, "{call:?}");
    }
    let liar = Liar::connect(&node);
    liar.say(SocketCall::Attach { version: CONTROL_VERSION }, &[one.as_fd()]);
    assert_eq!(liar.hear(), None, "a socket is no memory for bells");
}

#[test]
fn claims_on_the_connections_of_others_have_no_effect() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    let liar = Liar::attached(&node);
    for slab in 0..5 {
        for slot in 0..5 {
            for end in 0..4 {
                let place = Place { slab, slot, end };
                liar.say(SocketCall::Hold { places: vec![(place, 0), (place, 7)] }, &[]);
                liar.say(SocketCall::Ring { place }, &[]);
                liar.say(SocketCall::LetGo { place }, &[]);
                liar.say(SocketCall::Release { place }, &[]);
            }
        }
    }
    liar.say(SocketCall::Withdraw { connection: 3 }, &[]);
    let (stranger, _peer) = tcp_pair();
    liar.say(SocketCall::Adopt { connection: 4 }, &[stranger.as_fd()]);
    assert_eq!(liar.hear(), Some(SocketNews::Adopted { connection: 4, place: None, peer: 0 }));
    // The slot is still theirs: a new connection of the pair gets another one.
    let (three, four) = upgraded_pair(&a, &b);
    let mut got = [0; 3];
    (&one).write_all(b"one").unwrap();
    (&three).write_all(b"two").unwrap();
    (&two).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"one");
    (&four).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"two");
}

#[test]
fn a_slot_is_used_again_only_after_both_ends_gave_it_back() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let mut got = [0; 4];
    for round in 0..60u32 {
        let (one, two) = upgraded_pair(&a, &b);
        let (three, four) = upgraded_pair(&b, &a);
        (&one).write_all(&round.to_le_bytes()).unwrap();
        (&three).write_all(&(!round).to_le_bytes()).unwrap();
        drop(one);
        drop(three);
        (&two).read_exact(&mut got).unwrap();
        assert_eq!(got, round.to_le_bytes());
        (&four).read_exact(&mut got).unwrap();
        assert_eq!(got, (!round).to_le_bytes());
        assert_eq!((&two).read(&mut got).unwrap(), 0);
    }
}
