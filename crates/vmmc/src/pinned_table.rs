//! Translations that the program places itself: a table of its own, with indices that it chooses,
//! as the paper's per-process form. [UTLB §3.1]
//!
//! ```text
//!  place(index, memory) ── Call::Pin ──▶ the process's table in the node      once
//!  send_index(index, bytes) ── command {index, bytes} ──▶ entry ──▶ memory     no look at any table here, no cache there
//! ```
//!
//! Invariant: an entry's memory is lent as long as the table lives, so it stays where it is; the
//! node's entry is gone before the memory can be. Whatever a process says of indices is a claim: an
//! entry that was not placed is refused, or is the garbage page.

use crate::core::Core;
use crate::error::{CallError, PlaceError, TransferError};
use crate::import::{Import, SendOptions, Shared};
use crate::limits::PINNED_PIECE_PAGES;
use crate::pinned_transfer::Lent;
use crate::slots::Hold;
use std::ops::Range;
use std::sync::Arc;
use vmmc_host::abi::{ADDRESSES, INDEX_PAGES};
use vmmc_host::limits::INDICES_MAX;
use vmmc_host::region::PAGE_BYTES;
use vmmc_nic::OpError;
use vmmc_utlb::{Page, Pages};

/// A table of translations by index; made by
/// [`Session::pinned_table`](crate::Session::pinned_table). Its pages are pinned as long as they
/// stand in it, beside those that the session's own policy chooses among.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let session = vmmc::Session::attach()?;
/// # let memory: &[u8] = &[];
/// let frames = session.import("frames").open()?;
/// let mut table = session.pinned_table(64)?;
/// table.place(5, session.lend(memory))?; // whole pages
/// frames.send_index(0, &table, 5, 100..9000)?; // bytes of entry 5 and the two behind it
/// # Ok(())
/// # }
/// ```
pub struct PinnedTable<'a> {
    core: Arc<Core>,
    /// Of the session's indices, those of this table.
    first: u32,
    /// A page each.
    entries: Vec<Option<&'a [u8]>>,
}

impl<'a> PinnedTable<'a> {
    pub(crate) fn new(core: Arc<Core>, entries: u32) -> Result<PinnedTable<'a>, PlaceError> {
        let first = core.pins.take_indices(entries).map_err(|most| PlaceError::TooLarge { entries, most })?;
        Ok(PinnedTable { core, first, entries: vec![None; entries as usize] })
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Pins memory and writes its translations into the entries from `index` on, a page each. What
    /// stood there goes. Waits the session's timeout.
    ///
    /// # Errors
    /// [`PlaceError`]: the entries are as they were, or empty.
    pub fn place(&mut self, index: u32, memory: Lent<'a>) -> Result<(), PlaceError> {
        let bytes = memory.bytes();
        if bytes.as_ptr() as usize % PAGE_BYTES != 0 || bytes.len() % PAGE_BYTES != 0 {
            return Err(PlaceError::NotWholePages { address: bytes.as_ptr() as usize, len: bytes.len() });
        }
        let range = self.range(index, bytes.len() / PAGE_BYTES)?;
        self.clear(range.clone());
        for (at, piece) in range.clone().step_by(PINNED_PIECE_PAGES).zip(bytes.chunks(PINNED_PIECE_PAGES * PAGE_BYTES))
        {
            let pages = self.pages(at..at + piece.len() / PAGE_BYTES);
            self.core.pins.place(&self.core, pages, piece)?;
            self.entries[at..].iter_mut().zip(piece.chunks(PAGE_BYTES)).for_each(|(entry, page)| *entry = Some(page));
        }
        Ok(())
    }

    /// Empties `count` entries from `index` on.
    ///
    /// # Errors
    /// [`PlaceError::NoSuchEntry`].
    pub fn remove(&mut self, index: u32, count: usize) -> Result<(), PlaceError> {
        self.range(index, count).map(|range| self.clear(range))
    }

