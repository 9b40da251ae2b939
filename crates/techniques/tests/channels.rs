//! Messages of every length at every alignment, received early and late, by every technique on
//! every path, with their contents checked.
//!
//! Invariant: a message arrives whole, once, in order, with the bytes that it had when it was sent.

mod common;

use common::{Ends, LONG, Nodes, PAGE, PATHS, Path, SHORT, assert_same, open, open_with, pattern, unique};
use std::time::{Duration, Instant};
use vmmc_techniques::limits::{FRAGMENT_BYTES, LENT_FRAGMENT_BYTES};
use vmmc_techniques::{Error, PageBuffer, Receiver, Sender, Technique};

/// Where a channel counts the fragments that its receiver has taken, as src/protocol.rs has it.
const FRAGMENTS_TAKEN: u64 = 128;

/// Techniques whose messages come from any memory and go to any.
const FROM_SLICES: [Technique; 4] = [Technique::Pio, Technique::CopyDma, Technique::PexDma, Technique::Auto];

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
        for technique in FROM_SLICES {
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
fn every_length_and_alignment_arrives_from_pages_and_in_pages_on_every_path() {
    let nodes = Nodes::start();
    for path in PATHS {
        for technique in FROM_SLICES {
            let Ends { mut receiver, mut sender, user, .. } =
                open_with(&nodes, path, technique, |builder| builder.pages(2 << 20));
            let mut from = PageBuffer::new(&user, 1 << 20).unwrap();
            // One of the channel, whose pages can be exchanged, and one that is not.
            let mut ours = receiver.page_buffer(1 << 20).unwrap();
            let mut others = PageBuffer::new(&user, 1 << 20).unwrap();
            for (round, len) in LENGTHS.into_iter().enumerate() {
                let (at, to) = (ALIGNMENTS[round % 4] as u64, ALIGNMENTS[round / 2 % 4] as u64);
                for into in [&mut ours, &mut others] {
                    let what = format!("{technique} on {path:?}: {len} bytes from {at} to {to}");
                    let message = pattern(len, round as u8);
                    from.write(at, &message).unwrap();
                    into.write(0, &vec![0xEE; 1 << 20]).unwrap();
                    let range = at..at + len as u64;
                    let received = std::thread::scope(|scope| {
                        scope.spawn(|| sender.send_pages(&mut from, range).unwrap());
                        receiver.receive_pages(into, to).unwrap()
                    });
                    assert_eq!(received.len, len as u64);
                    let mut seen = vec![0; len];
                    into.read(to, &mut seen).unwrap();
                    assert_same(&seen, &message, &what);
                    let rest = (1 << 20) - to as usize - len;
                    let mut after = vec![0; rest.min(5000)];
                    into.read(to + len as u64, &mut after).unwrap();
                    assert!(after.iter().all(|byte| *byte == 0xEE), "{what}: beyond it");
                }
            }
        }
    }
}

#[test]
fn pages_are_exchanged_where_they_are_whole_and_aligned_and_copied_where_not() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, user, .. } = open(&nodes, path, Technique::PexDma);
        let mut from = PageBuffer::new(&user, 256 << 10).unwrap();
        let mut into = receiver.page_buffer(256 << 10).unwrap();
        // Length, where it goes, pages to be exchanged.
        for (len, to, pages) in [(4096, 0, 1), (4095, 0, 0), (10_000, 4096, 2), (10_000, 8, 0), (200_000, 0, 48)] {
            from.write(0, &pattern(len, pages as u8)).unwrap();
            sender.send_pages(&mut from, 0..len as u64).unwrap();
            let received = receiver.receive_pages(&mut into, to).unwrap();
            assert_eq!((received.len, received.pages_exchanged), (len as u64, pages), "{path:?}");
            let mut seen = vec![0; len];
            into.read(to, &mut seen).unwrap();
            assert_same(&seen, &pattern(len, pages as u8), "exchanged and copied");
        }
        // A buffer of others, and a slice.
        let mut other = PageBuffer::new(&user, 8192).unwrap();
        sender.send(&[3; 8192]).unwrap();
        assert_eq!(receiver.receive_pages(&mut other, 0).unwrap().pages_exchanged, 0);
        sender.send(&[4; 8192]).unwrap();
        assert_eq!(receiver.receive_pages(&mut into, 0).unwrap().pages_exchanged, 2);
    }
}

#[test]
fn messages_are_exchanged_from_the_length_on_that_the_receiver_says_where_the_channel_chooses() {
    let nodes = Nodes::start();
    let long = 1 << 20;
    for (path, from_long_on) in PATHS.into_iter().flat_map(|path| [(path, false), (path, true)]) {
        let Ends { mut receiver, mut sender, owner, user } = open_with(&nodes, path, Technique::Auto, |builder| {
            let builder = builder.pages(2 * long as u64);
            if from_long_on { builder.exchange_from(long as u64) } else { builder }
        });
        let channel = user.import(sender.name()).node(&owner.node().name).open().unwrap();
        let fragments_taken = || {
            let mut taken = [0; 8];
            channel.fetch(FRAGMENTS_TAKEN, &mut taken[..]).unwrap();
            u64::from_le_bytes(taken)
        };
        let mut from = PageBuffer::new(&user, long as u64).unwrap();
        let mut into = receiver.page_buffer(2 * long as u64).unwrap();
        let whole = if from_long_on { long / PAGE } else { 0 };
        for (len, to, pages) in [(8192, 0, 0), (long - 1, 0, 0), (long, 0, whole), (long, 1, 0)] {
            from.write(0, &pattern(len, len as u8)).unwrap();
            let before = fragments_taken();
            std::thread::scope(|scope| {
                scope.spawn(|| sender.send_pages(&mut from, 0..len as u64).unwrap());
                let received = receiver.receive_pages(&mut into, to).unwrap();
                assert_eq!((received.len, received.pages_exchanged), (len as u64, pages as u64), "{path:?}");
            });
            let mut seen = vec![0; len];
            into.read(to, &mut seen).unwrap();
            assert_same(&seen, &pattern(len, len as u8), "by a channel that chooses");
            // The sender knows what is exchanged, and lends it in long runs.
            let most = if from_long_on && len == long { LENT_FRAGMENT_BYTES } else { FRAGMENT_BYTES };
            assert_eq!(fragments_taken() - before, (len as u64).div_ceil(most), "{len} bytes on {path:?}");
        }
    }
}

