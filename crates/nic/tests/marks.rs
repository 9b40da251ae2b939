//! Marks of queues, rule by rule [RFC 3168; RFC 9000, section 13.4]: what is asked for, what a path
//! does to it, what comes of it.

mod common;

use common::{Fate, PLAIN_BODY_AT, World, addr, seal_plainly};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use vmmc_nic::*;

const MS: Duration = Duration::from_millis(1);
const LEN: u64 = 256 << 10;

struct Setup {
    world: World,
    source: RegionRef,
    sender: ProcessId,
    import: ImportId,
    cookies: u64,
}

fn setup(ecn: Ecn, control: CongestionControl, paths: usize, marker: common::Marker) -> Setup {
    let mut world = World::new(5);
    for node in 0..2 {
        let addrs = (0..paths).map(|path| addr(node, path)).collect();
        let config = Config::new(NodeName::parse(&format!("node{node}")).expect("a name"));
        world.add_with(config, addrs, |config| {
            (config.congestion, config.ecn, config.recv_buffer_bytes) = (control, ecn, 4 << 20);
        });
    }
    let to = world.nodes[1].addrs.clone();
    world.nodes[0].engine.add_peer(world.now, &to).expect("room");
    world.marker = Some(marker);
    world.delay = MS;
    let (sender, owner) = (world.process(0), world.process(1));
    let (source, target) = (world.region(0, sender, 2, LEN as usize), world.region(1, owner, 1, LEN as usize));
    world.export(1, target, "buffer");
    let import = world.import(0, sender, 1, "buffer").import;
    Setup { world, source, sender, import, cookies: 0 }
}

impl Setup {
    fn send(&mut self, len: u64) {
        self.cookies += 1;
        self.world.send_region(0, self.source, self.import, len, self.cookies);
        assert!(self.world.completion(0, self.cookies).is_ok());
    }

    fn peer(&self, node: usize) -> PeerInfo {
        self.world.nodes[node].engine.peers().next().expect("one peer")
    }

    fn state(&self) -> EcnState {
        self.peer(0).ecn.expect("a session")
    }
}

#[test]
fn packets_of_a_session_ask_for_marks_and_handshakes_do_not() {
    for (ecn, asked) in [(Ecn::Off, Codepoint::NotEct), (Ecn::Classic, Codepoint::Ect0), (Ecn::L4s, Codepoint::Ect1)] {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&seen);
        let mut setup = setup(
            ecn,
            CongestionControl::Cubic,
            1,
            Box::new(move |_, codepoint| {
                noted.borrow_mut().push(codepoint);
                Some(codepoint)
            }),
        );
        assert_eq!(seen.borrow()[..4], [Codepoint::NotEct; 4], "two hellos, a cookie and the welcome");
        assert_eq!(seen.borrow()[4], asked);
        seen.borrow_mut().clear();
        setup.send(LEN);
        assert!(seen.borrow().len() > 100 && seen.borrow().iter().all(|codepoint| *codepoint == asked));
        assert!(setup.world.try_send_inline(0, setup.sender, (setup.import, 0), b"at once"));
        assert_eq!(seen.borrow().last(), Some(&asked));
        let chosen = EcnState::Off(EcnOff::Chosen);
        assert_eq!(setup.state(), if ecn == Ecn::Off { chosen } else { EcnState::InUse });
    }
}

#[test]
fn marks_of_a_round_trip_reduce_the_window_once() {
    let marks = Rc::new(Cell::new(false));
    let on = Rc::clone(&marks);
    let marker = move |to, codepoint| Some(if on.get() && to == addr(1, 0) { Codepoint::Ce } else { codepoint });
    let mut setup = setup(Ecn::Classic, CongestionControl::Cubic, 1, Box::new(marker));
    setup.world.script = Some(Box::new(|_, _| Fate::Arrives));
    setup.send(LEN);
    let before = setup.peer(0).window_bytes;
    marks.set(true);
    // Less than a window: one round trip.
    setup.send(100 << 10);
    let (after, stats) = (setup.peer(0).window_bytes, setup.peer(0).stats);
    assert!(after.abs_diff(before / 10 * 7) < 5_000, "{before} {after}");
    assert!(stats.marked_out > 60 && setup.peer(1).stats.marked_in == stats.marked_out, "{stats:?}");
    assert_eq!((stats.lost, stats.retransmits), (0, 0));
    setup.send(1_000);
    let again = setup.peer(0).window_bytes;
    assert!(again.abs_diff(after / 10 * 7) < 5_000, "the next round trip {after} {again}");
    assert_eq!(setup.state(), EcnState::InUse);
}

