//! Options, status flags and requests of connections.
//!
//! Invariant: what the program set is what it reads, whatever we set underneath.

use crate::own::{self, Inside};
use crate::reason::Reason;
use crate::tcp::{Held, borrowed};
use crate::{probe, real, table};
use libc::{c_int, c_ulong, c_void, socklen_t};
use std::sync::atomic::Ordering::Relaxed;
use vmmc_sockets::{Direction, Medium, Shutdown};

/// shutdown.
pub(crate) fn shutdown(fd: c_int, how: c_int) -> c_int {
    let directions = match how {
        libc::SHUT_RD => Some(Shutdown::Read),
        libc::SHUT_WR => Some(Shutdown::Write),
        libc::SHUT_RDWR => Some(Shutdown::Both),
        _ => None,
    };
    if let (Some(tcp), Some(how)) = (table::connection(fd), directions) {
        if let Some(connection) = tcp.connection() {
            let _inside = Inside::enter();
            connection.shutdown(own::context(), borrowed(fd), how);
        }
    }
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
    let result = unsafe { real::getsockopt(fd, level, name, value, len) };
    if result == 0
        && matches!((level, name), (libc::SOL_SOCKET, libc::SO_ERROR) | (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT))
    {
        if let Some(number) = own_answer(fd, name) {
            // SAFETY: the kernel has just written so many bytes there.
            unsafe { answer(number, value, len) };
        }
    }
    if result == 0 && level == libc::IPPROTO_TCP && name == libc::TCP_NODELAY {
        // Underneath it is on, so that no doorbell waits; the program sees its own.
        if let Some(set) = table::connection(fd).and_then(|tcp| tcp.connection()?.no_delay()) {
            // SAFETY: the kernel has just written so many bytes there.
            unsafe { answer(c_int::from(set), value, len) };
        }
    }
    result
}

/// What an option of an upgraded connection is to the program, where the kernel's answer is not it.
fn own_answer(fd: c_int, name: c_int) -> Option<c_int> {
    let tcp = table::connection(fd).filter(|tcp| !tcp.is_plain() && !Inside::here())?;
    let _inside = Inside::enter();
    match name {
        libc::SO_ERROR => tcp.connection()?.take_error(own::context(), borrowed(fd)),
        _ => tcp.connection()?.not_sent_limit().map(|limit| limit as c_int),
    }
}

/// The error that a connection has, as `SO_ERROR` says it; it has it no more.
pub(crate) fn take_error(fd: c_int) -> c_int {
    let (mut error, mut len) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: value and length are ours and fit together.
    let known = unsafe { getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut len) };
    if known == 0 { error } else { 0 }
}

/// Whether the next receive of a connection in a ring would fail for an error of the connection.
pub(crate) fn error_is_next(fd: c_int) -> bool {
    let Some(tcp) = table::connection(fd).filter(|tcp| !tcp.is_plain()) else { return false };
    let _inside = Inside::enter();
    tcp.connection()
        .is_some_and(|core| core.state(own::context(), borrowed(fd)).error.is_some() && core.available_bytes() == 0)
}

/// # Safety
/// Value and length are as getsockopt has just left them.
unsafe fn answer(number: c_int, value: *mut c_void, len: *mut socklen_t) {
    // SAFETY: the caller's promise.
    unsafe {
        let n = (*len as usize).min(size_of::<c_int>());
        std::ptr::copy_nonoverlapping((&raw const number).cast::<u8>(), value.cast::<u8>(), n);
    }
}

/// setsockopt.
///
/// # Safety
/// As setsockopt.
pub(crate) unsafe fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    let Some(tcp) = table::connection(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { real::setsockopt(fd, level, name, value, len) };
    };
    let fits = len as usize >= size_of::<c_int>() && probe::readable(value.cast::<c_int>());
    let number = if !fits {
        0
    } else {
        // SAFETY: the caller's promise: so many bytes are there.
        unsafe { value.cast::<c_int>().read_unaligned() }
    };
    if let Some(reason) = only_kernel(level, name, number) {
        tcp.leave(fd, reason);
    }
    let not_sent = level == libc::IPPROTO_TCP && name == libc::TCP_NOTSENT_LOWAT && !Inside::here();
    let kept = || tcp.connection().is_some_and(|connection| connection.set_not_sent_limit(number as u32));
    if not_sent && fits && kept() {
        return 0;
    }
    let no_delay = level == libc::IPPROTO_TCP && name == libc::TCP_NODELAY;
    if no_delay && fits && !tcp.is_plain() && number == 0 {
        tcp.connection().inspect(|connection| connection.set_no_delay(false));
        return 0;
    }
    // SAFETY: the caller's promise.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result == 0 {
        remember(&tcp, level, name, number);
    }
    result
}

