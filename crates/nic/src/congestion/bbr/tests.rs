//! A path in numbers: what each state does, and what leads to the next one.

use super::*;
use crate::congestion::{Congestion, CongestionControl, Either, LostPacket, RoundTrip, Snapshot};
use crate::ecn::Ecn;
use std::collections::VecDeque;

const MS: Duration = Duration::from_millis(1);
const PACKET: usize = 1_000;

/// A sender and a path of some rate, length and queue, on which packets are served one after
/// another; each is acknowledged by itself.
struct Path {
    congestion: Congestion,
    rtt: RoundTrip,
    now: Time,
    /// Bytes per second, the round trip without a queue, and packets that the queue takes.
    rate: u64,
    length: Duration,
    queue: usize,
    /// One in so many packets is lost on the way; 0: none.
    loses_one_in: u64,
    under_way: VecDeque<(u64, Snapshot, Time)>,
    lost: Vec<(u64, Snapshot)>,
    free_at: Time,
    next: u64,
    in_flight: usize,
    gone_at: Time,
    pub delivered: u64,
    most_queued: usize,
    states: Vec<State>,
    /// The sender has only so many packets a round trip; none: always more.
    has: Option<u64>,
}

impl Path {
    fn new(rate: u64, length: Duration, queue: usize) -> Path {
        Path {
            congestion: Congestion::new(CongestionControl::Bbr, Ecn::Off, PACKET, 7),
            rtt: RoundTrip::default(),
            now: Time::ZERO + MS,
            rate,
            length,
            queue,
            loses_one_in: 0,
            under_way: VecDeque::new(),
            lost: Vec::new(),
            free_at: Time::ZERO,
            next: 0,
            in_flight: 0,
            gone_at: Time::ZERO,
            delivered: 0,
            most_queued: 0,
            states: vec![State::Startup],
            has: None,
        }
    }

    fn bbr(&self) -> &Bbr {
        match &self.congestion.controller {
            Either::Bbr(bbr) => bbr,
            Either::Cubic(_) => unreachable!("the path is made with it"),
        }
    }

    fn send(&mut self) {
        let before = self.in_flight;
        self.in_flight += PACKET;
        let sent = self.congestion.sent(self.now, before, self.in_flight);
        let number = self.next;
        self.next += 1;
        if let Some(rate) = self.congestion.pacing_rate() {
            self.gone_at = self.gone_at.max(self.now) + Duration::from_secs_f64(PACKET as f64 / rate as f64);
        }
        let service = Duration::from_secs_f64(PACKET as f64 / self.rate as f64);
        let queued = (self.free_at.since(self.now).as_secs_f64() / service.as_secs_f64()) as usize;
        self.most_queued = self.most_queued.max(queued);
        let unlucky = self.loses_one_in > 0 && number % self.loses_one_in == self.loses_one_in - 1;
        if queued >= self.queue || unlucky {
            self.lost.push((number, sent));
            return;
        }
        self.free_at = self.free_at.max(self.now) + service;
        self.under_way.push_back((number, sent, self.free_at + self.length));
    }

    fn acknowledge(&mut self) {
        let Some((number, sent, at)) = self.under_way.pop_front() else { return };
        self.now = at;
        self.in_flight -= PACKET;
        self.delivered += PACKET as u64;
        let took = at.since(sent.at);
        self.rtt.sample(at, took);
        let counts = (PACKET, self.in_flight);
        self.congestion.acknowledged(at, counts, (number, self.next), Some((sent, took)), &self.rtt);
        // What later packets have overtaken.
        let lost: Vec<_> = self.lost.extract_if_before(number);
        for (number, sent) in lost {
            self.in_flight -= PACKET;
            let packet = LostPacket { number, sent, chunks: 1, bytes: PACKET };
            self.congestion.lost(self.now, packet, self.next);
        }
        let state = self.bbr().state;
        if self.states.last() != Some(&state) {
            self.states.push(state);
        }
    }

