//! Records of transfers, and our own format of traces, as the running system writes it: a head of 8
//! bytes, then records of differences; 4 to 8 bytes a record before compression.
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

use crate::ids::Process;
use std::io::Write;

pub(crate) const MAGIC: &[u8; 7] = b"VMMCTRC";
pub(crate) const VERSION: u8 = 1;
pub(crate) const END: u8 = 0xff;
pub(crate) const OTHER_PROCESS: u8 = 4;
pub(crate) const OTHER_LENGTH: u8 = 8;

/// What a record reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Deliberate update: memory is read and sent.
    Send,
    /// Remote fetch: memory is written by the network.
    Fetch,
    /// Memory was exported: pinned for good, not looked up.
    Export,
    /// Memory was unmapped: its translations are void.
    Unmap,
}

impl Op {
    pub(crate) const ALL: [Op; 4] = [Op::Send, Op::Fetch, Op::Export, Op::Unmap];

    /// As in text traces.
    pub fn name(self) -> &'static str {
        match self {
            Op::Send => "send",
            Op::Fetch => "fetch",
            Op::Export => "export",
            Op::Unmap => "unmap",
        }
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, on a clock that all processes of the trace share.
    pub time_ns: u64,
    /// Who.
    pub process: Process,
    /// What.
    pub op: Op,
    /// Virtual address of the local memory.
    pub address: u64,
    /// Bytes.
    pub len_bytes: u32,
}

/// What the next record is told relative to.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) time_ns: u64,
    pub(crate) process: u16,
    // By process: end of the last transfer, its length.
    last: Vec<(u64, u32)>,
    pub(crate) count: u64,
}

impl State {
    pub(crate) fn last(&mut self, process: u16) -> &mut (u64, u32) {
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
        self.end()?;
        Ok(self.stream)
    }

    /// Writes the end, for now: a writer that goes on goes back by so many bytes first.
    ///
    /// # Errors
    ///
    /// Those of the stream.
    pub fn end(&mut self) -> std::io::Result<usize> {
        let mut bytes = [END; 11];
        let mut len = 1;
        varint(&mut bytes, &mut len, self.state.count);
        self.stream.write_all(&bytes[..len])?;
        self.stream.flush()?;
        Ok(len)
    }

    /// The stream.
    pub fn stream(&mut self) -> &mut W {
        &mut self.stream
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
