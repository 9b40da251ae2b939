//! What fills a reservation: ranges of pages with their memory and access.
//!
//! Invariant: pieces do not overlap, none is empty, and no two neighbours could be one piece. So
//! the kernel needs no more mappings than there are pieces and gaps. Pure: no system call here.

use super::Access;
use crate::region::Region;
use std::collections::BTreeMap;
use std::ops::Range;

/// A range with memory; its first byte is its key.
#[derive(Clone)]
pub(super) struct Piece {
    /// Bytes.
    pub(super) len: u64,
    pub(super) region: Region,
    /// First byte in the region.
    pub(super) region_offset: u64,
    pub(super) access: Access,
}

impl Piece {
    /// Whether `next`, which starts where this one ends, is more of the same.
    fn goes_on_in(&self, next: &Piece) -> bool {
        self.access == next.access
            && self.region_offset + self.len == next.region_offset
            && self.region.is_same(&next.region)
    }
}

#[derive(Default)]
pub(super) struct Table(BTreeMap<u64, Piece>);

impl Table {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The piece that a byte lies in, and its first byte.
    pub(super) fn at(&self, offset: u64) -> Option<(u64, &Piece)> {
        let (at, piece) = self.0.range(..=offset).next_back()?;
        (offset - at < piece.len).then_some((*at, piece))
    }

    /// The first byte of a range that has no memory.
    pub(super) fn first_gap(&self, range: &Range<u64>) -> Option<u64> {
        let mut next = range.start;
        while next < range.end {
            let Some((at, piece)) = self.at(next) else { return Some(next) };
            next = at + piece.len;
        }
        None
    }

    /// The first byte of a range that has memory.
    pub(super) fn first_filled(&self, range: &Range<u64>) -> Option<u64> {
        let reaching_in = self.at(range.start).map(|_| range.start);
        reaching_in.or_else(|| self.0.range(range.clone()).next().map(|(at, _)| *at))
    }

    /// Removes all that lies in a range, cutting the pieces that reach beyond it.
    pub(super) fn take(&mut self, range: &Range<u64>) -> Vec<(u64, Piece)> {
        self.cut(range.start);
        self.cut(range.end);
        let inside: Vec<u64> = self.0.range(range.clone()).map(|(at, _)| *at).collect();
        inside.into_iter().filter_map(|at| Some((at, self.0.remove(&at)?))).collect()
    }

    /// Puts a piece where nothing is; it becomes one with neighbours of the same kind.
    pub(super) fn put(&mut self, mut at: u64, mut piece: Piece) {
        if self.0.get(&(at + piece.len)).is_some_and(|next| piece.goes_on_in(next)) {
            piece.len += self.0.remove(&(at + piece.len)).map_or(0, |next| next.len);
        }
        if let Some((before, left)) = self.0.range_mut(..at).next_back() {
            if before + left.len == at && left.goes_on_in(&piece) {
                at = *before;
                piece.len += left.len;
                piece.region_offset = left.region_offset;
            }
        }
        self.0.insert(at, piece);
    }

    pub(super) fn into_pieces(self) -> impl DoubleEndedIterator<Item = (u64, Piece)> {
        self.0.into_iter()
    }

    /// Makes two pieces of one that reaches over a byte.
    fn cut(&mut self, offset: u64) {
        let Some((at, piece)) = self.0.range_mut(..offset).next_back() else { return };
        let head = offset - at;
        if head < piece.len {
            let tail = Piece { len: piece.len - head, region_offset: piece.region_offset + head, ..piece.clone() };
            piece.len = head;
            self.0.insert(offset, tail);
        }
    }
}
