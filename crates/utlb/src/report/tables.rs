//! The runs behind each table and figure.
//!
//! Invariant: parameters are the paper's; traces are generated with seed 1.

use super::{Cell, Chart, Series, Table};
use crate::cache::CacheShape;
use crate::cost::{PAPER, Profile, Rates, nt_average_us};
use crate::generate::{self, App, NODES, PAGES_4_MIB, PAGES_16_MIB};
use crate::paper::{self, SIZES};
use crate::pinning::Prepin;
use crate::sim::{Config, Mechanism, Memory, Outcome, run, sweep};
use crate::trace::{Info, Record};

/// The seed of the traces behind tables and figures.
const SEED: u64 = 1;

fn traces(app: App) -> Vec<Vec<Record>> {
    (0..NODES).map(|number| generate::node(app, number, SEED)).collect()
}

fn outcomes(config: Config, traces: &[Vec<Record>]) -> Vec<Outcome> {
    traces.iter().map(|trace| run(config, trace).expect("the paper's parameters are possible")).collect()
}

fn mean(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    outcomes.iter().map(of).sum::<f64>() / outcomes.len().max(1) as f64
}

fn direct(entries: usize) -> CacheShape {
    CacheShape::new(entries, 1, true).expect("the paper's sizes are powers of two")
}

fn cell(row: impl Into<String>, column: impl Into<String>, paper: Option<f64>, ours: f64) -> Cell {
    Cell { row: row.into(), column: column.into(), paper, ours: Some(ours), tuned: false }
}

fn size_name(entries: usize) -> String {
    format!("{}K", entries / 1024)
}

/// A table of the UTLB paper, 1 to 8; `None` for other numbers. Tables 1 and 2 are measurements:
/// theirs, and those of `profile`.
pub fn table(number: u32, profile: &Profile, progress: impl Fn(usize) + Sync) -> Option<Table> {
    let per_app = |of: fn(App) -> Vec<Cell>| -> Vec<Cell> {
        sweep::run(App::ALL.len(), sweep::threads(), |job| of(App::ALL[job]), &progress).concat()
    };
    let (title, digits, cells, notes): (&str, usize, Vec<Cell>, &[&str]) = match number {
        1 => (
            "Table 1: host costs, us",
            1,
            table_1(profile),
            &["ours: the profile named with --profile; measure the running system with `vmmc bench utlb`"],
        ),
        2 => ("Table 2: network interface costs, us", 1, table_2(profile), &["ours: the profile named with --profile"]),
        3 => ("Table 3: traces", 0, per_app(table_3), &["generators are tuned on this table"]),
        4 => (
            "Table 4: per lookup, no memory limit",
            2,
            per_app(table_4),
            &["check misses and the rows of 1K are tuned; all other cells are prediction"],
        ),
        5 => ("Table 5: per lookup, 4 MB per process", 2, per_app(table_5), &["all cells are prediction"]),
        6 => (
            "Table 6: average cost of a lookup, us",
            1,
            table_6(),
            &["`formula` is the paper's rates in the paper's formula; `traces` is our rates"],
        ),
        7 => (
            "Table 7: pin and unpin cost per lookup, us, 16 MB per process",
            1,
            per_app(table_7),
            &["all cells are prediction"],
        ),
        8 => (
            "Table 8: misses in the interface by associativity",
            2,
            table_8(&progress),
            &[
                "direct rows: by program (they are Table 4's)",
                "other rows of the paper are sorted in our copy: the n-th smallest of seven is compared with the n-th smallest of ours",
            ],
        ),
        _ => return None,
    };
    Some(Table { title: title.into(), digits, cells, notes: notes.iter().map(|note| (*note).into()).collect() })
}

fn table_1(profile: &Profile) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (i, count) in paper::COUNTS.into_iter().enumerate() {
        let row = format!("{count} pages");
        let many = f64::from(count);
        cells.push(cell(&row, "check max", Some(paper::T1_CHECK_MAX[i]), profile.user_check_us));
        cells.push(cell(&row, "pin", Some(paper::T1_PIN[i]), profile.pin.at_us(many)));
        cells.push(cell(&row, "unpin", Some(paper::T1_UNPIN[i]), profile.unpin.at_us(many)));
    }
    cells
}

fn table_2(profile: &Profile) -> Vec<Cell> {
    let counts = paper::COUNTS.into_iter().zip(paper::T2_MISS);
    let miss =
        |(count, us)| cell(format!("{count} entries"), "miss", Some(us), profile.ni_miss.at_us(f64::from(count)));
    counts.map(miss).collect()
}

