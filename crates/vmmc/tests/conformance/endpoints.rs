//! Endpoints: messages of many senders, with payloads in frames.

use crate::nodes::{LONG, Nodes, SHORT, pattern, readable};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vmmc::{
    AppendOptions, Came, ConnectError, Connection, Endpoint, EndpointBuilder, ErrorKind, ExportId, Import, Kind,
    Message, MessageError, Path, Rights, Session, WaitError, WaitFor,
};

pub(super) const FRAMES: u64 = 4;
pub(super) const FRAME_BYTES: u64 = 4096;

pub(super) struct Ends {
    pub(super) owner: Session,
    pub(super) endpoint: Endpoint,
    /// One on the node of the endpoint, one on the other.
    pub(super) senders: Vec<Connection>,
    pub(super) sessions: Vec<Session>,
}

pub(super) fn inbox(nodes: &dyn Nodes, owner: &Session) -> EndpointBuilder {
    owner.endpoint("inbox").mappable(nodes.map_endpoints())
}

pub(super) fn ends(nodes: &dyn Nodes) -> Ends {
    let owner = nodes.attach(0);
    let mut endpoint = inbox(nodes, &owner).frames(FRAMES, FRAME_BYTES).create().unwrap();
    let sessions = vec![nodes.attach(0), nodes.attach(1)];
    let senders = sessions.iter().map(|session| connect(nodes, &mut endpoint, session)).collect();
    Ends { owner, endpoint, senders, sessions }
}

/// The owner polls while a sender connects.
pub(super) fn connect(nodes: &dyn Nodes, endpoint: &mut Endpoint, session: &Session) -> Connection {
    let node = nodes.name(0);
    std::thread::scope(|scope| {
        let opening = scope.spawn(move || session.connect("inbox").node(&node).wait(LONG).open());
        while !opening.is_finished() {
            assert!(endpoint.poll().unwrap().is_none(), "nobody has sent anything");
            std::thread::sleep(Duration::from_micros(200));
        }
        opening.join().unwrap().unwrap()
    })
}

pub(crate) fn messages_come_whole_with_their_payloads_in_the_order_of_each_sender(nodes: &dyn Nodes) {
    const EACH: u64 = 500;
    let Ends { mut endpoint, senders, .. } = ends(nodes);
    let paths: Vec<Path> = senders.iter().map(|sender| sender.explain().path).collect();
    let within = if nodes.map_endpoints() { Path::Mapped } else { Path::Engine };
    assert_eq!(paths, [within, Path::Network]);
    std::thread::scope(|scope| {
        for (mut sender, number) in senders.into_iter().zip(0u8..) {
            scope.spawn(move || {
                for index in 0..EACH {
                    let mut control = vec![number];
                    control.extend(index.to_le_bytes());
                    control.extend(pattern((index % 120) as usize, number));
                    let payload = pattern((index * 37 % (FRAME_BYTES + 1)) as usize, number ^ index as u8);
                    sender.send(&control, &payload[..]).unwrap();
                }
                sender.flush().unwrap();
                // It is dropped before the last of it may have been taken.
            });
        }
        let (mut next, mut kept) = ([0; 2], Vec::new());
        for _ in 0..2 * EACH {
            let mut message = endpoint.wait().unwrap();
            let (head, rest) = message.control().split_at(9);
            let (number, index) = (head[0], u64::from_le_bytes(head[1..].try_into().unwrap()));
            assert_eq!(index, next[usize::from(number)], "of sender {number}");
            next[usize::from(number)] += 1;
            assert!(rest == pattern((index % 120) as usize, number));
            assert_eq!(message.from().is_local(), number == 0);
            let payload = pattern((index * 37 % (FRAME_BYTES + 1)) as usize, number ^ index as u8);
            match message.take_payload() {
                Some(frame) => {
                    assert!(frame.to_vec() == payload, "{number} {index}");
                    // Some are kept for a while: the sender uses the others.
                    kept.push(frame);
                    kept.truncate(3);
                    kept.rotate_right(1);
                }
                None => assert!(payload.is_empty()),
            }
        }
        assert_eq!(next, [EACH; 2]);
    });
    assert!(endpoint.poll().unwrap().is_none());
    assert_eq!(endpoint.counts().messages, 2 * EACH);
}

