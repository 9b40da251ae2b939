//! Payloads of endpoints that are longer than one frame.

use crate::endpoints::{Ends, FRAME_BYTES, FRAMES, VERSION, ends, intrude};
use crate::nodes::{LONG, Nodes, SHORT, pattern};
use std::time::{Duration, Instant};
use vmmc::limits::RUN_KEPT;
use vmmc::{Connection, Endpoint, Frame, Gather, MessageError};

const MOST: u64 = FRAMES * FRAME_BYTES;

/// Length and bytes of a payload: of no frame, of one, of several, of all.
fn payload(index: u64) -> Vec<u8> {
    let len = match index % 8 {
        0 => 0,
        1 => 1,
        2 => FRAME_BYTES,
        3 => FRAME_BYTES + 1,
        4 => 2 * FRAME_BYTES,
        5 => MOST,
        _ => index * 1_237 % (MOST + 1),
    };
    pattern(len as usize, index as u8)
}

pub(crate) fn they_come_in_one_piece_and_go_back_as_a_whole(nodes: &dyn Nodes) {
    const EACH: u64 = 200;
    let Ends { mut endpoint, senders, sessions, .. } = ends(nodes);
    for (mut sender, session) in senders.into_iter().zip(&sessions) {
        assert_eq!((sender.payload_bytes_max(), sender.frame_bytes()), (MOST, FRAME_BYTES));
        let registered = session.buffer(MOST).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for index in 0..EACH {
                    let (control, mut bytes) = (index.to_le_bytes(), payload(index));
                    let (head, tail) = bytes.split_at(bytes.len() / 3);
                    match index % 3 {
                        0 => sender.send(&control, &bytes),
                        1 => sender.send(&control, Gather(&[head, tail])),
                        _ => {
                            registered.write(0, &bytes).unwrap();
                            sender.send(&control, registered.range(0..bytes.len() as u64))
                        }
                    }
                    .unwrap();
                    // It may change at once.
                    bytes.fill(0xee);
                    registered.write(0, &bytes).unwrap();
                }
                sender.flush().unwrap();
            });
            let mut lent = None;
            for index in 0..EACH {
                let mut message = endpoint.wait().unwrap();
                assert_eq!(message.control(), index.to_le_bytes());
                let frame = message.take_payload();
                check(frame.as_ref(), index);
                // Some, beside which the next one has room wherever they are, are kept until it has
                // come, then lent to a thread.
                let next = [1, 2, 7].contains(&(index % 8)).then_some((index, frame));
                if let Some((of, frame)) = std::mem::replace(&mut lent, next) {
                    scope.spawn(move || check(frame.as_ref(), of));
                }
            }
        });
    }
    assert_eq!(endpoint.counts().misbehaved, 0);
}

fn check(frame: Option<&Frame>, index: u64) {
    let bytes = frame.map_or(Vec::new(), Frame::to_vec);
    assert!(bytes == payload(index), "payload {index} of {} bytes", bytes.len());
}

pub(crate) fn one_waits_for_its_frames_and_short_ones_leave_them_alone(nodes: &dyn Nodes) {
    let Ends { mut endpoint, mut senders, .. } = ends(nodes);
    for sender in &mut senders {
        let (short, long) = (pattern(100, 1), pattern(FRAME_BYTES as usize + 1, 2));
        let mut held: Vec<Option<Frame>> =
            (0..FRAMES).map(|_| send(sender, &mut endpoint, &short, LONG)).map(Some).collect();
        // Frames 1 and 3 are free, and no two side by side.
        (held[1], held[3]) = (None, None);
        is_full(sender, &long);
        // The two highest are kept for it: of the others one is free.
        held[1] = Some(send(sender, &mut endpoint, &short, LONG));
        are_kept(sender, &mut endpoint, &long, &short);
        held[2] = None;
        let came = send(sender, &mut endpoint, &long, LONG);
        assert!(came.to_vec() == long);
        is_full(sender, &short);
        drop(came);
        // One that nobody sends any more holds the others up for a moment.
        is_full(sender, &pattern(3 * FRAME_BYTES as usize, 3));
        held[2] = Some(send(sender, &mut endpoint, &short, LONG));
        held[3] = Some(send(sender, &mut endpoint, &short, LONG));
        assert!(held.iter().flatten().all(|frame| frame.to_vec() == short));
        let all = pattern(MOST as usize, 4);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| sender.send_within(b"", &all, LONG));
            std::thread::sleep(SHORT);
            assert!(!waiting.is_finished(), "all frames are the program's");
            held.drain(..).for_each(drop);
            assert!(endpoint.wait().unwrap().payload().unwrap().to_vec() == all);
            waiting.join().unwrap().unwrap();
        });
    }
}