    /// The link stands still for a time: what is in it, and comes meanwhile, goes on after that.
    fn stop(&mut self, time: Duration) {
        let goes_on = self.now + time;
        self.free_at = self.free_at.max(goes_on);
        self.under_way.iter_mut().for_each(|(.., at)| *at = (*at).max(goes_on));
    }

    /// Sends as window and pace let it, for a time.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let arrives = self.under_way.front().map_or(Time::MAX, |(_, _, at)| *at);
            if self.in_flight >= self.congestion.window() {
                self.congestion.is_full(self.next);
                if arrives == Time::MAX {
                    // All of it was lost: the retransmission timeout.
                    self.now = self.now + 200 * MS;
                    self.in_flight = 0;
                    self.lost.clear();
                    self.congestion.timed_out(self.next);
                    continue;
                }
                self.acknowledge();
            } else if self.has.is_some_and(|has| self.in_flight as u64 >= has * PACKET as u64) {
                self.congestion.has_no_more(self.in_flight);
                self.acknowledge();
            } else if self.gone_at <= self.now {
                self.send();
            } else if arrives <= self.gone_at {
                self.acknowledge();
            } else {
                self.now = self.gone_at;
            }
        }
    }

    /// Bytes per second that arrive in that time.
    fn goodput(&mut self, time: Duration) -> f64 {
        let (before, begun) = (self.delivered, self.now);
        self.run(time);
        (self.delivered - before) as f64 / self.now.since(begun).as_secs_f64()
    }
}

trait ExtractBefore {
    fn extract_if_before(&mut self, number: u64) -> Vec<(u64, Snapshot)>;
}

impl ExtractBefore for Vec<(u64, Snapshot)> {
    fn extract_if_before(&mut self, number: u64) -> Vec<(u64, Snapshot)> {
        let (out, kept) = self.iter().partition(|(lost, _)| *lost < number);
        *self = kept;
        out
    }
}

/// 10 MB/s and 20 ms: 200 packets in the pipe.
fn path(queue: usize) -> Path {
    Path::new(10_000_000, 20 * MS, queue)
}

#[test]
fn startup_finds_the_rate_drains_its_queue_and_cruises() {
    let mut path = path(10_000);
    path.run(Duration::from_secs(1));
    // There is nothing to wait for between the drain and the cruise.
    assert_eq!(path.states[..3], [State::Startup, State::Drain, State::Cruise]);
    let bbr = path.bbr();
    let bw = bbr.bw() as f64;
    assert!((9.5e6..10.5e6).contains(&bw), "{bw}");
    let min_rtt = bbr.min_rtt.expect("measured");
    assert!(min_rtt >= 20 * MS && min_rtt < 21 * MS, "{min_rtt:?}");
    // 2 of what the pipe holds, and what comes in batches.
    assert!(path.in_flight < 2 * 200 * PACKET, "the queue of the startup is gone: {}", path.in_flight);
}

#[test]
fn a_long_queue_stays_short_and_the_path_full() {
    let mut path = path(10_000);
    path.run(Duration::from_secs(2));
    path.most_queued = 0;
    let goodput = path.goodput(Duration::from_secs(8));
    assert!(goodput > 0.95 * 10e6, "{goodput}");
    // Probing up holds a quarter more than the pipe for a round trip.
    assert!(path.most_queued < 100, "{}", path.most_queued);
}

#[test]
fn the_states_of_a_cycle_follow_each_other() {
    let mut path = path(10_000);
    path.run(Duration::from_secs(4));
    // Longer from here on, so that the shortest is not seen again.
    path.length = 22 * MS;
    path.run(Duration::from_secs(8));
    for state in [State::Refill, State::Up, State::Down, State::ProbeRtt] {
        assert!(path.states.contains(&state), "{state:?} in {:?}", path.states);
    }
    for pair in path.states.windows(2) {
        let follows = match pair[0] {
            State::Startup => pair[1] == State::Drain,
            State::Drain => matches!(pair[1], State::Down | State::Cruise),
            State::Down => matches!(pair[1], State::Cruise | State::Refill | State::ProbeRtt),
            State::Cruise => matches!(pair[1], State::Down | State::Refill | State::ProbeRtt),
            State::Refill => matches!(pair[1], State::Up | State::ProbeRtt),
            State::Up => matches!(pair[1], State::Down | State::ProbeRtt),
            State::ProbeRtt => pair[1] == State::Cruise,
        };
        assert!(follows, "{pair:?}");
    }
}

