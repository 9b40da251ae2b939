//! Moving bytes: each call ends as done, as an error, or as a bypass with a reason.
//!
//! Invariant: a byte of a connection goes through the kernel or through the ring, never both.
//! Waiting happens here or in the kernel's call, as the program asked.

use crate::errno::{self, fail};
use crate::limits::{COPY_BYTES, LEAVE_PATIENCE, PEEK_ALL_MAX, POLL_SLICE_MS};
use crate::own::{self, Inside};
use crate::pieces::Cursor;
use crate::reason::{self, Reason};
use crate::tcp::{Held, Side, borrowed};
use crate::{passing, probe, readiness, real, set, table};
use libc::{c_int, c_uint, c_void, iovec, msghdr, off64_t, size_t, ssize_t};
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;
use vmmc_host::{Deadline, Nanos};
use vmmc_sockets::{After, Connection, Direction, KernelCall, Medium, Received, Sent, Take, Waited};

/// Flags with which a receive is the kernel's alone: they do not touch the stream's own bytes.
const KERNEL_RECEIVE: c_int = libc::MSG_ERRQUEUE | libc::MSG_OOB;

/// How a call on a connection ended.
enum Outcome {
    /// So many bytes moved.
    Done(usize),
    /// It failed.
    Errno(c_int),
    /// The kernel's own answer; `errno` is as it left it.
    Kernel(ssize_t),
}

impl Outcome {
    fn result(self) -> ssize_t {
        match self {
            Outcome::Done(n) => n as ssize_t,
            Outcome::Errno(code) => fail(code),
            Outcome::Kernel(result) => result,
        }
    }
}

/// What moved already, or the error if nothing did.
fn partial(moved: usize, code: c_int) -> Outcome {
    if moved > 0 { Outcome::Done(moved) } else { Outcome::Errno(code) }
}

/// A result of the C library as the protocol core takes it.
fn as_result(n: ssize_t) -> Result<usize, Errno> {
    usize::try_from(n).map_err(|_| Errno::from_raw_os_error(errno::current()))
}

/// The receive family, without messages. `kernel` is the program's call.
pub(crate) fn receive(fd: c_int, pieces: &[iovec], flags: c_int, kernel: impl Fn() -> ssize_t) -> ssize_t {
    let Some(tcp) = table::connection(fd) else { return kernel() };
    let Some(connection) = tcp.connection() else { return kernel() };
    if flags & KERNEL_RECEIVE != 0 {
        return kernel();
    }
    if flags & libc::MSG_TRUNC != 0 {
        return discard(&tcp, connection, fd, pieces, flags).result();
    }
    if cannot_be(pieces) {
        return fail(libc::EFAULT);
    }
    receive_on(&tcp, connection, fd, pieces, flags, kernel).result()
}

