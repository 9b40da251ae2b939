//! Servers that an event loop polls, which sleeps in the kernel otherwise.
//!
//! Invariant: whatever is to be done makes the descriptor readable: the loop polls at no other
//! time.

mod common;

use common::{LONG, Nodes, everywhere, pattern};
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vmmc_rpc::{Call, Client, PolledServer, Server};

const ECHO: u16 = 1;
/// A result that fills a frame.
const LONG_RESULT: u16 = 2;
const RESULT_BYTES: usize = 16 << 10;

fn serve(server: &mut PolledServer, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        poll(&mut [PollFd::new(&server.event_fd(), PollFlags::IN)], None).unwrap();
        while let Some(call) = server.poll().unwrap() {
            answer(call, over);
        }
    }
}

fn answer(call: Call, over: &AtomicBool) {
    let number = call.arguments().first().copied().unwrap_or(0);
    match call.method() {
        ECHO => {
            let arguments = call.arguments().to_vec();
            call.answer(&arguments);
        }
        LONG_RESULT => call.answer(&pattern(RESULT_BYTES, number)),
        _ => {
            over.store(true, Ordering::Relaxed);
            call.no_method();
        }
    }
}

/// Serves while `with` calls, which is given a client.
fn served(nodes: &Nodes, caller: usize, with: impl FnOnce(Client)) -> PolledServer {
    let mut server = Server::new(&nodes.attach(0), "polled").polled().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&mut server, &over));
        let session = nodes.attach(caller);
        let connect = || Client::new(&session, "polled").node(&nodes.name(0)).connect().unwrap();
        with(connect());
        let _ = connect().call(99, b"");
        serving.join().unwrap();
    });
    server
}

#[test]
fn calls_one_by_one_and_many_at_once_are_answered() {
    let nodes = Nodes::daemons();
    for caller in [0, 1] {
        let server = served(&nodes, caller, |client| {
            for number in 0..200u8 {
                assert_eq!(client.call(ECHO, &[number; 9]).unwrap(), [number; 9]);
                if number % 50 == 0 {
                    // The loop sleeps.
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            let start = |number: u8| client.request(ECHO).arguments(&[number]).start().unwrap();
            let all: Vec<_> = (0..200).map(start).collect();
            all.into_iter().zip(0u8..).for_each(|(call, number)| assert_eq!(call.wait().unwrap().result, [number]));
        });
        assert_eq!(server.counts().done, 400);
    }
}

#[test]
fn answers_that_find_no_room_go_out_while_nothing_else_comes() {
    let nodes = Nodes::daemons();
    for caller in [0, 1] {
        served(&nodes, caller, |client| {
            let start = |number| client.request(LONG_RESULT).arguments(&[number]).timeout(LONG).start().unwrap();
            // More than there are frames; nobody takes them yet, and the loop has nothing else to
            // do.
            let all: Vec<_> = (0..40).map(start).collect();
            std::thread::sleep(Duration::from_millis(20));
            for (call, number) in all.into_iter().zip(0u8..) {
                assert_eq!(call.wait().unwrap().result, pattern(RESULT_BYTES, number));
            }
        });
    }
}

#[test]
fn callers_that_have_gone_are_told() {
    let nodes = Nodes::daemons();
    let mut server = served(&nodes, 0, |client| drop(client.call(ECHO, b"x").unwrap()));
    let end = std::time::Instant::now() + LONG;
    let mut gone = Vec::new();
    while gone.len() < 2 {
        assert!(server.poll().unwrap().is_none() && std::time::Instant::now() < end, "{gone:?}");
        gone.extend(server.gone_callers());
        std::thread::sleep(Duration::from_millis(1));
    }
    gone.sort_unstable();
    assert_eq!(gone, [1, 2]);
}

#[test]
fn a_loop_that_leaves_calls_is_called_again() {
    everywhere(|nodes, caller| {
        let mut server = Server::new(&nodes.attach(0), "polled").polled().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let client = Client::new(&nodes.attach(caller), "polled").node(&nodes.name(0)).connect().unwrap();
                let all: Vec<_> = (0..20).map(|_| client.request(ECHO).start().unwrap()).collect();
                all.into_iter().for_each(|call| _ = call.wait().unwrap());
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                // An embedded node is run by who polls.
                let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                poll(&mut [PollFd::new(&server.event_fd(), PollFlags::IN)], Some(&wait)).unwrap();
                if let Some(call) = server.poll().unwrap() {
                    call.answer(b"");
                    server.again();
                }
            }
        });
        assert_eq!(server.counts().done, 20);
    });
}

#[test]
fn when_the_node_ends_a_poll_says_so() {
    let nodes = Nodes::daemons();
    let mut server = Server::new(&nodes.attach(0), "polled").polled().unwrap();
    assert!(server.poll().unwrap().is_none());
    drop(nodes);
    let end = std::time::Instant::now() + LONG;
    let error = loop {
        poll(&mut [PollFd::new(&server.event_fd(), PollFlags::IN)], None).unwrap();
        match server.poll() {
            Ok(call) => assert!(call.is_none() && std::time::Instant::now() < end),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("has ended"), "{error}");
}
