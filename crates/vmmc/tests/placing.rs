//! A hostile user beside two plain nodes of one machine, whose long data the kernel puts straight
//! to where it belongs.
//!
//! The hostile user may send to the ports of both nodes, from addresses of its own, whatever it
//! likes. So that this is as close as it gets to what the nodes would believe, the test, which is
//! root, gives it datagrams that they have just sent each other. Checked are the content of each
//! transfer, that none is held up, and that data was placed all the while. `SEED=n` replays a run,
//! `VMMC_HOSTILE_SECONDS=n` lets it take longer.
//!
//! Needs root, to act as another user and to see what the nodes send; without, it prints `SKIP`.

#[path = "../../node/src/testing/wild.rs"]
#[allow(dead_code, reason = "shared with the tests of other crates")]
mod wild;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with};
use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmmc::Session;
use vmmc_node::{Embedded, KeySource, NodeConfig};
use wild::{HOSTILE, Noise, become_user, can_be_others, hostile_time, seed};

/// Of one transfer: several datagrams of the longest kind.
const LEN: usize = 1 << 20;
/// No transfer takes longer. One takes a millisecond where nobody else wants the processors.
const STALL: Duration = Duration::from_secs(2);
/// Datagrams of the nodes that the hostile user is given, the latest ones.
const SEEN_MAX: usize = 64;
/// The head of a datagram and of what it carries, and more.
const HEAD: usize = 96;
/// Where the number of a packet stands, and that of its first chunk.
const PACKET_NUMBER: usize = 12;
const CHUNK_NUMBER: usize = 21;
/// What the hostile user sees has been followed by up to so many datagrams when it sends.
const AHEAD: usize = 60;
/// The longest datagram that UDP takes.
const DATAGRAM_MAX: usize = 65_507;

/// What the nodes send each other, as it passes by.
struct Tap {
    socket: OwnedFd,
    seen: Mutex<VecDeque<Vec<u8>>>,
}

impl Tap {
    fn open() -> Tap {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, Some(eth::IP)).expect("root may");
        Tap { socket, seen: Mutex::default() }
    }

    /// Takes down what has come for these ports, from one of them.
    fn watch(&self, ports: [u16; 2]) {
        let mut packet = vec![0; 1 << 16];
        while let Ok((len, _)) = recv(&self.socket, &mut packet[..], RecvFlags::empty()) {
            // An IP head without options, and that of UDP.
            let Some((head, data)) = packet[..len].split_at_checked(28) else { continue };
            let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
            if head[9] == 17 && ports.contains(&port(20)) && ports.contains(&port(22)) {
                let mut seen = self.seen.lock().expect("nobody panics with it");
                seen.push_back(data.to_vec());
                let more = seen.len().saturating_sub(SEEN_MAX);
                seen.drain(..more);
            }
        }
    }

    fn some(&self, noise: &mut Noise) -> Vec<u8> {
        let seen = self.seen.lock().expect("nobody panics with it");
        // Often the latest one.
        let back = if noise.one_in(2) { 1 } else { 1 + noise.below(SEEN_MAX) };
        seen.len().checked_sub(back).map_or_else(Vec::new, |index| seen[index].clone())
    }
}

/// Sends what could be taken for data of the other node, until it is over. Returns how much went.
fn attack(tap: &Tap, nodes: [SocketAddr; 2], time: Duration) -> u64 {
    let mut noise = Noise::new(seed());
    let sockets = ["127.0.0.1:0", "127.0.0.2:0"].map(|from| UdpSocket::bind(from).expect("anybody may"));
    let (begun, mut sent) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let mut data = tap.some(&mut noise);
        match noise.below(9) {
            // As it was, again, from elsewhere.
            0 => {}
            // What may come next, with other data.
            1..=3 => {
                let ahead = 1 + noise.below(AHEAD) as u64;
                for number in [PACKET_NUMBER, CHUNK_NUMBER] {
                    let Some(bytes) = data.get_mut(number..number + 8) else { continue };
                    let next = u64::from_le_bytes(bytes.try_into().expect("eight")) + ahead;
                    bytes.copy_from_slice(&next.to_le_bytes());
                }
                data.iter_mut().skip(HEAD).for_each(|byte| *byte = 0xee);
            }
            4 if !data.is_empty() => {
                let at = noise.below(data.len().min(HEAD));
                data[at] ^= 1 << noise.below(8);
            }
            // The same head, other data.
            5 => data.iter_mut().skip(HEAD).for_each(|byte| *byte = 0xee),
            6 => data.truncate(noise.below(data.len() + 1)),
            7 => data.resize(DATAGRAM_MAX, 0xee),
            _ => {
                data.truncate(noise.below(HEAD));
                let len = noise.below(DATAGRAM_MAX);
                data.extend((data.len()..len).map(|_| noise.below(256) as u8));
            }
        }
        // Behind a long one, the node looks at the head of the next first.
        let (socket, to) = (&sockets[noise.below(2)], nodes[noise.below(2)]);
        for datagram in [&vec![0xee; 40_000], &data] {
            sent += u64::from(socket.send_to(datagram, to).is_ok());
        }
        if noise.one_in(4) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    sent
}

