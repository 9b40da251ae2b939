//! Paths that swallow large packets: from the start, or from some time on. Everything arrives, and
//! packets become as large as the path takes [RFC 8899].

mod common;

use common::{Fate, Faults, World, key};
use proptest::prelude::*;
use std::time::Duration;
use vmmc_nic::*;

const MIB: u64 = 1 << 20;

struct Setup {
    world: World,
    ours: ProcessId,
    source: RegionRef,
    target: RegionRef,
    export: ExportId,
    import: ImportId,
    cookies: u64,
}

/// A pair whose interfaces take `told` bytes, and a region of 1 MiB on either side.
fn setup(seed: u64, sealed: bool, told: usize) -> Setup {
    setup_with(seed, told, |config| config.key = key().filter(|_| sealed))
}

fn setup_with(seed: u64, told: usize, change: impl Fn(&mut Config)) -> Setup {
    let mut world = World::pair_with(seed, change);
    for (index, other) in [(0, 1), (1, 0)] {
        let to = world.nodes[other].addrs[0];
        world.nodes[index].engine.set_path_mtu(to, told);
    }
    let (ours, owner) = (world.process(0), world.process(1));
    let (source, target) = (world.region(0, ours, 2, MIB as usize), world.region(1, owner, 1, MIB as usize));
    world.fill(0, source, |index| (index * 7 + index / 251) as u8);
    let export = world.export(1, target, "buffer");
    let import = world.import(0, ours, 1, "buffer").import;
    Setup { world, ours, source, target, export, import, cookies: 0 }
}

impl Setup {
    fn path(&self, node: usize) -> PathInfo {
        let peer = self.world.nodes[node].engine.peers().next().expect("there is one");
        assert_eq!(peer.state, PeerState::Up);
        peer.paths[0].clone()
    }

    fn start(&mut self, len: u64) -> u64 {
        self.cookies += 1;
        self.world.send_region(0, self.source, self.import, len, self.cookies);
        self.cookies
    }

    fn start_fetch(&mut self, len: u64) -> u64 {
        self.cookies += 1;
        let command = Command::Fetch {
            import: self.import,
            offset: 0,
            len,
            region: self.source.region,
            region_offset: 0,
            cookie: Cookie(self.cookies),
        };
        self.world.post(0, self.ours, command).expect("room");
        self.cookies
    }

    fn send(&mut self, len: u64) {
        let cookie = self.start(len);
        assert_eq!(self.world.completion(0, cookie), Ok(len));
    }

    fn same(&self) -> bool {
        self.world.bytes(0, self.source) == self.world.bytes(1, self.target)
    }
}

#[test]
fn a_wire_that_takes_what_its_interface_says_is_asked_every_ten_minutes() {
    for told in [1_472, 8_972, 65_507] {
        let mut s = setup(1, true, told);
        s.world.narrow = Some(told);
        s.world.tape = Some(Vec::new());
        s.send(MIB);
        s.world.run_for(Duration::from_secs(500));
        let sent =
            |s: &Setup| s.world.tape.as_ref().expect("recorded").iter().filter(|(_, _, d)| d.len() == told).count();
        let before = sent(&s);
        s.world.run_for(Duration::from_secs(500));
        assert_eq!(sent(&s), before + 2, "one from each side");
        let path = s.path(0);
        assert_eq!((path.mtu_bytes, path.mtu_state, path.black_holes), (told, MtuState::Complete, 0));
        let tape = s.world.tape.as_ref().expect("recorded");
        let longest = tape.iter().map(|(_, _, data)| data.len()).max();
        assert!(longest.is_some_and(|len| (told - 100..=told).contains(&len)), "{longest:?}");
    }
}

#[test]
fn a_path_that_is_smaller_than_its_interface_is_found_out_and_everything_arrives() {
    for (seed, (told, truth)) in
        [(1_472, 1_400), (1_472, 1_200), (8_972, 1_472), (65_507, 1_372)].into_iter().enumerate()
    {
        for sealed in [true, false] {
            let mut s = setup(seed as u64, sealed, told);
            s.world.narrow = Some(truth);
            let begun = s.world.now;
            s.send(MIB);
            assert!(s.same(), "{told} {truth}");
            let took = s.world.now - begun;
            assert!(took < Duration::from_millis(600), "{told} {truth}: {took:?}");
            let path = s.path(0);
            assert_eq!((path.black_holes, path.mtu_limit_bytes), (1, told));
            s.world.run_for(Duration::from_secs(10));
            let path = s.path(0);
            assert_eq!(path.mtu_state, MtuState::Complete);
            assert!(path.mtu_bytes <= truth && path.mtu_bytes + limits::MTU_STEP_BYTES >= truth, "{path:?}");
            // From here on nothing is lost.
            let lost = s.world.nodes[0].engine.stats().retransmits;
            s.send(MIB);
            assert_eq!(s.world.nodes[0].engine.stats().retransmits, lost);
        }
    }
}

