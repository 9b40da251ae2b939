//! Short messages beside bulk on links with a rate, a delay, a bounded queue and losses, in virtual
//! time: what a stream does to the fetches of another process, and what they leave of it.

mod common;

use common::{Fate, World};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use vmmc_nic::limits::{PACING_HELD_QUANTA, PACING_QUANTUM};
use vmmc_nic::*;
use vmmc_utlb::Rng;

/// Bytes of a message of the stream, and messages posted at once.
const MESSAGE: u64 = 256 << 10;
const POSTED: u64 = 32;
/// What IP and UDP add to a datagram.
const HEADERS: u64 = 28;

/// A link, the same in both directions.
#[derive(Clone, Copy)]
struct Wire {
    mbit: u64,
    one_way: Duration,
    /// Packets of 1,500 bytes that wait at most.
    queue: u64,
    /// Packets lost, of 100,000.
    lost: u64,
    /// Arrivals happen in so coarse steps: a receiver that is busy.
    grain: Duration,
    /// Every 20 ms or so it stands still, for up to so long.
    stands: Duration,
}

const LAN: Wire = Wire {
    mbit: 1_000,
    one_way: Duration::from_micros(100),
    queue: 256,
    lost: 0,
    grain: Duration::from_micros(20),
    stands: Duration::ZERO,
};
const WAN: Wire = Wire { one_way: Duration::from_millis(5), queue: 1_000, ..LAN };
const FAR: Wire = Wire { mbit: 200, one_way: Duration::from_millis(20), queue: 200, ..LAN };

impl Wire {
    fn nanos(&self, bytes: u64) -> u64 {
        bytes * 8_000 / self.mbit
    }

    fn link(self, seed: u64) -> common::Link {
        let (mut free, mut random) = ([0u64; 2], Rng::new(seed));
        let mut still = [0..0, 0..0];
        Box::new(move |now, node, len| {
            if random.next_u64() % 100_000 < self.lost {
                return Fate::Lost;
            }
            let now = now.as_nanos();
            let start = free[node].max(now);
            if start - now >= self.nanos(1_500 * self.queue) {
                return Fate::Lost;
            }
            free[node] = start + self.nanos(len as u64 + HEADERS);
            let mut at = free[node] + self.one_way.as_nanos() as u64;
            while self.stands > Duration::ZERO && still[node].end < at {
                let from = still[node].end + random.next_u64() % 40_000_000;
                still[node] = from..from + random.next_u64() % self.stands.as_nanos() as u64;
            }
            if still[node].contains(&at) {
                at = still[node].end;
            }
            Fate::NotBefore(Time::from_nanos(at.next_multiple_of(self.grain.as_nanos() as u64)))
        })
    }
}

/// What a stream and fetches beside it came to.
#[derive(Debug)]
struct Figures {
    mbit: f64,
    /// Of the fetches' times, of which so many, milliseconds.
    p50: f64,
    p99: f64,
    pings: usize,
    timeouts: u64,
}

/// A stream of one process for so long, and fetches of another one at a time beside it.
fn measure(wire: Wire, control: CongestionControl, seed: u64, time: Duration) -> Figures {
    let mut world = World::pair_with(seed, |config| {
        config.congestion = control;
        config.recv_buffer_bytes = 4 << 20;
    });
    world.delay = Duration::ZERO;
    world.link = Some(wire.link(seed));
    let owner = world.process(1);
    let (bulk, ping) = (world.process(0), world.process(0));
    let source = world.region(0, bulk, 1, MESSAGE as usize);
    let landing = world.region(0, ping, 2, 8);
    let (target, word) = (world.region(1, owner, 1, MESSAGE as usize), world.region(1, owner, 2, 8));
    world.export(1, target, "bulk");
    world.export(1, word, "word");
    let stream = world.import(0, bulk, 1, "bulk").import;
    let pinged = world.import(0, ping, 1, "word").import;
    let begun = world.now;
    let (mut posted, mut done) = (0, 0);
    let mut pings: Vec<f64> = Vec::new();
    let (mut asked, mut ask_at) = (None, begun);
    while world.now.since(begun) < time {
        while posted < done + POSTED {
            world.send_region(0, source, stream, MESSAGE, posted);
            posted += 1;
        }
        if asked.is_none() && world.now >= ask_at {
            let (region, cookie) = (landing.region, Cookie(1 << 40));
            let fetch = Command::Fetch { import: pinged, offset: 0, len: 8, region, region_offset: 0, cookie };
            world.post(0, ping, fetch).expect("room");
            asked = Some(world.now);
        }
        world.flush();
        world.step();
        while let Some(event) = world.nodes[0].events.pop_front() {
            let Event::Completion { cookie, result, .. } = event else { continue };
            result.expect("nothing fails");
            if cookie == Cookie(1 << 40) {
                let since = asked.take().expect("it was asked");
                pings.push(world.now.since(since).as_secs_f64() * 1e3);
                ask_at = world.now + Duration::from_millis(1);
            } else {
                done += 1;
            }
        }
        world.nodes[1].events.clear();
    }
    pings.sort_by(f64::total_cmp);
    let at = |part: f64| pings[((pings.len() - 1) as f64 * part).round() as usize];
    let peer = world.nodes[0].engine.peers().next().expect("one peer");
    Figures {
        mbit: (done * MESSAGE * 8) as f64 / world.now.since(begun).as_secs_f64() / 1e6,
        p50: at(0.5),
        p99: at(0.99),
        pings: pings.len(),
        timeouts: peer.stats.timeouts,
    }
}

