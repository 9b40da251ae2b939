//! The tables of the user's side, without a node.

use super::*;

fn page(number: u64) -> Page {
    Page::new(number).unwrap()
}

fn pages(first: u64, count: u64) -> Pages {
    Pages::new(page(first), count).unwrap()
}

/// The state of a process that has these pages pinned; none where nothing can be pinned.
fn pinned(held: Pages) -> Option<State> {
    let space = PinSpace::of_process().map_err(|why| println!("SKIP demand pinning: {why}")).ok()?;
    let mut state = State::new(PinOptions::default().pages_max(8), space, None);
    let mut request = PinRequest::default();
    state.pinning.miss(held, &mut request).unwrap();
    assert_eq!((request.pin.len() as u64, request.unpin.len()), (held.count(), 0));
    for page in held.iter() {
        let slot = state.pinning.pinned(page).0 as usize;
        state.frames.resize(state.frames.len().max(slot + 1), Frame { arena: 0, page: 0 });
        state.frames[slot] = Frame { arena: 3, page: page.number() as u32 };
    }
    Some(state)
}

fn numbers(pages: &[Page]) -> Vec<u64> {
    pages.iter().map(|page| page.number()).collect()
}

#[test]
fn pages_become_runs_whatever_their_order() {
    let all = [9, 3, 4, 5, 4, 8, 1].map(page).to_vec();
    let runs = [(1, 1), (3, 3), (8, 2)].map(|(page, count)| PageRun { page, count });
    assert_eq!(page_runs(all), runs);
    assert_eq!(page_runs(Vec::new()), []);
}

#[test]
fn the_whole_pages_of_a_slice_lie_inside_it() {
    let memory = vec![0u8; 4 * PAGE_BYTES];
    let skip = memory.as_ptr().align_offset(PAGE_BYTES);
    let at = |from: usize, len: usize| whole_pages(&memory[skip + from..skip + from + len]);
    assert_eq!(at(0, 2 * PAGE_BYTES), (0, 2 * PAGE_BYTES));
    assert_eq!(at(0, 2 * PAGE_BYTES + 7), (0, 2 * PAGE_BYTES));
    assert_eq!(at(1, 2 * PAGE_BYTES), (PAGE_BYTES - 1, PAGE_BYTES));
    // Bytes up to the end of a page, and bytes that reach no end of one.
    assert_eq!(at(1, PAGE_BYTES - 1), (PAGE_BYTES - 1, 0));
    assert_eq!(at(10, 20), (20, 0));
    assert_eq!(at(0, 0), (0, 0));
}

#[test]
fn options_are_taken_until_the_first_use() {
    let pins = Pins::default();
    let limit = PINNED_COPIED_PAGES * PAGE_BYTES;
    assert!(pins.copies(limit) && !pins.copies(limit + 1));
    assert!(pins.set_options(PinOptions::default().copied_up_to(2)));
    assert!(pins.copies(2 * PAGE_BYTES) && !pins.copies(2 * PAGE_BYTES + 1));
    // A trusting session pins whatever it may.
    assert!(pins.set_options(PinOptions::default().trusting()));
    assert!(pins.copies(0) && !pins.copies(1));
    let Some(state) = pinned(pages(100, 1)) else { return };
    *pins.lock() = Stage::Used(Box::new(state));
    assert!(!pins.set_options(PinOptions::default().copied_up_to(2)));
    assert!(!pins.copies(1), "a refused choice changes nothing");
    assert_eq!(pins.counters().pages, 1);
}

#[test]
fn the_limit_is_a_page_at_least() {
    assert_eq!(PinOptions::default().pages_max(0).pages_max, 1);
    assert!((1..=PINNED_PAGES_DEFAULT).contains(&PinOptions::default().pages_max));
}

#[test]
fn pages_that_go_while_nothing_uses_them_are_told_to_the_node() {
    let Some(mut state) = pinned(pages(100, 4)) else { return };
    state.drop_pages(pages(102, 9));
    assert_eq!((numbers(&state.unreported), state.doomed.is_empty()), (vec![102, 103], true));
    assert!(state.pinning.is_pinned(page(101)) && !state.pinning.is_pinned(page(102)));
    assert_eq!((state.place(page(101)), state.place(page(102))), (Some((3, 101)), None));
}

#[test]
fn pages_that_go_under_a_transfer_stay_until_it_ends_and_then_go() {
    let Some(mut state) = pinned(pages(100, 4)) else { return };
    // Two transfers, of which one uses a page of the other too.
    assert!(state.pinning.acquire(pages(100, 3)) && state.pinning.acquire(pages(102, 2)));
    state.drop_pages(pages(101, 2));
    assert!(state.unreported.is_empty() && state.pinning.is_pinned(page(101)));
    assert!([101, 102].into_iter().all(|doomed| state.doomed.contains(page(doomed))));
    assert!(!state.doomed.contains(page(100)) && !state.doomed.contains(page(103)));
    state.release(pages(100, 3));
    assert_eq!(numbers(&state.unreported), [101]);
    assert!(state.doomed.contains(page(102)), "the other transfer uses it still");
    state.release(pages(102, 2));
    assert_eq!(numbers(&state.unreported), [101, 102]);
    assert!(state.doomed.is_empty());
    assert!([100, 103].into_iter().all(|kept| state.pinning.is_pinned(page(kept))));
    assert!([101, 102].into_iter().all(|gone| !state.pinning.is_pinned(page(gone))));
}
