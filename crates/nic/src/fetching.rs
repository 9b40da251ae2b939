//! How much of long fetches a node may have asked for: many peers who answer at once would meet in
//! the queue before it, however well each of them watches its own way.
//!
//! What may be asked for follows from what comes, as a window does [draft-ietf-ccwg-bbr]: the
//! highest rate of late times the shortest round trip is what the way holds. What a peer sends
//! beside answers raises it, to what that peer could send without being asked.
//!
//! Invariants: `heard` and `before` count the peers of which long fetches are under way that have
//! sent something, or were first asked, in this span of time, and in the one before and not in this
//! one; a span is longer than a peer takes to answer. So one that is silent does not take from the
//! others for long. The share of a peer has room for a part, whatever the others have, so nobody
//! waits for them.

use std::time::Duration;

use crate::limits::{
    FETCH_ALONE_TIMES, FETCH_OWN_PERCENT, FETCH_OWN_SPANS, FETCH_PART_MAX, FETCH_PART_MIN, FETCH_PARTS,
    FETCH_RATE_MEMORY, FETCH_RATE_SPAN_MIN, FETCH_SILENT_MAX, FETCH_SILENT_MIN, FETCH_SILENT_TIMES, FETCH_TIMES,
    WINDOW_INITIAL_BYTES, WINDOW_INITIAL_PACKETS,
};
use crate::time::Time;

/// The highest rate of late at which bytes came.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    /// What came since then counts together.
    from: Time,
    bytes: u64,
    /// Highest since a moment, and highest in the span of time before that; bytes per second.
    best: u64,
    since: Time,
    before: u64,
}

impl Rate {
    /// Bytes came, from where a round trip takes so long.
    #[inline]
    fn came(&mut self, now: Time, bytes: usize, round_trip: Duration, memory: Duration) {
        let span = round_trip.max(FETCH_RATE_SPAN_MIN);
        let elapsed = now.since(self.from);
        if elapsed >= span {
            // What comes now came in the time before it.
            self.note(self.bytes + bytes as u64, elapsed);
            (self.from, self.bytes) = (now, 0);
        } else {
            self.bytes += bytes as u64;
            self.note(self.bytes, span);
        }
        if now.since(self.since) >= memory {
            (self.before, self.best, self.since) = (self.best, 0, now);
        }
    }

    #[inline]
    fn note(&mut self, bytes: u64, time: Duration) {
        let rate = bytes.saturating_mul(1_000_000_000) / (time.as_nanos() as u64).max(1);
        self.best = self.best.max(rate);
    }

    /// Bytes that are under way at that rate.
    fn holds(&self, round_trip: Duration) -> u64 {
        let rate = self.best.max(self.before);
        (u128::from(rate) * round_trip.as_nanos() / 1_000_000_000) as u64
    }
}

/// Of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    rate: Rate,
    /// The span of time in which something was begun or came last; none: nothing is under way.
    heard: Option<u64>,
}

/// Of all peers.
#[derive(Debug, Default)]
pub(crate) struct Fetching {
    rate: Rate,
    span: u64,
    since: Time,
    /// Longest that a round trip takes, of the peers that have sent something in the span.
    longest: Duration,
    heard: usize,
    before: usize,
}

impl Fetching {
    /// A long fetch of a peer begins.
    pub(crate) fn begins(&mut self, part: &mut Part) {
        self.count(part);
    }

    /// A packet came from a peer of which long fetches are under way. Its round trips take at least
    /// so long, and so long of late.
    pub(crate) fn came(
        &mut self,
        now: Time,
        bytes: usize,
        (round_trip, of_late): (Duration, Duration),
        part: &mut Part,
    ) {
        self.longest = self.longest.max(of_late);
        let span = self.longest.saturating_mul(FETCH_SILENT_TIMES).clamp(FETCH_SILENT_MIN, FETCH_SILENT_MAX);
        if now.since(self.since) >= span {
            (self.before, self.heard, self.since) = (self.heard, 0, now);
            self.longest = of_late;
            self.span += 1;
        }
        if part.heard != Some(self.span) {
            self.count(part);
        }
        self.rate.came(now, bytes, round_trip, FETCH_RATE_MEMORY);
        let memory = round_trip.max(FETCH_RATE_SPAN_MIN) * FETCH_OWN_SPANS;
        part.rate.came(now, bytes, round_trip, memory);
    }

    /// The last one of a peer has ended.
    pub(crate) fn ends(&mut self, part: &mut Part) {
        match part.heard.take() {
            Some(span) if span == self.span => self.heard -= 1,
            Some(span) if span + 1 == self.span => self.before -= 1,
            _ => {}
        }
    }

    fn count(&mut self, part: &mut Part) {
        self.ends(part);
        part.heard = Some(self.span);
        self.heard += 1;
    }

    /// Bytes that a peer may have been asked for and not have sent, with packets of that size.
    pub(crate) fn share(&self, part: &Part, round_trip: Duration, packet_bytes: usize) -> u64 {
        let peers = (self.heard + self.before).max(1) as u64;
        let initial = WINDOW_INITIAL_BYTES.max(WINDOW_INITIAL_PACKETS * packet_bytes) as u64;
        let all = initial.max(self.rate.holds(round_trip) * FETCH_TIMES);
        let all = if peers == 1 { all * FETCH_ALONE_TIMES } else { all };
        // One whose way is slow, or that is silent, needs less; the others may use what it leaves.
        let own = part.rate.holds(round_trip) * FETCH_OWN_PERCENT / 100;
        (all / peers).max(own).max(FETCH_PART_MIN)
    }

