//! Runs for the questions that the paper left open: other policies, per-process tables against the
//! shared cache under independent programs, dynamic limits.
//!
//! `cargo run --release -p vmmc-utlb --example open_questions -- DIR` writes `utlb-*.svg` into DIR
//! and prints the tables of docs/utlb.md.

use std::collections::BTreeSet;
use std::path::Path;
use vmmc_utlb::cost::PAPER;
use vmmc_utlb::generate::{App, NODES, node};
use vmmc_utlb::report::{Chart, Series, figure};
use vmmc_utlb::sim::{Config, Mechanism, Memory, Outcome, run, sweep};
use vmmc_utlb::trace::{Info, Merge, Op, Record, Records};
use vmmc_utlb::{CacheShape, PolicyKind, Process};

fn main() {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let save = |name: &str, chart: &Chart| {
        std::fs::write(Path::new(&dir).join(name), chart.svg()).expect("the directory can be written to");
    };
    policies(&save);
    tables(&save);
    limits(&save);
    for (number, names) in [(7, "figure-7"), (8, "figure-8")] {
        for (i, chart) in figure(number, |_| ()).expect("it exists").iter().enumerate() {
            let which = if number == 7 { App::ALL[i].name().to_lowercase() } else { ["misses", "cost"][i].into() };
            save(&format!("utlb-{names}-{which}.svg"), chart);
        }
    }
}

fn chart(title: &str, x: &str, y: &str, log_x: bool, series: Vec<Series>) -> Chart {
    Chart { title: title.into(), x: x.into(), y: y.into(), log_x, series }
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.into(), points, dashed: false }
}

/// Pages that the application processes of a node look up, on average.
fn pages_per_process(trace: &[Record]) -> f64 {
    let mut info = Info::default();
    trace.iter().for_each(|record| info.add(record));
    info.processes.values().filter(|p| p.lookups > 500).map(|p| p.pages as f64).sum::<f64>() / 4.0
}

/// Misses of the best possible choice of victims (Belady), per lookup.
fn optimum(trace: &[Record], limit: usize) -> f64 {
    let (mut misses, mut lookups) = (0, 0);
    for process in 1..=5 {
        let uses = trace.iter().filter(|r| r.process == Process(process) && matches!(r.op, Op::Send | Op::Fetch));
        let pages: Vec<u64> = uses.map(|r| r.address >> 12).collect();
        let mut next = vec![usize::MAX; pages.len()];
        let mut seen = std::collections::HashMap::new();
        for (i, page) in pages.iter().enumerate().rev() {
            next[i] = seen.insert(*page, i).unwrap_or(usize::MAX);
        }
        // Pinned pages by their next use; a page's present entry is the index of this use.
        let mut pinned: BTreeSet<(usize, u64)> = BTreeSet::new();
        for (i, page) in pages.iter().enumerate() {
            lookups += 1;
            if !pinned.remove(&(i, *page)) {
                misses += 1;
                if pinned.len() == limit {
                    pinned.pop_last();
                }
            }
            pinned.insert((next[i], *page));
        }
    }
    f64::from(misses) / f64::from(lookups.max(1))
}

/// Which policy for which program? Check misses per lookup against the limit.
fn policies(save: &impl Fn(&str, &Chart)) {
    const SHARES: [f64; 7] = [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875];
    println!("### Check misses per lookup by policy, limit half of what a process uses\n");
    let names: Vec<&str> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
    println!("| | limit, pages | no limit | optimum | {} |\n|---|---|---|---{}|", names.join(" | "), "|---".repeat(9));
    for app in App::ALL {
        let traces: Vec<Vec<Record>> = (0..NODES).map(|number| node(app, number, 1)).collect();
        let pages = pages_per_process(&traces[0]);
        let miss = |policy, limit| -> f64 {
            let config = Config { policy, memory: Memory::PerProcess(limit), ..Config::default() };
            traces.iter().map(|t| run(config, t).expect("good").rates().check_miss).sum::<f64>() / f64::from(NODES)
        };
        let limit = |share: f64| (pages * share).max(2.0) as usize;
        let best = |limit| traces.iter().map(|t| optimum(t, limit)).sum::<f64>() / f64::from(NODES);
        let curves = sweep::run(
            PolicyKind::ALL.len(),
            sweep::threads(),
            |job| SHARES.map(|share| (share, miss(PolicyKind::ALL[job], limit(share)))).to_vec(),
            |_| (),
        );
        let at_half: Vec<String> = curves.iter().map(|curve| format!("{:.3}", curve[3].1)).collect();
        let half = limit(0.5);
        let none = miss(PolicyKind::Lru, usize::MAX);
        println!("| {} | {half} | {none:.3} | {:.3} | {} |", app.name(), best(half), at_half.join(" | "));
        let mut series: Vec<Series> = names.iter().zip(curves).map(|(name, curve)| line(name, curve)).collect();
        let best = SHARES.map(|share| (share, best(limit(share)))).to_vec();
        series.push(Series { dashed: true, ..line("optimum", best) });
        let title = format!("Policies: {}", app.name());
        let x = "limit, as a share of the pages that a process uses";
        save(
            &format!("utlb-policies-{}.svg", app.name().to_lowercase()),
            &chart(&title, x, "check misses per lookup", false, series),
        );
    }
}

