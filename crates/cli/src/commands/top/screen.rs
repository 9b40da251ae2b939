//! What the person in front of `vmmc top` has chosen: a node, an order, the help.
//!
//! Invariant: a key changes this state and nothing else, so that tests press keys without a
//! terminal.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::cmp::Ordering;

/// The order of processes and imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Sort {
    /// Bytes in a second now, most first.
    #[default]
    Rate,
    /// Operations in a second now, most first.
    Operations,
    /// Bytes since the beginning, most first.
    Bytes,
    /// Program, or name of the export.
    Name,
    /// Process id.
    Process,
}

impl Sort {
    /// Each with its key.
    pub(super) const ALL: [(char, Sort, &'static str); 5] = [
        ('r', Sort::Rate, "bytes a second"),
        ('o', Sort::Operations, "operations a second"),
        ('b', Sort::Bytes, "bytes in all"),
        ('n', Sort::Name, "name"),
        ('p', Sort::Process, "process id"),
    ];

    pub(super) fn words(self) -> &'static str {
        Sort::ALL.iter().find(|(_, sort, _)| *sort == self).map_or("", |(_, _, words)| words)
    }
}

/// What rows are sorted by.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Keys {
    pub(super) rate: f64,
    pub(super) operations: f64,
    pub(super) bytes: u64,
    pub(super) name: String,
    pub(super) process: u32,
}

/// The choices.
#[derive(Clone, Debug, Default)]
pub(super) struct Screen {
    /// Which node's details are shown.
    pub(super) chosen: usize,
    pub(super) sort: Sort,
    /// The other way round.
    pub(super) inverted: bool,
    pub(super) help: bool,
    /// There are keys; not so for text.
    pub(super) keys: bool,
}

impl Screen {
    /// For a terminal.
    pub(super) fn live(sort: Sort, inverted: bool) -> Screen {
        Screen { sort, inverted, keys: true, ..Screen::default() }
    }

    /// For text.
    pub(super) fn text(sort: Sort, inverted: bool) -> Screen {
        Screen { sort, inverted, ..Screen::default() }
    }

    /// Obeys a key; true if it ends the program.
    pub(super) fn press(&mut self, key: KeyEvent, nodes: usize) -> bool {
        if key.kind != KeyEventKind::Press {
            return false;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('i') => self.inverted = !self.inverted,
            KeyCode::Tab if nodes > 0 => self.chosen = (self.chosen + 1) % nodes,
            KeyCode::Down => self.chosen = (self.chosen + 1).min(nodes.saturating_sub(1)),
            KeyCode::Up => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Char(letter) => {
                if let Some((_, sort, _)) = Sort::ALL.iter().find(|(key, _, _)| *key == letter) {
                    self.sort = *sort;
                }
            }
            _ => {}
        }
        false
    }

    /// Sorts rows; equal ones by name and process, so that they stay where they are.
    pub(super) fn order(&self, rows: &mut [(Keys, Vec<String>)]) {
        let by = |a: &Keys, b: &Keys| match self.sort {
            Sort::Rate => b.rate.total_cmp(&a.rate),
            Sort::Operations => b.operations.total_cmp(&a.operations),
            Sort::Bytes => b.bytes.cmp(&a.bytes),
            Sort::Name => Ordering::Equal,
            Sort::Process => a.process.cmp(&b.process),
        };
        rows.sort_by(|(a, _), (b, _)| {
            let order = by(a, b).then_with(|| (&a.name, a.process).cmp(&(&b.name, b.process)));
            if self.inverted { order.reverse() } else { order }
        });
    }
}
