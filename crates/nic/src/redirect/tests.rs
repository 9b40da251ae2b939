//! Redirections one by one, and against a model that knows of each byte where it is.

use super::*;
use crate::ids::{ProcessId, RegionId};
use proptest::prelude::*;

const DEFAULT: RegionRef = RegionRef { process: ProcessId(0), region: RegionId(0) };
const NEW: RegionRef = RegionRef { process: ProcessId(0), region: RegionId(1) };
const COOKIE: Cookie = Cookie(1);

fn wanted(start: u64, end: u64) -> Redirect {
    let export = ExportId { slot: 0, generation: 1 };
    Redirect { export, offset: start, len: end - start, to: NEW.region, to_offset: 1_000, cookie: COOKIE }
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange { start, end }
}

/// Posts it and has it cover its range.
fn post(redirector: &mut Redirector, start: u64, end: u64) -> Advance {
    assert_eq!(redirector.check(range(start, end)), Ok(()));
    redirector.post(&wanted(start, end), NEW);
    redirector.advance(start, COOKIE, u64::MAX).expect("posted")
}

fn arrives(redirector: &mut Redirector, start: u64, len: u64) -> bool {
    redirector.arrive(start, len, DEFAULT, 0).is_ok()
}

#[test]
fn a_redirection_during_arrival_is_split_and_says_so() {
    let mut redirector = Redirector::default();
    redirector.arrive(0, 40, DEFAULT, 0).expect("room");
    let first = post(&mut redirector, 10, 100);
    assert_eq!(first.report.map(|report| (report.copied, report.complete)), Some((vec![range(10, 40)], false)));
    let arrival = redirector.arrive(40, 80, DEFAULT, 0).expect("room");
    assert_eq!(arrival.places.len(), 2);
    assert_eq!((arrival.places[0].to, arrival.places[0].to_offset), (NEW, 1_030));
    assert_eq!((arrival.places[1].to, arrival.places[1].to_offset), (DEFAULT, 100));
    let (_, report) = &arrival.done[0];
    assert_eq!(report.copied, [range(10, 40)]);
    assert_eq!(report.redirected, [range(40, 100)]);
    assert!(report.complete);
    assert_eq!(redirector.arrived(), [range(0, 10), range(100, 120)]);
    assert_eq!((redirector.len(), redirector.ranges), (0, 0));
}

