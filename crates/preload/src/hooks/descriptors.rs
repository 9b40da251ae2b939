//! Hooks of the calls that close, copy and adjust descriptors.
//!
//! Invariant: the table follows the kernel: an entry goes before the kernel frees its number, and
//! comes after the kernel gave it.

use super::hook;
use crate::errno::Kept;
use crate::own::Inside;
use crate::reason::Reason;
use crate::table::{self, Entry};
use crate::{fork, options, real, tcp};
use libc::{c_char, c_int, c_uint, c_ulong};

/// closefrom, and close_range without an end.
const LAST: c_uint = c_int::MAX as c_uint;

hook! { fn close(fd: c_int) -> c_int {
    match table::entry(fd) {
        Entry::Nothing => real::close(fd),
        Entry::Own if Inside::here() => {
            table::take(fd);
            real::close(fd)
        }
        // The program does not know this one: to it, it is not open.
        Entry::Own => crate::errno::fail(libc::EBADF) as c_int,
        _ if fork::borrowed_memory() => real::close(fd),
        _ => {
            forget(fd);
            real::close(fd)
        }
    }
} }

/// A descriptor that is still open ceases to be what it was.
pub(super) fn forget(fd: c_int) {
    let kept = Kept::now();
    let entry = table::take(fd);
    tcp::closing(fd, entry);
    entry.release();
    drop(kept);
}

/// A descriptor ceases to be a connection, and its peer sees a reset.
pub(super) fn dissolve(fd: c_int) {
    let kept = Kept::now();
    if table::connection(fd).is_some() {
        let entry = table::take(fd);
        tcp::stays(fd, entry, true);
        entry.release();
    }
    drop(kept);
}

hook! { fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    close_all(first, last, flags)
} }

hook! { fn closefrom(first: c_int) -> () {
    close_all(first.max(0) as c_uint, LAST, 0);
} }

/// Closes a range around the descriptors of our own.
///
/// # Safety
/// As close_range.
unsafe fn close_all(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    if first > last || flags & !(CLOEXEC | libc::CLOSE_RANGE_UNSHARE as c_int) != 0 {
        // SAFETY: the caller's promise; the kernel refuses it and closes nothing.
        return unsafe { real::close_range(first, last, flags) };
    }
    let ours = !fork::borrowed_memory();
    let mut from = first;
    for (fd, entry) in table::known(first.min(LAST) as c_int, last.min(LAST) as c_int) {
        if entry == Entry::Own {
            if fd as c_uint > from {
                // SAFETY: the caller's promise, for a part of the range.
                unsafe { real::close_range(from, fd as c_uint - 1, flags) };
            }
            from = fd as c_uint + 1;
        } else if ours && flags & CLOEXEC == 0 {
            forget(fd);
        }
    }
    if from > first && from > last {
        return 0;
    }
    // SAFETY: as above.
    unsafe { real::close_range(from, last, flags) }
}

hook! { fn dup(fd: c_int) -> c_int {
    copied(fd, real::dup(fd))
} }

hook! { fn dup2(from: c_int, to: c_int) -> c_int {
    if from == to { real::dup2(from, to) } else { replaced(from, to, || real::dup2(from, to)) }
} }

hook! { fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // What the kernel refuses replaces nothing.
    let refused = from == to || flags & !libc::O_CLOEXEC != 0;
    if refused { real::dup3(from, to, flags) } else { replaced(from, to, || real::dup3(from, to, flags)) }
} }

/// `new` is what `fd` is.
fn copied(fd: c_int, new: c_int) -> c_int {
    if new >= 0 && !fork::borrowed_memory() {
        let entry = referenced(fd);
        if entry != Entry::Nothing || table::entry(new) != Entry::Nothing {
            table::put(new, entry);
        }
    }
    new
}

/// `to` becomes what `from` is, if the kernel agrees.
fn replaced(from: c_int, to: c_int, kernel: impl FnOnce() -> c_int) -> c_int {
    let (source, target) = (table::entry(from), table::entry(to));
    if source == Entry::Nothing && target == Entry::Nothing {
        return kernel();
    }
    if source == Entry::Own {
        return crate::errno::fail(libc::EBADF) as c_int;
    }
    if target == Entry::Own {
        // Nothing of ours can move while others use it: the number is as if it were above the
        // limit.
        return crate::errno::fail(libc::EMFILE) as c_int;
    }
    if fork::borrowed_memory() || to <= libc::STDERR_FILENO {
        // The copy is for another program, or for the C library's streams, which we cannot stand in
        // front of.
        if let Some(connection) = table::connection(from) {
            connection.leave(from, Reason::StandardStream);
        }
        if fork::borrowed_memory() {
            return kernel();
        }
    }
    // The copy will succeed: one is open and the other one is, too. What `to` was ends before the
    // kernel lets go of it. SAFETY: numbers only.
    if unsafe { real::fcntl(from, libc::F_GETFD, 0) } >= 0 {
        forget(to);
    }
    let result = kernel();
    if result >= 0 {
        table::put(to, referenced(from));
    }
    result
}

/// What a descriptor is, with one more reference.
fn referenced(fd: c_int) -> Entry {
    // Held, so that a close by another thread does not end it in between.
    let held = (table::connection(fd), table::set(fd));
    let entry = match &held {
        (Some(connection), _) => Entry::Connection(connection.index()),
        (_, Some(set)) => Entry::Set(set.index()),
        _ => Entry::Nothing,
    };
    entry.add();
    entry
}

hook! { fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    control(fd, command, argument)
} }

hook! { fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    control(fd, command, argument)
} }

/// # Safety
/// As fcntl.
unsafe fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { real::fcntl(fd, command, argument) };
    if result >= 0 && matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return copied(fd, result);
    }
    if result == 0 && command == libc::F_SETFL {
        options::status_flags_set(fd, argument as c_int);
    }
    result
}

hook! { fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    options::ioctl(fd, request, argument)
} }

hook! { fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    // Streams of the C library make their system calls themselves.
    if let Some(connection) = table::connection(fd) {
        connection.leave(fd, Reason::StandardStream);
        drop(connection);
        let entry = table::take(fd);
        tcp::stays(fd, entry, false);
        entry.release();
    }
    real::fdopen(fd, mode)
} }
