//! Ports and receives on loopback.

use super::*;
use crate::limits::{SPLICE_FAILURES_MAX, SPLICED_PAGES_MAX};
use crate::region::PAGE_BYTES;
use std::time::{Duration, Instant};

fn loopback() -> UdpPort {
    UdpPort::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1 << 20).unwrap()
}

fn receive_all(port: &mut UdpPort, count: usize) -> Vec<Vec<u8>> {
    let (mut buffer, mut all) = (ReceiveBuffer::new(), Vec::new());
    let end = Instant::now() + Duration::from_secs(20);
    while all.len() < count && Instant::now() < end {
        buffer.receive(port, 1, |_, _, bytes| all.push(bytes.to_vec())).unwrap();
    }
    all
}

#[test]
fn datagrams_keep_their_borders_and_their_sender() {
    let (mut a, mut b) = (loopback(), loopback());
    a.send(b.local_addr(), b"one", 3).unwrap();
    a.send(b.local_addr(), b"three", 1400).unwrap();
    assert_eq!(receive_all(&mut b, 2), [b"one".to_vec(), b"three".to_vec()]);
    b.send(a.local_addr(), b"back", 4).unwrap();
    let mut from = None;
    while from.is_none() {
        ReceiveBuffer::new().receive(&mut a, 1, |sender, _, _| from = Some(sender)).unwrap();
    }
    assert_eq!(from, Some(b.local_addr()));
}

#[test]
fn a_receive_polls_as_often_as_asked_and_finds_what_comes_meanwhile() {
    let (a, mut b, mut buffer) = (loopback(), loopback(), ReceiveBuffer::new());
    let to = b.local_addr();
    assert!(!buffer.receive(&mut b, 1_000, |_, _, _| panic!("nothing was sent")).unwrap());
    let mut came = Vec::new();
    let found = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            a.send(to, b"late", 4).unwrap();
        });
        // So many polls take seconds: one call finds it.
        buffer.receive(&mut b, 10_000_000, |_, _, bytes| came.extend_from_slice(bytes)).unwrap()
    });
    assert_eq!((found, &came[..]), (true, &b"late"[..]));
}

#[test]
fn a_datagram_that_was_awaited_leaves_the_queue_later_and_comes_once() {
    let (a, mut b, mut buffer) = (loopback(), loopback(), ReceiveBuffer::new());
    let to = b.local_addr();
    let queued = |port: &UdpPort| rustix::io::ioctl_fionread(port).unwrap();
    let mut receive = |port: &mut UdpPort| {
        let mut came = Vec::new();
        buffer.receive(port, 1, |_, _, bytes| came.push(bytes.to_vec())).unwrap();
        came
    };
    assert!(receive(&mut b).is_empty(), "nothing was sent");
    a.send(to, b"awaited", 7).unwrap();
    a.send(to, b"next", 4).unwrap();
    assert_eq!(receive(&mut b), [b"awaited"]);
    assert_eq!(queued(&b), 7, "still at the head of the queue");
    assert_eq!(receive(&mut b), [b"next"]);
    assert_eq!(queued(&b), 0, "one that comes right behind another is taken with one call");
    assert!(receive(&mut b).is_empty());
    a.send(to, b"", 1).unwrap();
    a.send(to, b"more", 4).unwrap();
    assert_eq!(receive(&mut b), [b""]);
    b.release();
    b.release();
    assert_eq!(queued(&b), 4, "a release takes what was given, and nothing else");
    assert_eq!(receive(&mut b), [b"more"]);
}

#[test]
fn memory_of_a_region_goes_out_from_its_place() {
    let (a, mut b) = (loopback(), loopback());
    let region = Region::create(70_000).unwrap();
    let bytes: Vec<u8> = (0..50_000u32).map(|i| (i / 7) as u8).collect();
    region.write(4000, &bytes).unwrap();
    a.send_around(b.local_addr(), b"head", (&region, 4000, 50_000), b"tail").unwrap();
    assert_eq!(receive_all(&mut b, 1), [[b"head", &bytes[..], b"tail"].concat()]);
}