    fn range(&self, index: u32, count: usize) -> Result<Range<usize>, PlaceError> {
        let start = index as usize;
        let end = start.saturating_add(count);
        if end > self.entries.len() {
            return Err(PlaceError::NoSuchEntry { index, end, entries: self.entries.len() });
        }
        Ok(start..end)
    }

    fn clear(&mut self, range: Range<usize>) {
        if self.entries[range.clone()].iter().any(Option::is_some) {
            self.core.pins.unplace(&self.core, self.pages(range.clone()));
            self.entries[range].fill(None);
        }
    }

    /// What the node calls these entries.
    fn pages(&self, entries: Range<usize>) -> Pages {
        let first = Page::new(INDEX_PAGES + u64::from(self.first) + entries.start as u64);
        first.and_then(|first| Pages::new(first, entries.len() as u64)).expect("indices are pages")
    }

    /// The memory of some bytes, counted from the entry at `index` on, in pieces within pages; none
    /// if an entry is empty.
    fn pieces(&self, index: u32, bytes: Range<usize>) -> Option<Vec<&'a [u8]>> {
        let start = (index as usize).checked_mul(PAGE_BYTES)?;
        let (from, end) = (start.checked_add(bytes.start)?, start.checked_add(bytes.end)?);
        let mut pieces = Vec::new();
        let mut at = from;
        while at < end {
            let stop = end.min((at / PAGE_BYTES + 1) * PAGE_BYTES);
            let page = (*self.entries.get(at / PAGE_BYTES)?)?;
            let inside = at % PAGE_BYTES;
            pieces.push(&page[inside..inside + stop - at]);
            at = stop;
        }
        Some(pieces)
    }

    /// Asks the node once more for what stands in the entries of some bytes.
    fn place_again(&self, index: u32, bytes: &Range<usize>) -> bool {
        entries(index, bytes).all(|at| {
            self.entries[at].is_some_and(|page| self.core.pins.place(&self.core, self.pages(at..at + 1), page).is_ok())
        })
    }

    fn is_placed(&self, entries: Range<usize>) -> bool {
        self.entries.get(entries).is_some_and(|entries| entries.iter().all(Option::is_some))
    }
}

/// The entries of some bytes, which count from the start of the entry at `index`.
fn entries(index: u32, bytes: &Range<usize>) -> Range<usize> {
    index as usize + bytes.start / PAGE_BYTES..index as usize + bytes.end.div_ceil(PAGE_BYTES)
}

impl Drop for PinnedTable<'_> {
    fn drop(&mut self) {
        self.clear(0..self.entries.len());
        self.core.pins.give_indices(self.first, self.entries.len() as u32);
    }
}

impl Import {
    /// Sends bytes of memory that stands in a table, without a copy on the way and without a look
    /// at any table of this process; returns when the memory may be reused. `bytes` count from the
    /// start of the entry at `index` and may go on into those behind it.
    ///
    /// # Errors
    /// [`TransferError`]; [`TransferError::BufferOutOfBounds`] if one of the entries is empty or
    /// does not exist.
    pub fn send_index(
        &self,
        offset: u64,
        table: &PinnedTable<'_>,
        index: u32,
        bytes: Range<usize>,
    ) -> Result<(), TransferError> {
        let shared = &*self.shared;
        let len = bytes.len();
        shared.check_send(offset, len as u64, None)?;
        if bytes.start > bytes.end || !table.is_placed(entries(index, &bytes)) {
            return Err(TransferError::BufferOutOfBounds {
                import: shared.label.clone(),
                offset: index as u64 * PAGE_BYTES as u64 + bytes.start as u64,
                len: len as u64,
                size: table.entries.len() as u64 * PAGE_BYTES as u64,
            });
        }
        // A table of another session means nothing to this one's node; its memory is as good as
        // any.
        if self.mapped.is_some() || !Arc::ptr_eq(&shared.core, &table.core) || len == 0 {
            return self.send_pieces(offset, table, index, bytes);
        }
        shared.check_trouble()?;
        // Pieces of as many pages as one command may name; each has arrived before the next one
        // goes.
        let mut done = 0;
        while done < len {
            let start = bytes.start + done;
            let room = PINNED_PIECE_PAGES * PAGE_BYTES - start % PAGE_BYTES;
            let piece = start..start + room.min(len - done);
            let at = offset + done as u64;
            // Others needed the memory: the node took the translations away, and may give them
            // again.
            let gone = !shared.send_entries(at, table, index, piece.clone())?;
            if gone && !(table.place_again(index, &piece) && shared.send_entries(at, table, index, piece.clone())?) {
                self.send_pieces(at, table, index, piece.clone())?;
            }
            done += piece.len();
        }
        Ok(())
    }

