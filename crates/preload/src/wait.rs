//! poll: waiting for several descriptors at once.
//!
//! Invariant: with no upgraded connection among the descriptors it is the C library's call.
//! Otherwise connections with a direction in the ring are judged by [`crate::readiness`], and the
//! kernel watches them for what it alone knows; a bell of the call's own stands for the rings while
//! it sleeps.

use crate::clock::Limit;
use crate::errno;
use crate::limits::{FOR_EVER, FULL_SLICES, POLL_SLICE_MS, SPARE_BELLS};
use crate::own::{self, Inside};
use crate::readiness::{self, INPUT, OUTPUT};
use crate::reason::{self, Reason};
use crate::tcp::{Held, Side, borrowed};
use crate::{probe, real, table};
use libc::{c_int, c_short, nfds_t, pollfd, sigset_t, timespec};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{AcqRel, Relaxed},
};
use vmmc_host::{Deadline, Nanos};
use vmmc_sockets::limits::FULL_TIME_NS;
use vmmc_sockets::{Connection, ReadySet, Waited};

/// poll.
///
/// # Safety
/// As poll.
pub(crate) unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { rings(fds, count) } {
        // SAFETY: the caller's promise.
        Some(fds) => wait(fds, Limit::millis(timeout), None),
        // SAFETY: the caller's promise.
        None => unsafe { real::poll(fds, count, timeout) },
    }
}

/// ppoll.
///
/// # Safety
/// As ppoll.
pub(crate) unsafe fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    // SAFETY: the caller's promise.
    if let Some(fds) = unsafe { rings(fds, count) } {
        // SAFETY: the caller's promise: null, a time, or what the kernel refuses.
        match unsafe { Limit::timespec(timeout) } {
            // SAFETY: the caller's promise: null, or a mask that can be read.
            Ok(limit) if probe::readable_or_null(mask) => return wait(fds, limit, unsafe { mask.as_ref() }),
            Ok(_) => {}
            Err(code) => return errno::fail(code) as c_int,
        }
    }
    // SAFETY: the caller's promise.
    unsafe { real::ppoll(fds, count, timeout, mask) }
}

/// Waits for one socket by the C library's own call, in which a thread can be cancelled.
pub(crate) fn socket(fd: BorrowedFd<'_>, what: PollFlags, deadline: Deadline) -> Result<bool, Errno> {
    let left = deadline.left(Nanos::monotonic()).unwrap_or_default();
    let timeout = timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
    let mut entry = pollfd { fd: fd.as_raw_fd(), events: what.bits() as _, revents: 0 };
    // SAFETY: an entry and a time of ours.
    match unsafe { real::ppoll(&raw mut entry, 1, &raw const timeout, std::ptr::null()) } {
        -1 => Err(Errno::from_raw_os_error(errno::current())),
        ready => Ok(ready > 0),
    }
}

/// Whether one of them is an upgraded connection.
///
/// # Safety
/// As poll.
pub(crate) unsafe fn has_ring(fds: *mut pollfd, count: nfds_t) -> bool {
    // SAFETY: the caller's promise.
    unsafe { rings(fds, count) }.is_some()
}

/// The descriptors, if one of them is an upgraded connection.
///
/// # Safety
/// As poll.
unsafe fn rings<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let bytes = (count as usize).saturating_mul(size_of::<pollfd>());
    if fds.is_null() || count == 0 || !own::active() || !probe::readable_bytes(fds.cast(), bytes) {
        return None;
    }
    // SAFETY: the caller's promise: so many entries.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    fds.iter().any(|entry| is_ring(entry.fd)).then_some(fds)
}

/// Whether a descriptor cannot be waited for in the kernel alone. An epoll set that is waited for
/// is nested from now on.
pub(crate) fn is_ring(fd: c_int) -> bool {
    match table::entry(fd) {
        table::Entry::Connection(_) => table::connection(fd).is_some_and(|tcp| !tcp.is_plain()),
        table::Entry::Set(_) => {
            if let Some(set) = table::set(fd) {
                let _inside = Inside::enter();
                set.nest();
            }
            false
        }
        _ => false,
    }
}

