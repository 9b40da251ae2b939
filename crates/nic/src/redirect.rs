//! Transfer redirection [NT §3.1, §4]: the receiver names another place for part of a default
//! buffer, before, during or after the arrival of the data; the sender does not know.
//!
//! Invariants: redirections of one export do not overlap; what `arrived` holds lies in the default
//! buffer and nowhere else. When the arrived ranges would exceed their bound the deposit is
//! refused: merging them would promise bytes that never came, forgetting some would lose bytes.

use crate::error::{OpError, RedirectError};
use crate::event::{ByteRange, RedirectReport};
use crate::ids::{Cookie, ExportId, RedirectId, RegionRef};
use crate::intervals::IntervalSet;
use crate::limits::{ARRIVED_RANGES_MAX, REDIRECTS_PER_EXPORT_MAX};

/// The redirections of one export.
#[derive(Default)]
pub(crate) struct Redirector {
    /// Not consumed and not redirected, in export offsets.
    arrived: IntervalSet,
    posts: Vec<Post>,
}

struct Post {
    id: RedirectId,
    cookie: Cookie,
    range: ByteRange,
    /// `[range.start, open)` is redirected already; what has arrived beyond it is still to be
    /// copied.
    open: u64,
    to: RegionRef,
    to_offset: u64,
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
    pub(crate) done: Vec<(RedirectId, Cookie, RedirectReport)>,
}

/// What a redirection that covers more of its range needs.
pub(crate) struct Advance {
    /// To be copied, from the default buffer.
    pub(crate) places: Vec<Place>,
    pub(crate) cookie: Cookie,
    /// Once it covers all of it.
    pub(crate) report: Option<RedirectReport>,
}

/// A redirection to post.
pub(crate) struct Wanted {
    pub(crate) id: RedirectId,
    pub(crate) cookie: Cookie,
    pub(crate) range: ByteRange,
    pub(crate) to: RegionRef,
    pub(crate) to_offset: u64,
}

impl Post {
    fn covered(&self) -> u64 {
        self.copied.total() + self.redirected.total()
    }

    fn report(&self) -> RedirectReport {
        RedirectReport {
            range: Some(self.range),
            copied: self.copied.ranges().to_vec(),
            redirected: self.redirected.ranges().to_vec(),
            complete: self.covered() == self.range.len(),
        }
    }
}

