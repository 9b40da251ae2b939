//! `vmmc bench`: plans the series of a bench, measures them, says what the promises are worth.
//!
//! Invariant: limits and peers are in the same plan as what they are compared with.

use crate::args::{Bench, MaybePeer, Output, Path, Peer, What};
use crate::failure::Failure;
use crate::limits::NOISY_RATIO;
use crate::machine::{Machine, Quiet};
use crate::measure::pair::Pair;
use crate::measure::plan::{Plan, Source};
use crate::measure::task::{Kernel, Measure, Setting, Waker, Work};
use crate::report::{Figures, Key, Report, promise, table};
use clap::ValueEnum;
use std::time::Duration;

/// Runs the command.
pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    let quiet = Quiet::start();
    let mut plan = Plan::default();
    let bare = plan.pair(Pair::start(Setting::Bare, Setting::Bare).map_err(Failure::new)?);
    for size in sizes(bench) {
        add_limits(&mut plan, bare, bench, size);
        add_kernel(&mut plan, bare, bench, size);
    }
    let rows = plan.carry_out(bench.runs, Duration::from_millis(bench.time_ms));
    let mut report = Report {
        bench: bench.what.name().into(),
        machine: Machine::here(),
        rows,
        missing: vec![],
        promises: vec![],
        warnings: quiet.warnings(),
    };
    report.promises = promise::verdicts(&report);
    report.warnings.extend(noise(&report));
    show(&report, &bench.output, table::bench)?;
    verdict(&report, bench.check)
}

fn sizes(bench: &Bench) -> Vec<u64> {
    if !bench.sizes.is_empty() {
        return bench.sizes.clone();
    }
    match bench.what {
        What::Latency | What::Fetch => vec![8, 1 << 10, 64 << 10],
        What::Bandwidth => vec![64 << 10, 1 << 20, 64 << 20],
        What::Atomic | What::Notify => vec![8],
        What::Import => vec![4 << 10],
        What::Redirect => vec![4 << 10, 64 << 10, 1 << 20],
    }
}

fn key(series: &str, path: &str, size_bytes: u64) -> Key {
    Key { series: series.into(), path: path.into(), op: None, size_bytes, asleep_us: None }
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
        What::Import => add("pass-fd", Work::PassDescriptor),
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
        _ => return None,
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

/// Prints the report in the form asked for.
pub(crate) fn show(report: &Report, output: &Output, human: fn(&Report) -> String) -> Result<(), Failure> {
    if let Some(file) = &output.html {
        let _ = file;
    }
    if output.json {
        print!("{}", report.json())
    } else {
        print!("{}", human(report))
    }
    Ok(())
}

/// With `--check`, a promise that is not met is a failure; a series that failed always is.
pub(crate) fn verdict(report: &Report, check: bool) -> Result<(), Failure> {
    let failed: Vec<&str> = report
        .rows
        .iter()
        .filter(|r| matches!(r.figures, Figures::Failed { .. }))
        .map(|r| r.key.series.as_str())
        .collect();
    if !failed.is_empty() {
        return Err(Failure::new(format!("{} series could not be measured: {}", failed.len(), failed.join(", "))));
    }
    let broken = report.promises.iter().filter(|v| !v.met).count();
    if check && broken > 0 {
        return Err(Failure::Check(format!("{broken} of {} promises are not met", report.promises.len())));
    }
    Ok(())
}
