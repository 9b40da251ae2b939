//! `vmmc utlb simulate`: every combination of the values given, on all cores.
//!
//! Invariant: each run streams the traces anew, so memory does not grow with their length; rows are
//! in the order of the flags.

use super::trace::open;
use super::{profile, save};
use crate::args::utlb::Simulate;
use crate::failure::Failure;
use crate::measure::plan::progress;
use crate::report::table::align;
use crate::report::units::parse_size;
use vmmc_utlb::cost::Profile;
use vmmc_utlb::limits::{PAGE_BYTES, TRACES_MAX};
use vmmc_utlb::report::{Chart, Series};
use vmmc_utlb::sim::{Config, Mechanism, Memory, Outcome, stream, sweep};
use vmmc_utlb::trace::{Merge, Record, TraceError};
use vmmc_utlb::{CacheShape, PolicyKind, Prepin};

/// One combination: the words of the command line, and what they mean.
struct Job {
    words: [String; PARAMETERS.len()],
    config: Config,
}

const PARAMETERS: [&str; 8] = ["mechanism", "entries", "ways", "offset", "prefetch", "prepin", "policy", "memory"];
const FIGURES: [&str; 7] = ["check", "ni", "unpin", "pins", "compulsory", "capacity", "conflict"];

/// Runs the command.
pub(crate) fn run(simulate: &Simulate) -> Result<(), Failure> {
    if simulate.traces.len() > TRACES_MAX {
        return Err(Failure::Usage(format!("{} traces; at most {TRACES_MAX}", simulate.traces.len())));
    }
    let profile = profile(&simulate.profile)?;
    let jobs = jobs(simulate)?;
    let bar = progress(jobs.len() as u64);
    let threads = simulate.threads.unwrap_or_else(sweep::threads);
    let work = |job: usize| one(simulate, jobs[job].config);
    let outcomes = sweep::run(jobs.len(), threads, work, |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    let outcomes: Vec<Outcome> = outcomes.into_iter().collect::<Result<_, Failure>>()?;
    let chart = chart(simulate, &jobs, &outcomes, &profile)?;
    let (head, lines) = lines(simulate, &jobs, &outcomes, &profile);
    if let Some(path) = &simulate.svg {
        save(path, &chart.svg())?;
    }
    if let Some(path) = &simulate.html {
        save(path, &page(&chart, &head, &lines))?;
    }
    if simulate.json {
        let rows = jobs.iter().zip(&outcomes).map(|(job, outcome)| json(job, outcome, &profile));
        return crate::output_json(&rows.collect::<Vec<_>>());
    }
    if simulate.csv {
        let rows = std::iter::once(head.join(",")).chain(lines.iter().map(|line| line.join(",")));
        return crate::output(&(rows.collect::<Vec<_>>().join("\n") + "\n"));
    }
    crate::output(&align(&head, &lines, PARAMETERS.len().min(head.len() - 1)))
}

fn one(simulate: &Simulate, config: Config) -> Result<Outcome, Failure> {
    let format = simulate.format.as_deref();
    let mut inputs = simulate.traces.iter().map(|name| open(name, format)).collect::<Result<Vec<_>, Failure>>()?;
    let only: Box<dyn Iterator<Item = Result<Record, TraceError>>> = match inputs.len() {
        1 if !simulate.apart => inputs.remove(0),
        _ => Box::new(Merge::new(inputs, simulate.apart)),
    };
    stream(config, only).map_err(Failure::new)
}

/// All combinations, the last parameter changing fastest.
fn jobs(simulate: &Simulate) -> Result<Vec<Job>, Failure> {
    let words = |list: &[u64]| list.iter().map(u64::to_string).collect::<Vec<String>>();
    let lists: [Vec<String>; PARAMETERS.len()] = [
        simulate.mechanism.clone(),
        words(&simulate.entries),
        words(&simulate.ways.iter().map(|n| *n as u64).collect::<Vec<u64>>()),
        simulate.offset.clone(),
        words(&simulate.prefetch.iter().map(|n| u64::from(*n)).collect::<Vec<u64>>()),
        simulate.prepin.clone(),
        simulate.policy.clone(),
        simulate.memory.clone(),
    ];
    let mut combinations: Vec<Vec<String>> = vec![Vec::new()];
    for list in &lists {
        let longer = |c: &Vec<String>, word: &String| [c.as_slice(), std::slice::from_ref(word)].concat();
        combinations = combinations.iter().flat_map(|c| list.iter().map(move |word| longer(c, word))).collect();
    }
    combinations.into_iter().map(|c| job(c, simulate.classify)).collect()
}

fn job(words: Vec<String>, classify: bool) -> Result<Job, Failure> {
    let words: [String; PARAMETERS.len()] = words.try_into().expect("one word for each parameter");
    let bad = |what: usize| Failure::Usage(format!("{} {:?}; see --help", PARAMETERS[what], words[what]));
    let number = |what: usize| words[what].parse::<usize>().map_err(|_| bad(what));
    let mechanism = match words[0].split_once(':') {
        Some(("per-process", count)) => Mechanism::PerProcess(count.parse().map_err(|_| bad(0))?),
        // As the paper's nodes: four application processes and one for the protocol.
        None if words[0] == "per-process" => Mechanism::PerProcess(5),
        _ => [Mechanism::Hierarchical, Mechanism::Shared, Mechanism::Interrupt, Mechanism::Regions]
            .into_iter()
            .find(|m| m.name() == words[0])
            .ok_or_else(|| bad(0))?,
    };
    let offset = match words[3].as_str() {
        "yes" => true,
        "no" => false,
        _ => return Err(bad(3)),
    };
    let cache = CacheShape::new(number(1)?, number(2)?, offset).map_err(|e| Failure::Usage(e.to_string()))?;
    let prefetch = u32::try_from(number(4)?).map_err(|_| bad(4))?;
    let prepin = match words[5].strip_prefix("adaptive:") {
        Some(most) => Prepin::Adaptive(most.parse().map_err(|_| bad(5))?),
        None => Prepin::Fixed(words[5].parse().map_err(|_| bad(5))?),
    };
    let policy = PolicyKind::from_name(&words[6]).ok_or_else(|| bad(6))?;
    let pages = |text: &str| parse_size(text).map(|bytes| (bytes / PAGE_BYTES) as usize).map_err(|_| bad(7));
    let memory = match words[7].strip_prefix("node:") {
        Some(size) => Memory::Dynamic(pages(size)?),
        None if words[7] == "unlimited" => Memory::Unlimited,
        None => Memory::PerProcess(pages(&words[7])?),
    };
    let config = Config { mechanism, cache, prefetch, prepin, policy, memory, classify };
    config.check().map_err(|e| Failure::Usage(e.to_string()))?;
    Ok(Job { words, config })
}

/// Per lookup, in the order of [`FIGURES`].
fn figures(outcome: &Outcome) -> [f64; FIGURES.len()] {
    let (rates, kinds) = (outcome.rates(), outcome.miss_kinds());
    let pins = outcome.total.user.pins as f64 / outcome.total.cache.lookups.max(1) as f64;
    [rates.check_miss, rates.ni_miss, rates.unpin, pins, kinds[0], kinds[1], kinds[2]]
}

/// Parameters with one value are left out of tables.
fn lines<'a>(
    simulate: &Simulate,
    jobs: &[Job],
    outcomes: &[Outcome],
    profile: &Profile,
) -> (Vec<&'a str>, Vec<Vec<String>>) {
    let varies = |i: usize| jobs.iter().any(|job| job.words[i] != jobs[0].words[i]);
    let shown: Vec<usize> = (0..PARAMETERS.len()).filter(|i| *i == 0 || varies(*i)).collect();
    let figures_shown = if simulate.classify { FIGURES.len() } else { FIGURES.len() - 3 };
    let mut head: Vec<&str> = shown.iter().map(|i| PARAMETERS[*i]).collect();
    head.push("lookups");
    head.extend(&FIGURES[..figures_shown]);
    head.push("us");
    let line = |job: &Job, outcome: &Outcome| {
        let mut line: Vec<String> = shown.iter().map(|i| job.words[*i].clone()).collect();
        line.push(outcome.total.cache.lookups.to_string());
        line.extend(figures(outcome)[..figures_shown].iter().map(|rate| format!("{rate:.4}")));
        line.push(format!("{:.2}", profile.average_us(outcome)));
        line
    };
    (head, jobs.iter().zip(outcomes).map(|(job, outcome)| line(job, outcome)).collect())
}

