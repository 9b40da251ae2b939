//! What windows alone do: one mapping, memory that the region gets when it is needed, system calls
//! that wait, and an end that wakes the waiting threads.
//!
//! Invariant: a machine without windows skips each of these, and says why.

use super::*;
use crate::limits::FAULTS_WAITING_MAX;
use crate::pin::{PinError, PinSpace};
use crate::reservation::tests::mappings;
use std::sync::atomic::AtomicBool;

/// A process-wide answer to whether windows can be opened; says so if not.
fn is_skipped() -> bool {
    ways().len() == 1
}

fn faults() -> Faults {
    Faults::get().unwrap()
}

#[test]
fn pages_of_the_region_are_shown_whether_it_has_them_or_not() {
    if is_skipped() {
        return;
    }
    let place = Reservation::new(8 * PAGE).unwrap();
    // Of eight pages the region has memory for two.
    let memory = Region::create_in_part(8 * PAGE, 2 * PAGE).unwrap();
    memory.write(PAGE, b"there").unwrap();
    let _window = register(ways()[1], &place, 0..8 * PAGE, &memory, lazily(&place, &memory)).unwrap();
    let mut seen = [0; 5];
    place.read(PAGE, &mut seen).unwrap();
    assert_eq!(&seen, b"there");
    assert_eq!(memory.occupied_bytes(), 2 * PAGE);
    assert_eq!(place.load(5 * PAGE), Ok(0));
    assert_eq!(memory.occupied_bytes(), 3 * PAGE);
    place.store(6 * PAGE, 6).unwrap();
    assert_eq!(memory.word(6 * PAGE).unwrap().load(Ordering::Acquire), 6);
    // A range over pages with memory, pages without, and pages that are shown already.
    place.fill(0, &memory, 0, 8 * PAGE, Access::ReadWrite).unwrap();
    assert_eq!(memory.occupied_bytes(), 8 * PAGE);
    assert_eq!(place.load(6 * PAGE), Ok(6));
    place.store(7 * PAGE, 7).unwrap();
    // A hole in the region is zeros in its views, and nobody is asked.
    memory.release(6 * PAGE, 2 * PAGE);
    assert_eq!((place.load(6 * PAGE), place.access(6 * PAGE)), (Ok(0), Some(Access::ReadWrite)));
    place.store(7 * PAGE, 8).unwrap();
    assert_eq!(memory.word(7 * PAGE).unwrap().load(Ordering::Acquire), 8);
}

#[test]
fn a_window_shows_its_part_of_a_region_and_nothing_else() {
    if is_skipped() {
        return;
    }
    let (place, memory) = (Reservation::new(8 * PAGE).unwrap(), Region::create(3 * PAGE + 100).unwrap());
    let other = Region::create(8 * PAGE).unwrap();
    memory.write(2 * PAGE, b"at the end").unwrap();
    let window = faults().register_window(&place, 4 * PAGE..6 * PAGE, &memory, 2 * PAGE, |_| Answer::Refused).unwrap();
    assert!(matches!(window.way(), Way::Userfault { .. }));
    assert_eq!((place.ranges(), place.access(4 * PAGE), place.behind(4 * PAGE).is_none()), (1, None, true));
    place.fill(4 * PAGE, &memory, 2 * PAGE, 2 * PAGE, Access::Read).unwrap();
    let mut seen = [0; 10];
    place.read(4 * PAGE, &mut seen).unwrap();
    assert_eq!(&seen, b"at the end");
    let behind = place.behind(4 * PAGE + 7).unwrap();
    assert_eq!((behind.offset, behind.len), (2 * PAGE + 7, 2 * PAGE - 7));
    place.protect(5 * PAGE, PAGE, Access::None).unwrap();
    assert_eq!(place.behind(4 * PAGE + 7).unwrap().len, PAGE - 7);
    place.release(5 * PAGE, PAGE).unwrap();
    assert_eq!(place.protect(4 * PAGE, 2 * PAGE, Access::Read), Err(ReservationError::NoMemory { offset: 5 * PAGE }));
    // Memory of others, or at another place.
    for (region, at) in [(&other, 2 * PAGE), (&memory, 0)] {
        let refused = place.fill(4 * PAGE, region, at, PAGE, Access::Read);
        assert_eq!(refused, Err(ReservationError::OtherMemory { offset: 4 * PAGE }));
    }
    // Over its edges.
    for (at, pages) in [(3, 2), (5, 2), (3, 4)] {
        let edge = Err(ReservationError::Edge { offset: at * PAGE, len: pages * PAGE });
        assert_eq!(place.fill(at * PAGE, &other, 0, pages * PAGE, Access::Read), edge);
        assert_eq!(place.protect(at * PAGE, pages * PAGE, Access::Read), edge);
        assert_eq!(place.release(at * PAGE, pages * PAGE), edge);
    }
    assert_eq!(place.access(4 * PAGE), Some(Access::Read));
    // Beside it.
    place.fill(3 * PAGE, &other, 0, PAGE, Access::ReadWrite).unwrap();
    place.fill(6 * PAGE, &other, 0, PAGE, Access::ReadWrite).unwrap();
    assert_eq!((place.load(3 * PAGE), place.ranges()), (Ok(0), 3));
    drop(window);
    assert_eq!((place.access(4 * PAGE), place.ranges(), mappings(&place)), (None, 2, 5));
    place.fill(3 * PAGE, &other, 0, 4 * PAGE, Access::ReadWrite).unwrap();
}