fn send(sender: &mut Connection, endpoint: &mut Endpoint, payload: &[u8], timeout: Duration) -> Frame {
    sender.send_within(b"", payload, timeout).unwrap();
    endpoint.wait().unwrap().take_payload().unwrap()
}

/// Frames are kept for a long payload, as long as they are.
fn are_kept(sender: &mut Connection, endpoint: &mut Endpoint, long: &[u8], short: &[u8]) {
    loop {
        let begun = Instant::now();
        is_full(sender, long);
        match sender.send_within(b"", short, Duration::ZERO) {
            Err(MessageError::Full { .. }) => return,
            Err(error) => panic!("{error}"),
            // This thread has not run meanwhile.
            Ok(()) => assert!(begun.elapsed() >= RUN_KEPT, "it has taken what is kept"),
        }
        endpoint.wait().unwrap();
    }
}

fn is_full(sender: &mut Connection, payload: &[u8]) {
    let full = sender.send_within(b"", payload, Duration::ZERO).unwrap_err();
    assert!(matches!(full, MessageError::Full { .. }), "{full}");
}

pub(crate) fn those_that_a_hostile_sender_makes_up_cost_it_its_channel(nodes: &dyn Nodes) {
    let Ends { mut endpoint, mut senders, sessions, .. } = ends(nodes);
    let long = FRAME_BYTES + 1;
    // Of which frame on, and how long: beyond the frames, or in one that the program has.
    let wild = [(3, long), (0, MOST + 1), (1, MOST), (4, 1), (0, u64::MAX >> 16), (0, long), (1, 1), (2, 1), (2, long)];
    for (session, sender) in sessions.iter().zip(&mut senders) {
        for (number, (first, bytes)) in (1..).zip(wild) {
            let channel = intrude(nodes, session, &mut endpoint, number, VERSION).channel;
            channel.send(channel.len() - MOST, &pattern(MOST as usize, 5)[..]).unwrap();
            // One that is well, of frames 1 and 2, then the other.
            for (message, (first, bytes)) in (1..).zip([(1, long), (first, bytes)]) {
                let head = (first + 1) << 8 | bytes << 16;
                let end = 256 + 192 * message;
                channel.send(end - 16, &[head.to_le_bytes(), message.to_le_bytes()].concat()[..]).unwrap();
            }
            let (before, mut came) = (endpoint.counts().misbehaved, None);
            let until = Instant::now() + LONG;
            while endpoint.counts().misbehaved == before {
                assert!(Instant::now() < until, "{bytes} bytes from frame {first} on were taken");
                let message = endpoint.poll().unwrap();
                came = message.and_then(|mut message| message.take_payload()).or(came);
            }
            // What came before is the program's.
            let bytes = pattern(MOST as usize, 5);
            assert!(came.unwrap().to_vec() == bytes[FRAME_BYTES as usize..][..long as usize], "{first} {bytes:?}");
            sender.send(b"honest", &bytes).unwrap();
            assert!(endpoint.wait().unwrap().payload().unwrap().to_vec() == bytes);
        }
    }
    assert_eq!(endpoint.counts().misbehaved, 2 * wild.len() as u64);
}