impl Redirector {
    /// Says where the bytes of `[offset, offset + len)` go and remembers that they came.
    pub(crate) fn arrive(&mut self, offset: u64, len: u64, default: RegionRef, base: u64) -> Result<Arrival, OpError> {
        let mut arrival = Arrival::default();
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let (next, post) = self.piece(at, end);
            match post {
                Some(index) => {
                    let post = &self.posts[index];
                    let to_offset = post.to_offset + (at - post.range.start);
                    arrival.places.push(Place { start: at, len: next - at, to: post.to, to_offset });
                }
                None => {
                    arrival.places.push(Place { start: at, len: next - at, to: default, to_offset: base + at });
                }
            }
            at = next;
        }
        self.remember(offset, end, &mut arrival)?;
        Ok(arrival)
    }

    /// The end of the piece that starts at `at`, and the redirection it belongs to.
    fn piece(&self, at: u64, end: u64) -> (u64, Option<usize>) {
        let mut next = end;
        for (index, post) in self.posts.iter().enumerate() {
            if post.range.start <= at && at < post.open {
                return (end.min(post.open), Some(index));
            }
            if post.range.start > at {
                next = next.min(post.range.start);
            }
        }
        (next, None)
    }

    fn remember(&mut self, start: u64, end: u64, arrival: &mut Arrival) -> Result<(), OpError> {
        let default: Vec<ByteRange> = {
            let mut rest = IntervalSet::default();
            rest.insert(start, end);
            self.posts.iter().for_each(|post| rest.remove(post.range.start, post.open));
            rest.ranges().to_vec()
        };
        // One piece more than there is room for is refused before anything is copied.
        let room = ARRIVED_RANGES_MAX + 1 - default.len().clamp(1, ARRIVED_RANGES_MAX);
        if default.iter().any(|piece| !self.arrived.has_room(piece.start, piece.end, room)) {
            return Err(OpError::TooFragmented { max: ARRIVED_RANGES_MAX as u64 });
        }
        for piece in default {
            self.arrived.insert(piece.start, piece.end);
        }
        for post in &mut self.posts {
            let (from, to) = (start.max(post.range.start), end.min(post.open));
            if from >= to {
                continue;
            }
            arrival.redirected_bytes += to - from;
            // Bytes copied before and sent again now went straight to the new place.
            post.copied.remove(from, to);
            post.redirected.insert(from, to);
        }
        self.posts.retain(|post| {
            let complete = post.covered() == post.range.len();
            if complete {
                arrival.done.push((post.id, post.cookie, post.report()));
            }
            !complete
        });
        Ok(())
    }

    /// Whether `range` can be redirected.
    pub(crate) fn check(&self, range: ByteRange) -> Result<(), RedirectError> {
        if self.posts.len() >= REDIRECTS_PER_EXPORT_MAX {
            return Err(RedirectError::TableFull { max: REDIRECTS_PER_EXPORT_MAX as u64 });
        }
        let overlap = |post: &&Post| post.range.start < range.end && range.start < post.range.end;
        match self.posts.iter().find(overlap) {
            Some(post) => Err(RedirectError::Overlap { other: post.id }),
            None => Ok(()),
        }
    }

    /// Posts a checked redirection; [`advance`](Self::advance) makes it cover its range.
    pub(crate) fn post(&mut self, wanted: Wanted) {
        let Wanted { id, cookie, range, to, to_offset } = wanted;
        let (copied, redirected) = (IntervalSet::default(), IntervalSet::default());
        self.posts.push(Post { id, cookie, range, open: range.start, to, to_offset, copied, redirected });
    }

    /// Has a redirection cover more of its range, so that up to `bytes` that had arrived are to be
    /// copied. Until it covers a place, what comes there goes to the default buffer, to be copied
    /// later. None: it is unknown.
    pub(crate) fn advance(&mut self, id: RedirectId, bytes: u64) -> Option<Advance> {
        let index = self.posts.iter().position(|post| post.id == id)?;
        let post = &mut self.posts[index];
        let (from, end) = (post.open, post.range.end);
        let mut left = bytes;
        post.open = end;
        for piece in self.arrived.within(from, end) {
            if piece.len() > left {
                post.open = piece.start + left;
                break;
            }
            left -= piece.len();
        }
        let copies = self.arrived.within(from, post.open);
        self.arrived.remove(from, post.open);
        copies.iter().for_each(|piece| post.copied.insert(piece.start, piece.end));
        let place = |piece: &ByteRange| Place {
            start: piece.start,
            len: piece.len(),
            to: post.to,
            to_offset: post.to_offset + (piece.start - post.range.start),
        };
        let places = copies.iter().map(place).collect();
        let report = (post.open == end).then(|| post.report());
        let cookie = post.cookie;
        if report.as_ref().is_some_and(|report| report.complete) {
            self.posts.remove(index);
        }
        Some(Advance { places, cookie, report })
    }

    pub(crate) fn report(&self, id: RedirectId) -> Option<RedirectReport> {
        self.posts.iter().find(|post| post.id == id).map(Post::report)
    }

    pub(crate) fn cancel(&mut self, id: RedirectId) -> Option<RedirectReport> {
        let index = self.posts.iter().position(|post| post.id == id)?;
        Some(self.posts.remove(index).report())
    }

    /// The receiver has taken these bytes from the default buffer.
    pub(crate) fn consume(&mut self, start: u64, end: u64) -> bool {
        // Consuming the middle of a range splits it; at the bound that split has no room.
        if self.arrived.len() >= ARRIVED_RANGES_MAX {
            let mut after = self.arrived.clone();
            after.remove(start, end);
            if after.len() > ARRIVED_RANGES_MAX {
                return false;
            }
        }
        self.arrived.remove(start, end);
        true
    }

    pub(crate) fn arrived(&self) -> &[ByteRange] {
        self.arrived.ranges()
    }
}