fn receive_on(
    tcp: &Held,
    connection: &Connection,
    fd: c_int,
    pieces: &[iovec],
    flags: c_int,
    kernel: impl Fn() -> ssize_t,
) -> Outcome {
    let _inside = Inside::enter();
    let context = own::context();
    let take = if flags & libc::MSG_PEEK != 0 { Take::Peek } else { Take::Take };
    let all = flags & libc::MSG_WAITALL != 0 && take == Take::Take;
    let waits = flags & libc::MSG_DONTWAIT == 0;
    let peek_all = flags & libc::MSG_WAITALL != 0 && take == Take::Peek && waits && !tcp.is_nonblocking(fd);
    let least = if take == Take::Take && waits { tcp.low_water.load(Relaxed) } else { 1 } as usize;
    let enough = |moved: usize| !all && moved > 0 && moved >= least;
    let mut cursor = Cursor::new(pieces);
    let mut moved = 0;
    let mut deadline = None;
    loop {
        if connection.is_closed() {
            // The number may be another's by now.
            return partial(moved, libc::EBADF);
        }
        let seen = tcp.seen().filter(|_| take == Take::Take).map(|seen| (seen, seen.before_receive()));
        let mut window = cursor.window();
        let asked = window.len();
        let received = |n: usize| seen.inspect(|(seen, edge)| seen.received(*edge, n, asked));
        match connection.recv(context, borrowed(fd), window.as_filled(), take) {
            Received::Done(n)
                if peek_all && (1..asked.min(PEEK_ALL_MAX)).contains(&n) && !has_ended(connection, fd) =>
            {
                // Seldom asked for, and nobody rings for a part of it.
                if !pause() {
                    return Outcome::Done(n);
                }
            }
            Received::Done(n) => {
                moved += n;
                let over = n == 0 || cursor.advance(n);
                if over || take == Take::Peek || !goes_on(connection, fd, enough(moved), Medium::Ring) {
                    return Outcome::Done(moved);
                }
            }
            Received::OfKernel(n) => {
                received(n);
                if !connection.is_read_from_kernel() {
                    // If these were the last ones, the ring is followed now: the other end cannot
                    // leave it before.
                    connection.state(context, borrowed(fd));
                }
                set::recheck(tcp);
                moved += n;
                let over = cursor.advance(n) || take == Take::Peek;
                if over || !goes_on(connection, fd, enough(moved), Medium::Kernel) {
                    return Outcome::Done(moved);
                }
            }
            Received::Failed(error) => return partial(moved, error.raw_os_error()),
            Received::Busy => {
                if let Some(code) = busy(tcp, fd, flags) {
                    return partial(moved, code);
                }
            }
            Received::Empty if enough(moved) => return Outcome::Done(moved),
            Received::Empty => {
                let end = self::wait(tcp, connection, fd, flags, &mut deadline);
                // A caller that asks for nothing waits once, and is content with having waited.
                let content = cursor.is_empty() && waits && !tcp.is_nonblocking(fd);
                if content && matches!(end, None | Some(libc::EAGAIN)) {
                    return Outcome::Done(moved);
                }
                if let Some(end) = end {
                    return partial(moved, end);
                }
            }
            Received::Kernel(call) => {
                reason::count(Reason::NotYet);
                // Waiting for all of it is done here: while the kernel waits, the rest may come by
                // the ring.
                let own = moved > 0 || flags & libc::MSG_WAITALL != 0;
                if flags & libc::MSG_DONTWAIT == 0 && !tcp.is_nonblocking(fd) {
                    call.poll(borrowed(fd));
                }
                let now = if enough(moved) { libc::MSG_DONTWAIT } else { 0 };
                let n = if own { window.receive(fd, flags & !libc::MSG_WAITALL | now) } else { kernel() };
                let kept = errno::current();
                match as_result(n) {
                    Ok(n @ 1..) => received(n),
                    Err(Errno::AGAIN) => received(0),
                    _ => None,
                };
                let after = call.finish(as_result(n));
                if !connection.is_plain() {
                    // These may have been the last bytes of the kernel, with others in the ring
                    // already whose bell has rung.
                    set::recheck(tcp);
                }
                errno::set(kept);
                match (after, n) {
                    (After::Retry, _) => {}
                    (After::Return, 1..) if take == Take::Take => {
                        moved += n as usize;
                        let over = cursor.advance(n as usize);
                        if over || !goes_on(connection, fd, enough(moved), Medium::Kernel) {
                            // The kernel's own answer, where it is that alone.
                            return if own { Outcome::Done(moved) } else { Outcome::Kernel(n) };
                        }
                    }
                    (After::Return, 0..) if own => return Outcome::Done(moved + n as usize),
                    (After::Return, _) if moved > 0 => return Outcome::Done(moved),
                    (After::Return, _) => return Outcome::Kernel(n),
                }
            }
        }
    }
}

/// Whether a receive that got less than it was asked for, by `way`, tries to get more.
///
/// Where the connection has just moved, bytes that came by both ways are one receive's: programs
/// that were told of the end take a short receive for the last one. A reset is left for the next
/// call.
fn goes_on(connection: &Connection, fd: c_int, enough: bool, way: Medium) -> bool {
    if enough && (connection.is_plain() || way == Medium::Ring && !connection.leaves_ring()) {
        return false;
    }
    let state = connection.state(own::context(), borrowed(fd));
    if state.error.is_some() {
        return false;
    }
    let kernel = match state.rx {
        Medium::Ring => 0,
        Medium::Kernel => readiness::ask_kernel(fd, libc::EPOLLIN as u32),
    };
    let failed = kernel & libc::EPOLLERR as u32 != 0;
    let there = kernel & libc::EPOLLIN as u32 != 0 || connection.available_bytes() > 0;
    !failed && (there || !enough)
}