#[test]
fn what_arrives_while_a_redirection_is_made_is_copied_or_goes_there_and_never_both() {
    let mut redirector = Redirector::default();
    assert!(arrives(&mut redirector, 0, 100));
    redirector.post(&wanted(10, 200), NEW);
    let step = |redirector: &mut Redirector| {
        let advance = redirector.advance(10, COOKIE, 50).expect("posted");
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
    assert!(rest.places.iter().all(|place| place.to == NEW) && rest.done[0].1.complete);
    assert_eq!(redirector.arrived(), [range(0, 10)]);
}

#[test]
fn overlapping_redirections_are_refused() {
    let mut redirector = Redirector::default();
    post(&mut redirector, 10, 20);
    post(&mut redirector, 100, 200);
    let overlap = Err(RedirectError::Overlap { start: 10, end: 20 });
    for taken in [range(19, 30), range(0, 11), range(12, 13), range(0, 50), range(10, 20)] {
        assert_eq!(redirector.check(taken), overlap, "{taken:?}");
    }
    assert!(redirector.check(range(0, 1_000)).is_err());
    assert_eq!([range(20, 100), range(0, 10), range(200, 300)].map(|free| redirector.check(free)), [Ok(()); 3]);
}

#[test]
fn one_posted_before_at_the_same_place_is_another_one() {
    let mut redirector = Redirector::default();
    post(&mut redirector, 10, 20);
    assert!(redirector.cancel(10, Cookie(2)).is_none() && redirector.report(10, Cookie(2)).is_none());
    assert!(redirector.advance(10, Cookie(2), 1).is_none());
    assert!(redirector.cancel(10, COOKIE).is_some() && redirector.cancel(10, COOKIE).is_none());
}

#[test]
fn thousands_are_posted_and_filled_by_one_deposit() {
    let mut redirector = Redirector::default();
    let count = REDIRECTS_PER_EXPORT_MAX as u64;
    for at in 0..count {
        post(&mut redirector, 8 * at, 8 * at + 8);
    }
    let max = REDIRECTS_PER_EXPORT_MAX as u64;
    assert_eq!(redirector.check(range(8 * count, 8 * count + 1)), Err(RedirectError::TableFull { max }));
    assert_eq!(redirector.cut(0, 8 * count, 256), 8 * 256);
    assert_eq!(redirector.cut(4, 8 * count - 4, 256), 8 * 257 - 4);
    assert_eq!(redirector.cut(8 * count - 8, 100, 256), 100);
    let arrival = redirector.arrive(4, 8 * count - 8, DEFAULT, 0).expect("room");
    assert_eq!((arrival.done.len(), redirector.len(), redirector.ranges), (count as usize - 2, 2, 2));
    assert!(arrival.places.iter().all(|place| place.to == NEW));
    assert!(redirector.arrived().is_empty());
}

#[test]
fn a_deposit_that_fragments_too_much_is_refused_and_consuming_makes_room() {
    let mut redirector = Redirector::default();
    for at in 0..ARRIVED_RANGES_MAX as u64 {
        assert!(arrives(&mut redirector, at * 2, 1));
    }
    let one_more = ARRIVED_RANGES_MAX as u64 * 2;
    assert!(!arrives(&mut redirector, one_more, 1));
    assert!(arrives(&mut redirector, 1, 1), "closing a gap needs no room");
    assert!(redirector.consume(0, 100));
    assert!(arrives(&mut redirector, one_more, 1));
    assert!(arrives(&mut redirector, one_more + 2, 1));
}

#[test]
fn a_redirected_range_that_fragments_too_much_is_refused_and_gaps_can_be_closed() {
    let mut redirector = Redirector::default();
    let max = ARRIVED_RANGES_MAX as u64;
    post(&mut redirector, 0, 10 * max);
    for at in 0..max {
        assert!(arrives(&mut redirector, at * 2, 1));
    }
    assert!(!arrives(&mut redirector, 2 * max, 1));
    assert!(arrives(&mut redirector, 1, 1) && arrives(&mut redirector, 2 * max, 1));
    // All of an export together.
    let each = REDIRECTED_RANGES_MAX as u64 / max;
    for number in 1..each {
        let start = number * 10 * max;
        post(&mut redirector, start, start + 10 * max);
        for at in 0..max {
            assert!(arrives(&mut redirector, start + at * 2, 1));
        }
    }
    assert_eq!(redirector.ranges, REDIRECTED_RANGES_MAX);
    let start = each * 10 * max;
    post(&mut redirector, start, start + 10);
    assert!(!arrives(&mut redirector, start, 1));
    assert!(arrives(&mut redirector, start, 10), "what completes it leaves nothing behind");
    assert!(redirector.cancel(0, COOKIE).is_some());
    post(&mut redirector, start, start + 10);
    assert!(arrives(&mut redirector, start, 1));
    // What is copied counts too.
    assert!(arrives(&mut redirector, 0, 1));
    for at in 1..max - 1 {
        assert!(arrives(&mut redirector, at * 2, 1));
    }
    post(&mut redirector, 0, 2 * max);
    assert!(redirector.ranges >= REDIRECTED_RANGES_MAX - 2);
    for at in 0..3 {
        assert!(arrives(&mut redirector, 3 * max + 2 * at, 1));
    }
    let max = REDIRECTED_RANGES_MAX as u64;
    let full = RedirectError::TooFragmented { max };
    assert_eq!(redirector.check(range(3 * ARRIVED_RANGES_MAX as u64, 4 * ARRIVED_RANGES_MAX as u64)), Err(full));
}

#[test]
fn what_arrives_while_a_redirection_is_made_fragments_it_within_the_bound() {
    let mut redirector = Redirector::default();
    redirector.post(&wanted(0, 1 << 20), NEW);
    let mut next = 0;
    let mut refused = 0;
    // Each step leaves some of what has come, so that the redirection never covers its range.
    for _ in 0..2 * REDIRECTED_RANGES_MAX / 256 {
        for _ in 0..512 {
            match redirector.arrive(next, 1, DEFAULT, 0) {
                Ok(_) => next += 2,
                Err(why) => refused += usize::from(why == OpError::TooFragmented { max: REDIRECTED_RANGES_MAX as u64 }),
            }
        }
        let advance = redirector.advance(0, COOKIE, 256).expect("posted");
        assert!(advance.report.is_none() || redirector.ranges >= REDIRECTED_RANGES_MAX);
    }
    assert!(redirector.ranges <= REDIRECTED_RANGES_MAX + ARRIVED_RANGES_MAX, "{}", redirector.ranges);
    assert!(refused > 0, "there is a bound");
    assert!(arrives(&mut redirector, 2 << 20, 1), "elsewhere there is room");
}

/// Bytes of the export of the model.
const SIZE: usize = 96;

#[derive(Clone, Debug)]
enum Step {
    Post { start: usize, len: usize, pieces: u64 },
    Arrive { start: usize, len: usize },
    Advance { number: usize, bytes: u64 },
    Cancel { number: usize },
    Consume { start: usize, len: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..SIZE, 1..24usize, 0..3u64).prop_map(|(start, len, pieces)| Step::Post { start, len, pieces }),
        6 => (0..SIZE, 0..40usize).prop_map(|(start, len)| Step::Arrive { start, len }),
        2 => (0..8usize, 0..20u64).prop_map(|(number, bytes)| Step::Advance { number, bytes }),
        1 => (0..8usize).prop_map(|number| Step::Cancel { number }),
        1 => (0..SIZE, 0..20usize).prop_map(|(start, len)| Step::Consume { start, len }),
    ]
}