fn counted(session: &Session, wanted: &str) -> u64 {
    let info = session.node_info(false).expect("an answer");
    info.counters.iter().find(|(name, _)| name == wanted).expect("counted").1
}

#[test]
fn long_data_is_placed_and_whole_beside_a_user_who_sends_what_looks_like_it() {
    if !can_be_others() {
        return;
    }
    let config = |name: &str| {
        let listen = "127.0.0.1:0".parse().expect("an address");
        let name = format!("placing-{name}-{}", std::process::id());
        NodeConfig::new(&name).listen(listen).key(KeySource::Plain).plain_trust_users()
    };
    let near = Embedded::start(config("near")).expect("the node starts");
    let far = Embedded::start(config("far").peer(&near.addresses())).expect("the node starts");
    let nodes = [near.addresses()[0], far.addresses()[0]];
    let ports = nodes.map(|address| address.port());
    let session = |node: &Embedded| {
        let attachment = node.attach().expect("the node takes us");
        Session::builder().timeout(Duration::from_secs(30)).over(attachment).expect("attach")
    };
    let (owner, user) = (session(&near), session(&far));
    let export = owner.export(LEN as u64).name("long").create().expect("export");
    let import = user.import("long").node(&near.name()).open().expect("import");
    let (tap, over) = (Tap::open(), AtomicBool::new(false));
    let transfers = || {
        let (mut count, mut data, mut got) = (0u64, vec![0; LEN], vec![0; LEN]);
        let placed = [&owner, &user].map(|session| counted(session, "udp_datagrams_placed"));
        while !over.load(Ordering::Relaxed) || count < 20 {
            count += 1;
            let begun = Instant::now();
            for (word, index) in data.chunks_exact_mut(8).zip(0u64..) {
                word.copy_from_slice(&(count << 32 | index).to_le_bytes());
            }
            import.send(0, &data[..]).expect("it is sent");
            import.flush().expect("it arrives");
            export.read(0, &mut got).expect("our own memory");
            assert!(got == data, "transfer {count}: other bytes than were sent");
            got.fill(0);
            import.fetch(0, &mut got[..]).expect("it comes back");
            assert!(got == data, "transfer {count}: other bytes than are there");
            assert!(begun.elapsed() < STALL, "transfer {count} took {:?}", begun.elapsed());
        }
        let placed_now = [&owner, &user].map(|session| counted(session, "udp_datagrams_placed"));
        (count, [0, 1].map(|side| placed_now[side] - placed[side]))
    };
    std::thread::scope(|scope| {
        let honest = scope.spawn(transfers);
        let hostile = scope.spawn(|| {
            become_user(HOSTILE);
            attack(&tap, nodes, hostile_time())
        });
        while !hostile.is_finished() && !honest.is_finished() {
            tap.watch(ports);
            std::thread::sleep(Duration::from_micros(100));
        }
        over.store(true, Ordering::Relaxed);
        let sent = hostile.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (count, placed) = honest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        println!("{count} transfers beside {sent} hostile datagrams; {placed:?} placed at their end and at ours");
        let seen = tap.seen.lock().expect("nobody panics with it").len();
        assert!(sent > 100 && seen == SEEN_MAX, "{sent} sent, {seen} seen");
        assert!(placed.iter().all(|placed| *placed > count), "{placed:?} placed in {count} transfers");
    });
}
