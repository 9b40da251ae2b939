//! Traces of seven SPLASH-2 programs over shared virtual memory, as one node of four sees them.
//! [UTLB §6, §6.1, Table 3]
//!
//! The paper's traces are lost; these have the programs' structure where it decides which pages are
//! used (FFT, LU, Radix) and a model of task queues and neighbourhoods where it does not (Barnes,
//! Raytrace, Volrend, Water). Invariants: 4 application processes (1 to 4) and a protocol process
//! (5) a node; all use the same virtual addresses for shared memory; the same seed gives the same
//! trace. What is tuned, and on what, is said at each constant: Table 3 and the 1 K rows of Table
//! 4, nothing else.

mod irregular;
mod regular;
mod schedule;
#[cfg(test)]
mod tests;

use crate::limits::PAGE_SHIFT;
use crate::trace::Record;

/// Application processes of a node. [UTLB §6]
pub const APPLICATION_PROCESSES: u16 = 4;
/// Nodes. [UTLB §6]
pub const NODES: u16 = 4;
/// Bytes that one process may pin in Table 5, in pages.
pub const PAGES_4_MIB: usize = 1024;
/// Bytes that one process may pin in Table 7, in pages.
pub const PAGES_16_MIB: usize = 4096;

/// A program of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the paper's")]
pub enum App {
    Barnes,
    Fft,
    Lu,
    Radix,
    Raytrace,
    Volrend,
    Water,
}

impl App {
    /// In the order of the paper's Table 4.
    pub const ALL: [App; 7] = [App::Barnes, App::Fft, App::Lu, App::Radix, App::Raytrace, App::Volrend, App::Water];

    /// As in the paper.
    pub fn name(self) -> &'static str {
        match self {
            App::Barnes => "Barnes",
            App::Fft => "FFT",
            App::Lu => "LU",
            App::Radix => "Radix",
            App::Raytrace => "Raytrace",
            App::Volrend => "Volrend",
            App::Water => "Water",
        }
    }

    /// From its name.
    pub fn from_name(name: &str) -> Option<App> {
        App::ALL.into_iter().find(|app| app.name().eq_ignore_ascii_case(name))
    }
}

/// Shared memory begins here in every process.
const SHARED: u64 = 0x6000_0000 >> PAGE_SHIFT;
/// Buffers of the protocol process.
const PROTOCOL: u64 = 0x1000_0000 >> PAGE_SHIFT;

/// The trace of one node, 0 to 3.
pub fn node(app: App, node: u16, seed: u64) -> Vec<Record> {
    let mut rng = crate::Rng::new(seed ^ u64::from(node) << 32 ^ (app as u64) << 48);
    match app {
        App::Fft => regular::fft(node, &mut rng),
        App::Lu => regular::lu(node, &mut rng),
        App::Radix => regular::radix(node, &mut rng),
        App::Barnes => irregular::BARNES.node(node, &mut rng),
        App::Raytrace => irregular::RAYTRACE.node(node, &mut rng),
        App::Volrend => irregular::VOLREND.node(node, &mut rng),
        App::Water => irregular::WATER.node(node, &mut rng),
    }
}
