//! Connections that more than two processes have to do with: children that go on with them, or die
//! over them, and descriptors that go through Unix sockets.

use crate::stream::Stream;
use crate::{Result, text};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The child of a fork goes on with the connection while this process has it too.
pub(crate) fn in_child(mut stream: Stream, go_on: impl FnOnce(&mut Stream) -> Result<()>) -> Result<()> {
    // SAFETY: the child only uses its own stack, the connection and memory of its own, and leaves
    // without running destructors of other threads.
    match unsafe { libc::fork() } {
        0 => {
            let code = go_on(&mut stream).is_err();
            drop(stream);
            // SAFETY: ends the child here.
            unsafe { libc::_exit(i32::from(code)) }
        }
        -1 => Err(text("fork")(std::io::Error::last_os_error())),
        child => {
            drop(stream);
            match wait_for(child) {
                0 => Ok(()),
                status => Err(format!("the child of the fork ended with status {status:#x}")),
            }
        }
    }
}

/// The same, but the child is killed after some time, whatever it does then.
pub(crate) fn in_killed_child(mut stream: Stream, after: Duration, go_on: impl FnOnce(&mut Stream)) -> Result<()> {
    // SAFETY: as above.
    match unsafe { libc::fork() } {
        0 => {
            go_on(&mut stream);
            loop {
                std::thread::park();
            }
        }
        -1 => Err(text("fork")(std::io::Error::last_os_error())),
        child => {
            drop(stream);
            std::thread::sleep(after);
            // SAFETY: our own child, which nobody has waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            match wait_for(child) {
                libc::SIGKILL => Ok(()),
                status => Err(format!("the child to be killed ended with status {status:#x}")),
            }
        }
    }
}

fn wait_for(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: our own child, a status of ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// The descriptor goes through a Unix socket and comes back as another one; the first is closed.
pub(crate) fn through_socket(stream: TcpStream) -> Result<TcpStream> {
    let mut pair = [0 as RawFd; 2];
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) };
    if made < 0 {
        return Err(text("socketpair")(std::io::Error::last_os_error()));
    }
    // SAFETY: just made, ours alone.
    let [a, b] = pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let mut control = [0u64; 4];
    let mut byte = [0u8; 1];
    let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all zero is an empty message; the pieces and the room for control data are ours and
    // outlive the calls.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(stream.as_raw_fd());
        if libc::sendmsg(a.as_raw_fd(), &raw const message, 0) != 1 {
            return Err(text("sendmsg")(std::io::Error::last_os_error()));
        }
        drop(stream);
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        if libc::recvmsg(b.as_raw_fd(), &raw mut message, 0) != 1 {
            return Err(text("recvmsg")(std::io::Error::last_os_error()));
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        Ok(TcpStream::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    }
}
