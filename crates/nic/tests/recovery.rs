//! How losses are found and made good, rule by rule [RFC 8985]: each test says what becomes of
//! single datagrams, and sees what is sent again, and when.

mod common;

use common::{Fate, World, addr};
use std::collections::VecDeque;
use std::time::Duration;
use vmmc_nic::*;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);
/// One way.
const DELAY: Duration = Duration::from_micros(200);

struct Setup {
    world: World,
    sender: ProcessId,
    source: RegionRef,
    target: RegionRef,
    import: ImportId,
    cookies: u64,
}

/// A pair that has measured its round trip, and of which nothing is under way.
fn setup() -> Setup {
    setup_with(DELAY)
}

fn setup_with(delay: Duration) -> Setup {
    // What a loss does to the window is said by a rule here, and is not by a model of the path.
    let mut world = World::pair_with(7, |config| {
        config.key = common::key();
        config.congestion = CongestionControl::Cubic;
    });
    world.delay = delay;
    let (sender, owner) = (world.process(0), world.process(1));
    let (source, target) = (world.region(0, sender, 2, 1 << 20), world.region(1, owner, 1, 1 << 20));
    world.fill(0, source, |index| (index * 7 + 3) as u8);
    world.export(1, target, "buffer");
    let import = world.import(0, sender, 1, "buffer").import;
    let mut setup = Setup { world, sender, source, target, import, cookies: 0 };
    setup.world.script = Some(Box::new(|_, _| Fate::Arrives));
    for _ in 0..30 {
        let cookie = setup.send();
        assert_eq!(setup.world.completion(0, cookie), Ok(8));
        setup.world.run_for(10 * delay);
    }
    assert_eq!(setup.stats(0).retransmits, 0);
    setup
}

impl Setup {
    /// One packet with a short send that wants a completion.
    fn send(&mut self) -> u64 {
        self.cookies += 1;
        self.send_of(&self.cookies.to_le_bytes())
    }

    fn send_all(&mut self, count: u64) {
        for _ in 0..count {
            self.send();
        }
    }

    fn send_of(&mut self, data: &[u8]) -> u64 {
        self.world.send(0, self.sender, self.import, 0, data, self.cookies);
        self.world.flush();
        self.cookies
    }

    /// Asks for 8 bytes.
    fn fetch(&mut self) -> u64 {
        self.cookies += 1;
        let (region, cookie) = (self.source.region, Cookie(self.cookies));
        let fetch = Command::Fetch { import: self.import, offset: 0, len: 8, region, region_offset: 0, cookie };
        self.world.post(0, self.sender, fetch).expect("room");
        self.world.flush();
        self.cookies
    }

    /// What becomes of the next datagrams to a node, in their order; those after them arrive.
    fn script(&mut self, to: usize, fates: &[Fate]) {
        let mut fates = VecDeque::from(fates.to_vec());
        self.world.script = Some(Box::new(move |node, _| match node == to {
            true => fates.pop_front().unwrap_or(Fate::Arrives),
            false => Fate::Arrives,
        }));
    }

    fn stats(&self, node: usize) -> PeerStats {
        self.peer(node).stats
    }

    fn peer(&self, node: usize) -> PeerInfo {
        let other = addr(1 - node, 0);
        let all = self.world.nodes[node].engine.peers();
        all.into_iter().find(|peer| peer.paths.iter().any(|path| path.addr == other)).expect("they know each other")
    }

    /// Time from now until a completion.
    fn takes(&mut self, cookie: u64) -> Duration {
        let begun = self.world.now;
        assert!(self.world.completion(0, cookie).is_ok());
        self.world.now.since(begun)
    }
}

#[test]
fn a_request_whose_only_packet_is_lost_is_asked_for_again_after_two_round_trips_or_a_millisecond() {
    let mut s = setup();
    s.script(1, &[Fate::Lost]);
    let cookie = s.fetch();
    let took = s.takes(cookie);
    assert!(took >= MS && took <= MS + 2 * DELAY, "{took:?}");
    let stats = s.stats(0);
    assert_eq!((stats.probes, stats.timeouts, stats.lost, stats.spurious), (1, 0, 0, 0));
}

#[test]
fn a_lost_answer_is_given_again_when_the_request_comes_again() {
    let mut s = setup();
    s.script(0, &[Fate::Lost]);
    let cookie = s.fetch();
    let took = s.takes(cookie);
    assert!(took < MS + 4 * DELAY, "{took:?}");
    assert_eq!((s.stats(0).probes, s.stats(1).probes, s.stats(1).timeouts), (1, 1, 0));
}

