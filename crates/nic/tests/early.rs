//! Short operations of one process do not wait for what another one has lost; those of the same
//! process do, and failures come before what follows them. Whatever is lost, users see their
//! operations in order, be they processes or imports with an order of their own.

mod common;

use common::{Fate, World};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;
use vmmc_nic::*;

const MS: Duration = Duration::from_millis(1);
/// One way: a lost packet comes again after more than two.
const DELAY: Duration = Duration::from_millis(10);
const LONG: u64 = 4_096;

struct Setup {
    world: World,
    /// Processes of node 0, with a region of their own and an import of the shared memory.
    users: Vec<(ProcessId, RegionRef, ImportId)>,
    shared: RegionRef,
    cookies: u64,
}

/// Two users on one node, memory of a process on the other one, and a round trip that is known.
fn setup() -> Setup {
    let mut world = World::pair_with(5, |config| config.key = common::key());
    world.delay = DELAY;
    let owner = world.process(1);
    let shared = world.region(1, owner, 1, 1 << 16);
    world.export(1, shared, "shared");
    let users = (0..2).map(|user| {
        let process = world.process(0);
        let own = world.region(0, process, 1, 1 << 16);
        world.fill(0, own, |_| user as u8 + 1);
        (process, own, world.import(0, process, 1, "shared").import)
    });
    let users = users.collect();
    let mut setup = Setup { world, users, shared, cookies: 0 };
    for _ in 0..4 {
        let (cookie, _) = setup.fetch(0);
        setup.world.completion(0, cookie).expect("fetched");
    }
    setup.world.run_for(100 * MS);
    setup
}

impl Setup {
    /// What becomes of the next datagrams to node 1; later ones arrive.
    fn script(&mut self, fates: &[Fate]) {
        let mut fates: VecDeque<Fate> = fates.iter().copied().collect();
        self.world.script = Some(Box::new(move |node, _| match node {
            1 => fates.pop_front().unwrap_or(Fate::Arrives),
            _ => Fate::Arrives,
        }));
    }

    fn fetch(&mut self, user: usize) -> (u64, Time) {
        self.cookies += 1;
        let (process, own, import) = self.users[user];
        let (region, cookie) = (own.region, Cookie(self.cookies));
        let fetch = Command::Fetch { import, offset: 0, len: 8, region, region_offset: LONG, cookie };
        self.world.post(0, process, fetch).expect("room");
        self.world.flush();
        (self.cookies, self.world.now)
    }

    fn send(&mut self, user: usize, offset: u64, len: u64) -> u64 {
        self.cookies += 1;
        let (process, own, import) = self.users[user];
        let send = Command::Send {
            import,
            offset,
            source: Source::Region { region: own.region, offset: 0, len },
            notify: None,
            counter: None,
            completion: Some(Cookie(self.cookies)),
        };
        self.world.post(0, process, send).expect("room");
        self.world.flush();
        self.cookies
    }

    fn fetched(&self, user: usize) -> u8 {
        self.world.bytes(0, self.users[user].1)[LONG as usize]
    }
}

/// Of a send of [`LONG`] bytes, the second packet of three is lost.
const GAP: [Fate; 3] = [Fate::Arrives, Fate::Lost, Fate::Arrives];

#[test]
fn a_fetch_is_answered_beside_the_lost_packet_of_another_process() {
    let mut s = setup();
    s.script(&GAP);
    let sent = s.send(0, 64, LONG);
    for _ in 0..2 {
        let (cookie, at) = s.fetch(1);
        s.world.completion(0, cookie).expect("fetched");
        assert!(s.world.now.since(at) <= 2 * DELAY + MS, "{:?}", s.world.now.since(at));
    }
    s.world.completion(0, sent).expect("sent");
    assert_eq!(s.world.bytes(1, s.shared)[64..64 + LONG as usize], [1; LONG as usize]);
}

#[test]
fn a_fetch_waits_for_the_lost_packet_of_its_own_process() {
    let mut s = setup();
    s.script(&GAP);
    s.send(0, 0, LONG);
    let (cookie, at) = s.fetch(0);
    s.world.completion(0, cookie).expect("fetched");
    assert!(s.world.now.since(at) > 3 * DELAY, "{:?}", s.world.now.since(at));
    assert_eq!(s.fetched(0), 1, "it sees what was sent before");
}