#[test]
fn a_path_that_removes_codepoints_has_none_and_another_path_is_tried() {
    let marker = |to, codepoint| Some(if to == addr(1, 0) { Codepoint::NotEct } else { codepoint });
    let mut setup = setup(Ecn::Classic, CongestionControl::Bbr, 2, Box::new(marker));
    (0..3).for_each(|_| setup.send(LEN));
    assert_eq!(setup.state(), EcnState::Off(EcnOff::Stripped));
    setup.world.cut.extend([addr(0, 0), addr(1, 0)]);
    setup.send(LEN);
    assert!(setup.peer(0).stats.path_switches > 0);
    setup.send(LEN);
    assert_eq!(setup.state(), EcnState::InUse);
}

#[test]
fn pieces_that_are_lost_are_not_taken_for_unmarked() {
    let mut cut_up = 0;
    for seed in 0..20 {
        let mut setup = setup(Ecn::Classic, CongestionControl::Bbr, 1, Box::new(|_, codepoint| Some(codepoint)));
        let to = setup.world.nodes[1].addrs[0];
        setup.world.nodes[0].engine.set_path_mtu(to, 60_000);
        let mut random = vmmc_utlb::Rng::new(seed);
        setup.world.link =
            Some(Box::new(
                move |_, node, _| {
                    if node == 1 && random.next_u64() % 4 == 0 { Fate::Lost } else { Fate::Late(MS / 10) }
                },
            ));
        for round in 0..20 {
            setup.cookies += 1;
            setup.world.send_region(0, setup.source, setup.import, LEN, setup.cookies);
            setup.world.run_for(MS / 4);
            setup.world.nodes[0].engine.set_path_mtu(to, if round % 2 == 0 { 1_400 } else { 60_000 });
            assert!(setup.world.completion(0, setup.cookies).is_ok());
            cut_up += u64::from(setup.peer(0).stats.lost > 0);
            assert_eq!(setup.state(), EcnState::InUse, "seed {seed}, round {round}: {:?}", setup.peer(0).stats);
        }
    }
    assert!(cut_up > 0);
}

#[test]
fn a_path_that_loses_what_asks_for_marks_is_used_without() {
    for drops in [[true, false], [false, true], [true, true]] {
        let marker = move |to, codepoint| {
            let dropped = drops[usize::from(to == addr(0, 0))] && codepoint != Codepoint::NotEct;
            (!dropped).then_some(codepoint)
        };
        let mut setup = setup(Ecn::Classic, CongestionControl::Bbr, 1, Box::new(marker));
        (0..3).for_each(|_| setup.send(LEN));
        let back = setup.peer(1).ecn;
        // Who hears nothing cannot tell which of the two directions it is.
        assert_eq!(setup.state(), EcnState::Off(EcnOff::Unanswered), "{drops:?}");
        assert!(!drops[1] || back == Some(EcnState::Off(EcnOff::Unanswered)), "{drops:?}: {back:?}");
    }
}

/// A packet of node 1 to node 0 that says that so many of node 0's came with codepoints.
fn report(tape: &[common::Recorded], number: u64, counts: [u64; 3]) -> Vec<u8> {
    let (_, _, data) = tape.iter().rfind(|(_, to, data)| *to == addr(0, 0) && data[1] & 15 == 4).expect("an answer");
    let mut packet = data[..PLAIN_BODY_AT].to_vec();
    packet[12..20].copy_from_slice(&number.to_le_bytes());
    packet.push(7);
    counts.iter().for_each(|count| packet.extend(count.to_le_bytes()));
    seal_plainly(&mut packet);
    packet
}

#[test]
fn a_peer_that_reports_more_than_it_can_have_got_breaks_the_protocol() {
    // Is it a lie? The last is true, for nothing else was sent.
    for (counts, lie) in [([1 << 40, 0, 0], true), ([0, 0, u64::MAX], true), ([u64::MAX; 3], true), ([0; 3], true)] {
        let mut setup = setup(Ecn::Classic, CongestionControl::Cubic, 1, Box::new(|_, codepoint| Some(codepoint)));
        setup.world.tape = Some(Vec::new());
        setup.send(LEN);
        let tape = setup.world.tape.take().expect("recorded");
        setup.world.deliver(0, addr(1, 0), &mut report(&tape, 2_000, counts));
        setup.world.flush();
        let down = |event: &Event| matches!(event, Event::PeerDown { why: PeerDownReason::Protocol, .. });
        assert_eq!(setup.world.nodes[0].events.iter().any(down), lie, "{counts:?}");
    }
}

