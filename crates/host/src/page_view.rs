//! A view of pages of a region in any order, side by side at addresses of their own, whose pages
//! are exchanged for others without a copy.
//!
//! ```text
//!  region   │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │
//!                 ▲           ▲   ▲
//!                 └───────┐   │   │      exchange(1, [7, 0])
//!  view                 │ 1 │ 4 │ 5 │  ────────────────────▶  │ 1 │ 7 │ 0 │, and 4, 5 come back
//! ```
//!
//! Invariant: each page of the view is mapped, at every moment, to the page of the region that
//! [`PageView::pages`] names; an exchange that the kernel refuses leaves the rest as it was. Pages
//! that follow each other in the region are one mapping and cost one system call. Source:
//! [SEMANTICS §2.2], PEXDMA; `mmap(2)`, `MAP_FIXED`.
//!
//! ```
//! use vmmc_host::Region;
//! use vmmc_host::page_view::PageView;
//! let region = Region::create(4 * 4096)?;
//! let mut view = PageView::new(&region, vec![0, 1])?;
//! region.write(3 * 4096, b"came in")?;
//! let mut others = [3];
//! assert_eq!(view.exchange(0, &mut others), 1);
//! let mut seen = [0; 7];
//! view.read(0, &mut seen)?;
//! assert_eq!((&seen, others), (b"came in", [0]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::region::{PAGE_BYTES, Region};
use crate::reservation::{Access, Reservation, ReservationError};
use std::ops::Range;

const PAGE: u64 = PAGE_BYTES as u64;

/// Pages of a region side by side.
#[derive(Debug)]
pub struct PageView {
    place: Reservation,
    region: Region,
    /// Page of the region behind each page of the view.
    pages: Vec<u32>,
}

impl PageView {
    /// Maps pages of a region, named by number, side by side.
    ///
    /// # Errors
    /// [`ReservationError::Size`] without a page, [`ReservationError::RegionPages`] for one that
    /// the region does not have, [`ReservationError::ReadOnly`], [`ReservationError::Ranges`],
    /// [`ReservationError::Mappings`].
    pub fn new(region: &Region, pages: Vec<u32>) -> Result<PageView, ReservationError> {
        let place = Reservation::new(pages.len() as u64 * PAGE)?;
        let mut first = 0;
        for run in consecutive(&pages) {
            map(&place, region, first, run)?;
            first += run.len();
        }
        Ok(PageView { place, region: region.clone(), pages })
    }

    /// Bytes.
    pub fn len_bytes(&self) -> u64 {
        self.place.len_bytes()
    }

    /// The region that the pages are of.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The page of the region behind each page of the view.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// First byte, for callers that take the responsibility of shared memory themselves: valid as
    /// long as the view lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.place.as_ptr()
    }

    /// Exchanges pages of the view, from page `first` on, for as many others of the region, whose
    /// numbers are replaced by those of the pages that leave. How many were exchanged, from the
    /// first one on: fewer than asked for where the kernel has no room for more mappings of the
    /// process. The others are as they were.
    ///
    /// Pages that nobody else uses belong here: the contents of both are as they were, under
    /// another address.
    ///
    /// # Panics
    /// If the view has fewer pages than that from `first` on.
    pub fn exchange(&mut self, first: usize, others: &mut [u32]) -> usize {
        assert!(first + others.len() <= self.pages.len(), "pages outside of the view");
        let mut done = 0;
        let runs: Vec<usize> = consecutive(others).map(<[u32]>::len).collect();
        for run in runs {
            let range = first + done..first + done + run;
            if map(&self.place, &self.region, range.start, &others[done..done + run]).is_err() {
                return done;
            }
            self.pages[range].swap_with_slice(&mut others[done..done + run]);
            done += run;
        }
        done
    }

    /// Where a range of the view lies in the region: first byte and bytes of each run.
    ///
    /// # Panics
    /// If the range is not in the view.
    pub fn runs(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        assert!(range.start <= range.end && range.end <= self.len_bytes(), "a range outside of the view");
        let pages = (range.start / PAGE) as usize..(range.end.div_ceil(PAGE) as usize);
        let pages = if range.is_empty() { &[] } else { &self.pages[pages] };
        // First byte of the next run, seen from the view.
        let mut at = range.start / PAGE * PAGE;
        consecutive(pages).map(move |run| {
            let (start, end) = (at.max(range.start), (at + run.len() as u64 * PAGE).min(range.end));
            let offset = u64::from(run[0]) * PAGE + (start - at);
            at += run.len() as u64 * PAGE;
            (offset, end - start)
        })
    }

    /// Loads bytes. If others store meanwhile, old and new bytes may be mixed.
    ///
    /// # Errors
    /// [`ReservationError::Outside`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), ReservationError> {
        self.place.read(offset, into)
    }

    /// Stores bytes; the last one becomes visible last.
    ///
    /// # Errors
    /// [`ReservationError::Outside`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), ReservationError> {
        self.place.write(offset, data)
    }
}

