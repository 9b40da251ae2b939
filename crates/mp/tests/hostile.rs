//! A member that speaks as it likes: it harms nobody but itself.

mod common;

use common::{LONG, Nodes, unique};
use vmmc::{Connection, ExportId, PayloadToken};
use vmmc_mp::limits::{ASKS_MAX, INLINE_BYTES_MAX};
use vmmc_mp::wire::{HEAD_BYTES, Said, VERSION};
use vmmc_mp::{Gone, Group, MpError, Select};

/// Of three members the last one, which has a connection and no messages.
const HOSTILE: u32 = 2;

/// Runs two members, and `acts` as what the third one does to the first. Afterwards the first two
/// go on, and the first one says what it thinks of the third.
fn against(acts: impl FnOnce(&mut Connection) + Send) -> (Option<MpError>, u64) {
    let (nodes, name) = (Nodes::start(1), unique("hostile"));
    std::thread::scope(|scope| {
        let one = scope.spawn(|| {
            let messages = nodes.member(&name, 1, 3);
            let world = messages.world();
            serve(world);
        });
        let messages = nodes.member(&name, 0, 3);
        let world = messages.world();
        talk(world, 1);
        let third = scope.spawn(|| {
            let session = nodes.attach(0);
            let mut to = session.connect(&format!("mp.{name}.0")).wait(LONG).open().expect("it lets us in");
            acts(&mut to);
            to
        });
        while !third.is_finished() {
            talk(world, 1);
        }
        let _stays = third.join().expect("the third one ends well");
        // What it has sent last is here.
        talk(world, 50);
        let gone = world.start_receive(Select::from(HOSTILE).tag(u64::MAX), vec![0; 8]).err();
        // Nobody else has taken this member's own place.
        world.send(0, 8, b"").expect("it is sent");
        world.receive(Select::from(0), &mut [0; 0]).expect("it comes");
        world.send(1, 9, b"end").expect("the other one is well");
        one.join().expect("the other one ends well");
        (gone, messages.counts().expect("they are ours").misbehaved)
    })
}

/// Sends back what comes, until the end.
fn serve(world: &Group) {
    let mut bytes = vec![0; 100_000];
    loop {
        let status = world.receive(Select::from(0), &mut bytes).expect("it comes");
        if status.tag == 9 {
            return;
        }
        world.send(0, status.tag, &bytes[..status.len as usize]).expect("it is sent");
    }
}

fn talk(world: &Group, times: usize) {
    for len in [8, 2000, 60_000].into_iter().cycle().take(times) {
        let (sent, mut came) = (common::pattern(len, 3), vec![0; len]);
        world.exchange(1, 1, &sent, Select::from(1).tag(1), &mut came).expect("the other one is well");
        assert!(came == sent);
    }
}

fn say(to: &mut Connection, said: Said<'_>) {
    to.send(said.encode(HOSTILE).bytes(), b"").expect("there is room in time");
}

fn hello(to: &mut Connection) {
    say(to, Said::Hello { version: VERSION });
}

fn cut_off(result: (Option<MpError>, u64)) {
    let (gone, misbehaved) = result;
    assert!(matches!(gone, Some(MpError::Gone { rank: HOSTILE, how: Gone::Misbehaved { .. } })), "{gone:?}");
    assert_eq!(misbehaved, 1);
}

#[test]
fn what_makes_no_sense_costs_a_member_its_place() {
    let token = PayloadToken { table: ExportId::from_u64(1), index: 2, key: 3 };
    cut_off(against(|to| {
        hello(to);
        to.send(b"garbage that is no message of members", b"").expect("there is room");
    }));
    cut_off(against(|to| {
        hello(to);
        hello(to);
    }));
    cut_off(against(|to| {
        hello(to);
        say(to, Said::Taken { total: 1 << 40 });
    }));
    cut_off(against(|to| {
        hello(to);
        // Nothing of these is there: they are late, and no more.
        say(to, Said::Go { send: 0, receive: 0, offset: 0, len: 10, token });
        say(to, Said::Part { receive: 0, offset: 0 });
        say(to, Said::Over { send: 7 });
        say(to, Said::Withdrawn { send: 7, was: true });
        say(to, Said::Withdraw { send: 7, forced: true });
        to.send(&[0; HEAD_BYTES - 1], b"").expect("there is room");
    }));
}

