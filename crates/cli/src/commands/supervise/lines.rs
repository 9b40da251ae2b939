//! From the bytes that a process prints to whole lines.
//!
//! Invariant: every byte comes out once and in order; at most [`LINE_BYTES_MAX`] bytes and one read
//! are held.

use crate::limits::LINE_BYTES_MAX;

/// The part of a stream that is no whole line yet.
#[derive(Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Takes bytes; gives whole lines, or a piece of one that is too long.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.partial.extend_from_slice(bytes);
        let end = match self.partial.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            None if self.partial.len() >= LINE_BYTES_MAX => self.partial.len(),
            None => return None,
        };
        let rest = self.partial.split_off(end);
        Some(std::mem::replace(&mut self.partial, rest))
    }

    /// The end of the stream: what is left.
    pub(super) fn finish(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.partial);
        (!rest.is_empty()).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_the_rest_at_the_end() {
        let mut lines = Lines::default();
        assert_eq!(lines.take(b"one\ntw"), Some(b"one\n".to_vec()));
        assert_eq!(lines.take(b"o"), None);
        assert_eq!(lines.take(b"\n\nthree"), Some(b"two\n\n".to_vec()));
        assert_eq!(lines.finish(), Some(b"three".to_vec()));
        assert_eq!(lines.finish(), None);
    }

    #[test]
    fn an_endless_line_comes_in_pieces() {
        let mut lines = Lines::default();
        let piece = vec![b'x'; LINE_BYTES_MAX / 2];
        assert_eq!(lines.take(&piece), None);
        assert_eq!(lines.take(&piece).map(|b| b.len()), Some(LINE_BYTES_MAX));
    }
}
