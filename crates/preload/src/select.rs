//! select, said in terms of poll.
//!
//! Invariant: with no upgraded connection among the descriptors it is the C library's call; the
//! answer's bits and count are those of select(2).

use crate::clock::Limit;
use crate::errno;
use crate::own;
use crate::probe;
use crate::real;
use crate::wait::{is_ring, wait};
use libc::{c_int, c_short, fd_set, pollfd, sigset_t, timespec, timeval};

/// What makes a descriptor readable, writable, exceptional: as in the kernel's own select.
const READABLE: c_short = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
const WRITABLE: c_short = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
const EXCEPTIONAL: c_short = libc::POLLPRI;

/// The three sets of the program; each may be missing.
struct Sets([*mut fd_set; 3]);

impl Sets {
    fn has(&self, which: usize, fd: c_int) -> bool {
        let set = self.0[which];
        // SAFETY: null, or the program's set, which has room for every number below its count,
        // whatever FD_SETSIZE says: the bit is looked up by hand.
        !set.is_null() && unsafe { *bits(set).add(fd as usize / 64) } & (1 << (fd as usize % 64)) != 0
    }

    fn assign(&self, which: usize, fd: c_int, value: bool) {
        if !self.0[which].is_null() {
            // SAFETY: as above.
            unsafe {
                let word = bits(self.0[which]).add(fd as usize / 64);
                let bit = 1u64 << (fd as usize % 64);
                *word = if value { *word | bit } else { *word & !bit };
            }
        }
    }

    fn entries(&self, n: c_int) -> Vec<pollfd> {
        let asked = |fd| {
            let events = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
            (0..3).filter(|which| self.has(*which, fd)).fold(0, |all, which| all | events[which])
        };
        (0..n).map(|fd| pollfd { fd, events: asked(fd), revents: 0 }).filter(|entry| entry.events != 0).collect()
    }

    fn any_ring(&self, n: c_int) -> bool {
        let bytes = (n.max(0) as usize).div_ceil(64) * 8;
        let there = |set: &*mut fd_set| set.is_null() || probe::readable_bytes(set.cast(), bytes);
        own::active()
            && self.0.iter().all(there)
            && (0..n).any(|fd| (0..3).any(|which| self.has(which, fd)) && is_ring(fd))
    }

    /// Writes the answer; says how many bits it has.
    fn answer(&self, entries: &[pollfd]) -> c_int {
        let mut count = 0;
        for entry in entries {
            for (which, bits) in [READABLE, WRITABLE, EXCEPTIONAL].into_iter().enumerate() {
                let holds = self.has(which, entry.fd) && entry.revents & bits != 0;
                self.assign(which, entry.fd, holds);
                count += c_int::from(holds);
            }
        }
        count
    }
}

fn bits(set: *mut fd_set) -> *mut u64 {
    set.cast()
}

fn run(sets: &Sets, n: c_int, limit: Limit, mask: Option<&sigset_t>) -> c_int {
    let mut entries = sets.entries(n);
    let result = wait(&mut entries, limit, mask);
    if result < 0 {
        return result;
    }
    if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return errno::fail(libc::EBADF) as c_int;
    }
    sets.answer(&entries)
}

/// Whether one of the descriptors is an upgraded connection.
///
/// # Safety
/// As select.
pub(crate) unsafe fn has_ring(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set) -> bool {
    Sets([r, w, e]).any_ring(n)
}

/// select.
///
/// # Safety
/// As select.
pub(crate) unsafe fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int {
    let sets = Sets([r, w, e]);
    if !sets.any_ring(n) {
        // SAFETY: the caller's promise.
        return unsafe { real::select(n, r, w, e, timeout) };
    }
    if !probe::readable_or_null(timeout) {
        return errno::fail(libc::EFAULT) as c_int;
    }
    // SAFETY: the caller's promise: null, or a time.
    let time = unsafe { timeout.as_mut() };
    // Microseconds may be more than a second here.
    let spec = time.as_ref().map(|t| timespec {
        tv_sec: t.tv_sec.saturating_add(t.tv_usec / 1_000_000),
        tv_nsec: t.tv_usec % 1_000_000 * 1000,
    });
    // SAFETY: null, or a time of ours.
    let limit = unsafe { Limit::timespec(spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)) };
    let limit = match limit {
        Ok(limit) => limit,
        Err(code) => return errno::fail(code) as c_int,
    };
    let result = run(&sets, n, limit, None);
    if let (Some(time), Some(left)) = (time, limit.left()) {
        // Linux says what was left.
        *time = timeval { tv_sec: left.tv_sec, tv_usec: left.tv_nsec / 1000 };
    }
    result
}

/// pselect.
///
/// # Safety
/// As pselect.
pub(crate) unsafe fn pselect(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = Sets([r, w, e]);
    if !sets.any_ring(n) || !probe::readable_or_null(mask) {
        // SAFETY: the caller's promise.
        return unsafe { real::pselect(n, r, w, e, timeout, mask) };
    }
    // SAFETY: the caller's promise: null, a time, or what the kernel refuses; null, or a mask that
    // can be read.
    match unsafe { (Limit::timespec(timeout), mask.as_ref()) } {
        (Ok(limit), mask) => run(&sets, n, limit, mask),
        (Err(code), _) => errno::fail(code) as c_int,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_the_bits_of_select() {
        // SAFETY: all zero is an empty set.
        let mut read: fd_set = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut write: fd_set = unsafe { std::mem::zeroed() };
        // SAFETY: numbers below FD_SETSIZE, sets of ours.
        unsafe {
            libc::FD_SET(3, &raw mut read);
            libc::FD_SET(70, &raw mut read);
            libc::FD_SET(70, &raw mut write);
        }
        let sets = Sets([&raw mut read, &raw mut write, std::ptr::null_mut()]);
        let mut entries = sets.entries(100);
        assert_eq!(
            entries.iter().map(|e| (e.fd, e.events)).collect::<Vec<_>>(),
            [(3, libc::POLLIN), (70, libc::POLLIN | libc::POLLOUT)]
        );
        entries[1].revents = libc::POLLHUP | libc::POLLOUT;
        assert_eq!(sets.answer(&entries), 2);
        // SAFETY: as above.
        unsafe { assert!(!libc::FD_ISSET(3, &raw const read) && libc::FD_ISSET(70, &raw const read)) };
    }
}
