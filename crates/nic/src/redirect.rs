//! Transfer redirection [NT §3.1, §4]: the receiver names another place for part of a default
//! buffer, before, during or after the arrival of the data; the sender does not know.
//!
//! Invariants: redirections of one export do not overlap; what `arrived` holds lies in the default
//! buffer and nowhere else. When ranges would exceed their bound the deposit is refused: merging
//! them would promise bytes that never came, forgetting some would lose bytes. A deposit reads the
//! redirections that it touches and no others, and of those it leaves all but two complete.

use std::collections::BTreeMap;

use crate::error::{OpError, RedirectError};
use crate::event::{ByteRange, RedirectReport};
use crate::ids::{Cookie, ExportId, RegionId, RegionRef};
use crate::intervals::IntervalSet;
use crate::limits::{ARRIVED_RANGES_MAX, REDIRECTED_RANGES_MAX, REDIRECTS_PER_EXPORT_MAX};

/// A redirection to post: what comes to part of an export goes somewhere else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redirect {
    /// The export, which is redirectable and of the process that posts.
    pub export: ExportId,
    /// First byte in the export.
    pub offset: u64,
    /// Bytes, at least one.
    pub len: u64,
    /// Region of the process that gets the data.
    pub to: RegionId,
    /// Where in that region.
    pub to_offset: u64,
    /// Comes back with the event that says that all bytes have come.
    pub cookie: Cookie,
}

/// Which redirection: no two that are posted have the same first byte, and the cookie distinguishes
/// it from others that were posted there before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedirectAt {
    /// The export.
    pub export: ExportId,
    /// First byte in the export.
    pub offset: u64,
    /// The cookie that it was posted with.
    pub cookie: Cookie,
}

impl Redirect {
    /// What it is called once it is posted.
    pub fn at(&self) -> RedirectAt {
        RedirectAt { export: self.export, offset: self.offset, cookie: self.cookie }
    }
}

/// The redirections of one export.
#[derive(Default)]
pub(crate) struct Redirector {
    /// Not consumed and not redirected, in export offsets.
    arrived: IntervalSet,
    /// By first byte.
    posts: BTreeMap<u64, Post>,
    /// Ranges in the sets of all posts.
    ranges: usize,
}

struct Post {
    cookie: Cookie,
    end: u64,
    /// What comes to places before `open` is redirected already; what has arrived beyond it is
    /// still to be copied.
    open: u64,
    to: RegionRef,
    to_offset: u64,
    /// Bytes in neither of the sets; those that it does not cover yet are among them.
    missing: u64,
    copied: IntervalSet,
    redirected: IntervalSet,
}

/// One copy to make; `start` is an export offset.
pub(crate) struct Place {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) to: RegionRef,
    pub(crate) to_offset: u64,
}

/// What arriving data needs.
#[derive(Default)]
pub(crate) struct Arrival {
    pub(crate) places: Vec<Place>,
    pub(crate) redirected_bytes: u64,
    pub(crate) done: Vec<(Cookie, RedirectReport)>,
}

/// What a redirection that covers more of its range needs.
pub(crate) struct Advance {
    /// To be copied, from the default buffer.
    pub(crate) places: Vec<Place>,
    /// Once it covers all of it.
    pub(crate) report: Option<RedirectReport>,
}

/// Part of arriving data, and the first byte of the redirection that it belongs to.
struct Part {
    start: u64,
    end: u64,
    post: Option<u64>,
}

impl Post {
    /// Where a byte of the export goes; `start` is the first one of the range.
    fn place(&self, start: u64, from: u64, to: u64) -> Place {
        Place { start: from, len: to - from, to: self.to, to_offset: self.to_offset + (from - start) }
    }

    fn ranges(&self) -> usize {
        self.copied.len() + self.redirected.len()
    }

    fn is_complete(&self) -> bool {
        self.missing == 0
    }

    fn report(&self, start: u64) -> RedirectReport {
        RedirectReport {
            range: Some(ByteRange { start, end: self.end }),
            copied: self.copied.ranges().to_vec(),
            redirected: self.redirected.ranges().to_vec(),
            complete: self.is_complete(),
        }
    }

