//! Memory of the rings for programs that ask for it: the pointer-based interface behind
//! `include/vmmc_sockets.h`.
//!
//! Invariant: memory is handed out only while this thread holds the loan of the protocol core;
//! whatever is not in a ring is refused with `ENOTSUP`, and the program makes the ordinary call.
//! Source: [NT §4], N14.

use crate::errno::fail;
use crate::own::{self, Inside};
use crate::tcp::{Held, Side, borrowed};
use crate::{table, transfer};
use libc::{c_int, c_void, ssize_t};
use rustix::io::Errno;
use vmmc_sockets::{Connection, Lent, Waited};

/// Room for at most `most` bytes.
pub(crate) fn reserve(fd: c_int, most: usize, give: impl FnOnce(*mut c_void)) -> ssize_t {
    on_connection(fd, |tcp, connection| {
        let mut deadline = None;
        loop {
            match connection.lend_room(own::context(), borrowed(fd), most) {
                Lent::Memory(room) => {
                    give(room.as_ptr().cast());
                    return Ok(room.len_bytes() as ssize_t);
                }
                Lent::Nothing | Lent::End if tcp.is_nonblocking(fd) => return Err(libc::EAGAIN),
                Lent::Nothing | Lent::End => {
                    let until = *deadline.get_or_insert_with(|| tcp.deadline(fd, Side::Send));
                    match connection.wait_writable(own::context(), borrowed(fd), until) {
                        Waited::Ready => {}
                        Waited::Interrupted => return Err(libc::EINTR),
                        Waited::TimedOut => return Err(libc::EAGAIN),
                        Waited::Closed => return Err(libc::EBADF),
                    }
                }
                Lent::Kernel => return Err(libc::ENOTSUP),
                Lent::Failed(errno) => return Err(errno.raw_os_error()),
            }
        }
    })
}

/// Sends what was filled in.
pub(crate) fn commit(fd: c_int, bytes: usize) -> c_int {
    on_connection(fd, |_, connection| done(connection.send_lent(own::context(), bytes))) as c_int
}

/// The next received bytes.
pub(crate) fn peek(fd: c_int, give: impl FnOnce(*mut c_void)) -> ssize_t {
    on_connection(fd, |tcp, connection| {
        let mut deadline = None;
        loop {
            match connection.lend_bytes(own::context(), borrowed(fd)) {
                Lent::Memory(view) => {
                    give(view.as_ptr().cast());
                    return Ok(view.len_bytes() as ssize_t);
                }
                Lent::End => return Ok(0),
                Lent::Nothing => {
                    if let Some(code) = transfer::wait(tcp, connection, fd, 0, &mut deadline) {
                        return Err(code);
                    }
                }
                Lent::Kernel => return Err(libc::ENOTSUP),
                Lent::Failed(errno) => return Err(errno.raw_os_error()),
            }
        }
    })
}

/// Receives what was looked at.
pub(crate) fn consume(fd: c_int, bytes: usize) -> c_int {
    on_connection(fd, |_, connection| done(connection.take_lent(own::context(), bytes))) as c_int
}

fn done(result: Result<(), Errno>) -> Result<ssize_t, c_int> {
    result.map(|()| 0).map_err(Errno::raw_os_error)
}

/// Does it, if the descriptor is a connection that we follow.
fn on_connection(fd: c_int, call: impl FnOnce(&Held, &Connection) -> Result<ssize_t, c_int>) -> ssize_t {
    let held = table::connection(fd);
    let Some((tcp, connection)) = held.as_ref().and_then(|tcp| Some((tcp, tcp.connection()?))) else {
        return fail(libc::ENOTSUP);
    };
    let _inside = Inside::enter();
    call(tcp, connection).unwrap_or_else(fail)
}
