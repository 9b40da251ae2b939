//! A network on a kernel that refuses, and on the real one.
//!
//! Invariant: nothing that the engine has handed over is lost for want of room, sent twice or sent
//! out of order; what the kernel refuses for good is counted.

use super::*;
use kernel::{Engine, FakePort, How, Kernel, Next, answer, datagram, kernel, numbers_out};
use vmmc_host::Region;

mod kernel;

const AGAIN: Result<(), Errno> = Err(Errno::AGAIN);

fn peer(number: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), number))
}

/// A node whose kernel has a script.
struct World {
    network: Network<FakePort>,
    engine: Engine,
    now: Time,
}

impl World {
    fn new() -> World {
        World::on(&[SocketAddr::from((Ipv4Addr::UNSPECIFIED, 1))])
    }

    fn on(listen: &[SocketAddr]) -> World {
        kernel(Kernel::restart);
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let network = Network::bind(listen, epoll).unwrap();
        World { network, engine: Engine::default(), now: Time::from_nanos(1) }
    }

    /// One that has sent to `to` before, so that the path is known.
    fn with_path(to: SocketAddr) -> World {
        let mut world = World::new();
        world.queue(to, 0..1);
        assert_eq!(world.transmit(), [0]);
        world.engine.path_sizes.clear();
        world
    }

    fn queue(&mut self, to: SocketAddr, numbers: std::ops::Range<u32>) {
        self.engine.queue(to, numbers, 100);
    }

    /// Numbers of the datagrams that went out with a turn.
    fn transmit(&mut self) -> Vec<u32> {
        self.network.transmit(&mut self.engine, self.now);
        assert_eq!(self.engine.loans.get(), 0, "every loan has ended");
        numbers_out()
    }

    fn send_inline(&mut self) -> bool {
        let (from, what) = (ConnectionId { index: 0, number: 0 }, Direct::Send { import: 0, offset: 0, data: b"" });
        self.network.try_send_inline(&mut self.engine, self.now, from, &what)
    }

    fn counter(&self, name: &str) -> u64 {
        self.network.counters().iter().find(|(n, _)| *n == name).unwrap().1
    }

    /// Errors, times that something was held, datagrams that went out as far as the counters know.
    fn counted(&self) -> [u64; 3] {
        ["udp_send_errors", "udp_held", "udp_datagrams_out"].map(|name| self.counter(name))
    }
}

#[test]
fn what_finds_no_room_goes_first_when_there_is_some() {
    let mut world = World::with_path(peer(1));
    world.queue(peer(1), 1..4);
    answer([AGAIN]);
    assert_eq!(world.transmit(), []);
    assert!(world.network.is_congested());
    world.queue(peer(1), 4..6);
    assert_eq!(world.transmit(), [1, 2, 3, 4, 5]);
    assert!(!world.network.is_congested());
    assert_eq!(world.counted(), [0, 1, 6]);
}

#[test]
fn while_something_waits_for_room_the_engine_keeps_what_it_has() {
    let mut world = World::with_path(peer(1));
    world.queue(peer(1), 1..2);
    answer([AGAIN; 5]);
    for _ in 0..5 {
        assert_eq!(world.transmit(), []);
        world.queue(peer(1), 9..10);
    }
    assert_eq!(world.engine.queue.len(), 5, "nothing was taken from it");
    assert_eq!(world.counter("udp_held"), 1, "one wait is counted once, however often it is tried");
    assert_eq!(world.transmit(), [1, 9, 9, 9, 9, 9]);
}

#[test]
fn what_was_gathered_behind_a_run_without_room_waits_behind_it() {
    // The kernel refuses when the engine has given a datagram of another run already.
    let mut world = World::with_path(peer(1));
    world.queue(peer(1), 1..3);
    world.queue(peer(2), 3..4);
    world.queue(peer(1), 4..5);
    answer([AGAIN]);
    assert_eq!(world.transmit(), []);
    assert_eq!(world.network.held.len(), 2);
    // Room for the first of them alone.
    answer([Ok(()), AGAIN]);
    assert_eq!(world.transmit(), [1, 2]);
    assert_eq!(world.transmit(), [3, 4]);
    assert_eq!(world.counted(), [0, 1, 5]);
}

