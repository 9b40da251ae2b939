//! Real page faults: in this process, and in processes that end by them.
//!
//! Invariant: what ends a process runs in a process of its own, which is this test program again
//! with one test and a word in its environment. What both ways promise is tested by one body.

mod windows;

use super::*;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::time::Instant;

const PAGE: u64 = PAGE_BYTES as u64;
/// Longest wait for another thread.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest life of a child.
const CHILD_SECONDS_MAX: u32 = 60;
/// Names the case that a child is to run.
const CASE: &str = "VMMC_TEST_FAULT_CASE";

/// The case that this process is to run, if it is such a child. One that hangs ends by SIGALRM.
fn case() -> Option<String> {
    let case = std::env::var(CASE).ok()?;
    // SAFETY: the call sets a timer of this process, and nothing else.
    unsafe { libc::alarm(CHILD_SECONDS_MAX) };
    Some(case)
}

/// Runs one test of this file alone in a process of its own, with a case.
fn child(test: &str, case: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "--test-threads=1", &format!("fault::tests::{test}")]);
    command.env(CASE, case).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn pair(pages: u64) -> (Reservation, Region) {
    (Reservation::new(pages * PAGE).unwrap(), Region::create(pages * PAGE).unwrap())
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT_MAX;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The ways that there are here.
fn ways() -> Vec<Way> {
    let best = Faults::get().unwrap().best_way();
    if best == Way::Signal {
        println!("SKIP windows: {:?}", Faults::get().unwrap().offers());
        return vec![Way::Signal];
    }
    vec![Way::Signal, best]
}

/// The way that a word names, for children.
fn way_of(word: &str) -> Way {
    if word == "signal" { Way::Signal } else { Faults::get().unwrap().best_way() }
}

fn word(way: Way) -> &'static str {
    if way == Way::Signal { "signal" } else { "window" }
}

/// Registers a range by a way; a window shows the same place of the memory.
fn register(
    way: Way,
    place: &Reservation,
    range: Range<u64>,
    memory: &Region,
    handler: impl FnMut(&Fault) -> Answer + Send + 'static,
) -> Result<Registration, FaultError> {
    register_within(way, place, range, memory, FAULT_ANSWER_TIME, handler)
}

fn register_within(
    way: Way,
    place: &Reservation,
    range: Range<u64>,
    memory: &Region,
    deadline: Duration,
    handler: impl FnMut(&Fault) -> Answer + Send + 'static,
) -> Result<Registration, FaultError> {
    let (faults, start) = (Faults::get().unwrap(), range.start);
    match way {
        Way::Signal => faults.register_within(place, range, deadline, handler),
        _ => faults.register_window_within(place, range, memory, start, deadline, handler),
    }
}

/// Fills what is missing for reading, and opens for writing what is written.
fn lazily(place: &Reservation, memory: &Region) -> impl FnMut(&Fault) -> Answer + Send + 'static {
    let (place, memory) = (place.clone(), memory.clone());
    move |fault| {
        let page = fault.page();
        let done = match fault.kind {
            Kind::Missing => place.fill(page, &memory, page, PAGE, Access::Read),
            Kind::Read => place.protect(page, PAGE, Access::Read),
            Kind::Write => place.protect(page, PAGE, Access::ReadWrite),
        };
        if done.is_ok() { Answer::Served } else { Answer::Refused }
    }
}

#[test]
fn a_reader_faults_a_page_in_and_a_writer_opens_it() {
    ways().into_iter().for_each(reader_and_writer);
}

