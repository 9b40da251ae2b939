//! What this process has once: its side of the sockets service, and descriptors of our own in
//! somebody else's process.
//!
//! Invariant: our descriptors lie at the top of the range that the program may use, so that it gets
//! the numbers it would get without us, and it can neither close nor replace them. Our own code
//! may: [`Inside`] says that it runs.

use crate::config::config;
use crate::limits::{OWN_DESCRIPTORS, OWN_TOP_MAX};
use crate::real;
use crate::table::{self, Entry};
use libc::c_int;
use std::cell::Cell;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;
use vmmc_sockets::{Context, Settings};

static CONTEXT: OnceLock<Context> = OnceLock::new();
static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Reads the environment while it is what `vmmc exec` made it: nginx, for one, clears it.
pub(crate) fn load() {
    settings();
    // Made here and not at its first use, which a signal handler could interrupt.
    context();
    crate::members::load();
}

fn settings() -> &'static Settings {
    SETTINGS.get_or_init(|| Settings {
        keep_fd: keep_owned,
        is_interrupted: crate::cancel::is_cancelled,
        is_nested: Inside::is_nested,
        wait_socket: crate::wait::socket,
        ..Settings::from_env()
    })
}

/// The sockets side of this process; making it talks to nobody.
pub(crate) fn context() -> &'static Context {
    CONTEXT.get_or_init(|| Context::new(settings().clone()))
}

/// It, if it was made.
pub(crate) fn context_if_made() -> Option<&'static Context> {
    CONTEXT.get()
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// About where the stack was when the outermost of our calls began.
    static OUTERMOST: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, what this thread closes is closed by us, not by the program.
pub(crate) struct Inside;

impl Inside {
    /// Our own code begins.
    pub(crate) fn enter() -> Inside {
        DEPTH.with(|depth| {
            if depth.get() == 0 {
                let here = 0u8;
                OUTERMOST.set((&raw const here).addr());
            }
            depth.set(depth.get() + 1);
        });
        Inside
    }

    /// Whether our own code runs twice in this thread: below a signal handler that interrupted it.
    pub(crate) fn is_nested() -> bool {
        DEPTH.get() > 1
    }

    /// The program jumps (`longjmp`) to where its stack is at `to`: out of our calls, if these are
    /// below. What they held stays held; see [`Settings::is_nested`].
    pub(crate) fn jumps(to: usize) {
        if DEPTH.get() > 0 && to > OUTERMOST.get() && !is_of_handlers(to) {
            DEPTH.set(0);
        }
    }

    /// Whether our own code runs.
    pub(crate) fn here() -> bool {
        DEPTH.with(|depth| depth.get() > 0)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// Whether an address lies on the stack that signal handlers of this thread run on, and one does
/// now.
fn is_of_handlers(address: usize) -> bool {
    // SAFETY: all zero is a valid value of this plain structure, and the call writes it.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let known = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) } == 0;
    known && stack.ss_flags & libc::SS_ONSTACK != 0 && address.wrapping_sub(stack.ss_sp.addr()) <= stack.ss_size
}

fn keep_owned(fd: OwnedFd) -> OwnedFd {
    let fd = keep(fd.into_raw_fd());
    // SAFETY: `keep` gives back a descriptor that is open and ours alone.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Moves a descriptor to where the program does not see it, and protects it.
pub(crate) fn keep(fd: c_int) -> c_int {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    let top = if known { limit.rlim_cur.min(OWN_TOP_MAX) as c_int } else { OWN_DESCRIPTORS * 2 };
    // Those of a program with hundreds of peers lie below the others.
    let places = [top - OWN_DESCRIPTORS, top / 4 * 3];
    // SAFETY: numbers only.
    let move_to = |from: c_int| unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, from.max(3) as usize) };
    let Some(moved) = places.into_iter().map(move_to).find(|moved| *moved >= 0) else {
        table::put(fd, Entry::Own);
        return fd;
    };
    // SAFETY: the number is ours; nobody else knows it.
    unsafe { real::close(fd) };
    table::put(moved, Entry::Own);
    moved
}

/// Whether anything of ours can happen in this process.
pub(crate) fn active() -> bool {
    config().active
}
