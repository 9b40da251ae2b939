//! Hooks of the C library's calls that print to a descriptor, or read and write it in threads of
//! the C library's own: inside they make system calls that pass no hook.
//!
//! Invariant: what is printed to a connection is sent by our own [`write`](super::transfer::write);
//! what the C library's threads are to read or write is the kernel's before they begin. A stream
//! that is made of a descriptor (fdopen) is in [`super::descriptors`].

use super::{hook, transfer};
use crate::reason::Reason;
use crate::{real, table};
use libc::{aiocb, c_char, c_int, c_void, sigevent};
use std::ptr::null_mut;

hook! { fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    if table::connection(fd).is_none() {
        return real::vdprintf(fd, format, list);
    }
    printed(fd, |text| real::vasprintf(text, format, list))
} }

hook! { fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    if table::connection(fd).is_none() {
        return real::__vdprintf_chk(fd, flag, format, list);
    }
    printed(fd, |text| real::__vasprintf_chk(text, flag, format, list))
} }

/// Sends what `print` puts into memory, all of it.
///
/// # Safety
/// `print` does as vasprintf.
unsafe fn printed(fd: c_int, print: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text: *mut c_char = null_mut();
    let all = print(&raw mut text);
    let mut done = 0;
    while done < all {
        // SAFETY: vasprintf made so many bytes there.
        match unsafe { transfer::write(fd, text.add(done as usize).cast(), (all - done) as usize) } {
            sent @ 1.. => done += sent as c_int,
            _ => break,
        }
    }
    if all >= 0 {
        let kept = crate::errno::Kept::now();
        // SAFETY: vasprintf allocated it for its caller.
        unsafe { libc::free(text.cast()) };
        drop(kept);
    }
    if done < all { -1 } else { all }
}

/// A request of the C library's asynchronous input and output.
///
/// # Safety
/// A request, or null.
unsafe fn before(request: *const aiocb) {
    // SAFETY: the caller's promise.
    let Some(fd) = (unsafe { request.as_ref() }).map(|request| request.aio_fildes) else { return };
    if let Some(connection) = table::connection(fd) {
        connection.leave(fd, Reason::Threads);
    }
}

hook! { fn aio_read(request: *mut aiocb) -> c_int {
    before(request);
    real::aio_read(request)
} }

hook! { fn aio_read64(request: *mut aiocb) -> c_int {
    aio_read(request)
} }

hook! { fn aio_write(request: *mut aiocb) -> c_int {
    before(request);
    real::aio_write(request)
} }

hook! { fn aio_write64(request: *mut aiocb) -> c_int {
    aio_write(request)
} }

hook! { fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
    if !list.is_null() {
        (0..count.max(0) as usize).for_each(|at| before(*list.add(at)));
    }
    real::lio_listio(mode, list, count, event)
} }

hook! { fn lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
    lio_listio(mode, list, count, event)
} }
