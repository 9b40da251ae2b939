//! A flow of TCP's kind that competes for a link: Reno, or CUBIC [RFC 9438] with HyStart's delay
//! test. It never runs out of data.
//!
//! A model, of what matters to others in the same queue: a window that grows by acknowledgements,
//! is cut by losses, and starts over after a time-out. Packets have numbers of their own, as in
//! QUIC, so what is lost is not sent again but replaced by more data; acknowledgements say exactly
//! what has arrived, as selective ones of a long enough list do, and one that is lost is made good
//! by the next. Only sums, products and quotients of floating-point numbers are used, which are the
//! same on every machine.
//!
//! Invariant: nothing is sent while what is under way fills the window, which is at least two
//! packets.

use std::collections::VecDeque;

/// Which TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpKind {
    /// One packet more each round trip, half the window after a loss.
    Reno,
    /// Grows with the cube of the time since the last loss; keeps 0.7 of the window.
    Cubic,
}

impl TcpKind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            TcpKind::Reno => "reno",
            TcpKind::Cubic => "cubic",
        }
    }
}

/// Bytes of a full packet on the wire, and of an acknowledgement.
pub(crate) const SEGMENT_BYTES: u64 = 1_500;
pub(crate) const ACK_BYTES: u64 = 64;
/// Bytes of data in a full packet.
pub(crate) const PAYLOAD_BYTES: u64 = 1_448;
/// Window at the start, and at least [RFC 6928].
const WINDOW_INITIAL: f64 = 10.0;
const WINDOW_MIN: f64 = 2.0;
/// Later packets that have arrived before one counts as lost [RFC 5681].
const REORDER_PACKETS: u64 = 3;
/// Shortest retransmission time-out: Linux's.
const RTO_MIN_NS: u64 = 200_000_000;
/// Round trips longer by an eighth, within these bounds, end slow start [RFC 9406].
const HYSTART_NS: (u64, u64) = (4_000_000, 16_000_000);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    UnderWay,
    Over,
}

/// One flow: its sender, and what its receiver has seen.
#[derive(Debug)]
pub(crate) struct TcpFlow {
    kind: TcpKind,
    window: f64,
    threshold: f64,
    /// Sent and not yet decided, from `first` on: when, and whether it still counts.
    sent: VecDeque<(u64, Fate)>,
    first: u64,
    under_way: u64,
    /// Packets below this number have arrived or are lost.
    decided: u64,
    largest: Option<u64>,
    /// Losses up to this number belong to a cut already made.
    cut_until: u64,
    smoothed_ns: u64,
    shortest_ns: u64,
    /// When something arrived last, or was sent first.
    news_ns: u64,
    backoff: u32,
    /// CUBIC: window that it grows back to, and the one before the last cut; when growth began, how
    /// long it takes until it is back, s, and the window that Reno would have.
    top: f64,
    prior: f64,
    epoch_ns: Option<u64>,
    reached_s: f64,
    additive: f64,
    /// Numbers in the order of their arrival, at the receiver, and how many the sender knows of.
    arrived: Vec<u64>,
    told: usize,
}

impl TcpFlow {
    pub(crate) fn new(kind: TcpKind) -> TcpFlow {
        TcpFlow {
            kind,
            window: WINDOW_INITIAL,
            threshold: f64::MAX,
            sent: VecDeque::new(),
            first: 0,
            under_way: 0,
            decided: 0,
            largest: None,
            cut_until: 0,
            smoothed_ns: 0,
            shortest_ns: u64::MAX,
            news_ns: 0,
            backoff: 0,
            top: 0.0,
            prior: 0.0,
            epoch_ns: None,
            reached_s: 0.0,
            additive: 0.0,
            arrived: Vec::new(),
            told: 0,
        }
    }

