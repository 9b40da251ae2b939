//! Short operations through an import with an order of its own pass what is long and queued through
//! other imports of their process; what goes through one import keeps its order, and what has no
//! such import follows all that was posted before.

mod common;

use common::{Fate, World};
use std::time::Duration;
use vmmc_nic::limits::{OWN_ORDERS_FOLLOWED_MAX, PASSED_OPS_MAX, SHORT_BYTES};
use vmmc_nic::*;

const MS: Duration = Duration::from_millis(1);
/// One way.
const DELAY: Duration = Duration::from_millis(10);
const LONG: u64 = 1 << 20;
/// A short send of several packets.
const SHORT: u64 = SHORT_BYTES;
/// Bytes of a small ring.
const RING: u64 = 128 + (8 << 10);
/// Bytes of the memory that is imported.
const SHARED: u64 = 4 << 20;

struct Setup {
    world: World,
    process: ProcessId,
    own: RegionRef,
    /// Memory of node `at`, and imports of it: in the order of the process, and two with their own.
    shared: RegionRef,
    plain: ImportId,
    apart: [ImportId; 2],
    ring: ImportId,
    cookies: u64,
}

/// A process of node 0, and what a process of node `at` exports.
fn setup(at: usize) -> Setup {
    setup_with(at, CongestionControl::Cubic)
}

fn setup_with(at: usize, congestion: CongestionControl) -> Setup {
    let mut world = World::pair_with(9, |config| {
        config.recv_buffer_bytes = 4 << 20;
        config.congestion = congestion;
    });
    world.delay = DELAY;
    world.script = Some(Box::new(|_, _| Fate::Arrives));
    let owner = world.process(at);
    let shared = world.region(at, owner, 1, SHARED as usize);
    world.export(at, shared, "shared");
    let records = world.region(at, owner, 2, RING as usize);
    let spec = common::export_spec(records.region, RING, "ring");
    let ring = ExportSpec { kind: ExportKind::Ring, rights: Rights::WRITE, ..spec };
    let now = world.now;
    world.nodes[at].engine.export(now, owner, ring).expect("exported");
    let process = world.process(0);
    let own = world.region(0, process, 1, SHARED as usize);
    world.fill(0, own, |index| index as u8 | 1);
    let plain = world.import(0, process, at, "shared").import;
    world.own_order = true;
    let apart = [(); 2].map(|()| world.import(0, process, at, "shared").import);
    let spec = ImportSpec {
        node: (at != 0).then(|| NodeSpec::Addr(common::addr(at, 0))),
        what: ImportTarget::Name("ring".into()),
        owner: Owner::default(),
        rights: Rights::WRITE,
        wait: false,
        deadline: world.now + Duration::from_secs(30),
        own_order: true,
    };
    let now = world.now;
    world.nodes[0].engine.import(now, process, spec, Cookie(0));
    let ring = world.import_answer(0).expect("granted").import;
    let mut setup = Setup { world, process, own, shared, plain, apart, ring, cookies: 0 };
    for _ in 0..4 {
        let (cookie, _) = setup.fetch(plain, 0);
        setup.world.completion(0, cookie).expect("fetched");
    }
    setup.world.run_for(100 * MS);
    setup
}

impl Setup {
    fn post(&mut self, command: impl FnOnce(RegionId, Cookie) -> Command<'static>) -> u64 {
        self.cookies += 1;
        let command = command(self.own.region, Cookie(self.cookies));
        self.world.post(0, self.process, command).expect("room");
        self.cookies
    }

    fn send(&mut self, import: ImportId, (offset, len): (u64, u64)) -> u64 {
        self.post(|region, cookie| {
            let source = Source::Region { region, offset: 0, len };
            Command::Send { import, offset, source, notify: None, counter: None, completion: Some(cookie) }
        })
    }

    /// Eight bytes from `offset` on, to the same place.
    fn fetch(&mut self, import: ImportId, offset: u64) -> (u64, Time) {
        let at = self.world.now;
        let cookie = self.post(|region, cookie| Command::Fetch {
            import,
            offset,
            len: 8,
            region,
            region_offset: LONG + offset,
            cookie,
        });
        self.world.flush();
        (cookie, at)
    }

    fn add(&mut self, import: ImportId) -> u64 {
        self.post(|_, cookie| Command::Atomic { import, offset: LONG, op: AtomicOp::FetchAdd(1), cookie })
    }