#[test]
fn a_peer_that_reports_marks_that_were_none_slows_what_it_gets() {
    let plain = Rc::new(Cell::new(false));
    let on = Rc::clone(&plain);
    let marker = move |_, codepoint| Some(if on.get() { Codepoint::NotEct } else { codepoint });
    let mut setup = setup(Ecn::Classic, CongestionControl::Cubic, 1, Box::new(marker));
    setup.world.tape = Some(Vec::new());
    setup.send(LEN);
    let tape = setup.world.tape.take().expect("recorded");
    // Packets of which the peer has said nothing yet.
    let sent = setup.peer(0).stats.packets_out;
    plain.set(true);
    (0..40).for_each(|_| setup.send(1_000));
    let before = setup.peer(0);
    setup.world.deliver(0, addr(1, 0), &mut report(&tape, 2_000, [sent, 0, 30]));
    let after = setup.peer(0);
    assert_eq!((after.window_bytes, after.stats.marked_out), (before.window_bytes / 10 * 7, 30));
    setup.world.deliver(0, addr(1, 0), &mut report(&tape, 2_001, [sent, 1, 30]));
    assert_eq!(setup.state(), EcnState::Off(EcnOff::Altered), "nobody has asked so");
    assert!(setup.world.nodes[0].events.iter().all(|event| !matches!(event, Event::PeerDown { .. })));
}

/// A stream over 1 Gb/s and 1 ms, with a queue of 250 packets that marks beyond `mark`: megabits
/// per second, the mean of the queue in packets, and the sender's account of it.
fn stream(ecn: Ecn, control: CongestionControl, mark: Option<u64>) -> (f64, f64, PeerInfo) {
    const PACKET_NS: u64 = 12_000;
    let queue = Rc::new(Cell::new(0));
    let above = Rc::clone(&queue);
    let marker = move |to, codepoint| {
        let marked = to == addr(1, 0) && codepoint != Codepoint::NotEct && mark.is_some_and(|mark| above.get() > mark);
        Some(if marked { Codepoint::Ce } else { codepoint })
    };
    let mut setup = setup(ecn, control, 1, Box::new(marker));
    setup.world.delay = Duration::ZERO;
    let (queues, seen) = (Rc::clone(&queue), Rc::new(Cell::new((0u64, 0u64))));
    let (noted, mut free) = (Rc::clone(&seen), [0; 2]);
    setup.world.link = Some(Box::new(move |now: Time, node, len| {
        let now = now.as_nanos();
        let waits = free[node].max(now) - now;
        if node == 1 {
            queues.set(waits / PACKET_NS);
            let (sum, count) = noted.get();
            noted.set((sum + waits / PACKET_NS, count + 1));
        }
        if waits > 250 * PACKET_NS {
            return Fate::Lost;
        }
        free[node] = now + waits + (len as u64 + 28) * 8;
        Fate::NotBefore(Time::from_nanos(free[node] + 500_000))
    }));
    let (begun, sends) = (setup.world.now, 400);
    for posted in 1..=sends {
        setup.world.send_region(0, setup.source, setup.import, LEN, posted);
        if posted == 100 {
            seen.set((0, 0));
        }
        if posted > 16 {
            assert!(setup.world.completion(0, posted - 16).is_ok());
        }
    }
    assert!(setup.world.completion(0, sends).is_ok());
    let took = setup.world.now.since(begun).as_secs_f64();
    let (sum, count) = seen.get();
    ((sends * LEN * 8) as f64 / took / 1e6, sum as f64 / count as f64, setup.peer(0))
}

#[test]
fn marks_keep_a_queue_short_at_little_cost_in_rate() {
    for control in CongestionControl::ALL {
        let (plain, long, _) = stream(Ecn::Off, control, Some(20));
        for (ecn, mark) in [(Ecn::Classic, 60), (Ecn::L4s, 20)] {
            let (rate, queue, peer) = stream(ecn, control, Some(mark));
            println!(
                "{control} {ecn}: {rate:.0} Mb/s, {queue:.0} packets, without {plain:.0} and {long:.0}; {:?}",
                peer.stats
            );
            assert!(rate > 0.85 * plain && queue < 1.2 * mark as f64 && queue < long + 10.0);
            assert!(peer.stats.marked_out > 0 && peer.ecn == Some(EcnState::InUse));
        }
    }
}
