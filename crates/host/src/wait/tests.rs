//! Waits on real clocks and real pipes.

use super::*;
use crate::limits::{POLL_MAX_NS, STEPS_A_CLOCK, STEPS_BESIDE_OTHERS, TIMED_SLEEPS};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

fn long() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let waiter = Waiter::new();
    let (receiver, _sender) = wake_pair().unwrap();
    let flag = AtomicU64::new(0);
    let deadline = Deadline::after(Duration::from_millis(20));
    let got: Result<(), _> = waiter.wait(deadline, || None, |d| receiver.sleep(&[&flag], d, || false));
    assert_eq!(got, Err(TimedOut));
    assert_eq!(flag.load(Ordering::SeqCst), 0);
}

#[test]
fn an_interrupted_wait_ends_before_its_deadline() {
    let (receiver, _sender) = wake_pair().unwrap();
    let flag = AtomicU64::new(0);
    let wait = || Waiter::new().wait(long(), || None::<()>, |d| receiver.sleep(&[&flag], d, || false));
    let patience = Patience { interrupted: Some(|| true), ..Patience::default() };
    let start = Nanos::monotonic();
    assert_eq!(with_patience(patience, wait), Err(TimedOut));
    assert!(Nanos::monotonic().since(start) < Duration::from_secs(20), "long before its deadline");
    assert!(super::patience().interrupted.is_none(), "what was before holds again");
}

#[test]
fn no_wake_up_is_lost() {
    let waiter = Waiter::new();
    let (receiver, sender) = wake_pair().unwrap();
    let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let theirs = shared.clone();
    let thread = std::thread::spawn(move || {
        for i in 1..=2000u64 {
            while theirs.1.load(Ordering::SeqCst) >> 32 != i - 1 {
                std::thread::yield_now();
            }
            theirs.0.store(i, Ordering::SeqCst);
            sender.wake_if(&theirs.1);
        }
    });
    let flag = &shared.1;
    for i in 1..=2000u64 {
        let ready = || (shared.0.load(Ordering::SeqCst) >= i).then_some(());
        let blocked = |d| receiver.sleep(&[flag], d, || ready().is_some());
        waiter.backoff.poll_ns.store(if i % 2 == 0 { 0 } else { POLL_MAX_NS }, Ordering::Relaxed);
        waiter.wait(long(), ready, blocked).expect("the other thread wakes us");
        flag.fetch_add(1 << 32, Ordering::SeqCst);
    }
    thread.join().unwrap();
}

#[test]
fn a_timed_wait_sleeps_no_longer_than_it_was_told() {
    let waiter = Waiter::new();
    let mut slept = Vec::new();
    let block = |until: Deadline| {
        let left = until.left(Nanos::monotonic()).unwrap_or_default();
        slept.push(left);
        std::thread::sleep(left);
    };
    let ended = waiter.wait_with(Deadline::after(Duration::from_millis(20)), Some(TIMED_SLEEPS), || None::<()>, block);
    assert_eq!(ended, Err(TimedOut));
    assert!(slept.len() >= 2, "{slept:?}");
    assert!(slept[0] <= Duration::from_micros(50) && slept.iter().all(|one| *one <= Duration::from_millis(1)));
}

#[test]
fn an_interrupted_timed_wait_goes_on_with_its_sleeps() {
    let slept = Cell::new(0);
    let wait = || {
        let block = |until: Deadline| {
            slept.set(slept.get() + 1);
            std::thread::sleep(until.left(Nanos::monotonic()).unwrap_or_default());
        };
        Waiter::new().wait_with(Deadline::after(4 * INTERRUPT_SLICE), Some(TIMED_SLEEPS), || None::<()>, block)
    };
    let patience = Patience { interrupted: Some(|| false), ..Patience::default() };
    assert_eq!(with_patience(patience, wait), Err(TimedOut));
    // Five sleeps are shorter than a millisecond, and the last one of each of four slices.
    assert!(slept.get() <= 4 * INTERRUPT_SLICE.as_millis() + 5 + 4, "{}", slept.get());
}

