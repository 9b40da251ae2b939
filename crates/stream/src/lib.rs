//! Memory of stream sockets: what the two ends of an upgraded connection share, and the kernel
//! calls that the upgrade needs.
//!
//! ```text
//!   slab (one memfd, shared by a pair of processes)            bells (one memfd for each process, shared by it with its peers)
//!   ┌ slot ──────────────────────────────┐ …                   ┌ bell ─────────────────────────────┐ … one for each event loop
//!   │ words: 2 directions, 2 ends         │                    │ armed flag, summary, a bit a token │
//!   │ ring of direction 0                 │                    └────────────────────────────────────┘
//!   │ ring of direction 1                 │
//!   └─────────────────────────────────────┘
//!   behind all slots: two large rings for each, which get memory when they are needed
//! ```
//!
//! Invariant: every word here can be written by the other side at any time, so all are claims;
//! positions are masked before they become addresses, so the worst that a peer can do is to spoil
//! the bytes of its own connection. Source: [NT §4]; docs/sockets.md.

#![forbid(unsafe_code)]

mod atomics;
#[cfg(not(loom))]
mod bells;
#[cfg(not(loom))]
mod diag;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
pub mod messages;
#[cfg(not(loom))]
mod replica;
#[cfg(not(loom))]
mod slab;
mod words;

#[cfg(not(loom))]
pub use bells::{BELLS, Bells, TOKENS, Watch};
#[cfg(not(loom))]
pub use diag::{KernelSocket, SocketDiag};
#[cfg(not(loom))]
pub use lock::{Denied, Locked, SharedLock};
#[cfg(not(loom))]
pub use replica::{Encoded, Nonsense, Replica, Wakes};
#[cfg(not(loom))]
pub use slab::{RingSlice, Shape, Slab, Slot};
#[cfg(not(loom))]
pub use words::SideWords;
pub use words::{DirectionWords, EndWords, Epoch, Flags, Layout, Left, Phase, SleepWord, SlotWords};

#[cfg(not(loom))]
pub use vmmc_host::os::aio::Ringer;
#[cfg(not(loom))]
pub use vmmc_host::os::tcp::{
    End, Endpoints, TcpProgress, cookie, end_of_kernel, endpoints, forget_error, has_no_delay, is_marked_upgraded,
    mark_upgraded, move_high, needs_kernel, network_here, not_sent_limit, receive_now, reset, reset_at_close,
    send_more, send_now, set_no_delay, shut_down, takes_more, tcp_progress, unmark_upgraded, unread_bytes, wait_socket,
    would_receive,
};
#[cfg(not(loom))]
pub use vmmc_host::os::threads::{core, forget_thread_id, thread_id};
#[cfg(not(loom))]
pub use vmmc_host::section::{Section, SectionLock};

/// What a process says of its own socket to its node.
///
/// # Errors
/// As [`endpoints`].
#[cfg(not(loom))]
pub fn claim(fd: std::os::fd::BorrowedFd<'_>) -> Result<messages::SocketClaim, rustix::io::Errno> {
    use std::os::fd::AsRawFd;
    let (Endpoints { local, remote, .. }, cookie) = endpoints(fd)?;
    // One that is bound to an interface, and cannot be asked, is not found, and stays with the
    // kernel.
    let interface = vmmc_host::os::tcp::interface(fd);
    Ok(messages::SocketClaim { local, remote, interface, cookie, descriptor: fd.as_raw_fd() })
}

#[cfg(not(loom))]
impl SleepWord {
    /// Sleeps until woken, a signal handler runs, or `slice` is over (`ETIMEDOUT`). Only after
    /// [`announce`](Self::announce) and a poll in vain. What is `restartable` goes on by itself
    /// after handlers that ask for it (`SA_RESTART`), as a receive without a timeout does; else
    /// every handler ends it, as with a timeout.
    pub fn sleep(&self, slice: std::time::Duration, restartable: bool) -> Result<(), rustix::io::Errno> {
        use rustix::io::Errno;
        use rustix::thread::futex::{Flags, Timespec, wait};
        let short = Timespec { tv_sec: slice.as_secs() as i64, tv_nsec: i64::from(slice.subsec_nanos()) };
        let slept = match restartable.then(|| self.sleep_restartable(slice)) {
            // Before Linux 5.16 only a sleep without an end is restarted; it learns of a death from
            // the node alone.
            Some(Err(Errno::NOSYS | Errno::PERM)) => wait(&self.0, Flags::empty(), 1, None),
            Some(slept) => slept,
            None => wait(&self.0, Flags::empty(), 1, Some(&short)),
        };
        match slept {
            Err(Errno::AGAIN) => Ok(()),
            other => other,
        }
    }

    /// An absolute end can be waited for again after a handler.
    fn sleep_restartable(&self, slice: std::time::Duration) -> Result<(), rustix::io::Errno> {
        use rustix::thread::futex::{Wait, WaitFlags, WaitPtr, WaitvFlags, waitv};
        let end = vmmc_host::Nanos::monotonic() + slice;
        let end =
            rustix::time::Timespec { tv_sec: (end.0 / 1_000_000_000) as i64, tv_nsec: (end.0 % 1_000_000_000) as i64 };
        let mut wait = Wait::new();
        wait.val = 1;
        wait.uaddr = WaitPtr::new(self.0.as_ptr().cast());
        wait.flags = WaitFlags::SIZE_U32;
        waitv(&[wait], WaitvFlags::empty(), Some(&end), rustix::time::ClockId::Monotonic).map(|_| ())
    }

    /// Wakes the sleeping threads, if the announcement says that there are any. The caller has
    /// published and passed a full fence.
    #[inline]
    pub fn wake(&self) {
        if self.take() {
            self.wake_all();
        }
    }

    /// Wakes the sleeping threads, whatever the announcement says.
    pub fn wake_all(&self) {
        self.0.store(0, std::sync::atomic::Ordering::SeqCst);
        let _ = rustix::thread::futex::wake(&self.0, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
    }
}