#[test]
fn a_full_buffer_of_the_network_changes_no_order() {
    // More than one buffer full, in datagrams that are no run, with little room now and then.
    let mut world = World::with_path(peer(1));
    let numbers: Vec<u32> = (1..200).collect();
    for number in &numbers {
        world.engine.queue(peer(1), *number..number + 1, 1_000 + *number as usize);
    }
    let mut out = Vec::new();
    for turn in 0..400 {
        answer((0..turn % 7).map(|_| Ok(())).chain([AGAIN]));
        out.extend(world.transmit());
    }
    assert_eq!(out, numbers);
}

#[test]
fn a_message_past_the_rings_does_not_overtake_what_is_held() {
    let mut world = World::with_path(peer(1));
    world.queue(peer(1), 1_000..1_001);
    answer([AGAIN]);
    assert!(world.send_inline(), "the engine has counted it as sent");
    assert_eq!(numbers_out(), []);
    world.queue(peer(1), 1_001..1_002);
    assert!(!world.send_inline());
    assert_eq!(world.engine.queue.len(), 1, "it was not asked for");
    assert_eq!(world.transmit(), [1_000, 1_001]);
    assert_eq!(world.counter("udp_held"), 1);
}

#[test]
fn a_message_past_the_rings_goes_out_once_to_whomever_it_goes() {
    let mut world = World::with_path(peer(1));
    for to in [peer(1), peer(2), peer(1)] {
        let before = world.counter("udp_datagrams_out");
        world.queue(to, 7..8);
        assert!(world.send_inline());
        let out = kernel(|kernel| std::mem::take(&mut kernel.out));
        assert_eq!(out.iter().map(|out| out.to).collect::<Vec<_>>(), [to]);
        assert_eq!(world.counter("udp_datagrams_out"), before + 1);
    }
    assert!(!world.send_inline(), "there is nothing more");
}

#[test]
fn refused_segmentation_sends_one_by_one_from_then_on() {
    for refusal in [Errno::IO, Errno::INVAL, Errno::MSGSIZE] {
        let mut world = World::with_path(peer(1));
        kernel(|kernel| kernel.sends.clear());
        world.queue(peer(1), 1..5);
        answer([Err(refusal)]);
        assert_eq!(world.transmit(), [1, 2, 3, 4], "{refusal}");
        world.queue(peer(1), 5..7);
        assert_eq!(world.transmit(), [5, 6]);
        assert_eq!(kernel(|kernel| std::mem::take(&mut kernel.sends)), [4, 1, 1, 1, 1, 1, 1], "{refusal}");
        assert_eq!(world.engine.path_sizes, [], "the path is as it was");
        assert_eq!(world.counted(), [0, 0, 7]);
    }
}

#[test]
fn room_that_ends_amid_single_sends_leaves_the_rest_for_later() {
    let mut world = World::with_path(peer(1));
    world.queue(peer(1), 1..6);
    answer([Err(Errno::IO), Ok(()), Ok(()), AGAIN]);
    assert_eq!(world.transmit(), [1, 2]);
    // Once more, with room for one.
    answer([Ok(()), AGAIN]);
    assert_eq!(world.transmit(), [3]);
    world.queue(peer(1), 6..7);
    assert_eq!(world.transmit(), [4, 5, 6]);
    assert_eq!(world.counted(), [0, 1, 7]);
}

#[test]
fn one_datagram_that_is_refused_does_not_take_the_others_along() {
    let mut world = World::with_path(peer(1));
    world.queue(peer(1), 1..5);
    answer([Err(Errno::IO), Ok(()), Err(Errno::PERM), Ok(())]);
    assert_eq!(world.transmit(), [1, 3, 4]);
    assert_eq!(world.counter("udp_send_errors"), 1);
    assert!(!world.network.is_congested());
}

#[test]
fn a_kernel_without_segmentation_is_never_asked_for_it() {
    kernel(|kernel| kernel.segments = false);
    let mut world = World::new();
    world.queue(peer(1), 0..4);
    assert_eq!(world.transmit(), [0, 1, 2, 3]);
    assert_eq!(kernel(|kernel| kernel.sends.clone()), [1, 1, 1, 1]);
}