#[test]
fn a_path_that_becomes_smaller_under_way_loses_no_chunk_and_no_session() {
    for (seed, after) in [1u64, 20, 100, 300, 700, 1_500].into_iter().enumerate() {
        for sealed in [true, false] {
            let mut s = setup(seed as u64, sealed, 60_000);
            s.world.link = Some(Box::new(|_, _, _| Fate::Late(Duration::from_micros(100))));
            let there = s.start(MIB);
            s.world.run_for(Duration::from_micros(after));
            s.world.narrow = Some(1_300);
            assert_eq!(s.world.completion(0, there), Ok(MIB));
            assert!(s.same());
            s.world.fill(1, s.target, |index| (index * 3 + index / 13) as u8);
            s.world.narrow = None;
            let back = s.start_fetch(MIB);
            s.world.run_for(Duration::from_micros(after));
            s.world.narrow = Some(1_250);
            assert_eq!(s.world.completion(0, back), Ok(MIB));
            assert!(s.same());
        }
    }
}

#[test]
fn a_black_hole_is_noticed_although_short_messages_get_through() {
    let mut s = setup(5, true, 1_472);
    s.world.narrow = Some(1_300);
    let large = s.start(5_000);
    let begun = s.world.now;
    // The peer is never silent for long enough that a timeout would come.
    while s.world.now < begun + Duration::from_millis(500) {
        s.cookies += 1;
        let (ours, import, cookie) = (s.ours, s.import, s.cookies);
        s.world.send(0, ours, import, 6_000, b"short", cookie);
        s.world.run_for(Duration::from_micros(300));
    }
    assert_eq!(s.path(0).black_holes, 1);
    assert_eq!(s.world.completion(0, large), Ok(5_000));
}

#[test]
fn a_path_that_becomes_larger_again_is_found_after_ten_minutes() {
    let mut s = setup(6, true, 8_972);
    s.world.narrow = Some(1_472);
    s.send(MIB);
    s.world.run_for(Duration::from_secs(10));
    s.world.narrow = None;
    s.world.run_for(Duration::from_secs(500));
    assert!(s.path(0).mtu_bytes <= 1_472);
    s.world.run_for(Duration::from_secs(110));
    let path = s.path(0);
    assert_eq!((path.mtu_bytes, path.mtu_state), (8_972, MtuState::Complete));
    s.send(MIB);
}

#[test]
fn losses_of_a_path_that_takes_large_packets_make_them_no_smaller_for_long() {
    let mut s = setup(7, true, 8_972);
    s.world.faults = Faults { loss: 100, ..Faults::default() };
    for _ in 0..10 {
        s.send(MIB);
    }
    s.world.run_for(Duration::from_secs(10));
    assert_eq!(s.path(0).mtu_bytes, 8_972);
}

#[test]
fn a_path_that_does_not_even_take_the_base_has_its_packets_cut_up() {
    let mut s = setup(8, true, 1_472);
    s.world.narrow = Some(900);
    s.send(MIB);
    assert!(s.same());
    assert_eq!((s.path(0).mtu_state, s.path(0).mtu_bytes), (MtuState::Error, limits::PACKET_BYTES_MIN));
    s.world.narrow = None;
    s.world.run_for(Duration::from_secs(10));
    let path = s.path(0);
    assert!(path.mtu_state == MtuState::Complete && path.mtu_bytes + limits::MTU_STEP_BYTES >= 1_472, "{path:?}");
}

#[test]
fn one_that_is_at_the_base_already_is_found_out_as_well() {
    // By its interface, and after a black hole.
    for (told, first) in [(limits::PACKET_BYTES_MIN, None), (1_472, Some(1_220))] {
        let mut s = setup(8, true, told);
        s.world.narrow = first;
        s.send(MIB);
        s.world.narrow = Some(900);
        s.send(MIB);
        assert!(s.same());
        let at_base = (MtuState::Error, limits::PACKET_BYTES_MIN);
        assert_eq!((s.path(0).mtu_state, s.path(0).mtu_bytes), at_base, "{told}");
    }
}

