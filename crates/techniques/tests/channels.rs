//! Messages of every length at every alignment, received early and late, by every technique on
//! every path, with their contents checked.
//!
//! Invariant: a message arrives whole, once, in order, with the bytes that it had when it was sent.

mod common;

use common::{Ends, LONG, Nodes, PAGE, PATHS, Path, SHORT, assert_same, open, open_with, pattern, unique};
use std::time::{Duration, Instant};
use vmmc_techniques::{Error, Receiver, Sender, Technique};

/// Lengths around every edge: words, descriptors, pages, fragments, windows, pools.
const LENGTHS: [usize; 16] =
    [0, 1, 7, 8, 63, 64, 217, 4095, 4096, 4097, 65_535, 65_537, 150_001, 262_144, 262_145, 700_003];
const ALIGNMENTS: [usize; 4] = [0, 1, 8, 4095];

/// Sends from, and receives into, memory at these distances from a page.
fn through(ends: &mut Ends, len: usize, from: usize, into: usize, late: bool) {
    let memory = pattern(from + len, (len + from + into) as u8);
    let mut buffer = vec![0xEE; into + len + 1];
    let message = &memory[from..];
    let (sender, receiver) = (&mut ends.sender, &mut ends.receiver);
    let got = std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            if late {
                return sender.send(message);
            }
            // The receiver waits already.
            std::thread::sleep(Duration::from_millis(1));
            sender.send(message)
        });
        if late {
            std::thread::sleep(Duration::from_millis(1));
        }
        let got = receiver.receive(&mut buffer[into..into + len]).unwrap();
        sending.join().unwrap().unwrap();
        got
    });
    assert_eq!(got, len);
    assert_same(&buffer[into..into + len], message, &format!("{len} bytes from {from} to {into}"));
    assert_eq!(buffer[into + len], 0xEE);
}

#[test]
fn every_length_and_alignment_arrives_by_every_technique_on_every_path() {
    let nodes = Nodes::start();
    for path in PATHS {
        for technique in [Technique::Pio, Technique::CopyDma] {
            let mut ends = open(&nodes, path, technique);
            for (round, len) in LENGTHS.into_iter().enumerate() {
                let (from, into) = (ALIGNMENTS[round % 4], ALIGNMENTS[round / 4 % 4]);
                through(&mut ends, len, from, into, round % 2 == 0);
                through(&mut ends, len, into, from, round % 2 == 1);
            }
        }
    }
}

#[test]
fn agreed_memory_takes_every_range_on_every_path() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } =
            open_with(&nodes, path, Technique::DirectDma, |builder| builder.agreed(1 << 20));
        assert_eq!((sender.agreed().len(), receiver.agreed_bytes()), (1 << 20, 1 << 20));
        for (round, len) in LENGTHS.into_iter().enumerate() {
            let at = (ALIGNMENTS[round % 4] + round * PAGE) as u64;
            let message = pattern(len, round as u8);
            sender.agreed().write(at, &message).unwrap();
            sender.send_agreed(at..at + len as u64).unwrap().wait().unwrap();
            let mut seen = vec![0; len];
            if round % 2 == 0 {
                assert_eq!(receiver.receive_agreed().unwrap(), at..at + len as u64);
                receiver.read_agreed(at, &mut seen).unwrap();
            } else {
                assert_eq!(receiver.receive(&mut seen).unwrap(), len);
            }
            assert_same(&seen, &message, "agreed memory");
        }
        for range in [0..(1 << 20) + 1, 1 << 20..u64::MAX, u64::MAX - 1..u64::MAX] {
            assert!(matches!(sender.send_agreed(range), Err(Error::Outside { .. })));
        }
        assert!(matches!(receiver.read_agreed(1 << 20, &mut [0]), Err(Error::Outside { .. })));
    }
}

#[test]
fn messages_come_in_order_whatever_their_lengths() {
    let nodes = Nodes::start();
    for path in PATHS {
        for technique in [Technique::Pio, Technique::CopyDma] {
            let Ends { mut receiver, mut sender, .. } =
                open_with(&nodes, path, technique, |builder| builder.window(8192).pool(5 * 4096));
            let length = |number: usize| number * 7919 % 40_000;
            std::thread::scope(|scope| {
                scope.spawn(move || (0..120).for_each(|n| sender.send(&pattern(length(n), n as u8)).unwrap()));
                let mut buffer = vec![0; 40_000];
                for number in 0..120 {
                    let len = receiver.receive(&mut buffer).unwrap();
                    assert_same(&buffer[..len], &pattern(length(number), number as u8), &format!("message {number}"));
                }
            });
        }
    }
}

