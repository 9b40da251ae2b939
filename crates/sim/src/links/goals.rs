//! What can be said of a whole run: how well it used its link, how long packets waited, who got
//! how much.
//!
//! Invariant: a goal's bound is that of the project, never one made for what the engine does. What
//! the engine does not reach today is counted, and said in docs/network.md; what it does reach is
//! a checker, which fails the run.

use vmmc_nic::CongestionControl;
use vmmc_nic::limits as nic;

use super::fetches;
use super::link::LinkSpec;
use super::scenario::{FAIR_AFTER_NS, Scenario, Shape};
use super::sizes;
use super::tcp::SEGMENT_BYTES;
use super::world::{Sample, World};

/// Simulated time after which a link is to be in use, and its queue as it stays.
pub(super) const USED_AFTER_NS: u64 = 1_000_000_000;

/// One of them, and what a run made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// What is measured.
    pub name: &'static str,
    /// The value of the run.
    pub value: f64,
    /// The bound.
    pub bound: f64,
    /// Whether the value is to be at least the bound, or at most.
    pub at_least: bool,
    /// Whether a run fails that misses it.
    pub required: bool,
}

impl Goal {
    /// Whether the value is on the right side of the bound.
    pub fn is_met(&self) -> bool {
        if self.at_least { self.value >= self.bound } else { self.value <= self.bound }
    }

    /// How far the value is on the right side, in parts of the bound.
    pub(crate) fn margin(&self) -> f64 {
        let over = self.value / self.bound - 1.0;
        if self.at_least { over } else { -over }
    }

    fn least(name: &'static str, value: f64, bound: f64) -> Goal {
        Goal { name, value, bound, at_least: true, required: false }
    }

    fn most(name: &'static str, value: f64, bound: f64) -> Goal {
        Goal { name, value, bound, at_least: false, required: false }
    }
}

/// What the engine reaches in every run that anybody has made: there, a run that misses it fails.
const HELD: [(Shape, CongestionControl, &str); 12] = [
    (Shape::Alone, CongestionControl::Bbr, DELAY),
    (Shape::Pairs, CongestionControl::Bbr, USED),
    (Shape::Pairs, CongestionControl::Cubic, USED),
    (Shape::BesideTcp, CongestionControl::Bbr, USED),
    (Shape::BesideTcp, CongestionControl::Cubic, USED),
    (Shape::BesideTcp, CongestionControl::Cubic, SHARE),
    (Shape::Incast, CongestionControl::Bbr, SLOWEST),
    (Shape::Incast, CongestionControl::Cubic, SLOWEST),
    (Shape::Sizes, CongestionControl::Bbr, SIZE),
    (Shape::Sizes, CongestionControl::Cubic, SIZE),
    (Shape::Fetches, CongestionControl::Bbr, SLOWEST),
    (Shape::Fetches, CongestionControl::Cubic, SLOWEST),
];

/// Names of goals.
const USED: &str = "utilisation";
const DELAY: &str = "queueing delay, ms";
const FAIR: &str = "Jain's index";
const SHARE: &str = "share";
const TCP_SHARE: &str = "share of TCP";
const SLOWEST: &str = "slowest, of mean";
const LOST: &str = "lost, of 1,000";
const PING: &str = "ping p99, ms";
const SIZE: &str = "size found, ms";

/// Jain's index of fairness: 1 when all have the same, 1/n when one has everything.
///
/// ```
/// assert_eq!(vmmc_sim::jain(&[2.0, 2.0]), 1.0);
/// assert_eq!(vmmc_sim::jain(&[2.0, 0.0]), 0.5);
/// ```
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// The goals of a run that is over.
pub(crate) fn of(world: &World<'_>) -> Vec<Goal> {
    let scenario = &world.scenario;
    let mut goals = Vec::new();
    match scenario.shape {
        Shape::Incast => incast(world, &mut goals),
        Shape::Sizes => goals.push(size(world)),
        Shape::Fetches => {
            incast(world, &mut goals);
            fetches(world, &mut goals);
        }
        _ => {
            let used = used(world);
            goals.push(Goal::least(USED, used, used_at_least(scenario)));
        }
    }
    if scenario.shape == Shape::Alone && scenario.control == CongestionControl::Bbr {
        let wait_ns = world.links[0].wait_ns(950).unwrap_or(0);
        goals.push(Goal::most(DELAY, wait_ns as f64 / 1e6, delay_at_most_ms(scenario)));
    }
    let shares = shares(world);
    match scenario.shape {
        Shape::Pairs => goals.push(Goal::least(FAIR, jain(&shares), 0.95)),
        Shape::BesideTcp => {
            let all: f64 = shares.iter().sum();
            goals.push(Goal::least(SHARE, shares[0] / all, 1.0 / 3.0));
            goals.push(Goal::least(TCP_SHARE, shares[1] / all, 1.0 / 3.0));
        }
        _ => {}
    }
    for goal in &mut goals {
        goal.required = HELD.contains(&(scenario.shape, scenario.control, goal.name));
    }
    goals
}

