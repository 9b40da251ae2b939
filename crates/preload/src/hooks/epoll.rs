//! Hooks of epoll.
//!
//! Invariant: a set without upgraded connections is the kernel's alone.

use super::hook;
use crate::set;
use libc::{c_int, epoll_event, sigset_t, timespec};

hook! { fn epoll_create(size: c_int) -> c_int {
    set::created(crate::real::epoll_create(size))
} }

hook! { fn epoll_create1(flags: c_int) -> c_int {
    set::created(crate::real::epoll_create1(flags))
} }

hook! { fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    set::control(epfd, op, fd, event)
} }

hook! { fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    set::wait(epfd, events, max, set::millis(timeout), None)
} }

hook! { fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
    set::wait(epfd, events, max, set::millis(timeout), mask.as_ref())
} }

hook! { fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    set::wait_precisely(epfd, events, max, timeout, mask)
} }