fn reader_and_writer(way: Way) {
    let (place, memory) = pair(4);
    memory.write(2 * PAGE, b"at home!").unwrap();
    let (tell, told) = mpsc::channel();
    let mut serve = lazily(&place, &memory);
    let registration = register(way, &place, 0..4 * PAGE, &memory, move |fault| {
        tell.send(*fault).unwrap();
        serve(fault)
    });
    let registration = registration.unwrap();
    assert_eq!((registration.way(), registration.range()), (way, 0..4 * PAGE));
    let toucher = place.clone();
    let thread = std::thread::spawn(move || {
        let mut seen = [0; 8];
        toucher.read(2 * PAGE, &mut seen).unwrap();
        assert_eq!(&seen, b"at home!");
        assert_eq!(toucher.access(2 * PAGE), Some(Access::Read));
        toucher.write(2 * PAGE + 9, b"x").unwrap();
        // No fault any more.
        toucher.store(2 * PAGE + 16, 7).unwrap();
        toucher.protect(2 * PAGE, PAGE, Access::None).unwrap();
        assert_eq!(toucher.load(2 * PAGE + 16), Ok(7));
        // Protected again, from each of the rights.
        toucher.protect(2 * PAGE, PAGE, Access::ReadWrite).unwrap();
        toucher.store(2 * PAGE + 16, 8).unwrap();
        toucher.protect(2 * PAGE, PAGE, Access::Read).unwrap();
        assert_eq!(toucher.load(2 * PAGE + 16), Ok(8));
        toucher.store(2 * PAGE + 24, 9).unwrap();
        toucher.release(2 * PAGE, PAGE).unwrap();
        toucher.store(2 * PAGE + 32, 10).unwrap();
        // SAFETY: the call takes nothing.
        unsafe { libc::syscall(libc::SYS_gettid) as i32 }
    });
    let thread = thread.join().unwrap();
    let fault = |kind, byte, is_store| Fault { offset_bytes: 2 * PAGE + byte, kind, is_store, thread };
    let faults: Vec<Fault> = told.try_iter().collect();
    let kinds = [
        fault(Kind::Missing, 0, false),
        fault(Kind::Write, 9, true),
        fault(Kind::Read, 16, false),
        fault(Kind::Write, 24, true),
        fault(Kind::Missing, 32, true),
        fault(Kind::Write, 32, true),
    ];
    assert_eq!(faults, kinds);
    assert!(memory.equals(2 * PAGE + 9, b"x"));
    let word = |at| memory.word(2 * PAGE + at).unwrap().load(Ordering::Acquire);
    assert_eq!([16, 24, 32].map(word), [8, 9, 10]);
    assert_eq!(place.access(0), None);
}

#[test]
fn ranges_have_owners_of_their_own_and_one_each() {
    let ways = ways();
    for first in &ways {
        ways.iter().for_each(|second| owners(*first, *second));
    }
}

fn owners(way: Way, other: Way) {
    let (place, memory) = pair(8);
    let try_to = |way, range| register(way, &place, range, &memory, |_| Answer::Refused).unwrap_err();
    let calls: [Arc<AtomicU64>; 2] = Default::default();
    let counted = |at: usize| {
        let (count, mut serve) = (calls[at].clone(), lazily(&place, &memory));
        move |fault: &Fault| {
            count.fetch_add(1, Ordering::Relaxed);
            serve(fault)
        }
    };
    let first = register(way, &place, 0..4 * PAGE, &memory, counted(0)).unwrap();
    let second = register(other, &place, 4 * PAGE..8 * PAGE, &memory, counted(1)).unwrap();
    for range in [0..PAGE, 3 * PAGE..5 * PAGE, 7 * PAGE..8 * PAGE] {
        for third in [way, other] {
            let owned = FaultError::Owned { start: range.start, end: range.end };
            assert_eq!(try_to(third, range.clone()), owned);
        }
    }
    #[allow(clippy::reversed_empty_ranges)]
    for range in [0..0, 1..PAGE, 0..9 * PAGE, PAGE..0] {
        let refused = try_to(way, range);
        assert!(matches!(refused, FaultError::Range(ReservationError::Pages { .. })), "{refused}");
    }
    for page in [0, 3, 4, 5, 7] {
        place.load(page * PAGE).unwrap();
    }
    assert_eq!(calls.each_ref().map(|count| count.load(Ordering::Relaxed)), [2, 3]);
    // Who ends leaves room for another.
    drop(first);
    // Pages stay without a window, and with one they go.
    assert_eq!(place.access(0), (way == Way::Signal).then_some(Access::Read));
    place.release(0, PAGE).unwrap();
    let third = register(other, &place, 0..PAGE, &memory, counted(1)).unwrap();
    place.load(0).unwrap();
    place.protect(0, PAGE, Access::None).unwrap();
    place.load(0).unwrap();
    assert_eq!(calls[1].load(Ordering::Relaxed), 5);
    drop((second, third));
}