fn table_3(app: App) -> Vec<Cell> {
    let row = paper::row(app);
    let infos: Vec<Info> = traces(app)
        .iter()
        .map(|trace| {
            let mut info = Info::default();
            trace.iter().for_each(|record| info.add(record));
            info
        })
        .collect();
    let mean = |of: fn(&Info) -> u64| infos.iter().map(of).sum::<u64>() as f64 / infos.len() as f64;
    let footprint = mean(|info| info.sum(|p| p.footprint));
    let lookups = mean(|info| info.sum(|p| p.lookups));
    let tuned =
        |column: &str, paper: u64, ours| Cell { tuned: true, ..cell(app.name(), column, Some(paper as f64), ours) };
    vec![tuned("footprint", row.footprint, footprint), tuned("lookups", row.lookups, lookups)]
}

/// The columns that Tables 4 and 5 share.
fn breakdown(app: App, memory: Memory, paper: &paper::Row, limited: bool) -> Vec<Cell> {
    let traces = traces(app);
    let mut cells = Vec::new();
    for (i, entries) in SIZES.into_iter().enumerate() {
        let utlb = Config { cache: direct(entries), memory, ..Config::default() };
        let interrupt = Config { mechanism: Mechanism::Interrupt, ..utlb };
        let (utlb, interrupt) = (outcomes(utlb, &traces), outcomes(interrupt, &traces));
        let row = format!("{} {}", app.name(), size_name(entries));
        let (check, unpin) = if limited { (paper.t5_check, paper.t5_unpin) } else { (paper.t4_check, 0.0) };
        let (ni, intr_ni) = if limited { (paper.t5_ni, paper.t5_intr_ni) } else { (paper.t4_ni, paper.t4_ni) };
        let intr_unpin = if limited { paper.t5_intr_unpin } else { paper.t4_intr_unpin };
        let one = |column: &str, paper, ours, tuned: bool| Cell { tuned, ..cell(&row, column, Some(paper), ours) };
        let first = !limited && i == 0;
        cells.push(one("check", check, mean(&utlb, |o| o.rates().check_miss), !limited));
        cells.push(one("NI", ni[i], mean(&utlb, |o| o.rates().ni_miss), first));
        cells.push(one("unpin", unpin, mean(&utlb, |o| o.rates().unpin), !limited));
        cells.push(one("NI intr", intr_ni[i], mean(&interrupt, |o| o.rates().ni_miss), first));
        cells.push(one("unpin intr", intr_unpin[i], mean(&interrupt, |o| o.rates().unpin), first));
    }
    cells
}

fn table_4(app: App) -> Vec<Cell> {
    breakdown(app, Memory::Unlimited, &paper::row(app), false)
}

fn table_5(app: App) -> Vec<Cell> {
    breakdown(app, Memory::PerProcess(PAGES_4_MIB), &paper::row(app), true)
}

fn table_6() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (app, entries, utlb_us, interrupt_us) in paper::T6 {
        let row = format!("{} {}", app.name(), size_name(entries));
        let printed = paper::row(app);
        let i = SIZES.into_iter().position(|size| size == entries).expect("a size of the study");
        let rates = Rates { check_miss: printed.t4_check, ni_miss: printed.t4_ni[i], unpin: 0.0 };
        cells.push(cell(&row, "UTLB formula", Some(utlb_us), PAPER.utlb_us(rates)));
        let rates = Rates { unpin: printed.t4_intr_unpin[i], ..rates };
        cells.push(cell(&row, "Intr formula", Some(interrupt_us), PAPER.interrupt_us(rates)));
        let config = Config { cache: direct(entries), ..Config::default() };
        let traces = traces(app);
        let ours = mean(&outcomes(config, &traces), |o| PAPER.average_us(o));
        cells.push(cell(&row, "UTLB traces", Some(utlb_us), ours));
        let config = Config { mechanism: Mechanism::Interrupt, ..config };
        let ours = mean(&outcomes(config, &traces), |o| PAPER.average_us(o));
        cells.push(cell(&row, "Intr traces", Some(interrupt_us), ours));
    }
    cells
}

