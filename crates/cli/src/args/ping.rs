//! What `vmmc ping` takes.

use super::Which;
use clap::{Args, ValueEnum};

/// Round trips.
#[derive(Args, Debug)]
pub(crate) struct Ping {
    /// Name or address:port of the other node
    #[arg(required_unless_present = "listen")]
    pub(crate) node: Option<String>,
    /// Which node asks.
    #[command(flatten)]
    pub(crate) which: Which,
    /// Round trips
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Give up on one round trip after this long, milliseconds
    #[arg(long, default_value_t = 5000)]
    pub(crate) timeout_ms: u64,
    /// Count once more beside a stream to or from a `vmmc ping --listen` of the same user on the
    /// other node [default if given without a value: out]
    #[arg(long, value_name = "WAY", num_args = 0..=1, require_equals = true, default_missing_value = "out")]
    pub(crate) load: Option<Load>,
    /// Be the other end of streams of `vmmc ping --load`, until interrupted
    #[arg(long, conflicts_with_all = ["node", "count", "timeout_ms", "load", "json"])]
    pub(crate) listen: bool,
    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which way the streams beside pings go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Load {
    /// To the other node, by sends
    Out,
    /// From the other node, by fetches
    In,
    /// Both at once
    Both,
}
