//! A table with user-chosen indices: in the engine for the per-process form, in host memory behind
//! the shared cache for the other. [UTLB §3.1, §3.2, §4.2]
//!
//! Invariant: an entry that the driver did not install is the garbage page, and so is every index
//! outside the table: no index can do harm.

use crate::ids::{Frame, Index};

/// An index outside the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index {index} of a table of {entries} entries; choose a smaller one or give another entry up")]
pub struct IndexError {
    /// As asked.
    pub index: u32,
    /// Of the table.
    pub entries: usize,
}

/// Translations of one process by index.
///
/// ```
/// use vmmc_utlb::{Frame, Index, IndexTable};
/// let mut table = IndexTable::new(8, Frame(0));
/// table.install(Index(5), Frame(99)).unwrap();
/// assert_eq!(table.translate(Index(5)), Frame(99));
/// assert_eq!(table.indices().collect::<Vec<_>>(), [Index(5)]);
/// // A process that lies about its indices gets the garbage page.
/// assert_eq!(table.translate(Index(6)), Frame(0));
/// assert_eq!(table.translate(Index(4_000_000_000)), Frame(0));
/// ```
#[derive(Clone, Debug)]
pub struct IndexTable {
    frames: Vec<Frame>,
    entries: usize,
    garbage: Frame,
}

impl IndexTable {
    /// A table of `entries` entries; memory is taken as they are used.
    pub fn new(entries: usize, garbage: Frame) -> IndexTable {
        IndexTable { frames: Vec::new(), entries, garbage }
    }

    /// The driver pinned a page and stores its translation where the process asked.
    ///
    /// # Errors
    ///
    /// [`IndexError`].
    pub fn install(&mut self, index: Index, frame: Frame) -> Result<(), IndexError> {
        let at = index.0 as usize;
        if at >= self.entries {
            return Err(IndexError { index: index.0, entries: self.entries });
        }
        if self.frames.len() <= at {
            self.frames.resize(at + 1, self.garbage);
        }
        self.frames[at] = frame;
        Ok(())
    }

    /// The driver unpinned the page.
    pub fn remove(&mut self, index: Index) {
        if let Some(frame) = self.frames.get_mut(index.0 as usize) {
            *frame = self.garbage;
        }
    }

    /// What the engine reads; any index may be asked for.
    #[inline]
    pub fn translate(&self, index: Index) -> Frame {
        self.frames.get(index.0 as usize).copied().unwrap_or(self.garbage)
    }

    /// Whether the driver installed something there.
    #[inline]
    pub fn has(&self, index: Index) -> bool {
        self.translate(index) != self.garbage
    }

    /// Indices that the driver installed something at, ascending.
    pub fn indices(&self) -> impl Iterator<Item = Index> {
        (0..).map(Index).zip(&self.frames).filter(|(_, frame)| **frame != self.garbage).map(|(index, _)| index)
    }

    /// Up to `count` entries from `index` on that are not garbage, in one read.
    pub fn fetch(&self, index: Index, count: u32, mut entry: impl FnMut(Index, Frame)) {
        for at in (index.0..).take(count as usize).take_while(|at| (*at as usize) < self.frames.len()) {
            let frame = self.frames[at as usize];
            if frame != self.garbage {
                entry(Index(at), frame);
            }
        }
    }
}
