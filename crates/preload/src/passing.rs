//! Connections that come and go in control messages.
//!
//! Invariant: a connection that was not upgraded stays with the kernel once its descriptor is on
//! the way to another process; one that was is joined by the receiver, if that is ours. Source:
//! unix(7), SCM_RIGHTS.

use crate::reason::Reason;
use crate::{probe, table, tcp};
use libc::{c_int, msghdr};

/// Inspects a message that is about to be sent.
///
/// # Safety
/// As sendmsg.
pub(crate) unsafe fn before_send(msg: *const msghdr) {
    // SAFETY: the caller's promise.
    unsafe {
        each(msg, |fd| {
            if let Some(connection) = table::connection(fd) {
                connection.leave(fd, Reason::Passed);
                // What is still in the ring may be read by the other process too.
                connection.connection().inspect(|core| core.passed());
            }
        });
    }
}

/// Inspects a message that has just been received.
///
/// # Safety
/// As recvmsg, which filled it in.
pub(crate) unsafe fn received(msg: *const msghdr) {
    let _kept = crate::errno::Kept::now();
    // SAFETY: the caller's promise.
    unsafe { each(msg, tcp::join) }
}

/// All descriptors in a message.
///
/// # Safety
/// As sendmsg.
unsafe fn each(msg: *const msghdr, visit: impl Fn(c_int)) {
    // SAFETY: the caller's promise: a message header, or null, which the kernel refuses.
    let Some(message) = (unsafe { msg.as_ref() }) else { return };
    let (control, bytes) = (message.msg_control.cast::<u8>().cast_const(), message.msg_controllen);
    if bytes < size_of::<libc::cmsghdr>() || !probe::readable_bytes(control, bytes) {
        return;
    }
    let end = control.wrapping_add(bytes);
    // SAFETY: the header says how long its control data is, which can be read; the macros stay
    // within it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(msg);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                let bytes = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                // One that says it is longer than the whole is refused by the kernel.
                let bytes = bytes.min((end as usize).saturating_sub(data as usize));
                (0..bytes / size_of::<c_int>()).for_each(|at| visit(data.add(at).read_unaligned()));
            }
            header = libc::CMSG_NXTHDR(msg, header);
        }
    }
}
