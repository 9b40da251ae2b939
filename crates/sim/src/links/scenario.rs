//! What a run over links is like: drawn from its seed.
//!
//! Invariant: a scenario depends on the options alone. Sizes are such that a run has some ten
//! thousand packets, whatever its rate.

use vmmc_nic::{Config, CongestionControl, Ecn};

use super::fetches;
use super::link::{LinkSpec, Marking};
use super::sizes::{self, HOST_BYTES};
use super::tcp::{SEGMENT_BYTES, TcpKind};
use crate::cluster::node_name;
use crate::rng::Rng;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Full packets that a run has on its bottleneck at most.
const PACKETS_MAX: u64 = 30_000;
/// Senders of an incast, and bytes of each.
pub(crate) const INCAST_SENDERS: usize = 16;
pub(crate) const INCAST_BYTES: u64 = 1 << 20;
/// Simulated time after which shares are to be fair.
pub(crate) const FAIR_AFTER_NS: u64 = 3 * SECOND;

/// What happens on the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// One stream on a link that may lose packets, and nothing else.
    Alone,
    /// One stream, with losses, jitter, late packets, a way back that is slower and longer, and
    /// routes that change.
    Rough,
    /// 2 to 16 streams between nodes of their own share a bottleneck.
    Pairs,
    /// One stream shares a bottleneck with a flow of TCP's kind.
    BesideTcp,
    /// 16 nodes send 1 MiB each to one node, all at the same time.
    Incast,
    /// One stream, on a path that swallows large packets: how large changes under way.
    Sizes,
    /// One node fetches 1 MiB from each of 2 to 64 nodes, all at the same time.
    Fetches,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 7] =
        [Shape::Alone, Shape::Rough, Shape::Pairs, Shape::BesideTcp, Shape::Incast, Shape::Sizes, Shape::Fetches];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Shape::Alone => "alone",
            Shape::Rough => "rough",
            Shape::Pairs => "pairs",
            Shape::BesideTcp => "beside-tcp",
            Shape::Incast => "incast",
            Shape::Sizes => "sizes",
            Shape::Fetches => "fetches",
        }
    }
}

/// From a moment on packets take these links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) from_ns: u64,
    pub(crate) there: LinkSpec,
    pub(crate) back: LinkSpec,
    /// Whoever sends a packet that is too large for it is told what it takes.
    pub(crate) tells: bool,
    /// Packets that may be cut up are, where they are too large for it.
    pub(crate) cuts_up: bool,
}

impl Route {
    /// Takes the packets of hosts as they are.
    pub(crate) const fn new(there: LinkSpec, back: LinkSpec) -> Route {
        Route { from_ns: 0, there, back, tells: false, cuts_up: true }
    }
}

/// A run, before it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) shape: Shape,
    pub(crate) control: CongestionControl,
    pub(crate) ecn: Ecn,
    pub(crate) sealed: bool,
    /// Streams, each from a node of its own; when each begins.
    pub(crate) starts_ns: Vec<u64>,
    /// Bytes of each stream; none: as many as there is time for.
    pub(crate) stream_bytes: Option<u64>,
    pub(crate) tcp: Option<TcpKind>,
    /// Bytes of a packet, headers included, that the interfaces of hosts take.
    pub(crate) host_bytes: u64,
    /// From when until when streams have nothing to send.
    pub(crate) pause_ns: Option<(u64, u64)>,
    /// The bottleneck of all, from the first route on.
    pub(crate) routes: Vec<Route>,
    pub(crate) ends_ns: u64,
}

