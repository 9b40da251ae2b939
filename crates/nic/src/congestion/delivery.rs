//! How fast data arrives: a sample of the delivery rate with each acknowledgement.
//!
//! Invariant: the counts only grow. A sample's rate is that of the slower of sending and
//! acknowledging, so that neither a burst nor acknowledgements that come together make it too high.
//! Source: draft-ietf-ccwg-bbr, section 4.1.

use std::time::Duration;

use crate::time::Time;

/// What was known when a packet was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Snapshot {
    /// When it was sent.
    pub(crate) at: Time,
    /// Bytes that had arrived, and when the last of them was acknowledged.
    pub(crate) delivered: u64,
    delivered_at: Time,
    /// When the first packet of the present flight went out.
    first_sent: Time,
    /// Bytes that had been lost.
    pub(crate) lost: u64,
    /// Bytes under way, with its own.
    pub(crate) in_flight: usize,
    /// The sender had nothing more to send then, or shortly before.
    pub(crate) app_limited: bool,
}

/// What an acknowledgement of a packet says about the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Bytes per second; none: the interval was too short to tell.
    pub(crate) rate: Option<u64>,
    /// Bytes that have arrived since the packet was sent, and that had arrived before.
    pub(crate) delivered: u64,
    pub(crate) delivered_before: u64,
    /// Bytes lost since it was sent.
    pub(crate) lost: u64,
    /// Bytes under way when it was sent.
    pub(crate) in_flight: usize,
    /// See [`Snapshot`]: the rate may be that of the sender.
    pub(crate) app_limited: bool,
    /// Less what the receiver says that it waited.
    pub(crate) round_trip: Duration,
}

/// Counts of a session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delivery {
    delivered: u64,
    delivered_at: Time,
    first_sent: Time,
    lost: u64,
    /// Samples of packets sent until more than that had arrived may be limited by the sender; 0:
    /// none.
    app_limited_until: u64,
}

impl Delivery {
    /// Bytes that have arrived.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Bytes that were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether what is sent now may be all that there is.
    pub(crate) fn is_app_limited(&self) -> bool {
        self.app_limited_until > 0 && self.delivered <= self.app_limited_until
    }

    /// A packet goes out, while so many bytes are under way without and with it.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time, before: usize, in_flight: usize) -> Snapshot {
        if before == 0 {
            (self.first_sent, self.delivered_at) = (now, now);
        }
        Snapshot {
            at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            lost: self.lost,
            in_flight,
            app_limited: self.is_app_limited(),
        }
    }

    /// There is no more to send, and the window has room: what has been sent until now says how
    /// much there was, not what the path takes.
    #[inline]
    pub(crate) fn has_no_more(&mut self, in_flight: usize) {
        self.app_limited_until = (self.delivered + in_flight as u64).max(1);
    }

    pub(crate) fn lose(&mut self, bytes: usize) {
        self.lost += bytes as u64;
    }

    /// So many bytes have arrived.
    #[inline]
    pub(crate) fn arrived(&mut self, now: Time, bytes: usize) {
        self.delivered += bytes as u64;
        self.delivered_at = now;
    }

    /// The newest packet that has arrived is this one. What arrived with it has been
    /// [counted](Self::arrived).
    pub(crate) fn sample(&mut self, packet: &Snapshot, round_trip: Duration, shortest: Option<Duration>) -> Sample {
        let sending = packet.at.since(packet.first_sent);
        let acknowledging = self.delivered_at.since(packet.delivered_at);
        let interval = sending.max(acknowledging);
        self.first_sent = packet.at;
        let delivered = self.delivered.saturating_sub(packet.delivered);
        // A shorter one is one of acknowledgements that came together.
        let tells = interval >= shortest.unwrap_or_default() && !interval.is_zero();
        Sample {
            rate: tells.then(|| rate(delivered, interval)),
            delivered,
            delivered_before: packet.delivered,
            lost: self.lost.saturating_sub(packet.lost),
            in_flight: packet.in_flight,
            app_limited: packet.app_limited,
            round_trip,
        }
    }
}

const NANOS: u64 = 1_000_000_000;

/// `a` times `b` over `c`, or as much as there is room for. In 64 bits where they do: this is done
/// with every acknowledgement.
#[inline]
fn scaled(a: u64, b: u64, c: u64) -> u64 {
    let c = c.max(1);
    match a.checked_mul(b) {
        Some(product) => product / c,
        None => u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX),
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_secs().saturating_mul(NANOS).saturating_add(time.subsec_nanos().into())
}

/// Bytes per second.
#[inline]
pub(crate) fn rate(bytes: u64, interval: Duration) -> u64 {
    scaled(bytes, NANOS, nanos(interval))
}

/// Bytes that a rate moves in that time.
#[inline]
pub(crate) fn bytes_in(rate: u64, time: Duration) -> u64 {
    scaled(rate, nanos(time), NANOS)
}