#[test]
fn answers_that_are_too_large_arrive_though_nothing_there_depends_on_the_peer() {
    let mut s = setup(12, true, 8_972);
    let now = s.world.now;
    let owner = s.target.process;
    let mut sends: Vec<u64> = (0..200).map(|_| s.start(8)).collect();
    s.world.flush();
    s.world.nodes[1].engine.unexport(now, owner, s.export).expect("exported");
    // What says that they were refused goes in one packet.
    s.world.narrow = Some(1_300);
    while let Some(cookie) = sends.pop() {
        assert!(matches!(s.world.completion(0, cookie), Err(OpError::Revoked)), "send {cookie}");
    }
    assert!((s.path(1).black_holes, s.path(1).mtu_bytes <= 1_300) == (1, true), "{:?}", s.path(1));
}

#[test]
fn a_dead_path_is_not_taken_for_a_small_one() {
    let mut s = setup(9, true, 8_972);
    let cookie = s.start(MIB);
    s.world.run_for(Duration::from_micros(100));
    let cut: Vec<_> = s.world.nodes.iter().map(|node| node.addrs[0]).collect();
    s.world.cut.extend(&cut);
    s.world.run_for(Duration::from_secs(3));
    s.world.cut.clear();
    assert_eq!(s.world.completion(0, cookie), Ok(MIB));
    let path = s.path(0);
    assert_eq!((path.mtu_bytes, path.black_holes), (8_972, 0));
}

#[test]
fn messages_of_drivers_that_no_longer_fit_arrive_in_their_order() {
    let mut world = World::pair_with(10, |config| config.messages = true);
    for (index, other) in [(0, 1), (1, 0)] {
        let to = world.nodes[other].addrs[0];
        world.nodes[index].engine.set_path_mtu(to, 30_000);
    }
    let (ours, owner) = (world.process(0), world.process(1));
    let target = world.region(1, owner, 1, 64);
    world.export(1, target, "buffer");
    world.import(0, ours, 1, "buffer");
    let (peer, _) = world.nodes[0].engine.message_peers().next().expect("it takes messages");
    world.narrow = Some(1_400);
    let lens = [20_000, 5, 2_000, 1_100, 28_000, 7];
    for (len, byte) in lens.into_iter().zip(1u8..) {
        let (now, message) = (world.now, vec![byte; len]);
        assert!(world.nodes[0].engine.send_message(now, peer, &[&message]));
    }
    world.flush();
    let mut came = Vec::new();
    for _ in 0..5_000 {
        world.run_for(Duration::from_micros(100));
        came.extend(std::iter::from_fn(|| world.nodes[1].engine.poll_message()).map(|(_, bytes)| bytes));
    }
    assert_eq!(
        came.iter().map(|bytes| (bytes.len(), bytes[0])).collect::<Vec<_>>(),
        lens.into_iter().zip(1u8..).collect::<Vec<_>>()
    );
}

/// Frames of the engine's own making, as a hostile member would send them.
fn piece(number: u64, total: u32, start: u32, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![8];
    frame.extend(number.to_le_bytes());
    [total, start, data.len() as u32].iter().for_each(|field| frame.extend(field.to_le_bytes()));
    frame.extend(data);
    frame
}

/// What a session makes of frames that come from its peer; whether it is still there.
fn survives(frames: &[Vec<u8>]) -> bool {
    kept(frames, limits::HELD_BYTES_MAX).is_some()
}

/// The most bytes that it kept of them meanwhile, where a node keeps `most` of all; none: it is
/// gone.
fn kept(frames: &[Vec<u8>], most: usize) -> Option<usize> {
    let mut s = setup_with(11, 1_472, |config| (config.key, config.held_bytes_max) = (None, most));
    let mut kept = 0;
    s.world.tape = Some(Vec::new());
    s.send(8);
    let (to, from) = (s.world.nodes[1].addrs[0], s.world.nodes[0].addrs[0]);
    let tape = s.world.tape.take().expect("recorded");
    let of = tape.iter().rev().find(|(_, at, _)| *at == to).map(|(_, _, data)| data.clone()).expect("sent");
    let number = fuzzing::seen(&of).expect("of a session").number;
    for (frame, step) in frames.iter().zip(1..) {
        let mut datagram = fuzzing::plain_datagram(&of, number + step, frame);
        s.world.deliver(1, from, &mut datagram);
        kept = kept.max(s.world.nodes[1].engine.peers().map(|peer| peer.held_bytes).sum());
    }
    s.world.nodes[1].engine.peers().any(|peer| peer.state == PeerState::Up).then_some(kept)
}

