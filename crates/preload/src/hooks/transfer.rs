//! Hooks of the calls that move bytes.
//!
//! Invariant: a hook turns its arguments into pieces and flags and hands them to
//! [`crate::transfer`]; on a descriptor that is nothing to us it is the C library's own call.
//! Fortified forms check what the C library's would check, then are the plain call.

use super::hook;
use crate::clock::Limit;
use crate::transfer::{receive, receive_message, send_message};
use crate::{errno, options, probe, real, table};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

/// One piece of memory, as the calls with several take it.
fn piece(buf: *const c_void, n: size_t) -> [iovec; 1] {
    [iovec { iov_base: buf.cast_mut(), iov_len: n }]
}

/// The pieces of a vector call on a connection; none for a list that the kernel refuses, so that
/// the kernel says so.
///
/// # Safety
/// As readv: `iov` points to `count` pieces, or to memory that cannot be read.
unsafe fn pieces<'a>(fd: c_int, iov: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    if !matches!(table::entry(fd), table::Entry::Connection(_)) || !(1..=libc::UIO_MAXIOV).contains(&count) {
        return None;
    }
    if !probe::readable_bytes(iov.cast(), count as usize * size_of::<iovec>()) {
        return None;
    }
    // SAFETY: the caller's promise; the program does not change its array during its call.
    Some(unsafe { std::slice::from_raw_parts(iov, count as usize) })
}

/// Whether a byte fits.
fn has_room(pieces: &[iovec]) -> bool {
    pieces.iter().any(|piece| piece.iov_len > 0)
}

/// What the fortified forms do when a buffer is smaller than the length given.
fn check_fits(n: size_t, buf_len: size_t) {
    if n > buf_len {
        const TEXT: &str = "*** buffer overflow detected ***: terminated\n";
        // SAFETY: a constant text, to a descriptor that may or may not be open.
        unsafe { real::write(2, TEXT.as_ptr().cast(), TEXT.len()) };
        std::process::abort();
    }
}

// A read of nothing is 0 at once, whatever holds for a socket; a receive of nothing is not.
hook! { sleeps fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    if n == 0 {
        return real::read(fd, buf, n);
    }
    receive(fd, &piece(buf, n), 0, || real::read(fd, buf, n))
} }

hook! { sleeps fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, buf_len: size_t) -> ssize_t {
    check_fits(n, buf_len);
    read(fd, buf, n)
} }

hook! { sleeps fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    match pieces(fd, iov, count).filter(|all| has_room(all)) {
        Some(all) => receive(fd, all, 0, || real::readv(fd, iov, count)),
        None => real::readv(fd, iov, count),
    }
} }

hook! { sleeps fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
    match pieces(fd, iov, count).filter(|all| has_room(all)) {
        Some(all) if offset == -1 => receive(fd, all, nowait(flags), || real::preadv2(fd, iov, count, offset, flags)),
        _ => real::preadv2(fd, iov, count, offset, flags),
    }
} }

hook! { fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
    preadv2(fd, iov, count, offset, flags)
} }

hook! { sleeps fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
    receive(fd, &piece(buf, n), flags, || real::recv(fd, buf, n, flags))
} }

hook! { sleeps fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, buf_len: size_t, flags: c_int) -> ssize_t {
    check_fits(n, buf_len);
    receive(fd, &piece(buf, n), flags, || real::recv(fd, buf, n, flags))
} }

hook! { sleeps fn recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t {
    let n = receive(fd, &piece(buf, n), flags, || real::recvfrom(fd, buf, n, flags, addr, len));
    // A stream's bytes carry no address: the kernel leaves `addr` alone on TCP and says length 0,
    // of a call that succeeds.
    if n >= 0 && !addr.is_null() && table::connection(fd).is_some() {
        if !probe::readable(len) {
            return errno::fail(libc::EFAULT);
        }
        if len.read_unaligned() as c_int <= -1 {
            return errno::fail(libc::EINVAL);
        }
        len.write_unaligned(0);
    }
    n
} }

hook! { fn __recvfrom_chk(fd: c_int, buf: *mut c_void, n: size_t, buf_len: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t {
    check_fits(n, buf_len);
    recvfrom(fd, buf, n, flags, addr, len)
} }

hook! { sleeps fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    receive_message(fd, msg, flags)
} }

hook! { sleeps fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
    if table::connection(fd).is_none() {
        return real::recvmmsg(fd, msgs, count, flags, timeout);
    }
    receive_messages(fd, msgs, count, flags, timeout)
} }

