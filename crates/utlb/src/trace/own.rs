//! Our own format: a head of 8 bytes, then records of differences; 4 to 8 bytes a record before compression.
//!
//! ```text
//!  "VMMCTRC" version      8 bytes
//!  record*                kind: bits 0-1 op, bit 2 another process, bit 3 another length than this process's last
//!                         varint: time since the last record, ns
//!                         varint: process                    if bit 2
//!                         zigzag varint: address less the end of this process's last transfer
//!                         varint: length                     if bit 3
//!  0xff varint count      end, so that a cut trace is noticed
//! ```
//!
//! Invariant: what is written is read back exactly. All numbers are LEB128 varints.

use super::{Input, Op, Reason, Record, TraceError};
use crate::ids::Process;
use std::io::{BufRead, Write};

const MAGIC: &[u8; 7] = b"VMMCTRC";
const VERSION: u8 = 1;
const END: u8 = 0xff;
const OTHER_PROCESS: u8 = 4;
const OTHER_LENGTH: u8 = 8;

/// What the next record is told relative to.
#[derive(Default)]
struct State {
    time_ns: u64,
    process: u16,
    // By process: end of the last transfer, its length.
    last: Vec<(u64, u32)>,
    count: u64,
}

impl State {
    fn last(&mut self, process: u16) -> &mut (u64, u32) {
        let at = usize::from(process);
        if self.last.len() <= at {
            self.last.resize(at + 1, (0, 0));
        }
        &mut self.last[at]
    }
}

/// Writes records one by one, as the running system does.
pub struct OwnWriter<W> {
    stream: W,
    state: State,
}

impl<W: Write> OwnWriter<W> {
    /// Writes the head.
    ///
    /// # Errors
    ///
    /// Those of the stream.
    pub fn new(mut stream: W) -> std::io::Result<OwnWriter<W>> {
        stream.write_all(MAGIC)?;
        stream.write_all(&[VERSION])?;
        Ok(OwnWriter { stream, state: State::default() })
    }

    /// Writes a record. A time before that of the last one is written as the same time.
    ///
    /// # Errors
    ///
    /// Those of the stream.
    pub fn push(&mut self, record: &Record) -> std::io::Result<()> {
        let mut bytes = [0u8; 44];
        let mut len = 1;
        let process = record.process.0;
        let mut kind = Op::ALL.iter().position(|op| *op == record.op).expect("all ops are listed") as u8;
        let now = record.time_ns.max(self.state.time_ns);
        varint(&mut bytes, &mut len, now - self.state.time_ns);
        self.state.time_ns = now;
        if process != self.state.process {
            kind |= OTHER_PROCESS;
            varint(&mut bytes, &mut len, u64::from(process));
            self.state.process = process;
        }
        let (end, length) = *self.state.last(process);
        let step = record.address.wrapping_sub(end);
        varint(&mut bytes, &mut len, (step << 1) ^ (step >> 63).wrapping_neg());
        if record.len_bytes != length {
            kind |= OTHER_LENGTH;
            varint(&mut bytes, &mut len, u64::from(record.len_bytes));
        }
        *self.state.last(process) = (record.address.wrapping_add(u64::from(record.len_bytes)), record.len_bytes);
        bytes[0] = kind;
        self.state.count += 1;
        self.stream.write_all(&bytes[..len])
    }

    /// Writes the end; without it the trace counts as cut.
    ///
    /// # Errors
    ///
    /// Those of the stream.
    pub fn finish(mut self) -> std::io::Result<W> {
        let mut bytes = [END; 11];
        let mut len = 1;
        varint(&mut bytes, &mut len, self.state.count);
        self.stream.write_all(&bytes[..len])?;
        self.stream.flush()?;
        Ok(self.stream)
    }
}

fn varint(bytes: &mut [u8], len: &mut usize, mut value: u64) {
    while value >= 0x80 {
        bytes[*len] = value as u8 | 0x80;
        *len += 1;
        value >>= 7;
    }
    bytes[*len] = value as u8;
    *len += 1;
}

pub(super) struct OwnReader<R> {
    input: Input<R>,
    state: State,
    ended: bool,
}

impl<R: BufRead> OwnReader<R> {
    pub(super) fn new(mut input: Input<R>) -> Result<OwnReader<R>, TraceError> {
        let mut head = [0; 8];
        let full = input.fill(&mut head)?;
        if !full || head[..7] != MAGIC[..] {
            input.offset = 0;
            return Err(input.error(Reason::Magic(head.to_vec())));
        }
        if head[7] != VERSION {
            return Err(input.error(Reason::Version(head[7])));
        }
        Ok(OwnReader { input, state: State::default(), ended: false })
    }

    fn byte(&mut self) -> Result<u8, TraceError> {
        let buffer = match self.input.stream.fill_buf() {
            Ok(buffer) => buffer,
            Err(e) => return Err(self.input.io(&e)),
        };
        let Some(byte) = buffer.first().copied() else { return Err(self.input.error(Reason::Truncated)) };
        self.input.stream.consume(1);
        self.input.offset += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, TraceError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.input.error(Reason::Number))
    }

    fn record(&mut self) -> Result<Option<Record>, TraceError> {
        let start = self.input.offset;
        let kind = self.byte()?;
        if kind == END {
            return self.end().map(|()| None);
        }
        if kind & !(3 | OTHER_PROCESS | OTHER_LENGTH) != 0 {
            return Err(TraceError { offset: start, ..self.input.error(Reason::Kind(kind)) });
        }
        let before = self.state.time_ns;
        let step = self.varint()?;
        let time_ns = before.checked_add(step).ok_or_else(|| self.input.error(Reason::Number))?;
        if kind & OTHER_PROCESS != 0 {
            let process = self.varint()?;
            self.state.process = u16::try_from(process).map_err(|_| self.input.error(Reason::Process(process)))?;
        }
        let zigzag = self.varint()?;
        let step = (zigzag >> 1) ^ (zigzag & 1).wrapping_neg();
        let (end, mut len_bytes) = *self.state.last(self.state.process);
        let address = end.wrapping_add(step);
        if kind & OTHER_LENGTH != 0 {
            let length = self.varint()?;
            len_bytes = u32::try_from(length).map_err(|_| self.input.error(Reason::Length(length)))?;
        }
        let process = self.state.process;
        *self.state.last(process) = (address.wrapping_add(u64::from(len_bytes)), len_bytes);
        self.state.time_ns = time_ns;
        self.state.count += 1;
        let op = Op::ALL[usize::from(kind & 3)];
        let record = Record { time_ns, process: Process(process), op, address, len_bytes };
        self.input.checked(record, before).map(Some).map_err(|e| TraceError { offset: start, ..e })
    }

    fn end(&mut self) -> Result<(), TraceError> {
        let (said, found) = (self.varint()?, self.state.count);
        if said != found {
            return Err(self.input.error(Reason::Count { said, found }));
        }
        if self.byte().is_ok() {
            return Err(self.input.error(Reason::Trailing));
        }
        Ok(())
    }
}

impl<R: BufRead> Iterator for OwnReader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.record().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        record
    }
}
