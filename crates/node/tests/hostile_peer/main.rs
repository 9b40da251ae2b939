//! A hostile peer on the wire, beside an honest pair on two real daemons.
//!
//! Two hosts and a hub between them are network namespaces. The hostile peer lives in the hub: it
//! sees each packet of the honest pair, and sends whatever it likes from any address, but it holds
//! no packet back. The honest pair's content is checked, and that it goes on; so are the daemons'
//! memory, descriptors and processor time. `SEED=n` replays a run as far as the machine allows, and
//! `VMMC_HOSTILE_SECONDS=n` lets it take longer.
//!
//! Needs root and `ip` (iproute2); without them the tests print `SKIP` and why.

#[path = "../../src/testing/raw.rs"]
#[allow(dead_code, reason = "shared with the tests of the crate")]
mod raw;
#[path = "../../src/testing/wild.rs"]
#[allow(dead_code, reason = "shared with the tests of other crates")]
mod wild;

mod honest;
mod liar;
mod shares;
mod stranger;
mod wire;

use honest::{Honest, NAME, Over, beside};
use liar::{NoMemory, OPEN};
use raw::{Raw, Registered};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, eth, ipproto};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};
use stranger::{Datagram, HELLO, KINDS, Stranger, UNKNOWN_SESSION};
use vmmc_host::Channel;
use vmmc_host::abi::{Op, RawCommand, flags};
use vmmc_host::channel::node_socket_name;
use vmmc_host::control::{Access, Answer, Call, Owner, Refusal, Reply, Request, What, decode, encode};
use vmmc_nic::{
    AtomicOp, ClusterKey, Cookie, Dma, Engine, Event, NodeName, NodeSpec, RegionId, RegionRef, Rights, Time, fuzzing,
};
use vmmc_node::{KeySource, LogLevel, NodeConfig};
use wild::{HONEST, HOSTILE, Noise, Watched, as_user, become_user, can_be_others, hostile_time};
use wire::{Node, Wire, nap};

const VMMCD: &str = env!("CARGO_BIN_EXE_vmmcd");
const PORT: u16 = 4791;
/// The hub is host 0.
const HUB: usize = 0;
/// Hosts of the honest pair.
const NEAR: usize = 1;
const FAR: usize = 2;
/// The cluster key of the honest, and that of others.
const KEY: u8 = 0x5a;
const OTHER_KEY: u8 = 0x5b;
/// A user whose process has to do with the hostile peer.
const VICTIM: u32 = HOSTILE + 1;
/// No exchange of the honest pair takes longer, so there is progress in every second. A machine
/// with all its cores taken needs some dozens of milliseconds.
const STALL: Duration = Duration::from_secs(1);
/// A node that comes to the cluster in the middle of it has its first import within this.
const NEWCOMER: Duration = Duration::from_secs(5);
/// A user that shares two nodes with one that takes all it gets is served within this: its fetches
/// are some mebibytes, in turns with all others'.
const SERVED: Duration = Duration::from_secs(3);
/// Memory that strangers may cost a daemon: answers to them are bounded, and so are sessions on
/// probation.
const STRANGERS_KIB_MAX: u64 = 32 << 10;
/// Memory that a peer with a session may cost it: what it may have under way, grants and waits.
const PEER_KIB_MAX: u64 = 128 << 10;
/// Processor time of a daemon without work, ticks of 10 ms in a second.
const IDLE_TICKS: u64 = 10;
/// Datagrams that are sent between two naps of a millisecond.
const BURST: usize = 20;

fn address(host: usize) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 96, 0, if host == HUB { 9 } else { host as u8 }), PORT)
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(args).output().map_err(|e| format!("ip cannot be run: {e}"))?;
    let why = || format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    if output.status.success() { Ok(()) } else { Err(why()) }
}

/// Two daemons, and a stranger who has seen all that they said.
fn pair(wire: &Wire, key: Option<u8>) -> (Node, Node, Stranger) {
    let stranger = Stranger::new(wire);
    let [near, far] = [NEAR, FAR].map(|host| Node::start(wire, host, address(host), key));
    (near, far, stranger)
}

