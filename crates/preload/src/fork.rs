//! fork, vfork and exec.
//!
//! Invariant: the child of a vfork, which runs on its parent's memory, never changes the table. The
//! child of a fork finds every lock free and no call in progress. Whatever another program inherits
//! is with the kernel before it starts.

use crate::arena::{Index, Pin};
use crate::errno::Kept;
use crate::own::{self, Inside};
use crate::program::{self, Named, Words};
use crate::reason::Reason;
use crate::set::{self, Set};
use crate::table::{self, CONNECTIONS, Entry, SETS};
use crate::tcp::{self, Held};
use libc::{c_int, c_long, pid_t, sigset_t};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use vmmc_host::Deadline;
use vmmc_sockets::limits::ADOPT_TIME;
use vmmc_sockets::{Connection, Forking};

/// The process that the table belongs to.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// What the forking thread holds meanwhile. `core` refers to what `connections` keep, so it comes
/// first, and goes first.
struct InProgress {
    core: Option<Forking<'static>>,
    connections: Vec<Held>,
    /// Each with whether the fork took its lock: a section of this very thread may have it, which
    /// the fork's signal handler interrupted.
    sets: Vec<(Pin<Set>, bool)>,
    making: bool,
    /// Signals that were let through before the fork.
    signals: sigset_t,
}

thread_local! {
    /// A box, from before a fork until after it. No handler runs meanwhile.
    static FORKING: Cell<*mut InProgress> = const { Cell::new(null_mut()) };
}

fn in_progress() -> Option<Box<InProgress>> {
    let forking = FORKING.replace(null_mut());
    // SAFETY: `before` put a box there, and it is taken once.
    (!forking.is_null()).then(|| unsafe { Box::from_raw(forking) })
}

