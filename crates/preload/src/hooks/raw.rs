//! The hook of `syscall`, for programs that make socket calls by number.
//!
//! Invariant: a number that has a hook is that hook's call; io_uring is seen here, and from then on new connections stay with the kernel, because its
//! requests name descriptors without passing by. Source: syscall(2).

use super::{descriptors, epoll, hook, sockets, transfer, waiting};
use crate::real;
use crate::reason::{self, Reason};
use libc::{c_int, c_long};

hook! { fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    let fd = a as c_int;
    match number {
        libc::SYS_read => transfer::read(fd, b as _, c) as c_long,
        libc::SYS_write => transfer::write(fd, b as _, c) as c_long,
        libc::SYS_readv => transfer::readv(fd, b as _, c as c_int) as c_long,
        libc::SYS_writev => transfer::writev(fd, b as _, c as c_int) as c_long,
        libc::SYS_recvfrom => transfer::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
        libc::SYS_sendto => transfer::sendto(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
        libc::SYS_recvmsg => transfer::recvmsg(fd, b as _, c as c_int) as c_long,
        libc::SYS_sendmsg => transfer::sendmsg(fd, b as _, c as c_int) as c_long,
        libc::SYS_sendfile => transfer::sendfile(fd, b as c_int, c as _, d) as c_long,
        libc::SYS_splice => transfer::splice(fd, b as _, c as c_int, d as _, e, f as _) as c_long,
        libc::SYS_connect => c_long::from(sockets::connect(fd, b as _, c as _)),
        libc::SYS_accept => c_long::from(sockets::accept(fd, b as _, c as _)),
        libc::SYS_accept4 => c_long::from(sockets::accept4(fd, b as _, c as _, d as c_int)),
        libc::SYS_shutdown => c_long::from(sockets::shutdown(fd, b as c_int)),
        libc::SYS_close => c_long::from(descriptors::close(fd)),
        libc::SYS_close_range => c_long::from(descriptors::close_range(a as _, b as _, c as c_int)),
        libc::SYS_dup => c_long::from(descriptors::dup(fd)),
        libc::SYS_dup3 => c_long::from(descriptors::dup3(fd, b as c_int, c as c_int)),
        libc::SYS_epoll_create1 => c_long::from(epoll::epoll_create1(fd)),
        libc::SYS_epoll_ctl => c_long::from(epoll::epoll_ctl(fd, b as c_int, c as c_int, d as _)),
        libc::SYS_io_uring_setup => {
            let result = real::syscall(number, a, b, c, d, e, f);
            if result >= 0 {
                reason::stop_upgrading(Reason::IoUring);
            }
            result
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => c_long::from(descriptors::dup2(fd, b as c_int)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => c_long::from(waiting::poll(a as _, b as _, c as c_int)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => c_long::from(epoll::epoll_wait(fd, b as _, c as c_int, d as c_int)),
        _ => real::syscall(number, a, b, c, d, e, f),
    }
} }
