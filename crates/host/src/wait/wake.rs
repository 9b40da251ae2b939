//! Waking a process: a pipe that the sleeper reads and everybody else writes.
//!
//! Invariant: a wake-up that comes after the sleeper has announced itself ends its sleep.

use crate::channel::{ChannelError, wait_fd};
use crate::handshake::{announce_sleep, must_wake, retract_sleep};
use crate::os::pipes::write_quietly;
use crate::wait::Deadline;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

/// The sleeping side of a wake-up: a pipe that only its owner reads. It is also the descriptor for
/// event loops.
#[derive(Debug)]
pub struct WakeReceiver(OwnedFd);

/// The waking side: it can be given to other processes, which can wake with it and nothing else.
#[derive(Debug)]
pub struct WakeSender(OwnedFd);

/// Makes a wake-up pair.
pub fn wake_pair() -> Result<(WakeReceiver, WakeSender), ChannelError> {
    let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
    let (read, write) =
        rustix::pipe::pipe_with(flags).map_err(|errno| ChannelError::System { call: "pipe2", errno })?;
    Ok((WakeReceiver(read), WakeSender(write)))
}

impl WakeReceiver {
    /// Wraps a descriptor that came over a channel.
    pub fn from_fd(fd: OwnedFd) -> WakeReceiver {
        WakeReceiver(fd)
    }

    /// Takes all wake-ups that have come; says whether there were any.
    pub fn drain(&self) -> bool {
        let mut bytes = [0u8; 64];
        let mut any = false;
        while let Ok(count @ 1..) = rustix::io::read(&self.0, &mut bytes) {
            any = true;
            if count < bytes.len() {
                break;
            }
        }
        any
    }

    /// Sleeps until somebody wakes us or the deadline passes. `flags` tell wakers that we sleep;
    /// `poll` is the last poll after they are set: true means stay awake.
    pub fn sleep(&self, flags: &[&AtomicU64], deadline: Deadline, poll: impl FnOnce() -> bool) {
        self.drain();
        for flag in flags {
            announce_sleep(flag);
        }
        if !poll() {
            // A failure other than the deadline (which the caller sees on its clock) shows as an
            // early return; the caller's loop polls again.
            let _ = wait_fd(self.0.as_fd(), PollFlags::IN, deadline);
        }
        for flag in flags {
            retract_sleep(flag);
        }
    }
}

impl AsFd for WakeReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl WakeSender {
    /// Wraps a descriptor that came over a channel.
    pub fn from_fd(fd: OwnedFd) -> WakeSender {
        WakeSender(fd)
    }

    /// Another handle to the same receiver.
    pub fn share(&self) -> std::io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Wakes the receiver. A full pipe has woken it already; a receiver that is gone needs no
    /// waking, and its end is no signal to the program.
    pub fn wake(&self) {
        loop {
            match write_quietly(&self.0, &[1]) {
                Err(Errno::INTR) => continue,
                _ => return,
            }
        }
    }

    /// Wakes the receiver if its flag says that it sleeps. Call after what it is to see has been
    /// published.
    #[inline]
    pub fn wake_if(&self, flag: &AtomicU64) {
        if must_wake(flag) {
            self.wake();
        }
    }
}
