//! libCacheSim's oracleGeneral: 24 bytes a request: time in s (u32), object (u64), size (u32),
//! index of the object's next request (i64), little-endian.
//!
//! Invariant: an object is a page and a request is a transfer inside it, so that its LRU and ours
//! count the same. A written object is `process * 2^36 + page`, one for each page of a transfer.

use super::{Input, Op, Reading, Reason, Record, TraceError};
use crate::ids::{Page, Pages, Process};
use crate::limits::PAGE_SHIFT;
use std::collections::HashMap;
use std::io::{BufRead, Write};

const BYTES: usize = 24;
const PAGE_BITS: u32 = 36;
const PROCESSES: u16 = 4096;
/// "Never again", as libCacheSim writes it.
const NEVER: i64 = i64::MAX;

pub(super) struct OracleReader<R> {
    input: Input<R>,
    time_ns: u64,
}

impl<R: BufRead> OracleReader<R> {
    pub(super) fn new(input: Input<R>) -> OracleReader<R> {
        OracleReader { input, time_ns: 0 }
    }
}

/// Writes all transfers; how many requests.
pub(super) fn write(
    file: &str,
    stream: &mut impl Write,
    records: impl Iterator<Item = Result<Record, TraceError>>,
) -> Result<u64, TraceError> {
    let mut requests: Vec<(u32, u64)> = Vec::new();
    for record in records {
        let record = record?;
        if !matches!(record.op, Op::Send | Op::Fetch) {
            continue;
        }
        let Some(pages) = Pages::of_bytes(record.address, u64::from(record.len_bytes)) else { continue };
        for page in pages.iter() {
            let (process, page) = (record.process.0, page.number());
            if process >= PROCESSES || page >> PAGE_BITS != 0 {
                let reason = Reason::NoRoom { process, page };
                return Err(TraceError { file: file.into(), offset: (requests.len() * BYTES) as u64, reason });
            }
            let time_s = u32::try_from(record.time_ns / 1_000_000_000).unwrap_or(u32::MAX);
            requests.push((time_s, u64::from(process) << PAGE_BITS | page));
        }
    }
    let mut next = vec![NEVER; requests.len()];
    let mut seen = HashMap::new();
    for (index, (_, object)) in requests.iter().enumerate().rev() {
        next[index] = seen.insert(*object, index as i64).unwrap_or(NEVER);
    }
    for ((time_s, object), next) in requests.iter().zip(next) {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&time_s.to_le_bytes());
        bytes[4..12].copy_from_slice(&object.to_le_bytes());
        bytes[12..16].copy_from_slice(&1u32.to_le_bytes());
        bytes[16..].copy_from_slice(&next.to_le_bytes());
        let done = stream.write_all(&bytes);
        done.map_err(|e| TraceError { file: file.into(), offset: 0, reason: Reason::Io(e.to_string()) })?;
    }
    Ok(requests.len() as u64)
}

impl<R: BufRead> Reading for OracleReader<R> {
    #[inline]
    fn record(&mut self) -> Result<Option<Record>, TraceError> {
        let mut bytes = [0; BYTES];
        let start = self.input.offset;
        if !self.input.fill(&mut bytes)? {
            return Ok(None);
        }
        let at = |error: TraceError| TraceError { offset: start, ..error };
        let time_s = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
        let object = u64::from_le_bytes(bytes[4..12].try_into().expect("8 bytes"));
        let page = Page::new(object).ok_or_else(|| at(self.input.error(Reason::Object(object))))?;
        let time_ns = u64::from(time_s) * 1_000_000_000;
        let address = page.number() << PAGE_SHIFT;
        let record = Record { time_ns, process: Process(0), op: Op::Send, address, len_bytes: 1 };
        let record = self.input.checked(record, self.time_ns).map_err(at)?;
        self.time_ns = time_ns;
        Ok(Some(record))
    }
}
