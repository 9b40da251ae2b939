//! Many seeds over links, and what they make of the goals.
//!
//! Invariant: the result does not depend on the number of threads.

use std::ops::Range;
use std::time::Duration;

use vmmc_nic::CongestionControl;

use super::{Goal, LinkFailure, LinkOptions, LinkReport, Shape, run_links};
use crate::many::spread;

/// The result of [`run_links_many`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkSweep {
    /// Runs that held.
    pub runs: u64,
    /// What they made of each goal, by shape and congestion control.
    pub goals: Vec<GoalSummary>,
    /// The runs that failed, by seed.
    pub failures: Vec<LinkFailure>,
    /// Longest time in which some stream got nothing.
    pub longest_still: Duration,
    /// Datagrams that engines sent.
    pub packets: u64,
    /// Packets that found a queue full, were lost at random, or were late.
    pub dropped: u64,
    /// See there.
    pub lost: u64,
    /// Packets that a queue marked.
    pub marked: u64,
    /// Packets that were larger than their path takes, and vanished.
    pub too_large: u64,
    /// See there.
    pub late: u64,
    /// Simulated time.
    pub virtual_time: Duration,
    /// Processor time.
    pub wall_time: Duration,
    /// Of all runs that held.
    pub digest: u64,
}

/// A goal in many runs.
#[derive(Clone, Debug, PartialEq)]
pub struct GoalSummary {
    /// What happened on the links.
    pub shape: Shape,
    /// The congestion control.
    pub control: CongestionControl,
    /// What is measured.
    pub name: &'static str,
    /// Runs, and those of them that missed it.
    pub runs: u64,
    /// See there.
    pub missed: u64,
    /// The middle value.
    pub median: f64,
    /// The run that is farthest on the wrong side of its bound, or nearest to it.
    pub worst: Goal,
    /// Its seed.
    pub worst_seed: u64,
}

/// Runs every seed of `seeds` on `threads` threads. `progress` is told the number of seeds finished
/// and failed after each one, from any thread, and returns whether to go on.
pub fn run_links_many(
    seeds: Range<u64>,
    threads: usize,
    congestion: Option<CongestionControl>,
    mut progress: impl FnMut(u64, u64) -> bool + Send,
) -> LinkSweep {
    let mut sweep = LinkSweep::default();
    let mut measured = Vec::new();
    spread(
        seeds,
        threads,
        |seed| run_links(LinkOptions { seed, congestion }),
        |seed, result| {
            match result {
                Ok(report) => {
                    let (shape, control) = (report.shape, report.control);
                    let of = |goal: &Goal| Measured { seed, shape, control, goal: goal.clone() };
                    measured.extend(report.goals.iter().map(of));
                    sweep.add(&report);
                }
                Err(failure) => sweep.failures.push(*failure),
            }
            progress(sweep.runs + sweep.failures.len() as u64, sweep.failures.len() as u64)
        },
    );
    // Seeds break ties, so that threads do not.
    measured
        .sort_by(|a, b| (a.key().cmp(&b.key())).then(a.goal.value.total_cmp(&b.goal.value)).then(a.seed.cmp(&b.seed)));
    sweep.goals = measured.chunk_by(|a, b| a.key() == b.key()).map(summary).collect();
    sweep.failures.sort_by_key(|failure| failure.options.seed);
    sweep
}

impl LinkSweep {
    fn add(&mut self, report: &LinkReport) {
        self.runs += 1;
        self.longest_still = self.longest_still.max(report.longest_still);
        self.packets += report.packets;
        self.dropped += report.dropped;
        self.marked += report.marked;
        self.too_large += report.too_large;
        self.lost += report.lost;
        self.late += report.late;
        self.virtual_time += report.virtual_time;
        self.wall_time += report.wall_time;
        self.digest = self.digest.wrapping_add(report.digest);
    }
}

/// A goal in one run.
struct Measured {
    seed: u64,
    shape: Shape,
    control: CongestionControl,
    goal: Goal,
}

impl Measured {
    /// What is summed up together.
    fn key(&self) -> (Shape, &'static str, &'static str) {
        let control = match self.control {
            CongestionControl::Bbr => "bbr",
            CongestionControl::Cubic => "cubic",
        };
        (self.shape, control, self.goal.name)
    }
}

/// Of runs sorted by value.
fn summary(runs: &[Measured]) -> GoalSummary {
    let missed = runs.iter().filter(|run| !run.goal.is_met()).count() as u64;
    let worst = runs.iter().min_by(|a, b| a.goal.margin().total_cmp(&b.goal.margin())).expect("a group has a run");
    GoalSummary {
        shape: worst.shape,
        control: worst.control,
        name: worst.goal.name,
        runs: runs.len() as u64,
        missed,
        median: runs[runs.len() / 2].goal.value,
        worst: worst.goal.clone(),
        worst_seed: worst.seed,
    }
}
