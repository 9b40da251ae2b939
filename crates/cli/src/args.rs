//! The command line. Every flag is declared here once and feeds help, completion and man page.
//!
//! Invariant: parsing has no side effects.

pub(crate) mod ping;
pub(crate) mod run;
pub(crate) mod sim;
pub(crate) mod utlb;

use crate::commands::supervise::RunAs;
use crate::commands::top::Sort;
use crate::failure::EXIT_CODES;
use crate::limits::{DEMO_RUNS, MEASURE_TIME, NETWORK_RUNS, NETWORK_TIME, RUNS, RUNS_MAX, SERIES_TIME, TURNS};
use crate::report::units::parse_size_or_zero;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Virtual memory-mapped communication: memory moves between processes and between machines.
#[derive(Parser, Debug)]
#[command(name = "vmmc", version, after_help = START_HERE, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The command line with all that its help says: a command of a group has the exit codes of its
    /// group.
    pub(crate) fn whole() -> clap::Command {
        <Cli as clap::CommandFactory>::command().mut_subcommands(handing_down)
    }

    /// The same without subcommands that only VMMC itself calls.
    pub(crate) fn visible() -> clap::Command {
        let whole = Cli::whole();
        let shown = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
        clap::Command::new("vmmc").version(env!("CARGO_PKG_VERSION")).subcommands(shown.collect::<Vec<_>>())
    }
}

fn handing_down(group: clap::Command) -> clap::Command {
    let codes = group.get_after_help().cloned();
    group.mut_subcommands(|command| match (command.get_after_help(), &codes) {
        (None, Some(codes)) => handing_down(command.after_help(codes.clone())),
        _ => handing_down(command),
    })
}