impl Scenario {
    /// That of a seed; the control is drawn too unless it is given.
    pub(crate) fn draw(seed: u64, control: Option<CongestionControl>) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x11_4b5);
        let shapes = Shape::ALL.len() as u64;
        let shape = Shape::ALL[(seed % shapes) as usize];
        let drawn = CongestionControl::ALL[(seed / shapes % 2) as usize];
        let sealed = rng.chance(100);
        let mut scenario = match shape {
            Shape::Alone => alone(&mut rng),
            Shape::Rough => rough(&mut rng),
            Shape::Pairs => pairs(&mut rng),
            Shape::BesideTcp => beside_tcp(&mut rng),
            Shape::Incast => incast(&mut rng),
            Shape::Sizes => sizes::draw(&mut rng),
            Shape::Fetches => fetches::draw(&mut rng),
        };
        (scenario.control, scenario.sealed) = (control.unwrap_or(drawn), sealed);
        scenario.draw_marking(seed);
        scenario
    }

    /// Half of the runs have queues that mark, or a path that removes what asks for it; but for
    /// those beside TCP, whose model does not ask.
    fn draw_marking(&mut self, seed: u64) {
        // A generator of its own: all else is as it is without.
        let mut rng = Rng::new(seed ^ 0xec_4b5);
        self.ecn = rng.pick(&[Ecn::Classic, Ecn::Classic, Ecn::L4s, Ecn::Off]);
        let draw = rng.below(10);
        if self.shape == Shape::BesideTcp {
            return;
        }
        for Route { there, back, .. } in &mut self.routes {
            let tenths = if self.ecn == Ecn::L4s { 2 } else { 5 };
            let beyond = (there.queue_bytes * tenths / 10).max(10 * SEGMENT_BYTES);
            there.marking = match draw {
                0..4 => Marking::Beyond(beyond),
                4 => Marking::Strips,
                _ => Marking::Passes,
            };
            back.marking = if draw == 4 { Marking::Passes } else { there.marking };
        }
    }

    /// Nodes: those with one end of a stream, those with the other, and one that is asked beside.
    pub(crate) fn nodes(&self) -> usize {
        let streams = self.starts_ns.len();
        let receivers = if self.stream_bytes.is_some() { 1 } else { streams };
        streams + receivers + usize::from(self.shape == Shape::Fetches)
    }

    /// Whether a node sends over the bottleneck, and not over the way back.
    pub(crate) fn sends_there(&self, node: usize) -> bool {
        let streams = self.starts_ns.len();
        node < streams || self.shape == Shape::Fetches && node > streams
    }

    /// The round trip of the first route without any queue, ns.
    pub(crate) fn round_trip_ns(&self) -> u64 {
        self.routes[0].there.delay_ns + self.routes[0].back.delay_ns
    }

    /// Bytes that the bottleneck can carry between two moments.
    pub(crate) fn capacity_bytes(&self, from_ns: u64, to_ns: u64) -> u64 {
        let ends = self.routes.iter().skip(1).map(|route| route.from_ns).chain([u64::MAX]);
        let spans = self.routes.iter().zip(ends).map(|(route, end_ns)| {
            let ns = end_ns.min(to_ns).saturating_sub(route.from_ns.max(from_ns));
            (u128::from(ns) * u128::from(route.there.bits_per_s) / 8_000_000_000) as u64
        });
        spans.sum()
    }

    /// When a peer that owes an answer is given up, ns.
    pub(crate) fn peer_timeout_ns(&self) -> u64 {
        Config::new(node_name(0)).peer_timeout.as_nanos() as u64
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        let Route { there, back, .. } = self.routes[0];
        let ms = |ns: u64| ns as f64 / 1e6;
        let mut text = format!(
            "{}, {}: {} stream(s) on {} Mb/s, {:.1} ms round trip, {} KB of queue",
            self.shape.name(),
            self.control,
            self.starts_ns.len(),
            there.bits_per_s / 1_000_000,
            ms(there.delay_ns + back.delay_ns),
            there.queue_bytes / 1_000,
        );
        if let Some(tcp) = self.tcp {
            text += &format!(", beside {}", tcp.name());
        }
        match there.marking {
            Marking::Passes => {}
            Marking::Beyond(bytes) => text += &format!(", marks ({}) beyond {} KB", self.ecn, bytes / 1_000),
            Marking::Strips => text += &format!(", removes marks ({})", self.ecn),
        }
        if there.loss_ppm > 0 {
            text += &format!(", {} % lost", there.loss_ppm as f64 / 1e4);
        }
        if there.late_ppm > 0 {
            text += &format!(", {} % late by up to {:.1} ms", there.late_ppm as f64 / 1e4, ms(there.late_ns));
        }
        if there.jitter_ns > 0 {
            text += &format!(", {:.1} ms jitter", ms(there.jitter_ns));
        }
        if back.bits_per_s != there.bits_per_s {
            text += &format!(", back {} Mb/s", back.bits_per_s as f64 / 1e6);
        }
        if self.shape == Shape::Sizes {
            text += &sizes::describe(self);
        } else if self.routes.len() > 1 {
            text += &format!(", {} changes of route", self.routes.len() - 1);
        }
        text
    }
}

