//! Blocking calls: poll, then sleep.
//!
//! Invariant: a sleeper has announced itself and polled once more; the party that could end its
//! wait (bytes, room, an end, a change, a death hinted by the node) wakes it.

use super::{Connection, Joined, Socket};
use crate::context::Context;
use crate::limits::{
    CAREFUL_SLICE, KERNEL_SLICE_MAX, PENDING_SLICE, SHARED_SLEEP_SLICE_MAX, SLEEP_SLICE, SLEEP_SLICE_MAX,
};
use crate::polling::{NEVER, SpinBudget};
use crate::types::Waited;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vmmc_host::{Deadline, Nanos};
use vmmc_stream::{Phase, SleepWord, core, thread_id};

impl Connection {
    /// Waits until a receive is worth trying.
    pub fn wait_readable(&self, context: &Context, fd: BorrowedFd<'_>, deadline: Option<Deadline>) -> Waited {
        self.unless_closed(self.wait_for_bytes(context, fd, deadline))
    }

    /// Waits until a send is worth trying.
    pub fn wait_writable(&self, context: &Context, fd: BorrowedFd<'_>, deadline: Option<Deadline>) -> Waited {
        self.unless_closed(self.wait_for_room(context, fd, deadline))
    }

    fn unless_closed(&self, waited: Waited) -> Waited {
        if self.is_closed() { Waited::Closed } else { waited }
    }

    /// Of a wait in the kernel: a closed connection's ends now, for its descriptor may be
    /// another's.
    fn phase_or_closed(&self, phase: Phase) -> Phase {
        if self.is_closed() { Phase::EndsAt(0) } else { phase }
    }

    fn wait_for_bytes(&self, context: &Context, fd: BorrowedFd<'_>, deadline: Option<Deadline>) -> Waited {
        let Some(joined) = self.upgraded.get() else {
            let phase = || self.phase_or_closed(Phase::Steady);
            return wait_kernel(context, fd, PollFlags::IN, deadline, CAREFUL_SLICE, phase, || KERNEL_SLICE_MAX);
        };
        let into = joined.core.incoming();
        joined.maintain(context, self, fd);
        if !into.reads_ring() && !joined.core.waits_for_the_rest() {
            // Another thread may have followed it into the ring.
            let phase = || {
                let phase = if into.reads_ring() { Phase::EndsAt(0) } else { into.phase() };
                self.phase_or_closed(joined.phase_or_end(phase))
            };
            let serve = || joined.serve(context, self, fd);
            return wait_kernel(context, fd, PollFlags::IN, deadline, joined.first_slice(), phase, serve);
        }
        let ready = || joined.core.ends_sleep() || self.is_closed();
        joined.wait(context, self, fd, (&joined.reads, &into.receiver_sleep), deadline, ready)
    }

    /// Wakes this process's threads that sleep in a ring: they ask
    /// [`is_interrupted`](crate::Settings::is_interrupted), and sleep again if they are not.
    pub fn wake_own(&self) {
        if let Some(joined) = self.upgraded.get() {
            joined.core.incoming().receiver_sleep.wake();
            joined.core.outgoing().sender_sleep.wake();
        }
    }

    fn wait_for_room(&self, context: &Context, fd: BorrowedFd<'_>, deadline: Option<Deadline>) -> Waited {
        let Some(joined) = self.upgraded.get() else {
            let phase = || self.phase_or_closed(Phase::Steady);
            return wait_kernel(context, fd, PollFlags::OUT, deadline, CAREFUL_SLICE, phase, || KERNEL_SLICE_MAX);
        };
        joined.maintain(context, self, fd);
        let out = joined.core.outgoing();
        let by_kernel = || !out.announced().in_ring() || joined.core.must_flush_to_kernel();
        if by_kernel() {
            let phase = || {
                let phase = if by_kernel() { Phase::Steady } else { Phase::EndsAt(0) };
                self.phase_or_closed(joined.phase_or_end(phase))
            };
            return wait_kernel(context, fd, PollFlags::OUT, deadline, CAREFUL_SLICE, phase, || KERNEL_SLICE_MAX);
        }
        let ready = || {
            joined.core.may_be_writable() || self.is_closed() || {
                out.want_room();
                joined.core.notice_full(Nanos::monotonic().0, &Socket(fd));
                joined.core.may_be_writable()
            }
        };
        joined.wait(context, self, fd, (&joined.writes, &out.sender_sleep), deadline, ready)
    }
}

