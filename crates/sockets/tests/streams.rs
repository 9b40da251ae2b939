//! Streams of two clients of one node, over real sockets.
//!
//! Invariant: what TCP promises holds before, during and after the upgrade.

mod common;

use common::{TestNode, tcp_pair, upgraded_pair};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use vmmc_sockets::{Medium, Stream};

#[test]
fn a_connection_moves_into_the_ring_and_nothing_is_lost() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = tcp_pair();
    let (one, two) = (Stream::new(&a, one), Stream::new(&b, two));
    let echo = std::thread::spawn(move || {
        let mut buf = vec![0; 70_000];
        loop {
            let n = (&two).read(&mut buf).unwrap();
            if n == 0 {
                return two.describe();
            }
            (&two).write_all(&buf[..n]).unwrap();
        }
    });
    let mut want = vec![0u8; 60_000];
    let mut got = vec![0u8; 60_000];
    for round in 0..2_000usize {
        let len = 1 + round * 7919 % 60_000;
        want[..len].iter_mut().enumerate().for_each(|(i, b)| *b = (i * 31 + round) as u8);
        (&one).write_all(&want[..len]).unwrap();
        (&one).read_exact(&mut got[..len]).unwrap();
        assert!(got[..len] == want[..len], "round {round} of {len} bytes differs");
    }
    let mine = one.describe();
    assert!(mine.tx == Medium::Ring && mine.rx == Medium::Ring, "{mine:?}");
    one.shutdown(std::net::Shutdown::Write).unwrap();
    let theirs = echo.join().unwrap();
    assert_eq!(theirs.ring_received_bytes, mine.ring_sent_bytes);
    let mut end = [0; 1];
    assert_eq!((&one).read(&mut end).unwrap(), 0);
}

#[test]
fn a_peer_that_does_not_use_it_is_served_by_the_kernel() {
    let node = TestNode::start();
    let (one, mut two) = tcp_pair();
    let one = Stream::new(&node.context(), one);
    let echo = std::thread::spawn(move || {
        let mut buf = [0; 100];
        while let Ok(n @ 1..) = two.read(&mut buf) {
            two.write_all(&buf[..n]).unwrap();
        }
    });
    let mut got = [0; 100];
    for _ in 0..200 {
        (&one).write_all(&[7; 100]).unwrap();
        (&one).read_exact(&mut got).unwrap();
    }
    assert!(!one.describe().upgraded);
    drop(one);
    echo.join().unwrap();
}

#[test]
fn what_was_sent_before_the_close_is_read_before_the_end() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    (&one).write_all(b"last words").unwrap();
    drop(one);
    let mut all = Vec::new();
    (&two).read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last words");
    // As with TCP: what is sent first is taken, and its answer, a reset, makes the next one fail.
    (&two).write_all(b"to nobody").unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while (&two).write_all(b"to nobody").is_ok() {
        assert!(Instant::now() < end, "an end that has gone takes bytes for ever");
    }
}

#[test]
fn unread_bytes_make_a_close_a_reset() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    (&two).write_all(b"never read").unwrap();
    drop(one);
    let error = (&two).read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_blocked_reader_is_woken_by_bytes_and_by_the_end() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        (&two).read_to_end(&mut all).unwrap();
        all
    });
    for byte in 0..200u8 {
        (&one).write_all(&[byte]).unwrap();
        // Gives the reader time to fall asleep, most times: not needed for the result.
        std::thread::yield_now();
    }
    drop(one);
    assert_eq!(reader.join().unwrap(), (0..200).collect::<Vec<u8>>());
}