/// Bells of waits that are over, as boxes: taken while a wait is under way, so that a wait in a
/// signal handler, or of another thread, takes another one or makes its own.
static SPARE: [AtomicPtr<ReadySet>; SPARE_BELLS] = [const { AtomicPtr::new(null_mut()) }; SPARE_BELLS];

/// A bell of an earlier wait. After a fork it would ring in the parent.
fn spare_bell() -> Option<Box<ReadySet>> {
    let taken = SPARE.iter().find_map(|place| {
        let bell = place.swap(null_mut(), AcqRel);
        // SAFETY: `cache_bell` put a box here, which the exchange made ours.
        (!bell.is_null()).then(|| unsafe { Box::from_raw(bell) })
    });
    taken.filter(|bell| bell.is_of(own::context()))
}

fn cache_bell(bell: Box<ReadySet>) {
    // Another one may be reported at once.
    if bell.is_scarce() || bell.is_deaf() {
        return;
    }
    let bell = Box::into_raw(bell);
    if !SPARE.iter().any(|place| place.compare_exchange(null_mut(), bell, AcqRel, Relaxed).is_ok()) {
        // SAFETY: as it was a moment ago.
        drop(unsafe { Box::from_raw(bell) });
    }
}

/// One connection that is waited for.
struct Watched {
    /// Its place among the descriptors.
    at: usize,
    tcp: Held,
    /// The kernel spoke, and there was nothing to report: not asked again in this call.
    spoke: bool,
}

/// Waits for descriptors, some of which are upgraded connections.
pub(crate) fn wait(fds: &mut [pollfd], limit: Limit, mask: Option<&sigset_t>) -> c_int {
    let _inside = Inside::enter();
    if let ([entry], None) = (&mut *fds, mask) {
        if let Some(found) = single(entry, limit) {
            return found;
        }
    }
    let Some(bell) = spare_bell().or_else(|| own::context().ready_set().ok().map(Box::new)) else {
        reason::count(Reason::Full);
        return slices(fds, limit, mask);
    };
    let mut watched = Vec::new();
    let mut all = true;
    for (at, entry) in fds.iter().enumerate() {
        let Some(tcp) = table::connection(entry.fd).filter(|tcp| !tcp.is_plain()) else { continue };
        if let Some(connection) = tcp.connection() {
            all &= bell.add(connection, at as u32, readiness::interest(entry.events as u16 as u32)).is_ok();
        }
        watched.push(Watched { at, tcp, spoke: false });
    }
    let result = if all { with_bell(fds, &mut watched, &bell, limit, mask) } else { slices(fds, limit, mask) };
    let kept = errno::Kept::now();
    watched.iter().filter_map(|one| one.tcp.connection()).for_each(|connection| bell.remove(connection));
    cache_bell(bell);
    drop(kept);
    result
}

/// Waits for one direction of one connection, as a blocking call does: that needs no bell, and
/// there are as many threads as may be. None: it takes more than that.
fn single(entry: &mut pollfd, limit: Limit) -> Option<c_int> {
    let events = u32::from(entry.events as u16);
    let side = match (events & INPUT, events & OUTPUT) {
        (input, 0) if input & (libc::EPOLLIN | libc::EPOLLRDNORM) as u32 != 0 => Side::Receive,
        (0, 1..) => Side::Send,
        _ => return None,
    };
    let tcp = table::connection(entry.fd)?;
    let connection = tcp.connection()?;
    loop {
        let state = connection.state(own::context(), borrowed(entry.fd));
        if readiness::kernel_part(&state) & events != 0 {
            return None;
        }
        entry.revents = readiness::bits_of(&state, entry.fd, events, None) as c_short;
        if entry.revents != 0 || limit.is_over() {
            return Some(c_int::from(entry.revents != 0));
        }
        // With an end, even a far one, a signal handler interrupts it, as it does poll.
        let deadline = Some(Deadline::after(limit.duration().unwrap_or(FOR_EVER)));
        let waited = match side {
            Side::Receive => connection.wait_readable(own::context(), borrowed(entry.fd), deadline),
            Side::Send => connection.wait_writable(own::context(), borrowed(entry.fd), deadline),
        };
        match waited {
            Waited::Ready | Waited::TimedOut => {}
            Waited::Interrupted => return Some(errno::fail(libc::EINTR) as c_int),
            Waited::Closed => {
                entry.revents = libc::POLLNVAL;
                return Some(1);
            }
        }
    }
}