/// A bottleneck with a queue of so many tenths of what the path holds, at least 30 packets.
pub(super) fn link(bits_per_s: u64, round_trip_ns: u64, queue_tenths: u64) -> LinkSpec {
    let holds = bits_per_s / 8 * (round_trip_ns / 1_000) / 1_000_000;
    LinkSpec::plain(bits_per_s, (holds * queue_tenths / 10).max(30 * SEGMENT_BYTES), round_trip_ns / 2)
}

pub(super) fn symmetric(there: LinkSpec) -> Route {
    Route::new(there, LinkSpec { loss_ppm: 0, late_ppm: 0, ..there })
}

pub(super) fn scenario(shape: Shape, starts_ns: Vec<u64>, routes: Vec<Route>, longest_ns: u64) -> Scenario {
    let fastest = routes.iter().map(|route| route.there.bits_per_s).max().unwrap_or(1);
    let packets_ns = PACKETS_MAX * SEGMENT_BYTES * 8 * 1_000 / (fastest / 1_000_000);
    Scenario {
        shape,
        control: CongestionControl::default(),
        ecn: Ecn::default(),
        sealed: false,
        starts_ns,
        stream_bytes: None,
        tcp: None,
        host_bytes: HOST_BYTES,
        pause_ns: None,
        routes,
        ends_ns: longest_ns.min(packets_ns),
    }
}

fn alone(rng: &mut Rng) -> Scenario {
    let bits_per_s = rng.pick(&[20, 50, 100, 200]) * 1_000_000;
    let round_trip_ns = rng.between(1, 40) * MS;
    let loss_ppm = rng.pick(&[0, 0, 100, 1_000, 10_000]);
    let there = LinkSpec { loss_ppm, ..link(bits_per_s, round_trip_ns, rng.pick(&[5, 10, 20])) };
    scenario(Shape::Alone, vec![0], vec![symmetric(there)], 8 * SECOND)
}

fn rough(rng: &mut Rng) -> Scenario {
    let bits_per_s = rng.pick(&[20, 50, 100]) * 1_000_000;
    let round_trip_ns = rng.between(2, 40) * MS;
    let mut there = link(bits_per_s, round_trip_ns, rng.pick(&[5, 10, 20]));
    there.loss_ppm = rng.pick(&[0, 100, 1_000, 10_000]);
    (there.late_ppm, there.late_ns) = (rng.pick(&[0, 10_000, 30_000]), round_trip_ns / 4);
    there.jitter_ns = rng.pick(&[0, round_trip_ns / 20, round_trip_ns / 8]);
    let mut routes = vec![symmetric(there)];
    if rng.chance(500) {
        let back = &mut routes[0].back;
        back.bits_per_s = bits_per_s / rng.pick(&[10, 20]);
        back.delay_ns = rng.between(back.delay_ns / 2, 2 * back.delay_ns);
    }
    let mut drawn = scenario(Shape::Rough, vec![0], routes, 6 * SECOND);
    for change in 1..=rng.below(4) {
        let mut next = drawn.routes[0];
        let (tenths, of_rate) = (rng.between(5, 20), rng.pick(&[5, 10, 10]));
        for link in [&mut next.there, &mut next.back] {
            link.delay_ns = link.delay_ns * tenths / 10;
            link.bits_per_s = link.bits_per_s * of_rate / 10;
        }
        next.from_ns = drawn.ends_ns * change / 5 + rng.below(drawn.ends_ns / 10);
        drawn.routes.push(next);
    }
    drawn
}