fn block_signals() -> sigset_t {
    // SAFETY: all zero is an empty set; both sets are ours.
    unsafe {
        let (mut all, mut before): (sigset_t, sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn let_signals_through(before: &sigset_t) {
    // SAFETY: the set is ours.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, null_mut()) };
}

/// Registers the handlers of fork.
pub(crate) fn install() {
    OWNER.store(own_pid(), Relaxed);
    // SAFETY: the handlers are functions without arguments that live as long as the library, which
    // is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// A fork that runs no handlers.
pub(crate) fn around(fork: impl FnOnce() -> c_long) -> c_long {
    // SAFETY: the handlers, called as fork calls them: in this thread before, and after it in each
    // process.
    unsafe {
        before();
        let pid = fork();
        if pid == 0 {
            in_child()
        } else {
            in_parent()
        }
        pid
    }
}

/// The child of such a fork that does not return from it, but begins elsewhere, on a stack of its
/// own.
pub(crate) fn begins_elsewhere() {
    // SAFETY: the handler, called once in the new process.
    unsafe { in_child() }
}

fn own_pid() -> pid_t {
    // SAFETY: no arguments. A system call each time: the C library's is not cached either, and only
    // ends and copies of connections ask.
    unsafe { libc::getpid() }
}

/// Whether this is the child of a vfork: another process on the owner's memory.
pub(crate) fn borrowed_memory() -> bool {
    own_pid() != OWNER.load(Relaxed)
}

unsafe extern "C" fn before() {
    let _inside = Inside::enter();
    let signals = block_signals();
    let making = set::MAKING.take();
    let connections: Vec<Held> = CONNECTIONS.each().collect();
    let sets = SETS.each().map(|set| {
        let taken = set.members.take();
        (set, taken)
    });
    let sets: Vec<(Pin<Set>, bool)> = sets.collect();
    let core = own::context_if_made().map(|context| {
        let open = connections.iter().filter_map(|held| held.connection());
        // SAFETY: a connection lives as long as its object is pinned, and the pins outlive what
        // refers to it: `InProgress` drops `core` first, and the handlers below use it up before
        // they let go of the pins.
        context.before_fork(open.map(|connection| unsafe { &*std::ptr::from_ref::<Connection>(connection) }))
    });
    FORKING.set(Box::into_raw(Box::new(InProgress { core, connections, sets, making, signals })));
}

unsafe extern "C" fn in_parent() {
    let _inside = Inside::enter();
    let Some(forking) = in_progress() else { return };
    let InProgress { core, connections, sets, making, signals } = *forking;
    if let (Some(context), Some(core)) = (own::context_if_made(), core) {
        context.after_fork_parent(core);
    }
    sets.iter().filter(|(_, taken)| *taken).for_each(|(set, _)| set.members.release());
    if making {
        set::MAKING.release();
    }
    connections.iter().for_each(|connection| connection.share());
    drop((connections, sets));
    let_signals_through(&signals);
}

/// Takes entries out of the table whose descriptors are not here. The kernel copies the descriptors
/// of a process before its memory: what another thread opened in between stands in the table, and
/// its number is free here, or is still what that thread closed before.
fn take_foreign() -> Vec<Entry> {
    let is_own = |tcp: &Held, cookie| tcp.connection().is_none_or(|connection| connection.may_be(cookie));
    let is_foreign = |&(fd, entry): &(c_int, Entry)| match entry {
        Entry::Connection(_) => match vmmc_stream::cookie(tcp::borrowed(fd)) {
            Ok(cookie) => table::connection(fd).is_some_and(|tcp| !is_own(&tcp, cookie)),
            Err(_) => true,
        },
        Entry::Set(_) | Entry::Own => rustix::io::fcntl_getfd(tcp::borrowed(fd)).is_err(),
        Entry::Nothing => false,
    };
    table::known(0, c_int::MAX).filter(is_foreign).map(|(fd, _)| table::take(fd)).collect()
}

unsafe extern "C" fn in_child() {
    let _inside = Inside::enter();
    OWNER.store(own_pid(), Relaxed);
    vmmc_stream::forget_thread_id();
    let Some(forking) = in_progress() else { return };
    let InProgress { core, connections, sets, making, signals } = *forking;
    // First: what follows opens files of its own.
    let foreign = take_foreign();
    if let (Some(context), Some(core)) = (own::context_if_made(), core) {
        context.after_fork_child(core);
    }
    foreign.into_iter().for_each(Entry::release);
    for (set, taken) in &sets {
        if *taken {
            set.members.release();
        } else {
            set.members.keep_in_child();
        }
        set.inherit();
    }
    if making {
        set::MAKING.release();
    } else {
        set::MAKING.keep_in_child();
    }
    connections.iter().for_each(|connection| connection.share());
    // Calls in progress, ours among them, are forgotten all at once.
    connections.into_iter().for_each(std::mem::forget);
    sets.into_iter().for_each(std::mem::forget);
    CONNECTIONS.forget_calls();
    SETS.forget_calls();
    let_signals_through(&signals);
}

/// Another program is started with what is not marked close-on-exec. If it is one of ours, it goes
/// on with upgraded connections, and counts as a holder from now on; whatever else it inherits goes
/// back to the kernel.
///
/// # Safety
/// Name, words and environment are as the exec family takes them, or cannot be read.
pub(crate) unsafe fn before_spawn(named: Named, argv: Words, env: Words) {
    // SAFETY: the caller's promise.
    unsafe { hand_on(named, argv, env, true) };
}

/// Upgraded connections that another program goes on with.
///
/// # Safety
/// As [`before_spawn`].
unsafe fn hand_on(named: Named, argv: Words, env: Words, more: bool) -> Vec<Index> {
    let _inside = Inside::enter();
    let (mut refused, mut ours, mut node) = (None, None, None);
    let context = own::context();
    let mut handed = Vec::new();
    for (fd, entry) in table::known(0, c_int::MAX) {
        let Entry::Connection(index) = entry else { continue };
        let Some(tcp) = table::connection(fd).filter(|_| inherited(fd)) else { continue };
        if *refused.get_or_insert_with(|| program::is_refused(named, argv, env)) {
            // No program is started.
            break;
        }
        let goes_on = fd > libc::STDERR_FILENO
            && !tcp.is_plain()
            && tcp.has_no_reason_to_leave()
            // Without the node that knows of it nobody can tell the program where its bytes are.
            && tcp.connection().is_some_and(|connection| connection.can_be_followed(context))
            && *node.get_or_insert_with(|| context.node_answers())
            // SAFETY: the caller's promise, and all of it can be read.
            && *ours.get_or_insert_with(|| unsafe { program::is_ours(named, env) });
        if !goes_on {
            tcp.leave(fd, Reason::Exec);
        } else if !handed.contains(&index) {
            handed.push(index);
            tcp.share();
            tcp.connection().filter(|_| more).inspect(|connection| connection.passed());
        }
    }
    handed
}

/// This process becomes another program: as [`before_spawn`], and it ceases to hold the other
/// connections. Undone when the value is dropped, for then it did not become one.
///
/// # Safety
/// As [`before_spawn`].
pub(crate) unsafe fn before_exec(named: Named, argv: Words, env: Words) -> Leaving {
    // The memory of a vfork is the parent's, and so are its connections, which the parent keeps.
    let borrowed = borrowed_memory();
    // SAFETY: the caller's promise.
    unsafe { hand_on(named, argv, env, borrowed) };
    let Some(context) = own::context_if_made().filter(|_| !borrowed) else { return Leaving(Vec::new()) };
    let _inside = Inside::enter();
    let kept: Vec<Index> = table::known(0, c_int::MAX)
        .filter_map(|(fd, entry)| match entry {
            Entry::Connection(index) if inherited(fd) => Some(index),
            _ => None,
        })
        .collect();
    let leaves =
        |held: &Held| !kept.contains(&held.index()) && held.connection().is_some_and(|c| c.leave_at_exec(context));
    Leaving(CONNECTIONS.each().filter(leaves).collect())
}

/// This program has just been started: upgraded connections that came along go on here.
pub(crate) fn after_exec() {
    if !own::active() {
        return;
    }
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else { return };
    let fds = all.flatten().filter_map(|one| one.file_name().to_str()?.parse::<c_int>().ok());
    let mut known: Vec<(u64, c_int)> = Vec::new();
    // One for all: a node that hangs must not hang the program once for each.
    let deadline = Deadline::after(ADOPT_TIME);
    for fd in fds.filter(|fd| *fd > libc::STDERR_FILENO).collect::<Vec<_>>() {
        let Some(cookie) = tcp::upgraded_cookie(fd) else { continue };
        match known.iter().find(|(of, _)| *of == cookie) {
            Some((_, first)) => {
                let entry = table::entry(*first);
                entry.add();
                table::put(fd, entry);
            }
            None => {
                tcp::inherit(fd, deadline);
                known.push((cookie, fd));
            }
        }
    }
}

/// Connections that this process does not hold while it tries to become another program.
pub(crate) struct Leaving(Vec<Held>);

impl Drop for Leaving {
    fn drop(&mut self) {
        let kept = Kept::now();
        self.0.iter().filter_map(|held| held.connection()).for_each(Connection::back_from_exec);
        drop(kept);
    }
}

/// The process ends in order: the kernel closes its sockets, and nobody would notify the peers.
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