#[test]
fn a_datagram_is_looked_at_and_a_piece_of_it_goes_to_a_region() {
    let (a, mut b, mut buffer) = (loopback(), loopback(), ReceiveBuffer::new());
    let (to, from) = (b.local_addr(), Some(a.local_addr()));
    assert_eq!(buffer.peek(&mut b, 100).unwrap(), None);
    let long: Vec<u8> = (0..60_000u32).map(|at| (at / 7) as u8).collect();
    for len in [60_000, 40, 60_000, HEAD_BYTES, HEAD_BYTES + 1] {
        a.send(to, &long[..len], len).unwrap();
    }
    let region = Region::create(2 * PAGE_BYTES as u64).unwrap();
    let look = |buffer: &mut ReceiveBuffer, b: &mut UdpPort| buffer.peek(b, 1).unwrap().expect("it is there");
    let first = look(&mut buffer, &mut b);
    assert_eq!(first, Head { from, len: 60_000 });
    assert_eq!(buffer.head(&first), &long[..HEAD_BYTES]);
    let rest = buffer.take(&mut b, &first, Some((100, (&region, 1_000, 6_000)))).unwrap();
    assert_eq!((&rest[..100], &rest[6_100..]), (&long[..100], &long[6_100..]));
    let mut there = vec![0; 8_192];
    region.read(0, &mut there).unwrap();
    assert_eq!(there[1_000..7_000], long[100..6_100]);
    assert!(there[..1_000].iter().chain(&there[7_000..]).all(|byte| *byte == 0), "nothing else");
    // One that is all head is gone with the next look; a long one may be taken as it is.
    let short = look(&mut buffer, &mut b);
    assert_eq!(buffer.head(&short), &long[..40]);
    let second = look(&mut buffer, &mut b);
    assert_eq!(buffer.take(&mut b, &second, None).unwrap(), long);
    let edge = look(&mut buffer, &mut b);
    assert_eq!(buffer.head(&edge), &long[..HEAD_BYTES]);
    assert_eq!(receive_all(&mut b, 1), [&long[..HEAD_BYTES + 1]]);
}

#[test]
fn a_piece_for_memory_that_takes_none_is_lost_with_its_datagram_and_with_no_other() {
    let (a, mut b, mut buffer) = (loopback(), loopback(), ReceiveBuffer::new());
    let region = Region::create(2 * PAGE_BYTES as u64).unwrap();
    for byte in [1, 2] {
        a.send(b.local_addr(), &[byte; 10_000], 10_000).unwrap();
    }
    // The kernel may not write there; so it is where a file system has no page left for a hole.
    let len = region.len_bytes();
    let region = Region::map(region.share().unwrap(), len, crate::Protection::ReadOnly).unwrap();
    let head = buffer.peek(&mut b, 1).unwrap().expect("it is there");
    assert!(buffer.take(&mut b, &head, Some((100, (&region, 0, 8_000)))).is_err());
    assert_eq!(receive_all(&mut b, 1), [vec![2; 10_000]]);
}

#[test]
fn pages_of_a_region_go_out_by_reference() {
    let (a, mut b) = (loopback(), loopback());
    let mut pipe = PagePipe::new();
    let region = Region::create(200_000).unwrap();
    let bytes: Vec<u8> = (0..200_000u32).map(|i| (i / 7) as u8).collect();
    region.write(0, &bytes).unwrap();
    let full = SPLICED_PAGES_MAX * PAGE_BYTES;
    // Whole pages, parts of pages at either end, a single byte, all that fits with a head and a
    // tail.
    let ranges = [(0, 61_440), (4_000, 57_000), (8_191, 1), (4_096, 61_000), (1, 8_192), (3, full - 100)];
    for (offset, len) in ranges {
        assert!(pipe.takes(offset as u64, len), "{len} bytes at {offset}");
        a.send_pages(&mut pipe, b.local_addr(), b"head", (&region, offset as u64, len), ALONE, b"tail").unwrap();
        a.send(b.local_addr(), b"next", 4).unwrap();
        let expected = [b"head", &bytes[offset..offset + len], b"tail"].concat();
        let came = receive_all(&mut b, 2);
        assert!(came == [expected, b"next".to_vec()], "{len} bytes at {offset}");
    }
    assert!(!pipe.takes(1, full), "one page more");
    // What the memory holds when it is received, which shows that nothing copied it before.
    a.send_pages(&mut pipe, b.local_addr(), b"", (&region, 0, 8_192), ALONE, b"t").unwrap();
    region.write(0, b"late").unwrap();
    let came = receive_all(&mut b, 1);
    assert_eq!((&came[0][..4], came[0].len()), (&b"late"[..], 8_193));
}

