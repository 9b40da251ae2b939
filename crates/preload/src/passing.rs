//! Connections that leave in control messages.
//!
//! Invariant: a connection is with the kernel before its descriptor is on the way to another process. Source: unix(7), SCM_RIGHTS.

use crate::reason::Reason;
use crate::table;
use libc::{c_int, msghdr};

/// Looks through a message that is about to be sent.
///
/// # Safety
/// As sendmsg.
pub(crate) unsafe fn before_send(msg: *const msghdr) {
    // SAFETY: the caller's promise: a message header, or null, which the kernel refuses.
    let Some(message) = (unsafe { msg.as_ref() }) else { return };
    if message.msg_control.is_null() || message.msg_controllen < size_of::<libc::cmsghdr>() {
        return;
    }
    // SAFETY: the header says how long its control data is; the macros stay within it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(msg);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                let bytes = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                for at in 0..bytes / size_of::<c_int>() {
                    let fd = data.add(at).read_unaligned();
                    if let Some(connection) = table::connection(fd) {
                        connection.leave(fd, Reason::Passed);
                    }
                }
            }
            header = libc::CMSG_NXTHDR(msg, header);
        }
    }
}