/// `count` programs that know nothing of each other: one process each, programs in turns, each
/// started `stagger_ns` after the one before.
fn independent(count: u16, stagger_ns: u64) -> Vec<Record> {
    let program = |i: u16| -> Vec<Record> {
        let app = App::ALL[usize::from(i) % App::ALL.len()];
        let mut records = node(app, i % NODES, u64::from(i) + 1);
        records.retain(|record| record.process == Process(1 + i % 4));
        records.iter_mut().for_each(|record| record.time_ns += u64::from(i) * stagger_ns);
        records
    };
    let inputs: Vec<Records> = (0..count).map(|i| Box::new(program(i).into_iter().map(Ok)) as Records).collect();
    Merge::new(inputs, true).map(|record| record.expect("made here")).collect()
}

/// Per-process tables or one shared cache in the same memory of the interface?
fn tables(save: &impl Fn(&str, &Chart)) {
    const COUNTS: [u16; 6] = [1, 2, 4, 7, 14, 28];
    let us = |mechanism, entries, trace: &[Record], ways| {
        let cache = CacheShape::new(entries, ways, true).expect("powers of two");
        let outcome = run(Config { mechanism, cache, ..Config::default() }, trace).expect("good");
        (PAPER.average_us(&outcome), outcome)
    };
    for entries in [1024, 8192] {
        println!(
            "\n### Average lookup, us (paper's costs), {entries} entries in the interface, independent programs\n"
        );
        println!(
            "| programs | per-process tables | (its unpins per lookup) | shared, by index | hierarchical | interrupts |"
        );
        println!("|---|---|---|---|---|---|");
        let mut lines = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for count in COUNTS {
            let trace = independent(count, 0);
            let kinds = [
                Mechanism::PerProcess(u32::from(count)),
                Mechanism::Shared,
                Mechanism::Hierarchical,
                Mechanism::Interrupt,
            ];
            let found: Vec<(f64, Outcome)> =
                sweep::run(4, sweep::threads(), |job| us(kinds[job], entries, &trace, 1), |_| ());
            lines.iter_mut().zip(&found).for_each(|(line, found)| line.push((f64::from(count), found.0)));
            println!(
                "| {count} | {:.1} | {:.3} | {:.1} | {:.1} | {:.1} |",
                found[0].0,
                found[0].1.rates().unpin,
                found[1].0,
                found[2].0,
                found[3].0
            );
        }
        let names = ["per-process tables", "shared, by index", "hierarchical", "interrupts"];
        let series = names.into_iter().zip(lines).map(|(name, points)| line(name, points)).collect();
        let title = format!("Independent programs, {entries} entries in the interface");
        save(&format!("utlb-tables-{entries}.svg"), &chart(&title, "programs", "average lookup, us", true, series));
    }
}

/// One limit for each process, or one for the node that moves?
fn limits(save: &impl Fn(&str, &Chart)) {
    for (name, stagger_ns, what) in [("together", 0, "all at once"), ("staggered", 200_000_000, "one every 0.2 s")] {
        let trace = independent(7, stagger_ns);
        println!("\n### Seven independent programs started {what}: check misses and unpins per lookup, cost\n");
        println!(
            "| pages for the node | static: check | unpin | us | dynamic: check | unpin | us |\n|---|---|---|---|---|---|---|"
        );
        let (mut fixed, mut dynamic) = (Vec::new(), Vec::new());
        for pages in [700, 1400, 2800, 4200, 5600, 7000, 8400] {
            let of = |memory| run(Config { memory, ..Config::default() }, &trace).expect("good");
            let (one, other) = (of(Memory::PerProcess(pages / 7)), of(Memory::Dynamic(pages)));
            let shown = |o: &Outcome| {
                format!("{:.3} | {:.3} | {:.1}", o.rates().check_miss, o.rates().unpin, PAPER.average_us(o))
            };
            println!("| {pages} | {} | {} |", shown(&one), shown(&other));
            fixed.push((pages as f64, PAPER.average_us(&one)));
            dynamic.push((pages as f64, PAPER.average_us(&other)));
        }
        let series = vec![line("a seventh each", fixed), line("dynamic", dynamic)];
        let title = format!("Memory limits, seven programs started {what}");
        save(
            &format!("utlb-limits-{name}.svg"),
            &chart(&title, "pages that may be pinned on the node", "average lookup, us", false, series),
        );
    }
}