#[test]
fn a_window_opens_on_memory_that_is_written_here_and_where_nothing_is() {
    if is_skipped() {
        return;
    }
    let (place, memory) = pair(4);
    place.fill(2 * PAGE, &memory, 0, PAGE, Access::Read).unwrap();
    let open = |range, region: &Region, at| faults().register_window(&place, range, region, at, |_| Answer::Refused);
    let refused = open(PAGE..4 * PAGE, &memory, 0).unwrap_err();
    assert_eq!(refused, FaultError::Range(ReservationError::Filled { offset: 2 * PAGE }));
    assert_eq!(place.load(2 * PAGE), Ok(0));
    for at in [1, PAGE, 4 * PAGE] {
        let refused = open(0..PAGE * 2, &Region::create(2 * PAGE).unwrap(), at).unwrap_err();
        assert!(matches!(refused, FaultError::Range(ReservationError::RegionPages { .. })), "{refused}");
    }
    let path = std::env::temp_dir().join(format!("vmmc-window-{}", std::process::id()));
    let unfit = [
        Region::map(memory.share_read_only().unwrap(), 4 * PAGE, crate::Protection::ReadOnly).unwrap(),
        Region::create_for_readers(4 * PAGE).unwrap(),
        Region::create_in_file(&path, 4 * PAGE).unwrap(),
    ];
    std::fs::remove_file(path).unwrap();
    for (region, is_file) in unfit.iter().zip([false, false, true]) {
        match open(0..2 * PAGE, region, 0) {
            // The folder is one in memory.
            Ok(_) if is_file => {}
            refused => assert!(matches!(refused, Err(FaultError::Unfit { .. })), "{refused:?}"),
        }
    }
    // Nothing of this is left behind.
    drop(open(0..2 * PAGE, &memory, 0).unwrap());
}

#[test]
fn alternating_pages_are_one_mapping() {
    if is_skipped() {
        return;
    }
    const PAGES: u64 = 20_000;
    let (place, memory) = pair(PAGES);
    let _window = register(ways()[1], &place, 0..PAGES * PAGE, &memory, lazily(&place, &memory)).unwrap();
    for page in 0..PAGES {
        match page % 4 {
            0 => place.fill(page * PAGE, &memory, page * PAGE, PAGE, Access::Read).unwrap(),
            1 => place.store(page * PAGE, page).unwrap(),
            2 => place.fill(page * PAGE, &memory, page * PAGE, PAGE, Access::None).unwrap(),
            _ => {}
        }
    }
    assert_eq!((mappings(&place), place.ranges()), (1, 1));
    let rights = [Some(Access::Read), Some(Access::ReadWrite), Some(Access::None), None];
    for page in (0..PAGES).rev() {
        assert_eq!(place.access(page * PAGE), rights[page as usize % 4]);
        let holds = if page % 4 == 1 { page } else { 0 };
        assert_eq!(place.load(page * PAGE), Ok(holds));
    }
    // All at once, from whatever each allowed.
    place.fill(0, &memory, 0, PAGES * PAGE, Access::Read).unwrap();
    place.protect(0, PAGES * PAGE, Access::ReadWrite).unwrap();
    place.protect(0, PAGES * PAGE, Access::None).unwrap();
    place.release(0, PAGES * PAGE).unwrap();
    assert_eq!((mappings(&place), place.access(0)), (1, None));
}

