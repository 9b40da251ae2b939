//! `vmmc sim --network`: seeds through links with a rate, a queue and competitors.
//!
//! Invariant: what a seed misses of a goal is printed; what fails a checker is printed with the
//! command that replays it, and makes the exit code 6.

use crate::args::sim::Sim;
use crate::failure::Failure;
use crate::measure::plan::progress;
use crate::report::table::align;
use std::ops::Range;
use std::path::Path;
use vmmc_sim::{Goal, GoalSummary, LinkFailure, LinkOptions, LinkReport, LinkSweep, run_links, run_links_many};
use vmmc_utlb::report::{Chart, Series};

/// Points of a line in a plot: what its width shows.
const POINTS: usize = 120;
/// Size of one chart, as it is drawn.
const CHART: (u32, u32) = (720, 360);

/// Runs the command.
pub(super) fn run(sim: &Sim, seeds: Range<u64>) -> Result<(), Failure> {
    if sim.seeds.is_none() {
        return one(sim);
    }
    let count = seeds.end - seeds.start;
    let bar = progress(count);
    let shows = |finished, failed| super::shows(&bar, finished, failed);
    let sweep = run_links_many(seeds, super::threads(count), sim.congestion, shows);
    bar.finish_and_clear();
    if sim.json {
        crate::output_json(&json(&sweep))?
    } else {
        crate::output(&text(&sweep))?
    }
    super::outcome(sweep.failures.len(), count)
}

/// One seed, with what it is about.
fn one(sim: &Sim) -> Result<(), Failure> {
    let result = run_links(LinkOptions { seed: sim.seed, congestion: sim.congestion });
    match &result {
        Ok(report) if sim.json => crate::output_json(&json_of_one(report))?,
        Ok(report) => crate::output(&text_of_one(report))?,
        Err(failure) if sim.json => crate::output_json(&serde_json::json!({ "failures": [json_of(failure)] }))?,
        Err(failure) => crate::output(&format!("{failure}\n"))?,
    }
    if let (Some(path), Ok(report)) = (&sim.plot, &result) {
        save(path, &plot(report))?;
    }
    super::outcome(usize::from(result.is_err()), 1)
}

fn save(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| Failure::new(format!("{}: {e}", path.display())))
}

fn side(goal: &Goal) -> &'static str {
    if goal.at_least { "at least" } else { "at most" }
}

fn text_of_one(report: &LinkReport) -> String {
    let line = |goal: &Goal| {
        let met = if goal.is_met() { "yes" } else { "no" };
        vec![goal.name.into(), format!("{:.3}", goal.value), format!("{} {:.3}", side(goal), goal.bound), met.into()]
    };
    let lines: Vec<Vec<String>> = report.goals.iter().map(line).collect();
    let mut out = format!("{}\n\n", report.scenario);
    out += &align(&["", "value", "goal", "met"], &lines, 1);
    out += &format!(
        "\n{} packets, {} found the queue full, {} were too large, {} were marked, {} lost, {} late; longest time without data {:.0?}\n",
        report.packets, report.dropped, report.too_large, report.marked, report.lost, report.late, report.longest_still
    );
    out + &times(report.virtual_time, report.wall_time, report.digest)
}

fn times(simulated: std::time::Duration, real: std::time::Duration, digest: u64) -> String {
    format!("{simulated:.1?} simulated in {real:.1?} of processor time, digest {digest:016x}\n")
}

fn text(sweep: &LinkSweep) -> String {
    let mut out: String = sweep.failures.iter().map(|f| format!("{f}\n\n")).collect();
    let line = |g: &GoalSummary| {
        vec![
            g.shape.name().into(),
            g.control.to_string(),
            g.name.into(),
            g.runs.to_string(),
            g.missed.to_string(),
            format!("{:.3}", g.median),
            format!("{:.3}", g.worst.value),
            format!("{} {:.3}", side(&g.worst), g.worst.bound),
            g.worst_seed.to_string(),
        ]
    };
    let lines: Vec<Vec<String>> = sweep.goals.iter().map(line).collect();
    let head = ["links", "control", "goal", "runs", "missed", "median", "worst", "its goal", "its seed"];
    out += &align(&head, &lines, 3);
    out += &format!(
        "\nevery property held in {} runs: {} packets, {} found a queue full, {} were too large, {} were marked, {} lost, {} late; \
         longest time without data {:.0?}\n",
        sweep.runs,
        sweep.packets,
        sweep.dropped,
        sweep.too_large,
        sweep.marked,
        sweep.lost,
        sweep.late,
        sweep.longest_still
    );
    out + &times(sweep.virtual_time, sweep.wall_time, sweep.digest)
}