fn has_ended(connection: &Connection, fd: c_int) -> bool {
    connection.state(own::context(), borrowed(fd)).read_hangup
}

/// Sleeps for a moment; false: a signal ended it.
fn pause() -> bool {
    // SAFETY: no descriptors, and a time in milliseconds.
    unsafe { real::poll(std::ptr::null_mut(), 0, POLL_SLICE_MS) == 0 }
}

/// Waits for bytes, if the program may wait; an error number ends its call.
pub(crate) fn wait(
    tcp: &Held,
    connection: &Connection,
    fd: c_int,
    flags: c_int,
    deadline: &mut Option<Option<Deadline>>,
) -> Option<c_int> {
    if flags & libc::MSG_DONTWAIT != 0 || tcp.is_nonblocking(fd) {
        return Some(libc::EAGAIN);
    }
    let until = *deadline.get_or_insert_with(|| tcp.deadline(fd, Side::Receive));
    match connection.wait_readable(own::context(), borrowed(fd), until) {
        Waited::Ready => None,
        Waited::Interrupted => Some(libc::EINTR),
        Waited::TimedOut => Some(libc::EAGAIN),
        Waited::Closed => Some(libc::EBADF),
    }
}

/// Another thread's call keeps this one from its end of the connection. That thread may wait for
/// what this one has, below a signal handler: then the handler's call ends.
#[cold]
fn busy(tcp: &Held, fd: c_int, flags: c_int) -> Option<c_int> {
    if flags & libc::MSG_DONTWAIT != 0 || tcp.is_nonblocking(fd) {
        return Some(libc::EAGAIN);
    }
    (Inside::is_nested() || !pause()).then_some(libc::EINTR)
}

/// MSG_TRUNC on a stream: bytes are taken and thrown away.
fn discard(tcp: &Held, connection: &Connection, fd: c_int, pieces: &[iovec], flags: c_int) -> Outcome {
    let want: usize = pieces.iter().map(|piece| piece.iov_len).sum();
    let mut scratch = [0u8; COPY_BYTES];
    let piece = [iovec { iov_base: scratch.as_mut_ptr().cast(), iov_len: want.min(COPY_BYTES) }];
    let kernel = || {
        // SAFETY: a buffer of ours of at least that length.
        unsafe { real::recv(fd, piece[0].iov_base, piece[0].iov_len, flags) }
    };
    receive_on(tcp, connection, fd, &piece, flags & !libc::MSG_TRUNC, kernel)
}

/// The send family, without messages. `kernel` is the program's call.
pub(crate) fn send(fd: c_int, pieces: &[iovec], flags: c_int, kernel: impl Fn() -> ssize_t) -> ssize_t {
    let Some(tcp) = table::connection(fd) else { return kernel() };
    let Some(connection) = tcp.connection() else { return kernel() };
    if let Some(reason) = only_kernel(flags) {
        stays_plain(&tcp, connection, fd, reason);
        return in_kernel(&tcp, connection, fd, flags, reason, kernel);
    }
    if cannot_be(pieces) {
        return fail(libc::EFAULT);
    }
    send_on(&tcp, connection, fd, pieces, flags, kernel).result()
}

/// Whether a piece lies where no memory can be.
#[inline]
fn cannot_be(pieces: &[iovec]) -> bool {
    pieces.iter().any(|piece| !probe::is_plausible(piece.iov_base.cast(), piece.iov_len.min(1)))
}

/// A connection that is not upgraded and asks for what only the kernel has is not upgraded later.
fn stays_plain(tcp: &Held, connection: &Connection, fd: c_int, reason: Reason) {
    if connection.is_plain() {
        tcp.leave(fd, reason);
    }
}

/// Why a send with these flags is the kernel's.
fn only_kernel(flags: c_int) -> Option<Reason> {
    if flags & libc::MSG_OOB != 0 {
        return Some(Reason::OutOfBand);
    }
    if flags & (libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
        return Some(Reason::ZeroCopy);
    }
    None
}

