//! Pieces of the program's memory on their way into or out of a ring.
//!
//! Invariant: a window shows at most [`PIECES`] pieces and never bytes before the cursor; a piece
//! without bytes has a pointer that is valid for none.

use crate::limits::PIECES;
use crate::real;
use libc::{c_int, iovec, msghdr, ssize_t};
use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;

/// Where a vector call has come to.
pub(crate) struct Cursor<'a> {
    rest: &'a [iovec],
    /// Bytes of the first piece that are done.
    within: usize,
}

impl<'a> Cursor<'a> {
    /// At the beginning.
    pub(crate) fn new(pieces: &'a [iovec]) -> Cursor<'a> {
        let mut cursor = Cursor { rest: pieces, within: 0 };
        cursor.skip_empty();
        cursor
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// So many bytes are done; says whether all are.
    pub(crate) fn advance(&mut self, n: usize) -> bool {
        self.within += n;
        self.skip_empty();
        self.is_empty()
    }

    fn skip_empty(&mut self) {
        while let Some(first) = self.rest.first() {
            if self.within < first.iov_len {
                return;
            }
            self.within -= first.iov_len;
            self.rest = &self.rest[1..];
        }
    }

    /// The next pieces.
    pub(crate) fn window(&self) -> Window {
        let mut window = Window { pieces: [EMPTY; PIECES], count: self.rest.len().min(PIECES) };
        for (place, piece) in window.pieces.iter_mut().zip(self.rest) {
            if piece.iov_len > 0 {
                // A stream's call may move less than it was asked to, so a length that no slice can
                // have is cut.
                *place = iovec { iov_base: piece.iov_base, iov_len: piece.iov_len.min(isize::MAX as usize) };
            }
        }
        if let Some(first) = window.pieces[..window.count].first_mut() {
            first.iov_base = first.iov_base.wrapping_byte_add(self.within);
            first.iov_len -= self.within;
        }
        window
    }
}

const EMPTY: iovec = iovec { iov_base: NonNull::<u8>::dangling().as_ptr().cast(), iov_len: 0 };

/// Some pieces.
pub(crate) struct Window {
    pieces: [iovec; PIECES],
    count: usize,
}

impl Window {
    /// As memory to read from.
    pub(crate) fn as_sent(&self) -> &[IoSlice<'_>] {
        // SAFETY: IoSlice has the layout of iovec; the program promised memory that is valid for
        // the call. Threads of it that write there meanwhile get what they would get from the
        // kernel: some of the bytes, old or new.
        unsafe { std::slice::from_raw_parts(self.pieces.as_ptr().cast(), self.count) }
    }

    /// As memory to write to.
    pub(crate) fn as_filled(&mut self) -> &mut [IoSliceMut<'_>] {
        // SAFETY: as above, with IoSliceMut.
        unsafe { std::slice::from_raw_parts_mut(self.pieces.as_mut_ptr().cast(), self.count) }
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> usize {
        self.pieces[..self.count].iter().fold(0, |sum, piece| sum.saturating_add(piece.iov_len))
    }

    /// Receives into it from the kernel.
    pub(crate) fn receive(&mut self, fd: c_int, flags: c_int) -> ssize_t {
        let mut header = self.header();
        // SAFETY: the header describes memory that the program promised.
        unsafe { real::recvmsg(fd, &raw mut header, flags) }
    }

    /// Sends it through the kernel.
    pub(crate) fn send(&self, fd: c_int, flags: c_int) -> ssize_t {
        let header = self.header();
        // SAFETY: as above.
        unsafe { real::sendmsg(fd, &raw const header, flags) }
    }

    fn header(&self) -> msghdr {
        // SAFETY: all zero is a message header without anything.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.pieces.as_ptr().cast_mut();
        header.msg_iovlen = self.count as _;
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(parts: &mut [Vec<u8>]) -> Vec<iovec> {
        parts.iter_mut().map(|part| iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() }).collect()
    }

    #[test]
    fn a_cursor_shows_every_byte_once() {
        let mut parts: Vec<Vec<u8>> = (0..40u8).map(|n| (0..n % 5).map(|m| n * 5 + m).collect()).collect();
        let all: Vec<u8> = parts.concat();
        for step in 1..9 {
            let pieces = pieces(&mut parts);
            let mut cursor = Cursor::new(&pieces);
            let mut seen: Vec<u8> = Vec::new();
            while !cursor.is_empty() {
                let window = cursor.window();
                let shown: Vec<u8> = window.as_sent().iter().flat_map(|s| s.iter().copied()).take(step).collect();
                seen.extend(&shown);
                cursor.advance(shown.len());
            }
            assert_eq!(seen, all);
        }
    }

    #[test]
    fn null_pieces_without_bytes_are_harmless() {
        let null = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let cursor = Cursor::new(&[]);
        assert!(cursor.is_empty() && cursor.window().as_sent().is_empty());
        let mut parts = vec![vec![1, 2]];
        let both = [pieces(&mut parts)[0], null];
        assert_eq!(Cursor::new(&both).window().as_sent().len(), 2);
    }
}
