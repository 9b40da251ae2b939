//! Deliberate updates in one direction: the sender stores, the receiver waits for the last word
//! only, as one-sided transfers are meant.
//!
//! Invariant: the clock stops when the receiver has seen the word that follows the last message, so
//! every byte has arrived.

use super::{Attached, TaskError};
use crate::limits::TRANSFERS;
use crate::measure::ping::{Flow, follow_flow, lead_flow};
use crate::measure::side::Side;
use crate::measure::stats::Sample;
use crate::measure::task::{Role, Task};
use std::collections::VecDeque;
use vmmc::{Buffer, Export, Import, Path, SendOptions};

/// Bytes before the messages, for the words that end a stream.
const HEAD_BYTES: u64 = 4096;

struct Stream<'a> {
    attached: &'a Attached,
    export: Export,
    import: Import,
    source: Buffer,
    size: u64,
    /// Streams so far; both sides count.
    streams: u64,
}

/// Plays one half.
pub(super) fn measure(attached: &Attached, task: &Task, side: &Side) -> Result<Option<Sample>, TaskError> {
    let (export, import) = attached.exchange(task.number, task.role, HEAD_BYTES + task.size)?;
    let source = attached.session.buffer(task.size).map_err(TaskError::vmmc)?;
    source.write(0, &vec![1; task.size as usize]).map_err(TaskError::vmmc)?;
    let mut stream = Stream { attached, export, import, source, size: task.size, streams: 0 };
    match task.role {
        Role::Lead => lead_flow(&mut stream, side, task.size, task.budget).map(Some),
        Role::Follow => follow_flow(&mut stream, side).map(|()| None),
    }
}

impl Flow for Stream<'_> {
    fn push(&mut self, count: u64) -> Result<(), TaskError> {
        self.streams += 1;
        if self.import.explain().path == Path::Mapped {
            for _ in 0..count {
                self.import.send(HEAD_BYTES, self.source.range(0..self.size)).map_err(TaskError::vmmc)?;
            }
        } else {
            self.push_async(count)?;
        }
        self.import.send(0, &self.streams.to_le_bytes()).map_err(TaskError::vmmc)?;
        self.await_stream()
    }

    fn pull(&mut self, _count: u64) -> Result<(), TaskError> {
        self.streams += 1;
        self.await_stream()?;
        self.import.send(0, &self.streams.to_le_bytes()).map_err(TaskError::vmmc)
    }
}

impl Stream<'_> {
    /// Waits for the end of a stream. Between nodes the library's wait leaves the processor to the
    /// nodes, which move the bytes; on one node nobody else needs it.
    fn await_stream(&self) -> Result<(), TaskError> {
        if self.import.explain().path == Path::Mapped {
            return self.attached.await_word(&self.export, 0, self.streams);
        }
        let streams = self.streams;
        self.export.wait_word(0, |word| word == streams).map(drop).map_err(TaskError::vmmc)
    }

    fn push_async(&mut self, count: u64) -> Result<(), TaskError> {
        let mut under_way = VecDeque::with_capacity(TRANSFERS);
        for _ in 0..count {
            if under_way.len() == TRANSFERS {
                let mut oldest: vmmc::Transfer = under_way.pop_front().expect("its length was just looked at");
                oldest.wait().map_err(TaskError::vmmc)?;
            }
            let options = SendOptions::default();
            let transfer = self.import.post_send(HEAD_BYTES, self.source.range(0..self.size), options);
            under_way.push_back(transfer.map_err(TaskError::vmmc)?);
        }
        under_way.iter_mut().try_for_each(|t| t.wait().map(drop)).map_err(TaskError::vmmc)
    }
}
