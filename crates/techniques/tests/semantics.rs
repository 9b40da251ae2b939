//! What each technique promises of memory and time: the cells of the table in docs/techniques.md,
//! on every path. [SEMANTICS §2, §3]
//!
//! Invariant: a test here is named by a cell, and fails if the cell is not true.

mod common;

use common::{Ends, LONG, Nodes, PATHS, Path, SHORT, assert_same, open, open_with, pattern};
use std::time::Duration;
use vmmc_techniques::limits::POSTED_MAX;
use vmmc_techniques::{Error, PageBuffer, Technique};

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
fn auto_lets_memory_be_overwritten_at_once() {
    overwrite_at_once(Technique::Auto);
}

/// The same from a buffer of pages, which is written at once, in part and wholly.
#[test]
fn pexdma_lets_memory_be_overwritten_at_once() {
    overwrite_at_once(Technique::PexDma);
    let nodes = Nodes::start();
    let len = 300_000;
    for path in PATHS {
        let Ends { mut receiver, mut sender, user, .. } = open(&nodes, path, Technique::PexDma);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut pages = PageBuffer::new(&user, len as u64).unwrap();
                for number in 0..20u8 {
                    pages.write(0, &pattern(len, number)).unwrap();
                    sender.send_pages(&mut pages, 0..len as u64).unwrap();
                    (0..len as u64 / 5000).for_each(|i| pages.write(5000 * i + 7, &[0xEE; 99]).unwrap());
                }
                sender.flush().unwrap();
            });
            let mut buffer = vec![0; len];
            for number in 0..20 {
                assert_eq!(receiver.receive(&mut buffer).unwrap(), len);
                assert_same(&buffer, &pattern(len, number), "a message as it was when it was sent");
            }
        });
    }
}

/// The copy on write is real: between nodes pages are lent when the send returns, and a write of
/// them copies.
#[test]
fn pexdma_copies_a_page_that_is_written_while_it_is_lent() {
    let nodes = Nodes::start();
    let len = 4 << 20;
    for round in 0..200 {
        let Ends { mut receiver, mut sender, user, .. } = open(&nodes, Path::Network, Technique::PexDma);
        let mut pages = PageBuffer::new(&user, len).unwrap();
        pages.write(0, &pattern(len as usize, round)).unwrap();
        sender.send_pages(&mut pages, 0..len).unwrap();
        let last = len - 100;
        pages.write(last, b"written while it is lent").unwrap();
        let mut buffer = vec![0; len as usize];
        receiver.receive(&mut buffer).unwrap();
        assert_same(&buffer, &pattern(len as usize, round), "as it was sent");
        let mut own = [0; 24];
        pages.read(last, &mut own).unwrap();
        assert_eq!(&own, b"written while it is lent");
        pages.wait().unwrap();
        assert_eq!(pages.pages_lent(), 0);
        if pages.pages_copied() > 0 {
            return;
        }
    }
    panic!("no page was lent long enough to be copied");
}

#[test]
fn v2pdma_lets_memory_be_overwritten_when_it_is_ready() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, path, Technique::V2pDma);
        let memory = receiver.memory(90_000).unwrap();
        for number in 0..20 {
            receiver.post(&memory, 0..90_000).unwrap();
            let mut message = pattern(90_000, number);
            let mut sending = sender.send_posted(&message).unwrap();
            while !sending.is_ready().unwrap() {
                std::thread::yield_now();
            }
            drop(sending);
            message.fill(0xEE);
            let arrived = receiver.receive_posted().unwrap();
            let mut seen = vec![0; 90_000];
            arrived.memory.read(0, &mut seen).unwrap();
            assert_same(&seen, &pattern(90_000, number), "a message as it was when it was ready");
        }
    }
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
    keep_for_late(Technique::CopyDma, 8);
}

#[test]
fn pexdma_keeps_what_arrives_for_a_late_receiver_as_far_as_the_pool_reaches() {
    keep_for_late(Technique::PexDma, 8);
}

#[test]
fn auto_keeps_what_arrives_for_a_late_receiver_as_far_as_the_pool_reaches() {
    keep_for_late(Technique::Auto, 8);
}

fn keep_for_late(technique: Technique, frames: u8) {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } =
            open_with(&nodes, path, technique, |builder| builder.pool(16 * 4096));
        sender.set_timeout(SHORT);
        let mut sent = 0u8;
        // Two pages each: eight of them fill the pool, and the ninth waits.
        while sender.send(&pattern(5000, sent)).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, frames, "{path:?}");
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

#[test]
fn v2pdma_waits_for_a_receiver_that_posts_late() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, path, Technique::V2pDma);
        sender.set_timeout(SHORT);
        assert!(matches!(sender.send_posted(b"nowhere to go"), Err(Error::TimedOut { .. })), "{path:?}");
        let memory = receiver.memory(4096).unwrap();
        receiver.post(&memory, 0..6).unwrap();
        sender.set_timeout(LONG);
        sender.send_posted(b"posted").unwrap().wait().unwrap();
        sender.set_timeout(SHORT);
        // One buffer, one message.
        assert!(matches!(sender.send_posted(b"again"), Err(Error::TimedOut { .. })), "{path:?}");
        assert_eq!(receiver.receive_posted().unwrap().range, 0..6);
    }
}

#[test]
fn v2pdma_fills_posted_buffers_in_turn_and_never_beyond_their_length() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, path, Technique::V2pDma);
        let memory = receiver.memory(POSTED_MAX as u64 * 64).unwrap();
        for round in 0..3 {
            for number in 0..POSTED_MAX as u64 {
                let posted = receiver.post(&memory, number * 64..number * 64 + 9).unwrap();
                assert_eq!(posted, round * POSTED_MAX as u64 + number);
            }
            assert_eq!(receiver.post(&memory, 0..9), Err(Error::PostedFull));
            let error = sender.send_posted(b"ten bytes!").unwrap_err();
            assert_eq!(error, Error::TooLong { len: 10, room: 9 });
            for number in 0..POSTED_MAX {
                sender.send_posted(format!("{number:9}").as_bytes()).unwrap().wait().unwrap();
            }
            for number in 0..POSTED_MAX {
                let arrived = receiver.receive_posted().unwrap();
                let mut text = [0; 10];
                arrived.memory.read(arrived.range.start, &mut text).unwrap();
                assert_eq!(text, format!("{number:9}\0").as_bytes(), "{path:?}");
            }
        }
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
                    Technique::V2pDma => sender.send_posted(&pattern(300_000, 1)).unwrap().wait().unwrap(),
                    _ => sender.send(&pattern(300_000, 1)).unwrap(),
                }
                sender.flush().unwrap();
            });
            let mut buffer = vec![0; 300_000];
            if technique == Technique::V2pDma {
                let memory = receiver.memory(300_000).unwrap();
                receiver.post(&memory, 0..300_000).unwrap();
                receiver.receive_posted().unwrap().memory.read(0, &mut buffer).unwrap();
            } else {
                assert_eq!(receiver.receive(&mut buffer).unwrap(), 300_000);
            }
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

#[test]
fn v2pdma_receivers_can_wait_before_anything_is_sent() {
    wait_early(Technique::V2pDma);
}

#[test]
fn pexdma_receivers_can_wait_before_anything_is_sent() {
    wait_early(Technique::PexDma);
}

#[test]
fn auto_receivers_can_wait_before_anything_is_sent() {
    wait_early(Technique::Auto);
}