#[test]
fn threads_that_want_the_same_pages_all_get_them() {
    ways().into_iter().for_each(many_threads);
}

#[test]
fn who_is_served_without_a_page_asks_again() {
    for way in ways() {
        let (place, memory) = pair(1);
        let (mut asked, mut serve) = (0, lazily(&place, &memory));
        let _registration = register(way, &place, 0..PAGE, &memory, move |fault| {
            asked += 1;
            if asked % 4 == 0 { serve(fault) } else { Answer::Served }
        });
        assert_eq!((place.load(0), place.store(0, 1)), (Ok(0), Ok(())));
    }
}

fn many_threads(way: Way) {
    let (place, memory) = pair(256);
    (0..256).for_each(|page| memory.word(page * PAGE).unwrap().store(page + 1, Ordering::Release));
    let filled = Arc::new(AtomicU64::new(0));
    let (count, mut serve) = (filled.clone(), lazily(&place, &memory));
    let _registration = register(way, &place, 0..256 * PAGE, &memory, move |fault| {
        count.fetch_add(u64::from(fault.kind == Kind::Missing), Ordering::Relaxed);
        serve(fault)
    });
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let place = &place;
            scope.spawn(move || {
                for page in 0..256 {
                    assert_eq!(place.load(page * PAGE), Ok(page + 1));
                    place.store(page * PAGE + 8 + 8 * thread, page).unwrap();
                }
            });
        }
    });
    assert_eq!(filled.load(Ordering::Relaxed), 256, "each page is filled once");
    assert!(
        (0..256).all(|page| (1..9).all(|w| memory.word(page * PAGE + 8 * w).unwrap().load(Ordering::Acquire) == page))
    );
}

/// Loads a byte of page 0, where nothing ever is.
fn touch_nothing() {
    // SAFETY: there is no memory at this address, so the process ends, or its handler ends it.
    unsafe { std::ptr::with_exposed_provenance::<u8>(64).read_volatile() };
}

#[test]
fn foreign_faults_end_the_process_as_they_did() {
    let Some(case) = case() else {
        for case in ["touched", "executed", "default", "ignored", "sent"] {
            let output = child("foreign_faults_end_the_process_as_they_did", case);
            assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{case}: {}", said(&output));
        }
        // A fault cannot be ignored, what somebody sends can.
        let output = child("foreign_faults_end_the_process_as_they_did", "sent and ignored");
        assert_eq!(output.status.code(), Some(7), "{}", said(&output));
        return;
    };
    // In the others it is the handler of the standard library.
    if ["default", "ignored", "sent", "sent and ignored"].contains(&case.as_str()) {
        let former = if case.ends_with("ignored") { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: both are valid dispositions, in a process of this test alone.
        unsafe { libc::signal(libc::SIGSEGV, former) };
    }
    let (place, memory) = pair(1);
    let serve = lazily(&place, &memory);
    let _registration = Faults::get().unwrap().register(&place, 0..PAGE, serve).unwrap();
    assert_eq!(place.load(0), Ok(0));
    if case.starts_with("sent") {
        // SAFETY: sends a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGSEGV) };
        // Another thread may have been chosen for it.
        std::thread::sleep(Duration::from_secs(1));
    } else if case == "executed" {
        // SAFETY: the page has no right to be executed, so the process ends.
        let function: extern "C" fn() = unsafe { std::mem::transmute(place.as_ptr()) };
        function();
    } else {
        touch_nothing();
    }
    std::process::exit(7);
}

static HEARD: AtomicU64 = AtomicU64::new(0);

extern "C" fn informed(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: a handler with SA_SIGINFO gets both; the process is ended at once.
    unsafe {
        let is_right = signal == libc::SIGSEGV && (*info).si_addr() as usize == 64 && !context.is_null();
        libc::_exit(if is_right { 42 } else { 1 });
    }
}

extern "C" fn plain(signal: i32) {
    // The second time ends it.
    if HEARD.fetch_add(1, Ordering::SeqCst) == 1 || signal != libc::SIGSEGV {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(if signal == libc::SIGSEGV { 42 } else { 1 }) };
    }
}

