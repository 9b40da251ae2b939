//! The hook of `syscall`, for programs that make socket calls by number.
//!
//! Invariant: a number that has a hook is that hook's call; io_uring and the kernel's asynchronous
//! input and output are seen here, and from then on new connections stay with the kernel, because
//! their requests name descriptors without passing by. Source: syscall(2).

use super::{descriptors, epoll, hook, programs, sockets, transfer, waiting};
use crate::own::Inside;
use crate::reason::{self, Reason};
use crate::{fork, probe, real, select, wait};
use libc::{c_int, c_long, sigset_t};
use std::ptr::null;

/// Bytes of a signal mask as the kernel takes it; the C library's are longer.
const MASK_BYTES: usize = 8;

/// A mask that the kernel would take, as the C library's functions take it; `None`: not of the
/// kernel's size, or not there.
struct Mask(Option<sigset_t>);

impl Mask {
    /// # Safety
    /// Null, a mask of so many bytes, or memory that cannot be read.
    unsafe fn new(at: usize, bytes: usize) -> Option<Mask> {
        if at == 0 {
            return Some(Mask(None));
        }
        if bytes != MASK_BYTES || !probe::readable_bytes(at as *const u8, bytes) {
            return None;
        }
        // SAFETY: all zero is an empty mask, whose first bytes are the kernel's; the caller's
        // promise.
        unsafe {
            let mut mask: sigset_t = std::mem::zeroed();
            std::ptr::copy_nonoverlapping(at as *const u8, (&raw mut mask).cast(), MASK_BYTES);
            Some(Mask(Some(mask)))
        }
    }

    fn as_ptr(&self) -> *const sigset_t {
        self.0.as_ref().map_or(null(), std::ptr::from_ref)
    }
}

/// The mask of pselect6, which is a pointer to a pointer and a size.
///
/// # Safety
/// As the system call.
unsafe fn pointed_mask(at: usize) -> Option<Mask> {
    if at == 0 {
        return Some(Mask(None));
    }
    let at = at as *const [usize; 2];
    if !probe::readable(at) {
        return None;
    }
    // SAFETY: the caller's promise, and it can be read.
    unsafe {
        let [mask, bytes] = at.read_unaligned();
        Mask::new(mask, bytes)
    }
}

/// The program has set up, if the result says so, what works on descriptors without passing a hook.
fn stops(why: Reason, result: c_long) -> c_long {
    if result >= 0 && !Inside::here() {
        reason::stop_upgrading(why);
    }
    result
}

/// Whether clone3 makes a process of its own on the same stack.
///
/// # Safety
/// As the system call: so many bytes of arguments, or memory that cannot be read.
unsafe fn forks(arguments: usize, bytes: usize) -> bool {
    /// Words of the arguments' first version: flags are the first, the stack is the sixth.
    const WORDS: usize = 8;
    let at = arguments as *const [u64; WORDS];
    if bytes < size_of::<[u64; WORDS]>() || !probe::readable(at) {
        return false;
    }
    // SAFETY: the caller's promise, and it can be read.
    let words = unsafe { at.read_unaligned() };
    words[0] & libc::CLONE_VM as u64 == 0 && words[5] == 0
}

