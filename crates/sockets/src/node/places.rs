//! Calls to the node about connections: offers, places in slabs, and their holders.
//!
//! Invariant: a call about what a node named goes to that node only.

use super::{Adoption, Node, Seat};
use crate::connection::Connection;
use crate::context::Settings;
use crate::limits::{ADOPT_PAUSE, BETWEEN_LIST_MAX, HOLD_BATCH};
use crate::types::Bypass;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vmmc_host::{Deadline, Nanos};
use vmmc_stream::messages::{EndRef, SocketCall, SocketClaim};

impl Node {
    /// Offers a socket. None: not now.
    pub(crate) fn offer(&self, settings: &Settings, connection: &Arc<Connection>, socket: SocketClaim) -> Option<u64> {
        let mut link = self.lock()?;
        self.connect(&mut link, settings)?;
        link.last_number += 1;
        let number = link.last_number;
        link.waiting.insert(number, Arc::downgrade(connection));
        if !self.send(&mut link, SocketCall::Offer { connection: number, socket }, &[]) {
            link.waiting.remove(&number);
            return None;
        }
        Some(number)
    }

    /// Takes an offer of a socket back. If the node has matched it meanwhile, that is undone.
    pub(crate) fn withdraw(&self, number: u64, cookie: u64) {
        self.send_or_queue(None, SocketCall::Withdraw { connection: number, cookie });
    }

    /// An end is not used any more.
    pub(crate) fn release(&self, seat: &Seat) {
        self.send_for(seat, |end| SocketCall::Release { end });
    }

    /// The ring from this end was full.
    #[cold]
    pub(crate) fn grow(&self, seat: &Seat) {
        self.send_for(seat, |end| SocketCall::Grow { end });
    }

    /// This process holds an end no more; others do.
    pub(crate) fn let_go(&self, seat: &Seat) {
        self.send_for(seat, |end| SocketCall::LetGo { end });
    }

    /// The kernel reports that the other end, on another node, has ended: is all here that it sent
    /// by the ring? The question is asked again with the next peek at the kernel's socket; without
    /// a node the connection is broken.
    #[cold]
    pub(crate) fn ask_for_the_rest(&self, seat: &Seat) {
        self.send_for(seat, |end| SocketCall::Ended { end });
    }

    /// Remembers a connection to another node. False: not now.
    #[cold]
    pub(crate) fn follow_between(&self, connection: &Connection) -> bool {
        self.has_between.store(true, Ordering::Relaxed);
        let Some(mut link) = self.lock() else { return false };
        if link.between.len() >= BETWEEN_LIST_MAX {
            link.between.retain(|c| c.strong_count() > 0);
        }
        if link.between.len() < BETWEEN_LIST_MAX {
            link.between.push(connection.weak());
        }
        true
    }

    /// Whether a connection to another node is among ours.
    #[inline]
    pub(crate) fn has_between(&self) -> bool {
        self.has_between.load(Ordering::Relaxed)
    }

    /// Whether the node was lost after this time.
    #[inline]
    pub(crate) fn was_lost_after(&self, at: Nanos) -> bool {
        self.lost_at.load(Ordering::Acquire) > at.0
    }

    /// Checks whether the node is alive.
    #[cold]
    pub(crate) fn check_alive(&self) {
        let Some(mut link) = self.lock() else { return };
        if link.channel.is_none() {
            // A child of a fork that could not reach it.
            return self.lose(&mut link, Bypass::NoNode);
        }
        self.receive_messages(&mut link);
    }

    /// Ends inherited by fork.
    pub(crate) fn hold(&self, settings: &Settings, ends: &[EndRef]) {
        let Some(mut link) = self.lock_bounded() else { return };
        if self.connect(&mut link, settings).is_some() {
            let mut batches = ends.chunks(HOLD_BATCH);
            if batches.all(|ends| self.send(&mut link, SocketCall::Hold { ends: ends.to_vec() }, &[])) {
                let _ = self.held.set(link.session.clone());
            }
        }
    }

    /// Asks where a socket from elsewhere that is upgraded goes on; waits for the answer.
    pub(crate) fn adopt(&self, settings: &Settings, fd: BorrowedFd<'_>, deadline: Deadline) -> Option<Adoption> {
        let cookie = vmmc_stream::cookie(fd).ok()?;
        // Others hold the lock for a message or two; not to know is no answer here.
        let number = {
            let mut link = self.lock_blocking()?;
            self.connect(&mut link, settings)?;
            link.last_number += 1;
            let number = link.last_number;
            self.send(&mut link, SocketCall::Adopt { connection: number, cookie }, &[]).then_some(number)?
        };
        loop {
            let mut link = self.lock_blocking()?;
            self.receive_messages(&mut link);
            if let Some(answer) = link.adopted.remove(&number) {
                return Some(answer);
            }
            link.channel.as_ref()?;
            deadline.left(Nanos::monotonic())?;
            // Not with the lock: what others have to send meanwhile, a release or a ring, would get
            // lost.
            drop(link);
            std::thread::sleep(ADOPT_PAUSE);
        }
    }
}