fn table_7(app: App) -> Vec<Cell> {
    let Some([pin_1, pin_16, unpin_1, unpin_16]) = paper::row(app).t7 else { return Vec::new() };
    let traces = traces(app);
    let memory = Memory::PerProcess(PAGES_16_MIB);
    let mut cells = Vec::new();
    for (pages, pin, unpin) in [(1, pin_1, unpin_1), (16, pin_16, unpin_16)] {
        let config = Config { prepin: Prepin::Fixed(pages), memory, ..Config::default() };
        let found = outcomes(config, &traces);
        cells.push(cell(app.name(), format!("pin {pages}"), Some(pin), mean(&found, |o| PAPER.pin_per_lookup_us(o))));
        cells.push(cell(
            app.name(),
            format!("unpin {pages}"),
            Some(unpin),
            mean(&found, |o| PAPER.unpin_per_lookup_us(o)),
        ));
    }
    let config = Config { prepin: Prepin::Adaptive(16), memory, ..Config::default() };
    let found = outcomes(config, &traces);
    cells.push(cell(app.name(), "pin adaptive", None, mean(&found, |o| PAPER.pin_per_lookup_us(o))));
    cells.push(cell(app.name(), "unpin adaptive", None, mean(&found, |o| PAPER.unpin_per_lookup_us(o))));
    cells
}

/// Rows of Table 8: associativity and offset.
const SHAPES: [(&str, usize, bool); 4] =
    [("direct", 1, true), ("2-way", 2, true), ("4-way", 4, true), ("no offset", 1, false)];

fn table_8(progress: &(impl Fn(usize) + Sync)) -> Vec<Cell> {
    let rates: Vec<Vec<[f64; 4]>> = sweep::run(
        App::ALL.len(),
        sweep::threads(),
        |job| {
            let traces = traces(App::ALL[job]);
            let rate = |entries, ways, offset| {
                let cache = CacheShape::new(entries, ways, offset).expect("the paper's shapes are possible");
                mean(&outcomes(Config { cache, ..Config::default() }, &traces), |o| o.rates().ni_miss)
            };
            SIZES.map(|entries| SHAPES.map(|(_, ways, offset)| rate(entries, ways, offset))).to_vec()
        },
        progress,
    );
    let mut cells = Vec::new();
    for (size, entries) in SIZES.into_iter().enumerate() {
        for (shape, (name, ..)) in SHAPES.into_iter().enumerate() {
            let row = format!("{} {name}", size_name(entries));
            let mut ours: Vec<(f64, App)> =
                App::ALL.into_iter().zip(&rates).map(|(app, r)| (r[size][shape], app)).collect();
            if shape == 0 {
                for (rate, app) in ours {
                    let paper = paper::row(app).t4_ni[size];
                    cells.push(Cell { tuned: size == 0, ..cell(&row, app.name(), Some(paper), rate) });
                }
                continue;
            }
            ours.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (rank, (rate, _)) in ours.into_iter().enumerate() {
                let column = format!("{} of 7", rank + 1);
                cells.push(cell(&row, column, Some(paper::T8[size][shape - 1][rank]), rate));
            }
        }
    }
    cells
}

/// Figure 7 or 8 as charts; `None` for other numbers. The paper's figures have no numbers in our
/// copy.
pub fn figure(number: u32, progress: impl Fn(usize) + Sync) -> Option<Vec<Chart>> {
    match number {
        7 => Some(sweep::run(App::ALL.len(), sweep::threads(), |job| figure_7(App::ALL[job]), progress)),
        8 => Some(figure_8()),
        _ => None,
    }
}

fn figure_7(app: App) -> Chart {
    let traces = traces(app);
    let mut series: Vec<Series> = ["compulsory", "+ capacity", "+ conflict = all"]
        .map(|name| Series { name: name.into(), points: Vec::new(), dashed: false })
        .to_vec();
    for entries in SIZES {
        let config = Config { cache: direct(entries), classify: true, ..Config::default() };
        let found = outcomes(config, &traces);
        let mut sum = 0.0;
        for (kind, line) in series.iter_mut().enumerate() {
            sum += mean(&found, |o| o.miss_kinds()[kind]);
            line.points.push((entries as f64, sum));
        }
    }
    let points = SIZES.into_iter().zip(paper::row(app).t4_ni).map(|(entries, rate)| (entries as f64, rate)).collect();
    series.push(Series { name: "paper, all (T4)".into(), points, dashed: true });
    Chart {
        title: format!("Figure 7: misses in the interface, {}", app.name()),
        x: "cache entries".into(),
        y: "misses per lookup".into(),
        log_x: true,
        series,
    }
}