struct Countdown(AtomicU64, AtomicBool);

impl Stepper for Countdown {
    fn now(&self) -> Nanos {
        Nanos(1_000_000 * (100 - self.0.load(Ordering::Relaxed)))
    }
    fn step(&self) -> bool {
        false
    }
    fn park(&self, _until: Nanos) {
        self.1.store(true, Ordering::Relaxed);
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_stepped_wait_parks_on_the_steppers_clock() {
    let stepper = Arc::new(Countdown(AtomicU64::new(100), AtomicBool::new(false)));
    let waiter = Waiter::stepping(stepper.clone());
    let deadline = waiter.deadline(Duration::from_millis(5));
    // The clock of this stepper only moves when parked, so the wait has to look idle for long
    // enough first: make it so at once.
    stepper.0.fetch_sub(1, Ordering::Relaxed);
    let mut looks = 0;
    let got = waiter.wait(
        deadline,
        || {
            looks += 1;
            if looks % 3 == 0 {
                stepper.0.fetch_sub(1, Ordering::Relaxed);
            }
            None::<()>
        },
        |_| {},
    );
    assert_eq!(got, Err(TimedOut));
    assert!(looks > 3);
}

/// A node that tells its threads of each other, and notes what they do.
#[derive(Default)]
struct Counted {
    polling: AtomicU32,
    /// When each turn began, and its steps, as far as they found nothing.
    turns: Mutex<Vec<(Nanos, u32)>>,
    works: AtomicBool,
    parked: AtomicU32,
}

impl Counted {
    /// Beside so many others.
    fn beside(others: u32) -> Arc<Counted> {
        Arc::new(Counted { polling: AtomicU32::new(others), ..Counted::default() })
    }
    fn turns(&self) -> Vec<u32> {
        self.turns.lock().unwrap().iter().map(|(_, steps)| *steps).collect()
    }
    /// It looks once between two sleeps: so it was the last five times.
    fn rests(&self) -> bool {
        let turns = self.turns.lock().unwrap();
        let last = &turns[turns.len().saturating_sub(6)..];
        let is_sleep = |two: &[(Nanos, u32)]| two[1].0.since(two[0].0) >= Duration::from_micros(50);
        last.len() == 6 && last.windows(2).all(is_sleep)
    }
    fn has_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed) > 0
    }
}

impl Stepper for Counted {
    fn now(&self) -> Nanos {
        Nanos::monotonic()
    }
    fn step(&self) -> bool {
        self.turns.lock().unwrap().push((self.now(), 1));
        self.works.load(Ordering::Relaxed)
    }
    fn step_again(&self, times: u32) -> bool {
        self.turns.lock().unwrap().last_mut().expect("a step comes first").1 += times;
        false
    }
    fn park(&self, until: Nanos) {
        self.parked.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(until.since(self.now()).min(Duration::from_millis(1)));
    }
    fn polling_threads(&self) -> Option<&AtomicU32> {
        Some(&self.polling)
    }
}

/// Waits in vain for a few milliseconds.
fn wait_in_vain(stepper: &Arc<Counted>) {
    let waiter = Waiter::stepping(stepper.clone());
    let ended = waiter.wait(Deadline::after(Duration::from_millis(5)), || None::<()>, |_| unreachable!("it parks"));
    assert_eq!(ended, Err(TimedOut));
}

/// Waits on it until that is so.
fn wait_until(stepper: &Arc<Counted>, is_so: fn(&Counted) -> bool) {
    let ready = || is_so(stepper).then_some(());
    assert_eq!(Waiter::stepping(stepper.clone()).wait(long(), ready, |_| unreachable!("it parks")), Ok(()));
}

