//! Any memory of the caller's is sent from and fetched into without copies, and never by a
//! translation that is out of date.

use crate::nodes::{Nodes, Place, content, join, pattern};
use vmmc::{PinOptions, Pinned, PlaceError, PolicyKind, SendOptions, Session};

pub(crate) const PAGE: usize = 4096;

/// Whether demand pinning works here at all.
pub(crate) fn pins(session: &Session) -> bool {
    match vmmc_host::pin::PinSpace::of_process() {
        Ok(_) => true,
        Err(why) => {
            println!("SKIP demand pinning on {session:?}: {why}");
            false
        }
    }
}

/// Whatever can be pinned is, however short.
pub(crate) fn always() -> PinOptions {
    PinOptions::default().copied_up_to(0)
}

pub(crate) fn any_memory_is_sent_and_fetched_at_every_alignment(nodes: &dyn Nodes) {
    const LEN: usize = 80_000;
    for place in Place::ALL {
        let j = join(nodes, place, LEN as u64 + 10_000);
        j.user.set_pinning(always());
        for (shift, len) in [(0, LEN), (1, LEN), (PAGE - 1, 30_000), (100, 5000), (0, 1), (7, 4096), (0, 3 * PAGE)] {
            let memory = pattern(LEN + 2 * PAGE, (shift + len) as u8);
            let skip = memory.as_ptr().align_offset(PAGE) + shift;
            let data = &memory[skip..skip + len];
            j.export.write(0, &vec![0; LEN + 10_000]).unwrap();
            j.import.send(100, Pinned(data)).unwrap();
            j.import.flush().unwrap();
            let got = content(&j.export);
            assert!(got[100..100 + len] == *data, "{place:?} {len} bytes at {shift}: sent bytes differ");
            assert!(got[..100].iter().chain(&got[100 + len..]).all(|b| *b == 0), "{place:?}: bytes beside");
            let mut back = vec![0u8; LEN + 2 * PAGE];
            let skip = back.as_ptr().align_offset(PAGE) + shift;
            j.import.fetch(100, Pinned(&mut back[skip..skip + len])).unwrap();
            assert!(back[skip..skip + len] == *data, "{place:?} {len} bytes at {shift}: fetched bytes differ");
            assert!(back[..skip].iter().chain(&back[skip + len..]).all(|b| *b == 0), "{place:?}: bytes beside");
        }
    }
}

pub(crate) fn later_uses_of_pinned_memory_call_nobody(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let j = join(nodes, place, 8 * PAGE as u64);
        if !pins(&j.user) {
            return;
        }
        assert!(j.user.set_pinning(always()));
        let memory = pattern(9 * PAGE, 5);
        let skip = memory.as_ptr().align_offset(PAGE);
        let data = &memory[skip..skip + 8 * PAGE];
        j.import.send(0, Pinned(data)).unwrap();
        let before = j.user.stats();
        assert_eq!((before.pin_transfers, before.pin_lookups, before.pin_check_misses), (1, 8, 8));
        assert_eq!((before.pin_pins, before.pinned_pages, before.pin_copied), (8, 8, 0));
        for _ in 0..50 {
            j.import.send(0, Pinned(data)).unwrap();
            j.import.send(PAGE as u64, Pinned(&data[PAGE..2 * PAGE])).unwrap();
        }
        let after = j.user.stats();
        assert_eq!((after.calls, after.pin_check_misses), (before.calls, before.pin_check_misses), "{place:?}");
        assert_eq!(after.pin_lookups, 8 + 50 * 9);
        assert!(content(&j.export) == data);
    }
}

pub(crate) fn a_few_pages_of_a_plain_slice_are_copied_and_not_pinned(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let j = join(nodes, place, 9 * PAGE as u64);
        if !pins(&j.user) {
            return;
        }
        let memory = pattern(10 * PAGE, 5);
        let skip = memory.as_ptr().align_offset(PAGE);
        let data = &memory[skip..skip + 9 * PAGE];
        // The first one makes the memory for copies.
        j.import.send(0, Pinned(&data[..8 * PAGE])).unwrap();
        j.import.send(0, Pinned(&data[..PAGE])).unwrap();
        let before = j.user.stats().calls;
        for _ in 0..3 {
            j.import.send(0, Pinned(&data[..8 * PAGE])).unwrap();
            j.import.post_send(0, Pinned(&data[..PAGE]), SendOptions::default()).unwrap().wait().unwrap();
        }
        j.import.flush().unwrap();
        let stats = j.user.stats();
        assert_eq!((stats.calls, stats.pin_lookups, stats.pinned_pages, stats.pin_copied), (before, 0, 0, 0));
        assert!(content(&j.export)[..8 * PAGE] == data[..8 * PAGE], "{place:?}");
        j.import.send(0, j.user.lend(data).range(0..PAGE)).unwrap();
        j.import.send(0, Pinned(data)).unwrap();
        j.import.flush().unwrap();
        let stats = j.user.stats();
        assert_eq!((stats.pin_lookups, stats.pinned_pages), (10, 9), "lent memory and longer slices are pinned");
        assert!(content(&j.export) == data, "{place:?}");
    }
}