#[test]
fn junk_and_damaged_datagrams_harm_no_honest_pair() {
    let Some(wire) = Wire::new() else { return };
    let (mut near, mut far, mut stranger) = pair(&wire, Some(KEY));
    beside(&wire, [&mut near, &mut far], STRANGERS_KIB_MAX, || {
        stranger.at_rate(hostile_time(), |s| {
            let mut datagram = s.some();
            let len = datagram.data.len();
            match s.noise.below(6) {
                // Junk, some of which begins as ours do.
                0 | 1 => {
                    let begin = datagram.data[..12.min(len)].to_vec();
                    let len = s.noise.below(1_473);
                    datagram.data = s.bytes(len);
                    datagram.to = s.target();
                    let kept = s.noise.below(begin.len() + 1).min(len);
                    datagram.data[..kept].copy_from_slice(&begin[..kept]);
                }
                2 => (0..1 + s.noise.below(3)).for_each(|_| {
                    let at = s.noise.below(len);
                    datagram.data[at] ^= 1 << s.noise.below(8);
                }),
                3 => datagram.data.truncate(s.noise.below(len)),
                4 => {
                    let more = s.noise.below(1_473 - len.min(1_472));
                    let more = s.bytes(more);
                    datagram.data.extend(more);
                }
                // The head of one and the rest of another.
                _ => {
                    let other = s.some().data;
                    let at = 20.min(len).min(other.len());
                    datagram.data.truncate(at);
                    datagram.data.extend(&other[at..]);
                }
            }
            datagram.from = s.source(datagram.to);
            s.send(&datagram);
        })
    });
}

#[test]
fn what_an_honest_pair_said_is_applied_once_however_often_it_is_said_again() {
    let Some(wire) = Wire::new() else { return };
    let (mut near, mut far, mut stranger) = pair(&wire, Some(KEY));
    beside(&wire, [&mut near, &mut far], STRANGERS_KIB_MAX, || {
        stranger.at_rate(hostile_time(), |s| {
            // Just now by turns with long ago, in any order.
            let recent = s.seen.len().saturating_sub(1 + s.noise.below(30));
            let just_now = s.seen.get(recent).cloned().filter(|_| s.noise.one_in(2));
            let mut datagram = just_now.unwrap_or_else(|| s.some());
            match s.noise.below(8) {
                0 => datagram.from = s.source(datagram.to),
                // To its sender.
                1 => (datagram.from, datagram.to) = (datagram.to, datagram.from),
                _ => {}
            }
            s.send(&datagram);
        })
    });
}

#[test]
fn forged_rejections_closings_and_errors_of_the_network_end_no_session() {
    let Some(wire) = Wire::new() else { return };
    let (mut near, mut far, mut stranger) = pair(&wire, Some(KEY));
    beside(&wire, [&mut near, &mut far], STRANGERS_KIB_MAX, || {
        stranger.at_rate(hostile_time(), |s| {
            let of = s.some();
            let (one, two) = if s.noise.one_in(2) { (of.from, of.to) } else { (of.to, of.from) };
            if s.noise.one_in(4) {
                return s.send_icmp(&of);
            }
            // Of every kind and version, with the name of a session that both know.
            let version = if s.noise.one_in(3) { (s.noise.next() as u8) << 4 } else { of.data[1] & 0xf0 };
            let kind = s.noise.below(usize::from(*KINDS.end()) + 1) as u8;
            let number = if s.noise.one_in(4) { s.noise.number() } else { s.noise.next() % 10 };
            let len = s.noise.pick(&[0, 8, 16, 32, 100, 300]);
            let body = s.bytes(len);
            let data = [&[b'V', version | kind], &of.data[2..12], &number.to_le_bytes(), &body].concat();
            s.send(&Datagram { from: one, to: two, data });
        })
    });
}

