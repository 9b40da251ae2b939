//! `vmmc bench`: plans the series of a bench, measures them, says what the promises are worth.
//!
//! Invariant: limits and peers are in the same plan as what they are compared with.

use crate::args::{Bench, MaybePeer, Output, Path, Peer, What};
use crate::external;
use crate::failure::Failure;
use crate::limits::{
    CALL_ASLEEP_US, NOISY_RATIO, RELATION_BYTES_MIN, RPC_STREAM_BYTES, SILENT_CLIENTS, SILENT_DESCRIPTORS,
};
use crate::machine::{Machine, Quiet};
use crate::measure::nodes::Route;
use crate::measure::pair::{Pair, TemporaryNode};
use crate::measure::plan::{Plan, Source};
use crate::measure::task::{
    AppendBy, AtomicOp, Beside, CallBy, CallWay, Collective, EndsBy, GatherBy, Kernel, Measure, MpWay, RedirectWhen,
    ResultBy, Setting, Vmmc, Waker, Watched, WokenBy, Work,
};
use crate::report::promise::calls::{
    ASLEEP, BESIDE_SILENT, IDLE_ALONE, IDLE_WITH_SILENT, PIPELINED, SEND, SENDS, STREAMED,
};
use crate::report::{Figures, Key, Missing, Report, html, promise, table};
use clap::ValueEnum;
use std::time::SystemTime;
use vmmc_host::text::utc;

/// How the rows of messages are called that other libraries have too.
pub(crate) const MESSAGE: &str = "message";
/// The same of many in one direction.
pub(crate) const MESSAGE_STREAM: &str = "stream";

/// Rows of two members that send to each other at once: the whole time, and what it is longer than
/// what they do meanwhile.
pub(crate) const EXCHANGES: [(&str, Beside); 3] = [
    ("exchange", Beside::Nothing),
    ("exchange, computing", Beside::Computing),
    ("exchange, computing, polled", Beside::Polled),
];

/// Members of collective calls that are measured.
pub(crate) const MEMBERS: [u32; 3] = [2, 4, 8];
/// Bytes of the collective calls that are held against those of others.
pub(crate) const COLLECTIVE_BYTES: u64 = 8;

/// How the rows of a collective call of so many are called.
pub(crate) fn of_members(call: &str, members: u32) -> String {
    format!("{call} of {members}")
}

/// Runs the command.
pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    if bench.what != What::Rpc && bench.sizes.contains(&0) {
        return Err(Failure::Usage(
            "--sizes 0 is for calls without a result, which only `vmmc bench rpc` makes; write for example 8, 64K or 1M"
                .into(),
        ));
    }
    if bench.what == What::Utlb {
        return super::bench_utlb::run(&bench.output, bench.check);
    }
    if bench.what == What::Techniques {
        return super::bench_techniques::run(bench);
    }
    if bench.what == What::Sockets {
        return super::bench_sockets::run(bench);
    }
    if bench.what == What::Network {
        return super::bench_network::run(bench);
    }
    if bench.svg.is_some() {
        return Err(Failure::Usage(
            "--svg writes plots, which only `vmmc bench techniques` has; --html has those of others".into(),
        ));
    }
    if !bench.link.is_empty() {
        return Err(Failure::Usage("--link names an emulated link, which only `vmmc bench network` has".into()));
    }
    let quiet = Quiet::start();
    let (rows, missing) = measure(bench)?;
    let made = format!("Made by `vmmc bench`, release {}, at {}.", env!("CARGO_PKG_VERSION"), utc(SystemTime::now()));
    let mut report = Report {
        about: vec![made],
        bench: bench.what.name().into(),
        machine: Machine::here(),
        rows,
        missing,
        promises: vec![],
        warnings: quiet.warnings(),
    };
    report.promises = promise::verdicts(&report);
    report.warnings.extend(noise(&report));
    show(&report, &bench.output, table::bench)?;
    verdict(&report, bench.check)
}