pub(crate) fn a_limit_evicts_by_policy_and_data_stays_right(nodes: &dyn Nodes) {
    for (policy, place) in [(PolicyKind::Lru, Place::Engine), (PolicyKind::Mru, Place::Network)] {
        let j = join(nodes, place, 4 * PAGE as u64);
        if !pins(&j.user) {
            return;
        }
        assert!(j.user.set_pinning(always().pages_max(4).policy(policy)));
        let memory = pattern(17 * PAGE, 5);
        let skip = memory.as_ptr().align_offset(PAGE);
        for round in 0..3 {
            for page in 0..8 {
                let from = skip + (page + round) * PAGE;
                j.import.send(PAGE as u64, Pinned(&memory[from..from + 2 * PAGE])).unwrap();
                assert!(content(&j.export)[PAGE..3 * PAGE] == memory[from..from + 2 * PAGE], "{policy:?} page {page}");
            }
        }
        let stats = j.user.stats();
        assert!(stats.pinned_pages <= 4 && stats.pin_evictions > 0, "{stats:?}");
        assert_eq!(stats.pin_pins - stats.pin_unpins, stats.pinned_pages);
        assert!(!j.user.set_pinning(PinOptions::default()), "too late");
        // More than may be pinned is copied.
        j.import.send(0, Pinned(&memory[skip..skip + 4 * PAGE])).unwrap();
        let larger = join(nodes, place, 5 * PAGE as u64);
        assert!(larger.user.set_pinning(always().pages_max(4)));
        larger.import.send(0, Pinned(&memory[skip..skip + 5 * PAGE])).unwrap();
        larger.import.flush().unwrap();
        assert!(content(&larger.export) == memory[skip..skip + 5 * PAGE]);
        assert_eq!(larger.user.stats().pin_copied, 1);
    }
}

pub(crate) fn forgotten_memory_is_private_again(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let j = join(nodes, place, 4 * PAGE as u64);
        if !pins(&j.user) {
            return;
        }
        assert!(j.user.set_pinning(always()));
        let mut memory = pattern(5 * PAGE, 5);
        let skip = memory.as_ptr().align_offset(PAGE);
        let body = skip..skip + 4 * PAGE;
        j.import.send(0, Pinned(&memory[body.clone()])).unwrap();
        let was = memory.clone();
        j.user.forget(&mut memory[body.clone()]).unwrap();
        assert!(memory == was);
        assert_eq!((j.user.stats().pinned_pages, j.user.stats().pin_unpins), (0, 4));
        let number = memory[skip..].as_ptr() as u64 / PAGE as u64;
        assert_eq!(vmmc_host::pin::PinSpace::of_process().unwrap().frame(number), None);
        memory[skip] ^= 0xFF;
        j.import.send(0, Pinned(&memory[body.clone()])).unwrap();
        assert!(content(&j.export) == memory[body]);
    }
}

pub(crate) fn memory_that_cannot_be_pinned_is_copied(nodes: &dyn Nodes) {
    static CONSTANT: [u8; 3 * PAGE] = [7; 3 * PAGE];
    for place in Place::THROUGH_ENGINES {
        let j = join(nodes, place, 3 * PAGE as u64);
        j.user.set_pinning(always());
        j.import.send(0, Pinned(&CONSTANT)).unwrap();
        j.import.flush().unwrap();
        assert!(content(&j.export) == CONSTANT);
        let mut local = [0u8; 3 * PAGE];
        j.import.fetch(0, Pinned(&mut local)).unwrap();
        assert!(local == CONSTANT);
        assert_eq!(j.user.stats().pin_pins, 0);
    }
}

