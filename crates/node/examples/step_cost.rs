//! What a step costs: two embedded nodes on loopback, stepped in turn by one thread, processor time
//! instead of wall time.
//!
//! `cargo run --release -p vmmc-node --example step_cost [-- --sealed] [--only 8-byte]`
#![allow(dead_code, unused_imports)]

#[path = "../src/testing/raw.rs"]
mod raw;

use raw::{Raw, wait};
use std::sync::atomic::Ordering;
use std::time::Duration;
use vmmc_host::abi::{Op, RawCommand, flags};
use vmmc_host::control::{Answer, decode};
use vmmc_nic::Rights;
use vmmc_node::{Embedded, KeySource, NodeConfig};

fn cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn main() {
    let key = if std::env::args().any(|a| a == "--sealed") { KeySource::Given([5; 32]) } else { KeySource::Plain };
    let node = |name: &str| {
        let mut config =
            NodeConfig::new(name).listen("127.0.0.1:0".parse().unwrap()).key(key.clone()).plain_trust_users();
        config.poller = false;
        config
    };
    let a = Embedded::start(node("a")).unwrap();
    let b = Embedded::start(node("b").peer(&a.addresses())).unwrap();
    let (mut owner, mut importer) = (Raw::stepped(a.attach().unwrap()), Raw::stepped(b.attach().unwrap()));
    let memory = owner.register(8 << 20);
    owner.call(Raw::export_call(&memory, "x")).unwrap();
    let serial = importer.ask(Raw::import_call(Some("a"), "x", Rights::READ | Rights::WRITE));
    let (bytes, _) = wait(&|| owner.pump(), || {
        importer.pump();
        importer.channel.try_receive().ok()
    });
    let reply: vmmc_host::control::Reply = decode(&bytes).unwrap();
    assert_eq!(reply.serial, serial);
    let Ok(Answer::Imported(grant)) = reply.result else { panic!("{reply:?}") };
    let word = memory.region.word(0).unwrap();

    let only = std::env::args().skip_while(|a| a != "--only").nth(1).unwrap_or_default();
    let report = |what: &str, mut one: Box<dyn FnMut(u64) + '_>| {
        if !what.contains(&only) {
            return;
        }
        let mut samples: Vec<u64> = (0..200u64)
            .map(|round| {
                let start = cpu_ns();
                (0..100).for_each(|i| one(round * 100 + i + 1));
                (cpu_ns() - start) / 100
            })
            .collect();
        samples.sort_unstable();
        println!("{what}: p10 {} p50 {} ns of processor time", samples[20], samples[100]);
    };
    let (x, y) = (std::net::UdpSocket::bind("127.0.0.1:0").unwrap(), std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let to = y.local_addr().unwrap();
    report(
        "bare 64-byte datagram, send and receive",
        Box::new(|_| {
            let mut bytes = [0u8; 100];
            x.send_to(&bytes[..64], to).unwrap();
            y.recv_from(&mut bytes).unwrap();
        }),
    );
    let mut large = vec![0u8; 1 << 16];
    for size in [65_507, 32_768, 16_384] {
        report(
            &format!("bare datagrams of {size} bytes, 4 MiB, 1/100 of it"),
            Box::new(|i| {
                for _ in 0..if i % 100 == 0 { (4 << 20) / size } else { 0 } {
                    x.send_to(&large[..size], to).unwrap();
                    y.recv_from(&mut large).unwrap();
                }
            }),
        );
    }
    {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut x = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut y = listener.accept().unwrap().0;
        report(
            "bare TCP in pieces of 64 KiB, 4 MiB, 1/100 of it",
            Box::new(|i| {
                for _ in 0..if i % 100 == 0 { 64 } else { 0 } {
                    x.write_all(&large).unwrap();
                    y.read_exact(&mut large).unwrap();
                }
            }),
        );
    }
    report("idle step", Box::new(|_| importer.pump()));
    report(
        "8-byte send, post to deposit",
        Box::new(|i| {
            let mut command = RawCommand::new(Op::Send, grant.import);
            command.flags = flags::INLINE;
            importer.post(&command, &i.to_le_bytes());
            importer.pump();
            while word.load(Ordering::Relaxed) != i {
                owner.pump();
            }
        }),
    );
    let source = importer.register(1 << 20);
    report(
        "four 1 MiB sends, post to completion, 1/100 of it",
        Box::new(|i| {
            if i % 100 != 0 {
                return;
            }
            for cookie in 1..=4 {
                let mut command = RawCommand::new(Op::Send, grant.import);
                command.flags = flags::COMPLETE;
                (command.region, command.len, command.cookie) = (source.id.into(), 1 << 20, cookie);
                importer.post(&command, &[]);
                loop {
                    importer.pump();
                    owner.pump();
                    if importer.try_completion().is_some() {
                        break;
                    }
                }
            }
        }),
    );
}