pub(crate) fn a_sender_without_credit_waits_or_is_told_and_loses_nothing(nodes: &dyn Nodes) {
    let Ends { mut endpoint, mut senders, .. } = ends(nodes);
    for sender in &mut senders {
        let mut sent = 0u64;
        let full = loop {
            match sender.send_within(&sent.to_le_bytes(), b"", Duration::ZERO) {
                Ok(()) if sent > 1_000 => panic!("it has written over what was not taken"),
                Ok(()) => sent += 1,
                Err(full) => break full,
            }
        };
        assert!(matches!(full, MessageError::Full { after_ms: 0, .. }), "{full}");
        assert_eq!((full.kind(), sent, sender.outstanding().unwrap()), (ErrorKind::Full, 64, 64));
        let late = sender.send_within(b"late", b"", SHORT).unwrap_err();
        assert!(matches!(late, MessageError::Full { .. }), "{late}");
        for number in 0..sent {
            assert_eq!(endpoint.wait().unwrap().control(), number.to_le_bytes());
            assert_eq!(sender.outstanding().unwrap(), sent - number - 1);
        }
        assert!(endpoint.poll().unwrap().is_none());
        // Frames are the program's until they are dropped; messages without payload go on.
        let payload = pattern(100, 3);
        let frames: Vec<_> = (0..FRAMES)
            .map(|_| {
                sender.send(b"payload", &payload[..]).unwrap();
                endpoint.wait().unwrap().take_payload().unwrap()
            })
            .collect();
        let none = sender.send_within(b"payload", &payload[..], SHORT).unwrap_err();
        assert!(matches!(none, MessageError::Full { .. }), "{none}");
        sender.send(b"no payload", b"").unwrap();
        assert!(endpoint.wait().unwrap().payload().is_none());
        assert!(frames.iter().all(|frame| frame.to_vec() == payload));
        drop(frames);
        sender.send(b"payload", &payload[..]).unwrap();
        assert_eq!(endpoint.wait().unwrap().payload().unwrap().len(), 100);
    }
}

pub(crate) fn what_a_sender_heard_early_is_not_the_last_word(nodes: &dyn Nodes) {
    let Ends { mut endpoint, mut senders, .. } = ends(nodes);
    for sender in &mut senders {
        for round in 0..3u64 {
            for number in 0..64u64 {
                sender.send_within(&number.to_le_bytes(), b"", Duration::ZERO).unwrap_or_else(|error| {
                    panic!("all before round {round} was taken, and message {number} found no room: {error}")
                });
            }
            for number in 0..64u64 {
                assert_eq!(endpoint.wait().unwrap().control(), number.to_le_bytes());
            }
        }
        // Frames come back between the question and the next payload.
        for _ in 0..10 {
            for frame in 0..FRAMES {
                sender.send_within(b"", &pattern(9, frame as u8)[..], Duration::ZERO).unwrap();
            }
            for frame in 0..FRAMES {
                assert!(endpoint.wait().unwrap().payload().unwrap().to_vec() == pattern(9, frame as u8));
            }
        }
    }
}

pub(crate) fn a_sender_that_waits_goes_on_when_a_frame_comes_back_from_another_thread(nodes: &dyn Nodes) {
    let Ends { mut endpoint, mut senders, .. } = ends(nodes);
    for sender in &mut senders {
        let payloads: Vec<Vec<u8>> = (0..FRAMES + 1).map(|frame| pattern(FRAME_BYTES as usize, frame as u8)).collect();
        let frames: Vec<_> = payloads[..FRAMES as usize]
            .iter()
            .map(|payload| {
                sender.send(b"", payload).unwrap();
                endpoint.wait().unwrap().take_payload().unwrap()
            })
            .collect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| sender.send_within(b"", &payloads[FRAMES as usize], LONG));
            std::thread::sleep(SHORT);
            assert!(!waiting.is_finished(), "all frames are lent");
            // They are a thread's now, which has as long as it likes.
            let lent = scope.spawn(|| frames.into_iter().zip(&payloads).all(|(frame, sent)| frame.to_vec() == *sent));
            assert!(lent.join().unwrap());
            waiting.join().unwrap().unwrap();
        });
        assert!(endpoint.wait().unwrap().payload().unwrap().to_vec() == payloads[FRAMES as usize]);
    }
    // A frame outlives message, connection and endpoint.
    let payload = pattern(100, 9);
    senders[0].send(b"", &payload).unwrap();
    let frame = endpoint.wait().unwrap().take_payload().unwrap();
    drop((senders, endpoint));
    assert_eq!(frame.to_vec(), payload);
}