/// What a row is to come to: megabits a second at least; milliseconds of a fetch at most, of half
/// of them and of 99 in 100.
type Row = (&'static str, Wire, f64, f64, f64);

fn check((name, wire, mbit, p50, p99): Row) {
    let seen = measure(wire, CongestionControl::Bbr, 3, Duration::from_millis(1_500));
    assert!(seen.mbit >= mbit && seen.p50 <= p50 && seen.p99 <= p99, "{name}: {seen:?}");
    assert!(seen.pings >= 30 && seen.timeouts == 0, "{name}: {seen:?}");
}

#[test]
fn a_stream_fills_a_short_link_and_leaves_its_queue_short() {
    check(("lan", LAN, 920.0, 1.0, 1.5));
    check(("lan, a busy receiver", Wire { grain: Duration::from_micros(500), ..LAN }, 900.0, 1.5, 2.5));
}

#[test]
fn a_stream_fills_a_long_link_and_leaves_its_queue_short() {
    // Its queue takes 12 ms; what the path holds, 10.
    check(("wan", WAN, 890.0, 11.0, 18.0));
    check(("wan, a busy receiver", Wire { grain: Duration::from_millis(1), ..WAN }, 860.0, 13.0, 24.0));
}

#[test]
fn acknowledgements_that_come_late_and_together_leave_no_queue_standing() {
    let stands = Duration::from_millis(2);
    check(("wan that stands still", Wire { stands, ..WAN }, 890.0, 11.7, 21.0));
    check(("the same, 1 in 1,000 lost", Wire { stands, lost: 100, ..WAN }, 880.0, 12.1, 21.0));
}

#[test]
fn losses_cost_a_stream_little_and_fetches_beside_it_nothing_but_their_own() {
    check(("lan, 1 in 1,000 lost", Wire { lost: 100, ..LAN }, 920.0, 1.0, 1.5));
    check(("lan, 1 in 100 lost", Wire { lost: 1_000, ..LAN }, 920.0, 1.0, 3.0));
    check(("wan, 1 in 1,000 lost", Wire { lost: 100, ..WAN }, 880.0, 11.0, 21.0));
}

#[test]
fn a_startup_that_a_short_queue_cannot_hold_delays_no_fetch_for_long() {
    // One in 100 is lost with what the startup sends too much.
    check(("wan, a short queue", Wire { queue: 50, ..WAN }, 880.0, 11.0, 30.0));
    // A thousandth of a second fills the queue with what was held back meanwhile.
    check(("the same, a busy receiver", Wire { queue: 50, grain: Duration::from_millis(1), ..WAN }, 780.0, 13.0, 30.0));
    check(("far", FAR, 130.0, 42.0, 90.0));
}

#[test]
fn fetches_beside_a_stream_that_loses_packets_take_a_fifth_longer_than_the_round_trip_at_most() {
    // Those that are lost themselves take two round trips: the seed in the middle counts.
    let lossy = Wire { lost: 100, ..WAN };
    let p99 = |seed| measure(lossy, CongestionControl::Bbr, seed, Duration::from_secs(3)).p99;
    let mut all = [1, 2, 3].map(p99);
    all.sort_by(f64::total_cmp);
    assert!(all[1] <= 12.0, "{all:?} ms of 10");
}

/// Of a stream to a node with so much room: the most that goes out at one time when nothing was
/// heard of the node for three round trips, in what goes at its pace in [`PACING_QUANTUM`].
fn burst_behind_silence(room: usize) -> f64 {
    let mut world = World::pair_with(7, |config| {
        config.congestion = CongestionControl::Bbr;
        config.recv_buffer_bytes = room;
    });
    world.delay = Duration::ZERO;
    let (sent, silent_until) = (Rc::new(RefCell::new(BTreeMap::new())), Rc::new(Cell::new(Time::ZERO)));
    let (noted, silent) = (Rc::clone(&sent), Rc::clone(&silent_until));
    let mut link = WAN.link(7);
    world.link = Some(Box::new(move |now, node, len| match link(now, node, len) {
        Fate::NotBefore(at) if node == 0 => Fate::NotBefore(at.max(silent.get())),
        fate => {
            *noted.borrow_mut().entry(now).or_insert(0) += len;
            fate
        }
    }));
    let (process, owner) = (world.process(0), world.process(1));
    let (source, target) = (world.region(0, process, 1, 1 << 20), world.region(1, owner, 1, 1 << 20));
    world.export(1, target, "bulk");
    let import = world.import(0, process, 1, "bulk").import;
    (0..200).for_each(|cookie| world.send_region(0, source, import, 1 << 20, cookie));
    world.run_for(Duration::from_secs(1));
    let end = world.now + 6 * WAN.one_way;
    silent_until.set(end);
    world.run_for(6 * WAN.one_way - Duration::from_micros(1));
    let pace = world.nodes[0].engine.peers().next().expect("one peer").congestion.expect("a session").pace;
    world.run_for(Duration::from_millis(1));
    let burst = sent.borrow().range(end..).map(|(_, bytes)| *bytes).max().expect("it goes on");
    burst as f64 / (pace.expect("known") as f64 * PACING_QUANTUM.as_secs_f64())
}

#[test]
fn what_a_full_window_or_the_room_of_the_peer_held_back_is_no_burst() {
    // The path holds 1.25 MB, and the window twice that.
    for room in [1 << 20, 8 << 20] {
        let burst = burst_behind_silence(room);
        let most = f64::from(PACING_HELD_QUANTA) + 0.2;
        assert!((1.0..=most).contains(&burst), "{burst} quanta with room for {room} bytes");
    }
}
