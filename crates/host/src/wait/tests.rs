//! Waits on real clocks and real pipes.

use super::*;
use std::cell::Cell;
use std::sync::atomic::AtomicBool;

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
        waiter.poll_ns.store(if i % 2 == 0 { 0 } else { POLL_MAX_NS }, Ordering::Relaxed);
        waiter.wait(long(), ready, blocked).expect("the other thread wakes us");
        flag.fetch_add(1 << 32, Ordering::SeqCst);
    }
    thread.join().unwrap();
}

#[test]
fn sleeps_that_end_soon_bring_polling_back() {
    let waiter = Waiter::new();
    let polled = || waiter.poll_ns.load(Ordering::Relaxed);
    waiter.poll_ns.store(POLL_MIN_NS, Ordering::Relaxed);
    let wait = |asleep: Duration| {
        let woken = AtomicBool::new(false);
        let ready = || woken.load(Ordering::Relaxed).then_some(());
        let block = |_| {
            std::thread::sleep(asleep);
            woken.store(true, Ordering::Relaxed);
        };
        waiter.wait(long(), ready, block).expect("the sleep ends");
    };
    // On a busy machine some sleeps take longer than asked for, and some waits do not count;
    // others do.
    let until = |asleep, done: &dyn Fn() -> bool| {
        let limit = long();
        while !done() {
            assert!(limit.left(Nanos::monotonic()).is_some(), "{} ns of polling after sleeps of {asleep:?}", polled());
            wait(asleep);
        }
    };
    until(Duration::ZERO, &|| polled() == POLL_MAX_NS);
    until(Duration::from_millis(1), &|| polled() <= 2 * POLL_MIN_NS);
}

#[test]
fn long_yields_stop_yielding_unless_they_are_rare() {
    let yields = Yields::default();
    for _ in 0..100 {
        yields.took(3_000_000);
        (0..LONG_YIELD_SCORE).for_each(|_| yields.took(1_000));
    }
    assert!(yields.pay(), "one in many");
    (0..3).for_each(|_| yields.took(3_000_000));
    assert!(!yields.pay());
    (0..NO_YIELD_SLEEPS).for_each(|_| yields.slept());
    assert!(yields.pay(), "it is tried again");
    yields.took(3_000_000);
    assert!(!yields.pay(), "and one more is enough");
}

#[test]
fn who_lost_the_core_for_long_sleeps_at_once() {
    let waiter = Waiter::new();
    waiter.yields.suspended.store(NO_YIELD_SLEEPS, Ordering::Relaxed);
    let looks = Cell::new(0u32);
    let ready = || {
        looks.set(looks.get() + 1);
        None::<()>
    };
    let slept = Cell::new(0u32);
    let block = |_| {
        slept.set(slept.get() + 1);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(waiter.wait(Deadline::after(Duration::from_millis(5)), ready, block), Err(TimedOut));
    assert!(slept.get() > 0);
    assert_eq!(waiter.yields.suspended.load(Ordering::Relaxed), NO_YIELD_SLEEPS - 1, "counted down");
    assert_eq!(waiter.poll_ns.load(Ordering::Relaxed), POLL_MAX_NS, "it says nothing about polling");
}

#[test]
fn who_naps_looks_for_longer_now_and_then() {
    let waiter = Waiter::new();
    waiter.poll_ns.store(POLL_MIN_NS, Ordering::Relaxed);
    let (mut naps, mut longest_ns) = (0, 0);
    for _ in 0..200 {
        // Whatever else runs here: this is not about yields.
        waiter.yields.score.store(0, Ordering::Relaxed);
        waiter.yields.suspended.store(0, Ordering::Relaxed);
        // It comes after twice the time for which waits poll, and a nap hides when.
        let begun = std::time::Instant::now();
        let ready = || (begun.elapsed().as_nanos() as u64 > 2 * POLL_MAX_NS).then_some(());
        let block = |_| {
            naps += 1;
            waiter.napped();
            std::thread::sleep(Duration::from_micros(150));
        };
        waiter.wait(long(), ready, block).expect("it comes");
        longest_ns = longest_ns.max(waiter.poll_ns.load(Ordering::Relaxed));
    }
    assert!((1..200).contains(&naps), "some waits looked for as long as it took: {naps}");
    assert_eq!(longest_ns, POLL_MAX_NS, "and that was remembered");
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