#[test]
fn what_was_held_is_sent_one_by_one_if_segmentation_is_refused_meanwhile() {
    let mut world = World::with_path(peer(1));
    world.queue(peer(1), 1..4);
    answer([AGAIN]);
    assert_eq!(world.transmit(), []);
    answer([Err(Errno::IO), Ok(()), AGAIN]);
    assert_eq!(world.transmit(), [1]);
    world.queue(peer(1), 4..5);
    assert_eq!(world.transmit(), [2, 3, 4]);
    assert_eq!(world.counter("udp_send_errors"), 0);
}

#[test]
fn a_path_that_has_shrunk_is_told_to_the_engine_and_the_datagrams_go_in_pieces() {
    for refusal in [Errno::MSGSIZE, Errno::INVAL] {
        kernel(|kernel| kernel.payload_bytes = 1_472);
        let mut world = World::with_path(peer(1));
        world.engine.queue(peer(1), 1..4, 1_400);
        kernel(|kernel| kernel.payload_bytes = 1_300);
        answer([Err(refusal)]);
        world.network.transmit(&mut world.engine, world.now);
        let out = kernel(|kernel| std::mem::take(&mut kernel.out));
        assert_eq!(out.iter().map(|out| out.bytes[0]).collect::<Vec<_>>(), [1, 2, 3], "each once, in order");
        assert!(out.iter().all(|out| out.how == How::InPieces && out.bytes.len() == 1_400));
        assert_eq!(world.engine.path_sizes, [(peer(1), 1_300)]);
        assert!(world.network.segments, "it was not segmentation that was refused");
        // The path is asked for again with the next datagram, for it may grow again.
        kernel(|kernel| kernel.payload_bytes = 1_472);
        world.queue(peer(1), 4..5);
        assert_eq!(world.transmit(), [4]);
        assert_eq!(world.engine.path_sizes, [(peer(1), 1_300), (peer(1), 1_472)]);
        assert_eq!(world.counted(), [1, 0, 5]);
    }
}

#[test]
fn a_datagram_that_finds_no_room_on_a_shrunk_path_is_lost_and_the_next_goes() {
    let mut world = World::with_path(peer(1));
    world.engine.queue(peer(1), 1..4, 1_400);
    kernel(|kernel| kernel.payload_bytes = 1_300);
    answer([Err(Errno::MSGSIZE), Ok(()), AGAIN]);
    assert_eq!(world.transmit(), [1, 3]);
    assert!(!world.network.is_congested());
}

#[test]
fn a_single_datagram_that_is_too_long_for_no_known_reason_is_lost_and_counted() {
    for refusal in [Errno::MSGSIZE, Errno::INVAL, Errno::IO] {
        let mut world = World::with_path(peer(1));
        world.queue(peer(1), 1..2);
        answer([Err(refusal)]);
        assert_eq!(world.transmit(), []);
        assert_eq!(world.counted(), [1, 0, 2]);
        assert!(world.network.segments && world.engine.path_sizes.is_empty());
        world.queue(peer(1), 2..4);
        assert_eq!(world.transmit(), [2, 3]);
    }
}

#[test]
fn an_error_of_a_send_is_counted_and_not_tried_again() {
    for error in [Errno::CONNREFUSED, Errno::PERM, Errno::NETUNREACH, Errno::NOBUFS, Errno::NOMEM] {
        let mut world = World::with_path(peer(1));
        kernel(|kernel| kernel.sends.clear());
        world.queue(peer(1), 1..3);
        world.queue(peer(2), 3..4);
        answer([Err(error)]);
        assert_eq!(world.transmit(), [3], "{error}: others are not touched");
        assert_eq!(kernel(|kernel| std::mem::take(&mut kernel.sends)), [2, 1]);
        assert_eq!(world.counted(), [1, 0, 4]);
        assert!(!world.network.is_congested());
    }
}

#[test]
fn what_is_held_and_then_refused_is_counted_and_the_next_has_its_turn() {
    let mut world = World::with_path(peer(1));
    world.queue(peer(1), 1..2);
    world.queue(peer(2), 2..3);
    answer([AGAIN]);
    assert_eq!(world.transmit(), []);
    world.queue(peer(1), 3..4);
    answer([Err(Errno::PERM)]);
    assert_eq!(world.transmit(), [2, 3]);
    assert_eq!(world.counted(), [1, 1, 4]);
}

