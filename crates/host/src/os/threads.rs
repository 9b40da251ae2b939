//! Threads as the kernel knows them.
//!
//! Invariant: an id that is kept is forgotten in the child of a fork, whose thread has another one.

use rustix::io::Errno;
use std::cell::Cell;

/// The core that this thread runs on.
#[inline]
pub fn core() -> u32 {
    // SAFETY: no arguments, no memory.
    let core = unsafe { libc::sched_getcpu() };
    u32::try_from(core).unwrap_or(0)
}

thread_local! {
    static THREAD_ID: Cell<u32> = const { Cell::new(0) };
}

/// The kernel's id of this thread.
#[inline]
pub fn thread_id() -> u32 {
    let known = THREAD_ID.get();
    if known != 0 {
        return known;
    }
    let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    THREAD_ID.set(id);
    id
}

/// After a fork the child's thread has another id.
pub fn forget_thread_id() {
    THREAD_ID.set(0);
}

/// Whether a thread of this id exists.
pub fn thread_lives(id: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody; the call touches no memory.
    let got = unsafe { libc::syscall(libc::SYS_tkill, id as libc::c_int, 0) };
    got == 0 || Errno::from_io_error(&std::io::Error::last_os_error()) != Some(Errno::SRCH)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::{Deadline, Nanos};
    use std::time::Duration;

    #[test]
    fn ids_of_threads_are_theirs() {
        let other = std::thread::spawn(thread_id).join().unwrap();
        assert_ne!(other, thread_id());
        assert!(thread_lives(thread_id()));
        // A join returns a moment before the kernel has let go of the thread.
        let deadline = Deadline::after(Duration::from_secs(30));
        while thread_lives(other) {
            assert!(deadline.left(Nanos::monotonic()).is_some(), "thread {other} has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