fn remember(tcp: &Held, level: c_int, name: c_int, number: c_int) {
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
            tcp.connection().inspect(|connection| connection.set_no_delay(number != 0));
        }
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => tcp.low_water.store(number.max(1) as u32, Relaxed),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => tcp.forget_timeouts(),
        _ => {}
    }
}

/// Why a connection with this option is the kernel's.
fn only_kernel(level: c_int, name: c_int, number: c_int) -> Option<Reason> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if number > 1 => Some(Reason::LowWater),
        (
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY | libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF | libc::SO_TIMESTAMPING,
        ) => Some(Reason::ZeroCopy),
        (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR) => Some(Reason::ZeroCopy),
        _ => None,
    }
}

/// ioctl.
///
/// # Safety
/// As ioctl.
pub(crate) unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the caller's promise.
    let kernel = || unsafe { real::ioctl(fd, request, argument) };
    let Some(tcp) = table::connection(fd) else { return kernel() };
    let Some(connection) = tcp.connection() else { return kernel() };
    if matches!(request as c_ulong, libc::FIONREAD | SIOCATMARK) {
        // A ring that was left and is empty counts no more, nor what the kernel has of its bytes.
        let _inside = Inside::enter();
        connection.state(own::context(), borrowed(fd));
    }
    let place = argument as *mut c_int;
    // SAFETY: for the requests below the program promised a pointer to an integer, and it can be
    // read.
    let integer = || probe::readable(place).then(|| unsafe { &mut *place });
    match request as c_ulong {
        libc::FIONBIO => {
            let result = kernel();
            if let (0, Some(yes)) = (result, integer()) {
                tcp.set_nonblocking(*yes != 0);
            }
            result
        }
        libc::FIOASYNC => {
            if integer().is_some_and(|yes| *yes != 0) {
                tcp.leave(fd, Reason::Signal);
            }
            kernel()
        }
        libc::FIONREAD if connection.medium(Direction::Receive) == Medium::Ring => {
            // The kernel knows whether the place is there.
            let result = kernel();
            if let (0, Some(place)) = (result, integer()) {
                *place = connection.available_bytes().min(c_int::MAX as usize) as c_int;
            }
            result
        }
        // What is in a ring with room has arrived, and so have the kernel's last bytes, whose
        // acknowledgement may be late. A full one is a receiver that takes no more.
        libc::TIOCOUTQ if connection.medium(Direction::Send) == Medium::Ring => {
            let result = kernel();
            if let (0, Some(place)) = (result, integer()) {
                let full = !connection.state(own::context(), borrowed(fd)).writable;
                *place = if full { connection.unsent_bytes().min(c_int::MAX as usize) as c_int } else { 0 };
            }
            result
        }
        SIOCATMARK => {
            let result = kernel();
            if let (0, Some(place)) = (result, integer()) {
                // Bytes of the ring come before whatever mark the kernel knows.
                *place = if connection.available_bytes() > 0 { 0 } else { *place };
            }
            result
        }
        _ => kernel(),
    }
}

/// Not in the libc crate for all machines.
const SIOCATMARK: c_ulong = 0x8905;

/// sockatmark, which is that request.
pub(crate) fn at_mark(fd: c_int) -> c_int {
    let mut mark: c_int = 0;
    // SAFETY: a pointer to an integer of ours.
    let result = unsafe { ioctl(fd, SIOCATMARK, (&raw mut mark) as usize) };
    if result < 0 { result } else { mark }
}

/// fcntl set the status flags.
pub(crate) fn status_flags_set(fd: c_int, flags: c_int) {
    let Some(tcp) = table::connection(fd) else { return };
    tcp.set_nonblocking(flags & libc::O_NONBLOCK != 0);
    if flags & libc::O_ASYNC != 0 {
        tcp.leave(fd, Reason::Signal);
    }
}