/// What `vmmc --help` adds: where to begin.
const START_HERE: &str = concat!(
    "Start here:
  vmmc doctor                  whether this machine has what it takes
  vmmc demo                    see memory move
  vmmc run -n 4 -- ./program   four processes that share memory
  vmmc exec -- redis-server    a program as it is, with faster TCP on this machine
  vmmc node start --listen 0.0.0.0:4791
                               a node that other machines reach

`vmmc COMMAND --help` has the options; VMMC_NODE names the node for all of them.

",
    crate::exit_codes!()
);

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Start two nodes, move a file between processes, measure, print one table
    #[command(after_help = EXIT_CODES)]
    Demo(Demo),
    /// Start a program many times, on one node or several, and watch it
    #[command(after_help = run::EXIT_CODES)]
    Run(run::Run),
    /// Start, stop and look at nodes on this machine
    #[command(subcommand, after_help = EXIT_CODES)]
    Node(Node),
    /// Round trips between two nodes
    #[command(after_help = EXIT_CODES)]
    Ping(ping::Ping),
    /// Services of remote calls: which there are, and whether one answers
    #[command(subcommand, after_help = EXIT_CODES)]
    Rpc(Rpc),
    /// Measure VMMC beside the limits of the machine and other transports
    #[command(after_help = EXIT_CODES)]
    Bench(Bench),
    /// Run a program as it is; its TCP connections to others that run so too go through VMMC
    #[command(after_help = EXEC_HELP)]
    Exec(Exec),
    /// TCP connections that go through VMMC, or why they do not
    #[command(after_help = EXIT_CODES)]
    Sockets(Sockets),
    /// Nodes, processes, exports, imports, rates and paths, live
    #[command(after_help = TOP_HELP)]
    Top(Top),
    /// Counters of a node and of its peers
    #[command(after_help = EXIT_CODES)]
    Stats(Stats),
    /// Which path an import uses, and why not a better one; or which paths a node's imports use
    #[command(after_help = EXIT_CODES)]
    Explain(Explain),
    /// What this machine offers VMMC, what is missing, and how to get it
    #[command(after_help = EXIT_CODES)]
    Doctor {
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Run a whole cluster in this process, on a virtual clock, from a seed, with faults and
    /// checkers
    #[command(after_help = EXIT_CODES)]
    Sim(sim::Sim),
    /// Address translation: simulate, compare with the papers, handle traces
    #[command(subcommand, after_help = EXIT_CODES)]
    Utlb(utlb::Utlb),
    /// Record the transfers of programs
    #[command(subcommand, after_help = EXIT_CODES)]
    Trace(Trace),
    /// Print a completion script for a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a manual page, or write all of them
    Man {
        /// Write the pages of the command and of all its subcommands into this folder
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        out: Option<PathBuf>,
        /// The subcommand, for example `node start` [default: the page of `vmmc` itself]
        #[arg(value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Ranks of one job on one node; started by the node
    #[command(hide = true)]
    Supervise {
        /// Name of the node
        #[arg(long)]
        node: String,
        /// Name of the export through which the launcher talks
        #[arg(long = "service", env = vmmc_node::EXPORT_VARIABLE, hide_env_values = true)]
        export: String,
        /// There is a keeper above it already
        #[arg(long)]
        kept: bool,
        /// It is root still, and is to become this user
        #[arg(long, value_name = "UID:GID")]
        run_as: Option<RunAs>,
    },
    /// The other side of `bench sockets`
    #[command(hide = true)]
    SocketsPeer {
        /// Name of the node
        node: String,
        /// Start the node, as a peer of this one
        #[arg(long, requires = "key_file")]
        peer: Option<std::net::SocketAddr>,
        /// Its cluster key
        #[arg(long)]
        key_file: Option<PathBuf>,
    },
    /// A side of `bench techniques`
    #[command(hide = true)]
    TechniquesPeer {
        /// What it does, as JSON
        job: String,
    },
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
    /// Remote fetch, from call to data: one, beside a send, and 16 at once, by handles and by
    /// continuations
    Fetch,
    /// 64-bit remote atomic operations
    Atomic,
    /// Waking a blocked thread by notification
    Notify,
    /// A record for a ring that many append to, beside asking for its place first
    Append,
    /// Pieces for 16 places of one export, in one operation and in 16
    Gather,
    /// Remote calls: waited for, continued, deferred, passed on; results by token and in frames
    Rpc,
    /// Messages by rank and tag: half a round trip, streams, exchanges beside computing, collective
    /// calls of 2 to 8 members
    Mp,
    /// Importing an export that exists
    Import,
    /// Transfer redirection, by when it is posted
    Redirect,
    /// First and later use of memory, pinning, translation; the UTLB paper's Tables 1 and 2
    Utlb,
    /// Stream sockets beside TCP, on one node or (`--path two-nodes`) between two: round trips,
    /// streams, short connections, thinking clients
    Sockets,
    /// Five ways to move a message, the sender alone, the receiver alone and both, beside the
    /// paper's figures and the kernel's own zero copy
    Techniques,
    /// Streams and pings over emulated links, with loss, delay and short queues, beside TCP with
    /// cubic and bbr; needs root
    Network,
}

/// What to do about traces.
#[derive(Subcommand, Debug)]
pub(crate) enum Trace {
    /// Run a program and write down every transfer of its processes, for `vmmc utlb`; a program
    /// that runs by other means records with VMMC_TRACE=FILE
    Record(TraceRecord),
}

/// What to record.
#[derive(Args, Debug)]
pub(crate) struct TraceRecord {
    /// The trace; a name that ends in .zst is compressed, .csv is text
    #[arg(long, short, value_name = "FILE", default_value = "trace.vmmc.zst")]
    pub(crate) out: String,
    /// Only what the tables of pinned memory saw: its replay counts what the program counted
    #[arg(long)]
    pub(crate) only_pinned: bool,
    /// The program and its arguments, after `--`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
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
            What::Append => "append",
            What::Gather => "gather",
            What::Rpc => "rpc",
            What::Mp => "mp",
            What::Import => "import",
            What::Redirect => "redirect",
            What::Utlb => "utlb",
            What::Sockets => "sockets",
            What::Network => "network",
            What::Techniques => "techniques",
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
    /// ONC RPC by libtirpc, over TCP and UDP.
    #[value(name = "sunrpc")]
    SunRpc,
    /// gRPC by tonic, over TCP and over VMMC.
    Grpc,
}

/// Measure VMMC beside the limits of the machine and other transports.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// What to measure
    pub(crate) what: What,
    /// Between whom; several, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(crate) path: Vec<Path>,
    /// Message sizes, for example 8,1K,64K,1M; of calls (`rpc`) also 0 [default: by what is
    /// measured]
    #[arg(long, value_delimiter = ',', value_parser = parse_size_or_zero)]
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
    /// Runs of every series, in turns [default: 25 of latency, bandwidth, fetch and atomic, 3 of
    /// network, else 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(RUNS_MAX)))]
    runs: Option<u32>,
    /// Time that one measurement aims at, milliseconds [default: 500 over the runs, but 15 to 100;
    /// of network 3000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time_ms: Option<u64>,
    /// How long the receiver sleeps before it is notified, microseconds (notify only)
    #[arg(long, value_delimiter = ',', default_values_t = [30, 1000], value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) asleep_us: Vec<u64>,
    /// What of it, separated by commas (sockets only) [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(crate) part: Vec<Part>,
    /// Over which links, separated by commas (network only) [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(crate) link: Vec<Link>,
    /// Congestion control of VMMC's nodes: bbr or cubic (network only) [default: that of nodes]
    #[arg(long, value_name = "bbr|cubic")]
    pub(crate) congestion: Option<vmmc_node::CongestionControl>,
    /// Also write the plots into this folder (techniques only)
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
    /// Fail with exit code 6 when a promise is not met
    #[arg(long)]
    pub(crate) check: bool,
    /// How to show the result.
    #[command(flatten)]
    pub(crate) output: Output,
}