#[test]
fn a_short_queue_bounds_what_is_under_way_and_leaves_the_path_full() {
    let mut path = path(20);
    path.run(Duration::from_secs(2));
    assert!(path.bbr().bounds.inflight_hi.is_some(), "losses have set a bound");
    let goodput = path.goodput(Duration::from_secs(6));
    assert!(goodput > 0.99 * 10e6, "{goodput}");
}

#[test]
fn one_lost_packet_in_a_hundred_does_not_slow_it() {
    let mut path = path(500);
    path.loses_one_in = 101;
    path.run(Duration::from_secs(1));
    let goodput = path.goodput(Duration::from_secs(6));
    assert!(goodput > 0.9 * 10e6, "{goodput}");
}

#[test]
fn more_bandwidth_is_found_and_less_is_believed() {
    let mut path = path(1_000);
    path.run(Duration::from_secs(2));
    path.rate = 20_000_000;
    path.run(Duration::from_secs(20));
    let bw = path.bbr().bw();
    assert!(bw > 18_000_000, "{bw}");
    path.rate = 5_000_000;
    path.run(Duration::from_secs(12));
    let bw = path.bbr().bw();
    assert!(bw < 6_000_000, "{bw}");
}

#[test]
fn what_a_sender_without_data_does_says_nothing_about_the_path() {
    let mut path = path(1_000);
    path.has = Some(2);
    path.run(Duration::from_secs(3));
    assert_eq!(path.bbr().state, State::Startup);
    assert!(!path.bbr().full_reached);
    // And its pace is not that of what it sent.
    let pace = path.congestion.pacing_rate().expect("measured");
    assert!(pace > 2 * 2 * PACKET as u64 * 50, "{pace}");
    path.has = None;
    path.run(Duration::from_secs(1));
    let before = path.bbr().bw();
    path.has = Some(2);
    path.run(Duration::from_secs(4));
    assert_eq!(path.bbr().bw(), before, "idleness makes no path slower");
}

#[test]
fn the_round_trip_is_probed_with_a_short_window_and_the_old_one_comes_back() {
    let mut path = path(10_000);
    path.run(Duration::from_secs(2));
    path.length = 22 * MS;
    while path.bbr().state != State::ProbeRtt {
        path.run(MS);
        assert!(path.now < Time::ZERO + Duration::from_secs(12));
    }
    let before = path.bbr().window_before;
    path.run(100 * MS);
    assert!(path.congestion.window() <= 110 * PACKET, "half of the pipe: {}", path.congestion.window());
    path.run(400 * MS);
    assert_ne!(path.bbr().state, State::ProbeRtt);
    assert!(path.congestion.window() >= before / 2, "{} of {before}", path.congestion.window());
    // A path that has become longer is one that is, ten seconds later.
    path.length = 40 * MS;
    path.run(Duration::from_secs(25));
    assert!(path.bbr().min_rtt.is_some_and(|min_rtt| min_rtt >= 40 * MS));
}

#[test]
fn a_timeout_leaves_two_packets_and_what_arrives_opens_the_window_again() {
    let mut path = path(1_000);
    path.run(Duration::from_secs(1));
    let before = path.congestion.window();
    path.congestion.timed_out(path.next);
    assert_eq!(path.congestion.window(), 2 * PACKET);
    path.run(500 * MS);
    assert!(path.congestion.window() > before / 2, "{}", path.congestion.window());
}