#[test]
fn more_than_a_member_may_send_at_once_costs_it_its_place() {
    cut_off(against(|to| {
        hello(to);
        (0..5000).for_each(|tag| say(to, Said::Eager { context: 0, tag, inline: &[1; INLINE_BYTES_MAX] }));
    }));
    cut_off(against(|to| {
        hello(to);
        (0..=ASKS_MAX as u32).for_each(|send| say(to, Said::Ask { context: 0, tag: 5, send, len: 1 << 40 }));
    }));
}

#[test]
fn who_claims_a_place_that_is_taken_is_not_believed() {
    let (gone, misbehaved) = against(|to| {
        for rank in [1, 0, 3, 1000] {
            to.send(Said::Hello { version: VERSION }.encode(rank).bytes(), b"").expect("there is room");
            let lie = Said::Eager { context: 0, tag: 1, inline: b"a lie of 8 b" };
            to.send(lie.encode(rank).bytes(), b"").expect("there is room");
        }
    });
    assert_eq!((gone, misbehaved), (None, 8));
}

/// Members are told apart by who greets first: a process of the same user that is there before the
/// member is that member for the other one, who counts the second greeting. The member's messages
/// are not taken for those of anybody else, and the first one's own calls go on.
#[test]
fn who_greets_first_is_the_member_and_the_second_greeting_is_counted() {
    let (nodes, name) = (Nodes::start(1), unique("first"));
    std::thread::scope(|scope| {
        let messages = nodes.member(&name, 0, 3);
        let world = messages.world();
        let impostor = scope.spawn(|| {
            let session = nodes.attach(0);
            let mut to = session.connect(&format!("mp.{name}.0")).wait(LONG).open().expect("it lets us in");
            hello(&mut to);
            say(&mut to, Said::Eager { context: 0, tag: 1, inline: b"the first" });
            (session, to)
        });
        let mut bytes = [0; 16];
        let status = world.receive(Select::from(HOSTILE).tag(1), &mut bytes).expect("it comes");
        assert_eq!(&bytes[..status.len as usize], b"the first");
        let _stays = impostor.join().expect("it has said all");
        let member = scope.spawn(|| {
            let messages = nodes.member(&name, HOSTILE, 3);
            messages.world().send(0, 1, b"the member").expect("it is sent");
            messages
        });
        let until = std::time::Instant::now() + LONG;
        while messages.counts().expect("they are ours").misbehaved < 2 {
            assert!(std::time::Instant::now() < until, "the member greets, and is counted");
            messages.poll().expect("all is well");
        }
        let _stays = member.join().expect("it has sent its message");
        assert_eq!(world.try_probe(Select::from(HOSTILE)), Ok(None));
        world.send(0, 8, b"").expect("it is sent");
        world.receive(Select::from(0).tag(8), &mut [0; 0]).expect("it comes");
    });
}

/// Why no secret would prove a greeting: a process of the same user reads what another one has.
#[test]
fn processes_of_one_user_read_each_others_environment() {
    let secret = format!("VMMC_TEST_SECRET={}", unique("secret"));
    let (name, value) = secret.split_once('=').expect("it has both");
    let mut member = std::process::Command::new("sleep").arg("60").env(name, value).spawn().expect("it starts");
    // It is there a little later than the program.
    let until = std::time::Instant::now() + LONG;
    let environment = loop {
        let environment = std::fs::read(format!("/proc/{}/environ", member.id())).expect("it is ours");
        if !environment.is_empty() || std::time::Instant::now() > until {
            break environment;
        }
        std::thread::yield_now();
    };
    member.kill().expect("it is there");
    member.wait().expect("it ends");
    assert!(environment.split(|byte| *byte == 0).any(|entry| entry == secret.as_bytes()));
}

/// The same of a lie that is there before the receive that it is told to.
#[test]
fn a_lie_that_is_there_is_not_received() {
    let (nodes, name) = (Nodes::start(1), unique("hostile"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let messages = nodes.member(&name, 1, 2);
            let world = messages.world();
            for _ in 0..20 {
                world.receive(Select::from(0).tag(6), &mut [0; 0]).expect("it is asked");
                world.send(0, 5, b"the truth").expect("it is sent");
            }
            world.receive(Select::from(0).tag(7), &mut [0; 0]).expect("the other one has all");
        });
        let messages = nodes.member(&name, 0, 2);
        let world = messages.world();
        let connecting = scope.spawn(|| {
            let session = nodes.attach(0);
            let to = session.connect(&format!("mp.{name}.0")).wait(LONG).open().expect("it lets us in");
            (session, to)
        });
        while !connecting.is_finished() {
            messages.poll().expect("all is well");
        }
        let (_session, mut liar) = connecting.join().expect("it is connected");
        for round in 0..20 {
            let lie = Said::Eager { context: 0, tag: 5, inline: b"a lie" }.encode(1);
            liar.send(lie.bytes(), b"").expect("there is room");
            let mut bytes = [0; 16];
            let status = if round % 2 == 0 {
                world.exchange(1, 6, b"", Select::from(1).tag(5), &mut bytes)
            } else {
                world.send(1, 6, b"").expect("it is sent");
                world.receive(Select::from(1).tag(5), &mut bytes)
            };
            assert_eq!(&bytes[..status.expect("it comes").len as usize], b"the truth");
        }
        world.send(1, 7, b"").expect("it is sent");
    });
}

