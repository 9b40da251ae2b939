//! Short operations and answers go before long ones, past a window that is full, and leave them
//! half of what goes out.

mod common;

use common::{Fate, World};
use std::time::Duration;
use vmmc_nic::limits::SHORT_CREDIT_BYTES;
use vmmc_nic::*;

const MS: Duration = Duration::from_millis(1);
/// One way.
const DELAY: Duration = Duration::from_millis(10);
const LONG: u64 = 1 << 20;
/// A short send that is not inline.
const SHORT: u64 = 1_000;

struct Setup {
    world: World,
    /// Two processes of node 0: their memory, and an import of memory of node 1.
    users: Vec<(RegionRef, ImportId)>,
    cookies: u64,
}

fn setup() -> Setup {
    setup_with(4 << 20)
}

/// Nodes that take so many bytes under way.
fn setup_with(budget: usize) -> Setup {
    let mut world = World::pair_with(9, |config| {
        config.recv_buffer_bytes = budget;
        // What a round trip leaves of the window is not to be guessed here.
        config.congestion = CongestionControl::Cubic;
    });
    world.delay = DELAY;
    world.script = Some(Box::new(|_, _| Fate::Arrives));
    let owner = world.process(1);
    let shared = world.region(1, owner, 1, LONG as usize);
    world.export(1, shared, "shared");
    let users = (0..2).map(|_| {
        let process = world.process(0);
        (world.region(0, process, 1, LONG as usize), world.import(0, process, 1, "shared").import)
    });
    let users = users.collect();
    let mut setup = Setup { world, users, cookies: 0 };
    let (cookie, _) = setup.fetch(0, 8);
    setup.world.completion(0, cookie).expect("fetched");
    setup.world.run_for(100 * MS);
    setup
}

impl Setup {
    fn fetch(&mut self, user: usize, len: u64) -> (u64, Time) {
        self.cookies += 1;
        let (own, import) = self.users[user];
        let (region, cookie) = (own.region, Cookie(self.cookies));
        let fetch = Command::Fetch { import, offset: 0, len, region, region_offset: 0, cookie };
        self.world.post(0, own.process, fetch).expect("room");
        self.world.flush();
        (self.cookies, self.world.now)
    }

    fn send(&mut self, user: usize, len: u64) -> Result<u64, Busy> {
        self.cookies += 1;
        let (own, import) = self.users[user];
        let source = Source::Region { region: own.region, offset: 0, len };
        let (notify, counter, completion) = (None, None, Some(Cookie(self.cookies)));
        let send = Command::Send { import, offset: 0, source, notify, counter, completion };
        self.world.post(0, own.process, send)?;
        Ok(self.cookies)
    }

    /// Goes on until a window is full.
    fn fill(&mut self, node: usize) {
        let limit = self.world.now + Duration::from_secs(1);
        while self.peer(node).in_flight_bytes < self.peer(node).window_bytes {
            assert!(self.world.step() && self.world.now < limit, "it is never full");
            self.world.flush();
        }
    }

    fn peer(&self, node: usize) -> PeerInfo {
        self.world.nodes[node].engine.peers().next().expect("one peer")
    }
}

#[test]
fn a_fetch_goes_past_a_window_that_a_stream_has_filled() {
    let mut s = setup();
    s.send(0, LONG).expect("room");
    s.fill(0);
    let (cookie, at) = s.fetch(1, 8);
    s.world.completion(0, cookie).expect("fetched");
    assert!(s.world.now.since(at) <= 2 * DELAY + MS, "{:?}", s.world.now.since(at));
}

#[test]
fn a_fetch_goes_past_a_budget_that_a_stream_has_filled() {
    let mut s = setup_with(64 << 10);
    s.send(0, LONG).expect("room");
    s.world.run_for(9 * MS);
    assert!(s.peer(0).in_flight_bytes > 62 << 10, "{}", s.peer(0).in_flight_bytes);
    assert!(s.peer(0).in_flight_bytes < s.peer(0).window_bytes);
    // Longer than what is left of it.
    let at = s.world.now;
    for _ in 0..4 {
        s.send(1, SHORT).expect("room");
    }
    let cookie = s.cookies;
    s.world.completion(0, cookie).expect("sent");
    assert!(s.world.now.since(at) <= 2 * DELAY + 2 * MS, "{:?}", s.world.now.since(at));
}