/// Time that so many bytes take at a rate, which is not zero.
#[inline]
pub(crate) fn time_for(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos(scaled(bytes, NANOS, rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Time {
        Time::ZERO + ms * MS
    }

    #[test]
    fn the_rate_is_what_arrives_between_two_acknowledgements() {
        let mut delivery = Delivery::default();
        // 1,000 bytes each millisecond, acknowledged 10 ms later.
        let packets: Vec<Snapshot> = (0..10).map(|i| delivery.sent(at(i), i as usize * 1_000, 1_000)).collect();
        delivery.arrived(at(10), 1_000);
        let first = delivery.sample(&packets[0], 10 * MS, None);
        assert_eq!((first.rate, first.delivered), (Some(100_000), 1_000), "one packet in a round trip");
        let last = delivery.sent(at(10), 9_000, 10_000);
        for (packet, ms) in packets.iter().skip(1).zip(11..) {
            delivery.arrived(at(ms), 1_000);
            delivery.sample(packet, 10 * MS, None);
        }
        delivery.arrived(at(20), 1_000);
        let sample = delivery.sample(&last, 10 * MS, None);
        assert_eq!((sample.rate, sample.delivered, sample.delivered_before), (Some(1_000_000), 10_000, 1_000));
    }

    #[test]
    fn acknowledgements_that_come_together_do_not_raise_the_rate() {
        let mut delivery = Delivery::default();
        let packets: Vec<Snapshot> = (0..10).map(|i| delivery.sent(at(i), i as usize * 1_000, 1_000)).collect();
        delivery.arrived(at(20), 10_000);
        let sample = delivery.sample(&packets[9], 11 * MS, None);
        assert_eq!(sample.rate, Some(500_000));
        // The next flight arrives in one piece: it was sent in 9 ms.
        let packets: Vec<Snapshot> = (0..10).map(|i| delivery.sent(at(20 + i), i as usize * 1_000, 1_000)).collect();
        delivery.arrived(at(30), 1);
        delivery.sample(&packets[0], 10 * MS, None);
        delivery.arrived(at(30), 9_999);
        let sample = delivery.sample(&packets[9], MS, Some(MS));
        assert_eq!(sample.rate, Some(1_000_000), "10,000 bytes in the 10 ms since the acknowledgement before");
        let packet = delivery.sent(at(30), 1_000, 2_000);
        delivery.arrived(at(30), 1_000);
        assert_eq!(delivery.sample(&packet, MS, Some(2 * MS)).rate, None, "less than a round trip");
    }

    #[test]
    fn the_rate_is_no_higher_than_that_of_sending() {
        let mut delivery = Delivery::default();
        let first = delivery.sent(at(0), 0, 1_000);
        delivery.arrived(at(10), 1_000);
        delivery.sample(&first, 10 * MS, None);
        // 19 ms after the first, and acknowledged together 10 ms after that was.
        let packets: Vec<Snapshot> = (10..20).map(|i| delivery.sent(at(i), 1_000, 2_000)).collect();
        delivery.arrived(at(20), 10_000);
        assert_eq!(delivery.sample(&packets[9], MS, None).rate, Some(10_000 * 1_000 / 19));
    }

    #[test]
    fn what_is_sent_when_there_is_no_more_says_so_until_it_has_arrived() {
        let mut delivery = Delivery::default();
        delivery.sent(at(0), 0, 1_000);
        delivery.has_no_more(1_000);
        assert!(delivery.sent(at(1), 1_000, 2_000).app_limited);
        delivery.arrived(at(10), 1_000);
        assert!(delivery.sent(at(10), 1_000, 2_000).app_limited);
        delivery.arrived(at(11), 1_000);
        assert!(!delivery.sent(at(11), 1_000, 2_000).app_limited);
        // With nothing under way and nothing delivered too.
        let mut delivery = Delivery::default();
        delivery.has_no_more(0);
        assert!(delivery.sent(at(0), 0, 1_000).app_limited);
    }

    #[test]
    fn rates_of_all_sizes_are_computed_without_overflow() {
        assert_eq!(rate(u64::MAX, Duration::from_nanos(1)), u64::MAX);
        assert_eq!(rate(u64::MAX, Duration::from_secs(1)), u64::MAX);
        assert_eq!(rate(7, Duration::ZERO), 7 * NANOS);
        assert_eq!(bytes_in(u64::MAX / 2, Duration::from_secs(2)), u64::MAX - 1);
        assert_eq!(bytes_in(u64::MAX, Duration::MAX), u64::MAX);
        assert_eq!(time_for(u64::MAX, u64::MAX), Duration::from_secs(1));
        assert_eq!(time_for(1_000, 0), Duration::from_secs(1_000));
    }

    #[test]
    fn losses_count_from_when_the_packet_was_sent() {
        let mut delivery = Delivery::default();
        delivery.lose(500);
        let packet = delivery.sent(at(0), 0, 1_000);
        delivery.lose(700);
        delivery.arrived(at(5), 1_000);
        assert_eq!(delivery.sample(&packet, 5 * MS, None).lost, 700);
    }
}