fn figure_8() -> Vec<Chart> {
    let traces = traces(App::Radix);
    let mut rates = Vec::new();
    let mut costs = Vec::new();
    for (ahead, name) in [(1, "pinned on demand"), (16, "16 pages pinned ahead")] {
        for entries in [1024, 4096, 16384] {
            let name = format!("{}, {name}", size_name(entries));
            let (mut rate, mut cost) = (Vec::new(), Vec::new());
            for prefetch in paper::COUNTS {
                let config =
                    Config { cache: direct(entries), prefetch, prepin: Prepin::Fixed(ahead), ..Config::default() };
                let found = outcomes(config, &traces);
                let ni = mean(&found, |o| o.rates().ni_miss);
                rate.push((f64::from(prefetch), ni));
                // The figure's cost is the interface's.
                cost.push((f64::from(prefetch), PAPER.ni_check_us + ni * PAPER.ni_miss.at_us(f64::from(prefetch))));
            }
            rates.push(Series { name: name.clone(), points: rate, dashed: ahead == 1 });
            costs.push(Series { name, points: cost, dashed: ahead == 1 });
        }
    }
    let chart = |y: &str, series| Chart {
        title: format!("Figure 8: prefetch, Radix: {y}"),
        x: "entries fetched at a miss".into(),
        y: y.into(),
        log_x: true,
        series,
    };
    vec![chart("misses per lookup", rates), chart("lookup cost in the interface, us", costs)]
}

/// A table of the NT paper, 2 to 4; `None` for other numbers.
pub fn nt_table(number: u32, profile: &Profile) -> Option<Table> {
    let columns: &[paper::NtColumn] = match number {
        2 => return Some(nt_table_2(profile)),
        3 => &paper::NT_T3,
        4 => &paper::NT_T4,
        _ => return None,
    };
    let mut cells = Vec::new();
    for column in columns {
        for (os, name) in ["NT", "Linux (predicted)"].into_iter().enumerate() {
            let ours = nt_average_us(column.hit_percent, column.hit_us, column.miss_us[os]);
            cells.push(cell(column.app, name, Some(column.average_us[os]), ours));
        }
    }
    let title = format!("NT Table {number}: average host overhead, us, from its parts");
    let notes = vec!["ours: hit rate x hit cost + miss rate x miss cost, all as printed in the paper".into()];
    Some(Table { title, digits: 2, cells, notes })
}

fn nt_table_2(profile: &Profile) -> Table {
    let mut cells = Vec::new();
    for (pages, costs) in paper::NT_T2 {
        let row = format!("{pages} pages");
        let many = f64::from(pages);
        for (name, us) in ["Linux pin", "Linux unpin", "NT pin", "NT unpin"].into_iter().zip(costs) {
            let ours = if name.ends_with("unpin") { profile.unpin } else { profile.pin };
            cells.push(cell(&row, name, Some(us), ours.at_us(many)));
        }
    }
    let notes = vec![
        "paper: without the call (Table 1: Linux 1.1 + 1.0, NT 6.6 + 7.8 us); ours: --profile, with the call".into(),
    ];
    Table { title: "NT Table 2: pinning and unpinning, us".into(), digits: 1, cells, notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_6_has_twelve_exact_cells() {
        let table = table(6, &PAPER, |_| ()).expect("it exists");
        let formula: Vec<&Cell> = table.cells.iter().filter(|cell| cell.column.ends_with("formula")).collect();
        assert_eq!(formula.len(), 12);
        for cell in formula {
            let (paper, ours) = (cell.paper.expect("printed"), cell.ours.expect("computed"));
            assert!((ours - paper).abs() < 0.05 + 1e-9, "{cell:?}");
        }
    }

    #[test]
    fn twenty_one_of_twenty_two_averages_follow_from_their_parts() {
        let cells: Vec<Cell> = [3, 4].into_iter().flat_map(|n| nt_table(n, &PAPER).expect("it exists").cells).collect();
        let far: Vec<&Cell> = cells
            .iter()
            .filter(|cell| (cell.ours.expect("computed") - cell.paper.expect("printed")).abs() > 0.02 + 1e-9)
            .collect();
        assert_eq!(cells.len(), 22);
        // Water on NT is printed as 1.27 and follows as 1.17. The averages printed with one digit
        // (31.1, 21.1) are compared to that digit.
        let far: Vec<&&Cell> = far.iter().filter(|cell| cell.paper.expect("printed") < 20.0).collect();
        assert_eq!(far.len(), 1, "{far:?}");
        assert_eq!((far[0].row.as_str(), far[0].column.as_str()), ("water", "NT"));
    }

    #[test]
    fn a_chart_is_well_formed() {
        let chart = Chart {
            title: "a < b & c".into(),
            x: "x".into(),
            y: "y".into(),
            log_x: true,
            series: vec![Series { name: "s".into(), points: vec![(1.0, 0.5), (2.0, 1.5)], dashed: true }],
        };
        let svg = chart.svg();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("a &lt; b &amp; c"));
        assert!(!Chart { series: Vec::new(), ..chart }.svg().contains("NaN"));
    }
}