    fn append(&mut self) -> u64 {
        let import = self.ring;
        self.post(|region, cookie| {
            let source = Source::Region { region, offset: 0, len: 100 };
            Command::Append { import, source, word: 7, notify: true, refusals: 0, completion: Some(cookie) }
        })
    }

    /// Loses the first datagram to node 1 from now on.
    fn lose_one(&mut self) {
        let mut lost = false;
        self.world.script =
            Some(Box::new(move |node, _| match node == 1 && !std::mem::replace(&mut lost, node == 1) {
                true => Fate::Lost,
                false => Fate::Arrives,
            }));
    }

    /// Fetches what was sent to `offset`, and says whether it waited for more than a round trip.
    fn fetch_sees(&mut self, import: ImportId, offset: u64) -> bool {
        let (cookie, at) = self.fetch(import, offset);
        self.world.completion(0, cookie).expect("fetched");
        let own = self.world.bytes(0, self.own);
        assert_eq!(own[(LONG + offset) as usize..][..8], own[..8], "it sees what was sent before");
        self.world.now.since(at) > 2 * DELAY + MS
    }

    /// Goes on until the window is full.
    fn fill(&mut self) {
        let limit = self.world.now + Duration::from_secs(1);
        let peer = |world: &World| world.nodes[0].engine.peers().next().expect("one peer");
        while peer(&self.world).in_flight_bytes < peer(&self.world).window_bytes {
            assert!(self.world.step() && self.world.now < limit, "it is never full");
            self.world.flush();
        }
    }

    /// Cookies in the order in which what they are of ends.
    fn ends(&mut self, count: usize) -> Vec<u64> {
        let mut ended = Vec::new();
        while ended.len() < count {
            self.world.flush();
            while let Some(event) = self.world.nodes[0].events.pop_front() {
                let Event::Completion { cookie: Cookie(cookie), result, .. } = event else { continue };
                result.expect("it is right");
                ended.push(cookie);
            }
            let more = self.world.step();
            assert!(more || ended.len() >= count, "{ended:?} of {count}");
        }
        ended
    }
}

#[test]
fn every_short_operation_passes_what_another_import_has_queued() {
    let mut s = setup(1);
    let long = s.send(s.plain, (0, LONG));
    s.fill();
    let at = s.world.now;
    let short = [s.send(s.apart[0], (LONG, SHORT)), s.add(s.apart[1]), s.append(), s.fetch(s.apart[0], LONG).0];
    for cookie in short {
        s.world.completion(0, cookie).expect("done");
        // Behind it there are seven round trips of bulk.
        assert!(s.world.now.since(at) <= 2 * DELAY + 2 * MS, "{:?}", s.world.now.since(at));
    }
    let told = |event: &Event| matches!(event, Event::Notification { .. });
    assert!(s.world.nodes[1].events.iter().any(told), "the notification of the append came with it");
    s.world.completion(0, long).expect("sent");
    assert!(s.world.now.since(at) > 4 * DELAY, "{:?}", s.world.now.since(at));
}

#[test]
fn without_an_order_of_its_own_a_short_operation_follows_what_its_process_has_queued() {
    let mut s = setup(1);
    s.send(s.plain, (0, LONG));
    s.fill();
    let (fetch, at) = s.fetch(s.plain, LONG - 8);
    s.world.completion(0, fetch).expect("fetched");
    assert!(s.world.now.since(at) > 4 * DELAY, "{:?}", s.world.now.since(at));
    let own = s.world.bytes(0, s.own);
    assert_eq!(own[2 * LONG as usize - 8..2 * LONG as usize], own[LONG as usize - 8..LONG as usize]);
}

#[test]
fn a_short_operation_follows_what_its_own_import_has_queued() {
    let mut s = setup(1);
    let sends = [s.send(s.plain, (2 * LONG, LONG)), s.send(s.apart[0], (0, LONG))];
    s.fill();
    let second = s.send(s.apart[0], (8, SHORT));
    let (fetch, _) = s.fetch(s.apart[0], LONG - 8);
    let ends: Vec<u64> = s.ends(4).into_iter().filter(|ended| *ended != fetch).collect();
    assert_eq!(ends, [sends[0], sends[1], second]);
    let (memory, own) = (s.world.bytes(1, s.shared), s.world.bytes(0, s.own));
    assert_eq!(memory[8..8 + SHORT as usize], own[..SHORT as usize], "the later send is what stays");
    assert_eq!(own[2 * LONG as usize - 8..2 * LONG as usize], own[LONG as usize - 8..LONG as usize]);
}

