//! Hooks of the calls that make, end and adjust connections.
//!
//! Invariant: a connection is known to us from the moment connect or accept gave it, before its
//! first byte, so that its count of bytes is right; whatever was not seen from then on is never
//! known.

use super::hook;
use crate::errno::Kept;
use crate::probe;
use crate::real;
use crate::table::{self, Entry};
use crate::tcp;
use libc::{c_int, c_void, sockaddr, socklen_t};

hook! { fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let family = if (len as usize) < size_of::<libc::sa_family_t>() || !probe::readable(addr.cast::<libc::sa_family_t>()) { -1 } else { c_int::from((*addr).sa_family) };
    if family == libc::AF_UNSPEC {
        // Dissolves the connection; what comes next is another one.
        super::descriptors::dissolve(fd);
    }
    let result = real::connect(fd, addr, len);
    // Only a socket that is not to wait says so.
    let goes_on = result != 0 && crate::errno::current() == libc::EINPROGRESS;
    let under_way = result == 0 || goes_on || crate::errno::current() == libc::EINTR;
    if under_way && matches!(family, libc::AF_INET | libc::AF_INET6) {
        let _kept = Kept::now();
        // Some programs connect twice to learn the outcome: the connection is known already.
        if table::entry(fd) == Entry::Nothing {
            tcp::adopt(fd, goes_on.then_some(true));
        }
    }
    result
} }

hook! { fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    accepted(real::accept(fd, addr, len), 0)
} }

hook! { fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    accepted(real::accept4(fd, addr, len, flags), flags)
} }

fn accepted(new: c_int, flags: c_int) -> c_int {
    if new >= 0 {
        let _kept = Kept::now();
        tcp::adopt(new, Some(flags & libc::SOCK_NONBLOCK != 0));
    }
    new
}

hook! { fn shutdown(fd: c_int, how: c_int) -> c_int {
    crate::options::shutdown(fd, how)
} }

hook! { fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
    crate::options::getsockopt(fd, level, name, value, len)
} }

hook! { fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    crate::options::setsockopt(fd, level, name, value, len)
} }

hook! { fn sockatmark(fd: c_int) -> c_int {
    crate::options::at_mark(fd)
} }