/// The first datagram of a node of this key that wants to talk to somebody.
fn first_hello(name: &str, key: Option<u8>, to: SocketAddrV4, seed: u8) -> Vec<u8> {
    let mut config = vmmc_nic::Config::new(NodeName::parse(name).unwrap());
    config.key = key.map(|byte| ClusterKey([byte; 32]));
    let mut engine = Engine::new(config, [seed; 32], Time::ZERO);
    engine.add_peer(Time::ZERO, &[to.into()]).unwrap();
    let mut buf = vec![0; 2_000];
    let sent = engine.poll_transmit(Time::ZERO, &mut buf, &mut NoMemory).unwrap();
    buf.truncate(sent.len);
    buf
}

#[test]
fn hellos_at_rate_keep_no_honest_node_away() {
    let Some(wire) = Wire::new() else { return };
    let (mut near, mut far, mut stranger) = pair(&wire, Some(KEY));
    let time = hostile_time();
    let over = AtomicBool::new(false);
    let others: Vec<Vec<u8>> = [Some(OTHER_KEY), None, Some(KEY)]
        .into_iter()
        .zip(1..)
        .map(|(key, seed)| first_hello("other", key, address(NEAR), seed))
        .collect();
    std::thread::scope(|scope| {
        let (over, wire) = (&over, &wire);
        let newcomers = scope.spawn(move || {
            let mut count = 0;
            while !over.load(Ordering::SeqCst) && count < 1_000 {
                std::thread::sleep(time / 8);
                let took = newcomer(wire, count);
                println!("newcomer {count} had its import {took:?} after it asked");
                assert!(took < NEWCOMER, "{took:?}");
                count += 1;
            }
            assert!(count >= 2, "hardly a node came: {count}");
        });
        beside(wire, [&mut near, &mut far], STRANGERS_KIB_MAX, move || {
            let _over = Over(over);
            let sent = stranger.at_rate(time, |s| {
                let mut hellos = s.opening.iter().filter(|d| d.kind() == HELLO);
                // Those of newcomers too.
                let count = hellos.clone().count();
                let recorded = hellos.nth(s.noise.below(count.max(1))).cloned();
                let mut data = match (recorded, s.noise.below(8)) {
                    (Some(recorded), 0..=4) => recorded.data,
                    (_, n) => others[n % others.len()].clone(),
                };
                match s.noise.below(8) {
                    0 => {
                        let at = s.noise.below(data.len());
                        data[at] ^= 1 << s.noise.below(8);
                    }
                    // Of another version.
                    1 => data[1] ^= 0x10 << s.noise.below(4),
                    _ => {}
                }
                let from = if s.noise.one_in(8) { address(FAR) } else { s.nobody() };
                s.send(&Datagram { from, to: address(NEAR), data });
            });
            over.store(true, Ordering::SeqCst);
            // Before what it imports is gone.
            newcomers.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            sent
        });
    });
}

/// Answers to addresses of the wire that nobody has wait in the kernel, which asks for some seconds
/// who has them. They leave the way free for all else.
///
/// There are few such addresses here: the kernel has a bound on those that it asks for, of all
/// processes of the machine together (docs/security.md).
#[test]
fn answers_to_addresses_that_nobody_has_hold_no_session_up() {
    let Some(wire) = Wire::new() else { return };
    let (mut near, mut far, mut stranger) = pair(&wire, Some(KEY));
    let data = first_hello("other", Some(KEY), address(NEAR), 1);
    beside(&wire, [&mut near, &mut far], STRANGERS_KIB_MAX, || {
        stranger.at_rate(hostile_time(), |s| {
            let from = SocketAddrV4::new(Ipv4Addr::new(10, 96, 1, s.noise.next() as u8), 1_000);
            let hello = Datagram { from, to: address(NEAR), data: data.clone() };
            (0..3).for_each(|_| s.send(&hello));
        })
    });
}

/// A node comes to the cluster on the hub, and imports from the near one; says how long that took.
fn newcomer(wire: &Wire, number: u16) -> Duration {
    let at = SocketAddrV4::new(*address(HUB).ip(), 5_000 + number);
    let node = Node::start(wire, HUB, at, Some(KEY));
    let channel = node.try_connect(wire, HONEST).unwrap();
    as_user(HONEST, || {
        let mut process = node.attach(channel);
        let start = Instant::now();
        process.import(Some(&address(NEAR).to_string()), NAME, Rights::READ);
        start.elapsed()
    })
}
