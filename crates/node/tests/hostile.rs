//! A hostile user beside an honest pair, on a real daemon of root's: scripted attacks, and a
//! generator of wild calls with wild descriptors.
//!
//! Honest exchanges have a deadline ([`common::SLOW`]), and their content is checked; so are the
//! daemon's memory and descriptors. `SEED=n` replays a run, and `VMMC_HOSTILE_SECONDS=n` lets it
//! take longer.

mod common;

use common::raw::{self, LONG, Raw};
use common::wild::{self, HONEST, HOSTILE, Noise, as_user, become_user, can_be_others};
use common::{Honest, Node, Over, TOO_SLOW, VMMCD, ask, attach_call, beside, connect, nap, turn};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmmc_host::channel::{ChannelError, Listener, node_socket_name};
use vmmc_host::control::ExportKind;
use vmmc_host::control::{
    Access, Answer, CONTROL_VERSION, Call, Owner, PageRun, PinRun, Refusal, RefusalCode, Reply, Request, What, decode,
    encode,
};
use vmmc_host::limits::REGIONS_PER_PROCESS_MAX;
use vmmc_host::ring::{Producer, RegionWords};
use vmmc_host::wait::Deadline;
use vmmc_host::{AttachArea, Channel, Protection, Region};
use vmmc_nic::Rights;
use vmmc_node::{KeySource, NodeConfig, RunError, Serve, StartError};
use vmmc_stream::messages::{SERVICE, SocketCall, SocketQuestion, VERSION};

/// Far longer than any test: a thread that waits for this waits for ever.
const LINGER: Duration = Duration::from_secs(600);
#[test]
fn a_private_node_serves_its_user_and_root_and_tells_others_what_to_do() {
    if !can_be_others() {
        return;
    }
    const OTHER: u32 = HOSTILE + 1;
    for (serve, all) in [(Serve::ByOwner, false), (Serve::Users(vec![HOSTILE]), false), (Serve::Any, true)] {
        let name = format!("private-{}-{}", std::process::id(), serve);
        let name = name.replace(',', "-");
        let told = serve != Serve::ByOwner;
        let (stopper, thread) = {
            let (send, receive) = std::sync::mpsc::channel();
            let mut config = NodeConfig::new(&name).listen("127.0.0.1:0".parse().unwrap()).key(KeySource::Plain);
            config.serve = serve;
            let thread = std::thread::spawn(move || {
                become_user(HONEST);
                let daemon = vmmc_node::Daemon::start(config).unwrap();
                send.send(daemon.stopper()).unwrap();
                daemon.run().unwrap();
            });
            (receive.recv().unwrap(), thread)
        };
        let calls = || {
            let bells = vmmc_stream::Bells::create().unwrap().share().unwrap();
            [
                (attach_call(), None),
                (Call::Info { details: true }, None),
                (Call::Stop, None),
                (Call::Ask { service: SERVICE, version: VERSION, message: SocketQuestion::List.to_bytes() }, None),
                (Call::Ping { node: "other".into(), timeout_ms: 1 }, None),
                (SocketCall::Attach.to_call(), Some(bells)),
            ]
        };
        let attaches =
            |uid| as_user(uid, || ask(&connect(HONEST, &name).unwrap(), attach_call(), &[]).unwrap().map(drop));
        assert_eq!((attaches(HONEST), attaches(0)), (Ok(()), Ok(())));
        assert_eq!(attaches(HOSTILE).is_ok(), told);
        assert_eq!(attaches(OTHER).is_ok(), all);
        if !told {
            as_user(HOSTILE, || {
                for (call, fd) in calls() {
                    let channel = connect(HONEST, &name).unwrap();
                    let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
                    let refusal = ask(&channel, call.clone(), &fds).unwrap().expect_err("it is served");
                    assert_eq!(refusal.code, RefusalCode::NotPermitted, "{call:?}");
                    assert!(refusal.message.contains(&format!("--serve {HOSTILE}")), "{refusal}");
                    assert_eq!(channel.receive(Deadline::after(LONG)).unwrap_err(), ChannelError::Closed);
                }
            });
        }
        stopper.stop();
        thread.join().unwrap();
    }
}

