//! The flags of `vmmc run`.
//!
//! Invariant: parsing has no side effects.

use crate::limits::LOCAL_NODES_MAX;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// What `vmmc run --help` says about exit codes.
pub(crate) const EXIT_CODES: &str = "Exit codes:
  that of the first rank that failed; 128 and the number of the signal that ended it
  0    all ranks ended with 0
  2    wrong usage
  3    no such node runs (or it is of another version)
  5    timed out, or a node was lost or cannot be reached
  126  the program was found and cannot be executed
  127  the program was not found
  130  interrupted";

/// Start a program many times.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Processes (ranks) [default: the slots of the hosts, or 1]
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=vmmc_job::limits::JOB_RANKS_MAX as i64))]
    pub(crate) ranks: Option<u32>,
    /// Start so many nodes on this machine and spread the ranks over them, as if they were machines
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(LOCAL_NODES_MAX)), conflicts_with_all = ["hosts", "name"])]
    pub(crate) nodes: u32,
    /// File that names nodes: one ADDR:PORT (or `local`) on a line, with `slots=N` if wanted
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: Option<PathBuf>,
    /// Name of the launcher's own node, which is started when it does not run [default: $VMMC_NODE,
    /// or default]
    #[arg(long, alias = "node", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Rank that gets standard input, or `none`
    #[arg(long, value_name = "RANK", default_value = "0", value_parser = parse_stdin)]
    pub(crate) stdin: Stdin,
    /// Write output to DIR/RANK.out and DIR/RANK.err instead
    #[arg(long, value_name = "DIR")]
    pub(crate) output_dir: Option<PathBuf>,
    /// Do not mark lines with the rank
    #[arg(long)]
    pub(crate) no_prefix: bool,
    /// Go on when a rank fails; without this the first failure ends the job
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Time between SIGTERM and SIGKILL when the job is ended, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub(crate) grace_ms: u64,
    /// How long nodes may take to answer, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub(crate) timeout_ms: u64,
    /// Set a variable of the processes' environment, besides this one's; repeat for several
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory of the processes [default: this one]
    #[arg(long, value_name = "DIR")]
    pub(crate) chdir: Option<PathBuf>,
    /// Tell when ranks start and end
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Program and arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM [ARGS]")]
    pub(crate) command: Vec<OsString>,
}

/// Who gets standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stdin {
    /// This rank.
    Rank(u32),
    /// Nobody.
    Nobody,
}

impl Stdin {
    /// The rank, if any.
    pub(crate) fn rank(self) -> Option<u32> {
        if let Stdin::Rank(rank) = self { Some(rank) } else { None }
    }
}

fn parse_stdin(text: &str) -> Result<Stdin, String> {
    match text {
        "none" => Ok(Stdin::Nobody),
        _ => text.parse().map(Stdin::Rank).map_err(|_| format!("write the number of a rank, or none, not {text:?}")),
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("write NAME=VALUE, not {text:?}"))?;
    if name.is_empty() { Err("the name is empty".into()) } else { Ok((name.into(), value.into())) }
}