#[test]
fn what_is_in_order_follows_all_that_passes_it_or_does_not() {
    let mut s = setup(1);
    // More than what is short may send before long ones: the long one is over first.
    let long = s.send(s.plain, (0, 128 << 10));
    let passing: Vec<u64> =
        (0..100).map(|index| s.send(s.apart[index % 2], (LONG + 8 * index as u64, SHORT))).collect();
    let (fetch, _) = s.fetch(s.plain, LONG + 8 * 99);
    let ends = s.ends(passing.len() + 2);
    assert!(ends.contains(&fetch));
    let place = |cookie: u64| ends.iter().position(|ended| *ended == cookie).expect("it has ended");
    assert!(place(long) < place(passing[99]), "bulk has its part beside what passes it");
    assert!(place(passing[0]) < place(long));
    let own = s.world.bytes(0, s.own);
    assert_eq!(own[2 * LONG as usize + 8 * 99..][..8], own[..8], "a fetch sees what was sent before");
}

#[test]
fn what_another_import_has_lost_is_waited_for_in_the_order_of_the_process_alone() {
    let mut s = setup(1);
    let sent = s.send(s.apart[0], (16, 8));
    s.world.completion(0, sent).expect("sent");
    s.lose_one();
    s.send(s.plain, (0, 8));
    s.world.flush();
    s.send(s.apart[0], (8, 8));
    s.world.flush();
    let (add, at) = (s.add(s.apart[1]), s.world.now);
    s.world.completion(0, add).expect("added");
    assert!(s.world.now.since(at) <= 2 * DELAY + MS, "{:?}", s.world.now.since(at));
    assert_eq!(s.world.bytes(1, s.shared)[..8], [0; 8], "it is lost still");
    assert!(!s.fetch_sees(s.apart[0], 8));
    // The packet has gone again meanwhile.
    s.fetch_sees(s.plain, 0);
}

#[test]
fn what_is_in_order_waits_for_what_an_import_with_its_own_has_lost() {
    let mut s = setup(1);
    s.lose_one();
    s.send(s.apart[0], (0, 8));
    s.world.flush();
    assert!(s.fetch_sees(s.plain, 0));
    let mut s = setup(1);
    s.send(s.plain, (8, 8));
    s.world.flush();
    s.lose_one();
    s.send(s.apart[0], (0, 8));
    s.world.flush();
    assert!(s.fetch_sees(s.plain, 0), "the last one in order is not all that was before");
    let mut s = setup(1);
    s.lose_one();
    s.send(s.apart[0], (0, 8));
    s.world.flush();
    assert!(s.fetch_sees(s.apart[0], 0));
}

#[test]
fn of_more_imports_than_are_followed_none_loses_its_order() {
    let mut s = setup(1);
    s.world.own_order = true;
    let others: Vec<ImportId> =
        (0..OWN_ORDERS_FOLLOWED_MAX).map(|_| s.world.import(0, s.process, 1, "shared").import).collect();
    s.world.run_for(100 * MS);
    s.lose_one();
    s.send(s.apart[0], (0, 8));
    s.world.flush();
    for import in others {
        s.send(import, (8, 8));
        s.world.flush();
    }
    assert!(s.fetch_sees(s.apart[0], 0));
}

#[test]
fn no_more_operations_are_passed_than_the_bound_says() {
    let mut s = setup(1);
    s.send(s.plain, (0, LONG));
    let mut adds: Vec<u64> = (0..PASSED_OPS_MAX - 1).map(|_| s.add(s.plain)).collect();
    adds.insert(0, s.add(s.apart[0]));
    adds.extend([s.add(s.plain), s.add(s.apart[1])]);
    // What each of them finds says when it was done.
    for (turn, cookie) in adds.into_iter().enumerate() {
        assert_eq!(s.world.completion(0, cookie), Ok(turn as u64));
    }
}

