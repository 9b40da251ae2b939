//! Streams of real engines over links that have a rate, a queue and competitors.
//!
//! [`run_links`] takes [`LinkOptions`] and gives a [`LinkReport`], or the [`LinkFailure`] of the
//! first property that did not hold.
//!
//! ```text
//!   node 0  ──access──┐                                              ┌──▶ receiver of stream 0
//!   node 1  ──access──┼──▶ queue ▶ rate, delay, jitter, loss, late ──┼──▶ receiver of stream 1
//!   TCP flow ─────────┘        the bottleneck of the present route   └──▶ its receiver
//!            ◀───────────────── the way back, with a rate of its own ─────
//! ```
//!
//! Invariant: equal options give the same run, packet for packet, on every machine.

mod checkers;
mod fetches;
mod goals;
mod link;
mod report;
mod scenario;
mod sizes;
mod stream;
mod sweep;
mod tamper;
mod tcp;
mod world;

#[cfg(test)]
mod tests;

pub use goals::{Goal, jain};
pub use report::{LinkFailure, LinkOptions, LinkReport, Moment};
pub use scenario::Shape;
pub use sweep::{GoalSummary, LinkSweep, run_links_many};
pub use tcp::TcpKind;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::judge::Verdict;
use crate::report::panic_message;
use scenario::Scenario;
use stream::Stream;
use tamper::{Honest, LinkTamper};
use world::World;

/// Runs one seed.
///
/// # Errors
/// The first property that did not hold, with the command that replays it. A panic inside an engine
/// is a failure too, of the checker `panic`.
///
/// ```
/// let report = vmmc_sim::run_links(vmmc_sim::LinkOptions { seed: 4, congestion: None })?;
/// assert!(report.packets > 10_000 && report.goals.iter().any(|goal| goal.name == "utilisation"));
/// # Ok::<(), Box<vmmc_sim::LinkFailure>>(())
/// ```
pub fn run_links(options: LinkOptions) -> Result<LinkReport, Box<LinkFailure>> {
    run_tampered(options, &mut Honest)
}

/// Runs one seed with a bug planted.
pub(crate) fn run_tampered(options: LinkOptions, tamper: &mut dyn LinkTamper) -> Result<LinkReport, Box<LinkFailure>> {
    run_scenario(Scenario::draw(options.seed, options.congestion), options, tamper)
}

fn run_scenario(
    scenario: Scenario,
    options: LinkOptions,
    tamper: &mut dyn LinkTamper,
) -> Result<LinkReport, Box<LinkFailure>> {
    let began = Instant::now();
    let mut world = World::new(scenario, options.seed, tamper);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| play(&mut world))) {
        world.verdict = Some(Verdict { checker: "panic", message: panic_message(&*panic) });
    }
    let goals = if world.verdict.is_none() { goals::of(&world) } else { Vec::new() };
    if let Some(missed) = goals.iter().find(|goal| goal.required && !goal.is_met()) {
        let side = if missed.at_least { "at least" } else { "at most" };
        let message = format!("{:.3}, which ought to be {side} {:.3}", missed.value, missed.bound);
        world.fail(missed.name, message);
    }
    let scenario = world.scenario.describe();
    let at = Duration::from_nanos(world.now_ns);
    if let Some(Verdict { checker, message }) = world.verdict {
        return Err(Box::new(LinkFailure { options, scenario, at, checker, message }));
    }
    Ok(LinkReport {
        shape: world.scenario.shape,
        control: world.scenario.control,
        scenario,
        goals,
        longest_still: Duration::from_nanos(world.streams.iter().map(|stream| stream.still_ns).max().unwrap_or(0)),
        packets: world.nodes.iter().map(|node| node.packets).sum(),
        dropped: world.links.iter().map(|link| link.counts.dropped).sum(),
        lost: world.links.iter().map(|link| link.counts.lost).sum(),
        late: world.links.iter().map(|link| link.counts.late).sum(),
        marked: world.links.iter().map(|link| link.counts.marked).sum(),
        too_large: world.links.iter().map(|link| link.counts.too_large).sum(),
        moments: report::moments(&world.samples),
        flows: report::flows(&world),
        virtual_time: at,
        wall_time: began.elapsed(),
        digest: world.trace.value(),
    })
}

fn play(world: &mut World<'_>) {
    let ends_ns = world.scenario.ends_ns;
    let mut is_watched = false;
    while !world.streams.iter().all(Stream::is_over) && world.advance(ends_ns) {
        if !is_watched && world.now_ns >= goals::USED_AFTER_NS {
            world.links[0].watch();
            is_watched = true;
        }
    }
    let ends = world.scenario.routes[world.route].ends_sessions();
    let goes_on = |stream: &Stream| (stream.wanted.is_some() || ends) && !stream.is_over();
    if let Some(stream) = world.streams.iter().position(goes_on) {
        world.fail("progress", format!("stream {stream} has not ended"));
    }
}
