//! Moving bytes: each call ends as done, as an error, or as a bypass with a reason.
//!
//! Invariant: a byte of a connection goes through the kernel or through the ring, never both.

use crate::reason::{self, Reason};
use crate::{passing, real, table};
use libc::{c_int, c_uint, iovec, msghdr, off64_t, size_t, ssize_t};

/// The receive family, without messages.
pub(crate) fn receive(fd: c_int, _pieces: &[iovec], _flags: c_int, kernel: impl Fn() -> ssize_t) -> ssize_t {
    if table::connection(fd).is_some() {
        reason::count(Reason::NotYet);
    }
    kernel()
}

/// The send family, without messages.
pub(crate) fn send(fd: c_int, _pieces: &[iovec], _flags: c_int, kernel: impl Fn() -> ssize_t) -> ssize_t {
    if table::connection(fd).is_some() {
        reason::count(Reason::NotYet);
    }
    kernel()
}

/// recvmsg.
///
/// # Safety
/// As recvmsg.
pub(crate) unsafe fn receive_message(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { real::recvmsg(fd, msg, flags) }
}

/// sendmsg.
///
/// # Safety
/// As sendmsg.
pub(crate) unsafe fn send_message(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        passing::before_send(msg);
        real::sendmsg(fd, msg, flags)
    }
}

/// sendfile.
///
/// # Safety
/// As sendfile.
pub(crate) unsafe fn sendfile(out: c_int, from: c_int, offset: *mut off64_t, n: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { real::sendfile(out, from, offset, n) }
}

/// splice.
///
/// # Safety
/// As splice.
pub(crate) unsafe fn splice(
    from: c_int,
    from_at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { real::splice(from, from_at, to, to_at, n, flags) }
}
