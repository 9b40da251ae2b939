//! Memory of stream sockets: what the two ends of an upgraded connection share, and the kernel calls that the upgrade needs.
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
//! Invariant: every word here can be written by the other side at any time, so all are claims; positions are masked before they become addresses, so the worst
//! that a peer can do is to spoil the bytes of its own connection. Source: [NT §4]; DESIGN, sockets.

#[cfg(not(loom))]
mod bells;
#[cfg(not(loom))]
mod kernel;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
pub mod messages;
#[cfg(not(loom))]
mod replica;
#[cfg(not(loom))]
mod ringer;
#[cfg(not(loom))]
mod slab;
#[cfg(not(loom))]
mod vigil;
mod words;

#[cfg(not(loom))]
pub use bells::{BELLS, Bells, TOKENS, Watch};
#[cfg(not(loom))]
pub use kernel::{
    End, Endpoints, TcpProgress, cookie, core, end_of_kernel, endpoints, forget_thread_id, has_no_delay,
    is_marked_upgraded, mark_upgraded, move_high, needs_kernel, network_here, receive_now, reset, send_more, send_now,
    set_no_delay, shut_down, tcp_progress, thread_id, unread_bytes, wait_socket, would_receive,
};
#[cfg(not(loom))]
pub use lock::{Locked, SharedLock, TryLock};
#[cfg(not(loom))]
pub use replica::{Nonsense, Replica, Said, Wakes};
#[cfg(not(loom))]
pub use ringer::Ringer;
#[cfg(not(loom))]
pub use slab::{Shape, Slab, Slot, Stretch};
#[cfg(not(loom))]
pub use vigil::{Sign, Vigil};
#[cfg(not(loom))]
pub use words::SideWords;
pub use words::{DirectionWords, EndWords, Epoch, Flags, Layout, Left, Phase, SleepWord, SlotWords};

#[cfg(not(loom))]
impl SleepWord {
    /// Sleeps until woken, a signal handler runs, or `slice` is over (`ETIMEDOUT`). Only after [`announce`](Self::announce) and a look in vain. What is `restartable` goes
    /// on by itself after handlers that ask for it (`SA_RESTART`), as a receive without a timeout does; else every handler ends it, as with a timeout. A restartable sleep
    /// also ends when the process that gives the `sign` does.
    pub fn sleep(
        &self,
        slice: std::time::Duration,
        restartable: bool,
        sign: Option<&Sign>,
    ) -> Result<(), rustix::io::Errno> {
        use rustix::io::Errno;
        use rustix::thread::futex::{Flags, Timespec, wait};
        let short = Timespec { tv_sec: slice.as_secs() as i64, tv_nsec: i64::from(slice.subsec_nanos()) };
        let slept = match restartable.then(|| self.sleep_restartable(slice, sign)) {
            // Before Linux 5.16 only a sleep without an end is restarted.
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
    fn sleep_restartable(&self, slice: std::time::Duration, sign: Option<&Sign>) -> Result<(), rustix::io::Errno> {
        use rustix::thread::futex::{Wait, WaitFlags, WaitPtr, WaitvFlags, waitv};
        let end = crate::Nanos::monotonic() + slice;
        let end =
            rustix::time::Timespec { tv_sec: (end.0 / 1_000_000_000) as i64, tv_nsec: (end.0 % 1_000_000_000) as i64 };
        let wait = |word: &std::sync::atomic::AtomicU32, value: u32| {
            let mut wait = Wait::new();
            wait.val = u64::from(value);
            wait.uaddr = WaitPtr::new(word.as_ptr().cast());
            wait.flags = WaitFlags::SIZE_U32;
            wait
        };
        let both = [wait(&self.0, 1), sign.map_or_else(Wait::new, |sign| wait(sign.word(), sign.seen()))];
        let words = if sign.is_some() { &both[..] } else { &both[..1] };
        let slept = waitv(words, WaitvFlags::empty(), Some(&end), rustix::time::ClockId::Monotonic);
        if let Some(sign) = sign.filter(|sign| !sign.is_there()) {
            // The kernel wakes one.
            sign.wake_all();
        }
        slept.map(|_| ())
    }

    /// Wakes whoever sleeps, if the announcement says that somebody does. The caller has published and passed a full fence.
    #[inline]
    pub fn wake(&self) {
        if self.take() {
            self.wake_all();
        }
    }

    /// Wakes whoever sleeps, whatever the announcement says.
    pub fn wake_all(&self) {
        self.0.store(0, std::sync::atomic::Ordering::SeqCst);
        let _ = rustix::thread::futex::wake(&self.0, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
    }
}