#[test]
fn what_is_held_while_its_path_shrinks_goes_in_pieces_too() {
    let mut world = World::with_path(peer(1));
    world.engine.queue(peer(1), 1..3, 1_400);
    answer([AGAIN]);
    assert_eq!(world.transmit(), []);
    kernel(|kernel| kernel.payload_bytes = 1_300);
    answer([Err(Errno::MSGSIZE)]);
    assert_eq!(world.transmit(), [1, 2]);
    assert_eq!(world.engine.path_sizes, [(peer(1), 1_300)]);
}

#[test]
fn a_probe_goes_by_itself_and_the_kernel_is_asked_with_it() {
    let mut world = World::with_path(peer(1));
    kernel(|kernel| (kernel.sends.clear(), kernel.payload_bytes = 1_300));
    world.queue(peer(1), 1..3);
    world.engine.queue.push_back(Next { fit: Fit::Probe, ..Next::new(peer(1), datagram(3, 100)) });
    world.queue(peer(1), 4..6);
    assert_eq!(world.transmit(), [1, 2, 3, 4, 5]);
    assert_eq!(kernel(|kernel| std::mem::take(&mut kernel.sends)), [2, 1, 2]);
    assert_eq!(world.engine.path_sizes, [(peer(1), 1_300)]);
}

#[test]
fn a_probe_that_the_interface_refuses_is_silence_and_nothing_else() {
    for refusal in [Errno::MSGSIZE, Errno::INVAL] {
        let mut world = World::with_path(peer(1));
        world.engine.queue.push_back(Next { fit: Fit::Probe, ..Next::new(peer(1), datagram(1, 1_400)) });
        world.queue(peer(1), 2..3);
        kernel(|kernel| kernel.payload_bytes = 1_300);
        answer([Err(refusal)]);
        assert_eq!(world.transmit(), [2], "it does not go in pieces");
        assert_eq!(world.counted(), [0, 0, 3]);
        assert!(world.network.segments);
    }
}

#[test]
fn what_may_be_cut_up_is_sent_so_also_when_it_had_to_wait() {
    let mut world = World::with_path(peer(1));
    let next = |number| Next { fit: Fit::CutUp, ..Next::new(peer(1), datagram(number, 1_200)) };
    world.engine.queue.extend([next(1), next(2)]);
    answer([AGAIN]);
    assert_eq!(world.transmit(), []);
    world.queue(peer(1), 3..4);
    world.network.transmit(&mut world.engine, world.now);
    let out = kernel(|kernel| std::mem::take(&mut kernel.out));
    let went: Vec<_> = out.iter().map(|out| (out.bytes[0], out.how == How::InPieces)).collect();
    assert_eq!(went, [(1, true), (2, true), (3, false)]);
}

#[test]
fn what_is_held_finds_its_socket_when_its_route_was_forgotten() {
    // The second socket is the one for the address; the first one is of the other family.
    let listen = ["[::]:1", "0.0.0.0:2"].map(|address| address.parse().unwrap());
    let mut world = World::on(&listen);
    world.queue(peer(1), 1..2);
    answer([AGAIN]);
    assert_eq!(world.transmit(), []);
    world.network.routes.clear();
    assert_eq!(world.transmit(), [1]);
}

#[test]
fn an_address_without_a_socket_costs_the_datagram_and_nothing_else() {
    let mut world = World::with_path(peer(1));
    kernel(|kernel| kernel.binds = Err(Errno::AFNOSUPPORT));
    world.queue("[2001:db8::1]:1".parse().unwrap(), 1..2);
    world.queue(peer(1), 2..3);
    assert_eq!(world.transmit(), [2]);
    assert_eq!(world.counter("udp_send_errors"), 1);
    kernel(|kernel| kernel.binds = Ok(()));
    world.queue("[2001:db8::1]:1".parse().unwrap(), 3..4);
    assert_eq!(world.transmit(), [3], "a socket of that family is opened when it can be");
}