#[test]
fn a_full_ring_stops_the_writer_and_not_the_data() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    let total = 8 << 20;
    let writer = std::thread::spawn(move || {
        let data: Vec<u8> = (0..total).map(|i: usize| ((i * 17) >> 3) as u8).collect();
        (&one).write_all(&data).unwrap();
    });
    let mut buf = vec![0; 50_000];
    let mut at = 0usize;
    while at < total {
        let n = (&two).read(&mut buf).unwrap();
        assert!(n > 0, "ended after {at} bytes");
        assert!(buf[..n].iter().enumerate().all(|(i, b)| *b == (((at + i) * 17) >> 3) as u8), "wrong byte near {at}");
        at += n;
    }
    writer.join().unwrap();
}

#[test]
fn a_writer_whose_bytes_nobody_reads_gets_a_larger_ring() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    let small = one.describe().ring_bytes;
    // Many a program writes some 100 KiB and reads its own end later, in the same thread: the
    // kernel's buffers take that much.
    let data: Vec<u8> = (0..200_000u32).map(|i| ((i * 17) >> 3) as u8).collect();
    (&one).write_all(&data).unwrap();
    let large = one.describe().ring_bytes;
    assert!(large[0] >= data.len() as u64 && large[0] > small[0] && large[1] == small[1], "{small:?} {large:?}");
    let mut got = vec![0; data.len()];
    (&two).read_exact(&mut got).unwrap();
    assert!(got == data);
    assert_eq!(two.describe().ring_bytes, [small[1], large[0]]);
}

#[test]
fn two_ends_that_both_write_before_they_read_do_not_stop_each_other_without_a_node() {
    let mut node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    node.stop();
    // Far more than a ring that cannot grow has room for, and less than the kernel's buffers.
    let data: Vec<u8> = (0..200_000u32).map(|i| ((i * 17) >> 3) as u8).collect();
    let (done, waiting) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in [&one, &two] {
            stream.write_all(&data).unwrap();
        }
        for mut stream in [&one, &two] {
            let mut got = vec![0; data.len()];
            stream.read_exact(&mut got).unwrap();
            assert!(got == data);
        }
        done.send(()).unwrap();
    });
    waiting.recv_timeout(Duration::from_secs(20)).expect("a write waits for a read that comes after it");
}

#[test]
fn bytes_are_filled_in_and_looked_at_where_they_lie() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (plain, _peer) = tcp_pair();
    let plain = Stream::new(&a, plain);
    assert!(plain.reserve(10).unwrap().is_none() && plain.peek().unwrap().is_none(), "the kernel has it");
    let (one, two) = upgraded_pair(&a, &b);
    let total = 3usize << 20;
    let byte = |at: usize| ((at * 17) >> 3) as u8;
    let writer = std::thread::spawn(move || {
        let mut at = 0;
        while at < total {
            let mut room = one.reserve((total - at).min(1 + at % 100_000)).unwrap().expect("in the ring");
            let bytes: Vec<u8> = (at..at + room.len()).map(byte).collect();
            assert_eq!(room.write(0, &bytes), bytes.len());
            // What is not sent is room again.
            let sent = if at % 7 == 0 { bytes.len() } else { bytes.len().div_ceil(2) };
            room.send(sent);
            at += sent;
        }
        drop(one.reserve(1).unwrap());
    });
    let mut at = 0;
    loop {
        let view = two.peek().unwrap().expect("in the ring");
        if view.is_empty() {
            break;
        }
        let mut bytes = vec![0; view.len()];
        assert_eq!(view.read(0, &mut bytes), bytes.len());
        assert!(bytes.iter().enumerate().all(|(i, b)| *b == byte(at + i)), "wrong byte near {at}");
        let taken = if at % 3 == 0 { bytes.len() } else { (bytes.len() / 3).max(1) };
        view.take(taken);
        at += taken;
        // Both ways of receiving take turns.
        if at < total && at % 5 == 0 {
            let mut next = [0];
            (&two).read_exact(&mut next).unwrap();
            assert_eq!(next[0], byte(at));
            at += 1;
        }
    }
    assert_eq!(at, total);
    writer.join().unwrap();
}