impl Bench {
    /// Runs of every series.
    pub(crate) fn runs(&self) -> u32 {
        self.runs.unwrap_or(match self.what {
            What::Latency
            | What::Bandwidth
            | What::Fetch
            | What::Atomic
            | What::Append
            | What::Gather
            | What::Rpc
            | What::Mp => TURNS,
            What::Notify | What::Import | What::Redirect | What::Utlb | What::Sockets | What::Techniques => RUNS,
            What::Network => NETWORK_RUNS,
        })
    }

    /// Time that one measurement aims at.
    pub(crate) fn time(&self) -> Duration {
        let unless_told = || match self.what {
            What::Network => NETWORK_TIME,
            _ => measure_time(SERIES_TIME, self.runs()),
        };
        self.time_ms.map_or_else(unless_told, Duration::from_millis)
    }
}

/// Time that one of several runs aims at, which together aim at `series`.
pub(crate) fn measure_time(series: Duration, runs: u32) -> Duration {
    let (least, most) = MEASURE_TIME;
    (series / runs).clamp(least, most)
}

/// A part of `bench sockets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Round trips, streams, short connections, thinking clients
    Pairs,
    /// Connections that say nothing
    Silent,
    /// redis, nginx, PostgreSQL and iperf3 with and without `vmmc exec`
    Programs,
}

/// An emulated link of `bench network`: rate, one way, packets that its queue holds, loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// 1 Gb/s, 0.1 ms, 256 packets
    Lan,
    /// The same, one packet in 1,000 lost
    #[value(name = "lan-0.1")]
    Lan01,
    /// The same, one packet in 100 lost
    #[value(name = "lan-1")]
    Lan1,
    /// 1 Gb/s, 5 ms, 1,000 packets
    Wan,
    /// The same, one packet in 10,000 lost
    #[value(name = "wan-0.01")]
    Wan001,
    /// The same, one packet in 1,000 lost
    #[value(name = "wan-0.1")]
    Wan01,
    /// 1 Gb/s, 5 ms, 50 packets
    WanShallow,
    /// 1 Gb/s, 5 ms, 1,000 packets, three packets in 100 late by up to a quarter round trip
    WanReorder,
    /// 200 Mb/s, 20 ms, 200 packets, one packet in 10,000 lost
    Far,
    /// 200 Mb/s, 2 ms, 200 packets: VMMC and TCP at the same time
    Shared,
    /// The same: 2, 4 and 16 streams of VMMC at the same time, each between two nodes of its own,
    /// from 3 s after their beginning on
    Pairs,
    /// The same, each stream 150 ms after the one before
    PairsLate,
    /// The same: 1 MiB from each of 16 nodes to one, at the same time
    Incast,
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

/// The demo.
#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// File to move [default: this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// Runs of every series, of which the median counts
    #[arg(long, value_name = "N", default_value_t = DEMO_RUNS, value_parser = clap::value_parser!(u32).range(1..=i64::from(RUNS_MAX)))]
    pub(crate) runs: u32,
    /// How to show the result.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What to do with nodes.