#[test]
fn an_answer_goes_out_by_the_address_of_the_wire_that_it_takes() {
    let listen = ["10.0.1.1:1", "127.0.0.1:1", "10.0.0.1:1", "[::1]:1"].map(|address| address.parse().unwrap());
    let mut world = World::on(&listen);
    for (to, socket) in [(peer(1), 2), (SocketAddr::from((Ipv4Addr::LOCALHOST, 7)), 1), ("[::1]:7".parse().unwrap(), 3)]
    {
        world.queue(to, 1..2);
        world.network.transmit(&mut world.engine, world.now);
        assert_eq!(kernel(|kernel| kernel.out.pop().unwrap().socket), socket, "to {to}");
    }
    // Received on another one, it is answered there.
    kernel(|kernel| kernel.coming[0].push_back(Ok(vec![(peer(1), b"hello".to_vec())])));
    assert!(world.network.receive(&mut world.engine, world.now, 1));
    world.queue(peer(1), 1..2);
    world.network.transmit(&mut world.engine, world.now);
    assert_eq!(kernel(|kernel| kernel.out.pop().unwrap().socket), 0);
}

#[test]
fn strangers_get_no_answer_while_much_waits_in_a_socket() {
    let mut world = World::with_path(peer(1));
    let mut ask = |queue: Result<(usize, usize), Errno>| {
        kernel(|kernel| kernel.queue = queue);
        world.engine.queue.push_back(Next { to_stranger: true, ..Next::new(peer(9), datagram(9, 50)) });
        world.queue(peer(1), 1..2);
        (world.transmit(), world.counter("udp_unanswered"))
    };
    assert_eq!(ask(Ok((50, 100))), (vec![9, 1], 0));
    assert_eq!(ask(Ok((51, 100))), (vec![1], 1), "half of the room is for others");
    assert_eq!(ask(Err(Errno::NOPROTOOPT)), (vec![1], 2), "a kernel that does not say has no room");
}

#[test]
fn strangers_do_not_wait_behind_others() {
    let mut world = World::with_path(peer(1));
    world.queue(peer(1), 1..2);
    world.engine.queue.push_back(Next { to_stranger: true, ..Next::new(peer(9), datagram(9, 50)) });
    answer([AGAIN]);
    assert_eq!(world.transmit(), []);
    assert_eq!(world.transmit(), [1]);
    assert_eq!(world.counter("udp_unanswered"), 1);
}

/// A datagram of which the most stays in memory.
fn lent(to: SocketAddr, number: u32) -> Next {
    let len = SPLICE_BYTES_MIN + 40;
    Next { lent: Some((20, SPLICE_BYTES_MIN)), ..Next::new(to, datagram(number, len)) }
}

