//! poll and select.
//!
//! Invariant: with no upgraded connection among the descriptors they are the C library's calls.

use crate::real;
use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

/// poll.
///
/// # Safety
/// As poll.
pub(crate) unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { real::poll(fds, count, timeout) }
}

/// ppoll.
///
/// # Safety
/// As ppoll.
pub(crate) unsafe fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { real::ppoll(fds, count, timeout, mask) }
}

/// select.
///
/// # Safety
/// As select.
pub(crate) unsafe fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { real::select(n, r, w, e, timeout) }
}

/// pselect.
///
/// # Safety
/// As pselect.
pub(crate) unsafe fn pselect(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { real::pselect(n, r, w, e, timeout, mask) }
}