/// What became of a byte of a redirection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Pending,
    Copied,
    Direct,
}

struct Naive {
    start: usize,
    open: usize,
    cookie: Cookie,
    fate: Vec<Fate>,
}

impl Naive {
    fn end(&self) -> usize {
        self.start + self.fate.len()
    }

    fn is_complete(&self) -> bool {
        self.fate.iter().all(|fate| *fate != Fate::Pending)
    }

    fn report(&self) -> RedirectReport {
        let of = |wanted: Fate| {
            let mut ranges: Vec<ByteRange> = Vec::new();
            for (at, _) in self.fate.iter().enumerate().filter(|(_, fate)| **fate == wanted) {
                let at = (self.start + at) as u64;
                match ranges.last_mut().filter(|last| last.end == at) {
                    Some(last) => last.end += 1,
                    None => ranges.push(range(at, at + 1)),
                }
            }
            ranges
        };
        let (copied, redirected) = (of(Fate::Copied), of(Fate::Direct));
        let range = Some(range(self.start as u64, self.end() as u64));
        RedirectReport { range, copied, redirected, complete: self.is_complete() }
    }
}

/// Each byte by itself: whether it has arrived in the default buffer, and what is there and in the
/// place of the redirection that has it.
struct World {
    redirector: Redirector,
    posts: Vec<Naive>,
    arrived: [bool; SIZE],
    /// What the memory holds: default buffer and destination, and what it ought to hold.
    real: [[u32; SIZE]; 2],
    ought: [[u32; SIZE]; 2],
    serial: u32,
}