#[test]
fn an_answer_is_given_again_sooner_where_the_peer_goes_on_sending_and_says_nothing_of_it() {
    let mut s = setup();
    s.script(0, &[Fate::Lost]);
    s.fetch();
    for _ in 0..10 {
        s.send();
        s.world.run_for(DELAY);
    }
    // After a round trip or two, and not 2 ms more for an acknowledgement that waits.
    assert_eq!((s.stats(0).probes, s.stats(1).probes, s.stats(1).retransmits), (0, 1, 1));
}

#[test]
fn probes_are_two_and_then_the_retransmission_timeout_comes() {
    let mut s = setup();
    s.world.script = Some(Box::new(|_, _| Fate::Lost));
    s.fetch();
    s.world.run_for(9 * MS);
    assert_eq!((s.stats(0).probes, s.stats(0).timeouts), (2, 0));
    s.world.run_for(8 * MS);
    assert_eq!((s.stats(0).probes, s.stats(0).timeouts), (2, 1));
}

#[test]
fn a_packet_that_three_later_ones_overtake_is_lost_at_once() {
    let mut s = setup();
    let window = s.peer(0).window_bytes;
    s.script(1, &[Fate::Lost]);
    let first = s.send();
    s.send_all(3);
    let took = s.takes(first);
    assert!(took < 2 * 2 * DELAY + 10 * US, "{took:?}");
    let stats = s.stats(0);
    assert_eq!((stats.lost, stats.retransmits, stats.probes, stats.spurious), (1, 1, 0, 0));
    assert_eq!(s.peer(0).window_bytes, window / 10 * 7, "reduced once");
}

/// Sends some hundred packets at once, of which the first ones fare like this and the others
/// arrive; those that do come one after another. How many others there were, and how many
/// acknowledgements were given before anything could come again.
fn told_of(first: &[Fate]) -> (u64, u64) {
    let mut s = setup();
    // The window grows to what is to be sent at once.
    s.world.send_region(0, s.source, s.import, 1 << 20, 1_000);
    assert_eq!(s.world.completion(0, 1_000), Ok(1 << 20));
    s.world.run_for(10 * DELAY);
    let (mut fates, mut number) = (VecDeque::from(first.to_vec()), 0);
    s.world.script = Some(Box::new(move |node, _| {
        if node == 0 {
            return Fate::Arrives;
        }
        number += 1;
        fates.pop_front().filter(|fate| *fate != Fate::Arrives).unwrap_or(Fate::Late(number * US))
    }));
    let before = s.stats(0).packets_out;
    s.world.tape = Some(Vec::new());
    s.world.send_region(0, s.source, s.import, 100_000, 1_001);
    s.world.run_for(DELAY + DELAY * 3 / 4);
    let behind = s.stats(0).packets_out - before - first.len() as u64;
    let tape = s.world.tape.take().expect("it was put there");
    assert_eq!(s.world.completion(0, 1_001), Ok(100_000));
    (behind, tape.iter().filter(|(from, ..)| *from == addr(1, 0)).count() as u64)
}

/// Acknowledgements of so many packets behind a gap.
fn told_behind_a_gap(packets: u64) -> u64 {
    let singly = limits::REORDER_PACKETS;
    singly + (packets - singly) / u64::from(limits::ACK_EVERY_PACKETS)
}

#[test]
fn packets_behind_a_gap_are_told_of_one_by_one_until_it_is_known_as_a_loss_and_then_as_ever() {
    let (behind, told) = told_of(&[Fate::Lost]);
    assert!(behind > 50, "{behind}");
    assert_eq!(told, told_behind_a_gap(behind));
}

#[test]
fn a_packet_that_closes_a_gap_in_part_is_told_of_at_once() {
    let (behind, told) = told_of(&[Fate::Lost, Fate::Late(DELAY / 2)]);
    assert_eq!(told, told_behind_a_gap(behind) + 1);
}

#[test]
fn a_gap_behind_a_gap_is_told_of_like_the_first_one() {
    let between = 9;
    let first = [&[Fate::Lost][..], &vec![Fate::Arrives; between], &[Fate::Lost]].concat();
    let (behind, told) = told_of(&first);
    assert_eq!(told, told_behind_a_gap(between as u64) + told_behind_a_gap(behind));
}