impl Joined {
    fn wait(
        &self,
        context: &Context,
        connection: &Connection,
        fd: BorrowedFd<'_>,
        (budget, word): (&SpinBudget, &SleepWord),
        deadline: Option<Deadline>,
        ready: impl Fn() -> bool,
    ) -> Waited {
        self.publish_core();
        let peer_core = self.peer_core();
        let mut slept = 0;
        loop {
            let Some(left) = left(deadline) else { return if ready() { Waited::Ready } else { Waited::TimedOut } };
            let most = self.serve(context, connection, fd);
            self.go_back_if_asked(context, connection, fd);
            if slept == 0 && budget.poll(peer_core, deadline.unwrap_or(NEVER), &ready) {
                return Waited::Ready;
            }
            if context.has_messages() {
                context.poll();
            }
            word.announce();
            if ready() {
                // The announcement stays: it may be another sleeper's too, and costs the peer one
                // call in vain.
                return Waited::Ready;
            }
            if (context.settings().is_interrupted)() {
                return Waited::Interrupted;
            }
            let slice = self.slice(slept).min(most);
            match word.sleep(left.map_or(slice, |left| left.min(slice)), left.is_none()) {
                Err(Errno::INTR) => {
                    return if ready() { Waited::Ready } else { Waited::Interrupted };
                }
                Err(Errno::TIMEDOUT) => {
                    slept += 1;
                    self.ask_kernel(fd);
                    self.ask_other_node(context);
                    self.watch_node(context);
                }
                _ => {}
            }
            if ready() {
                return Waited::Ready;
            }
        }
    }

    /// Does what the other end asked for, if it did; gives the longest sleep until the next poll.
    fn serve(&self, context: &Context, connection: &Connection, fd: BorrowedFd<'_>) -> Duration {
        if self.core.is_waited_for() {
            let done = self.core.flush_to_kernel(thread_id(), &Socket(fd));
            connection.pass_on(context, self);
            if !done {
                return SLEEP_SLICE;
            }
        }
        // Only what is in the ring can be asked for, and nobody rings a thread that waits in the
        // kernel.
        let in_kernel = self.core.goes_by_ring_soon() && !self.core.incoming().reads_ring();
        if in_kernel { SLEEP_SLICE_MAX } else { KERNEL_SLICE_MAX }
    }

    /// Asks the kernel about the other end.
    fn ask_kernel(&self, fd: BorrowedFd<'_>) {
        self.core.ask_kernel.store(1, Ordering::Relaxed);
        self.core.follow_hints(&Socket(fd));
    }

    /// How long to sleep after so many sleeps in vain.
    fn slice(&self, slept: u32) -> Duration {
        let shared = self.core.other().holders.load(Ordering::Relaxed) > 1;
        let holder_unknown = self.core.holder_unknown.load(Ordering::Relaxed) != 0 || self.core.waits_for_the_rest();
        let max = if holder_unknown || shared { SHARED_SLEEP_SLICE_MAX } else { SLEEP_SLICE_MAX };
        SLEEP_SLICE.saturating_mul(1 << slept.min(16)).min(max)
    }

    /// The core from which bytes are expected, plus one. Those of another node come by ours, which
    /// may well need this core.
    pub(super) fn peer_core(&self) -> u32 {
        if self.core.is_between() { core() + 1 } else { self.core.other().core.load(Ordering::Relaxed) }
    }

    /// First slice of a wait in the kernel: between nodes what is announced may come after the
    /// bytes that go with it.
    fn first_slice(&self) -> Duration {
        if self.core.is_ready_for_ring() { PENDING_SLICE } else { CAREFUL_SLICE }
    }

    /// Nothing to wait for in the kernel once the other node is out of reach.
    fn phase_or_end(&self, phase: Phase) -> Phase {
        if self.core.is_broken() { Phase::EndsAt(0) } else { phase }
    }
}

/// Time left: none when the deadline has passed, `Some(None)` without a deadline.
fn left(deadline: Option<Deadline>) -> Option<Option<Duration>> {
    match deadline {
        None => Some(None),
        Some(deadline) => deadline.left(Nanos::monotonic()).map(Some),
    }
}

/// Waits for the kernel's socket, in slices if a change of medium may end the wait.
fn wait_kernel(
    context: &Context,
    fd: BorrowedFd<'_>,
    what: PollFlags,
    deadline: Option<Deadline>,
    first: Duration,
    phase: impl Fn() -> Phase,
    serve: impl Fn() -> Duration,
) -> Waited {
    for slept in 0u32.. {
        let slice = match phase() {
            // A change comes with bytes, which end the wait unless another receiver takes them.
            Phase::Steady => first.saturating_mul(1 << slept.min(16)).min(serve()),
            Phase::Pending => PENDING_SLICE,
            Phase::EndsAt(_) => return Waited::Ready,
        };
        let Some(left) = left(deadline) else { return Waited::TimedOut };
        let slice = left.map_or(slice, |l| l.min(slice));
        match (context.settings().wait_socket)(fd, what, Deadline::after(slice)) {
            Ok(true) => return Waited::Ready,
            Ok(false) => {}
            Err(Errno::INTR) => return Waited::Interrupted,
            // Whatever is wrong with the descriptor, the system call that follows says it.
            Err(_) => return Waited::Ready,
        }
    }
    Waited::Ready
}