fn with_bell(
    fds: &mut [pollfd],
    watched: &mut [Watched],
    bell: &ReadySet,
    limit: Limit,
    mask: Option<&sigset_t>,
) -> c_int {
    let mut kernel: Vec<pollfd> = fds.to_vec();
    kernel.push(pollfd { fd: bell.bell().as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let mut full_polls = 0;
    loop {
        bell.take(&mut |_| {});
        let ready = judge(fds, watched, &mut kernel);
        let others = kernel.len() - 1 > watched.len();
        if (ready > 0 || limit == Limit::Now) && !others {
            return ready;
        }
        if ready > 0 || others {
            let n = ask(&mut kernel, Limit::Now, mask);
            if n < 0 && ready == 0 {
                return n;
            }
            let found = merge(fds, watched, &kernel, n);
            if found > 0 || limit.is_over() {
                return found;
            }
        }
        if limit != Limit::Now && bell.poll(own::context(), limit.deadline()) {
            continue;
        }
        let mut n = 0;
        let between = own::context().has_between();
        if limit != Limit::Now && between {
            bell.poll_kernel(|| {
                n = ask(&mut kernel, Limit::Now, mask);
                n != 0
            });
        }
        if n == 0 {
            if bell.arm() {
                bell.disarm();
                continue;
            }
            let full = is_full(fds, watched);
            let sleep = if full { limit.at_most(FULL_TIME_NS << full_polls.min(FULL_SLICES)) } else { limit };
            full_polls += u32::from(full);
            n = ask(&mut kernel, sleep.for_sleep_with(bell), mask);
            let kept = errno::Kept::now();
            bell.disarm();
            if n == 0 && between {
                own::context().check_node();
            }
            drop(kept);
        }
        if n < 0 {
            return n;
        }
        if n > 0 && between {
            bell.returned();
        }
        silence(&kernel);
        listen(watched, &kernel);
        let ready = judge(fds, watched, &mut kernel);
        let found = merge(fds, watched, &kernel, n);
        if ready > 0 || found > 0 || limit.is_over() {
            return found;
        }
        quiet(watched, &mut kernel);
    }
}

/// Puts what holds now for connections into the program's entries, and what the kernel must watch
/// into ours. Says how many are ready.
fn judge(fds: &mut [pollfd], watched: &[Watched], kernel: &mut [pollfd]) -> c_int {
    let mut ready = 0;
    for one in watched {
        let entry = &mut fds[one.at];
        let Some(connection) = one.tcp.connection() else { continue };
        let events = u32::from(entry.events as u16);
        let state = connection.state(own::context(), borrowed(entry.fd));
        entry.revents = readiness::bits_of(&state, entry.fd, events, None) as c_short;
        ready += c_int::from(entry.revents != 0);
        let own = readiness::kernel_part(&state) & events;
        // Of the death of the other end the kernel may say no more than that it sends nothing any
        // more.
        kernel[one.at].events = (own & (INPUT | OUTPUT)) as c_short | libc::POLLRDHUP;
        kernel[one.at].fd = if one.spoke { -1 } else { entry.fd };
    }
    ready
}

/// Whether a ring is full that room is waited for: nobody rings when its reader takes nothing for
/// so long that it is left for the kernel.
fn is_full(fds: &[pollfd], watched: &[Watched]) -> bool {
    let waits = |one: &&Watched| u32::from(fds[one.at].events as u16) & OUTPUT != 0;
    let mut connections = watched.iter().filter(waits).filter_map(|one| one.tcp.connection());
    connections.any(Connection::has_full_ring)
}

fn ask(kernel: &mut [pollfd], limit: Limit, mask: Option<&sigset_t>) -> c_int {
    let left = limit.left();
    let left = left.as_ref().map_or(null(), std::ptr::from_ref);
    let mask = mask.map_or(null(), std::ptr::from_ref);
    // SAFETY: the entries are ours; the mask is the program's.
    unsafe { real::ppoll(kernel.as_mut_ptr(), kernel.len() as nfds_t, left, mask) }
}

/// The kernel reported connections: the next poll of them asks it.
fn listen(watched: &[Watched], kernel: &[pollfd]) {
    for one in watched.iter().filter(|one| kernel[one.at].revents != 0 && kernel[one.at].fd >= 0) {
        if let Some(connection) = one.tcp.connection() {
            connection.kernel_event(borrowed(kernel[one.at].fd));
        }
    }
}

/// The kernel spoke about connections that have nothing to report: it would do so again at once.
fn quiet(watched: &mut [Watched], kernel: &mut [pollfd]) {
    for one in watched {
        // What it was asked about for the program is not there any more.
        let (asked, said) = (kernel[one.at].events, kernel[one.at].revents);
        let passed = asked & libc::POLLIN != 0 && said & !(libc::POLLIN | libc::POLLRDNORM) == 0;
        if said != 0 && !passed {
            one.spoke = true;
            kernel[one.at].fd = -1;
        }
    }
}

/// Takes back the ringing of the bell, which is the last entry.
fn silence(kernel: &[pollfd]) {
    if let Some(bell) = kernel.last().filter(|bell| bell.revents != 0) {
        let mut count = 0u64;
        // SAFETY: eight bytes of ours; the bell never blocks.
        unsafe { real::read(bell.fd, (&raw mut count).cast(), size_of::<u64>()) };
    }
}

/// The program's entries, with the kernel's answers about the others. Says how many have something.
fn merge(fds: &mut [pollfd], watched: &[Watched], kernel: &[pollfd], n: c_int) -> c_int {
    let mut own = watched.iter().map(|one| one.at).peekable();
    let mut found = 0;
    for (at, entry) in fds.iter_mut().enumerate() {
        if own.peek() == Some(&at) {
            own.next();
        } else {
            entry.revents = if n > 0 { kernel[at].revents } else { 0 };
        }
        found += c_int::from(entry.revents != 0);
    }
    found
}

/// Without a bell: polls again and again, with short sleeps in the kernel.
fn slices(fds: &mut [pollfd], limit: Limit, mask: Option<&sigset_t>) -> c_int {
    let watched: Vec<Watched> = fds
        .iter()
        .enumerate()
        .filter_map(|(at, entry)| Some(Watched { at, tcp: table::connection(entry.fd)?, spoke: false }))
        .filter(|one| !one.tcp.is_plain())
        .collect();
    let mut kernel = fds.to_vec();
    let mut slice = Limit::Now;
    loop {
        let n = ask(&mut kernel, slice, mask);
        if n < 0 {
            return n;
        }
        listen(&watched, &kernel);
        judge(fds, &watched, &mut kernel);
        let found = merge(fds, &watched, &kernel, n);
        if found > 0 || limit.is_over() {
            return found;
        }
        slice = match limit.left_ms() {
            left @ 0..POLL_SLICE_MS => Limit::millis(left.max(1)),
            _ => Limit::millis(POLL_SLICE_MS),
        };
    }
}
