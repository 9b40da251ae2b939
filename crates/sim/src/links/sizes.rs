//! Paths that swallow large packets: what they are like, what hosts hear of it, and what size of
//! packets must come of it [RFC 8899].
//!
//! Invariants: who has the right size for the path, or is looking for it no longer than the search
//! may take, is as it should be; the bound follows from what docs/network.md says of the search,
//! never from what the engine does.

use vmmc_nic::limits as nic;
use vmmc_nic::{MtuState, PathInfo, PeerInfo};

use super::scenario::{Route, Scenario, Shape, link, scenario, symmetric};
use super::world::World;
use crate::limits::{LINK_HEADERS_BYTES, LINK_STILL_NS_MAX};
use crate::rng::Rng;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// What interfaces of Ethernet take.
pub(crate) const HOST_BYTES: u64 = 1_500;
/// And those that take jumbo frames.
const JUMBO_BYTES: u64 = 9_000;
/// Packets of the smallest size that every path must carry.
const BASE_BYTES: u64 = nic::PACKET_BYTES_MIN as u64 + LINK_HEADERS_BYTES;
/// A smaller one takes at least what control chunks need.
const TINY_BYTES: u64 = 600;
/// Packets of the largest size for which a queue has room: one that has less is no black hole, but
/// looks like one.
const QUEUE_PACKETS: u64 = 12;

/// Draws a run.
pub(super) fn draw(rng: &mut Rng) -> Scenario {
    let host_bytes = rng.pick(&[HOST_BYTES, JUMBO_BYTES, JUMBO_BYTES]);
    let bits_per_s = rng.pick(&[20, 50]) * 1_000_000;
    let mut there = link(bits_per_s, rng.between(1, 10) * MS, rng.pick(&[10, 20]));
    there.queue_bytes = there.queue_bytes.max(QUEUE_PACKETS * host_bytes);
    there.loss_ppm = rng.pick(&[0, 0, 1_000]);
    let mut drawn = scenario(Shape::Sizes, vec![0], vec![symmetric(there)], u64::MAX);
    drawn.host_bytes = host_bytes;
    let first = drawn.routes[0];
    let next = |at_ns: u64, takes_bytes: u64, rng: &mut Rng| {
        let mut route = Route { from_ns: at_ns, tells: rng.chance(400), cuts_up: rng.chance(750), ..first };
        (route.there.takes_bytes, route.back.takes_bytes) = (takes_bytes, takes_bytes);
        route
    };
    // Wherever a path may be down.
    let settles_ns = found_within_ns(&drawn) + nic::MTU_PROBE_WAIT_MAX.as_nanos() as u64;
    let mut at_ns = 0;
    let begins = if rng.chance(500) { host_bytes } else { size(rng, host_bytes) };
    drawn.routes[0] = next(0, begins, rng);
    for _ in 0..rng.between(1, 2) {
        // Half of the changes come while the search may go on.
        at_ns += if rng.chance(500) { rng.between(50, 1_500) * MS } else { settles_ns };
        if rng.chance(250) {
            drawn.routes.push(next(at_ns, 0, rng));
            at_ns += rng.between(50, 600) * MS;
        }
        let takes_bytes = size(rng, host_bytes);
        drawn.routes.push(next(at_ns, takes_bytes, rng));
    }
    at_ns += settles_ns;
    match rng.below(8) {
        0 => {
            // Less than every path must carry: for good, or until there is another one.
            let small = next(at_ns, rng.between(TINY_BYTES, BASE_BYTES - 1), rng);
            drawn.routes.push(small);
            at_ns += settles_ns;
            if small.ends_sessions() {
                at_ns += 3 * lost_within_ns(&drawn);
            } else if rng.chance(500) {
                let takes_bytes = size(rng, host_bytes);
                drawn.routes.push(next(at_ns, takes_bytes, rng));
                at_ns += nic::MTU_ERROR_RETRY.as_nanos() as u64 + settles_ns;
            }
        }
        1 => {
            // More, which shows when the path is asked again.
            drawn.routes.push(next(at_ns, host_bytes, rng));
            let again_ns = nic::MTU_RAISE_AFTER.as_nanos() as u64 + 2 * settles_ns;
            drawn.pause_ns = Some((at_ns, at_ns + again_ns));
            at_ns += again_ns;
        }
        _ => {}
    }
    drawn.ends_ns = at_ns + SECOND;
    drawn
}

