//! Watching, binding and starting other processes: a descriptor that becomes readable when a
//! process ends; children that die with their parent; programs that are started for others and find
//! nothing of their starter.
//!
//! Invariant: the descriptor means the process that had the id when it was opened, never a later
//! one with the same id. A process that opens it for the other side of a socket must hold that
//! socket too: if the process ended before, the socket says so.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A process of this machine.
#[derive(Debug)]
pub struct ProcessWatch(OwnedFd);

impl ProcessWatch {
    /// Watches a process; none if it is gone already or cannot be seen from here (another pid
    /// namespace).
    pub fn open(pid: u32) -> Option<ProcessWatch> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(ProcessWatch)
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        loop {
            match poll(&mut fds, Some(&now)) {
                Err(Errno::INTR) => continue,
                other => return matches!(other, Ok(n) if n > 0),
            }
        }
    }
}

impl AsFd for ProcessWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Asks a process to end (`SIGTERM`). False: it is gone, or not ours to end.
pub fn terminate(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::kill_process(pid, Signal::TERM).is_ok())
}

/// The signal of [`interrupt_thread`]: nothing happens where it has no handler.
pub const INTERRUPT: i32 = libc::SIGURG;

/// Interrupts what a thread of this process waits for in the kernel, if the process has a handler
/// for [`INTERRUPT`].
pub fn interrupt_thread(thread: i32) {
    // SAFETY: three numbers; a thread that is none of this process is refused.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, INTERRUPT) };
}

/// Has `f` called when this process ends by `exit` or by returning from `main`; false if the table
/// for that is full. It runs while other threads still do, and perhaps inside a signal handler: it
/// must not wait for them.
pub fn at_exit(f: extern "C" fn()) -> bool {
    // SAFETY: `f` is a function of this program or library, which registers with its own handle, so
    // it is called before the library is unloaded.
    unsafe { libc::atexit(f) == 0 }
}

/// Has the kernel kill the process that `command` starts as soon as the calling thread ends: start
/// it from a thread that lives as long as this process. The child's own children are not covered;
/// they come to the nearest subreaper.
pub fn die_with_this_thread(command: &mut Command) {
    let parent = rustix::process::getpid();
    let bind = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent ended before the line above nobody would send the signal.
        if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec the closure only makes two system calls and builds an error
    // from a number: it takes no lock, allocates nothing, and touches no memory but its own copy of
    // `parent`, so it does not matter what other threads of the parent were doing.
    unsafe { command.pre_exec(bind) };
}

/// Soft and hard bound on open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// The bound that holds.
    pub soft: u64,
    /// How far the process may raise it.
    pub hard: u64,
}

/// What a program that is started apart has of its starter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apart {
    /// Its mask for new files; none: the starter's.
    pub umask: Option<u32>,
    /// Its bound on open files; none: the starter's.
    pub open_files: Option<OpenFiles>,
}

/// The environment that a program started apart gets: of this process's variables those that say
/// where and how its user works. A secret in any other variable stays here.
pub fn plain_environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_plain_variable)).collect()
}

fn is_plain_variable(name: &str) -> bool {
    const NAMES: [&str; 16] = [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "TZ",
        "LANG",
        "LANGUAGE",
        "TMPDIR",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
        "XDG_RUNTIME_DIR",
        "VMMC_LOG",
        "RUST_BACKTRACE",
        "LLVM_PROFILE_FILE",
    ];
    NAMES.contains(&name) || name.starts_with("LC_")
}