#[test]
fn what_passes_is_forgotten_with_its_process_and_given_back_before_its_import() {
    let mut s = setup(1);
    s.send(s.plain, (0, LONG));
    s.fill();
    let short = s.send(s.apart[0], (LONG, SHORT));
    let (now, process, import) = (s.world.now, s.process, s.apart[0]);
    s.world.nodes[0].engine.unimport(now, process, import).expect("imported");
    assert_eq!(s.world.completion(0, short), Ok(SHORT), "it was sent before its import was given back");
    for _ in 0..20 {
        s.send(s.apart[1], (LONG, SHORT));
    }
    s.world.nodes[0].engine.detach(s.world.now, process);
    s.world.run_for(Duration::from_secs(1));
    let peer = s.world.nodes[0].engine.peers().next().expect("one peer");
    assert_eq!((peer.in_flight_bytes, peer.queued_ops), (0, 0));
    // Another one gets its place, and goes on as if nobody had been there.
    s.world.own_order = false;
    s.process = s.world.process(0);
    s.own = s.world.region(0, s.process, 1, SHARED as usize);
    s.plain = s.world.import(0, s.process, 1, "shared").import;
    let (fetch, _) = s.fetch(s.plain, 0);
    s.world.completion(0, fetch).expect("fetched");
}

#[test]
fn within_a_node_it_is_the_same() {
    let mut s = setup(0);
    let long = s.send(s.plain, (0, 3 * LONG));
    let apart = s.send(s.apart[1], (0, 2 * LONG));
    let passing = [s.send(s.apart[0], (8, SHORT)), s.fetch(s.apart[0], 8).0, s.append()];
    let rest = [s.send(s.apart[1], (16, 8)), s.fetch(s.plain, 16).0, s.add(s.plain)];
    let mut ends = Vec::new();
    loop {
        let now = s.world.now;
        let common::Node { engine, memory, events, .. } = &mut s.world.nodes[0];
        events.extend(std::iter::from_fn(|| engine.poll_event()));
        while let Some(event) = events.pop_front() {
            if let Event::Completion { cookie: Cookie(cookie), .. } = event {
                ends.push(cookie);
            }
        }
        if ends.len() == 8 {
            break;
        }
        engine.poll_work(now, memory);
    }
    assert_eq!(ends, [&passing[..], &[long, apart], &rest[..]].concat());
}

/// One fetch after the other beside four sends of a megabyte that wait without end, for two seconds
/// of a link of 1 Gb/s with a round trip of 0.2 ms and a queue of 3 ms: the times of the fetches,
/// sorted, and the bytes of the bulk.
fn beside_bulk(own_order: bool, congestion: CongestionControl) -> (Vec<Duration>, u64) {
    let mut s = setup_with(1, congestion);
    (s.world.script, s.world.delay) = (None, Duration::ZERO);
    let mut free = [0; 2];
    s.world.link = Some(Box::new(move |now, node, len| {
        let now = now.as_nanos();
        if free[node] > now + 3_000_000 {
            return Fate::Lost;
        }
        free[node] = now.max(free[node]) + 8 * len as u64;
        Fate::NotBefore(Time::from_nanos(free[node]) + Duration::from_micros(100))
    }));
    let (import, begun) = (if own_order { s.apart[0] } else { s.plain }, s.world.now);
    let (mut times, mut moved, mut fetch) = (Vec::new(), 0, None);
    let mut bulk = std::collections::BTreeSet::new();
    while s.world.now.since(begun) < Duration::from_secs(2) {
        while bulk.len() < 4 {
            bulk.insert(s.send(s.plain, (0, LONG)));
        }
        if fetch.is_none() {
            fetch = Some(s.fetch(import, 2 * LONG));
        }
        s.world.flush();
        s.world.step();
        while let Some(event) = s.world.nodes[0].events.pop_front() {
            let Event::Completion { cookie: Cookie(cookie), .. } = event else { continue };
            if bulk.remove(&cookie) {
                moved += LONG;
            } else if let Some((_, at)) = fetch.take_if(|(of, _)| *of == cookie) {
                times.push(s.world.now.since(at));
            }
        }
    }
    times.sort();
    (times, moved)
}

#[test]
fn beside_bulk_of_its_process_a_fetch_waits_for_the_queue_on_the_way_alone() {
    for (congestion, most) in [(CongestionControl::Bbr, MS), (CongestionControl::Cubic, 4 * MS)] {
        let (in_order, all) = beside_bulk(false, congestion);
        let (own_order, beside) = beside_bulk(true, congestion);
        let p99 = own_order[own_order.len() * 99 / 100];
        assert!(in_order[in_order.len() / 2] > 30 * MS, "four megabytes: {in_order:?}");
        assert!(p99 <= most, "{congestion:?}: {p99:?}");
        // They cost the bulk next to nothing.
        assert!(beside * 100 >= all * 98 && beside * 4 > 900_000_000, "{congestion:?}: {beside} of {all}");
    }
}