#[test]
fn what_is_protected_stays_as_it_is_until_its_owner_opens_it() {
    for way in ways() {
        let (place, memory) = pair(1);
        let (opened, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let (may, count, mut serve) = (opened.clone(), asked.clone(), lazily(&place, &memory));
        let registration = register(way, &place, 0..PAGE, &memory, move |fault| {
            count.fetch_add(1, Ordering::SeqCst);
            until("the page may be opened", || may.load(Ordering::SeqCst));
            serve(fault)
        });
        let (is_over, word) = (AtomicBool::new(false), memory.word(8).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut next = 1;
                    while !is_over.load(Ordering::Relaxed) {
                        place.store(8, next).unwrap();
                        next += 1;
                    }
                });
            }
            until("the page was opened", || place.access(0) == Some(Access::ReadWrite));
            for turn in 0..200 {
                opened.store(false, Ordering::SeqCst);
                let closed = [Access::Read, Access::None][turn % 2];
                let asked_before = asked.load(Ordering::SeqCst);
                place.protect(0, PAGE, closed).unwrap();
                let before = word.load(Ordering::SeqCst);
                until("a fault", || asked.load(Ordering::SeqCst) > asked_before);
                for _ in 0..50 {
                    assert_eq!(word.load(Ordering::SeqCst), before, "{way:?} {closed:?}");
                    std::hint::spin_loop();
                }
                opened.store(true, Ordering::SeqCst);
                until("the page is open", || place.access(0) == Some(Access::ReadWrite));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        drop(registration);
    }
}

/// Has the kernel read from a page: its error, if it does not.
fn written_to_a_pipe(place: &Reservation, offset: u64) -> Option<i32> {
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let from = place.as_ptr().wrapping_add(offset as usize);
    // SAFETY: the kernel reads 16 bytes of the reservation, or says that it cannot.
    let done = unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&writer), from.cast(), 16) };
    if done == 16 { None } else { std::io::Error::last_os_error().raw_os_error() }
}

#[test]
fn a_system_call_waits_where_the_kernel_lets_it() {
    if is_skipped() {
        return;
    }
    let Some(case) = case() else {
        for case in ["as we are", "as nobody"] {
            let output = child("windows::a_system_call_waits_where_the_kernel_lets_it", case);
            assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        }
        return;
    };
    // SAFETY: ends the rights of this process, which runs this test alone. Refused, it has none.
    if case == "as nobody" && unsafe { libc::setresuid(65_534, 65_534, 65_534) } != 0 {
        println!("SKIP a process without rights: this one cannot become one");
    }
    let (place, memory) = pair(2);
    let way = faults().best_way();
    let Way::Userfault { system_calls_wait } = way else { panic!("a user without rights has no windows") };
    let window = register(way, &place, 0..2 * PAGE, &memory, lazily(&place, &memory)).unwrap();
    assert_eq!(window.way(), way, "what is promised is what there is");
    let expected = (!system_calls_wait).then_some(libc::EFAULT);
    assert_eq!(written_to_a_pipe(&place, 0), expected, "{way:?}");
    // A page that is there is there for the kernel too.
    place.load(PAGE).unwrap();
    assert_eq!(written_to_a_pipe(&place, PAGE), None);
    std::process::exit(0);
}

#[test]
fn a_refused_page_is_closed_until_it_is_changed() {
    if is_skipped() {
        return;
    }
    if case().is_none() {
        let output = child("windows::a_refused_page_is_closed_until_it_is_changed", "alone");
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        return;
    }
    let (place, memory) = pair(3);
    let asked = Arc::new(AtomicU64::new(0));
    let (count, mut serve) = (asked.clone(), lazily(&place, &memory));
    let way = faults().best_way();
    let _window = register(way, &place, 0..3 * PAGE, &memory, move |fault| {
        count.fetch_add(1, Ordering::SeqCst);
        if fault.kind == Kind::Missing && fault.page() == 0 || fault.is_store { Answer::Refused } else { serve(fault) }
    });
    // Who touches it by a system call has an error instead of a signal.
    if way == (Way::Userfault { system_calls_wait: true }) {
        assert_eq!(written_to_a_pipe(&place, 0), Some(libc::EFAULT));
        assert_eq!(written_to_a_pipe(&place, 0), Some(libc::EFAULT));
        assert_eq!((asked.load(Ordering::SeqCst), mappings(&place)), (1, 2));
        place.fill(0, &memory, 0, PAGE, Access::Read).unwrap();
        assert_eq!((written_to_a_pipe(&place, 0), mappings(&place)), (None, 1));
        // A refused store leaves the readers alone.
        place.load(PAGE).unwrap();
        let from_kernel = |offset: u64| {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&writer, b"8 bytes.").unwrap();
            let to = place.as_ptr().wrapping_add(offset as usize);
            // SAFETY: the kernel writes 8 bytes of the reservation, or says that it cannot.
            unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&reader), to.cast(), 8) }
        };
        assert_eq!(from_kernel(PAGE), -1);
        assert_eq!((place.load(PAGE), mappings(&place)), (Ok(0), 3));
        place.protect(0, 3 * PAGE, Access::ReadWrite).unwrap_err();
        place.protect(0, 2 * PAGE, Access::ReadWrite).unwrap();
        assert_eq!((from_kernel(PAGE), mappings(&place)), (8, 1));
    } else {
        println!("SKIP refusals of system calls: {way:?}");
    }
    std::process::exit(0);
}