/// A size between the smallest that every path must carry and that of the hosts.
fn size(rng: &mut Rng, host_bytes: u64) -> u64 {
    let usual = [host_bytes, HOST_BYTES, 1_492, 1_400, 1_280, BASE_BYTES, rng.between(BASE_BYTES, host_bytes)];
    rng.pick(&usual)
}

/// In words.
pub(super) fn describe(scenario: &Scenario) -> String {
    let size = |route: &Route| {
        let is = match route.there.takes_bytes {
            0 => "nothing".to_owned(),
            bytes => format!("{bytes} bytes"),
        };
        let tells = if route.tells { ", and says so" } else { "" };
        let cuts_up = if route.cuts_up { "" } else { ", nor in fragments" };
        format!("{is} from {:.2} s on{tells}{cuts_up}", route.from_ns as f64 / 1e9)
    };
    let sizes: Vec<String> = scenario.routes.iter().map(size).collect();
    let pause = scenario.pause_ns.map_or(String::new(), |(from_ns, until_ns)| {
        format!("; nothing to send from {:.1} s to {:.1} s", from_ns as f64 / 1e9, until_ns as f64 / 1e9)
    });
    format!(", hosts of {} bytes, the path takes {}{pause}", scenario.host_bytes, sizes.join("; "))
}

impl Route {
    /// Whether anything gets through.
    pub(super) fn is_down(&self) -> bool {
        self.there.takes_bytes == 0
    }

    /// Whether it takes less than every path must carry, also if that may be cut up.
    pub(super) fn ends_sessions(&self) -> bool {
        !self.is_down() && self.there.takes_bytes < BASE_BYTES && !self.cuts_up
    }
}

/// How long an answer to a question of a size may be waited for: two retransmission timeouts, of
/// which each is twice the longest round trip, and what acknowledgements wait for company.
fn wait_ns(scenario: &Scenario) -> u64 {
    let there = scenario.routes[0].there;
    let longest_ns = scenario.round_trip_ns() + there.ns_of(there.queue_bytes);
    let timeout_ns = 2 * longest_ns + 2 * nic::ACK_DELAY.as_nanos() as u64;
    (2 * timeout_ns).max(nic::MTU_PROBE_WAIT_MIN.as_nanos() as u64)
}

/// How long packets may be of a wrong size: two such waits until it is noticed, then each size is
/// asked three times at most: the one in use, the base, and those by which the search halves what
/// is between.
pub(super) fn found_within_ns(scenario: &Scenario) -> u64 {
    let open = (scenario.host_bytes - BASE_BYTES) / nic::MTU_STEP_BYTES as u64;
    let halvings = u64::from((open + 1).next_power_of_two().ilog2());
    wait_ns(scenario) * (2 + u64::from(nic::MTU_PROBES_MAX) * (2 + halvings)) + rests_ns(scenario)
}

/// How long a stream may stand: until a size that does not get through is noticed, and then the
/// base as well. A path that was down is asked less often for a while.
pub(super) fn stands_within_ns(scenario: &Scenario) -> u64 {
    let asked_ns = wait_ns(scenario) * (2 + 2 * u64::from(nic::MTU_PROBES_MAX));
    asked_ns.max(LINK_STILL_NS_MAX) + rests_ns(scenario)
}

/// How long a path that was down waits for the next question.
fn rests_ns(scenario: &Scenario) -> u64 {
    let may_rest = scenario.routes.iter().any(Route::is_down);
    if may_rest { nic::MTU_PROBE_WAIT_MAX.as_nanos() as u64 } else { 0 }
}

/// How long a session may outlast the last packet with data that gets through: short ones do, and
/// are a sign of life once they are acknowledged.
pub(super) fn lost_within_ns(scenario: &Scenario) -> u64 {
    scenario.peer_timeout_ns() + wait_ns(scenario)
}