pub(crate) fn transfers_of_any_memory_are_under_way_at_once(nodes: &dyn Nodes) {
    // More than a piece of a long transfer, so that the last one is posted when the others have
    // arrived.
    const LONG: usize = 5 << 20;
    for place in Place::ALL {
        let j = join(nodes, place, LONG as u64 + 3 * PAGE as u64);
        j.user.set_pinning(always());
        let memory = pattern(LONG + 2 * PAGE, 3);
        let skip = memory.as_ptr().align_offset(PAGE);
        // Whole pages, both ends ragged, less than a page, nothing.
        let ranges = [(skip, 8 * PAGE), (skip + 7, 9 * PAGE), (skip + PAGE - 1, 30_001), (5, 100), (0, 0)];
        let mut at = 0;
        let mut sends: Vec<(u64, _)> = Vec::new();
        for (from, len) in ranges {
            let send = j.import.post_send(at, Pinned(&memory[from..from + len]), SendOptions::default()).unwrap();
            sends.push((at, send));
            at += len as u64;
        }
        // The last is waited for first.
        for ((at, mut send), (from, len)) in sends.into_iter().zip(ranges).rev() {
            assert_eq!(send.wait().unwrap(), len as u64);
            j.import.flush().unwrap();
            let got = content(&j.export);
            assert!(got[at as usize..at as usize + len] == memory[from..from + len], "{place:?}: {len} bytes sent");
        }
        let mut long =
            j.import.post_send(1, Pinned(&memory[skip + 1..skip + 1 + LONG]), SendOptions::default()).unwrap();
        while long.poll().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(long.wait().unwrap(), LONG as u64);
        j.import.flush().unwrap();
        assert!(content(&j.export)[1..LONG + 1] == memory[skip + 1..skip + 1 + LONG], "{place:?}: the long one");
        let fetches: Vec<_> = [PAGE, 40_000, LONG, 17, 0]
            .map(|len| (len, j.import.post_fetch(1, Pinned(vec![0; len])).unwrap()))
            .into_iter()
            .collect();
        for (len, mut fetch) in fetches.into_iter().rev() {
            assert_eq!(fetch.wait().unwrap(), len as u64);
            assert!(fetch.into_inner() == memory[skip + 1..skip + 1 + len], "{place:?}: {len} bytes fetched");
        }
        drop(j.import.post_fetch(0, Pinned(vec![0; LONG])).unwrap());
        assert!(j.import.post_fetch(u64::MAX, Pinned(vec![0; 9])).is_err());
    }
}

pub(crate) fn pages_of_transfers_under_way_are_not_given_up(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let j = join(nodes, place, 12 * PAGE as u64);
        if !pins(&j.user) {
            return;
        }
        j.user.set_pinning(always().pages_max(8));
        let memory = pattern(30 * PAGE, 5);
        let skip = memory.as_ptr().align_offset(PAGE);
        let pages = |from: usize, count: usize| &memory[skip + from * PAGE..skip + (from + count) * PAGE];
        let mut held = j.import.post_send(0, Pinned(pages(0, 6)), SendOptions::default()).unwrap();
        let mut other = j.import.post_send(6 * PAGE as u64, Pinned(pages(6, 1)), SendOptions::default()).unwrap();
        assert_eq!(other.wait().unwrap(), PAGE as u64);
        // All others share two pages: what was used last would be chosen by LRU if the six could
        // be.
        for from in 8..20 {
            j.import.send(10 * PAGE as u64, Pinned(pages(from, 2))).unwrap();
        }
        let before = j.user.stats();
        assert_eq!((before.pinned_pages, before.pin_copied), (8, 0), "{place:?}");
        assert!(before.pin_evictions >= 11, "{place:?}: {before:?}");
        // More than the rest is copied, and does not push them out either.
        j.import.send(8 * PAGE as u64, Pinned(pages(20, 4))).unwrap();
        assert_eq!(j.user.stats().pin_copied, 1, "{place:?}");
        assert_eq!(held.wait().unwrap(), 6 * PAGE as u64);
        j.import.send(0, Pinned(pages(0, 6))).unwrap();
        assert_eq!(j.user.stats().pin_check_misses, before.pin_check_misses, "{place:?}: they were there all the time");
        // Once they are done with, they go as any others.
        j.import.send(4 * PAGE as u64, Pinned(pages(20, 4))).unwrap();
        j.import.send(8 * PAGE as u64, Pinned(pages(24, 4))).unwrap();
        assert_eq!((j.user.stats().pin_copied, j.user.stats().pinned_pages), (1, 8), "{place:?}");
        let expected = [pages(0, 4), pages(20, 4), pages(24, 4)].concat();
        j.import.flush().unwrap();
        assert!(content(&j.export) == expected, "{place:?}");
    }
}