pub(crate) fn a_message_that_is_used_again_has_nothing_of_the_one_before(nodes: &dyn Nodes) {
    let Ends { owner, mut endpoint, mut senders, sessions } = ends(nodes);
    let mut message = Message::default();
    assert!(message.control().is_empty() && message.payload().is_none() && message.by_token().is_none());
    for (sender, session) in senders.iter_mut().zip(&sessions) {
        let payload = pattern(FRAME_BYTES as usize, 5);
        for round in 0..3 * FRAMES {
            // There is a frame for each, for the next message gives the last payload back.
            sender.send(&[round as u8; 128], &payload).unwrap();
            endpoint.wait_into(&mut message, owner.deadline(LONG)).unwrap();
            assert_eq!(message.control(), [round as u8; 128]);
            assert!(message.payload().unwrap().to_vec() == payload);
        }
        sender.send(b"short", b"").unwrap();
        endpoint.wait_into(&mut message, owner.deadline(LONG)).unwrap();
        assert!(message.control() == b"short" && message.payload().is_none() && message.by_token().is_none());
        assert!(!endpoint.poll_into(&mut message).unwrap() && message.control() == b"short", "none has come");
        let late = endpoint.wait_into(&mut message, owner.deadline(SHORT)).unwrap_err();
        assert!(matches!(late, WaitError::TimedOut { .. }) && message.control() == b"short", "{late}");

        let before = endpoint.counts().misbehaved;
        let Intruder { channel, .. } = intrude(nodes, session, &mut endpoint, 9, VERSION);
        channel.send(256 + 192 - 16, &[u64::MAX.to_le_bytes(), 1u64.to_le_bytes()].concat()[..]).unwrap();
        channel.flush().unwrap();
        while endpoint.counts().misbehaved == before {
            assert!(!endpoint.poll_into(&mut message).unwrap(), "that is no message");
        }
        assert!(message.control().is_empty() && message.payload().is_none(), "and leaves nothing behind");
    }
}

pub(crate) fn messages_of_two_parts_go_and_come_in_two(nodes: &dyn Nodes) {
    const HEAD: [u8; 16] = *b"a head of its ow";
    let Ends { mut endpoint, mut senders, .. } = ends(nodes);
    let mut message = Message::default();
    for sender in &mut senders {
        let mut send = |rest: &[u8]| {
            if !sender.send_at_once(&HEAD, rest) {
                assert!(!sender.is_mapped(), "there is room");
                sender.send(&[&HEAD, rest].concat(), b"").unwrap();
            }
        };
        let mut poll = |room: Option<usize>| {
            let (mut memory, mut shown) = ([0xee; 128], None);
            loop {
                let came = endpoint.poll_split(&mut message, |_, head: &[u8; 16], len| {
                    shown = Some((*head, len));
                    room.map(|room| &mut memory[..room])
                });
                match came.unwrap() {
                    Came::Nothing => std::thread::yield_now(),
                    Came::Message => break (shown, Err(message.control().to_vec())),
                    Came::Split => break (shown, Ok(memory)),
                }
            }
        };
        for len in [0, 1, 7, 8, 9, 16, 17, 64, 111, 112] {
            let rest = pattern(len, len as u8);
            let whole = [&HEAD, &rest[..]].concat();
            let shown = Some((HEAD, len));
            for room in [128, len] {
                send(&rest);
                let (seen, memory) = poll(Some(room));
                let memory = memory.expect("there is memory for it");
                assert_eq!(seen, shown);
                assert!(memory[..len] == rest && memory[len..].iter().all(|byte| *byte == 0xee), "{len}");
            }
            send(&rest);
            assert_eq!(poll(None), (shown, Err(whole.clone())));
            if len > 0 {
                send(&rest);
                assert_eq!(poll(Some(len - 1)), (shown, Err(whole)));
            }
        }
        // What is in one part can be taken in two, unless it has no head, or a payload.
        sender.send(&[3; 20], b"").unwrap();
        assert!(matches!(poll(Some(4)), (Some((head, 4)), Ok(memory)) if head == [3; 16] && memory[..4] == [3; 4]));
        for (control, payload) in [(15, 0), (0, 0), (16, 9), (128, FRAME_BYTES as usize)] {
            sender.send(&vec![5; control], &vec![6; payload]).unwrap();
            assert_eq!(poll(Some(128)), (None, Err(vec![5; control])));
        }
        assert!(!sender.send_at_once(&HEAD, &[0; 113]), "it is too long");
    }
    // Nothing is written over.
    let mapped = &mut senders[0];
    let sent = (0..1000u64).take_while(|number| mapped.send_at_once(&number.to_le_bytes(), b"")).count() as u64;
    assert!(if mapped.is_mapped() { (1..1000).contains(&sent) } else { sent == 0 });
    for number in 0..sent {
        assert_eq!(endpoint.wait().unwrap().control(), number.to_le_bytes());
    }
    assert_eq!(endpoint.counts().misbehaved, 0);
}

