//! Blocking calls: look, then sleep.
//!
//! Invariant: a sleeper has announced itself and looked once more; whoever could end its wait (bytes, room, an end, a change, a death hinted by the node) wakes it.

use super::{Connection, Joined};
use crate::context::Context;
use crate::limits::{CAREFUL_SLICE, LOOK_TIME};
use crate::patience::Patience;
use crate::types::Waited;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vmmc_host::stream::{Phase, SleepWord, wait_socket};
use vmmc_host::{Deadline, Nanos};

impl Connection {
    /// Waits until a receive is worth trying.
    pub fn wait_readable(&self, context: &Context, fd: BorrowedFd<'_>, deadline: Option<Deadline>) -> Waited {
        let Some(joined) = self.upgraded.get() else { return wait_kernel(fd, PollFlags::IN, deadline, || false) };
        let into = joined.core.incoming();
        if !into.reads_ring() {
            return wait_kernel(fd, PollFlags::IN, deadline, || into.phase() != Phase::Steady);
        }
        let ready = || joined.core.looks_readable();
        joined.wait(context, &joined.reads, &into.receiver_sleep, deadline, ready)
    }

    /// Waits until a send is worth trying.
    pub fn wait_writable(&self, context: &Context, fd: BorrowedFd<'_>, deadline: Option<Deadline>) -> Waited {
        let Some(joined) = self.upgraded.get() else { return wait_kernel(fd, PollFlags::OUT, deadline, || false) };
        let out = joined.core.outgoing();
        if !out.announced().in_ring() {
            return wait_kernel(fd, PollFlags::OUT, deadline, || out.announced().in_ring());
        }
        let ready = || {
            joined.core.looks_writable() || {
                out.want_room();
                joined.core.looks_writable()
            }
        };
        joined.wait(context, &joined.writes, &out.sender_sleep, deadline, ready)
    }
}

impl Joined {
    fn wait(
        &self,
        context: &Context,
        patience: &Patience,
        word: &SleepWord,
        deadline: Option<Deadline>,
        ready: impl Fn() -> bool,
    ) -> Waited {
        self.publish_core();
        let peer_core = self.core.other().core.load(Ordering::Relaxed);
        loop {
            let Some(left) = left(deadline) else { return if ready() { Waited::Ready } else { Waited::TimedOut } };
            if patience.look(peer_core, left.unwrap_or(LOOK_TIME), &ready) {
                return Waited::Ready;
            }
            if context.has_news() {
                context.poll();
            }
            word.announce();
            if ready() {
                // The announcement stays: it may be another sleeper's too, and costs the peer one call in vain.
                return Waited::Ready;
            }
            // Several processes at the other end: one that was killed may leave the count of holders too high for a while, and then nobody announces the end.
            let shared = self.core.other().holders.load(Ordering::Relaxed) > 1;
            let careful = shared || self.core.careful.load(Ordering::Relaxed) != 0;
            let sleep = if careful { Some(left.map_or(CAREFUL_SLICE, |l| l.min(CAREFUL_SLICE))) } else { left };
            match word.sleep(sleep) {
                Err(Errno::INTR) => {
                    return if ready() { Waited::Ready } else { Waited::Interrupted };
                }
                Err(Errno::TIMEDOUT) if careful => self.core.ask_kernel.store(1, Ordering::Relaxed),
                _ => {}
            }
            if ready() {
                return Waited::Ready;
            }
        }
    }
}

/// Time left: none when the deadline has passed, `Some(None)` without a deadline.
fn left(deadline: Option<Deadline>) -> Option<Option<Duration>> {
    match deadline {
        None => Some(None),
        Some(deadline) => deadline.left(Nanos::monotonic()).map(Some),
    }
}

/// Waits for the kernel's socket, in slices if `changed` may become true without it.
fn wait_kernel(fd: BorrowedFd<'_>, what: PollFlags, deadline: Option<Deadline>, changed: impl Fn() -> bool) -> Waited {
    loop {
        if changed() {
            return Waited::Ready;
        }
        let Some(left) = left(deadline) else { return Waited::TimedOut };
        let slice = left.map_or(CAREFUL_SLICE, |l| l.min(CAREFUL_SLICE));
        match wait_socket(fd, what, Deadline::after(slice)) {
            Ok(true) => return Waited::Ready,
            Ok(false) => {}
            Err(Errno::INTR) => return Waited::Interrupted,
            // Whatever is wrong with the descriptor, the system call that follows says it.
            Err(_) => return Waited::Ready,
        }
    }
}
