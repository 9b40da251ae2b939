//! Cancellation of threads: our own sleeps end when their thread is cancelled, as the C library's
//! do.
//!
//! Invariant: a thread acts on a cancellation in the hook that the program called, where nothing of
//! ours is under way; a call that sleeps returns there first. What the C library's own calls do
//! below us (a poll, a kernel receive) unwinds through our frames, which is why hooks and real
//! functions may unwind. In programs that cancel no thread a call that may sleep pays for one load.
//! Source: pthreads(7), "cancellation points".

use crate::errno;
use crate::limits::CANCELLED_MAX;
use crate::table::CONNECTIONS;
use libc::pthread_t;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use vmmc_sockets::Connection;

/// Where the next cancelled thread is put.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// How often a thread of this process was cancelled, counted once it has been put there.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Threads that were cancelled and may not know it yet, 0 for none. The number of a thread that has
/// ended may be there until another one of that number checks.
static CANCELLED: [AtomicU64; CANCELLED_MAX] = [const { AtomicU64::new(0) }; CANCELLED_MAX];

thread_local! {
    /// The count when this thread checked last.
    static KNOWN: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// A call that may sleep: the thread ends before it, or instead of sleeping in it, if it is
/// cancelled.
#[inline]
pub(crate) fn cancellable<T: Default + PartialOrd>(mut call: impl FnMut() -> T) -> T {
    loop {
        if COUNT.load(SeqCst) != 0 {
            check_cancelled();
        }
        let result = call();
        let failed = result < T::default();
        // A sleep that ended for the thread to check is reported as one that a signal interrupted.
        if !(failed && COUNT.load(SeqCst) != 0 && errno::current() == libc::EINTR && is_cancelled()) {
            return result;
        }
    }
}

#[cold]
fn check_cancelled() {
    let count = COUNT.load(SeqCst);
    if KNOWN.replace(count) != count {
        let own = own();
        CANCELLED.iter().filter(|one| one.load(SeqCst) == own).for_each(|one| one.store(0, SeqCst));
    }
    // SAFETY: no arguments; if it unwinds, no frame of ours from here to the program has anything
    // to clean up.
    unsafe { pthread_testcancel() };
}

fn own() -> pthread_t {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() }
}

/// Whether this thread was cancelled since its call began.
pub(crate) fn is_cancelled() -> bool {
    COUNT.load(SeqCst) != KNOWN.get() && CANCELLED.iter().any(|one| one.load(SeqCst) == own())
}

/// A thread was cancelled: threads that sleep in rings check whether they are the one.
pub(crate) fn asked(thread: pthread_t) {
    let at = NEXT.fetch_add(1, SeqCst) % CANCELLED_MAX;
    CANCELLED[at].store(thread, SeqCst);
    COUNT.fetch_add(1, SeqCst);
    CONNECTIONS.each().filter_map(|held| held.connection().map(Connection::wake_own)).count();
}
