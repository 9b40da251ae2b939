//! The flags of `vmmc utlb`.
//!
//! Invariant: parsing opens no files.

use crate::report::units::parse_size;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Address translation: simulate, compare with the papers, handle traces.
#[derive(Subcommand, Debug)]
pub(crate) enum Utlb {
    /// Run traces through tables and caches; lists of values make a sweep
    Simulate(Box<Simulate>),
    /// A table of the UTLB paper beside ours
    Table(Paper),
    /// A figure of the UTLB paper, 7 or 8
    Figure(Paper),
    /// A table of the NT paper beside ours, 2 to 4
    NtTable(Paper),
    /// Convert, describe, show, plot and generate traces
    #[command(subcommand)]
    Trace(Trace),
}

/// Which table or figure.
#[derive(Args, Debug)]
pub(crate) struct Paper {
    /// Its number in the paper
    pub(crate) number: u32,
    /// Costs: paper, nt, linux or here
    #[arg(long, default_value = "paper")]
    pub(crate) profile: String,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the charts of a figure into this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) svg: Option<PathBuf>,
}

/// What to simulate. Every parameter takes a list, separated by commas.
#[derive(Args, Debug)]
pub(crate) struct Simulate {
    /// Files, merged by time; or app:NAME:NODE for a generated trace, as app:fft:0
    #[arg(required = true, value_name = "TRACE")]
    pub(crate) traces: Vec<String>,
    /// Format of the files: vmmc, csv, din or oracleGeneral [default: by their names]
    #[arg(long)]
    pub(crate) format: Option<String>,
    /// Equal process numbers in different traces are different processes
    #[arg(long)]
    pub(crate) apart: bool,
    /// hierarchical, shared, per-process:PROCESSES, interrupt, regions
    #[arg(long, value_delimiter = ',', default_value = "hierarchical")]
    pub(crate) mechanism: Vec<String>,
    /// Entries of the cache of the network interface
    #[arg(long, value_delimiter = ',', default_value = "8K", value_parser = parse_size)]
    pub(crate) entries: Vec<u64>,
    /// Associativity of that cache
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) ways: Vec<usize>,
    /// Offset indices by process: yes or no
    #[arg(long, value_delimiter = ',', default_value = "yes")]
    pub(crate) offset: Vec<String>,
    /// Entries fetched at a miss in that cache
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) prefetch: Vec<u32>,
    /// Pages pinned at a check miss, or adaptive:MOST
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) prepin: Vec<String>,
    /// lru, mru, lfu, mfu, random, fifo, clock, sieve, s3fifo
    #[arg(long, value_delimiter = ',', default_value = "lru")]
    pub(crate) policy: Vec<String>,
    /// What may be pinned: unlimited, a size for each process (4M), or node:SIZE for all, moved
    /// between them
    #[arg(long, value_delimiter = ',', default_value = "unlimited")]
    pub(crate) memory: Vec<String>,
    /// Split misses of the interface into compulsory, capacity and conflict
    #[arg(long)]
    pub(crate) classify: bool,
    /// Costs: paper, nt, linux or here
    #[arg(long, default_value = "paper")]
    pub(crate) profile: String,
    /// Threads of a sweep [default: all cores]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a chart: the figure of --plot over the first parameter that has a list, a line for
    /// each value of the others
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write a page with the chart and the table
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// What the chart shows: check, ni, unpin or cost
    #[arg(long, default_value = "cost")]
    pub(crate) plot: String,
}

/// What to do with a trace.
#[derive(Subcommand, Debug)]
pub(crate) enum Trace {
    /// Write a trace in another format; names that end in .zst are compressed
    Convert {
        /// The trace
        from: String,
        /// The file to write
        to: String,
        /// Format of the trace [default: by its name]
        #[arg(long)]
        format: Option<String>,
    },
    /// Processes, footprint, lookups
    Info {
        /// The trace
        trace: String,
        /// Format of the trace [default: by its name]
        #[arg(long)]
        format: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// The first records, as text
    Head {
        /// The trace
        trace: String,
        /// Format of the trace [default: by its name]
        #[arg(long)]
        format: Option<String>,
        /// How many
        #[arg(short = 'n', long, default_value_t = 10)]
        records: usize,
    },
    /// A chart of the pages that each process uses over time
    Plot {
        /// The trace
        trace: String,
        /// The file to write
        #[arg(long, value_name = "FILE")]
        svg: PathBuf,
        /// Format of the trace [default: by its name]
        #[arg(long)]
        format: Option<String>,
    },
    /// A trace with the structure of a program of the paper
    Generate {
        /// barnes, fft, lu, radix, raytrace, volrend or water
        app: String,
        /// The file to write
        to: String,
        /// Node, 0 to 3
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..4))]
        node: u16,
        /// Seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}
