//! What poll, select and epoll say about one connection.
//!
//! Invariant: a direction in the ring is judged by the ring, one in the kernel by the kernel; a
//! full ring never appears writable.

use crate::real;
use crate::seen::Seen;
use libc::{c_int, c_short, pollfd};
use vmmc_sockets::{Interest, Medium, State};

/// Bits that have to do with bytes from the peer. The bits of poll and epoll have the same values.
pub(crate) const INPUT: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLRDNORM) as u32;
/// Bits that have to do with room for bytes to the peer.
pub(crate) const OUTPUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// Bits that are reported without being asked for.
pub(crate) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// What is of interest, as the protocol core takes it.
pub(crate) fn interest(events: u32) -> Interest {
    Interest(
        if events & INPUT != 0 { Interest::READ.0 } else { 0 }
            | if events & OUTPUT != 0 { Interest::WRITE.0 } else { 0 },
    )
}

/// The bits that hold now, of those asked for. `seen` is what the kernel said in an event loop that
/// is notified of every edge.
pub(crate) fn bits_of(state: &State, fd: c_int, events: u32, seen: Option<&Seen>) -> u32 {
    let mut bits = 0;
    if state.readable {
        bits |= libc::EPOLLIN | libc::EPOLLRDNORM;
    }
    if state.writable {
        bits |= libc::EPOLLOUT | libc::EPOLLWRNORM;
    }
    if state.read_hangup {
        bits |= libc::EPOLLRDHUP;
    }
    if state.hangup {
        bits |= libc::EPOLLHUP;
    }
    if state.error.is_some() {
        bits |= libc::EPOLLERR;
    }
    let kernel = events & (kernel_part(state));
    let known = match kernel {
        _ if state.asks_kernel => None,
        0 if state.rx == Medium::Ring && state.tx == Medium::Ring => Some(0),
        _ => seen.and_then(|seen| seen.known(kernel)),
    };
    let kernel = known.unwrap_or_else(|| {
        let bits = ask_kernel(fd, kernel);
        seen.inspect(|seen| seen.answer(bits));
        bits
    });
    (bits as u32 | kernel) & (events | ALWAYS)
}

/// The bits that the kernel knows about.
pub(crate) fn kernel_part(state: &State) -> u32 {
    // Urgent data comes by the kernel, also while bytes before it are in the ring.
    let input = if state.rx == Medium::Kernel { INPUT } else { libc::EPOLLPRI as u32 };
    let output = if state.tx == Medium::Kernel { OUTPUT } else { 0 };
    input | output
}

/// What poll says of the kernel's socket, of these bits and of errors and hang-ups.
pub(crate) fn ask_kernel(fd: c_int, events: u32) -> u32 {
    let mut one = pollfd { fd, events: events as c_short, revents: 0 };
    // SAFETY: one entry, which is ours.
    let found = unsafe { real::poll(&raw mut one, 1, 0) };
    if found > 0 { u32::from(one.revents as u16) } else { 0 }
}