/// Has the program of `command` start with nothing of this process but what the command itself
/// gives: in a session of its own (so no terminal can be reached through it), with its standard
/// streams as its only descriptors, with every signal at its default, no keys of the starter, and
/// the mask and bounds of `apart`. The environment is the caller's to clear.
pub fn start_apart(command: &mut Command, apart: Apart) {
    let prepare = move || {
        // Fails for the leader of a process group alone, which a new process is not, unless the
        // command made it one.
        let _ = rustix::process::setsid();
        if let Some(mask) = apart.umask {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
        }
        if let Some(OpenFiles { soft, hard }) = apart.open_files {
            let limit = rustix::process::Rlimit { current: Some(soft), maximum: Some(hard) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
        }
        let last_signal = 64;
        for signal in 1..=last_signal {
            // SAFETY: SIG_DFL is always a valid disposition and installs no code; a number that
            // cannot be set is refused.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: the call takes numbers and, as the name of the keyring, a null pointer, which
        // asks for a nameless one. Kernels without keyrings refuse, and have none to hand on.
        unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
        close_at_exec()
    };
    // SAFETY: between fork and exec the closure only makes system calls and builds an error from a
    // number: it takes no lock, allocates nothing, and touches no memory but its own copy of
    // `apart`.
    unsafe { command.pre_exec(prepare) };
}

/// Of keyctl(2).
const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;

/// Marks every descriptor but the standard streams to close at exec. Async-signal-safe.
fn close_at_exec() -> std::io::Result<()> {
    let (first, flags) = (3, libc::CLOSE_RANGE_CLOEXEC as libc::c_uint);
    // SAFETY: three numbers; marks descriptors and closes none.
    if unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) } == 0 {
        return Ok(());
    }
    // Linux before 5.11, or a filter that does not know the call: one by one, as far as descriptors
    // can be.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // The bound may have been lowered below descriptors that are open; the highest that a kernel
    // allows by default.
    let end = limit.maximum.unwrap_or(0).clamp(1 << 16, 1 << 20) as libc::c_int;
    for fd in first..end {
        // SAFETY: sets a flag of a descriptor of this process, or is refused where there is none.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Children of this process, those that came to it as subreaper included.
pub fn children_of_this_process() -> Vec<Pid> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(own)).filter_map(Pid::from_raw).collect()
}

fn parent_of(pid: i32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in brackets and may contain anything, brackets too.
    text.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_bound_child_runs_and_is_listed_and_dies_with_its_thread() {
        let (child, listed) = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            die_with_this_thread(command.arg("1000"));
            let child = command.spawn().unwrap();
            let listed = children_of_this_process().contains(&Pid::from_child(&child));
            (child, listed)
        })
        .join()
        .unwrap();
        assert!(listed);
        use std::os::unix::process::ExitStatusExt;
        assert_eq!({ child }.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn a_program_that_is_started_apart_finds_nothing_of_its_starter() {
        use std::os::fd::{AsRawFd, IntoRawFd};
        // As what a shell leaves open: without the mark.
        let file = std::fs::File::open("/dev/zero").unwrap();
        let low = rustix::io::fcntl_dupfd_cloexec(&file, 60).unwrap();
        rustix::io::fcntl_setfd(&low, rustix::io::FdFlags::empty()).unwrap();
        let number = low.as_raw_fd();
        let look = "exec 2>&1; ls /proc/self/fd; umask; ulimit -Sn; grep SigIgn /proc/self/status; \
                    cut -d' ' -f6 /proc/self/stat; echo $$";
        // SAFETY: no other test sends or waits for this signal; ignored signals are handed on by
        // exec.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        let mut command = Command::new("sh");
        command.args(["-c", look]);
        start_apart(&mut command, Apart { umask: Some(0o27), open_files: Some(OpenFiles { soft: 77, hard: 77 }) });
        let output = command.output().unwrap();
        let _ = low.into_raw_fd();
        let said = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert!(!lines.contains(&number.to_string().as_str()), "{said}");
        assert!(lines.contains(&"0027") && lines.contains(&"77"), "{said}");
        let ignored = lines.iter().find_map(|l| l.strip_prefix("SigIgn:\t")).expect("a status");
        // 32 and 33 belong to the C library, which changes them for nobody.
        assert_eq!(u64::from_str_radix(ignored, 16).map(|mask| mask & !(0b11 << 31)), Ok(0), "{said}");
        let [.., session, own] = lines[..] else { panic!("{said}") };
        assert_eq!(session, own, "the program leads a session of its own");
    }

    #[test]
    fn variables_with_secrets_are_not_among_the_plain_ones() {
        assert!(["PATH", "LC_ALL", "HOME"].into_iter().all(is_plain_variable));
        assert!(
            !["AWS_SECRET_ACCESS_KEY", "LD_PRELOAD", "VMMC_TRACE", "SSH_AUTH_SOCK"].into_iter().any(is_plain_variable)
        );
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let watch = ProcessWatch::open(child.id()).unwrap();
        assert!(!watch.has_ended());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(watch.has_ended());
        assert!(ProcessWatch::open(0).is_none());
    }
}