#[test]
fn a_start_under_a_name_that_a_stranger_holds_says_who_it_is() {
    if !can_be_others() {
        return;
    }
    let _turn = turn();
    let name = format!("held-{}", std::process::id());
    let stranger = as_user(HOSTILE, || Listener::bind(&node_socket_name(HONEST, &name)).unwrap());
    let config = NodeConfig::new(&name).listen("127.0.0.1:0".parse().unwrap()).key(KeySource::Plain);
    let why = format!("process {} of user {HOSTILE}", std::process::id());
    as_user(HONEST, || {
        let error = vmmc_node::Daemon::start(config.clone()).map(drop).unwrap_err();
        assert!(matches!(error, RunError::NameHeld { uid: HONEST, holder: HOSTILE, .. }), "{error}");
        assert!(error.to_string().contains(&why), "{error}");
        // In the background too, where a stranger must not be taken for the node that was started.
        match vmmc_node::start_detached(std::path::Path::new(VMMCD), &config) {
            Err(StartError::Execute { why, .. }) => println!("SKIP: another user cannot run the daemon: {why}"),
            other => {
                assert!(matches!(&other, Err(StartError::Ended { stderr, .. }) if stderr.contains(&why)), "{other:?}")
            }
        }
    });
    drop(stranger);
    as_user(HONEST, || vmmc_node::Daemon::start(config).map(drop)).unwrap();
}

#[test]
fn replies_that_nobody_reads_cost_a_bounded_amount_and_hold_up_nobody() {
    if !can_be_others() {
        return;
    }
    let mut node = Node::start("replies", None);
    let name = node.name.clone();
    beside(&mut node, || {
        let channels: Vec<Channel> = (0..20).map(|_| connect(0, &name).unwrap()).collect();
        for channel in &channels {
            let bytes = encode(&Request { serial: 1, call: attach_call() });
            channel.send(&bytes, &[], Deadline::after(LONG)).unwrap();
        }
        let end = Instant::now() + Duration::from_secs(2);
        let mut sent = 0u64;
        while Instant::now() < end {
            for (at, channel) in channels.iter().enumerate() {
                let call = match at % 3 {
                    0 => Call::Info { details: true },
                    1 => Call::Ping { node: "x".repeat(60_000), timeout_ms: 1 },
                    _ => Raw::import_call(None, "nobody", Rights::READ),
                };
                sent += u64::from(channel.try_send(&encode(&Request { serial: 1, call }), &[]).is_ok());
            }
        }
        println!("{sent} requests were taken");
        // What it asks while nothing is read waits in its own socket. Some of it comes when it is
        // read.
        let (bytes, _) = channels[0].receive(Deadline::after(LONG)).unwrap();
        decode::<Reply>(&bytes).unwrap();
    });
}

