//! Clients of the sockets service that lie, and what that does to honest ones: nothing.
//!
//! Invariant: a message of a client changes only that client's own standing.

mod common;

use common::{TestNode, tcp_pair, upgraded_pair};
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use vmmc_host::channel::{ChannelError, Listener, node_socket_name};
use vmmc_host::control::{Answer, CONTROL_VERSION, Call, Refusal, RefusalCode, Reply, Request, decode, encode};
use vmmc_host::{Channel, Deadline};
use vmmc_sockets::{Bypass, Context, Stream};
use vmmc_stream::Bells;
use vmmc_stream::messages::{
    EndRef, OfferRefusal, Place, SERVICE, SocketCall, SocketClaim, SocketEvent, SocketList, SocketQuestion, VERSION,
};

fn soon() -> Deadline {
    Deadline::after(std::time::Duration::from_secs(10))
}

struct Liar(Channel);

impl Liar {
    fn connect(node: &TestNode) -> Liar {
        let uid = rustix::process::geteuid().as_raw();
        Liar(Channel::connect(&node_socket_name(uid, &node.name)).unwrap())
    }

    fn attached(node: &TestNode) -> Liar {
        let liar = Liar::connect(node);
        let bells = Bells::create().unwrap().share().unwrap();
        liar.send(SocketCall::Attach, &[bells.as_fd()]);
        assert!(matches!(liar.receive(), Some(SocketEvent::Attached { .. })));
        liar
    }

    fn send(&self, call: SocketCall, fds: &[BorrowedFd<'_>]) {
        let request = Request { serial: 1, call: call.to_call() };
        // One that was let go cannot speak any more.
        let _ = self.0.send(&encode(&request), fds, soon());
    }

    /// The next event; none: refused, or let go.
    fn receive(&self) -> Option<SocketEvent> {
        match self.0.receive(soon()) {
            Ok((bytes, _)) => match decode::<Reply>(&bytes).unwrap().result {
                Ok(answer) => Some(SocketEvent::of(&answer).unwrap()),
                Err(_) => None,
            },
            Err(ChannelError::Closed) => None,
            Err(other) => panic!("{other}"),
        }
    }
}

fn claim_of(local: std::net::SocketAddr, remote: std::net::SocketAddr, fd: BorrowedFd<'_>) -> SocketClaim {
    let cookie = vmmc_stream::cookie(fd).unwrap();
    SocketClaim { local, remote, interface: 0, cookie, descriptor: std::os::fd::AsRawFd::as_raw_fd(&fd) }
}

#[test]
fn sockets_that_are_no_connections_are_refused() {
    let node = TestNode::start();
    let liar = Liar::attached(&node);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(udp.local_addr().unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (ended, peer) = tcp_pair();
    let (local, remote) = (ended.local_addr().unwrap(), ended.peer_addr().unwrap());
    drop(peer);
    let at = listener.local_addr().unwrap();
    let here = udp.local_addr().unwrap();
    let alive = tcp_pair();
    let own = claim_of(alive.0.local_addr().unwrap(), alive.0.peer_addr().unwrap(), alive.0.as_fd());
    let claims = [
        claim_of(here, here, udp.as_fd()),
        claim_of(at, "0.0.0.0:0".parse().unwrap(), listener.as_fd()),
        claim_of(local, remote, ended.as_fd()),
        SocketClaim { cookie: 0, ..own.clone() },
        SocketClaim { cookie: u64::MAX, ..own.clone() },
        SocketClaim { cookie: own.cookie + 1, ..own.clone() },
        SocketClaim { local: own.remote, remote: own.local, ..own.clone() },
        SocketClaim { local: "[::1]:1".parse().unwrap(), ..own.clone() },
    ];
    for (number, socket) in claims.into_iter().enumerate() {
        liar.send(SocketCall::Offer { connection: number as u64, socket }, &[]);
        let refused = SocketEvent::Refused { connection: number as u64, why: OfferRefusal::NotConnected };
        assert_eq!(liar.receive(), Some(refused));
    }
}

#[test]
fn bells_that_could_end_the_node_or_be_written_by_others_are_refused() {
    use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags};
    let node = TestNode::start();
    let right = Bells::create().unwrap().share().unwrap();
    let len = rustix::fs::fstat(&right).unwrap().st_size as u64;
    for (flags, mode) in [(MemfdFlags::HUGETLB, 0o444), (MemfdFlags::empty(), 0o666)] {
        let fd = rustix::fs::memfd_create("bells", flags | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode)).unwrap();
        rustix::fs::ftruncate(&fd, if flags.is_empty() { len } else { 2 << 20 }).unwrap();
        if flags.is_empty() {
            rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
        }
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let liar = Liar::connect(&node);
        liar.send(SocketCall::Attach, &[fd.as_fd()]);
        assert_eq!(liar.receive(), None, "{flags:?} with mode {mode:o}");
    }
    assert!(Liar::attached(&node).0.try_receive().is_err(), "the node goes on");
}

