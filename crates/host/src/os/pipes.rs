//! Pipes whose reader may be gone.
//!
//! Invariant: a write to such a pipe is an error and no SIGPIPE, whatever the program has chosen
//! for that signal; what the program does with it otherwise, and one that is pending, stay as they
//! are. Programs in C have the default, which would end them for the end of another process.

use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

/// Writes to a pipe.
///
/// # Errors
/// Those of `write`; EPIPE: it has no reader.
pub fn write_quietly(pipe: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    let pipe_signal = only_sigpipe();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are this function's own; the call changes the calling thread's mask alone.
    let masked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe_signal, before.as_mut_ptr()) };
    if masked != 0 {
        return Err(Errno::from_raw_os_error(masked));
    }
    // SAFETY: the call has filled it.
    let before = unsafe { before.assume_init() };
    let was_pending = holds_sigpipe(&before) && is_pending();
    let written = rustix::io::write(pipe, bytes);
    if written == Err(Errno::PIPE) && !was_pending {
        take_pending(&pipe_signal);
    }
    // SAFETY: the set is the one from above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    written
}

fn only_sigpipe() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call fills the set, and the number is that of a signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

fn holds_sigpipe(set: &libc::sigset_t) -> bool {
    // SAFETY: it is a set, and the number is that of a signal.
    unsafe { libc::sigismember(set, libc::SIGPIPE) == 1 }
}

/// Whether one waits for this thread or its process.
fn is_pending() -> bool {
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call fills the set, or says that it has not.
    unsafe { libc::sigpending(pending.as_mut_ptr()) == 0 && holds_sigpipe(pending.assume_init_ref()) }
}

/// Takes the one that the write has made, which is this thread's own; none was made if the program
/// ignores it.
fn take_pending(set: &libc::sigset_t) {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: set and time are as the call wants them; it does not say more of the signal.
    while unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &raw const at_once) } == -1 {
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// What a process of its own does, by the name of the test; how it has ended.
    fn apart(name: &str, act: impl FnOnce()) -> Option<std::process::ExitStatus> {
        const MARK: &str = "VMMC_TEST_PIPES";
        if std::env::var_os(MARK).is_some() {
            // SAFETY: no handler; this process is for this alone.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            act();
            return None;
        }
        let mut command = Command::new(std::env::current_exe().expect("a test is a file"));
        command.args(["--exact", &format!("os::pipes::tests::{name}")]).env(MARK, "1");
        let output = command.output().expect("it can be started");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() || printed.contains("1 passed"), "it has run no test: {printed}");
        Some(output.status)
    }

    fn mask() -> libc::sigset_t {
        let mut now = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: without a new mask the call only fills this one.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            now.assume_init()
        }
    }

    #[test]
    fn waking_a_process_that_has_gone_ends_nobody() {
        let ended = apart("waking_a_process_that_has_gone_ends_nobody", || {
            let (receiver, sender) = crate::wait::wake_pair().expect("a pipe");
            drop(receiver);
            sender.wake();
            assert!(!holds_sigpipe(&mask()) && !is_pending());
        });
        assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
    }

    #[test]
    fn a_plain_write_there_ends_the_program() {
        let ended = apart("a_plain_write_there_ends_the_program", || {
            let (read, write) = rustix::pipe::pipe().expect("a pipe");
            drop(read);
            let _ = rustix::io::write(&write, &[1]);
        });
        assert!(ended.is_none_or(|status| status.signal() == Some(libc::SIGPIPE)), "{ended:?}");
    }

    #[test]
    fn one_that_the_program_has_pending_stays() {
        let ended = apart("one_that_the_program_has_pending_stays", || {
            let set = only_sigpipe();
            // SAFETY: the set is this function's own; the signal goes to this thread, which blocks
            // it.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
                libc::raise(libc::SIGPIPE);
            }
            let (read, write) = rustix::pipe::pipe().expect("a pipe");
            drop(read);
            assert_eq!(write_quietly(&write, &[1]), Err(Errno::PIPE));
            assert!(holds_sigpipe(&mask()) && is_pending());
            take_pending(&set);
            assert_eq!(write_quietly(&write, &[1]), Err(Errno::PIPE));
            assert!(holds_sigpipe(&mask()) && !is_pending());
        });
        assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
    }

    #[test]
    fn what_is_written_is_read() {
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        assert_eq!(write_quietly(&write, b"abc"), Ok(3));
        let mut bytes = [0; 8];
        assert_eq!((rustix::io::read(&read, &mut bytes), &bytes[..3]), (Ok(3), &b"abc"[..]));
    }
}