/// What size a sender's packets are to have, and for how long they have not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// Bytes of a datagram at least: what was to be found. At most: what the path takes.
    least: usize,
    most: usize,
    wrong_since_ns: Option<u64>,
    /// Packets that were too large when it was looked at last.
    too_large: u64,
    /// When it is to be found out that the path takes more.
    raise_ns: Option<u64>,
    /// How much longer than usual that may take.
    more_ns: u64,
    /// The size in use, and the one before, for which chunks under way may have been cut; since
    /// when it is less.
    packet: u64,
    before: (u64, u64),
    /// Longest time with a wrong size.
    pub(crate) longest_ns: u64,
}

impl Expected {
    /// The path takes so many bytes of a datagram from now on. `in_error`: so far not even the base
    /// got through.
    pub(super) fn changed(&mut self, now_ns: u64, takes: usize, in_error: bool, found_within_ns: u64) {
        let least = takes.saturating_sub(nic::MTU_STEP_BYTES).max(nic::PACKET_BYTES_MIN.min(takes));
        (self.raise_ns, self.more_ns) = (None, 0);
        if in_error {
            // It goes from there to all that is open.
            self.more_ns = nic::MTU_ERROR_RETRY.as_nanos() as u64;
            self.least = least;
        } else if takes > self.most && self.most > 0 {
            self.raise_ns = Some(now_ns + nic::MTU_RAISE_AFTER.as_nanos() as u64 + found_within_ns);
            self.least = self.least.min(least);
        } else {
            self.least = if self.most == 0 { least } else { self.least.min(least) };
        }
        (self.most, self.wrong_since_ns) = (takes, None);
    }

    /// Bytes that go out together at most, with packets of that size: where these have become
    /// smaller no longer ago than a stream may stand, pieces of a chunk that was cut for larger
    /// ones follow each other without a wait.
    pub(super) fn cut_for(&mut self, now_ns: u64, packet: u64, within_ns: u64) -> u64 {
        if packet < self.packet {
            self.before = (self.packet.max(self.before.0), now_ns);
        }
        self.packet = packet;
        if now_ns >= self.before.1 + within_ns {
            self.before.0 = 0;
        }
        packet.max(self.before.0)
    }

    /// Looks at the size in use, when so many packets have been too large; gives how long it has
    /// been wrong. One that packets which leave room for an acknowledgement do not reach is none,
    /// as long as none is too large.
    fn look(&mut self, now_ns: u64, size: usize, too_large: u64) -> u64 {
        if self.raise_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.raise_ns = None;
            self.least = self.most.saturating_sub(nic::MTU_STEP_BYTES).max(nic::PACKET_BYTES_MIN);
        }
        let base = nic::PACKET_BYTES_MIN;
        let vanish = std::mem::replace(&mut self.too_large, too_large) < too_large;
        let slack = if vanish { 0 } else { nic::MTU_PROOF_SLACK_BYTES };
        if (self.least.max(base)..=self.most.max(base) + slack).contains(&size) {
            (self.wrong_since_ns, self.more_ns) = (None, 0);
            return 0;
        }
        let wrong_ns = now_ns - *self.wrong_since_ns.get_or_insert(now_ns);
        self.longest_ns = self.longest_ns.max(wrong_ns.saturating_sub(self.more_ns));
        wrong_ns.saturating_sub(self.more_ns)
    }
}