    /// Bytes that have arrived.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        self.arrived.len() as u64 * PAYLOAD_BYTES
    }

    /// The next packet to send, if the window has room.
    pub(crate) fn send(&mut self, now_ns: u64) -> Option<u64> {
        if self.under_way as f64 >= self.window {
            return None;
        }
        if self.under_way == 0 {
            self.news_ns = now_ns;
        }
        self.under_way += 1;
        self.sent.push_back((now_ns, Fate::UnderWay));
        Some(self.first + self.sent.len() as u64 - 1)
    }

    /// A packet has arrived at the receiver; gives what its acknowledgement says.
    pub(crate) fn receive(&mut self, number: u64) -> usize {
        self.arrived.push(number);
        self.arrived.len()
    }

    /// An acknowledgement has arrived at the sender.
    pub(crate) fn acknowledge(&mut self, now_ns: u64, told: usize) {
        for at in self.told..told {
            self.arrive(now_ns, self.arrived[at]);
        }
        self.told = self.told.max(told);
        self.find_losses();
        while self.sent.front().is_some_and(|(_, fate)| *fate == Fate::Over) {
            self.sent.pop_front();
            self.first += 1;
        }
    }

    /// When it has waited for news for too long.
    pub(crate) fn timeout_ns(&self) -> Option<u64> {
        let rto_ns = (2 * self.smoothed_ns).max(RTO_MIN_NS) << self.backoff.min(6);
        (self.under_way > 0).then_some(self.news_ns + rto_ns)
    }

    /// Nothing has come for a long time: what was under way is lost.
    pub(crate) fn time_out(&mut self, now_ns: u64) {
        if self.timeout_ns().is_none_or(|at| now_ns < at) {
            return;
        }
        self.first += self.sent.len() as u64;
        self.sent.clear();
        (self.decided, self.cut_until) = (self.first, self.first);
        self.under_way = 0;
        self.threshold = (self.window / 2.0).max(WINDOW_MIN);
        self.window = WINDOW_MIN;
        self.epoch_ns = None;
        self.backoff += 1;
        self.news_ns = now_ns;
    }

    fn arrive(&mut self, now_ns: u64, number: u64) {
        let Some(at) = number.checked_sub(self.first) else { return };
        let Some((sent_ns, fate)) = self.sent.get_mut(at as usize) else { return };
        if *fate == Fate::Over {
            return;
        }
        *fate = Fate::Over;
        let trip_ns = now_ns - *sent_ns;
        self.under_way -= 1;
        (self.news_ns, self.backoff) = (now_ns, 0);
        self.largest = self.largest.max(Some(number));
        self.shortest_ns = self.shortest_ns.min(trip_ns);
        self.smoothed_ns = if self.smoothed_ns == 0 { trip_ns } else { (7 * self.smoothed_ns + trip_ns) / 8 };
        self.grow(now_ns, trip_ns);
    }

    fn grow(&mut self, now_ns: u64, trip_ns: u64) {
        if self.window < self.threshold {
            self.window += 1.0;
            let longer = (self.shortest_ns / 8).clamp(HYSTART_NS.0, HYSTART_NS.1);
            if self.kind == TcpKind::Cubic && trip_ns > self.shortest_ns + longer {
                self.threshold = self.window;
            }
            return;
        }
        match self.kind {
            TcpKind::Reno => self.window += 1.0 / self.window,
            TcpKind::Cubic => self.grow_cubic(now_ns),
        }
    }

    fn grow_cubic(&mut self, now_ns: u64) {
        let began_ns = *self.epoch_ns.get_or_insert_with(|| {
            self.top = self.top.max(self.window);
            self.reached_s = cube_root((self.top - self.window) / 0.4);
            self.additive = self.window;
            now_ns
        });
        // No slower than Reno would grow [RFC 9438 section 4.3].
        let step = if self.additive >= self.prior { 1.0 } else { 0.53 };
        self.additive += step / self.window;
        let from_s = (now_ns - began_ns + self.smoothed_ns) as f64 / 1e9 - self.reached_s;
        let target = (self.top + 0.4 * from_s * from_s * from_s).min(1.5 * self.window);
        self.window = (self.window + (target - self.window).max(0.0) / self.window).max(self.additive);
    }

    fn find_losses(&mut self) {
        let Some(largest) = self.largest else { return };
        while self.decided + REORDER_PACKETS <= largest {
            let number = self.decided;
            self.decided += 1;
            let Some(at) = number.checked_sub(self.first) else { continue };
            let Some((_, fate)) = self.sent.get_mut(at as usize).filter(|(_, fate)| *fate == Fate::UnderWay) else {
                continue;
            };
            *fate = Fate::Over;
            self.under_way -= 1;
            if number >= self.cut_until {
                self.cut_until = self.first + self.sent.len() as u64;
                self.cut();
            }
        }
    }

    fn cut(&mut self) {
        let left = match self.kind {
            TcpKind::Reno => 0.5,
            TcpKind::Cubic => 0.7,
        };
        // Who has less than before makes room for others [RFC 9438 section 4.7].
        let shrinks = self.window < self.top;
        self.top = if shrinks { self.window * (1.0 + left) / 2.0 } else { self.window };
        self.prior = self.window;
        self.window = (self.window * left).max(WINDOW_MIN);
        self.threshold = self.window;
        self.epoch_ns = None;
    }
}