#[test]
fn borrowed_memory_goes_by_the_quickest_way_that_is_open_and_once() {
    let near = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let no = Err(Errno::INVAL);
    let cases = [
        (near, vec![], How::ByReference, 1),
        (near, vec![no], How::Around, 0),
        // A full buffer too: the copy finds out.
        (near, vec![AGAIN, AGAIN], How::Sent, 0),
        // What memory of this node holds later is no other node's business.
        (peer(1), vec![], How::Around, 0),
        (peer(1), vec![Err(Errno::CONNREFUSED)], How::Sent, 0),
    ];
    for (to, answers, how, spliced) in cases {
        let mut world = World::with_path(to);
        world.engine.region = Some(Region::create(1 << 16).unwrap());
        world.queue(to, 1..2);
        world.engine.queue.push_back(lent(to, 2));
        world.queue(to, 3..4);
        let expected = datagram(2, SPLICE_BYTES_MIN + 40);
        answer([Ok(())].into_iter().chain(answers));
        world.network.transmit(&mut world.engine, world.now);
        assert_eq!(world.engine.loans.get(), 0);
        let out = kernel(|kernel| std::mem::take(&mut kernel.out));
        assert_eq!(out.iter().map(|out| out.bytes[0]).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(out[1].bytes == expected && out[1].how == how, "{:?} to {to}", out[1].how);
        assert_eq!([world.counter("udp_datagrams_spliced"), world.counter("udp_datagrams_out")], [spliced, 4]);
    }
}

#[test]
fn a_node_that_goes_to_sleep_holds_no_pages() {
    let mut world = World::with_path(peer(1));
    let (port, piece) = (UdpPort::bind((Ipv4Addr::LOCALHOST, 0).into(), 1 << 20).unwrap(), 61_440);
    let region = Region::create(8 * piece as u64).unwrap();
    for at in [0, piece] {
        let ahead = Ahead { transfer: (1, 1), bytes: (7 * piece - at) as u64 };
        let (to, memory) = (port.local_addr(), (&region, at as u64, piece));
        port.send_pages(&mut world.network.pages, to, b"head", memory, ahead, b"").unwrap();
    }
    assert!(world.network.pages.held_bytes() > 0);
    assert!(world.network.arm(false) && world.network.arm(true));
    assert_eq!(world.network.pages.held_bytes(), 0);
}

#[test]
fn borrowed_memory_without_room_is_copied_and_waits() {
    let mut world = World::with_path(peer(1));
    world.engine.region = Some(Region::create(1 << 16).unwrap());
    world.engine.queue.push_back(lent(peer(1), 1));
    answer([AGAIN; 2]);
    assert_eq!(world.transmit(), []);
    // Others write the memory meanwhile.
    world.engine.region.as_ref().unwrap().write(0, &[0xee; 1_000]).unwrap();
    world.network.transmit(&mut world.engine, world.now);
    let out = kernel(|kernel| std::mem::take(&mut kernel.out));
    assert!(out.len() == 1 && out[0].bytes == datagram(1, SPLICE_BYTES_MIN + 40));
}

#[test]
fn borrowed_memory_behind_what_is_held_waits_behind_it() {
    let mut world = World::with_path(peer(1));
    world.engine.region = Some(Region::create(1 << 16).unwrap());
    world.queue(peer(1), 1..2);
    world.engine.queue.push_back(lent(peer(1), 2));
    answer([AGAIN]);
    assert_eq!(world.transmit(), []);
    assert_eq!(world.transmit(), [1, 2]);
}

#[test]
fn borrowed_memory_that_is_gone_goes_as_zeros() {
    let mut world = World::with_path(peer(1));
    world.engine.queue.push_back(lent(peer(1), 1));
    world.network.transmit(&mut world.engine, world.now);
    let out = kernel(|kernel| std::mem::take(&mut kernel.out));
    assert!(out.len() == 1 && out[0].bytes.len() == SPLICE_BYTES_MIN + 40);
    assert!(out[0].bytes[20..20 + SPLICE_BYTES_MIN].iter().all(|byte| *byte == 0));
}

#[test]
fn the_first_datagram_on_a_route_asks_for_its_size_and_borrows_nothing() {
    let mut world = World::new();
    world.engine.region = Some(Region::create(1 << 16).unwrap());
    world.engine.queue.push_back(lent(peer(1), 1));
    assert_eq!(world.transmit(), [1]);
    assert_eq!(world.engine.path_sizes, [(peer(1), 1_472)]);
}

#[test]
fn a_run_ends_with_a_shorter_datagram_another_address_or_a_full_send() {
    let mut world = World::with_path(peer(1));
    kernel(|kernel| kernel.sends.clear());
    world.engine.queue(peer(1), 1..3, 100);
    world.engine.queue(peer(1), 3..4, 50);
    world.engine.queue(peer(1), 4..5, 50);
    world.engine.queue(peer(2), 5..6, 50);
    assert_eq!(world.transmit(), [1, 2, 3, 4, 5]);
    assert_eq!(kernel(|kernel| std::mem::take(&mut kernel.sends)), [3, 1, 1]);
    world.engine.queue(peer(1), 0..TRANSMIT_BATCH as u32 + 5, 1_400);
    assert_eq!(world.transmit().len(), TRANSMIT_BATCH, "rings have their turn");
    let sends = kernel(|kernel| std::mem::take(&mut kernel.sends));
    assert!(sends.iter().all(|count| count * 1_400 <= UDP_DATAGRAM_BYTES_MAX), "{sends:?}");
    assert_eq!(world.transmit().len(), 5);
}

#[test]
fn spoofed_senders_make_the_node_ask_for_few_path_sizes() {
    let mut world = World::new();
    let from = |n: u32| SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + n), 1));
    let come = |world: &mut World, numbers: std::ops::Range<u32>| {
        for n in numbers {
            kernel(|kernel| kernel.coming[0].push_back(Ok(vec![(from(n), vec![0; 40])])));
            assert!(world.network.receive(&mut world.engine, world.now, 1));
        }
        (kernel(|kernel| kernel.ways_asked) as u32, world.network.routes.len())
    };
    assert_eq!(come(&mut world, 0..PROBES_PER_SECOND + 50), (PROBES_PER_SECOND, 150));
    world.now = world.now + Duration::from_secs(1);
    let (asked, routes) = come(&mut world, 1_000..3_000);
    assert_eq!(asked, 2 * PROBES_PER_SECOND);
    assert!(routes <= ROUTES_MAX, "{routes}");
    assert_eq!(world.engine.came.len(), 2_150, "none is lost");
}