#[test]
fn a_user_that_takes_all_it_gets_locks_nobody_out() {
    if !can_be_others() {
        return;
    }
    let mut node = Node::start("shares", None);
    let name = node.name.clone();
    let before = node.daemon.descriptors();
    beside(&mut node, || {
        // Processes and connections, until it is told that it has its share.
        let mut processes = Vec::new();
        let refusal = loop {
            let channel = Channel::connect(&node_socket_name(0, &name)).unwrap();
            match ask(&channel, attach_call(), &[]).unwrap() {
                Ok(_) => processes.push(channel),
                Err(refusal) => break refusal,
            }
        };
        println!("{} processes: {refusal}", processes.len());
        assert_eq!(refusal.code, RefusalCode::TableFull);
        assert!(refusal.message.contains("its share"), "{refusal}");
        assert!((100..=128).contains(&processes.len()), "{}", processes.len());
        // Connections that say nothing: some of so many are let go at once.
        let idle: Vec<_> = (0..600).filter_map(|_| connect(0, &name).ok()).collect();
        let at_once = Deadline::after(Duration::from_secs(2));
        let gone = |channel: &&Channel| matches!(channel.receive(at_once), Err(ChannelError::Closed));
        let gone = idle.iter().rev().take(100).filter(gone).count();
        println!("{gone} of the last 100 of {} connections were let go", idle.len());
        assert!(gone > 50, "{gone}");
        drop(idle);
        // Waiting imports: of names, and by addresses that nobody answers from.
        for (at, channel) in processes.iter().enumerate().take(100) {
            for call in 0..120u16 {
                let node = (call % 3 == 0).then(|| format!("127.9.{at}.{}:9", call + 1));
                let what = What::Name(format!("nobody-{at}-{call}"));
                let call = Call::Import {
                    node,
                    what,
                    owner: Owner::default(),
                    rights: Rights::READ.bits(),
                    wait: true,
                    timeout_ms: 20_000,
                    own_order: false,
                };
                let _ = channel.try_send(&encode(&Request { serial: 2, call }), &[]);
            }
        }
        // Regions and exports.
        let region = vmmc_host::Region::create(4096).unwrap();
        let fd = region.share().unwrap();
        let mut full = None;
        for channel in processes.iter().skip(100).take(8) {
            let mut refused = 0;
            for at in 0..2_000 {
                let call = match at % 2 {
                    0 => Call::RegisterRegion { len: 4096 },
                    _ => Call::Export {
                        name: None,
                        region: 0,
                        offset: 0,
                        len: 4096,
                        rights: Rights::READ.bits(),
                        access: Access::Anyone,
                        notify: false,
                        redirectable: true,
                        kind: ExportKind::Memory,
                        mappable: false,
                    },
                };
                let fds: &[BorrowedFd<'_>] = if at % 2 == 0 { &[fd.as_fd()] } else { &[] };
                let refusal = ask(channel, call, fds).unwrap().err();
                refused += u32::from(refusal.is_some());
                full = refusal.filter(|_| at % 2 == 0).or(full);
            }
            println!("{refused} of 2000 regions and exports were refused");
        }
        let full = full.expect("regions are divided too");
        println!("{full}");
        assert!(full.code == RefusalCode::TableFull && full.message.contains("its share"), "{full}");
    });
    // All of it comes back.
    raw::wait(&nap, || (node.daemon.descriptors() <= before + 4).then_some(()));
    let attached = as_user(HOSTILE, || ask(&node.connect().unwrap(), attach_call(), &[]).unwrap().map(drop));
    assert_eq!(attached, Ok(()));
}

#[test]
fn a_daemon_without_descriptors_neither_spins_nor_forgets_to_serve() {
    let node = Node::start("descriptors", Some(64));
    let mut kept = Vec::new();
    // As its own user, whom no share bounds.
    for _ in 0..200 {
        match node.connect() {
            Ok(channel) => kept.push(channel),
            Err(error) => panic!("{error}"),
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = node.daemon.ticks();
    std::thread::sleep(Duration::from_secs(1));
    let ticks = node.daemon.ticks() - before;
    assert!(ticks <= 25, "{ticks} of 100 ticks for waiting");
    drop(kept);
    raw::wait(&nap, || ask(&node.connect().ok()?, attach_call(), &[]).ok()?.ok());
}

#[test]
fn a_descriptor_whose_closing_waits_holds_up_nobody() {
    if !can_be_others() {
        return;
    }
    let mut node = Node::start("closing", None);
    let name = node.name.clone();
    beside(&mut node, || {
        for _ in 0..20 {
            let channel = connect(0, &name).unwrap();
            send_lingering(&channel, &encode(&Request { serial: 1, call: Call::RegisterRegion { len: 4096 } }), 1);
            let answer = channel.receive(Deadline::after(Duration::from_secs(3)));
            assert!(answer.is_ok(), "no answer: {answer:?}");
        }
    });
}

/// Sends a socket that lingers, of which the node then has the only copy.
fn send_lingering(channel: &Channel, bytes: &[u8], copies: usize) {
    let socket = wild::connection(Some(LINGER)).unwrap();
    if wild::send_wild(channel, bytes, &[socket.as_fd(); wild::FDS_MAX][..copies]).is_err() {
        wild::calm(&socket);
    }
}

#[test]
fn what_a_client_leaves_unread_is_closed_where_nobody_waits() {
    if !can_be_others() {
        return;
    }
    let mut node = Node::start("unread", None);
    let name = node.name.clone();
    let before = node.daemon.descriptors();
    beside(&mut node, || {
        for round in 0..40 {
            let channel = connect(0, &name).unwrap();
            if round % 4 == 0 {
                ask(&channel, attach_call(), &[]).unwrap().unwrap();
            }
            // Junk that ends the connection, or the client does; behind it a message of no bytes,
            // that hides a descriptor.
            let junk: &[u8] = if round % 2 == 0 { &[0xff; 40] } else { &[] };
            let _ = channel.try_send(junk, &[]);
            send_lingering(&channel, &[], [1, 9, wild::FDS_MAX][round % 3]);
        }
        // In the queue of a listener, which is in a message itself.
        let door = format!("left-{}", std::process::id());
        let listener = Listener::bind(&door).unwrap();
        send_lingering(&Channel::try_connect(&door).unwrap(), &[], 1);
        let _ = wild::send_wild(connect(0, &name).unwrap(), &[], &[listener.as_fd()]);
    });
    raw::wait(&nap, || (node.daemon.descriptors() <= before + 4).then_some(()));
}

#[test]
fn a_user_whose_descriptors_cannot_be_closed_takes_no_more_than_its_share() {
    if !can_be_others() {
        return;
    }
    const LIMIT: u32 = 1_200;
    let mut node = Node::start("unclosed", Some(LIMIT));
    let name = node.name.clone();
    let before = node.daemon.descriptors();
    let over = AtomicBool::new(false);
    let pid = node.daemon.0.id();
    let most = std::thread::scope(|scope| {
        let most = scope.spawn(|| {
            let mut most = 0;
            while !over.load(Ordering::SeqCst) {
                most = wild::descriptors_of(pid).max(most);
                std::thread::sleep(Duration::from_millis(5));
            }
            most
        });
        let is_over = Over(&over);
        beside(&mut node, || {
            let end = Instant::now() + Duration::from_secs(4);
            let register = encode(&Request { serial: 1, call: Call::RegisterRegion { len: 4096 } });
            let mut kept = std::collections::VecDeque::new();
            let mut count = 0u64;
            while Instant::now() < end {
                let Ok(channel) = connect(0, &name) else { continue };
                count += 1;
                match count % 4 {
                    // Read, and refused; all of one kind, or each for itself.
                    0 => send_lingering(&channel, &register, wild::FDS_MAX),
                    1 => (0..8).for_each(|_| send_lingering(&channel, &register, 1)),
                    // Not read.
                    2 => (0..8).for_each(|_| send_lingering(&channel, &[], 3)),
                    _ => {
                        let _ = channel.try_send(&[0xff; 40], &[]);
                        send_lingering(&channel, &[], 200);
                    }
                }
                kept.push_back(channel);
                if kept.len() > 400 {
                    kept.drain(..count as usize % 400);
                }
            }
            println!("{count} connections with descriptors that linger");
        });
        drop(is_over);
        most.join().unwrap()
    });
    println!("the daemon had up to {most} of {LIMIT} descriptors");
    assert!(most < LIMIT as usize - 64, "the daemon had {most} of {LIMIT} descriptors");
    raw::wait(&nap, || (node.daemon.descriptors() <= before + 4).then_some(()));
}

/// Memory of this many bytes that nobody else has: the node's copy is the last one.
fn memory_for_the_node(channel: &Channel, len: u64) -> Result<Answer, Refusal> {
    let fd = Region::create(len).unwrap().share().unwrap();
    ask(channel, Call::RegisterRegion { len }, &[fd.as_fd()]).unwrap()
}

#[test]
fn a_process_that_leaves_very_much_behind_holds_nobody_up() {
    if !can_be_others() {
        return;
    }
    const REGIONS: usize = 30_000;
    const LARGE: u64 = 512 << 20;
    // What this machine does not allow is the share of fewer regions.
    let mut node = Node::start("left", Some(200_000));
    let name = node.name.clone();
    let before = node.daemon.descriptors();
    // How long the honest pair's calls take at most, while regions are made, and while they go.
    let (going, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let longest = std::thread::scope(|scope| {
        let longest = scope.spawn(|| {
            become_user(HONEST);
            let mut honest = Honest::new(&name);
            let mut longest = [Duration::ZERO; 2];
            while !over.load(Ordering::SeqCst) {
                let phase = usize::from(going.load(Ordering::SeqCst));
                let start = Instant::now();
                let (grant, _) = honest.importer.import(None, &honest.name, Rights::WRITE);
                honest.importer.call(Call::Unimport { import: grant.import }).unwrap();
                longest[phase] = longest[phase].max(start.elapsed());
            }
            longest
        });
        let is_over = Over(&over);
        beside(&mut node, || {
            let mut processes = Vec::new();
            let mut made = 0;
            'all: while made < REGIONS {
                let channel = connect(0, &name).unwrap();
                ask(&channel, attach_call(), &[]).unwrap().unwrap();
                if processes.is_empty() {
                    match memory_for_the_node(&channel, LARGE) {
                        Ok(_) => println!("{} MiB in one region", LARGE >> 20),
                        Err(why) => println!("no large region: {why}"),
                    }
                }
                processes.push(channel);
                for _ in 0..REGIONS_PER_PROCESS_MAX - 1 {
                    if made == REGIONS || memory_for_the_node(processes.last().unwrap(), 4096).is_err() {
                        break 'all;
                    }
                    made += 1;
                }
            }
            println!("{made} regions of {} processes", processes.len());
            going.store(true, Ordering::SeqCst);
            drop(processes);
            raw::wait(&nap, || {
                let channel = connect(0, &name).ok()?;
                let _ = ask(&channel, attach_call(), &[]).ok()?;
                memory_for_the_node(&channel, 4096).ok().map(drop)
            });
            std::thread::sleep(Duration::from_secs(1));
        });
        drop(is_over);
        longest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    println!("the longest honest call: {:?} while it all came, {:?} while it went", longest[0], longest[1]);
    assert!(longest[1] < TOO_SLOW, "a call took {:?}", longest[1]);
    raw::wait(&nap, || (node.daemon.descriptors() <= before + 4).then_some(()));
}

/// A hostile process: some connections, and what the node has told it.
struct Hostile {
    noise: Noise,
    node: String,
    connections: Vec<Connection>,
    calls: u64,
}

struct Connection {
    channel: Channel,
    /// It never reads.
    deaf: bool,
    /// Ids that it was given, of any kind.
    ids: Vec<u64>,
    /// What it was given, so that it can be given back.
    fds: Vec<OwnedFd>,
    rings: Option<Rings>,
}

/// What an attached process shares with the node, and how it is misused.
struct Rings {
    /// Commands that look like some, in their ring.
    commands: Option<Producer<RegionWords>>,
    /// Any words anywhere.
    words: Region,
    doorbell: OwnedFd,
}

impl Rings {
    /// From what an attached process is given.
    fn of(noise: &mut Noise, given: &[OwnedFd]) -> Option<Rings> {
        let [area, _, _, doorbell, _] = given else { return None };
        let len = rustix::fs::fstat(area).ok()?.st_size as u64;
        let words = Region::map(area.try_clone().ok()?, len, Protection::ReadWrite).ok()?;
        let commands = noise.one_in(2).then(|| Some(AttachArea::open(area.try_clone().ok()?).ok()?.command_producer()));
        Some(Rings { commands: commands.flatten(), words, doorbell: doorbell.try_clone().ok()? })
    }

    fn misuse(&mut self, noise: &mut Noise, ids: &[u64]) {
        if let Some(commands) = &mut self.commands {
            for _ in 0..noise.below(40) {
                let Some(mut slot) = commands.claim() else { break };
                (1..32).for_each(|word| slot.set(word, noise.number()));
                if !noise.one_in(4) {
                    let op = if noise.one_in(2) { noise.next() % 9 } else { 16 + noise.next() % 2 };
                    let count = if noise.one_in(2) { noise.next() % 4 } else { noise.next() % 1_100 };
                    let flags = noise.next() % 32;
                    slot.set(1, op | flags << 8 | (noise.next() % 400) << 16 | count << 32);
                    slot.set(3, noise.pick(ids));
                    slot.set(6, if noise.one_in(2) { noise.pick(ids) } else { u64::from(u32::MAX) });
                    if op >= 16 && !noise.one_in(4) {
                        // Redirections that are posted and withdrawn.
                        slot.set(2, noise.next() % 4);
                        slot.set(4, 16 * (noise.next() % 64));
                        slot.set(5, noise.next() % 4);
                        slot.set(7, noise.next() % 4096);
                        slot.set(8, 1 + noise.next() % 32);
                    }
                }
                slot.publish();
            }
        } else {
            for _ in 0..noise.below(200) {
                let part = if noise.one_in(2) { 1 } else { 64 };
                let at = (noise.next() % (self.words.len_bytes() / part)) & !7;
                self.words.word(at).unwrap().store(noise.number(), Ordering::SeqCst);
            }
        }
        if noise.one_in(4) {
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }
}

impl Hostile {
    fn new(seed: u64, node: &str) -> Hostile {
        Hostile { noise: Noise::new(seed), node: node.into(), connections: Vec::new(), calls: 0 }
    }

    fn run(&mut self, until: Instant) {
        while Instant::now() < until {
            self.act();
        }
        println!("{} wild calls", self.calls);
        assert!(self.calls > 100, "the generator has hardly run");
    }

    fn act(&mut self) {
        let noise = &mut self.noise;
        if self.connections.is_empty() || (self.connections.len() < 24 && noise.one_in(20)) {
            let Ok(channel) = connect(0, &self.node) else { return };
            if noise.next() % 8 != 0 {
                let _ = channel.try_send(&encode(&Request { serial: 0, call: attach_call() }), &[]);
            }
            self.connections.push(Connection {
                channel,
                deaf: noise.one_in(6),
                ids: vec![0, 1],
                fds: Vec::new(),
                rings: None,
            });
            return;
        }
        let at = noise.below(self.connections.len());
        if noise.one_in(150) {
            self.connections.swap_remove(at);
            return;
        }
        let connection = &mut self.connections[at];
        if let Some(rings) = connection.rings.as_mut().filter(|_| noise.one_in(3)) {
            rings.misuse(noise, &connection.ids);
        }
        let call = call(noise, &connection.ids);
        let mut given: Vec<OwnedFd> = match (&call, noise.below(8)) {
            (Call::RegisterRegion { .. }, 1..) | (_, 0) => {
                (0..if noise.one_in(10) { noise.below(9) } else { 1 }).map(|_| wild::descriptor(noise).1).collect()
            }
            _ => Vec::new(),
        };
        if noise.one_in(40) {
            given.extend(wild::connection(Some(LINGER)));
        }
        let back = noise.below(connection.fds.len().max(1));
        let mut fds: Vec<BorrowedFd<'_>> = given.iter().map(AsFd::as_fd).collect();
        if noise.one_in(30) {
            fds.extend(connection.fds.get(back).map(AsFd::as_fd));
        }
        if noise.one_in(20) {
            // More than the protocol allows, up to what the kernel does.
            let count = fds.len() * (1 + noise.below(wild::FDS_MAX));
            fds = fds.iter().copied().cycle().take(count.min(wild::FDS_MAX)).collect();
        }
        self.calls += 1;
        let mut bytes = encode(&Request { serial: noise.next() % 4, call });
        match noise.below(200) {
            0 => bytes.clear(),
            1 => bytes.truncate(noise.below(bytes.len())),
            _ => {}
        }
        let sent = wild::send_wild(&connection.channel, &bytes, &fds);
        drop(fds);
        if sent.is_err() {
            // The last copies are ours.
            given.iter().for_each(wild::calm);
        }
        if matches!(sent, Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)) {
            self.connections.swap_remove(at);
            return;
        }
        if !connection.deaf {
            connection.read(noise);
        }
    }
}

impl Connection {
    fn read(&mut self, noise: &mut Noise) {
        while let Ok((bytes, fds)) = self.channel.try_receive() {
            if let (None, Some(rings)) = (&self.rings, Rings::of(noise, &fds)) {
                self.rings = Some(rings);
            }
            self.fds.extend(fds);
            self.fds.truncate(64);
            let Ok(Reply { result: Ok(answer), .. }) = decode::<Reply>(&bytes) else { continue };
            let id = match answer {
                Answer::Region { region } => u64::from(region),
                Answer::Exported { export } => export,
                Answer::Imported(grant) => grant.import,
                _ => continue,
            };
            if self.ids.len() >= 64 {
                self.ids.remove(2);
            }
            self.ids.push(id);
        }
    }
}

/// Mostly a service that is there.
fn service(noise: &mut Noise) -> u16 {
    if noise.one_in(4) { noise.next() as u16 } else { SERVICE }
}

fn version(noise: &mut Noise) -> u16 {
    if noise.one_in(4) { noise.next() as u16 } else { VERSION }
}

/// Bytes that a service has to make sense of.
fn message(noise: &mut Noise) -> Vec<u8> {
    (0..noise.below(64)).map(|_| noise.next() as u8).collect()
}

/// A well-formed call with wild arguments.
fn call(noise: &mut Noise, ids: &[u64]) -> Call {
    let id = |noise: &mut Noise| if noise.one_in(8) { noise.number() } else { noise.pick(ids) };
    let len = |noise: &mut Noise| if noise.one_in(3) { noise.number() } else { 4096 * (1 + noise.next() % 4) };
    let offset = |noise: &mut Noise| if noise.one_in(3) { noise.number() } else { noise.next() % 4096 };
    let name = |noise: &mut Noise| match noise.below(10) {
        0 => String::new(),
        1 => "n".repeat(noise.below(400)),
        2 => "\u{1b}[31m\n".to_string(),
        3 => format!("vmmc.launch/{}/x", noise.pick(&[0, HOSTILE, HONEST])),
        _ => format!("w{}", noise.below(8)),
    };
    let node = |noise: &mut Noise| match noise.below(8) {
        0 => Some("127.0.0.1:9".to_string()),
        1 => Some(format!("127.8.{}.{}:9", noise.below(200), 1 + noise.below(200))),
        2 => Some("[::1]:9".to_string()),
        3 => Some(format!("node{}", noise.below(4))),
        4 => Some("x".repeat(noise.below(200))),
        _ => None,
    };
    let run = |noise: &mut Noise| PageRun { page: noise.number(), count: noise.next() as u32 % 40_000 };
    match noise.below(23) {
        0 => Call::Attach { version: if noise.one_in(4) { noise.next() as u32 } else { CONTROL_VERSION } },
        1 | 2 => Call::RegisterRegion { len: len(noise) },
        3 => Call::ReleaseRegion { region: id(noise) as u32 },
        4 => Call::Pin {
            unpin: (0..noise.below(3))
                .map(|_| match noise.below(4) {
                    0 => run(noise),
                    _ => PageRun { page: noise.next() % 1_000, count: noise.next() as u32 % 200 },
                })
                .collect(),
            pin: (0..noise.below(20))
                .map(|_| PinRun {
                    pages: PageRun { page: noise.next() % 1_000, count: noise.next() as u32 % 4 },
                    region: id(noise) as u32,
                    at: noise.next() as u32 % 4,
                })
                .collect(),
        },
        5..=7 => Call::Export {
            name: noise.one_in(2).then(|| name(noise)),
            region: id(noise) as u32,
            offset: if noise.one_in(2) { 0 } else { offset(noise) },
            len: len(noise),
            rights: noise.next() as u8 % if noise.one_in(8) { 255 } else { 8 },
            access: match noise.below(3) {
                0 => Access::SameUser,
                1 => Access::Anyone,
                _ => Access::Users((0..noise.below(100)).map(|_| noise.next() as u32).collect()),
            },
            notify: noise.one_in(2),
            redirectable: noise.one_in(2),
            kind: noise.pick(&[ExportKind::Memory, ExportKind::Ring, ExportKind::Tokens { entries: 5 }]),
            mappable: noise.one_in(2),
        },
        8 => Call::Unexport { export: id(noise), moving: noise.one_in(2) },
        9..=11 => Call::Import {
            node: node(noise),
            what: if noise.one_in(2) { What::Id(id(noise)) } else { What::Name(name(noise)) },
            owner: noise.pick(&[Owner::OwnOrRoot, Owner::Any, Owner::User(HONEST), Owner::User(u32::MAX)]),
            rights: noise.next() as u8 % 8,
            wait: noise.one_in(2),
            timeout_ms: if noise.one_in(8) { noise.next() } else { noise.next() % 3_000 },
            own_order: noise.one_in(2),
        },
        12 => Call::Bind { import: id(noise) },
        13 => Call::Unimport { import: id(noise) },
        14 | 15 => Call::RedirectReport { export: id(noise), offset: offset(noise), cookie: noise.number() },
        16 => Call::CancelRedirect { export: id(noise), offset: offset(noise), cookie: noise.number() },
        17 => Call::Consume { export: id(noise), offset: offset(noise), len: len(noise) },
        18 => Call::Ping { node: node(noise).unwrap_or_default(), timeout_ms: noise.next() % 3_000 },
        19 => Call::AddPeer { addresses: (0..noise.below(8)).filter_map(|_| node(noise)).collect() },
        20 => Call::Info { details: noise.one_in(2) },
        21 => Call::Importers { export: id(noise) },
        _ => match noise.below(7) {
            0 => Call::Stop,
            1 => Call::Ask { service: SERVICE, version: VERSION, message: SocketQuestion::List.to_bytes() },
            2 => SocketCall::Attach.to_call(),
            3 => Call::Ask { service: service(noise), version: version(noise), message: message(noise) },
            4 => Call::Service { service: service(noise), version: version(noise), message: message(noise) },
            5 => {
                Call::SessionNode { session: if noise.one_in(2) { noise.below(4) as u32 } else { noise.next() as u32 } }
            }
            _ => SocketCall::Withdraw { connection: noise.number(), cookie: noise.number() }.to_call(),
        },
    }
}

#[test]
fn wild_calls_with_wild_descriptors_harm_nobody_else() {
    if !can_be_others() {
        return;
    }
    let seed = wild::seed();
    // So few pages that their processes want them of each other.
    const PAGES: u64 = 160;
    let mut node = Node::with("wild", None, |config| config.pinned_pages_max = Some(PAGES));
    let before = node.daemon.descriptors();
    let name = node.name.clone();
    beside(&mut node, || {
        let mut hostile = Hostile::new(seed, &name);
        hostile.run(Instant::now() + wild::hostile_time());
    });
    // All of it comes back.
    raw::wait(&nap, || (node.daemon.descriptors() <= before + 4).then_some(()));
    as_user(HONEST, || {
        let mut last = Raw::over(connect(0, &name).unwrap(), Rc::new(std::thread::yield_now));
        let memory = last.register(PAGES * 4096);
        let pages = PageRun { page: 1, count: PAGES as u32 };
        let pin = vec![PinRun { pages, region: memory.id, at: 0 }];
        assert_eq!(last.call(Call::Pin { unpin: Vec::new(), pin }), Ok(Answer::Done));
    });
}