fn used_at_least(scenario: &Scenario) -> f64 {
    let LinkSpec { loss_ppm, .. } = scenario.routes[0].there;
    match loss_ppm {
        0 => 0.9,
        1..=1_000 => 0.85,
        _ => 0.8,
    }
}

/// What BBR may have in the queue: what the path holds once more, and a quarter of it while it
/// probes; and the packets of some acknowledgements, which are always under way.
fn delay_at_most_ms(scenario: &Scenario) -> f64 {
    let packets = nic::BBR_AGGREGATES as u64 * u64::from(nic::ACK_EVERY_PACKETS);
    let packets_ns = scenario.routes[0].there.ns_of(packets * SEGMENT_BYTES);
    (1.25 * scenario.round_trip_ns() as f64 + packets_ns as f64) / 1e6
}

/// The part of the bottleneck that carried data, once it could.
fn used(world: &World<'_>) -> f64 {
    let (from, to) = span(world, USED_AFTER_NS);
    let bytes: u64 = moved(from, to).sum();
    bytes as f64 / world.scenario.capacity_bytes(from.at_ns, to.at_ns).max(1) as f64
}

/// Bytes of each stream and flow from when shares are to be fair.
fn shares(world: &World<'_>) -> Vec<f64> {
    let (from, to) = span(world, FAIR_AFTER_NS);
    moved(from, to).map(|bytes| bytes as f64).collect()
}

fn moved<'s>(from: &'s Sample, to: &'s Sample) -> impl Iterator<Item = u64> + 's {
    to.arrived_bytes.iter().zip(&from.arrived_bytes).map(|(to, from)| to - from)
}

/// The first sample from a moment on, and the last of all.
fn span<'w>(world: &'w World<'_>, from_ns: u64) -> (&'w Sample, &'w Sample) {
    let last = world.samples.last().expect("a run begins with a sample");
    (world.samples.iter().find(|sample| sample.at_ns >= from_ns).unwrap_or(last), last)
}

/// Who fetches from many asks for no more than its way holds: little finds the queue full, and a
/// ping does not wait for long.
fn fetches(world: &World<'_>, goals: &mut Vec<Goal>) {
    let counts = world.links[0].counts;
    let lost = counts.dropped as f64 * 1e3 / counts.packets.max(1) as f64;
    goals.push(Goal::most(LOST, lost, 10.0));
    goals.push(Goal::most(PING, world.ping_p99_ms(), fetches::ping_at_most_ms(&world.scenario)));
}

/// Longest time for which packets had not the size that the path takes.
fn size(world: &World<'_>) -> Goal {
    let longest_ns = world.nodes.iter().map(|node| node.expected.longest_ns).max().unwrap_or(0);
    Goal::most(SIZE, longest_ns as f64 / 1e6, sizes::found_within_ns(&world.scenario) as f64 / 1e6)
}

fn incast(world: &World<'_>, goals: &mut Vec<Goal>) {
    let took = |stream: &super::stream::Stream| {
        let ended_ns = stream.ended_ns.unwrap_or(world.now_ns);
        ended_ns.saturating_sub(stream.began_ns.unwrap_or(0)) as f64
    };
    let times: Vec<f64> = world.streams.iter().map(took).collect();
    let slowest = times.iter().copied().fold(0.0, f64::max);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let bytes: u64 = world.streams.iter().map(|stream| stream.arrived_bytes).sum();
    let began_ns = world.streams.iter().filter_map(|stream| stream.began_ns).min().unwrap_or(0);
    let ended_ns = world.streams.iter().filter_map(|stream| stream.ended_ns).max().unwrap_or(world.now_ns);
    let capacity = world.scenario.capacity_bytes(began_ns, ended_ns).max(1);
    goals.push(Goal::least(USED, bytes as f64 / capacity as f64, 0.9));
    goals.push(Goal::most(SLOWEST, slowest / mean.max(1.0), 1.5));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_fairness_is_jains() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        assert!((jain(&[2.0, 1.0]) - 0.9).abs() < 1e-12);
        assert_eq!(jain(&[0.0, 0.0]), 1.0);
    }

    #[test]
    fn bounds_have_two_sides() {
        assert!(Goal::least("x", 1.0, 1.0).is_met() && !Goal::least("x", 0.9, 1.0).is_met());
        assert!(Goal::most("x", 1.0, 1.0).is_met() && !Goal::most("x", 1.1, 1.0).is_met());
    }
}