#[test]
fn who_waits_when_a_window_is_closed_gets_its_signal() {
    if is_skipped() {
        return;
    }
    if case().is_none() {
        let output = child("windows::who_waits_when_a_window_is_closed_gets_its_signal", "alone");
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{}", said(&output));
        assert!(!said(&output).contains("no answer"), "{}", said(&output));
        return;
    }
    let (place, memory) = pair(2);
    let (tell, told) = mpsc::channel();
    let window = register(faults().best_way(), &place, 0..2 * PAGE, &memory, move |_| {
        tell.send(()).unwrap();
        std::thread::sleep(Duration::from_secs(100));
        Answer::Served
    });
    std::thread::scope(|scope| {
        scope.spawn(|| place.load(0));
        told.recv().unwrap();
        // One is asked about, and one is behind it.
        scope.spawn(|| place.load(PAGE));
        std::thread::sleep(Duration::from_millis(50));
        drop(window);
        std::thread::sleep(WAIT_MAX);
        std::process::exit(7);
    });
}

#[test]
fn pages_that_the_kernel_takes_out_are_shown_again() {
    if is_skipped() {
        return;
    }
    let (place, memory) = pair(4);
    let asked = Arc::new(AtomicU64::new(0));
    let (count, mut serve) = (asked.clone(), lazily(&place, &memory));
    let _window = register(ways()[1], &place, 0..4 * PAGE, &memory, move |fault| {
        count.fetch_add(1, Ordering::SeqCst);
        serve(fault)
    });
    place.store(0, 5).unwrap();
    place.load(PAGE).unwrap();
    let before = asked.load(Ordering::SeqCst);
    for _ in 0..3 {
        // SAFETY: takes pages of a shared mapping out of the page table, and nothing else.
        let done = unsafe { libc::madvise(place.as_ptr().cast(), 4 * PAGE_BYTES, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
        assert_eq!((place.load(PAGE), place.load(0)), (Ok(0), Ok(5)));
        place.store(8, 6).unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), before, "nobody is asked what the table knows");
    place.store(PAGE, 7).unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), before + 1, "and what it allows is what there is");
}

#[test]
fn a_window_is_not_pinned_and_the_error_says_what_to_do() {
    if is_skipped() {
        return;
    }
    let (place, memory) = pair(2);
    let _window = register(ways()[1], &place, 0..2 * PAGE, &memory, lazily(&place, &memory)).unwrap();
    place.fill(0, &memory, 0, 2 * PAGE, Access::ReadWrite).unwrap();
    let space = match PinSpace::of_process() {
        Ok(space) => space,
        Err(why) => return println!("SKIP pins: {why}"),
    };
    // SAFETY: both pages are there with every right, and nobody stores to them.
    let bytes = unsafe { std::slice::from_raw_parts(place.as_ptr(), 2 * PAGE_BYTES) };
    let refused = space.take(bytes).err().unwrap();
    assert!(matches!(&refused, PinError::Unsuitable { what, .. } if what == "shared"), "{refused}");
    assert!(refused.to_string().contains("register"), "{refused}");
}

#[test]
fn more_threads_fault_than_the_queue_holds() {
    if is_skipped() {
        return;
    }
    const THREADS: u64 = FAULTS_WAITING_MAX as u64 + 40;
    let (place, memory) = pair(THREADS);
    let may = Arc::new(AtomicBool::new(false));
    let (opened, mut serve) = (may.clone(), lazily(&place, &memory));
    let _window = register(ways()[1], &place, 0..THREADS * PAGE, &memory, move |fault| {
        until("the pages may be filled", || opened.load(Ordering::SeqCst));
        serve(fault)
    });
    std::thread::scope(|scope| {
        for page in 0..THREADS {
            let place = &place;
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn_scoped(scope, move || place.load(page * PAGE))
                .unwrap();
        }
        std::thread::sleep(Duration::from_millis(200));
        may.store(true, Ordering::SeqCst);
    });
    assert!((0..THREADS).all(|page| place.access(page * PAGE) == Some(Access::Read)));
}
