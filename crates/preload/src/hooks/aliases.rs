//! Second names under which the C library exports the same functions; old programs and some
//! libraries call them so.
//!
//! Invariant: each is the hook of the plain name. Source: the symbols of glibc that have no comment
//! of their own, `nm -D libc.so.6`.

use super::{descriptors, hook, programs, sockets, transfer, waiting};
use libc::{c_char, c_int, c_void, fd_set, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};

hook! { fn __read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    transfer::read(fd, buf, n)
} }

hook! { fn __write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    transfer::write(fd, buf, n)
} }

hook! { fn __send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    transfer::send(fd, buf, n, flags)
} }

hook! { fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    sockets::connect(fd, addr, len)
} }

hook! { fn __close(fd: c_int) -> c_int {
    descriptors::close(fd)
} }

hook! { fn __dup2(from: c_int, to: c_int) -> c_int {
    descriptors::dup2(from, to)
} }

hook! { fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    descriptors::fcntl(fd, command, argument)
} }

hook! { fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    descriptors::fdopen(fd, mode)
} }

hook! { fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    programs::popen(command, mode)
} }

hook! { fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    waiting::poll(fds, count, timeout)
} }

hook! { fn __select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int {
    waiting::select(n, r, w, e, timeout)
} }
