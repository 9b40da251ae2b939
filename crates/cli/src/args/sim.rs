//! What `vmmc sim` takes.

use clap::Args;
use std::ops::Range;
use std::path::PathBuf;

/// A simulated cluster.
#[derive(Args, Debug)]
pub(crate) struct Sim {
    /// Nodes, of which each knows the 64 next to it; by the seed if not given
    #[arg(long, value_parser = clap::value_parser!(u64).range(vmmc_sim::limits::NODES_MIN as u64..=vmmc_sim::limits::NODES_MAX as u64))]
    pub(crate) nodes: Option<u64>,
    /// The seed that everything else is drawn from
    #[arg(long, default_value_t = 1, conflicts_with = "seeds")]
    pub(crate) seed: u64,
    /// Seeds A up to, not including, B
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    pub(crate) seeds: Option<Range<u64>>,
    /// Instead of a cluster the protocol of stream sockets, with forks and deaths at both ends of a
    /// connection
    #[arg(long, conflicts_with_all = ["nodes", "steps", "trace"])]
    pub(crate) sockets: bool,
    /// Instead of a cluster streams over links with a rate, a queue, losses and competitors
    #[arg(long, conflicts_with_all = ["nodes", "steps", "trace", "sockets"])]
    pub(crate) network: bool,
    /// Congestion control of the nodes: bbr or cubic (network only) [default: by the seed]
    #[arg(long, value_name = "bbr|cubic", requires = "network")]
    pub(crate) congestion: Option<vmmc_node::CongestionControl>,
    /// Write a plot of rates and of the queue over simulated time (network only, one seed)
    #[arg(long, value_name = "FILE", requires = "network", conflicts_with = "seeds")]
    pub(crate) plot: Option<PathBuf>,
    /// Instead of a cluster the messages of a job, whose members are slow, leave, or are killed
    #[arg(long, conflicts_with_all = ["nodes", "steps", "trace", "sockets", "network"])]
    pub(crate) mp: bool,
    /// Actions of the workload in a run
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,
    /// Print the events of a failing run before the failure, all that were kept
    #[arg(long)]
    pub(crate) trace: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or_else(|| format!("write A..B, for example 0..2000, not {text:?}"))?;
    let number = |t: &str| t.trim().parse::<u64>().map_err(|_| format!("{t:?} is no seed"));
    let seeds = number(from)?..number(to)?;
    if seeds.is_empty() { Err(format!("there is no seed in {text}")) } else { Ok(seeds) }
}
