//! `vmmc sim`: seeds through the simulated cluster.
//!
//! Invariant: a failing seed is printed with the command that replays it, and makes the exit
//! code 6.

mod network;

use crate::args::sim::Sim;
use crate::failure::Failure;
use crate::measure::plan::progress;
use indicatif::ProgressBar;
use vmmc_sim::{Options, Report, Sweep, run_many};
use vmmc_sockets::simulation;

/// Events that `--trace` keeps.
const TRACE_LINES: usize = 10_000;

/// Runs the command.
pub(crate) fn run(sim: &Sim) -> Result<(), Failure> {
    let seeds = sim.seeds.clone().unwrap_or(sim.seed..sim.seed.saturating_add(1));
    if sim.sockets {
        return sockets(sim, seeds);
    }
    if sim.network {
        return network::run(sim, seeds);
    }
    if sim.mp {
        return messages(sim, seeds);
    }
    let count = seeds.end - seeds.start;
    let bar = progress(count);
    let sweep =
        run_many(seeds, threads(count), |seed| options(sim, seed), |finished, failed| shows(&bar, finished, failed));
    bar.finish_and_clear();
    if sim.json {
        crate::output_json(&json(&sweep))?
    } else {
        crate::output(&text(&sweep))?
    }
    outcome(sweep.failures.len(), count)
}

/// Shows how many runs have finished and failed; the others go on.
fn shows(bar: &ProgressBar, finished: u64, failed: u64) -> bool {
    bar.set_position(finished);
    if failed > 0 {
        bar.set_message(format!("{failed} failed"));
    }
    true
}

/// Threads for so many seeds.
fn threads(seeds: u64) -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(seeds as usize)
}

fn outcome(failed: usize, count: u64) -> Result<(), Failure> {
    match failed {
        0 => Ok(()),
        failed => Err(Failure::Check(format!("{failed} of {count} seeds failed"))),
    }
}

/// Seeds through the protocol of stream sockets.
fn sockets(sim: &Sim, seeds: std::ops::Range<u64>) -> Result<(), Failure> {
    let count = seeds.end - seeds.start;
    let bar = progress(count);
    let mut totals = simulation::Totals::default();
    let mut between = simulation::between::Totals::default();
    let mut failures = Vec::new();
    for seed in seeds {
        match simulation::run(seed) {
            Ok(run) => totals.add(&run),
            Err(why) => failures.push((seed, why)),
        }
        match simulation::between::run(seed) {
            Ok(run) => between.add(&run),
            Err(why) => failures.push((seed, format!("between nodes: {why}"))),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let counts: Vec<(&str, u64)> = totals.counts().into_iter().chain(between.counts()).collect();
    say(sim, "--sockets", count, &counts, &failures)
}

/// Seeds through the messages of a job.
fn messages(sim: &Sim, seeds: std::ops::Range<u64>) -> Result<(), Failure> {
    let count = seeds.end - seeds.start;
    let bar = progress(count);
    let (mut totals, mut failures) = (vmmc_mp::simulation::Totals::default(), Vec::new());
    for seed in seeds {
        match vmmc_mp::simulation::run(seed) {
            Ok(run) => totals.add(&run),
            Err(why) => failures.push((seed, why)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    say(sim, "--mp", count, &totals.counts(), &failures)
}

/// Says what became of seeds of such a kind.
fn say(
    sim: &Sim,
    kind: &str,
    count: u64,
    counts: &[(&'static str, u64)],
    failures: &[(u64, String)],
) -> Result<(), Failure> {
    let replay = |seed: &u64| format!("vmmc sim {kind} --seed {seed}");
    if sim.json {
        let counts: serde_json::Map<String, serde_json::Value> =
            counts.iter().map(|(name, n)| (name.replace(' ', "_"), (*n).into())).collect();
        let failures: Vec<serde_json::Value> = failures
            .iter()
            .map(|(seed, why)| serde_json::json!({ "seed": seed, "message": why, "replay": replay(seed) }))
            .collect();
        crate::output_json(&serde_json::json!({ "counts": counts, "failures": failures }))?;
    } else {
        let mut out: String =
            failures.iter().map(|(seed, why)| format!("seed {seed}: {why}\nreplay: {}\n\n", replay(seed))).collect();
        let lines: Vec<Vec<String>> = counts.iter().map(|(name, n)| vec![(*name).into(), n.to_string()]).collect();
        out += &crate::report::table::align(&["every property held in", "count"], &lines, 1);
        crate::output(&out)?;
    }
    outcome(failures.len(), count)
}

fn options(sim: &Sim, seed: u64) -> Options {
    let mut options = match sim.nodes {
        Some(nodes) => Options::new(nodes as usize, seed),
        None => Options::for_sweep(seed),
    };
    options.steps = sim.steps.unwrap_or(options.steps);
    if sim.trace {
        options.trace_lines = TRACE_LINES;
    }
    options
}

fn counts(r: &Report) -> [(&'static str, u64); 16] {
    [
        ("runs", r.runs),
        ("actions", r.steps),
        ("operations", r.operations),
        ("operations_done", r.operations_done),
        ("operations_failed", r.operations_failed),
        ("exports", r.exports),
        ("imports", r.imports),
        ("notifications", r.notifications),
        ("gather sends", r.gather_sends),
        ("records appended", r.records),
        ("rings found full", r.full_rings),
        ("redirects", r.redirects),
        ("deposited_bytes", r.deposited_bytes),
        ("packets", r.packets),
        ("retransmits", r.engines.retransmits),
        ("faults", r.faults.total()),
    ]
}

fn text(sweep: &Sweep) -> String {
    let mut out: String = sweep.failures.iter().map(|f| format!("{f}\n\n")).collect();
    let lines: Vec<Vec<String>> =
        counts(&sweep.report).iter().map(|(name, n)| vec![name.replace('_', " "), n.to_string()]).collect();
    out += &crate::report::table::align(&["every property held in", "count"], &lines, 1);
    let (real, simulated) = (sweep.report.wall_time, sweep.report.virtual_time);
    let per_second = real.div_f64(simulated.as_secs_f64().max(1e-9));
    out + &format!(
        "\n{simulated:.1?} simulated in {real:.1?} of processor time, {per_second:.2?} a second, digest {:016x}\n",
        sweep.report.digest
    )
}

fn json(sweep: &Sweep) -> serde_json::Value {
    let failures: Vec<serde_json::Value> = sweep
        .failures
        .iter()
        .map(|f| {
            serde_json::json!({
                "seed": f.options.seed, "nodes": f.options.nodes, "step": f.step, "checker": f.checker,
                "message": f.message, "replay": f.replay_command(), "trace": f.trace,
            })
        })
        .collect();
    let counts: serde_json::Map<String, serde_json::Value> =
        counts(&sweep.report).into_iter().map(|(name, n)| (name.to_string(), n.into())).collect();
    serde_json::json!({ "counts": counts, "digest": format!("{:016x}", sweep.report.digest), "failures": failures })
}