#[test]
fn a_fetch_waits_for_the_lost_short_send_before_it_and_not_for_the_gap_of_another_process() {
    let mut s = setup();
    // The long send, then the short one, which is lost, and the fetch. What is lost for the first
    // time is late for a long time.
    let late = s.world.now + 500 * MS;
    let again = [Fate::NotBefore(late), Fate::Arrives];
    s.script(&[&[Fate::Arrives, Fate::Lost, Fate::Arrives, Fate::Lost, Fate::Arrives], &again[..]].concat());
    let long = s.send(0, 64, LONG);
    s.send(1, 0, 8);
    let (cookie, at) = s.fetch(1);
    s.world.completion(0, cookie).expect("fetched");
    assert!(s.world.now.since(at) > 3 * DELAY, "{:?}", s.world.now.since(at));
    assert_eq!(s.fetched(1), 2);
    assert!(s.world.bytes(1, s.shared)[64..64 + LONG as usize].contains(&0), "the gap is still there");
    s.world.completion(0, long).expect("sent");
}

#[test]
fn a_fetch_is_answered_when_the_gap_before_it_closes_though_a_later_one_of_another_process_is_open() {
    let mut s = setup();
    // The short send, which is lost, then the long one, and the fetch. Of what goes again the short
    // send arrives, and the part of the long one is late for a long time.
    let late = s.world.now + 500 * MS;
    let again = [Fate::Arrives, Fate::NotBefore(late)];
    s.script(&[&[Fate::Lost], &GAP[..], &[Fate::Arrives], &again].concat());
    s.send(1, 0, 8);
    let long = s.send(0, 64, LONG);
    let (cookie, _) = s.fetch(1);
    s.world.completion(0, cookie).expect("fetched");
    assert!(s.world.now < late, "{:?}", s.world.now.since(late));
    assert_eq!(s.fetched(1), 2);
    assert!(s.world.bytes(1, s.shared)[64..64 + LONG as usize].contains(&0), "the gap is still there");
    s.world.completion(0, long).expect("sent");
}

#[test]
fn what_came_early_is_not_done_again() {
    let mut s = setup();
    s.script(&GAP);
    s.send(0, 64, LONG);
    let (process, _, import) = s.users[1];
    // The answers are lost: the requests go again, before the gap closes and after.
    let mut fates: VecDeque<Fate> = GAP.into();
    s.world.script = Some(Box::new(move |node, _| match node {
        1 => fates.pop_front().unwrap_or(Fate::Arrives),
        _ => Fate::Lost,
    }));
    for old in 0..4 {
        let add = Command::Atomic { import, offset: 32, op: AtomicOp::FetchAdd(1), cookie: Cookie(1_000 + old) };
        s.world.post(0, process, add).expect("room");
        s.world.flush();
    }
    s.world.run_for(300 * MS);
    s.world.script = None;
    for old in 0..4 {
        assert_eq!(s.world.completion(0, 1_000 + old), Ok(old));
    }
    s.world.run_for(100 * MS);
    assert_eq!(s.world.bytes(1, s.shared)[32..40], 4u64.to_le_bytes());
}

#[test]
fn an_answer_comes_after_the_failures_before_it_though_their_packet_is_lost() {
    let mut s = setup();
    let owner = s.shared.process;
    // Bulk to node 0, of which a packet is missing; then the failure and the answer.
    let back = s.world.region(1, owner, 2, 1 << 16);
    let landing = s.world.region(0, s.users[0].0, 3, 1 << 16);
    s.world.export(0, landing, "landing");
    let import = s.world.import(1, owner, 0, "landing").import;
    let other = s.world.process(1);
    let gone = s.world.region(1, other, 1, 64);
    let export = s.world.export(1, gone, "gone");
    let (process, _, _) = s.users[1];
    let refused = s.world.import(0, process, 1, "gone").import;
    s.world.run_for(100 * MS);
    let now = s.world.now;
    s.world.nodes[1].engine.unexport(now, other, export).expect("exported");
    // The word of that is lost, and the failure; the answer is not.
    let until = now + DELAY + 2 * MS;
    s.world.link = Some(Box::new(move |now, node, _| match node {
        0 if now < until => Fate::Lost,
        _ => Fate::Arrives,
    }));
    s.world.send_region(1, back, import, 8, 9);
    s.world.send(0, process, refused, 0, &[1; 8], 500);
    s.world.run_for(5 * MS);
    let (fetch, _) = s.fetch(1);
    let mut ended = Vec::new();
    while ended.len() < 2 {
        s.world.flush();
        while let Some(event) = s.world.nodes[0].events.pop_front() {
            if let Event::Completion { cookie: Cookie(cookie), result, .. } = event {
                assert_eq!(result.is_err(), cookie == 500);
                ended.push(cookie);
            }
        }
        assert!(s.world.step());
    }
    assert_eq!(ended, [500, fetch]);
}

/// One step of a process.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// So many bytes of this, from the start of its place on.
    Send(u64, u8),
    Fetch,
    Add(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (prop_oneof![Just(8u64), 9..200u64, 1_000..6_000u64], 1..=255u8).prop_map(|(len, with)| Step::Send(len, with)),
        Just(Step::Fetch),
        (1..100u64).prop_map(Step::Add),
    ]
}