#[test]
fn an_error_of_a_receive_is_silence_and_the_other_sockets_are_heard() {
    let listen = ["10.0.0.1:1", "10.0.1.1:1"].map(|address| address.parse().unwrap());
    let mut world = World::on(&listen);
    kernel(|kernel| {
        kernel.coming[0].push_back(Err(Errno::NOMEM));
        kernel.coming[0].push_back(Ok(vec![(peer(1), b"later".to_vec())]));
        kernel.coming[1].push_back(Ok(vec![(peer(2), b"other".to_vec())]));
    });
    assert!(world.network.receive(&mut world.engine, world.now, 1));
    assert_eq!(world.engine.came, [b"other"]);
    assert!(world.network.receive(&mut world.engine, world.now, 1));
    assert_eq!(world.engine.came, [b"other", b"later"]);
    assert!(!world.network.receive(&mut world.engine, world.now, 1));
}

#[test]
fn sockets_that_show_already_count_as_shown() {
    let mut world = World::new();
    assert!(world.network.arm(false) && world.network.arm(false));
    // An earlier call showed it, and then the kernel had no memory for the next one.
    epoll::add(&*world.network.epoll, &world.network.ports[0], epoll::EventData::new_u64(1), epoll::EventFlags::IN)
        .unwrap();
    assert!(world.network.arm(true));
    assert!(world.network.armed);
}

#[test]
fn what_was_left_in_a_socket_does_not_end_a_sleep() {
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let mut network = Network::<UdpPort>::bind(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 0))], epoll.clone()).unwrap();
    let readable = || {
        let mut polled = [rustix::event::PollFd::new(&*epoll, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() > 0
    };
    let receive = |network: &mut Network| network.ports[0].receive(&mut network.received, 1, |_, _, _| {}).unwrap();
    assert!(!receive(&mut network));
    let other = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    other.send_to(b"awaited", network.addresses()[0]).unwrap();
    assert!(receive(&mut network));
    assert!(readable(), "it is left there while nobody sleeps");
    assert!(network.arm(true));
    assert!(!readable());
}

#[test]
fn each_datagram_goes_out_with_its_codepoint_also_after_a_wait() {
    let mut world = World::with_path(peer(1));
    let codepoints = || kernel(|kernel| kernel.out.iter().map(|out| out.codepoint).collect::<Vec<_>>());
    world.queue(peer(1), 1..3);
    world.engine.codepoint = Codepoint::Ect0;
    answer([AGAIN]);
    assert_eq!(world.transmit(), []);
    world.engine.codepoint = Codepoint::NotEct;
    world.queue(peer(1), 3..4);
    world.network.transmit(&mut world.engine, world.now);
    assert_eq!(codepoints(), [Codepoint::Ect0, Codepoint::Ect0, Codepoint::NotEct]);
    numbers_out();
    world.engine.codepoint = Codepoint::Ect1;
    world.queue(peer(1), 4..5);
    assert!(world.send_inline());
    assert_eq!(codepoints(), [Codepoint::Ect1]);
}

#[test]
fn codepoints_arrive_through_real_sockets() {
    let bind = || {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        Network::<UdpPort>::bind(&[SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))], epoll).unwrap()
    };
    let (mut sender, mut receiver) = (bind(), bind());
    assert!(sender.has_codepoints() && receiver.has_codepoints());
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, receiver.addresses()[0].port()));
    let (mut engine, mut came, now) = (Engine::default(), Engine::default(), Time::from_nanos(1));
    let sent = [Codepoint::Ect0, Codepoint::NotEct, Codepoint::Ect1, Codepoint::Ect0];
    let mut expected = Vec::new();
    for (codepoint, number) in sent.into_iter().zip([0, 10, 20, 30]) {
        engine.codepoint = codepoint;
        // Several of a size are one send, and come as one.
        engine.queue(to, number..number + 5, 1_200);
        sender.transmit(&mut engine, now);
        expected.extend([codepoint; 5]);
    }
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while came.came.len() < expected.len() && std::time::Instant::now() < end {
        receiver.receive(&mut came, now, 1);
    }
    assert_eq!(came.came_with, expected);
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let near = Network::<UdpPort>::bind(&[loopback], Arc::clone(&sender.epoll)).unwrap();
    assert!(!near.has_codepoints());
}