#[test]
fn whoever_breaks_the_rules_is_let_go() {
    let node = TestNode::start();
    let (one, _two) = tcp_pair();
    let breaks: [(SocketCall, bool); 5] = [
        (SocketCall::Attach, false),
        (SocketCall::Bell { bell: 99 }, true),
        (SocketCall::Bell { bell: 1 }, false),
        (SocketCall::Bell { bell: 1 }, true),
        (SocketCall::Attach, true),
    ];
    for (call, with_fd) in breaks {
        let liar = Liar::attached(&node);
        let fds = [one.as_fd()];
        liar.send(call.clone(), if with_fd { &fds } else { &[] });
        assert_eq!(liar.receive(), None, "{call:?}");
    }
    let liar = Liar::connect(&node);
    liar.send(SocketCall::Attach, &[one.as_fd()]);
    assert_eq!(liar.receive(), None, "a socket is no memory for bells");
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
                liar.send(SocketCall::Hold { ends: [0, 7].map(|secret| EndRef { place, secret }).to_vec() }, &[]);
                let end = EndRef { place, secret: 7 };
                liar.send(SocketCall::Ring { end }, &[]);
                liar.send(SocketCall::LetGo { end }, &[]);
                liar.send(SocketCall::Release { end }, &[]);
            }
        }
    }
    liar.send(SocketCall::Withdraw { connection: 3, cookie: 3 }, &[]);
    let (stranger, _peer) = tcp_pair();
    let cookie = vmmc_stream::cookie(stranger.as_fd()).unwrap();
    liar.send(SocketCall::Adopt { connection: 4, cookie }, &[]);
    assert_eq!(liar.receive(), Some(SocketEvent::Adopted { connection: 4, end: None, other_user: false, peer: 0 }));
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

#[test]
fn a_library_of_another_version_is_refused_and_listed() {
    let node = TestNode::start();
    let liar = Liar::connect(&node);
    let bells = Bells::create().unwrap().share().unwrap();
    let call = Call::Service { service: SERVICE, version: VERSION + 1, message: encode(&SocketCall::Attach) };
    liar.0.send(&encode(&Request { serial: 1, call }), &[bells.as_fd()], soon()).unwrap();
    let (bytes, _) = liar.0.receive(soon()).unwrap();
    let refusal = decode::<Reply>(&bytes).unwrap().result.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Version, "{}", refusal.message);
    let lister = Liar::connect(&node).0;
    let ask = |call: Call| {
        lister.send(&encode(&Request { serial: 1, call }), &[], soon()).unwrap();
        decode::<Reply>(&lister.receive(soon()).unwrap().0).unwrap().result.unwrap()
    };
    ask(Call::Attach { version: CONTROL_VERSION });
    let question = Call::Ask { service: SERVICE, version: VERSION, message: SocketQuestion::List.to_bytes() };
    let Answer::Service { message } = ask(question) else { panic!("a list") };
    let SocketList { sockets, total } = decode(&message).unwrap();
    assert_eq!((total, sockets.len()), (1, 1));
    assert_eq!((sockets[0].pid, sockets[0].path.as_str()), (std::process::id(), "kernel"));
    assert!(sockets[0].reason.contains(&format!("version {}", VERSION + 1)), "{}", sockets[0].reason);
}

#[test]
fn a_node_of_another_version_is_the_reason_until_one_of_ours_takes_its_place() {
    let name = format!("refuses{}", std::process::id());
    let listener = Listener::reserve(&node_socket_name(rustix::process::geteuid().as_raw(), &name)).unwrap();
    listener.listen().unwrap();
    let context = Arc::new(Context::new(common::settings(&name)));
    let (one, two) = tcp_pair();
    let (one, two) = (Stream::new(&context, one), Stream::new(&context, two));
    let exchange_until = |what: &str, holds: &dyn Fn() -> bool| {
        let start = std::time::Instant::now();
        while !holds() {
            assert!(start.elapsed().as_secs() < 20, "{what}: {:?} {:?}", one.describe(), two.describe());
            for (from, to) in [(&one, &two), (&two, &one)] {
                let (mut from, mut to) = (from, to);
                from.write_all(b"x").unwrap();
                to.read_exact(&mut [0]).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    let accepted = std::cell::RefCell::new(None);
    exchange_until("the node is asked", &|| {
        *accepted.borrow_mut() = listener.accept().ok();
        accepted.borrow().is_some()
    });
    let channel = accepted.into_inner().unwrap();
    assert!(channel.receive(soon()).is_ok(), "it attaches");
    let refusal = Refusal { code: RefusalCode::Version, message: "another release".into() };
    channel.send(&encode(&Reply { serial: 1, result: Err(refusal) }), &[], soon()).unwrap();
    let says = |reason: Bypass| [&one, &two].iter().all(|s| s.describe().reason == Some(reason));
    exchange_until("both say why", &|| says(Bypass::OtherVersion));
    drop((channel, listener));
    let _node = TestNode::start_named(name);
    exchange_until("both are upgraded", &|| [&one, &two].iter().all(|s| s.describe().upgraded));
}
