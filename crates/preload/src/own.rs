//! Descriptors of our own in somebody else's process.
//!
//! Invariant: they lie at the top of the range that the program may use, so that it gets the numbers it would get without us, and it can neither close nor
//! replace them.

use crate::real;
use crate::table::{self, Entry};
use libc::c_int;

/// The program wants this number, which is ours: nothing of ours can move while others use it, so the number is given up.
pub(crate) fn make_way(fd: c_int) {
    if table::entry(fd) == Entry::Own {
        table::take(fd);
    }
}

/// Moves a descriptor to where the program does not see it, and protects it.
#[allow(dead_code)]
pub(crate) fn keep(fd: c_int) -> c_int {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    let top = if known { limit.rlim_cur.min(1 << 20) as c_int } else { 1024 };
    for room in [64, 256] {
        // SAFETY: numbers only.
        let moved = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, (top - room).max(3) as usize) };
        if moved >= 0 {
            // SAFETY: the number is ours; nobody else knows it.
            unsafe { real::close(fd) };
            table::put(moved, Entry::Own);
            return moved;
        }
    }
    table::put(fd, Entry::Own);
    fd
}