#[test]
fn pages_of_buffers_come_back_and_no_more_are_given_than_there_are() {
    let nodes = Nodes::start();
    let Ends { mut receiver, mut sender, .. } =
        open_with(&nodes, Path::Mapped, Technique::PexDma, |builder| builder.pages(64 << 10));
    for round in 0..10u8 {
        let mut first = receiver.page_buffer(40 << 10).unwrap();
        let error = receiver.page_buffer(28 << 10).unwrap_err();
        assert_eq!(error, Error::NoPages { pages: 7, free: 6 });
        sender.send(&pattern(40 << 10, round)).unwrap();
        assert_eq!(receiver.receive_pages(&mut first, 0).unwrap().pages_exchanged, 10);
        let mut seen = vec![0; 40 << 10];
        first.read(0, &mut seen).unwrap();
        assert_same(&seen, &pattern(40 << 10, round), "in a new buffer");
    }
    assert!(receiver.page_buffer(64 << 10).is_ok());
}

#[test]
fn what_was_received_by_exchange_can_be_sent_on_and_received_into_again() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, user, owner } = open(&nodes, path, Technique::PexDma);
        let name = unique("onward");
        let mut last = Receiver::builder(&user, &name).technique(Technique::PexDma).open().unwrap();
        let mut onward = Sender::builder(&owner, &name).node(&user.node().name).connect().unwrap();
        let (mut here, mut there) = (receiver.page_buffer(64 << 10).unwrap(), last.page_buffer(64 << 10).unwrap());
        for round in 0..20 {
            sender.send(&pattern(64 << 10, round)).unwrap();
            // Pages that are lent yet are not given away.
            receiver.receive_pages(&mut here, 0).unwrap();
            onward.send_pages(&mut here, 0..64 << 10).unwrap();
            last.receive_pages(&mut there, 0).unwrap();
            let mut seen = vec![0; 64 << 10];
            there.read(0, &mut seen).unwrap();
            assert_same(&seen, &pattern(64 << 10, round), "sent on");
        }
    }
}

#[test]
fn posted_memory_of_every_kind_takes_every_length_on_every_path() {
    let nodes = Nodes::start();
    for path in PATHS {
        let Ends { mut receiver, mut sender, .. } = open(&nodes, path, Technique::V2pDma);
        let memories = [receiver.memory(1 << 20).unwrap(), receiver.adopt(vec![0; 800_000]).unwrap()];
        for (round, len) in LENGTHS.into_iter().enumerate() {
            let memory = &memories[round % 2];
            let at = ALIGNMENTS[round % 4] as u64;
            let number = receiver.post(memory, at..at + len as u64 + 7).unwrap();
            assert_eq!(number, round as u64);
            let message = pattern(len + 9, round as u8);
            sender.send_posted(&message[9..]).unwrap().wait().unwrap();
            let arrived = receiver.receive_posted().unwrap();
            assert_eq!((arrived.number, arrived.range), (number, at..at + len as u64), "{path:?}");
            let mut seen = vec![0; len];
            arrived.memory.read(at, &mut seen).unwrap();
            assert_same(&seen, &message[9..], "in posted memory");
        }
        for range in [0..(1 << 20) + 1, 9..u64::MAX, u64::MAX..u64::MAX] {
            assert!(matches!(receiver.post(&memories[0], range), Err(Error::Outside { .. })));
        }
    }
}

#[test]
fn messages_come_in_order_whatever_their_lengths() {
    let nodes = Nodes::start();
    for path in PATHS {
        for technique in FROM_SLICES {
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
    for technique in FROM_SLICES {
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
        for technique in FROM_SLICES {
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
    assert!(matches!(receiver.receive_posted(), Err(Error::WrongTechnique { .. })));
    assert!(matches!(receiver.memory(4096), Err(Error::WrongTechnique { .. })));
    assert!(matches!(sender.send_posted(b"bytes"), Err(Error::WrongTechnique { .. })));
    for technique in [Technique::DirectDma, Technique::V2pDma] {
        let Ends { mut sender, user, .. } = open(&nodes, Path::Mapped, technique);
        assert!(matches!(sender.send(b"bytes"), Err(Error::WrongTechnique { .. })));
        let mut pages = PageBuffer::new(&user, 4096).unwrap();
        assert!(matches!(sender.send_pages(&mut pages, 0..1), Err(Error::WrongTechnique { .. })));
    }
    let Ends { mut receiver, .. } = open(&nodes, Path::Mapped, Technique::V2pDma);
    assert!(matches!(receiver.receive(&mut [0]), Err(Error::WrongTechnique { .. })));
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