/// Lets datagrams of these lengths come to loopback, numbered, and takes all of them.
fn come_near(world: &mut World, lens: &[usize]) {
    let near = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let come = |(number, len): (u32, &usize)| Ok(vec![(near, datagram(number, *len))]);
    kernel(|kernel| kernel.coming[0].extend((0..).zip(lens).map(come)));
    while world.network.receive(&mut world.engine, world.now, 1) {}
    assert_eq!(world.engine.loans.get(), 0, "every loan has ended");
    assert!(kernel(|kernel| kernel.coming[0].is_empty()));
}

/// One whose engine has a place for 30,000 bytes of each datagram of [`LONG`].
fn near_world() -> World {
    let mut world = World::on(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 7))]);
    world.engine.region = Some(Region::create(1 << 16).unwrap());
    world.engine.piece = Some((100, 30_000));
    world
}

const LONG: usize = 30_150;

/// Lengths of the datagrams that came, and numbers of those that came in part.
fn came(world: &mut World) -> (Vec<usize>, Vec<u8>) {
    let whole = std::mem::take(&mut world.engine.came).iter().map(Vec::len).collect();
    let placed = std::mem::take(&mut world.engine.came_placed);
    assert!(placed.iter().all(|rest| rest.len() == LONG - 30_000));
    (whole, placed.iter().map(|rest| rest[0]).collect())
}

#[test]
fn behind_a_long_datagram_what_is_long_goes_to_its_place() {
    let mut world = near_world();
    come_near(&mut world, &[40, LONG, 40, LONG, HEAD_BYTES + 1, LONG]);
    // The first long one says that there may be more.
    assert_eq!(came(&mut world), (vec![40, LONG, 40, HEAD_BYTES + 1], vec![3, 5]));
    assert_eq!((world.counter("udp_datagrams_placed"), world.counter("udp_datagrams_in")), (2, 6));
    let mut there = vec![0; 30_000];
    world.engine.region.as_ref().unwrap().read(64, &mut there).unwrap();
    assert!(there.iter().all(|byte| *byte == 5));
    // What has no place, and what the station has no region for, comes whole.
    world.engine.piece = None;
    come_near(&mut world, &[LONG]);
    world.engine.piece = Some((100, 30_000));
    world.engine.region = None;
    come_near(&mut world, &[LONG]);
    assert_eq!(came(&mut world), (vec![LONG, LONG], vec![]));
}

#[test]
fn nothing_is_looked_at_where_no_long_datagram_has_come_lately_or_none_has_a_place() {
    let mut world = near_world();
    let looks = || kernel(|kernel| std::mem::take(&mut kernel.looks));
    come_near(&mut world, &[40; 50]);
    assert_eq!(looks(), 0);
    let mut lens = vec![LONG];
    lens.resize(1 + LOOKS as usize, 40);
    lens.push(LONG);
    come_near(&mut world, &lens);
    // The last one is long, and behind it nothing comes.
    assert_eq!((looks(), came(&mut world).1), (LOOKS as usize + 1, vec![]));
    let mut sealed = near_world();
    sealed.engine.is_sealed = true;
    come_near(&mut sealed, &[LONG; 50]);
    assert_eq!((looks(), came(&mut sealed).1), (0, vec![]));
}

#[test]
fn a_datagram_whose_place_has_no_memory_any_more_is_lost_and_the_next_one_comes_whole() {
    let mut world = near_world();
    answer([Ok(()), Err(Errno::FAULT)]);
    come_near(&mut world, &[LONG; 5]);
    assert_eq!(came(&mut world), (vec![LONG, LONG], vec![1, 4]));
}