#[test]
fn a_path_that_was_as_good_as_dead_is_not_believed_to_be_slower_than_the_least_window() {
    let mut path = path(1_000);
    path.run(Duration::from_secs(1));
    // One packet a second arrives: a rate of 1,000 bytes a second, with a round trip of 20 ms.
    (path.rate, path.has) = (1_000, Some(1));
    path.run(Duration::from_secs(60));
    path.rate = 10_000_000;
    path.free_at = path.now;
    path.run(Duration::from_secs(2));
    path.has = None;
    path.run(Duration::from_secs(2));
    let pace = path.congestion.pacing_rate().expect("measured");
    let least = (4.0 * PACKET as f64 / path.rtt.smoothed().expect("measured").as_secs_f64()) as u64;
    assert!(pace >= least && path.bbr().pace_min.abs_diff(least) <= 1, "{pace} of {least}");
}

#[test]
fn bounds_that_losses_set_go_when_they_were_none() {
    let mut path = path(1_000);
    path.run(Duration::from_secs(1));
    assert_eq!((path.bbr().state, path.bbr().bounds), (State::Cruise, Bounds::default()));
    let before = path.congestion.window();
    let sent = path.under_way.front().expect("some").1;
    let (now, next) = (path.now, path.next);
    // A few are not enough to say anything about others.
    let packet = |number| LostPacket { number, sent, chunks: 1, bytes: PACKET };
    path.congestion.lost(now, packet(next - 20), next);
    path.run(60 * MS);
    assert_eq!(path.bbr().bounds, Bounds::default());
    let (now, next) = (path.now, path.next);
    let sent = path.under_way.back().expect("some").1;
    let packet = |number| LostPacket { number, sent, chunks: 1, bytes: PACKET };
    let mut reduction = 0;
    for number in next - 15..next {
        reduction = path.congestion.lost(now, packet(number), next);
    }
    // The newest of them says how many were lost since it was sent.
    path.run(21 * MS);
    assert!(path.bbr().bounds.bw_lo.is_some() && path.bbr().bounds.inflight_lo.is_some());
    for _ in 0..14 {
        path.congestion.not_lost(reduction);
    }
    assert_ne!(path.bbr().bounds, Bounds::default());
    path.congestion.not_lost(reduction);
    assert_eq!(path.bbr().bounds, Bounds::default());
    assert!(path.congestion.window() >= before);
}

/// A sample of one packet.
fn sample(rate: u64, app_limited: bool) -> Sample {
    let mut sample = crate::congestion::delivery::Delivery::default().sample(&Snapshot::default(), MS, None);
    (sample.rate, sample.app_limited) = (Some(rate), app_limited);
    sample
}

#[test]
fn the_lower_bound_of_the_bandwidth_lowers_what_the_pipe_holds() {
    let mut bbr = Bbr::new(PACKET, 1);
    (bbr.rates, bbr.min_rtt, bbr.bounds.bw_lo) = (Rates::of(1_000_000, 0), Some(100 * MS), Some(500_000));
    assert_eq!((bbr.bw(), bbr.pipe(100)), (500_000, 50_000));
    bbr.bounds.bw_lo = Some(2_000_000);
    assert_eq!((bbr.bw(), bbr.pipe(200)), (1_000_000, 200_000), "it only lowers");
}

#[test]
fn a_rate_limited_by_the_sender_counts_only_when_it_is_the_best() {
    let mut bbr = Bbr::new(PACKET, 1);
    bbr.rates = Rates::of(1_000_000, 0);
    bbr.update_bandwidth(&sample(1_000, true));
    assert_eq!(bbr.rates, Rates::of(1_000_000, 0));
    bbr.update_bandwidth(&sample(1_000, false));
    assert_ne!(bbr.rates, Rates::of(1_000_000, 0));
    bbr.round_start = true;
    bbr.update_bandwidth(&sample(3_000_000, true));
    assert_eq!(bbr.max_bw(), 3_000_000);
}

