//! The accounts, and bounds that hold for every controller whatever a peer says.

use super::*;

const PACKET: usize = 1_000;

fn snapshot() -> Snapshot {
    Delivery::default().sent(Time::ZERO, 0, PACKET)
}

fn packet(number: u64, chunks: u64) -> LostPacket {
    LostPacket { number, sent: snapshot(), chunks, bytes: PACKET }
}

fn lose(congestion: &mut Congestion, number: u64, chunks: u64, next: u64) -> u32 {
    congestion.lost(Time::ZERO, packet(number, chunks), next)
}

fn cubic() -> Congestion {
    Congestion::new(CongestionControl::Cubic, Ecn::Off, PACKET, 1)
}

#[test]
fn one_round_trip_of_losses_reduces_the_window_once() {
    let mut congestion = cubic();
    let before = congestion.window();
    lose(&mut congestion, 5, 1, 10);
    let after = congestion.window();
    assert!(after < before);
    lose(&mut congestion, 9, 1, 12);
    assert_eq!(congestion.window(), after);
    lose(&mut congestion, 10, 1, 12);
    assert!(congestion.window() < after);
}

#[test]
fn a_reduction_is_undone_when_all_its_losses_were_none() {
    let mut congestion = cubic();
    let before = congestion.window();
    let first = lose(&mut congestion, 5, 2, 10);
    congestion.not_lost(first);
    assert!(congestion.window() < before, "one may be lost still");
    congestion.not_lost(first);
    assert_eq!(congestion.window(), before);
    // What is lost then is a loss of its own; what belonged to an older reduction is too late.
    let second = lose(&mut congestion, 6, 1, 12);
    lose(&mut congestion, 12, 1, 20);
    congestion.not_lost(second);
    assert_eq!(congestion.window(), before / 10 * 7 / 10 * 7);
}

#[test]
fn marks_of_one_round_trip_reduce_the_window_once_and_nothing_undoes_that() {
    for (ecn, percent) in [(Ecn::Classic, 70), (Ecn::L4s, 50)] {
        let mut congestion = Congestion::new(CongestionControl::Cubic, ecn, PACKET, 1);
        let before = congestion.window();
        let lost = lose(&mut congestion, 5, 1, 10);
        let after = congestion.window();
        congestion.marked(Time::ZERO, (3, 8), (9, 12), PACKET);
        assert_eq!(congestion.window(), after, "{ecn}: what was lost was of the same round trip");
        congestion.marked(Time::ZERO, (1, 8), (10, 20), PACKET);
        let less = congestion.window();
        let least = after * percent / 100 - 10;
        assert!((least..least + after / 40).contains(&less), "{ecn}: little is known yet about the part");
        congestion.marked(Time::ZERO, (8, 8), (19, 30), PACKET);
        lose(&mut congestion, 19, 1, 30);
        assert_eq!(congestion.window(), less, "{ecn}");
        congestion.not_lost(lost);
        assert_eq!(congestion.window(), less, "{ecn}: a mark is no loss that may have been none");
        congestion.marked(Time::ZERO, (0, 8), (25, 40), PACKET);
        assert_eq!(congestion.window(), less, "{ecn}: there was no mark");
        assert!(less < before);
    }
}

#[test]
fn a_reduction_takes_half_of_the_part_that_is_marked() {
    let mut congestion = Congestion::new(CongestionControl::Cubic, Ecn::L4s, PACKET, 1);
    // One packet in eight for long enough that the mean has forgotten what it began with.
    for round in 0..100 {
        congestion.marked(Time::ZERO, (1, 8), (100 * round, 100 * (round + 1)), PACKET);
    }
    congestion = Congestion { controller: cubic().controller, ..congestion };
    let before = congestion.window() as f64;
    congestion.marked(Time::ZERO, (1, 8), (10_000, 10_100), PACKET);
    let left = congestion.window() as f64 / before;
    assert!((left - (1.0 - 1.0 / 16.0)).abs() < 0.01, "{left}");
}

#[test]
fn the_window_grows_only_while_it_holds_the_sender_back() {
    let mut congestion = cubic();
    let (before, rtt) = (congestion.window(), RoundTrip::default());
    congestion.acknowledged(Time::ZERO, (PACKET, 0), (0, 10), None, &rtt);
    assert_eq!(congestion.window(), before);
    congestion.is_full(10);
    congestion.acknowledged(Time::ZERO, (PACKET, 0), (9, 20), None, &rtt);
    assert_eq!(congestion.window(), before + PACKET, "packets before the tenth were held back");
    congestion.acknowledged(Time::ZERO, (PACKET, 0), (10, 20), None, &rtt);
    assert_eq!(congestion.window(), before + PACKET);
}