    /// By copies.
    fn send_pieces(
        &self,
        offset: u64,
        table: &PinnedTable<'_>,
        index: u32,
        bytes: Range<usize>,
    ) -> Result<(), TransferError> {
        let mut at = offset;
        for piece in table.pieces(index, bytes).unwrap_or_default() {
            self.send(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

impl Shared {
    /// Whether the node knew all the entries.
    fn send_entries(
        &self,
        offset: u64,
        table: &PinnedTable<'_>,
        index: u32,
        bytes: Range<usize>,
    ) -> Result<bool, TransferError> {
        let limit = &self.limit(SendOptions::default());
        let mut command = self.send_command(offset, SendOptions::default());
        command.region = ADDRESSES;
        let first = INDEX_PAGES + u64::from(table.first) + u64::from(index);
        command.region_offset = first * PAGE_BYTES as u64 + bytes.start as u64;
        command.len = bytes.len() as u64;
        crate::core::count(&self.core.counters.send_bytes, command.len);
        let mut ticket = self.post_answered(&mut command, Hold::Nothing, limit)?;
        let (result, hold) = ticket.wait(limit).map_err(|end| self.end(end, limit.waited()))?;
        self.core.release(hold);
        match result {
            Ok(_) => Ok(true),
            Err(OpError::NotPinned { .. }) => Ok(false),
            Err(error) => Err(self.op_error(error)),
        }
    }
}

/// Which of a session's indices are used.
#[derive(Default)]
pub(crate) struct Indices(Vec<Range<u32>>);

impl Indices {
    /// The first gap that is large enough; else the size of the largest.
    pub(crate) fn take(&mut self, count: u32) -> Result<u32, u32> {
        let (mut from, mut most) = (0, 0);
        for (at, used) in self.0.iter().cloned().chain(std::iter::once(INDICES_MAX..INDICES_MAX)).enumerate() {
            let gap = used.start - from;
            if gap >= count {
                self.0.insert(at, from..from + count);
                return Ok(from);
            }
            most = most.max(gap);
            from = used.end;
        }
        Err(most)
    }

    pub(crate) fn give(&mut self, first: u32, count: u32) {
        self.0.retain(|used| *used != (first..first + count) || count == 0);
        // Tables without entries take none.
        self.0.retain(|used| !used.is_empty());
    }
}

impl From<CallError> for PlaceError {
    fn from(error: CallError) -> PlaceError {
        PlaceError::Call { error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_given_to_one_table_at_a_time_and_come_back() {
        let mut indices = Indices::default();
        assert_eq!((indices.take(10), indices.take(5), indices.take(1)), (Ok(0), Ok(10), Ok(15)));
        indices.give(10, 5);
        assert_eq!((indices.take(6), indices.take(5)), (Ok(16), Ok(10)));
        assert_eq!(indices.take(INDICES_MAX), Err(INDICES_MAX - 22));
        assert_eq!(indices.take(INDICES_MAX - 22), Ok(22));
    }
}
