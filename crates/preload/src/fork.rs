//! fork, vfork and exec.
//!
//! Invariant: the child of a vfork, which runs on its parent's memory, never changes the table. The child of a fork finds every lock free and no call in progress.
//! Whatever another program inherits is with the kernel before it starts.

use crate::own::{self, Inside};
use crate::reason::Reason;
use crate::table::{self, CONNECTIONS, Entry, SETS};
use crate::tcp::Held;
use crate::{arena::Pin, set::Set, tcp};
use libc::{c_int, pid_t};
use std::cell::RefCell;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use vmmc_sockets::Connection;

/// The process that the table belongs to.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// What the forking thread holds meanwhile.
#[derive(Default)]
struct Forking {
    connections: Vec<Held>,
    sets: Vec<Pin<Set>>,
}

thread_local! {
    static FORKING: RefCell<Forking> = const { RefCell::new(Forking { connections: Vec::new(), sets: Vec::new() }) };
}

/// Registers the handlers of fork.
pub(crate) fn install() {
    OWNER.store(own_pid(), Relaxed);
    // SAFETY: the handlers are functions without arguments that live as long as the library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

fn own_pid() -> pid_t {
    // SAFETY: no arguments. A system call each time: the C library's is not cached either, and only ends and copies of connections ask.
    unsafe { libc::getpid() }
}

/// Whether this is the child of a vfork: another process on the owner's memory.
pub(crate) fn borrowed_memory() -> bool {
    own_pid() != OWNER.load(Relaxed)
}

unsafe extern "C" fn before() {
    let _inside = Inside::enter();
    let forking = Forking { connections: CONNECTIONS.each().collect(), sets: SETS.each().collect() };
    forking.sets.iter().for_each(|set| set.members.take());
    if let Some(context) = own::context_if_made() {
        context.before_fork(&cores(&forking.connections));
    }
    FORKING.with(|place| place.replace(forking));
}

unsafe extern "C" fn in_parent() {
    let _inside = Inside::enter();
    let forking = FORKING.with(RefCell::take);
    if let Some(context) = own::context_if_made() {
        context.after_fork_parent(true, &cores(&forking.connections));
    }
    forking.sets.iter().for_each(|set| set.members.give_back());
    forking.connections.iter().for_each(|connection| connection.share());
}

unsafe extern "C" fn in_child() {
    let _inside = Inside::enter();
    OWNER.store(own_pid(), Relaxed);
    let forking = FORKING.with(RefCell::take);
    if let Some(context) = own::context_if_made() {
        context.after_fork_child(&cores(&forking.connections));
    }
    for set in &forking.sets {
        set.members.give_back();
        set.inherit();
    }
    forking.connections.iter().for_each(|connection| connection.share());
    // Calls in progress, ours among them, are forgotten all at once.
    forking.connections.into_iter().for_each(std::mem::forget);
    forking.sets.into_iter().for_each(std::mem::forget);
    CONNECTIONS.forget_calls();
    SETS.forget_calls();
}

fn cores(connections: &[Held]) -> Vec<&Connection> {
    connections.iter().filter_map(|connection| connection.connection()).collect()
}

/// Another program takes over, or is started with what is not marked close-on-exec: what it inherits goes back to the kernel.
pub(crate) fn before_exec() {
    for (fd, entry) in table::known(0, c_int::MAX) {
        if matches!(entry, Entry::Connection(_)) && inherited(fd) {
            if let Some(connection) = table::connection(fd) {
                connection.leave(fd, Reason::Exec);
            }
        }
    }
}

/// The process ends in order: the kernel closes its sockets, and nobody would tell the peers.
pub(crate) fn before_exit() {
    if !borrowed_memory() {
        tcp::close_all();
    }
}

fn inherited(fd: c_int) -> bool {
    // SAFETY: numbers only.
    let flags = unsafe { crate::real::fcntl(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}