/// Ids carry the export's slot, where the redirection is found, and a serial number of the engine.
pub(crate) fn redirect_id(export: ExportId, serial: u32) -> RedirectId {
    RedirectId { slot: export.slot, generation: serial }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ProcessId, RegionId};

    const DEFAULT: RegionRef = RegionRef { process: ProcessId(0), region: RegionId(0) };
    const NEW: RegionRef = RegionRef { process: ProcessId(0), region: RegionId(1) };

    fn wanted(start: u64, end: u64) -> Wanted {
        let id = RedirectId { slot: 0, generation: start as u32 };
        Wanted { id, cookie: Cookie(1), range: ByteRange { start, end }, to: NEW, to_offset: 1_000 }
    }

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn a_redirection_during_arrival_is_split_and_says_so() {
        let mut redirector = Redirector::default();
        redirector.arrive(0, 40, DEFAULT, 0).expect("room");
        redirector.post(wanted(10, 100));
        let first = redirector.advance(wanted(10, 100).id, 1_000).expect("posted");
        assert_eq!(first.report.map(|report| (report.copied, report.complete)), Some((vec![range(10, 40)], false)));
        let arrival = redirector.arrive(40, 80, DEFAULT, 0).expect("room");
        assert_eq!(arrival.places.len(), 2);
        assert_eq!((arrival.places[0].to, arrival.places[0].to_offset), (NEW, 1_030));
        assert_eq!((arrival.places[1].to, arrival.places[1].to_offset), (DEFAULT, 100));
        let (_, _, report) = &arrival.done[0];
        assert_eq!(report.copied, [range(10, 40)]);
        assert_eq!(report.redirected, [range(40, 100)]);
        assert!(report.complete);
        assert_eq!(redirector.arrived(), [range(0, 10), range(100, 120)]);
    }

    #[test]
    fn what_arrives_while_a_redirection_is_made_is_copied_or_goes_there_and_never_both() {
        let mut redirector = Redirector::default();
        redirector.arrive(0, 100, DEFAULT, 0).map(|_| ()).expect("room");
        redirector.post(wanted(10, 200));
        let id = wanted(10, 200).id;
        let step = |redirector: &mut Redirector| {
            let advance = redirector.advance(id, 50).expect("posted");
            let places: Vec<_> = advance.places.iter().map(|p| (p.start, p.len, p.to_offset)).collect();
            (places, advance.report)
        };
        assert_eq!(step(&mut redirector), (vec![(10, 50, 1_000)], None));
        // On both sides of where it has come to.
        let arrival = redirector.arrive(50, 100, DEFAULT, 0).expect("room");
        let places: Vec<_> = arrival.places.iter().map(|p| (p.start, p.len, p.to)).collect();
        assert_eq!(places, [(50, 10, NEW), (60, 90, DEFAULT)]);
        assert!(redirector.check(range(190, 210)).is_err(), "all of its range is taken");
        assert_eq!(step(&mut redirector), (vec![(60, 50, 1_050)], None));
        let (places, report) = step(&mut redirector);
        let report = report.expect("it covers its range");
        assert_eq!(places, [(110, 40, 1_100)]);
        assert_eq!((report.copied, report.redirected), (vec![range(10, 50), range(60, 150)], vec![range(50, 60)]));
        assert!(!report.complete);
        let rest = redirector.arrive(150, 50, DEFAULT, 0).expect("room");
        assert!(rest.places.iter().all(|place| place.to == NEW) && rest.done[0].2.complete);
        assert_eq!(redirector.arrived(), [range(0, 10)]);
    }

    #[test]
    fn overlapping_redirections_are_refused() {
        let mut redirector = Redirector::default();
        redirector.post(wanted(10, 20));
        assert!(matches!(redirector.check(range(19, 30)), Err(RedirectError::Overlap { .. })));
        assert_eq!(redirector.check(range(20, 30)), Ok(()));
    }

    #[test]
    fn a_deposit_that_fragments_too_much_is_refused_and_consuming_makes_room() {
        let mut redirector = Redirector::default();
        for at in 0..ARRIVED_RANGES_MAX as u64 {
            redirector.arrive(at * 2, 1, DEFAULT, 0).map(|_| ()).expect("room");
        }
        let one_more = ARRIVED_RANGES_MAX as u64 * 2;
        assert!(redirector.arrive(one_more, 1, DEFAULT, 0).is_err());
        assert!(redirector.arrive(1, 1, DEFAULT, 0).is_ok(), "closing a gap needs no room");
        assert!(redirector.consume(0, 100));
        assert!(redirector.arrive(one_more, 1, DEFAULT, 0).is_ok());
    }
}
