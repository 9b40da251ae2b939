//! Epoll sets.
//!
//! Invariant: a set without upgraded connections is the kernel's alone.

use crate::arena::Resource;
use crate::errno::Kept;
use crate::real;
use crate::table::{self, Entry, SETS};
use libc::{c_int, epoll_event, sigset_t, timespec};

/// An epoll set.
pub(crate) struct Set {}

impl Resource for Set {
    fn fresh() -> Set {
        Set {}
    }

    fn end(&self) {}
}

/// epoll_create gave a set.
pub(crate) fn created(fd: c_int) -> c_int {
    if fd >= 0 && crate::config::config().active {
        let _kept = Kept::now();
        if let Some(index) = SETS.insert() {
            table::put(fd, Entry::Set(index));
        }
    }
    fd
}

/// epoll_ctl.
///
/// # Safety
/// As epoll_ctl.
pub(crate) unsafe fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { real::epoll_ctl(epfd, op, fd, event) }
}

/// A timeout in milliseconds; negative: none.
pub(crate) fn millis(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok()
}

/// epoll_wait and epoll_pwait.
///
/// # Safety
/// As epoll_pwait.
pub(crate) unsafe fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: Option<u64>,
    mask: Option<&sigset_t>,
) -> c_int {
    let timeout = timeout_ms.map_or(-1, |ms| ms.min(c_int::MAX as u64) as c_int);
    let mask = mask.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the caller's promise.
    unsafe { real::epoll_pwait(epfd, events, max, timeout, mask) }
}

/// epoll_pwait2.
///
/// # Safety
/// As epoll_pwait2.
pub(crate) unsafe fn wait_precisely(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { real::epoll_pwait2(epfd, events, max, timeout, mask) }
}