#[test]
fn foreign_faults_reach_the_former_handler() {
    let Some(case) = case() else {
        for (case, code, signal) in
            [("informed", Some(42), None), ("plain", Some(42), None), ("once", None, Some(libc::SIGSEGV))]
        {
            let output = child("foreign_faults_reach_the_former_handler", case);
            assert_eq!((output.status.code(), output.status.signal()), (code, signal), "{case}: {}", said(&output));
        }
        return;
    };
    // SAFETY: all zeros are a valid value; the handlers take what their flags ask for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let (function, flags) = match case.as_str() {
            "informed" => (informed as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize, 4),
            "plain" => (plain as extern "C" fn(i32) as usize, 0),
            _ => (plain as extern "C" fn(i32) as usize, libc::SA_RESETHAND),
        };
        (action.sa_sigaction, action.sa_flags) = (function, flags);
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
    }
    let (place, memory) = pair(1);
    let serve = lazily(&place, &memory);
    let _registration = Faults::get().unwrap().register(&place, 0..PAGE, serve).unwrap();
    assert_eq!((place.load(0), HEARD.load(Ordering::SeqCst)), (Ok(0), 0));
    touch_nothing();
    std::process::exit(7);
}

#[test]
fn who_gets_no_answer_or_a_refusal_gets_its_signal() {
    let Some(case) = case() else {
        let cases = [
            ("late", "its owner has not answered in time"),
            ("late and second", "its owner has not answered in time"),
            ("refused", ""),
            ("refused store", ""),
            ("panic", "broken"),
            ("itself", "cannot wait for itself"),
        ];
        for (way, (case, words)) in ways().into_iter().flat_map(|way| cases.map(|case| (way, case))) {
            let case = format!("{} {case}", word(way));
            let started = Instant::now();
            let output = child("who_gets_no_answer_or_a_refusal_gets_its_signal", &case);
            assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{case}: {}", said(&output));
            assert!(said(&output).contains(words), "{case}: {}", said(&output));
            let waited = started.elapsed();
            assert!(waited < Duration::from_secs(20), "{case} took {waited:?}");
            assert!(!case.contains("late") || waited > Duration::from_millis(200), "{case} took {waited:?}");
        }
        return;
    };
    let (way, case) = case.split_once(' ').unwrap();
    let (way, case) = (way_of(way), case.to_string());
    let ((place, memory), (other, behind)) = (pair(2), pair(1));
    let (inner, is_store, is_second) = (other.clone(), case == "refused store", case == "late and second");
    let mut fill = lazily(&place, &memory);
    let answer = move |fault: &Fault| match case.as_str() {
        "late" | "late and second" => {
            std::thread::sleep(Duration::from_secs(100));
            Answer::Served
        }
        "refused store" if fault.kind == Kind::Missing => fill(fault),
        "refused" | "refused store" => Answer::Refused,
        "panic" => panic!("broken"),
        _ => {
            let _ = inner.load(0);
            Answer::Served
        }
    };
    // The deadline of one that waits behind a handler that hangs is its own.
    let (long, short) = (Duration::from_secs(100), Duration::from_millis(200));
    let deadline = if is_second { long } else { short };
    let _first = register_within(way, &place, 0..2 * PAGE, &memory, deadline, answer).unwrap();
    let _second = register_within(way, &other, 0..PAGE, &behind, short, |_| Answer::Served).unwrap();
    if is_second {
        let place = place.clone();
        std::thread::spawn(move || place.load(PAGE));
        std::thread::sleep(Duration::from_millis(50));
        let _ = other.load(0);
    }
    // Long enough for the thread that checks deadlines to rest.
    std::thread::sleep(Duration::from_millis(300));
    let _ = place.load(PAGE);
    if is_store {
        let _ = place.store(PAGE, 1);
    }
    std::process::exit(7);
}

