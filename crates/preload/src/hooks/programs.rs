//! Hooks of exec, posix_spawn, system and popen: what happens to connections when another program
//! takes over.
//!
//! Invariant: a connection that another program would inherit is with the kernel before it starts,
//! unless that program is one of ours and finds it by its mark. Descriptors marked close-on-exec do
//! not matter.

use super::hook;
use crate::program::{Named, Words};
use crate::{cancel, fork, probe, real, reason::Reason, table};
use libc::{c_char, c_int, c_void, pid_t, pthread_t};
use std::ffi::CStr;
use std::ptr::null;

unsafe extern "C" {
    static environ: Words;
}

hook! { fn execve(path: *const c_char, argv: Words, env: Words) -> c_int {
    let _undone_if_it_fails = fork::before_exec(Named::Path(path), argv, env);
    real::execve(path, argv, env)
} }

hook! { fn execv(path: *const c_char, argv: Words) -> c_int {
    let _undone_if_it_fails = fork::before_exec(Named::Path(path), argv, environ);
    real::execve(path, argv, environ)
} }

hook! { fn execvp(file: *const c_char, argv: Words) -> c_int {
    let _undone_if_it_fails = fork::before_exec(Named::Searched(file), argv, environ);
    real::execvpe(file, argv, environ)
} }

hook! { fn execvpe(file: *const c_char, argv: Words, env: Words) -> c_int {
    let _undone_if_it_fails = fork::before_exec(Named::Searched(file), argv, env);
    real::execvpe(file, argv, env)
} }

hook! { fn fexecve(fd: c_int, argv: Words, env: Words) -> c_int {
    let _undone_if_it_fails = fork::before_exec(Named::Open(fd), argv, env);
    real::fexecve(fd, argv, env)
} }

hook! { fn execveat(folder: c_int, path: *const c_char, argv: Words, env: Words, flags: c_int) -> c_int {
    let _undone_if_it_fails = fork::before_exec(named_at(folder, path, flags), argv, env);
    real::execveat(folder, path, argv, env, flags)
} }

/// The first character of a name, if it can be read.
fn first_of(name: *const c_char) -> Option<c_char> {
    // SAFETY: it can be read.
    probe::readable(name).then(|| unsafe { *name })
}

/// The program that execveat names.
pub(super) fn named_at(folder: c_int, path: *const c_char, flags: c_int) -> Named {
    let first = first_of(path);
    if (path.is_null() || first == Some(0)) && flags & libc::AT_EMPTY_PATH != 0 {
        Named::Open(folder)
    } else if first == Some(b'/' as c_char) || folder == libc::AT_FDCWD {
        Named::Path(path)
    } else {
        Named::Elsewhere(path)
    }
}

hook! { fn _exit(code: c_int) -> ! {
    fork::before_exit();
    real::_exit(code)
} }

hook! { fn _Exit(code: c_int) -> ! {
    fork::before_exit();
    real::_exit(code)
} }

hook! { fn _Fork() -> pid_t {
    fork::around(|| real::_Fork().into()) as pid_t
} }

/// What a new process does first, where it does not return from clone.
#[repr(C)]
struct Start {
    start: extern "C-unwind" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

/// The new process has a copy of its parent's memory, and so of what its parent prepared.
extern "C-unwind" fn begin(start: *mut c_void) -> c_int {
    // SAFETY: the address of the `Start` that `clone` below keeps on its stack.
    let Start { start, argument } = unsafe { start.cast::<Start>().read() };
    fork::begins_elsewhere();
    let code = start(argument);
    // The C library ends the process now, by the system call.
    fork::before_exit();
    code
}

// The C library's takes the last three from where all seven would lie, whether they were given or
// not.
hook! { fn clone(start: Option<extern "C-unwind" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_id: *mut pid_t, tls: *mut c_void, child_id: *mut pid_t) -> c_int {
    let address = start.map_or(null(), |start| start as *const c_void);
    match start {
        // A process of its own; with the parent's memory it is a thread, or runs before an exec as
        // a vfork does.
        Some(start) if flags & libc::CLONE_VM == 0 && !stack.is_null() => {
            let start = Start { start, argument };
            let own = (&raw const start).cast_mut().cast();
            fork::around(|| real::clone(begin as *const c_void, stack, flags, own, parent_id, tls, child_id).into()) as c_int
        }
        _ => real::clone(address, stack, flags, argument, parent_id, tls, child_id),
    }
} }

hook! { fn __clone(start: Option<extern "C-unwind" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_id: *mut pid_t, tls: *mut c_void, child_id: *mut pid_t) -> c_int {
    clone(start, stack, flags, argument, parent_id, tls, child_id)
} }

hook! { fn pthread_cancel(thread: pthread_t) -> c_int {
    let result = real::pthread_cancel(thread);
    if result == 0 {
        cancel::asked(thread);
    }
    result
} }

/// The program that a spawn starts; a relative name may be looked for in another folder, by its
/// actions.
fn spawned(name: *const c_char, actions: *const c_void, searched: bool) -> Named {
    let absolute = first_of(name) == Some(b'/' as c_char);
    match (searched, absolute || actions.is_null()) {
        (_, false) => Named::Elsewhere(name),
        (true, true) => Named::Searched(name),
        (false, true) => Named::Path(name),
    }
}

hook! { fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Words, env: Words) -> c_int {
    fork::before_spawn(spawned(path, actions, false), argv, env);
    real::posix_spawn(pid, path, actions, attributes, argv, env)
} }

hook! { fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Words, env: Words) -> c_int {
    fork::before_spawn(spawned(file, actions, true), argv, env);
    real::posix_spawnp(pid, file, actions, attributes, argv, env)
} }

/// What system and popen start; the C library does it by a spawn of its own, which passes no hook.
const SHELL: &CStr = c"/bin/sh";

hook! { fn system(command: *const c_char) -> c_int {
    // Without a command it only says whether there is a shell.
    if !command.is_null() {
        fork::before_spawn(Named::Path(SHELL.as_ptr()), null(), environ);
    }
    real::system(command)
} }

hook! { fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    fork::before_spawn(Named::Path(SHELL.as_ptr()), null(), environ);
    real::popen(command, mode)
} }

hook! { fn posix_spawn_file_actions_adddup2(actions: *mut c_void, from: c_int, to: c_int) -> c_int {
    if let Some(connection) = table::connection(from) {
        connection.leave(from, Reason::Exec);
    }
    real::posix_spawn_file_actions_adddup2(actions, from, to)
} }