fn pairs(rng: &mut Rng) -> Scenario {
    let count = rng.between(2, 16);
    let bits_per_s = rng.pick(&[50, 80]) * 1_000_000;
    let there = link(bits_per_s, rng.between(2, 40) * MS, rng.pick(&[10, 20]));
    let starts_ns = (0..count).map(|_| rng.below(100 * MS)).collect();
    scenario(Shape::Pairs, starts_ns, vec![symmetric(there)], 6 * SECOND)
}

fn beside_tcp(rng: &mut Rng) -> Scenario {
    let bits_per_s = rng.pick(&[20, 40]) * 1_000_000;
    let there = link(bits_per_s, rng.between(10, 40) * MS, rng.pick(&[10, 20]));
    let starts_ns = vec![rng.below(100 * MS)];
    let mut drawn = scenario(Shape::BesideTcp, starts_ns, vec![symmetric(there)], 12 * SECOND);
    drawn.tcp = Some(rng.pick(&[TcpKind::Reno, TcpKind::Cubic]));
    drawn
}

fn incast(rng: &mut Rng) -> Scenario {
    let there = LinkSpec {
        queue_bytes: rng.pick(&[250_000, 500_000, 1_000_000]),
        ..link(1_000_000_000, rng.between(100, 1_000) * 1_000, 10)
    };
    let starts_ns = vec![0; INCAST_SENDERS];
    let mut drawn = scenario(Shape::Incast, starts_ns, vec![symmetric(there)], 20 * SECOND);
    drawn.ends_ns = 20 * SECOND;
    drawn.stream_bytes = Some(INCAST_BYTES);
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shapes_and_controls_come_up_and_can_be_chosen() {
        for shape in Shape::ALL {
            for control in CongestionControl::ALL {
                assert!((0..2 * Shape::ALL.len() as u64).any(|seed| {
                    let drawn = Scenario::draw(seed, None);
                    (drawn.shape, drawn.control) == (shape, control)
                }));
                assert_eq!(Scenario::draw(3, Some(control)).control, control);
            }
        }
    }

    #[test]
    fn all_ways_to_use_marks_and_to_treat_them_come_up() {
        let drawn: Vec<_> = (0..500).map(|seed| Scenario::draw(seed, None)).collect();
        for ecn in Ecn::ALL {
            let marked = |drawn: &&Scenario| drawn.ecn == ecn && drawn.routes[0].there.marking != Marking::Passes;
            let count = drawn.iter().filter(marked).count();
            assert!((20..150).contains(&count), "{ecn}: {count}");
        }
        assert!(drawn.iter().any(|drawn| drawn.routes[0].there.marking == Marking::Strips));
    }

    #[test]
    fn runs_are_long_enough_for_what_is_measured_and_not_longer() {
        for seed in 0..500 {
            let drawn = Scenario::draw(seed, None);
            assert!(drawn.routes.is_sorted_by_key(|route| route.from_ns), "{seed}");
            assert!(drawn.shape != Shape::Pairs || drawn.ends_ns > FAIR_AFTER_NS + SECOND, "{seed}");
            let rests_ns = drawn.pause_ns.map_or(0, |(from_ns, until_ns)| until_ns - from_ns);
            let packets = drawn.capacity_bytes(0, drawn.ends_ns - rests_ns) / SEGMENT_BYTES;
            // Those of sizes go on until each has been found.
            let most = if drawn.shape == Shape::Sizes { 5 * PACKETS_MAX } else { PACKETS_MAX + 1 };
            let ends = drawn.stream_bytes.is_some();
            assert!(ends || packets <= most, "{seed}: {packets}");
        }
    }

    #[test]
    fn capacity_follows_the_routes() {
        let mut drawn = Scenario::draw(0, None);
        drawn.routes = vec![symmetric(LinkSpec::plain(8_000_000, 1, 1)); 2];
        drawn.routes[1].from_ns = SECOND;
        drawn.routes[1].there.bits_per_s = 80_000_000;
        assert_eq!(drawn.capacity_bytes(SECOND / 2, 2 * SECOND), 500_000 + 10_000_000);
    }
}