#[test]
fn pages_that_are_taken_ahead_go_in_their_turn_or_not_at_all() {
    let (a, mut b) = (loopback(), loopback());
    let (to, mut pipe, piece) = (b.local_addr(), PagePipe::new(), (SPLICED_PAGES_MAX * PAGE_BYTES) as u64);
    let region = Region::create(20 * piece).unwrap();
    let bytes: Vec<u8> = (0..20 * piece).map(|at| (at / 5) as u8).collect();
    region.write(0, &bytes).unwrap();
    let mut send = |pipe: &mut PagePipe, transfer: u64, from: u64, len: u64, last: u64, tail: &[u8]| {
        let ahead = Ahead { transfer: (1, transfer), bytes: last - from - len };
        a.send_pages(pipe, to, b"head", (&region, from, len as usize), ahead, tail).unwrap();
        receive_all(&mut b, 1).pop().expect("it arrives")
    };
    let expected =
        |from: u64, len: u64, tail: &[u8]| [b"head", &bytes[from as usize..(from + len) as usize], tail].concat();
    // A transfer that begins and ends within pages; a datagram ends with its pages, or with a tail.
    let (start, end) = (100, 17 * piece + 5);
    let mut at = start;
    while at < end {
        let len = (piece - at % piece).min(end - at);
        let tail = [&b""[..], b"tail"][(at / piece % 2) as usize];
        assert!(send(&mut pipe, 1, at, len, end, tail) == expected(at, len, tail), "{len} bytes at {at}");
        at += len;
    }
    assert_eq!(pipe.held_bytes(), 0, "no more was taken than has gone");
    // Others in between, shorter pieces than were taken, and the same one again.
    for (from, len) in [(0, piece), (5 * piece, piece), (piece, piece), (2 * piece, 8_192), (2 * piece, piece)] {
        assert!(send(&mut pipe, 2, from, len, 20 * piece, b"") == expected(from, len, b""), "{len} bytes at {from}");
    }
    // The same memory may be made of other pages when the next transfer begins with it.
    let mut pipes = [PagePipe::new(), PagePipe::new()];
    for pipe in &mut pipes {
        (0..4).for_each(|round| drop(send(pipe, 3, round * piece, piece, 20 * piece, b"")));
        assert_eq!(pipe.held_bytes() as u64, 3 * piece, "one, two, and four at once");
    }
    let next = 4 * piece;
    rustix::fs::fallocate(
        region.share().unwrap(),
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        next,
        piece,
    )
    .unwrap();
    let (zeros, before) = (vec![0; piece as usize], &expected(next, piece, b"")[4..]);
    let [same, other] = [3, 4].map(|transfer| {
        let pipe = &mut pipes[transfer as usize - 3];
        send(pipe, transfer, next, piece, next + piece, b"")[4..].to_vec()
    });
    assert!(same == before, "the transfer goes on with the pages that it had");
    assert!(other == zeros, "another one has those that are there now");
}

#[test]
fn pages_that_were_taken_ahead_are_let_go() {
    let (a, mut b, mut pipe) = (loopback(), loopback(), PagePipe::new());
    let piece = (SPLICED_PAGES_MAX * PAGE_BYTES) as u64;
    let region = Region::create(8 * piece).unwrap();
    for from in [0, piece] {
        let ahead = Ahead { transfer: (1, 1), bytes: 7 * piece - from };
        a.send_pages(&mut pipe, b.local_addr(), b"h", (&region, from, piece as usize), ahead, b"").unwrap();
    }
    assert_eq!(pipe.held_bytes() as u64, piece);
    pipe.clear();
    assert_eq!(pipe.held_bytes(), 0);
    assert_eq!(receive_all(&mut b, 2).len(), 2);
}

/// Nothing follows.
const ALONE: Ahead = Ahead { transfer: (0, 0), bytes: 0 };

#[test]
fn a_datagram_of_pages_that_fails_leaves_nothing_behind() {
    let (a, mut b) = (loopback(), loopback());
    let (to, mut pipe, region) = (b.local_addr(), PagePipe::new(), Region::create(1 << 20).unwrap());
    // Larger than a datagram can be.
    for round in 0..SPLICE_FAILURES_MAX {
        assert!(pipe.takes(0, 60_000), "round {round}");
        a.send_pages(&mut pipe, to, &[1; 10_000], (&region, 0, 60_000), ALONE, b"tail").unwrap_err();
    }
    assert!(!pipe.takes(0, 60_000), "a kernel that always refuses is not asked for ever");
    // Pages that went missing: what was begun ends there.
    let mut piece = libc::iovec { iov_base: b"begun".as_ptr().cast_mut().cast(), iov_len: 5 };
    // SAFETY: the piece is a literal.
    unsafe { a.send_message(to, std::slice::from_mut(&mut piece), None, SEND | SendFlags::MORE) }.unwrap();
    a.end_pages(&mut PagePipe::new(), to, 100, b"tail").unwrap_err();
    a.send(to, b"sound", 5).unwrap();
    // What was cut short need not arrive.
    let mut came = Vec::new();
    while came.last().is_none_or(|last: &Vec<u8>| last != b"sound") {
        let next = receive_all(&mut b, 1);
        assert!(!next.is_empty() && came.len() < 20, "{came:?}");
        came.extend(next);
    }
    assert!(came.iter().all(|datagram| datagram.len() <= 10_000), "cut short: {came:?}");
    assert!(came.iter().any(|datagram| datagram == b"begun"), "{came:?}");
}