/// Plans and measures. The temporary nodes end when this returns.
fn measure(bench: &Bench) -> Result<(Vec<crate::report::Row>, Vec<Missing>), Failure> {
    let mut plan = Plan::default();
    let mut nodes = Vec::new();
    let mut missing = Vec::new();
    let bare = plan.pair(Pair::start(Setting::Bare, Setting::Bare).map_err(Failure::new)?);
    let routes = routes(&mut plan, bench, &mut nodes);
    let tools = tools(bench, &mut missing);
    missing.extend(silent().err().filter(|_| bench.what == What::Rpc));
    let time = bench.time();
    for size in sizes(bench) {
        add_limits(&mut plan, bare, bench, size);
        for route in &routes {
            add_vmmc(&mut plan, route, bench, size);
        }
        add_kernel(&mut plan, bare, bench, size);
        // Long answers are held against sends alone: those of others are not sent by token.
        let compared = bench.what != What::Rpc || size != RPC_STREAM_BYTES;
        for tool in tools.iter().filter(|_| compared) {
            tool.add(&mut plan, bench.what, size, time);
        }
    }
    Ok((plan.carry_out(bench.runs(), time), missing))
}

/// A path that is measured: pair of the plan, or why there is none.
struct Line {
    series: &'static str,
    path: Path,
    pair: Result<usize, String>,
}

fn routes(plan: &mut Plan, bench: &Bench, nodes: &mut Vec<TemporaryNode>) -> Vec<Line> {
    let paths = if bench.path.is_empty() { Path::value_variants().to_vec() } else { bench.path.clone() };
    let mut lines = Vec::new();
    for path in paths {
        let between_nodes = path != Path::SameNode;
        for sealed in [true, false] {
            let unwanted = if sealed { bench.plain } else { bench.sealed };
            if (between_nodes && unwanted) || (!between_nodes && !sealed) {
                continue;
            }
            let pair = Route::open(path, sealed).map_err(|e| e.to_string()).map(|route| {
                nodes.extend(route.nodes);
                plan.pair(route.pair)
            });
            lines.push(Line { series: if sealed { "vmmc" } else { "vmmc-plain" }, path, pair });
        }
    }
    lines
}

fn sizes(bench: &Bench) -> Vec<u64> {
    if !bench.sizes.is_empty() {
        return bench.sizes.clone();
    }
    match bench.what {
        What::Latency | What::Fetch => vec![8, 1 << 10, 64 << 10],
        What::Bandwidth => vec![64 << 10, 1 << 20, 64 << 20],
        What::Atomic | What::Notify => vec![8],
        What::Append | What::Gather => vec![8, 256],
        What::Rpc => vec![0, 4 << 10, 8 << 10, RPC_STREAM_BYTES],
        What::Mp => vec![8, 1 << 10, 64 << 10, 1 << 20],
        What::Import => vec![4 << 10],
        What::Redirect => vec![4 << 10, 64 << 10, 1 << 20],
        What::Utlb | What::Sockets | What::Network | What::Techniques => vec![],
    }
}

fn key(series: &str, path: &str, size_bytes: u64) -> Key {
    Key { series: series.into(), path: path.into(), op: None, size_bytes, asleep_us: None }
}