/// Maps pages that follow each other in the region, from page `first` of the view on.
fn map(place: &Reservation, region: &Region, first: usize, run: &[u32]) -> Result<(), ReservationError> {
    let len = run.len() as u64 * PAGE;
    place.fill(first as u64 * PAGE, region, u64::from(run[0]) * PAGE, len, Access::ReadWrite)
}

/// The longest runs of numbers that follow each other.
fn consecutive(pages: &[u32]) -> impl Iterator<Item = &[u32]> {
    pages.chunk_by(|a, b| a.checked_add(1) == Some(*b))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REGION_PAGES: u32 = 24;
    const VIEW_PAGES: usize = 8;

    /// A region whose pages say their number, and a view of its first ones.
    fn numbered() -> (Region, PageView) {
        let region = Region::create(u64::from(REGION_PAGES) * PAGE).unwrap();
        (0..REGION_PAGES).for_each(|page| region.write(u64::from(page) * PAGE + 8, &page.to_le_bytes()).unwrap());
        let view = PageView::new(&region, (0..VIEW_PAGES as u32).collect()).unwrap();
        (region, view)
    }

    fn number_at(view: &PageView, page: usize) -> u32 {
        let mut number = [0; 4];
        view.read(page as u64 * PAGE + 8, &mut number).unwrap();
        u32::from_le_bytes(number)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Against a list of numbers: a view shows what its list says, whatever was exchanged, and
        /// no page is lost or there twice.
        #[test]
        fn exchanged_pages_show_their_contents_and_none_is_lost(
            steps in proptest::collection::vec((0..VIEW_PAGES, 0..16usize, 1..=VIEW_PAGES), 1..20),
        ) {
            let (_region, mut view) = numbered();
            let mut model: Vec<u32> = (0..VIEW_PAGES as u32).collect();
            let mut others: Vec<u32> = (VIEW_PAGES as u32..REGION_PAGES).collect();
            let mut model_others = others.clone();
            for (first, from, count) in steps {
                let count = count.min(VIEW_PAGES - first).min(others.len() - from);
                prop_assert_eq!(view.exchange(first, &mut others[from..from + count]), count);
                model[first..first + count].swap_with_slice(&mut model_others[from..from + count]);
                let seen: Vec<u32> = (0..VIEW_PAGES).map(|page| number_at(&view, page)).collect();
                prop_assert_eq!(&seen, &model);
                prop_assert_eq!(view.pages(), &model[..]);
                prop_assert_eq!(&others, &model_others);
            }
        }

        /// Against a byte for a byte.
        #[test]
        fn runs_name_each_byte_of_a_range_once_and_in_order(
            pages in proptest::collection::vec(0..REGION_PAGES, 1..12), start in 0u64..40_000, len in 0u64..20_000,
        ) {
            let region = Region::create(u64::from(REGION_PAGES) * PAGE).unwrap();
            let view = PageView::new(&region, pages.clone()).unwrap();
            let end = (start + len).min(view.len_bytes());
            let start = start.min(end);
            let named: Vec<u64> = view.runs(start..end).flat_map(|(at, len)| at..at + len).collect();
            let behind = |byte: u64| u64::from(pages[(byte / PAGE) as usize]) * PAGE + byte % PAGE;
            let expected: Vec<u64> = (start..end).map(behind).collect();
            prop_assert_eq!(named, expected);
        }
    }

    #[test]
    fn stores_through_a_view_reach_the_region_and_stay_there() {
        let (region, mut view) = numbered();
        assert_eq!(view.exchange(2, &mut [20, 21, 9]), 3);
        view.write(2 * PAGE + 4090, b"over an edge").unwrap();
        let mut seen = [0; 12];
        region.read(20 * PAGE + 4090, &mut seen).unwrap();
        assert_eq!(&seen, b"over an edge");
        assert_eq!(view.exchange(2, &mut [2, 3, 4]), 3);
        region.read(20 * PAGE + 4090, &mut seen).unwrap();
        assert_eq!(&seen, b"over an edge", "a page keeps its bytes when it leaves");
    }

    #[test]
    fn pages_that_a_region_lacks_are_refused_and_nothing_changes() {
        let (region, mut view) = numbered();
        assert!(matches!(PageView::new(&region, vec![REGION_PAGES]), Err(ReservationError::RegionPages { .. })));
        let mut others = [12, 13, u32::MAX, 14];
        assert_eq!(view.exchange(0, &mut others), 2);
        assert_eq!(others, [0, 1, u32::MAX, 14]);
        let seen: Vec<u32> = (0..VIEW_PAGES).map(|page| number_at(&view, page)).collect();
        assert_eq!(seen, [12, 13, 2, 3, 4, 5, 6, 7]);
        assert!(matches!(view.read(view.len_bytes(), &mut [0]), Err(ReservationError::Outside { .. })));
    }
}
