//! Text with commas: `time_ns,process,op,address,length`.
//!
//! Invariant: the head line is exactly [`HEAD`]; addresses may be decimal or, with 0x, hexadecimal;
//! empty lines are allowed at the end only.

use super::{Input, Op, Reading, Reason, Record, TraceError};
use crate::ids::Process;
use crate::limits::LINE_BYTES_MAX;
use std::io::{BufRead, Read, Write};

pub(super) const HEAD: &str = "time_ns,process,op,address,length\n";

pub(super) fn line(stream: &mut impl Write, record: &Record) -> std::io::Result<()> {
    let Record { time_ns, process, op, address, len_bytes } = record;
    writeln!(stream, "{time_ns},{},{},{address:#x},{len_bytes}", process.0, op.name())
}

/// Lines with their numbers, for text formats.
pub(super) struct Lines<R> {
    pub(super) input: Input<R>,
    text: Vec<u8>,
    number: u64,
    // Bytes of the line last read; the offset in errors is its beginning.
    read: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: Input<R>) -> Lines<R> {
        Lines { input, text: Vec::new(), number: 0, read: 0 }
    }

    /// The next line without its end.
    pub(super) fn next(&mut self) -> Result<Option<String>, TraceError> {
        self.input.offset += std::mem::take(&mut self.read);
        self.text.clear();
        let mut stream = (&mut self.input.stream).take(LINE_BYTES_MAX as u64 + 1);
        let read = match stream.read_until(b'\n', &mut self.text) {
            Ok(read) => read,
            Err(e) => return Err(self.input.io(&e)),
        };
        self.read = read as u64;
        self.number += 1;
        if read == 0 {
            return Ok(None);
        }
        if read > LINE_BYTES_MAX {
            return Err(self.error(format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        let text = std::str::from_utf8(&self.text).map_err(|_| self.error("not text".into()))?;
        Ok(Some(text.trim_end().to_owned()))
    }

    pub(super) fn error(&self, what: String) -> TraceError {
        self.input.error(Reason::Line { line: self.number, what })
    }
}

pub(super) struct CsvReader<R> {
    lines: Lines<R>,
    time_ns: u64,
}

/// A number, hexadecimal with 0x.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl<R: BufRead> CsvReader<R> {
    pub(super) fn new(input: Input<R>) -> Result<CsvReader<R>, TraceError> {
        let mut lines = Lines::new(input);
        let head = lines.next()?.unwrap_or_default();
        if head != HEAD.trim_end() {
            return Err(lines.error(format!("the head is {head:?} and not {:?}", HEAD.trim_end())));
        }
        Ok(CsvReader { lines, time_ns: 0 })
    }
}

impl<R: BufRead> Reading for CsvReader<R> {
    fn record(&mut self) -> Result<Option<Record>, TraceError> {
        let Some(line) = self.lines.next()? else { return Ok(None) };
        if line.is_empty() {
            return match self.lines.next()? {
                None => Ok(None),
                Some(_) => Err(self.lines.error("a line after an empty one".into())),
            };
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [time, process, op, address, length] = fields[..] else {
            return Err(self.lines.error(format!("{} fields instead of 5", fields.len())));
        };
        let parse = |what: &str, text: &str| {
            number(text).ok_or_else(|| self.lines.error(format!("{what} {text:?} is no number of 64 bits")))
        };
        let time_ns = parse("time", time)?;
        let process = parse("process", process)?;
        let process = u16::try_from(process).map_err(|_| self.lines.input.error(Reason::Process(process)))?;
        let address = parse("address", address)?;
        let length = parse("length", length)?;
        let len_bytes = u32::try_from(length).map_err(|_| self.lines.input.error(Reason::Length(length)))?;
        let op = Op::ALL
            .into_iter()
            .find(|known| known.name() == op)
            .ok_or_else(|| self.lines.error(format!("{op:?} is no op; give send, fetch, export or unmap")))?;
        let record = Record { time_ns, process: Process(process), op, address, len_bytes };
        let record = self.lines.input.checked(record, self.time_ns)?;
        self.time_ns = time_ns;
        Ok(Some(record))
    }
}
