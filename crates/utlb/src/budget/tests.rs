//! The dynamic limit: by hand, and under random processes that obey or do not.

use super::*;
use proptest::prelude::*;

const A: Process = Process(1);
const B: Process = Process(2);

fn two(total: usize) -> Budget {
    let mut budget = Budget::new(total, 100);
    budget.attach(A, 0);
    budget.attach(B, 0);
    budget
}

#[test]
fn one_process_may_use_what_nobody_else_wants() {
    let mut budget = two(10);
    for _ in 0..10 {
        assert_eq!(budget.request(A, 1, 0), Ok(Decision::Granted));
    }
    assert_eq!(budget.request(A, 1, 0), Ok(Decision::EvictOwn));
    assert_eq!(budget.poll(0), None);
}

#[test]
fn a_process_above_its_share_is_asked_to_give_back() {
    let mut budget = two(10);
    (0..10).for_each(|_| assert_eq!(budget.request(A, 1, 0), Ok(Decision::Granted)));
    assert_eq!(budget.request(B, 3, 7), Ok(Decision::Wait));
    assert_eq!(budget.poll(7), Some(BudgetAction::Ask { process: A, pages: 3, deadline_us: 107 }));
    budget.released(A, 3, 20);
    assert_eq!(budget.poll(20), Some(BudgetAction::Grant { process: B, pages: 3 }));
    assert_eq!((budget.poll(1000), budget.granted(A), budget.granted(B)), (None, 7, 3));
}

#[test]
fn one_that_does_not_give_back_loses_the_pages_at_the_deadline() {
    let mut budget = two(10);
    (0..10).for_each(|_| assert_eq!(budget.request(A, 1, 0), Ok(Decision::Granted)));
    assert_eq!(budget.request(B, 2, 0), Ok(Decision::Wait));
    assert!(matches!(budget.poll(0), Some(BudgetAction::Ask { .. })));
    assert_eq!((budget.poll(99), budget.deadline_us()), (None, Some(100)));
    assert_eq!(budget.poll(100), Some(BudgetAction::Revoke { process: A, pages: 2 }));
    assert_eq!(budget.poll(100), Some(BudgetAction::Grant { process: B, pages: 2 }));
    assert_eq!(budget.deadline_us(), None);
}

#[test]
fn what_was_granted_to_a_process_that_went_is_not_for_the_next_of_its_number() {
    let mut budget = two(10);
    (0..10).for_each(|_| assert_eq!(budget.request(A, 1, 0), Ok(Decision::Granted)));
    assert_eq!(budget.request(B, 3, 0), Ok(Decision::Wait));
    assert!(matches!(budget.poll(0), Some(BudgetAction::Ask { .. })));
    budget.released(A, 3, 0);
    budget.detach(B);
    budget.attach(B, 0);
    assert_eq!((budget.poll(0), budget.granted(B), budget.free()), (None, 0, 3));
}

#[test]
fn the_processes_of_one_user_leave_another_its_part() {
    let mut budget = Budget::new(100, 50);
    (10..30).for_each(|p| budget.attach(Process(p), 1));
    budget.attach(A, 2);
    assert_eq!((budget.share(A), budget.share(Process(10))), (50, 2));
    (10..30).for_each(|p| (0..5).for_each(|_| _ = budget.request(Process(p), 1, 0).unwrap()));
    assert_eq!(budget.free(), 0);
    assert_eq!(budget.request(A, 50, 0), Ok(Decision::Wait));
    while budget.poll(50).is_some() {}
    assert_eq!(budget.granted(A), 50);
    assert!((10..30).all(|p| budget.granted(Process(p)) >= 2));
}

#[test]
fn requests_of_one_process_do_not_wait_beyond_its_share() {
    let mut budget = two(10);
    (0..10).for_each(|_| assert_eq!(budget.request(A, 1, 0), Ok(Decision::Granted)));
    let decisions: Vec<_> = (0..7).map(|_| budget.request(B, 1, 0).unwrap()).collect();
    assert_eq!(decisions, [[Decision::Wait; 5].as_slice(), &[Decision::EvictOwn; 2]].concat());
    assert_eq!(budget.request(B, 0, 0), Ok(Decision::Granted), "what asks for nothing waits for nobody");
}

#[test]
fn who_waits_when_shares_shrink_is_not_in_the_way() {
    let mut budget = Budget::new(12, 100);
    [(A, 1), (B, 2)].into_iter().for_each(|(process, user)| budget.attach(process, user));
    (0..12).for_each(|_| assert_eq!(budget.request(A, 1, 0), Ok(Decision::Granted)));
    assert_eq!(budget.request(B, 6, 0), Ok(Decision::Wait));
    budget.attach(Process(3), 2);
    let actions: Vec<_> = std::iter::from_fn(|| budget.poll(0)).collect();
    assert!(actions.contains(&BudgetAction::EvictOwn { process: B, pages: 6 }), "{actions:?}");
    assert_eq!(budget.request(Process(3), 3, 0), Ok(Decision::Wait));
    while budget.poll(100).is_some() {}
    assert_eq!(budget.granted(Process(3)), 3);
}

#[test]
fn what_cannot_be_served_is_refused() {
    let mut budget = two(10);
    assert_eq!(budget.request(A, 6, 0), Err(BudgetError::TooMuch { pages: 6, share: 5 }));
    assert_eq!(budget.request(Process(9), 1, 0), Err(BudgetError::NotAttached(9)));
}

proptest! {
    #[test]
    fn no_page_is_granted_twice_and_everyone_waiting_is_served(
        steps in proptest::collection::vec((0..4u16, 1..4usize, any::<bool>()), 1..200),
    ) {
        let mut budget = Budget::new(16, 50);
        (0..4).for_each(|p| budget.attach(Process(p), 0));
        let (mut held, mut waiting, mut now) = ([0usize; 4], [0usize; 4], 0);
        for (p, pages, obeys) in steps {
            now += 10;
            let process = Process(p);
            let at = usize::from(p);
            if waiting[at] == 0 {
                match budget.request(process, pages, now).expect("attached and small") {
                    Decision::Granted => held[at] += pages,
                    Decision::Wait => waiting[at] = pages,
                    Decision::EvictOwn => prop_assert!(held[at] + pages > budget.share(process)),
                }
            }
            while let Some(action) = budget.poll(now) {
                match action {
                    BudgetAction::Ask { process, pages, deadline_us } => {
                        let at = usize::from(process.0);
                        prop_assert!(held[at] - pages >= budget.share(process) && deadline_us > now);
                        if obeys {
                            held[at] -= pages;
                            budget.released(process, pages, now);
                        }
                    }
                    BudgetAction::Grant { process, pages } => {
                        let at = usize::from(process.0);
                        prop_assert_eq!(std::mem::take(&mut waiting[at]), pages);
                        held[at] += pages;
                    }
                    BudgetAction::EvictOwn { .. } => prop_assert!(false, "shares have not changed"),
                    BudgetAction::Revoke { process, pages } => held[usize::from(process.0)] -= pages,
                }
            }
            prop_assert_eq!(held.iter().sum::<usize>() + budget.free(), 16);
        }
        now += 1000;
        while let Some(action) = budget.poll(now) {
            match action {
                BudgetAction::Grant { process, .. } => waiting[usize::from(process.0)] = 0,
                BudgetAction::Ask { .. } => now += 1000,
                BudgetAction::Revoke { .. } | BudgetAction::EvictOwn { .. } => (),
            }
        }
        prop_assert_eq!(waiting, [0; 4]);
    }
}
