//! A hostile user of the sockets service beside an honest pair: wild but well-formed messages with
//! wild descriptors, and noise in the words of its own connections.
//!
//! The node is a process of its own. Honest exchanges have a deadline, and their content is looked
//! at; so are the node's memory and descriptors. `SEED=n` replays a run, and
//! `VMMC_HOSTILE_SECONDS=n` lets it take longer.
//!
//! Invariant: what one user does changes nothing for another one.

mod common;
#[path = "../../node/src/testing/wild.rs"]
#[allow(dead_code, clippy::type_complexity, reason = "shared with the tests of other crates")]
mod wild;

use common::{settings, tcp_pair, upgrade, upgraded_pair};
use rustix::event::EventfdFlags;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmmc_host::Channel;
use vmmc_host::channel::{ChannelError, node_socket_name};
use vmmc_host::control::{Reply, Request, decode, encode};
use vmmc_node::{Daemon, KeySource, NodeConfig, Serve};
use vmmc_sockets::{Bypass, Context, Received, Settings, Take};
use vmmc_stream::messages::{EndRef, Place, SocketCall, SocketClaim, SocketEvent};
use vmmc_stream::{BELLS, Bells, Slab, Watch, claim};
use wild::{HONEST, HOSTILE, Noise, Watched, as_user, become_user, can_be_others, descriptor, hostile_time, seed};

/// An honest exchange that takes longer was held up; one in fifty may be, by the machine.
const SLOW: Duration = Duration::from_millis(250);
const TOO_SLOW: Duration = Duration::from_secs(5);
/// What a hostile user may cost the node: memory that no client has mapped, and descriptors.
const COST_KIB_MAX: u64 = 128 << 10;
const COST_DESCRIPTORS_MAX: usize = 1_000;
/// Messages of one hostile connection.
const MESSAGES: usize = 60;
/// Connections of a crowd, and clients that hold all their ends besides the two whose they are.
const CROWD_PAIRS: usize = 1_000;
const CROWD_HOLDERS: usize = 20;
/// Time for which a crowd waits for the node, which serves it as far as its user's turns go.
const CROWD_TIME: Duration = Duration::from_secs(5);

#[test]
#[ignore = "a role of the other test"]
fn child_process() {
    let Ok(name) = std::env::var("VMMC_TEST_NODE") else { return };
    let mut config = NodeConfig::new(&name).listen("127.0.0.1:0".parse().unwrap()).key(KeySource::Plain);
    config.serve = Serve::Any;
    let daemon = Daemon::start(config).unwrap();
    println!("listens");
    daemon.run().unwrap();
}

fn start_node(name: &str) -> Watched {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--ignored", "--nocapture", "--test-threads=1"])
        .env("VMMC_TEST_NODE", name)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("listens")), "the node starts");
    Watched(child)
}

fn context(node: &str) -> Arc<Context> {
    Arc::new(Context::new(Settings { node_uid: 0, ..settings(node) }))
}

/// What the honest pair shows of itself: a claim that others may repeat.
type Shown = Mutex<Option<SocketClaim>>;

/// Exchanges over a connection that stays, and over new ones that must still be upgraded. To be
/// called by a thread that is the honest user.
fn honest(node: &str, over: &AtomicBool, shown: &Shown) {
    let (a, b) = (context(node), context(node));
    let (one, two) = upgraded_pair(&a, &b);
    // Connections that others claim before they are offered.
    let next = || {
        let pair = tcp_pair();
        *shown.lock().unwrap() = claim(pair.0.as_fd()).ok();
        pair
    };
    let mut claimed = Some(next());
    let (mut times, mut count) = (Vec::new(), 0u64);
    while !over.load(Ordering::SeqCst) || count < 50 {
        let start = Instant::now();
        count += 1;
        let mut got = [0; 8];
        (&one).write_all(&count.to_le_bytes()).unwrap();
        (&two).read_exact(&mut got).unwrap();
        assert_eq!(u64::from_le_bytes(got), count, "foreign bytes");
        if let Some(claimed) = claimed.take_if(|_| count % 16 == 0) {
            let (three, four) = upgrade(&a, &b, claimed);
            (&three).write_all(&[7; 100_000]).unwrap();
            drop(three);
            let mut rest = Vec::new();
            (&four).read_to_end(&mut rest).unwrap();
            assert!(rest == [7; 100_000], "{} bytes", rest.len());
        }
        times.push(start.elapsed());
        claimed.get_or_insert_with(next);
        std::thread::sleep(Duration::from_millis(2));
    }
    let slow = times.iter().filter(|time| **time > SLOW).count();
    let worst = times.iter().max().unwrap();
    println!("{} honest exchanges, {slow} slow, the worst {worst:?}", times.len());
    assert!(slow <= 1 + times.len() / 50, "{slow} of {} exchanges were held up", times.len());
    assert!(*worst < TOO_SLOW, "an exchange took {worst:?}");
}