pub(crate) fn what_a_message_was_sent_from_may_change_at_once(nodes: &dyn Nodes) {
    let Ends { mut endpoint, senders, sessions, .. } = ends(nodes);
    for (mut sender, session) in senders.into_iter().zip(&sessions) {
        let registered = session.buffer(FRAME_BYTES).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut control, mut payload) = ([0; 128], vec![0; FRAME_BYTES as usize]);
                for round in 0..200u8 {
                    control.fill(round);
                    payload.fill(round);
                    if round % 2 == 0 {
                        sender.send(&control, &payload).unwrap();
                    } else {
                        registered.write(0, &payload).unwrap();
                        sender.send(&control, registered.range(0..FRAME_BYTES)).unwrap();
                        registered.write(0, &vec![0xee; FRAME_BYTES as usize]).unwrap();
                    }
                    control.fill(0xee);
                    payload.fill(0xee);
                }
                sender.flush().unwrap();
            });
            for round in 0..200u8 {
                let message = endpoint.wait().unwrap();
                assert!(message.control() == [round; 128], "{round}");
                assert!(message.payload().unwrap().to_vec() == vec![round; FRAME_BYTES as usize], "{round}");
            }
        });
    }
}

pub(crate) fn senders_that_flood_take_turns_with_the_others(nodes: &dyn Nodes) {
    let Ends { mut endpoint, mut senders, .. } = ends(nodes);
    for (flood, quiet) in [(0, 1), (1, 0)] {
        let mut sent = 0;
        while senders[flood].send_within(b"flood", b"", Duration::ZERO).is_ok() {
            sent += 1;
        }
        for sender in [flood, quiet] {
            if sender == quiet {
                senders[quiet].send(b"quiet", b"").unwrap();
            }
            senders[sender].flush().unwrap();
        }
        // Whoever is first in turn: the one message does not come behind all of the others, but for
        // those that are taken before the board is looked at.
        let first = (1..=sent + 1).find(|_| endpoint.wait().unwrap().control() == b"quiet").unwrap();
        assert!(first <= 40, "it came as number {first} of {}", sent + 1);
        (first..=sent).for_each(|_| assert_eq!(endpoint.wait().unwrap().control(), b"flood"));
        assert!(endpoint.poll().unwrap().is_none());
    }
}

/// What a sender does that is killed before the last word of its message, the number.
pub(crate) fn a_sender_that_dies_in_mid_message_leaves_nothing_half_visible(nodes: &dyn Nodes) {
    let Ends { owner, mut endpoint, mut senders, .. } = ends(nodes);
    let dying = [nodes.attach(0), nodes.attach(1)];
    let in_now: Vec<Intruder> = dying
        .iter()
        .zip(1..)
        .map(|(session, number)| intrude(nodes, session, &mut endpoint, number, VERSION))
        .collect();
    for (session, Intruder { channel, .. }) in dying.iter().zip(&in_now) {
        let head = (8u64 | 1 << 8 | 100 << 16).to_le_bytes();
        // One whole message, then one whose payload, data and head are there.
        let end = 256 + 192;
        channel.send(end - 24, &[*b"complete", 8u64.to_le_bytes(), 1u64.to_le_bytes()].concat()[..]).unwrap();
        channel.send(channel.len() - FRAMES * FRAME_BYTES, &[7; 100][..]).unwrap();
        channel.send(end + 192 - 24, &[*b"half of ", head].concat()[..]).unwrap();
        channel.flush().unwrap();
        session.leave();
    }
    for _ in 0..2 {
        assert_eq!(endpoint.wait().unwrap().control(), b"complete");
    }
    let end = endpoint.wait_by(owner.deadline(SHORT)).unwrap_err();
    assert!(matches!(end, WaitError::TimedOut { .. }), "{end}");
    assert_eq!(endpoint.counts().misbehaved, 0);
    for sender in &mut senders {
        sender.send(b"all well", b"payload").unwrap();
        assert_eq!(endpoint.wait().unwrap().payload().unwrap().to_vec(), b"payload");
    }
}

