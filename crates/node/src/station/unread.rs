//! Descriptors that the node has sent and no client has taken.
//!
//! The kernel counts them for the user who sent them, the node's, no matter which client leaves
//! them in a queue, and lets that user send no more once they are as many as a process may have
//! open. So they count in the share of the user whose client is to take them, from the send until
//! the kernel says that the queue is empty: also when the connection has ended, for what was sent
//! stays in the queue of the process that keeps the other end. The node keeps its own end until
//! then, or nobody would know.
//!
//! Invariant: of all users together at most one part in
//! [`UNDER_WAY_PART`](crate::limits::UNDER_WAY_PART) of the kernel's bound is under way.

use super::Station;
use super::connection::{DescriptorAccount, Outbox};
use super::shares::{Holdings, Table};
use crate::limits::{UNREAD_POLL, UNREAD_POLL_MAX};
use std::time::Duration;
use vmmc_host::Nanos;
use vmmc_nic::Time;

/// Ends of connections that are over, in whose queues descriptors still wait.
#[derive(Default)]
pub(super) struct Unread {
    ends: Vec<End>,
    due: Time,
    pause: Duration,
    polled_at: Option<Nanos>,
}

struct End {
    uid: u32,
    outbox: Outbox,
    held: Holdings,
}

impl Unread {
    /// When [`Station::serve_unread`] has something to do.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        (!self.ends.is_empty()).then_some(self.due)
    }
}

impl Station {
    /// A connection is over: its end is closed once all descriptors that were sent there are taken.
    /// `from` has what the connection holds, `socket` what goes with the end; none: it counts as
    /// long as its process does, and beyond that only if it is kept.
    pub(super) fn lay_aside(
        &mut self,
        now: Time,
        uid: u32,
        mut outbox: Outbox,
        socket: Option<Holdings>,
        from: &mut Holdings,
    ) {
        outbox.forget_waiting();
        outbox.release_taken(&mut DescriptorAccount { shares: &mut self.shares, uid, held: from });
        outbox.channel.shut_down();
        if outbox.under_way() == 0 {
            outbox.channel.held = socket.unwrap_or_default();
            return;
        }
        let mut held = socket.unwrap_or_else(|| {
            let mut held = Holdings::default();
            self.shares.count(uid, &mut held, Table::Descriptors, 1);
            held
        });
        held.add(&from.split(&Holdings::of(Table::UnderWay, outbox.under_way()), 1));
        self.unread.ends.push(End { uid, outbox, held });
        (self.unread.due, self.unread.pause) = (now + UNREAD_POLL, UNREAD_POLL);
    }

    /// Checks now and then whether queues of connections that are over have been emptied.
    pub(super) fn serve_unread(&mut self, now: Time) {
        if self.unread.next_timeout().is_some_and(|due| due <= now) {
            self.poll_ended();
            self.unread.due = now + self.unread.pause;
            self.unread.pause = (self.unread.pause * 2).min(UNREAD_POLL_MAX);
        }
    }

    fn poll_ended(&mut self) {
        let shares = &mut self.shares;
        self.unread.ends.retain_mut(|end| {
            end.outbox.release_taken(&mut DescriptorAccount { shares, uid: end.uid, held: &mut end.held });
            if end.outbox.under_way() == 0 {
                // Released when it is closed.
                end.outbox.channel.held = std::mem::take(&mut end.held);
            }
            end.outbox.under_way() > 0
        });
    }

    /// A share is short: descriptors that were taken meanwhile count no more. Does nothing just
    /// after the last such poll.
    pub(super) fn poll_unread(&mut self) {
        let now = Nanos::monotonic();
        if self.unread.polled_at.is_some_and(|last| now.since(last) < UNREAD_POLL) {
            return;
        }
        self.unread.polled_at = Some(now);
        for connection in self.connections.iter_mut().flatten() {
            let connection = &mut **connection;
            let mut account =
                DescriptorAccount { shares: &mut self.shares, uid: connection.who.uid, held: &mut connection.held };
            connection.control.release_taken(&mut account);
            let events = connection.process.as_mut().and_then(|process| process.events.as_mut());
            events.into_iter().for_each(|events| events.release_taken(&mut account));
        }
        self.poll_ended();
    }
}
