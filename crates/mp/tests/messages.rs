//! Messages between members on threads, within a node and between two.

mod common;

use common::{pattern, run};
use std::time::{Duration, Instant};
use vmmc_mp::limits::{EAGER_BETWEEN_NODES_BYTES_MAX, EAGER_BYTES_MAX, INLINE_BYTES_MAX, UNEXPECTED_BYTES_MAX};
use vmmc_mp::{Group, Messages, MpError, Select, Status, wait_all, wait_any};

const SIZES: [usize; 13] = [
    0,
    1,
    8,
    INLINE_BYTES_MAX,
    INLINE_BYTES_MAX + 1,
    4096,
    5000,
    EAGER_BYTES_MAX as usize,
    EAGER_BYTES_MAX as usize + 1,
    65_536,
    65_537,
    1 << 20,
    3_000_001,
];

fn receive(world: &Group, select: Select, len: usize) -> (Status, Vec<u8>) {
    let mut bytes = vec![0; len];
    let status = world.receive(select, &mut bytes).expect("a message comes");
    bytes.truncate(status.len as usize);
    (status, bytes)
}

fn sizes(messages: &Messages) {
    let world = messages.world();
    for (tag, len) in SIZES.into_iter().enumerate() {
        let tag = tag as u64;
        if world.rank() == 0 {
            world.send(1, tag, &pattern(len, tag)).expect("it is sent");
            let (status, bytes) = receive(world, Select::from(1).tag(tag), len);
            assert_eq!((status, bytes == pattern(len, tag + 1)), (Status { source: 1, tag, len: len as u64 }, true));
        } else {
            let (status, bytes) = receive(world, Select::any(), len + 10);
            assert_eq!((status, bytes == pattern(len, tag)), (Status { source: 0, tag, len: len as u64 }, true));
            world.send(0, tag, &pattern(len, tag + 1)).expect("it is sent");
        }
    }
}

#[test]
fn messages_of_all_sizes_arrive_within_a_node() {
    run(1, 2, sizes);
}

#[test]
fn messages_of_all_sizes_arrive_between_nodes() {
    run(2, 2, sizes);
}

fn memories(messages: &Messages) {
    let world = messages.world();
    let memory = messages.memory(4 << 20).expect("there is memory");
    for (tag, len) in SIZES.into_iter().enumerate() {
        let (tag, at) = (tag as u64, 100 * tag as u64);
        let place = memory.range(at..at + len as u64).expect("it is inside");
        if world.rank() == 0 {
            place.write(&pattern(len, tag)).expect("it fits");
            world.send(1, tag, &place).expect("it is sent");
        } else {
            let status = world.receive(Select::from(0).tag(tag), &place).expect("it comes");
            let mut bytes = vec![0; len];
            place.read(&mut bytes).expect("it is there");
            assert_eq!((status.len, bytes == pattern(len, tag)), (len as u64, true), "{len} bytes");
        }
    }
}

#[test]
fn memory_of_messages_is_sent_from_and_received_to() {
    run(1, 2, memories);
    run(2, 2, memories);
}

#[test]
fn the_order_of_a_sender_holds_whichever_way_messages_go() {
    run(1, 2, |messages| {
        let world = messages.world();
        let len = |at: u64| [3, 20_000, 500, 100_000][at as usize % 4];
        if world.rank() == 0 {
            let requests = (0..40).map(|at| world.start_send(1, 5, pattern(len(at), at)).expect("it begins"));
            wait_all(requests.collect::<Vec<_>>()).expect("all go");
        } else {
            std::thread::sleep(Duration::from_millis(50));
            for at in 0..40 {
                let (_, bytes) = receive(world, Select::any().tag(5), 100_000);
                assert!(bytes == pattern(len(at), at), "message {at}");
            }
        }
    });
}

#[test]
fn receives_that_were_posted_first_are_served_first() {
    run(1, 2, |messages| {
        let world = messages.world();
        if world.rank() == 0 {
            world.receive(Select::from(1).tag(9), &mut [0; 0]).expect("the other one is ready");
            (0..4u8).for_each(|at| world.send(1, 1, &[at]).expect("it is sent"));
        } else {
            let selects = [Select::any(), Select::from(0).tag(1), Select::any().tag(1), Select::from(0)];
            let requests: Vec<_> =
                selects.iter().map(|select| world.start_receive(*select, vec![0]).expect("it begins")).collect();
            world.send(0, 9, b"").expect("it is sent");
            let got: Vec<u8> = wait_all(requests).expect("all come").iter().map(|(_, bytes)| bytes[0]).collect();
            assert_eq!(got, [0, 1, 2, 3]);
        }
    });
}

