//! Reads our own format; it is described where it is written, in `record.rs`.
//!
//! Invariant: what was written is read back exactly; a cut trace is noticed.

use super::{Input, Op, Reading, Reason, Record, TraceError};
use crate::ids::Process;
use crate::record::{END, MAGIC, OTHER_LENGTH, OTHER_PROCESS, State, VERSION};
use std::io::BufRead;

pub(super) struct OwnReader<R> {
    input: Input<R>,
    state: State,
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
        Ok(OwnReader { input, state: State::default() })
    }

    #[inline]
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

    #[inline]
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

impl<R: BufRead> Reading for OwnReader<R> {
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
}