fn json_of(failure: &LinkFailure) -> serde_json::Value {
    serde_json::json!({
        "seed": failure.options.seed, "scenario": failure.scenario, "checker": failure.checker,
        "message": failure.message, "replay": failure.replay_command(),
    })
}

fn json_of_one(report: &LinkReport) -> serde_json::Value {
    let goal = |goal: &Goal| {
        serde_json::json!({
            "name": goal.name, "value": goal.value, "bound": goal.bound, "at_least": goal.at_least,
            "met": goal.is_met(), "required": goal.required,
        })
    };
    serde_json::json!({
        "scenario": report.scenario, "links": report.shape.name(), "control": report.control.to_string(),
        "goals": report.goals.iter().map(goal).collect::<Vec<_>>(), "packets": report.packets,
        "dropped": report.dropped, "lost": report.lost, "late": report.late, "marked": report.marked, "too_large": report.too_large,
        "digest": format!("{:016x}", report.digest), "failures": [],
    })
}

fn json(sweep: &LinkSweep) -> serde_json::Value {
    let goal = |g: &GoalSummary| {
        serde_json::json!({
            "links": g.shape.name(), "control": g.control.to_string(), "name": g.name, "runs": g.runs,
            "missed": g.missed, "median": g.median, "worst": g.worst.value, "worst_bound": g.worst.bound,
            "worst_seed": g.worst_seed, "required": g.worst.required,
        })
    };
    serde_json::json!({
        "runs": sweep.runs, "goals": sweep.goals.iter().map(goal).collect::<Vec<_>>(), "packets": sweep.packets,
        "dropped": sweep.dropped, "lost": sweep.lost, "late": sweep.late, "marked": sweep.marked, "too_large": sweep.too_large,
        "digest": format!("{:016x}", sweep.digest),
        "failures": sweep.failures.iter().map(json_of).collect::<Vec<_>>(),
    })
}

/// A list in two parts of about the same length: one line has no room for all of it.
fn halves(list: &str) -> (&str, &str) {
    let commas = list.match_indices(", ").map(|(at, _)| at);
    let middle = commas.min_by_key(|at| at.abs_diff(list.len() / 2)).unwrap_or(list.len());
    (&list[..middle], list[middle..].trim_start_matches(", "))
}

/// Rates, and below them the queue.
fn plot(report: &LinkReport) -> String {
    let step = report.moments.len().div_ceil(POINTS).max(1);
    let steps = || report.moments.chunks(step).filter_map(|part| part.last().map(|last| (part, last.at.as_secs_f64())));
    let rate = |flow: usize| {
        let mean = |part: &[vmmc_sim::Moment]| part.iter().map(|m| m.bits_per_s[flow]).sum::<f64>() / part.len() as f64;
        steps().map(|(part, at)| (at, mean(part) / 1e6)).collect()
    };
    let flows = report.flows.iter().enumerate();
    let rates = flows.map(|(flow, name)| Series { name: name.clone(), points: rate(flow), dashed: false }).collect();
    let longest = |part: &[vmmc_sim::Moment]| part.iter().map(|m| m.queued_bytes).max().unwrap_or(0) as f64 / 1e3;
    let queue = steps().map(|(part, at)| (at, longest(part))).collect();
    let queue = vec![Series { name: "longest in each step".into(), points: queue, dashed: false }];
    let chart = |title: &str, y: &str, series| Chart {
        title: title.into(),
        x: "simulated time, s".into(),
        y: y.into(),
        log_x: false,
        series,
    };
    let (title, rest) = halves(&report.scenario);
    let charts = [chart(title, "data that arrives, Mb/s", rates), chart(rest, "queue, KB", queue)];
    let (width, height) = CHART;
    let mut svg = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {}\">\n", 2 * height);
    for (at, chart) in charts.iter().enumerate() {
        let place = format!("<svg y=\"{}\" width=\"{width}\" height=\"{height}\" ", at as u32 * height);
        svg += &chart.svg().replacen("<svg ", &place, 1);
    }
    svg + "</svg>\n"
}