impl World {
    fn new() -> World {
        let none = [[0; SIZE]; 2];
        let (redirector, posts) = (Redirector::default(), Vec::new());
        World { redirector, posts, arrived: [false; SIZE], real: none, ought: none, serial: 0 }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Post { start, len, pieces } => self.post(start, len.min(SIZE - start), pieces),
            Step::Arrive { start, len } => self.arrive(start, len.min(SIZE - start)),
            Step::Advance { number, bytes } if number < self.posts.len() => self.advance(number, bytes),
            Step::Cancel { number } if number < self.posts.len() => {
                let post = self.posts.remove(number);
                let report = self.redirector.cancel(post.start as u64, post.cookie);
                assert_eq!(report, Some(post.report()));
            }
            Step::Advance { .. } | Step::Cancel { .. } => {}
            Step::Consume { start, len } => {
                let end = (start + len).min(SIZE);
                assert!(self.redirector.consume(start as u64, end as u64));
                self.arrived[start..end].fill(false);
            }
        }
        let known: Vec<u64> = (0..SIZE as u64).filter(|at| self.arrived[*at as usize]).collect();
        let arrived: Vec<u64> = self.redirector.arrived().iter().flat_map(|range| range.start..range.end).collect();
        assert_eq!(arrived, known);
        assert_eq!(self.real, self.ought);
        for post in &self.posts {
            assert_eq!(self.redirector.report(post.start as u64, post.cookie), Some(post.report()));
        }
        assert_eq!(self.redirector.len(), self.posts.len());
        let ranges = self.posts.iter().map(|post| post.report().copied.len() + post.report().redirected.len());
        assert_eq!(self.redirector.ranges, ranges.sum::<usize>());
    }

    /// The destination of a byte has the same index, so that one array serves all redirections.
    fn post(&mut self, start: usize, len: usize, pieces: u64) {
        let asked = range(start as u64, (start + len) as u64);
        let taken = self.posts.iter().any(|post| post.start < start + len && start < post.end());
        assert_eq!(self.redirector.check(asked).is_err(), taken);
        if taken {
            return;
        }
        self.serial += 1;
        let cookie = Cookie(u64::from(self.serial));
        let export = ExportId { slot: 0, generation: 1 };
        let (offset, len64) = (start as u64, len as u64);
        let wanted = Redirect { export, offset, len: len64, to: NEW.region, to_offset: offset, cookie };
        self.redirector.post(&wanted, NEW);
        self.posts.push(Naive { start, open: start, cookie, fate: vec![Fate::Pending; len] });
        let number = self.posts.len() - 1;
        self.advance(number, if pieces == 0 { u64::MAX } else { 5 * pieces });
    }

    fn advance(&mut self, number: usize, bytes: u64) {
        let post = &mut self.posts[number];
        let advance = self.redirector.advance(post.start as u64, post.cookie, bytes).expect("it is posted");
        for place in advance.places {
            assert_eq!((place.to, place.to_offset), (NEW, place.start));
            let (from, to) = (place.start as usize, (place.start + place.len) as usize);
            let [home, new] = &mut self.real;
            new[from..to].copy_from_slice(&home[from..to]);
        }
        let mut left = bytes;
        while post.open < post.end() {
            let at = post.open;
            if self.arrived[at] {
                if left == 0 {
                    break;
                }
                left -= 1;
                self.arrived[at] = false;
                post.fate[at - post.start] = Fate::Copied;
                self.ought[1][at] = self.ought[0][at];
            }
            post.open += 1;
        }
        assert_eq!(advance.report, (post.open == post.end()).then(|| post.report()));
        if post.is_complete() {
            self.posts.remove(number);
        }
    }

    fn arrive(&mut self, start: usize, len: usize) {
        self.serial += 1;
        let arrival = self.redirector.arrive(start as u64, len as u64, DEFAULT, 0).expect("room");
        for place in &arrival.places {
            let into = usize::from(place.to == NEW);
            assert_eq!(place.to_offset, place.start);
            self.real[into][place.start as usize..(place.start + place.len) as usize].fill(self.serial);
        }
        let mut direct = 0;
        for at in start..start + len {
            match self.posts.iter_mut().find(|post| post.start <= at && at < post.open) {
                Some(post) => {
                    direct += 1;
                    post.fate[at - post.start] = Fate::Direct;
                    self.ought[1][at] = self.serial;
                }
                None => {
                    self.arrived[at] = true;
                    self.ought[0][at] = self.serial;
                }
            }
        }
        assert_eq!(arrival.redirected_bytes, direct);
        let mut told: Vec<_> = arrival.done.into_iter().map(|(cookie, report)| (cookie.0, report)).collect();
        let over = self.posts.iter().filter(|post| post.is_complete());
        let mut wanted: Vec<_> = over.map(|post| (post.cookie.0, post.report())).collect();
        self.posts.retain(|post| !post.is_complete());
        told.sort_by_key(|(cookie, _)| *cookie);
        wanted.sort_by_key(|(cookie, _)| *cookie);
        assert_eq!(told, wanted);
    }
}

proptest! {
    #[test]
    fn redirections_agree_with_a_model_of_each_byte(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.run(step));
    }
}