#[test]
fn credit_comes_back_with_what_a_stream_sends() {
    let mut s = setup_with(64 << 10);
    for round in 0..3 {
        s.send(0, LONG).expect("room");
        s.world.run_for(9 * MS);
        for _ in 0..20 {
            s.send(1, SHORT).expect("room");
        }
        let (cookie, at) = s.fetch(1, 8);
        s.world.completion(0, cookie).expect("fetched");
        assert!(s.world.now.since(at) <= 2 * DELAY + 2 * MS, "{round}: {:?}", s.world.now.since(at));
        s.world.run_for(Duration::from_secs(1));
    }
}

#[test]
fn a_short_answer_goes_before_a_long_one_and_past_its_window() {
    let mut s = setup();
    let (long, _) = s.fetch(0, LONG);
    s.fill(1);
    let (short, at) = s.fetch(1, 8);
    s.world.completion(0, short).expect("fetched");
    assert!(s.world.now.since(at) <= 2 * DELAY + MS, "{:?}", s.world.now.since(at));
    s.world.completion(0, long).expect("fetched");
}

#[test]
fn a_fetch_does_not_wait_behind_what_a_stream_sends_again() {
    let mut s = setup();
    // Of the first window only the last packets arrive.
    let mut sent = 0;
    s.world.script = Some(Box::new(move |node, _| {
        sent += i32::from(node == 1);
        if node == 1 && sent < 80 { Fate::Lost } else { Fate::Arrives }
    }));
    s.send(0, LONG).expect("room");
    while s.peer(0).stats.lost == 0 {
        assert!(s.world.step());
    }
    let (cookie, at) = s.fetch(1, 8);
    s.world.completion(0, cookie).expect("fetched");
    assert!(s.world.now.since(at) <= 2 * DELAY + MS, "{:?}", s.world.now.since(at));
}

#[test]
fn what_goes_past_the_window_has_a_bound() {
    let mut s = setup();
    s.world.script = Some(Box::new(|_, _| Fate::Lost));
    s.send(0, LONG).expect("room");
    s.fill(0);
    let window = s.peer(0).window_bytes;
    assert!((window..window + 1_500).contains(&s.peer(0).in_flight_bytes));
    for _ in 0..200 {
        s.send(1, SHORT).expect("room");
    }
    s.world.flush();
    let most = window + SHORT_CREDIT_BYTES + 2 * 1_500;
    assert!((window + SHORT_CREDIT_BYTES..most).contains(&s.peer(0).in_flight_bytes), "{}", s.peer(0).in_flight_bytes);
}

/// Bytes of long and of short sends that end in a second, while both always wait.
fn share() -> [u64; 2] {
    let mut s = setup();
    // 100 Mb/s.
    let mut free = [0; 2];
    s.world.link = Some(Box::new(move |now, node, len| {
        free[node] = now.as_nanos().max(free[node]) + 80 * len as u64;
        Fate::NotBefore(Time::from_nanos(free[node]) + DELAY)
    }));
    let begun = s.world.now;
    let (mut waiting, mut moved) = ([0; 2], [0; 2]);
    let mut lens = std::collections::HashMap::new();
    while s.world.now.since(begun) < Duration::from_secs(1) {
        for (user, len, most) in [(0, 64 << 10, 16), (1, SHORT, 800)] {
            while waiting[user] < most {
                lens.insert(s.send(user, len).expect("room"), (user, len));
                waiting[user] += 1;
            }
        }
        s.world.flush();
        s.world.step();
        while let Some(event) = s.world.nodes[0].events.pop_front() {
            let Event::Completion { cookie: Cookie(cookie), .. } = event else { continue };
            let Some((user, len)) = lens.remove(&cookie) else { continue };
            waiting[user] -= 1;
            moved[user] += len;
        }
    }
    moved
}

#[test]
fn a_stream_has_half_of_the_path_beside_short_sends_without_end_and_they_have_a_third() {
    let [long, short] = share();
    let all = long + short;
    assert!(all > 10_000_000, "{all}");
    assert!(long * 100 >= all * 45 && short * 100 >= all * 33, "{long} {short}");
}