pub(crate) fn a_sender_without_a_pause_holds_up_nobody_who_connects(nodes: &dyn Nodes) {
    let owner = nodes.attach(0);
    let mut endpoint = inbox(nodes, &owner).create().unwrap();
    let sessions = [nodes.attach(0), nodes.attach(0)];
    let mut first = connect(nodes, &mut endpoint, &sessions[0]);
    // There is always a message to be found.
    (0..32).for_each(|_| first.send(b"and on", b"").unwrap());
    first.flush().unwrap();
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| sessions[1].connect("inbox").wait(LONG).open());
        while !opening.is_finished() {
            first.send(b"and on", b"").unwrap();
            assert_eq!(endpoint.wait().unwrap().control(), b"and on");
        }
        opening.join().unwrap().unwrap();
    });
    assert_eq!(endpoint.senders(), 2);
}

pub(crate) fn a_sender_that_was_silent_for_long_is_heard(nodes: &dyn Nodes) {
    let Ends { owner, mut endpoint, mut senders, .. } = ends(nodes);
    for round in 0..3u64 {
        // Longer than it takes to be quiet, by polls or by a wait.
        if round == 1 {
            let end = endpoint.wait_by(owner.deadline(SHORT)).unwrap_err();
            assert!(matches!(end, WaitError::TimedOut { .. }), "{end}");
        } else {
            (0..50_000).for_each(|_| assert!(endpoint.poll().unwrap().is_none()));
        }
        std::thread::scope(|scope| {
            for sender in &mut senders {
                scope.spawn(move || {
                    std::thread::sleep(SHORT);
                    sender.send(&round.to_le_bytes(), b"").unwrap();
                    sender.flush().unwrap();
                });
            }
            let mut taken = 0;
            while taken < 2 {
                if round == 2 {
                    assert_eq!(owner.wait_any(&mut [WaitFor::Notification, WaitFor::Message(&endpoint)]).unwrap(), 1);
                }
                if let Some(message) = endpoint.poll().unwrap() {
                    assert_eq!(message.control(), round.to_le_bytes());
                    taken += 1;
                }
            }
        });
    }
}

pub(crate) fn senders_come_and_go_and_leave_no_place_behind(nodes: &dyn Nodes) {
    let Ends { mut endpoint, senders, sessions, .. } = ends(nodes);
    assert_eq!(endpoint.senders(), 2);
    drop(senders);
    for round in 0..20u8 {
        for session in &sessions {
            let mut sender = connect(nodes, &mut endpoint, session);
            sender.send(&[round], b"last words").unwrap();
            drop(sender);
            assert_eq!(endpoint.wait().unwrap().control(), [round]);
        }
    }
    while endpoint.senders() > 0 {
        assert!(endpoint.poll().unwrap().is_none());
    }
    assert_eq!((endpoint.counts().accepted, endpoint.counts().refused), (42, 0));
}

pub(crate) fn a_sender_that_dies_leaves_no_place_behind(nodes: &dyn Nodes) {
    let Ends { owner, mut endpoint, mut senders, sessions } = ends(nodes);
    for sender in &mut senders {
        sender.send(b"last words", b"").unwrap();
        sender.flush().unwrap();
    }
    // To its node a process that leaves has died.
    sessions.iter().for_each(Session::leave);
    drop(senders);
    for _ in 0..2 {
        assert_eq!(endpoint.wait().unwrap().control(), b"last words");
    }
    for _ in 0..200 {
        if endpoint.senders() == 0 {
            break;
        }
        let end = endpoint.wait_by(owner.deadline(SHORT)).unwrap_err();
        assert!(matches!(end, WaitError::TimedOut { .. }), "{end}");
    }
    assert_eq!(endpoint.senders(), 0);
    let session = nodes.attach(1);
    connect(nodes, &mut endpoint, &session).send(b"the next", b"").unwrap();
    assert_eq!(endpoint.wait().unwrap().control(), b"the next");
}

