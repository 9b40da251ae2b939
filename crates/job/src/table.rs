//! The table of a job: who is in it, where, and in what state. Its supervisor on each node exports
//! it; the ranks of that node map it.
//!
//! ```text
//!   0   version   8  view   16  ranks   24  nodes   32  own node
//!  64   nodes, 192 bytes each: name (length, 64 bytes), locator (length, 112 bytes)
//!  ..   ranks, 8 bytes each: state in the low half, node in the high half
//! ```
//!
//! Invariant: only the supervisor writes; `view` is marked while it writes, and grows when it is
//! done, so a reader that finds the same unmarked view before and after has read one state.

use crate::limits::{JOB_NODES_MAX, JOB_RANKS_MAX, JOB_TABLE_TIMEOUT};
use crate::protocol::{JobNode, MemberState};
use std::time::Instant;
use vmmc::{Export, Import, TransferError};

const VIEW: u64 = 8;
const RANKS: u64 = 16;
const NODES: u64 = 24;
const OWN: u64 = 32;
const NODE_LIST: u64 = 64;
const NODE_BYTES: u64 = 192;
const NAME_BYTES: usize = 64;
const LOCATOR_BYTES: usize = 112;
const RANK_LIST: u64 = NODE_LIST + NODE_BYTES * JOB_NODES_MAX as u64;
/// Mark in `view` while the rest changes.
const CHANGING: u64 = 1 << 63;
/// Bytes of a table.
pub const TABLE_BYTES: u64 = RANK_LIST + 8 * JOB_RANKS_MAX as u64;

/// One state of a job.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct View {
    /// Number: grows with every change.
    pub number: u64,
    /// Nodes.
    pub nodes: Vec<JobNode>,
    /// Index of the node that this table is on.
    pub own: u32,
    /// For each rank its state and the index of its node.
    pub ranks: Vec<(MemberState, u32)>,
}

impl View {
    /// Ranks that run.
    pub fn members(&self) -> Vec<u32> {
        let running = |(_, (state, _)): &(usize, &(MemberState, u32))| *state == MemberState::Running;
        self.ranks.iter().enumerate().filter(running).map(|(rank, _)| rank as u32).collect()
    }

    /// Writes the state into an export of [`TABLE_BYTES`].
    pub fn write(&self, table: &Export) {
        let inside = "the table has room for the largest job, which the launcher has checked";
        let word = |offset, value: u64| table.write(offset, &value.to_le_bytes()).expect(inside);
        word(VIEW, self.number | CHANGING);
        for (index, node) in self.nodes.iter().enumerate().take(JOB_NODES_MAX) {
            let at = NODE_LIST + NODE_BYTES * index as u64;
            write_text(table, at, &node.name, NAME_BYTES);
            write_text(table, at + 8 + NAME_BYTES as u64, &node.locator, LOCATOR_BYTES);
        }
        for (rank, (state, node)) in self.ranks.iter().enumerate().take(JOB_RANKS_MAX) {
            word(RANK_LIST + 8 * rank as u64, u64::from(*node) << 32 | code(*state));
        }
        word(NODES, self.nodes.len() as u64);
        word(RANKS, self.ranks.len() as u64);
        word(OWN, self.own.into());
        word(VIEW, self.number);
    }

    /// Number of the present view; no view's number while it changes.
    pub(crate) fn number(table: &Import) -> Result<u64, TransferError> {
        fetch_word(table, VIEW)
    }

    /// Reads the state. While the supervisor writes it waits, for [`JOB_TABLE_TIMEOUT`] at most: if
    /// it dies of it, the fetch says so, but it may have been stopped.
    pub(crate) fn read(table: &Import) -> Result<View, TransferError> {
        let start = Instant::now();
        loop {
            if start.elapsed() >= JOB_TABLE_TIMEOUT {
                return Err(TransferError::TimedOut {
                    import: "the table of the job".into(),
                    after_ms: JOB_TABLE_TIMEOUT.as_millis() as u64,
                });
            }
            let number = View::number(table)?;
            if number & CHANGING != 0 {
                std::thread::yield_now();
                continue;
            }
            let nodes = fetch_word(table, NODES)?.min(JOB_NODES_MAX as u64);
            let ranks = fetch_word(table, RANKS)?.min(JOB_RANKS_MAX as u64);
            let mut bytes = vec![0; (NODE_BYTES * nodes) as usize];
            table.fetch(NODE_LIST, &mut bytes)?;
            let nodes = bytes.chunks_exact(NODE_BYTES as usize).map(read_node).collect();
            let mut bytes = vec![0; 8 * ranks as usize];
            table.fetch(RANK_LIST, &mut bytes)?;
            let rank = |word: &[u8]| {
                let word = u64::from_le_bytes(word.try_into().expect("chunks of eight bytes"));
                (state(word as u32), (word >> 32) as u32)
            };
            let ranks = bytes.chunks_exact(8).map(rank).collect();
            let own = fetch_word(table, OWN)? as u32;
            if View::number(table)? == number {
                return Ok(View { number, nodes, own, ranks });
            }
        }
    }
}

fn fetch_word(table: &Import, offset: u64) -> Result<u64, TransferError> {
    let mut word = [0; 8];
    table.fetch(offset, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

fn write_text(table: &Export, at: u64, text: &str, max: usize) {
    let bytes = &text.as_bytes()[..text.len().min(max)];
    let inside = "the table has room for it";
    table.write(at, &(bytes.len() as u64).to_le_bytes()).expect(inside);
    table.write(at + 8, bytes).expect(inside);
}

fn read_node(bytes: &[u8]) -> JobNode {
    let text = |at: usize, max: usize| {
        let len = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
        String::from_utf8_lossy(&bytes[at + 8..at + 8 + len.min(max)]).into_owned()
    };
    JobNode { name: text(0, NAME_BYTES), locator: text(8 + NAME_BYTES, LOCATOR_BYTES) }
}

fn code(state: MemberState) -> u64 {
    match state {
        MemberState::Running => 1,
        MemberState::Left => 2,
        MemberState::Ended => 3,
        MemberState::Failed => 4,
    }
}

fn state(code: u32) -> MemberState {
    match code {
        1 => MemberState::Running,
        2 => MemberState::Left,
        3 => MemberState::Ended,
        _ => MemberState::Failed,
    }
}