/// Closes descriptors where nobody waits for it, as the closing of one that lingers may.
fn close(fds: Vec<OwnedFd>) {
    if !fds.is_empty() {
        std::thread::spawn(move || drop(fds));
    }
}

/// A client that says whatever the dice say.
struct Client {
    channel: Channel,
    _bells: Bells,
    slabs: HashMap<u64, Slab>,
    ends: Vec<EndRef>,
    processes: Vec<u32>,
}

impl Client {
    fn attach(node: &str, noise: &mut Noise) -> Option<Client> {
        let channel = Channel::connect(&node_socket_name(0, node)).ok()?;
        let bells = Bells::create().ok()?;
        let given = if noise.one_in(8) { descriptor(noise).1 } else { bells.share().ok()? };
        let client = Client { channel, _bells: bells, slabs: HashMap::new(), ends: Vec::new(), processes: Vec::new() };
        client.send(SocketCall::Attach, &[given.as_fd()]);
        close(vec![given]);
        Some(client)
    }

    /// Sends this when the node takes it, and receives from the node meanwhile. False: the node let
    /// go of the channel, or the time is over.
    fn insist(&mut self, call: &SocketCall, until: Instant) -> bool {
        while Instant::now() < until {
            self.receive();
            let request = Request { serial: 1, call: call.clone().to_call() };
            match self.channel.try_send(&encode(&request), &[]) {
                Ok(()) => return true,
                Err(ChannelError::WouldBlock) => std::thread::sleep(Duration::from_micros(200)),
                Err(_) => return false,
            }
        }
        false
    }

    /// Sends this; returns whether the channel took it.
    fn send(&self, call: SocketCall, fds: &[BorrowedFd<'_>]) -> bool {
        self.channel.try_send(&encode(&Request { serial: 1, call: call.to_call() }), fds).is_ok()
    }

    /// Takes what the node has said.
    fn receive(&mut self) {
        while let Ok((bytes, mut fds)) = self.channel.try_receive() {
            let Ok(Reply { result: Ok(answer), .. }) = decode(&bytes) else { continue };
            let Some(event) = SocketEvent::of(&answer) else { continue };
            match event {
                SocketEvent::Attached { process } | SocketEvent::Peer { process } => self.processes.push(process),
                SocketEvent::Slab { slab, shape } => {
                    self.slabs.extend(fds.pop().and_then(|fd| Slab::map(fd, shape).ok()).map(|mapped| (slab, mapped)));
                }
                SocketEvent::Matched { end, .. } => self.ends.push(end),
                _ => {}
            }
        }
    }

    /// Noise in the words of its own connections, and of all others in the same memory.
    fn scribble(&self, noise: &mut Noise) {
        let Some(slab) = self.slabs.values().next() else { return };
        let Some(slot) = slab.slot(noise.next() as u32 % slab.shape().slots) else { return };
        let words = slot.words();
        let direction = &words.directions[noise.below(2)];
        let process = if noise.one_in(2) { noise.pick(&[1, u32::MAX]) } else { noise.next() as u32 };
        let near = self.processes.last().map_or(process, |own| own.wrapping_sub(noise.next() as u32 % 20));
        let watch =
            Watch { process: noise.pick(&[process, near]), bell: noise.next() as u32, token: noise.next() as u32 };
        let long: [&AtomicU64; 5] =
            [&direction.tail, &direction.head, &direction.head_seen, &direction.ring_began, &direction.copies];
        noise.pick(&long).store(noise.number(), Ordering::SeqCst);
        let watches = if noise.one_in(2) { &direction.receiver_watch } else { &direction.sender_watch };
        watches[noise.below(4)].store(watch.to_word(), Ordering::SeqCst);
        let short = [
            &direction.sender_flags,
            &direction.receiver_flags,
            &direction.sender_lock,
            &direction.receiver_lock,
            &direction.large_granted,
            &direction.kernel_sends,
            &words.between,
            &words.broken,
            &words.ends[0].holders,
            &words.ends[1].hint,
        ];
        noise.pick(&short).store(noise.number() as u32, Ordering::SeqCst);
        words.secret.store(noise.next(), Ordering::Relaxed);
    }

    /// One of its own, or any, with the secret that stands in its words if it has them mapped.
    fn end(&self, noise: &mut Noise) -> EndRef {
        if let Some(end) = self.ends.get(noise.below(self.ends.len() + 1)) {
            return *end;
        }
        let place = Place { slab: noise.number() % 64, slot: noise.next() as u32 % 40, end: noise.next() as u8 % 3 };
        let slot = self.slabs.get(&place.slab).and_then(|slab| slab.slot(place.slot));
        let secret = slot.map_or(noise.next(), |slot| slot.words().secret.load(Ordering::Relaxed));
        EndRef { place, secret }
    }

    fn call(&self, noise: &mut Noise, claims: &[SocketClaim]) -> SocketCall {
        let end = self.end(noise);
        let connection = noise.next() % 20;
        match noise.below(14) {
            0 | 1 => SocketCall::Bell { bell: noise.next() as u32 % (BELLS + 2) },
            2..=4 => {
                let mut socket = claims[noise.below(claims.len())].clone();
                match noise.below(8) {
                    0 => socket.cookie = noise.number(),
                    1 => socket.interface = noise.next() as u32,
                    2 => std::mem::swap(&mut socket.local, &mut socket.remote),
                    3 => socket.local = "[::ffff:1.2.3.4]:5".parse().unwrap(),
                    _ => {}
                }
                SocketCall::Offer { connection, socket }
            }
            5 => SocketCall::Withdraw { connection, cookie: claims[noise.below(claims.len())].cookie },
            6 => SocketCall::Adopt { connection, cookie: claims[noise.below(claims.len())].cookie },
            7 => SocketCall::Hold { ends: vec![end; noise.pick(&[1, 1, 2, 500, 600])] },
            8 => SocketCall::LetGo { end },
            9 => SocketCall::Release { end },
            10 | 11 => SocketCall::Grow { end },
            12 => SocketCall::Ring { end },
            _ => SocketCall::Ended { end },
        }
    }
}

fn full_counter() -> Option<OwnedFd> {
    let fd = rustix::event::eventfd(0, EventfdFlags::empty()).ok()?;
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).ok().map(|_| fd)
}