    /// By how many ranges its sets would grow if these bytes came; none: one of them would be too
    /// large.
    fn growth(&self, from: u64, to: u64) -> Option<isize> {
        let (less, more) = (self.copied.growth_without(from, to), self.redirected.growth_with(from, to));
        let fits = |set: &IntervalSet, by: isize| by <= 0 || set.len() < ARRIVED_RANGES_MAX;
        (fits(&self.copied, less) && fits(&self.redirected, more)).then_some(less + more)
    }

    /// These bytes came.
    fn take(&mut self, from: u64, to: u64) {
        let known = self.copied.bytes_within(from, to) + self.redirected.bytes_within(from, to);
        self.missing -= to - from - known;
        // Bytes copied before and sent again now went straight to the new place.
        self.copied.remove(from, to);
        self.redirected.insert(from, to);
    }
}

impl Redirector {
    /// Says where the bytes of `[offset, offset + len)` go and remembers that they came.
    pub(crate) fn arrive(&mut self, offset: u64, len: u64, default: RegionRef, base: u64) -> Result<Arrival, OpError> {
        let parts = self.parts(offset, offset + len);
        self.check_room(&parts)?;
        let mut arrival = Arrival { places: Vec::with_capacity(parts.len()), ..Arrival::default() };
        for Part { start, end, post } in parts {
            let Some(first) = post else {
                self.arrived.insert(start, end);
                arrival.places.push(Place { start, len: end - start, to: default, to_offset: base + start });
                continue;
            };
            let post = self.posts.get_mut(&first).expect("it was found there");
            arrival.places.push(post.place(first, start, end));
            arrival.redirected_bytes += end - start;
            let before = post.ranges();
            post.take(start, end);
            self.ranges = self.ranges + post.ranges() - before;
            if post.is_complete() {
                let (cookie, report) = (post.cookie, post.report(first));
                arrival.done.push((cookie, report));
                self.remove(first);
            }
        }
        Ok(arrival)
    }

    /// Cuts a range up at the ends of what is redirected.
    fn parts(&self, start: u64, end: u64) -> Vec<Part> {
        let mut parts = Vec::new();
        if start >= end {
            return parts;
        }
        let mut at = start;
        // The one that begins at or before the range, then those that begin in it.
        let before = self.posts.range(..=start).next_back();
        for (&first, post) in before.into_iter().chain(self.posts.range(start + 1..end.max(start + 1))) {
            let (from, to) = (first.max(at), post.open.min(end));
            if from >= to {
                continue;
            }
            if at < from {
                parts.push(Part { start: at, end: from, post: None });
            }
            parts.push(Part { start: from, end: to, post: Some(first) });
            at = to;
        }
        if at < end {
            parts.push(Part { start: at, end, post: None });
        }
        parts
    }

    /// Whether there is room to remember that these parts came.
    fn check_room(&self, parts: &[Part]) -> Result<(), OpError> {
        let full = Err(OpError::TooFragmented { max: ARRIVED_RANGES_MAX as u64 });
        let home = parts.iter().filter(|part| part.post.is_none());
        // One piece more than there is room for is refused before anything is copied.
        let room = ARRIVED_RANGES_MAX + 1 - home.clone().count().clamp(1, ARRIVED_RANGES_MAX);
        let all_full = Err(OpError::TooFragmented { max: REDIRECTED_RANGES_MAX as u64 });
        for piece in home {
            if !self.arrived.has_room(piece.start, piece.end, room) {
                return full;
            }
            // What a redirection is still to copy becomes ranges of its own.
            let copied_later = self.ranges >= REDIRECTED_RANGES_MAX && self.last_in(piece.start, piece.end).is_some();
            if copied_later && self.arrived.growth_with(piece.start, piece.end) > 0 {
                return all_full;
            }
        }
        let mut growth = 0;
        for part in parts {
            let Some((first, post)) = part.post.and_then(|first| self.posts.get_key_value(&first)) else { continue };
            if part.start == *first && part.end == post.end {
                // It is complete and leaves nothing behind.
                continue;
            }
            match post.growth(part.start, part.end) {
                Some(by) => growth += by,
                None => return full,
            }
        }
        let fits = growth <= 0 || self.ranges + growth.unsigned_abs() <= REDIRECTED_RANGES_MAX;
        if fits { Ok(()) } else { all_full }
    }

    /// The last redirection that has bytes in a range, and its first byte: they do not overlap each
    /// other.
    fn last_in(&self, start: u64, end: u64) -> Option<(u64, &Post)> {
        let (&first, post) = self.posts.range(..end).next_back()?;
        (post.end > start).then_some((first, post))
    }