/// By Newton's method, for what is not negative.
fn cube_root(of: f64) -> f64 {
    if of <= 0.0 {
        return 0.0;
    }
    let mut root = of.max(1.0);
    for _ in 0..60 {
        root -= (root * root * root - of) / (3.0 * root * root);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::link::{Link, LinkSpec};
    use crate::rng::Rng;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    /// Flows on one link of 50 Mb/s with 10 ms each way, for 20 s: the part of it that each used,
    /// and the share of packets that were dropped.
    fn together(kinds: &[TcpKind], queue_bytes: u64, loss_ppm: u64) -> (Vec<f64>, f64) {
        let spec = LinkSpec { loss_ppm, ..LinkSpec::plain(50_000_000, queue_bytes, 10_000_000) };
        let mut link = Link::new(spec, Rng::new(3));
        let mut flows: Vec<TcpFlow> = kinds.iter().map(|kind| TcpFlow::new(*kind)).collect();
        let mut due = BinaryHeap::new();
        let mut now_ns = 0;
        while now_ns < 20_000_000_000 {
            for (index, flow) in flows.iter_mut().enumerate() {
                flow.time_out(now_ns);
                while let Some(number) = flow.send(now_ns) {
                    if let Some(at_ns) = link.take(now_ns, SEGMENT_BYTES) {
                        due.push(Reverse((at_ns + 10_000_000, index, number)));
                    }
                }
            }
            let next = due.peek().map(|Reverse((at_ns, ..))| *at_ns);
            now_ns = flows.iter().filter_map(TcpFlow::timeout_ns).chain(next).min().expect("they never rest");
            while due.peek().is_some_and(|Reverse((at_ns, ..))| *at_ns <= now_ns) {
                let Some(Reverse((_, index, number))) = due.pop() else { break };
                let told = flows[index].receive(number);
                flows[index].acknowledge(now_ns, told);
            }
        }
        let used = flows.iter().map(|flow| flow.arrived_bytes() as f64 * 8.0 / 20.0 / 50e6).collect();
        (used, link.counts.dropped as f64 / link.counts.packets as f64)
    }

    fn alone(kind: TcpKind, queue_bytes: u64, loss_ppm: u64) -> (f64, f64) {
        let (used, dropped) = together(&[kind], queue_bytes, loss_ppm);
        (used[0], dropped)
    }

    #[test]
    fn flows_share_a_link() {
        let kinds = [TcpKind::Cubic, TcpKind::Reno];
        for (one, other) in kinds.into_iter().flat_map(|one| kinds.map(|other| (one, other))) {
            for queue_bytes in [60_000, 125_000, 250_000] {
                let (used, _) = together(&[one, other], queue_bytes, 0);
                println!("{one:?} {other:?} {queue_bytes} {used:?}");
                assert!(used[0] > 0.25 && used[1] > 0.25, "{one:?} {other:?} {queue_bytes}: {used:?}");
            }
        }
    }

    #[test]
    fn alone_it_fills_a_link_with_a_queue_and_drops_little() {
        for kind in [TcpKind::Reno, TcpKind::Cubic] {
            let (used, dropped) = alone(kind, 150_000, 0);
            assert!(used > 0.88 && dropped < 0.01, "{kind:?} {used} {dropped}");
        }
    }

    #[test]
    fn losses_slow_it_down() {
        for kind in [TcpKind::Reno, TcpKind::Cubic] {
            let (used, _) = alone(kind, 150_000, 10_000);
            assert!(used > 0.05 && used < 0.5, "{kind:?} {used}");
        }
    }

    #[test]
    fn it_goes_on_after_a_time_out() {
        let mut flow = TcpFlow::new(TcpKind::Reno);
        assert_eq!((0..20).filter_map(|_| flow.send(0)).count(), 10);
        flow.time_out(1);
        assert_eq!(flow.send(1), None, "it is not due");
        let due = flow.timeout_ns().expect("something is under way");
        flow.time_out(due);
        assert_eq!(flow.send(due), Some(10));
        let told = flow.receive(10);
        flow.acknowledge(due + 1_000, told);
        assert!(flow.send(due + 1_000).is_some());
        // One of those given up arrives after all.
        let told = flow.receive(3);
        flow.acknowledge(due + 2_000, told);
    }

    #[test]
    fn cube_roots_are_those() {
        for root in [0.0, 0.1, 1.0, 2.5, 40.0] {
            assert!((cube_root(root * root * root) - root).abs() < 1e-9);
        }
    }
}