/// Two clients with connections between them, and what they say until they are let go.
fn hostile_round(node: &str, noise: &mut Noise, shown: &Shown) -> usize {
    let pairs: Vec<(TcpStream, TcpStream)> = (0..3).map(|_| tcp_pair()).collect();
    let mut claims: Vec<SocketClaim> =
        pairs.iter().flat_map(|(one, two)| [claim(one.as_fd()), claim(two.as_fd())]).filter_map(Result::ok).collect();
    for claim in &mut claims {
        // The other users of this test are threads of this process, which does hold these.
        claim.descriptor = -1;
    }
    claims.extend(shown.lock().unwrap().clone().map(|theirs| SocketClaim { descriptor: -1, ..theirs }));
    let mut clients: Vec<Client> = (0..2).filter_map(|_| Client::attach(node, noise)).collect();
    let mut said = 0;
    for step in 0..MESSAGES {
        for client in &mut clients {
            client.receive();
            client.scribble(noise);
            let call = match step {
                0..3 => {
                    SocketCall::Offer { connection: 100 + step as u64, socket: claims[2 * step + said % 2].clone() }
                }
                _ => client.call(noise, &claims),
            };
            let is_bell = matches!(call, SocketCall::Bell { .. });
            let own: Vec<OwnedFd> = match noise.below(16) {
                0 => (0..1 + noise.below(3)).map(|_| descriptor(noise).1).collect(),
                1..6 if is_bell => full_counter().into_iter().collect(),
                _ if is_bell => rustix::event::eventfd(0, EventfdFlags::empty()).into_iter().collect(),
                _ => Vec::new(),
            };
            let fds: Vec<BorrowedFd<'_>> = own.iter().map(AsFd::as_fd).collect();
            let was_sent = client.send(call, if step < 3 { &[] } else { &fds });
            drop(fds);
            close(own);
            if !was_sent {
                *client = match Client::attach(node, noise) {
                    Some(new) => new,
                    None => return said,
                };
            }
            said += 1;
        }
        if noise.one_in(8) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    said
}

/// Very many connections, each of whose ends very many clients hold until all of them leave at
/// once. Gives the number of ends that were held.
fn crowd(node: &str) -> usize {
    let until = Instant::now() + CROWD_TIME;
    let pairs: Vec<(TcpStream, TcpStream)> = (0..CROWD_PAIRS).map(|_| tcp_pair()).collect();
    // With proper bells: no die of this one says otherwise.
    let mut sober = Noise::new(1);
    let mut attach = || loop {
        if let Some(client) = Client::attach(node, &mut sober) {
            return client;
        }
        assert!(Instant::now() < until, "the node turns its clients away");
    };
    let mut owners = [attach(), attach()];
    for (number, (one, two)) in pairs.iter().enumerate() {
        for (client, socket) in owners.iter_mut().zip([one, two]) {
            let Ok(socket) = claim(socket.as_fd()) else { continue };
            let socket = SocketClaim { descriptor: -1, ..socket };
            client.insist(&SocketCall::Offer { connection: number as u64, socket }, until);
        }
    }
    while owners.iter().any(|client| client.ends.len() < CROWD_PAIRS) && Instant::now() < until {
        owners.iter_mut().for_each(Client::receive);
        std::thread::sleep(Duration::from_millis(1));
    }
    let ends: Vec<EndRef> = owners.iter().flat_map(|client| client.ends.iter().copied()).collect();
    let mut holders: Vec<Client> = (0..CROWD_HOLDERS).map(|_| attach()).collect();
    for ends in ends.chunks(500) {
        for client in &mut holders {
            client.insist(&SocketCall::Hold { ends: ends.to_vec() }, until);
        }
    }
    drop(pairs);
    ends.len()
}

#[test]
fn wild_messages_with_wild_descriptors_hold_no_honest_pair_up() {
    if !can_be_others() {
        return;
    }
    let name = format!("sockwild{}", std::process::id());
    // A crowd has two sockets for each of its connections.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let all = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, all).unwrap();
    let mut node = start_node(&name);
    let (memory, descriptors) = (node.memory_kib(), node.descriptors());
    let (over, shown) = (AtomicBool::new(false), Shown::default());
    let seed = seed();
    std::thread::scope(|scope| {
        let pair = scope.spawn(|| {
            become_user(HONEST);
            honest(&name, &over, &shown);
        });
        let wild = scope.spawn(|| {
            become_user(HOSTILE);
            let (mut noise, start) = (Noise::new(seed), Instant::now());
            let (mut rounds, mut said) = (0, 0);
            let held = crowd(&name);
            println!("{held} ends were held by {CROWD_HOLDERS} clients besides");
            while start.elapsed() < hostile_time() {
                if rounds % 200 == 199 {
                    crowd(&name);
                }
                said += hostile_round(&name, &mut noise, &shown);
                rounds += 1;
            }
            println!("{said} wild messages in {rounds} rounds");
        });
        let ended = wild.join();
        over.store(true, Ordering::SeqCst);
        pair.join().unwrap();
        ended.unwrap();
    });
    assert!(node.is_alive(), "the node has ended");
    // What lingered is closed meanwhile, by threads of the node.
    let end = Instant::now() + Duration::from_secs(30);
    while node.descriptors().saturating_sub(descriptors) >= COST_DESCRIPTORS_MAX && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    let cost = node.memory_kib().saturating_sub(memory);
    let more = node.descriptors().saturating_sub(descriptors);
    println!("the node has {cost} KiB and {more} descriptors more than at the start");
    assert!(cost < COST_KIB_MAX && more < COST_DESCRIPTORS_MAX, "{cost} KiB and {more} descriptors");
}

#[test]
fn a_connection_that_is_passed_to_another_user_goes_on_by_the_kernel() {
    if !can_be_others() {
        return;
    }
    let name = format!("sockpassed{}", std::process::id());
    let _node = start_node(&name);
    let (one, two) = as_user(HONEST, || {
        let (a, b) = (context(&name), context(&name));
        let (one, two) = upgraded_pair(&a, &b);
        (&one).write_all(b"from before, ").unwrap();
        // What the library does before a descriptor goes out in a message.
        two.connection().pin_to_kernel(&b, two.socket().as_fd(), Bypass::Leaked);
        two.connection().passed();
        (&one).write_all(b"and after").unwrap();
        (one, two)
    });
    as_user(HOSTILE, || {
        let c = context(&name);
        let socket = two.socket();
        let adopted = c.adopt(socket.as_fd());
        assert!(adopted.is_plain(), "its memory is another user's");
        let mut got = [0; 22];
        let mut buffers = [std::io::IoSliceMut::new(&mut got)];
        match adopted.recv(&c, socket.as_fd(), &mut buffers, Take::Take) {
            Received::Kernel(call) => drop(call),
            other => panic!("{other:?}"),
        }
        socket.set_read_timeout(Some(TOO_SLOW)).unwrap();
        { socket }.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"from before, and after");
    });
    drop(one);
}
