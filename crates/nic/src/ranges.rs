//! The places of a gather-send: many ranges of one export that one operation fills, in turn, from
//! one piece of data.
//!
//! Invariant: there is at least one range, none is empty, and together they are as long as the
//! data.

use crate::error::OpError;
use crate::event::ByteRange;
use crate::limits::GATHER_RANGES_MAX;
use crate::local::in_bounds;

/// Checked ranges.
pub(crate) struct Ranges {
    parts: Box<[Part]>,
    span: ByteRange,
}

/// One range.
#[derive(Clone, Copy)]
struct Part {
    /// First byte of the data that belongs to it.
    start: u64,
    /// Where that goes.
    offset: u64,
}

/// Checks ranges against an export of `size` bytes and data of `len`.
pub(crate) fn check(ranges: &[ByteRange], len: u64, size: u64) -> Result<(), OpError> {
    if ranges.is_empty() || ranges.len() > GATHER_RANGES_MAX {
        return Err(OpError::BadRanges { ranges: ranges.len() as u64, max: GATHER_RANGES_MAX as u64 });
    }
    let mut left = len;
    for range in ranges {
        let bytes = range.end.saturating_sub(range.start);
        in_bounds(range.start, bytes, size)?;
        if bytes == 0 || bytes > left {
            return Err(OpError::Protocol);
        }
        left -= bytes;
    }
    if left == 0 { Ok(()) } else { Err(OpError::Protocol) }
}

impl Ranges {
    /// Takes ranges that passed [`check`].
    pub(crate) fn new(ranges: &[ByteRange]) -> Ranges {
        let mut start = 0;
        let mut span = ByteRange { start: u64::MAX, end: 0 };
        let part = |range: &ByteRange| {
            let part = Part { start, offset: range.start };
            start += range.len();
            span = ByteRange { start: span.start.min(range.start), end: span.end.max(range.end) };
            part
        };
        let parts = ranges.iter().map(part).collect();
        Ranges { parts, span }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.parts.len()
    }

    /// From the first byte of any to the end of the last.
    pub(crate) fn span(&self) -> (u64, u64) {
        (self.span.start, self.span.len())
    }

    /// Bytes of the last one, of `len` bytes of data.
    pub(crate) fn last_len(&self, len: u64) -> u64 {
        self.parts.last().map_or(0, |part| len - part.start)
    }

    /// Where byte `at` of `len` bytes of data goes, and how many bytes from there on belong to the
    /// same range.
    pub(crate) fn place(&self, at: u64, len: u64) -> (u64, u64) {
        let next = self.parts.partition_point(|part| part.start <= at);
        let part = self.parts[next - 1];
        let end = self.parts.get(next).map_or(len, |part| part.start);
        (part.offset + (at - part.start), end - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGES: [ByteRange; 3] =
        [ByteRange { start: 40, end: 48 }, ByteRange { start: 8, end: 9 }, ByteRange { start: 9, end: 20 }];

    #[test]
    fn each_byte_of_the_data_has_the_place_that_its_range_says() {
        let ranges = Ranges::new(&RANGES);
        let places: Vec<u64> = (0..20).map(|at| ranges.place(at, 20).0).collect();
        let wanted: Vec<u64> = RANGES.iter().flat_map(|range| range.start..range.end).collect();
        assert_eq!(places, wanted);
        let left: Vec<u64> = [0, 7, 8, 9, 19].iter().map(|at| ranges.place(*at, 20).1).collect();
        assert_eq!(left, [8, 1, 1, 11, 1]);
        assert_eq!((ranges.span(), ranges.count(), ranges.last_len(20)), ((8, 40), 3, 11));
    }

    #[test]
    fn ranges_that_are_empty_too_many_out_of_bounds_or_not_the_data_are_refused() {
        assert_eq!(check(&RANGES, 20, 48), Ok(()));
        let wrong = [(19, 48), (21, 48), (20, 47)];
        assert!(wrong.iter().all(|(len, size)| check(&RANGES, *len, *size).is_err()));
        let max = GATHER_RANGES_MAX as u64;
        let many = vec![ByteRange { start: 0, end: 1 }; GATHER_RANGES_MAX + 1];
        assert_eq!(check(&many, max + 1, 1), Err(OpError::BadRanges { ranges: max + 1, max }));
        assert_eq!(check(&many[1..], max, 1), Ok(()));
        assert_eq!(check(&[], 0, 1), Err(OpError::BadRanges { ranges: 0, max }));
        let backwards = ByteRange { start: 5, end: 4 };
        assert_eq!(check(&[backwards], 0, 8), Err(OpError::Protocol));
        let far = ByteRange { start: u64::MAX - 1, end: u64::MAX };
        assert!(matches!(check(&[far], 1, 8), Err(OpError::OutOfBounds { .. })));
    }
}