#[test]
fn a_message_that_does_not_fit_stays_and_can_be_discarded() {
    let nodes = Nodes::start();
    for technique in [Technique::Pio, Technique::CopyDma] {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, Path::Mapped, technique);
        for round in 0..3u8 {
            sender.send(&pattern(1000, round)).unwrap();
            let error = receiver.receive(&mut [0; 999]).unwrap_err();
            assert_eq!(error, Error::TooLong { len: 1000, room: 999 });
            let mut buffer = vec![0; 1000];
            assert_eq!(receiver.receive(&mut buffer).unwrap(), 1000);
            assert_same(&buffer, &pattern(1000, round), "the same message");
            sender.send(&[1; 5000]).unwrap();
            assert_eq!(receiver.discard().unwrap(), 5000);
        }
    }
}

#[test]
fn a_message_that_was_given_up_leaves_no_trace() {
    let nodes = Nodes::start();
    for path in PATHS {
        for technique in [Technique::Pio, Technique::CopyDma] {
            let Ends { mut receiver, mut sender, .. } =
                open_with(&nodes, path, technique, |builder| builder.window(8192).pool(8192));
            sender.set_timeout(SHORT);
            let error = sender.send(&pattern(100_000, 1)).unwrap_err();
            assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            receiver.set_timeout(SHORT);
            let mut buffer = vec![0; 100_000];
            // It takes what there is, and waits for the rest.
            assert!(matches!(receiver.receive(&mut buffer), Err(Error::TimedOut { .. })));
            (0..3).for_each(|_| {
                std::thread::scope(|scope| {
                    sender.set_timeout(LONG);
                    receiver.set_timeout(LONG);
                    let sender = &mut sender;
                    scope.spawn(move || sender.send(&pattern(50_000, 2)).unwrap());
                    assert_eq!(receiver.receive(&mut buffer).unwrap(), 50_000);
                    assert_same(&buffer[..50_000], &pattern(50_000, 2), "the message after it");
                });
            });
        }
    }
}

#[test]
fn an_interrupted_receive_goes_on_where_it_was() {
    let nodes = Nodes::start();
    let Ends { mut receiver, mut sender, .. } =
        open_with(&nodes, Path::Mapped, Technique::CopyDma, |builder| builder.pool(8 * 4096));
    receiver.set_timeout(Duration::from_millis(1));
    let message = pattern(3_000_000, 3);
    let mut buffer = vec![0; message.len()];
    std::thread::scope(|scope| {
        let message = &message;
        scope.spawn(move || {
            std::thread::sleep(SHORT);
            sender.send(message).unwrap();
        });
        let end = Instant::now() + LONG;
        loop {
            match receiver.receive(&mut buffer) {
                Ok(len) => break assert_eq!(len, message.len()),
                Err(Error::TimedOut { .. }) => assert!(Instant::now() < end),
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert_same(&buffer, &message, "in pieces");
}

#[test]
fn what_is_no_channel_is_refused_and_so_is_a_second_sender() {
    let nodes = Nodes::start();
    let session = nodes.attach(0);
    for (name, bytes) in [("short", 512), ("other", 1 << 20)] {
        let name = unique(name);
        let _export = session.export(bytes).name(&name).create().unwrap();
        let error = Sender::builder(&session, &name).connect().unwrap_err();
        assert!(matches!(error, Error::NoChannel { .. }), "{error}");
    }
    let name = unique("one");
    let _receiver = Receiver::builder(&session, &name).open().unwrap();
    let _first = Sender::builder(&session, &name).connect().unwrap();
    assert_eq!(Sender::builder(&session, &name).connect().unwrap_err(), Error::Taken { name });
    let huge = Receiver::builder(&session, &unique("huge")).pool(u64::MAX).open().unwrap_err();
    assert_eq!(huge, Error::TooLarge { bytes: u64::MAX });
}

#[test]
fn calls_of_other_techniques_say_so() {
    let nodes = Nodes::start();
    let Ends { mut receiver, mut sender, .. } = open(&nodes, Path::Mapped, Technique::CopyDma);
    assert!(matches!(sender.send_agreed(0..1), Err(Error::WrongTechnique { .. })));
    assert!(matches!(receiver.receive_agreed(), Err(Error::WrongTechnique { .. })));
    let Ends { mut sender, .. } = open(&nodes, Path::Mapped, Technique::DirectDma);
    assert!(matches!(sender.send(b"bytes"), Err(Error::WrongTechnique { .. })));
}

#[test]
fn an_end_that_leaves_is_an_error_of_the_other_one_after_what_it_sent() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, path, Technique::CopyDma);
        sender.send(b"last words").unwrap();
        sender.flush().unwrap();
        drop(sender);
        let mut buffer = [0; 10];
        assert_eq!(receiver.receive(&mut buffer).unwrap(), 10);
        assert!(matches!(receiver.receive(&mut buffer), Err(Error::SenderGone { .. })));
        let Ends { receiver, mut sender, .. } = open(&nodes, path, Technique::Pio);
        drop(receiver);
        let end = Instant::now() + LONG;
        while let Ok(()) = sender.send(b"nobody hears") {
            assert!(Instant::now() < end, "{path:?}");
        }
    }
}
