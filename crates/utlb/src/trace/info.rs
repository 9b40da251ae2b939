//! What is in a trace: footprint, lookups, times. [UTLB Table 3]
//!
//! Invariant: memory grows with the footprint (one bit a page), not with the length.

use super::{Op, Record};
use crate::ids::{Pages, Process};
use crate::page_table::PageSet;
use std::collections::BTreeMap;

/// One process.
#[derive(Clone, Debug, Default)]
pub struct ProcessInfo {
    /// Transfers.
    pub transfers: u64,
    /// Pages looked up.
    pub lookups: u64,
    /// Distinct pages looked up.
    pub pages: u64,
    /// Distinct pages looked up or exported: the communication footprint.
    pub footprint: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes fetched.
    pub fetched_bytes: u64,
    looked_up: PageSet,
    touched: PageSet,
}

/// A trace.
#[derive(Clone, Debug, Default)]
pub struct Info {
    /// Records of any kind.
    pub records: u64,
    /// Time of the first.
    pub first_ns: Option<u64>,
    /// Time of the last.
    pub last_ns: u64,
    /// Each process.
    pub processes: BTreeMap<Process, ProcessInfo>,
}

impl Info {
    /// One more record.
    pub fn add(&mut self, record: &Record) {
        self.records += 1;
        self.first_ns.get_or_insert(record.time_ns);
        self.last_ns = record.time_ns;
        let Some(pages) = Pages::of_bytes(record.address, u64::from(record.len_bytes)) else { return };
        let process = self.processes.entry(record.process).or_default();
        let len_bytes = u64::from(record.len_bytes);
        match record.op {
            Op::Send => process.sent_bytes += len_bytes,
            Op::Fetch => process.fetched_bytes += len_bytes,
            Op::Export => {
                pages.iter().for_each(|page| process.footprint += u64::from(process.touched.insert(page)));
                return;
            }
            Op::Unmap => return,
        }
        process.transfers += 1;
        process.lookups += pages.count();
        for page in pages.iter() {
            process.pages += u64::from(process.looked_up.insert(page));
            process.footprint += u64::from(process.touched.insert(page));
        }
    }

    /// A sum over the processes.
    pub fn sum(&self, of: impl Fn(&ProcessInfo) -> u64) -> u64 {
        self.processes.values().map(of).sum()
    }
}