pub(crate) fn what_cannot_be_is_an_error_that_says_what_to_do(nodes: &dyn Nodes) {
    let Ends { owner, endpoint, mut senders, sessions } = ends(nodes);
    for sender in &mut senders {
        let long = sender.send(&[0; 129], b"").unwrap_err();
        assert!(long.to_string().contains("129 bytes; up to 128 fit"), "{long}");
        let long = sender.send(b"", &vec![0; 16385][..]).unwrap_err();
        assert!(long.to_string().contains("16385 bytes, and its frames have 16384 together"), "{long}");
        assert_eq!(long.kind(), ErrorKind::Invalid);
    }
    let frames = owner.endpoint("other").frames(65, 8).create().unwrap_err();
    assert!(frames.to_string().contains("ask for up to 64"), "{frames}");
    assert_eq!(owner.endpoint("inbox").create().unwrap_err().kind(), ErrorKind::NameTaken);
    let _export = owner.export(4096).name("plain").create().unwrap();
    for session in &sessions {
        let node = nodes.name(0);
        let unknown = session.connect("nobody").node(&node).open().unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::UnknownName, "{unknown}");
        let plain = session.connect("plain").node(&node).open().unwrap_err();
        assert!(matches!(plain, ConnectError::Transfer { .. }), "{plain}");
        // Nobody polls.
        let silent = session.connect("inbox").node(&node).wait(SHORT).open().unwrap_err();
        assert!(matches!(silent, ConnectError::TimedOut { .. }), "{silent}");
    }
    drop(endpoint);
    for sender in &mut senders {
        // Between nodes the word of it may be under way.
        let ended = std::iter::repeat_with(|| sender.send(b"hello", b"").and_then(|()| sender.flush()))
            .find_map(Result::err)
            .unwrap();
        assert_eq!(ended.kind(), ErrorKind::Revoked, "{ended}");
    }
}

pub(crate) fn an_event_loop_hears_of_messages_and_senders(nodes: &dyn Nodes) {
    let owner = nodes.attach(0);
    let mut endpoint = inbox(nodes, &owner).notify(true).create().unwrap();
    let sessions = [nodes.attach(0), nodes.attach(1)];
    // A sender can only be let in when the loop has heard of it.
    let mut senders: Vec<Connection> = sessions
        .iter()
        .map(|session| {
            let node = nodes.name(0);
            std::thread::scope(|scope| {
                let opening = scope.spawn(move || session.connect("inbox").node(&node).wait(LONG).open());
                while !opening.is_finished() {
                    if is_readable(&endpoint, SHORT) {
                        assert!(endpoint.poll().unwrap().is_none(), "nobody has sent anything");
                    }
                }
                opening.join().unwrap().unwrap()
            })
        })
        .collect();
    for round in 0..50u64 {
        for sender in &mut senders {
            sender.send(&round.to_le_bytes(), b"").unwrap();
            // The loop may be about to sleep, or has found nothing long ago.
            if round % 7 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            let message = loop {
                assert!(is_readable(&endpoint, LONG), "round {round}: the loop never heard of it");
                if let Some(message) = endpoint.poll().unwrap() {
                    break message;
                }
            };
            assert_eq!(message.control(), round.to_le_bytes());
            assert!(endpoint.poll().unwrap().is_none());
        }
    }
    assert!(!is_readable(&endpoint, SHORT), "readable with nothing to take");
    assert!(owner.take_notification().is_none(), "those of an endpoint are for the endpoint");
    // Another loop of the session is not robbed of what it waits for.
    let export = owner.export(8).name("other").notify(true).create().unwrap();
    let other = sessions[1].import("other").node(&nodes.name(0)).open().unwrap();
    other.send_with(0, b"!", vmmc::SendOptions::notify()).unwrap();
    other.flush().unwrap();
    senders[0].send(b"both", b"").unwrap();
    while endpoint.poll().unwrap().is_none() {
        assert!(is_readable(&endpoint, LONG));
    }
    assert!(readable(owner.event_fd().unwrap(), LONG) && export.take_notification().is_some());
    let plain = owner.endpoint("plain").create().unwrap();
    let refused = plain.event_fd().unwrap_err();
    assert!(matches!(refused, WaitError::NotAllowed { .. }), "{refused}");
}

