//! Tables and figures of the papers beside ours, as data and as text, CSV and SVG.
//!
//! Invariant: a cell that is prediction is computed from generated traces that never saw it.
//! Averages are over the four nodes.

mod plot;
mod tables;

pub use plot::{Chart, Series};
pub use tables::{figure, nt_table, table};

/// One comparison, or one number of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// What the row is about: program, size, mechanism.
    pub row: String,
    /// What the number is.
    pub column: String,
    /// As printed in the paper; `None` where it has none.
    pub paper: Option<f64>,
    /// Ours; `None` where it must be measured on the running system.
    pub ours: Option<f64>,
    /// Whether a generator was tuned on it.
    pub tuned: bool,
}

/// A table of the paper, or ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Number and what it shows.
    pub title: String,
    /// Digits behind the point, as in the paper.
    pub digits: usize,
    /// All cells, row by row.
    pub cells: Vec<Cell>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// Half a unit of the last place goes up, as in the paper: 4.85 is 4.9.
fn printed(number: Option<f64>, digits: usize) -> String {
    number.map_or("-".into(), |n| format!("{:.digits$}", n + 1e-9))
}

impl Table {
    /// Cells that the paper has too: how many there are, how many agree within `tolerance`, the
    /// largest difference. Tuned ones apart.
    pub fn agreement(&self, tolerance: f64) -> (usize, usize, f64) {
        let compared = self.cells.iter().filter(|cell| !cell.tuned);
        let differences: Vec<f64> = compared.filter_map(|cell| Some((cell.ours? - cell.paper?).abs())).collect();
        let close = differences.iter().filter(|d| **d <= tolerance + 1e-9).count();
        (differences.len(), close, differences.iter().copied().fold(0.0, f64::max))
    }

    /// For people: a block for each row, columns aligned.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        let digits = self.digits;
        let number = |n: Option<f64>| printed(n, digits);
        let width = self.cells.iter().map(|cell| cell.row.len()).max().unwrap_or(0).max(3);
        let wide = self.cells.iter().map(|cell| cell.column.len()).max().unwrap_or(0).max(6);
        text += &format!("{:width$}  {:wide$} {:>9} {:>9} {:>9}\n", "", "", "paper", "ours", "diff");
        let mut last = "";
        for cell in &self.cells {
            let shown = if cell.row == last { "" } else { &cell.row };
            last = &cell.row;
            let difference = cell.paper.zip(cell.ours).map(|(paper, ours)| ours - paper);
            let difference = difference.map_or("-".into(), |d| format!("{d:+.digits$}"));
            let tuned = if cell.tuned { "  tuned" } else { "" };
            let (paper, ours) = (number(cell.paper), number(cell.ours));
            text += &format!("{shown:width$}  {:wide$} {paper:>9} {ours:>9} {difference:>9}{tuned}\n", cell.column);
        }
        self.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
        text
    }

    /// For programs.
    pub fn csv(&self) -> String {
        let number = |n: Option<f64>| n.map_or(String::new(), |n| format!("{n}"));
        let mut text = String::from("row,column,paper,ours,tuned\n");
        for cell in &self.cells {
            text +=
                &format!("{},{},{},{},{}\n", cell.row, cell.column, number(cell.paper), number(cell.ours), cell.tuned);
        }
        text
    }

    /// For documents: a row of the table for each row, `paper / ours` in each cell.
    pub fn markdown(&self) -> String {
        let mut columns: Vec<&str> = Vec::new();
        let mut rows: Vec<&str> = Vec::new();
        for cell in &self.cells {
            if !columns.contains(&cell.column.as_str()) {
                columns.push(&cell.column);
            }
            if !rows.contains(&cell.row.as_str()) {
                rows.push(&cell.row);
            }
        }
        let digits = self.digits;
        let number = |n: Option<f64>| printed(n, digits);
        let mut text = format!("| | {} |\n|---{}|\n", columns.join(" | "), "|---".repeat(columns.len()));
        for row in rows {
            text += &format!("| {row} |");
            for column in &columns {
                let cell = self.cells.iter().find(|cell| cell.row == row && cell.column == *column);
                let shown = cell.map_or(String::new(), |cell| {
                    let star = if cell.tuned { "*" } else { "" };
                    let difference = cell.paper.zip(cell.ours).map(|(p, o)| format!(" ({:+.digits$})", o - p));
                    format!("{} / {}{}{star}", number(cell.paper), number(cell.ours), difference.unwrap_or_default())
                });
                text += &format!(" {shown} |");
            }
            text += "\n";
        }
        text
    }
}