fn add_vmmc(plan: &mut Plan, line: &Line, bench: &Bench, size: u64) {
    let plain = |what: Vmmc| vec![(key(line.series, line.path.name(), size), what)];
    let with_op =
        |op: &str, what: Vmmc| (Key { op: Some(op.into()), ..key(line.series, line.path.name(), size) }, what);
    let series: Vec<(Key, Vmmc)> = match bench.what {
        What::Latency => plain(Vmmc::Latency),
        What::Bandwidth => plain(Vmmc::Bandwidth),
        What::Import => plain(Vmmc::Import),
        What::Fetch => {
            let named = |what: &str| key(&format!("{}-{what}", line.series), line.path.name(), size);
            vec![
                (key(line.series, line.path.name(), size), Vmmc::Fetch),
                (named("send"), Vmmc::Latency),
                (named("16"), Vmmc::Fetches { by: EndsBy::Handles }),
                (named("16-continued"), Vmmc::Fetches { by: EndsBy::Continuations }),
            ]
        }
        What::Atomic => vec![
            with_op("fetch-add", Vmmc::Atomic { op: AtomicOp::FetchAdd }),
            with_op("compare-swap", Vmmc::Atomic { op: AtomicOp::CompareSwap }),
            with_op("swap", Vmmc::Atomic { op: AtomicOp::Swap }),
        ],
        What::Append => vec![
            with_op("append", Vmmc::Append { by: AppendBy::Ring }),
            with_op("fetch-add, send, flush", Vmmc::Append { by: AppendBy::Place }),
        ],
        What::Gather => vec![
            with_op("gather-send of 16", Vmmc::Gather { by: GatherBy::One }),
            with_op("16 sends", Vmmc::Gather { by: GatherBy::Sends }),
        ],
        What::Rpc => {
            let mut all: Vec<_> = ways(size).into_iter().map(|(op, way)| with_op(&op, Vmmc::Rpc { way })).collect();
            match size {
                0 if line.path == Path::SameNode => {
                    all.extend(silent().into_iter().flatten().map(|(op, what)| with_op(op, what)));
                }
                0 => all.push(with_op(SEND, Vmmc::Latency)),
                RPC_STREAM_BYTES => all.push(with_op(SENDS, Vmmc::Bandwidth)),
                _ => {}
            }
            all
        }
        What::Mp => {
            let ways = messages(size).into_iter().map(|(op, way)| with_op(&op, Vmmc::Mp { way }));
            ways.chain((size >= RELATION_BYTES_MIN).then(|| with_op(SENDS, Vmmc::Bandwidth))).collect()
        }
        What::Notify => bench
            .asleep_us
            .iter()
            .flat_map(|&asleep_us| {
                [(WokenBy::Notification, ""), (WokenBy::Word, "-word"), (WokenBy::Any, "-any")].map(|(by, of)| {
                    let series = format!("{}{of}", line.series);
                    let key = Key { asleep_us: Some(asleep_us), ..key(&series, line.path.name(), size) };
                    (key, Vmmc::Notify { by, asleep_us })
                })
            })
            .collect(),
        What::Redirect => vec![
            with_op("copied by the receiver", Vmmc::Redirect { when: RedirectWhen::Never }),
            with_op("redirected before", Vmmc::Redirect { when: RedirectWhen::Before }),
            with_op("redirected before, in 1,024", Vmmc::Redirect { when: RedirectWhen::Row }),
            with_op("redirected after", Vmmc::Redirect { when: RedirectWhen::After }),
            with_op("posting, each of 1,024", Vmmc::PostRedirects { withdraw: false }),
            with_op("withdrawing, each of 1,024", Vmmc::PostRedirects { withdraw: true }),
        ],
        // They have plans of their own.
        What::Utlb | What::Sockets | What::Network | What::Techniques => vec![],
    };
    for (key, what) in series {
        match &line.pair {
            Ok(pair) => plan.add(key, Source::Pair(*pair, Work::Vmmc(what))),
            Err(why) => plan.add_failed(key, why.clone()),
        }
    }
}

/// The ways of a call with a result of this size, those of [GMS] Table 1 in its order.
fn ways(size: u64) -> Vec<(String, CallWay)> {
    let ways = [(false, "2-way"), (true, "3-way")].into_iter().flat_map(|hops| {
        let by = [(CallBy::Wait, "wait"), (CallBy::Continued, "continued"), (CallBy::Deferred, "deferred")];
        by.into_iter().map(move |by| (hops, by))
    });
    let way = |three, by, result, measure| CallWay { three, thread: false, by, result, measure };
    if size == 0 {
        let mut all: Vec<_> = ways
            .map(|((three, hops), (by, how))| {
                (format!("{hops} {how}"), way(three, by, ResultBy::Nothing, Measure::Latency))
            })
            .collect();
        all.push((PIPELINED.into(), way(false, CallBy::Continued, ResultBy::Nothing, Measure::Bandwidth)));
        let on_thread = CallWay { thread: true, ..way(false, CallBy::Wait, ResultBy::Nothing, Measure::Latency) };
        all.push(("2-way wait, on a thread".into(), on_thread));
        all.push((ASLEEP.into(), way(false, CallBy::Asleep, ResultBy::Nothing, Measure::Latency)));
        return all;
    }
    if size == RPC_STREAM_BYTES {
        return vec![(STREAMED.into(), way(false, CallBy::Continued, ResultBy::Token, Measure::Bandwidth))];
    }
    let measured = [Measure::Latency, Measure::Bandwidth].into_iter().flat_map(|measure| {
        ways.clone().flat_map(move |((three, hops), (by, how))| {
            let results =
                [(ResultBy::Token, "by token"), (ResultBy::Frame, "in a frame"), (ResultBy::Copied, "copied")];
            let of = if measure == Measure::Latency { "" } else { ", rate" };
            results.map(|(result, what)| (format!("{hops} {how}, {what}{of}"), way(three, by, result, measure)))
        })
    });
    measured.collect()
}