    /// How much of `[offset, offset + len)` can come at once so that no more than `max`
    /// redirections begin in it.
    pub(crate) fn cut(&self, offset: u64, len: u64, max: usize) -> u64 {
        let next = self.posts.range(offset..offset + len).nth(max);
        next.map_or(len, |(start, _)| start - offset)
    }

    /// Whether `range` can be redirected.
    pub(crate) fn check(&self, range: ByteRange) -> Result<(), RedirectError> {
        if self.posts.len() >= REDIRECTS_PER_EXPORT_MAX {
            return Err(RedirectError::TableFull { max: REDIRECTS_PER_EXPORT_MAX as u64 });
        }
        if let Some((start, post)) = self.last_in(range.start, range.end) {
            return Err(RedirectError::Overlap { start, end: post.end });
        }
        if self.ranges + self.arrived.count_within(range.start, range.end) > REDIRECTED_RANGES_MAX {
            return Err(RedirectError::TooFragmented { max: REDIRECTED_RANGES_MAX as u64 });
        }
        Ok(())
    }

    /// Posts a checked redirection; [`advance`](Self::advance) makes it cover its range.
    pub(crate) fn post(&mut self, wanted: &Redirect, to: RegionRef) {
        let (copied, redirected) = (IntervalSet::default(), IntervalSet::default());
        let (cookie, open, end) = (wanted.cookie, wanted.offset, wanted.offset + wanted.len);
        let (to_offset, missing) = (wanted.to_offset, wanted.len);
        self.posts.insert(open, Post { cookie, end, open, to, to_offset, missing, copied, redirected });
    }

    /// Has a redirection cover more of its range, so that up to `bytes` that had arrived are to be
    /// copied. Until it covers a place, what comes there goes to the default buffer, to be copied
    /// later. None: it is unknown.
    pub(crate) fn advance(&mut self, first: u64, cookie: Cookie, bytes: u64) -> Option<Advance> {
        let post = self.posts.get_mut(&first).filter(|post| post.cookie == cookie)?;
        let (from, end) = (post.open, post.end);
        let (mut left, mut whole) = (bytes, 0);
        post.open = end;
        let mut copies = self.arrived.within(from, end);
        while let Some(piece) = copies.get_mut(whole) {
            if piece.len() > left {
                piece.end = piece.start + left;
                post.open = piece.end;
                copies.truncate(whole + usize::from(left > 0));
                break;
            }
            left -= piece.len();
            whole += 1;
        }
        self.arrived.remove(from, post.open);
        let before = post.ranges();
        for piece in &copies {
            // None of it is in the sets: it came when this place was not covered yet.
            post.missing -= piece.len();
            post.copied.insert(piece.start, piece.end);
        }
        self.ranges = self.ranges + post.ranges() - before;
        let places = copies.iter().map(|piece| post.place(first, piece.start, piece.end)).collect();
        let report = (post.open == end).then(|| post.report(first));
        if post.is_complete() {
            self.remove(first);
        }
        Some(Advance { places, report })
    }

    pub(crate) fn report(&self, first: u64, cookie: Cookie) -> Option<RedirectReport> {
        self.posts.get(&first).filter(|post| post.cookie == cookie).map(|post| post.report(first))
    }

    pub(crate) fn cancel(&mut self, first: u64, cookie: Cookie) -> Option<RedirectReport> {
        let report = self.report(first, cookie)?;
        self.remove(first);
        Some(report)
    }

    fn remove(&mut self, first: u64) {
        if let Some(post) = self.posts.remove(&first) {
            self.ranges -= post.ranges();
        }
    }

    /// How many are posted.
    pub(crate) fn len(&self) -> usize {
        self.posts.len()
    }

    /// The receiver has taken these bytes from the default buffer.
    pub(crate) fn consume(&mut self, start: u64, end: u64) -> bool {
        // Consuming the middle of a range splits it; at the bound that split has no room.
        if self.arrived.len() >= ARRIVED_RANGES_MAX && self.arrived.growth_without(start, end) > 0 {
            return false;
        }
        self.arrived.remove(start, end);
        true
    }

    pub(crate) fn arrived(&self) -> &[ByteRange] {
        self.arrived.ranges()
    }
}

#[cfg(test)]
mod tests;
