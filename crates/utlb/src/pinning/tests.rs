//! Pinning under random transfers, holds and limits; and the rules of pinning ahead.

use super::*;
use crate::policy::PolicyKind;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn pages(first: u64, count: u64) -> Pages {
    Pages::new(Page::new(first).expect("small"), count).expect("small")
}

fn numbers(pages: &[Page]) -> Vec<u64> {
    pages.iter().map(|p| p.number()).collect()
}

proptest! {
    #[test]
    fn acquire_is_lookup_and_hold(
        kind in proptest::sample::select(PolicyKind::ALL.to_vec()),
        ops in proptest::collection::vec((500..530u64, 1..9u64, 0..4u8), 0..200),
    ) {
        let make = || Pinning::new(kind.build(), Prepin::Fixed(1), Some(12));
        let (mut one, mut two) = (make(), make());
        let mut last = pages(500, 1);
        for (first, count, op) in ops {
            // Often the same again, which is the case with a shortcut.
            let wanted = if op < 2 { last } else { pages(first, count) };
            last = wanted;
            if one.acquire(wanted) {
                prop_assert!(two.lookup(wanted));
                two.hold(wanted);
                one.release(wanted);
                two.release(wanted);
            } else {
                let (ours, theirs) = (transfer(&mut one, wanted), transfer(&mut two, wanted));
                prop_assert_eq!(ours, theirs);
            }
            prop_assert_eq!(one.counters(), two.counters());
        }
    }
}

/// Looks up, and pins what is missing.
fn transfer(pinning: &mut Pinning, pages: Pages) -> Result<Option<PinRequest>, MissError> {
    if pinning.lookup(pages) {
        return Ok(None);
    }
    let mut request = PinRequest::default();
    pinning.miss(pages, &mut request)?;
    request.pin.iter().for_each(|page| _ = pinning.pinned(*page));
    Ok(Some(request))
}

proptest! {
    #[test]
    fn transfers_are_pinned_within_the_limit_and_held_pages_stay(
        kind in proptest::sample::select(PolicyKind::ALL.to_vec()), limit in 4..20usize, ahead in 1..9u32, adaptive in any::<bool>(),
        ops in proptest::collection::vec((0..60u64, 1..6u64, 0..6u8), 0..200),
    ) {
        let prepin = if adaptive { Prepin::Adaptive(ahead) } else { Prepin::Fixed(ahead) };
        let mut pinning = Pinning::new(kind.build(), prepin, Some(limit));
        let mut pinned = BTreeSet::new();
        let mut outstanding: Vec<Pages> = Vec::new();
        for (first, count, op) in ops {
            let wanted = pages(first, count);
            match op {
                0 if !outstanding.is_empty() => pinning.release(outstanding.swap_remove(0)),
                1 => {
                    let mut gone = Vec::new();
                    pinning.forget(wanted, &mut gone);
                    gone.iter().for_each(|u| assert!(pinned.remove(&u.page.number())));
                }
                2 => {
                    let mut gone = Vec::new();
                    pinning.evict(2, &mut gone);
                    gone.iter().for_each(|u| assert!(pinned.remove(&u.page.number())));
                }
                _ => match transfer(&mut pinning, wanted) {
                    Ok(None) => prop_assert!(wanted.iter().all(|p| pinned.contains(&p.number()))),
                    Ok(Some(request)) => {
                        request.unpin.iter().for_each(|u| assert!(pinned.remove(&u.page.number())));
                        request.pin.iter().for_each(|p| assert!(pinned.insert(p.number())));
                        prop_assert!(wanted.iter().all(|p| pinned.contains(&p.number())));
                        if op == 3 {
                            pinning.hold(wanted);
                            outstanding.push(wanted);
                        }
                    }
                    Err(error) => {
                        let too_long = matches!(error, MissError::TooLong { .. }) && count > limit as u64;
                        prop_assert!(too_long || !outstanding.is_empty());
                    }
                },
            }
            prop_assert!(pinning.len() <= limit && pinning.len() == pinned.len());
            for held in &outstanding {
                prop_assert!(held.iter().all(|p| pinned.contains(&p.number())), "a held page was unpinned");
            }
        }
        let counters = pinning.counters();
        prop_assert_eq!(counters.pins - counters.unpins, pinned.len() as u64);
    }
}

#[test]
fn pages_ahead_are_pinned_in_the_same_call() {
    let mut pinning = Pinning::new(PolicyKind::Lru.build(), Prepin::Fixed(4), None);
    let request = transfer(&mut pinning, pages(10, 1)).expect("room").expect("a miss");
    assert_eq!((numbers(&request.pin), request.needed), (vec![10, 11, 12, 13], 1));
    assert_eq!(transfer(&mut pinning, pages(13, 1)), Ok(None));
    // 12 and 13 are pinned already: only 14 to 16 are new.
    pinning.forget(pages(11, 1), &mut Vec::new());
    let request = transfer(&mut pinning, pages(11, 1)).expect("room").expect("a miss");
    assert_eq!((numbers(&request.pin), pinning.counters().pin_calls[4]), (vec![11, 14], 1));
}

#[test]
fn pages_ahead_never_push_out_the_transfer() {
    let mut pinning = Pinning::new(PolicyKind::Mru.build(), Prepin::Fixed(64), Some(4));
    let request = transfer(&mut pinning, pages(0, 3)).expect("room").expect("a miss");
    assert_eq!(numbers(&request.pin), [0, 1, 2, 3]);
    let request = transfer(&mut pinning, pages(2, 3)).expect("room").expect("a miss");
    assert!(!request.unpin.iter().any(|u| pages(2, 3).contains(u.page)), "{request:?}");
}

#[test]
fn adaptive_windows_grow_on_runs_and_shrink_on_strides() {
    let mut pinning = Pinning::new(PolicyKind::Lru.build(), Prepin::Adaptive(16), None);
    let calls = |pinning: &mut Pinning, stride: u64, from: u64| -> u64 {
        (0..64).filter(|i| transfer(pinning, pages(from + i * stride, 1)).expect("room").is_some()).count() as u64
    };
    assert_eq!(calls(&mut pinning, 1, 0), 8);
    let before = pinning.counters().pins;
    assert_eq!(calls(&mut pinning, 32, 1 << 20), 64);
    // The window shrinks 8, 4, 2, 1: 11 pages too many, then none.
    assert_eq!(pinning.counters().pins - before, 64 + 7 + 3 + 1);
}

#[test]
fn a_transfer_that_cannot_fit_is_refused_with_the_numbers() {
    let mut pinning = Pinning::new(PolicyKind::Lru.build(), Prepin::Fixed(1), Some(4));
    assert_eq!(transfer(&mut pinning, pages(0, 5)), Err(MissError::TooLong { pages: 5, limit: 4 }));
    transfer(&mut pinning, pages(0, 3)).expect("room");
    pinning.hold(pages(0, 3));
    assert_eq!(transfer(&mut pinning, pages(10, 2)), Err(MissError::AllHeld { held: 3, limit: 4, pages: 2 }));
    pinning.release(pages(0, 3));
    assert!(transfer(&mut pinning, pages(10, 2)).is_ok());
}
