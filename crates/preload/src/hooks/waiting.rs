//! Hooks of poll and select.
//!
//! Invariant: with no upgraded connection among the descriptors they are the C library's calls.

use super::hook;
use crate::wait;
use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

hook! { sleeps fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    wait::poll(fds, count, timeout)
} }

hook! { sleeps fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, len: size_t) -> c_int {
    if len / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    wait::poll(fds, count, timeout)
} }

hook! { sleeps fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    wait::ppoll(fds, count, timeout, mask)
} }

hook! { sleeps fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, len: size_t) -> c_int {
    if len / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    wait::ppoll(fds, count, timeout, mask)
} }

hook! { sleeps fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int {
    crate::select::select(n, r, w, e, timeout)
} }

hook! { sleeps fn pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    crate::select::pselect(n, r, w, e, timeout, mask)
} }
