//! A plan: which series are measured at which sizes, on which pairs; carried out in alternated
//! runs.
//!
//! Invariant: run `n` of every series is over before run `n + 1` of any begins; a slow series takes
//! part in every n-th run, from the first on; a series that fails once is not measured again, and
//! its row says why.

use super::pair::Pair;
use super::stats::Sample;
use super::task::Work;
use crate::limits::{SLOW_BYTES, SLOW_RUNS};
use crate::report::{Figures, Key, Row, each_run};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Where a sample comes from.
pub(crate) enum Source {
    /// A pair of the plan, by number.
    Pair(usize, Work),
    /// A public tool: gives the sample or says why not.
    Tool(Box<dyn FnMut(u64) -> Result<Sample, String>>),
}

struct Cell {
    key: Key,
    source: Source,
    samples: Vec<Sample>,
    error: Option<String>,
}

/// Series, sizes and pairs.
#[derive(Default)]
pub(crate) struct Plan {
    pairs: Vec<Pair>,
    cells: Vec<Cell>,
}

impl Plan {
    /// Adds a pair of workers.
    pub(crate) fn pair(&mut self, pair: Pair) -> usize {
        self.pairs.push(pair);
        self.pairs.len() - 1
    }

    /// Adds a series at a size.
    pub(crate) fn add(&mut self, key: Key, source: Source) {
        self.cells.push(Cell { key, source, samples: Vec::new(), error: None });
    }

    /// Adds a row that says why a series could not be prepared.
    pub(crate) fn add_failed(&mut self, key: Key, why: String) {
        let source = Source::Tool(Box::new(|_| Err(String::new())));
        self.cells.push(Cell { key, source, samples: Vec::new(), error: Some(why) });
    }

    /// Measures everything `runs` times.
    pub(crate) fn carry_out(mut self, runs: u32, budget: Duration) -> Vec<Row> {
        let slow_every = runs.div_ceil(SLOW_RUNS);
        let takes_part = |cell: &Cell, run: u32| !cell.is_slow() || run % slow_every == 0;
        let all = (0..runs).map(|run| self.cells.iter().filter(|cell| takes_part(cell, run)).count() as u64);
        let bar = progress(all.sum());
        for run in 0..runs {
            for cell in self.cells.iter_mut().filter(|cell| takes_part(cell, run)) {
                bar.set_message(format!("{} {}", cell.key.series, cell.key.path));
                cell.run(&mut self.pairs, budget);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        self.cells.into_iter().map(Cell::into_row).collect()
    }
}

impl Cell {
    /// Whether one measurement takes much longer than it aims at.
    fn is_slow(&self) -> bool {
        matches!(self.source, Source::Tool(_)) || self.key.size_bytes >= SLOW_BYTES
    }

    fn run(&mut self, pairs: &mut [Pair], budget: Duration) {
        if self.error.is_some() {
            return;
        }
        let result = match &mut self.source {
            Source::Pair(pair, work) => {
                pairs[*pair].measure(work, self.key.size_bytes, budget).map_err(|e| e.to_string())
            }
            Source::Tool(tool) => tool(self.key.size_bytes),
        };
        match result {
            Ok(sample) => self.samples.push(sample),
            Err(why) => self.error = Some(why),
        }
    }

    fn into_row(self) -> Row {
        let figures = Figures::of(&self.samples, self.error.as_deref());
        Row { key: self.key, runs: self.samples.len(), each_run: each_run(&self.samples), figures }
    }
}

/// A bar on standard error, on a terminal only. It is drawn between measurements, never during one.
pub(crate) fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed_precise} {wide_bar} {pos}/{len} {msg}")
        .expect("the template is a constant of this program");
    ProgressBar::new(steps).with_style(style)
}
