//! One TCP connection of this process: an open file description, whatever number of descriptors it has.
//!
//! Invariant: a connection with a reason to stay with the kernel never gets rid of it.

use crate::arena::Resource;
use crate::config::config;
use crate::reason::{self, Reason};
use crate::table::{self, CONNECTIONS, Entry};
use libc::{c_int, socklen_t};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// How it came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This process called connect.
    Connected,
    /// This process called accept.
    Accepted,
}

/// A connection.
pub(crate) struct Tcp {
    /// A [`Reason`] to stay with the kernel for good, 0 for none.
    left: AtomicU8,
}

impl Resource for Tcp {
    fn fresh() -> Tcp {
        Tcp { left: AtomicU8::new(0) }
    }

    fn end(&self) {
        self.left.store(0, Relaxed);
    }
}

impl Tcp {
    /// The connection goes back to the kernel and stays there.
    pub(crate) fn leave(&self, _fd: c_int, reason: Reason) {
        if self.left.swap(reason as u8, Relaxed) == 0 {
            reason::count(reason);
        }
    }
}

/// Makes a descriptor known that just became a connection, if it is one of TCP and none of the exclusions.
pub(crate) fn adopt(fd: c_int, _origin: Origin) {
    if !config().active || fd <= libc::STDERR_FILENO || reason::stopped().is_some() || !is_tcp(fd) {
        return;
    }
    if config().excludes_ports() && excluded(fd) {
        return reason::count(Reason::Excluded);
    }
    match CONNECTIONS.insert() {
        Some(index) => {
            table::put(fd, Entry::Connection(index));
        }
        None => reason::count(Reason::Full),
    }
}

fn is_tcp(fd: c_int) -> bool {
    let mut protocol: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: value and length are ours and fit together.
    let result = unsafe {
        crate::real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, (&raw mut protocol).cast(), &raw mut len)
    };
    result == 0 && protocol == libc::IPPROTO_TCP
}

/// Whether either end's port is excluded.
fn excluded(fd: c_int) -> bool {
    type Names = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int;
    let names: [Names; 2] = [libc::getsockname, libc::getpeername];
    names.iter().any(|name| {
        // SAFETY: all zero is a valid value of this plain structure.
        let mut addr: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_in6>() as socklen_t;
        // SAFETY: address and length are ours and fit together.
        let result = unsafe { name(fd, (&raw mut addr).cast(), &raw mut len) };
        // The port lies at the same place for both families.
        result == 0 && config().excludes_port(u16::from_be(addr.sin6_port))
    })
}