#[test]
fn a_round_without_a_queue_is_found_beside_no_others_and_not_in_the_queue_of_others() {
    let mut path = path(10_000);
    path.run(Duration::from_secs(1));
    assert!(path.bbr().rates.is_clear(), "the cruise has no queue");
    // 20 ms of a queue that somebody else fills, until the second probe is over.
    path.length = 40 * MS;
    let probes = |path: &Path| path.states.iter().filter(|state| **state == State::Up).count();
    let before = probes(&path);
    while probes(&path) < before + 2 || path.bbr().state != State::Cruise {
        path.run(MS);
        assert!(path.now < Time::ZERO + Duration::from_secs(8), "it never probed");
    }
    assert!(!path.bbr().rates.is_clear());
}

#[test]
fn between_probes_a_round_that_caught_up_does_not_raise_the_rate() {
    let rate_after = |state, acks, full_reached, others| {
        let mut bbr = Bbr::new(PACKET, 1);
        (bbr.rates, bbr.pace) = (Rates::of(1_000_000, 0), Some(1_000_000));
        (bbr.state, bbr.acks, bbr.full_reached, bbr.others) = (state, acks, full_reached, others);
        bbr.round_start = true;
        bbr.update_bandwidth(&sample(1_100_000, false));
        bbr.max_bw()
    };
    for state in [State::Drain, State::Down, State::Cruise, State::Refill, State::ProbeRtt] {
        assert_eq!(rate_after(state, Acks::Any, true, false), 1_000_000, "{state:?}");
        assert_eq!(rate_after(state, Acks::Any, true, true), 1_100_000, "{state:?} beside others");
    }
    assert_eq!(rate_after(State::Up, Acks::ProbeFeedback, true, false), 1_100_000);
    assert_eq!(rate_after(State::Down, Acks::ProbeStopping, true, false), 1_100_000, "it was sent in the probe");
    assert_eq!(rate_after(State::Startup, Acks::Any, false, false), 1_100_000);
}

#[test]
fn a_probe_begins_when_what_the_cruise_has_queued_is_gone() {
    let mut path = path(10_000);
    path.run(Duration::from_secs(1));
    // 20 packets more than 200 are under way when these have arrived.
    path.free_at = path.now + 2 * MS;
    let Either::Bbr(bbr) = &mut path.congestion.controller else { unreachable!("the path is made with it") };
    assert_eq!(bbr.state, State::Cruise);
    bbr.cycle_at = Time::ZERO;
    (bbr.probe_wait, path.states) = (path.now.since(Time::ZERO) + 30 * MS, vec![State::Cruise]);
    while path.bbr().state != State::Refill {
        path.run(MS);
        assert!(path.now < Time::ZERO + Duration::from_secs(2), "it never probed");
    }
    assert_eq!(path.states, [State::Cruise, State::Down, State::Refill]);
    assert!(path.in_flight <= 205 * PACKET, "{}", path.in_flight);
}

#[test]
fn a_probe_waits_a_round_at_most_for_what_is_queued() {
    let mut path = path(10_000);
    path.run(Duration::from_secs(1));
    // The path has become slow, so the queue does not become shorter.
    path.rate = 5_000_000;
    path.run(100 * MS);
    let Either::Bbr(bbr) = &mut path.congestion.controller else { unreachable!("the path is made with it") };
    (bbr.state, bbr.others, bbr.probe_wait) = (State::Cruise, false, Duration::ZERO);
    let begun = path.now;
    while path.bbr().state != State::Refill {
        path.run(MS);
        assert!(path.now < begun + 100 * MS, "{:?}", path.bbr().state);
    }
}

#[test]
fn the_probe_of_the_round_trip_forgets_no_rate() {
    let mut bbr = Bbr::new(PACKET, 1);
    (bbr.rates, bbr.full_reached, bbr.state) = (Rates::of(900_000, 1_000_000), true, State::Cruise);
    bbr.start_down(Time::ZERO, 0);
    assert_eq!(bbr.acks, Acks::ProbeStopping, "a probe for more ends a cycle");
    bbr.state = State::ProbeRtt;
    bbr.end_probe_rtt(Time::ZERO, 0);
    assert_eq!((bbr.state, bbr.acks), (State::Cruise, Acks::Any));
    assert_eq!(bbr.rates, Rates::of(900_000, 1_000_000));
}

