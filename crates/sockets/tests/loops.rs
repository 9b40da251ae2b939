//! Event loops: bits, bells, and what the state of a connection says.
//!
//! Invariant: whatever happens to a connection after a loop has looked at it marks its token, and
//! rings the bell of a loop that sleeps.

mod common;

use common::{TestNode, tcp_pair, upgraded_pair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use vmmc_sockets::{Interest, ReadySet, Received, Sent, Stream, Take};

fn taken(set: &ReadySet) -> Vec<u32> {
    let mut all = Vec::new();
    set.take(&mut |token| all.push(token));
    all
}

/// Sleeps as an event loop does, until something is marked.
fn sleep(set: &ReadySet) -> Vec<u32> {
    let start = Instant::now();
    loop {
        if !set.arm() {
            let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
            let mut fds = [PollFd::from_borrowed_fd(set.bell(), PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "the bell did not ring");
            rustix::io::read(set.bell(), &mut [0u8; 8]).unwrap();
        }
        set.disarm();
        let got = taken(set);
        if !got.is_empty() {
            return got;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the bell rings for nothing");
    }
}

#[test]
fn bytes_room_and_ends_mark_a_token_and_ring_a_bell() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    let set = b.ready_set().unwrap();
    set.add(two.connection(), 77, Interest::READ).unwrap();
    taken(&set);
    let fd = two.socket().as_fd();
    assert!(!two.connection().state(&b, fd).readable);
    let writer = std::thread::spawn(move || {
        (&one).write_all(b"hello").unwrap();
        one
    });
    assert_eq!(sleep(&set), [77]);
    let one = writer.join().unwrap();
    assert!(two.connection().state(&b, fd).readable);
    assert_eq!(two.connection().available_bytes(), 5);
    (&two).read_exact(&mut [0; 5]).unwrap();
    assert!(!two.connection().state(&b, fd).readable);

    let room = a.ready_set().unwrap();
    room.add(one.connection(), 5, Interest::WRITE).unwrap();
    let data = [1u8; 4096];
    let mut sent = 0;
    let start = Instant::now();
    // The node may give the full ring room to grow between the last send and the check: then it is
    // writable, and not full.
    while one.connection().state(&a, one.socket().as_fd()).writable {
        assert!(start.elapsed() < Duration::from_secs(20), "a full ring is not writable");
        while let Sent::Done(n) = one.connection().send(&a, one.socket().as_fd(), &[IoSlice::new(&data)]) {
            sent += n;
        }
    }
    taken(&room);
    let mut buffer = vec![0; sent];
    (&two).read_exact(&mut buffer).unwrap();
    assert_eq!(sleep(&room), [5]);
    assert!(one.connection().state(&a, one.socket().as_fd()).writable);

    taken(&set);
    drop(one);
    assert_eq!(sleep(&set), [77]);
    let state = two.connection().state(&b, fd);
    assert!(state.readable && state.read_hangup, "{state:?}");
    assert!(matches!(
        two.connection().recv(&b, fd, &mut [IoSliceMut::new(&mut [0; 1])], Take::Take),
        Received::Done(0)
    ));
}

#[test]
fn a_shutdown_by_another_thread_is_told_to_whoever_waits_for_room_or_bytes() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, _two) = upgraded_pair(&a, &b);
    let set = a.ready_set().unwrap();
    set.add(one.connection(), 5, Interest::WRITE).unwrap();
    taken(&set);
    one.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(taken(&set), [5], "a send fails from now on");
    set.change(one.connection(), Interest::READ);
    taken(&set);
    one.shutdown(std::net::Shutdown::Read).unwrap();
    assert_eq!(taken(&set), [5], "a receive ends from now on");
}

#[test]
fn a_loop_that_followed_a_connection_before_the_upgrade_hears_of_it_afterwards() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = tcp_pair();
    let (one, two) = (Stream::new(&a, one), Stream::new(&b, two));
    let set = b.ready_set().unwrap();
    set.add(two.connection(), 3, Interest::BOTH).unwrap();
    let start = Instant::now();
    let mut byte = [0];
    while !two.describe().upgraded || one.describe().ring_sent_bytes == 0 {
        assert!(start.elapsed() < Duration::from_secs(20));
        (&one).write_all(b"x").unwrap();
        (&two).read_exact(&mut byte).unwrap();
        (&two).write_all(b"y").unwrap();
        (&one).read_exact(&mut byte).unwrap();
    }
    taken(&set);
    (&one).write_all(b"x").unwrap();
    assert_eq!(sleep(&set), [3]);
}

#[test]
fn more_loops_than_an_area_has_room_for_are_refused() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, _two) = upgraded_pair(&a, &b);
    let sets: Vec<ReadySet> = (0..5).map(|_| a.ready_set().unwrap()).collect();
    let results: Vec<bool> = sets.iter().map(|set| set.add(one.connection(), 1, Interest::READ).is_ok()).collect();
    assert_eq!(results, [true, true, true, true, false]);
    sets[2].remove(one.connection());
    assert!(sets[4].add(one.connection(), 1, Interest::READ).is_ok());
    assert!(sets[0].add(one.connection(), 1 << 16, Interest::READ).is_err());
}

#[test]
fn a_loop_has_a_bell_of_its_own_or_none() {
    let node = TestNode::start();
    let a = node.context();
    let mut sets: Vec<ReadySet> = (0..vmmc_stream::BELLS).map(|_| a.ready_set().unwrap()).collect();
    assert_eq!(a.ready_set().err(), Some(rustix::io::Errno::MFILE));
    assert!(sets[0].is_scarce() && sets[0].is_of(&a) && !sets[0].is_of(&node.context()));
    sets.truncate(3);
    assert!(!sets[0].is_scarce() && a.ready_set().is_ok());
}

#[test]
fn both_ends_may_be_in_one_process() {
    let node = TestNode::start();
    let a = node.context();
    let (one, two) = upgraded_pair(&a, &a);
    let set = a.ready_set().unwrap();
    set.add(two.connection(), 9, Interest::READ).unwrap();
    taken(&set);
    let writer = std::thread::spawn(move || (&one).write_all(b"x").map(|()| one));
    assert_eq!(sleep(&set), [9]);
    writer.join().unwrap().unwrap();
}
