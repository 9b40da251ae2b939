//! Calls that the C library does not have: the pointer-based interface of `include/vmmc_sockets.h`.
//!
//! Invariant: a program finds them with `dlsym`, and does without where they are not; the number in
//! their names changes with their meaning. Source: [NT §4], N14.

use super::hook;
use crate::lend;
use libc::{c_int, c_void, size_t, ssize_t};

hook! { sleeps fn vmmc_sockets_reserve_v1(fd: c_int, most: size_t, memory: *mut *mut c_void) -> ssize_t {
    lend::reserve(fd, most, |at| *memory = at)
} }

hook! { fn vmmc_sockets_commit_v1(fd: c_int, bytes: size_t) -> c_int {
    lend::commit(fd, bytes)
} }

hook! { sleeps fn vmmc_sockets_peek_v1(fd: c_int, memory: *mut *const c_void) -> ssize_t {
    lend::peek(fd, |at| *memory = at.cast_const())
} }

hook! { fn vmmc_sockets_consume_v1(fd: c_int, bytes: size_t) -> c_int {
    lend::consume(fd, bytes)
} }
