//! One directed link with a rate and a bounded queue.
//!
//! Invariants: packets leave in the order in which they came, one after the other at the rate; no
//! more wait than the queue has room for, and what finds no room is dropped (drop-tail), as is what
//! is larger than the link takes. Jitter keeps that order, only a packet that is picked to be late
//! is overtaken.

use vmmc_nic::Codepoint;

use crate::rng::Rng;

/// What the queue of a link does to packets that ask for marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marking {
    /// Nothing.
    Passes,
    /// It marks what comes while more bytes wait.
    Beyond(u64),
    /// It clears what they ask with.
    Strips,
}

/// What a link is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkSpec {
    pub(crate) bits_per_s: u64,
    /// Bytes that may wait, those on the wire included.
    pub(crate) queue_bytes: u64,
    pub(crate) delay_ns: u64,
    /// Each packet takes up to so much longer.
    pub(crate) jitter_ns: u64,
    /// Packets lost at random, of a million.
    pub(crate) loss_ppm: u64,
    /// Packets that are late, of a million, and by how much at most.
    pub(crate) late_ppm: u64,
    pub(crate) late_ns: u64,
    pub(crate) marking: Marking,
    /// The largest packet, headers included; of one that is down none.
    pub(crate) takes_bytes: u64,
}

impl LinkSpec {
    /// A link that does nothing to packets but take its time.
    pub(crate) const fn plain(bits_per_s: u64, queue_bytes: u64, delay_ns: u64) -> LinkSpec {
        let marking = Marking::Passes;
        let (jitter_ns, loss_ppm, late_ppm, late_ns, takes_bytes) = (0, 0, 0, 0, u64::MAX);
        LinkSpec { bits_per_s, queue_bytes, delay_ns, jitter_ns, loss_ppm, late_ppm, late_ns, marking, takes_bytes }
    }

    /// How long so many bytes take to leave.
    pub(crate) fn ns_of(&self, bytes: u64) -> u64 {
        bytes * 8_000_000_000 / self.bits_per_s
    }
}

/// What a link did to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCounts {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
    pub(crate) lost: u64,
    pub(crate) late: u64,
    pub(crate) marked: u64,
    /// Packets that were larger than it takes.
    pub(crate) too_large: u64,
}

/// A link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) spec: LinkSpec,
    pub(crate) counts: LinkCounts,
    rng: Rng,
    /// When the last packet taken has left.
    free_ns: u64,
    /// When the last packet arrives that is not late.
    last_ns: u64,
    /// Most bytes that waited.
    pub(crate) queued_max: u64,
    /// How long each packet waited, us, once that is asked for.
    waits_us: Option<Vec<u32>>,
}

impl Link {
    pub(crate) fn new(spec: LinkSpec, rng: Rng) -> Link {
        let counts = LinkCounts::default();
        Link { spec, counts, rng, free_ns: 0, last_ns: 0, queued_max: 0, waits_us: None }
    }

    /// Notes from now on how long packets wait.
    pub(crate) fn watch(&mut self) {
        self.waits_us = Some(Vec::new());
    }

    /// How long a packet waited that was not among the longest `per_mille` of those watched, ns.
    pub(crate) fn wait_ns(&self, per_mille: usize) -> Option<u64> {
        let mut waits = self.waits_us.clone().filter(|waits| !waits.is_empty())?;
        let at = (waits.len() - 1) * per_mille / 1000;
        Some(u64::from(*waits.select_nth_unstable(at).1) * 1_000)
    }

    /// Bytes that wait.
    pub(crate) fn queued_bytes(&self, now_ns: u64) -> u64 {
        let busy_ns = u128::from(self.free_ns.saturating_sub(now_ns));
        (busy_ns * u128::from(self.spec.bits_per_s) / 8_000_000_000) as u64
    }

    /// What a packet leaves with that comes with this.
    pub(crate) fn mark(&mut self, now_ns: u64, codepoint: Codepoint) -> Codepoint {
        match self.spec.marking {
            Marking::Strips => Codepoint::NotEct,
            Marking::Beyond(bytes) if codepoint != Codepoint::NotEct && self.queued_bytes(now_ns) > bytes => {
                self.counts.marked += 1;
                Codepoint::Ce
            }
            Marking::Beyond(_) | Marking::Passes => codepoint,
        }
    }

    /// Whether a packet is larger than it takes, and swallowed.
    pub(crate) fn swallows(&mut self, bytes: u64) -> bool {
        let too_large = bytes > self.spec.takes_bytes;
        self.counts.too_large += u64::from(too_large);
        too_large
    }