#[test]
fn a_packet_that_fewer_overtake_has_a_quarter_of_a_round_trip() {
    let delay = 2 * MS;
    let quarter = delay / 2;
    for (late, lost) in [(quarter - 50 * US, 0), (quarter + 50 * US, 1)] {
        let mut s = setup_with(delay);
        s.script(1, &[Fate::Late(late)]);
        let first = s.send();
        s.send();
        s.world.run_for(15 * MS);
        assert_eq!(s.stats(0).lost, lost, "{late:?} late, {first}");
    }
}

#[test]
fn what_was_late_and_not_lost_gives_the_window_back_and_is_waited_for_next_time() {
    let mut s = setup();
    let window = s.peer(0).window_bytes;
    // Later than three that follow it, and earlier than a quarter of a round trip.
    let late = Fate::Late(40 * US);
    s.script(1, &[late]);
    s.send_all(4);
    s.world.run_for(5 * MS);
    let stats = s.stats(0);
    assert_eq!((stats.lost, stats.spurious), (1, 1));
    assert_eq!(s.peer(0).window_bytes, window, "it was not lost");
    for _ in 0..10 {
        s.script(1, &[late]);
        s.send_all(4);
        s.world.run_for(5 * MS);
    }
    let stats = s.stats(0);
    assert_eq!((stats.lost, stats.retransmits, stats.probes), (1, 1, 0), "late packets are waited for now");
}

#[test]
fn a_reduction_stays_when_one_of_its_losses_was_a_loss() {
    let mut s = setup();
    let window = s.peer(0).window_bytes;
    s.script(1, &[Fate::Late(40 * US), Fate::Lost]);
    s.send_all(6);
    s.world.run_for(5 * MS);
    let stats = s.stats(0);
    assert_eq!((stats.lost, stats.spurious), (2, 1));
    assert_eq!(s.peer(0).window_bytes, window / 10 * 7);
}

#[test]
fn an_end_of_which_nothing_arrives_is_found_by_a_probe() {
    let mut s = setup();
    let window = s.peer(0).window_bytes;
    s.script(1, &[Fate::Lost; 10]);
    for _ in 0..10 {
        s.cookies += 1;
        s.send_of(&[5; 200]);
    }
    let took = s.takes(s.cookies);
    let stats = s.stats(0);
    assert!(took < 5 * MS, "{took:?}");
    // The probe has the first chunk; what it overtakes is lost.
    assert_eq!((stats.probes, stats.timeouts, stats.lost, stats.retransmits), (1, 0, 9, 10));
    assert_eq!(s.peer(0).window_bytes, window / 10 * 7, "reduced once for all of them");
}

#[test]
fn losses_of_one_round_trip_reduce_the_window_once_and_those_of_two_twice() {
    let mut s = setup();
    let window = s.peer(0).window_bytes;
    let gaps = [Fate::Lost, Fate::Arrives, Fate::Lost, Fate::Arrives, Fate::Lost];
    s.script(1, &gaps);
    s.send_all(12);
    s.world.run_for(5 * MS);
    let once = window / 10 * 7;
    assert_eq!((s.stats(0).lost, s.peer(0).window_bytes), (3, once));
    s.script(1, &gaps);
    s.send_all(12);
    s.world.run_for(5 * MS);
    assert_eq!((s.stats(0).lost, s.peer(0).window_bytes), (6, once / 10 * 7));
}

#[test]
fn a_peer_that_waits_for_its_processor_costs_two_chunks_and_no_window() {
    let mut s = setup();
    let window = s.peer(0).window_bytes;
    let back = s.world.now + 9 * MS;
    s.world.script = Some(Box::new(move |node, _| match node {
        1 => Fate::NotBefore(back),
        _ => Fate::Arrives,
    }));
    s.send_all(4);
    s.world.run_for(20 * MS);
    let stats = s.stats(0);
    assert_eq!((stats.probes, stats.retransmits, stats.timeouts, stats.lost), (2, 2, 0, 0), "{stats:?}");
    assert_eq!(s.peer(0).window_bytes, window);
}

#[test]
fn nothing_is_sent_twice_where_nothing_is_lost() {
    let mut s = setup();
    for cookie in 1_000..1_020 {
        s.world.send_region(0, s.source, s.import, 1 << 20, cookie);
    }
    for cookie in 1_000..1_020 {
        assert_eq!(s.world.completion(0, cookie), Ok(1 << 20));
    }
    assert_eq!(s.world.bytes(0, s.source), s.world.bytes(1, s.target));
    let stats = s.stats(0);
    assert_eq!((stats.retransmits, stats.probes, stats.timeouts, stats.spurious), (0, 0, 0, 0), "{stats:?}");
}
