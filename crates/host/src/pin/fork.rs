//! Fork: the child gets private copies of all pages that its parent had pinned, before `fork`
//! returns in either of them.
//!
//! Invariant: no page is shared between parent and child when `fork` returns, in whichever thread
//! and whatever was pinned. Pinned pages are not inherited at all by children that the C library
//! does not know of (a bare `clone`): such a child faults where it touches one, and the parent is
//! safe.
//!
//! ```text
//!  prepare: lock ; let the pages be inherited        parent: wait for the child's word ; not inherited again ; unlock
//!                                                     child: copy what is still there onto private pages ; say so ; forget all pins
//! ```

use super::mappings::own_shared_mappings;
use super::{PinSpace, State, spaces};
use crate::limits::FORK_COPY_TIME;
use crate::region::swap_pages;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::Advice;
use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;

/// What `prepare` leaves for the two others.
struct Forking {
    space: &'static PinSpace,
    state: MutexGuard<'static, State>,
    /// Byte ranges of the address space.
    runs: Vec<Range<usize>>,
    pipe: Option<(OwnedFd, OwnedFd)>,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

/// Asks the C library to call us at every fork. Once a process.
pub(super) fn register() -> bool {
    // SAFETY: the three functions live as long as the program and take nothing.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
}

extern "C" fn prepare() {
    let Some(space) = spaces() else { return };
    let mut state = space.lock();
    space.apply_changes(&mut state);
    let own = own_stack();
    let mut runs = state.runs();
    // A page of our own stack cannot be copied under our feet: it stays uninherited, and a child
    // that touches it faults.
    runs.retain(|run| own.end <= run.start || run.end <= own.start);
    runs.iter().for_each(|run| advise(run, Advice::LinuxDoFork));
    let pipe = if runs.is_empty() { None } else { rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok() };
    FORKING.with(|f| *f.borrow_mut() = Some(Forking { space, state, runs, pipe }));
}

extern "C" fn parent() {
    let Some(mut forking) = FORKING.with(|f| f.borrow_mut().take()) else { return };
    if let Some((read, write)) = forking.pipe {
        drop(write);
        // A child that is killed meanwhile closes its end.
        let time = Timespec { tv_sec: FORK_COPY_TIME.as_secs() as i64, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&read, PollFlags::IN)], Some(&time));
    }
    // Where another thread has unmapped pages meanwhile, others' memory may lie by now.
    forking.space.apply_changes(&mut forking.state);
    forking.state.runs().iter().for_each(|run| advise(run, Advice::LinuxDontFork));
}

extern "C" fn child() {
    let Some(mut forking) = FORKING.with(|f| f.borrow_mut().take()) else { return };
    make_private(&forking.runs);
    forking.state.forget_all();
    forking.space.end();
    if let Some((_, write)) = &forking.pipe {
        let _ = rustix::io::write(write, &[1]);
    }
}

/// Copies what of the runs still is what it was. Other threads of the parent may have unmapped
/// some, and mapped something else there, after `prepare` had looked and before the fork.
///
/// Allocates nothing: the allocator's memory may be pinned, and is the parent's until it is copied.
fn make_private(runs: &[Range<usize>]) {
    let mut left = runs;
    let known = own_shared_mappings(|own| for_each_common(&mut left, &own, copy));
    if known.is_err() {
        // No page may stay shared.
        left.iter().cloned().for_each(copy);
    }
}

fn copy(part: Range<usize>) {
    // SAFETY: the part is mapped and readable; this is the only thread, and the part is not on its
    // stack.
    if unsafe { swap_pages(part.start as *mut u8, part.len(), None) }.is_err() {
        eprintln!("vmmc: no memory to copy pinned pages into a forked child, which ends here");
        std::process::abort();
    }
}

/// What `own` has in common with the runs, which are in order and without overlaps. The runs that
/// end before it are dropped from the list: the next call's range lies above this one's.
fn for_each_common(runs: &mut &[Range<usize>], own: &Range<usize>, mut found: impl FnMut(Range<usize>)) {
    *runs = &runs[runs.partition_point(|run| run.end <= own.start)..];
    for run in runs.iter().take_while(|run| run.start < own.end) {
        found(run.start.max(own.start)..run.end.min(own.end));
    }
}

fn advise(run: &Range<usize>, advice: Advice) {
    // SAFETY: the advice changes what children inherit and no content.
    let _ = unsafe { rustix::mm::madvise(run.start as *mut _, run.len(), advice) };
}

/// Addresses of the calling thread's stack; nothing if it cannot be told.
fn own_stack() -> Range<usize> {
    // SAFETY: an all-zero attribute object is what pthread_getattr_np fills in; it is destroyed
    // once.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return 0..0;
        }
        let (mut base, mut len) = (std::ptr::null_mut(), 0);
        let known = libc::pthread_attr_getstack(&attributes, &mut base, &mut len) == 0;
        libc::pthread_attr_destroy(&mut attributes);
        if known { base as usize..base as usize + len } else { 0..0 }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::for_each_common;

    #[test]
    fn ranges_in_common_are_those_of_each_byte() {
        let some = [0..4, 6..8, 10..20, 30..31];
        let others = [2..7, 8..11, 12..13, 15..40];
        let bytes = |ranges: &[std::ops::Range<usize>]| ranges.iter().cloned().flatten().collect::<Vec<_>>();
        let [left, right] = [bytes(&some), bytes(&others)];
        let expected: Vec<usize> = left.into_iter().filter(|byte| right.contains(byte)).collect();
        let (mut runs, mut common) = (&some[..], Vec::new());
        others.iter().for_each(|own| for_each_common(&mut runs, own, |part| common.push(part)));
        assert_eq!(bytes(&common), expected);
        assert!(common.iter().all(|part| !part.is_empty()), "{common:?}");
    }
}