/// Whatever a peer acknowledges, and whenever: random events of every kind, times that jump, and
/// packets of all sizes.
#[test]
fn window_and_rate_stay_inside_their_bounds_whatever_happens() {
    for seed in 0..300 {
        let control = CongestionControl::ALL[seed as usize % 2];
        let mut rng = vmmc_utlb::Rng::new(seed);
        let mut size = 1_472;
        let ecn = [Ecn::Classic, Ecn::L4s][seed as usize / 2 % 2];
        let mut congestion = Congestion::new(control, ecn, size, seed);
        let (mut rtt, mut now) = (RoundTrip::default(), Time::ZERO);
        // Losses that may turn out to be none, by the reduction that they belong to.
        let mut lost: Vec<u32> = Vec::new();
        let mut sent = Vec::new();
        for next in 1..3_000 {
            let before = congestion.window();
            let jump = [0, 1, 1_000, 100_000, 10_000_000, 20_000_000_000][(rng.next_u64() % 6) as usize];
            now = now + Duration::from_nanos(rng.next_u64() % (jump + 1));
            match rng.next_u64() % 100 {
                0..40 => {
                    let bytes = (rng.next_u64() % 100_000) as usize;
                    let newest = (rng.next_u64() % 2 == 0).then_some(()).and(sent.pop());
                    let newest = newest.map(|snapshot: Snapshot| (snapshot, now.since(snapshot.at)));
                    if let Some((_, took)) = newest {
                        rtt.sample(now, took);
                    }
                    if rng.next_u64() % 4 > 0 {
                        congestion.is_full(next);
                    }
                    let largest = next - rng.next_u64() % next;
                    let in_flight = (rng.next_u64() % (1 << 27)) as usize;
                    congestion.acknowledged(now, (bytes, in_flight), (largest, next), newest, &rtt);
                }
                40..70 => {
                    let in_flight = (rng.next_u64() % (1 << 27)) as usize;
                    let before = if rng.next_u64() % 4 == 0 { 0 } else { in_flight };
                    sent.push(congestion.sent(now, before, in_flight + size));
                    if rng.next_u64() % 10 == 0 {
                        congestion.has_no_more(in_flight);
                    }
                }
                70..85 => {
                    let chunks = rng.next_u64() % 5 + 1;
                    let number = next - rng.next_u64() % next;
                    let sent = sent.last().copied().unwrap_or_default();
                    let packet = LostPacket { number, sent, chunks, bytes: size };
                    let reduction = congestion.lost(now, packet, next);
                    lost.extend((0..chunks).map(|_| reduction));
                    assert!(congestion.window() >= (before / 10 * 7).min(before), "at most one reduction");
                }
                85..90 => {
                    let all = rng.next_u64() % 100;
                    let (marked, largest) = (rng.next_u64() % (all + 1), next - rng.next_u64() % next);
                    congestion.marked(now, (marked, all), (largest, next), (rng.next_u64() % (1 << 27)) as usize);
                    let least = (before / 2).min(size * WINDOW_MIN_PACKETS);
                    assert!(congestion.window() >= least, "half at most");
                    assert!(control != CongestionControl::Cubic || congestion.window() >= before / 2);
                }
                90..98 if !lost.is_empty() => {
                    let at = rng.next_u64() as usize % lost.len();
                    congestion.not_lost(lost.swap_remove(at));
                    assert!(congestion.window() >= before);
                }
                98 => congestion.timed_out(next),
                _ => {
                    size = [1_200, 1_472, 65_507][(rng.next_u64() % 3) as usize];
                    congestion.set_packet(size);
                }
            }
            let window = congestion.window();
            let least = size * WINDOW_MIN_PACKETS;
            assert!(window >= least && window <= WINDOW_MAX_BYTES, "seed {seed}: {window}");
            assert!(congestion.pacing_rate() != Some(0), "seed {seed}: it would never send");
        }
    }
}

#[test]
fn a_round_trip_that_takes_no_time_has_a_rate() {
    let mut congestion = cubic();
    let mut rtt = RoundTrip::default();
    rtt.sample(Time::ZERO, Duration::ZERO);
    let sent = congestion.sent(Time::ZERO, 0, PACKET);
    congestion.acknowledged(Time::ZERO, (PACKET, 0), (0, 1), Some((sent, Duration::ZERO)), &rtt);
    assert!(congestion.pacing_rate().is_some_and(|rate| rate > 0));
}