#[test]
fn a_forked_child_is_told_and_does_not_hang() {
    let Some(case) = case() else {
        for way in ways() {
            let output = child("a_forked_child_is_told_and_does_not_hang", word(way));
            assert_eq!(output.status.code(), Some(0), "{}", said(&output));
            // Without a range by signal there is nobody to say it, and the child ends as surely.
            let is_told = said(&output).contains("a fork of the one that serves it");
            assert_eq!(is_told, way == Way::Signal, "{}", said(&output));
        }
        return;
    };
    let way = way_of(&case);
    let (place, memory) = pair(2);
    let faults = Faults::get().unwrap();
    let registration = register(way, &place, 0..2 * PAGE, &memory, lazily(&place, &memory)).unwrap();
    place.load(0).unwrap();
    // SAFETY: the child compares an id, and touches memory; it ends without running anything of the
    // parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_told = Faults::get().err() == Some(FaultError::Forked)
            && faults.register(&place, 0..PAGE, |_| Answer::Served).err() == Some(FaultError::Forked)
            && faults.register_window(&place, 0..PAGE, &memory, 0, |_| Answer::Served).err()
                == Some(FaultError::Forked);
        let is_whole = match way {
            // What was there is there, and what was not is an error.
            Way::Signal => place.load(0) == Ok(0),
            // Nothing is there, and nothing here changes the parent.
            _ => {
                let changes = [
                    place.fill(PAGE, &memory, PAGE, PAGE, Access::Read),
                    place.protect(0, PAGE, Access::None),
                    place.release(0, PAGE),
                ];
                changes.into_iter().all(|change| change == Err(ReservationError::Forked))
            }
        };
        if is_told && is_whole {
            let _ = place.load(if way == Way::Signal { PAGE } else { 0 });
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(1) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
    assert_eq!((place.access(0), place.access(PAGE)), (Some(Access::Read), None), "the child changed nothing");
    assert_eq!((place.load(0), place.load(PAGE)), (Ok(0), Ok(0)), "the parent goes on");
    drop(registration);
    std::process::exit(0);
}

#[test]
fn the_thread_ends_with_the_last_range_and_comes_again() {
    let Some(case) = case() else {
        for way in ways() {
            let output = child("the_thread_ends_with_the_last_range_and_comes_again", word(way));
            assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        }
        return;
    };
    let way = way_of(&case);
    let threads: &[&str] = if way == Way::Signal { &["vmmc-faults"] } else { &["vmmc-windows", "vmmc-deadlines"] };
    let there = || {
        let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| threads.contains(&name.trim())).count()
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let descriptors_before = descriptors();
    for _ in 0..3 {
        let (place, memory) = pair(2);
        let registration = register(way, &place, 0..2 * PAGE, &memory, lazily(&place, &memory)).unwrap();
        place.load(PAGE).unwrap();
        // A thread that has just been started has its name a moment later.
        until("the threads are there", || there() == threads.len());
        drop(registration);
        until("the threads are gone", || there() == 0);
        let users = if way == Way::Signal { 2 } else { 1 };
        assert_eq!(memory.users(), users, "the handler is gone, a filled range of the reservation is not");
        drop((place, memory));
        assert_eq!(descriptors(), descriptors_before);
    }
    std::process::exit(0);
}

#[test]
fn the_table_of_ranges_finds_refuses_and_forgets() {
    let ranges = Box::new(table::Ranges::new());
    let owned = |start: usize, end: usize| Owned { start, end, deadline_ns: start as u64, is_window: start == 20 };
    for at in 0..FAULT_RANGES_MAX {
        assert!(!ranges.overlaps(&owned(at * 10, at * 10 + 10)));
        assert!(ranges.add(at as u64 + 1, &owned(at * 10, at * 10 + 10)));
    }
    assert!(!ranges.add(9_999, &owned(1 << 20, 2 << 20)), "full");
    assert_eq!((ranges.find(0), ranges.find(25), ranges.find(29)), (Some((1, 0)), Some((3, 20)), Some((3, 20))));
    assert_eq!(ranges.find(FAULT_RANGES_MAX * 10), None);
    assert!(ranges.is_window(3) && !ranges.is_window(2) && !ranges.is_window(9_999));
    ranges.remove(3);
    assert!(!ranges.has(3) && ranges.find(25).is_none());
    assert!(!ranges.overlaps(&owned(20, 30)) && ranges.overlaps(&owned(19, 20)) && ranges.overlaps(&owned(29, 31)));
    assert!(ranges.add(500, &owned(22, 24)) && ranges.find(23) == Some((500, 22)) && ranges.find(24).is_none());
}

#[test]
fn a_request_is_answered_given_up_or_neither_but_never_both() {
    let requests = Box::new(table::Requests::new());
    let asked = |thread| table::Asked { range: 1, address: 4096, is_store: true, thread };
    // Answered in time.
    let request = requests.post(asked(1)).unwrap();
    let taken = requests.take().unwrap();
    assert_eq!((taken.asked(), request.await_answer(0)), (asked(1), None));
    requests.answer(taken, Answer::Refused);
    assert_eq!(request.await_answer(0), Some(Answer::Refused));
    // Left before, while and after it is looked at.
    assert!(requests.post(asked(2)).unwrap().give_up().is_none() && requests.take().is_none());
    let request = requests.post(asked(3)).unwrap();
    let taken = requests.take().unwrap();
    assert_eq!(request.give_up(), None);
    requests.answer(taken, Answer::Served);
    let request = requests.post(asked(4)).unwrap();
    requests.answer(requests.take().unwrap(), Answer::Served);
    assert_eq!(request.give_up(), Some(Answer::Served));
    // All of them are free again, and there are no more.
    let all: Vec<_> = (0..).map_while(|thread| requests.post(asked(thread))).collect();
    assert_eq!(all.len(), crate::limits::FAULTS_WAITING_MAX);
}

#[test]
fn what_userfaultfd_offers_can_be_had() {
    use descriptor::{Descriptor, Mode, feature};
    let offers = match Faults::get().unwrap().offers() {
        Ok(offers) => offers,
        Err(why) => {
            assert!(matches!(why, FaultError::NoUserfaultfd { .. }));
            println!("SKIP what userfaultfd offers: {why}");
            return;
        }
    };
    let (place, memory) = pair(4);
    place.fill(0, &memory, 0, PAGE, Access::ReadWrite).unwrap();
    let modes = [
        (offers.missing_shared, feature::MISSING_SHMEM, Mode::Missing),
        (offers.minor_shared, feature::MINOR_SHMEM, Mode::Minor),
        (offers.write_protect_shared, feature::WRITE_PROTECT_SHMEM, Mode::WriteProtect),
    ];
    for (is_offered, feature, mode) in modes {
        if !is_offered {
            println!("SKIP {mode:?} of shared memory: this kernel has no such mode");
            continue;
        }
        let descriptor = Descriptor::open(feature).unwrap();
        descriptor.register(place.address(), PAGE_BYTES, &[mode]).unwrap();
        // One descriptor a range.
        let other = Descriptor::open(feature).unwrap();
        assert_eq!(other.register(place.address(), PAGE_BYTES, &[mode]).unwrap_err().1, rustix::io::Errno::BUSY);
        descriptor.unregister(place.address(), PAGE_BYTES);
        other.register(place.address(), PAGE_BYTES, &[mode]).unwrap();
        assert_eq!(other.zero(0, 0), Err(rustix::io::Errno::INVAL), "no change is under way");
    }
    // A kernel that lacks a feature refuses it, so what is not offered is not had.
    assert!(Descriptor::open(1 << 63).is_err());
}
