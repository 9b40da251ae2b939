//! What a run gives back: counts when all checkers held, a replayable failure when one did not.

use std::fmt;
use std::time::Duration;

use crate::limits::STEPS_DEFAULT;
use crate::options::{Faults, Mode, Options};

/// Counts of one run, or of many added up with [`Report::add`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Runs counted here.
    pub runs: u64,
    /// Workload actions done.
    pub steps: u64,
    /// Sends, fetches, atomics and flushes posted.
    pub operations: u64,
    /// Of those, completed or seen in the receiver's memory.
    pub operations_done: u64,
    /// Of those, ended by an error that the run's faults explain.
    pub operations_failed: u64,
    /// Exports made.
    pub exports: u64,
    /// Imports asked for.
    pub imports: u64,
    /// Imports granted.
    pub imports_granted: u64,
    /// Notifications taken.
    pub notifications: u64,
    /// Sends to many ranges, completed or seen in memory.
    pub gather_sends: u64,
    /// Records that append rings took.
    pub records: u64,
    /// Appends that found their ring full, or an earlier one of their import that did.
    pub full_rings: u64,
    /// Ranges redirected.
    pub redirects: u64,
    /// Bytes deposited in memory, on behalf of sends, fetches and redirections.
    pub deposited_bytes: u64,
    /// Datagrams that engines sent.
    pub packets: u64,
    /// What the engines counted.
    pub engines: EngineCounts,
    /// What went wrong on purpose.
    pub faults: FaultCounts,
    /// Simulated time.
    pub virtual_time: Duration,
    /// Real time. Not part of the digest.
    pub wall_time: Duration,
    /// A hash over every packet, deposit and event with its time: equal for equal options, on every
    /// machine.
    pub digest: u64,
}

/// What engines counted, over all lives of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Chunks sent again.
    pub retransmits: u64,
    /// Chunks that came twice and were dropped.
    pub duplicates: u64,
    /// Packets seen before and dropped.
    pub replays: u64,
    /// Packets whose seal did not open.
    pub bad_seals: u64,
    /// Datagrams that made no sense.
    pub malformed: u64,
    /// Handshakes refused.
    pub rejects: u64,
    /// Changes to another path.
    pub path_switches: u64,
    /// Sessions that began.
    pub sessions: u64,
    /// Sessions that were lost.
    pub sessions_lost: u64,
}

impl EngineCounts {
    /// The counts of one engine.
    pub(crate) fn of(stats: &vmmc_nic::Stats) -> EngineCounts {
        EngineCounts {
            retransmits: stats.retransmits,
            duplicates: stats.duplicates,
            replays: stats.replays,
            bad_seals: stats.bad_seals,
            malformed: stats.malformed,
            rejects: stats.rejects,
            path_switches: stats.path_switches,
            sessions: stats.sessions,
            sessions_lost: stats.sessions_lost,
        }
    }

    pub(crate) fn add(&mut self, other: &EngineCounts) {
        self.retransmits += other.retransmits;
        self.duplicates += other.duplicates;
        self.replays += other.replays;
        self.bad_seals += other.bad_seals;
        self.malformed += other.malformed;
        self.rejects += other.rejects;
        self.path_switches += other.path_switches;
        self.sessions += other.sessions;
        self.sessions_lost += other.sessions_lost;
    }
}

/// Faults that a run injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets dropped at random or by a full link.
    pub lost: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets held back behind later ones.
    pub reordered: u64,
    /// Packets damaged.
    pub corrupted: u64,
    /// Old packets delivered again.
    pub replayed: u64,
    /// Packets swallowed by a partition or a dead interface.
    pub blocked: u64,
    /// Packets that were larger than their link takes.
    pub too_large: u64,
    /// Partitions begun.
    pub partitions: u64,
    /// Network interfaces that died.
    pub path_failures: u64,
    /// Nodes crashed.
    pub node_crashes: u64,
    /// Processes crashed.
    pub process_crashes: u64,
}

impl Report {
    /// Adds the counts of another run. Digests are combined so that the order of adding does not
    /// matter.
    pub fn add(&mut self, other: &Report) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.operations += other.operations;
        self.operations_done += other.operations_done;
        self.operations_failed += other.operations_failed;
        self.exports += other.exports;
        self.imports += other.imports;
        self.imports_granted += other.imports_granted;
        self.notifications += other.notifications;
        self.gather_sends += other.gather_sends;
        self.records += other.records;
        self.full_rings += other.full_rings;
        self.redirects += other.redirects;
        self.deposited_bytes += other.deposited_bytes;
        self.packets += other.packets;
        self.engines.add(&other.engines);
        self.faults.add(&other.faults);
        self.virtual_time += other.virtual_time;
        self.wall_time += other.wall_time;
        self.digest = self.digest.wrapping_add(other.digest);
    }
}

impl FaultCounts {
    /// All faults together.
    pub fn total(&self) -> u64 {
        let packets = self.lost + self.duplicated + self.reordered + self.corrupted + self.replayed + self.blocked;
        let packets = packets + self.too_large;
        packets + self.partitions + self.path_failures + self.node_crashes + self.process_crashes
    }

    fn add(&mut self, other: &FaultCounts) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.replayed += other.replayed;
        self.blocked += other.blocked;
        self.too_large += other.too_large;
        self.partitions += other.partitions;
        self.path_failures += other.path_failures;
        self.node_crashes += other.node_crashes;
        self.process_crashes += other.process_crashes;
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

/// A property that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The run that failed; running it again fails in the same way.
    pub options: Options,
    /// The workload action after which it failed.
    pub step: u64,
    /// Simulated time of the failure.
    pub at: Duration,
    /// Which checker failed, such as `exactly-once`; `panic` when the engine itself gave up.
    pub checker: &'static str,
    /// What was expected and what was seen.
    pub message: String,
    /// The last events before it, oldest first; at most `options.trace_lines`.
    pub trace: Vec<String>,
}

impl Failure {
    /// The command that runs the same seed again.
    pub fn replay_command(&self) -> String {
        let Options { nodes, seed, steps, faults, mode, .. } = self.options;
        let mut command = format!("vmmc sim --nodes {nodes} --seed {seed}");
        if steps != STEPS_DEFAULT {
            command += &format!(" --steps {steps}");
        }
        if faults != Faults::ALL || mode != Mode::BySeed {
            command += &format!(" # with {faults:?}, {mode:?}");
        }
        command
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        let Failure { options, step, at, checker, message, .. } = self;
        writeln!(f, "seed {} failed at step {step}, {at:?}: {checker}: {message}", options.seed)?;
        write!(f, "run it again: {}", self.replay_command())
    }
}

impl std::error::Error for Failure {}
