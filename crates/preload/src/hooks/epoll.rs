//! Hooks of epoll.
//!
//! Invariant: a set without connections of ours is the kernel's alone.

use super::hook;
use crate::clock::Limit;
use crate::real;
use crate::set::{self, Request};
use libc::{c_int, epoll_event, sigset_t, timespec};
use std::ptr::null;

hook! { fn epoll_create(size: c_int) -> c_int {
    set::created(real::epoll_create(size))
} }

hook! { fn epoll_create1(flags: c_int) -> c_int {
    set::created(real::epoll_create1(flags))
} }

hook! { fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    set::control(epfd, op, fd, event)
} }

hook! { fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    epoll_pwait(epfd, events, max, timeout, null())
} }

hook! { sleeps fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
    let request = Request { epfd, events, max, mask: mask.as_ref(), precise: false };
    let limit = || Ok(Limit::millis(timeout));
    match set::wait(&request, limit) {
        Some(result) => result,
        None => set::woken(&request, real::epoll_pwait(epfd, events, max, timeout, mask), limit),
    }
} }

hook! { sleeps fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    let request = Request { epfd, events, max, mask: mask.as_ref(), precise: true };
    let limit = || Limit::timespec(timeout);
    match set::wait(&request, limit) {
        Some(result) => result,
        None => set::woken(&request, real::epoll_pwait2(epfd, events, max, timeout, mask), limit),
    }
} }