fn json(job: &Job, outcome: &Outcome, profile: &Profile) -> serde_json::Value {
    let (user, cache) = (&outcome.total.user, outcome.total.cache);
    let parameters: serde_json::Map<_, _> =
        PARAMETERS.iter().zip(&job.words).map(|(name, word)| ((*name).to_owned(), word.as_str().into())).collect();
    serde_json::json!({
        "parameters": parameters, "transfers": user.transfers, "lookups": cache.lookups, "check_misses": user.check_misses,
        "pin_calls": user.pin_calls.iter().sum::<u64>(), "pins": user.pins, "unpins": user.unpins, "evictions": user.evictions,
        "ni_misses": cache.misses, "compulsory": cache.compulsory, "capacity": cache.capacity, "conflict": cache.conflict,
        "fetched": cache.fetched, "displaced": cache.displaced, "average_us": profile.average_us(outcome), "profile": profile.name,
    })
}

fn chart(simulate: &Simulate, jobs: &[Job], outcomes: &[Outcome], profile: &Profile) -> Result<Chart, Failure> {
    type Figure = fn(&Outcome, &Profile) -> f64;
    let (y, of): (&str, Figure) = match simulate.plot.as_str() {
        "check" => ("check misses per lookup", |o, _| o.rates().check_miss),
        "ni" => ("misses in the interface per lookup", |o, _| o.rates().ni_miss),
        "unpin" => ("unpins per lookup", |o, _| o.rates().unpin),
        "cost" => ("average lookup, us", |o, profile| profile.average_us(o)),
        other => return Err(Failure::Usage(format!("no figure {other:?}; give check, ni, unpin or cost"))),
    };
    let varies = |i: &usize| jobs.iter().any(|job| job.words[*i] != jobs[0].words[*i]);
    // Numbers first: names have no place on an axis but in the order given.
    let axis = [1, 2, 4, 5, 7, 0, 3, 6].into_iter().find(varies).unwrap_or(1);
    let mut series: Vec<Series> = Vec::new();
    for (job, outcome) in jobs.iter().zip(outcomes) {
        let others = (0..PARAMETERS.len()).filter(|i| *i != axis && varies(i)).map(|i| job.words[i].as_str());
        let name = others.collect::<Vec<_>>().join(" ");
        let place = jobs.iter().map(|j| &j.words[axis]).fold(Vec::new(), |mut seen, word| {
            if !seen.contains(&word) {
                seen.push(word);
            }
            seen
        });
        let order = place.iter().position(|word| *word == &job.words[axis]).unwrap_or(0) as f64;
        let x = parse_size(&job.words[axis]).map_or(order, |n| n as f64);
        let point = (x, of(outcome, profile));
        match series.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => series.push(Series { name, points: vec![point], dashed: false }),
        }
    }
    series.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let title = simulate.traces.join(", ");
    Ok(Chart { title, x: PARAMETERS[axis].into(), y: y.into(), log_x: matches!(axis, 1 | 2 | 4), series })
}

fn page(chart: &Chart, head: &[&str], lines: &[Vec<String>]) -> String {
    let row = |cells: &mut dyn Iterator<Item = &str>, tag: &str| {
        format!("<tr>{}</tr>\n", cells.map(|cell| format!("<{tag}>{cell}</{tag}>")).collect::<String>())
    };
    let body: String = lines.iter().map(|line| row(&mut line.iter().map(String::as_str), "td")).collect();
    let style = "body{font-family:sans-serif;max-width:60em;margin:auto}td,th{padding:0 .6em;text-align:right}";
    format!(
        "<!doctype html><meta charset=\"utf-8\"><title>vmmc utlb simulate</title><style>{style}</style>\n{}<table>\n{}{body}</table>\n",
        chart.svg(),
        row(&mut head.iter().copied(), "th")
    )
}
