//! The functions that our hooks stand in front of: the next definition in the order of the dynamic
//! linker.
//!
//! Invariant: an address is looked up once and never changes. All are looked up when the library is
//! loaded, so that a hook that runs in a signal handler finds them; a hook that is called earlier
//! (from another library's constructor) looks up its own. Calling the C library's function instead
//! of the kernel keeps cancellation points and other preloaded libraries as they are. Source:
//! dlsym(3), RTLD_NEXT.

use libc::{
    aiocb, c_char, c_int, c_long, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off64_t, pid_t, pollfd,
    pthread_t, sigevent, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library.
pub(crate) struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, at: AtomicPtr::new(null_mut()) }
    }

    /// Its address; null when no later library has it.
    pub(crate) fn address(&self) -> *mut c_void {
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() { self.resolve() } else { at }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        // SAFETY: the name is a terminated string; RTLD_NEXT needs nothing else.
        let at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// Ends the process without a word, as `_exit`.
///
/// # Safety
/// As `_exit`.
pub(crate) unsafe fn _exit(code: c_int) -> ! {
    loop {
        // SAFETY: the system call that `_exit` is; it does not return.
        unsafe { syscall(libc::SYS_exit_group, code as usize, 0, 0, 0, 0, 0) };
    }
}

/// What a call returns when the C library lacks the function.
pub(crate) trait Missing {
    /// The value that means failure.
    const FAILED: Self;
}

impl Missing for c_int {
    const FAILED: c_int = -1;
}

impl Missing for c_long {
    const FAILED: c_long = -1;
}

impl Missing for isize {
    const FAILED: isize = -1;
}

impl<T> Missing for *mut T {
    const FAILED: *mut T = null_mut();
}

macro_rules! real {
    ($($name:ident $cname:literal ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $(
            /// Calls the next definition of the function of that name; fails with ENOSYS when there
            /// is none.
            ///
            /// # Safety
            /// As the function itself.
            #[allow(non_snake_case, reason = "the C library has a _Fork")]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                let at = next::$name.address();
                if at.is_null() {
                    crate::errno::set(libc::ENOSYS);
                    return <$ret as Missing>::FAILED;
                }
                // SAFETY: the symbol of this name has this C type, and unwinds when its thread is
                // cancelled; a variadic one takes these arguments in the same registers.
                let call = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($ty),*) -> $ret>(at) };
                // SAFETY: the caller's promise.
                unsafe { call($($arg),*) }
            }
        )*

        #[allow(non_upper_case_globals, reason = "named as the C functions are")]
        mod next {
            use super::Next;
            $(pub(super) static $name: Next = Next::new($cname);)*
        }

        /// Looks all of them up.
        pub(crate) fn resolve_all() {
            $(next::$name.address();)*
        }
    };
}

real! {
    read c"read" (fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t;
    write c"write" (fd: c_int, buf: *const c_void, n: size_t) -> ssize_t;
    readv c"readv" (fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    writev c"writev" (fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    preadv2 c"preadv64v2" (fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    pwritev2 c"pwritev64v2" (fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    recv c"recv" (fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t;
    recvfrom c"recvfrom" (fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t;
    recvmsg c"recvmsg" (fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg c"recvmmsg" (fd: c_int, msgs: *mut mmsghdr, count: libc::c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    send c"send" (fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    sendto c"sendto" (fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: *const sockaddr, len: socklen_t) -> ssize_t;
    sendmsg c"sendmsg" (fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg c"sendmmsg" (fd: c_int, msgs: *mut mmsghdr, count: libc::c_uint, flags: c_int) -> c_int;
    sendfile c"sendfile64" (out: c_int, from: c_int, offset: *mut off64_t, n: size_t) -> ssize_t;
    splice c"splice" (from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, n: size_t, flags: libc::c_uint) -> ssize_t;

    connect c"connect" (fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    accept c"accept" (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4 c"accept4" (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    shutdown c"shutdown" (fd: c_int, how: c_int) -> c_int;
    getsockopt c"getsockopt" (fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt c"setsockopt" (fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;

    close c"close" (fd: c_int) -> c_int;
    close_range c"close_range" (first: libc::c_uint, last: libc::c_uint, flags: c_int) -> c_int;
    dup c"dup" (fd: c_int) -> c_int;
    dup2 c"dup2" (from: c_int, to: c_int) -> c_int;
    dup3 c"dup3" (from: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl c"fcntl64" (fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl c"ioctl" (fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    fdopen c"fdopen" (fd: c_int, mode: *const c_char) -> *mut libc::FILE;

    poll c"poll" (fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll c"ppoll" (fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select c"select" (n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect c"pselect" (n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create c"epoll_create" (size: c_int) -> c_int;
    epoll_create1 c"epoll_create1" (flags: c_int) -> c_int;
    epoll_ctl c"epoll_ctl" (epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait c"epoll_pwait" (epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2 c"epoll_pwait2" (epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;

    execve c"execve" (path: *const c_char, argv: *const *const c_char, env: *const *const c_char) -> c_int;
    execvpe c"execvpe" (file: *const c_char, argv: *const *const c_char, env: *const *const c_char) -> c_int;
    fexecve c"fexecve" (fd: c_int, argv: *const *const c_char, env: *const *const c_char) -> c_int;
    posix_spawn c"posix_spawn" (pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, env: *const *const c_char) -> c_int;
    posix_spawnp c"posix_spawnp" (pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, env: *const *const c_char) -> c_int;
    system c"system" (command: *const c_char) -> c_int;
    popen c"popen" (command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    posix_spawn_file_actions_adddup2 c"posix_spawn_file_actions_adddup2" (actions: *mut c_void, from: c_int, to: c_int) -> c_int;
    execveat c"execveat" (folder: c_int, path: *const c_char, argv: *const *const c_char, env: *const *const c_char, flags: c_int) -> c_int;
    vdprintf c"vdprintf" (fd: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    __vdprintf_chk c"__vdprintf_chk" (fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    vasprintf c"vasprintf" (text: *mut *mut c_char, format: *const c_char, list: *mut c_void) -> c_int;
    __vasprintf_chk c"__vasprintf_chk" (text: *mut *mut c_char, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    aio_read c"aio_read64" (request: *mut aiocb) -> c_int;
    aio_write c"aio_write64" (request: *mut aiocb) -> c_int;
    lio_listio c"lio_listio64" (mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    _Fork c"_Fork" () -> pid_t;
    longjmp c"longjmp" (buffer: *mut c_void, value: c_int) -> c_int;
    _longjmp c"_longjmp" (buffer: *mut c_void, value: c_int) -> c_int;
    siglongjmp c"siglongjmp" (buffer: *mut c_void, value: c_int) -> c_int;
    __longjmp_chk c"__longjmp_chk" (buffer: *mut c_void, value: c_int) -> c_int;
    clone c"clone" (start: *const c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_id: *mut pid_t, tls: *mut c_void, child_id: *mut pid_t) -> c_int;
    pthread_cancel c"pthread_cancel" (thread: pthread_t) -> c_int;
    syscall c"syscall" (number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
}
