//! Sleep of the driver of a station: the descriptors and the times that end it.
//!
//! Invariant: the sleep is announced to all processes before the last check of what they have
//! posted, so what they post after that check rings a doorbell.

use super::{Station, StationError, system};
use crate::limits::{ATTACH_TIME, OUTBOX_RETRY, REVOCATION_POLL};
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use vmmc_host::{Channel, area};
use vmmc_nic::Time;

/// What a readable descriptor means; travels through epoll with the connection's index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Readable {
    Control,
    Doorbell,
    Ended,
    Bell,
    Outside,
    Outlived,
}

impl Station {
    /// When [`step`](Self::step) and [`poll_control`](Self::poll_control) must be called although
    /// nothing comes.
    pub fn next_timeout(&self, now: Time) -> Option<Time> {
        let mut next = self.engine.poll_timeout();
        let mut sooner = |at: Time| next = Some(next.map_or(at, |n| n.min(at)));
        if !self.revocations.is_empty() {
            sooner(now + REVOCATION_POLL);
        }
        if self.congested || self.overflows() {
            sooner(now + OUTBOX_RETRY);
        }
        if !self.reap_queue.is_empty() {
            sooner(now);
        }
        if let Some(at) = self.pins_due(now) {
            sooner(at);
        }
        self.services.next_timeout().into_iter().for_each(&mut sooner);
        self.unread.next_timeout().into_iter().for_each(&mut sooner);
        if self.unattached > 0 {
            let first = self.connections.iter().flatten().filter(|c| c.is_silent()).map(|c| c.last_received).min();
            first.into_iter().for_each(|last| sooner(last + ATTACH_TIME));
        }
        next
    }

    /// Polls a descriptor of the owner of this station too;
    /// [`take_outside`](Self::take_outside) then says that one was readable.
    pub(crate) fn watch_outside(&self, fd: impl AsFd) -> Result<(), StationError> {
        self.watch(fd, 0, Readable::Outside).map_err(system("epoll_ctl"))
    }

    /// Undoes [`watch_outside`](Self::watch_outside).
    pub(crate) fn unwatch_outside(&self, fd: impl AsFd) {
        self.unwatch(fd);
    }

    /// Whether a descriptor of the driver was readable since the last call.
    pub(crate) fn take_outside(&mut self) -> bool {
        std::mem::take(&mut self.outside)
    }

    /// Announces that the driver of this station is about to sleep, and checks once more: true
    /// means that there is work, so do not sleep.
    pub fn prepare_sleep(&mut self) -> bool {
        self.asleep = true;
        self.counters.sleeps += 1;
        self.each_process(|process, _| {
            process.touch(|area| area.node_sleeping().store(1, Ordering::SeqCst));
        });
        area::fence();
        let mut ready = false;
        self.each_process(|process, progress| {
            ready |= process.is_ready(progress);
        });
        ready |= self.services.prepare_sleep() || self.engine.has_events() || !self.redirecting.is_idle();
        ready |= !self.reap_queue.is_empty();
        ready
    }

    /// Ends what [`prepare_sleep`](Self::prepare_sleep) began.
    #[inline]
    pub fn wake_up(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.services.wake_up();
            self.each_process(|process, _| {
                process.touch(|area| area.node_sleeping().store(0, Ordering::SeqCst));
            });
        }
    }

    /// Embedded nodes: whether a caller that waits for its node sleeps, so that other processes of
    /// the node must wake it for a notification through a mapping. Returns whether that is a
    /// change.
    pub(crate) fn raise_bells(&mut self, raised: bool) -> bool {
        if std::mem::replace(&mut self.bells_raised, raised) == raised {
            return false;
        }
        self.each_process(|process, _| {
            if process.bell.is_some() {
                let bell = process.notify_bell.word();
                if raised {
                    bell.fetch_add(1, Ordering::SeqCst)
                } else {
                    bell.fetch_sub(1, Ordering::SeqCst)
                };
            }
        });
        area::fence();
        true
    }

    fn overflows(&self) -> bool {
        let process = |&i: &usize| self.connections[i].as_ref().and_then(|c| c.process.as_ref());
        self.attached.iter().filter_map(process).any(|p| p.overflows())
    }

    /// Adds a descriptor to those that [`poll_control`](Self::poll_control) polls.
    pub(super) fn watch(&self, fd: impl AsFd, index: usize, what: Readable) -> rustix::io::Result<()> {
        let (kind, flags) = match what {
            Readable::Control => (0, epoll::EventFlags::IN),
            Readable::Doorbell => (1, epoll::EventFlags::IN | epoll::EventFlags::ET),
            Readable::Ended => (2, epoll::EventFlags::IN),
            Readable::Bell => (3, epoll::EventFlags::IN | epoll::EventFlags::ET),
            Readable::Outside => (4, epoll::EventFlags::IN),
            Readable::Outlived => (5, epoll::EventFlags::IN),
        };
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(kind << 32 | index as u64), flags)
    }

    /// Watches a control socket for this instead of what it was watched for.
    pub(super) fn watch_for(
        &self,
        channel: &Channel,
        index: usize,
        flags: epoll::EventFlags,
    ) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, channel, epoll::EventData::new_u64(index as u64), flags)
    }

    /// Removes a descriptor: others may hold it too, and then closing ours does not end its events.
    pub(super) fn unwatch(&self, fd: impl AsFd) {
        // What is not there needs no removing.
        let _ = epoll::delete(&self.epoll, fd);
    }
}

impl AsFd for Station {
    /// Readable when [`poll_control`](Station::poll_control) has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// What the data of an event say.
pub(super) fn readable(data: u64) -> Readable {
    match data >> 32 {
        0 => Readable::Control,
        1 => Readable::Doorbell,
        2 => Readable::Ended,
        3 => Readable::Bell,
        4 => Readable::Outside,
        _ => Readable::Outlived,
    }
}