fn send_on(
    tcp: &Held,
    connection: &Connection,
    fd: c_int,
    pieces: &[iovec],
    flags: c_int,
    kernel: impl Fn() -> ssize_t,
) -> Outcome {
    let _inside = Inside::enter();
    let context = own::context();
    let mut cursor = Cursor::new(pieces);
    let mut moved = 0;
    let mut deadline = None;
    loop {
        if connection.is_closed() {
            return partial(moved, libc::EBADF);
        }
        let window = cursor.window();
        match connection.send(context, borrowed(fd), window.as_sent()) {
            Sent::Done(n) => {
                moved += n;
                if cursor.advance(n) {
                    return Outcome::Done(moved);
                }
            }
            Sent::Failed(error) => {
                return if moved > 0 { Outcome::Done(moved) } else { Outcome::Kernel(send_failed(error, flags)) };
            }
            Sent::Busy => {
                if let Some(code) = busy(tcp, fd, flags) {
                    return partial(moved, code);
                }
            }
            Sent::Full => {
                if flags & libc::MSG_DONTWAIT != 0 || tcp.is_nonblocking(fd) {
                    return partial(moved, libc::EAGAIN);
                }
                let until = *deadline.get_or_insert_with(|| tcp.deadline(fd, Side::Send));
                match connection.wait_writable(context, borrowed(fd), until) {
                    Waited::Ready => {}
                    Waited::Interrupted => return partial(moved, libc::EINTR),
                    Waited::TimedOut => return partial(moved, libc::EAGAIN),
                    Waited::Closed => return partial(moved, libc::EBADF),
                }
            }
            Sent::Kernel(call) => {
                reason::count(Reason::NotYet);
                let n = if moved > 0 { window.send(fd, flags) } else { kernel() };
                let kept = errno::current();
                tcp.seen().inspect(|seen| seen.sent(n.max(0) as usize, window.len()));
                let after = call.finish(as_result(n));
                errno::set(kept);
                match (after, n) {
                    (After::Retry, _) => {}
                    (After::Return, 1..) if moved > 0 => {
                        moved += n as usize;
                        if cursor.advance(n as usize) {
                            return Outcome::Done(moved);
                        }
                    }
                    (After::Return, _) if moved > 0 => return Outcome::Done(moved),
                    (After::Return, _) => return Outcome::Kernel(n),
                }
            }
        }
    }
}

/// A call that only the kernel can make: the direction goes back there for good, and the call is
/// made as soon as it is there. The peer may first have to follow into the ring, for which the call
/// waits as it would for room; one that may not wait gives the peer a moment, so that a loop that
/// tries again and again does not take the processor from it.
fn in_kernel(
    tcp: &Held,
    connection: &Connection,
    fd: c_int,
    flags: c_int,
    reason: Reason,
    kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    let _inside = Inside::enter();
    let waits = flags & libc::MSG_DONTWAIT == 0 && !tcp.is_nonblocking(fd);
    let mut deadline = None;
    loop {
        if let Some(call) = connection.kernel_call(Direction::Send) {
            return made(call, &kernel);
        }
        // A send of nothing fails as this call must, and leaves the ring if that can be.
        match connection.send(own::context(), borrowed(fd), &[]) {
            Sent::Kernel(call) => return made(call, &kernel),
            Sent::Failed(error) => return send_failed(error, flags),
            Sent::Done(_) | Sent::Full | Sent::Busy => {}
        }
        if tcp.has_no_reason_to_leave() {
            tcp.leave(fd, reason);
            continue;
        }
        let limit = || if waits { tcp.deadline(fd, Side::Send) } else { Some(Deadline::after(LEAVE_PATIENCE)) };
        let until: Option<Deadline> = *deadline.get_or_insert_with(limit);
        if until.is_some_and(|until| until.left(Nanos::monotonic()).is_none()) {
            return fail(libc::EAGAIN);
        }
        if !pause() && waits {
            return fail(libc::EINTR);
        }
        // Nobody may have reported the peer's death.
        connection.kernel_event(borrowed(fd));
        connection.state(own::context(), borrowed(fd));
    }
}