#[test]
fn the_pace_is_at_least_the_least_window_in_each_round_trip() {
    let mut bbr = Bbr::new(PACKET, 1);
    (bbr.rates, bbr.full_reached) = (Rates::of(1_000, 0), true);
    bbr.set_pace(Some(20 * MS));
    assert_eq!(bbr.pacing_rate(), Some(200_000));
}

#[test]
fn a_few_lost_packets_and_two_in_a_hundred_are_not_too_many() {
    let bbr = Bbr::new(PACKET, 1);
    let too_many = |lost: u64, of: usize| bbr.loses_too_much(lost * PACKET as u64, of * PACKET);
    assert!(!too_many(2, 17) && too_many(3, 17));
    assert!(!too_many(22, 1_000) && too_many(23, 1_000));
}

#[test]
fn a_queue_ends_the_startup_within_the_round_that_meets_it() {
    let mut path = path(10_000);
    while path.bbr().state == State::Startup {
        path.run(MS);
    }
    // In the fifth round trip; three rounds without growth would take two of 40 ms more.
    assert!(path.now <= Time::ZERO + 110 * MS, "{:?}", path.now);
    path.run(Duration::from_secs(1));
    assert!(path.lost.is_empty() && path.bbr().bounds == Bounds::default());
}

#[test]
fn a_startup_finds_most_of_the_rate_of_a_link_that_stands_still() {
    let found = |begins: u32, stops: u32| {
        let mut path = path(10_000);
        path.run(begins * MS);
        path.stop(stops * MS);
        path.run(400 * MS);
        path.bbr().max_bw()
    };
    for (begins, stops) in (20..100).flat_map(|begins| [3, 6, 12, 18].map(|stops| (begins, stops))) {
        let bw = found(begins, stops);
        assert!(bw > 6_500_000, "a stop of {stops} ms after {begins} ms: {bw}");
    }
}

#[test]
fn a_startup_that_has_met_a_queue_drains_it_while_it_asks_whether_it_lasts() {
    let mut path = path(10_000);
    while path.bbr().state == State::Startup {
        path.run(MS);
    }
    // Of 200 that the path holds; they were 460 when the first of them came back late.
    assert!(path.in_flight < 310 * PACKET, "{} packets", path.in_flight / PACKET);
    path.run(20 * MS);
    assert!(path.in_flight < 220 * PACKET, "{} packets", path.in_flight / PACKET);
    assert!((9_900_000..10_100_000).contains(&path.bbr().max_bw()), "{}", path.bbr().max_bw());
}

#[test]
fn a_sender_that_has_no_more_ends_no_startup() {
    let mut bbr = Bbr::new(PACKET, 1);
    (bbr.rates, bbr.min_rtt) = (Rates::of(1_000_000, 0), Some(10 * MS));
    let mut ends = |ms: u32, app_limited| {
        let seen = Sample { round_trip: 20 * MS, ..sample(1_000_000, app_limited) };
        bbr.update_queueing(Time::ZERO + ms * MS, &seen);
        bbr.full_reached
    };
    // Queues of its own that it has left time to drain.
    assert!((1..9).all(|ms| !ends(ms, false)) && !ends(9, true) && (10..19).all(|ms| !ends(ms, false)));
    assert!(!ends(19, false) && ends(20, false));
}

#[test]
fn a_cruise_with_too_high_a_rate_drains_what_it_queues() {
    let mut path = path(10_000);
    path.run(Duration::from_secs(1));
    let Either::Bbr(bbr) = &mut path.congestion.controller else { unreachable!("the path is made with it") };
    assert_eq!(bbr.state, State::Cruise);
    bbr.rates = Rates::of(10_400_000, 10_400_000);
    path.run(200 * MS);
    (path.most_queued, path.states) = (0, vec![State::Cruise]);
    let goodput = path.goodput(200 * MS);
    // An eighth of 200 packets, and what comes until it has lasted a round and another Down counts.
    assert!((25..=55).contains(&path.most_queued), "{}", path.most_queued);
    assert!(path.states.len() >= 3 && path.states.iter().all(|state| matches!(state, State::Cruise | State::Down)));
    assert!(goodput > 9.9e6 && !path.bbr().others, "{goodput}");
}