impl World<'_> {
    /// A sender's packets are of the size that its path takes, or soon will be.
    pub(super) fn look_at_size(&mut self, node: usize, peer: &PeerInfo) {
        let route = self.scenario.routes[self.route];
        let Some(path) = peer.paths.iter().find(|path| path.active) else { return };
        if route.is_down() || route.ends_sessions() {
            return;
        }
        let size = self.tamper.level("bytes of a packet", path.mtu_bytes as u64) as usize;
        let too_large = self.links.iter().map(|link| link.counts.too_large).sum();
        let wrong_ns = self.nodes[node].expected.look(self.now_ns, size, too_large);
        let within_ns = found_within_ns(&self.scenario);
        if wrong_ns > within_ns {
            let (Expected { least, most, .. }, state) = (&self.nodes[node].expected, path.mtu_state);
            let message = format!(
                "node {node} has had packets of {size} bytes ({state:?}) or others that are wrong for {} ms, which \
                 may be {}; the path takes {most}, at least {least} ought to be in use",
                wrong_ns / MS,
                within_ns / MS
            );
            self.fail("size", message);
        }
    }

    /// What a host's kernel knows of the path, or its interface, changes with the route.
    pub(super) fn sizes_change(&mut self) {
        let route = self.scenario.routes[self.route];
        let within_ns = found_within_ns(&self.scenario);
        let takes = route.there.takes_bytes.min(self.scenario.host_bytes).saturating_sub(LINK_HEADERS_BYTES);
        for node in &mut self.nodes {
            node.kernel_bytes = self.scenario.host_bytes - LINK_HEADERS_BYTES;
            if !route.is_down() {
                let is_in_error = |path: &PathInfo| path.mtu_state == MtuState::Error;
                let in_error = node.engine.peers().any(|peer| peer.paths.iter().any(is_in_error));
                node.expected.changed(self.now_ns, takes as usize, in_error, within_ns);
            }
        }
        self.route_ns = self.now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Scenario> {
        (0..600).map(|seed| Scenario::draw(seed, None)).filter(|drawn| drawn.shape == Shape::Sizes)
    }

    #[test]
    fn sizes_change_in_every_way() {
        let routes = |test: &dyn Fn(&Route) -> bool| all().flat_map(|drawn| drawn.routes).filter(test).count();
        let counts = [
            routes(&|route| route.tells),
            routes(&Route::is_down),
            routes(&Route::ends_sessions),
            routes(&|route| route.there.takes_bytes < BASE_BYTES && route.cuts_up && !route.is_down()),
            routes(&|route| (BASE_BYTES..1_280).contains(&route.there.takes_bytes)),
            all().filter(|drawn| drawn.pause_ns.is_some()).count(),
            all().filter(|drawn| drawn.host_bytes == JUMBO_BYTES).count(),
        ];
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    }

    #[test]
    fn what_is_expected_follows_the_path() {
        let mut expected = Expected::default();
        expected.changed(0, 1_472, false, SECOND);
        assert_eq!([1_472, 1_464, 1_463, 1_537].map(|size| expected.look(1, size, 0)), [0; 4]);
        assert_eq!((expected.look(5, 1_537, 0), expected.look(6, 1_470, 0), expected.look(9, 1_537, 0)), (4, 0, 0));
        // Where such packets vanish there is no slack.
        assert_eq!((expected.look(9, 1_473, 1), expected.look(10, 1_473, 2)), (0, 1));
        // A smaller one is found, a larger one later.
        expected.changed(10, 1_300, false, SECOND);
        assert_eq!((expected.look(11, 1_472, 0), expected.look(12, 1_472, 0), expected.look(13, 1_295, 0)), (0, 1, 0));
        expected.changed(20, 8_972, false, SECOND);
        assert_eq!((expected.look(21, 1_295, 0), expected.look(22, 1_295, 0)), (0, 0));
        let again_ns = nic::MTU_RAISE_AFTER.as_nanos() as u64 + SECOND + 20;
        assert_eq!((expected.look(again_ns, 1_295, 0), expected.look(again_ns + 7, 1_295, 0)), (0, 7));
        // Where not even the base gets through it is in use, and afterwards all that is open.
        expected.changed(again_ns + 10, 900, false, SECOND);
        assert_eq!(expected.look(again_ns + 11, nic::PACKET_BYTES_MIN, 0), 0);
        expected.changed(again_ns + 20, 1_400, true, SECOND);
        let retry_ns = nic::MTU_ERROR_RETRY.as_nanos() as u64;
        assert_eq!(expected.look(again_ns + 20, 1_200, 0), 0);
        assert_eq!(expected.look(again_ns + 20 + retry_ns + 3, 1_200, 0), 3);
        assert_eq!(expected.longest_ns, 7);
    }
}