#[test]
fn a_call_that_receives_comes_behind_requests_and_takes_the_oldest_message() {
    run(1, 2, |messages| {
        let world = messages.world();
        if world.rank() == 0 {
            world.receive(Select::from(1).tag(9), &mut [0; 0]).expect("the other one is ready");
            world.send(1, 1, b"for the request").expect("it is sent");
            world.send(1, 1, b"for the call").expect("it is sent");
            world.send(1, 1, b"oldest").expect("it is sent");
            world.send(1, 2, b"of another tag").expect("it is sent");
            world.receive(Select::from(1).tag(9), &mut [0; 0]).expect("the other one goes on");
            world.send(1, 1, b"newest").expect("it is sent");
            world.exchange(1, 3, b"youngest", Select::from(1).tag(9), &mut [0; 0]).expect("both do it");
        } else {
            let request = world.start_receive(Select::any().tag(1), vec![0; 64]).expect("it begins");
            world.send(0, 9, b"").expect("it is sent");
            let of = Select::from(0);
            assert_eq!(receive(world, of.tag(1), 64).1, b"for the call");
            let (status, bytes) = request.wait().expect("it has its message");
            assert_eq!(&bytes[..status.len as usize], b"for the request");
            // What a call for another tag has kept is older than what comes.
            assert_eq!(receive(world, of.tag(2), 64).1, b"of another tag");
            world.send(0, 9, b"").expect("it is sent");
            let mut bytes = [0; 64];
            let status = world.exchange(0, 9, b"", of.tag(1), &mut bytes).expect("the other one does it too");
            assert_eq!(&bytes[..status.len as usize], b"oldest");
            assert_eq!(receive(world, of.tag(1), 64).1, b"newest");
            assert_eq!(receive(world, of, 64).1, b"youngest");
        }
    });
}

#[test]
fn a_message_that_is_too_long_is_an_error_and_the_next_one_comes() {
    for long in [100usize, 1000, 100_000] {
        run(1, 2, |messages| {
            let world = messages.world();
            if world.rank() == 0 {
                world.send(1, 1, &vec![1; long]).expect("its sender learns nothing of it");
                world.send(1, 2, b"next").expect("it is sent");
            } else {
                let error = world.receive(Select::from(0), &mut [0; 64]).expect_err("it is too long");
                let len = long as u64;
                assert_eq!(error, MpError::Truncated { source_rank: 0, tag: 1, len, room: 64 });
                assert_eq!(receive(world, Select::from(0), 64).1, b"next");
            }
        });
    }
}

#[test]
fn two_that_send_to_each_other_first_do_not_wait_in_vain() {
    for nodes in [1, 2] {
        run(nodes, 2, |messages| {
            let (world, rank) = (messages.world(), messages.rank());
            for len in SIZES {
                let (own, mut other) = (pattern(len, rank.into()), vec![0; len]);
                world.exchange(1 - rank, 3, &own, Select::from(1 - rank).tag(3), &mut other).expect("both go");
                assert!(other == pattern(len, (1 - rank).into()), "{len} bytes");
            }
        });
    }
}

#[test]
fn a_member_sends_to_itself() {
    run(1, 1, |messages| {
        let world = messages.world();
        world.send(0, 1, b"to me").expect("it is sent");
        assert_eq!(receive(world, Select::any(), 10).1, b"to me");
        let long = pattern(200_000, 1);
        let mut copy = vec![0; 200_000];
        world.exchange(0, 2, &long, Select::from(0).tag(2), &mut copy).expect("both go");
        assert!(copy == long);
    });
}

#[test]
fn what_waits_is_probed_for_and_stays() {
    run(1, 2, |messages| {
        let world = messages.world();
        if world.rank() == 0 {
            world.send(1, 6, b"six").expect("it is sent");
            world.send(1, 7, &vec![7; 50_000]).expect("it is sent");
        } else {
            let long = world.probe(Select::any().tag(7)).expect("it comes");
            assert_eq!(long, Status { source: 0, tag: 7, len: 50_000 });
            let short = world.try_probe(Select::any()).expect("it is looked for").expect("it was sent before");
            assert_eq!((short.tag, short.len), (6, 3));
            assert_eq!(world.try_probe(Select::any().tag(8)), Ok(None));
            assert_eq!(receive(world, Select::any(), 3).1, b"six");
            assert_eq!(receive(world, Select::any(), 50_000).1, vec![7; 50_000]);
        }
    });
}