/// The program's own call, in a direction that is held in the kernel.
fn made(call: KernelCall<'_>, kernel: impl Fn() -> ssize_t) -> ssize_t {
    let n = kernel();
    let kept = errno::current();
    let _ = call.finish(as_result(n));
    errno::set(kept);
    n
}

/// Nothing was sent, for this reason.
fn send_failed(error: Errno, flags: c_int) -> ssize_t {
    if error == Errno::PIPE && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: to the calling thread, as the kernel does.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    fail(error.raw_os_error())
}

/// recvmsg.
///
/// # Safety
/// As recvmsg.
pub(crate) unsafe fn receive_message(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let kernel = |flags| unsafe { real::recvmsg(fd, msg, flags) };
    let Some(tcp) = table::connection(fd) else {
        let n = kernel(flags);
        // SAFETY: the kernel has just filled the message in.
        if n >= 0 && unsafe { (*msg).msg_controllen } > 0 {
            // SAFETY: as above.
            unsafe { passing::received(msg) };
        }
        return n;
    };
    // SAFETY: the caller's promise: a message header, or what the kernel refuses.
    let Some(message) = (if probe::readable(msg) { unsafe { msg.as_mut() } } else { None }) else {
        return kernel(flags);
    };
    let Some(pieces) = message_pieces(message) else { return kernel(flags) };
    let Some(connection) = tcp.connection() else { return kernel(flags) };
    if flags & KERNEL_RECEIVE != 0 {
        return kernel(flags);
    }
    let outcome = if flags & libc::MSG_TRUNC != 0 {
        discard(&tcp, connection, fd, pieces, flags)
    } else {
        receive_on(&tcp, connection, fd, pieces, flags, || kernel(flags & !libc::MSG_WAITALL))
    };
    if let Outcome::Done(_) = outcome {
        message.msg_namelen = 0;
        message.msg_controllen = 0;
        message.msg_flags = 0;
    }
    outcome.result()
}

/// The pieces of a message that has any.
fn message_pieces<'a>(message: &msghdr) -> Option<&'a [iovec]> {
    let count = message.msg_iovlen;
    let there = || probe::readable_bytes(message.msg_iov.cast(), count * size_of::<iovec>());
    if message.msg_iov.is_null() || count > libc::UIO_MAXIOV as usize || !there() {
        return None;
    }
    // SAFETY: the program's promise to sendmsg or recvmsg.
    Some(unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) })
}

/// sendmsg.
///
/// # Safety
/// As sendmsg.
pub(crate) unsafe fn send_message(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let kernel = || unsafe { real::sendmsg(fd, msg, flags) };
    // SAFETY: the caller's promise: a message header, or what the kernel refuses.
    let Some(message) = (if probe::readable(msg) { unsafe { msg.as_ref() } } else { None }) else { return kernel() };
    let Some(tcp) = table::connection(fd) else {
        // SAFETY: the caller's promise.
        unsafe { passing::before_send(msg) };
        return kernel();
    };
    let (Some(connection), Some(pieces)) = (tcp.connection(), message_pieces(message)) else { return kernel() };
    let controls = message.msg_controllen > 0 && !message.msg_control.is_null();
    if let Some(reason) = only_kernel(flags).or(controls.then_some(Reason::Control)) {
        stays_plain(&tcp, connection, fd, reason);
        return in_kernel(&tcp, connection, fd, flags, reason, kernel);
    }
    send_on(&tcp, connection, fd, pieces, flags, kernel).result()
}

/// sendfile.
///
/// # Safety
/// As sendfile.
pub(crate) unsafe fn sendfile(out: c_int, from: c_int, offset: *mut off64_t, n: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let kernel = || unsafe { real::sendfile(out, from, offset, n) };
    let Some(tcp) = table::connection(out) else { return kernel() };
    let Some(connection) = tcp.connection() else { return kernel() };
    let inside = Inside::enter();
    if let Some(call) = connection.kernel_call(Direction::Send) {
        reason::count(Reason::NotYet);
        return made(call, kernel);
    }
    drop(inside);
    if !probe::readable_or_null(offset) {
        return fail(libc::EFAULT);
    }
    // SAFETY: the caller's promise: null, or an offset.
    unsafe { file_to_ring(&tcp, connection, out, from, offset.as_mut(), n) }
}

