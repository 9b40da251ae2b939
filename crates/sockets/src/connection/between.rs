//! A connection whose other end is on another node: what its process asks of the nodes, and how it
//! learns that one of them has gone.
//!
//! Invariant: within a node all of this is the load of a pointer.

use super::{Connection, Joined, Socket};
use crate::context::Context;
use crate::core::{Wakeup, WayBack};
use crate::limits::{BACK_PAUSE, BACK_TIMEOUT, BETWEEN_BACK_TIMEOUT};
use crate::node::Node;
use crate::types::State;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use vmmc_host::{Deadline, Nanos};
use vmmc_stream::{Flags, Watch, forget_error, reset, thread_id};

impl Joined {
    /// Before a call: whether our own node has gone since the connection was upgraded, if that
    /// matters now.
    #[inline]
    pub(super) fn maintain(&self, context: &Context, connection: &Connection, fd: BorrowedFd<'_>) {
        if self.core.is_between() && !self.core.rests_in_kernel() {
            self.maintain_between(context, connection, fd);
        }
    }

    fn maintain_between(&self, context: &Context, connection: &Connection, fd: BorrowedFd<'_>) {
        let generation = context.generation() + 1;
        if connection.followed.load(Ordering::Relaxed) != generation && context.node().follow_between(connection) {
            connection.followed.store(generation, Ordering::Relaxed);
        }
        if self.own_node_died(context) {
            self.core.lose_node();
        }
        self.go_back_if_asked(context, connection, fd);
    }

    /// The other end wants the kernel, perhaps because somebody reads there who does not know of
    /// the ring: it waits for that, and not for our next send.
    pub(super) fn go_back_if_asked(&self, context: &Context, connection: &Connection, fd: BorrowedFd<'_>) {
        let out = self.core.outgoing();
        let asked = self.core.is_between() && out.receiver_flags.load(Ordering::Relaxed) & Flags::WANTS_KERNEL != 0;
        if asked && out.announced().in_ring() && !out.goes_back() {
            let (_, wakeup) = self.core.return_to_kernel(thread_id(), &Socket(fd));
            connection.wake_other_end(context, self, wakeup);
        }
    }

    fn own_node_died(&self, context: &Context) -> bool {
        context.node().was_lost_after(self.at)
    }

    /// A sleeper checks whether its node is alive.
    pub(super) fn watch_node(&self, context: &Context) {
        if self.core.is_between() {
            context.check_node();
            if self.own_node_died(context) {
                self.core.lose_node();
            }
        }
    }

    /// Asks the other node whether all is here, if somebody waits for that.
    pub(super) fn ask_other_node(&self, context: &Context) {
        if self.core.takes_question() {
            context.node().ask_for_the_rest(&self.seat);
        }
    }

    /// A call fails so. The other end of a connection that is cut off should learn by the kernel,
    /// too, that nothing comes any more.
    #[cold]
    pub(super) fn failed(&self, fd: BorrowedFd<'_>, errno: Errno) -> Errno {
        if self.core.is_broken() {
            reset(fd);
        }
        if errno == Errno::CONNRESET || self.core.reset() == Some(errno) {
            // Reported, so the kernel's socket, which has the same reset, reports it no more.
            forget_error(fd);
        }
        errno
    }
}

impl Connection {
    /// After a call: sends the nodes what no byte brings them.
    #[inline]
    pub(super) fn pass_on(&self, context: &Context, joined: &Joined) {
        if joined.core.is_between() {
            if joined.core.takes_update() {
                self.wake_other_end(context, joined, Wakeup { receiver: false, sender: true });
            }
            joined.ask_other_node(context);
        }
    }

    /// [`hand_back`](Self::hand_back) for a peer on another node: what became of the request the
    /// other node answers, and without that the connection is reset.
    pub(super) fn hand_over_between(&self, context: &Context, joined: &Joined, fd: BorrowedFd<'_>) {
        let (core, me, kernel) = (&joined.core, thread_id(), Socket(fd));
        core.pinned.store(1, Ordering::SeqCst);
        core.follow(me, &kernel);
        if core.ask_back(me).is_none() {
            return reset(fd);
        }
        core.incoming().receiver_sleep.wake_all();
        let [promise, answer] = [BACK_TIMEOUT, BETWEEN_BACK_TIMEOUT].map(Deadline::after);
        let is_over = |deadline: &Deadline| deadline.left(Nanos::monotonic()).is_none();
        let give_up = || {
            core.give_up();
            reset(fd);
        };
        loop {
            let (way, _) = core.hand_over(me, &kernel);
            self.wake_other_end(context, joined, Wakeup { receiver: true, sender: true });
            match way {
                WayBack::Found => return self.unmark(context, fd),
                WayBack::Promised if is_over(&promise) => return self.unmark(context, fd),
                WayBack::Lost => return give_up(),
                WayBack::Open if core.is_cut_off() || is_over(&answer) => return give_up(),
                WayBack::Promised | WayBack::Open => std::thread::sleep(BACK_PAUSE),
            }
            joined.watch_node(context);
        }
    }

    /// What can be done with a connection that ends as a reset one, after what is there was
    /// received.
    #[cold]
    pub(super) fn broken_state(&self, joined: &Joined, fd: BorrowedFd<'_>) -> State {
        reset(fd);
        let core = &joined.core;
        State {
            readable: true,
            writable: true,
            read_hangup: true,
            hangup: true,
            error: Some(Errno::CONNRESET).filter(|_| !core.reset_was_reported()),
            asks_kernel: false,
            rx: super::Medium::Ring,
            tx: super::Medium::Ring,
        }
    }

    pub(crate) fn weak(&self) -> Weak<Connection> {
        self.own.clone()
    }

    /// Has the event loops of this process poll the connection.
    pub(crate) fn ring_own_watches(&self, node: &Node) {
        let Some(joined) = self.upgraded.get() else { return };
        let words = joined.core.incoming().receiver_watch.iter().chain(&joined.core.outgoing().sender_watch);
        let of_us = |watch: &Watch| node.session(&joined.seat).is_some_and(|s| s.process() == watch.process);
        let watches = words.filter_map(|word| Watch::from_word(word.load(Ordering::Relaxed)));
        watches.filter(of_us).for_each(|watch| node.ring_own(watch));
        joined.core.incoming().receiver_sleep.wake_all();
        joined.core.outgoing().sender_sleep.wake_all();
    }
}
