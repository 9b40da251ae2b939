//! FFT, LU and Radix: the pages follow from problem size and data layout. [UTLB §6.1, Table 3]
//!
//! Invariant: nothing random decides which pages are used; `rng` gives times and, for Radix, which
//! changes wait for the barrier.

use super::schedule::{Event, Phase, trace};
use super::{APPLICATION_PROCESSES, NODES, SHARED};
use crate::Rng;
use crate::trace::Record;

const PROCESSES: u64 = (NODES * APPLICATION_PROCESSES) as u64;
const PER_NODE: u64 = APPLICATION_PROCESSES as u64;

fn ranks(node: u16) -> impl Iterator<Item = u64> {
    let first = u64::from(node) * PER_NODE;
    first..first + PER_NODE
}

/// Six-step FFT of 4 M complex numbers: a matrix of 2048 rows of 8 pages. A process transposes by
/// reading its 2 KiB of each row of another node: one page in eight. Each page is looked up twice
/// at a visit (page fetched, change sent) and visited in two passes over both matrices.
///
/// Tuned on Table 3: of the 1536 rows of other nodes 1350 are read. (Sec. 6.1 calls the program
/// two-dimensional; 4 M elements is the one-dimensional kernel's.)
pub(super) fn fft(node: u16, rng: &mut Rng) -> Vec<Record> {
    const ROWS: u64 = 2048;
    const ROW_PAGES: u64 = 8;
    const ROWS_READ: usize = 1350;
    let pass = |matrix: u64| -> Phase {
        ranks(node)
            .map(|rank| {
                let own = u64::from(node) * ROWS / u64::from(NODES)..(u64::from(node) + 1) * ROWS / u64::from(NODES);
                // Each process begins behind its own rows, so that not all read from one.
                let first = (rank + 1) * ROWS / PROCESSES;
                let rows = (first..first + ROWS).map(|row| row % ROWS).filter(|row| !own.contains(row));
                let column = rank * ROW_PAGES / PROCESSES;
                let base = SHARED + matrix * ROWS * ROW_PAGES + column;
                rows.take(ROWS_READ)
                    .flat_map(|row| {
                        let page = base + row * ROW_PAGES;
                        [Event::fetch(page), Event::diff(page, (rank % 2) as u32 * 2048, 2048)]
                    })
                    .collect()
            })
            .collect()
    };
    trace(vec![pass(0), pass(1), pass(0), pass(1)], (400, 3), rng)
}

/// Blocked LU of a 4096 x 4096 matrix in blocks of 16 x 16 (2 KiB), each process's blocks in one
/// piece; a node is a row of the 4 x 4 processes. At step k a process reads the blocks of row k in
/// its columns from the node that owns them: runs of up to 32 pages, each page twice, because it
/// holds two blocks.
///
/// Nothing is tuned.
pub(super) fn lu(node: u16, rng: &mut Rng) -> Vec<Record> {
    const BLOCKS: u64 = 256;
    const GRID: u64 = 4;
    const OWN_BLOCKS: u64 = BLOCKS / GRID;
    const OWN_PAGES: u64 = OWN_BLOCKS * OWN_BLOCKS / 2;
    let step = |k: u64| -> Phase {
        (0..GRID)
            .map(|column| {
                let owner = (k % GRID) * GRID + column;
                let first = (k / GRID) * OWN_BLOCKS;
                let blocks = (k / GRID..OWN_BLOCKS).filter(|own| own * GRID + column > k);
                let page = |own: u64| SHARED + owner * OWN_PAGES + (first + own) / 2;
                blocks
                    .map(|own| Event { len_bytes: 2048, offset: (own % 2) as u32 * 2048, ..Event::fetch(page(own)) })
                    .collect()
            })
            .collect()
    };
    let phases = (0..BLOCKS).filter(|k| k % GRID != u64::from(node)).map(step).collect();
    trace(phases, (35, 10), rng)
}

/// Radix sort of 4 M keys of 4 bytes by 1024 digits in two phases. A process's keys of one digit
/// are 1 KiB; those of 16 processes lie side by side in 4 pages, so a process touches one page in
/// four of the 3/4 of the array that other nodes own: fetched, written, its change sent. A tree of
/// counts adds a few pages.
///
/// Tuned on Table 3 and the 1 K row of Table 4: how many pages are not sent again because another
/// process of the node did, how many changes wait for the barrier, pages of the tree.
pub(super) fn radix(node: u16, rng: &mut Rng) -> Vec<Record> {
    const DIGITS: u64 = 1024;
    const DIGIT_PAGES: u64 = 4;
    const TREE_PAGES: u64 = 60;
    const SENT_BY_ANOTHER: f64 = 0.205;
    const AT_BARRIER: f64 = 0.19;
    let tree = SHARED + 2 * DIGITS * DIGIT_PAGES;
    let mut phases = Vec::new();
    for array in 0..2 {
        let counts = ranks(node).map(|rank| {
            let page = |i| tree + (rank % PER_NODE) + (array * TREE_PAGES / 2 + i) * PER_NODE;
            (0..TREE_PAGES / 2).flat_map(|i| [Event::fetch(page(i)), Event::diff(page(i), 0, 512)]).collect()
        });
        phases.push(counts.collect());
        let mut keys: Phase = Vec::new();
        for rank in ranks(node) {
            let (mut events, mut waiting) = (Vec::new(), Vec::new());
            for digit in (0..DIGITS).filter(|digit| digit * u64::from(NODES) / DIGITS != u64::from(node)) {
                let page = SHARED + (array * DIGITS + digit) * DIGIT_PAGES + rank / PER_NODE;
                events.push(Event::fetch(page));
                let change = Event::diff(page, (rank % PER_NODE) as u32 * 1024, 1024);
                match rng.unit() {
                    x if x < SENT_BY_ANOTHER => (),
                    x if x < SENT_BY_ANOTHER + AT_BARRIER => waiting.push(change),
                    _ => events.push(change),
                }
            }
            events.append(&mut waiting);
            keys.push(events);
        }
        phases.push(keys);
    }
    trace(phases, (50, 9), rng)
}
