//! Growth after the formulas of RFC 9438, and the ends of slow start of RFC 9406.

use super::*;
use crate::congestion::delivery::Delivery;

const MS: Duration = Duration::from_millis(1);
const PACKET: usize = 1_000;

/// Acknowledgements of one packet each, with what they say about round trips.
struct Acks {
    cubic: Cubic,
    now: Time,
    largest: u64,
    round_trip: Duration,
    limited: bool,
}

impl Acks {
    fn new(round_trip: Duration) -> Acks {
        Acks { cubic: Cubic::new(PACKET), now: Time::ZERO + 1_000 * MS, largest: 0, round_trip, limited: true }
    }

    /// A window of acknowledgements, spread over a round trip.
    fn round(&mut self) {
        let packets = (self.cubic.window() / PACKET) as u64;
        let next = self.largest + 2 * packets;
        for _ in 0..packets {
            self.now = self.now + self.round_trip / packets as u32;
            self.largest += 1;
            let sent = Delivery::default().sent(self.now - self.round_trip, 0, PACKET);
            let sample = Delivery::default().sample(&sent, self.round_trip, None);
            self.cubic.on_ack(&Acked {
                now: self.now,
                bytes: PACKET,
                delivered: self.largest * PACKET as u64,
                in_flight: 0,
                limited: self.limited,
                largest: self.largest,
                next: next.min(self.largest + packets),
                smoothed: Some(self.round_trip),
                sample: Some(sample),
            });
        }
    }

    fn lose(&mut self) {
        let (number, bytes, in_flight) = (self.largest, PACKET, self.cubic.window());
        let (first, app_limited, lost, delivered) = (true, false, 1_000, 0);
        self.cubic.on_loss(&Loss {
            first,
            now: self.now,
            number,
            next: number + 1,
            bytes,
            lost,
            in_flight,
            app_limited,
            delivered,
        });
    }

    fn packets(&self) -> f64 {
        self.cubic.window() as f64 / PACKET as f64
    }
}

#[test]
fn slow_start_doubles_in_each_round_trip() {
    let mut acks = Acks::new(50 * MS);
    let before = acks.packets();
    acks.round();
    // The last part of a packet is not a packet.
    assert!((acks.packets() - 2.0 * before).abs() < 1.0, "{} of {before}", acks.packets());
    assert_eq!(acks.cubic.estimates().state, "slow start");
}

#[test]
fn round_trips_that_become_longer_end_the_doubling_and_five_such_rounds_slow_start() {
    let mut acks = Acks::new(50 * MS);
    acks.round();
    // An eighth is 6.25 ms.
    acks.round_trip = 56 * MS;
    acks.round();
    assert_eq!(acks.cubic.estimates().state, "slow start");
    acks.round_trip = 63 * MS;
    acks.round();
    assert_eq!(acks.cubic.estimates().state, "slower start");
    let before = acks.packets();
    acks.round();
    assert!(acks.packets() > 1.2 * before && acks.packets() < 1.3 * before, "a quarter more: {}", acks.packets());
    for _ in 0..6 {
        acks.round();
    }
    assert_eq!(acks.cubic.estimates().state, "avoidance");
}

#[test]
fn a_round_trip_that_is_short_again_goes_on_with_slow_start() {
    let mut acks = Acks::new(50 * MS);
    acks.round();
    acks.round_trip = 63 * MS;
    acks.round();
    assert_eq!(acks.cubic.estimates().state, "slower start");
    acks.round_trip = 50 * MS;
    acks.round();
    assert_eq!(acks.cubic.estimates().state, "slow start");
}

#[test]
fn after_a_loss_the_window_follows_the_cube_of_the_time() {
    let mut acks = Acks::new(100 * MS);
    acks.round();
    acks.round();
    acks.round();
    let top = acks.packets();
    acks.lose();
    assert_eq!(acks.cubic.window(), (top * 1000.0) as usize / 10 * 7);
    // K = cbrt(0.3 top / C) seconds, after which the window is what it was.
    let until = (0.3 * top / 0.4).cbrt();
    let begun = acks.now;
    while acks.now.since(begun).as_secs_f64() < until / 2.0 {
        acks.round();
    }
    let at = acks.now.since(begun).as_secs_f64();
    let cubic = |at: f64| 0.4 * (at - until).powi(3) + top;
    let (least, most) = (cubic(at - 0.15), cubic(at + 0.15));
    assert!((least..=most).contains(&acks.packets()), "{least} {} {most}", acks.packets());
    while acks.now.since(begun).as_secs_f64() < until {
        acks.round();
    }
    assert!((0.97 * top..1.01 * top).contains(&acks.packets()), "{} of {top}", acks.packets());
    // Beyond it growth becomes quicker again.
    while acks.now.since(begun).as_secs_f64() < until + 4.0 {
        acks.round();
    }
    let at = acks.now.since(begun).as_secs_f64();
    assert!((cubic(at - 0.3)..=cubic(at + 0.3)).contains(&acks.packets()), "{} of {}", acks.packets(), cubic(at));
}

#[test]
fn on_a_short_path_it_grows_as_additive_increase_does() {
    let mut acks = Acks::new(MS);
    acks.round();
    acks.lose();
    let before = acks.packets();
    for _ in 0..40 {
        acks.round();
    }
    // 0.53 packets a round trip; the cube of 40 ms is nothing.
    let grown = acks.packets() - before;
    assert!((0.9 * 40.0 * ALPHA..=1.1 * 40.0 * ALPHA).contains(&grown), "{grown}");
}

#[test]
fn who_loses_again_before_the_top_leaves_room_for_others() {
    let mut acks = Acks::new(100 * MS);
    acks.round();
    acks.lose();
    let second = acks.packets();
    acks.lose();
    assert!((acks.cubic.shape.top - second * 0.85).abs() < 0.01, "{}", acks.cubic.shape.top);
}

#[test]
fn time_in_which_the_window_was_not_needed_does_not_count() {
    let mut acks = Acks::new(100 * MS);
    acks.round();
    acks.lose();
    acks.round();
    let before = acks.packets();
    acks.limited = false;
    for _ in 0..100 {
        acks.round();
    }
    assert_eq!(acks.packets(), before);
    acks.limited = true;
    acks.round();
    assert!(acks.packets() < 1.1 * before, "ten seconds are no growth: {}", acks.packets());
}

#[test]
fn packets_go_out_faster_than_the_window_and_twice_as_fast_where_it_doubles() {
    let mut acks = Acks::new(100 * MS);
    acks.round();
    let a_second = |acks: &Acks| acks.cubic.window() as u64 * 10;
    assert_eq!(acks.cubic.pacing_rate(), Some(2 * a_second(&acks)));
    acks.lose();
    acks.round();
    let pace = acks.cubic.pacing_rate().expect("measured");
    assert!(pace > a_second(&acks) * 119 / 100 && pace <= a_second(&acks) * 12 / 10, "{pace}");
}

#[test]
fn a_timeout_starts_over_up_to_the_threshold() {
    let mut acks = Acks::new(100 * MS);
    acks.round();
    let before = acks.cubic.window();
    acks.cubic.on_timeout();
    assert_eq!(acks.cubic.window(), 2 * PACKET);
    while acks.cubic.in_slow_start() {
        acks.round();
    }
    // The rest of that round grows as after slow start.
    let threshold = before / 10 * 7;
    assert!((threshold..threshold + PACKET).contains(&acks.cubic.window()), "{} of {before}", acks.cubic.window());
}
