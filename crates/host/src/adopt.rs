//! Memory that the caller already has becomes a region: bytes that are given away get pages of
//! their own, and private pages can be moved onto a memfd in place.
//!
//! Invariant: in place, the address and the content of every byte stay as they were, before, during
//! and after. Source: [SHRIMP §2] exports memory of the program; here it costs one copy of
//! the touched pages at the start and one at the end.

use crate::region::{PAGE_BYTES, Region, RegionError, Span};

/// Memory that its owner lends or gives to VMMC for the life of an export or of a registration.
pub struct CallerMemory(Source);

enum Source {
    /// An address range of the caller, taken over in place.
    InPlace { base: *mut u8, len: usize },
    /// Bytes that were given to us; they may move.
    Owned(Vec<u8>),
}

// SAFETY: the value is a claim on an address range, not a reference to it; its maker vouched for
// the range (see `from_raw_parts`), or it owns it.
unsafe impl Send for CallerMemory {}

/// Why memory cannot be taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// No bytes.
    #[error("the range is empty; give at least one byte")]
    Empty,
    /// Part of the range is not ordinary private memory.
    #[error(
        "{address:#x} is in a mapping that is {what}; only private, writable, anonymous memory (heap or private mmap) can be taken over: copy the data into memory that the library allocates"
    )]
    Unsuitable {
        /// Address in the offending mapping.
        address: usize,
        /// What it is.
        what: String,
    },
    /// The region could not be made.
    #[error(transparent)]
    Region(#[from] RegionError),
}

impl CallerMemory {
    /// Claims an address range, to be taken over in place.
    ///
    /// # Safety
    /// The range is allocated, readable and writable, and stays so while the value or a region made
    /// of it lives. No other thread writes to the pages of the range (whole pages, so neighbouring
    /// objects too) during [`adopt`] and during the drop of the region. After a fork the pages are
    /// shared with the child.
    pub unsafe fn from_raw_parts(base: *mut u8, len: usize) -> CallerMemory {
        CallerMemory(Source::InPlace { base, len })
    }
}

impl From<Vec<u8>> for CallerMemory {
    /// Takes the vector. Its bytes are copied once onto pages of their own, so that importers can
    /// map them.
    fn from(vec: Vec<u8>) -> CallerMemory {
        CallerMemory(Source::Owned(vec))
    }
}

/// Makes a region of the caller's memory.
///
/// Costs one copy of the bytes; in place, of the range rounded outwards to pages. Neighbouring
/// objects on the first and last page then move along and stay usable; because of them an unaligned
/// range is never mapped by importers (they use the engine). The last clone of the region gives a
/// range in place private pages again.
pub fn adopt(memory: CallerMemory) -> Result<Span, AdoptError> {
    match memory.0 {
        Source::Owned(bytes) if bytes.is_empty() => Err(AdoptError::Empty),
        Source::InPlace { len: 0, .. } => Err(AdoptError::Empty),
        Source::Owned(bytes) => {
            let region = Region::create(bytes.len() as u64)?;
            region.write(0, &bytes).expect("a region of their length");
            Ok(Span { region, offset: 0, len: bytes.len() as u64 })
        }
        Source::InPlace { base, len } => adopt_in_place(base, len),
    }
}

fn adopt_in_place(base: *mut u8, len: usize) -> Result<Span, AdoptError> {
    let start = base as usize / PAGE_BYTES * PAGE_BYTES;
    let end = (base as usize + len).next_multiple_of(PAGE_BYTES);
    check_mappings(start, end)?;
    // SAFETY: the pages were just seen to be private, writable and anonymous; the maker of the
    // value vouched that they stay allocated and have no writers now.
    let region = unsafe { Region::take_over(base.wrapping_sub(base as usize - start), end - start)? };
    Ok(Span { region, offset: (base as usize - start) as u64, len: len as u64 })
}

/// Reads our own memory map and refuses ranges that are not ordinary private memory.
fn check_mappings(start: usize, end: usize) -> Result<(), AdoptError> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut covered = start;
    for line in text.lines() {
        let Some((low, high, flags, name)) = parse_line(line) else { continue };
        if high <= covered || low >= end {
            continue;
        }
        let what = match (flags, name) {
            _ if low > covered => "not mapped".to_string(),
            (f, _) if !f.starts_with("rw") => format!("not writable ({f})"),
            (f, _) if !f.ends_with('p') => {
                "shared already (memory on the same page was taken over before, or is pinned: use whole pages, or forget what is pinned)".to_string()
            }
            (_, n) if !n.is_empty() && n != "[heap]" && !n.starts_with("[anon") => n.to_string(),
            _ => {
                covered = high;
                continue;
            }
        };
        return Err(AdoptError::Unsuitable { address: covered.max(low), what });
    }
    if covered < end { Err(AdoptError::Unsuitable { address: covered, what: "not mapped".into() }) } else { Ok(()) }
}

/// Start, end, flags and name of a line of /proc/self/maps.
pub(crate) fn parse_line(line: &str) -> Option<(usize, usize, &str, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let (low, high) = fields.next()?.split_once('-')?;
    let flags = fields.next()?;
    let name = fields.nth(3).unwrap_or("");
    Some((usize::from_str_radix(low, 16).ok()?, usize::from_str_radix(high, 16).ok()?, flags, name))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::region::Protection;

    #[test]
    fn a_range_is_shared_in_place_and_its_neighbours_survive() {
        // Leaked, so that nobody frees it while it is shared; large, so that no other test's memory
        // lies on its pages.
        let bytes: &'static mut [u8] = vec![0u8; 40 << 20].leak();
        bytes.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 251) as u8);
        let part = &mut bytes[10_000..310_000];
        // SAFETY: the range is part of a leaked allocation, and nobody else knows it.
        let span = adopt(unsafe { CallerMemory::from_raw_parts(part.as_mut_ptr(), part.len()) }).unwrap();
        assert_eq!(span.region.address() + span.offset as usize, part.as_ptr() as usize);
        let other = Region::map(span.region.share().unwrap(), span.region.len_bytes(), Protection::ReadOnly).unwrap();
        let mut got = vec![0u8; 300_000];
        other.read(span.offset, &mut got).unwrap();
        assert!(got.iter().enumerate().all(|(i, b)| *b == ((i + 10_000) % 251) as u8));
        drop((span, other));
        assert!(
            bytes.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8),
            "content after the pages are private again"
        );
    }

    #[test]
    fn given_bytes_get_pages_of_their_own() {
        let span = adopt(vec![7u8; 5000].into()).unwrap();
        assert_eq!((span.offset, span.len, span.region.len_bytes()), (0, 5000, 5000));
        let mut got = [0u8; 5000];
        span.region.read(0, &mut got).unwrap();
        assert_eq!(got, [7; 5000]);
    }

    #[test]
    fn read_only_memory_is_refused() {
        static TEXT: &str = "constant";
        // SAFETY: the range is only looked up in the memory map, then refused.
        let memory = unsafe { CallerMemory::from_raw_parts(TEXT.as_ptr().cast_mut(), 8) };
        assert!(matches!(adopt(memory), Err(AdoptError::Unsuitable { .. })));
    }

    #[test]
    fn nothing_is_refused() {
        assert!(matches!(adopt(Vec::new().into()), Err(AdoptError::Empty)));
    }
}