#[derive(Subcommand, Debug)]
pub(crate) enum Node {
    /// Start a node in the background
    Start(NodeOptions),
    /// Run a node in the foreground, as a service does; Ctrl-C ends it
    Run {
        /// Its settings.
        #[command(flatten)]
        options: NodeOptions,
        /// Leave the terminal of whoever started it
        #[arg(long, hide = true)]
        detach: bool,
    },
    /// End a node; its processes get errors
    Stop(Which),
    /// Describe a node: addresses, peers, processes, exports, imports
    Status {
        /// Which node.
        #[command(flatten)]
        which: Which,
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Show what a node has written down: starts, peers, refusals, attacks
    Log(NodeLog),
    /// List the nodes of this machine
    List {
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
}

/// A node's log.
#[derive(Args, Debug)]
pub(crate) struct NodeLog {
    /// Which node; it need not run any more.
    #[command(flatten)]
    pub(crate) which: Which,
    /// Go on and show new lines as they come
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Show so many of the last lines
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) lines: u32,
}

/// Settings of a node.
#[derive(Args, Debug)]
pub(crate) struct NodeOptions {
    /// Which node.
    #[command(flatten)]
    pub(crate) which: Which,
    /// Name that other nodes know this one by, unique in the cluster [default: that of --name; of a
    /// node called "default" the machine's host name]
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) known_as: Option<String>,
    /// UDP address to listen on, for example 0.0.0.0:4791; repeat for several
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Vec<SocketAddr>,
    /// Address of another node; several paths to one node separated by commas; repeat for several
    /// nodes
    #[arg(long, value_name = "ADDR[,ADDR]")]
    pub(crate) peer: Vec<String>,
    /// File with the cluster key, made if it does not exist [default: ~/.config/vmmc/cluster.key]
    #[arg(long, value_name = "FILE", conflicts_with = "plain")]
    pub(crate) key_file: Option<PathBuf>,
    /// Neither encrypt nor authenticate what nodes send each other: for trusted wires only
    #[arg(long)]
    pub(crate) plain: bool,
    /// What to seal packets with: aegis-128l, aes-256-gcm, or any of them that the other node takes
    /// too
    #[arg(long, value_name = "CIPHER", default_value = "any", conflicts_with = "plain")]
    pub(crate) cipher: vmmc_node::Ciphers,
    /// How to decide what may be under way to another node: bbr measures rate and round trip of the
    /// path, cubic grows until something is lost
    #[arg(long, value_name = "bbr|cubic", default_value_t)]
    pub(crate) congestion: vmmc_node::CongestionControl,
    /// Whether to ask queues on the way to mark packets instead of dropping them: classic takes a
    /// mark for a loss, l4s counts which part is marked
    #[arg(long, value_name = "off|classic|l4s", default_value_t)]
    pub(crate) ecn: vmmc_node::Ecn,
    /// Which users may use the node beside its own and root: any, own (nobody else), or user ids
    /// [default: root's node serves any, others own]
    #[arg(long, value_name = "any|own|UID[,UID]", default_value = "by-owner", hide_default_value = true)]
    pub(crate) serve: vmmc_node::Serve,
    /// Start no processes for `vmmc run`, neither for this machine nor for others
    #[arg(long)]
    pub(crate) no_run: bool,
    /// In plain mode too, start processes for other nodes: then everybody who can send packets to
    /// this node can run programs as its user
    #[arg(long, requires = "plain")]
    pub(crate) plain_run: bool,
    /// In plain mode, believe other nodes whose process asks: then everybody who can send packets
    /// to this node is any user [default: they import what is exported to anyone]
    #[arg(long, requires = "plain")]
    pub(crate) plain_trust_users: bool,
    /// Leave TCP connections between programs under `vmmc exec` with the kernel when the other end
    /// is on another node
    #[arg(long)]
    pub(crate) no_sockets_between: bool,
    /// Show counters to Prometheus at http://ADDR/metrics, to everybody who can connect there
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// How much is written to the log: off, error, warn, info or debug [default: info]
    #[arg(long, value_name = "LEVEL", env = "VMMC_LOG")]
    pub(crate) log_level: Option<vmmc_node::LogLevel>,
    /// The log's file [default: /var/log/vmmc/NAME.log for root, ~/.local/state/vmmc/NAME.log for
    /// others; standard error or the journal for `node run`]
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// The program that starts the processes of jobs
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) launcher: Option<PathBuf>,
    /// End when no process has been attached for this long, seconds
    #[arg(long, value_name = "SECONDS")]
    pub(crate) linger_s: Option<u64>,
    /// Call a peer dead that owes an answer for this long, milliseconds
    #[arg(long, value_name = "MS")]
    pub(crate) peer_timeout_ms: Option<u64>,
    /// Pages of their own memory that all processes together may have pinned [default: a quarter of
    /// the machine's memory]
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) pinned_pages: Option<u64>,
    /// Entries of the cache of translations of pinned memory, a power of two
    #[arg(long, value_name = "ENTRIES", default_value = "8K", value_parser = crate::report::units::parse_size)]
    pub(crate) utlb_entries: u64,
    /// Ways of that cache, a power of two; 1: direct-mapped
    #[arg(long, value_name = "WAYS", default_value_t = 1)]
    pub(crate) utlb_ways: usize,
    /// Do not offset its indices by process
    #[arg(long)]
    pub(crate) utlb_no_offset: bool,
    /// Entries of a process's table that one miss reads
    #[arg(long, value_name = "ENTRIES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(vmmc_utlb::limits::PREFETCH_MAX)))]
    pub(crate) utlb_prefetch: u32,
    /// Second-level tables of a process, each for 2 MiB of addresses, that stay in memory; the
    /// others go to disk [default: all stay]
    #[arg(long, value_name = "TABLES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) utlb_tables: Option<u64>,
}