/// What is measured of messages of this size.
fn messages(size: u64) -> Vec<(String, MpWay)> {
    let pair = |measure, into_memory| MpWay::Pair { measure, into_memory };
    let mut all =
        vec![(MESSAGE.into(), pair(Measure::Latency, false)), (MESSAGE_STREAM.into(), pair(Measure::Bandwidth, false))];
    if size > vmmc_mp::limits::EAGER_BYTES_MAX {
        all.push(("message into its memory".into(), pair(Measure::Latency, true)));
        all.push(("stream into its memory".into(), pair(Measure::Bandwidth, true)));
    }
    all.extend(EXCHANGES.map(|(name, beside)| (name.into(), MpWay::Exchange { beside })));
    for members in MEMBERS {
        let mut call = |name, call| all.push((of_members(name, members), MpWay::Collective { call, members }));
        if size == COLLECTIVE_BYTES {
            call("barrier", Collective::Barrier);
            call("superstep", Collective::Superstep);
        }
        if size >= RELATION_BYTES_MIN {
            call("h-relation", Collective::Relation);
        }
        call("allreduce", Collective::Allreduce);
        call("broadcast", Collective::Broadcast);
    }
    all
}

/// Calls beside clients that call nothing, and what those cost; or why there are none.
fn silent() -> Result<[(&'static str, Vmmc); 3], Missing> {
    let (needed, most) = (SILENT_CLIENTS * SILENT_DESCRIPTORS, vmmc_host::memory::open_files_max());
    if most.is_some_and(|most| most < needed) {
        let how = format!("each process needs {needed} descriptors; raise the limit (ulimit -n)");
        return Err(Missing { series: format!("{SILENT_CLIENTS} silent clients"), how });
    }
    let silent = |clients, watched| Vmmc::Silent { clients, watched };
    Ok([
        (BESIDE_SILENT, silent(SILENT_CLIENTS, Watched::Caller)),
        (IDLE_ALONE, silent(0, Watched::Server)),
        (IDLE_WITH_SILENT, silent(SILENT_CLIENTS, Watched::Server)),
    ])
}

fn add_limits(plan: &mut Plan, pair: usize, bench: &Bench, size: u64) {
    let mut add = |series: &str, work: Work| plan.add(key(series, "limit", size), Source::Pair(pair, work));
    match bench.what {
        What::Latency => {
            if size <= 64 {
                add("cache-line", Work::CacheLine);
            }
            add("memcpy", Work::Memcpy { measure: Measure::Latency });
        }
        What::Fetch | What::Redirect => add("memcpy", Work::Memcpy { measure: Measure::Latency }),
        What::Bandwidth => add("memcpy", Work::Memcpy { measure: Measure::Bandwidth }),
        What::Atomic => {
            add("cache-line", Work::CacheLine);
            add("local-atomic", Work::LocalAtomic);
        }
        What::Rpc | What::Mp => {
            add("cache-line", Work::CacheLine);
            if size > 0 {
                add("memcpy", Work::Memcpy { measure: Measure::Latency });
            } else {
                add("futex", Work::Wake { by: Waker::Futex, asleep_us: CALL_ASLEEP_US });
            }
        }
        What::Import => add("pass-fd", Work::PassDescriptor),
        What::Append | What::Gather | What::Utlb | What::Sockets | What::Network | What::Techniques => {}
        What::Notify => {
            for asleep_us in bench.asleep_us.clone() {
                for (series, by) in [("futex", Waker::Futex), ("pipe-wake", Waker::Pipe)] {
                    let key = Key { asleep_us: Some(asleep_us), ..key(series, "limit", size) };
                    plan.add(key, Source::Pair(pair, Work::Wake { by, asleep_us }));
                }
            }
        }
    }
}

fn add_kernel(plan: &mut Plan, pair: usize, bench: &Bench, size: u64) {
    let measure = match bench.what {
        What::Latency => Measure::Latency,
        What::Bandwidth => Measure::Bandwidth,
        _ => return,
    };
    for peer in peers(bench) {
        if let Some((series, transport)) = kernel_peer(peer) {
            plan.add(key(series, "kernel", size), Source::Pair(pair, Work::Kernel { transport, measure }));
        }
    }
}

/// Public tools that were asked for and are installed; the others are named as missing.
fn tools(bench: &Bench, missing: &mut Vec<Missing>) -> Vec<external::Tool> {
    let mut found = Vec::new();
    for peer in peers(bench) {
        match external::find(peer, bench.what) {
            Some(Ok(tools)) => found.extend(tools),
            Some(Err(how)) => missing.push(how),
            None => {}
        }
    }
    found
}

fn peers(bench: &Bench) -> Vec<Peer> {
    match &bench.peers {
        None => Peer::value_variants().to_vec(),
        Some(peers) => peers.iter().filter_map(|MaybePeer(p)| *p).collect(),
    }
}

/// Series name and transport of the peers that the kernel brings.
pub(crate) fn kernel_peer(peer: Peer) -> Option<(&'static str, Kernel)> {
    Some(match peer {
        Peer::Pipe => ("pipe", Kernel::Pipe),
        Peer::Unix => ("unix", Kernel::Unix),
        Peer::Tcp => ("tcp", Kernel::Tcp { spin: false }),
        Peer::TcpSpin => ("tcp-spin", Kernel::Tcp { spin: true }),
        Peer::Udp => ("udp", Kernel::Udp { spin: false }),
        Peer::UdpSpin => ("udp-spin", Kernel::Udp { spin: true }),
        Peer::Ucx | Peer::Libfabric | Peer::Mpi | Peer::Iceoryx2 | Peer::SunRpc | Peer::Grpc => return None,
    })
}

/// Warns when the undisturbed loop of the cache-line limit was disturbed.
pub(crate) fn noise(report: &Report) -> Option<String> {
    let row = report.rows.iter().find(|r| r.key.series == "cache-line")?;
    match &row.figures {
        Figures::Latency { p50_ns, p99_ns, .. } if p99_ns / p50_ns > NOISY_RATIO => Some(format!(
            "the machine was noisy: the cache-line limit has p99 {:.1} times its median; repeat on a quiet machine",
            p99_ns / p50_ns
        )),
        _ => None,
    }
}

/// Prints the report in the form asked for, and writes the page.
pub(crate) fn show(report: &Report, output: &Output, human: fn(&Report) -> String) -> Result<(), Failure> {
    if let Some(file) = &output.html {
        std::fs::write(file, html::page(report))
            .map_err(|e| Failure::new(format!("{} cannot be written: {e}", file.display())))?;
    }
    crate::output(&if output.json { report.json() } else { human(report) })
}

/// With `--check`, a promise that is not met is a failure; a series that failed always is.
pub(crate) fn verdict(report: &Report, check: bool) -> Result<(), Failure> {
    let failed: Vec<String> = report
        .rows
        .iter()
        .filter_map(|r| match &r.figures {
            Figures::Failed { error } => Some(format!("{} {}: {error}", r.key.series, r.key.path)),
            _ => None,
        })
        .collect();
    if let Some(first) = failed.first() {
        return Err(Failure::new(format!("{} rows could not be measured; {first}", failed.len())));
    }
    let broken = report.promises.iter().filter(|v| !v.met).count();
    if check && broken > 0 {
        return Err(Failure::Check(format!("{broken} of {} promises are not met", report.promises.len())));
    }
    Ok(())
}