#[test]
fn requests_are_cancelled_while_nothing_has_happened() {
    run(1, 2, |messages| {
        let world = messages.world();
        if world.rank() == 0 {
            // A long send that nobody receives is withdrawn; the one behind it comes.
            let mut request = world.start_send(1, 1, vec![1; 100_000]).expect("it begins");
            while messages.counts().expect("they are ours").asked == 0 {
                messages.poll().expect("it goes on");
            }
            request.cancel().expect("it is asked for");
            world.send(1, 2, b"second").expect("it is sent");
            assert_eq!(request.wait().expect_err("it was withdrawn"), MpError::Cancelled);
        } else {
            let mut request = world.start_receive(Select::from(0).tag(3), vec![0; 8]).expect("it begins");
            assert_eq!(request.test().expect("it goes on"), None);
            request.cancel().expect("it is taken back");
            assert_eq!(request.wait().expect_err("it was taken back"), MpError::Cancelled);
            assert_eq!(receive(world, Select::from(0).tag(2), 10).1, b"second");
            assert_eq!(world.try_probe(Select::any()), Ok(None));
        }
    });
}

#[test]
fn one_of_several_requests_is_waited_for() {
    run(1, 3, |messages| {
        let world = messages.world();
        if world.rank() == 0 {
            let from = |rank| world.start_receive(Select::from(rank).tag(1), vec![0; 8]).expect("it begins");
            let requests = [from(1), from(2)];
            let first = wait_any(&[&requests[0], &requests[1]]).expect("one comes").expect("there are two");
            assert_eq!(first, 1);
            world.send(1, 2, b"").expect("it is sent");
            wait_all(requests).expect("both come");
            assert_eq!(wait_any(&[]), Ok(None));
        } else if world.rank() == 1 {
            world.receive(Select::from(0).tag(2), &mut [0; 0]).expect("the other one was first");
            world.send(0, 1, b"late").expect("it is sent");
        } else {
            world.send(0, 1, b"early").expect("it is sent");
        }
    });
}

#[test]
fn persistent_requests_are_made_again_and_again() {
    run(1, 2, |messages| {
        let world = messages.world();
        if world.rank() == 0 {
            let mut send = world.persistent_send(1, 1, vec![0; 30_000]);
            for round in 0..20 {
                send.buffer().expect("it is not under way").fill(round);
                send.start().expect("it begins");
                send.start().expect_err("it is under way");
                send.wait().expect("it goes");
            }
            send.wait().expect_err("it was not begun");
        } else {
            let mut receive = world.persistent_receive(Select::from(0), vec![0; 30_000]);
            for round in 0..20 {
                receive.start().expect("it begins");
                assert_eq!(receive.wait().expect("it comes").len, 30_000);
                assert!(receive.buffer().expect("it is over").iter().all(|byte| *byte == round));
            }
        }
    });
}

#[test]
fn what_is_not_received_is_bounded_and_nothing_is_lost() {
    for nodes in [1, 2] {
        run(nodes, 2, |messages| {
            let world = messages.world();
            const COUNT: u64 = 20_000;
            if world.rank() == 0 {
                for number in 0..COUNT {
                    world.send(1, 4, &number.to_le_bytes()).expect("it is sent");
                }
            } else {
                // Takes what comes, and receives nothing of it.
                let until = Instant::now() + Duration::from_millis(300);
                while Instant::now() < until {
                    messages.poll().expect("it goes on");
                }
                let waiting = messages.counts().expect("they are ours").unexpected;
                assert!(waiting <= UNEXPECTED_BYTES_MAX / 128 + 64, "{waiting} messages wait");
                for number in 0..COUNT {
                    let mut bytes = [0; 8];
                    world.receive(Select::any(), &mut bytes).expect("it comes");
                    assert_eq!(u64::from_le_bytes(bytes), number);
                }
            }
        });
    }
}

#[test]
fn a_message_between_nodes_asks_from_a_greater_length_on() {
    for (nodes, longest) in [(1, EAGER_BYTES_MAX), (2, EAGER_BETWEEN_NODES_BYTES_MAX)] {
        run(nodes, 2, |messages| {
            let world = messages.world();
            let asked = || messages.counts().expect("they are ours").asked;
            if world.rank() == 1 {
                for _ in 0..3 {
                    receive(world, Select::from(0), longest as usize + 1);
                }
                return;
            }
            // The first one waits for the connection.
            world.send(1, 1, b"").expect("it is sent");
            let before = asked();
            for (len, asks) in [(longest, 0), (longest + 1, 1)] {
                world.send(1, 1, &vec![7; len as usize]).expect("it is sent");
                assert_eq!(asked() - before, asks, "of {len} bytes, {nodes} nodes");
            }
        });
    }
}