/// Which node of this user.
#[derive(Args, Clone, Debug)]
pub(crate) struct Which {
    /// Name of the node
    #[arg(long, env = "VMMC_NODE", default_value = vmmc_node::DEFAULT_NODE)]
    pub(crate) name: String,
}

/// What `exec --help` adds.
/// The keys, as [`crate::commands::top`] has them, and the exit codes.
const TOP_HELP: &str = concat!(
    "Keys: up, down and tab choose the node whose details are shown; r, o, b, n and p sort by bytes and
operations a second, bytes in all, name and process id; i inverts the order; ? shows what the columns
mean; q ends.

",
    crate::exit_codes!()
);

const EXEC_HELP: &str = "\
The exit code is the program's own; 127 when it was not found, 126 when it cannot be executed. The exclusion file holds lines `program NAME` and `port NUMBER[-NUMBER]`.

Example: vmmc exec -- redis-server, then vmmc exec -- redis-benchmark -t get";

/// What `--offer` takes: `random` alone gets a seed, which can be given again.
fn offers(text: &str) -> Result<String, String> {
    let seed = |text: &str| text.parse::<u64>().is_ok();
    match text.split_once(':') {
        None if text == "random" => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            Ok(format!("random:{}", now.subsec_nanos()))
        }
        None if matches!(text, "usual" | "at-once") => Ok(text.into()),
        Some(("random", number)) if seed(number) => Ok(text.into()),
        _ => Err("write usual, at-once, random, or random:SEED with a whole number".into()),
    }
}

/// A program to run.
#[derive(Args, Debug)]
pub(crate) struct Exec {
    /// Which node joins the connections; it is started if it does not run.
    #[command(flatten)]
    pub(crate) which: Which,
    /// Say what is done, and at the end of each program why calls were left to the kernel
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Programs and ports to leave alone [default: ~/.config/vmmc/exec.conf]
    #[arg(long, value_name = "FILE")]
    pub(crate) exclude_file: Option<PathBuf>,
    /// When connections move into shared memory: `usual` (after 16 receives or 64 KiB), `at-once`,
    /// or `random[:SEED]`. The last two are for tests
    #[arg(long, value_name = "WHEN", value_parser = offers)]
    pub(crate) offer: Option<String>,
    /// The program and its arguments, after `--`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What about services.
#[derive(Subcommand, Debug)]
pub(crate) enum Rpc {
    /// Services of a node on this machine, with their processes and clients
    List(RpcList),
    /// Time of a call that the service answers by itself
    Ping(RpcPing),
}

/// Which services.
#[derive(Args, Debug)]
pub(crate) struct RpcList {
    /// The node [default: this user's]
    pub(crate) node: Option<String>,
    /// Which node, by option.
    #[command(flatten)]
    pub(crate) which: Which,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which service to call.
#[derive(Args, Debug)]
pub(crate) struct RpcPing {
    /// The service, as SERVICE or NODE/SERVICE, where NODE is a name or address:port
    pub(crate) service: String,
    /// Which node calls.
    #[command(flatten)]
    pub(crate) which: Which,
    /// Calls
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Give up on one call after this long, milliseconds
    #[arg(long, default_value_t = 5000)]
    pub(crate) timeout_ms: u64,
    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Live view.
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Only this node [default: all of this user's and of root's on this machine]
    #[arg(long, value_name = "NAME", env = "VMMC_NODE")]
    pub(crate) name: Option<String>,
    /// Order of processes and imports
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: Sort,
    /// The other way round
    #[arg(long)]
    pub(crate) invert: bool,
    /// Time between two looks, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub(crate) interval_ms: u64,
    /// Print what there is after one interval as text, and end
    #[arg(long)]
    pub(crate) once: bool,
}

/// Counters.
#[derive(Args, Debug)]
pub(crate) struct Stats {
    /// Which node.
    #[command(flatten)]
    pub(crate) which: Which,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// TCP connections.
#[derive(Args, Debug)]
pub(crate) struct Sockets {
    /// Which node.
    #[command(flatten)]
    pub(crate) which: Which,
    /// Time between the two looks that rates come from, milliseconds; 0: no rates
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub(crate) rate_ms: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which path.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// Name or address:port of the exporting node; with NAME
    pub(crate) node: Option<String>,
    /// Name of the export; it is imported, explained and given back
    #[arg(requires = "node")]
    pub(crate) export: Option<String>,
    /// Which node imports.
    #[command(flatten)]
    pub(crate) which: Which,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
