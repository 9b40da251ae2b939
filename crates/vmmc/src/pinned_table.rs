//! Translations that the program places itself: a table of its own, with indices that it chooses,
//! as the paper's per-process form. [UTLB §3.1]
//!
//! ```text
//!  place(index, memory) ── Call::Pin ──▶ the process's table in the node      once
//!  send(range(index, bytes)) ── command {index, bytes} ──▶ entry ──▶ memory   no look at any table here, no cache there
//! ```
//!
//! Invariant: an entry's memory is lent as long as the table lives, so it stays where it is; the
//! node's entry is gone before the memory can be. Whatever a process says of indices is a claim: an
//! entry that was not placed is refused, or is the garbage page.

use crate::core::{Core, Limit, count};
use crate::engine::Ticket;
use crate::error::{CallError, PlaceError, TransferError};
use crate::import::{SendOptions, Shared};
use crate::lent::Lent;
use crate::limits::PINNED_PIECE_PAGES;
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
/// frames.send(0, table.range(5, 100..9000))?; // bytes of entry 5 and the two behind it
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

/// Bytes of memory that stands in a table, to send from; made by [`PinnedTable::range`]. It is sent
/// without a copy on the way and without a lookup in any table of this process.
#[derive(Clone)]
pub struct Indexed<'a> {
    pub(crate) table: &'a PinnedTable<'a>,
    index: u32,
    pub(crate) bytes: Range<usize>,
}

impl std::fmt::Debug for Indexed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Indexed").field("index", &self.index).field("bytes", &self.bytes).finish()
    }
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
        let range = self.entries(index, bytes.len() / PAGE_BYTES)?;
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
        self.entries(index, count).map(|range| self.clear(range))
    }

    /// Bytes of memory that stands in the table, as a [`Source`](crate::Source): they count from
    /// the start of the entry at `index` and may go on into those behind it. A send that reaches an
    /// entry that is empty or does not exist is refused with
    /// [`BufferOutOfBounds`](crate::TransferError::BufferOutOfBounds).
    pub fn range(&self, index: u32, bytes: Range<usize>) -> Indexed<'_> {
        Indexed { table: self, index, bytes }
    }

    fn entries(&self, index: u32, count: usize) -> Result<Range<usize>, PlaceError> {
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

    /// Bytes that it has places for.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.len() as u64 * PAGE_BYTES as u64
    }
}

impl<'a> Indexed<'a> {
    /// The entries that it reaches into; none if there cannot be such entries.
    fn entries(&self) -> Option<Range<usize>> {
        let end = (self.index as usize).checked_add(self.bytes.end.div_ceil(PAGE_BYTES))?;
        Some(self.index as usize + self.bytes.start / PAGE_BYTES..end)
    }

    pub(crate) fn is_placed(&self) -> bool {
        let placed = |entries: Range<usize>| self.table.entries.get(entries)?.iter().all(Option::is_some).then_some(());
        self.bytes.start <= self.bytes.end && self.entries().and_then(placed).is_some()
    }

    pub(crate) fn is_of(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(core, &self.table.core)
    }

    /// Where it begins in its table.
    pub(crate) fn first_byte(&self) -> u64 {
        u64::from(self.index) * PAGE_BYTES as u64 + self.bytes.start as u64
    }

    /// Its memory, in pieces within pages.
    pub(crate) fn each_page(&self, each: &mut dyn FnMut(&'a [u8])) {
        let mut at = self.bytes.start;
        while at < self.bytes.end {
            let stop = self.bytes.end.min((at / PAGE_BYTES + 1) * PAGE_BYTES);
            let page = self.table.entries[self.index as usize + at / PAGE_BYTES];
            let inside = at % PAGE_BYTES;
            each(&page.expect("sources are checked before they are used")[inside..inside + stop - at]);
            at = stop;
        }
    }

    /// Pieces of as many pages as one command may name, and where each begins.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (u64, Indexed<'a>)> {
        let Indexed { table, index, ref bytes } = *self;
        let (first, end) = (bytes.start, bytes.end);
        let mut start = first;
        std::iter::from_fn(move || {
            let stop = end.min(start + PINNED_PIECE_PAGES * PAGE_BYTES - start % PAGE_BYTES);
            let piece = Indexed { table, index, bytes: std::mem::replace(&mut start, stop)..stop };
            (!piece.bytes.is_empty()).then(|| ((piece.bytes.start - first) as u64, piece))
        })
    }

    /// Whether one command can name it.
    pub(crate) fn is_one_command(&self) -> bool {
        self.bytes.end <= PINNED_PIECE_PAGES * PAGE_BYTES + self.bytes.start / PAGE_BYTES * PAGE_BYTES
    }

    /// Asks the node once more for what stands in its entries: others needed the memory, and the
    /// node took the translations away.
    pub(crate) fn place_again(&self) -> bool {
        let table = self.table;
        self.entries().into_iter().flatten().all(|at| {
            let page = table.entries[at];
            page.is_some_and(|page| table.core.pins.place(&table.core, table.pages(at..at + 1), page).is_ok())
        })
    }
}

impl Drop for PinnedTable<'_> {
    fn drop(&mut self) {
        self.clear(0..self.entries.len());
        self.core.pins.give_indices(self.first, self.entries.len() as u32);
    }
}

impl Shared {
    /// Posts a send of what stands in a table, which one command can name.
    pub(crate) fn post_entries(
        &self,
        offset: u64,
        source: &Indexed<'_>,
        options: SendOptions,
        limit: &Limit<'_>,
    ) -> Result<Ticket, TransferError> {
        let mut command = self.send_command(offset, options);
        command.region = ADDRESSES;
        let first = INDEX_PAGES + u64::from(source.table.first) + u64::from(source.index);
        command.region_offset = first * PAGE_BYTES as u64 + source.bytes.start as u64;
        command.len = source.bytes.len() as u64;
        count(&self.core.counters.send_bytes, command.len);
        self.post_answered(&mut command, Hold::Nothing, limit)
    }

    /// Sends what stands in a table, by one command; whether the node knew all the entries.
    pub(crate) fn send_entries(
        &self,
        offset: u64,
        source: &Indexed<'_>,
        options: SendOptions,
        limit: &Limit<'_>,
    ) -> Result<bool, TransferError> {
        self.check_deferred()?;
        let mut ticket = self.post_entries(offset, source, options, limit)?;
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
