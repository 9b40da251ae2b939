//! What a launcher and the supervisors of its job send each other, through a
//! [`Link`](super::link::Link).
//!
//! Invariant: both sides are of one release (the attach to the node has seen to that), and belong
//! to one user; still every message is a claim that is decoded with bounds, and never a reason to
//! panic.

use serde::{Deserialize, Serialize};

/// Start of the names of a job's exports.
pub const JOB_PREFIX: &str = "vmmc.job/";
/// Name among a rank's exports of the word through which its supervisor notifies it of changes.
pub const CHANGES_NAME: &str = "vmmc.changes";
/// Environment of a rank: number in the job, from 0.
pub const RANK_VARIABLE: &str = "VMMC_RANK";
/// Environment of a rank: ranks at the start.
pub const SIZE_VARIABLE: &str = "VMMC_SIZE";
/// Environment of a rank: id of the job.
pub const JOB_VARIABLE: &str = "VMMC_JOB";
/// Environment of a rank: node that it runs on.
pub const NODE_VARIABLE: &str = "VMMC_NODE";

/// Name of the table of a job.
pub fn table_name(job: &str) -> String {
    format!("{JOB_PREFIX}{job}/table")
}

/// Name of the export through which ranks ask their supervisor.
pub fn asks_name(job: &str) -> String {
    format!("{JOB_PREFIX}{job}/asks")
}

/// Name of a rank's export `name`.
pub fn member_name(job: &str, rank: u32, name: &str) -> String {
    format!("{JOB_PREFIX}{job}/{rank}/{name}")
}

/// One node of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobNode {
    /// Its name.
    pub name: String,
    /// How the other nodes of the job call it: `address:port`, or its name.
    pub locator: String,
}

/// State of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// Started, or about to be.
    Running,
    /// It has said that it leaves; its end is no failure.
    Left,
    /// It has ended with status 0.
    Ended,
    /// It has ended in another way.
    Failed,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl Exit {
    /// Whether it ended well.
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "ended with code {code}"),
            Exit::Signal(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}

/// Standard output or standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// What to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Program: looked up in the given `PATH` unless it contains a slash.
    pub program: Vec<u8>,
    /// Its arguments.
    pub args: Vec<Vec<u8>>,
    /// Its whole environment; the supervisor adds the variables of the rank.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its working directory.
    pub cwd: Vec<u8>,
}

/// What a launcher says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// First message: where to answer.
    Hello {
        /// Node of the launcher.
        node: String,
        /// Name of the launcher's side of the link.
        inbox: String,
    },
    /// The job. Nothing is started before [`Order::Start`].
    Begin {
        /// Id of the job.
        job: String,
        /// What its processes run.
        program: Program,
        /// Nodes.
        nodes: Vec<JobNode>,
        /// Index of the supervisor's own node.
        own: u32,
        /// For each rank the index of its node.
        places: Vec<u32>,
        /// Rank that gets standard input; the others find theirs empty.
        input: Option<u32>,
    },
    /// Start these ranks, which are on this node.
    Start {
        /// Which.
        ranks: Vec<u32>,
    },
    /// What has changed in the job; the members will see it.
    Members {
        /// Number of the view: grows with every change.
        view: u64,
        /// Ranks that joined: their nodes, in order of rank, after those that there were.
        joined: Vec<u32>,
        /// Ranks whose state changed.
        changed: Vec<(u32, MemberState)>,
    },
    /// Bytes for the standard input of a rank.
    Input {
        /// Which.
        rank: u32,
        /// Bytes.
        bytes: Vec<u8>,
    },
    /// The standard input of a rank ends here.
    CloseInput {
        /// Which.
        rank: u32,
    },
    /// A signal for all ranks.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// End all that runs: politely, and after the grace by force.
    End {
        /// Milliseconds between the two.
        grace_ms: u64,
    },
}

/// What a supervisor says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// First message.
    Ready {
        /// Name of its node.
        node: String,
        /// Its process id.
        pid: u32,
    },
    /// Ranks run.
    Started {
        /// Rank and process id.
        ranks: Vec<(u32, u32)>,
    },
    /// A rank could not be started.
    NotStarted {
        /// Which.
        rank: u32,
        /// Why, with the next step.
        why: String,
        /// Whether the program is there, and cannot be executed.
        found: bool,
    },
    /// Output, whole lines as far as they are not endless.
    Output {
        /// Whose.
        rank: u32,
        /// Which stream.
        stream: Stream,
        /// Bytes.
        bytes: Vec<u8>,
    },
    /// A rank has taken this much of its standard input, or never will take it.
    InputTaken {
        /// Which.
        rank: u32,
        /// Bytes.
        bytes: u64,
    },
    /// A rank has ended.
    Exited {
        /// Which.
        rank: u32,
        /// How.
        exit: Exit,
    },
    /// A rank says that it leaves.
    Left {
        /// Which.
        rank: u32,
    },
    /// A rank wants more ranks.
    Grow {
        /// How many.
        ranks: u32,
    },
    /// Nothing runs any more on this node.
    Done,
}