/// Who says of a long message that a part of it is there, which another one has yet to send.
#[test]
fn a_part_that_another_one_is_to_send_is_not_believed() {
    let (nodes, name) = (Nodes::start(1), unique("hostile"));
    let long = common::pattern(60_000, 11);
    let (goes_on, waits) = std::sync::mpsc::channel();
    let (nodes, name, long) = (&nodes, &name, &long);
    // What a failure drops ends the other one's wait.
    std::thread::scope(move |scope| {
        scope.spawn(move || {
            let messages = nodes.member(name, 1, 3);
            let world = messages.world();
            world.exchange(0, 4, b"", Select::from(0).tag(4), &mut [0; 0]).expect("both do it");
            let send = world.start_send(0, 5, long.clone()).expect("it begins");
            world.send(0, 6, b"").expect("it is sent");
            // Until then it makes no call, and so sends no part.
            waits.recv().expect("it is told");
            send.wait().expect("it is received");
            world.receive(Select::from(0).tag(7), &mut [0; 0]).expect("the other one has all");
        });
        let goes_on = goes_on;
        let messages = nodes.member(name, 0, 3);
        let world = messages.world();
        world.exchange(1, 4, b"", Select::from(1).tag(4), &mut [0; 0]).expect("both do it");
        let request = world.start_receive(Select::from(1).tag(5), vec![0; 60_000]).expect("it begins");
        world.receive(Select::from(1).tag(6), &mut [0; 0]).expect("it has asked before");
        let liar = scope.spawn(move || {
            let session = nodes.attach(0);
            let mut to = session.connect(&format!("mp.{name}.0")).wait(LONG).open().expect("it lets us in");
            hello(&mut to);
            // Numbers of receives are easy to guess: a place, and how often it was used.
            for receive in (0..8u32).flat_map(|used| (0..4).map(move |place| used << 16 | place)) {
                say(&mut to, Said::Part { receive, offset: 0 });
            }
            (session, to)
        });
        while !liar.is_finished() {
            messages.poll().expect("all is well");
        }
        let _stays = liar.join().expect("it has said all");
        (0..10).for_each(|_| messages.poll().expect("all is well"));
        assert_eq!(messages.counts().expect("they are ours").misbehaved, 1);
        goes_on.send(()).expect("it waits");
        let (status, bytes) = request.wait().expect("it comes");
        assert!(status.len == 60_000 && bytes == *long);
        world.send(1, 7, b"").expect("it is sent");
    });
}

#[test]
fn another_version_is_refused_by_name() {
    let (gone, _) = against(|to| say(to, Said::Hello { version: VERSION + 1 }));
    let how = Gone::Version { theirs: VERSION + 1, ours: VERSION };
    assert_eq!(gone, Some(MpError::Gone { rank: HOSTILE, how }));
}

/// Any messages at all, many times over: the others are well, whatever comes.
#[test]
fn wild_messages_harm_nobody_else() {
    for seed in 1..=12u64 {
        against(move |to| {
            let mut state = seed;
            let mut next = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            hello(to);
            for _ in 0..2000 {
                let mut bytes: Vec<u8> = (0..next() % 129).map(|_| next() as u8).collect();
                if bytes.len() >= HEAD_BYTES && next() % 4 > 0 {
                    // So near to a message that it is one now and then.
                    bytes[0] = (next() % 12) as u8;
                    bytes[1] = 0;
                    bytes[2..4].copy_from_slice(&(HOSTILE as u16).to_le_bytes());
                    bytes[4..8].copy_from_slice(&((next() % 3) as u32).to_le_bytes());
                    bytes[8..16].copy_from_slice(&(next() % 3).to_le_bytes());
                    let len = [16, 16, 28, 48, bytes.len()][next() as usize % 5];
                    bytes.resize(len, 0);
                }
                let payload = vec![7; if next() % 3 == 0 { next() as usize % 20_000 } else { 0 }];
                to.send(&bytes, &payload).expect("there is room in time");
            }
        });
    }
}