#[test]
fn a_thread_that_polls_a_node_alone_takes_long_turns_and_parks() {
    let stepper = Counted::beside(0);
    assert_eq!(Waiter::stepping(stepper.clone()).poll_quickly(long(), || None::<()>), None);
    assert_eq!(stepper.turns(), [STEPS_A_CLOCK; 3]);
    wait_until(&stepper, Counted::has_parked);
    // The last turn found that it had parked after its first step.
    let turns = stepper.turns();
    assert!(turns[..turns.len() - 1].iter().all(|steps| *steps == STEPS_A_CLOCK), "{turns:?}");
}

#[test]
fn a_thread_that_polls_a_node_beside_others_takes_short_turns_and_sleeps_by_time() {
    let stepper = Counted::beside(1);
    stepper.works.store(true, Ordering::Relaxed);
    assert_eq!(Waiter::stepping(stepper.clone()).poll_quickly(long(), || None::<()>), None);
    assert_eq!(stepper.turns(), []);
    // Though there is work all the time.
    wait_until(&stepper, Counted::rests);
    stepper.works.store(false, Ordering::Relaxed);
    stepper.turns.lock().unwrap().clear();
    wait_until(&stepper, Counted::rests);
    let turns = stepper.turns();
    assert!(turns[..turns.len() - 1].iter().all(|steps| *steps == STEPS_BESIDE_OTHERS), "{turns:?}");
    assert!(!stepper.has_parked(), "they step the node");
    // As soon as it is alone it parks.
    stepper.polling.store(0, Ordering::Relaxed);
    wait_until(&stepper, Counted::has_parked);
}

#[test]
fn a_wait_on_a_node_that_always_has_work_ends_at_its_deadline() {
    let stepper = Counted::beside(0);
    stepper.works.store(true, Ordering::Relaxed);
    wait_in_vain(&stepper);
    assert!(!stepper.has_parked());
}

#[test]
fn what_the_step_of_another_thread_has_brought_needs_no_step() {
    let stepper = Counted::beside(1);
    let mut looks = 0;
    let ready = || {
        looks += 1;
        (looks == 2).then_some(())
    };
    assert_eq!(Waiter::stepping(stepper.clone()).wait(long(), ready, |_| {}), Ok(()));
    assert_eq!(stepper.turns(), []);
}

#[test]
fn a_thread_counts_among_those_that_poll_a_node_while_it_polls() {
    let stepper = Counted::beside(0);
    let polling = || stepper.polling.load(Ordering::Relaxed);
    let waiter = Waiter::stepping(stepper.clone());
    let mut seen = Vec::new();
    let ready = || {
        seen.push(polling());
        (stepper.parked.load(Ordering::Relaxed) > 0).then_some(())
    };
    assert_eq!(waiter.wait(long(), ready, |_| {}), Ok(()));
    // Before it begins, while it polls, and when it has parked.
    assert_eq!((seen[0], seen[1], *seen.last().unwrap()), (0, 1, 0));
    wait_in_vain(&stepper);
    assert_eq!(polling(), 0, "a wait has ended at its deadline");
    let panics = || -> Option<()> { if polling() == 1 { panic!("a look that fails") } else { None } };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waiter.poll_quickly(long(), panics))).unwrap_err();
    assert_eq!(polling(), 0, "a look has failed");
}

#[test]
fn a_time_that_deadlines_are_counted_from_is_never_early_and_little_late() {
    let waiter = Waiter::new();
    for before in [COARSE_FROM / 10, COARSE_FROM, 60 * COARSE_FROM] {
        for _ in 0..1_000 {
            let (at, from) = (waiter.now(), waiter.about_now(before));
            assert!(from >= at && from.since(waiter.now()) <= COARSE_TICK_MAX.min(before / 100), "{before:?}");
        }
    }
    let stepper = Arc::new(Countdown(AtomicU64::new(100), AtomicBool::new(false)));
    assert_eq!(Waiter::stepping(stepper.clone()).about_now(COARSE_FROM), stepper.now());
}