const USERS: usize = 4;
const PLACE: u64 = 8_192;
const ALL: u64 = USERS as u64 * PLACE;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Each of four users has a place of its own: processes, or imports of one process of which all
    /// but the last have an order of their own. What it fetches there is what the same steps, one
    /// after the other, give, or what later ones do: bytes are read when the answer goes out. The
    /// last import finds that in all places.
    #[test]
    fn each_user_sees_its_own_operations_in_order_whatever_the_network_does(
        seed: u64,
        one_process: bool,
        (loss, duplicate, reorder) in (0..120u64, 0..60u64, 0..200u64),
        steps in proptest::collection::vec((0..USERS, step()), 1..80),
    ) {
        let mut world = World::pair_with(seed, |config| config.key = None);
        let owner = world.process(1);
        let shared = world.region(1, owner, 1, USERS * PLACE as usize);
        world.export(1, shared, "shared");
        let first = world.process(0);
        let users: Vec<_> = (0..USERS).map(|user| {
            let process = if one_process { first } else { world.process(0) };
            world.own_order = one_process && user < USERS - 1;
            let import = world.import(0, process, 1, "shared").import;
            (process, import)
        }).collect();
        world.faults = common::Faults { loss, duplicate, reorder, corrupt: 0 };
        // What each place has after each of its steps: bytes, and its counter.
        let mut places = vec![(vec![vec![0u8; 6_000]], 0u64); USERS];
        let mut fetches = Vec::new();
        for (index, (user, step)) in steps.iter().enumerate() {
            let (process, import) = users[*user];
            let (start, cookie) = (*user as u64 * PLACE, Cookie(index as u64));
            let all = one_process && *user == USERS - 1;
            let at = world.region(0, process, 10 + index as u32, if all { USERS * PLACE as usize } else { 6_000 });
            let region = at.region;
            let command = match *step {
                Step::Send(len, with) => {
                    world.fill(0, at, |_| with);
                    let place = &mut places[*user];
                    let mut next = place.0.last().expect("the first").clone();
                    next[..len as usize].fill(with);
                    place.0.push(next);
                    let source = Source::Region { region, offset: 0, len };
                    Command::Send { import, offset: start, source, notify: None, counter: None, completion: Some(cookie) }
                }
                Step::Fetch => {
                    let seen = if all { 0..USERS } else { *user..*user + 1 };
                    let (offset, len) = if all { (0, ALL) } else { (start, 6_000) };
                    for of in seen {
                        fetches.push((at, of as u64 * PLACE - offset, of, places[of].0.len() - 1));
                    }
                    Command::Fetch { import, offset, len, region, region_offset: 0, cookie }
                }
                Step::Add(by) => {
                    places[*user].1 += by;
                    let op = AtomicOp::FetchAdd(by);
                    Command::Atomic { import, offset: start + PLACE - 8, op, cookie }
                }
            };
            world.post(0, process, command).expect("room");
            if index % 3 == 0 {
                world.flush();
            }
        }
        for (index, (user, step)) in steps.iter().enumerate() {
            let result = world.completion(0, index as u64);
            let before = steps[..index].iter().filter(|(of, _)| of == user);
            let sum = before.map(|(_, step)| if let Step::Add(by) = step { *by } else { 0 }).sum();
            match step {
                Step::Add(_) => prop_assert_eq!(result, Ok(sum)),
                Step::Send(len, _) => prop_assert_eq!(result, Ok(*len)),
                Step::Fetch => prop_assert!(matches!(result, Ok(6_000 | ALL)), "{:?}", result),
            }
        }
        for (at, from, user, since) in fetches {
            let states = &places[user].0[since..];
            for (index, byte) in world.bytes(0, at)[from as usize..][..6_000].iter().enumerate() {
                prop_assert!(states.iter().any(|state| state[index] == *byte), "byte {index} is {byte}");
            }
        }
        world.run_for(Duration::from_secs(1));
        let memory = world.bytes(1, shared);
        for (user, (bytes, sum)) in places.iter().enumerate() {
            let start = user * PLACE as usize;
            prop_assert_eq!(&memory[start..start + 6_000], &bytes.last().expect("the first")[..]);
            prop_assert_eq!(&memory[start + PLACE as usize - 8..start + PLACE as usize], &sum.to_le_bytes());
        }
        let peer = world.nodes[0].engine.peers().next().expect("one peer");
        prop_assert_eq!((peer.in_flight_bytes, peer.queued_ops), (0, 0));
        let peer = world.nodes[1].engine.peers().next().expect("one peer");
        prop_assert_eq!((peer.held_chunks, peer.held_bytes), (0, 0));
    }
}
