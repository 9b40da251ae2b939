//! From what each process does to a trace with times.
//!
//! Invariant: processes run side by side between barriers and never pass one early; times never
//! decrease.

use super::{APPLICATION_PROCESSES, PROTOCOL};
use crate::Rng;
use crate::ids::Process;
use crate::limits::PAGE_SHIFT;
use crate::trace::{Op, Record};

/// A transfer inside one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) op: Op,
    pub(super) page: u64,
    pub(super) offset: u32,
    pub(super) len_bytes: u32,
}

impl Event {
    pub(super) fn fetch(page: u64) -> Event {
        Event { op: Op::Fetch, page, offset: 0, len_bytes: 4096 }
    }

    /// The changed part of a page, sent to its home.
    pub(super) fn diff(page: u64, offset: u32, len_bytes: u32) -> Event {
        Event { op: Op::Send, page, offset, len_bytes }
    }
}

/// What the application processes of a node do between two barriers.
pub(super) type Phase = Vec<Vec<Event>>;

/// Mean time between transfers of a process.
const GAP_NS: u64 = 100_000;

/// Gives times, and adds the protocol process: one message for every so many transfers, from a ring
/// of so many pages.
pub(super) fn trace(phases: Vec<Phase>, protocol: (u64, u64), rng: &mut Rng) -> Vec<Record> {
    let (every, ring) = protocol;
    let mut records = Vec::new();
    let (mut start_ns, mut messages) = (0, 0);
    for phase in phases {
        let mut end_ns = start_ns;
        for (process, events) in (1..).zip(phase) {
            let mut time_ns = start_ns;
            for event in events {
                time_ns += GAP_NS / 2 + rng.below(GAP_NS);
                let address = (event.page << PAGE_SHIFT) + u64::from(event.offset);
                let Event { op, len_bytes, .. } = event;
                records.push(Record { time_ns, process: Process(process), op, address, len_bytes });
                if op != Op::Export && rng.below(every) == 0 {
                    let (page, process) = (PROTOCOL + messages % ring, Process(APPLICATION_PROCESSES + 1));
                    let address = page << PAGE_SHIFT;
                    records.push(Record { time_ns: time_ns + 1, process, op: Op::Send, address, len_bytes: 64 });
                    messages += 1;
                }
            }
            end_ns = end_ns.max(time_ns);
        }
        start_ns = end_ns + GAP_NS;
    }
    records.sort_by_key(|record| (record.time_ns, record.process));
    records
}