/// sendfile into a ring: read at the offset, send, and move the offset by what was sent.
///
/// # Safety
/// As sendfile.
unsafe fn file_to_ring(
    tcp: &Held,
    connection: &Connection,
    out: c_int,
    from: c_int,
    offset: Option<&mut off64_t>,
    n: size_t,
) -> ssize_t {
    // SAFETY: numbers only.
    let current = || unsafe { libc::lseek64(from, 0, libc::SEEK_CUR) };
    let mut at = offset.as_ref().map_or_else(current, |offset| **offset);
    if at < 0 {
        return fail(libc::EINVAL);
    }
    let mut buffer = [0u8; COPY_BYTES];
    let mut moved = 0;
    let mut failed = 0;
    while moved < n {
        // SAFETY: a buffer of ours of at least that length.
        let got = unsafe { libc::pread64(from, buffer.as_mut_ptr().cast(), COPY_BYTES.min(n - moved), at) };
        if got <= 0 {
            failed = if got < 0 { errno::current() } else { 0 };
            break;
        }
        let piece = [iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: got as usize }];
        let kernel = || {
            // SAFETY: a buffer of ours of at least that length.
            unsafe { real::send(out, piece[0].iov_base, piece[0].iov_len, 0) }
        };
        match send_on(tcp, connection, out, &piece, 0, kernel).result() {
            sent @ 1.. => {
                at += sent as off64_t;
                moved += sent as usize;
                if sent < got {
                    break;
                }
            }
            _ => {
                failed = errno::current();
                break;
            }
        }
    }
    match offset {
        Some(offset) => *offset = at,
        None => {
            // SAFETY: numbers only.
            unsafe { libc::lseek64(from, at, libc::SEEK_SET) };
        }
    }
    if moved > 0 || failed == 0 { moved as ssize_t } else { fail(failed) }
}

/// splice.
///
/// # Safety
/// As splice.
pub(crate) unsafe fn splice(
    from: c_int,
    from_at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let kernel = || unsafe { real::splice(from, from_at, to, to_at, n, flags) };
    if n == 0 {
        return kernel();
    }
    if let Some(tcp) = table::connection(to) {
        let Some(connection) = tcp.connection() else { return kernel() };
        // Bytes that were taken out of a pipe cannot be put back when the ring is full, so this
        // direction is the kernel's.
        return in_kernel(&tcp, connection, to, 0, Reason::Splice, kernel);
    }
    let Some(tcp) = table::connection(from) else { return kernel() };
    let Some(connection) = tcp.connection() else { return kernel() };
    let inside = Inside::enter();
    if let Some(call) = connection.kernel_call(Direction::Receive) {
        reason::count(Reason::NotYet);
        let moved = kernel();
        let kept = errno::current();
        let after = call.finish(as_result(moved));
        errno::set(kept);
        if after == After::Return {
            return moved;
        }
    }
    drop(inside);
    ring_to_pipe(&tcp, connection, from, to, n, flags)
}

/// splice out of a ring: peek at bytes, write them to the pipe, take those that fitted.
fn ring_to_pipe(tcp: &Held, connection: &Connection, from: c_int, to: c_int, n: size_t, flags: c_uint) -> ssize_t {
    let wait = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
    let mut buffer = [0u8; COPY_BYTES];
    let piece = [iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: n.min(COPY_BYTES) }];
    let kernel = |flags| {
        // SAFETY: a buffer of ours of at least that length.
        unsafe { real::recv(from, piece[0].iov_base, piece[0].iov_len, flags) }
    };
    let look = wait | libc::MSG_PEEK;
    let seen = receive_on(tcp, connection, from, &piece, look, || kernel(look)).result();
    if seen <= 0 {
        return seen;
    }
    // SAFETY: so many bytes of the buffer were filled.
    let written = unsafe { real::write(to, buffer.as_ptr().cast::<c_void>(), seen as usize) };
    if written <= 0 {
        return written;
    }
    let piece = [iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: written as usize }];
    let all = libc::MSG_WAITALL;
    let kernel = || {
        // SAFETY: as above.
        unsafe { real::recv(from, piece[0].iov_base, piece[0].iov_len, 0) }
    };
    receive_on(tcp, connection, from, &piece, all, kernel).result()
}