#[test]
fn a_sender_whose_messages_are_received_never_asks() {
    run(1, 2, |messages| {
        let world = messages.world();
        let mut bytes = [0; 1000];
        // Each round is less than may wait, all of them are much more.
        for round in 0..30 {
            for _ in 0..100 {
                match world.rank() {
                    0 => world.send(1, 1, &bytes).expect("it is sent"),
                    _ if round % 2 == 0 => drop(world.receive(Select::from(0), &mut bytes).expect("it comes")),
                    _ => drop(world.start_receive(Select::from(0), vec![0; 1000]).expect("it begins").wait()),
                }
            }
            if world.rank() == 0 {
                world.receive(Select::from(1), &mut [0; 0]).expect("it has them all");
            } else {
                world.send(0, 2, b"").expect("it is sent");
            }
        }
        let counts = messages.counts().expect("they are ours");
        assert_eq!((counts.asked, counts.asked_short), (0, 0));
    });
}

#[test]
fn threads_of_a_member_call_at_the_same_time() {
    run(1, 2, |messages| {
        std::thread::scope(|scope| {
            for tag in 0..4u64 {
                scope.spawn(move || {
                    let world = messages.world();
                    let other = 1 - world.rank();
                    for round in 0..50 {
                        let len = [8, 10_000, 70_000][round as usize % 3];
                        if world.rank() == 0 {
                            world.send(other, tag, &pattern(len, tag + round)).expect("it is sent");
                        }
                        let (_, bytes) = receive(world, Select::from(other).tag(tag), len);
                        assert!(bytes == pattern(len, tag + round), "tag {tag}, round {round}");
                        if world.rank() == 1 {
                            world.send(other, tag, &bytes).expect("it is sent");
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn ranks_and_ranges_that_are_not_there_are_errors() {
    run(1, 2, |messages| {
        let world = messages.world();
        assert_eq!(world.send(2, 0, b""), Err(MpError::NoRank { rank: 2, size: 2 }));
        assert_eq!(world.receive(Select::from(9), &mut [0; 1]), Err(MpError::NoRank { rank: 9, size: 2 }));
        let memory = messages.memory(100).expect("there is memory");
        let error = memory.range(50..101).expect_err("it reaches past it");
        assert_eq!(error, MpError::NoRange { start: 50, end: 101, size: 100 });
    });
    let nodes = common::Nodes::start(1);
    let error = Messages::among(nodes.attach(0), "none", 3, 3).create().expect_err("it is not one of them");
    assert_eq!(error, MpError::NoSet { rank: 3, size: 3 });
}

#[test]
fn a_wait_has_its_deadline() {
    let nodes = common::Nodes::start(1);
    let messages = Messages::among(nodes.attach(0), &common::unique("late"), 0, 2);
    let messages = messages.timeout(Duration::from_millis(50)).create().expect("it is made");
    let world = messages.world();
    let error = world.receive(Select::from(1), &mut [0; 1]).expect_err("nobody is there");
    assert_eq!(error, MpError::TimedOut { what: "receive", after_ms: 50 });
    let error = world.send(1, 1, b"x").expect_err("nobody is there");
    assert_eq!(error, MpError::TimedOut { what: "send", after_ms: 50 });
    let error = world.probe(Select::any()).expect_err("nobody is there");
    assert_eq!(error, MpError::TimedOut { what: "probe", after_ms: 50 });
}

#[test]
fn a_member_that_leaves_is_an_error_of_who_waits_for_it() {
    let nodes = common::Nodes::start(1);
    let name = common::unique("leaving");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let messages = nodes.member(&name, 1, 2);
            messages.world().send(0, 1, b"last words").expect("it is sent");
            messages.world().receive(Select::from(0), &mut [0; 8]).expect("it comes");
        });
        let messages = nodes.member(&name, 0, 2);
        let world = messages.world();
        // It is connected when the other one has its message, which does not take the next one.
        world.send(1, 1, b"go").expect("it is sent");
        // It may have left already.
        let sent = world.start_send(1, 3, vec![1; 1 << 20]).and_then(|send| send.wait().map(drop));
        let error = sent.expect_err("it leaves");
        assert!(matches!(error, MpError::Gone { rank: 1, .. }), "{error}");
        let mut bytes = [0; 16];
        let error = world.receive(Select::from(1).tag(2), &mut bytes).expect_err("it leaves");
        assert!(matches!(error, MpError::Gone { rank: 1, .. }), "{error}");
        // What it had sent is there still.
        assert_eq!(world.receive(Select::from(1), &mut bytes).expect("it came").len, 10);
        assert_eq!(world.receive(Select::any(), &mut bytes), Err(MpError::AllGone));
        let error = world.send(1, 1, b"are you there?").expect_err("it has left");
        assert!(matches!(error, MpError::Gone { rank: 1, .. }), "{error}");
    });
}
