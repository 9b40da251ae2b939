//! Figures that a process publishes: counters, gauges and times in an export of its own, which its
//! node shows in `vmmc stats` and in its metrics, and knows nothing else of.
//!
//! ```text
//!   head      magic, entries
//!   entry     kind, lengths │ family, 40 bytes │ item, 64 bytes │ value │ 25 buckets
//! ```
//!
//! Invariant: the process adds to words, and writes the rest before anybody can read it. Who reads
//! takes everything for a claim: [`read`] gives what can be shown, bounded, and skips the rest.

use crate::region::{Region, RegionError};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How the name of an export of figures begins.
const PREFIX: &str = "figures.";
/// Figures of one export.
pub const FIGURES_MAX: usize = 200;
/// Bytes of the name of a family.
pub const FAMILY_BYTES_MAX: usize = 40;
/// Bytes of what one figure of a family is of.
pub const ITEM_BYTES_MAX: usize = 64;
/// Buckets of times: each reaches twice as far as the one before, the last one without end.
pub const BUCKETS: usize = 25;
/// Where the first bucket of times ends, nanoseconds.
pub const BUCKET_NS: u64 = 128;

const MAGIC: u64 = u64::from_le_bytes(*b"vmmcfig1");
const HEAD_BYTES: u64 = 64;
const FAMILY_AT: u64 = 8;
const ITEM_AT: u64 = FAMILY_AT + FAMILY_BYTES_MAX as u64;
const VALUE_AT: u64 = ITEM_AT + ITEM_BYTES_MAX as u64;
const ENTRY_BYTES: u64 = VALUE_AT + 8 + 8 * BUCKETS as u64;

/// Name of an export of figures, by whose they are and a number that no other has.
pub fn export_name(source: &str, number: u64) -> String {
    format!("{PREFIX}{number:016x}.{source}")
}

/// Whose figures an export has. None: it is for something else.
pub fn source_of(name: &str) -> Option<&str> {
    let (number, source) = name.strip_prefix(PREFIX)?.split_once('.')?;
    (number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(source)
}

/// What a figure is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum FigureKind {
    /// It only grows.
    #[default]
    Counter = 1,
    /// It comes and goes.
    Gauge = 2,
    /// Times, by how many there were of which length; the value is their sum in nanoseconds.
    Times = 3,
}

/// A figure to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FigureOf<'a> {
    /// What it is.
    pub kind: FigureKind,
    /// What is counted, as a metric is called: lower-case letters, digits and `_`, without a unit.
    pub family: &'a str,
    /// Of what, for example a method; may be empty.
    pub item: &'a str,
}

/// Figures of this process.
#[derive(Clone, Debug)]
pub struct Figures {
    region: Region,
    count: usize,
}

/// A figure that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    /// What it is.
    pub kind: FigureKind,
    /// What is counted.
    pub family: String,
    /// Of what.
    pub item: String,
    /// Its value.
    pub value: u64,
    /// Of times, how many there were in each bucket, up to the last that had some.
    pub buckets: Vec<u64>,
}

impl Figures {
    /// Memory for these figures, all 0, to be exported for reading. Those over [`FIGURES_MAX`] are
    /// left out, as are bytes of names that are too long.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn create(figures: &[FigureOf<'_>]) -> Result<Figures, RegionError> {
        let count = figures.len().min(FIGURES_MAX);
        let region = Region::create(HEAD_BYTES + count as u64 * ENTRY_BYTES)?;
        for (figure, index) in figures.iter().take(count).zip(0u64..) {
            let [family, item] = [(figure.family, FAMILY_BYTES_MAX), (figure.item, ITEM_BYTES_MAX)].map(cut);
            let entry = HEAD_BYTES + index * ENTRY_BYTES;
            let head = [figure.kind as u8, family.len() as u8, item.len() as u8];
            for (at, bytes) in [(0, &head[..]), (FAMILY_AT, family.as_bytes()), (ITEM_AT, item.as_bytes())] {
                region.write(entry + at, bytes).expect("an entry is in the region");
            }
        }
        region.word(8).expect("the head is in the region").store(count as u64, Ordering::Relaxed);
        region.word(0).expect("the head is in the region").store(MAGIC, Ordering::Release);
        Ok(Figures { region, count })
    }

    /// The memory.
    pub fn region(&self) -> &Region {
        &self.region
    }

    fn word(&self, index: usize, at: u64) -> &AtomicU64 {
        assert!(index < self.count, "there are {} figures", self.count);
        self.region.word(HEAD_BYTES + index as u64 * ENTRY_BYTES + at).expect("an entry is in the region")
    }

    /// Adds to a counter or gauge; `-1i64 as u64` takes one away.
    #[inline]
    pub fn add(&self, index: usize, by: u64) {
        self.word(index, VALUE_AT).fetch_add(by, Ordering::Relaxed);
    }

    /// As [`add`](Self::add), for a figure to which one thread at a time adds: it needs no locked
    /// instruction.
    #[inline]
    pub fn add_alone(&self, index: usize, by: u64) {
        let word = self.word(index, VALUE_AT);
        word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&self, index: usize, to: u64) {
        self.word(index, VALUE_AT).store(to, Ordering::Relaxed);
    }

    /// Counts a time.
    #[inline]
    pub fn time(&self, index: usize, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.word(index, VALUE_AT).fetch_add(ns, Ordering::Relaxed);
        self.word(index, VALUE_AT + 8 + 8 * bucket(ns) as u64).fetch_add(1, Ordering::Relaxed);
    }

    /// What one is now.
    pub fn value(&self, index: usize) -> u64 {
        self.word(index, VALUE_AT).load(Ordering::Relaxed)
    }
}