#[test]
fn pieces_that_make_no_chunk_end_the_session_and_nothing_else() {
    let next = 1_000;
    assert!(survives(&[piece(next, 100, 0, &[9; 10])]), "one piece is no harm");
    assert!(survives(&[piece(0, 100, 0, &[9; 100])]), "nor one of what has been processed");
    assert!(survives(&[piece(u64::MAX / 4, 100, 0, &[9; 100])]), "nor one far beyond the window");
    for bad in [
        vec![piece(next, 100, 0, &[9; 10]), piece(next, 101, 10, &[9; 10])],
        vec![piece(next, 100, 95, &[9; 6])],
        vec![piece(next, 1 << 20, 0, &[9; 10])],
        vec![piece(u64::MAX, 100, 0, &[9; 10])],
        // Whole, and no chunk, or more than one.
        vec![piece(next, 10, 0, &[0xff; 10])],
        vec![piece(next, 4, 0, &[0x11, 0, 0x11, 0])],
        vec![piece(next, 3, 0, &[6, 0, 0])],
        vec![piece(next, 5, 0, &[3, 0, 0, 0, 0])],
    ] {
        assert!(!survives(&bad), "{bad:?}");
    }
}

#[test]
fn pieces_are_kept_within_the_budget_and_the_chunk_that_is_wanted_has_room() {
    let frames: Vec<_> = (0..4_000).map(|step| piece(3_000 - step % 2_000, 65_507, 0, &[1])).collect();
    let chunk = 65_507 + limits::PIECED_BYTES;
    let budget = Config::new(NodeName::parse("node").expect("a name")).recv_buffer_bytes;
    let most = budget + limits::CONTROL_SLACK_BYTES;
    let of_one = kept(&frames, limits::HELD_BYTES_MAX).expect("they are no harm");
    assert!((most - chunk..=most).contains(&of_one), "{of_one} of {most}");
    // Of all peers together less is kept, and of each some in any case.
    let of_all = kept(&frames, 4 * limits::HELD_BYTES_OWN).expect("as before");
    assert!((3 * limits::HELD_BYTES_OWN..=4 * limits::HELD_BYTES_OWN).contains(&of_all), "{of_all}");
    let of_none = kept(&frames, 0).expect("as before");
    assert!((1..=limits::HELD_BYTES_OWN.max(chunk)).contains(&of_none), "{of_none}");
    let apart: Vec<_> = (0..20_000).map(|step| piece(1_000, 65_507, step * 3, &[1])).collect();
    assert!(survives(&apart));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Whatever the path takes, from whatever time on, with whatever losses beside: all arrives.
    #[test]
    fn all_arrives_whatever_the_path_swallows(
        seed in 0u64..1_000,
        sealed: bool,
        told in 1_200usize..65_507,
        sizes in proptest::collection::vec((1_000usize..65_507, 1u64..100_000), 1..4),
        loss in 0u64..150,
        reorder in 0u64..100,
        fetches: bool,
    ) {
        let mut s = setup(seed, sealed, told);
        s.world.faults = Faults { loss, reorder, duplicate: 20, corrupt: 0 };
        for (size, after_us) in sizes {
            let cookies = [s.start(MIB / 4), if fetches { s.start_fetch(MIB / 4) } else { s.start(100_000) }];
            s.world.run_for(Duration::from_micros(after_us));
            s.world.narrow = Some(size);
            for (cookie, len) in cookies.into_iter().zip([MIB / 4, if fetches { MIB / 4 } else { 100_000 }]) {
                prop_assert_eq!(s.world.completion(0, cookie), Ok(len));
            }
            let (from, to) = (s.world.bytes(0, s.source), s.world.bytes(1, s.target));
            prop_assert!(from[..MIB as usize / 4] == to[..MIB as usize / 4]);
            let path = s.path(0);
            prop_assert!((limits::PACKET_BYTES_MIN..=told).contains(&path.mtu_bytes));
        }
    }
}