/// The loop and the thread share what wakes their process.
pub(crate) fn an_event_loop_leaves_wake_ups_to_a_thread_that_waits(nodes: &dyn Nodes) {
    const APPENDS: u64 = 300;
    let owner = nodes.attach(0);
    let mut endpoint = inbox(nodes, &owner).notify(true).create().unwrap();
    let session = nodes.attach(1);
    let mut ring = session.ring(1 << 16).name("records").create().unwrap();
    let import = owner.import("records").node(&nodes.name(1)).rights(Rights::WRITE).open().unwrap();
    let slowest = std::thread::scope(|scope| {
        let taking = scope.spawn(move || (0..APPENDS).for_each(|_| _ = ring.wait().unwrap()));
        let waiting = scope.spawn(|| {
            let append = |word| {
                let begun = std::time::Instant::now();
                import.append(b"", AppendOptions::word(word)).unwrap();
                begun.elapsed()
            };
            (0..APPENDS).map(append).max().unwrap()
        });
        while !waiting.is_finished() {
            assert!(endpoint.poll().unwrap().is_none(), "nobody has sent anything");
        }
        taking.join().unwrap();
        waiting.join().unwrap()
    });
    // One that is robbed of its wake-up waits for all its time, `LONG`.
    assert!(slowest < LONG / 2, "{slowest:?}");
}

fn is_readable(endpoint: &Endpoint, timeout: Duration) -> bool {
    readable(endpoint.event_fd().unwrap(), timeout)
}

pub(crate) fn a_handler_gets_every_message_and_gives_the_endpoint_back(nodes: &dyn Nodes) {
    const EACH: u64 = 200;
    let Ends { endpoint, senders, .. } = ends(nodes);
    let (said, heard) = std::sync::mpsc::channel();
    let handler = endpoint
        .on_message(move |message| {
            let payload = message.payload().map(|frame| frame.to_vec());
            // Nobody listens any more once the test has failed.
            let _ = said.send((message.control().to_vec(), payload));
        })
        .unwrap();
    for mut sender in senders {
        for number in 0..EACH {
            sender.send(&number.to_le_bytes(), &number.to_le_bytes()[..]).unwrap();
        }
        sender.flush().unwrap();
        for number in 0..EACH {
            let expected = (number.to_le_bytes().to_vec(), Some(number.to_le_bytes().to_vec()));
            assert_eq!(heard.recv_timeout(LONG), Ok(expected));
        }
    }
    let endpoint = handler.stop().expect("it did not panic");
    assert_eq!(endpoint.counts().messages, 2 * EACH);
    assert!(heard.recv().is_err(), "the handler is gone");
}

/// What ends of an endpoint say to each other is of this version.
pub(super) const VERSION: u64 = 3;

/// One that has connected by hand, as the library does it.
pub(super) struct Intruder {
    number: u64,
    calls: Import,
    pub(super) channel: Import,
    /// If it is in.
    board: Option<Import>,
}

pub(super) fn intrude(
    nodes: &dyn Nodes,
    session: &Session,
    endpoint: &mut Endpoint,
    number: u64,
    version: u64,
) -> Intruder {
    let node = nodes.name(0);
    let calls = session.import("inbox").node(&node).rights(Rights::WRITE).open().unwrap();
    let call: Vec<u8> = [1, version, number].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    calls.append(&call, AppendOptions::default()).unwrap();
    let before = endpoint.counts();
    while (endpoint.counts().accepted, endpoint.counts().refused) == (before.accepted, before.refused) {
        endpoint.poll().unwrap();
    }
    let channel = session.import(&format!("inbox.{number:016x}")).node(&node).open().unwrap();
    let mut welcome = [0; 56];
    channel.fetch(128, &mut welcome[..]).unwrap();
    let word = |at: usize| u64::from_le_bytes(welcome[at * 8..][..8].try_into().unwrap());
    assert_eq!((word(0), word(1)), (VERSION, u64::from(version == VERSION)), "its version, and whether we are in");
    let board = || session.import_id(ExportId::from_u64(word(4))).node(&node).open().unwrap();
    Intruder { number, calls, channel, board: (version == VERSION).then(board) }
}

/// Polls until nobody is polled but by the board; the board then.
fn unmarked(endpoint: &mut Endpoint, board: &Import) -> [u8; 2048] {
    (0..50_000).for_each(|_| assert!(endpoint.poll().unwrap().is_none()));
    let mut marks = [0; 2048];
    board.fetch(0, &mut marks[..]).unwrap();
    marks
}

pub(crate) fn a_message_whose_mark_another_takes_off_the_board_is_heard(nodes: &dyn Nodes) {
    let Ends { mut endpoint, mut senders, sessions, .. } = ends(nodes);
    let board = intrude(nodes, &sessions[1], &mut endpoint, 7, VERSION).board.unwrap();
    for sender in &mut senders {
        let before = unmarked(&mut endpoint, &board);
        sender.send(b"marked", b"").unwrap();
        sender.flush().unwrap();
        board.send(0, &before[..]).unwrap();
        board.flush().unwrap();
        assert_eq!(endpoint.wait().unwrap().control(), b"marked");
    }
}

