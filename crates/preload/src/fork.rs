//! fork, vfork and exec.
//!
//! Invariant: the child of a vfork, which runs on its parent's memory, never changes the table.

use crate::reason::Reason;
use crate::table::{self, CONNECTIONS, Entry, SETS};
use libc::{c_int, pid_t};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The process that the table belongs to.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Registers the handlers of fork.
pub(crate) fn install() {
    OWNER.store(own_pid(), Relaxed);
    // SAFETY: the handlers are functions without arguments that live as long as the library, which is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

fn own_pid() -> pid_t {
    // SAFETY: no arguments. A system call each time: the C library's is not cached either, and only ends and copies of connections ask.
    unsafe { libc::getpid() }
}

/// Whether this is the child of a vfork: another process on the owner's memory.
pub(crate) fn borrowed_memory() -> bool {
    own_pid() != OWNER.load(Relaxed)
}

unsafe extern "C" fn in_child() {
    OWNER.store(own_pid(), Relaxed);
    CONNECTIONS.forget_calls();
    SETS.forget_calls();
}

/// Another program takes over: what it inherits goes back to the kernel.
pub(crate) fn before_exec() {
    for (fd, entry) in table::known(0, c_int::MAX) {
        if matches!(entry, Entry::Connection(_)) && inherited(fd) {
            if let Some(connection) = table::connection(fd) {
                connection.leave(fd, Reason::Exec);
            }
        }
    }
}

fn inherited(fd: c_int) -> bool {
    // SAFETY: numbers only.
    let flags = unsafe { crate::real::fcntl(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}