#[test]
fn beside_the_queue_of_others_twice_what_the_pipe_holds_may_be_under_way_until_the_next_probe() {
    let mut path = path(10_000);
    path.run(Duration::from_secs(1));
    let tight = path.congestion.window();
    assert!((224 * PACKET..240 * PACKET).contains(&tight), "{}", tight / PACKET);
    // 20 ms of a queue that somebody else fills.
    path.length = 40 * MS;
    path.run(Duration::from_millis(600));
    assert!(path.bbr().others && path.bbr().state == State::Cruise, "{:?}", path.bbr().state);
    assert!(path.congestion.window() >= 400 * PACKET, "{}", path.congestion.window());
    path.length = 20 * MS;
    while path.bbr().state != State::Down {
        path.run(MS);
        assert!(path.now < Time::ZERO + Duration::from_secs(8), "it never probed");
    }
    assert!(!path.bbr().others);
}

#[test]
fn what_probing_has_queued_is_not_waited_for_where_others_fill_the_queue() {
    let mut path = path(10_000);
    path.run(Duration::from_secs(1));
    while path.bbr().state != State::Down {
        path.run(MS);
        assert!(path.now < Time::ZERO + Duration::from_secs(8), "it never probed");
    }
    // What is under way does not become less than the pipe holds.
    path.length = 40 * MS;
    path.run(Duration::from_millis(400));
    assert!(path.bbr().others && path.bbr().state == State::Cruise, "{:?}", path.bbr().state);
    assert!(path.congestion.window() >= 400 * PACKET, "{}", path.congestion.window());
}

#[test]
fn rates_that_are_not_paced_keep_twice_the_pipe() {
    let mut bbr = Bbr::new(PACKET, 1);
    (bbr.pace, bbr.state) = (Some(100_000_000), State::Cruise);
    assert!(bbr.is_tight() && bbr.state.window_gain(!bbr.is_tight()) == TIGHT);
    bbr.pace = Some(2_000_000_000);
    assert!(!bbr.is_tight() && bbr.state.window_gain(!bbr.is_tight()) == 200);
    bbr.pace = None;
    assert!(!bbr.is_tight());
}

#[test]
fn what_a_startup_sent_too_much_says_nothing_about_others() {
    let mut path = path(20);
    while path.bbr().state == State::Startup {
        path.run(MS);
    }
    assert!(path.bbr().own_until > 0 && path.bbr().bounds.inflight_hi.is_some());
    path.run(Duration::from_millis(100));
    assert!(path.bbr().bounds.bw_lo.is_none() && path.bbr().bounds.inflight_lo.is_none());
    let pipe = path.bbr().pipe(100);
    assert!(path.bbr().bounds.inflight_hi.is_some_and(|hi| hi >= pipe / 100 * 112), "{:?}", path.bbr().bounds);
}

#[test]
fn what_a_probe_sent_too_much_says_nothing_about_others() {
    let mut path = path(20);
    let run_to = |path: &mut Path, state| {
        while path.bbr().state != state {
            path.run(MS);
        }
    };
    run_to(&mut path, State::Cruise);
    let own_before = path.bbr().own_until;
    for state in [State::Up, State::Cruise] {
        run_to(&mut path, state);
    }
    path.run(Duration::from_millis(200));
    let bbr = path.bbr();
    assert!(bbr.own_until > own_before, "losses have ended the probe");
    assert!(bbr.bounds.bw_lo.is_none() && bbr.bounds.inflight_lo.is_none(), "{:?}", bbr.bounds);
}