hook! { fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    let fd = a as c_int;
    match number {
        libc::SYS_read => transfer::read(fd, b as _, c) as c_long,
        libc::SYS_write => transfer::write(fd, b as _, c) as c_long,
        libc::SYS_readv => transfer::readv(fd, b as _, c as c_int) as c_long,
        libc::SYS_writev => transfer::writev(fd, b as _, c as c_int) as c_long,
        libc::SYS_recvfrom => transfer::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
        libc::SYS_sendto => transfer::sendto(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
        libc::SYS_recvmsg => transfer::recvmsg(fd, b as _, c as c_int) as c_long,
        libc::SYS_sendmsg => transfer::sendmsg(fd, b as _, c as c_int) as c_long,
        libc::SYS_sendfile => transfer::sendfile(fd, b as c_int, c as _, d) as c_long,
        libc::SYS_splice => transfer::splice(fd, b as _, c as c_int, d as _, e, f as _) as c_long,
        libc::SYS_connect => c_long::from(sockets::connect(fd, b as _, c as _)),
        libc::SYS_accept => c_long::from(sockets::accept(fd, b as _, c as _)),
        libc::SYS_accept4 => c_long::from(sockets::accept4(fd, b as _, c as _, d as c_int)),
        libc::SYS_shutdown => c_long::from(sockets::shutdown(fd, b as c_int)),
        libc::SYS_close => c_long::from(descriptors::close(fd)),
        libc::SYS_close_range => c_long::from(descriptors::close_range(a as _, b as _, c as c_int)),
        libc::SYS_dup => c_long::from(descriptors::dup(fd)),
        libc::SYS_dup3 => c_long::from(descriptors::dup3(fd, b as c_int, c as c_int)),
        libc::SYS_epoll_create1 => c_long::from(epoll::epoll_create1(fd)),
        libc::SYS_epoll_ctl => c_long::from(epoll::epoll_ctl(fd, b as c_int, c as c_int, d as _)),
        libc::SYS_preadv2 => transfer::preadv2(fd, b as _, c as c_int, d as _, f as c_int) as c_long,
        libc::SYS_pwritev2 => transfer::pwritev2(fd, b as _, c as c_int, d as _, f as c_int) as c_long,
        libc::SYS_recvmmsg => c_long::from(transfer::recvmmsg(fd, b as _, c as _, d as c_int, e as _)),
        libc::SYS_sendmmsg => c_long::from(transfer::sendmmsg(fd, b as _, c as _, d as c_int)),
        libc::SYS_getsockopt => c_long::from(sockets::getsockopt(fd, b as c_int, c as c_int, d as _, e as _)),
        libc::SYS_setsockopt => c_long::from(sockets::setsockopt(fd, b as c_int, c as c_int, d as _, e as _)),
        libc::SYS_fcntl => c_long::from(descriptors::fcntl(fd, b as c_int, c)),
        libc::SYS_ioctl => c_long::from(descriptors::ioctl(fd, b as _, c)),
        libc::SYS_execve => {
            let _undone_if_it_fails = fork::before_exec(programs::named_at(libc::AT_FDCWD, a as _, 0), b as _, c as _);
            real::syscall(number, a, b, c, d, e, f)
        }
        libc::SYS_execveat => {
            let _undone_if_it_fails = fork::before_exec(programs::named_at(fd, b as _, e as c_int), c as _, d as _);
            real::syscall(number, a, b, c, d, e, f)
        }
        libc::SYS_exit_group => {
            fork::before_exit();
            real::syscall(number, a, b, c, d, e, f)
        }
        libc::SYS_ppoll => match Mask::new(d, e) {
            Some(mask) if wait::has_ring(a as _, b as _) => c_long::from(waiting::ppoll(a as _, b as _, c as _, mask.as_ptr())),
            _ => real::syscall(number, a, b, c, d, e, f),
        },
        libc::SYS_pselect6 => match pointed_mask(f) {
            Some(mask) if select::has_ring(fd, b as _, c as _, d as _) => {
                c_long::from(waiting::pselect(fd, b as _, c as _, d as _, e as _, mask.as_ptr()))
            }
            _ => real::syscall(number, a, b, c, d, e, f),
        },
        libc::SYS_epoll_pwait => match Mask::new(e, f) {
            Some(mask) => c_long::from(epoll::epoll_pwait(fd, b as _, c as c_int, d as c_int, mask.as_ptr())),
            None => real::syscall(number, a, b, c, d, e, f),
        },
        libc::SYS_epoll_pwait2 => match Mask::new(e, f) {
            Some(mask) => c_long::from(epoll::epoll_pwait2(fd, b as _, c as c_int, d as _, mask.as_ptr())),
            None => real::syscall(number, a, b, c, d, e, f),
        },
        libc::SYS_io_uring_setup => stops(Reason::IoUring, real::syscall(number, a, b, c, d, e, f)),
        libc::SYS_io_setup => stops(Reason::KernelAio, real::syscall(number, a, b, c, d, e, f)),
        // A process of its own on the same stack, as fork makes it.
        libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 && b == 0 => fork::around(|| real::syscall(number, a, b, c, d, e, f)),
        // The same, by a structure.
        libc::SYS_clone3 if forks(a, b) => fork::around(|| real::syscall(number, a, b, c, d, e, f)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => fork::around(|| real::syscall(number, a, b, c, d, e, f)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => c_long::from(descriptors::dup2(fd, b as c_int)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select if select::has_ring(fd, b as _, c as _, d as _) => {
            c_long::from(waiting::select(fd, b as _, c as _, d as _, e as _))
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => c_long::from(waiting::poll(a as _, b as _, c as c_int)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => c_long::from(epoll::epoll_wait(fd, b as _, c as c_int, d as c_int)),
        _ => real::syscall(number, a, b, c, d, e, f),
    }
} }
