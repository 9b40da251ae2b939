//! The shared object that `vmmc exec` loads into unmodified programs, so that their TCP connections
//! go through VMMC.
//!
//! ```text
//!  program ──▶ hooks (C symbols) ──▶ table: what is this descriptor? ──▶ nothing: the C library's call
//!                                                     └──▶ a connection, an epoll set: transfer, options, set, wait
//! ```
//!
//! **Promises.** The program keeps its kernel socket, its number and its options. Each hook ends as
//! done, as an error number, or as a bypass: the C library's own call, with a reason that is
//! counted. A program that was not started by `vmmc exec` is not changed.
//!
//! **Does not.** Programs without a dynamic linker, and programs that make their system calls
//! themselves (Go, liburing), are not reached. Source: [NT §4].

#![cfg_attr(test, allow(dead_code, reason = "in the unit tests the hooks are not called"))]

mod arena;
mod cancel;
mod clock;
mod config;
mod errno;
mod fork;
mod hooks;
mod lend;
mod limits;
mod members;
mod memory;
mod options;
mod own;
mod passing;
mod pieces;
mod probe;
mod program;
mod readiness;
mod real;
mod reason;
mod seen;
mod select;
mod set;
mod table;
mod tcp;
mod transfer;
mod wait;

/// Runs when the library is loaded, before the program's `main`.
extern "C" fn load() {
    config::load();
    own::load();
    real::resolve_all();
    fork::install();
    fork::after_exec();
}

/// Runs when the program ends in order.
extern "C" fn unload() {
    fork::before_exit();
    if config::config().verbose {
        tcp::report_open();
        let report = reason::report();
        if !report.is_empty() {
            let text = format!("vmmc: process {} ends\n{report}", std::process::id());
            // SAFETY: the text is ours for the length of the call; a closed standard error is no
            // failure.
            unsafe { real::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        }
    }
    fork::before_exit();
}

#[cfg(not(test))]
#[used]
// SAFETY: the section holds pointers to functions that the dynamic linker calls without arguments
// that matter.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

#[cfg(not(test))]
#[used]
// SAFETY: as above, at the end.
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
