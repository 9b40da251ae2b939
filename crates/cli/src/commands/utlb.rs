//! `vmmc utlb`: the simulator, the papers' tables, traces.
//!
//! Invariant: what is printed comes from crate `vmmc-utlb`; here are only files, flags and layout.
//! Source: [UTLB §6], [NT §5.2].

mod simulate;
pub(super) mod trace;

use crate::args::utlb::{Paper, Utlb};
use crate::failure::Failure;
use crate::measure::plan::progress;
use std::path::Path;
use vmmc_utlb::cost::{PROFILES, Profile};
use vmmc_utlb::report::{self, Chart, Table};

/// Runs the command.
pub(crate) fn run(utlb: &Utlb) -> Result<(), Failure> {
    match utlb {
        Utlb::Simulate(simulate) => simulate::run(simulate),
        Utlb::Table(paper) => table(paper),
        Utlb::NtTable(paper) => {
            let found = report::nt_table(paper.number, &profile(&paper.profile)?);
            show(&found.ok_or_else(|| unknown("NT table", paper.number, "2 to 4"))?, paper)
        }
        Utlb::Figure(paper) => figure(paper),
        Utlb::Trace(trace) => trace::run(trace),
    }
}

/// The profile of that name.
fn profile(name: &str) -> Result<Profile, Failure> {
    Profile::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
        Failure::Usage(format!("no profile {name:?}; give one of {}", names.join(", ")))
    })
}

fn unknown(what: &str, number: u32, known: &str) -> Failure {
    Failure::Usage(format!("no {what} {number}; give {known}"))
}

/// Writes a file that the user asked for.
fn save(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| Failure::new(format!("{}: {e}", path.display())))
}

fn table(paper: &Paper) -> Result<(), Failure> {
    let bar = progress(vmmc_utlb::generate::App::ALL.len() as u64);
    let found = report::table(paper.number, &profile(&paper.profile)?, |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    show(&found.ok_or_else(|| unknown("table", paper.number, "1 to 8"))?, paper)
}

fn show(table: &Table, paper: &Paper) -> Result<(), Failure> {
    if paper.json {
        let cells: Vec<_> = table
            .cells
            .iter()
            .map(|c| serde_json::json!({"row": c.row, "column": c.column, "paper": c.paper, "ours": c.ours, "tuned": c.tuned}))
            .collect();
        return crate::output_json(&serde_json::json!({"title": table.title, "cells": cells, "notes": table.notes}));
    }
    if paper.csv {
        return crate::output(&table.csv());
    }
    // Half a unit of the last digit printed, on each side.
    let unit = 10f64.powi(-i32::try_from(table.digits).unwrap_or(0));
    let (compared, close, worst) = table.agreement(unit);
    let mut text = table.text();
    if compared > 0 {
        let digits = table.digits;
        text += &format!(
            "{close} of {compared} cells that nothing was tuned on agree within {unit:.digits$}; the worst is off by {worst:.digits$}\n"
        );
    }
    crate::output(&text)
}

fn figure(paper: &Paper) -> Result<(), Failure> {
    let bar = progress(vmmc_utlb::generate::App::ALL.len() as u64);
    let charts = report::figure(paper.number, |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    let charts = charts.ok_or_else(|| unknown("figure", paper.number, "7 or 8"))?;
    if let Some(directory) = &paper.svg {
        for (i, chart) in charts.iter().enumerate() {
            save(&directory.join(format!("figure-{}-{}.svg", paper.number, i + 1)), &chart.svg())?;
        }
    }
    if paper.json {
        return crate::output_json(&charts.iter().map(chart_json).collect::<Vec<_>>());
    }
    let mut text = if paper.csv { "chart,series,x,y\n".to_owned() } else { String::new() };
    for chart in &charts {
        if !paper.csv {
            text += &format!("{} ({} over {})\n", chart.title, chart.y, chart.x);
        }
        for series in &chart.series {
            let points = series.points.iter();
            if paper.csv {
                text += &points
                    .map(|(x, y)| format!("{:?},{:?},{x},{y:.4}\n", chart.title, series.name))
                    .collect::<String>();
            } else {
                let points: Vec<String> = points.map(|(x, y)| format!("{x}: {y:.3}")).collect();
                text += &format!("  {:30} {}\n", series.name, points.join("  "));
            }
        }
    }
    crate::output(&text)
}

fn chart_json(chart: &Chart) -> serde_json::Value {
    let series: Vec<_> = chart.series.iter().map(|s| serde_json::json!({"name": s.name, "points": s.points})).collect();
    serde_json::json!({"title": chart.title, "x": chart.x, "y": chart.y, "series": series})
}