    /// Bytes of a request, of such a share.
    pub(crate) fn request(share: u64) -> u64 {
        (share / FETCH_PARTS).clamp(FETCH_PART_MIN, FETCH_PART_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_micros(200);
    const PACKET: usize = 1_472;

    /// Packets of peers come, each every so many microseconds, for so long.
    fn come(fetching: &mut Fetching, parts: &mut [(Part, u64)], from_us: u64, until_us: u64) {
        for at in from_us..until_us {
            for (part, _) in parts.iter_mut().filter(|(_, every)| *every > 0 && at % *every == 0) {
                fetching.came(Time::from_nanos(at * 1_000), PACKET, (ROUND_TRIP, ROUND_TRIP), part);
            }
        }
    }

    fn begun(fetching: &mut Fetching, every: &[u64]) -> Vec<(Part, u64)> {
        let mut parts: Vec<_> = every.iter().map(|every| (Part::default(), *every)).collect();
        parts.iter_mut().for_each(|(part, _)| fetching.begins(part));
        parts
    }

    #[test]
    fn the_only_peer_has_more_than_its_answers_can_need_and_many_share_a_window() {
        let mut fetching = Fetching::default();
        let mut parts = begun(&mut fetching, &[0]);
        let alone = fetching.share(&parts[0].0, ROUND_TRIP, PACKET);
        assert_eq!(alone, 2 * WINDOW_INITIAL_BYTES as u64, "the window of its answers, which doubles");
        assert_eq!(fetching.share(&parts[0].0, ROUND_TRIP, 65_000), 2 * 16 * 65_000);
        parts.extend(begun(&mut fetching, &[0; 15]));
        for (part, _) in &parts {
            assert_eq!(fetching.share(part, ROUND_TRIP, PACKET), WINDOW_INITIAL_BYTES as u64 / 16);
        }
        parts.iter_mut().for_each(|(part, _)| fetching.ends(part));
        assert_eq!((fetching.heard, fetching.before), (0, 0));
        parts.iter_mut().for_each(|(part, _)| fetching.ends(part));
        assert_eq!((fetching.heard, fetching.before), (0, 0), "it ends once");
    }

    #[test]
    fn what_may_be_asked_for_follows_what_comes() {
        let mut fetching = Fetching::default();
        let mut parts = begun(&mut fetching, &[10, 10]);
        let long = Duration::from_millis(10);
        come(&mut fetching, &mut parts, 1, 100_000);
        // 2 x 147 MB/s, of which 10 ms hold 2.9 MB.
        let share = fetching.share(&parts[0].0, long, PACKET);
        assert!((2_900_000..3_200_000).contains(&share), "{share}");
        // It is forgotten when less comes for long enough.
        parts.iter_mut().for_each(|(_, every)| *every = 100);
        come(&mut fetching, &mut parts, 100_000, 1_000_000);
        let share = fetching.share(&parts[0].0, long, PACKET);
        assert!((290_000..320_000).contains(&share), "{share}");
    }

    #[test]
    fn one_that_is_silent_takes_from_the_others_for_two_spans_at_most() {
        let mut fetching = Fetching::default();
        let mut parts = begun(&mut fetching, &[100, 100, 0, 0]);
        let before = fetching.share(&parts[0].0, ROUND_TRIP, PACKET);
        come(&mut fetching, &mut parts, 1, 2 * FETCH_SILENT_MIN.as_micros() as u64 + 400);
        let after = fetching.share(&parts[0].0, ROUND_TRIP, PACKET);
        assert_eq!((before, after), (WINDOW_INITIAL_BYTES as u64 / 4, WINDOW_INITIAL_BYTES as u64 / 2));
        // It counts again when something comes of it, and its end takes off what counts.
        parts[2].1 = 100;
        come(&mut fetching, &mut parts, 60_000, 60_200);
        assert_eq!(fetching.share(&parts[0].0, ROUND_TRIP, PACKET), WINDOW_INITIAL_BYTES as u64 / 3);
        parts.iter_mut().for_each(|(part, _)| fetching.ends(part));
        assert_eq!((fetching.heard, fetching.before), (0, 0));
    }

    #[test]
    fn a_fast_peer_may_use_what_slow_ones_leave() {
        let long = Duration::from_millis(10);
        let mut fetching = Fetching::default();
        // One of 147 MB/s among 15 of 150 KB/s.
        let mut parts = begun(&mut fetching, &[[10].as_slice(), &[10_000; 15]].concat());
        come(&mut fetching, &mut parts, 1, 300_000);
        let fast = fetching.share(&parts[0].0, long, PACKET);
        assert!(fast >= 1_470_000, "what its way holds: {fast}");
    }

    #[test]
    fn parts_are_requests_ahead_of_answers_and_neither_tiny_nor_huge() {
        assert_eq!(Fetching::request(256 << 10), 64 << 10);
        assert_eq!(Fetching::request(5_000), FETCH_PART_MIN);
        assert_eq!(Fetching::request(u64::MAX), FETCH_PART_MAX);
    }
}
