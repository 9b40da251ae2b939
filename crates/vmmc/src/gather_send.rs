//! Gather-sends: many places of one export written by one operation, with one notification.
//!
//! Invariant: notification and counter follow the last byte of the last place, and come only if all
//! have come. Source: the differences of pages that shared virtual memory sends [SHRIMP §3].

use crate::core::{Limit, count};
use crate::engine::Ticket;
use crate::error::TransferError;
use crate::import::{Import, SendOptions, Shared};
use crate::limits::STAGING_CHUNK_MAX;
use crate::mapped::Mapped;
use crate::slots::Hold;
use crate::source::last_word;
use crate::transfer::{Moving, Transfer};
use vmmc_host::Region;
use vmmc_host::abi::{Op, RANGE_BYTES, RawCommand, flags, inline_bytes_max};
use vmmc_nic::OpError;
use vmmc_nic::limits::GATHER_RANGES_MAX;
use vmmc_utlb::Op as Trace;

/// Where a command finds ranges and data.
enum Packed {
    Inline(Vec<u8>),
    Held { region: u32, offset: u64, hold: Hold },
}

impl Import {
    /// Sends pieces of data, each to its offset, as one operation: one notification or counter for
    /// all of them, which comes when all are there and not otherwise. Where two overlap, the later
    /// one wins. At most 1,024 pieces; the data may be reused on return.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-gather").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// use vmmc::SendOptions;
    /// let export = session.export(4096).name("page").notify(true).create()?;
    /// let import = session.import("page").open()?;
    /// import.gather_send(&[(8, b"one"), (1000, b"two")], SendOptions::notify())?;
    /// let news = export.wait_notification()?;
    /// assert_eq!((news.offset, news.len), (8, 995)); // from the first byte to the last
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TransferError`]: nothing has moved if a piece is out of bounds or there are too many; else
    /// some pieces may have arrived, and there is no notification.
    pub fn gather_send(&self, pieces: &[(u64, &[u8])], options: SendOptions) -> Result<(), TransferError> {
        let limit = &self.shared.limit(options);
        match self.start_gather(pieces, options, limit, true)? {
            Some(mut ticket) => self.shared.finish(&mut ticket, limit).map(drop),
            None => Ok(()),
        }
    }

    /// As [`gather_send`](Self::gather_send), without waiting; the transfer ends when all has
    /// arrived.
    ///
    /// # Errors
    /// As for [`gather_send`](Self::gather_send).
    pub fn post_gather_send(
        &self,
        pieces: &[(u64, &[u8])],
        options: SendOptions,
    ) -> Result<Transfer<'static>, TransferError> {
        let ticket = self.start_gather(pieces, options, &self.shared.limit(options), false)?;
        let moving = ticket.map_or_else(|| Moving::Done(Ok(bytes_of(pieces))), Moving::One);
        Ok(Transfer::new(self.shared.clone(), moving, ()))
    }

    /// Sends the pieces. What is still to be waited for comes back; `posted`: only if the data must
    /// stay until then.
    fn start_gather(
        &self,
        pieces: &[(u64, &[u8])],
        options: SendOptions,
        limit: &Limit<'_>,
        posted: bool,
    ) -> Result<Option<Ticket>, TransferError> {
        let shared = &*self.shared;
        let given = pieces.len();
        if given > GATHER_RANGES_MAX {
            let error = OpError::BadRanges { ranges: given as u64, max: GATHER_RANGES_MAX as u64 };
            return Err(TransferError::Engine { import: shared.label.clone(), error });
        }
        for (offset, data) in pieces {
            shared.check_send(*offset, data.len() as u64, options.counter)?;
        }
        let pieces: Vec<(u64, &[u8])> = pieces.iter().copied().filter(|(_, data)| !data.is_empty()).collect();
        if pieces.is_empty() {
            return self.send_with(0, &[], options).map(|()| None);
        }
        match &self.mapped {
            Some(mapped) => self.gather_mapped(mapped, &pieces, options).map(|()| None),
            None => shared.gather_engine(&pieces, options, limit, posted),
        }
    }

    fn gather_mapped(
        &self,
        mapped: &Mapped,
        pieces: &[(u64, &[u8])],
        options: SendOptions,
    ) -> Result<(), TransferError> {
        mapped.send_pieces(pieces).map_err(|fault| self.shared.fault(fault))?;
        let (offset, len) = span(pieces);
        let last_word = pieces.last().map_or(0, |(_, data)| last_word(data));
        self.after_mapped(mapped, offset, len, last_word, options)
    }
}

impl Shared {
    fn gather_engine(
        &self,
        pieces: &[(u64, &[u8])],
        options: SendOptions,
        limit: &Limit<'_>,
        posted: bool,
    ) -> Result<Option<Ticket>, TransferError> {
        self.check_deferred()?;
        let bytes = bytes_of(pieces);
        for (_, data) in pieces {
            self.core.hot.trace(Trace::Send, data.as_ptr() as usize, data.len() as u64);
        }
        let mut command = self.send_command(0, options);
        command.op = Op::GatherSend;
        (command.count, command.len) = (pieces.len() as u32, (pieces.len() * RANGE_BYTES) as u64 + bytes);
        count(&self.core.counters.send_bytes, bytes);
        match self.pack(pieces, &command, limit)? {
            Packed::Inline(data) => {
                count(&self.core.counters.sends_inline, 1);
                command.flags |= flags::INLINE;
                if posted {
                    return self.post(&command, &data, limit).map(|()| None);
                }
                self.post_answered_with(&mut command, &data, Hold::Nothing, limit).map(Some)
            }
            Packed::Held { region, offset, hold } => {
                count(&self.core.counters.sends_staged, 1);
                (command.region, command.region_offset) = (region.into(), offset);
                if posted && matches!(hold, Hold::Chunk(_)) {
                    command.flags |= flags::COMPLETE;
                    return self.post_unattended(&mut command, hold, limit).map(|()| None);
                }
                self.post_answered(&mut command, hold, limit).map(Some)
            }
        }
    }

    /// Copies the table of ranges and the data to where the node takes them from.
    fn pack(&self, pieces: &[(u64, &[u8])], command: &RawCommand, limit: &Limit<'_>) -> Result<Packed, TransferError> {
        let table: Vec<u8> =
            pieces.iter().flat_map(|(offset, data)| [*offset, data.len() as u64]).flat_map(u64::to_le_bytes).collect();
        if command.len <= inline_bytes_max(command.flags) as u64 {
            let mut all = table;
            pieces.iter().for_each(|(_, data)| all.extend_from_slice(data));
            return Ok(Packed::Inline(all));
        }
        if command.len <= STAGING_CHUNK_MAX {
            let (staging, chunk) = self.chunk(command.len, limit)?;
            fill(&staging.region, chunk.offset, &table, pieces);
            return Ok(Packed::Held { region: staging.id, offset: chunk.offset, hold: Hold::Chunk(chunk) });
        }
        let memory = self.new_memory(command.len, limit)?;
        fill(&memory.region, 0, &table, pieces);
        Ok(Packed::Held { region: memory.id, offset: 0, hold: Hold::Memory(memory) })
    }
}

/// Copies table and data to memory that is large enough.
fn fill(region: &Region, start: u64, table: &[u8], pieces: &[(u64, &[u8])]) {
    let mut at = start;
    for data in [table].into_iter().chain(pieces.iter().map(|(_, data)| *data)) {
        region.write(at, data).expect("the memory was chosen large enough");
        at += data.len() as u64;
    }
}

fn bytes_of(pieces: &[(u64, &[u8])]) -> u64 {
    pieces.iter().map(|(_, data)| data.len() as u64).sum()
}

/// Offset and length of what spans all pieces, of which there is one.
fn span(pieces: &[(u64, &[u8])]) -> (u64, u64) {
    let start = pieces.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
    let end = pieces.iter().map(|(offset, data)| offset + data.len() as u64).max().unwrap_or(0);
    (start, end - start)
}