    /// Takes a packet; gives the time at which it arrives at the other end, if it does.
    pub(crate) fn take(&mut self, now_ns: u64, bytes: u64) -> Option<u64> {
        self.counts.packets += 1;
        let queued = self.queued_bytes(now_ns) + bytes;
        if queued > self.spec.queue_bytes {
            self.counts.dropped += 1;
            return None;
        }
        self.queued_max = self.queued_max.max(queued);
        let start_ns = self.free_ns.max(now_ns);
        if let Some(waits) = &mut self.waits_us {
            waits.push(((start_ns - now_ns) / 1_000) as u32);
        }
        self.free_ns = start_ns + self.spec.ns_of(bytes);
        self.counts.bytes += bytes;
        // A wire loses what has been sent.
        if self.happens(self.spec.loss_ppm) {
            self.counts.lost += 1;
            return None;
        }
        let at_ns = self.free_ns + self.spec.delay_ns + self.rng.below(self.spec.jitter_ns + 1);
        if self.happens(self.spec.late_ppm) {
            self.counts.late += 1;
            return Some(at_ns + self.rng.below(self.spec.late_ns + 1));
        }
        self.last_ns = self.last_ns.max(at_ns);
        Some(self.last_ns)
    }

    fn happens(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.rng.below(1_000_000) < ppm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: LinkSpec = LinkSpec::plain(8_000_000, 10_000, 1_000_000);

    fn link(spec: LinkSpec) -> Link {
        Link::new(spec, Rng::new(1))
    }

    #[test]
    fn packets_leave_one_after_the_other_at_the_rate() {
        let mut link = link(SPEC);
        // 1,000 bytes take a millisecond.
        let arrivals: Vec<_> = (0..3).map(|_| link.take(0, 1_000)).collect();
        assert_eq!(arrivals, [Some(2_000_000), Some(3_000_000), Some(4_000_000)]);
        assert_eq!(link.queued_bytes(1_000_000), 2_000);
        assert_eq!(link.take(10_000_000, 1_000), Some(12_000_000), "an idle link saves nothing up");
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_takes_none() {
        let mut link = link(SPEC);
        let taken = (0..30).filter(|_| link.take(0, 1_000).is_some()).count();
        assert_eq!((taken, link.counts.dropped, link.queued_max), (10, 20, 10_000));
        assert!(link.take(1_000_000, 1_000).is_some() && link.take(1_000_000, 1_000).is_none());
    }

    #[test]
    fn what_is_larger_than_it_takes_is_swallowed_and_counted() {
        let mut link = link(LinkSpec { takes_bytes: 1_500, ..SPEC });
        let swallowed = [1_499, 1_500, 1_501, 9_000].map(|bytes| link.swallows(bytes));
        assert_eq!((swallowed, link.counts.too_large), ([false, false, true, true], 2));
        assert!(!Link::new(SPEC, Rng::new(1)).swallows(u64::MAX));
    }

    #[test]
    fn a_queue_marks_what_asks_for_it_while_it_is_long() {
        let mut link = link(LinkSpec { marking: Marking::Beyond(2_000), ..SPEC });
        let came = |link: &mut Link, codepoint| {
            let left = link.mark(0, codepoint);
            link.take(0, 1_000);
            left
        };
        let left: Vec<_> = (0..4).map(|_| came(&mut link, Codepoint::Ect0)).collect();
        assert_eq!(left, [Codepoint::Ect0, Codepoint::Ect0, Codepoint::Ect0, Codepoint::Ce]);
        assert_eq!(came(&mut link, Codepoint::NotEct), Codepoint::NotEct);
        assert_eq!((link.mark(3_000_000, Codepoint::Ect1), link.counts.marked), (Codepoint::Ect1, 1));
        link.spec.marking = Marking::Strips;
        assert_eq!(link.mark(0, Codepoint::Ect1), Codepoint::NotEct);
    }

    #[test]
    fn jitter_keeps_the_order_and_late_packets_do_not() {
        let arrivals = |spec| {
            let mut link = link(LinkSpec { queue_bytes: u64::MAX, ..spec });
            (0..500).filter_map(|i| link.take(i * 100_000, 100)).collect::<Vec<_>>()
        };
        let jittery = LinkSpec { jitter_ns: 5_000_000, ..SPEC };
        let got = arrivals(jittery);
        assert!(got.is_sorted() && got.len() == 500);
        assert_ne!(got, arrivals(SPEC));
        let got = arrivals(LinkSpec { late_ppm: 50_000, late_ns: 5_000_000, ..SPEC });
        assert!(!got.is_sorted() && got.len() == 500);
    }

    #[test]
    fn losses_are_as_many_as_asked_for() {
        let mut link = link(LinkSpec { loss_ppm: 100_000, queue_bytes: u64::MAX, ..SPEC });
        let got = (0..10_000).filter(|i| link.take(i * 1_000_000, 1_000).is_some()).count();
        assert!((8_800..9_200).contains(&got), "{got}");
        assert_eq!(link.counts.lost, 10_000 - got as u64);
    }

    #[test]
    fn waits_are_those_of_the_packets_watched() {
        let mut link = link(SPEC);
        link.take(0, 5_000);
        assert_eq!(link.wait_ns(500), None);
        link.watch();
        for _ in 0..4 {
            link.take(0, 1_000);
        }
        assert_eq!((link.wait_ns(0), link.wait_ns(1000)), (Some(5_000_000), Some(8_000_000)));
    }
}
