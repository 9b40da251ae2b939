//! What a run over links gives back.

use std::fmt;
use std::time::Duration;

use vmmc_nic::CongestionControl;

use super::goals::Goal;
use super::scenario::Shape;
use super::world::{Sample, World};

/// One run over links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// The seed that everything else is drawn from.
    pub seed: u64,
    /// The congestion control of all nodes; none: the seed's.
    pub congestion: Option<CongestionControl>,
}

/// What a run made of its links.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkReport {
    /// What happened on the links.
    pub shape: Shape,
    /// The congestion control of all nodes.
    pub control: CongestionControl,
    /// The run in words.
    pub scenario: String,
    /// What was measured.
    pub goals: Vec<Goal>,
    /// Longest time in which some stream got nothing.
    pub longest_still: Duration,
    /// Datagrams that engines sent.
    pub packets: u64,
    /// Packets that found a queue full.
    pub dropped: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets held back behind later ones.
    pub late: u64,
    /// Packets that a queue marked.
    pub marked: u64,
    /// Packets that were larger than their path takes, and vanished.
    pub too_large: u64,
    /// Names of what shares the bottleneck.
    pub flows: Vec<String>,
    /// The run over time.
    pub moments: Vec<Moment>,
    /// Simulated time.
    pub virtual_time: Duration,
    /// Real time. Not part of the digest.
    pub wall_time: Duration,
    /// A hash over every packet and its time.
    pub digest: u64,
}

/// What was seen in a step of simulated time.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// End of the step.
    pub at: Duration,
    /// Bytes in the queue of the bottleneck then.
    pub queued_bytes: u64,
    /// Bits per second of data that arrived in the step, of each of [`LinkReport::flows`].
    pub bits_per_s: Vec<f64>,
}

/// A property that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFailure {
    /// The run that failed; running it again fails in the same way.
    pub options: LinkOptions,
    /// The run in words.
    pub scenario: String,
    /// Simulated time of the failure.
    pub at: Duration,
    /// Which checker failed.
    pub checker: &'static str,
    /// What was expected and what was seen.
    pub message: String,
}

impl LinkFailure {
    /// The command that runs the same seed again.
    pub fn replay_command(&self) -> String {
        let mut command = format!("vmmc sim --network --seed {}", self.options.seed);
        if let Some(control) = self.options.congestion {
            command += &format!(" --congestion {control}");
        }
        command
    }
}

impl fmt::Display for LinkFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkFailure { options, scenario, at, checker, message } = self;
        writeln!(f, "seed {} ({scenario}) failed at {at:?}: {checker}: {message}", options.seed)?;
        write!(f, "run it again: {}", self.replay_command())
    }
}

impl std::error::Error for LinkFailure {}

pub(super) fn moments(samples: &[Sample]) -> Vec<Moment> {
    let step = |pair: &[Sample]| {
        let (before, after) = (&pair[0], &pair[1]);
        let seconds = (after.at_ns - before.at_ns) as f64 / 1e9;
        let bytes = after.arrived_bytes.iter().zip(&before.arrived_bytes).map(|(after, before)| after - before);
        Moment {
            at: Duration::from_nanos(after.at_ns),
            queued_bytes: after.queued_bytes,
            bits_per_s: bytes.map(|bytes| bytes as f64 * 8.0 / seconds).collect(),
        }
    };
    samples.windows(2).map(step).collect()
}

pub(super) fn flows(world: &World<'_>) -> Vec<String> {
    let streams = (0..world.streams.len()).map(|stream| format!("stream {stream}"));
    streams.chain(world.scenario.tcp.map(|tcp| tcp.name().to_owned())).collect()
}