#[test]
fn one_send_carries_several_datagrams() {
    let (a, mut b) = (loopback(), loopback());
    if !a.sends_segments() {
        eprintln!("skipped: this kernel has no UDP segmentation offload");
        return;
    }
    let bytes: Vec<u8> = (0..10_500u32).map(|i| i as u8).collect();
    // A port that loopback alone reaches gets them one by one, another one joined.
    let mut joining = UdpPort::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), 1 << 20).unwrap();
    for port in [&mut b, &mut joining] {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port.local_addr().port()));
        a.send(to, &bytes, 1000).unwrap();
        let all = receive_all(port, 11);
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [vec![1000; 10], vec![500]].concat());
        assert_eq!(all.concat(), bytes);
    }
}

#[test]
fn the_largest_datagram_passes_on_loopback() {
    let (a, mut b) = (loopback(), loopback());
    let payload = way_to(b.local_addr()).unwrap().payload_bytes;
    assert!(payload > 1400, "loopback carries {payload} bytes");
    a.send(b.local_addr(), &vec![7; payload], payload).unwrap();
    assert_eq!(receive_all(&mut b, 1), [vec![7; payload]]);
    assert!(b.receive_buffer_bytes() > 0);
}

#[test]
fn a_peer_that_is_not_there_is_no_error_of_a_receive() {
    let mut a = loopback();
    let gone = loopback().local_addr();
    let mut buffer = ReceiveBuffer::new();
    for _ in 0..20 {
        let _ = a.send(gone, b"x", 1);
        assert!(!buffer.receive(&mut a, 1, |_, _, _| {}).unwrap());
    }
}

fn any(v6: bool) -> UdpPort {
    let ip: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    UdpPort::bind((ip, 0).into(), 1 << 20).unwrap()
}

#[test]
fn traffic_classes_arrive_with_what_was_sent_after_they_were_set() {
    let near = |port: &UdpPort, ip: IpAddr| SocketAddr::from((ip, port.local_addr().port()));
    // IPv4, IPv6, and IPv4 to a socket of IPv6.
    let kinds = [
        (false, false, IpAddr::from(Ipv4Addr::LOCALHOST)),
        (true, true, Ipv6Addr::LOCALHOST.into()),
        (false, true, Ipv4Addr::LOCALHOST.into()),
    ];
    for (from, to, ip) in kinds {
        let (sender, mut receiver) = (any(from), any(to));
        assert!(sender.has_classes() && receiver.has_classes());
        let address = near(&receiver, ip);
        let mut came = Vec::new();
        for class in [0b10, 0b01, 0, 0b11, 0b10] {
            sender.set_class(class);
            sender.send(address, b"one alone", 9).unwrap();
            // Cut up by the kernel, and joined again.
            sender.send(address, &[class; 2_500], 1_000).unwrap();
            came.push((class, b"one alone".to_vec()));
            came.extend([1_000, 1_000, 500].map(|len| (class, vec![class; len])));
        }
        let (mut buffer, mut all) = (ReceiveBuffer::new(), Vec::new());
        let end = Instant::now() + Duration::from_secs(20);
        while all.len() < came.len() && Instant::now() < end {
            buffer.receive(&mut receiver, 1, |_, class, bytes| all.push((class, bytes.to_vec()))).unwrap();
        }
        assert_eq!(all, came, "to {address}");
    }
}

#[test]
fn a_socket_of_loopback_has_no_classes() {
    let (sender, mut receiver) = (any(false), loopback());
    assert!(!receiver.has_classes());
    receiver.set_class(0b10);
    sender.set_class(0b10);
    sender.send(receiver.local_addr(), b"with one", 8).unwrap();
    let mut classes = Vec::new();
    while classes.is_empty() {
        ReceiveBuffer::new().receive(&mut receiver, 1, |_, class, _| classes.push(class)).unwrap();
    }
    assert_eq!(classes, [0]);
}