/// recvmmsg on a connection: receives one after another, as in the kernel, which goes on behind the
/// end of a stream and checks the time between two messages only.
///
/// # Safety
/// As recvmmsg.
unsafe fn receive_messages(
    fd: c_int,
    msgs: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the program's promise: null, a time, or what the kernel refuses.
    let limit = match unsafe { Limit::timespec(timeout) } {
        Ok(limit) => limit,
        Err(code) => return errno::fail(code) as c_int,
    };
    let pending = if flags & libc::MSG_ERRQUEUE == 0 { options::take_error(fd) } else { 0 };
    if pending != 0 {
        return errno::fail(pending) as c_int;
    }
    let mut each = flags & !libc::MSG_WAITFORONE;
    let mut done = 0;
    // An error that comes meanwhile is the next call's.
    while done < count && (done == 0 || !options::error_is_next(fd)) {
        let message = msgs.wrapping_add(done as usize);
        // SAFETY: the program's promise: a message, or what the kernel refuses.
        let n = unsafe { receive_message(fd, &raw mut (*message).msg_hdr, each) };
        if n < 0 {
            break;
        }
        // SAFETY: the message was there.
        unsafe { (*message).msg_len = n as c_uint };
        done += 1;
        each |= if flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the message was there.
        if limit.is_over() || unsafe { (*message).msg_hdr.msg_flags } & libc::MSG_OOB != 0 {
            break;
        }
    }
    if done == 0 && count > 0 {
        return -1;
    }
    if let (1.., Some(left)) = (done, limit.left()) {
        // SAFETY: not null, for there is a limit, and a time.
        unsafe { timeout.write_unaligned(left) };
    }
    done as c_int
}

hook! { sleeps fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    crate::transfer::send(fd, &piece(buf, n), 0, || real::write(fd, buf, n))
} }

hook! { sleeps fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    match pieces(fd, iov, count) {
        Some(all) => crate::transfer::send(fd, all, 0, || real::writev(fd, iov, count)),
        None => real::writev(fd, iov, count),
    }
} }

hook! { sleeps fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
    match pieces(fd, iov, count) {
        Some(all) if offset == -1 => crate::transfer::send(fd, all, nowait(flags), || real::pwritev2(fd, iov, count, offset, flags)),
        _ => real::pwritev2(fd, iov, count, offset, flags),
    }
} }

hook! { fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
    pwritev2(fd, iov, count, offset, flags)
} }

hook! { sleeps fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    crate::transfer::send(fd, &piece(buf, n), flags, || real::send(fd, buf, n, flags))
} }

hook! { sleeps fn sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: *const sockaddr, len: socklen_t) -> ssize_t {
    crate::transfer::send(fd, &piece(buf, n), flags, || real::sendto(fd, buf, n, flags, addr, len))
} }

hook! { sleeps fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    send_message(fd, msg, flags)
} }

hook! { sleeps fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    for at in 0..count.min(libc::UIO_MAXIOV as c_uint) {
        let readable = probe::readable(msgs.add(at as usize));
        if table::connection(fd).is_none() && (!readable || (*msgs.add(at as usize)).msg_hdr.msg_controllen == 0) {
            // Datagrams go in one call; descriptors in control messages must be looked at one by
            // one.
            let rest = real::sendmmsg(fd, msgs.add(at as usize), count - at, flags);
            return if rest < 0 && at > 0 { at as c_int } else { rest + if rest < 0 { 0 } else { at as c_int } };
        }
        let message = &mut *msgs.add(at as usize);
        let n = send_message(fd, &message.msg_hdr, flags);
        if n < 0 {
            return if at > 0 { at as c_int } else { -1 };
        }
        message.msg_len = n as c_uint;
        if (n as usize) < total(&message.msg_hdr) {
            // What comes next would follow a gap.
            return at as c_int + 1;
        }
    }
    count.min(libc::UIO_MAXIOV as c_uint) as c_int
} }

/// Bytes of a message that was sent.
fn total(message: &msghdr) -> usize {
    // SAFETY: the pieces could be read when it was sent.
    let pieces = unsafe {
        std::slice::from_raw_parts(message.msg_iov, if message.msg_iov.is_null() { 0 } else { message.msg_iovlen })
    };
    pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.iov_len))
}

hook! { sleeps fn sendfile64(out: c_int, from: c_int, offset: *mut off64_t, n: size_t) -> ssize_t {
    crate::transfer::sendfile(out, from, offset, n)
} }

hook! { sleeps fn sendfile(out: c_int, from: c_int, offset: *mut off64_t, n: size_t) -> ssize_t {
    crate::transfer::sendfile(out, from, offset, n)
} }

hook! { sleeps fn splice(from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, n: size_t, flags: c_uint) -> ssize_t {
    crate::transfer::splice(from, from_at, to, to_at, n, flags)
} }

/// The flags of a vector call as flags of a socket call.
fn nowait(flags: c_int) -> c_int {
    if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 }
}