fn cut((text, max): (&str, usize)) -> &str {
    let end = (0..=text.len().min(max)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// The bucket of a time.
fn bucket(ns: u64) -> usize {
    let doublings = u64::BITS - (ns / BUCKET_NS).leading_zeros();
    (doublings as usize).min(BUCKETS - 1)
}

/// Where a bucket ends, nanoseconds; none: nowhere.
pub fn bucket_end_ns(bucket: usize) -> Option<u64> {
    (bucket < BUCKETS - 1).then(|| BUCKET_NS << bucket)
}

impl Figure {
    /// Adds what another one has counted.
    pub fn merge(&mut self, other: &Figure) {
        self.value = self.value.saturating_add(other.value);
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(count, more)| *count = count.saturating_add(*more));
    }

    /// Times that were counted.
    pub fn times(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Nanoseconds that this part of the times, 0 to 1, stays below, give or take the length of a
    /// bucket. None: there were none.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let wanted = (self.times() as f64 * part).ceil() as u64;
        let mut seen = 0u64;
        let reached = |count: &u64| {
            seen = seen.saturating_add(*count);
            seen > 0 && seen >= wanted
        };
        let bucket = self.buckets.iter().position(reached)?;
        Some(bucket_end_ns(bucket).unwrap_or(BUCKET_NS << (BUCKETS - 1)))
    }
}

/// Figures that an export of so many bytes has at most.
pub fn room(len: u64) -> usize {
    (len.saturating_sub(HEAD_BYTES) / ENTRY_BYTES).min(FIGURES_MAX as u64) as usize
}

/// Reads the figures of an export of so many bytes; `load` copies some of them out, and says
/// whether it could. What makes no sense is left out.
///
/// ```
/// use vmmc_host::published::{FigureKind, FigureOf, Figures, read};
/// let calls = FigureOf { kind: FigureKind::Counter, family: "rpc_calls", item: "read" };
/// let figures = Figures::create(&[calls])?;
/// figures.add(0, 3);
/// let region = figures.region();
/// let all = read(region.len_bytes(), |at, into| region.read(at, into).is_ok());
/// assert_eq!((all[0].item.as_str(), all[0].value), ("read", 3));
/// # Ok::<(), vmmc_host::RegionError>(())
/// ```
pub fn read(len: u64, mut load: impl FnMut(u64, &mut [u8]) -> bool) -> Vec<Figure> {
    let mut head = [0; 16];
    if len < HEAD_BYTES || !load(0, &mut head) || word(&head, 0) != MAGIC {
        return Vec::new();
    }
    let count = word(&head, 8).min(room(len) as u64);
    let mut entry = [0; ENTRY_BYTES as usize];
    let entries = (0..count)
        .filter_map(|index| load(HEAD_BYTES + index * ENTRY_BYTES, &mut entry).then(|| figure(&entry)).flatten());
    entries.collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn figure(entry: &[u8; ENTRY_BYTES as usize]) -> Option<Figure> {
    let kind = match entry[0] {
        1 => FigureKind::Counter,
        2 => FigureKind::Gauge,
        3 => FigureKind::Times,
        _ => return None,
    };
    let text = |at: u64, len: u8, max: usize| {
        let bytes = entry[at as usize..][..max].get(..usize::from(len))?;
        std::str::from_utf8(bytes).ok().map(str::to_string)
    };
    let family = text(FAMILY_AT, entry[1], FAMILY_BYTES_MAX)?;
    let item = text(ITEM_AT, entry[2], ITEM_BYTES_MAX)?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let starts = family.starts_with(|c: char| c.is_ascii_lowercase());
    if !starts || !family.bytes().all(is_name) || item.chars().any(char::is_control) {
        return None;
    }
    let value = word(entry, VALUE_AT as usize);
    let mut buckets = Vec::new();
    if kind == FigureKind::Times {
        buckets.extend((0..BUCKETS).map(|bucket| word(entry, VALUE_AT as usize + 8 + 8 * bucket)));
        let used = buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        buckets.truncate(used);
    }
    Some(Figure { kind, family, item, value, buckets })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::os::RandomWords;

    fn all_of(region: &Region) -> Vec<Figure> {
        read(region.len_bytes(), |at, into| region.read(at, into).is_ok())
    }

    #[test]
    fn figures_are_read_as_they_were_counted() {
        let of = |kind, family, item| FigureOf { kind, family, item };
        let figures = Figures::create(&[
            of(FigureKind::Counter, "rpc_calls", "read"),
            of(FigureKind::Gauge, "rpc_callers", ""),
            of(FigureKind::Times, "rpc_handler", "réad"),
        ])
        .unwrap();
        figures.add(0, 5);
        figures.set(1, 7);
        figures.add(1, -1i64 as u64);
        for ns in [0, 127, 128, 1_000_000, u64::MAX] {
            figures.time(2, Duration::from_nanos(ns));
        }
        let all = all_of(figures.region());
        let values: Vec<_> = all.iter().map(|figure| (figure.item.as_str(), figure.value)).collect();
        assert_eq!(values, [("read", 5), ("", 6), ("réad", 1_000_254u64)]);
        let times = &all[2];
        assert_eq!((times.times(), times.buckets.len()), (5, BUCKETS));
        assert_eq!((times.buckets[0], times.buckets[1], times.buckets[BUCKETS - 1]), (2, 1, 1));
        assert_eq!(times.quantile_ns(0.3), Some(BUCKET_NS));
        assert_eq!(times.quantile_ns(0.6), Some(2 * BUCKET_NS));
        assert_eq!(times.quantile_ns(0.8), Some(BUCKET_NS << 13));
        assert_eq!(all[0].quantile_ns(0.5), None);
        assert_eq!(figures.value(0), 5);
    }

    #[test]
    fn the_name_of_an_export_says_whose_figures_it_has() {
        assert_eq!(source_of(&export_name("rpc.pages", 7)), Some("rpc.pages"));
        for other in ["rpc.pages", "figures.rpc.pages", "figures.7", "figures.000000000000000g.a"] {
            assert_eq!(source_of(other), None, "{other}");
        }
    }

    #[test]
    fn names_that_are_too_long_are_cut_and_figures_over_the_bound_left_out() {
        let long = "é".repeat(60);
        let one = FigureOf { kind: FigureKind::Counter, family: "a", item: &long };
        let figures = Figures::create(&vec![one; FIGURES_MAX + 5]).unwrap();
        let all = all_of(figures.region());
        assert_eq!(all.len(), FIGURES_MAX);
        assert_eq!(all[0].item, "é".repeat(ITEM_BYTES_MAX / 2));
    }

    #[test]
    fn wild_memory_gives_only_what_can_be_shown() {
        let figures = Figures::create(&[FigureOf { kind: FigureKind::Times, family: "a", item: "b" }; 4]).unwrap();
        let region = figures.region();
        let mut random = RandomWords::default();
        for _ in 0..20_000 {
            let place = random.next().unwrap() % (region.len_bytes() / 8) * 8;
            let narrow = random.next().unwrap() % 2 == 0;
            let word = random.next().unwrap() & if narrow { 0xff } else { u64::MAX };
            region.word(place.max(8)).unwrap().store(word, Ordering::Relaxed);
            for figure in all_of(region) {
                assert!(figure.family.len() <= FAMILY_BYTES_MAX && figure.item.len() <= ITEM_BYTES_MAX);
                assert!(figure.family.bytes().all(|byte| byte.is_ascii_graphic()), "{}", figure.family);
                let _ = (figure.times(), figure.quantile_ns(0.99));
            }
        }
        assert_eq!(read(10, |_, _| panic!("it is too short")), []);
        assert_eq!(read(4096, |_, _| false), []);
    }
}