/// The same while the owner sleeps, and its marks are taken off all the time.
pub(crate) fn a_message_whose_mark_another_takes_off_the_board_wakes_its_owner(nodes: &dyn Nodes) {
    let Ends { mut endpoint, mut senders, sessions, .. } = ends(nodes);
    let board = intrude(nodes, &sessions[1], &mut endpoint, 7, VERSION).board.unwrap();
    for sender in &mut senders {
        let before = unmarked(&mut endpoint, &board);
        let over = AtomicBool::new(false);
        let came = std::thread::scope(|scope| {
            let taken_off = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    board.send(0, &before[..]).and_then(|()| board.flush()).unwrap();
                }
            });
            let owner = scope.spawn(|| endpoint.wait().map(|message| message.control().to_vec()));
            // Longer than it polls.
            std::thread::sleep(Duration::from_millis(30));
            let sent = sender.send(b"marked", b"").and_then(|()| sender.flush());
            let came = owner.join();
            over.store(true, Ordering::Relaxed);
            (sent, came.unwrap(), taken_off.join())
        });
        assert!(came.0.is_ok() && came.2.is_ok(), "{came:?}");
        assert_eq!(came.1.unwrap(), b"marked");
    }
}

/// A sender that writes whatever it can, wherever it can, harms nobody else.
pub(crate) fn a_hostile_sender_is_cut_off_and_others_are_served(nodes: &dyn Nodes) {
    let Ends { mut endpoint, mut senders, sessions, .. } = ends(nodes);
    let mut rng = vmmc_utlb::Rng::new(11);
    for session in &sessions {
        for round in 0..40u64 {
            let version = if round % 8 == 7 { 9 } else { VERSION };
            let Intruder { number, calls, channel, board } =
                intrude(nodes, session, &mut endpoint, rng.below(u64::MAX), version);
            if let Some(board) = board {
                let noise: Vec<u8> = (0..2048).map(|_| rng.below(256) as u8).collect();
                board.send(0, &noise[..]).unwrap();
                // A message whose head is wild, then all of its memory.
                let head = rng.below(u64::MAX).to_le_bytes();
                channel.send(256 + 192 - 16, &[head, 1u64.to_le_bytes()].concat()[..]).unwrap();
                if round % 2 == 0 {
                    let noise: Vec<u8> = (0..channel.len()).map(|_| rng.below(256) as u8).collect();
                    channel.send(0, &noise[..]).unwrap();
                }
                channel
                    .flush()
                    .and(board.flush())
                    .or_else(|e| if e.kind() == ErrorKind::Revoked { Ok(()) } else { Err(e) })
                    .unwrap();
            }
            calls.append(&pattern(round as usize % 30, 1), AppendOptions::default()).unwrap();
            for sender in &mut senders {
                sender.send(&number.to_le_bytes(), b"honest").unwrap();
            }
            for _ in 0..2 {
                let message = loop {
                    let message = endpoint.wait().unwrap();
                    if message.control() == number.to_le_bytes() {
                        break message;
                    }
                };
                assert_eq!(message.payload().unwrap().to_vec(), b"honest");
            }
        }
    }
    assert!(endpoint.counts().misbehaved > 0 && endpoint.counts().refused > 0, "{:?}", endpoint.counts());
}

/// What comes wakes the owner, so it does not look by itself all the time. A thousand sleeps of the
/// longest kind of other waits would fit in between.
pub(crate) fn an_owner_that_waits_in_vain_sleeps(nodes: &dyn Nodes) {
    let mut s = ends(nodes);
    let before = s.owner.stats().sleeps;
    for _ in 0..2 {
        let none = s.endpoint.wait_by(s.owner.deadline(Duration::from_millis(250)));
        assert!(matches!(none, Err(WaitError::TimedOut { .. })), "{none:?}");
    }
    let slept = s.owner.stats().sleeps - before;
    assert!(slept < 100, "{slept} sleeps");
    // Those that are not polled any more are heard.
    for sender in &mut s.senders {
        sender.send(b"after a while", b"").unwrap();
        assert_eq!(s.endpoint.wait().unwrap().control(), b"after a while");
    }
}