pub(crate) fn lent_memory_is_sent_as_any_other(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 8 * PAGE as u64);
        let memory = pattern(9 * PAGE, 9);
        let skip = memory.as_ptr().align_offset(PAGE);
        let lent = j.user.lend(&memory[skip..skip + 8 * PAGE]);
        for range in [0..8 * PAGE, PAGE..3 * PAGE, 0..8 * PAGE, 100..200, 0..0] {
            j.export.write(0, &[0; 8 * PAGE]).unwrap();
            j.import.send(range.start as u64, lent.range(range.clone())).unwrap();
            j.import.flush().unwrap();
            assert!(content(&j.export)[range.clone()] == lent.bytes()[range], "{place:?}");
        }
        if place != Place::Mapped && pins(&j.user) {
            let stats = j.user.stats();
            assert_eq!((stats.pin_transfers, stats.pin_lookups, stats.pin_check_misses), (3, 18, 8), "{place:?}");
        }
        let error = j.import.send(0, lent.range(0..8 * PAGE + 1)).unwrap_err();
        assert!(matches!(error, vmmc::TransferError::BufferOutOfBounds { .. }), "{error}");
    }
}

pub(crate) fn translations_that_the_program_places_are_used_by_index(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 8 * PAGE as u64);
        if !pins(&j.user) {
            return;
        }
        let memory = pattern(9 * PAGE, 3);
        let skip = memory.as_ptr().align_offset(PAGE);
        let pages = |from: usize, count: usize| &memory[skip + from * PAGE..skip + (from + count) * PAGE];
        let mut table = j.user.pinned_table(16).unwrap();
        // Not in the order of their addresses.
        table.place(7, j.user.lend(pages(0, 2))).unwrap();
        table.place(4, j.user.lend(pages(5, 3))).unwrap();
        let by_index = [pages(5, 3), pages(0, 2)].concat();
        let (calls, lookups) = (j.user.stats().calls, j.user.stats().pin_lookups);
        for range in [0..5 * PAGE, 0..1, PAGE - 1..3 * PAGE + 1, 4 * PAGE..5 * PAGE, 0..0] {
            j.export.write(0, &[0; 8 * PAGE]).unwrap();
            j.import.send(range.start as u64, table.range(4, range.clone())).unwrap();
            j.import.flush().unwrap();
            assert!(content(&j.export)[range.clone()] == by_index[range.clone()], "{place:?}: {range:?}");
        }
        if place != Place::Mapped {
            let after = j.user.stats();
            assert_eq!(
                (after.calls, after.pin_lookups, after.sends_staged),
                (calls, lookups, 0),
                "{place:?}: index only"
            );
        }
        // Entries that are empty, and such as the table has not.
        for (index, range) in [(3, 0..PAGE), (4, 0..5 * PAGE + 1), (15, 0..PAGE + 1), (u32::MAX, 0..1)] {
            let error = j.import.send(0, table.range(index, range)).unwrap_err();
            assert!(matches!(error, vmmc::TransferError::BufferOutOfBounds { .. }), "{error}");
        }
        table.remove(5, 1).unwrap();
        assert!(j.import.send(0, table.range(5, 0..1)).is_err());
        j.import.send(0, table.range(6, 0..PAGE)).unwrap();
        // Another choice for the same index.
        table.place(6, j.user.lend(pages(2, 1))).unwrap();
        j.import.send(0, table.range(6, 0..PAGE)).unwrap();
        j.import.flush().unwrap();
        assert!(content(&j.export)[..PAGE] == *pages(2, 1), "{place:?}");
        assert!(matches!(table.place(15, j.user.lend(pages(0, 2))), Err(PlaceError::NoSuchEntry { .. })));
        assert!(matches!(table.place(0, j.user.lend(&pages(0, 1)[1..])), Err(PlaceError::NotWholePages { .. })));
        assert!(matches!(j.user.pinned_table(u32::MAX), Err(PlaceError::TooLarge { .. })));
        drop(table);
        let table = j.user.pinned_table(16).unwrap();
        assert!(j.import.send(0, table.range(6, 0..1)).is_err(), "nothing is left of the other table");
    }
}
