//! Dinero's classic format: a label and a hexadecimal address a line.
//!
//! Invariant: the line number is the time; all is one process, number 0. Label 0 (read) is a send,
//! 1 (write) a fetch; instruction fetches (2) are no transfers and are refused, because leaving
//! them out would change what the trace means.

use super::csv::Lines;
use super::{Input, Op, Reading, Record, TraceError};
use crate::ids::Process;
use std::io::{BufRead, Write};

/// Bytes of an access, which the format does not record.
const ACCESS_BYTES: u32 = 4;

pub(super) fn line(stream: &mut impl Write, record: &Record) -> std::io::Result<()> {
    match record.op {
        Op::Send => writeln!(stream, "0 {:x}", record.address),
        Op::Fetch => writeln!(stream, "1 {:x}", record.address),
        Op::Export | Op::Unmap => Ok(()),
    }
}

pub(super) struct DinReader<R> {
    lines: Lines<R>,
    time_ns: u64,
}

impl<R: BufRead> DinReader<R> {
    pub(super) fn new(input: Input<R>) -> DinReader<R> {
        DinReader { lines: Lines::new(input), time_ns: 0 }
    }
}

impl<R: BufRead> Reading for DinReader<R> {
    fn record(&mut self) -> Result<Option<Record>, TraceError> {
        let Some(line) = self.lines.next()? else { return Ok(None) };
        let mut words = line.split_whitespace();
        let (Some(label), Some(address)) = (words.next(), words.next()) else {
            return Err(self.lines.error("a label and an address were expected".into()));
        };
        let op = match label {
            "0" => Op::Send,
            "1" => Op::Fetch,
            _ => return Err(self.lines.error(format!("label {label:?}; 0 (read) and 1 (write) are transfers"))),
        };
        let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)
            .map_err(|_| self.lines.error(format!("address {address:?} is no hexadecimal number of 64 bits")))?;
        self.time_ns += 1;
        let record = Record { time_ns: self.time_ns, process: Process(0), op, address, len_bytes: ACCESS_BYTES };
        self.lines.input.checked(record, 0).map(Some)
    }
}
