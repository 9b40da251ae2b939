//! Options, status flags and requests of connections.
//!
//! Invariant: what the program set is what it reads, whatever we set underneath.

use crate::real;
use libc::{c_int, c_ulong, c_void, socklen_t};

/// shutdown.
pub(crate) fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: numbers only.
    unsafe { real::shutdown(fd, how) }
}

/// getsockopt.
///
/// # Safety
/// As getsockopt.
pub(crate) unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { real::getsockopt(fd, level, name, value, len) }
}

/// setsockopt.
///
/// # Safety
/// As setsockopt.
pub(crate) unsafe fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { real::setsockopt(fd, level, name, value, len) }
}

/// ioctl.
///
/// # Safety
/// As ioctl.
pub(crate) unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { real::ioctl(fd, request, argument) }
}

/// fcntl set the status flags.
pub(crate) fn status_flags_set(_fd: c_int, _flags: c_int) {}
