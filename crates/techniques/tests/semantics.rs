//! What each technique promises of memory and time: the cells of the table in docs/techniques.md,
//! on every path. [SEMANTICS §2, §3]
//!
//! Invariant: a test here is named by a cell, and fails if the cell is not true.

mod common;

use common::{Ends, LONG, Nodes, PATHS, Path, SHORT, assert_same, open, open_with, pattern};
use std::time::Duration;
use vmmc_techniques::{Error, Technique};

/// Sends messages from one piece of memory that is overwritten as soon as each send returns, and
/// looks at what arrives.
fn overwrite_at_once(technique: Technique) {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, path, technique);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..20u8 {
                    let mut message = pattern(90_000, number);
                    sender.send(&message).unwrap();
                    message.fill(0xEE);
                }
                sender.flush().unwrap();
            });
            let mut buffer = vec![0; 90_000];
            for number in 0..20 {
                assert_eq!(receiver.receive(&mut buffer).unwrap(), 90_000);
                assert_same(&buffer, &pattern(90_000, number), "a message as it was when it was sent");
            }
        });
    }
}

#[test]
fn pio_lets_memory_be_overwritten_at_once() {
    overwrite_at_once(Technique::Pio);
}

#[test]
fn copydma_lets_memory_be_overwritten_at_once() {
    overwrite_at_once(Technique::CopyDma);
}

#[test]
fn directdma_lets_memory_be_overwritten_when_it_is_ready() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, path, Technique::DirectDma);
        for number in 0..20 {
            sender.agreed().write(0, &pattern(90_000, number)).unwrap();
            let mut message = sender.send_agreed(0..90_000).unwrap();
            while !message.is_ready().unwrap() {
                std::thread::yield_now();
            }
            sender.agreed().write(0, &[0xEE; 90_000]).unwrap();
            let mut buffer = vec![0; 90_000];
            receiver.receive(&mut buffer).unwrap();
            assert_same(&buffer, &pattern(90_000, number), "a message as it was when it was ready");
        }
    }
}

/// Before it is ready what is written may be what arrives: the node reads the memory when it comes
/// to it.
#[test]
fn directdma_may_send_what_is_written_before_it_is_ready() {
    let nodes = Nodes::start();
    let mut overtaken = 0;
    // A node of its own thread may be fast: once in so many is enough to show it.
    for number in 0..200 {
        let Ends { mut receiver, mut sender, .. } =
            open_with(&nodes, Path::Network, Technique::DirectDma, |builder| builder.agreed(4 << 20));
        let len = 4 << 20;
        sender.agreed().write(0, &pattern(len, number)).unwrap();
        let message = sender.send_agreed(0..len as u64).unwrap();
        sender.agreed().write(len as u64 - 1000, &[0xEE; 1000]).unwrap();
        message.wait().unwrap();
        assert_eq!(receiver.receive_agreed().unwrap(), 0..len as u64);
        let mut end = [0; 1000];
        receiver.read_agreed(len as u64 - 1000, &mut end).unwrap();
        overtaken += u32::from(end == [0xEE; 1000]);
        if overtaken > 0 {
            return;
        }
    }
    panic!("no store came before the transfer");
}

#[test]
fn pio_holds_one_message_for_a_late_receiver_and_the_next_one_waits() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, path, Technique::Pio);
        sender.send(b"first").unwrap();
        sender.set_timeout(SHORT);
        assert!(matches!(sender.send(b"second"), Err(Error::TimedOut { .. })), "{path:?}");
        let mut buffer = [0; 6];
        assert_eq!((receiver.receive(&mut buffer).unwrap(), &buffer[..5]), (5, &b"first"[..]));
        sender.set_timeout(LONG);
        sender.send(b"third").unwrap();
        assert_eq!((receiver.receive(&mut buffer).unwrap(), &buffer[..5]), (5, &b"third"[..]));
    }
}

#[test]
fn copydma_keeps_what_arrives_for_a_late_receiver_as_far_as_the_pool_reaches() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } =
            open_with(&nodes, path, Technique::CopyDma, |builder| builder.pool(16 * 4096));
        sender.set_timeout(SHORT);
        let mut sent = 0u8;
        // Two pages each: eight of them fill the pool, and the ninth waits.
        while sender.send(&pattern(5000, sent)).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 8, "{path:?}");
        let mut buffer = vec![0; 5000];
        for number in 0..sent {
            receiver.receive(&mut buffer).unwrap();
            assert_same(&buffer, &pattern(5000, number), "kept");
        }
        sender.set_timeout(LONG);
        sender.send(b"there is room again").unwrap();
    }
}

#[test]
fn directdma_overwrites_what_a_late_receiver_has_not_looked_at() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, path, Technique::DirectDma);
        for text in [b"first ", b"second"] {
            sender.agreed().write(0, text).unwrap();
            sender.send_agreed(0..6).unwrap().wait().unwrap();
        }
        let mut buffer = [0; 6];
        receiver.receive(&mut buffer).unwrap();
        assert_eq!(&buffer, b"second", "{path:?}");
        receiver.receive(&mut buffer).unwrap();
        assert_eq!(&buffer, b"second");
    }
}

/// The receiver asks first.
fn wait_early(technique: Technique) {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, path, technique);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                match technique {
                    Technique::DirectDma => {
                        sender.agreed().write(0, &pattern(300_000, 1)).unwrap();
                        sender.send_agreed(0..300_000).unwrap().wait().unwrap();
                    }
                    _ => sender.send(&pattern(300_000, 1)).unwrap(),
                }
                sender.flush().unwrap();
            });
            let mut buffer = vec![0; 300_000];
            assert_eq!(receiver.receive(&mut buffer).unwrap(), 300_000);
            assert_same(&buffer, &pattern(300_000, 1), "a message that was waited for");
        });
    }
}

#[test]
fn pio_receivers_can_wait_before_anything_is_sent() {
    wait_early(Technique::Pio);
}

#[test]
fn copydma_receivers_can_wait_before_anything_is_sent() {
    wait_early(Technique::CopyDma);
}

#[test]
fn directdma_receivers_can_wait_before_anything_is_sent() {
    wait_early(Technique::DirectDma);
}
