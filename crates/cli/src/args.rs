//! The command line. Every flag is declared here once and feeds help, completion and man page.
//!
//! Invariant: parsing has no side effects.

use crate::failure::EXIT_CODES;
use crate::limits::{RUNS, RUNS_MAX};
use crate::report::units::parse_size;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Virtual memory-mapped communication: memory moves between processes and between machines.
#[derive(Parser, Debug)]
#[command(name = "vmmc", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Measure VMMC beside the limits of the machine and other transports
    #[command(after_help = EXIT_CODES)]
    Bench(Bench),
    /// Print a completion script for a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
    /// Half of a measurement; started by `bench` and `demo`
    #[command(hide = true)]
    Worker {
        /// Processor to run on
        #[arg(long)]
        core: Option<usize>,
    },
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Deliberate update, one way to a spinning receiver
    Latency,
    /// Deliberate updates in one direction
    Bandwidth,
    /// Remote fetch, from call to data
    Fetch,
    /// 64-bit remote atomic operations
    Atomic,
    /// Waking a blocked thread by notification
    Notify,
    /// Importing an export that exists
    Import,
    /// Transfer redirection, by when it is posted
    Redirect,
}

impl What {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            What::Latency => "latency",
            What::Bandwidth => "bandwidth",
            What::Fetch => "fetch",
            What::Atomic => "atomic",
            What::Notify => "notify",
            What::Import => "import",
            What::Redirect => "redirect",
        }
    }
}

/// Between whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Path {
    /// Two processes of one node
    SameNode,
    /// Two processes on two nodes, each with a daemon, over UDP on loopback
    TwoNodes,
    /// Two processes that each embed their node, over UDP on loopback
    Embedded,
}

impl Path {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Path::SameNode => "same-node",
            Path::TwoNodes => "two-nodes",
            Path::Embedded => "embedded",
        }
    }
}

/// Other systems to measure beside VMMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names say it all")]
pub(crate) enum Peer {
    Pipe,
    Unix,
    Tcp,
    TcpSpin,
    Udp,
    UdpSpin,
    Ucx,
    Libfabric,
    Mpi,
    Iceoryx2,
}

/// Measure VMMC beside the limits of the machine and other transports.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// What to measure
    pub(crate) what: What,
    /// Between whom; several, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(crate) path: Vec<Path>,
    /// Message sizes, for example 8,1K,64K,1M [default: by what is measured]
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<u64>,
    /// Other systems to measure; `--peers ''` for none [default: all that are installed]
    #[arg(long, value_delimiter = ',', value_parser = parse_peer)]
    pub(crate) peers: Option<Vec<MaybePeer>>,
    /// Between nodes only without encryption
    #[arg(long, conflicts_with = "sealed")]
    pub(crate) plain: bool,
    /// Between nodes only with encryption
    #[arg(long)]
    pub(crate) sealed: bool,
    /// Runs of every series, in turns
    #[arg(long, default_value_t = RUNS, value_parser = clap::value_parser!(u32).range(1..=i64::from(RUNS_MAX)))]
    pub(crate) runs: u32,
    /// Time that one measurement aims at, milliseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) time_ms: u64,
    /// How long the receiver sleeps before it is notified, microseconds (notify only)
    #[arg(long, value_delimiter = ',', default_values_t = [30, 1000], value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) asleep_us: Vec<u64>,
    /// Fail with exit code 6 when a promise is not met
    #[arg(long)]
    pub(crate) check: bool,
    /// How to show the result.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A peer, or none from an empty word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaybePeer(pub(crate) Option<Peer>);

fn parse_peer(text: &str) -> Result<MaybePeer, String> {
    if text.is_empty() { Ok(MaybePeer(None)) } else { Peer::from_str(text, false).map(|p| MaybePeer(Some(p))) }
}

/// How to show a result.
#[derive(Args, Clone, Debug)]
pub(crate) struct Output {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write a self-contained page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}
