//! A fork while another thread unmaps pinned pages, for which a fork handler stands here: it runs
//! between the library's look at what is pinned and the fork. A process of its own, for handlers
//! are for ever, and this one must be there before the library's.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::sync::atomic::{AtomicPtr, Ordering};
use vmmc_host::pin::PinSpace;
use vmmc_host::region::PAGE_BYTES;

const PAGES: usize = 4;
const BYTES: usize = PAGES * PAGE_BYTES;

/// Pages that go away during the next fork.
static LEAVING: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Pages in whose place other memory comes during the next fork.
static REPLACED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Runs after the library's, which was registered later.
extern "C" fn prepare() {
    let take = |which: &AtomicPtr<u8>| which.swap(std::ptr::null_mut(), Ordering::SeqCst) as usize;
    let (leaving, replaced) = (take(&LEAVING), take(&REPLACED));
    let others = std::thread::spawn(move || {
        if leaving != 0 {
            // SAFETY: the test does not use these pages after the fork.
            unsafe { munmap(leaving as *mut _, BYTES) }.expect("it is mapped");
        }
        if replaced != 0 {
            fill(map(replaced as *mut u8, MapFlags::FIXED), 9);
        }
    });
    others.join().expect("it maps and unmaps");
}

/// `at` with [`MapFlags::FIXED`] is memory that nobody else uses.
fn map(at: *mut u8, flags: MapFlags) -> *mut u8 {
    // SAFETY: a fresh mapping, which replaces nothing but what the caller names.
    let mapped =
        unsafe { mmap_anonymous(at.cast(), BYTES, ProtFlags::READ | ProtFlags::WRITE, flags | MapFlags::PRIVATE) };
    mapped.expect("a few pages").cast()
}

fn fill(at: *mut u8, byte: u8) {
    // SAFETY: `at` is mapped for as many bytes, and this thread alone uses them.
    unsafe { std::slice::from_raw_parts_mut(at, BYTES) }.fill(byte);
}

/// What a child sees of these pages, and its exit status.
fn seen_by_a_child(at: *const u8) -> i32 {
    // SAFETY: the child reads one byte and ends.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: the caller names memory that a child has.
            let byte = unsafe { at.read_volatile() };
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(byte)) };
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child that was just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child was killed by signal {}", libc::WTERMSIG(status));
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn pages_that_another_thread_unmaps_during_a_fork_harm_neither_child_nor_parent() {
    // SAFETY: the function lives as long as the program and takes nothing.
    assert_eq!(unsafe { libc::pthread_atfork(Some(prepare), None, None) }, 0);
    let space = match PinSpace::of_process() {
        Ok(space) => space,
        Err(why) => return println!("SKIP demand pinning: {why}"),
    };
    let [staying, leaving, replaced] = [5, 6, 7].map(|byte| {
        let pages = map(std::ptr::null_mut(), MapFlags::empty());
        fill(pages, byte);
        // SAFETY: mapped for as many bytes; nobody writes to them now.
        space.take(unsafe { std::slice::from_raw_parts(pages, BYTES) }).expect("private pages");
        pages
    });
    LEAVING.store(leaving, Ordering::SeqCst);
    assert_eq!(seen_by_a_child(staying), 5, "the child has a copy of what stayed");
    assert!(LEAVING.load(Ordering::SeqCst).is_null(), "the handler ran");
    REPLACED.store(replaced, Ordering::SeqCst);
    assert_eq!(seen_by_a_child(replaced), 9, "the child has what was there at the fork");
    assert!(REPLACED.load(Ordering::SeqCst).is_null(), "the handler ran");
    assert_eq!(seen_by_a_child(replaced), 9, "and the next one too, as of all memory that is not pinned");
    assert_eq!(seen_by_a_child(staying), 5);
    assert_eq!(space.pages(), PAGES, "what has gone is not taken any more");
}