#[test]
fn a_thread_that_has_room_or_a_view_does_not_wait_for_itself() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    let deadlock = |result: std::io::Result<usize>| {
        result.unwrap_err().raw_os_error() == Some(rustix::io::Errno::DEADLK.raw_os_error())
    };
    let room = one.reserve(100).unwrap().expect("in the ring");
    assert!(deadlock((&one).write(b"x")) && one.reserve(1).is_err());
    room.send(0);
    (&one).write_all(b"xyz").unwrap();
    let view = two.peek().unwrap().expect("in the ring");
    let mut got = [0; 3];
    assert!(view.len() == 3 && deadlock((&two).read(&mut got)) && two.peek().is_err());
    drop(view);
    (&two).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"xyz");
    // Another thread waits until the room is given back.
    let one = &one;
    std::thread::scope(|scope| {
        let mut room = one.reserve(2).unwrap().expect("in the ring");
        room.write(0, b"12");
        let other = scope.spawn(move || (&*one).write_all(b"3").unwrap());
        std::thread::yield_now();
        room.send(2);
        other.join().unwrap();
    });
    (&two).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"123");
}

#[test]
fn a_pinned_connection_goes_back_to_the_kernel_and_goes_on() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    let mut got = [0; 4];
    (&one).write_all(b"ring").unwrap();
    one.pin_to_kernel();
    for _ in 0..3 {
        (&one).write_all(b"kern").unwrap();
    }
    (&two).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"ring");
    for _ in 0..3 {
        (&two).read_exact(&mut got).unwrap();
        assert_eq!(&got, b"kern");
    }
    for _ in 0..3 {
        (&two).write_all(b"back").unwrap();
        (&one).read_exact(&mut got).unwrap();
        assert_eq!(&got, b"back");
    }
    let (one, two) = (one.describe(), two.describe());
    assert!([one.tx, one.rx, two.tx, two.rx].iter().all(|m| *m == Medium::Kernel), "{one:?} {two:?}");
}

#[test]
fn connections_go_on_when_the_node_has_died() {
    let mut node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    node.stop();
    let mut got = [0; 5];
    for _ in 0..100 {
        (&one).write_all(b"still").unwrap();
        (&two).read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still");
    }
    drop(two);
    assert_eq!((&one).read(&mut got).unwrap(), 0);
}

#[test]
fn an_upgraded_socket_that_changes_hands_is_joined_and_a_plain_one_stays() {
    let node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    (&one).write_all(b"from before").unwrap();
    // As if the descriptor had come in a message: the new holder knows nothing but the descriptor.
    two.connection().passed();
    let c = node.context();
    let adopted = c.adopt(two.socket().as_fd());
    drop(two.socket().try_clone().unwrap());
    let mut buffer = [0; 20];
    let mut into = [std::io::IoSliceMut::new(&mut buffer)];
    let got = adopted.recv(&c, two.socket().as_fd(), &mut into, vmmc_sockets::Take::Take);
    assert!(matches!(got, vmmc_sockets::Received::Done(11)), "{got:?}");
    drop(got);
    assert_eq!(&buffer[..11], b"from before");
    let (plain, _peer) = tcp_pair();
    assert!(c.adopt(plain.as_fd()).is_plain());
}

#[test]
fn an_upgraded_socket_that_nobody_can_place_ends_instead_of_losing_bytes() {
    let mut node = TestNode::start();
    let (a, b) = (node.context(), node.context());
    let (one, two) = upgraded_pair(&a, &b);
    (&one).write_all(b"in the ring").unwrap();
    node.stop();
    let c = node.context();
    let adopted = c.adopt(two.socket().as_fd());
    let mut buffer = [0; 20];
    let mut into = [std::io::IoSliceMut::new(&mut buffer)];
    let got = adopted.recv(&c, two.socket().as_fd(), &mut into, vmmc_sockets::Take::Take);
    assert!(matches!(got, vmmc_sockets::Received::Failed(_)), "{got:?}");
}
